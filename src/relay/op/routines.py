"""Runtime routines: what sorts, or finds a number of results that only the data tells. Their meaning is a NumPy function."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from relay import te
from relay.ir.diagnostics import OperatorError, TypeError_
from relay.ir.dim import ANY, SymDim, dim_bounds, dim_min
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Attrs
from relay.ir.types import TensorType, TupleType, Type
from relay.op import registry
from relay.op.registry import routine
from relay.op.support import DimLike
from relay.te.numeric import Array, compute_dtype


def _tensor(op: str, type_: Type, rank: int | None = None) -> TensorType:
    if not isinstance(type_, TensorType) or not isinstance(type_.shape, tuple) or not isinstance(type_.dtype, str):
        raise TypeError_(f"{op} needs a tensor of known rank and dtype, not {type_}")
    if rank is not None and len(type_.shape) != rank:
        raise TypeError_(f"{op} needs a tensor of rank {rank}, not {len(type_.shape)}")
    return type_


def _elements(op: str, type_: Type, rank: int | None = None) -> TensorType:
    """The same of what a routine goes through element by element: whole bytes."""
    data = _tensor(op, type_, rank)
    if data.dtype in ("int4", "uint4"):
        raise TypeError_(
            f"{op} does not take tensors of {data.dtype}", hint=f'cast(%x, dtype="{str(data.dtype)[:-1]}8") before it'
        )
    return data


def _axis(op: str, type_: TensorType, attrs: Attrs) -> int:
    axis = attrs["axis"]
    assert isinstance(axis, int) and isinstance(type_.shape, tuple)
    rank = len(type_.shape)
    if not -rank <= axis < rank:
        raise TypeError_(f"the operand of {op} has rank {rank}, so axis {axis} is not in [{-rank}, {rank})")
    return axis % rank


def _index_dtype(op: str, attrs: Attrs) -> str:
    dtype = attrs["dtype"]
    if dtype not in ("int32", "int64"):
        raise OperatorError(f"the indices of {op} are int32 or int64, not {dtype}")
    return str(dtype)


def _sorted(data: Array, axis: int, is_ascend: bool) -> Array:
    """The positions of elements along an axis in order; equal ones keep theirs, nan is greatest."""
    held = data.astype(numpy_dtype(compute_dtype(data.dtype.name)), copy=False)
    if is_ascend:
        return np.argsort(held, axis=axis, kind="stable")
    # Descending and stable: sort what is reversed, and turn positions and order round.
    backwards = np.argsort(np.flip(held, axis), axis=axis, kind="stable")
    return np.asarray(held.shape[axis] - 1 - np.flip(backwards, axis))


# -- unique


def _unique_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    return TensorType((ANY,), _elements("unique", args[0], 1).dtype)


def _unique(data: Array) -> Array:
    order = _sorted(data, 0, True)
    ascending = data[order]
    if not ascending.size:
        return ascending
    held = ascending.astype(numpy_dtype(compute_dtype(data.dtype.name)), copy=False)
    same = (held[1:] == held[:-1]) | ((held[1:] != held[1:]) & (held[:-1] != held[:-1]))
    return np.asarray(ascending[np.concatenate([[True], ~same])])


@routine("unique", relation=_unique_relation, reference=_unique)
def unique(data: te.Tensor) -> te.Tensor:
    """The distinct elements of a vector, ascending (one nan at most, last). ``data``: (n,); gives (?,)."""
    raise NotImplementedError


# -- positions of what is not zero


def _argwhere_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    shape = _elements("argwhere", args[0]).shape
    assert isinstance(shape, tuple)
    return TensorType((ANY, len(shape)), "int64")


def _argwhere(condition: Array) -> Array:
    held = condition.astype(numpy_dtype(compute_dtype(condition.dtype.name)), copy=False)
    found = np.argwhere(held).astype(np.int64)
    return found.reshape(len(found), condition.ndim)


@routine("argwhere", relation=_argwhere_relation, reference=_argwhere)
def argwhere(condition: te.Tensor) -> te.Tensor:
    """The indices of the elements that are not zero, row-major. ``condition``: any shape of rank r; gives (?, r), int64."""
    raise NotImplementedError


def _nonzero_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    shape = _elements("nonzero", args[0]).shape
    assert isinstance(shape, tuple)
    return TensorType((len(shape), ANY), "int64")


def _nonzero(data: Array) -> Array:
    return np.ascontiguousarray(_argwhere(data).T)


@routine("nonzero", relation=_nonzero_relation, reference=_nonzero)
def nonzero(data: te.Tensor) -> te.Tensor:
    """The indices of the elements that are not zero, one per column. ``data``: any shape of rank r; gives (r, ?), int64."""
    raise NotImplementedError


# -- sorting


def _sort_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    data = _elements("sort", args[0])
    _axis("sort", data, registry.get("sort").complete_attrs(attrs))
    return TensorType(data.shape, data.dtype)


def _sort(data: Array, *, axis: int, is_ascend: bool) -> Array:
    return np.take_along_axis(data, _sorted(data, axis, is_ascend), axis)


@routine("sort", relation=_sort_relation, reference=_sort)
def sort(data: te.Tensor, *, axis: int = -1, is_ascend: bool = True) -> te.Tensor:
    """``data`` in order along ``axis``; nan counts as greatest."""
    raise NotImplementedError


def _argsort_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    data, full = _elements("argsort", args[0]), registry.get("argsort").complete_attrs(attrs)
    _axis("argsort", data, full)
    return TensorType(data.shape, _index_dtype("argsort", full))


def _argsort(data: Array, *, axis: int, is_ascend: bool, dtype: str) -> Array:
    return _sorted(data, axis, is_ascend).astype(numpy_dtype(dtype))


@routine("argsort", relation=_argsort_relation, reference=_argsort)
def argsort(data: te.Tensor, *, axis: int = -1, is_ascend: bool = True, dtype: str = "int32") -> te.Tensor:
    """The positions along ``axis`` that put ``data`` in order; equal elements keep theirs. The result is int32 or int64."""
    raise NotImplementedError


def _topk_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    data, full = _elements("topk", args[0]), registry.get("topk").complete_attrs(attrs)
    axis, k = _axis("topk", data, full), full["k"]
    assert isinstance(k, int | SymDim) and isinstance(data.shape, tuple)
    least = dim_bounds(k)[0]
    if least is None or least < 0:
        hint = "" if isinstance(k, int) else f"max({k}, 0) never is"
        raise OperatorError(f"the k of topk must not be negative: {k}", hint=hint)
    shape = (*data.shape[:axis], dim_min(k, data.shape[axis]), *data.shape[axis + 1 :])
    return TupleType((TensorType(shape, data.dtype), TensorType(shape, _index_dtype("topk", full))))


def _topk(data: Array, *, k: int, axis: int, is_ascend: bool, dtype: str) -> tuple[Array, Array]:
    order = np.take(_sorted(data, axis, is_ascend), np.arange(min(k, data.shape[axis])), axis)
    return np.take_along_axis(data, order, axis), order.astype(numpy_dtype(dtype))


@routine("topk", relation=_topk_relation, reference=_topk)
def topk(
    data: te.Tensor, *, k: DimLike = 1, axis: int = -1, is_ascend: bool = False, dtype: str = "int32"
) -> tuple[te.Tensor, te.Tensor]:
    """The first ``k`` elements along ``axis`` in order (the greatest, unless ``is_ascend``), and their positions; all where there are
    no more than ``k``, a number or a size that is known not to be negative (``Dim[max(n - 2, 0)]``)."""
    raise NotImplementedError


# -- boxes


def _suppression_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    op = "non_max_suppression"
    boxes = _elements(op, args[0], 2)
    _elements(op, args[1], 1)
    assert isinstance(boxes.shape, tuple)
    if isinstance(boxes.shape[1], int) and boxes.shape[1] != 4:
        raise TypeError_(f"the boxes of {op} must have shape (n, 4), not {boxes.shape}")
    return TensorType((ANY,), "int64")


def _suppression(
    boxes: Array, scores: Array, *, iou_threshold: float, score_threshold: float, max_output_size: int
) -> Array:
    corners = boxes.astype(np.float64)
    low, high = np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(corners[:, :2], corners[:, 2:])
    area = np.prod(high - low, axis=1)
    weight = scores.astype(np.float64)
    kept: list[int] = []
    for candidate in _sorted(weight, 0, False):
        if len(kept) == max_output_size:
            break
        if not weight[candidate] > score_threshold:
            continue
        sides = np.minimum(high[candidate], high[kept]) - np.maximum(low[candidate], low[kept])
        both = np.prod(np.maximum(sides, 0.0), axis=1)
        union = area[candidate] + area[kept] - both
        if not np.any(both > iou_threshold * union):
            kept.append(int(candidate))
    return np.array(kept, np.int64)


@routine("non_max_suppression", relation=_suppression_relation, reference=_suppression)
def non_max_suppression(
    boxes: te.Tensor,
    scores: te.Tensor,
    *,
    iou_threshold: float = 0.5,
    score_threshold: float = float("-inf"),
    max_output_size: int = -1,
) -> te.Tensor:
    """The numbers of the boxes that are kept, by falling score: each overlaps none kept before by more than ``iou_threshold``.

    ``boxes``: (n, 4) as (y1, x1, y2, x2), corners in any order; ``scores``: (n,). At most ``max_output_size`` (negative: all)
    boxes with a score above ``score_threshold``. Gives (?,), int64; the overlap is the area in common over the area of both.
    """
    raise NotImplementedError


# -- devices


def _copy_relation(args: Sequence[Type], attrs: Attrs) -> Type:
    data, device = _tensor("device_copy", args[0]), attrs["device"]
    assert isinstance(device, str)
    return TensorType(data.shape, data.dtype, device)


def _device_copy(data: Array, *, device: str) -> Array:
    return np.array(data)


@routine("device_copy", relation=_copy_relation, reference=_device_copy)
def device_copy(data: te.Tensor, *, device: str) -> te.Tensor:
    """The same tensor on another device."""
    raise NotImplementedError
