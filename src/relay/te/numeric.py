"""The NumPy meaning of the scalar operations of `relay.te.scalar`, on whole arrays.

Each operation's result is rounded to its node's dtype. float16 and bfloat16 are computed in float32, 4-bit integers in 8 bits.
What IEEE or C leaves open is fixed here: integer division and modulus by zero give 0; a shift by at least the width gives 0 (the
sign for an arithmetic shift to the right); float to integer saturates and nan becomes 0; min and max pass nan on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, assert_never

import numpy as np
import numpy.typing as npt

from relay.ir.dtypes import numpy_dtype
from relay.ir.types import is_float, is_integer
from relay.te.scalar import BinaryOp, CompareOp, Parts, ReduceKind, UnaryOp

Array = npt.NDArray[Any]

# The dtype in which values of a narrow dtype are computed.
_COMPUTE: Final[Mapping[str, str]] = {
    "float16": "float32",
    "bfloat16": "float32",
    "int4": "int8",
    "uint4": "uint8",
}


def compute_dtype(name: str) -> str:
    """The dtype in which arithmetic on a base type is done before the result is rounded to it."""
    return _COMPUTE.get(name, name)


def literal(value: bool | int | float, dtype: str) -> Array:
    """A 0-d array; an integer literal wraps."""
    if is_integer(dtype):
        return np.asarray(cast(np.array(_wrapped(int(value))), "int64", dtype))  # narrow ones come as scalars
    return np.array(value, dtype=numpy_dtype(dtype))


def _wrapped(value: int) -> int:
    low = value & 0xFFFF_FFFF_FFFF_FFFF
    return low - (1 << 64) if low >> 63 else low


def _bits(dtype: str) -> int:
    return int(dtype.lstrip("uint"))


def least(dtype: str) -> Array:
    """The least value of a dtype (minus infinity for floats), a 0-d array."""
    if is_float(dtype):
        return literal(-math.inf, dtype)
    return literal(0 if dtype == "bool" or dtype.startswith("u") else -(1 << (_bits(dtype) - 1)), dtype)


def greatest(dtype: str) -> Array:
    """The greatest value of a dtype (infinity for floats), a 0-d array."""
    if is_float(dtype):
        return literal(math.inf, dtype)
    if dtype == "bool":
        return literal(True, dtype)
    return literal((1 << (_bits(dtype) - (0 if dtype.startswith("u") else 1))) - 1, dtype)


def identity(kind: ReduceKind, dtype: str) -> Array:
    """The value of a reduction over nothing (index 0 for argmax and argmin)."""
    match kind:
        case "sum" | "any" | "argmax" | "argmin":
            return literal(0, dtype)
        case "prod" | "all":
            return literal(1, dtype)
        case "max" | "min":
            return least(dtype) if kind == "max" else greatest(dtype)
        case _ as never:
            assert_never(never)


def cast(a: Array, source: str, target: str) -> Array:
    """Convert as `te.scalar.Cast` says: float to integer truncates and saturates, integers wrap, to bool is ``!= 0``."""
    if source == target:
        return a
    if target == "bool":
        return np.asarray(np.not_equal(a.astype(numpy_dtype(compute_dtype(source))), 0))
    if is_float(target):
        if is_integer(source):
            a = a.astype(numpy_dtype(compute_dtype(source)), copy=False)
        return a.astype(numpy_dtype(target))
    if is_float(source):
        return _float_to_integer(a, target)
    wide = a.astype(numpy_dtype(compute_dtype(source)), copy=False)
    if target == "int4":
        low = wide.astype(np.int8) & np.int8(15)
        return ((low ^ np.int8(8)) - np.int8(8)).astype(numpy_dtype(target))
    if target == "uint4":
        return (wide.astype(np.uint8) & np.uint8(15)).astype(numpy_dtype(target))
    return wide.astype(numpy_dtype(target))


def _float_to_integer(a: Array, target: str) -> Array:
    bits = _bits(target)
    low, high = (0, (1 << bits) - 1) if target.startswith("u") else (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    wide = a.astype(np.float64)
    held = np.dtype("uint64" if target == "uint64" else "int64")
    # float(high) may round up to the first value out of range, hence >=; the limits themselves are put in as integers.
    inside = np.where((wide > low) & (wide < float(high)), wide, 0.0).astype(held)
    out = np.where(wide >= float(high), held.type(high), np.where(wide <= float(low), held.type(low), inside))
    return out.astype(numpy_dtype(target))


def bits(a: Array, dtype: str) -> Array:
    """The bits of an array's elements as those of a dtype of the same width."""
    return np.ascontiguousarray(a).view(numpy_dtype(dtype)).reshape(a.shape)


# The dtypes of what the two words of a `Dot` hold.
PARTS: Final[Mapping[Parts, tuple[str, str]]] = {
    "s8u8": ("int8", "uint8"), "u8s8": ("uint8", "int8"), "s16": ("int16", "int16"), "bf16": ("bfloat16", "bfloat16"),
}  # fmt: skip


def dot(parts: Parts, a: Array, b: Array) -> Array:
    """The sums of the products of what words hold, in the words' dtype: of floats, one product is added after the other."""
    a, b = np.broadcast_arrays(a, b)
    held = [
        np.ascontiguousarray(words)[..., None].view(numpy_dtype(dtype)).astype(a.dtype)
        for words, dtype in zip((a, b), PARTS[parts], strict=True)
    ]
    products = held[0] * held[1]
    total = products[..., 0]
    for n in range(1, products.shape[-1]):
        total = total + products[..., n]
    return np.asarray(total).reshape(a.shape)


# -- elementary functions


def erf(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The error function in double precision, to about 1e-15 absolute.

    Rational approximations on three ranges: W. J. Cody, Rational Chebyshev approximations for the error function,
    Mathematics of Computation 23 (1969).
    """
    x = np.asarray(x, dtype=np.float64)
    magnitude = np.abs(x)
    square = x * x
    near = _ratio(np.minimum(square, 0.25), _NEAR_P, _NEAR_Q) * x
    y = np.clip(magnitude, 0.46875, 4.0)
    middle = 1.0 - np.exp(-y * y) * _ratio(y, _MIDDLE_P, _MIDDLE_Q)
    z = np.clip(magnitude, 4.0, 27.0)
    inverse = 1.0 / (z * z)
    tail = (_INVERSE_SQRT_PI - inverse * _ratio(inverse, _TAIL_P, _TAIL_Q)) / z
    far = 1.0 - np.exp(-z * z) * tail
    large = np.copysign(np.where(magnitude <= 4.0, middle, far), x)
    return np.where(np.isnan(x), x, np.where(magnitude <= 0.46875, near, large))


_INVERSE_SQRT_PI: Final = 0.56418958354775628695
# Numerators and denominators, highest power first.
_NEAR_P: Final = (
    1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3,
)  # fmt: skip
_NEAR_Q: Final = (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3)
_MIDDLE_P: Final = (
    2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1, 2.98635138197400131e2,
    8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3,
)  # fmt: skip
_MIDDLE_Q: Final = (
    1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3, 3.29079923573345963e3,
    4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3,
)  # fmt: skip
_TAIL_P: Final = (
    1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1, 1.60837851487422766e-2,
    6.58749161529837803e-4,
)  # fmt: skip
_TAIL_Q: Final = (
    1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2, 2.33520497626869185e-3,
)  # fmt: skip


def _ratio(x: Array, p: tuple[float, ...], q: tuple[float, ...]) -> Array:
    top = np.full_like(x, p[0])
    for c in p[1:]:
        top = top * x + c
    bottom = np.full_like(x, q[0])
    for c in q[1:]:
        bottom = bottom * x + c
    return np.asarray(top / bottom)


def _sigmoid(x: Array) -> Array:
    wide = x.astype(np.float64)
    small = np.exp(-np.abs(wide))  # never overflows
    return np.asarray(np.where(wide >= 0, 1.0, small) / (1.0 + small)).astype(x.dtype)


_UNARY: Final[Mapping[UnaryOp, Callable[[Array], Array]]] = {
    "neg": np.negative, "abs": np.abs, "not": np.invert, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "trunc": np.trunc, "sqrt": np.sqrt, "rsqrt": lambda x: np.reciprocal(np.sqrt(x)), "exp": np.exp, "exp2": np.exp2,
    "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p, "expm1": np.expm1, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "erf": lambda x: erf(x).astype(x.dtype), "sigmoid": _sigmoid, "isnan": np.isnan, "isinf": np.isinf,
    "isfinite": np.isfinite, "sign": np.sign,
}  # fmt: skip
# What is the identity (or constant) on integers, where NumPy would convert or refuse.
_ON_INTEGERS: Final[Mapping[UnaryOp, Callable[[Array], Array]]] = {
    "floor": np.positive, "ceil": np.positive, "round": np.positive, "trunc": np.positive,
    "isnan": lambda x: np.zeros(x.shape, bool), "isinf": lambda x: np.zeros(x.shape, bool),
    "isfinite": lambda x: np.ones(x.shape, bool),
}  # fmt: skip


def unary(op: UnaryOp, a: Array, dtype: str, result: str) -> Array:
    """An elementary function of an array of ``dtype``; the result has dtype ``result``."""
    fn = _UNARY[op] if is_float(dtype) else _ON_INTEGERS.get(op, _UNARY[op])
    held = compute_dtype(dtype)
    out = fn(a.astype(numpy_dtype(held), copy=False))
    return out if held == dtype or result == "bool" else cast(out, held, result)


def _truncdiv(a: Array, b: Array) -> Array:
    floor = np.floor_divide(a, b)
    if a.dtype.kind == "u":
        return floor
    up = (np.remainder(a, b) != 0) & ((a < 0) != (b < 0))
    return np.asarray(floor + up.astype(a.dtype))


def _truncmod(a: Array, b: Array) -> Array:
    return np.where(b == 0, a.dtype.type(0), np.fmod(a, b)) if a.dtype.kind in "iu" else np.fmod(a, b)


def _divide(a: Array, b: Array) -> Array:
    return _truncdiv(a, b) if a.dtype.kind in "iu" else np.divide(a, b)


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        # NumPy takes the square root for 0.5 where the exponent is one number, which is another one of -inf and of -0.
        odd = (b == 0.5) & ((a == 0) | (a == -np.inf))
        return np.where(odd, np.abs(a), np.power(a, b))
    # Of negative powers only those of 1 and -1 are integers; the others truncate to 0.
    positive = np.power(a, np.maximum(b, 0))
    negative = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(b < 0, negative.astype(a.dtype), positive)


_BINARY: Final[Mapping[BinaryOp, Callable[[Array, Array], Array]]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _divide, "floordiv": np.floor_divide, "mod": np.remainder,
    "truncdiv": _truncdiv, "truncmod": _truncmod, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift, "pow": _power, "atan2": np.arctan2,
}  # fmt: skip


def binary(op: BinaryOp, a: Array, b: Array, dtype: str) -> Array:
    """A binary operation on arrays of one dtype."""
    held = compute_dtype(dtype)
    if held == dtype:
        return _BINARY[op](a, b)
    kind = numpy_dtype(held)
    return cast(_BINARY[op](a.astype(kind), b.astype(kind)), held, dtype)


_COMPARE: Final[Mapping[CompareOp, Callable[[Array, Array], Array]]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip


def compare(op: CompareOp, a: Array, b: Array, dtype: str) -> Array:
    """A comparison of arrays of one dtype: a bool array."""
    kind = numpy_dtype(compute_dtype(dtype))
    return _COMPARE[op](a.astype(kind, copy=False), b.astype(kind, copy=False))
