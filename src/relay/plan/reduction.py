"""What each kind of reduction starts from and how it combines; the meaning is `relay.te.scalar.ReduceKind`'s."""

from __future__ import annotations

from typing import Literal, assert_never

from relay.ir.types import dtype_bits, is_float
from relay.te.scalar import Const, Reduce, ReduceKind, Scalar, binary, compare, unary


def initial(kind: ReduceKind, dtype: str) -> Const:
    """The neutral element: what an empty reduction gives."""
    match kind:
        case "sum":
            return Const(0.0 if is_float(dtype) else 0, dtype)
        case "prod":
            return Const(1.0 if is_float(dtype) else 1, dtype)
        case "max" | "argmax":
            return _lowest(dtype)
        case "min" | "argmin":
            return _highest(dtype)
        case "all":
            return Const(True, dtype) if dtype == "bool" else Const(1, dtype)
        case "any":
            return Const(False, dtype) if dtype == "bool" else Const(0, dtype)
        case _:
            assert_never(kind)


def _lowest(dtype: str) -> Const:
    if is_float(dtype):
        return Const(float("-inf"), dtype)
    if dtype == "bool":
        return Const(False, dtype)
    return Const(0 if dtype.startswith("uint") else -(1 << (dtype_bits(dtype) - 1)), dtype)


def _highest(dtype: str) -> Const:
    if is_float(dtype):
        return Const(float("inf"), dtype)
    if dtype == "bool":
        return Const(True, dtype)
    bits = dtype_bits(dtype)
    return Const((1 << bits) - 1 if dtype.startswith("uint") else (1 << (bits - 1)) - 1, dtype)


def accumulator(value: Reduce) -> str:
    """The dtype that a reduction is computed in."""
    dtype = value.body.dtype
    wide = value.kind in ("sum", "prod") and dtype in ("float16", "bfloat16")
    return "float32" if wide else dtype


def combine(kind: ReduceKind, so_far: Scalar, element: Scalar) -> Scalar:
    """The accumulator after one more element."""
    match kind:
        case "sum":
            return binary("add", so_far, element)
        case "prod":
            return binary("mul", so_far, element)
        case "max":
            return binary("max", so_far, element)
        case "min":
            return binary("min", so_far, element)
        case "all":
            return binary("and", so_far, element)
        case "any":
            return binary("or", so_far, element)
        case "argmax" | "argmin":
            raise ValueError("a position is not combined but found")
        case _:
            assert_never(kind)


def position_update(kind: Literal["argmax", "argmin"], best: Scalar, element: Scalar) -> Scalar:
    """Whether an element takes the place of the best so far: strictly better, or the first nan."""
    if not is_float(element.dtype):
        return compare("gt" if kind == "argmax" else "lt", element, best)
    # A nan is no better or worse than anything; one already found is never replaced.
    no_better = compare("le" if kind == "argmax" else "ge", element, best)
    return binary("and", unary("not", no_better), unary("not", unary("isnan", best)))
