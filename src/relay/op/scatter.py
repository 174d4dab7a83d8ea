"""Values put where an index tensor says: scatters, and reductions of segments. The inverse of `relay.op.indexing`.

Each element of the result is a reduction over all values of those whose place it is (`relay.te.scatter`), so what several values
do to one place is defined: they come together in their order. A value whose index is outside of the result is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal

from relay import te
from relay.ir.dim import Dim, known_equal
from relay.op.registry import operator
from relay.op.support import (
    DimLike,
    accumulation_dtype,
    axis_of,
    greatest,
    index64,
    least,
    require_float,
    require_integer,
    require_number,
    require_same_dtype,
)

Reduction = Literal["update", "add", "mul", "min", "max"]

_REDUCE: Final = {"add": te.sum, "mul": te.prod, "min": te.min, "max": te.max}


def _neutral(reduction: Reduction, dtype: str) -> te.Const:
    match reduction:
        case "mul":
            return te.const(1, dtype)
        case "min":
            return greatest(dtype)
        case "max":
            return least(dtype)
        case _:
            return te.const(0, dtype)


def _reduced(reduction: Reduction, hit: Sequence[te.Scalar], value: te.Scalar, over: Sequence[te.Axis]) -> te.Scalar:
    """The values of those iterations of ``over`` for which all conditions hold, the later ones asked where the earlier do."""
    none = _neutral(reduction, value.dtype)
    for condition in reversed(hit):
        value = te.select(condition, value, none)
    return _REDUCE[reduction](value, tuple(over))


def _together(reduction: Reduction, a: te.Scalar, b: te.Scalar) -> te.Scalar:
    match reduction:
        case "mul":
            return a * b
        case "min":
            return te.minimum(a, b)
        case "max":
            return te.maximum(a, b)
        case _:
            return a + b


def _put(
    data: te.Tensor,
    reduction: Reduction,
    over: Sequence[te.Axis],
    hit: Callable[[Sequence[te.Scalar], Sequence[te.Scalar]], Sequence[te.Scalar]],
    value: Callable[[Sequence[te.Scalar], Sequence[te.Scalar]], te.Scalar],
    name: str,
) -> te.Tensor:
    """``data`` with the ``value`` of each iteration of ``over`` put into the elements that it ``hit``s; both are functions of an
    element's indices and of the iteration's."""
    if reduction != "update":
        require_number(data, name)
        wide = accumulation_dtype(data.dtype)
        reached = te.compute(
            data.shape, lambda *i: _reduced(reduction, hit(i, over), te.cast(value(i, over), wide), over), name
        )

        def both(*i: te.Scalar) -> te.Scalar:
            return te.cast(_together(reduction, te.cast(data[i], wide), reached[i]), data.dtype)

        return te.compute(data.shape, both, name)
    # The number of the last iteration that hits an element, counted along all axes of `over`; its value is read then.
    number: te.Scalar = te.const(0, "int64")
    for axis in over:
        number = number * te.size(axis.extent) + axis
    last = te.compute(data.shape, lambda *i: _reduced("max", hit(i, over), number, over), "last")

    def body(*i: te.Scalar) -> te.Scalar:
        at: list[te.Scalar] = []
        rest = te.maximum(last[i], 0)
        for axis in reversed(over):
            at.insert(0, rest % te.size(axis.extent) if len(over) > 1 else rest)
            rest = rest // te.size(axis.extent)
        return te.select(last[i] >= 0, value(i, at), data[i])

    return te.compute(data.shape, body, name)


@operator("scatter_elements")
def scatter_elements(
    data: te.Tensor, indices: te.Tensor, updates: te.Tensor, *, axis: int = 0, reduction: Reduction = "update"
) -> te.Tensor:
    """``data`` with ``updates[i, j, ...]`` put at ``[i, indices[i, j, ...], ...]``, with the index on ``axis``.

    ``indices`` and ``updates`` have one shape; off the axis its sizes are at most those of ``data``. What is there and what is put
    there are added, multiplied, or the least or greatest of them is kept; ``update`` keeps the last. An index outside puts nothing.
    """
    require_integer(indices, "the indices of scatter_elements")
    require_same_dtype("scatter_elements", data, updates)
    te.require(
        data.ndim == indices.ndim == updates.ndim > 0,
        f"scatter_elements' operands have ranks {data.ndim}, {indices.ndim} and {updates.ndim}, which must be the same and not 0",
    )
    at = axis_of(axis, data.ndim, "the data of scatter_elements")
    partial: list[int] = []
    for n, (a, b) in enumerate(zip(indices.shape, updates.shape, strict=True)):
        te.require_equal(a, b, f"axis {n} of scatter_elements' indices and updates")
        if n != at and not known_equal(a, data.shape[n]):
            te.require_at_most(a, data.shape[n], f"axis {n} of scatter_elements' indices within the data")
            partial.append(n)
    k = te.reduce_axis(indices.shape[at])

    def hit(i: Sequence[te.Scalar], over: Sequence[te.Scalar]) -> list[te.Scalar]:
        within = [i[n] < te.size(indices.shape[n]) for n in partial]
        return [*within, te.compare("eq", index64(indices[(*i[:at], over[0], *i[at + 1 :])]), i[at])]

    return _put(
        data, reduction, (k,), hit, lambda i, over: updates[(*i[:at], over[0], *i[at + 1 :])], "scatter_elements"
    )


@operator("scatter_nd")
def scatter_nd(
    data: te.Tensor,
    indices: te.Tensor,
    updates: te.Tensor,
    *,
    mode: Reduction = "update",
    index_rank: int | None = None,
) -> te.Tensor:
    """``data`` with the slices of ``updates`` (y..., rest of data) put at index vectors along the first axis of ``indices`` (m, y...).

    ``mode`` and what is outside: as for `scatter_elements`. ``index_rank`` is m where the type does not tell it.
    """
    require_integer(indices, "the indices of scatter_nd")
    require_same_dtype("scatter_nd", data, updates)
    te.require(indices.ndim >= 1, "the indices of scatter_nd must have rank 1 or more")
    count = index_rank if index_rank is not None else indices.shape[0]
    if not isinstance(count, int):
        te.known_is(count, 0)  # waits for a size that inference may still find
        raise te.DefinitionError("scatter_nd needs to know the number of indices, the first size of its index tensor")
    te.require_equal(indices.shape[0], count, "the number of indices of scatter_nd")
    te.require(count <= data.ndim, f"scatter_nd has {count} indices for data of rank {data.ndim}")
    outer = indices.ndim - 1
    rank = outer + data.ndim - count
    te.require(updates.ndim == rank, f"the updates of scatter_nd have rank {updates.ndim}, not {rank}")
    for n, (a, b) in enumerate(zip(updates.shape, (*indices.shape[1:], *data.shape[count:]), strict=True)):
        te.require_equal(a, b, f"axis {n} of scatter_nd's updates")
    over = tuple(te.reduce_axis(d) for d in indices.shape[1:]) or (te.reduce_axis(1),)

    def hit(i: Sequence[te.Scalar], y: Sequence[te.Scalar]) -> list[te.Scalar]:
        return [te.compare("eq", index64(indices[(m, *y[:outer])]), i[m]) for m in range(count)]

    return _put(data, mode, over, hit, lambda i, y: updates[(*y[:outer], *i[count:])], "scatter_nd")


def segments(reduction: Reduction, name: str, data: te.Tensor, segment_ids: te.Tensor, num_segments: Dim) -> te.Tensor:
    """The rows of each segment brought together, as `segment_sum` does."""
    require_integer(segment_ids, f"the segment ids of {name}")
    require_number(data, name)
    te.require(segment_ids.ndim == 1, f"the segment ids of {name} have rank 1, not {segment_ids.ndim}")
    te.require(data.ndim > 0, f"the data of {name} must have rank 1 or more")
    te.require_equal(segment_ids.shape[0], data.shape[0], f"the rows of {name}'s data and its segment ids")
    if isinstance(num_segments, int):
        te.require(num_segments >= 0, f"the number of segments of {name} must not be negative: {num_segments}")
    k = te.reduce_axis(data.shape[0])

    wide = accumulation_dtype(data.dtype)

    def body(*i: te.Scalar) -> te.Scalar:
        mine = te.compare("eq", index64(segment_ids[k]), i[0])
        return _reduced(reduction, [mine], te.cast(data[(k, *i[1:])], wide), (k,))

    out = te.compute((num_segments, *data.shape[1:]), body, name)
    return out if wide == data.dtype else te.compute(out.shape, lambda *i: te.cast(out[i], data.dtype), name)


@operator("segment_sum")
def segment_sum(data: te.Tensor, segment_ids: te.Tensor, *, num_segments: DimLike) -> te.Tensor:
    """Row s is the sum of those rows k of ``data`` with ``segment_ids[k] == s``, which need no order; zeros where there are none."""
    return segments("add", "segment_sum", data, segment_ids, num_segments)


@operator("segment_max")
def segment_max(data: te.Tensor, segment_ids: te.Tensor, *, num_segments: DimLike) -> te.Tensor:
    """The greatest elements of the rows of each segment, as `segment_sum`; the least value of the dtype where there are none."""
    return segments("max", "segment_max", data, segment_ids, num_segments)


@operator("segment_min")
def segment_min(data: te.Tensor, segment_ids: te.Tensor, *, num_segments: DimLike) -> te.Tensor:
    """The least elements of the rows of each segment, as `segment_sum`; the greatest value of the dtype where there are none."""
    return segments("min", "segment_min", data, segment_ids, num_segments)


@operator("segment_mean")
def segment_mean(data: te.Tensor, segment_ids: te.Tensor, *, num_segments: DimLike) -> te.Tensor:
    """The mean of the rows of each segment, as `segment_sum`; zeros where there are none."""
    require_float(data, "segment_mean")
    total = segments("add", "segment_mean", data, segment_ids, num_segments)
    k = te.reduce_axis(data.shape[0])

    def members(i: te.Scalar) -> te.Scalar:
        return _reduced("add", [te.compare("eq", index64(segment_ids[k]), i)], te.const(1, "int64"), (k,))

    count = te.compute((num_segments,), members, "count")
    return te.compute(
        total.shape, lambda *i: total[i] / te.cast(te.maximum(count[i[0]], 1), data.dtype), "segment_mean"
    )
