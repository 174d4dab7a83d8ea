"""Images at another size: the nearest element, or the weighted mean of the two (four) around a place."""

from __future__ import annotations

from math import gcd
from typing import Literal

from relay import te
from relay.ir.dim import Dim, dim_floordiv, dim_mul, dim_sub
from relay.ir.types import is_float
from relay.op.convolution import each
from relay.op.registry import operator
from relay.op.support import accumulation_dtype, clipped, require_rank

Coordinates = Literal["half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric"]
Rounding = Literal["", "round", "floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]
# What belongs to methods and modes that are not here.
_UNUSED = ("roi", "cubic_alpha", "cubic_exclude", "extrapolation_value")


def _fraction(i: te.Scalar, step: Dim, start: Dim, below: int) -> tuple[te.Scalar, int]:
    """``(i * step + start) / below`` in lowest terms, where the sizes are known: divisions by two are cheaper than those by thousands."""
    common = gcd(step, start, below) if isinstance(step, int) and isinstance(start, int) else 1
    return i * te.size(dim_floordiv(step, common)) + te.size(dim_floordiv(start, common)), below // common


def _place(i: te.Scalar, extent: Dim, size: int, mode: Coordinates) -> tuple[te.Scalar, int]:
    """Where along the operand's axis the result's element i is, as an exact fraction of integers."""
    match mode:
        case "align_corners":
            return _fraction(i, dim_sub(extent, 1), 0, max(size - 1, 1))
        case "asymmetric":
            return _fraction(i, extent, 0, size)
        case "pytorch_half_pixel" if size == 1:
            return te.const(0, "int64"), 1
        case "half_pixel" | "pytorch_half_pixel":
            return _fraction(i, dim_mul(extent, 2), dim_sub(extent, size), 2 * size)


def _nearest(above: te.Scalar, below: int, rounding: Rounding, mode: Coordinates) -> te.Scalar:
    match rounding or (
        "round" if mode == "align_corners" else "floor" if mode == "asymmetric" else "round_prefer_floor"
    ):
        case "floor":
            return above // below
        case "ceil":
            return -((-above) // below)
        case "round" | "round_prefer_ceil":
            return (above * 2 + below) // (2 * below)
        case _:
            return -((below - above * 2) // (2 * below))


def _resized(
    data: te.Tensor,
    space: str,
    size: tuple[int, ...],
    layout: str,
    method: str,
    mode: Coordinates,
    rounding: Rounding,
    out_dtype: str,
    op: str,
) -> te.Tensor:
    te.require(sorted(layout) == sorted("NC" + space), f"the layout of {op} must permute NC{space}: {layout}")
    require_rank(data, len(layout), f"the data of {op}")
    te.require(data.dtype != "bool", f"{op} is not defined on bool: cast it")
    sizes = dict(zip(space, each(size, len(space), f"the size of {op}"), strict=True))
    shape = tuple(sizes.get(a, d) for a, d in zip(layout, data.shape, strict=True))
    dtype = out_dtype or data.dtype
    held = accumulation_dtype(data.dtype) if is_float(data.dtype) else "float64"
    axes = [layout.index(a) for a in space]

    def nearest(*i: te.Scalar) -> te.Scalar:
        at = list(i)
        for axis, a in zip(axes, space, strict=True):
            above, below = _place(i[axis], data.shape[axis], sizes[a], mode)
            at[axis] = clipped(_nearest(above, below, rounding, mode), data.shape[axis])
        return te.cast(data[tuple(at)], dtype)

    if method == "nearest_neighbor":
        return te.compute(shape, nearest, op.removeprefix("image."))

    exact = not is_float(data.dtype)
    scale = 1

    def between(source: te.Tensor, axis: int, new: int) -> te.Tensor:
        """The mean of the two neighbours along one axis; of integers times the fraction's denominator, so that halves stay halves."""
        old = source.shape[axis]

        def mean(*i: te.Scalar) -> te.Scalar:
            above, below = _place(i[axis], old, new, mode)
            rest = te.cast(above % below, held)
            ends = [clipped(above // below + step, old) for step in (0, 1)]
            a, b = (te.cast(source[(*i[:axis], end, *i[axis + 1 :])], held) for end in ends)
            if exact:
                return a * (below - rest) + b * rest
            share = rest * te.const(1 / below, held)
            return a * (1 - share) + b * share

        return te.compute([new if n == axis else d for n, d in enumerate(source.shape)], mean, "between")

    # One axis after the other, so that each derivative is a sum along one axis too.
    for axis, a in zip(axes, space, strict=True):
        scale *= _place(te.const(0, "int64"), data.shape[axis], sizes[a], mode)[1] if exact else 1
        data = between(data, axis, sizes[a])

    def finished(*i: te.Scalar) -> te.Scalar:
        value = data[i] / float(scale) if exact else data[i]
        return te.cast(value if is_float(dtype) else te.floor(value + 0.5), dtype)

    return data if dtype == held and not exact else te.compute(shape, finished, op.removeprefix("image."))


@operator("image.resize2d", ignored=_UNUSED)
def resize2d(
    data: te.Tensor,
    *,
    size: tuple[int, ...],
    layout: str = "NCHW",
    method: Literal["linear", "nearest_neighbor"] = "linear",
    coordinate_transformation_mode: Coordinates = "half_pixel",
    rounding_method: Rounding = "",
    out_dtype: str = "",
) -> te.Tensor:
    """``data`` (n, c, h, w) or another ``layout`` with H and W of ``size``.

    Element i of the result lies at (i + 0.5) * old / new - 0.5 of the old axis (``half_pixel``; ``pytorch_half_pixel`` puts the only
    one at 0), at i * (old - 1) / (new - 1) (``align_corners``) or at i * old / new (``asymmetric``). ``rounding_method`` tells
    which element is the nearest. Beyond the border the border's elements count. Integers are rounded, halves up.
    """
    mode = coordinate_transformation_mode
    return _resized(data, "HW", size, layout, method, mode, rounding_method, out_dtype, "image.resize2d")


@operator("image.resize1d", ignored=_UNUSED)
def resize1d(
    data: te.Tensor,
    *,
    size: tuple[int, ...],
    layout: str = "NCW",
    method: Literal["linear", "nearest_neighbor"] = "linear",
    coordinate_transformation_mode: Coordinates = "half_pixel",
    rounding_method: Rounding = "",
    out_dtype: str = "",
) -> te.Tensor:
    """`image.resize2d` with one spatial axis. ``data``: (n, c, w)."""
    mode = coordinate_transformation_mode
    return _resized(data, "W", size, layout, method, mode, rounding_method, out_dtype, "image.resize1d")
