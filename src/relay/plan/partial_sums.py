"""Reductions of much to a few elements, in parts that threads share.

    y = sum(f(i, j), (i, j))   ->   s[c] = sum(f(c * R + r, j), (r, j));   y = sum(s[c], c)

A loss, or the square of a norm, would be one thread's work. How long a part is depends on sizes alone, so that a result is the same for
any number of threads. A sum of parts is also closer to the exact one than a sum in order.

What is left of such a reduction has its longest line of memory innermost, where a vector goes along it.
"""

from __future__ import annotations

from dataclasses import replace

from relay.ir.dim import dim_floordiv
from relay.plan.graph import TeGraph
from relay.plan.stages import contraction
from relay.te.rewrite import rewritten
from relay.te.scalar import Axis, Binary, Load, Reduce, Scalar, binary, iteration_count, mentioned, substitute, walk
from relay.te.tensor import Compute, Stage, stage_over

# Elements of a part: about so many, and at least; how many parts repay what is between them; and results that are parts enough.
_PART, _LEAST, _FEWEST, _RESULTS = 16 << 10, 256, 4, 8
# What a vector holds, at most.
_VECTOR = 16
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
    if contraction(stage, constants) is not None:
        return stage
    axis, *others = body.axes
    sizes = (*others, *stage.axes)
    steps = _steps(axis, iteration_count(others)) if all(isinstance(a.extent, int) for a in sizes) else None
    if steps is None or iteration_count(body.axes) < _FEWEST * _PART:
        axes = _along_memory(body.axes, body.body)
        return stage if axes == body.axes else Compute(stage.name, stage.axes, (replace(body, axes=axes),))
    part, step, own = Axis("part", dim_floordiv(axis.extent, steps)), Axis(axis.name, steps), list(stage.axes)
    value = substitute(body.body, {axis: binary("add", binary("mul", part, steps), step)})
    sums = Reduce(body.kind, (step, *_along_memory(tuple(others), value)), value, body.dtype)
    (made,) = stage_over(f"{stage.name}_parts", [part, *own], (sums,))
    total = Reduce(body.kind, (part,), Load(made, (part, *own), body.dtype), body.dtype)
    return Compute(stage.name, stage.axes, (total,))


def _along_memory(axes: tuple[Axis, ...], value: Scalar) -> tuple[Axis, ...]:
    """The axes of a reduction, the last one of which a vector has room to go along.

    Where that is shorter than a vector (the taps of a window: the sum that a parameter of a filter gets goes over those of every
    place), a longer one takes its place that runs along the memory of all that is read with it."""
    if len(axes) < 2 or not isinstance(axes[-1].extent, int) or axes[-1].extent >= _VECTOR:
        return axes
    loads = [n for n in walk(value) if isinstance(n, Load)]
    for axis in reversed(axes[:-1]):
        if isinstance(axis.extent, int) and axis.extent < _VECTOR:
            continue
        used = [load.indices for load in loads if axis in mentioned(*load.indices)]
        if used and all(_is_step(last, axis) and axis not in mentioned(*before) for *before, last in used):
            return (*(a for a in axes if a is not axis), axis)
    return axes


def _is_step(index: Scalar, axis: Axis) -> bool:
    """Whether an index is the axis and something that it does not change, kept within bounds or not."""
    terms: list[Scalar] = []
    todo = [index]
    while todo:
        term = todo.pop()
        if isinstance(term, Binary) and term.op == "add":
            todo += (term.a, term.b)
        elif isinstance(term, Binary) and term.op in ("min", "max", "sub") and axis not in mentioned(term.b):
            todo.append(term.a)
        elif isinstance(term, Binary) and term.op in ("min", "max") and axis not in mentioned(term.a):
            todo.append(term.b)
        else:
            terms.append(term)
    return sum(t is axis for t in terms) == 1 and axis not in mentioned(*(t for t in terms if t is not axis))


def _steps(axis: Axis, inner: int) -> int | None:
    """How many steps along an axis, of so many elements each, are a part: they divide the axis, whatever its size is."""
    if not isinstance(axis.extent, int):
        return 1 if inner >= _LEAST else None
    few, most = -(-_LEAST // max(inner, 1)), max(1, _PART // max(inner, 1))
    return next((n for n in range(min(most, axis.extent), few - 1, -1) if axis.extent % n == 0), None)
