"""Convolutions, pooling and resampling of images. Layouts name the axes: N batch, C channels, H and W space; O, I of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from relay import te
from relay.ir.dim import Dim, dim_add, dim_floordiv, dim_max, dim_mul, dim_sub
from relay.op.registry import operator
from relay.op.shapes import padded
from relay.op.support import (
    accumulation_dtype,
    elementwise,
    least,
    require_float,
    require_number,
    require_rank,
    require_same_dtype,
)

Padding = int | tuple[int, ...]


def _each(values: tuple[int, ...], count: int, what: str) -> tuple[int, ...]:
    """One number per spatial axis; one given number stands for all."""
    out = values * count if len(values) == 1 else values
    te.require(len(out) == count, f"{what} must be one number or {count}, not {len(values)}: {values}")
    te.require(all(v > 0 for v in out), f"{what} must be positive: {values}")
    return out


def _borders(padding: Padding, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The widths before and after: one number for all, one per axis for both sides, or all before and then all after."""
    given = (padding,) if isinstance(padding, int) else padding
    if len(given) == 1:
        given = given * count
    if len(given) == count:
        given = given * 2
    te.require(len(given) == 2 * count, f"padding must be 1, {count} or {2 * count} numbers: {padding}")
    return given[:count], given[count:]


def _window(extent: Dim, before: int, after: int, size: Dim, stride: int, dilation: int, *, ceil_mode: bool = False) -> Dim:
    """How many windows fit in a padded extent."""
    span = dim_add(dim_mul(dim_sub(size, 1), dilation), 1)
    room = dim_sub(dim_add(extent, before + after + (stride - 1 if ceil_mode else 0)), span)
    return dim_max(dim_add(dim_floordiv(room, stride), 1), 0)


def _convolution(
    data: te.Tensor,
    weight: te.Tensor,
    space: str,
    strides: tuple[int, ...],
    padding: Padding,
    dilation: tuple[int, ...],
    groups: int,
    channels: int | None,
    kernel_size: tuple[int, ...] | None,
    layouts: tuple[str, str, str],
    out_dtype: str,
    op: str,
) -> te.Tensor:
    """A grouped convolution over the axes that ``space`` names."""
    data_layout, kernel_layout, out_layout = layouts[0], layouts[1], layouts[2] or layouts[0]
    count = len(space)
    require_number(data, op)
    for tensor, layout, letters, what in (
        (data, data_layout, "NC", "data"),
        (weight, kernel_layout, "OI", "weight"),
        (None, out_layout, "NC", "result"),
    ):
        te.require(
            sorted(layout) == sorted(letters + space),
            f"the {what} layout of {op} must permute {letters + space}: {layout}",
        )
        if tensor is not None:
            require_rank(tensor, count + 2, f"the {what} of {op}")
    dtype = out_dtype if out_dtype and out_dtype != "void" else require_same_dtype(op, data, weight)
    stride, dilate = _each(strides, count, "strides"), _each(dilation, count, "dilation")
    before, after = _borders(padding, count)
    te.require(groups > 0, f"groups must be positive, not {groups}")
    size = dict(zip(data_layout, data.shape, strict=True))
    kernel = dict(zip(kernel_layout, weight.shape, strict=True))
    te.require_equal(size["C"], dim_mul(kernel["I"], groups), f"the input channels of {op} and those of its weight")
    if channels is not None:
        te.require_equal(kernel["O"], channels, f"the output channels of {op}'s weight and its channels")
    for axis, given in zip(space, kernel_size or (), strict=False):
        te.require_equal(kernel[axis], given, f"the {axis} size of {op}'s weight and its kernel_size")
    per_group = dim_floordiv(kernel["O"], groups)
    if groups > 1:
        te.require_equal(dim_mul(per_group, groups), kernel["O"], f"the output channels and the groups of {op}")
    out_size: dict[str, Dim] = {"N": size["N"], "C": kernel["O"]}
    for n, axis in enumerate(space):
        out_size[axis] = _window(size[axis], before[n], after[n], kernel[axis], stride[n], dilate[n])
    low, high = dict(zip(space, before, strict=True)), dict(zip(space, after, strict=True))
    source = padded(data, [low.get(a, 0) for a in data_layout], [high.get(a, 0) for a in data_layout], te.const(0, data.dtype))
    inner = {a: te.reduce_axis(kernel[a], f"k{a.lower()}") for a in "I" + space}

    def body(*i: te.Scalar) -> te.Scalar:
        at = dict(zip(out_layout, i, strict=True))
        channel: te.Scalar = inner["I"]
        if groups > 1:
            channel = (at["C"] // te.size(per_group)) * te.size(kernel["I"]) + channel
        read: dict[str, te.Scalar] = {"N": at["N"], "C": channel}
        for n, axis in enumerate(space):
            read[axis] = at[axis] * stride[n] + inner[axis] * dilate[n]
        x = source[tuple(read[a] for a in data_layout)]
        w = weight[tuple(at["C"] if a == "O" else inner[a] for a in kernel_layout)]
        return te.sum(te.cast(x, dtype) * te.cast(w, dtype), tuple(inner.values()))

    return te.compute(tuple(out_size[a] for a in out_layout), body, op.removeprefix("nn."))


@operator("nn.conv2d")
def conv2d(
    data: te.Tensor,
    weight: te.Tensor,
    *,
    strides: tuple[int, ...] = (1, 1),
    padding: Padding = (0, 0),
    dilation: tuple[int, ...] = (1, 1),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: tuple[int, ...] | None = None,
    data_layout: str = "NCHW",
    kernel_layout: str = "OIHW",
    out_layout: str = "",
    out_dtype: str = "",
) -> te.Tensor:
    """Correlation of images with kernels, as in neural networks. ``data``: (n, c, h, w) or another ``data_layout``; ``weight``:
    (o, c / groups, kh, kw) or another ``kernel_layout``; gives (n, o, h', w') in ``out_layout`` (the data's by default).

    ``padding``: one number, (h, w), or (top, left, bottom, right), of zeros. ``out_dtype`` is what is multiplied and summed in.
    """
    layouts = (data_layout, kernel_layout, out_layout)
    return _convolution(
        data, weight, "HW", strides, padding, dilation, groups, channels, kernel_size, layouts, out_dtype, "nn.conv2d"
    )


@operator("nn.conv1d")
def conv1d(
    data: te.Tensor,
    weight: te.Tensor,
    *,
    strides: tuple[int, ...] = (1,),
    padding: Padding = (0,),
    dilation: tuple[int, ...] = (1,),
    groups: int = 1,
    channels: int | None = None,
    kernel_size: tuple[int, ...] | None = None,
    data_layout: str = "NCW",
    kernel_layout: str = "OIW",
    out_layout: str = "",
    out_dtype: str = "",
) -> te.Tensor:
    """`nn.conv2d` with one spatial axis. ``data``: (n, c, w); ``weight``: (o, c / groups, kw)."""
    layouts = (data_layout, kernel_layout, out_layout)
    return _convolution(
        data, weight, "W", strides, padding, dilation, groups, channels, kernel_size, layouts, out_dtype, "nn.conv1d"
    )


def _space(data: te.Tensor, layout: str, op: str) -> tuple[int, int]:
    """The numbers of the axes H and W."""
    te.require(sorted(layout) == sorted("NCHW"), f"the layout of {op} must permute NCHW: {layout}")
    require_rank(data, 4, f"the data of {op}")
    return layout.index("H"), layout.index("W")


class _Pool:
    """The geometry of a pooling: which elements of the data belong to which window."""

    def __init__(
        self,
        data: te.Tensor,
        op: str,
        layout: str,
        pool_size: tuple[int, ...],
        strides: tuple[int, ...],
        padding: Padding,
        dilation: tuple[int, ...],
        ceil_mode: bool,
    ) -> None:
        self.space = _space(data, layout, op)
        self.size = _each(pool_size, 2, "pool_size")
        self.stride, self.dilation = _each(strides, 2, "strides"), _each(dilation, 2, "dilation")
        self.before, self.after = _borders(padding, 2)
        self.data = data
        self.over = tuple(te.reduce_axis(s, f"k{n}") for n, s in enumerate(self.size))
        shape = list(data.shape)
        for n, axis in enumerate(self.space):
            shape[axis] = _window(
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


@operator("nn.max_pool2d")
def max_pool2d(
    data: te.Tensor,
    *,
    pool_size: tuple[int, ...],
    strides: tuple[int, ...] = (1, 1),
    dilation: tuple[int, ...] = (1, 1),
    padding: Padding = (0, 0),
    layout: str = "NCHW",
    out_layout: str = "",
    ceil_mode: bool = False,
) -> te.Tensor:
    """The greatest element of each window. ``data``: (n, c, h, w) or another ``layout``; padding counts as the least value."""
    require_number(data, "nn.max_pool2d")
    te.require(out_layout in ("", layout), f"nn.max_pool2d keeps its layout {layout}; transpose to get {out_layout}")
    pool = _Pool(data, "nn.max_pool2d", layout, pool_size, strides, padding, dilation, ceil_mode)
    return pool.reduce(pool.padded(least(data.dtype)), te.max, data.dtype, "max_pool2d")


@operator("nn.avg_pool2d")
def avg_pool2d(
    data: te.Tensor,
    *,
    pool_size: tuple[int, ...],
    strides: tuple[int, ...] = (1, 1),
    dilation: tuple[int, ...] = (1, 1),
    padding: Padding = (0, 0),
    layout: str = "NCHW",
    out_layout: str = "",
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> te.Tensor:
    """The mean of each window. ``data``: (n, c, h, w) or another ``layout``, floating point.

    What is outside of the data counts as 0 if ``count_include_pad`` (up to the padding), else not at all.
    """
    require_float(data, "nn.avg_pool2d")
    te.require(out_layout in ("", layout), f"nn.avg_pool2d keeps its layout {layout}; transpose to get {out_layout}")
    pool = _Pool(data, "nn.avg_pool2d", layout, pool_size, strides, padding, dilation, ceil_mode)
    dtype = accumulation_dtype(data.dtype)
    total = pool.reduce(pool.padded(te.const(0, data.dtype)), te.sum, dtype, "avg_pool2d_sum")

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
        return te.maximum(reached - skipped, 0)

    def body(*i: te.Scalar) -> te.Scalar:
        count = te.maximum(covered(i, 0) * covered(i, 1), 1)
        return te.cast(total[i] / te.cast(count, dtype), data.dtype)

    return te.compute(pool.shape, body, "avg_pool2d")


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

    define.__doc__ = f"{what} over H and W, kept with size 1. ``data``: (n, c, h, w) or another ``layout``, floating point."
    operator(name)(define)


_global("nn.global_avg_pool2d", "The mean", mean=True)
_global("nn.global_max_pool2d", "The greatest element", mean=False)


@operator("nn.upsampling")
def upsampling(
    data: te.Tensor,
    *,
    scale_h: int = 1,
    scale_w: int = 1,
    layout: str = "NCHW",
    method: Literal["nearest_neighbor"] = "nearest_neighbor",
) -> te.Tensor:
    """Every element repeated ``scale_h`` times along H and ``scale_w`` times along W."""
    te.require(scale_h > 0 and scale_w > 0, f"the scales of nn.upsampling must be positive: {scale_h}, {scale_w}")
    scale = dict(zip(_space(data, layout, "nn.upsampling"), (scale_h, scale_w), strict=True))
    shape = tuple(dim_mul(d, scale.get(n, 1)) for n, d in enumerate(data.shape))
    return te.compute(shape, lambda *i: data[tuple(x // scale[n] if n in scale else x for n, x in enumerate(i))], "upsampling")
