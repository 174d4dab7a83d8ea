"""Loops whose steps hand numbers on: one loop, one step after the other, with all that is handed on in registers.

    s, r = init; for t in n { push s + x[t]; s, r = 0.9 * s + r, x[t] - 0.5 * s }

Numbers may depend on each other in a circle (a filter of second order, the position and speed of a pendulum), which no scan of one state
is. A step takes as long as the longest chain from what it is handed to what it hands on; nothing else waits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from relay.loop.ir import Buffer, For, Kernel, Store
from relay.loop.target import Target
from relay.plan import empty_axes
from relay.plan.build import Builder, allocate, bound, operand, seq
from relay.plan.graph import TeGraph
from relay.plan.kernel_plan import KernelPlan
from relay.plan.key import PlanKey
from relay.plan.stages import Kept
from relay.plan.work import arithmetic, traffic
from relay.te.index import Indices
from relay.te.rewrite import output_dtypes
from relay.te.scalar import Axis, Const, Load, Named, Scalar, extent_of
from relay.te.tensor import Compute, Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """``states`` are variables for numbers: what is ``first``, before any step, and what follows them in a step of number ``time``.

    Each step puts the numbers ``pushed`` behind vectors; the numbers ``last`` are results once all steps are done. All in terms of
    ``inputs`` and, but for ``first``, of the states: what follows and what is pushed of those before the step.
    """

    inputs: tuple[Tensor, ...]
    time: Axis
    states: tuple[Axis, ...]
    first: tuple[Scalar, ...]
    following: tuple[Scalar, ...]
    pushed: tuple[Scalar, ...]
    last: tuple[Scalar, ...]

    def graph(self) -> TeGraph:
        """What is computed, as stages: the results, and then what the states are first and in each step, and which variable is which
        of them. They stand as variables there: the graph tells what is read, and one loop from another, and is no definition."""
        step = Compute("step", (self.time,), (*self.pushed, *self.following))
        ends = (*self.last, *self.first)
        numbers = [Compute("number", (), (e,)) for e in ends]
        results = [Tensor(step, n, step.shape, e.dtype) for n, e in enumerate(step.bodies)]
        single = [Tensor(stage, 0, (), e.dtype) for stage, e in zip(numbers, ends, strict=True)]
        pushed, following = results[: len(self.pushed)], results[len(self.pushed) :]
        last, first = single[: len(self.last)], single[len(self.last) :]
        states = Compute("states", (), self.states)
        return TeGraph(self.inputs, (*pushed, *last, *following, *first, Tensor(states, 0, (), self.states[0].dtype)))

    @property
    def results(self) -> int:
        """How many results there are."""
        return len(self.pushed) + len(self.last)


def plan_steps(steps: Steps, target: Target, key: PlanKey, name: str) -> KernelPlan:
    """The plan of such a loop: its results are what is put behind each vector, and then the numbers of the end."""
    graph = steps.graph()
    builder = Builder(target, Indices())
    inputs = [operand(builder, t, f"in{n}") for n, t in enumerate(steps.inputs)]
    outputs = [operand(builder, t, f"out{n}") for n, t in enumerate(graph.outputs[: steps.results])]
    rows, numbers = outputs[: len(steps.pushed)], outputs[len(steps.pushed) :]
    zero = (Const(0, "int64"),)
    registers = [Buffer(builder.fresh("state"), (1,), s.dtype, "register") for s in steps.states]
    now: dict[Axis, Scalar] = {s: Load(r, zero, s.dtype) for s, r in zip(steps.states, registers, strict=True)}
    every = builder.evaluate((*steps.pushed, *steps.following), now)
    pushed, following = every[: len(rows)], every[len(rows) :]
    # All that follows is known before anything is put in its place.
    next_ = [Named(f"next{n}", e.dtype) for n, e in enumerate(following)]
    step = bound(
        list(zip(next_, following, strict=True)),
        seq(
            [
                *(Store(out, (steps.time,), e) for out, e in zip(rows, pushed, strict=True)),
                *(Store(register, zero, e) for register, e in zip(registers, next_, strict=True)),
            ]
        ),
    )
    first, last = builder.evaluate(steps.first, {}), builder.evaluate(steps.last, now)
    body = allocate(
        registers,
        seq(
            [
                *(Store(register, zero, e) for register, e in zip(registers, first, strict=True)),
                For(steps.time, extent_of(steps.time.extent), step),
                *(Store(out, zero, e) for out, e in zip(numbers, last, strict=True)),
            ]
        ),
    )
    kernel = empty_axes.asked_for(Kernel(name, tuple(inputs), tuple(outputs), key.dims, body), graph.outputs)
    stages = dict.fromkeys(t.stage for t in graph.outputs)
    kept = [Kept(s, s, output_dtypes(s)) for s in stages if isinstance(s, Compute)]
    moved = traffic(replace(graph, outputs=graph.outputs[: steps.results]), kept, {})
    return KernelPlan(kernel, (), arithmetic(kept, {}), moved, "steps", key)
