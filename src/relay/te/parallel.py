"""Parallel fusion on expressions: along which axes several instances of one expression can lie side by side.

Instances of an expression that differ in the values (and the sizes along one axis) of some inputs are one instance on inputs
laid one after the other along that axis, provided the axis only chooses *where* those inputs are read, unchanged. The columns
of a product are such an axis: ``x W1`` and ``x W2`` are the halves of ``x [W1 W2]`` (NeoFlow, section 4.3). So is the axis that
a product sums over, when the instances are added up: ``x1 W1 + x2 W2`` is ``[x1 x2]`` times ``[W1; W2]``.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay.te.scalar import Axis, Load, Reduce, Scalar, children
from relay.te.tensor import Compute, Placeholder, Stage, Tensor


def parallel_reads(inputs: Sequence[Tensor], output: Tensor, dim: int) -> tuple[int | None, ...] | None:
    """For each input the axis along which axis ``dim`` of the output reads it, or None where it reads all of it for every
    index.

    None when the output cannot be laid out in parts along ``dim``: the definition computes with that index, or reads an
    input along it and also otherwise.
    """
    return _followed(inputs, [(output.stage, dim)])


def summed_reads(inputs: Sequence[Tensor], output: Tensor) -> tuple[int | None, ...] | None:
    """For each input the axis along which an axis that the output is summed over reads it, or None where every term reads all
    of it.

    None when there is no such axis: the output is not a sum, or its terms compute with the axis.
    """
    stage = output.stage
    if not isinstance(stage, Compute) or len(stage.bodies) != 1:
        return None
    body = stage.bodies[0]
    if not isinstance(body, Reduce) or body.kind != "sum":
        return None
    for axis in body.axes:
        reads = _reads([body.body], axis)
        along = _followed(inputs, reads) if reads is not None else None
        if along is not None and any(a is not None for a in along):
            return along
    return None


def _followed(inputs: Sequence[Tensor], todo: list[tuple[Stage, int | None]]) -> tuple[int | None, ...] | None:
    """Where reads of stages along an axis of theirs arrive among the inputs."""
    along: dict[int, int | None] = {}
    stages: dict[int, Stage] = {}
    while todo:
        stage, at = todo.pop()
        if id(stage) in stages:
            if along[id(stage)] != at:
                return None
            continue
        stages[id(stage)], along[id(stage)] = stage, at
        if isinstance(stage, Placeholder):
            continue
        if isinstance(stage, Compute):
            axis = stage.axes[at] if at is not None else None
            reads = _reads(stage.bodies, axis)
        else:
            reads = _reads((stage.init, stage.update), None) if at is None else None
        if reads is None:
            return None
        todo += reads
    return tuple(along.get(id(t.stage)) for t in inputs)


def _reads(bodies: Sequence[Scalar], axis: Axis | None) -> list[tuple[Stage, int | None]] | None:
    """The stages that are read, with the axis of each that is read at ``axis``; None when ``axis`` has another use."""
    out: list[tuple[Stage, int | None]] = []
    seen: set[int] = set()
    todo = list(bodies)
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node is axis:
            return None
        if not isinstance(node, Load):
            todo.extend(children(node))
            continue
        if not isinstance(node.source, Tensor):
            return None
        at = [n for n, index in enumerate(node.indices) if index is axis]
        if len(at) > 1:
            return None
        out.append((node.source.stage, at[0] if at else None))
        todo.extend(index for index in node.indices if index is not axis)
    return out
