"""Sums of guarded products: what a guard does not ask about is summed up before it.

    y[b, i] = sum(select(row[t] == i // 4, w[t, i % 4, k] * x[b, 4 * column[t] + k], 0), (t, k))
    ->   p[t, b, j] = sum(w[t, j, k] * x[b, 4 * column[t] + k], k);   y[b, i] = sum(select(row[t] == i // 4, p[t, b, i % 4], 0), t)

The sum over k is the same for all blocks of rows i // 4, and a product; what is left puts a block where a tensor says. Likewise the pairs
of a factorisation machine, `select(i < j, v[i, f] * v[j, f] * x[b, i] * x[b, j], 0)`, have one matrix of products `v[i, f] * v[j, f]` for
all b. Where the guard does not hold, what was summed up is not used; what may be outside of a tensor there is read as zero.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

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
    binary,
    chain,
    children,
    compare,
    conjunction,
    extent_of,
    iteration_count,
    mentioned,
    select,
)
from relay.te.tensor import Compute, Stage, float_sum, stage_over

# How many times as much work there has to be for all that the guard asks about.
_GAIN = 2


def before_guards(graph: TeGraph) -> TeGraph:
    """The graph with such sums apart."""
    return replace(graph, outputs=rewritten(graph.outputs, lambda stage: _apart(stage) or stage))


def is_apart(stage: Compute) -> bool:
    """Whether a stage is such a sum, which repays being made apart."""
    return _apart(stage) is not None


def _apart(stage: Stage) -> Stage | None:
    summed = float_sum(stage)
    if summed is None:
        return None
    stage, body = summed
    guard = body.body
    if not isinstance(guard, Select) or not isinstance(guard.b, Const) or guard.b.value != 0:
        return None
    asked = mentioned(guard.cond)
    free = [a for a in body.axes if a.extent != 1 and a not in asked]
    factors = chain(guard.a, "mul")
    inner = [f for f in factors if not mentioned(f).isdisjoint(free)]
    if len(inner) < 2 or not all(isinstance(f, Load) for f in inner):
        return None
    moved = [mentioned(f) for f in inner]
    everything = {*stage.axes, *body.axes}
    own = set[Axis]().union(*moved)
    work = len(inner) * iteration_count(own) + (len(factors) - len(inner) + 1) * iteration_count(everything - set(free))
    if len(factors) * iteration_count(everything) < _GAIN * work:
        return None
    # What all factors move with outermost, and what the last one of the result's axes moves innermost, as in a product.
    kept = [a for a in (*stage.axes, *body.axes) if a in own and a not in free]
    last = next((m for m in moved if kept and kept[-1] in m), own)
    axes = sorted(kept, key=lambda a: (not all(a in m for m in moved), a in last))
    product = reduce(lambda a, b: binary("mul", a, b), [_anywhere(f) for f in inner])
    (made,) = stage_over(f"{stage.name}_free", axes, (Reduce("sum", tuple(free), product, body.dtype),))
    others: list[Scalar] = [f for f in factors if f not in inner]
    value = reduce(lambda a, b: binary("mul", a, b), [*others, Load(made, tuple(axes), body.dtype)])
    left = tuple(a for a in body.axes if a not in free)
    chosen = select(guard.cond, value, guard.b)
    return Compute(stage.name, stage.axes, (Reduce("sum", left, chosen, body.dtype) if left else chosen,))


def _anywhere(load: Scalar) -> Scalar:
    """What is read, as zero where it is outside of its tensor."""
    assert isinstance(load, Load)
    indices = Indices()
    conditions: list[Scalar] = []
    for index, size in zip(load.indices, load.source.shape, strict=True):
        if not indices.within(indices.poly(index), size):
            conditions += [compare("ge", index, 0), compare("lt", index, extent_of(size))]
    if not conditions:
        return load
    inside = conjunction(conditions)
    axes = sorted(mentioned(load), key=lambda a: _places(load, a))
    (read,) = stage_over("read", axes, (select(inside, load, Const(0.0, load.dtype)),))
    return Load(read, tuple(axes), load.dtype)


def _places(load: Load, axis: Axis) -> int:
    """The last index of a read that moves with an axis: the later, the nearer its elements are."""
    last = max(n for n, index in enumerate(load.indices) if axis in mentioned(index))
    return 2 * last + (axis in _outer(load.indices[last]))


def _outer(index: Scalar) -> set[Axis]:
    """The axes of an index that are not only those of what is read for it."""
    found: set[Axis] = set()
    todo = [index]
    while todo:
        node = todo.pop()
        if isinstance(node, Axis):
            found.add(node)
        elif not isinstance(node, Load):
            todo += children(node)
    return found
