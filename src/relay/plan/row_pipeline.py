"""Rows in flight: the steps of a row nest for several rows in one loop.

A row's steps wait for one another (a softmax's exponentials for the maximum, its shares for the sum), and a step's end
waits for its reduction, with little else to do meanwhile. So one loop over the elements takes the first step of a row, the
second of the row before, the third of the row before that (software pipelining: loop skewing, then fusion). It waits
once for all of them at its end, reads from memory while another row's arithmetic goes on, and is left once a row.
Between so much arithmetic a processor does not look far enough ahead to the lines that are read and written, so they are asked for.

That is done where a step computes something dear of each element, and two rows at a time (`paired`) where one loop sums a row up and
another makes its results (norms), if all that is read and written stays in the caches, and in whole lines of them where a processor outruns
these: two rows share what both read, and the ends of their sums, the quotients and roots, go beside each other. Rows that come from memory
would take a quarter longer: memory is read fastest in one run at a time.

What a step passes on to a later one is kept for as many turns as lie between them: a number in registers that move on
from turn to turn, elements in as many places as rows are in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relay.ir.dim import Dim, ceil_div, dim_add, dim_bounds, dim_mod, dim_mul, dim_sub, known_equal, shape_size
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ahead import operands_ahead, results_ahead
from relay.loop.ir import WORKERS, Branch, Buffer, For, Stmt, Store
from relay.loop.walk import statements
from relay.loop.workspace import buffer_bytes
from relay.plan.build import Builder, Storage, allocate, bound, ceiling, seq, temporary
from relay.plan.graph import loads
from relay.plan.moments import Moments, moments, summed_once
from relay.plan.parallel import PARALLEL_COST, unflattened
from relay.plan.row_members import Emitter
from relay.plan.row_parts import MemberPlan, Reductions, targets
from relay.te.scalar import Axis, Const, Load, Scalar, binary, compare, extent_of, maximum, mentioned, minimum

# Steps of more rows at once are not worth the registers; rows up to so many elements stay in the second-level cache.
_MOST_STEPS, _LONGEST = 4, 16384
# Rows that are taken together, and how many there are at least.
_PAIR, _FEWEST = 2, 8
# Of rows that turn out to be shorter than this four share what they read (`relay.plan.parallel`).
_SHORTEST = 257
# And the share of the last cache that all they read and write takes at most (of the second-level one, all of it, where a processor outruns
# what is behind that).
_NEAR = 3, 8
# Rows that a task has at least, where there are enough for all threads: the first and last few are not all in flight.
_ROWS_OF_TASK, _TASKS_OF_THREAD = 16, 4
# Places of elements in turn begin at whole vectors.
_WHOLE = 64
# Bits of elements whose vectors fill a register in memory, too.
_WORD = 32


@record(slots=True, eq=False)
class _Step:
    """A loop over a row's elements, and the members of one element each that follow it. ``moments``: the loop's members are these."""

    loop: list[MemberPlan]
    after: list[MemberPlan]
    moments: Moments | None = None


def pipelined(
    emitter: Emitter, rows: Sequence[Axis], groups: Sequence[list[MemberPlan]], temps: Sequence[Buffer], work: Dim
) -> Stmt | None:
    """The loops of a nest with rows in flight; None where its steps do not run over the same elements. ``groups``: what a row goes through
    (`Emitter.groups`); ``work`` is what one row costs in simple operations."""
    live = [a for a in rows if a.extent != 1]
    steps = _steps(emitter, groups)
    if not live or steps is None or not any(emitter.computes(p) for step in steps for p in step.loop):
        return None
    return _Pipeline(emitter, live, steps, temps, 1).tasks(work)


def paired(
    emitter: Emitter, rows: Sequence[Axis], groups: Sequence[list[MemberPlan]], temps: Sequence[Buffer], work: Dim
) -> tuple[list[Scalar], Stmt] | None:
    """The loops of a nest that makes sums of a row and then its results, two rows at a time, and under which conditions that is worth
    while; None where it never is."""
    live = [a for a in rows if a.extent != 1]
    steps = _steps(emitter, groups, summed=True)
    if not live or steps is None or len(steps) != 2:
        return None
    sums, results = steps
    if sums.moments is None and any(not p.member.kept.is_reduction for p in sums.loop):
        return None
    if results.after or any(p.member.kept.is_reduction for p in results.loop):
        return None
    worth = _worth_pairs(emitter, live, steps)
    return None if worth is None else (worth, _Pipeline(emitter, live, steps, temps, _PAIR).tasks(work))


def _worth_pairs(emitter: Emitter, rows: Sequence[Axis], steps: Sequence[_Step]) -> list[Scalar] | None:
    """That there are rows enough, and all that the loops read and write stays in the caches, as far as it is not known; None where it is
    known not to be so."""
    target = emitter.builder.target
    sums, results = (_operands(emitter, step, rows) for step in steps)
    extent = _along(emitter, steps[0]).extent
    at_hand = sum(
        dtype_bits(b.dtype) // 8 * (_PAIR if own else 1) for found in (sums, results) for b, own in found.values()
    )
    size: Dim = 0
    for buffer, _ in (sums | results).values():
        size = dim_add(size, buffer_bytes(buffer))
    # What outruns its caches waits for all that is behind the second level as for memory.
    near = target.l2_bytes if target.outruns_caches else target.l3_bytes * _NEAR[0] // _NEAR[1]
    conditions: list[Scalar] = []
    narrowest = min(dtype_bits(b.dtype) for b, own in (sums | results).values() if own)
    if target.outruns_caches and narrowest >= _WORD:
        # So does what waits for vectors that lie across lines of the caches: six runs of them take longer than three. (Vectors of narrower
        # elements are half as long in memory, and converting them takes longer than that.)
        rest = dim_mod(extent, 8 * _WHOLE // narrowest)
        if isinstance(rest, int) and rest:
            return None
        if not isinstance(rest, int):
            conditions.append(compare("eq", extent_of(rest), 0))
    limits: list[tuple[Dim, Dim]] = [(_FEWEST, shape_size(tuple(a.extent for a in rows)))]
    if not isinstance(extent, int):
        limits.append((_SHORTEST, extent))
    for less, more in (*limits, (dim_mul(extent, at_hand), target.l1_bytes), (size, near)):
        low, high = dim_bounds(dim_sub(more, less))
        if high is not None and high < 0:
            return None
        if low is None or low < 0:
            conditions.append(compare("le", extent_of(less), extent_of(more)))
    return conditions


def _operands(emitter: Emitter, step: _Step, rows: Sequence[Axis]) -> dict[int, tuple[Buffer, bool]]:
    """The operands that a step's loop reads and writes, by their ids, and whether each row has elements of its own there."""
    found: dict[int, tuple[Buffer, bool]] = {}
    for plan in step.loop:
        if emitter.along(plan) is None:
            continue
        for load in (load for value in emitter.values(plan) for load in loads(value)):
            if isinstance(load.source, Buffer) and load.source.scope == "operand":
                _, before = found.get(id(load.source), (load.source, False))
                found[id(load.source)] = load.source, before or not mentioned(*load.indices).isdisjoint(rows)
        for where in targets(emitter.builder, plan):
            if where.buffer.scope == "operand":
                found[id(where.buffer)] = where.buffer, True
    return found


def _along(emitter: Emitter, step: _Step) -> Axis:
    along = emitter.along(step.loop[0])
    assert along is not None
    return along


def _steps(emitter: Emitter, groups: Sequence[list[MemberPlan]], summed: bool = False) -> list[_Step] | None:
    """``summed``: moments of a row are made in one pass."""
    steps: list[_Step] = []
    at = 0
    while at < len(groups):
        group, found = groups[at], moments(emitter, groups[at:]) if summed else None
        at += 1 if found is None else len(found.plans)
        along = emitter.along(group[0])
        if along is not None:
            if steps and not known_equal(along.extent, _along(emitter, steps[0]).extent):
                return None
            steps.append(_Step(group if found is None else found.plans, [], found))
        elif steps and not any(p.inner or p.reduced for p in group):
            steps[-1].after += group
        else:
            return None
        if isinstance(along, Axis) and isinstance(along.extent, int) and along.extent > _LONGEST:
            return None
    return steps if 2 <= len(steps) <= _MOST_STEPS else None


class _Pipeline:
    """The loops of one nest. Each turn takes a step of ``width`` rows, that of ``width`` rows before, and so on."""

    def __init__(
        self, emitter: Emitter, rows: Sequence[Axis], steps: Sequence[_Step], temps: Sequence[Buffer], width: int
    ) -> None:
        self.emitter = emitter
        self.builder: Builder = emitter.builder
        self.rows = rows
        self.steps = steps
        self.width = width
        self.extent = _along(emitter, steps[0]).extent
        self.turn, self.count = Axis("turn", 1 << 62), Axis("count", 1 << 62)
        self.numbers: list[tuple[Buffer, int]] = []
        self.places: list[Buffer] = []
        # For each step and each of its rows, where what is kept between steps lies.
        self.at = [Axis("row", 1 << 62) for _ in range(len(steps) * width)]
        self.storage: list[dict[tuple[int, int], Storage]] = [{} for _ in self.at]
        self.slots: list[list[tuple[Axis, Scalar]]] = [[] for _ in self.at]
        self._keep(temps)

    def _keep(self, temps: Sequence[Buffer]) -> None:
        """Places for what one step leaves to others, for each row between them."""
        last: dict[int, int] = {}
        for number, step in enumerate(self.steps):
            for plan in (*step.loop, *step.after):
                last.update(dict.fromkeys(self.emitter.reads(plan), number))
        mine = {id(t) for t in temps}
        for number, step in enumerate(self.steps):
            for plan in (*step.loop, *step.after):
                for n in range(len(plan.member.kept.dtypes)):
                    key = (id(plan.member.kept.origin), n)
                    where = self.builder.storage[key]
                    if id(where.buffer) not in mine:
                        continue
                    flight = max(last.get(id(where.buffer), number) - number, 0) + 1
                    self._place(key, where, number, flight)

    def _place(self, key: tuple[int, int], where: Storage, number: int, flight: int) -> None:
        (size,) = where.buffer.shape
        first, rows = number * self.width, flight * self.width
        if where.buffer.scope == "register":
            buffer = replace(where.buffer, shape=(rows,))
            self.numbers.append((buffer, rows))
            for n in range(rows):
                self.storage[first + n][key] = Storage(buffer, where.strides, n)
            return
        pitch = dim_mul(ceil_div(size, _WHOLE), _WHOLE)
        buffer = temporary(where.buffer.name, dim_mul(pitch, rows), where.buffer.dtype)
        self.places.append(buffer)
        for n in range(first, first + rows):
            # A row has the same place in every step.
            slot = Axis("slot", rows)
            self.slots[n].append((slot, binary("mod", self.at[n], Const(rows, "int64"))))
            offset = dim_mul(self.builder.indices.poly(slot), pitch)
            self.storage[n][key] = Storage(buffer, where.strides, offset)

    def tasks(self, work: Dim) -> Stmt:
        """Tasks of rows that follow one another: enough for all threads, long enough to fill the pipeline."""
        total = shape_size(tuple(a.extent for a in self.rows))
        whole, one = extent_of(total), Const(1, "int64")
        if isinstance(total, int) and isinstance(work, int) and total * work <= PARALLEL_COST:
            return self._task(Const(0, "int64"), whole)
        worth = maximum(binary("floordiv", Const(PARALLEL_COST, "int64"), maximum(extent_of(work), one)), one)
        fair = maximum(
            ceiling(whole, binary("mul", WORKERS, _TASKS_OF_THREAD)), minimum(ceiling(whole, WORKERS), _ROWS_OF_TASK)
        )
        per, task = Axis("per", total), Axis("task", total)
        start = Axis("start", total)
        count = minimum(per, binary("sub", whole, start))
        body = bound([(start, binary("mul", task, per))], self._task(start, count))
        return bound([(per, maximum(worth, fair))], For(task, ceiling(whole, per), body, "parallel", 1))

    def _task(self, start: Scalar, count: Scalar) -> Stmt:
        last = len(self.steps) - 1
        turns = For(self.turn, binary("add", ceiling(self.count, Const(self.width, "int64")), last), self._turn(start))
        body = bound([(self.count, count)], turns)
        return allocate([*(b for b, _ in self.numbers), *self.places], body)

    def _go_to(self, at: Axis, row: Scalar) -> list[tuple[Axis, Scalar]]:
        """Let what is emitted be about a row; gives what has to be bound."""
        own = [Axis(a.name, a.extent) for a in self.rows]
        for axis, here in zip(self.rows, own, strict=True):
            self.emitter.bind(axis, here)
        return [(at, row), *unflattened(own, at)]

    def _turn(self, start: Scalar) -> Stmt:
        """Each step at its rows, then what is kept moves on."""
        bindings: list[tuple[Axis, Scalar]] = []
        parts: list[tuple[Reductions, Stmt, list[Stmt]]] = []
        inside: list[Scalar] = []
        shared = Axis("j", self.extent)
        before, storage = self.emitter.env, dict(self.builder.storage)
        for n, at in enumerate(self.at):
            step, behind = self.steps[n // self.width], n % self.width
            # Of the task's rows.
            turns = binary("sub", self.turn, n // self.width)
            row = binary("add", binary("mul", turns, self.width), behind)
            bindings += self._go_to(at, binary("add", start, row))
            bindings += self.slots[n]
            self.builder.storage.update(self.storage[n])
            if step.moments is None:
                reductions, element = self.emitter.element(step.loop, shared)
            else:
                # Found again, for what they pass on is in another place in each row.
                found = moments(self.emitter, [[plan] for plan in step.moments.plans])
                assert found is not None
                reductions, element = summed_once(self.emitter, found, shared)
            parts.append((reductions, element, [self.emitter.member(p, None) for p in step.after]))
            self.emitter.env = before
            begun = compare("ge", self.turn, Const(n // self.width, "int64"))
            inside.append(binary("and", begun, compare("lt", row, self.count)))
        self.builder.storage.clear()
        self.builder.storage.update(storage)
        last = len(self.steps) - 1
        newest = binary("mul", binary("add", self.turn, 1), self.width)
        full = binary("and", compare("ge", self.turn, Const(last, "int64")), compare("le", newest, self.count))

        def loop(body: Sequence[Stmt]) -> Stmt:
            return For(shared, extent_of(self.extent), seq(body), "vectorized")

        # The same statements both times, so that they are the same vectors and sums: a row's result does not depend on
        # where in a task it is.
        every = [e for _, e, _ in parts]
        # Rows mostly follow one another, so what lies behind an element is written later.
        stores = [s for element in every for s in statements(element) if isinstance(s, Store)]
        target = self.builder.target
        if self.width == 1:
            # What a step has written is at hand when a later one writes it again.
            new = {id(s.buffer): s for s in reversed(stores)}
            asked = [*operands_ahead(every[0], shared, target), *results_ahead([*new.values()], target)]
        else:
            asked = [p for e in every[: self.width] for p in operands_ahead(e, shared, target, near=True)]
        elements = Branch(
            full,
            loop([*asked, *every]),
            loop([Branch(cond, e) for cond, (_, e, _) in zip(inside, parts, strict=True)]),
        )
        starts = [
            Branch(cond, seq(r.starts)) if self.steps[n // self.width].moments is not None else seq(r.starts)
            for n, (cond, (r, _, _)) in enumerate(zip(inside, parts, strict=True))
        ]
        ends = [
            Branch(c, seq([*r.ends, *after])) for c, (r, _, after) in zip(inside, parts, strict=True) if r.ends or after
        ]
        moves = [
            Store(b, (Const(n, "int64"),), Load(b, (Const(n - self.width, "int64"),), b.dtype))
            for b, rows in self.numbers
            for n in reversed(range(self.width, rows))
        ]
        accumulators = [b for reductions, _, _ in parts for b in reductions.buffers]
        return bound(bindings, allocate(accumulators, seq([*starts, elements, *ends, *moves])))
