"""Rows in flight: the steps of a row nest for several rows in one loop.

A row's steps wait for one another (a softmax's exponentials for the maximum, its shares for the sum), and a step's end
waits for its reduction, with little else to do meanwhile. So one loop over the elements takes the first step of a row, the
second of the row before, the third of the row before that (software pipelining: loop skewing, then fusion). It waits
once for all of them at its end, reads from memory while another row's arithmetic goes on, and is left once a row.
Between so much arithmetic a processor does not look far enough ahead to the lines that are read and written, so they are asked for.

That is done where a step computes something dear of each element: norms, which read and add, gain little while their rows
are in a cache, and lose a quarter when they are not, because memory is read fastest in one run at a time.

What a step passes on to a later one is kept for as many turns as lie between them: a number in registers that move on
from turn to turn, elements in as many places as rows are in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from relay.ir.dim import Dim, ceil_div, dim_mul, known_equal, shape_size
from relay.loop.ahead import operands_ahead, results_ahead
from relay.loop.ir import WORKERS, Branch, Buffer, For, Stmt, Store
from relay.loop.walk import statements
from relay.plan.build import (
    PARALLEL_COST,
    Builder,
    Storage,
    allocate,
    bound,
    ceiling,
    seq,
    temporary,
    unflattened,
)  # fmt: skip
from relay.plan.row_members import Emitter
from relay.plan.row_parts import MemberPlan, Reductions
from relay.te.scalar import Axis, Const, Load, Scalar, binary, compare, extent_of, maximum, minimum

# Steps of more rows at once are not worth the registers; rows up to so many elements stay in the second-level cache.
_MOST_STEPS, _LONGEST = 4, 16384
# Rows that a task has at least, where there are enough for all threads: the first and last few are not all in flight.
_ROWS_OF_TASK, _TASKS_OF_THREAD = 16, 4
# Places of elements in turn begin at whole vectors.
_WHOLE = 64


@dataclass(slots=True, eq=False)
class _Step:
    """A loop over a row's elements, and the members of one element each that follow it."""

    loop: list[MemberPlan]
    after: list[MemberPlan]


def pipelined(
    emitter: Emitter, rows: Sequence[Axis], plans: Sequence[MemberPlan], temps: Sequence[Buffer], work: Dim
) -> Stmt | None:
    """The loops of a nest with rows in flight; None where its steps do not run over the same elements. ``work`` is what
    one row costs in simple operations."""
    live = [a for a in rows if a.extent != 1]
    steps = _steps(emitter, plans)
    if not live or steps is None or not any(emitter.computes(p) for step in steps for p in step.loop):
        return None
    along = emitter.along(steps[0].loop[0])
    assert along is not None
    return _Pipeline(emitter, live, steps, along.extent, temps).tasks(work)


def _steps(emitter: Emitter, plans: Sequence[MemberPlan]) -> list[_Step] | None:
    steps: list[_Step] = []
    for group in emitter.groups(plans):
        along = emitter.along(group[0])
        if along is not None:
            first = emitter.along(steps[0].loop[0]) if steps else along
            assert first is not None
            if not known_equal(along.extent, first.extent):
                return None
            steps.append(_Step(group, []))
        elif steps and not any(p.inner or p.reduced for p in group):
            steps[-1].after += group
        else:
            return None
        if isinstance(along, Axis) and isinstance(along.extent, int) and along.extent > _LONGEST:
            return None
    return steps if 2 <= len(steps) <= _MOST_STEPS else None


class _Pipeline:
    """The loops of one nest."""

    def __init__(
        self, emitter: Emitter, rows: Sequence[Axis], steps: Sequence[_Step], extent: Dim, temps: Sequence[Buffer]
    ) -> None:
        self.emitter = emitter
        self.builder: Builder = emitter.builder
        self.rows = rows
        self.steps = steps
        self.extent = extent
        self.turn, self.count = Axis("turn", 1 << 62), Axis("count", 1 << 62)
        self.numbers: list[tuple[Buffer, int]] = []
        self.places: list[Buffer] = []
        # For each step, where what is kept between steps lies for the row that it is at.
        self.storage: list[dict[tuple[int, int], Storage]] = [{} for _ in steps]
        self.slots: list[list[tuple[Axis, Scalar]]] = [[] for _ in steps]
        self.at = [Axis("row", 1 << 62) for _ in steps]
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
        if where.buffer.scope == "register":
            buffer = replace(where.buffer, shape=(flight,))
            self.numbers.append((buffer, flight))
            for age in range(flight):
                self.storage[number + age][key] = Storage(buffer, where.strides, age)
            return
        pitch = dim_mul(ceil_div(size, _WHOLE), _WHOLE)
        buffer = temporary(where.buffer.name, dim_mul(pitch, flight), where.buffer.dtype)
        self.places.append(buffer)
        for step in range(number, number + flight):
            # A row has the same place in every step.
            slot = Axis("slot", flight)
            self.slots[step].append((slot, binary("mod", self.at[step], Const(flight, "int64"))))
            offset = dim_mul(self.builder.indices.poly(slot), pitch)
            self.storage[step][key] = Storage(buffer, where.strides, offset)

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
        turns = For(self.turn, binary("add", self.count, last), self._turn(start))
        body = bound([(self.count, count)], turns)
        return allocate([*(b for b, _ in self.numbers), *self.places], body)

    def _go_to(self, at: Axis, row: Scalar) -> list[tuple[Axis, Scalar]]:
        """Let what is emitted be about a row; gives what has to be bound."""
        own = [Axis(a.name, a.extent) for a in self.rows]
        for axis, here in zip(self.rows, own, strict=True):
            self.emitter.bind(axis, here)
        return [(at, row), *unflattened(own, at)]

    def _turn(self, start: Scalar) -> Stmt:
        """Each step at its row, then what is kept moves on."""
        bindings: list[tuple[Axis, Scalar]] = []
        parts: list[tuple[Reductions, Stmt, list[Stmt]]] = []
        shared = Axis("j", self.extent)
        before, storage = self.emitter.env, dict(self.builder.storage)
        for number, step in enumerate(self.steps):
            bindings += self._go_to(self.at[number], binary("add", start, binary("sub", self.turn, number)))
            bindings += self.slots[number]
            self.builder.storage.update(self.storage[number])
            reductions, element = self.emitter.element(step.loop, shared)
            parts.append((reductions, element, [self.emitter.member(p, None) for p in step.after]))
            self.emitter.env = before
        self.builder.storage.clear()
        self.builder.storage.update(storage)
        last = len(self.steps) - 1
        inside = [
            binary(
                "and",
                compare("ge", self.turn, Const(number, "int64")),
                compare("lt", self.turn, binary("add", self.count, number)),
            )
            for number in range(last + 1)
        ]
        full = binary("and", compare("ge", self.turn, Const(last, "int64")), compare("lt", self.turn, self.count))

        def loop(body: Sequence[Stmt]) -> Stmt:
            return For(shared, extent_of(self.extent), seq(body), "vectorized")

        # The same statements both times, so that they are the same vectors and sums: a row's result does not depend on
        # where in a task it is.
        every = [e for _, e, _ in parts]
        # Rows mostly follow one another, so what lies behind an element is written later.
        stores = [s for element in every for s in statements(element) if isinstance(s, Store)]
        target = self.builder.target
        asked = [*operands_ahead(every[0], shared, target), *results_ahead(stores, target)]
        elements = Branch(
            full,
            loop([*asked, *every]),
            loop([Branch(cond, e) for cond, (_, e, _) in zip(inside, parts, strict=True)]),
        )
        starts = [s for reductions, _, _ in parts for s in reductions.starts]
        ends = [
            Branch(c, seq([*r.ends, *after])) for c, (r, _, after) in zip(inside, parts, strict=True) if r.ends or after
        ]
        moves = [
            Store(b, (Const(age, "int64"),), Load(b, (Const(age - 1, "int64"),), b.dtype))
            for b, flight in self.numbers
            for age in reversed(range(1, flight))
        ]
        accumulators = [b for reductions, _, _ in parts for b in reductions.buffers]
        return bound(bindings, allocate(accumulators, seq([*starts, elements, *ends, *moves])))
