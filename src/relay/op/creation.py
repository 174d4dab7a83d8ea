"""Tensors made from nothing, or from the sizes of others."""

from __future__ import annotations

import math

from relay import te
from relay.ir.dim import ANY, Dim, ceil_div, dim_max, dim_sub
from relay.ir.types import is_float
from relay.op.registry import operator
from relay.op.support import DimLike


def _filled(shape: tuple[Dim, ...], value: float, dtype: str, name: str) -> te.Tensor:
    return te.compute(_sizes(shape, name), lambda *_: te.const(value, dtype), name)


def _sizes(shape: tuple[Dim, ...], name: str) -> tuple[Dim, ...]:
    """The shape, where no size is negative."""
    for n, d in enumerate(shape):
        te.require_at_most(0, d, f"the size of axis {n} of {name}")
    return shape


@operator("full")
def full(fill_value: te.Tensor, *, shape: tuple[DimLike, ...], dtype: str = "") -> te.Tensor:
    """A tensor of ``shape`` whose elements are the scalar ``fill_value``, in its dtype or in ``dtype``."""
    te.require(fill_value.ndim == 0, f"the fill value of full must be a scalar, not of rank {fill_value.ndim}")
    return te.compute(_sizes(shape, "full"), lambda *_: te.cast(fill_value[()], dtype or fill_value.dtype), "full")


@operator("full_like")
def full_like(data: te.Tensor, fill_value: te.Tensor) -> te.Tensor:
    """A tensor of the shape and dtype of ``data`` whose elements are the scalar ``fill_value``."""
    te.require(fill_value.ndim == 0, f"the fill value of full_like must be a scalar, not of rank {fill_value.ndim}")
    return te.compute(data.shape, lambda *_: te.cast(fill_value[()], data.dtype), "full_like")


@operator("zeros")
def zeros(*, shape: tuple[DimLike, ...], dtype: str = "float32") -> te.Tensor:
    """A tensor of ``shape`` filled with 0."""
    return _filled(shape, 0, dtype, "zeros")


@operator("ones")
def ones(*, shape: tuple[DimLike, ...], dtype: str = "float32") -> te.Tensor:
    """A tensor of ``shape`` filled with 1."""
    return _filled(shape, 1, dtype, "ones")


@operator("zeros_like")
def zeros_like(data: te.Tensor) -> te.Tensor:
    """A tensor of the shape and dtype of ``data`` filled with 0."""
    return _filled(data.shape, 0, data.dtype, "zeros_like")


@operator("ones_like")
def ones_like(data: te.Tensor) -> te.Tensor:
    """A tensor of the shape and dtype of ``data`` filled with 1."""
    return _filled(data.shape, 1, data.dtype, "ones_like")


@operator("arange")
def arange(
    *, start: DimLike | float = 0, stop: DimLike | float, step: int | float = 1, dtype: str = "float32"
) -> te.Tensor:
    """``start, start + step, ...`` up to but without ``stop``, a vector of ``dtype``. With integers the bounds may be dims."""
    te.require(step != 0, "the step of arange is 0")
    count: Dim
    if isinstance(start, float) or isinstance(stop, float) or isinstance(step, float):
        numbers = isinstance(start, int | float) and isinstance(stop, int | float)
        te.require(numbers, "arange mixes a dimension with fractions")
        finite = all(math.isfinite(x) for x in (start, stop, step))  # type: ignore[arg-type]
        te.require(finite, f"the bounds and the step of arange are finite, not {start}, {stop} and {step}")
        count = max(0, math.ceil((float(stop) - float(start)) / step))  # type: ignore[arg-type]
    else:
        distance = dim_sub(stop, start) if step > 0 else dim_sub(start, stop)
        count = dim_max(ceil_div(distance, abs(step)), 0)
    return te.compute((count,), lambda i: _progression(i, start, step, dtype), "arange")


def _progression(i: te.Scalar, start: DimLike | float, step: int | float, dtype: str) -> te.Scalar:
    if is_float(dtype):
        first = te.const(start, dtype) if isinstance(start, int | float) else te.size(start, dtype)
        return first + te.cast(i, dtype) * te.const(step, dtype)
    te.require(not isinstance(start, float) and not isinstance(step, float), f"an arange of fractions is not {dtype}")
    return te.cast(te.size(_whole(start)) + i * int(step), dtype)


def _whole(start: DimLike | float) -> Dim:
    return int(start) if isinstance(start, float) else start


@operator("shape_of")
def shape_of(data: te.Tensor, *, dtype: str = "int32") -> te.Tensor:
    """The sizes of ``data`` as a vector."""
    te.require(not is_float(dtype) and dtype != "bool", f"sizes are integers, not {dtype}")

    def body(i: te.Scalar) -> te.Scalar:
        if data.ndim == 0:
            return te.const(0, dtype)
        value = te.size(data.shape[-1], dtype)
        for n in reversed(range(data.ndim - 1)):
            value = te.select(te.compare("eq", i, n), te.size(data.shape[n], dtype), value)
        return value

    return te.compute((data.ndim,), body, "shape_of")


@operator("size_of")
def size_of(*, size: DimLike, dtype: str = "int64") -> te.Tensor:
    """A size as a scalar; in texts ``Dim[2*n + 1]`` is such a call where a value stands."""
    te.require(dtype != "bool", "a size is a number, not bool")
    return te.compute((), lambda: te.size(size, dtype), "size_of")


@operator("ndarray_size")
def ndarray_size(data: te.Tensor, *, dtype: str = "int32") -> te.Tensor:
    """The number of elements of ``data``, a scalar."""
    te.require(not is_float(dtype) and dtype != "bool", f"sizes are integers, not {dtype}")

    def body() -> te.Scalar:
        value: te.Scalar = te.const(1, "int64")
        for dim in data.shape:
            value = value * te.size(dim)
        return te.cast(value, dtype)

    return te.compute((), body, "ndarray_size")


# -- sizes that are data


def _progression_length(start: te.Tensor, stop: te.Tensor, step: te.Tensor, *, dtype: str = "float32") -> te.Tensor:
    for t in (start, stop, step):
        te.require(t.ndim == 0, f"the bounds of dyn.arange must be scalars, not of rank {t.ndim}")
        te.require(t.dtype == start.dtype and t.dtype != "bool", "the bounds of dyn.arange must have one numeric dtype")

    def body(_: te.Scalar) -> te.Scalar:
        distance, by = stop[()] - start[()], step[()]
        if is_float(start.dtype):
            count = te.cast(te.ceil(distance / by), "int64")
        else:
            wide, width = te.cast(distance, "int64"), te.cast(by, "int64")
            count = -((-wide) // width)
        return te.maximum(count, 0)

    return te.compute((1,), body, "length")


@operator("dyn.arange", shape_mode="data", result_shape=_progression_length)
def dyn_arange(
    start: te.Tensor, stop: te.Tensor, step: te.Tensor, *, dtype: str = "float32", out_shape: tuple[Dim, ...] = (ANY,)
) -> te.Tensor:
    """``start, start + step, ...`` up to but without ``stop``, a vector of ``dtype``; the operands are scalars of one dtype.

    A step of 0 gives an empty vector for integers.
    """
    held = start.dtype

    def body(i: te.Scalar) -> te.Scalar:
        return te.cast(start[()] + te.cast(i, held) * step[()], dtype)

    return te.compute(out_shape, body, "arange")
