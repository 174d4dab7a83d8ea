"""Operators on each element by itself."""

from __future__ import annotations

import math
from typing import Any, Final

from relay import te
from relay.ir.dtypes import NUMPY_DTYPES
from relay.ir.types import dtype_bits, is_float
from relay.op.build import call
from relay.op.registry import composition, operator
from relay.op.support import elementwise, require_float, require_integer, require_number
from relay.te import numeric
from relay.te.scalar import UnaryOp, bits

# Functions of the real numbers: operator, scalar operation, what it is.
_REAL: Final[tuple[tuple[str, UnaryOp, str], ...]] = (
    ("exp", "exp", "e to the power of each element."),
    ("log", "log", "The natural logarithm; nan below 0."),
    ("log2", "log2", "The logarithm to base 2; nan below 0."),
    ("log10", "log10", "The logarithm to base 10; nan below 0."),
    ("log1p", "log1p", "log(1 + x), accurate for small x."),
    ("expm1", "expm1", "exp(x) - 1, accurate for small x."),
    ("sqrt", "sqrt", "The square root; nan below 0."),
    ("rsqrt", "rsqrt", "1 / sqrt(x)."),
    ("sigmoid", "sigmoid", "1 / (1 + exp(-x))."),
    ("tanh", "tanh", "The hyperbolic tangent."),
    ("sin", "sin", "The sine of radians."),
    ("cos", "cos", "The cosine of radians."),
    ("tan", "tan", "The tangent of radians."),
    ("asin", "asin", "The inverse sine; nan outside [-1, 1]."),
    ("acos", "acos", "The inverse cosine; nan outside [-1, 1]."),
    ("atan", "atan", "The inverse tangent."),
    ("sinh", "sinh", "The hyperbolic sine."),
    ("cosh", "cosh", "The hyperbolic cosine."),
    ("erf", "erf", "The error function."),
)


def _real(name: str, function: UnaryOp, what: str) -> None:
    def define(data: te.Tensor) -> te.Tensor:
        require_float(data, name)
        return elementwise(data, lambda x: te.unary(function, x), name)

    define.__doc__ = f"{what} ``data``: any shape, floating point; the result is like it."
    operator(name)(define)


for _name, _function, _what in _REAL:
    _real(_name, _function, _what)


# Functions of all numbers; on integers rounding is the identity.
_NUMBER: Final[tuple[tuple[str, UnaryOp, str], ...]] = (
    ("abs", "abs", "The absolute value (the least signed integer is its own)."),
    ("negative", "neg", "The negated value; unsigned integers wrap."),
    ("sign", "sign", "-1, 0 or 1; nan of nan."),
    ("floor", "floor", "The greatest integer not above."),
    ("ceil", "ceil", "The least integer not below."),
    ("round", "round", "The nearest integer, halves to even."),
    ("trunc", "trunc", "The integer part."),
)


def _number(name: str, function: UnaryOp, what: str) -> None:
    def define(data: te.Tensor) -> te.Tensor:
        require_number(data, name)
        if not is_float(data.dtype) and function in ("floor", "ceil", "round", "trunc"):
            return elementwise(data, lambda x: x, name)
        return elementwise(data, lambda x: te.unary(function, x), name)

    define.__doc__ = f"{what} ``data``: any shape, any numeric dtype; the result is like it."
    operator(name)(define)


for _name, _function, _what in _NUMBER:
    _number(_name, _function, _what)


# Questions about a floating-point number, and their answer for an integer.
_CLASS: Final[tuple[tuple[str, UnaryOp, bool, str], ...]] = (
    ("isnan", "isnan", False, "Whether each element is not a number."),
    ("isinf", "isinf", False, "Whether each element is infinite."),
    ("isfinite", "isfinite", True, "Whether each element is neither infinite nor nan."),
)


def _classify(name: str, function: UnaryOp, integer: bool, what: str) -> None:
    def define(data: te.Tensor) -> te.Tensor:
        if not is_float(data.dtype):
            return te.compute(data.shape, lambda *i: te.const(integer, "bool"), name)
        return elementwise(data, lambda x: te.unary(function, x), name)

    define.__doc__ = f"{what} ``data``: any shape and dtype; the result is bool."
    operator(name)(define)


for _name, _function, _answer, _what in _CLASS:
    _classify(_name, _function, _answer, _what)


@operator("logical_not")
def logical_not(data: te.Tensor) -> te.Tensor:
    """The negation of booleans. ``data``: any shape, bool."""
    te.require(data.dtype == "bool", f"logical_not needs a bool tensor, not {data.dtype}")
    return elementwise(data, lambda x: te.unary("not", x), "logical_not")


@operator("bitwise_not")
def bitwise_not(data: te.Tensor) -> te.Tensor:
    """Every bit inverted. ``data``: any shape, integer or bool."""
    if data.dtype != "bool":
        require_integer(data, "the operand of bitwise_not")
    return elementwise(data, lambda x: te.unary("not", x), "bitwise_not")


@operator("clip")
def clip(data: te.Tensor, *, a_min: int | float, a_max: int | float) -> te.Tensor:
    """Each element moved into ``[a_min, a_max]``; nan stays. ``data``: any shape, numeric. Bounds that are written as integers are
    exact, also where no float is."""
    require_number(data, "clip")
    low, high = (_bound(v, data.dtype) for v in (a_min, a_max))
    return elementwise(data, lambda x: te.minimum(te.maximum(x, low), high), "clip")


def _bound(value: int | float, dtype: str) -> te.Const:
    if is_float(dtype):
        return te.const(value, dtype)
    lowest, highest = (int(f(dtype).astype(object).item()) for f in (numeric.least, numeric.greatest))
    if isinstance(value, float) and math.isinf(value):
        return te.const(highest if value > 0 else lowest, dtype)
    return te.const(min(max(int(value), lowest), highest), dtype)


@operator("cast")
def cast(data: te.Tensor, *, dtype: str) -> te.Tensor:
    """``data`` in another dtype: to integer truncates and saturates (nan gives 0), integers wrap, to bool is ``!= 0``."""
    te.require(dtype in NUMPY_DTYPES, f"there is no dtype {dtype!r} to cast to")
    return elementwise(data, lambda x: te.cast(x, dtype), "cast")


@operator("cast_like")
def cast_like(data: te.Tensor, dtype_like: te.Tensor) -> te.Tensor:
    """``data`` in the dtype of ``dtype_like`` (whose shape and values do not matter)."""
    return elementwise(data, lambda x: te.cast(x, dtype_like.dtype), "cast_like")


@operator("stop_gradient")
def stop_gradient(data: te.Tensor) -> te.Tensor:
    """``data``, as a constant where derivatives are taken: no cotangent goes back through it, and it has no tangent.

    Any shape and dtype."""
    if not is_float(data.dtype):
        return elementwise(data, lambda x: x, "stop_gradient")
    # What numbers are does not follow from their bits by a slope.
    word = f"uint{dtype_bits(data.dtype)}"
    return elementwise(data, lambda x: bits(bits(x, word), data.dtype), "stop_gradient")


@operator("copy")
def copy(data: te.Tensor) -> te.Tensor:
    """The same tensor in memory of its own."""
    return elementwise(data, lambda x: x, "copy")


@operator("nn.relu")
def relu(data: te.Tensor) -> te.Tensor:
    """max(x, 0). ``data``: any shape, numeric."""
    require_number(data, "nn.relu")
    return elementwise(data, lambda x: te.maximum(x, 0), "relu")


@operator("nn.leaky_relu")
def leaky_relu(data: te.Tensor, *, alpha: float = 0.01) -> te.Tensor:
    """x where positive, else ``alpha * x``. ``data``: any shape, floating point."""
    require_float(data, "nn.leaky_relu")
    return elementwise(data, lambda x: te.select(x > 0, x, x * alpha), "leaky_relu")


@operator("nn.gelu")
def gelu(data: te.Tensor) -> te.Tensor:
    """x times the normal distribution function of x: ``x / 2 * (1 + erf(x / sqrt(2)))``. ``data``: any shape, floating point."""
    require_float(data, "nn.gelu")
    return elementwise(data, lambda x: x * 0.5 * (1.0 + te.erf(x * math.sqrt(0.5))), "gelu")


@operator("nn.dropout")
def dropout(data: te.Tensor, *, rate: float = 0.5) -> tuple[te.Tensor, te.Tensor]:
    """Dropout at inference: the data itself, and a mask of ones. ``data``: any shape, floating point."""
    require_float(data, "nn.dropout")
    te.require(0.0 <= rate <= 1.0, f"the rate of nn.dropout must be in [0, 1], not {rate}")
    return elementwise(data, lambda x: x, "dropout"), te.compute(data.shape, lambda *_: te.const(1, data.dtype), "mask")


@composition("nn.silu")
def silu(data: Any) -> Any:
    """x * sigmoid(x). ``data``: any shape, floating point."""
    return call("multiply", data, call("sigmoid", data))
