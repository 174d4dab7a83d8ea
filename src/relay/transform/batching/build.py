"""A structural group as explicit code: linearise, hoist, leaves, levels.

def @f(%t, %w) {                                   # the same signature as before
  let %walk = rows.linearise(%t, spec=...);        # tables: rows, offsets of levels, indices of children, tensors of nodes
  ...                                              # UNIFORM and WHOLE stages of every clause
  let %state = rows.update(rows.empty(...), ...);  # clauses without calls
  let %done = @f.levels(1, %depth, ..., %state);   # the others, level by level; a level's rows are neighbours
  take(%done, root)
}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import cast

import numpy as np

from relay.ir.dim import Dim, DimVar, as_dim, as_var
from relay.ir.expr import Binding, Block, Call, Expr, Function, GlobalVar, If, Proj, Tuple, Var
from relay.ir.types import AdtType, FuncType, TensorType, TupleType, Type, TypeArg
from relay.transform.batching.assembly import Assembly, Source, values_made
from relay.transform.batching.clauses import Clause, Group, NotStructural, Path
from relay.transform.batching.describe import ListAt, Tables, Writer
from relay.transform.batching.lift import (
    LEVEL,
    WHOLE,
    Emitter,
    Lifted,
    Lifter,
    Made,
    Owner,
    Value,
    data_types,
    flat_values,
    leaves,
    tensors_of,
    with_rows,
)
from relay.transform.batching.lists import Layout
from relay.transform.build import constant, internal_call, type_of
from relay.transform.copying import Copier
from relay.transform.dims import DimUses
from relay.typing.effects import Effects

INDEX = "int64"
SCALAR = TensorType((), INDEX)


def fresh(name: str) -> Dim:
    return as_dim(DimVar(name))


def integer(value: int) -> Expr:
    return constant(np.array(value, np.int64), INDEX)


@dataclass(slots=True, eq=False)
class _Clause:
    """One clause while its code is made. ``indices`` are the rows of its sites' parts, ``tensors`` its payloads."""

    clause: Clause
    rows: Dim
    level_rows: Dim
    lifter: Lifter
    indices: list[Var] = field(default_factory=list)
    tensors: list[Var] = field(default_factory=list)
    result: Lifted = ()
    owners: Var | None = None  # of the items of a list: the rows that they belong to
    last: bool = False  # done once, after the levels: what is done with a request

    @property
    def tables(self) -> Tables:
        return Tables(self.lifter.sites, self.lifter.payloads)


@dataclass(slots=True, eq=False)
class _Kept:
    """A value of the levels, of type ``ty`` for one node, that is kept for all nodes of a clause: its room, what it is in the
    function of the levels before and after a level, and at the end."""

    clause: int
    inside: Var
    final: Var
    ty: Type
    room: Expr | None = None
    new: Expr | None = None


class Builder:
    """Makes the functions for one group: `build` gives the root's new body and the function of the levels. With ``single`` there is one
    request, and the root gives its result."""

    def __init__(self, group: Group, effects: Effects, name: str, taken: frozenset[str], single: bool = False) -> None:
        self.group = group
        self.rows_of_requests = group.many and not single
        self.effects = effects
        self.name = name
        self.taken = taken
        self.bindings: list[Binding] = []  # of the root
        self.level_dims: tuple[DimVar, ...] = ()
        self.tables: dict[int, _Clause] = {}  # by number: the clauses, then the items of lists
        self.uniform, self.whole, self.level, self.end = Emitter(), Emitter(), Emitter(), Emitter()
        makes = not self.rows_of_requests and bool(data_types(group.functions[0].result))
        self.assembly = Assembly(group, self._source) if makes else None
        self.kept: dict[Value, _Kept] = {}
        offsets = TensorType((fresh("levels"), fresh("clauses")), INDEX)
        self.offsets, self.offsets_in = Var("offsets", None, offsets), _param("offsets", offsets)
        self.roots = Var("roots", None, TensorType((fresh("roots"),), INDEX))
        self.at, self.depth, self.depth_in = (_param(n, SCALAR) for n in ("level", "depth", "depth"))
        # What the level function takes, by what it is given; the states in it, by function, as they are so far.
        self.carried: dict[Var, Var] = {}
        self.state_types = [
            [with_rows(t, n) for t in leaves(f.result)] for f in group.functions for n in [fresh("rows")]
        ]
        self.inner = [[_param("state", t) for t in types] for types in self.state_types]
        self.final = [[Var("state", None, t) for t in types] for types in self.state_types]  # after the levels
        if group.many:
            self.inner[0] = []  # no level makes or reads these

    def build(self) -> dict[str, Function]:
        """The functions to put in the module. Raises NotStructural."""
        group = self.group
        params = [list(states) for states in self.inner]
        clauses = [self._lift(n, clause) for n, clause in enumerate(group.clauses)]
        states = self._walk()
        states = self._leaf_clauses(clauses, states)
        levels = self._level_function(params)
        self._call_levels(levels, states)
        final: Sequence[Expr] = self._requests(clauses, states[0]) if group.many else self.final[0]
        return {self.name: self._root(final), levels[0].name: levels[1]}

    # -- clauses

    def _lift(self, number: int, clause: Clause) -> _Clause:
        made = self._clause(number, clause)
        made.result, tables = made.lifter.run()
        self.tables[number] = made
        if self.assembly is not None and data_types(self.group.functions[clause.function].result):
            self.assembly.clause(number, clause.function, self._source(made.lifter), values_made(made.result))
        if tables.sites and not made.last:
            states = self.inner[clause.function]
            new = []
            for value, state in zip(self._leaves(made, LEVEL), states, strict=True):
                args = (state, value, self.offsets_in, self.at)
                new.append(self.level.op("rows.update", args, type_of(state), "state", clause=number))
            self.inner[clause.function] = new
        return made

    def _clause(self, number: int, clause: Clause, owner: tuple[_Clause, int] | None = None) -> _Clause:
        """What a clause needs of the functions around it. ``owner``: of items, the clause of their list and its site there."""
        rows = fresh(f"rows{number}")
        last = self.group.many and (clause.function == 0 if owner is None else owner[0].last)
        level_rows = rows if last else fresh(f"now{number}")
        level = self.end if last else self.level
        here = (self.offsets, integer(-1)) if last else (self.offsets_in, self.at)

        def carry(var: Var) -> Var:
            if last:
                return var
            known = self.carried.get(var)
            if known is None:
                known = self.carried[var] = _param(var.name, type_of(var))
            return known

        def rows_of_level(var: Var, ty: Type) -> Expr:
            if last:
                return var
            return level.op("rows.slice", (carry(var), *here), with_rows(ty, level_rows), var.name, clause=number)

        def index(site: int) -> Var:
            while len(made.indices) <= site:
                made.indices.append(Var("children", None, TensorType((rows,), INDEX)))
            return made.indices[site]

        def children(site: int, target: int) -> Lifted:
            at = rows_of_level(index(site), SCALAR)
            function = self.group.functions[target]
            states = self.final if last else self.inner
            values = [
                Value(level.op("take", (state, at), with_rows(ty, level_rows), "child", axis=0, mode="fast"), LEVEL, ty)
                for state, ty in zip(states[target], leaves(function.result), strict=True)
            ]
            made_there = (Made(site, n) for n in range(len(data_types(function.result))))
            return _nest(function.result, iter(values), made_there)

        def payload(n: int, ty: TensorType) -> Var:
            while len(made.tensors) <= n:
                made.tensors.append(Var("part", None, with_rows(ty, rows)))
            return made.tensors[n]

        def repeat(atom: Expr, ty: Type, stage: int) -> Expr:
            at = here if stage == LEVEL else (self.offsets, integer(-1))
            full = with_rows(ty, level_rows if stage == LEVEL else rows)
            return internal_call("rows.repeat", (atom, *at), full, MappingProxyType({"clause": number}))

        def list_items(path: Path, layout: Layout) -> tuple[Lifter, Owner]:
            for site in made.lifter.sites:
                if isinstance(site, ListAt) and site.path == path:
                    known = self.tables[site.items].lifter
                    assert known.owner is not None
                    return known, known.owner[1]
            if owner is not None:
                raise NotStructural("a list in a list is looked at")
            items = max(self.tables, default=-1) + 1
            items = max(items, len(self.group.clauses))
            made.lifter.sites.append(ListAt(path, layout, items))
            at = len(made.lifter.sites) - 1
            index(at)
            made.indices[at] = Var("starts", None, TensorType((fresh("starts"),), INDEX))
            inside = self._clause(items, Clause(-1, (), clause.result, {}, {}), (made, at))
            self.tables[items] = inside
            inside.lifter.owner = (made.lifter, self._owner(made, number, at, inside, items))
            return inside.lifter, inside.lifter.owner[1]

        def outside(var: Var) -> Lifted | None:
            if not self.group.many or last:
                return None
            return next((c.lifter.env[var] for c in self.tables.values() if c.last and var in c.lifter.env), None)

        lifter = Lifter(
            self.group, self.effects, clause, number, rows, level_rows, self.uniform, self.whole, level,
            carry, rows_of_level, children, payload, repeat, list_items, outside,
        )  # fmt: skip
        made = _Clause(clause, rows, level_rows, lifter, last=last)
        return made

    def _source(self, lifter: Lifter) -> Source:
        """What the values that a clause makes are put together of."""
        made = next(c for c in self.tables.values() if c.lifter is lifter)

        def keep(value: Value) -> Expr:
            kept = self.kept.get(value)
            if kept is None:
                full = with_rows(value.ty, fresh("rows"))
                kept = self.kept[value] = _Kept(lifter.number, _param("kept", full), Var("kept", None, full), value.ty)
                args = (kept.inside, lifter.at(value, LEVEL), self.offsets_in, self.at)
                kept.new = self.level.op("rows.update", args, full, "kept", clause=lifter.number)
            return kept.final

        return Source(lifter, lambda site: made.indices[site], keep, made.last)

    def _owner(self, made: _Clause, number: int, site: int, inside: _Clause, items: int) -> Owner:
        """How the items of a list and the clause that it belongs to are joined."""
        owners = inside.owners = Var("owners", None, TensorType((inside.rows,), INDEX))
        level, here = (self.end, (self.offsets, integer(-1))) if made.last else (self.level, (self.offsets_in, self.at))

        def gather(var: Var, ty: Type, stage: int) -> Expr:
            assert stage == LEVEL
            at = inside.lifter.slice(owners, SCALAR)
            full = with_rows(ty, inside.level_rows)
            return level.op("take", (made.lifter.carry(var), at), full, var.name, axis=0, mode="fast")

        def total(start: Expr, each: Expr, ty: TensorType, stage: int, backwards: bool) -> Var:
            starts = made.indices[site]
            out, at = (level, (made.lifter.carry(starts), *here)) if stage == LEVEL else (
                self.whole, (starts, self.offsets, integer(-1))
            )  # fmt: skip
            full = with_rows(ty, made.lifter.rows_at(stage))
            return out.op("rows.segment_sum", (start, each, *at), full, "sum", clause=number, backwards=backwards)

        return Owner(gather, total)

    def _leaves(self, made: _Clause, stage: int) -> list[Expr]:
        """The tensors of a clause's result in a stage's block."""
        out: list[Expr] = []
        for value in tensors_of(made.result):
            if isinstance(value.ty, TupleType):
                fields = [made.lifter.field(value, n) for n in range(len(value.ty.fields))]
                out += [made.lifter.at(v, stage, spread=True) for f in fields for v in flat_values(f)]
            else:
                out.append(made.lifter.at(value, stage, spread=True))
        return out

    # -- the function around

    def _walk(self) -> list[list[Expr]]:
        """Linearise the structure and make room for the results."""
        writer = Writer()
        every = [self.tables[n] for n in sorted(self.tables)]
        tables = [c.tables for c in every]
        spec = writer.spec(self.group.functions, self.group.clauses, tables, self.group.many)
        parts = [self.depth, self.offsets, self.roots]
        for made in every:
            parts += [*([made.owners] if made.owners is not None else []), *made.indices, *made.tensors]
        first = Emitter()
        data = self.group.root.params[self.group.functions[0].data]
        ty = TupleType(tuple(type_of(v) for v in parts))
        walk = first.op("rows.linearise", (data,), ty, "walk", spec=spec, sizes=tuple(writer.sizes))
        first.bindings += [Binding(v, Proj(walk, n, v.ty)) for n, v in enumerate(parts)]
        states: list[list[Expr]] = []
        for n, function in enumerate(self.group.functions):
            last = max(m for m, c in enumerate(self.group.clauses) if c.function == n)
            room: list[Expr] = []
            for t in leaves(function.result):
                full, attrs = self.state_types[n][len(room)], {"shape": t.shape, "dtype": t.dtype, "number": len(room)}
                room.append(first.op("rows.empty", (self.offsets,), full, "state", clause=last, **attrs))
            states.append(room)
        for number, kept in enumerate(self.kept.values(), sum(map(len, states))):
            assert isinstance(kept.ty, TensorType)
            attrs = {"shape": kept.ty.shape, "dtype": kept.ty.dtype, "number": number}
            full = type_of(kept.final)
            kept.room = first.op("rows.empty", (self.offsets,), full, "kept", clause=kept.clause, **attrs)
        self.bindings = [*first.bindings, *self.uniform.bindings]
        return states

    def _leaf_clauses(self, clauses: list[_Clause], states: list[list[Expr]]) -> list[list[Expr]]:
        """The clauses that call nothing: all their nodes are on level 0."""
        after = Emitter()
        for number, made in enumerate(clauses):
            if made.tables.sites:
                continue
            own = states[made.clause.function]
            new: list[Expr] = []
            for value, state in zip(self._leaves(made, WHOLE), own, strict=True):
                args = (state, value, self.offsets, integer(-1))
                new.append(after.op("rows.update", args, type_of(state), "state", clause=number))
            states[made.clause.function] = new
        self.bindings += [*self.whole.bindings, *after.bindings]
        return states

    def _level_function(self, params: list[list[Var]]) -> tuple[GlobalVar, Function]:
        """``@f.levels(level, depth, offsets, states, carried)``: do this level and the next ones; the states at the end."""
        for p in self.group.root.params:
            # What says the sizes that the code mentions comes along.
            if isinstance(p.ty, TensorType) and self.group.root.type_params:
                self.carried.setdefault(p, _param(p.name, p.ty))
        states = [s for of in params for s in of] + [k.inside for k in self.kept.values()]
        given = (self.at, self.depth_in, self.offsets_in, *states, *self.carried.values())
        ret = TupleType(tuple(type_of(s) for s in states))
        uses = DimUses()
        dims = tuple(dict.fromkeys(d for p in given for d in uses.of_type(p.ty)))
        whole = FuncType(tuple(type_of(p) for p in given), ret, dims)
        name = f"{self.name}.levels"
        while name in self.taken:
            name += "_"
        target = GlobalVar(name, whole)
        self.level_dims = dims
        then = self.level
        following = then.op("add", (self.at, integer(1)), SCALAR, "next")
        args = (
            following,
            self.depth_in,
            self.offsets_in,
            *(s for of in self.inner for s in of),
            *(cast(Expr, k.new) for k in self.kept.values()),
            *self.carried.values(),
        )
        again = then.bind("rest", Call(target, args, type_args=_as_dims(dims), ty=ret), ret)
        done = Emitter()
        end = done.bind("states", Tuple(tuple(states), ret), ret)
        start = Emitter()
        more = start.op("less_equal", (self.at, self.depth_in), TensorType((), "bool"), "more")
        branch = If(more, Block(tuple(then.bindings), again, ret), Block(tuple(done.bindings), end, ret), ret)
        result = start.bind("result", branch, ret)
        function = Function(given, Block(tuple(start.bindings), result, ret), ret, dims, ty=whole)
        copier = Copier(own_dims=True)
        copied = copier.function(function)
        new_dims = tuple(cast(DimVar, as_var(cast(Dim, copier.dim(d)))) for d in dims)
        ty = copied.ty
        assert isinstance(ty, FuncType)
        copied = replace(copied, type_params=new_dims, ty=FuncType(ty.params, ty.ret, new_dims))
        return target, copied

    def _call_levels(self, levels: tuple[GlobalVar, Function], states: list[list[Expr]]) -> None:
        """Call the function of the levels; ``final`` are the states that it gives."""
        first = int(self.group.many)
        rooms = [cast(Expr, k.room) for k in self.kept.values()]
        args = (
            integer(1), self.depth, self.offsets, *(s for of in states[first:] for s in of), *rooms, *self.carried,
        )  # fmt: skip
        final = [*(s for of in self.final[first:] for s in of), *(k.final for k in self.kept.values())]
        ret = TupleType(tuple(type_of(s) for s in final))
        call = Call(levels[0], args, type_args=_as_dims(self.level_dims), ty=ret)
        done = Emitter(self.bindings).bind("done", call, ret)
        self.bindings += [Binding(s, Proj(done, n, type_of(s))) for n, s in enumerate(final)]

    def _requests(self, clauses: list[_Clause], state: list[Expr]) -> list[Expr]:
        """The results of the requests: what their clauses give, put together."""
        parts = [(n, self._leaves(c, LEVEL)) for n, c in enumerate(clauses) if c.last and c.tables.sites]
        self.bindings += self.end.bindings
        emitter = Emitter(self.bindings)
        for clause, values in parts:
            state = [
                emitter.op("rows.update", (s, v, self.offsets, integer(-1)), type_of(s), "state", clause=clause)
                for s, v in zip(state, values, strict=True)
            ]
        return state

    def _root(self, final: Sequence[Expr]) -> Function:
        """The root's results out of the states; for many requests the tensors of the result, with the requests in front."""
        emitter = Emitter(self.bindings)
        root = self.group.root
        if self.rows_of_requests:
            types = leaves(self.group.functions[0].result)
            (count,) = cast("tuple[Dim, ...]", cast(TensorType, self.roots.ty).shape)
            given = [
                emitter.op("take", (state, self.roots), with_rows(ty, count), "results", axis=0, mode="fast")
                for state, ty in zip(final, types, strict=True)
            ]
            whole = TupleType(tuple(type_of(v) for v in given))
            atom: Expr = emitter.bind("result", Tuple(tuple(given), whole), whole)
            return replace(root, body=Block(tuple(emitter.bindings), atom, whole))
        at = emitter.op("take", (self.roots, integer(0)), SCALAR, "root", axis=0, mode="fast")
        result = self.group.functions[0].result
        out = [
            Value(emitter.op("take", (state, at), ty, "result", axis=0, mode="fast"), WHOLE, ty)
            for state, ty in zip(final, leaves(result), strict=True)
        ]
        atom = self._rebuild(result, iter(out), iter(self._assembled(at, emitter)), emitter)
        block = root.body
        assert isinstance(block, Block)
        return replace(root, body=Block(tuple(emitter.bindings), atom, block.ty or result, block.span))

    def _assembled(self, root: Expr, emitter: Emitter) -> list[Expr]:
        """The values of data types that the root gives."""
        if self.assembly is None:
            return []
        found = self.assembly
        given = TupleType(tuple(type_of(p) for p in found.parts))
        parts = emitter.bind("parts", Tuple(tuple(found.parts), given), given)
        ty = TupleType(tuple(data_types(self.group.functions[0].result)))
        attrs = {"spec": found.spec(max(self.tables) + 1), "names": tuple(found.names), "type": ty}
        made = emitter.op("rows.assemble", (self.offsets, root, parts), ty, "made", **attrs)
        return [emitter.bind("made", Proj(made, n, t), t) for n, t in enumerate(ty.fields)]

    def _rebuild(self, ty: Type, values: Iterator[Value], made: Iterator[Expr], emitter: Emitter) -> Expr:
        if isinstance(ty, AdtType):
            return next(made)
        if not isinstance(ty, TupleType):
            return next(values).atom
        fields = tuple(self._rebuild(f, values, made, emitter) for f in ty.fields)
        return emitter.bind("result", Tuple(fields, ty), ty)


def _param(name: str, ty: Type) -> Var:
    return Var(name, ty, ty)


def _nest(ty: Type, values: Iterator[Value], made: Iterator[Made]) -> Lifted:
    """Values in the nesting of a type of tuples."""
    match ty:
        case TupleType(fields=fields):
            return tuple(_nest(f, values, made) for f in fields)
        case AdtType():
            return next(made)
        case _:
            return next(values)


def _as_dims(dims: tuple[DimVar, ...]) -> tuple[TypeArg, ...]:
    return tuple(as_dim(d) for d in dims)
