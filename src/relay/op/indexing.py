"""Slices, and reads through index tensors. Indices out of range are moved to the nearest one, or wrap (``mode``)."""

from __future__ import annotations

from typing import Final, Literal, TypeVar, cast

from relay import te
from relay.ir.dim import Dim, KnownSize, ceil_div, dim_add, dim_max, dim_min, dim_sub, shape_size
from relay.op.registry import operator
from relay.op.support import DimLike, axis_of, clipped, index64, require_integer, require_number, unravel, wrapped

Mode = Literal["clip", "wrap", "fast"]


@operator("take")
def take(
    data: te.Tensor, indices: te.Tensor, *, axis: int | None = None, mode: Mode = "clip", batch_dims: int = 0
) -> te.Tensor:
    """Slices of ``data`` along ``axis`` at ``indices`` (integers of any shape); of the flattened data without an axis.

    The result's shape is the data's with ``axis`` replaced by the indices' shape (without their first ``batch_dims`` axes, which
    go along with the data's). ``fast`` is ``clip``.
    """
    require_integer(indices, "the indices of take")
    te.require(
        0 <= batch_dims <= indices.ndim, f"take cannot have {batch_dims} batch axes with indices of rank {indices.ndim}"
    )

    def bounded(index: te.Scalar, extent: Dim) -> te.Scalar:
        return wrapped(index, extent) if mode == "wrap" else clipped(index64(index), extent)

    if axis is None:
        te.require(batch_dims == 0, "take needs an axis for batch axes")
        total = shape_size(data.shape)
        return te.compute(
            indices.shape, lambda *i: data[tuple(unravel(bounded(indices[i], total), data.shape))], "take"
        )
    at = axis_of(axis, data.ndim, "the data of take")
    te.require(batch_dims <= at, f"the axis {at} of take comes before its {batch_dims} batch axes")
    for n in range(batch_dims):
        te.require_equal(data.shape[n], indices.shape[n], f"batch axis {n} of take's operands")
    inner = indices.ndim - batch_dims

    def body(*i: te.Scalar) -> te.Scalar:
        index = indices[(*i[:batch_dims], *i[at : at + inner])]
        return data[(*i[:at], bounded(index, data.shape[at]), *i[at + inner :])]

    shape = (*data.shape[:at], *indices.shape[batch_dims:], *data.shape[at + 1 :])
    return te.compute(shape, body, "take")


@operator("gather")
def gather(data: te.Tensor, indices: te.Tensor, *, axis: int) -> te.Tensor:
    """``out[i, j, ...] = data[i, indices[i, j, ...], ...]`` with the index on ``axis``. The result is shaped like ``indices``.

    The ranks agree; off the axis, sizes of ``indices`` are at most those of ``data``.
    """
    require_integer(indices, "the indices of gather")
    te.require(data.ndim == indices.ndim, f"gather's operands have ranks {data.ndim} and {indices.ndim}")
    at = axis_of(axis, data.ndim, "the data of gather")
    for n, (a, b) in enumerate(zip(indices.shape, data.shape, strict=True)):
        if n != at:
            te.require_at_most(a, b, f"axis {n} of gather's indices within the data")

    def body(*i: te.Scalar) -> te.Scalar:
        return data[(*i[:at], clipped(index64(indices[i]), data.shape[at]), *i[at + 1 :])]

    return te.compute(indices.shape, body, "gather")


@operator("gather_nd")
def gather_nd(data: te.Tensor, indices: te.Tensor, *, batch_dims: int = 0, index_rank: int | None = None) -> te.Tensor:
    """Slices of ``data`` at index vectors that lie along the first axis of ``indices`` (m, y...): gives (y..., rest of data).

    The first ``batch_dims`` axes of y go along with those of ``data``. ``index_rank`` is m where the type does not tell it.
    """
    require_integer(indices, "the indices of gather_nd")
    te.require(indices.ndim >= 1, "the indices of gather_nd must have rank 1 or more")
    count = index_rank if index_rank is not None else indices.shape[0]
    if not isinstance(count, int):
        te.known_is(count, 0)  # waits for a size that inference may still find
        raise te.DefinitionError("gather_nd needs to know the number of indices, the first size of its index tensor")
    te.require_equal(indices.shape[0], count, "the number of indices of gather_nd")
    outer = indices.ndim - 1
    te.require(0 <= batch_dims <= outer, f"gather_nd cannot have {batch_dims} batch axes")
    te.require(batch_dims + count <= data.ndim, f"gather_nd has {count} indices for data of rank {data.ndim}")
    for n in range(batch_dims):
        te.require_equal(indices.shape[n + 1], data.shape[n], f"batch axis {n} of gather_nd's operands")

    def body(*i: te.Scalar) -> te.Scalar:
        y = i[:outer]
        at = [clipped(index64(indices[(m, *y)]), data.shape[batch_dims + m]) for m in range(count)]
        return data[(*y[:batch_dims], *at, *i[outer:])]

    return te.compute((*indices.shape[1:], *data.shape[batch_dims + count :]), body, "gather_nd")


@operator("one_hot")
def one_hot(
    indices: te.Tensor,
    on_value: te.Tensor,
    off_value: te.Tensor,
    *,
    depth: DimLike,
    axis: int = -1,
    dtype: str = "float32",
) -> te.Tensor:
    """A new ``axis`` of size ``depth`` that holds ``on_value`` at each index and ``off_value`` elsewhere (both scalars)."""
    require_integer(indices, "the indices of one_hot")
    te.require(on_value.ndim == 0 and off_value.ndim == 0, "the on and off values of one_hot must be scalars")
    te.require_at_most(0, depth, "the depth of one_hot must not be negative")
    at = axis_of(axis, indices.ndim, "the indices of one_hot", extra=1)

    def body(*i: te.Scalar) -> te.Scalar:
        hit = te.compare("eq", index64(indices[(*i[:at], *i[at + 1 :])]), i[at])
        return te.select(hit, te.cast(on_value[()], dtype), te.cast(off_value[()], dtype))

    return te.compute((*indices.shape[:at], depth, *indices.shape[at:]), body, "one_hot")


# Programs write the greatest (or least) number of 32 or 64 bits for "to the end".
_AT_THE_END: Final = (2**31 - 1, 2**63 - 1)
_AT_THE_START: Final = (-(2**31), -(2**31) + 1, -(2**63), -(2**63) + 1)
# No axis with elements is as long; what is computed of sizes and a number up to it, bytes as well, stays within 64 bits.
_BEYOND: Final = 1 << 56


_Number = TypeVar("_Number", bound=Dim)


def _within(extent: Dim, value: _Number) -> _Number:
    """A position, a count or a stride; one far beyond the axis moved nearer."""
    if not isinstance(value, int):
        return value
    most = 2 * extent + 2 if isinstance(extent, int) else _BEYOND
    return cast(_Number, max(-most, min(value, most))) if abs(value) > most else value


def _slice(extent: Dim, begin: Dim | None, end: Dim | None, stride: int) -> tuple[Dim, Dim]:
    """Python's slice on an axis of an unknown size: the first index and the count. Sizes are never counted from the end."""
    low, high = (0, extent) if stride > 0 else (-1, dim_sub(extent, 1))

    def bound(value: Dim | None, last: bool) -> Dim:
        if value is None or value in (_AT_THE_END if last else _AT_THE_START):
            return high if last else low
        value = _within(extent, value)
        from_end = isinstance(value, int) and value < 0 and not isinstance(value, KnownSize)
        if from_end:
            return dim_max(dim_add(extent, value), low)
        return dim_min(value, high)

    start, stop = bound(begin, stride < 0), bound(end, stride > 0)
    distance = dim_sub(stop, start) if stride > 0 else dim_sub(start, stop)
    return start, dim_max(ceil_div(distance, abs(stride)), 0)


@operator("strided_slice")
def strided_slice(
    data: te.Tensor,
    *,
    begin: tuple[DimLike | None, ...],
    end: tuple[DimLike | None, ...],
    strides: tuple[int, ...] = (1,),
    axes: tuple[int, ...] | None = None,
    slice_mode: Literal["end", "size"] = "end",
) -> te.Tensor:
    """Python's ``begin:end:stride`` on the given axes (the first ones by default); one stride may stand for all. The greatest
    and least numbers of 32 and 64 bits mean the end of the axis and its start, whatever its size is.

    In mode ``size``, ``end`` holds counts (negative: up to the end) and strides are 1.
    """
    which = [axis_of(a, data.ndim, "the operand of strided_slice") for a in (axes or range(len(begin)))]
    te.require(len(begin) <= data.ndim, f"strided_slice has {len(begin)} begins for rank {data.ndim}")
    te.require(len(which) == len(begin) == len(end), "strided_slice needs as many ends as begins (and axes, if given)")
    steps = strides * len(begin) if len(strides) == 1 else strides
    te.require(len(steps) >= len(begin), "strided_slice needs one stride, or one for each begin")
    te.require(0 not in steps, "a stride of strided_slice is 0")
    starts: list[Dim] = [0] * data.ndim
    by = [1] * data.ndim
    shape = list(data.shape)
    for axis, b, e, step in zip(which, begin, end, steps, strict=False):
        stop: Dim | None = e
        if slice_mode == "size":
            step = 1
            b = None if b is None or b in _AT_THE_START else _within(data.shape[axis], b)
            stop = (
                None
                if e is None or (isinstance(e, int) and e < 0 and not isinstance(e, KnownSize))
                else dim_add(b or 0, _within(data.shape[axis], e))
            )
        step = _within(data.shape[axis], step)
        starts[axis], shape[axis] = _slice(data.shape[axis], b, stop, step)
        by[axis] = step

    def body(*i: te.Scalar) -> te.Scalar:
        return data[tuple(index * step + te.size(s) for index, step, s in zip(i, by, starts, strict=True))]

    return te.compute(shape, body, "strided_slice")


@operator("slice_like")
def slice_like(data: te.Tensor, shape_like: te.Tensor, *, axes: tuple[int, ...] | None = None) -> te.Tensor:
    """The leading part of ``data`` that has the sizes of ``shape_like`` on the given axes (on all that both have by default)."""
    which = axes or tuple(range(min(data.ndim, shape_like.ndim)))
    shape = list(data.shape)
    for axis in which:
        n = axis_of(axis, data.ndim, "the data of slice_like")
        like = shape_like.shape[axis_of(axis, shape_like.ndim, "the like of slice_like")]
        te.require_at_most(like, data.shape[n], f"axis {n} of slice_like's result within the data")
        shape[n] = like
    return te.compute(shape, lambda *i: data[i], "slice_like")


@operator("sequence_mask")
def sequence_mask(
    data: te.Tensor, valid_length: te.Tensor, *, mask_value: int | float = 0.0, axis: int = 0
) -> te.Tensor:
    """``data`` with ``mask_value`` from ``valid_length`` (b,) on along the sequence ``axis``, 0 or 1; the other is the batch."""
    te.require(axis in (0, 1) and data.ndim >= 2, "sequence_mask needs data of rank 2 or more and axis 0 or 1")
    require_number(data, "sequence_mask")
    require_number(valid_length, "sequence_mask")
    te.require(valid_length.ndim == 1, f"the valid lengths of sequence_mask have rank 1, not {valid_length.ndim}")
    te.require_equal(valid_length.shape[0], data.shape[1 - axis], "the batches of sequence_mask's operands")
    masked = te.const(mask_value, data.dtype)

    def body(*i: te.Scalar) -> te.Scalar:
        return te.select(i[axis] < index64(valid_length[i[1 - axis]]), data[i], masked)

    return te.compute(data.shape, body, "sequence_mask")


def _triangle(data: te.Tensor, k: te.Scalar, upper: bool, name: str) -> te.Tensor:
    te.require(data.ndim >= 2, f"{name} needs a tensor of rank 2 or more, not {data.ndim}")
    outside = te.const(0, data.dtype)

    def body(*i: te.Scalar) -> te.Scalar:
        kept = te.compare("ge" if upper else "le", i[-1], i[-2] + k)
        return te.select(kept, data[i], outside)

    return te.compute(data.shape, body, name)


@operator("triu")
def triu(data: te.Tensor, *, k: int = 0) -> te.Tensor:
    """The matrices of the last two axes with 0 below diagonal ``k``."""
    return _triangle(data, te.const(k, "int64"), True, "triu")


@operator("tril")
def tril(data: te.Tensor, *, k: int = 0) -> te.Tensor:
    """The matrices of the last two axes with 0 above diagonal ``k``."""
    return _triangle(data, te.const(k, "int64"), False, "tril")


@operator("trilu")
def trilu(data: te.Tensor, k: te.Tensor, *, upper: bool = True) -> te.Tensor:
    """`triu` or `tril` with the diagonal as a scalar integer tensor."""
    require_integer(k, "the diagonal of trilu")
    te.require(k.ndim == 0, f"the diagonal of trilu must be a scalar, not of rank {k.ndim}")
    return _triangle(data, index64(k[()]), upper, "trilu")
