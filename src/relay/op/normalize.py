"""Normalisations and softmax. Statistics of 16-bit floats are computed in float32."""

from __future__ import annotations

from collections.abc import Sequence

from relay import te
from relay.ir.dim import Dim, dim_floordiv, dim_mul
from relay.op.reduction import kept_index, mean_of, reduction, variance_of, weight_of
from relay.op.registry import operator
from relay.op.support import accumulation_dtype, axes_of, axis_of, elementwise, require_float, require_same_dtype


def _shifted(data: te.Tensor, axis: int, name: str) -> te.Tensor:
    """The data less its maximum along the axis, in the accumulation dtype."""
    dtype = accumulation_dtype(data.dtype)
    largest = reduction(data, (axis,), True, lambda x, over, _: te.max(x, over), f"{name}_max")

    def body(*i: te.Scalar) -> te.Scalar:
        return te.cast(data[i], dtype) - te.cast(largest[kept_index(i, (axis,))], dtype)

    return te.compute(data.shape, body, f"{name}_shifted")


@operator("nn.softmax")
def softmax(data: te.Tensor, *, axis: int = -1) -> te.Tensor:
    """exp(x) over its sum along ``axis``, without overflow; 0 for what is 86 (of float64 707) less than the maximum. ``data``: any
    shape of rank at least 1, floating point."""
    require_float(data, "nn.softmax")
    at = axis_of(axis, data.ndim, "the operand of nn.softmax")
    shifted = _shifted(data, at, "softmax")
    exponent = elementwise(shifted, weight_of, "softmax_exp")
    total = reduction(exponent, (at,), True, lambda x, over, _: te.sum(x, over), "softmax_sum")
    share = elementwise(total, lambda x: te.const(1.0, total.dtype) / x, "softmax_share")
    return te.compute(data.shape, lambda *i: te.cast(exponent[i] * share[kept_index(i, (at,))], data.dtype), "softmax")


@operator("nn.log_softmax")
def log_softmax(data: te.Tensor, *, axis: int = -1) -> te.Tensor:
    """The logarithm of softmax along ``axis``. ``data``: any shape of rank at least 1, floating point."""
    require_float(data, "nn.log_softmax")
    at = axis_of(axis, data.ndim, "the operand of nn.log_softmax")
    shifted = _shifted(data, at, "log_softmax")
    total = reduction(shifted, (at,), True, lambda x, over, _: te.sum(weight_of(x), over), "log_softmax_sum")
    log = elementwise(total, lambda x: te.log(x), "log_softmax_log")
    return te.compute(data.shape, lambda *i: te.cast(shifted[i] - log[kept_index(i, (at,))], data.dtype), "log_softmax")


def _channels(op: str, data: te.Tensor, axis: int, *vectors: te.Tensor) -> int:
    at = axis_of(axis, data.ndim, f"the data of {op}")
    for v in vectors:
        te.require(v.ndim == 1, f"{op} needs one value per channel, a tensor of rank 1, not {v.ndim}")
        te.require_equal(v.shape[0], data.shape[at], f"the channels of {op}'s operands")
    require_same_dtype(op, data, *vectors)
    return at


def _normalised(
    data: te.Tensor,
    mean: te.Scalar,
    variance: te.Scalar,
    i: Sequence[te.Scalar],
    epsilon: float,
) -> te.Scalar:
    return (te.cast(data[tuple(i)], mean.dtype) - mean) * te.rsqrt(variance + epsilon)


def _scaled(
    x: te.Scalar, gamma: te.Tensor, beta: te.Tensor, channel: te.Scalar, scale: bool, center: bool
) -> te.Scalar:
    if scale:
        x = x * te.cast(gamma[channel], x.dtype)
    return x + te.cast(beta[channel], x.dtype) if center else x


@operator("nn.layer_norm")
def layer_norm(
    data: te.Tensor,
    gamma: te.Tensor,
    beta: te.Tensor,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> te.Tensor:
    """``(x - mean) / sqrt(variance + epsilon)`` along ``axis``, times ``gamma`` (if ``scale``), plus ``beta`` (if ``center``).

    Ba, Kiros, Hinton, Layer Normalization (2016). ``data``: any shape whose ``axis`` has size c, floating point; the others
    are (c,).
    """
    require_float(data, "nn.layer_norm")
    at = _channels("nn.layer_norm", data, axis, gamma, beta)
    mean = mean_of(data, (at,))
    variance = variance_of(data, mean, (at,))

    def body(*i: te.Scalar) -> te.Scalar:
        k = kept_index(i, (at,))
        x = _normalised(data, mean[k], variance[k], i, epsilon)
        return te.cast(_scaled(x, gamma, beta, i[at], scale, center), data.dtype)

    return te.compute(data.shape, body, "layer_norm")


@operator("nn.batch_norm")
def batch_norm(
    data: te.Tensor,
    gamma: te.Tensor,
    beta: te.Tensor,
    moving_mean: te.Tensor,
    moving_var: te.Tensor,
    *,
    axis: int = 1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """Normalisation by given statistics per channel (inference); the result, and the statistics unchanged.

    Ioffe, Szegedy, Batch Normalization (2015). ``data``: any shape whose ``axis`` has size c; the other operands are (c,).
    """
    require_float(data, "nn.batch_norm")
    at = _channels("nn.batch_norm", data, axis, gamma, beta, moving_mean, moving_var)
    dtype = accumulation_dtype(data.dtype)

    def body(*i: te.Scalar) -> te.Scalar:
        mean, variance = te.cast(moving_mean[i[at]], dtype), te.cast(moving_var[i[at]], dtype)
        x = _normalised(data, mean, variance, i, epsilon)
        return te.cast(_scaled(x, gamma, beta, i[at], scale, center), data.dtype)

    out = te.compute(data.shape, body, "batch_norm")
    return out, elementwise(moving_mean, lambda x: x, "mean"), elementwise(moving_var, lambda x: x, "variance")


@operator("nn.instance_norm")
def instance_norm(
    data: te.Tensor,
    gamma: te.Tensor,
    beta: te.Tensor,
    *,
    axis: int = 1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> te.Tensor:
    """Normalisation over all axes but the first and the channel ``axis``. ``data``: (n, ..., c, ...); the others are (c,)."""
    require_float(data, "nn.instance_norm")
    at = _channels("nn.instance_norm", data, axis, gamma, beta)
    te.require(at != 0, "the channel axis of nn.instance_norm cannot be the batch axis 0")
    axes = tuple(n for n in range(data.ndim) if n not in (0, at))
    mean = mean_of(data, axes)
    variance = variance_of(data, mean, axes)

    def body(*i: te.Scalar) -> te.Scalar:
        k = kept_index(i, axes)
        x = _normalised(data, mean[k], variance[k], i, epsilon)
        return te.cast(_scaled(x, gamma, beta, i[at], scale, center), data.dtype)

    return te.compute(data.shape, body, "instance_norm")


@operator("nn.group_norm")
def group_norm(
    data: te.Tensor,
    gamma: te.Tensor,
    beta: te.Tensor,
    *,
    num_groups: int,
    axis: int = 1,
    epsilon: float = 1e-5,
    center: bool = True,
    scale: bool = True,
) -> te.Tensor:
    """Normalisation over groups of channels and all axes after the first. Wu, He, Group Normalization (2018).

    ``data``: (n, ..., c, ...) with c a multiple of ``num_groups``; ``gamma`` and ``beta`` are (c,).
    """
    require_float(data, "nn.group_norm")
    at = _channels("nn.group_norm", data, axis, gamma, beta)
    te.require(at != 0, "the channel axis of nn.group_norm cannot be the batch axis 0")
    te.require(num_groups > 0, f"num_groups must be positive, not {num_groups}")
    size: Dim = dim_floordiv(data.shape[at], num_groups)
    te.require_equal(dim_mul(size, num_groups), data.shape[at], "the channels and the groups of nn.group_norm")
    grouped_shape = (*data.shape[:at], num_groups, size, *data.shape[at + 1 :])

    def grouped_body(*i: te.Scalar) -> te.Scalar:
        return data[(*i[:at], i[at] * te.size(size) + i[at + 1], *i[at + 2 :])]

    grouped = te.compute(grouped_shape, grouped_body, "grouped")
    axes = tuple(n for n in range(1, len(grouped_shape)) if n != at)
    mean = mean_of(grouped, axes)
    variance = variance_of(grouped, mean, axes)

    def body(*i: te.Scalar) -> te.Scalar:
        split = (*i[:at], i[at] // te.size(size), i[at] % te.size(size), *i[at + 1 :])
        k = kept_index(split, axes)
        x = _normalised(data, mean[k], variance[k], i, epsilon)
        return te.cast(_scaled(x, gamma, beta, i[at], scale, center), data.dtype)

    return te.compute(data.shape, body, "group_norm")


@operator("nn.l2_normalize")
def l2_normalize(data: te.Tensor, *, eps: float = 1e-12, axis: int | tuple[int, ...] | None = None) -> te.Tensor:
    """``x / sqrt(max(sum(x * x), eps))`` with the sum over the axes. ``data``: any shape, floating point."""
    require_float(data, "nn.l2_normalize")
    axes = axes_of(axis, data.ndim, "the operand of nn.l2_normalize")
    dtype = accumulation_dtype(data.dtype)

    def square(v: te.Scalar, over: Sequence[te.Axis], _: Sequence[te.Scalar]) -> te.Scalar:
        x = te.cast(v, dtype)
        return te.sum(x * x, over)

    total = reduction(data, axes, True, square, "l2_sum")

    def body(*i: te.Scalar) -> te.Scalar:
        norm = te.sqrt(te.maximum(total[kept_index(i, axes)], eps))
        return te.cast(te.cast(data[i], dtype) / norm, data.dtype)

    return te.compute(data.shape, body, "l2_normalize")
