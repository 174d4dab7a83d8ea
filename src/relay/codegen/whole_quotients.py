"""Small whole numbers divided by a number (pixels by 255): a product with its inverse, put right by what it leaves, in place of a division.

A vector takes several times as long to be divided as to be multiplied. With ``r`` the inverse, rounded, ``q = x * r`` may be one off, and
``q + (x - q * c) * r`` with fused operations is the quotient, rounded once, for next to every divisor ``c``: that is tried for all such
numbers when a kernel is compiled.
"""

from __future__ import annotations

from functools import cache

from relay.codegen.arith import Arithmetic
from relay.codegen.builder import float_literal, vec
from relay.codegen.values import Value
from relay.te.scalar import Binary, Cast, Const

_WHOLE = frozenset({"int8", "uint8", "int16", "uint16"})


def whole_quotient(arith: Arithmetic, node: Binary, x: Value) -> Value | None:
    """The quotient of a small whole number ``x`` by a number; None where it is something else, or has to be divided."""
    by = node.b
    if node.op != "div" or node.dtype != "float32" or not isinstance(node.a, Cast) or not isinstance(by, Const):
        return None
    if (
        node.a.a.dtype not in _WHOLE
        or not arith.target.fma
        or x.lanes == 1
        or not _is_exact(float(by.value), node.a.a.dtype)
    ):
        return None
    import numpy as np  # by now it is there: `_is_exact` asked

    divisor, lanes = np.float32(by.value), x.lanes
    inverse, minus = (
        arith.splat("float", float_literal(float(v), "float"), lanes) for v in (np.float32(1) / divisor, -divisor)
    )
    first = arith.b.emit(f"fmul {vec('float', lanes)} {x.text}, {inverse}")
    left = arith.intrinsic("fma", "float", lanes, first, minus, x.text)
    return Value(arith.intrinsic("fma", "float", lanes, left, inverse, first), "float32", lanes)


@cache
def _is_exact(by: float, dtype: str) -> bool:
    """Whether that is the quotient for all numbers of a type, and a shift of the exponent is not as good."""
    import numpy as np  # here, because few kernels divide such numbers, and without it a process that compiles starts sooner

    divisor, limits = np.float32(by), np.iinfo(dtype)
    if not 1e-6 < abs(divisor) < 1e6 or np.frexp(divisor)[0] in (0.5, -0.5):
        return False
    x = np.arange(limits.min, limits.max + 1).astype("float32")
    inverse = np.float32(1) / divisor
    first = x * inverse
    # Products of two floats are exact in double precision, and so is what the first quotient leaves.
    left = (x - first.astype("float64") * float(divisor)).astype("float32")
    wide = np.longdouble(first) + np.longdouble(left) * np.longdouble(inverse)
    return bool((wide.astype("float32") == x / divisor).all()) and np.finfo(np.longdouble).nmant > 60
