"""Choices that sizes alone make between tensors, made before anything is computed.

    y[i] = select(s >= 1, a[i], b[i])   of stages a and b
    ->   if s >= 1 { a } else { b }

A gradient is one of two sums by whether a stride is zero (`te.autodiff.zeros`). In one loop neither could be written in place, and
both would be gone through; so the kernel has a body for each, in which there is no choice left. Conditions are such that they hold
for the sizes that are usual.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from relay.ir.dim import known_equal
from relay.ir.record import record
from relay.plan.graph import TeGraph, tensor_key
from relay.te.rewrite import rewrite_stage, rewritten
from relay.te.scalar import (
    Axis,
    Compare,
    Const,
    Load,
    Reduce,
    Scalar,
    Select,
    Size,
    children,
    conjuncts,
    extent_of,
    substitute,
    walk,
)
from relay.te.tensor import Compute, Placeholder, Stage, Tensor, stage_bodies, stages
from relay.te.zero_sizes import magnitude, where_none_is_zero, where_one_is_zero


@record(frozen=True, slots=True, eq=False)
class SizeChoice:
    """A graph where a condition on sizes holds, and where it does not."""

    cond: Scalar
    holds: TeGraph
    fails: TeGraph


def size_choice(graph: TeGraph) -> SizeChoice | None:
    """The first choice in a graph that decides which stages are computed."""
    for stage in stages(graph.outputs):
        for node in (n for body in stage_bodies(stage) for n in walk(body)):
            if isinstance(node, Select) and _is_of_sizes(node.cond) and _reads_stage(node):
                return SizeChoice(node.cond, _decided(graph, node.cond, True), _decided(graph, node.cond, False))
    return None


def _is_of_sizes(cond: Scalar) -> bool:
    return not any(isinstance(n, Axis | Load | Reduce) for n in walk(cond))


def _reads_stage(root: Scalar) -> bool:
    loads = (n for n in walk(root) if isinstance(n, Load))
    return any(isinstance(n.source, Tensor) and not isinstance(n.source.stage, Placeholder) for n in loads)


def _decided(graph: TeGraph, cond: Scalar, holds: bool) -> TeGraph:
    """The graph where the condition holds or fails. A stage that only chose between others is the one that it chose."""
    key = _key(cond)
    parts = conjuncts(cond)
    sizes = [
        c.a.dim if c.op == "ge" else magnitude(c.a.dim)
        for c in parts
        if isinstance(c, Compare) and c.op in ("ge", "ne") and isinstance(c.a, Size)
    ]
    known = where_none_is_zero if holds else where_one_is_zero
    if not holds and len(sizes) < len(parts):
        sizes = []

    def visit(node: Scalar) -> Scalar:
        if isinstance(node, Select) and _is_of_sizes(node.cond) and _key(node.cond) == key:
            return node.a if holds else node.b
        if isinstance(node, Size):
            return extent_of(known(node.dim, sizes))
        if isinstance(node, Reduce):
            axes = tuple(Axis(a.name, known(a.extent, sizes)) for a in node.axes)
            if any(a.extent != old.extent for a, old in zip(axes, node.axes, strict=True)):
                return Reduce(
                    node.kind, axes, substitute(node.body, dict(zip(node.axes, axes, strict=True))), node.dtype
                )
        return node

    def decided(stage: Stage) -> Stage:
        made = rewrite_stage(stage, visit)
        return _copied(made) or made if made is not stage else stage

    outputs = rewritten(graph.outputs, decided)
    if len({tensor_key(t) for t in outputs}) < len(outputs):
        outputs = rewritten(graph.outputs, lambda stage: rewrite_stage(stage, visit))
    return replace(graph, outputs=outputs, seldom=graph.seldom or not holds)


def _copied(stage: Stage) -> Stage | None:
    """The stage of which another is only a copy."""
    if not isinstance(stage, Compute) or len(stage.bodies) != 1:
        return None
    (load,) = stage.bodies
    if not isinstance(load, Load) or not isinstance(load.source, Tensor) or load.indices != stage.axes:
        return None
    source = load.source.stage
    same = isinstance(source, Compute) and len(source.bodies) == 1
    return source if same and all(map(known_equal, source.shape, stage.shape)) else None


def _key(node: Scalar) -> Hashable:
    """Equal for equal conditions on sizes."""
    match node:
        case Size():
            return node.dim
        case Const():
            return node.value, node.dtype
        case _:
            return type(node).__name__, getattr(node, "op", None), node.dtype, *map(_key, children(node))
