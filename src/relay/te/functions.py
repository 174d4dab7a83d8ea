"""Elementary functions of scalar expressions, by their names: ``te.exp(x[i])``."""

from __future__ import annotations

from collections.abc import Callable

from relay.te.scalar import Operators, Scalar, UnaryOp, binary, unary


def _function(op: UnaryOp) -> Callable[[Scalar | Operators], Scalar]:
    def apply(x: Scalar | Operators) -> Scalar:
        return unary(op, x)

    apply.__name__ = apply.__qualname__ = op
    apply.__doc__ = f"``{op}`` of an element; the dtype is the operand's (bool for tests of it)."
    return apply


abs = _function("abs")
acos = _function("acos")
asin = _function("asin")
atan = _function("atan")
ceil = _function("ceil")
cos = _function("cos")
cosh = _function("cosh")
erf = _function("erf")
exp = _function("exp")
exp2 = _function("exp2")
expm1 = _function("expm1")
floor = _function("floor")
isfinite = _function("isfinite")
isinf = _function("isinf")
isnan = _function("isnan")
log = _function("log")
log10 = _function("log10")
log1p = _function("log1p")
log2 = _function("log2")
round = _function("round")
rsqrt = _function("rsqrt")
sigmoid = _function("sigmoid")
sign = _function("sign")
sin = _function("sin")
sinh = _function("sinh")
sqrt = _function("sqrt")
tan = _function("tan")
tanh = _function("tanh")
trunc = _function("trunc")


def power(a: object, b: object) -> Scalar:
    """``a`` to the power of ``b``; ``x ** 3`` multiplies."""
    return binary("pow", a, b)


def atan2(a: object, b: object) -> Scalar:
    """The angle of the point ``(b, a)``."""
    return binary("atan2", a, b)
