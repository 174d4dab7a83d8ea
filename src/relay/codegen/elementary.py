"""Elementary functions, inline, on one element or on vectors.

Largest errors, in units in the last place, measured over the whole range (subnormal results included) with fused
multiply-add (tests/codegen/test_math.py holds them to it):

=============================== ======= =======
function                        float32 float64
=============================== ======= =======
exp, exp2                       2       2
log, log2, log10, log1p         2       2
sigmoid, sin, cos               3       3
expm1, tanh, sinh, cosh         4       4
tan                             4       4
asin, acos, atan, atan2         3       4
erf                             3       4
rsqrt                           2       2
pow                             1       16
=============================== ======= =======

Over all 2**32 float32 numbers (benchmarks/elementary.py), with AVX-512: exp 1.10, log 0.87, erf 1.45, sigmoid 2.41, tanh
2.46. There erf is looked up in a table of polynomials, elsewhere it is a polynomial in an exponential.

sin, cos and tan hold to this for ``|x| <= 1e6`` and lose digits beyond. float16 and bfloat16 are computed as float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from relay.codegen import polynomials as p
from relay.codegen.arith import Arithmetic
from relay.codegen.registers import INFINITY, NAN, Kit, Register
from relay.codegen.values import Value, register_type
from relay.ir.types import dtype_bits, is_float
from relay.loop.errors import LoopError
from relay.te.scalar import BinaryOp, UnaryOp

# Binary operations that floats need more than an instruction for.
FLOAT_FUNCTIONS = frozenset(("pow", "atan2", "mod", "truncmod"))
# ln(2) and pi/2 in parts whose leading ones have few enough bits that small multiples of them are exact.
_LN2 = {"float": (0.693359375, -2.12194440e-4), "double": (0.6931471803691238, 1.9082149292705877e-10)}
_LOG10_2 = {"float": (0.301025390625, 4.605038981195214e-06), "double": (0.301029995663157, 8.241712586023572e-13)}
_HALF_PI = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
_PI_2_LOW = 6.123233995736766e-17
_MAGIC = {"float": 12582912.0, "double": 6755399441055744.0}  # 1.5 * 2**(mantissa bits): adding it rounds to integers


# From here on erf is 1 to within rounding.
_ERF_ONE = 3.83


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

    def binary(self, op: BinaryOp, x: Value, y: Value) -> Value:
        """The `FLOAT_FUNCTIONS` of floats."""
        lanes, (a, b) = self.a.together(x, y)
        kit, element = Kit(self.a, lanes), register_type(x.dtype)
        base, other = kit.register(a, element), kit.register(b, element)
        if op in ("mod", "truncmod"):
            return Value(_remainder(kit, base, other, op == "mod").text, x.dtype, lanes)
        if op == "atan2":
            return Value(_atan2(kit, base, other).text, x.dtype, lanes)
        if isinstance(y.const, float) and y.const in (1.0, 2.0, 3.0, -1.0):
            powers = {
                1.0: lambda: base,
                2.0: lambda: base * base,
                3.0: lambda: base * base * base,
                -1.0: lambda: 1.0 / base,
            }
            return Value(powers[y.const]().text, x.dtype, lanes)
        if element == "float":
            return Value(kit.narrow(_pow(kit, kit.widen(base), kit.widen(other), False)).text, x.dtype, lanes)
        return Value(_pow(kit, base, other, True).text, x.dtype, lanes)


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


# -- exponentials


def _scaled(kit: Kit, x: Register, n: Register) -> Register:
    """``x * 2**n`` for whole n given as a float, rounded once: it overflows and becomes subnormal as it should."""
    scaled = kit.scale(x, n)
    if scaled is not None:
        return scaled
    n = _as_integer(kit, n)
    half = n >> 1
    return x * _power_of_two(kit, half) * _power_of_two(kit, n - half)


def _power_of_two(kit: Kit, n: Register) -> Register:
    bias, bits = (127, 23) if n.element == "i32" else (1023, 52)
    return kit.from_bits((n + bias) << bits)


def _nearest(kit: Kit, x: Register, factor: float = 1.0) -> Register:
    """The nearest whole number of ``x * factor``, where that is small; anything for nan."""
    magic = kit.const(_MAGIC[x.element], x.element)
    return (x + magic if factor == 1.0 else kit.fma(x, factor, magic)) - magic


def _as_integer(kit: Kit, whole: Register) -> Register:
    """A small whole float as an integer; anything for nan."""
    magic = kit.const(_MAGIC[whole.element], whole.element)
    return kit.bits(whole + magic) - kit.bits(magic)


def _exp_reduced(kit: Kit, x: Register) -> tuple[Register, Register]:
    """``(r, n)`` with ``exp(x) = exp(r) * 2**n``, ``|r| <= ln(2)/2``, for x of moderate size; n is a whole float."""
    whole = _nearest(kit, x, 1 / math.log(2))
    high, low = _LN2[x.element]
    return kit.fma(whole, -low, kit.fma(whole, -high, x)), whole


def _exp_polynomial(kit: Kit, r: Register) -> Register:
    """``exp(r) - 1`` for ``|r| <= ln(2)/2``."""
    return kit.fma(r * r, kit.polynomial(r, p.EXP_F32 if r.element == "float" else p.EXP_F64), r)


def _clamped(kit: Kit, x: Register, low: float, high: float) -> Register:
    """x within bounds; nan stays."""
    x = kit.where(x > high, high, x)
    return kit.where(x < low, low, x)


def _exp(kit: Kit, x: Register) -> Register:
    x = _clamped(kit, x, *((-104.0, 89.0) if x.element == "float" else (-746.0, 710.0)))
    r, n = _exp_reduced(kit, x)
    return _scaled(kit, _exp_polynomial(kit, r) + 1.0, n)


def _exp2(kit: Kit, x: Register) -> Register:
    x = _clamped(kit, x, *((-151.0, 129.0) if x.element == "float" else (-1076.0, 1025.0)))
    whole = _nearest(kit, x)
    return _scaled(kit, _exp_polynomial(kit, (x - whole) * math.log(2)) + 1.0, whole)


def _expm1(kit: Kit, x: Register) -> Register:
    low, high = (-18.0, 89.0) if x.element == "float" else (-38.0, 710.0)
    bounded = _clamped(kit, x, low, high)
    r, n = _exp_reduced(kit, bounded)
    half = _power_of_two(kit, _as_integer(kit, n) - 1)
    result = kit.fma(half, _exp_polynomial(kit, r), half - 0.5) * 2.0
    # Tiny arguments are their own result; the sum above would lose the sign of zero.
    return kit.where(kit.abs(x) < (1e-9 if x.element == "float" else 1e-18), x, result)


def _sigmoid(kit: Kit, x: Register) -> Register:
    e = _exp(kit, -kit.abs(x))
    return kit.where(x < 0.0, e, kit.const(1.0, x.element)) / (e + 1.0)


def _tanh(kit: Kit, x: Register) -> Register:
    magnitude = _clamped(kit, kit.abs(x), 0.0, 20.0)
    e = _expm1(kit, magnitude * 2.0)
    return kit.copysign(e / (e + 2.0), x)


def _half_exp(kit: Kit, x: Register) -> Register:
    """``exp(x) / 2``, which overflows later than exp does."""
    bounded = _clamped(kit, x, *((-104.0, 90.0) if x.element == "float" else (-746.0, 711.0)))
    r, n = _exp_reduced(kit, bounded)
    return _scaled(kit, _exp_polynomial(kit, r) + 1.0, n - 1.0)


def _sinh(kit: Kit, x: Register) -> Register:
    magnitude = kit.abs(x)
    small = _expm1(kit, _clamped(kit, magnitude, 0.0, 20.0))
    near = (small + small / (small + 1.0)) * 0.5
    return kit.copysign(kit.where(magnitude > 19.0, _half_exp(kit, magnitude), near), x)


def _cosh(kit: Kit, x: Register) -> Register:
    half = _half_exp(kit, kit.abs(x))
    return half + 0.25 / half


# -- logarithms


def _frexp(kit: Kit, x: Register) -> tuple[Register, Register]:
    """``(m, e)`` with ``x = m * 2**e``, ``sqrt(1/2) <= m < sqrt(2)``, for positive finite x; e as a float."""
    single = x.element == "float"
    mantissa = 23 if single else 52
    smallest = 2.0**-126 if single else 2.0**-1022
    tiny = x < smallest
    bits = kit.bits(kit.where(tiny, x * 2.0**mantissa, x))
    start = 0x3F3504F3 if single else 0x3FE6A09E667F3BCD  # sqrt(1/2)
    exponent = (bits - start) >> mantissa
    m = kit.from_bits(bits - (exponent << mantissa))
    shift = kit.where(tiny, kit.const(mantissa, exponent.element), kit.const(0, exponent.element))
    return m, kit.to_float(exponent - shift, x.element)


def _log_of_mantissa(kit: Kit, f: Register) -> Register:
    """What to add to f to get ``log(1 + f)`` for ``1 + f`` in [sqrt(1/2), sqrt(2)]."""
    square = f * f
    if f.element == "float":
        return kit.fma(square * f, kit.polynomial(f, p.LOG_F32), square * -0.5)
    s = f / (f + 2.0)
    z = s * s
    half = square * 0.5
    return s * (half + z * kit.polynomial(z, p.LOG_F64)) - half


def _log_limits(kit: Kit, x: Register, result: Register) -> Register:
    """The logarithm's values at 0, infinity, nan and for negative numbers."""
    result = kit.where(x < INFINITY, result, x)
    result = kit.where(x.equals(0.0), -INFINITY, result)
    return kit.where(x < 0.0, NAN, result)


def _log(kit: Kit, x: Register) -> Register:
    m, e = _frexp(kit, x)
    f = m - 1.0
    high, low = _LN2[x.element]
    rest = kit.fma(e, low, _log_of_mantissa(kit, f))
    return _log_limits(kit, x, kit.fma(e, high, f + rest))


def _log2(kit: Kit, x: Register) -> Register:
    m, e = _frexp(kit, x)
    f = m - 1.0
    return _log_limits(kit, x, _times_constant(kit, f, _log_of_mantissa(kit, f), 1 / math.log(2), e))


def _times_constant(kit: Kit, f: Register, rest: Register, factor: float, e: Register) -> Register:
    """``(f + rest) * factor + e`` with the leading part of ``f * factor`` kept exact."""
    single = f.element == "float"
    mask = -(1 << 12) if single else -(1 << 32)
    bits = 11 if single else 26
    scale = 2.0**bits
    leading = math.floor(factor * scale) / scale
    total = f + rest
    head = kit.from_bits(kit.bits(total) & mask)
    tail = (f - head) + rest
    exact = head * leading
    small = kit.fma(head, factor - leading, tail * factor)
    return e + exact + small


def _log10(kit: Kit, x: Register) -> Register:
    m, e = _frexp(kit, x)
    f = m - 1.0
    high, low = _LOG10_2[x.element]
    zero = kit.const(0.0, x.element)
    fraction = _times_constant(kit, f, _log_of_mantissa(kit, f), 1 / math.log(10), zero)
    return _log_limits(kit, x, kit.fma(e, high, kit.fma(e, low, fraction)))


def _log1p(kit: Kit, x: Register) -> Register:
    u = x + 1.0
    m, e = _frexp(kit, u)
    # What was lost in 1 + x, relative to it; where 1 + x is near 1, x itself is the exact fraction.
    lost = kit.where(x > 1.0, 1.0 - (u - x), x - (u - 1.0)) / u
    near = e.equals(0.0)
    f = kit.where(near, x, m - 1.0)
    lost = kit.where(near, kit.const(0.0, x.element), lost)
    high, low = _LN2[x.element]
    rest = kit.fma(e, low, _log_of_mantissa(kit, f) + lost)
    result = _log_limits(kit, u, kit.fma(e, high, f + rest))
    return kit.where(kit.abs(x) < (1e-9 if x.element == "float" else 1e-18), x, result)


# -- trigonometry


def _quadrant(kit: Kit, x: Register) -> tuple[Register, Register]:
    """``(r, n)``: x less n quarter turns, ``|r| <= pi/4``; computed in double."""
    wide = kit.widen(x) if x.element == "float" else x
    whole = _nearest(kit, wide, 2 / math.pi)
    n = _as_integer(kit, whole)
    for part in _HALF_PI[:2] if x.element == "float" else _HALF_PI:
        wide = kit.fma(whole, -part, wide)
    return (kit.narrow(wide) if x.element == "float" else wide), n


def _sin_polynomial(kit: Kit, r: Register) -> Register:
    z = r * r
    return kit.fma(r * z, kit.polynomial(z, p.SIN_F32 if r.element == "float" else p.SIN_F64), r)


def _cos_polynomial(kit: Kit, r: Register) -> Register:
    z = r * r
    half = z * 0.5
    main = 1.0 - half
    lost = (1.0 - main) - half
    return main + kit.fma(z * z, kit.polynomial(z, p.COS_F32 if r.element == "float" else p.COS_F64), lost)


def _sin_cos(kit: Kit, x: Register, turn: int) -> Register:
    r, n = _quadrant(kit, x)
    n = n + turn
    odd = (n & 1).equals(1)
    value = kit.where(odd, _cos_polynomial(kit, r), _sin_polynomial(kit, r))
    return kit.where((n & 2).equals(2), -value, value)


def _sin(kit: Kit, x: Register) -> Register:
    return kit.where(x.equals(0.0), x, _sin_cos(kit, x, 0))


def _cos(kit: Kit, x: Register) -> Register:
    return _sin_cos(kit, x, 1)


def _tan(kit: Kit, x: Register) -> Register:
    r, n = _quadrant(kit, x)
    odd = (n & 1).equals(1)
    s, c = _sin_polynomial(kit, r), _cos_polynomial(kit, r)
    return kit.where(x.equals(0.0), x, kit.where(odd, -c, s) / kit.where(odd, s, c))


def _asin_small(kit: Kit, x: Register) -> Register:
    """What to add to x to get its arc sine, for ``|x| <= 1/2``."""
    z = x * x
    return x * z * kit.polynomial(z, p.ASIN_F32 if x.element == "float" else p.ASIN_F64)


def _asin(kit: Kit, x: Register) -> Register:
    magnitude = kit.abs(x)
    large = magnitude > 0.5
    root = kit.sqrt((1.0 - magnitude) * 0.5)
    argument = kit.where(large, root, magnitude)
    small = _asin_small(kit, argument)
    low = _PI_2_LOW if x.element == "double" else -4.3711390001862426e-08
    outer = math.pi / 2 - ((argument + small) * 2.0 - low)
    return kit.copysign(kit.where(large, outer, argument + small), x)


def _acos(kit: Kit, x: Register) -> Register:
    magnitude = kit.abs(x)
    large = magnitude > 0.5
    root = kit.sqrt((1.0 - magnitude) * 0.5)
    argument = kit.where(large, root, x)
    small = _asin_small(kit, argument)
    low = _PI_2_LOW if x.element == "double" else -4.3711390001862426e-08
    twice = (argument + small) * 2.0
    far = kit.where(x < 0.0, math.pi - (twice - 2 * low), twice)
    return kit.where(large, far, math.pi / 2 - (argument - (low - small)))


def _atan_reduced(kit: Kit, x: Register) -> Register:
    """The arc tangent of ``x >= 0``."""
    tan_1, tan_3 = math.sqrt(2) - 1, math.sqrt(2) + 1
    middle, far = x > tan_1, x > tan_3
    numerator = kit.where(far, kit.const(-1.0, x.element), kit.where(middle, x - 1.0, x))
    denominator = kit.where(far, x, kit.where(middle, x + 1.0, kit.const(1.0, x.element)))
    t = numerator / denominator
    z = t * t
    single = x.element == "float"
    zero = kit.const(0.0, x.element)
    low = -4.3711390001862426e-08 if single else _PI_2_LOW
    base = kit.where(far, math.pi / 2, kit.where(middle, math.pi / 4, zero))
    rest = kit.where(far, low, kit.where(middle, low / 2, zero))
    return base + (t + kit.fma(t * z, kit.polynomial(z, p.ATAN_F32 if single else p.ATAN_F64), rest))


def _atan(kit: Kit, x: Register) -> Register:
    return kit.copysign(_atan_reduced(kit, kit.abs(x)), x)


def _atan2(kit: Kit, y: Register, x: Register) -> Register:
    """The angle of (x, y), with the conventions of C for zeros and infinities."""
    ax, ay = kit.abs(x), kit.abs(y)
    swapped = ay > ax
    low, high = kit.where(swapped, ax, ay), kit.where(swapped, ay, ax)
    ratio = low / high
    ratio = kit.where(high.equals(0.0), 0.0, ratio)
    ratio = kit.where(low.equals(INFINITY), 1.0, ratio)
    angle = _atan_reduced(kit, ratio)
    part = _PI_2_LOW if x.element == "double" else -4.3711390001862426e-08
    angle = kit.where(swapped, math.pi / 2 - (angle - part), angle)
    one = kit.const(1.0, x.element)
    angle = kit.where(kit.copysign(one, x) < 0.0, math.pi - (angle - 2 * part), angle)
    angle = kit.copysign(angle, y)
    return kit.where(kit.is_nan(x), x, kit.where(kit.is_nan(y), y, angle))


# -- erf, powers


def _erf_by_table(kit: Kit, x: Register) -> Register:
    """``|x| * g(|x|)`` with ``g(u) = erf(u) / u`` a polynomial around the nearest quarter."""
    magnitude = kit.abs(x)
    large = magnitude > _ERF_ONE
    u = kit.where(large, _ERF_ONE, magnitude)
    magic = kit.const(_MAGIC["float"], "float")
    shifted = kit.fma(u, 4.0, magic)
    d = kit.fma(shifted - magic, -0.25, u)
    index = kit.bits(shifted)
    first, *others = (kit.looked_up(row, index) for row in p.ERF_TABLE_F32)
    rest = others[-1]
    for coefficient in reversed(others[:-1]):
        rest = kit.fma(rest, d, coefficient)
    result = kit.fma(u, first, u * d * rest)
    return kit.copysign(kit.where(large, 1.0, result), x)


def _erf(kit: Kit, x: Register) -> Register:
    single = x.element == "float"
    if single and kit.has_tables:
        return kit.widened(x, _erf_by_table)
    magnitude = _clamped(kit, kit.abs(x), 0.0, 4.0 if single else 6.0)
    z = magnitude * magnitude
    near = magnitude * kit.polynomial(z, p.ERF_F32 if single else p.ERF_F64)
    large = magnitude > 1.0
    outer = kit.where(large, magnitude, kit.const(1.0, x.element))
    if single:
        r, n = _exp_reduced(kit, kit.polynomial(outer, p.LOG_ERFC_F32))
        tail = (_exp_polynomial(kit, r) + 1.0) * _power_of_two(kit, _as_integer(kit, n))
    else:
        r, n = _exp_reduced(kit, -(outer * outer))
        t = (outer - 2.0) / (outer + 2.0)
        tail = (
            (_exp_polynomial(kit, r) + 1.0) * _power_of_two(kit, _as_integer(kit, n)) * kit.polynomial(t, p.ERFCX_F64)
        )
    return kit.copysign(kit.where(large, 1.0 - tail, near), x)


def _remainder(kit: Kit, x: Register, y: Register, floored: bool) -> Register:
    """What a division leaves; exact while the quotient is below 2**29 (float) or 2**52 (double)."""
    if x.element == "float":
        a, b = kit.widen(x), kit.widen(y)
        rest = kit.narrow(a - kit.rounded("trunc", a / b) * b)
    else:
        product, lost = kit.two_product(kit.rounded("trunc", x / y), y)
        rest = (x - product) - lost
    rest = kit.where(kit.abs(y).equals(INFINITY) & (kit.abs(x) < INFINITY), x, rest)
    # A quotient rounded over an integer leaves a rest of the wrong sign; floored remainders have the divisor's.
    sign, addend = (y, y) if floored else (x, kit.copysign(y, x))
    wrong = ((rest < 0.0) ^ (sign < 0.0)) & (kit.abs(rest) > 0.0)
    return kit.where(wrong, rest + addend, rest)


def _rsqrt(kit: Kit, x: Register) -> Register:
    return 1.0 / kit.sqrt(x)


def _two_sum(x: Register, y: Register) -> tuple[Register, Register]:
    """The sum of ``|x| >= |y|`` and its rounding error."""
    total = x + y
    return total, y - (total - x)


def _log_in_parts(kit: Kit, x: Register) -> tuple[Register, Register]:
    """The logarithm of a positive double as a sum of two: ten more bits than one holds."""
    m, e = _frexp(kit, x)
    f = m - 1.0
    above, above_low = _two_sum(kit.const(2.0, "double"), f)
    s = f / above
    product, product_low = kit.two_product(s, above)
    s_low = ((f - product) - product_low - s * above_low) / above
    z = s * s
    cubed = s * z
    tail = cubed * kit.polynomial(z, p.LOG_F64)
    high, low = _LN2["double"]
    scaled = e * high
    # |e| * ln(2) is 0 or larger than the fraction's logarithm.
    head, head_low = _two_sum(scaled, s * 2.0)
    near = kit.where(e.equals(0.0), s * 2.0, head)
    near_low = kit.where(e.equals(0.0), kit.const(0.0, "double"), head_low)
    return _two_sum(near, near_low + (tail + s_low * 2.0 + e * low))


def _pow(kit: Kit, x: Register, y: Register, careful: bool) -> Register:
    """``x ** y`` of doubles, as C defines it; ``careful`` keeps the logarithm in two parts."""
    magnitude = kit.abs(x)
    if careful:
        log_high, log_low = _log_in_parts(kit, magnitude)
        product, product_low = kit.two_product(y, log_high)
        product_low = kit.fma(y, log_low, product_low)
        finite = kit.abs(product) < 800.0
        product_low = kit.where(finite, product_low, kit.const(0.0, "double"))
    else:
        product, product_low = y * _log(kit, magnitude), kit.const(0.0, "double")
    bounded = _clamped(kit, product, -746.0, 710.0)
    r, n = _exp_reduced(kit, bounded)
    result = _scaled(kit, _exp_polynomial(kit, r + product_low) + 1.0, n)
    # Zero and infinite bases, whose logarithms the parts above do not hold.
    zero, one = kit.const(0.0, "double"), kit.const(1.0, "double")
    upward = y > 0.0
    result = kit.where(magnitude.equals(0.0), kit.where(upward, zero, INFINITY), result)
    result = kit.where(magnitude.equals(INFINITY), kit.where(upward, INFINITY, zero), result)
    # An infinite exponent: by which side of 1 the base is on.
    endless = kit.abs(y).equals(INFINITY)
    grows = kit.where(magnitude > 1.0, one, -one) * kit.copysign(one, y)
    limit = kit.where(magnitude.equals(1.0), one, kit.where(grows > 0.0, INFINITY, zero))
    result = kit.where(endless, limit, result)
    # The sign of a negative base: odd integers keep it, other integers drop it, fractions have no result.
    whole = kit.rounded("trunc", y).equals(y)
    halves = kit.rounded("trunc", y * 0.5).equals(y * 0.5)
    odd = whole & (halves ^ 1)
    negative = kit.copysign(one, x) < 0.0
    result = kit.where(negative & odd, -result, result)
    undefined = (x < 0.0) & (magnitude < INFINITY) & (whole ^ 1)
    result = kit.where(undefined, NAN, result)
    result = kit.where(kit.is_nan(x), x, kit.where(kit.is_nan(y), y, result))
    return kit.where(y.equals(0.0), one, kit.where(x.equals(1.0), one, result))


def _rounder(name: str) -> Callable[[Kit, Register], Register]:
    return lambda kit, x: kit.rounded(name, x)


_FLOAT: dict[str, Callable[[Kit, Register], Register]] = {
    "neg": lambda kit, x: -x, "abs": lambda kit, x: kit.abs(x), "sqrt": lambda kit, x: kit.sqrt(x), "sign": _sign,
    "floor": _rounder("floor"), "ceil": _rounder("ceil"), "trunc": _rounder("trunc"), "round": _rounder("roundeven"),
    "rsqrt": _rsqrt, "exp": _exp, "exp2": _exp2, "log": _log, "log2": _log2, "log10": _log10, "log1p": _log1p,
    "expm1": _expm1, "sin": _sin, "cos": _cos, "tan": _tan, "asin": _asin, "acos": _acos, "atan": _atan,
    "sinh": _sinh, "cosh": _cosh, "tanh": _tanh, "erf": _erf, "sigmoid": _sigmoid,
}  # fmt: skip
