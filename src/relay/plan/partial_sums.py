"""Reductions of much to a few elements, in parts that threads share.

    y = sum(f(i, j), (i, j))   ->   s[c] = sum(f(c * R + r, j), (r, j));   y = sum(s[c], c)

A loss, or the square of a norm, would be one thread's work. How long a part is depends on sizes alone, so that a result is the same for
any number of threads. A sum of parts is also closer to the exact one than a sum in order.
"""

from __future__ import annotations

from dataclasses import replace

from relay.ir.dim import dim_floordiv
from relay.plan.graph import TeGraph
from relay.plan.stages import contraction
from relay.te.rewrite import rewritten
from relay.te.scalar import Axis, Load, Reduce, binary, iteration_count, substitute
from relay.te.tensor import Compute, Stage, stage_over

# Elements of a part: about so many, and at least; how many parts repay what is between them; and results that are parts enough.
_PART, _LEAST, _FEWEST, _RESULTS = 16 << 10, 256, 4, 8
_KINDS = ("sum", "prod", "max", "min")


def in_parts(graph: TeGraph, constants: frozenset[int]) -> TeGraph:
    """The graph with such reductions in parts."""
    return replace(graph, outputs=rewritten(graph.outputs, lambda stage: _parted(stage, constants)))


def _parted(stage: Stage, constants: frozenset[int]) -> Stage:
    if not isinstance(stage, Compute) or len(stage.bodies) != 1:
        return stage
    (body,) = stage.bodies
    if not isinstance(body, Reduce) or body.kind not in _KINDS or iteration_count(stage.axes) > _RESULTS:
        return stage
    axis, *others = body.axes
    if not all(isinstance(a.extent, int) for a in (*others, *stage.axes)):
        return stage
    inner = iteration_count(others)
    steps = _steps(axis, inner)
    if steps is None or iteration_count(body.axes) < _FEWEST * _PART or contraction(stage, constants) is not None:
        return stage
    part, step, own = Axis("part", dim_floordiv(axis.extent, steps)), Axis(axis.name, steps), list(stage.axes)
    value = substitute(body.body, {axis: binary("add", binary("mul", part, steps), step)})
    sums = Reduce(body.kind, (step, *others), value, body.dtype)
    (made,) = stage_over(f"{stage.name}_parts", [part, *own], (sums,))
    total = Reduce(body.kind, (part,), Load(made, (part, *own), body.dtype), body.dtype)
    return Compute(stage.name, stage.axes, (total,))


def _steps(axis: Axis, inner: int) -> int | None:
    """How many steps along an axis, of so many elements each, are a part: they divide the axis, whatever its size is."""
    if not isinstance(axis.extent, int):
        return 1 if inner >= _LEAST else None
    few, most = -(-_LEAST // max(inner, 1)), max(1, _PART // max(inner, 1))
    return next((n for n in range(min(most, axis.extent), few - 1, -1) if axis.extent % n == 0), None)
