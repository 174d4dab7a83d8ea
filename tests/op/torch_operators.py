"""What Relay's operators are in PyTorch: a function of tensors and of the operator's attributes for each, as it is there or in
compositions where it has no single one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pytest

from tests.op.harness import Array
from tests.op.test_compiled import CASES

torch: Any = pytest.importorskip("torch", reason="PyTorch is what is compared with")
torch.set_num_threads(1)
F: Any = torch.nn.functional

# What a case expects of NumPy: here only for the shapes and places of elements that are moved.
EXPECTED = {c.name: c.expect for c in CASES}


class NotInTorchError(Exception):
    """PyTorch has the operator, but not with these attributes: the reason."""


def arranged(x: Any, layout: str, to: str) -> Any:
    return x.permute([layout.index(a) for a in to]).contiguous()  # which convolutions need of some kernels


def imaged(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of images NCHW (or of as many axes of space), for any layout."""

    def run(x: Any, *, layout: str, **attrs: Any) -> Any:
        plain = "NC" + "DHW"[-(x.ndim - 2) :]
        return arranged(fn(arranged(x, layout, plain), **attrs), plain, layout)

    return run


def ends(padding: Sequence[int], rank: int) -> list[tuple[int, int]]:
    """The widths of a frame before and behind each axis, from one number, one for each axis, or one for each end."""
    widths = tuple(padding) * (rank if len(padding) == 1 else 1)
    return list(zip(widths[:rank], widths[-rank:], strict=True))


def framed(x: Any, widths: Sequence[tuple[int, int]], value: float = 0.0) -> Any:
    """The last axes in a frame; where a width is negative, cut."""
    return F.pad(x, [n for pair in reversed(widths) for n in pair], value=value)


def along(v: Any, x: Any, axis: int) -> Any:
    """A value for each channel, of a shape that broadcasts to ``x``."""
    return v.reshape([-1 if n == axis % x.ndim else 1 for n in range(x.ndim)])


def cut(x: Any, slices: Mapping[int, slice]) -> Any:
    for axis, part in slices.items():  # slices of tensors have no negative strides
        x = x.index_select(axis, torch.tensor(range(x.shape[axis])[part], dtype=torch.int64))
    return x


def score_bias(q: Any, k: Any, mask: Any, causal: bool) -> Any:
    """What is added to the scores: -inf where a query does not see a key. The last query belongs to the last key."""
    m, n = q.shape[-2], k.shape[-2]
    bias = torch.zeros(*q.shape[:-1], n, dtype=torch.float64)
    if mask is not None:
        bias = bias.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else bias + mask
    return bias.masked_fill(~torch.ones(m, n, dtype=torch.bool).tril(n - m), -math.inf) if causal else bias


def attention(q: Any, k: Any, v: Any, mask: Any = None, *, causal: bool, scale: float | None) -> Any:
    shared = q.ndim > 2 and q.shape[-3] != k.shape[-3]
    bias = score_bias(q, k, mask, causal)
    return F.scaled_dot_product_attention(q, k, v, bias, scale=scale, enable_gqa=shared)


def for_each_head(q: Any, *shared: Any) -> list[Any]:
    return [x.repeat_interleave(q.shape[-3] // x.shape[-3], -3) if q.ndim > 2 else x for x in shared]


def scored_attention(
    q: Any, k: Any, v: Any, operands: Any, *, score: Any, masked: bool, weighed: bool, causal: bool, scale: Any
) -> Any:
    k, v = for_each_head(q, k, v)
    mask, own = (operands[0], operands[1:]) if masked else (None, operands)
    factor, own = (own[-1], own[:-1]) if weighed else (torch.tensor(True), own)
    values = [q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale), *own]
    for name, given_ in score:
        at = [values[a] if isinstance(a, int) else torch.tensor(a, dtype=torch.float64) for a in given_]
        values.append(TORCH[name](*at))
    return torch.softmax(values[-1] + score_bias(q, k, mask, causal), -1) * factor @ v


def attention_cotangents(
    q: Any, k: Any, v: Any, result: Any, g: Any, masks: Any, *, causal: bool, scale: float | None, also: tuple[int, ...]
) -> Any:
    """Of torch operators: the backward operators of attention that torch has have no derivatives."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    wide_k, wide_v = for_each_head(q, k, v)
    shares = torch.softmax(q @ wide_k.mT * factor + score_bias(q, k, masks[0] if masks else None, causal), -1)
    of_scores = shares * (g @ wide_v.mT - (g * result).sum(-1, keepdim=True)) * factor
    found = [of_scores @ wide_k, of_scores.mT @ q, shares.mT @ g]
    if q.ndim > 2:
        found[1:] = [x.unflatten(-3, (k.shape[-3], -1)).sum(-3) for x in found[1:]]
    return (*found, *((of_scores / factor).sum_to_size(masks[n].shape).to(masks[n].dtype) for n in also))


def convolution(x: Any, w: Any, *, data_layout: str, kernel_layout: str, out_layout: str, **attrs: Any) -> Any:
    space = "DHW"[-(len(data_layout) - 2) :]
    x, w = arranged(x, data_layout, "NC" + space), arranged(w, kernel_layout, "OI" + space)
    x = framed(x, ends(attrs["padding"], len(space)))
    spans = [(n - 1) * d + 1 for n, d in zip(w.shape[2:], attrs["dilation"], strict=True)]
    if any(size < span for size, span in zip(x.shape[2:], spans, strict=True)):
        raise NotInTorchError("a kernel that is larger than the image")
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(space) - 1]
    out = convolve(x, w, None, attrs["strides"], 0, attrs["dilation"], attrs["groups"])
    return arranged(out, "NC" + space, out_layout or data_layout)


def transposed(
    x: Any, w: Any, *, data_layout: str, kernel_layout: str, strides: Any, padding: Any, **attrs: Any
) -> Any:
    x, w = arranged(x, data_layout, "NCHW"), arranged(w, kernel_layout, "IOHW")
    out = F.conv_transpose2d(x, w, None, strides, 0, attrs["output_padding"], attrs["groups"], attrs["dilation"])
    for axis, (before, after) in zip((2, 3), ends(padding, 2), strict=True):
        out = out.narrow(axis, min(before, out.shape[axis]), max(out.shape[axis] - before - after, 0))
    return arranged(out, "NCHW", data_layout)


def windows(x: Any, pool_size: Any, strides: Any, dilation: Any, padding: Any, ceil_mode: bool) -> tuple[Any, Any]:
    """How many windows there are along each axis, and the frame of which these are all windows. (With ``ceil_mode`` torch
    leaves out a window of nothing but padding.)"""
    counts, frame = [], []
    for size, k, s, d, (before, after) in zip(
        x.shape[2:], pool_size, strides, dilation, ends(padding, len(pool_size)), strict=True
    ):
        span = (k - 1) * d + 1
        room = size + before + after - span
        counts.append((-(-room // s) if ceil_mode else room // s) + 1)
        frame.append((before, (counts[-1] - 1) * s + span - size - before))
    return tuple(counts), frame


def max_pool(x: Any, *, pool_size: Any, strides: Any, dilation: Any, padding: Any, ceil_mode: bool) -> Any:
    _, frame = windows(x, pool_size, strides, dilation, padding, ceil_mode)
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(pool_size) - 1]
    return pool(framed(x, frame, -math.inf), pool_size, strides, 0, dilation)


def avg_pool(
    x: Any, *, pool_size: Any, strides: Any, dilation: Any, padding: Any, ceil_mode: bool, count_include_pad: bool
) -> Any:
    counts, frame = windows(x, pool_size, strides, dilation, padding, ceil_mode)
    given_, rank = ends(padding, len(pool_size)), len(pool_size)
    if set(dilation) == {1} and all(b == a and 2 * b <= k for (b, a), k in zip(given_, pool_size, strict=True)):
        pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
        out = pool(x, pool_size, strides, [b for b, _ in given_], ceil_mode, count_include_pad)
        if out.shape[2:] == counts:
            return out
    inside = torch.ones(1, 1, *x.shape[2:], dtype=torch.float64)
    if count_include_pad:
        beyond = [(0, last - after) for (_, last), (_, after) in zip(frame, given_, strict=True)]
        inside = framed(framed(inside, given_, 1.0), beyond)
    else:
        inside = framed(inside, frame)
    ones = torch.ones(1, 1, *pool_size, dtype=torch.float64)
    total, members = (
        (F.conv1d, F.conv2d, F.conv3d)[rank - 1](image, ones, None, strides, 0, dilation)
        for image in (framed(x, frame).flatten(0, 1)[:, None], inside)
    )
    return (total / members.clamp(min=1)).unflatten(0, x.shape[:2])[:, :, 0]


def space_to_depth(x: Any, *, block_size: int) -> Any:
    blocks = F.pixel_unshuffle(x, block_size)  # the place in the block behind the channel
    return blocks.unflatten(1, (x.shape[1], block_size**2)).transpose(1, 2).flatten(1, 2)


def depth_to_space(x: Any, *, block_size: int, mode: str) -> Any:
    if mode == "DCR":
        x = x.unflatten(1, (block_size**2, -1)).transpose(1, 2).flatten(1, 2)
    return F.pixel_shuffle(x, block_size)


def resize(
    x: Any, *, size: Any, layout: str, method: str, coordinate_transformation_mode: str, rounding_method: str
) -> Any:
    space = layout.replace("N", "").replace("C", "")
    mode = coordinate_transformation_mode
    if mode == "pytorch_half_pixel" and 1 not in size:  # torch does what the name says no more: one element is a middle
        mode = "half_pixel"
    how: dict[str, Any] = {}
    match method, mode, rounding_method:
        case "linear", "half_pixel" | "align_corners", _:
            how = {"mode": "bilinear" if len(space) == 2 else "linear", "align_corners": mode == "align_corners"}
        case "nearest_neighbor", "asymmetric", "" | "floor":
            how = {"mode": "nearest"}
        case "nearest_neighbor", "half_pixel", "round":
            how = {"mode": "nearest-exact"}
        case _:
            raise NotInTorchError(f"{method} of places {mode}, rounded {rounding_method or 'by default'}")
    return arranged(F.interpolate(arranged(x, layout, "NC" + space), size, **how), "NC" + space, layout)


def reduction(fn: Callable[..., Any], of_nothing: bool = True) -> Callable[..., Any]:
    """A reduction of the last axis as one of any axes, in one."""

    def run(x: Any, *, axis: Any, keepdims: bool, exclude: bool = False) -> Any:
        chosen = range(x.ndim) if axis is None else [a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis)]
        over = [n for n in range(x.ndim) if (n in chosen) != exclude]
        rest = [n for n in range(x.ndim) if n not in over]
        lines = x.permute(rest + over).reshape([x.shape[n] for n in rest] + [math.prod(x.shape[n] for n in over)])
        if not of_nothing and lines.shape[-1] == 0:
            raise NotInTorchError("an extreme of nothing")
        return fn(lines, -1).reshape([1 if n in over else s for n, s in enumerate(x.shape) if keepdims or n in rest])

    return run


def scan(fn: Callable[..., Any], start: float) -> Callable[..., Any]:
    def run(x: Any, *, exclusive: bool, dtype: str, axis: int = 0) -> Any:
        if exclusive and x.shape[axis]:
            before = x.narrow(axis, 0, x.shape[axis] - 1)
            x = torch.cat([torch.full_like(x.narrow(axis, 0, 1), start), before], axis)
        return fn(x, axis)

    return run


def l2_normalize(x: Any, *, axis: Any, eps: float) -> Any:
    if axis == ():  # to torch, all axes
        return F.normalize(x[..., None], dim=-1, eps=eps**0.5)[..., 0]
    return F.normalize(x, dim=tuple(range(x.ndim)) if axis is None else axis, eps=eps**0.5)


def scaling(g: Any, b: Any, scale: bool, center: bool) -> tuple[Any, Any]:
    """Ones and zeros where there is no scaling: without weights torch's normalisations have no second derivatives."""
    return g if scale else torch.ones_like(g), b if center else torch.zeros_like(b)


def batch_norm(
    x: Any, g: Any, b: Any, mean: Any, var: Any, *, axis: int, epsilon: float, center: bool, scale: bool
) -> Any:
    rows = x.movedim(axis, -1)
    lines = rows.reshape(-1, x.shape[axis])
    g, b = scaling(g, b, scale, center)
    out = F.batch_norm(lines, mean.detach(), var.detach(), g, b, training=False, eps=epsilon)
    # In torch the statistics have no derivatives: theirs are those of the expression.
    own = (lines.detach() - mean) / torch.sqrt(var + epsilon) * g.detach()
    return (out + own - own.detach()).reshape(rows.shape).movedim(-1, axis), mean.clone(), var.clone()


def layer_norm(x: Any, g: Any, b: Any, *, axis: int, epsilon: float, center: bool, scale: bool) -> Any:
    g, b = scaling(g, b, scale, center)
    return F.layer_norm(x.movedim(axis, -1), (x.shape[axis],), g, b, eps=epsilon).movedim(-1, axis)


def instance_norm(x: Any, g: Any, b: Any, *, axis: int, epsilon: float, center: bool, scale: bool) -> Any:
    rows = x.movedim(axis, 1)
    g, b = scaling(g, b, scale, center)
    # Not the one in F, which refuses to normalise a single element.
    out = torch.instance_norm(rows.reshape(*rows.shape[:2], -1), g, b, None, None, True, 0.0, epsilon, False)
    return out.reshape(rows.shape).movedim(1, axis)


def lrn(x: Any, *, size: int, axis: int, bias: float, alpha: float, beta: float) -> Any:
    rows = x.movedim(axis, 0)
    out = F.local_response_norm(rows.reshape(1, rows.shape[0], -1), size, alpha, beta, bias)
    return out.reshape(rows.shape).movedim(0, axis)


def put(data: Any, places: Sequence[Array], updates: Any, how: str) -> Any:
    """``updates`` at their places: flat ones, since torch leaves open which of several updates of a place counts."""
    kept = np.logical_and.reduce([(p >= 0) & (p < n) for p, n in zip(places, data.shape, strict=True)]).ravel()
    at = np.ravel_multi_index([p.ravel()[kept] for p in places], data.shape)
    to, values = torch.from_numpy(at), updates.flatten()[torch.from_numpy(kept)]
    if how == "update":
        last = [n for n, p in enumerate(at) if p not in at[n + 1 :]]
        return data.flatten().scatter(0, to[last], values[last]).reshape(data.shape)
    name = {"add": "sum", "mul": "prod", "min": "amin", "max": "amax"}.get(how, how)
    return data.flatten().scatter_reduce(0, to, values, name, include_self=how != "mean").reshape(data.shape)


def scatter_elements(data: Any, indices: Any, updates: Any, *, axis: int, reduction: str) -> Any:
    places = np.indices(indices.shape)
    places[axis] = indices
    return put(data, list(places), updates, reduction)


def scatter_nd(data: Any, indices: Any, updates: Any, *, mode: str) -> Any:
    rest = [None] * (data.ndim - len(indices))
    places = [np.broadcast_to(i[(..., *rest)], updates.shape) for i in indices]
    return put(data, places + list(np.indices(updates.shape)[indices.ndim - 1 :]), updates, mode)


def segments(how: str, start: float) -> Callable[..., Any]:
    def run(x: Any, ids: Any, *, num_segments: int) -> Any:
        places = np.indices(x.shape)
        places[0] = along(ids, x, 0)
        return put(torch.full((num_segments, *x.shape[1:]), start, dtype=torch.float64), list(places), x, how)

    return run


def pad(x: Any, value: Any = 0.0, *, pad_width: Any, pad_mode: str) -> Any:
    widths = [n for pair in reversed(pad_width) for n in pair]
    if pad_mode == "constant":  # the value of F.pad is a number
        return F.pad(x - value, widths) + value
    if pad_mode in ("symmetric", "wrap"):  # F.pad goes round once at most, and has no other mirror
        for n, (before, after) in enumerate(pad_width):
            places: Any = np.pad(np.arange(x.shape[n]), (before, after), mode=cast("Any", pad_mode))
            x = x.index_select(n, torch.as_tensor(places))
        return x
    return F.pad(x[None, None], widths, "replicate" if pad_mode == "edge" else "reflect")[0, 0]


def take(x: Any, i: Any, *, mode: str, axis: int | None = None) -> Any:
    i = i.clamp(0, (x.numel() if axis is None else x.shape[axis]) - 1) if mode == "clip" else i
    if axis is None:
        return torch.take(x, i % x.numel())
    before, behind = x.shape[: axis % x.ndim], x.shape[axis % x.ndim + 1 :]
    return x.index_select(axis, i.flatten() % x.shape[axis]).reshape((*before, *i.shape, *behind))


def gather_nd(x: Any, indices: Any, *, batch_dims: int) -> Any:
    at = (*torch.from_numpy(np.indices(indices.shape[1:]))[:batch_dims], *indices)
    return x[at] if at else x.expand(*indices.shape[1:], *x.shape)


def one_hot(i: Any, on: Any, off: Any, *, depth: int, axis: int, dtype: str) -> Any:
    return torch.where((i[..., None] == torch.arange(depth)).movedim(-1, axis), on, off)


def sequence_mask(x: Any, lengths: Any, *, axis: int, mask_value: float) -> Any:
    kept = torch.arange(x.shape[axis])[:, None] < lengths.long()
    kept = kept if axis == 0 else kept.T
    return torch.where(kept.reshape(*kept.shape, *[1] * (x.ndim - 2)), x, mask_value)


def strided_slice(x: Any, *, begin: Any, end: Any, strides: Any, axes: Any = None) -> Any:
    at = zip(axes or range(len(begin)), begin, end, strides, strict=True)
    return cut(x, {axis: slice(*bounds) for axis, *bounds in at})


def layouts(x: Any, **attrs: Any) -> Any:
    places = EXPECTED["layout_transform"](np.arange(x.numel()).reshape(x.shape), **attrs)
    return torch.take(x, torch.from_numpy(places))


def reshape(x: Any, *, newshape: Any) -> Any:
    return x.reshape(EXPECTED["reshape"](np.empty(x.shape), newshape=newshape).shape)


def expand_dims(x: Any, *, axis: int, num_newaxis: int) -> Any:
    at = axis % (x.ndim + 1)
    return x.reshape((*x.shape[:at], *[1] * num_newaxis, *x.shape[at:]))


def matmul(a: Any, b: Any, *, transpose_a: bool, transpose_b: bool, out_dtype: str) -> Any:
    return torch.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b)


_SAME_NAME = (
    "exp", "log", "log2", "log10", "log1p", "expm1", "sqrt", "rsqrt", "sigmoid", "tanh", "sin", "cos", "tan", "asin", "acos",
    "atan", "sinh", "cosh", "erf", "abs", "negative", "sign", "floor", "ceil", "round", "trunc", "zeros_like", "ones_like",
    "add", "subtract", "multiply", "divide", "maximum", "minimum",
)  # fmt: skip
TORCH: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(torch, name) for name in _SAME_NAME},
    "power": torch.pow,
    "floor_divide": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "mod": torch.fmod,
    "floor_mod": torch.remainder,
    "where": lambda c, x, y: torch.where(c.bool(), x, y),
    "broadcast_to": lambda x, shape: torch.broadcast_to(x, shape),
    "broadcast_to_like": lambda x, like: torch.broadcast_to(x, like.shape),
    "collapse_sum_like": lambda x, like: x.sum_to_size(like.shape),
    "clip": lambda x, a_min, a_max: torch.clamp(x, a_min, a_max),
    "cast": lambda x, dtype: x.to(getattr(torch, dtype)),
    "cast_like": lambda x, like: x.to(like.dtype),
    "copy": torch.clone,
    "annotation.stop_fusion": torch.clone,
    "nn.attention": attention,
    "nn.attention_cotangents": attention_cotangents,
    "nn.scored_attention": scored_attention,
    "nn.bias_add": lambda x, b, axis: x + along(b, x, axis),
    "nn.prelu": lambda x, a, axis: F.prelu(x.movedim(axis, 1), a).movedim(1, axis),
    "nn.relu": F.relu,
    "nn.leaky_relu": lambda x, alpha: F.leaky_relu(x, alpha),
    "nn.gelu": F.gelu,
    "nn.dropout": lambda x, rate: (F.dropout(x, rate, training=False), torch.ones_like(x)),
    "dyn.reshape": lambda x, to: x.reshape([x.shape[n] if c == 0 else c for n, c in enumerate(to.tolist())]),
    "dyn.broadcast_to": lambda x, to: torch.broadcast_to(x, to.tolist()),
    "dyn.strided_slice": lambda x, *bounds: cut(
        x, {n: slice(*at) for n, at in enumerate(zip(*(b.tolist() for b in bounds), strict=True))}
    ),
    "dyn.full": lambda v, shape, dtype: torch.fill(torch.empty(shape.tolist(), dtype=torch.float64), v),
    "full": lambda v, shape, dtype: torch.fill(torch.empty(shape, dtype=torch.float64), v),
    "full_like": lambda x, v: torch.fill(x, v),
    "take_while": lambda x, c: x[: int(c.long().cumprod(0).sum())],
    "einsum": lambda xs, equation: torch.einsum(equation, *xs),
    "nn.softmax_cotangent": lambda y, g, axis: torch.ops.aten._softmax_backward_data(g, y, axis, g.dtype),
    "nn.log_softmax_cotangent": lambda y, g, axis: torch.ops.aten._log_softmax_backward_data(g, y, axis, g.dtype),
    "logsumexp_cotangent": lambda x, g, axis, keepdims: torch.autograd.grad(
        torch.logsumexp(x, axis, keepdims), x, g, create_graph=True
    )[0],
    "layout_transform": layouts,
    "nn.conv2d": convolution,
    "nn.conv1d": convolution,
    "nn.conv3d": convolution,
    "nn.conv2d_transpose": transposed,
    "image.resize1d": resize,
    "image.resize2d": resize,
    "nn.lrn": lrn,
    "nn.max_pool2d": imaged(max_pool),
    "nn.avg_pool2d": imaged(avg_pool),
    **{f"nn.max_pool{n}d": imaged(max_pool) for n in (1, 3)},
    **{f"nn.avg_pool{n}d": imaged(avg_pool) for n in (1, 3)},
    "nn.adaptive_avg_pool2d": imaged(F.adaptive_avg_pool2d),
    "nn.adaptive_max_pool2d": imaged(F.adaptive_max_pool2d),
    "nn.global_avg_pool2d": imaged(lambda x: F.adaptive_avg_pool2d(x, 1)),
    "nn.global_max_pool2d": imaged(lambda x: F.adaptive_max_pool2d(x, 1)),
    "nn.upsampling": imaged(lambda x, scale_h, scale_w: F.interpolate(x, scale_factor=(scale_h, scale_w))),
    "nn.space_to_depth": imaged(space_to_depth),
    "nn.depth_to_space": imaged(depth_to_space),
    "nn.dense": lambda x, w, out_dtype, units=None: F.linear(x, w),
    "nn.matmul": matmul,
    "nn.batch_matmul": matmul,
    "sum": reduction(torch.sum),
    "prod": reduction(torch.prod),
    "max": reduction(torch.amax, of_nothing=False),
    "min": reduction(torch.amin, of_nothing=False),
    "mean": reduction(torch.mean),
    "variance": reduction(lambda x, d: torch.var(x, d, correction=0)),
    "logsumexp": reduction(torch.logsumexp),
    "cumsum": scan(torch.cumsum, 0),
    "cumprod": scan(torch.cumprod, 1),
    "nn.softmax": lambda x, axis: torch.softmax(x, axis),
    "nn.log_softmax": lambda x, axis: torch.log_softmax(x, axis),
    "nn.l2_normalize": l2_normalize,
    "nn.layer_norm": layer_norm,
    "nn.batch_norm": batch_norm,
    "nn.instance_norm": instance_norm,
    "nn.group_norm": lambda x, g, b, num_groups, epsilon: torch.group_norm(x, num_groups, g, b, epsilon),
    "scatter_elements": scatter_elements,
    "scatter_nd": scatter_nd,
    "segment_sum": segments("add", 0.0),
    "segment_mean": segments("mean", 0.0),
    "segment_max": segments("max", -math.inf),
    "segment_min": segments("min", math.inf),
    "reshape": reshape,
    "reshape_like": lambda x, like: x.reshape(like.shape),
    "nn.batch_flatten": lambda x: x.reshape(x.shape[0], math.prod(x.shape[1:])),
    "squeeze": lambda x, axis=None: torch.squeeze(x) if axis is None else torch.squeeze(x, axis),
    "expand_dims": expand_dims,
    "transpose": lambda x, axes=None: x.permute(tuple(range(x.ndim))[::-1] if axes is None else axes),
    "reverse": lambda x, axis: torch.flip(x, (axis,)),
    "concatenate": lambda xs, axis: torch.cat(xs, axis),
    "append": lambda x, y: torch.cat((x, y if y.ndim == x.ndim else y[None])),
    "stack": lambda xs, axis: torch.stack(xs, axis),
    "split": lambda x, indices_or_sections, axis: torch.tensor_split(x, indices_or_sections, axis),
    "tile": lambda x, reps: torch.tile(x, reps),
    "repeat": lambda x, repeats, axis: torch.repeat_interleave(x, repeats, axis),
    "nn.pad": pad,
    "take": take,
    "gather": lambda x, i, axis: torch.gather(x, axis, i),
    "gather_nd": gather_nd,
    "one_hot": one_hot,
    "strided_slice": strided_slice,
    "slice_like": lambda x, like, axes: cut(x, {n: slice(like.shape[n]) for n in axes or range(x.ndim)}),
    "sequence_mask": sequence_mask,
    "triu": lambda x, k: torch.triu(x, k),
    "tril": lambda x, k: torch.tril(x, k),
    "trilu": lambda x, k, upper: (torch.triu if upper else torch.tril)(x, int(k)),
}
