"""Loops whose steps hand numbers on: one loop, one step after the other, with all that is handed on in registers.

    s, r = init; for t in n { push s + x[t]; s, r = 0.9 * s + r, x[t] - 0.5 * s }

Numbers may depend on each other in a circle (a filter of second order, the position and speed of a pendulum), which no scan of one state
is. A step takes as long as the longest chain from what it is handed to what it hands on; nothing else waits.

Of tensors that are handed on, each of whose elements is such a loop by itself, lanes go across the elements: a vector of them goes through
all steps, or a block of vectors that the first-level cache holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from relay.ir.dim import dim_mul
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import Branch, Buffer, For, Kernel, Scope, Stmt, Store
from relay.loop.target import Target
from relay.plan import empty_axes
from relay.plan.build import Builder, Storage, allocate, bound, operand, seq, vectorized
from relay.plan.expand import Env, cost
from relay.plan.graph import TeGraph, tensor_key
from relay.plan.kernel_plan import KernelPlan
from relay.plan.key import PlanKey
from relay.plan.parallel import parallel_rows
from relay.plan.row_parts import Lanes, held_lanes, lane_blocks
from relay.plan.space import Accesses, Space, accesses
from relay.plan.stages import Kept
from relay.plan.work import arithmetic, traffic
from relay.te.index import Indices
from relay.te.rewrite import output_dtypes
from relay.te.scalar import Axis, Const, Load, Named, Scalar, binary, compare, extent_of, select
from relay.te.tensor import Compute, Stage, Tensor

# Vectors across a line of known length that go through the steps in registers.
_VECTORS = 4
# Elements of a line that go through the steps together at most.
_LONGEST = 2048


@record(frozen=True, slots=True, eq=False)
class Steps:
    """``states`` are variables for numbers: what is ``first``, before any step, and what follows them in a step of number ``time``.

    Each step puts the numbers ``pushed`` behind vectors; the numbers ``last`` are results once all steps are done. All in terms of
    ``inputs`` and, but for ``first``, of the states: what follows and what is pushed of those before the step. With a ``grid`` there is
    a state of each kind at each of its places, and so of the results, but for those that are ``of_numbers``. Without one, what is put
    behind a tensor in a step may be a row of several numbers, in order, of the ``shapes`` that are given.
    """

    inputs: tuple[Tensor, ...]
    time: Axis
    states: tuple[Axis, ...]
    first: tuple[Scalar, ...]
    following: tuple[Scalar, ...]
    pushed: tuple[tuple[Scalar, ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    last: tuple[Scalar, ...]
    grid: tuple[Axis, ...] = ()
    of_numbers: frozenset[int] = frozenset()

    def axes(self, result: int) -> tuple[Axis, ...]:
        """Those of a result in each step, or in the end."""
        return () if result in self.of_numbers else self.grid

    def graph(self) -> TeGraph:
        """What is computed, as stages: the results, and then what the states are first and in each step, and which variable is which
        of them. They stand as variables there: the graph tells what is read, and one loop from another, and is no definition."""
        each = [e for n, (e, *_) in enumerate(self.pushed) if n not in self.of_numbers and not self.shapes[n]]
        step = Compute("step", (self.time, *self.grid), (*each, *self.following))
        results = [Tensor(step, n, step.shape, e.dtype) for n, e in enumerate(step.bodies)]
        places, following = iter(results[: len(each)]), results[len(each) :]
        pushed = [
            row_of(self.time, row, shape) if shape or n in self.of_numbers else next(places)
            for n, (row, shape) in enumerate(zip(self.pushed, self.shapes, strict=True))
        ]
        last = [_stage("number", self.axes(n), e) for n, e in enumerate(self.last, len(pushed))]
        first = [_stage("number", self.grid, e) for e in self.first]
        states = Compute("states", (), self.states)
        return TeGraph(self.inputs, (*pushed, *last, *following, *first, Tensor(states, 0, (), self.states[0].dtype)))

    @property
    def results(self) -> int:
        """How many results there are."""
        return len(self.pushed) + len(self.last)


def row_of(time: Axis, row: Sequence[Scalar], shape: Sequence[int]) -> Tensor:
    """The rows of these numbers, in order, that are put behind a tensor in all steps."""
    axes = tuple(Axis(f"j{n}", size) for n, size in enumerate(shape))
    place: Scalar = Const(0, "int64")
    for axis, size in zip(axes, shape, strict=True):
        place = binary("add", binary("mul", place, size), axis)
    whole = row[-1]
    for n, element in reversed([*enumerate(row[:-1])]):
        whole = select(compare("eq", place, n), element, whole)
    return _stage("number", (time, *axes), whole)


def _stage(name: str, axes: tuple[Axis, ...], body: Scalar) -> Tensor:
    stage = Compute(name, axes, (body,))
    return Tensor(stage, 0, stage.shape, body.dtype)


def plan_steps(steps: Steps, target: Target, key: PlanKey, name: str) -> KernelPlan:
    """The plan of such a loop: its results are what is put behind each vector, and then the numbers of the end."""
    graph = steps.graph()
    builder = Builder(target, Indices())
    inputs = [operand(builder, t, f"in{n}") for n, t in enumerate(steps.inputs)]
    results = graph.outputs[: steps.results]
    outputs = [operand(builder, t, f"out{n}") for n, t in enumerate(results)]
    made = _Made(builder, steps, [builder.storage[tensor_key(t)] for t in results])
    kernel = empty_axes.asked_for(
        Kernel(name, tuple(inputs), tuple(outputs), key.dims, made.everywhere() if steps.grid else made.numbers()),
        graph.outputs,
    )
    stages: dict[Stage, None] = dict.fromkeys(t.stage for t in graph.outputs)
    kept = [Kept(s, s, output_dtypes(s)) for s in stages if isinstance(s, Compute)]
    moved = traffic(replace(graph, outputs=results), kept, {})
    return KernelPlan(kernel, (), arithmetic(kept, {}), moved, "steps", key)


@record(frozen=True, slots=True, eq=False)
class _Made:
    """The loops of such a plan; ``results``: where they are."""

    builder: Builder
    steps: Steps
    results: Sequence[Storage]

    def numbers(self) -> Stmt:
        """One loop, with numbers in registers."""
        one = Const(0, "int64")
        begin, step, end, registers = self._parts({}, one, 1, "register")
        return allocate(registers, seq([begin, self._loop(step), end]))

    def everywhere(self) -> Stmt:
        """The loop for every place of the grid, and the results that are of numbers."""
        builder, steps = self.builder, self.steps
        apart: list[Stmt] = []
        for n in sorted(steps.of_numbers):
            (value,) = builder.evaluate(
                [steps.pushed[n][0] if n < len(steps.pushed) else steps.last[n - len(steps.pushed)]], {}
            )
            index = (steps.time,) if n < len(steps.pushed) else ()
            store = Store(self.results[n].buffer, (builder.flat(self.results[n], index),), value)
            apart.append(vectorized(steps.time, extent_of(steps.time.extent), store) if index else store)
        space = Space([list(steps.grid)], {})
        space.normalise(builder, self._accesses)
        *outer, line = space.groups[0] or [Axis("one", 1)]
        lanes = builder.lanes([s.dtype for s in steps.states])
        most = _VECTORS * lanes
        if isinstance(line.extent, int):
            held = line.extent <= most
            loops = self._across(outer, line, space.env, -(-line.extent // lanes) * lanes if held else None)
        else:
            few = compare("le", extent_of(line.extent), lanes)
            loops = Branch(few, self._across(outer, line, space.env, lanes), self._across(outer, line, space.env, None))
        return seq([*apart, loops])

    def _accesses(self, env: Env) -> Accesses:
        steps, builder = self.steps, self.builder
        values = builder.evaluate((*steps.first, *steps.following, *_all(steps.pushed), *steps.last), env)
        places = [self._place(n, env) for n in range(steps.results) if n not in steps.of_numbers]
        return accesses(builder.indices, values, places)

    def _place(self, result: int, env: Env, number: int = 0) -> Scalar:
        """Where an element of a result is; of a row that has no place of the grid to itself, the one of this number."""
        at: list[Scalar] = [env.get(a, a) for a in self.steps.axes(result)]
        if result >= len(self.steps.pushed):
            return self.builder.flat(self.results[result], at)
        for size in reversed(self.steps.shapes[result]):
            number, here = divmod(number, size)
            at.insert(0, Const(here, "int64"))
        return self.builder.flat(self.results[result], [self.steps.time, *at])

    def _across(self, outer: Sequence[Axis], line: Axis, env: Env, size: int | None) -> Stmt:
        """Lanes across a line: so many at a time in registers, or blocks of it."""
        lanes, blocks, position = _lanes(line, size, self._most())
        here = {a: self.builder.evaluate([v], {line: position})[0] for a, v in env.items()}
        here[line] = position
        scope: Scope = "register" if lanes.held else "stack"
        begin, step, end, states = self._parts(here, lanes.variable, lanes.size, scope)
        body = allocate(states, seq([lanes.loop(begin), self._loop(lanes.loop(step)), lanes.loop(end)]))
        work = sum(cost(e) for e in (*self.steps.following, *_all(self.steps.pushed))) * lanes.size
        return parallel_rows(self.builder, [*outer, *blocks], dim_mul(self.steps.time.extent, work), body)

    def _most(self) -> int:
        """Elements of a line that go through the steps together: memory is read in long runs, the first-level cache holds all states."""
        bits = sum(max(8, dtype_bits(s.dtype)) for s in self.steps.states)
        most = min(_LONGEST, 8 * self.builder.target.l1_bytes // (2 * bits))
        return max(_VECTORS * self.builder.lanes(s.dtype for s in self.steps.states), 1 << most.bit_length() >> 1)

    def _loop(self, step: Stmt) -> Stmt:
        return For(self.steps.time, extent_of(self.steps.time.extent), step)

    def _parts(self, env: Env, at: Scalar, size: int, scope: Scope) -> tuple[Stmt, Stmt, Stmt, list[Buffer]]:
        """What is done before the first step, in each, and behind the last one, at the place ``at`` of the states' buffers."""
        builder, steps = self.builder, self.steps
        states = [Buffer(builder.fresh("state"), (size,), s.dtype, scope) for s in steps.states]
        now: dict[Axis, Scalar] = {s: Load(r, (at,), s.dtype) for s, r in zip(steps.states, states, strict=True)}
        here = [n for n in range(steps.results) if n not in steps.of_numbers]
        rows = [(n, m) for n in here if n < len(steps.pushed) for m in range(len(steps.pushed[n]))]
        ends = [n for n in here if n >= len(steps.pushed)]
        every = builder.evaluate((*(steps.pushed[n][m] for n, m in rows), *steps.following), {**env, **now})
        pushed, following = every[: len(rows)], every[len(rows) :]
        # All that follows is known before anything is put in its place.
        next_ = [Named(builder.fresh("next"), e.dtype) for e in following]
        step = bound(
            list(zip(next_, following, strict=True)),
            seq(
                [
                    *(self._store(n, env, e, m) for (n, m), e in zip(rows, pushed, strict=True)),
                    *(Store(state, (at,), e) for state, e in zip(states, next_, strict=True)),
                ]
            ),
        )
        first = builder.evaluate(steps.first, env)
        last = builder.evaluate([steps.last[n - len(steps.pushed)] for n in ends], {**env, **now})
        begin = seq([Store(state, (at,), e) for state, e in zip(states, first, strict=True)])
        end = seq([self._store(n, env, e) for n, e in zip(ends, last, strict=True)])
        return begin, step, end, states

    def _store(self, result: int, env: Env, value: Scalar, number: int = 0) -> Stmt:
        return Store(self.results[result].buffer, (self._place(result, env, number),), value)


def _all(rows: Iterable[tuple[Scalar, ...]]) -> list[Scalar]:
    return [e for row in rows for e in row]


def _lanes(line: Axis, size: int | None, most: int) -> tuple[Lanes, list[Axis], Scalar]:
    if size is None:
        return lane_blocks(line, most)
    if isinstance(line.extent, int):
        lane = Axis("lane", size)
        return Lanes(lane, extent_of(line.extent), size, held=True), [], lane
    lanes, block, position = held_lanes(line, size)
    return lanes, [block], position
