"""A clause's code for all its nodes at once: every operator becomes its batched form.

When that can be done is the *stage* of the value (`relay.transform.batching.lifted`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import cast

import numpy as np

from relay.ir.dim import Dim, dim_vars, is_any
from relay.ir.effects import CHECK_EQUAL, Effect
from relay.ir.expr import (
    Attrs,
    Binding,
    Block,
    Call,
    ConstructorRef,
    Expr,
    GlobalVar,
    If,
    OpRef,
    Proj,
    RefNew,
    RefRead,
    RefWrite,
    Tuple,
    Var,
)  # fmt: skip
from relay.ir.record import record
from relay.ir.types import DTYPE_BITS, TensorType, TupleType, Type
from relay.ir.walk import free_vars
from relay.op import registry
from relay.op.batched import SUFFIX, can_batch
from relay.transform.access import AccessTable
from relay.transform.batching.clauses import Group, NotStructural, leaves
from relay.transform.batching.decisions import Clause, Path
from relay.transform.batching.describe import ListAt, SiteAt, Tables
from relay.transform.batching.levels import SCALAR
from relay.transform.batching.lifted import (
    AFTER,
    ASKED,
    DOWN,
    LEVEL,
    UNIFORM,
    WHOLE,
    Built,
    Emitter,
    Lifted,
    ListValue,
    Made,
    Value,
    flat_values,
    nest,
    with_rows,
)  # fmt: skip
from relay.transform.batching.lists import Items, Layout, Put
from relay.transform.blocks import is_atom
from relay.transform.build import constant, internal_call, type_of
from relay.transform.failing import may_fail
from relay.transform.steepness import Steepness
from relay.typing.effects import Effects
from relay.typing.text import type_text

_FLAG = TensorType((), "bool")


@record(frozen=True, slots=True, eq=False)
class Owner:
    """What the items of a list need from the clause that owns it: ``gather`` gives items a value of their owners, at a stage;
    ``fold`` puts the values of items (of a type for one of them) into what each owner starts with, at a stage, perhaps backwards."""

    gather: Callable[[Value, int], Expr]
    fold: Callable[[Put, Expr, Expr, TensorType, int, bool], Var]


@record(slots=True, eq=False)
class Lifter:
    """Lifts one clause.

    ``rows`` are how many nodes it has in all, ``now`` how many on a level (of stages that go by levels); ``blocks`` are the blocks of the
    stages, of which only the last is its own. ``carry`` gives the level function's variable for one of the function around it;
    ``slice`` the rows of this level of such a variable; ``children`` the results of a site; ``payload`` a tensor of the nodes;
    ``repeat`` what is the same for every node once for each; ``outside`` what the caller of the recursion computes, and its lifter;
    ``request`` the rows that the nodes' requests have there; ``given`` a
    changing argument of the function, on a level of the way down or for all nodes afterwards; ``computed`` what was computed on the
    way down for all nodes; ``hand_down`` takes the changing arguments of a site.
    """

    group: Group
    effects: Effects
    clause: Clause
    number: int
    rows: Dim
    now: Mapping[int, Dim]
    blocks: Sequence[Emitter]
    carry: Callable[[Var, int], Var]
    slice: Callable[[Var, Type, int], Expr]
    children: Callable[[int, int], Lifted]
    payload: Callable[[int, TensorType], Var]
    repeat: Callable[[Expr, Type, int], Expr]
    list_items: Callable[[Path, Layout], tuple[Lifter, Owner]]
    outside: Callable[[Var], tuple[Lifter, Lifted] | None]
    request: Callable[[], Var]
    given: Callable[[int, int], Expr]
    computed: Callable[[Value], Expr]
    hand_down: Callable[[int, int, Sequence[Value]], None]
    owner: tuple[Lifter, Owner] | None = None
    env: dict[Var, Lifted] = field(default_factory=dict)
    sites: list[SiteAt | ListAt] = field(default_factory=list)
    payloads: list[tuple[Path, TensorType]] = field(default_factory=list)
    _seen: dict[tuple[Expr, int], Expr] = field(default_factory=dict)
    _arguments: dict[Expr, int] = field(default_factory=dict)  # what stands for a changing argument: its number
    _of_owner: dict[Expr, Value] = field(
        default_factory=dict
    )  # what stands for an owner's value, once for each of its items
    _of_request: dict[Expr, tuple[Lifter, Value]] = field(
        default_factory=dict
    )  # what stands for a value of the request, with the lifter that has it
    # Matrices that each node takes from a table: a level takes those of its nodes again, where they are read.
    _matrices: dict[Expr, Callable[[int], Value]] = field(default_factory=dict)
    _sites: dict[tuple[SiteAt, tuple[Expr, ...]], int] = field(default_factory=dict)
    _any: Var | None = None  # whether there is a node of the clause
    _needed: frozenset[Var] = frozenset()  # by changing arguments of calls

    def run(self) -> tuple[Lifted, Tables]:
        """The clause's result, and what it takes out of the structure. Raises NotStructural."""
        self._needed = _handed_down(self.group, self.clause)
        for binding in self.clause.bindings:
            items = self.clause.lists.get(binding.var)
            self.env[binding.var] = self._binding(binding) if items is None else self._items(items, binding.var)
        return self._value(self.clause.result), Tables(self.sites, self.payloads)

    # -- values

    def _value(self, atom: Expr) -> Lifted:
        if isinstance(atom, ConstructorRef):
            return Built(self.group.module.constructors[atom.name], ())
        if not isinstance(atom, Var):
            return Value(atom, UNIFORM, type_of(atom))
        found = self.env.get(atom)
        if found is None:
            found = self.env[atom] = self._outer(atom)
        return found

    def _outer(self, var: Var) -> Lifted:
        """A variable that the code does not bind: a part of the structure, something of the owner of a list, an invariant."""
        if var in self.clause.parts:
            return self._part(var)
        if self.clause.function >= 0 and var in self.group.functions[self.clause.function].changing:
            return self._argument_of(var)
        if self.owner is not None:
            return self._owned(self.owner[0]._value(var))
        found = self.outside(var)
        if found is None:
            return Value(var, UNIFORM, type_of(var))
        return self._asked(*found)

    def _asked(self, asked: Lifter, value: Lifted) -> Lifted:
        """A value of what is done with the request, for each of its nodes."""
        if isinstance(value, ListValue | Built | Made):
            raise NotStructural("a value of a data type that a request makes is used in its recursion")
        if isinstance(value, tuple):
            return tuple(self._asked(asked, f) for f in value)
        if value.stage == UNIFORM:
            return value
        if value.stage > WHOLE:
            raise self._depends()
        if isinstance(value.ty, TupleType):
            return tuple(self._asked(asked, asked.field(value, n)) for n in range(len(value.ty.fields)))
        mark = Var("asked", None, value.ty)
        self._of_request[mark] = asked, value
        return Value(mark, ASKED, value.ty)

    def _in_request(self, var: Var, call: Call, args: Sequence[Lifted]) -> Lifted:
        """What follows from values of the request alone is computed there."""
        asked = next(self._of_request[v.atom][0] for a in args for v in flat_values(a) if v.stage == ASKED)

        def there(value: Lifted) -> Lifted:
            if isinstance(value, tuple):
                return tuple(there(f) for f in value)
            assert isinstance(value, Value)
            return self._of_request[value.atom][1] if value.stage == ASKED else value

        atoms = [Var("asked", None, type_of(a)) for a in call.args]
        asked.env.update(zip(atoms, map(there, args), strict=True))
        result = Var(var.name, None, var.ty)
        return self._asked(asked, asked._binding(Binding(result, replace(call, args=tuple(atoms)))))

    def argument(self, value: Value) -> int | None:
        """Which changing argument a value is; None for what is computed."""
        return self._arguments.get(value.atom)

    def _argument_of(self, var: Var) -> Lifted:
        """A changing argument of the function."""
        changing = self.group.functions[self.clause.function].changing
        before = [p for p in changing[: changing.index(var)] for _ in leaves(type_of(p))]
        values: list[Value] = []
        for n, ty in enumerate(leaves(type_of(var)), len(before)):
            mark = Var(var.name, None, ty)
            self._arguments[mark] = n
            values.append(Value(mark, DOWN, ty))
        return nest(type_of(var), iter(values), iter(()))

    def _owned(self, value: Lifted) -> Lifted:
        """A value of the owner for each of its items."""
        assert self.owner is not None
        if isinstance(value, ListValue):
            raise NotStructural("the items of a list use another list")
        if isinstance(value, Built | Made):
            raise NotStructural("the items of a list use a value of a data type that their owner makes")
        if isinstance(value, tuple):
            return tuple(self._owned(f) for f in value)
        if value.stage == UNIFORM:
            return value
        if value.stage == ASKED:
            return self._asked(*self.owner[0]._of_request[value.atom])
        assert isinstance(value.atom, Var)
        if isinstance(value.ty, TupleType):
            return tuple(self._owned(self.owner[0].field(value, n)) for n in range(len(value.ty.fields)))
        mark = Var(value.atom.name, None, value.ty)
        self._of_owner[mark] = value
        # Where nothing is handed down, items are only used level by level.
        return Value(mark, value.stage if self.group.hands_down else LEVEL, value.ty)

    def _part(self, var: Var) -> Value:
        """A tensor that stands in the structure."""
        path, ty = self.clause.parts[var], var.ty
        if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple):
            raise NotStructural(f"%{var.name}, a part of the structure that is no tensor, is used as a whole")
        if not isinstance(ty.dtype, str) or DTYPE_BITS[ty.dtype] < 8 or any(map(is_any, ty.shape)):
            raise NotStructural(f"%{var.name} has the type {type_text(ty)}, whose rows cannot be joined")
        known = {v for p in self.group.root.params if isinstance(p.ty, TensorType) for v in _dims(p.ty)}
        if not all(v in known for v in _dims(ty)):
            raise NotStructural(f"no argument says the sizes of %{var.name}")
        for n, (other, _) in enumerate(self.payloads):
            if other == path:
                return Value(self.payload(n, ty), WHOLE, ty)
        self.payloads.append((path, ty))
        return Value(self.payload(len(self.payloads) - 1, ty), WHOLE, ty)

    def at(self, value: Value, stage: int, spread: bool = False) -> Expr:
        """The value as an atom of a stage's block; with ``spread`` batched even if it is the same for every node."""
        atom = value.atom
        if isinstance(atom, Var):
            atom = self._seen_from(stage, value, atom)
        if spread and value.stage == UNIFORM:
            full = with_rows(value.ty, self.rows_at(stage))
            # For all nodes this can be made as early as anything.
            out = self.blocks[WHOLE if stage == AFTER else stage]
            atom = out.bind("each", self.repeat(atom, value.ty, stage), full)
        return atom

    def _seen_from(self, stage: int, value: Value, atom: Var) -> Expr:
        """A variable of a value's stage in the block of a later one."""
        by_level = stage in (DOWN, LEVEL)
        argument, of_owner, of_request = self._arguments.get(atom), self._of_owner.get(atom), self._of_request.get(atom)
        moved = value.stage != stage and (by_level or value.stage > WHOLE)
        if not moved and argument is None and of_owner is None and of_request is None:
            return atom
        seen = self._seen.get((atom, stage))
        if seen is None:
            if of_owner is not None:
                assert self.owner is not None
                seen = self.owner[1].gather(of_owner, stage)
            elif of_request is not None:
                whole, at = of_request[0].at(of_request[1], WHOLE), self.request()
                assert isinstance(whole, Var)
                rows: Expr = at
                if by_level:
                    whole, rows = self.carry(whole, stage), self.slice(at, SCALAR, stage)
                full = with_rows(value.ty, self.rows_at(stage))
                seen = self.blocks[stage].op("take", (whole, rows), full, "asked", axis=0, mode="fast")
            elif value.stage == UNIFORM:
                seen = self.carry(atom, stage)
            elif value.stage == DOWN and stage == AFTER:
                seen = self.computed(value) if argument is None else self.given(argument, AFTER)
            elif value.stage == stage:
                assert argument is not None
                seen = self.given(argument, DOWN)
            elif by_level and (take := self._matrices.get(atom)) is not None:
                seen = take(stage).atom
            else:
                whole = self.at(value, AFTER) if value.stage == DOWN else atom
                assert isinstance(whole, Var)
                seen = self.slice(whole, value.ty, stage)
            self._seen[atom, stage] = seen
        return seen

    def rows_at(self, stage: int) -> Dim:
        return self.now.get(stage, self.rows)

    def field(self, value: Value, n: int) -> Lifted:
        """A field of a value of tuple type."""
        assert isinstance(value.ty, TupleType)
        ty = value.ty.fields[n]
        made = self._emit("field", Proj(value.atom, n, ty), ty, value.stage)
        if not isinstance(ty, TupleType):
            return made
        return tuple(self.field(made, m) for m in range(len(ty.fields)))

    def tensors(self, value: Value) -> list[Value]:
        """The tensors of a value: itself, or those in its fields."""
        if not isinstance(value.ty, TupleType):
            return [value]
        fields = [self.field(value, n) for n in range(len(value.ty.fields))]
        return [v for f in fields for v in flat_values(f)]

    # -- bindings

    def _binding(self, binding: Binding) -> Lifted:
        value, var = binding.value, binding.var
        match value:
            case Tuple():
                return tuple(self._value(f) for f in value.fields)
            case Proj():
                whole = self._value(value.tuple)
                if isinstance(whole, tuple):
                    return whole[value.index]
                assert isinstance(whole, Value) and isinstance(whole.ty, TupleType)
                ty = whole.ty.fields[value.index]
                return self._emit(var.name, Proj(whole.atom, value.index, ty), ty, whole.stage)
            case Call(fn=OpRef(name=name)):
                return self._operator(var, value, name)
            case Call(fn=GlobalVar(name=name)) if name in self.group.number:
                return self._site(value, name)
            case Call(fn=GlobalVar(name=name)):
                raise NotStructural(f"it calls @{name}, which is not part of the recursion")
            case Call(fn=ConstructorRef(name=name)):
                constructor = self.group.module.constructors[name]
                return Built(constructor, tuple(self._value(a) for a in value.args))
            case Call():
                raise NotStructural("it calls a function that is only known when it runs")
            case RefNew() | RefRead() | RefWrite():
                raise NotStructural("it uses references")
            case _ if is_atom(value):
                found = self._value(value)
                if isinstance(found, Value) and found.ty != var.ty:
                    raise NotStructural(f"the type of %{var.name} is checked when it runs")
                return found
            case _:
                raise NotStructural(f"it has a {type(value).__name__.lower()}, which has no batched form")

    def _emit(self, name: str, value: Call | Proj, ty: Type, stage: int) -> Value:
        full = ty if stage == UNIFORM else with_rows(ty, self.rows_at(stage))
        return Value(self.blocks[stage].bind(name, replace(value, ty=full), full), stage, ty)

    @staticmethod
    def _depends() -> NotStructural:
        return NotStructural("an argument of a recursive call depends on the result of another")

    def _stage(self, var: Var, values: Sequence[Value]) -> int:
        """When something can be computed from these values. Raises NotStructural."""
        stage = max((v.stage for v in values), default=UNIFORM)
        if var in self._needed and stage > DOWN:
            raise self._depends()
        return AFTER if stage == DOWN and var not in self._needed else stage

    def _operator(self, var: Var, call: Call, name: str) -> Lifted:
        if name == CHECK_EQUAL:
            raise NotStructural(f"a size is checked when it runs ({call.attrs['why']})")
        if not registry.exists(name):
            raise NotStructural(f"it has the operation {name}, which has no batched form")
        if self.effects.of(call) != Effect.PURE:
            raise NotStructural(f"operator {name} may fail or has effects")
        args = [self._value(a) for a in call.args]
        flat = [v for a in args for v in flat_values(a)]
        stage = self._stage(var, flat)
        ty = type_of(var)
        if stage == ASKED:
            return self._in_request(var, call, args)
        if stage == UNIFORM:
            same = self._call(call, args, name, call.attrs, stage, ty)
            if may_fail(call) or (self.group.differentiated and Steepness().of(call)):
                return self._where_there_are_nodes(var.name, same, ty)
            return self._emit(var.name, same, ty, stage)
        op = registry.get(name)
        if not can_batch(op):
            raise NotStructural(f"operator {name} has no batched form")
        if any(v.atom in self._matrices for v in flat) and _multiplies(call):
            args = [self._row_of_each(a, stage) for a in args]
            flat = [v for a in args for v in flat_values(a)]
        mask = tuple(int(v.stage != UNIFORM) for v in flat for _ in leaves(v.ty))
        attrs = MappingProxyType({**call.attrs, "mask": mask})

        def emit(stage: int) -> Value:
            return self._emit(var.name, self._call(call, args, name + SUFFIX, attrs, stage, ty), ty, stage)

        made = emit(stage)
        # (Of all nodes, they would be copied to more memory than any cache holds. Of what is differentiated, the gradients of all nodes
        # go to the table at once, and not once a level.)
        if not self.group.differentiated and stage == WHOLE and name == "take" and mask == (0, 1) and _is_matrix(ty):
            self._matrices[made.atom] = emit
        return made

    def _row_of_each(self, value: Lifted, stage: int) -> Lifted:
        """A vector that all nodes multiply by matrices of a table, each by its own, as a row for each: rows of one matrix are a product
        (`plan.row_groups`), where a vector of its own would go by each matrix."""
        if not isinstance(value, Value) or value.stage != UNIFORM or _is_matrix(value.ty):
            return value
        return Value(self.at(value, stage, spread=True), stage, value.ty)

    def _where_there_are_nodes(self, name: str, call: Call, ty: Type) -> Value:
        """What is the same for every node, and zeros if there is none: 0 times a slope that may be infinite would come back then, and what
        may fail would."""
        out = self.blocks[UNIFORM]
        if self._any is None:
            each = out.bind(
                "each", self.repeat(constant(np.array(True), "bool"), _FLAG, UNIFORM), with_rows(_FLAG, self.rows)
            )
            self._any = out.op("any", (each,), _FLAG, "any")
        there, nowhere = Emitter(), Emitter()
        value = there.bind(name, call, ty)
        zeros = [nowhere.op("zeros", (), t, name, shape=t.shape, dtype=t.dtype) for t in leaves(ty)]
        nothing = zeros[0] if isinstance(ty, TensorType) else nowhere.bind(name, Tuple(tuple(zeros), ty), ty)
        sides = (Block(tuple(there.bindings), value, ty), Block(tuple(nowhere.bindings), nothing, ty))
        return Value(out.bind(name, If(self._any, *sides, ty, call.span), ty), UNIFORM, ty)

    def _call(self, call: Call, args: Sequence[Lifted], name: str, attrs: Attrs, stage: int, ty: Type) -> Call:
        full = ty if stage == UNIFORM else with_rows(ty, self.rows_at(stage))
        return internal_call(name, [self._argument(a, stage) for a in args], full, attrs, call.span)

    def _argument(self, value: Lifted, stage: int) -> Expr:
        if isinstance(value, ListValue | Built | Made):
            raise NotStructural("a value of a data type is used as a whole")
        if isinstance(value, Value) and isinstance(value.ty, TupleType) and self._is_moved(value, stage):
            value = tuple(self.field(value, n) for n in range(len(value.ty.fields)))
        if isinstance(value, Value):
            return self.at(value, stage)
        fields = tuple(self._argument(f, stage) for f in value)
        ty = TupleType(tuple(type_of(f) for f in fields))
        return self.blocks[stage].bind("parts", Tuple(fields, ty), ty)

    @staticmethod
    def _is_moved(value: Value, stage: int) -> bool:
        """Whether a value has to be brought into another function for a stage, which is done tensor by tensor."""
        return value.stage < stage and (stage in (DOWN, LEVEL) or value.stage == DOWN)

    def _items(self, items: Items, var: Var) -> Lifted:
        """A map or a fold over a list."""
        if items.empty:
            return ListValue(None, None, var.ty) if items.start is None else self._value(items.start)
        source = self._value(items.source) if items.source not in self.clause.parts else None
        if source is None:
            assert isinstance(items.source, Var)
            source = ListValue(self.list_items(self.clause.parts[items.source], items.layout)[0], None, None)
        if not isinstance(source, ListValue) or source.items is None:
            raise NotStructural("a list is not made of the items of a list in the structure")
        inside = source.items
        inside._needed |= self._needed
        if items.item is not None:
            if source.value is None:
                inside.clause.parts[items.item] = ()
            else:
                inside.env[items.item] = source.value
        for binding in items.code:
            code = binding.value
            if isinstance(code, Proj) and isinstance(code.tuple, Var) and code.tuple in inside.clause.parts:
                inside.clause.parts[binding.var] = (*inside.clause.parts[code.tuple], code.index)
            else:
                inside.env[binding.var] = inside._binding(binding)
        value = inside._value(items.value)
        if items.start is None:
            return ListValue(inside, value, var.ty)
        starts = [t for v in flat_values(self._value(items.start)) for t in self.tensors(v)]
        values = [t for v in flat_values(value) for t in inside.tensors(v)]
        folds = zip(items.puts, starts, values, strict=True)
        totals = [self._fold(inside, put, start, each, var, items.backwards) for put, start, each in folds]
        return nest(type_of(var), iter(totals), iter(()))

    def _fold(self, inside: Lifter, put: Put, start: Value, each: Value, var: Var, backwards: bool) -> Value:
        """The values of a list's items put into what their owners start with."""
        assert inside.owner is not None and isinstance(each.ty, TensorType)
        stage = max(WHOLE, self._stage(var, [each, start]))
        items = inside.at(each, stage, spread=True)
        total = inside.owner[1].fold(put, self.at(start, stage), items, each.ty, stage, backwards)
        return Value(total, stage, each.ty)

    def _site(self, call: Call, name: str) -> Lifted:
        arg = call.args[self.group.data_of(name)]
        assert isinstance(arg, Var)
        if arg not in self.clause.parts:
            raise NotStructural(f"a call of @{name} is not on an item of a list in the structure")
        callee = self.group.functions[self.group.number[name]]
        part = self.group.part_of(name, self.clause, self.clause.parts[arg], type_of(arg))
        site = SiteAt(part, self.group.number[name])
        args = tuple(call.args[n] for n in callee.positions)
        at = self._sites.get((site, args))
        if at is None:
            at = self._sites[site, args] = len(self.sites)
            self.sites.append(site)
            if args:
                self._hand_down(at, site.target, args)
        return self.children(at, site.target)

    def _hand_down(self, site: int, target: int, args: Sequence[Expr]) -> None:
        values = [t for a in args for v in flat_values(self._value(a)) for t in self.tensors(v)]
        if any(v.stage > DOWN for v in values):
            raise self._depends()
        self.hand_down(site, target, values)


def _multiplies(call: Call) -> bool:
    access = AccessTable().of(call)
    return access is not None and access.kind == "contraction"


def _is_matrix(ty: Type) -> bool:
    return isinstance(ty, TensorType) and isinstance(ty.shape, tuple) and sum(d != 1 for d in ty.shape) > 1


def _handed_down(group: Group, clause: Clause) -> frozenset[Var]:
    """What the changing arguments of a clause's calls follow from."""
    needed: set[Var] = set()
    for binding in reversed(clause.all_bindings()):
        value = binding.value
        if isinstance(value, Call) and isinstance(value.fn, GlobalVar) and value.fn.name in group.number:
            callee = group.functions[group.number[value.fn.name]]
            needed.update(a for n in callee.positions if isinstance(a := value.args[n], Var))
        if binding.var in needed:
            needed.update(free_vars(value))
    return frozenset(needed)


def _dims(ty: TensorType) -> Collection[object]:
    return [v for d in cast("tuple[Dim, ...]", ty.shape) for v in dim_vars(d)]
