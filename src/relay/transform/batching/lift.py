"""A clause's code for all its nodes at once: every operator becomes its batched form.

Each value of a clause has a *stage*. What follows from the invariant arguments alone is the same for every node (`UNIFORM`, not
batched); what follows from tensors in the structure too is computed for all nodes of the clause before any level (`WHOLE`); what
needs the results of recursive calls, level by level (`LEVEL`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import cast

from relay.ir.dim import Dim, dim_vars, is_any
from relay.ir.effects import Effect
from relay.ir.expr import (
    Attrs,
    Binding,
    Call,
    ConstructorRef,
    Expr,
    GlobalVar,
    OpRef,
    Proj,
    RefNew,
    RefRead,
    RefWrite,
    Tuple,
    Var,
)  # fmt: skip
from relay.ir.types import DTYPE_BITS, TensorType, TupleType, Type
from relay.op import registry
from relay.op.batched import SUFFIX, can_batch
from relay.transform.batching.clauses import Clause, Group, NotStructural, Path
from relay.transform.batching.describe import SiteAt, Tables
from relay.transform.blocks import CHECK_EQUAL, is_atom
from relay.transform.build import internal_call, type_of
from relay.typing.effects import Effects

UNIFORM, WHOLE, LEVEL = 0, 1, 2
INDEX = "int64"


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A value of the clause: an atom of its stage's block, of the type it has for one node (``ty``)."""

    atom: Expr
    stage: int
    ty: Type


# A value, or the values of a tuple's fields.
Lifted = Value | tuple["Lifted", ...]


def with_rows(ty: Type, rows: Dim) -> Type:
    """The type of the same value for many nodes."""
    match ty:
        case TensorType(shape=tuple() as shape):
            return TensorType((rows, *shape), ty.dtype, ty.device)
        case TupleType():
            return TupleType(tuple(with_rows(f, rows) for f in ty.fields))
        case _:
            raise NotStructural("a value that is not made of tensors is computed in the recursion")


def leaves(ty: Type) -> list[TensorType]:
    """The tensors of a type of tensors and tuples, in order."""
    out: list[TensorType] = []
    todo: list[Type] = [ty]
    while todo:
        t = todo.pop()
        if isinstance(t, TupleType):
            todo.extend(reversed(t.fields))
        else:
            assert isinstance(t, TensorType)
            out.append(t)
    return out


@dataclass(slots=True, eq=False)
class Emitter:
    """Bindings of a block under construction."""

    bindings: list[Binding] = field(default_factory=list)

    def bind(self, name: str, value: Expr, ty: Type) -> Var:
        var = Var(name, None, ty)
        self.bindings.append(Binding(var, value))
        return var

    def op(self, name: str, args: Sequence[Expr], ty: Type, hint: str, **attrs: object) -> Var:
        return self.bind(hint, internal_call(name, args, ty, MappingProxyType(attrs)), ty)  # type: ignore[arg-type]


@dataclass(slots=True, eq=False)
class Lifter:
    """Lifts one clause.

    ``rows`` and ``level_rows`` are how many nodes it has, in all and on a level; ``uniform`` and ``whole`` are the blocks for these
    stages (the same for all clauses), ``level`` its own. ``carry`` gives the level function's variable for one of the function
    around it; ``slice`` the rows of this level of such a variable; ``children`` the results of a site; ``payload`` a tensor of the
    nodes; ``repeat`` what is the same for every node once for each.
    """

    group: Group
    effects: Effects
    clause: Clause
    number: int
    rows: Dim
    level_rows: Dim
    uniform: Emitter
    whole: Emitter
    level: Emitter
    carry: Callable[[Var], Var]
    slice: Callable[[Var, Type], Expr]
    children: Callable[[int, int], Lifted]
    payload: Callable[[int, TensorType], Var]
    repeat: Callable[[Expr, Type, int], Expr]
    env: dict[Var, Lifted] = field(default_factory=dict)
    sites: list[SiteAt] = field(default_factory=list)
    payloads: list[tuple[Path, TensorType]] = field(default_factory=list)
    _inside: dict[Expr, Expr] = field(default_factory=dict)

    def run(self) -> tuple[Lifted, Tables]:
        """The clause's result, and what it takes out of the structure. Raises NotStructural."""
        for binding in self.clause.bindings:
            self.env[binding.var] = self._binding(binding)
        return self._value(self.clause.result), Tables(self.sites, self.payloads)

    # -- values

    def _value(self, atom: Expr) -> Lifted:
        if isinstance(atom, Var):
            found = self.env.get(atom)
            if found is None:
                found = self.env[atom] = (
                    self._part(atom) if atom in self.clause.parts else Value(atom, UNIFORM, type_of(atom))
                )
            return found
        return Value(atom, UNIFORM, type_of(atom))

    def _part(self, var: Var) -> Value:
        """A tensor that stands in the structure."""
        path, ty = self.clause.parts[var], var.ty
        if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple):
            raise NotStructural(f"%{var.name}, a part of the structure that is no tensor, is used as a whole")
        if not isinstance(ty.dtype, str) or DTYPE_BITS[ty.dtype] < 8 or any(map(is_any, ty.shape)):
            raise NotStructural(f"%{var.name} has the type {ty}, whose rows cannot be joined")
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
        if value.stage < stage == LEVEL and isinstance(atom, Var):
            inside = self._inside.get(atom)
            if inside is None:
                inside = self.carry(atom) if value.stage == UNIFORM else self.slice(atom, value.ty)
                self._inside[atom] = inside
            atom = inside
        if spread and value.stage == UNIFORM:
            out = self.level if stage == LEVEL else self.whole
            atom = out.bind("each", self.repeat(atom, value.ty, stage), with_rows(value.ty, self.rows_at(stage)))
        return atom

    def rows_at(self, stage: int) -> Dim:
        return self.level_rows if stage == LEVEL else self.rows

    def field(self, value: Value, n: int) -> Lifted:
        """A field of a value of tuple type."""
        assert isinstance(value.ty, TupleType)
        ty = value.ty.fields[n]
        made = self._emit("field", Proj(value.atom, n), ty, value.stage)
        if not isinstance(ty, TupleType):
            return made
        return tuple(self.field(made, m) for m in range(len(ty.fields)))

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
                assert isinstance(whole.ty, TupleType)
                ty = whole.ty.fields[value.index]
                return self._emit(var.name, Proj(whole.atom, value.index), ty, whole.stage)
            case Call(fn=OpRef(name=name)):
                return self._operator(var, value, name)
            case Call(fn=GlobalVar(name=name)) if name in self.group.number:
                return self._site(value, name)
            case Call(fn=GlobalVar(name=name)):
                raise NotStructural(f"it calls @{name}, which is not part of the recursion")
            case Call(fn=ConstructorRef(name=name)):
                raise NotStructural(f"it makes a {name}")
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
        out = (self.uniform, self.whole, self.level)[stage]
        full = ty if stage == UNIFORM else with_rows(ty, self.rows_at(stage))
        return Value(out.bind(name, replace(value, ty=full), full), stage, ty)

    def _operator(self, var: Var, call: Call, name: str) -> Value:
        if name == CHECK_EQUAL:
            raise NotStructural(f"a size is checked when it runs ({call.attrs['why']})")
        if not registry.exists(name):
            raise NotStructural(f"it has the operation {name}, which has no batched form")
        if self.effects.of(call) != Effect.PURE:
            raise NotStructural(f"operator {name} may fail or has effects")
        args = [self._value(a) for a in call.args]
        flat = [v for a in args for v in flat_values(a)]
        stage = max((v.stage for v in flat), default=UNIFORM)
        ty = type_of(var)
        if stage == UNIFORM:
            return self._emit(var.name, self._call(call, args, name, call.attrs, stage, ty), ty, stage)
        op = registry.get(name)
        if not can_batch(op):
            raise NotStructural(f"operator {name} has no batched form")
        mask = tuple(int(v.stage != UNIFORM) for v in flat for _ in leaves(v.ty))
        attrs = MappingProxyType({**call.attrs, "mask": mask})
        return self._emit(var.name, self._call(call, args, name + SUFFIX, attrs, stage, ty), ty, stage)

    def _call(self, call: Call, args: Sequence[Lifted], name: str, attrs: Attrs, stage: int, ty: Type) -> Call:
        full = ty if stage == UNIFORM else with_rows(ty, self.rows_at(stage))
        return internal_call(name, [self._argument(a, stage) for a in args], full, attrs, call.span)

    def _argument(self, value: Lifted, stage: int) -> Expr:
        if isinstance(value, Value) and isinstance(value.ty, TupleType) and value.stage < stage == LEVEL:
            value = tuple(self.field(value, n) for n in range(len(value.ty.fields)))
        if isinstance(value, Value):
            return self.at(value, stage)
        fields = tuple(self._argument(f, stage) for f in value)
        out = (self.uniform, self.whole, self.level)[stage]
        ty = TupleType(tuple(type_of(f) for f in fields))
        return out.bind("parts", Tuple(fields, ty), ty)

    def _site(self, call: Call, name: str) -> Lifted:
        arg = call.args[self.group.data_of(name)]
        assert isinstance(arg, Var)
        site = SiteAt(self.clause.parts[arg], self.group.number[name])
        if site not in self.sites:
            self.sites.append(site)
        return self.children(self.sites.index(site), site.target)


def flat_values(value: Lifted) -> list[Value]:
    """The values of a lifted result, tuples taken apart."""
    out: list[Value] = []
    todo: list[Lifted] = [value]
    while todo:
        v = todo.pop()
        if isinstance(v, Value):
            out.append(v)
        else:
            todo.extend(reversed(v))
    return out


def _dims(ty: TensorType) -> Collection[object]:
    return [v for d in cast("tuple[Dim, ...]", ty.shape) for v in dim_vars(d)]
