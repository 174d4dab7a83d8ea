"""Sums over several axes whose guard asks about each of them apart, as sums over one after the other.

    y[i, j] = sum(select(near(i, k) & near(j, l), x[k, l], 0), (k, l))
    ->   s[k, j] = sum(select(near(j, l), x[k, l], 0), l);   y[i, j] = sum(select(near(i, k), s[k, j], 0), k)

The gradient of a mean over windows that divide an image, whatever its size, is one: an element belongs to some of the windows, along either
axis by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from relay.plan.graph import TeGraph
from relay.te.index import Indices
from relay.te.rewrite import rewritten
from relay.te.scalar import (
    Axis,
    Const,
    Load,
    Reduce,
    Scalar,
    Select,
    conjunction,
    conjuncts,
    iteration_count,
    mentioned,
    select,
)
from relay.te.tensor import Compute, Stage, float_sum, stage_over

# How many times as much work a sum over all axes at once has to be: what is between the two takes memory.
_GAIN = 2


def separated(graph: TeGraph) -> TeGraph:
    """The graph with such sums apart."""
    return replace(graph, outputs=rewritten(graph.outputs, _apart))


def _apart(stage: Stage) -> Stage:
    while (steps := _first_step(stage)) is not None:
        stage = steps
    return stage


def _first_step(stage: Stage) -> Stage | None:
    """The stage as a sum over some of its axes of sums over the others; None: there is no guard for either, or nothing is gained."""
    summed = float_sum(stage)
    if summed is None:
        return None
    stage, body = summed
    value, zero = body.body, Const(0.0, body.dtype)
    asked: list[tuple[Scalar, set[Axis]]] = []
    while isinstance(value, Select) and isinstance(value.b, Const) and value.b.value == 0:
        asked += [(each, mentioned(each)) for each in conjuncts(value.cond)]
        value = value.a
    if not asked or not Indices().reads_inside(value):
        return None  # what is excluded along one axis would be read for the others
    everything = iteration_count([*stage.axes, *body.axes])
    best, least = None, everything / _GAIN
    for first in _groups(body.axes, [axes for _, axes in asked]):
        before = [each for each, axes in asked if not axes.isdisjoint(first)]
        after = [each for each, axes in asked if axes.isdisjoint(first)]
        moves = mentioned(value, *before)
        kept = [a for a in stage.axes if a in moves]
        rest = [a for a in body.axes if a not in first]
        # A last axis that stays is along memory in both steps.
        split = len(kept) - (kept[-1:] == list(stage.axes[-1:]))
        own = [*kept[:split], *(a for a in rest if a in moves), *kept[split:]]
        work = iteration_count([*own, *first]) + iteration_count([*stage.axes, *rest])
        if before and after and rest and work <= least:
            best, least = (own, tuple(first), before, tuple(rest), after), work
    if best is None:
        return None
    own, over, before, left, after = best
    inner = Reduce("sum", over, select(conjunction(before), value, zero), body.dtype)
    (made,) = stage_over(f"{stage.name}_along", own, (inner,))
    sums = select(conjunction(after), Load(made, tuple(own), body.dtype), zero)
    return Compute(stage.name, stage.axes, (Reduce("sum", left, sums, body.dtype),))


def _groups(axes: Sequence[Axis], asked: Sequence[set[Axis]]) -> Iterator[list[Axis]]:
    """The axes in groups of which no condition asks about two."""
    left = list(axes)
    while left:
        group = {left[0]}
        while any(not group.isdisjoint(a) and not group.issuperset(a.intersection(axes)) for a in asked):
            group |= {a for each in asked if not group.isdisjoint(each) for a in each.intersection(axes)}
        yield [a for a in axes if a in group]
        left = [a for a in left if a not in group]
