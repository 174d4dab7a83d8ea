"""Scalar expressions made with the simplifications that a derivative needs: absent terms, factors of one, decided choices.

A missing value (None) is zero. Floating-point laws that do not hold for every number are used only where a derivative's zero
is structural: a term that does not exist is left out, never ``0 * x``.
"""

from __future__ import annotations

from relay.ir.types import is_float
from relay.te.scalar import Const, Load, Scalar, Unary, binary, cast, chain, select, unary, walk


def is_const(x: Scalar | None, value: float) -> bool:
    """Whether an expression is this literal."""
    return isinstance(x, Const) and not isinstance(x.value, bool) and x.value == value


def add(a: Scalar | None, b: Scalar | None) -> Scalar | None:
    """The sum; a missing operand is zero."""
    if a is None:
        return b
    if b is None:
        return a
    if isinstance(b, Unary) and b.op == "neg":
        return binary("sub", a, b.a)
    return binary("add", a, b)


def mul(a: Scalar, b: Scalar) -> Scalar:
    """The product; factors of one vanish, literals come last."""
    if is_const(b, 1):
        return a
    if is_const(a, 1):
        return b
    if is_const(a, -1):
        return neg(b)
    if is_const(b, -1):
        return neg(a)
    if isinstance(a, Unary) and a.op == "neg":
        return neg(mul(a.a, b))
    if isinstance(b, Unary) and b.op == "neg":
        return neg(mul(a, b.a))
    if isinstance(a, Const) and not isinstance(b, Const):
        return binary("mul", b, a)
    return binary("mul", a, b)


def div(a: Scalar, b: Scalar) -> Scalar:
    """The quotient; a divisor of one vanishes."""
    return a if is_const(b, 1) else binary("div", a, b)


def neg(a: Scalar) -> Scalar:
    """The negation; two cancel."""
    if isinstance(a, Unary) and a.op == "neg":
        return a.a
    return Const(-a.value, a.dtype) if isinstance(a, Const) else unary("neg", a)


def choose(cond: Scalar, a: Scalar | None, b: Scalar | None, dtype: str) -> Scalar | None:
    """``a`` where the condition holds, else ``b``; None when both are zero."""
    if isinstance(cond, Const):
        return a if cond.value else b
    if a is None and b is None:
        return None
    return select(cond, zero(dtype) if a is None else a, zero(dtype) if b is None else b)


def zero(dtype: str) -> Const:
    """The literal zero."""
    return Const(0.0 if is_float(dtype) else 0, dtype)


def both(a: Scalar, b: Scalar) -> Scalar:
    """Whether both conditions hold; decided ones vanish."""
    for one, other in ((a, b), (b, a)):
        if isinstance(one, Const):
            return other if one.value else one
    return binary("and", a, b)


def where_too(outer: Scalar, inner: Scalar) -> Scalar:
    """Whether both conditions hold, where what the inner one reads may be inside of its tensor only if the outer one holds."""
    reads = any(isinstance(n, Load) for n in walk(inner))
    return select(outer, inner, Const(False, "bool")) if reads else both(outer, inner)


def either(a: Scalar, b: Scalar) -> Scalar:
    """Whether one of the conditions holds; decided ones vanish."""
    for one, other in ((a, b), (b, a)):
        if isinstance(one, Const):
            return one if one.value else other
    return binary("or", a, b)


def converted(a: Scalar, dtype: str) -> Scalar:
    """A conversion; that of 0, 1 and -1 is done now."""
    exact = isinstance(a, Const) and not isinstance(a.value, bool) and a.value in (0, 1, -1)
    return Const(float(a.value), dtype) if exact and isinstance(a, Const) else cast(a, dtype)


def factors(root: Scalar) -> list[Scalar]:
    """The factors of a product, in order."""
    return chain(root, "mul")
