"""Convolutions of images. Layouts name the axes: N batch, C channels, D, H and W space; O, I of a kernel."""

from __future__ import annotations

from relay import te
from relay.ir.dim import Dim, dim_add, dim_floordiv, dim_max, dim_mul, dim_sub, known_equal
from relay.op.registry import operator
from relay.op.shapes import padded
from relay.op.support import (
    SCHEDULER_NOTES,
    DimLike,
    require_number,
    require_rank,
    require_same_dtype,
)
from relay.te.autodiff import summed_at

Padding = int | tuple[int, ...]


def each(values: tuple[int, ...], count: int, what: str) -> tuple[int, ...]:
    """One number per spatial axis; one given number stands for all."""
    out = values * count if len(values) == 1 else values
    te.require(len(out) == count, f"{what} must be one number or {count}, not {len(values)}: {values}")
    te.require(all(v > 0 for v in out), f"{what} must be positive: {values}")
    return out


def borders(padding: Padding, count: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The widths before and after: one number for all, one per axis for both sides, or all before and then all after."""
    given = (padding,) if isinstance(padding, int) else padding
    if len(given) == 1:
        given = given * count
    if len(given) == count:
        given = given * 2
    te.require(len(given) == 2 * count, f"padding must be 1, {count} or {2 * count} numbers: {padding}")
    return given[:count], given[count:]


def window(
    extent: Dim, before: int, after: int, size: Dim, stride: int, dilation: int, *, ceil_mode: bool = False
) -> Dim:
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
    groups: DimLike,
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
    stride, dilate = each(strides, count, "strides"), each(dilation, count, "dilation")
    before, after = borders(padding, count)
    te.require_at_most(1, groups, f"the groups of {op} must be positive")
    size = dict(zip(data_layout, data.shape, strict=True))
    kernel = dict(zip(kernel_layout, weight.shape, strict=True))
    te.require_equal(size["C"], dim_mul(kernel["I"], groups), f"the input channels of {op} and those of its weight")
    if channels is not None:
        te.require_equal(kernel["O"], channels, f"the output channels of {op}'s weight and its channels")
    for axis, given in zip(space, kernel_size or (), strict=False):
        te.require_equal(kernel[axis], given, f"the {axis} size of {op}'s weight and its kernel_size")
    per_group = dim_floordiv(kernel["O"], groups)
    grouped = not known_equal(groups, 1)
    if grouped:
        te.require_equal(dim_mul(per_group, groups), kernel["O"], f"the output channels and the groups of {op}")
    out_size: dict[str, Dim] = {"N": size["N"], "C": kernel["O"]}
    for n, axis in enumerate(space):
        out_size[axis] = window(size[axis], before[n], after[n], kernel[axis], stride[n], dilate[n])
    low, high = dict(zip(space, before, strict=True)), dict(zip(space, after, strict=True))
    source = padded(
        data, [low.get(a, 0) for a in data_layout], [high.get(a, 0) for a in data_layout], te.const(0, data.dtype)
    )
    inner = {a: te.reduce_axis(kernel[a], f"k{a.lower()}") for a in "I" + space}

    def body(*i: te.Scalar) -> te.Scalar:
        at = dict(zip(out_layout, i, strict=True))
        channel: te.Scalar = inner["I"]
        if grouped:
            channel = (at["C"] // te.size(per_group)) * te.size(kernel["I"]) + channel
        read: dict[str, te.Scalar] = {"N": at["N"], "C": channel}
        for n, axis in enumerate(space):
            read[axis] = at[axis] * stride[n] + inner[axis] * dilate[n]
        x = source[tuple(read[a] for a in data_layout)]
        w = weight[tuple(at["C"] if a == "O" else inner[a] for a in kernel_layout)]
        return te.sum(te.cast(x, dtype) * te.cast(w, dtype), tuple(inner.values()))

    return te.compute(tuple(out_size[a] for a in out_layout), body, op.removeprefix("nn."))


@operator("nn.conv2d", ignored=SCHEDULER_NOTES)
def conv2d(
    data: te.Tensor,
    weight: te.Tensor,
    *,
    strides: tuple[int, ...] = (1, 1),
    padding: Padding = (0, 0),
    dilation: tuple[int, ...] = (1, 1),
    groups: DimLike = 1,
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
    groups: DimLike = 1,
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


@operator("nn.conv3d")
def conv3d(
    data: te.Tensor,
    weight: te.Tensor,
    *,
    strides: tuple[int, ...] = (1, 1, 1),
    padding: Padding = (0, 0, 0),
    dilation: tuple[int, ...] = (1, 1, 1),
    groups: DimLike = 1,
    channels: int | None = None,
    kernel_size: tuple[int, ...] | None = None,
    data_layout: str = "NCDHW",
    kernel_layout: str = "OIDHW",
    out_layout: str = "",
    out_dtype: str = "",
) -> te.Tensor:
    """`nn.conv2d` with three spatial axes. ``data``: (n, c, d, h, w); ``weight``: (o, c / groups, kd, kh, kw)."""
    layouts = (data_layout, kernel_layout, out_layout)
    return _convolution(
        data, weight, "DHW", strides, padding, dilation, groups, channels, kernel_size, layouts, out_dtype, "nn.conv3d"
    )


@operator("nn.conv2d_transpose")
def conv2d_transpose(
    data: te.Tensor,
    weight: te.Tensor,
    *,
    strides: tuple[int, ...] = (1, 1),
    padding: Padding = (0, 0),
    output_padding: tuple[int, ...] = (0, 0),
    dilation: tuple[int, ...] = (1, 1),
    groups: DimLike = 1,
    channels: int | None = None,
    kernel_size: tuple[int, ...] | None = None,
    data_layout: str = "NCHW",
    kernel_layout: str = "IOHW",
    out_layout: str = "",
    out_dtype: str = "",
) -> te.Tensor:
    """The transpose of `nn.conv2d` as a linear map of its data: every input element adds the kernel, scaled, to the result at its
    own place times ``strides``. ``data``: (n, i, h, w); ``weight``: (i, o / groups, kh, kw); gives (n, o, h', w').

    ``padding`` is cut off the result's borders, ``output_padding`` (less than ``strides`` or ``dilation``) put to its lower right.
    """
    op, space, out_layout = "nn.conv2d_transpose", "HW", out_layout or data_layout
    require_number(data, op)
    for layout, letters, what in (
        (data_layout, "NC", "data"),
        (kernel_layout, "IO", "weight"),
        (out_layout, "NC", "result"),
    ):
        te.require(
            sorted(layout) == sorted(letters + space),
            f"the {what} layout of {op} must permute {letters + space}: {layout}",
        )
    require_rank(data, 4, f"the data of {op}")
    require_rank(weight, 4, f"the weight of {op}")
    dtype = out_dtype if out_dtype and out_dtype != "void" else require_same_dtype(op, data, weight)
    stride, dilate = each(strides, 2, "strides"), each(dilation, 2, "dilation")
    before, after = borders(padding, 2)
    extra = output_padding * 2 if len(output_padding) == 1 else output_padding
    fits = len(extra) == 2 and all(0 <= e < max(s, d) for e, s, d in zip(extra, stride, dilate, strict=True))
    te.require(fits, f"output_padding must be two numbers from 0 to less than strides or dilation: {output_padding}")
    te.require_at_most(1, groups, f"the groups of {op} must be positive")
    size = dict(zip(data_layout, data.shape, strict=True))
    kernel = dict(zip(kernel_layout, weight.shape, strict=True))
    te.require_equal(size["C"], kernel["I"], f"the input channels of {op} and those of its weight")
    made = dim_mul(kernel["O"], groups)
    if channels is not None:
        te.require_equal(made, channels, f"the output channels of {op}'s weight and its channels")
    for axis, given in zip(space, kernel_size or (), strict=False):
        te.require_equal(kernel[axis], given, f"the {axis} size of {op}'s weight and its kernel_size")
    per_group = dim_floordiv(kernel["I"], groups)
    grouped = not known_equal(groups, 1)
    if grouped:
        te.require_equal(dim_mul(per_group, groups), kernel["I"], f"the input channels and the groups of {op}")
    out_size: dict[str, Dim] = {"N": size["N"], "C": made}
    for n, axis in enumerate(space):
        spread = dim_add(dim_mul(dim_sub(size[axis], 1), stride[n]), dim_mul(dim_sub(kernel[axis], 1), dilate[n]))
        out_size[axis] = dim_max(dim_add(spread, 1 + extra[n] - before[n] - after[n]), 0)
    at = {a: te.reduce_axis(size[a], a.lower()) for a in "NC" + space}
    taps = {a: te.reduce_axis(kernel[a], f"k{a.lower()}") for a in "O" + space}
    channel: te.Scalar = taps["O"]
    if grouped:
        channel = (at["C"] // te.size(per_group)) * te.size(kernel["O"]) + channel
    place: dict[str, te.Scalar] = {"N": at["N"], "C": channel}
    for n, axis in enumerate(space):
        place[axis] = at[axis] * stride[n] + taps[axis] * dilate[n] - before[n]
    x = te.cast(data[tuple(at[a] for a in data_layout)], dtype)
    w = te.cast(weight[tuple(at["C"] if a == "I" else taps[a] for a in kernel_layout)], dtype)
    shape, where = [out_size[a] for a in out_layout], [place[a] for a in out_layout]
    return summed_at(shape, where, x * w, tuple(at.values()), tuple(taps.values()), "conv2d_transpose")
