"""Writing the functions of a loop's gradient (see `loop_gradient`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import cast

import numpy as np

from relay.ir.dim import ANY, Dim, DimVar, as_dim
from relay.ir.expr import Attrs, Binding, Block, Call, Expr, Function, GlobalVar, If, Var
from relay.ir.record import record
from relay.ir.types import FuncType, TensorType, TupleType, Type, TypeArg, mentions_any
from relay.transform.access import AccessTable
from relay.transform.ad.conversions import Functions, zeros_like
from relay.transform.ad.lifter import fresh_dims
from relay.transform.ad.loop_grown import Grown, rows_between
from relay.transform.ad.loop_kept import Iteration, computed_again
from relay.transform.ad.loop_parts import (
    INDEX,
    call_of,
    inputs,
    instance,
    integer,
    is_made_of_tensors,
    is_tensor,
    longer,
    needed,
    no_rows,
    one,
    room,
    row_count,
    solved,
    tensor_part,
)  # fmt: skip
from relay.transform.ad.loop_tapes import Tapes
from relay.transform.ad.loop_terms import (
    Collected,
    Rows,
    at_once,
    collected,
    of_a_sum,
    without_unread,
    without_unread_rows,
)  # fmt: skip
from relay.transform.ad.loops import AT_THE_END, INSIDE, Loop, Role, Unsuited, keeps, tensors_of
from relay.transform.ad.notes import AS_LOOP, NOTE
from relay.transform.ad.terms import Code, add, project, tuple_of
from relay.transform.ad.values import Frame, Value
from relay.transform.blocks import all_bindings, operands, with_operands
from relay.transform.build import constant, op_call, type_of, zeros_of
from relay.transform.dims import DimUses, told, whole_axes
from relay.transform.name_dims import named
from relay.transform.partial_eval import LOOP
from relay.transform.to_blocks import to_blocks


@record(slots=True, eq=False)
class Lifted:
    """A loop with one iteration (``again``) and its end (``leave``) lifted, over parameters ``params`` of plain values. The first
    ``before`` bindings of the iteration stand in front of the choice between the two, which ``cond`` makes.

    ``given`` and ``left`` are the parameters' values in either, ``args`` what the next iteration is given, ``rows`` what
    growing parameters get, ``result`` the loop's value.
    """

    loop: Loop
    params: tuple[Var, ...]
    again: Frame
    before: int
    cond: Expr
    given: list[Value]
    args: list[Value]
    rows: dict[int, Value]
    leave: Frame
    left: list[Value]
    result: Value


@record(frozen=True, slots=True, eq=False)
class Written:
    """The functions of a loop's gradient.

    ``dims`` are the loop's dim parameters, ``fixed`` those that all iterations share, ``tapes`` the types of a tape's rows (first the
    ``even`` ones, which get one row in every iteration), ``kept`` how many values the loop forward gives, behind its result, to the
    way back, and ``found`` the tensors (by parameter and number in it) whose cotangents that gives; the others have none.
    """

    loop: Loop
    forward: GlobalVar
    back: GlobalVar
    dims: tuple[DimVar, ...]
    fixed: frozenset[DimVar]
    tapes: tuple[TensorType, ...]
    even: int
    kept: int
    found: tuple[tuple[int, int], ...]


class LoopWriter:
    """Writes the functions for one loop and one choice of the tensors whose cotangents are wanted (``active``, by parameter)."""

    def __init__(self, lifted: Lifted, active: list[list[bool]], functions: Functions) -> None:
        self.lifted = lifted
        self.active = active
        self.functions = functions
        self.layout = Tapes(lifted.loop.fixed_dims)
        self.table = AccessTable()
        self.uses = DimUses()
        self.index = Var("i", INDEX, INDEX)
        # The loop's dims: its own parameters, and the sizes that only the types of its parameters name.
        self.dims = dict.fromkeys(p for p in lifted.loop.function.type_params if isinstance(p, DimVar))
        self.dims.update((d, None) for p in lifted.params for d in self.uses.of_type(p.ty))
        self.fixed = {lifted.params[n] for n in lifted.loop.having(Role.FIXED)}
        # What the next iteration is given, and the result, before code is written for the way back.
        self.given = [a.primal for a in lifted.args]
        self.result = lifted.result.primal
        # By parameter: the cotangents of the state after an iteration and before it.
        self.after: dict[int, list[Var]] = {}
        self.before: dict[int, list[Expr]] = {}
        self.grown = Grown(lifted.loop, lifted.params, self.index)

    def write(self) -> Written:
        """The functions. Raises Unsuited."""
        loop = self.lifted.loop
        self._back_through_iteration()
        self._back_through_end()
        self._choose_tapes()
        ending = self._ending()
        forward = self._forward(ending)
        back, found = self._whole(ending, self._steps())
        dims = tuple(p for p in loop.function.type_params if isinstance(p, DimVar))
        rows = (*map(self.layout.row_type, self.tapes), *(INDEX for _ in self.counts))
        even = sum(self.layout.count(v) is None for v in self.tapes)
        return Written(loop, forward, back, dims, loop.fixed_dims, rows, even, len(ending) + 1 + len(rows), found)

    # -- the way back through one iteration

    def _back_through_iteration(self) -> None:
        """Write it; note the cotangents of the state before it, and the terms of what all iterations share."""
        loop, lifted, frame = self.lifted.loop, self.lifted, self.lifted.again
        frame.forward.open = False
        code = frame.back
        for n in loop.having(Role.STATE):
            self.after[n] = [Var("ct", t, t) for t in tensors_of(type_of(lifted.params[n]))]
            for t, ct in zip(lifted.args[n].tensors(), self.after[n], strict=True):
                frame.give(t, ct)
        self.grown.begin(frame, lifted.rows)
        frame.go_back()
        self.grown.end(frame, lifted.given)
        for n, cts in self.after.items():
            totals = [frame.total(t) for t in lifted.given[n].tensors()]
            self.before[n] = [code.bind(zeros_like(ct)) if d is None else d for d, ct in zip(totals, cts, strict=True)]
        self.terms = self._fixed_parts(frame, lifted.given)
        frame.parts = {t: p for t, p in frame.parts.items() if t.active}
        if frame.parts:
            raise Unsuited(INSIDE)

    def _fixed_parts(self, frame: Frame, given: Sequence[Value]) -> dict[tuple[int, int], list[Expr]]:
        """The terms of the wanted cotangents of what all iterations share, by parameter and tensor in it."""
        out: dict[tuple[int, int], list[Expr]] = {}
        for n in self.lifted.loop.having(Role.FIXED):
            for m, t in enumerate(given[n].tensors()):
                if t.made_ref is not None:
                    raise Unsuited(INSIDE)
                parts = frame.parts.pop(t, [])
                if self.active[n][m]:
                    out[n, m] = parts
        return out

    def _back_through_end(self) -> None:
        lifted, frame = self.lifted, self.lifted.leave
        frame.forward.open = False
        leaves = list(lifted.result.tensors())
        self.results = [Var("ct", t.ty, t.ty) for t in leaves]
        for t, ct in zip(leaves, self.results, strict=True):
            frame.give(t, ct)
        frame.go_back()
        self.end: dict[int, list[Expr | None]] = {
            n: [frame.total(t) for t in lifted.left[n].tensors()] for n in (*self.after, *self.grown.of)
        }
        for n in self.grown.of:
            (whole,) = lifted.left[n].tensors()
            self.end[n] = [frame.back.bind(zeros_like(whole.primal)) if self.end[n][0] is None else self.end[n][0]]
        self.end_terms = self._fixed_parts(frame, lifted.left)
        if frame.parts:
            raise Unsuited(AT_THE_END)

    # -- what is kept

    def _choose_tapes(self) -> None:
        """Sort the terms; what the way back through an iteration needs is handed on, computed again or kept in a tape."""
        back = {b.var: b.value for b in self.lifted.again.back.bindings}
        self.forward_values = {b.var: b.value for b in self.lifted.again.forward.bindings}
        self.collected: list[tuple[tuple[int, int], Collected]] = []
        self.of_sums: dict[Collected, tuple[int, int]] = {}
        self.added: list[tuple[tuple[int, int] | Collected, Expr]] = []
        roots: list[Expr] = [*(d for cts in self.before.values() for d in cts), *self.grown.found]
        self.columns: dict[Var, None] = {}  # what the way back computes and keeps for after the loop
        kept: dict[Var, None] = {}
        for key, parts in self.terms.items():
            for part in parts:
                found = collected(back.get(part), self.fixed) if isinstance(part, Var) else None
                if found is None:
                    found = of_a_sum(back.get(part), self.fixed) if isinstance(part, Var) else None
                    if found is None or not self._is_told(row := found.call.args[found.rows[0]]):
                        self.added.append((key, part))
                        roots.append(part)
                    else:
                        self.added.append((found, row))
                        self.of_sums[found] = key
                        roots.append(row)
                    continue
                found = without_unread_rows(found)
                self.collected.append((key, found))
                for n in found.rows:
                    row = found.call.args[n]
                    assert isinstance(row, Var)
                    made = row in self.forward_values or row in self.lifted.params
                    if made and all(self.layout.count(cast(Var, found.call.args[m])) is None for m in found.rows):
                        kept[row] = None
                    else:
                        self.columns[row] = None
                        roots.append(row)
        cotangents = [ct for cts in self.after.values() for ct in cts]
        self.live = without_unread(
            needed(self.lifted.again.back.bindings, roots), cotangents, self.lifted.loop.fixed_dims
        )
        bound = {b.var for b in self.live} | {self.index} | self.grown.bound
        bound.update(ct for cts in self.after.values() for ct in cts)
        reads = [a for b in self.live for a in inputs(b.value)] + roots
        todo = [a for a in reads if isinstance(a, Var) and a not in bound]
        self.counters: dict[Var, int] = {
            self.lifted.params[n]: self.lifted.loop.steps[n] for n in self.lifted.loop.having(Role.COUNTER)
        }
        self.needs: dict[Var, None] = {}  # parameters handed on as they are, counters among them
        growing = {self.lifted.params[n] for n in self.lifted.loop.read}
        free = {*self.fixed, *self.counters, *growing}
        iteration = Iteration(self.lifted.again.forward.bindings, self.live, free, self.lifted.loop.fixed_dims)
        again = computed_again(iteration, todo, kept, self.table, self.uses)
        seen: set[Var] = set()
        while todo:
            v = todo.pop()
            if v in seen:
                continue
            seen.add(v)
            if v in self.fixed or v in self.counters:
                self.needs[v] = None
                continue
            if v in growing:
                self.grown.want(v)
                continue
            if v in again:
                value = self.forward_values[v]
                todo += (a for a in operands(value) if isinstance(a, Var))
                continue
            kept[v] = None
        self.again = [b for b in self.lifted.again.forward.bindings if b.var in again]
        self.tapes = sorted(kept, key=lambda v: self.layout.count(v) is not None)
        # What counters were is told by how many iterations there were: by the length of another tape.
        told_by_others = any(v not in self.counters and self.layout.count(v) is None for v in self.tapes)
        self.counted = [v for v in self.tapes if v in self.counters] if told_by_others else []
        self.tapes = [v for v in self.tapes if v not in self.counted]
        self.read = [v for v in self.tapes if v in seen and v not in self.counters and v not in again]
        shapes = {(n, m): t for n, v in enumerate(self.lifted.params) for m, t in enumerate(tensors_of(type_of(v)))}
        self.sums: dict[tuple[int, int] | Collected, Var] = {}
        for of, part in self.added:
            ty = type_of(part) if isinstance(of, Collected) else shapes[of]
            self.sums[of] = Var("sum", ty, ty)
        for v in (*self.tapes, *self.columns):
            if not is_tensor(v) or not (
                keeps(type_of(v), self.lifted.loop.fixed_dims) or self.layout.count(v) is not None
            ):
                raise Unsuited(f"%{v.name}, which the way back reads, has other sizes in every iteration")
        cts = (ct for of in self.after.values() for ct in of)
        given = (*self.grown.read, *self.needs, *self.read, *cts, *self.sums.values(), *self.columns)
        self._tell_sizes((*self.again, *self.live), given)
        self.counts = list(dict.fromkeys(d for v in self.tapes if (d := self.layout.count(v)) is not None))

    def _is_told(self, e: Expr) -> bool:
        """Whether what all iterations share tells the sizes of a tensor."""
        there = {d for p in self.fixed for d in told(p.ty)}
        return not mentions_any(type_of(e)) and there.issuperset(self.uses.of_type(type_of(e)))

    def _tell_sizes(self, bindings: Sequence[Binding], given: Iterable[Var], shared: bool = False) -> None:
        """See that the sizes which the way back calculates with have values there: what is given, or made there, has them, or what all
        iterations share, which is handed on then (``shared``: it is there anyway). A size has no value by a tensor that is ``max(0,
        n - 1)`` long: its type asks for one. Raises Unsuited."""
        given = tuple(given)
        there = {d for v in given for d in told(v.ty)}
        asked = dict.fromkeys((d, False) for v in given for d in self.uses.of_type(v.ty) if d not in there)
        for b in bindings:
            asked.update(dict.fromkeys((d, True) for d in self.uses.of_value(b.value) if d not in there))
            there.update(told(b.var.ty, there.__contains__))
            asked.update(dict.fromkeys((d, False) for d in self.uses.of_type(b.var.ty) if d not in there))
        for d, calculates in asked:
            if shared and d in self.lifted.loop.fixed_dims:
                continue
            tells = next((p for p in self._telling(shared) if d in dict(whole_axes(p.ty))), None)
            if tells in self.fixed:
                self.needs[tells] = None
            elif tells is not None:
                self.grown.want(tells)
            elif calculates:
                raise Unsuited(f"the way back reads the size {d.name}, which nothing that it is given has")

    def _telling(self, at_end: bool) -> Iterator[Var]:
        """The parameters that can be handed to the way back for their sizes."""
        loop = self.lifted.loop
        yield from (p for p in self.lifted.params if p in self.fixed)
        yield from (self.lifted.params[n] for n in loop.read if not at_end)

    # -- the functions

    def _ending(self) -> list[Var]:
        """What the way back through the end reads of the last values, in order."""
        roots = [d for ds in self.end.values() for d in ds if d is not None]
        roots += (p for parts in self.end_terms.values() for p in parts)
        self.end_live = needed(self.lifted.leave.back.bindings, roots)
        bound = {b.var for b in self.end_live} | self.fixed | set(self.results)
        reads = [a for b in self.end_live for a in inputs(b.value)] + roots
        found = dict.fromkeys(a for a in reads if isinstance(a, Var) and a not in bound)
        if not all(is_made_of_tensors(type_of(v)) for v in found):
            raise Unsuited(AT_THE_END)
        self._tell_sizes(self.end_live, (*found, *self.results), shared=True)
        return list(found | dict.fromkeys(self.grown.read))

    def _forward(self, ending: list[Var]) -> GlobalVar:
        """``f.forward(params, count, tapes) -> (result, what the end leaves, count, tapes)``."""
        lifted, loop = self.lifted, self.lifted.loop
        count, done = Var("count", INDEX, INDEX), as_dim(DimVar("done"))
        totals = self.layout.totals(self.tapes)
        tapes, starts = [self.layout.tape(v, done, totals) for v in self.tapes], self.layout.starts(self.counts, done)
        ret = TupleType(
            (
                loop.result,
                *(self.layout.outside(type_of(v)) for v in ending),
                INDEX,
                *(self.layout.tape_type(v, ANY) for v in self.tapes),
                *(TensorType((ANY,), "int64") for _ in starts),
            )
        )
        params = (*lifted.params, count, *tapes, *starts)
        target, dims = self._target("forward", params, ret, own=True)
        made = lifted.again.forward.bindings
        start, more = Code(made[: lifted.before]), Code(made[lifted.before :])
        begun = [
            longer(more, s, more.bind(row_count(more, self._of(d, tapes))))
            for d, s in zip(self.counts, starts, strict=True)
        ]
        grown = [self.layout.longer(more, t, v) for t, v in zip(tapes, self.tapes, strict=True)]
        following = more.bind(op_call("add", (count, integer(1))), "count")
        # Sizes that only the types of growing parameters name are what the next iteration is given.
        known = dict(zip(loop.function.type_params, loop.call.type_args, strict=True))
        given = {d: known.get(d, ANY) for d in self.dims}
        given = solved(given, map(type_of, lifted.params), map(type_of, self.given))
        again_dims = self.layout.following(dims, done, totals, given)
        call = Call(target, (*self.given, following, *grown, *begun), type_args=again_dims, ty=ret)
        then = more.block(more.bind(call, "rest"))
        end = lifted.leave.forward
        orelse = end.block(end.bind(tuple_of((self.result, *ending, count, *tapes, *starts)), "result"))
        branches = (then, orelse) if loop.on else (orelse, then)
        result = start.bind(If(lifted.cond, *branches, ret), "result")
        return self._add(target, params, start.block(result), dims)

    def _of(self, count: DimVar, tapes: Sequence[Var]) -> Var:
        """A tape of values of so many rows."""
        return next(t for t, v in zip(tapes, self.tapes, strict=True) if self.layout.count(v) is count)

    def _steps(self) -> GlobalVar:
        """``f.back(i, what is shared, growing, tapes, grown, cotangents, sums, columns)``: go back through iterations ``i`` to 0."""
        rows, done = as_dim(DimVar("rows")), as_dim(DimVar("done"))
        starts = {c: Var(f"{c.name}_0", type_of(c), type_of(c)) for c in self.needs if c in self.counters}
        shared = [starts.get(v, v) for v in self.needs]
        totals, held = self.layout.totals(self.read), self.layout.totals(self.columns)
        tapes = {v: self.layout.tape(v, rows, totals) for v in self.read}
        index = TensorType((as_dim(DimVar("ends")), 1), "int64")
        offsets = {d: Var("offsets", index, index) for d in totals}
        cts = [ct for of in self.after.values() for ct in of]
        columns = [self.layout.tape(v, done, held) for v in self.columns]
        fixed = (*shared, *self.grown.shared, *tapes.values(), *offsets.values())
        carried = self.grown.carried
        params = (self.index, *fixed, *carried, *cts, *self.sums.values(), *columns)
        ret = TupleType(
            (
                *map(type_of, carried),
                *(type_of(ct) for ct in cts),
                *(type_of(s) for s in self.sums.values()),
                *(self.layout.tape_type(v, ANY) for v in self.columns),
            )
        )
        target, dims = self._target("back", params, ret)
        code = Code()
        for c, initial in starts.items():
            code.bindings.append(Binding(c, self._counter(code, initial, self.counters[c])))
        self.grown.write(code)
        for v, tape in tapes.items():
            count = self.layout.count(v)
            if count is None:
                value = op_call("take", (tape, self.index), {"axis": 0, "mode": "fast"})
            else:
                value = rows_between(tape, offsets[count], self.index, type_of(v))
            code.bindings.append(Binding(v, value))
        code.bindings += (*self.again, *self.live)
        sums = dict(self.sums)
        for key, part in self.added:
            sums[key] = code.bind(add(sums[key], part), "sum")
        grown = [self.layout.longer(code, c, v) for c, v in zip(columns, self.columns, strict=True)]
        before = code.bind(op_call("subtract", (self.index, one())), "i")
        states = (*self.grown.found, *(d for of in self.before.values() for d in of))
        args = (before, *fixed, *states, *sums.values(), *grown)
        call = Call(target, args, type_args=self.layout.following(dims, done, held, {}), ty=ret)
        then = code.block(code.bind(call, "rest"))
        end = Code()
        orelse = end.block(end.bind(tuple_of((*carried, *cts, *self.sums.values(), *columns)), "found"))
        start = Code()
        more = start.bind(op_call("greater_equal", (self.index, integer(0))), "more")
        result = start.bind(If(more, then, orelse, ret), "result")
        return self._add(target, params, start.block(result), dims)

    def _counter(self, code: Code, start: Expr, by: int, rows: Dim | None = None) -> Expr:
        """A counter in iteration ``i``; in all of so many iterations, if ``rows`` says how many."""
        ty = type_of(start)
        assert isinstance(ty, TensorType) and isinstance(ty.dtype, str)
        at: Expr = self.index
        if rows is not None:
            at = code.bind(op_call("arange", (), {"start": 0, "stop": rows, "step": 1, "dtype": ty.dtype}))
        elif ty.dtype != "int64":
            at = code.bind(op_call("cast", (at,), {"dtype": ty.dtype}))
        if abs(by) != 1:
            at = code.bind(op_call("multiply", (at, constant(np.array(abs(by), ty.dtype), ty.dtype))))
        return op_call("add" if by > 0 else "subtract", (start, at))

    def _whole(self, ending: list[Var], steps: GlobalVar) -> tuple[GlobalVar, tuple[tuple[int, int], ...]]:
        """``f.gradient(params, what the end leaves, count, tapes, cotangents)``: those of the wanted tensors of the parameters."""
        lifted, loop = self.lifted, self.lifted.loop
        varying = (d for d in self.dims if d not in loop.fixed_dims)
        fresh: dict[DimVar, TypeArg] = {d: as_dim(DimVar(d.name, d.lo, d.hi, gradual=d.gradual)) for d in varying}
        # The values of the parameters before the loop, at the sizes that these have there; unknown ones get names.
        types = [cast(Type, named(instance(type_of(p), fresh), p.name)) for p in lifted.params]
        first = [p if p in self.fixed else Var(p.name, t, t, p.span) for p, t in zip(lifted.params, types, strict=True)]
        count, rows = Var("count", INDEX, INDEX), as_dim(DimVar("rows"))
        of_all = self.layout.totals(self.tapes)
        tapes, starts = (
            {v: self.layout.tape(v, rows, of_all) for v in self.tapes},
            self.layout.starts(self.counts, rows),
        )
        code = Code(list(self.end_live))
        offsets = {
            d: self.layout.offsets(code, s, self._of(d, list(tapes.values())))
            for d, s in zip(self.counts, starts, strict=True)
        }
        cts: list[Expr] = []
        for n in self.after:
            for m, d in enumerate(self.end[n]):
                cts.append(code.bind(zeros_like(tensor_part(code, first[n], m))) if d is None else d)
        grown = {n: cast(Expr, self.end[n][0]) for n in self.grown.of}
        last = code.bind(op_call("subtract", (count, integer(1))), "i")
        shared = [first[lifted.params.index(v)] for v in self.needs]
        sums = [
            code.bind(
                zeros_of(type_of(v))
                if isinstance(key, Collected)
                else zeros_like(tensor_part(code, first[key[0]], key[1]))
            )
            for key, v in self.sums.items()
        ]
        columns: list[Expr] = []
        for number, v in enumerate(self.columns):
            columns.append(code.bind(no_rows(self.layout.row_type(v)), "column"))
            if self.layout.count(v) is None:
                columns[-1] = code.bind(room(columns[-1], count, number), "column")
        growing = self.grown.given(code, first, grown)
        ends = (offsets[d] for d in self.layout.totals(self.read))
        carried = [n for n, p in self.grown.of.items() if p.changes]
        states = (*(grown[n] for n in carried), *cts)
        args = (last, *shared, *growing, *(tapes[v] for v in self.read), *ends, *states, *sums, *columns)
        found = code.bind(call_of(steps, args, {}, loop.call.span), "found")
        fields = [code.bind(project(found, n)) for n in range(len(cast(TupleType, type_of(found)).fields))]
        grown |= zip(carried, fields, strict=False)
        del fields[: len(carried)]
        before = iter(fields[: len(cts)])
        summed = dict(zip(self.sums, fields[len(cts) : len(cts) + len(sums)], strict=True))
        kept: dict[Var, Expr] = dict(tapes)
        for c in self.counted:
            kept[c] = code.bind(self._counter(code, first[lifted.params.index(c)], self.counters[c], rows), c.name)
        rows_of = Rows(code, kept, dict(zip(self.columns, fields[len(cts) + len(sums) :], strict=True)))
        totals: dict[tuple[int, int], list[Expr]] = {k: list(parts) for k, parts in self.end_terms.items()}
        for of, value in summed.items():
            if isinstance(of, Collected):
                given_sum = [value if n in of.rows else a for n, a in enumerate(of.call.args)]
                totals[self.of_sums[of]].append(code.bind(with_operands(of.call, (of.call.fn, *given_sum)), "d"))
            else:
                totals[of].append(value)
        for key, term in self.collected:
            totals[key].append(at_once(code, term, rows_of, self.layout))
        out: dict[tuple[int, int], Expr] = {}
        for n, flags in enumerate(self.active):
            for m, wanted in enumerate(flags):
                if loop.roles[n] is Role.STATE:
                    out[n, m] = next(before)
                elif loop.roles[n] is Role.GROWING:
                    out[n, m] = self.grown.own_rows(code, first[n], grown[n])
                elif totals.get((n, m)):
                    total, *others = totals[n, m]
                    for other in others:
                        total = code.bind(add(total, other), "d")
                    out[n, m] = total
                if not wanted:
                    out.pop((n, m), None)
        result = code.bind(tuple_of(list(out.values())), "cotangents")
        params = (*first, *ending, count, *tapes.values(), *starts, *self.results)
        target, dims = self._target("gradient", params, type_of(result))
        return self._add(target, params, code.block(result), dims), tuple(out)

    def _target(
        self, what: str, params: Sequence[Var], ret: Type, own: bool = False
    ) -> tuple[GlobalVar, tuple[DimVar, ...]]:
        """A new function with the dims that its parameters mention (``own``: the loop's first)."""
        found: dict[DimVar, None] = {}
        if own:
            found.update(self.dims)
        for p in params:
            found.update(dict.fromkeys(self.uses.of_type(type_of(p))))
        dims = tuple(found)
        ty = FuncType(tuple(type_of(p) for p in params), ret, dims)
        return GlobalVar(self.functions.name(f"{self.lifted.loop.name}.{what}"), ty), dims

    def _add(self, target: GlobalVar, params: Sequence[Var], body: Block, dims: Sequence[DimVar]) -> GlobalVar:
        ty = target.ty
        assert isinstance(ty, FuncType)
        calls_itself = any(
            isinstance(b.value, Call) and isinstance(b.value.fn, GlobalVar) and b.value.fn.name == target.name
            for b in all_bindings(body)
        )
        attrs: Attrs = MappingProxyType({LOOP: 1, NOTE: AS_LOOP} if calls_itself else {})
        made = Function(tuple(params), body, ty.ret, tuple(dims), attrs, ty=ty)
        self.functions.known[target.name] = fresh_dims(to_blocks(made))
        return target
