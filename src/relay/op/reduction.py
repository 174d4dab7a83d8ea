"""Reductions over axes.

``axis`` is None (all), a number or a tuple; ``exclude`` reduces over all others; ``keepdims`` keeps the axes with size 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from relay import te
from relay.ir.dim import Dim, shape_size
from relay.op.build import call
from relay.op.registry import composition, operator
from relay.op.support import (
    Axes,
    accumulation_dtype,
    axes_of,
    axis_of,
    elementwise,
    require_float,
    require_number,
    require_rank,
    unravel,
)


def reduced_shape(x: te.Tensor, axes: Sequence[int], keepdims: bool) -> tuple[Dim, ...]:
    """The shape of a reduction of ``x`` over ``axes``."""
    return tuple(1 if n in axes else d for n, d in enumerate(x.shape) if keepdims or n not in axes)


def reduction(
    x: te.Tensor,
    axes: Sequence[int],
    keepdims: bool,
    body: Callable[[te.Scalar, Sequence[te.Axis], Sequence[te.Scalar]], te.Scalar],
    name: str,
) -> te.Tensor:
    """A reduction over ``axes``: ``body`` gets an element, the index variables to reduce over and the index of the result."""
    over = {n: te.reduce_axis(x.shape[n], f"k{n}") for n in axes}

    def element(*i: te.Scalar) -> te.Scalar:
        outer = iter(n for k, n in enumerate(i) if k not in over) if keepdims else iter(i)
        at = [over[n] if n in over else next(outer) for n in range(x.ndim)]
        return body(x[tuple(at)], tuple(over.values()), i)

    return te.compute(reduced_shape(x, axes, keepdims), element, name)


def kept_index(i: Sequence[te.Scalar], axes: Sequence[int]) -> tuple[object, ...]:
    """The index of a reduction with ``keepdims`` that belongs to an index of its operand."""
    return tuple(0 if n in axes else index for n, index in enumerate(i))


Fold = Callable[[te.Scalar, Sequence[te.Axis]], te.Scalar]


def _declare(name: str, what: str, check: Callable[[te.Tensor, str], None] | None, fold: Fold) -> None:
    def define(data: te.Tensor, *, axis: Axes = None, keepdims: bool = False, exclude: bool = False) -> te.Tensor:
        if check is not None:
            check(data, name)
        axes = axes_of(axis, data.ndim, f"the operand of {name}", exclude=exclude)
        return reduction(data, axes, keepdims, lambda x, over, _: fold(x, over), name)

    define.__doc__ = f"{what} ``data``: any shape; the result has its dtype."
    operator(name)(define)


def _require_bool(x: te.Tensor, op: str) -> None:
    te.require(x.dtype == "bool", f"{op} needs a bool tensor, not {x.dtype}")


_declare("sum", "The sum over axes (integers wrap; of nothing: 0).", require_number, te.sum)
_declare("prod", "The product over axes (integers wrap; of nothing: 1).", require_number, te.prod)
_declare("max", "The greatest element over axes, nan if one is; of nothing the least value of the dtype.", None, te.max)
_declare("min", "The least element over axes, nan if one is; of nothing the greatest value of the dtype.", None, te.min)
_declare("all", "Whether all hold over axes (of nothing: true); bool.", _require_bool, te.all)
_declare("any", "Whether any holds over axes (of nothing: false); bool.", _require_bool, te.any)


def mean_of(x: te.Tensor, axes: Sequence[int], name: str = "mean") -> te.Tensor:
    """The mean over axes, kept as axes of size 1, in the accumulation dtype."""
    dtype = accumulation_dtype(x.dtype)
    total = reduction(x, axes, True, lambda v, over, _: te.sum(te.cast(v, dtype), over), f"{name}_sum")
    count = te.size(shape_size(tuple(x.shape[n] for n in axes)), dtype)
    return elementwise(total, lambda v: v / count, name)


def variance_of(x: te.Tensor, mean: te.Tensor, axes: Sequence[int], name: str = "variance") -> te.Tensor:
    """The mean squared distance from ``mean`` over axes, shaped like ``mean``, in the accumulation dtype."""
    dtype = mean.dtype

    def body(v: te.Scalar, over: Sequence[te.Axis], i: Sequence[te.Scalar]) -> te.Scalar:
        distance = te.cast(v, dtype) - mean[tuple(i)]
        return te.sum(distance * distance, over)

    total = reduction(x, axes, True, body, f"{name}_sum")
    count = te.size(shape_size(tuple(x.shape[n] for n in axes)), dtype)
    return elementwise(total, lambda v: v / count, name)


def _finished(x: te.Tensor, axes: Sequence[int], keepdims: bool, dtype: str, name: str) -> te.Tensor:
    """A result with kept axes, in its final dtype and shape."""
    shape = tuple(d for n, d in enumerate(x.shape) if keepdims or n not in axes)

    def body(*i: te.Scalar) -> te.Scalar:
        outer = iter(i)
        at = i if keepdims else [0 if n in axes else next(outer) for n in range(x.ndim)]
        return te.cast(x[tuple(at)], dtype)

    return te.compute(shape, body, name)


@operator("mean")
def mean(data: te.Tensor, *, axis: Axes = None, keepdims: bool = False, exclude: bool = False) -> te.Tensor:
    """The mean over axes. ``data``: any shape, floating point (16-bit floats are summed in float32)."""
    require_float(data, "mean")
    axes = axes_of(axis, data.ndim, "the operand of mean", exclude=exclude)
    dtype = accumulation_dtype(data.dtype)
    total = reduction(data, axes, keepdims, lambda v, over, _: te.sum(te.cast(v, dtype), over), "mean_sum")
    count = te.size(shape_size(tuple(data.shape[n] for n in axes)), dtype)
    return elementwise(total, lambda v: te.cast(v / count, data.dtype), "mean")


@operator("variance")
def variance(data: te.Tensor, *, axis: Axes = None, keepdims: bool = False, exclude: bool = False) -> te.Tensor:
    """The mean squared distance from the mean over axes. ``data``: any shape, floating point."""
    require_float(data, "variance")
    axes = axes_of(axis, data.ndim, "the operand of variance", exclude=exclude)
    found = variance_of(data, mean_of(data, axes), axes)
    return _finished(found, axes, keepdims, data.dtype, "variance")


@composition("std")
def std(data: Any, *, axis: Axes = None, keepdims: bool = False, exclude: bool = False) -> Any:
    """The square root of the variance over axes. ``data``: any shape, floating point. Where all elements are equal its derivative is 0,
    which that of the root is not."""
    square = call("variance", data, axis=axis, keepdims=keepdims, exclude=exclude)
    nothing = call("zeros_like", square)
    none = call("less_equal", square, nothing)
    root = call("sqrt", call("where", none, call("ones_like", square), square))
    return call("where", none, nothing, root)


# The exponential of a number below this would be next to subnormal: it counts for nothing beside that of the maximum, which is 1, and some
# processors take many times as long to compute with it (`relay.codegen.exponentials.exp_from`).
_SLIGHT = {"float32": -86.0, "float64": -707.0}


def weight_of(shifted: te.Scalar) -> te.Scalar:
    """The exponential of a number less the maximum; 0 where it would be next to subnormal."""
    return te.select(shifted < _SLIGHT[shifted.dtype], te.const(0.0, shifted.dtype), te.exp(shifted))


def shift_of(data: te.Tensor, axes: Sequence[int]) -> te.Tensor:
    """What `logsumexp` subtracts before it exponentiates: the maximum over the axes, which are kept, in the accumulation dtype."""
    dtype = accumulation_dtype(data.dtype)
    largest = reduction(data, axes, True, lambda v, over, _: te.max(v, over), "logsumexp_max")
    # An infinite maximum would give inf - inf; what is subtracted only has to be of the right size.
    return elementwise(
        largest,
        lambda v: te.select(te.isfinite(v), te.cast(v, dtype), te.const(0.0, dtype)),
        "logsumexp_shift",
    )


@operator("logsumexp")
def logsumexp(data: te.Tensor, *, axis: Axes = None, keepdims: bool = False, exclude: bool = False) -> te.Tensor:
    """log(sum(exp(x))) over axes, without overflow. ``data``: any shape, floating point."""
    require_float(data, "logsumexp")
    axes = axes_of(axis, data.ndim, "the operand of logsumexp", exclude=exclude)
    shift = shift_of(data, axes)
    dtype = shift.dtype
    total = reduction(
        data,
        axes,
        True,
        lambda v, over, i: te.sum(weight_of(te.cast(v, dtype) - shift[tuple(i)]), over),
        "logsumexp_sum",
    )
    found = te.compute(total.shape, lambda *i: te.log(total[i]) + shift[i], "logsumexp_log")
    return _finished(found, axes, keepdims, data.dtype, "logsumexp")


def _position(name: str, what: str, fold: Callable[[te.Scalar, te.Axis, str], te.Scalar]) -> None:
    def define(
        data: te.Tensor,
        *,
        axis: Axes = None,
        keepdims: bool = False,
        exclude: bool = False,
        dtype: str = "int32",
        select_last_index: Literal[False] = False,
    ) -> te.Tensor:
        axes = axes_of(axis, data.ndim, f"the operand of {name}", exclude=exclude)
        te.require(dtype in ("int32", "int64"), f"{name} gives int32 or int64, not {dtype}")
        over = tuple(data.shape[n] for n in axes)
        k = te.reduce_axis(shape_size(over))
        along = dict(zip(axes, [k] if len(axes) == 1 else unravel(k, over), strict=True))

        def body(*i: te.Scalar) -> te.Scalar:
            outer = iter(v for n, v in enumerate(i) if n not in axes) if keepdims else iter(i)
            at = [along[n] if n in axes else next(outer) for n in range(data.ndim)]
            return fold(data[tuple(at)], k, dtype)

        return te.compute(reduced_shape(data, axes, keepdims), body, name)

    define.__doc__ = (
        f"{what} ``data``: any shape; several axes count row-major. The result is int32 or int64 (``dtype``)."
    )
    operator(name)(define)


_position("argmax", "The first position of the greatest element over axes (the first nan if there is one).", te.argmax)
_position("argmin", "The first position of the least element over axes (the first nan if there is one).", te.argmin)


def _cumulative(name: str, what: str, start: int, step: Callable[[te.Scalar, te.Scalar], te.Scalar]) -> None:
    def define(data: te.Tensor, *, axis: int | None = None, dtype: str = "", exclusive: bool = False) -> te.Tensor:
        require_number(data, name)
        if axis is None:
            require_rank(data, 1, f"the operand of {name} without an axis")
        at = axis_of(axis or 0, data.ndim, f"the operand of {name}")
        result = dtype or data.dtype
        held = accumulation_dtype(result)
        scanned = te.scan(
            data.shape,
            at,
            lambda *_: start,
            lambda state, *i: step(state, te.cast(data[i], held)),
            held,
            exclusive=exclusive,
            name=name,
        )
        return scanned if held == result else elementwise(scanned, lambda v: te.cast(v, result), f"{name}_cast")

    define.__doc__ = (
        f"{what} ``data``: any shape (of rank 1 without an axis); ``exclusive`` leaves out the element itself; "
        "computed in ``dtype`` where given."
    )
    operator(name)(define)


_cumulative("cumsum", "The sums of the elements up to each along an axis.", 0, lambda s, x: s + x)
_cumulative("cumprod", "The products of the elements up to each along an axis.", 1, lambda s, x: s * x)
