"""Pooling and resampling of images. Layouts name the axes: N batch, C channels, D, H and W space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Literal

from relay import te
from relay.ir.dim import ceil_div, dim_add, dim_floordiv, dim_mul
from relay.ir.types import is_float
from relay.op.convolution import Padding, borders, each, window
from relay.op.registry import operator
from relay.op.shapes import padded
from relay.op.support import (
    accumulation_dtype,
    axis_of,
    elementwise,
    least,
    require_float,
    require_number,
    require_rank,
)


def _space(data: te.Tensor, layout: str, op: str, axes: str = "HW") -> tuple[int, ...]:
    """The numbers of the axes in space, H and W."""
    te.require(sorted(layout) == sorted("NC" + axes), f"the layout of {op} must permute {'NC' + axes}: {layout}")
    require_rank(data, 2 + len(axes), f"the data of {op}")
    return tuple(layout.index(a) for a in axes)


class _Pool:
    """The geometry of a pooling: which elements of the data belong to which window."""

    def __init__(
        self,
        data: te.Tensor,
        op: str,
        axes: str,
        layout: str,
        pool_size: tuple[int, ...],
        strides: tuple[int, ...],
        padding: Padding,
        dilation: tuple[int, ...],
        ceil_mode: bool,
    ) -> None:
        self.space, count = _space(data, layout, op, axes), len(axes)
        self.size = each(pool_size, count, "pool_size")
        self.stride, self.dilation = each(strides, count, "strides"), each(dilation, count, "dilation")
        self.before, self.after = borders(padding, count)
        self.data = data
        self.over = tuple(te.reduce_axis(s, f"k{n}") for n, s in enumerate(self.size))
        shape = list(data.shape)
        for n, axis in enumerate(self.space):
            shape[axis] = window(
                data.shape[axis],
                self.before[n],
                self.after[n],
                self.size[n],
                self.stride[n],
                self.dilation[n],
                ceil_mode=ceil_mode,
            )
        self.shape = tuple(shape)
        # With ceil_mode the last window may reach beyond the padding by less than a stride.
        self.beyond = tuple(a + (s - 1 if ceil_mode else 0) for a, s in zip(self.after, self.stride, strict=True))

    def widths(self, ends: Sequence[int]) -> list[int]:
        out = [0] * self.data.ndim
        for axis, width in zip(self.space, ends, strict=True):
            out[axis] = width
        return out

    def padded(self, value: te.Scalar) -> te.Tensor:
        return padded(self.data, self.widths(self.before), self.widths(self.beyond), value, "pool_pad")

    def read(self, i: Sequence[te.Scalar]) -> list[te.Scalar]:
        """The index into the padded data."""
        at = list(i)
        for n, axis in enumerate(self.space):
            at[axis] = i[axis] * self.stride[n] + self.over[n] * self.dilation[n]
        return at

    def reduce(
        self, source: te.Tensor, fold: Callable[[te.Scalar, Sequence[te.Axis]], te.Scalar], dtype: str, name: str
    ) -> te.Tensor:
        return te.compute(self.shape, lambda *i: fold(te.cast(source[tuple(self.read(i))], dtype), self.over), name)


def _max_pool(axes: str) -> None:
    name, natural = f"nn.max_pool{len(axes)}d", "NC" + axes
    ones, zeros = (1,) * len(axes), (0,) * len(axes)

    def define(
        data: te.Tensor,
        *,
        pool_size: tuple[int, ...],
        strides: tuple[int, ...] = ones,
        dilation: tuple[int, ...] = ones,
        padding: Padding = zeros,
        layout: str = natural,
        out_layout: str = "",
        ceil_mode: bool = False,
    ) -> te.Tensor:
        require_number(data, name)
        te.require(out_layout in ("", layout), f"{name} keeps its layout {layout}; transpose to get {out_layout}")
        pool = _Pool(data, name, axes, layout, pool_size, strides, padding, dilation, ceil_mode)
        return pool.reduce(pool.padded(least(data.dtype)), te.max, data.dtype, name.removeprefix("nn."))

    define.__doc__ = f"""The greatest element of each window. ``data``: {_sizes(axes)} or another ``layout``; padding counts as the least
    value."""
    operator(name)(define)


def _avg_pool(axes: str) -> None:
    name, natural = f"nn.avg_pool{len(axes)}d", "NC" + axes
    ones, zeros = (1,) * len(axes), (0,) * len(axes)

    def define(
        data: te.Tensor,
        *,
        pool_size: tuple[int, ...],
        strides: tuple[int, ...] = ones,
        dilation: tuple[int, ...] = ones,
        padding: Padding = zeros,
        layout: str = natural,
        out_layout: str = "",
        ceil_mode: bool = False,
        count_include_pad: bool = False,
    ) -> te.Tensor:
        require_number(data, name)
        te.require(out_layout in ("", layout), f"{name} keeps its layout {layout}; transpose to get {out_layout}")
        pool = _Pool(data, name, axes, layout, pool_size, strides, padding, dilation, ceil_mode)
        # Sums of small integers leave their type.
        wide = "uint64" if data.dtype == "uint64" else "int64"
        dtype = accumulation_dtype(data.dtype) if is_float(data.dtype) else wide
        stage = name.removeprefix("nn.")
        total = pool.reduce(pool.padded(te.const(0, data.dtype)), te.sum, dtype, f"{stage}_sum")

        def covered(i: Sequence[te.Scalar], n: int) -> te.Scalar:
            """How many of a window's positions along spatial axis n count."""
            axis, low, high = pool.space[n], 0, pool.before[n]
            stop = dim_add(data.shape[axis], high)
            if count_include_pad:
                stop = dim_add(stop, pool.after[n])
            else:
                low = pool.before[n]
            first = i[axis] * pool.stride[n]
            by = pool.dilation[n]
            # Positions first + k * by, k < size, in [low, stop).
            skipped = te.maximum((low - first + (by - 1)) // by, 0)
            reached = te.minimum((te.size(stop) - first + (by - 1)) // by, pool.size[n])
            if not ceil_mode and (count_include_pad or pool.after[n] == 0):  # no window reaches beyond the end
                reached = te.const(pool.size[n], "int64")
            return te.maximum(reached - skipped, 0)

        def body(*i: te.Scalar) -> te.Scalar:
            count = reduce(lambda a, b: a * b, [covered(i, n) for n in range(len(axes))])
            divisor = te.cast(te.maximum(count, 1), dtype)
            mean = total[i] / divisor if is_float(dtype) else te.binary("truncdiv", total[i], divisor)
            return te.cast(mean, data.dtype)

        return te.compute(pool.shape, body, stage)

    define.__doc__ = f"""The mean of each window. ``data``: {_sizes(axes)} or another ``layout``; of integers rounded towards zero.

    What is outside of the data counts as 0 if ``count_include_pad`` (up to the padding), else not at all.
    """
    operator(name)(define)


def _sizes(axes: str) -> str:
    return f"({', '.join(('NC' + axes).lower())})"


for _axes in ("W", "HW", "DHW"):
    _max_pool(_axes)
    _avg_pool(_axes)


def _global(name: str, what: str, mean: bool) -> None:
    def define(data: te.Tensor, *, layout: str = "NCHW", out_layout: str = "") -> te.Tensor:
        require_float(data, name)
        te.require(out_layout in ("", layout), f"{name} keeps its layout {layout}; transpose to get {out_layout}")
        space = _space(data, layout, name)
        dtype = accumulation_dtype(data.dtype) if mean else data.dtype
        over = {axis: te.reduce_axis(data.shape[axis], f"k{n}") for n, axis in enumerate(space)}
        shape = tuple(1 if n in over else d for n, d in enumerate(data.shape))

        def body(*i: te.Scalar) -> te.Scalar:
            x = te.cast(data[tuple(over.get(n, index) for n, index in enumerate(i))], dtype)
            return (te.sum if mean else te.max)(x, tuple(over.values()))

        folded = te.compute(shape, body, name.removeprefix("nn."))
        if not mean:
            return folded
        count = te.size(dim_mul(data.shape[space[0]], data.shape[space[1]]), dtype)
        return elementwise(folded, lambda x: te.cast(x / count, data.dtype), "mean")

    define.__doc__ = (
        f"{what} over H and W, kept with size 1. ``data``: (n, c, h, w) or another ``layout``, floating point."
    )
    operator(name)(define)


@operator("nn.lrn")
def lrn(
    data: te.Tensor,
    *,
    size: int = 5,
    axis: int = 1,
    bias: float = 2.0,
    alpha: float = 1e-5,
    beta: float = 0.75,
) -> te.Tensor:
    """Every element divided by (bias + alpha / size * s) ** beta, with s the sum of squares of the ``size`` elements around it along
    ``axis``. ``data``: rank 1 or more, floating point; ``size`` is odd."""
    require_float(data, "nn.lrn")
    te.require(size > 0 and size % 2 == 1, f"the size of nn.lrn must be odd and positive, not {size}")
    at, dtype, half = axis_of(axis, data.ndim, "the data of nn.lrn"), accumulation_dtype(data.dtype), size // 2
    widths = [half if n == at else 0 for n in range(data.ndim)]
    source, near = padded(data, widths, widths, te.const(0, data.dtype)), te.reduce_axis(size, "near")

    def squares(*i: te.Scalar) -> te.Scalar:
        x = te.cast(source[(*i[:at], i[at] + near, *i[at + 1 :])], dtype)
        return te.sum(x * x, near)

    total = te.compute(data.shape, squares, "lrn_squares")

    def body(*i: te.Scalar) -> te.Scalar:
        scale = te.binary("pow", bias + total[i] * (alpha / size), te.const(beta, dtype))
        return te.cast(te.cast(data[i], dtype) / scale, data.dtype)

    return te.compute(data.shape, body, "lrn")


_global("nn.global_avg_pool2d", "The mean", mean=True)
_global("nn.global_max_pool2d", "The greatest element", mean=False)


@operator("nn.upsampling", ignored=("align_corners",))
def upsampling(
    data: te.Tensor,
    *,
    scale_h: float = 1,
    scale_w: float = 1,
    layout: str = "NCHW",
    method: Literal["nearest_neighbor"] = "nearest_neighbor",
) -> te.Tensor:
    """Every element repeated ``scale_h`` times along H and ``scale_w`` times along W; the scales are whole numbers."""
    whole = all(s > 0 and s == int(s) for s in (scale_h, scale_w))
    te.require(whole, f"the scales of nn.upsampling must be positive whole numbers: {scale_h}, {scale_w}")
    scale = dict(zip(_space(data, layout, "nn.upsampling"), (int(scale_h), int(scale_w)), strict=True))
    shape = tuple(dim_mul(d, scale.get(n, 1)) for n, d in enumerate(data.shape))
    return te.compute(
        shape, lambda *i: data[tuple(x // scale[n] if n in scale else x for n, x in enumerate(i))], "upsampling"
    )


def _adaptive(name: str, what: str, mean: bool) -> None:
    def define(
        data: te.Tensor, *, output_size: tuple[int, ...] = (1, 1), layout: str = "NCHW", out_layout: str = ""
    ) -> te.Tensor:
        require_float(data, name)
        te.require(out_layout in ("", layout), f"{name} keeps its layout {layout}; transpose to get {out_layout}")
        space, sizes = _space(data, layout, name), each(output_size, 2, "output_size")
        dtype = accumulation_dtype(data.dtype) if mean else data.dtype
        # Window i of n is [floor(i * extent / n), ceil((i + 1) * extent / n)): at most ceil(extent / n) + 1 elements.
        extents = [data.shape[axis] for axis in space]
        longest = [
            e // s if isinstance(e, int) and e % s == 0 else dim_add(ceil_div(e, s), 1)
            for e, s in zip(extents, sizes, strict=True)
        ]
        over = [te.reduce_axis(length, f"k{n}") for n, length in enumerate(longest)]
        shape = tuple(sizes[space.index(n)] if n in space else d for n, d in enumerate(data.shape))

        def bounds(i: Sequence[te.Scalar], n: int) -> tuple[te.Scalar, te.Scalar]:
            scaled = i[space[n]] * te.size(extents[n])
            return scaled // sizes[n], (scaled + te.size(extents[n]) + (sizes[n] - 1)) // sizes[n]

        def element(*i: te.Scalar) -> te.Scalar:
            at = list(i)
            guards: te.Scalar = te.const(True, "bool")
            for n, axis in enumerate(space):
                first, stop = bounds(i, n)
                at[axis] = first + over[n]
                guards = guards & (at[axis] < stop)
            outside = te.const(0, dtype) if mean else least(dtype)
            return (te.sum if mean else te.max)(te.select(guards, te.cast(data[tuple(at)], dtype), outside), over)

        folded = te.compute(shape, element, name.removeprefix("nn."))
        if not mean:
            return folded

        def divided(*i: te.Scalar) -> te.Scalar:
            (top, bottom), (left, right) = bounds(i, 0), bounds(i, 1)
            return te.cast(folded[i] / te.cast((bottom - top) * (right - left), dtype), data.dtype)

        return te.compute(shape, divided, "mean")

    define.__doc__ = (
        f"{what} over windows that divide H and W into ``output_size`` parts. ``data``: (n, c, h, w), floating point."
    )
    operator(name)(define)


_adaptive("nn.adaptive_avg_pool2d", "The mean", mean=True)
_adaptive("nn.adaptive_max_pool2d", "The greatest element", mean=False)


def _blocks(data: te.Tensor, block_size: int, layout: str, op: str) -> tuple[int, int, int]:
    """The numbers of the axes C, H and W."""
    te.require(block_size > 0, f"the block size of {op} must be positive, not {block_size}")
    height, width = _space(data, layout, op)
    return layout.index("C"), height, width


@operator("nn.space_to_depth")
def space_to_depth(data: te.Tensor, *, block_size: int, layout: str = "NCHW") -> te.Tensor:
    """Blocks of H and W as channels: (n, c, h, w) to (n, b * b * c, h / b, w / b), the place in the block before the channel."""
    c, *space = _blocks(data, block_size, layout, "nn.space_to_depth")
    channels = te.size(data.shape[c])
    shape = list(data.shape)
    shape[c] = dim_mul(shape[c], block_size * block_size)
    for axis in space:
        shape[axis] = dim_floordiv(data.shape[axis], block_size)
        te.require_equal(
            dim_mul(shape[axis], block_size), data.shape[axis], "the blocks and the sizes of nn.space_to_depth"
        )

    def body(*i: te.Scalar) -> te.Scalar:
        at, block = list(i), i[c] // channels
        at[c] = i[c] % channels
        at[space[0]] = i[space[0]] * block_size + block // block_size
        at[space[1]] = i[space[1]] * block_size + block % block_size
        return data[tuple(at)]

    return te.compute(shape, body, "space_to_depth")


@operator("nn.depth_to_space")
def depth_to_space(
    data: te.Tensor, *, block_size: int, layout: str = "NCHW", mode: Literal["DCR", "CRD"] = "DCR"
) -> te.Tensor:
    """Channels as blocks of H and W: (n, b * b * c, h, w) to (n, c, h * b, w * b). In mode ``DCR`` the block comes before the
    channel in the channel axis, in ``CRD`` after it."""
    c, *space = _blocks(data, block_size, layout, "nn.depth_to_space")
    area = block_size * block_size
    shape = list(data.shape)
    shape[c] = dim_floordiv(data.shape[c], area)
    te.require_equal(dim_mul(shape[c], area), data.shape[c], "the blocks and the channels of nn.depth_to_space")
    for axis in space:
        shape[axis] = dim_mul(data.shape[axis], block_size)

    def body(*i: te.Scalar) -> te.Scalar:
        at = list(i)
        block = (i[space[0]] % block_size) * block_size + i[space[1]] % block_size
        at[c] = block * te.size(shape[c]) + i[c] if mode == "DCR" else i[c] * area + block
        for axis in space:
            at[axis] = i[axis] // block_size
        return data[tuple(at)]

    return te.compute(shape, body, "depth_to_space")
