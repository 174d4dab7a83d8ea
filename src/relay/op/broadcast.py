"""Operators on two or more tensors, broadcast against each other by NumPy's rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from relay import te
from relay.ir.dim import Dim
from relay.ir.types import is_float
from relay.op.registry import operator
from relay.op.support import DimLike, axis_of, require_float, require_integer, require_number, require_same_dtype
from relay.te.scalar import BinaryOp, CompareOp

Body = Callable[[te.Scalar, te.Scalar], te.Scalar]


def broadcast(op: str, lhs: te.Tensor, rhs: te.Tensor, body: Body) -> te.Tensor:
    """``body`` of the operands at each index of their common shape."""
    require_same_dtype(op, lhs, rhs)
    shape = te.broadcast_shapes(lhs.shape, rhs.shape, f"the shapes of {op}'s operands")
    return te.compute(shape, lambda *i: body(te.broadcast_index(lhs, i), te.broadcast_index(rhs, i)), op)


def _scalar(op: BinaryOp) -> Body:
    return lambda a, b: te.binary(op, a, b)


def _declare(name: str, what: str, check: Callable[[te.Tensor, str], None] | None, body: Callable[[str], Body]) -> None:
    def define(lhs: te.Tensor, rhs: te.Tensor) -> te.Tensor:
        if check is not None:
            check(lhs, name)
        return broadcast(name, lhs, rhs, body(lhs.dtype))

    define.__doc__ = f"{what} Operands of one dtype, broadcast."
    operator(name)(define)


def _require_integer(x: te.Tensor, op: str) -> None:
    require_integer(x, f"an operand of {op}")


def _require_bits(x: te.Tensor, op: str) -> None:
    if x.dtype != "bool":
        _require_integer(x, op)


def _require_bool(x: te.Tensor, op: str) -> None:
    te.require(x.dtype == "bool", f"{op} needs bool operands, not {x.dtype}")


def _divide(dtype: str) -> Body:
    return _scalar("div" if is_float(dtype) else "truncdiv")


def _same(op: BinaryOp) -> Callable[[str], Body]:
    return lambda _: _scalar(op)


_declare("add", "The sum.", require_number, _same("add"))
_declare("subtract", "The difference.", require_number, _same("sub"))
_declare("multiply", "The product.", require_number, _same("mul"))
_declare("divide", "The quotient; of integers rounded towards zero (0 for a divisor of 0).", require_number, _divide)
_declare(
    "floor_divide", "The quotient rounded towards minus infinity, like NumPy's.", require_number, _same("floordiv")
)
_declare(
    "mod",
    "The exact remainder of division towards zero; it has the dividend's sign, like C's fmod.",
    require_number,
    _same("truncmod"),
)
_declare(
    "floor_mod",
    "The remainder of floor division; it has the divisor's sign, like NumPy's mod.",
    require_number,
    _same("mod"),
)
_declare("power", "The first to the power of the second, floating point.", require_float, _same("pow"))
_declare("maximum", "The greater; nan where either is.", None, _same("max"))
_declare("minimum", "The lesser; nan where either is.", None, _same("min"))
_declare("logical_and", "Whether both hold.", _require_bool, _same("and"))
_declare("logical_or", "Whether either holds.", _require_bool, _same("or"))
_declare("logical_xor", "Whether exactly one holds.", _require_bool, _same("xor"))
_declare("bitwise_and", "The bits that both have; integer or bool.", _require_bits, _same("and"))
_declare("bitwise_or", "The bits that either has; integer or bool.", _require_bits, _same("or"))
_declare("bitwise_xor", "The bits that exactly one has; integer or bool.", _require_bits, _same("xor"))
_declare("left_shift", "Shifted left by the second; by the width or more gives 0.", _require_integer, _same("shl"))
_declare("right_shift", "Shifted right, keeping the sign of signed integers.", _require_integer, _same("shr"))

_COMPARISONS: Final[tuple[tuple[str, CompareOp, str], ...]] = (
    ("equal", "eq", "Whether the operands are equal."),
    ("not_equal", "ne", "Whether the operands differ."),
    ("less", "lt", "Whether the first is less."),
    ("less_equal", "le", "Whether the first is less or equal."),
    ("greater", "gt", "Whether the first is greater."),
    ("greater_equal", "ge", "Whether the first is greater or equal."),
)


def _comparison(name: str, op: CompareOp, what: str) -> None:
    _declare(name, f"{what} The result is bool.", None, lambda _: lambda a, b: te.compare(op, a, b))


for _name, _op, _what in _COMPARISONS:
    _comparison(_name, _op, _what)


@operator("where")
def where(condition: te.Tensor, x: te.Tensor, y: te.Tensor) -> te.Tensor:
    """``x`` where the condition holds (is not zero), else ``y``; all three broadcast, ``x`` and ``y`` of one dtype."""
    require_same_dtype("where", x, y)
    shape = te.broadcast_shapes(x.shape, y.shape, "the shapes of where's operands")
    shape = te.broadcast_shapes(condition.shape, shape, "the shapes of where's operands")

    def body(*i: te.Scalar) -> te.Scalar:
        chosen = te.cast(te.broadcast_index(condition, i), "bool")
        return te.select(chosen, te.broadcast_index(x, i), te.broadcast_index(y, i))

    return te.compute(shape, body, "where")


def broadcast_shape_to(data: te.Tensor, shape: Sequence[Dim], op: str) -> te.Tensor:
    """``data`` repeated along its missing axes and those of size 1, to a shape."""
    te.require(data.ndim <= len(shape), f"{op}: a tensor of rank {data.ndim} does not broadcast to rank {len(shape)}")
    own = shape[len(shape) - data.ndim :]
    for dim, target in zip(data.shape, own, strict=True):
        why = f"the shapes of {op}'s operand and result"
        te.require_equal(te.broadcast_dims(dim, target, why), target, why)
    return te.compute(shape, lambda *i: te.broadcast_index(data, i), op)


@operator("broadcast_to", ignored=("dtype",))
def broadcast_to(data: te.Tensor, *, shape: tuple[DimLike, ...]) -> te.Tensor:
    """``data`` repeated along its missing axes and those of size 1 to ``shape``."""
    return broadcast_shape_to(data, shape, "broadcast_to")


@operator("broadcast_to_like")
def broadcast_to_like(data: te.Tensor, broadcast_type: te.Tensor) -> te.Tensor:
    """``data`` repeated along its missing axes and those of size 1 to the shape of ``broadcast_type``."""
    return broadcast_shape_to(data, broadcast_type.shape, "broadcast_to_like")


@operator("collapse_sum_like")
def collapse_sum_like(data: te.Tensor, collapse_type: te.Tensor) -> te.Tensor:
    """The inverse of broadcasting: ``data`` summed over the axes along which ``collapse_type`` would be repeated."""
    require_number(data, "collapse_sum_like")
    lead = data.ndim - collapse_type.ndim
    te.require(lead >= 0, f"collapse_sum_like: rank {data.ndim} does not collapse to rank {collapse_type.ndim}")
    summed = set(range(lead))
    for n, dim in enumerate(collapse_type.shape):
        if te.known_is(dim, 1):
            summed.add(lead + n)
        else:
            te.require_equal(data.shape[lead + n], dim, "the shapes of collapse_sum_like's operands")
    axes = {n: te.reduce_axis(data.shape[n]) for n in sorted(summed)}

    def body(*i: te.Scalar) -> te.Scalar:
        at = [axes[n] if n in axes else i[n - lead] for n in range(data.ndim)]
        return te.sum(data[tuple(at)], tuple(axes.values()))

    return te.compute(collapse_type.shape, body, "collapse_sum_like")


def _channel_shape(data: te.Tensor, vector: te.Tensor, axis: int, op: str) -> int:
    """Check a vector of one value per channel; the channel axis as a number."""
    at = axis_of(axis, data.ndim, f"the data of {op}")
    te.require(vector.ndim == 1, f"{op} needs one value per channel, a tensor of rank 1, not {vector.ndim}")
    require_same_dtype(op, data, vector)
    te.require_equal(vector.shape[0], data.shape[at], f"the channels of {op}'s operands")
    return at


@operator("nn.bias_add")
def bias_add(data: te.Tensor, bias: te.Tensor, *, axis: int = 1) -> te.Tensor:
    """``data`` plus ``bias`` (c,) along the channel ``axis``."""
    require_number(data, "nn.bias_add")
    at = _channel_shape(data, bias, axis, "nn.bias_add")
    return te.compute(data.shape, lambda *i: data[i] + bias[i[at]], "bias_add")


@operator("nn.prelu")
def prelu(data: te.Tensor, alpha: te.Tensor, *, axis: int = 1) -> te.Tensor:
    """x where positive, else x times ``alpha`` (c,) of its channel."""
    require_float(data, "nn.prelu")
    at = _channel_shape(data, alpha, axis, "nn.prelu")
    return te.compute(data.shape, lambda *i: te.select(data[i] > 0, data[i], data[i] * alpha[i[at]]), "prelu")
