"""A structural group as explicit code: linearise, hoist, leaves, levels.

def @f(%t, %w) {                                   # the same signature as before
  let %walk = rows.linearise(%t, spec=...);        # tables: rows, offsets of levels, indices of children, tensors of nodes
  ...                                              # UNIFORM and WHOLE stages of every clause
  let %given = @f.down(%depth, 1, ...);            # arguments that change from call to call, from the root down; then AFTER
  let %state = rows.update(rows.empty(...), ...);  # clauses without calls
  let %done = @f.levels(1, %depth, ..., %state);   # the others, level by level; a level's rows are neighbours
  take(%done, root)
}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import cast

from relay.ir.dim import Dim, dim_max, dim_mul, dim_sum, dim_vars, is_any, shape_size
from relay.ir.expr import Binding, Block, Expr, Function, Proj, Tuple, Var
from relay.ir.record import record
from relay.ir.types import AdtType, TensorType, TupleType, Type, dtype_bits
from relay.transform.batching.assembly import Assembly, Source, values_made
from relay.transform.batching.clauses import Group, NotStructural, data_types, leaves
from relay.transform.batching.decisions import Clause, Path
from relay.transform.batching.describe import ListAt, SiteAt, Tables, Writer
from relay.transform.batching.levels import INDEX, SCALAR, Levels, State, fresh, integer
from relay.transform.batching.lift import Lifter, Owner
from relay.transform.batching.lifted import (
    AFTER,
    DOWN,
    LEVEL,
    WHOLE,
    Emitter,
    Lifted,
    Made,
    Value,
    nest,
    tensors_of,
    with_rows,
)
from relay.transform.batching.lists import Layout, Put
from relay.transform.build import internal_call, type_of
from relay.typing.effects import Effects


@record(slots=True, eq=False)
class _Clause:
    """One clause while its code is made. ``indices`` are the rows of its sites' parts, ``tensors`` its payloads."""

    clause: Clause
    rows: Dim
    lifter: Lifter
    indices: list[Var] = field(default_factory=list)
    tensors: list[Var] = field(default_factory=list)
    result: Lifted = ()
    values: list[Expr] = field(default_factory=list)  # the tensors of the result, of a clause that calls nothing
    owners: Var | None = (
        None  # of the items of a list: the rows that they belong to, of their owner's clause or its function
    )
    owners_in_function: Var | None = None
    function: int = 0  # of items: their owner's
    requests: Var | None = None  # the rows of the nodes' requests, where they are asked for
    last: bool = False  # done once, after the levels: what is done with a request

    def asked(self) -> Var:
        """The rows of the nodes' requests, asked for from now on."""
        if self.requests is None:
            self.requests = Var("request", None, TensorType((self.rows,), INDEX))
        return self.requests

    @property
    def tables(self) -> Tables:
        return Tables(self.lifter.sites, self.lifter.payloads)


@record(frozen=True, slots=True, eq=False)
class _Handed:
    """Rows of an argument, for the nodes at these rows of the function that is called; ``first``: before any level."""

    state: State
    rows: Expr
    at: Expr
    first: bool


class Builder:
    """Makes the functions for one group: `build` gives the root's new body and the function of the levels. With ``single`` there is one
    request, and the root gives its result. ``some``: the root may answer the first requests only, as many as go well together."""

    def __init__(
        self,
        group: Group,
        effects: Effects,
        name: str,
        taken: frozenset[str],
        single: bool = False,
        some: bool = True,
    ) -> None:
        self.group = group
        self.rows_of_requests = group.many and not single
        self.some = some
        self.effects = effects
        self.name = name
        self.taken = taken
        self.bindings: list[Binding] = []  # of the root
        self.tables: dict[int, _Clause] = {}  # by number: the clauses, then the items of lists
        self.uniform, self.whole, self.after, self.end = Emitter(), Emitter(), Emitter(), Emitter()
        makes = bool(data_types(group.functions[0].result))
        self.assembly = Assembly(group, self._source) if makes else None
        self.kept: dict[tuple[bool, Value], State] = {}  # by whether that is on the way down
        self.depth = Var("depth", None, SCALAR)
        self.offsets = Var("offsets", None, TensorType((fresh("levels"), fresh("clauses")), INDEX))
        self.roots = Var("roots", None, TensorType((fresh("roots"),), INDEX))
        self.up, self.down = (Levels(self.offsets, self.depth, down) for down in (False, True))
        # The results of each function; no level makes or reads what is made of requests.
        self.rows = [fresh("rows") for _ in group.functions]
        self.answers = leaves(group.functions[0].result) if group.many else []
        self.results = [
            [] if group.many and not n else [self._state(self.up, "state", t, count) for t in leaves(f.result)]
            for n, (f, count) in enumerate(zip(group.functions, self.rows, strict=True))
        ]
        # What each function is given by those that call it.
        self.given = [
            [self._state(self.down, "given", t, count) for p in f.changing for t in leaves(type_of(p))]
            for f, count in zip(group.functions, self.rows, strict=True)
        ]
        self.handed: list[_Handed] = []
        self.asking: set[int] = set()  # the functions whose nodes ask their request
        self.rooms: list[tuple[State, int]] = []  # with the last clause that has rows there

    @staticmethod
    def _state(levels: Levels, name: str, ty: Type, rows: Dim) -> State:
        assert isinstance(ty, TensorType)
        return levels.state(name, ty, with_rows(ty, rows))

    def build(self) -> dict[str, Function]:
        """The functions to put in the module. Raises NotStructural."""
        group = self.group
        clauses = [self._lift(n, clause) for n, clause in enumerate(group.clauses)]
        answers = self._walk()
        updates, answers = self._leaf_clauses(clauses, answers)
        self.bindings += [*self.uniform.bindings, *self.whole.bindings]
        functions = [self._go_down()] if self.down.states else []
        self.bindings += [*self.after.bindings, *updates]
        functions.append(self.up.call(f"{self.name}.levels", self.taken, group.root, Emitter(self.bindings)))
        final = self._requests(clauses, answers) if group.many else [s.final for s in self.results[0]]
        return {self.name: self._root(final), **dict(functions)}

    # -- clauses

    def _lift(self, number: int, clause: Clause) -> _Clause:
        made = self._clause(number, clause)
        made.result, tables = made.lifter.run()
        self.tables[number] = made
        if self.assembly is not None and data_types(self.group.functions[clause.function].result):
            self.assembly.clause(number, clause.function, self._source(made.lifter), values_made(made.result))
        if tables.sites and not made.last:
            for value, state in zip(self._leaves(made, LEVEL), self.results[clause.function], strict=True):
                self._update(self.up, state, value, number)
        if not tables.sites:
            made.values = self._leaves(made, AFTER)
        # What a clause hands down is written behind all that it computes, which reads what the level was given, and before what other
        # clauses compute: what is done for its nodes stands together.
        for handed in self.handed:
            if not handed.first:
                self._write(self.down.block, handed)
        self.handed = [h for h in self.handed if h.first]
        return made

    @staticmethod
    def _write(block: Emitter, handed: _Handed) -> None:
        """Write a handed argument to the rows of those that it is given to: before any level, or on one."""
        state = handed.state
        before = cast(Expr, state.first) if handed.first else state.new
        after = block.op("rows.scatter", (before, handed.rows, handed.at), type_of(before), state.inside.name)
        if handed.first:
            state.first = after
        else:
            state.new = after

    @staticmethod
    def _update(levels: Levels, state: State, value: Expr, clause: int) -> None:
        """Write the rows that a clause has on a level."""
        args = (state.new, value, *levels.here)
        attrs = {"clause": clause, "fresh": True}
        state.new = levels.block.op("rows.update", args, type_of(state.inside), state.inside.name, **attrs)

    def _clause(self, number: int, clause: Clause, owner: tuple[_Clause, int] | None = None) -> _Clause:
        """What a clause needs of the functions around it. ``owner``: of items, the clause of their list and its site there."""
        rows = fresh(f"rows{number}")
        last = self.group.many and (clause.function == 0 if owner is None else owner[0].last)
        now = {DOWN: fresh(f"now{number}"), LEVEL: rows if last else fresh(f"now{number}")}
        levels = {DOWN: self.down, LEVEL: self.up}
        level = self.end if last else self.up.block
        every = (self.offsets, integer(-1))

        def carry(var: Var, stage: int) -> Var:
            return var if last else levels[stage].carry(var)

        def rows_of_level(var: Var, ty: Type, stage: int) -> Expr:
            if last:
                return var
            of = levels[stage]
            full = with_rows(ty, now[stage])
            args = (of.carry(var), *of.here)
            return of.block.op("rows.slice", args, full, var.name, clause=number, of_function=False)

        def index(site: int) -> Var:
            while len(made.indices) <= site:
                made.indices.append(Var("children", None, TensorType((rows,), INDEX)))
            return made.indices[site]

        def children(site: int, target: int) -> Lifted:
            at = rows_of_level(index(site), SCALAR, LEVEL)
            function = self.group.functions[target]
            values: list[Value] = []
            for state in self.results[target]:
                full = with_rows(state.ty, now[LEVEL])
                # The rows of lower levels are the same in what other clauses have written to, and nothing keeps what it was before.
                args = (state.final if last else state.new, at)
                child = level.op("take", args, full, "child", axis=0, mode="fast")
                values.append(Value(child, LEVEL, state.ty))
            made_there = (Made(site, n) for n in range(len(data_types(function.result))))
            return nest(function.result, iter(values), made_there)

        def payload(n: int, ty: TensorType) -> Var:
            while len(made.tensors) <= n:
                made.tensors.append(Var("part", None, with_rows(ty, rows)))
            return made.tensors[n]

        def repeat(atom: Expr, ty: Type, stage: int) -> Expr:
            at = self._here(stage, last)
            full = with_rows(ty, now.get(stage, rows))
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
            inside.lifter.owner = (made.lifter, self._owner(made, number, at, inside))
            return inside.lifter, inside.lifter.owner[1]

        def outside(var: Var) -> tuple[Lifter, Lifted] | None:
            if not self.group.many or last:
                return None
            for asked in self.tables.values():
                if asked.last and (var in asked.lifter.env or var in asked.clause.parts):
                    return asked.lifter, asked.lifter._value(var)
            return None

        def request() -> Var:
            self.asking.add(made.function)
            return made.asked()

        def given(n: int, stage: int) -> Expr:
            state = self.given[clause.function][n]
            if stage == DOWN:
                return self._own_rows(
                    self.down.block, state.new, self.down.here, with_rows(state.ty, now[DOWN]), number
                )
            return self._own_rows(self.after, state.final, every, with_rows(state.ty, rows), number)

        def computed(value: Value) -> Expr:
            state = self._keep(self.down, lifter, value)
            return self._own_rows(self.after, state.final, every, with_rows(value.ty, rows), number)

        def hand_down(site: int, target: int, values: Sequence[Value]) -> None:
            stage = WHOLE if last else DOWN
            rows_there = rows_of_level(index(site), SCALAR, stage)
            for state, value in zip(self.given[target], values, strict=True):
                self.handed.append(_Handed(state, lifter.at(value, stage, spread=True), rows_there, last))

        lifter = Lifter(
            self.group, self.effects, clause, number, rows, now,
            (self.uniform, self.whole, self.whole, self.down.block, self.after, level),
            carry, rows_of_level, children, payload, repeat, list_items, outside, request, given, computed, hand_down,
        )  # fmt: skip
        function = clause.function if owner is None else owner[0].function
        made = _Clause(clause, rows, lifter, last=last, function=function)
        return made

    def _source(self, lifter: Lifter) -> Source:
        """What the values that a clause makes are put together of."""
        made = next(c for c in self.tables.values() if c.lifter is lifter)

        return Source(
            lifter, lambda site: made.indices[site], lambda v: self._keep(self.up, lifter, v).final, made.last
        )

    def _keep(self, levels: Levels, lifter: Lifter, value: Value) -> State:
        """A value that a clause has on each level, for all levels."""
        known = self.kept.get((levels.down, value))
        if known is None:
            number = lifter.number
            known = self.kept[levels.down, value] = self._state(levels, "kept", value.ty, fresh("rows"))
            self.rooms.append((known, number))
            self._update(levels, known, lifter.at(value, DOWN if levels.down else LEVEL), number)
        return known

    def _here(self, stage: int, last: bool) -> tuple[Expr, Expr]:
        """What says which rows of a clause there are at a stage."""
        if last or stage not in (DOWN, LEVEL):
            return self.offsets, integer(-1)
        return (self.down if stage == DOWN else self.up).here

    def _rows_of_function(self, items: _Clause, clause: int) -> Var:
        """The rows that the owners of items have in what their function has, which begin where its other clauses end."""
        if items.owners_in_function is None:
            assert items.owners is not None
            out, row = self.whole, TensorType((type_of(self.offsets).shape[1],), INDEX)  # type: ignore[union-attr,index]
            begin = out.op("take", (self.offsets, integer(0)), row, "begin", axis=0, mode="fast")
            first = out.op("take", (begin, integer(clause)), SCALAR, "first", axis=0, mode="fast")
            items.owners_in_function = out.op("add", (items.owners, first), type_of(items.owners), "owners")
        return items.owners_in_function

    @staticmethod
    def _own_rows(out: Emitter, data: Expr, here: tuple[Expr, Expr], full: Type, clause: int) -> Expr:
        """The rows that a clause has in what its function has."""
        return out.op("rows.slice", (data, *here), full, "own", clause=clause, of_function=True)

    def _owner(self, made: _Clause, number: int, site: int, inside: _Clause) -> Owner:
        """How the items of a list and the clause that it belongs to are joined."""
        owners = inside.owners = Var("owners", None, TensorType((inside.rows,), INDEX))

        def gather(value: Value, stage: int) -> Expr:
            """The rows of owners that items on a level have in the owners' value, or all items."""
            lifter = made.lifter
            at: Expr = owners
            if stage == DOWN and value.stage == DOWN:
                # Their rows are not there for all levels yet: in the state that this level has written to, or was given.
                argument = lifter.argument(value)
                given = None if argument is None else self.given[made.clause.function][argument]
                data = self._keep(self.down, lifter, value).new if given is None else given.new
                at = inside.lifter.slice(self._rows_of_function(inside, number), SCALAR, DOWN)
            elif stage == value.stage == LEVEL:
                data, at = lifter.at(value, LEVEL), self._owners_here(made, inside, number, LEVEL)
            elif stage in (DOWN, LEVEL):
                whole = lifter.at(value, AFTER) if stage == LEVEL else value.atom
                assert isinstance(whole, Var)
                data, at = lifter.carry(whole, stage), inside.lifter.slice(owners, SCALAR, stage)
            else:
                data = lifter.at(value, stage)
            out, full = inside.lifter.blocks[stage], with_rows(value.ty, inside.lifter.rows_at(stage))
            return out.op("take", (data, at), full, "owner", axis=0, mode="fast")

        def fold(put: Put, start: Expr, each: Expr, ty: TensorType, stage: int, backwards: bool) -> Var:
            starts = made.indices[site]
            here = self._here(stage, made.last)
            full = with_rows(ty, made.lifter.rows_at(stage))
            out = made.lifter.blocks[stage]
            if put.op == "add":
                at = made.lifter.carry(starts, stage) if stage in (DOWN, LEVEL) else starts
                return out.op(
                    "rows.segment_sum", (start, each, at, *here), full, "sum", clause=number, backwards=backwards
                )
            of, row = (starts, *here), TensorType((made.lifter.rows_at(stage),), INDEX)
            if stage in (DOWN, LEVEL):
                of = (made.lifter.carry(starts, stage), *here)
            rows = out.op("rows.slice", of, row, "starts", clause=number, of_function=False)
            owned = self._owners_here(made, inside, number, stage)
            # Of equal ones that counts which the fold comes to first, or last.
            attrs = {"put": put.op, "first": put.first == backwards}
            most = out.op("rows.segment_most", (each, owned, rows), full, "most", **attrs)
            return out.op(put.op, (start, most) if put.first else (most, start), full, "most")

        return Owner(gather, fold)

    def _owners_here(self, made: _Clause, inside: _Clause, number: int, stage: int) -> Expr:
        """The rows that the owners of items on a level have on it; of all items, those of their owner's clause."""
        assert inside.owners is not None
        if made.last or stage not in (DOWN, LEVEL):
            return inside.owners
        levels = self.down if stage == DOWN else self.up
        out, row = levels.block, TensorType((cast(TensorType, type_of(self.offsets)).shape[1],), INDEX)  # type: ignore[index]

        def begin(level: Expr) -> Expr:
            offsets = out.op("take", (levels.offsets_in, level), row, "begin", axis=0, mode="fast")
            return out.op("take", (offsets, integer(number)), SCALAR, "begin", axis=0, mode="fast")

        before = out.op("subtract", (begin(levels.at), begin(integer(0))), SCALAR, "before")
        owners = inside.lifter.slice(inside.owners, SCALAR, stage)
        return out.op("subtract", (owners, before), type_of(owners), "owners")

    def _leaves(self, made: _Clause, stage: int) -> list[Expr]:
        """The tensors of a clause's result in a stage's block."""
        values = [v for value in tensors_of(made.result) for v in made.lifter.tensors(value)]
        return [made.lifter.at(v, stage, spread=True) for v in values]

    # -- the function around

    def _passed_on(self, made: _Clause) -> tuple[Dim, Dim]:
        """The bytes of a node of a clause in what the levels read and write again: what the walk copies, results, and what was computed
        for all nodes before; and how many rows it is to a product: a vector one, a matrix its own. (Of sizes that are known before the
        walk.)"""
        states = [s.final for levels in (self.up, self.down) for s in levels.states]
        found = dict.fromkeys(
            [*(v for c in self.tables.values() for v in c.tensors), *self.up.carried, *self.down.carried, *states]
        )
        known = set(self.group.root.type_params)
        rows = [made.rows, *([] if made.clause.function < 0 else [self.rows[made.clause.function]])]
        sizes: list[Dim] = []
        multiplied: Dim = 1
        for var in found:
            ty = var.ty
            if isinstance(ty, TensorType) and isinstance(ty.shape, tuple) and ty.shape and ty.shape[0] in rows:
                size = dim_mul(shape_size(ty.shape[1:]), max(1, dtype_bits(cast(str, ty.dtype)) // 8))
                if not is_any(size) and known.issuperset(dim_vars(size)):
                    sizes.append(size)
                    multiplied = dim_max(multiplied, shape_size(ty.shape[1:-1]))
        return dim_sum(sizes), multiplied

    def _walk(self) -> list[Expr]:
        """Linearise the structure and make room for the results; the room for those of requests."""
        writer = Writer()
        every = [self.tables[n] for n in sorted(self.tables)]
        tables = [c.tables for c in every]
        apart = sorted({n for n, given in enumerate(self.given) if given} | self._above(self.asking))
        # Requests that bring weights are one batch: each part would pack them, and how products with them add up depends on how many rows
        # there are.
        alone = self.rows_of_requests and self.some and len(self.group.root.params) == 1
        passed_on = [self._passed_on(c) for c in every] if alone else []
        spec = writer.spec(
            self.group.functions, self.group.clauses, tables, self.group.many, apart, passed_on, bool(self.asking)
        )
        parts = [self.depth, self.offsets, self.roots]
        for made in every:
            parts += [made.asked()] if self.asking else []
            parts += [*([made.owners] if made.owners is not None else []), *made.indices, *made.tensors]
        first = Emitter()
        data = self.group.root.params[self.group.functions[0].data]
        ty = TupleType(tuple(type_of(v) for v in parts))
        walk = first.op("rows.linearise", (data,), ty, "walk", spec=spec, sizes=tuple(writer.sizes))
        first.bindings += [Binding(v, Proj(walk, n, v.ty)) for n, v in enumerate(parts)]
        number = 0

        def room(ty: TensorType, full: Type, clause: int) -> Expr:
            nonlocal number
            number += 1
            attrs = {"shape": ty.shape, "dtype": ty.dtype, "number": number - 1}
            return first.op("rows.empty", (self.offsets,), full, "state", clause=clause, **attrs)

        last = [
            max(m for m, c in enumerate(self.group.clauses) if c.function == n)
            for n in range(len(self.group.functions))
        ]
        answers = [room(t, with_rows(t, self.rows[0]), last[0]) for t in self.answers]
        for n, states in enumerate(zip(self.results, self.given, strict=True)):
            self.rooms += [(state, last[n]) for of in states for state in of]
        for state, clause in self.rooms:
            state.first = room(state.ty, type_of(state.final), clause)
        self.bindings = first.bindings
        return answers

    def _above(self, functions: set[int]) -> set[int]:
        """The functions that call these, at last, and these themselves; but for what is done with a request."""
        out = set(functions)
        while True:
            more = {
                c.function
                for c in self.tables.values()
                if not c.last and any(isinstance(s, SiteAt) and s.target in out for s in c.tables.sites)
            }
            if more <= out:
                return out
            out |= more

    def _go_down(self) -> tuple[str, Function]:
        """Hand the arguments that change from call to call down from the roots; the function that does it level by level."""
        out = Emitter(self.bindings)
        root = self.group.root
        start = [
            _Handed(state, value, self.roots, True)
            for state, value in zip(self.given[0], self._given_to_root(out), strict=True)
        ]
        for handed in [*start, *self.handed]:
            self._write(out, handed)
        return self.down.call(f"{self.name}.down", self.taken, root, out)

    def _given_to_root(self, out: Emitter) -> list[Expr]:
        """The tensors of the changing arguments of the root's caller, with an axis of one row in front."""
        found: list[Expr] = []
        for param in self.group.functions[0].changing:
            todo: list[Expr] = [param]
            while todo:
                atom = todo.pop()
                ty = type_of(atom)
                if isinstance(ty, TupleType):
                    fields = [out.bind("field", Proj(atom, n, t), t) for n, t in enumerate(ty.fields)]
                    todo += reversed(fields)
                else:
                    found.append(out.op("expand_dims", (atom,), with_rows(ty, 1), param.name, axis=0))
        return found

    def _leaf_clauses(self, clauses: list[_Clause], answers: list[Expr]) -> tuple[list[Binding], list[Expr]]:
        """The clauses that call nothing: all their nodes are on level 0. What writes their results, and those of requests."""
        out = Emitter()

        def update(state: Expr, value: Expr, clause: int) -> Expr:
            args = (state, value, self.offsets, integer(-1))
            return out.op("rows.update", args, type_of(state), "state", clause=clause, fresh=True)

        for number, made in enumerate(clauses):
            if made.tables.sites:
                continue
            if made.last:
                answers = [update(state, value, number) for state, value in zip(answers, made.values, strict=True)]
                continue
            for state, value in zip(self.results[made.clause.function], made.values, strict=True):
                state.first = update(cast(Expr, state.first), value, number)
        return out.bindings, answers

    def _requests(self, clauses: list[_Clause], state: list[Expr]) -> list[Expr]:
        """The results of the requests: what their clauses give, put together."""
        parts = [(n, self._leaves(c, LEVEL)) for n, c in enumerate(clauses) if c.last and c.tables.sites]
        self.bindings += self.end.bindings
        emitter = Emitter(self.bindings)
        for clause, values in parts:
            attrs = {"clause": clause, "fresh": True}
            state = [
                emitter.op("rows.update", (s, v, self.offsets, integer(-1)), type_of(s), "state", **attrs)
                for s, v in zip(state, values, strict=True)
            ]
        return state

    def _root(self, final: Sequence[Expr]) -> Function:
        """The root's results out of the states; for many requests the tensors of the result, with the requests in front, and lists of
        the values of data types."""
        emitter = Emitter(self.bindings)
        root = self.group.root
        if self.rows_of_requests:
            types = leaves(self.group.functions[0].result)
            (count,) = cast("tuple[Dim, ...]", cast(TensorType, self.roots.ty).shape)
            given = [
                emitter.op("take", (state, self.roots), with_rows(ty, count), "results", axis=0, mode="fast")
                for state, ty in zip(final, types, strict=True)
            ]
            made = self._assembled(self.roots, emitter)
            whole = TupleType(tuple(type_of(v) for v in (*given, *made)))
            atom: Expr = emitter.bind("result", Tuple((*given, *made), whole), whole)
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
        """The values of data types that the root gives; of requests lists of them."""
        if self.assembly is None:
            return []
        found = self.assembly
        given = TupleType(tuple(type_of(p) for p in found.parts))
        parts = emitter.bind("parts", Tuple(tuple(found.parts), given), given)
        types = data_types(self.group.functions[0].result)
        if self.rows_of_requests:
            requests = type_of(self.group.root.params[self.group.functions[0].data])
            assert isinstance(requests, AdtType)
            types = [AdtType(requests.name, (t,)) for t in types]
            found.lists_of(requests.name)
        ty = TupleType(tuple(types))
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
