"""Reductions that read round an axis, as reductions over what is laid out round it once.

    y[i] = sum(x[(i + k - 1) mod n] * w[k], k)      for k < 3
    ->   r[p] = x[(p - 1) mod n]  for p < n + 2;    y[i] = sum(r[i + k] * w[k], k)

The second is a convolution like any other: windows of elements that lie behind each other, in its derivatives too.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.dim import Dim, dim_add, dim_bounds, dim_sub, known_equal
from relay.te.index import Indices
from relay.te.rewrite import rewritten
from relay.te.scalar import Axis, Binary, Const, Load, Reduce, Scalar, Size, binary, compare, select, transform, walk
from relay.te.tensor import Compute, Stage, Tensor, stage_over

# Elements beyond once more round an axis that may be laid out, where an axis is short.
_FEW = 64


def laid_round(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same tensors, of stages that read what is laid out round an axis."""
    return rewritten(outputs, _laid_round)


def _laid_round(stage: Stage) -> Stage:
    if not isinstance(stage, Compute) or not any(isinstance(b, Reduce) for b in stage.bodies):
        return stage
    if not any(isinstance(n, Binary) and n.op == "mod" for b in stage.bodies for n in walk(b)):
        return stage
    indices, made, memo = Indices(), dict[tuple[object, ...], Tensor](), dict[int, Scalar]()

    def visit(node: Scalar) -> Scalar:
        if not isinstance(node, Load) or not isinstance(node.source, Tensor):
            return node
        source = node.source
        ways = [_way(i, extent, stage.axes, indices) for i, extent in zip(node.indices, source.shape, strict=True)]
        if not any(ways):
            return node
        key = (source.stage, source.index, *(way and way[1:] for way in ways))
        if key not in made:
            made[key] = _round(source, [way and way[1:] for way in ways])
        at = [i if way is None else binary("sub", way[0], way[1]) for i, way in zip(node.indices, ways, strict=True)]
        return Load(made[key], tuple(at), node.dtype)

    bodies = tuple(transform(b, visit, memo) for b in stage.bodies)
    return stage if not made else Compute(stage.name, stage.axes, bodies)


def _way(index: Scalar, extent: Dim, axes: Sequence[Axis], indices: Indices) -> tuple[Scalar, int, Dim] | None:
    """An index that goes round an axis as the position that is divided, the least of these, and how many there may be; None for
    another. Both an axis of the result and one that is summed over take part, the latter with few elements or a number of them."""
    if not isinstance(index, Binary) or index.op != "mod" or not known_equal(indices.poly(index.b), extent):
        return None
    own = {n for n in walk(index.a) if isinstance(n, Axis)}
    if own <= {*axes} or own.isdisjoint(axes) or any(isinstance(n, Load) for n in walk(index.a)):
        return None
    at, position = index.a, indices.poly(index.a)
    least, most = indices.ends(position)
    if least is not None and not isinstance(least, int):  # n - 1 is 1 before the start
        at, position = binary("sub", at, index.b), dim_sub(position, extent)
        least, most = indices.ends(position)
    if not isinstance(least, int) or most is None:
        return None
    count = dim_add(dim_sub(most, least), 1)
    fewest, over = dim_bounds(count)[0], dim_sub(count, extent)
    most_over = dim_bounds(dim_sub(over, extent))[1]
    if fewest is None or not (isinstance(over, int) or (most_over is not None and most_over <= _FEW)):
        return None
    if isinstance(extent, int) and isinstance(over, int) and over > extent + _FEW:
        return None
    # Where an axis of the result is empty there may be less than none.
    return at, least, dim_sub(count, min(fewest, 0))


def _round(source: Tensor, ways: Sequence[tuple[int, Dim] | None]) -> Tensor:
    """A tensor laid out round the axes that have a least position and a number of them."""
    axes = [
        Axis(f"p{n}", extent if way is None else way[1])
        for n, (way, extent) in enumerate(zip(ways, source.shape, strict=True))
    ]
    at: list[Scalar] = []
    there: Scalar | None = None
    for axis, way, extent in zip(axes, ways, source.shape, strict=True):
        if way is None:
            at.append(axis)
            continue
        at.append(binary("mod", binary("add", axis, way[0]), extent))
        if dim_bounds(extent)[0] in (None, 0):  # of nothing there is nothing to lay out
            some = compare("gt", Size(extent), Const(0, "int64"))
            there = some if there is None else binary("and", there, some)
    dtype = source.dtype
    element: Scalar = Load(source, tuple(at), dtype)
    if there is not None:
        element = select(there, element, 0)
    (made,) = stage_over(f"{source.name}_round", axes, (element,))
    return made
