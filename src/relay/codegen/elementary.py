"""Elementary functions, inline, on one element or on vectors.

Bounds of the error in units in the last place over the whole range (subnormal results included) with fused multiply-add;
`tests/codegen/test_elementary.py` holds them to it, `benchmarks/elementary.py` looks at all float32 numbers:

=============================== ======= =======
function                        float32 float64
=============================== ======= =======
exp, exp2                       2       2
log, log2, log10, log1p         2       2
sigmoid, tanh, erf              2       4
sin, cos                        2       3
tan                             2       4
expm1, cosh                     2       4
asin, acos, atan, atan2, sinh   3       4
rsqrt                           2       2
pow                             1       16
=============================== ======= =======

That is with AVX-512, where exp, erf, tanh, log, log2, log10 and pow are looked up in tables, sigmoid and rsqrt are
made from an approximation. With AVX2 erf and tanh are looked up too; elsewhere sigmoid is within 3 (float32). sin, cos and
tan hold to it for all finite numbers, however large. sqrt is rounded correctly, mod is exact, floor_mod is it with the divisor
added (rounded once) where signs differ, floor_divide is NumPy's (`relay.codegen.remainders`).
float16 and bfloat16 are computed as float32.
"""

from __future__ import annotations

from collections.abc import Callable

from relay.codegen import circular, exponentials, powers, remainders
from relay.codegen.arith import Arithmetic
from relay.codegen.registers import INFINITY, TABLE, Kit, Register
from relay.codegen.values import Value, register_type
from relay.ir.types import dtype_bits, is_float
from relay.loop.errors import LoopError
from relay.te.scalar import BinaryOp, UnaryOp

# Binary operations that floats need more than an instruction for.
FLOAT_FUNCTIONS = frozenset(("pow", "atan2", "floordiv", "mod", "truncmod"))
# The bits of 2**-102, less one.
_LEAST_ROOTED = (127 - 102 << 23) - 1


class Elementary:
    """Emits `relay.te.scalar.UnaryOp` and the float binary functions."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.a = arithmetic

    def unary(self, op: UnaryOp, value: Value) -> Value:
        """A function of one operand. Raises LoopError for one that its dtype does not have."""
        value = self.a.spread(value, value.lanes)
        kit = Kit(self.a, value.lanes)
        x = kit.register(value.text, register_type(value.dtype))
        if not is_float(value.dtype):
            return Value(*_integer(kit, op, x, value.dtype), value.lanes)
        if op in ("isnan", "isinf", "isfinite"):
            return Value(_classify(kit, op, x).text, "bool", value.lanes)
        return Value(_FLOAT[op](kit, x).text, value.dtype, value.lanes)

    def exp_cut(self, function: exponentials.CutExp, value: Value, least: float) -> Value:
        """An exponential that is 0 below ``least``: `exponentials.exp_from` or `exponentials.exp_of_fall`."""
        kit = Kit(self.a, value.lanes)
        x = kit.register(self.a.spread(value, value.lanes).text, register_type(value.dtype))
        return Value(function(kit, x, least).text, value.dtype, value.lanes)

    def binary(self, op: BinaryOp, x: Value, y: Value) -> Value:
        """The `FLOAT_FUNCTIONS` of floats."""
        lanes, (a, b) = self.a.together(x, y)
        kit, element = Kit(self.a, lanes), register_type(x.dtype)
        base, other = kit.register(a, element), kit.register(b, element)
        if op in _DIVISIONS:
            return Value(_DIVISIONS[op](kit, base, other).text, x.dtype, lanes)
        if op == "atan2":
            return Value(circular.atan2(kit, base, other).text, x.dtype, lanes)
        if isinstance(y.const, float) and y.const in (1.0, 2.0, 3.0, -1.0):
            small = {
                1.0: lambda: base,
                2.0: lambda: base * base,
                3.0: lambda: base * base * base,
                -1.0: lambda: 1.0 / base,
            }
            return Value(small[y.const]().text, x.dtype, lanes)
        return Value(powers.pow(kit, base, other).text, x.dtype, lanes)


def _integer(kit: Kit, op: UnaryOp, x: Register, dtype: str) -> tuple[str, str]:
    """The functions that integers and bool have: (text, dtype of the result)."""
    zero = kit.const(0, x.element)
    match op:
        case "neg":
            return (zero - x).text, dtype
        case "not":
            return (x ^ (1 if dtype == "bool" else -1)).text, dtype
        case "abs":
            if dtype.startswith("int"):
                return kit.a.intrinsic("abs", x.element, kit.lanes, x.text), dtype
            return x.text, dtype
        case "sign":
            if not dtype.startswith("int"):
                one = kit.const(1, x.element)
                return kit.where(x.equals(zero), zero, one).text, dtype
            shifted = x >> (dtype_bits(dtype) - 1)
            return kit.where(x > zero, kit.const(1, x.element), shifted).text, dtype
        case "floor" | "ceil" | "round" | "trunc":
            return x.text, dtype
        case "isnan" | "isinf":
            return kit.const(0, "i1").text, "bool"
        case "isfinite":
            return kit.const(1, "i1").text, "bool"
        case _:
            raise LoopError(f"{op} of {dtype}: it is a function of floats", hint="cast the operand")


def _classify(kit: Kit, op: UnaryOp, x: Register) -> Register:
    if op == "isnan":
        return kit.is_nan(x)
    magnitude = kit.abs(x)
    return magnitude.equals(INFINITY) if op == "isinf" else magnitude < INFINITY


def _sign(kit: Kit, x: Register) -> Register:
    one = kit.const(1.0, x.element)
    signed = kit.where(kit.abs(x) > 0.0, kit.copysign(one, x), kit.const(0.0, x.element))
    return kit.where(kit.is_nan(x), x, signed)


def _sqrt(kit: Kit, x: Register) -> Register:
    """Rounded correctly. Where multiply-adds of whole vectors are done two in a cycle, six of them take half of the time of the
    instruction."""
    if x.element == "float" and kit.lanes == TABLE and kit.has_tables and kit.a.target.outruns_caches:
        return _sqrt_by_approximation(kit, x)
    return kit.sqrt(x)


def _sqrt_by_approximation(kit: Kit, x: Register) -> Register:
    """By an approximation, a step of Newton's method for the root and for its half inverse, and one more with what is left, which
    rounds correctly (P. W. Markstein, Computation of elementary functions on the IBM RISC System/6000 processor, 1990): so it
    does for all floats, and for approximations that are off by any number of 32nds of 2**-14, up to 32 of them."""
    near = kit.approximate_inverse_root(x)
    root, half = x * near, near * 0.5
    wrong = kit.fma(-root, half, kit.const(0.5, "float"))
    root, half = kit.fma(root, wrong, root), kit.fma(half, wrong, half)
    root = kit.fma(kit.fma(-root, root, x), half, root)
    root = kit.where(kit.zero_or_infinity(x), x, root)
    # Of numbers below 2**-102 what is left is below all floats. Zero is not below 1 here.
    tiny = kit.below(kit.bits(x) - 1, _LEAST_ROOTED)
    (root,) = kit.rarely(tiny, (root,), lambda: (kit.sqrt(x),))
    return root


def _rsqrt(kit: Kit, x: Register) -> Register:
    """By an approximation and one step of Newton's method, where the machine has it: it neither divides nor takes a root."""
    if x.element == "float" and kit.has_tables:
        return kit.widened(_rsqrt_by_approximation, x)
    return 1.0 / kit.sqrt(x)


def _rsqrt_by_approximation(kit: Kit, x: Register) -> Register:
    near = kit.approximate_inverse_root(x)
    left = kit.fma(-(x * near), near, kit.const(1.0, "float"))
    # Of zeros, infinity and negative numbers nothing is left to be counted in, and the approximation is the result.
    return kit.where(kit.is_nan(left), near, kit.fma(near * left, 0.5, near))


_DIVISIONS: dict[str, Callable[[Kit, Register, Register], Register]] = {
    "floordiv": remainders.floored_quotient, "mod": remainders.floored, "truncmod": remainders.truncated,
}  # fmt: skip


def _rounder(name: str) -> Callable[[Kit, Register], Register]:
    return lambda kit, x: kit.rounded(name, x)


_FLOAT: dict[str, Callable[[Kit, Register], Register]] = {
    "neg": lambda kit, x: -x, "abs": lambda kit, x: kit.abs(x), "sqrt": _sqrt, "sign": _sign,
    "floor": _rounder("floor"), "ceil": _rounder("ceil"), "trunc": _rounder("trunc"), "round": _rounder("roundeven"),
    "rsqrt": _rsqrt,
    **{name: getattr(exponentials, name) for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sinh", "cosh", "tanh", "erf", "sigmoid",
    )},
    **{name: getattr(circular, name) for name in ("sin", "cos", "tan", "asin", "acos", "atan")},
}  # fmt: skip
