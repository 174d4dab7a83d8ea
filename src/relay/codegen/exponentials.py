"""Exponentials, logarithms and what is made of them: hyperbolic functions, sigmoid, erf."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from relay.codegen import log_tables as t
from relay.codegen import odd_tables
from relay.codegen import polynomials as p
from relay.codegen.odd_tables import OddTable
from relay.codegen.registers import INFINITY, MAGIC, NAN, Kit, Register

# ln(2) and log10(2) in parts whose leading ones have few enough bits that small multiples of them are exact.
LN2 = {"float": (0.693359375, -2.12194440e-4), "double": (0.6931471803691238, 1.9082149292705877e-10)}
_LOG10_2 = {"float": (0.301025390625, 4.605038981195214e-06), "double": (0.301029995663157, 8.241712586023572e-13)}

# Exponentials of numbers below these are 0. That is chosen, not computed: to round to 0, or to a subnormal number, takes processors of
# Intel some 150 cycles.
_LEAST_EXPONENT = {"float": -104.0, "double": -746.0}
# Those of these are infinite.
_MOST_EXPONENT = {"float": 89.0, "double": 710.0}
# Those of numbers up to these in size are normal numbers.
NORMAL_EXPONENT = {"float": 87.0, "double": 708.0}
# Half of those of these is a normal number, and so is the half of the power of two next to them.
HALF_NORMAL_EXPONENT = {"float": -86.0, "double": -707.0}
# Those of these are nothing beside 1, and normal numbers.
_SLIGHT = {"float": -80.0, "double": -700.0}

# An exponential that is 0 below a number.
CutExp = Callable[[Kit, Register, float], Register]


def scaled(kit: Kit, x: Register, n: Register) -> Register:
    """``x * 2**n`` for whole n given as a float, rounded once: it overflows and becomes subnormal as it should."""
    at_once = kit.scale(x, n)
    if at_once is not None:
        return at_once
    n = kit.as_integer(n)
    half = n >> 1
    return x * _power_of_two(kit, half) * _power_of_two(kit, n - half)


def _power_of_two(kit: Kit, n: Register) -> Register:
    bias, bits = (127, 23) if n.element == "i32" else (1023, 52)
    return kit.from_bits((n + bias) << bits)


def exp_reduced(kit: Kit, x: Register) -> tuple[Register, Register]:
    """``(r, n)`` with ``exp(x) = exp(r) * 2**n``, ``|r| <= ln(2)/2``, for x of moderate size; n is a whole float."""
    whole = kit.nearest(x, 1 / math.log(2))
    high, low = LN2[x.element]
    return kit.fma(whole, -low, kit.fma(whole, -high, x)), whole


def _exp_within(kit: Kit, x: Register) -> Register:
    """``exp(x)`` for x from `_LEAST_EXPONENT` to where it overflows; nan stays."""
    r, n = exp_reduced(kit, x)
    return scaled(kit, exp_polynomial(kit, r) + 1.0, n)


def _nearest_power(kit: Kit, x: Register, factor: float = 1.0, halved: bool = False) -> tuple[Register, Register]:
    """``(2**n, n)`` for the whole number n next to ``x * factor``, where the power is a normal number; anything for others.
    ``halved``: ``(2**(n - 1), n)``."""
    mantissa, bias = (23, 127) if x.element == "float" else (52, 1023)
    # The bits of the sum end in those of the power's exponent.
    magic = kit.const(MAGIC[x.element] + bias - halved, x.element)
    shifted = x + magic if factor == 1.0 else kit.fma(x, factor, magic)
    return kit.from_bits(kit.bits(shifted) << mantissa), shifted - magic


def _unless(kit: Kit, rare: Register, usual: Register, instead: Callable[[], Register]) -> Register:
    """The usual number, in lanes that are rare another one, which is computed out of the way. They may be rounded otherwise, and no lane
    depends on those beside it."""
    (result,) = kit.rarely(rare, (usual,), lambda: (kit.where(rare, instead(), usual),))
    return result


def _power_and_rest(kit: Kit, x: Register, roughly: bool = False, halved: bool = False) -> tuple[Register, Register]:
    """``(s, p)`` with ``exp(x) = s + s * p``, where s is a power of two: that and ``exp(x)`` have to be normal numbers. Where x is nan
    so is p. ``roughly``: with an error of 2e-9 of exp(x) for each power of two; ``halved``: half of s."""
    power, whole = _nearest_power(kit, x, 1 / math.log(2), halved)
    high, low = LN2[x.element]
    r = kit.fma(whole, -math.log(2), x) if roughly else kit.fma(whole, -low, kit.fma(whole, -high, x))
    return power, exp_polynomial(kit, r)


def _exp_of_normal(kit: Kit, x: Register) -> Register:
    """``exp(x)`` where that is a normal number; nan stays, and of others it is anything."""
    power, rest = _power_and_rest(kit, x)
    return kit.fma(power, rest, power)


def exp_polynomial(kit: Kit, r: Register) -> Register:
    """``exp(r) - 1`` for ``|r| <= ln(2)/2``."""
    square = r * r
    if r.element == "float":
        # By pairs of powers: as many operations as Horner's rule, and fewer that wait for one another.
        c0, c1, c2, c3, c4 = p.EXP_F32
        upper = kit.fma(square, c4, kit.fma(r, c3, kit.const(c2, "float")))
        return kit.fma(square, kit.fma(square, upper, kit.fma(r, c1, kit.const(c0, "float"))), r)
    return kit.fma(square, kit.polynomial(r, p.EXP_F64), r)


def clamped(kit: Kit, x: Register, low: float, high: float) -> Register:
    """x within bounds; nan stays."""
    x = kit.where(x > high, high, x)
    return kit.where(x < low, low, x)


def exp(kit: Kit, x: Register) -> Register:
    """``exp(r) * 2**n``, rounded to a subnormal or to infinity as it should be."""
    if x.element == "float" and kit.has_tables:
        return kit.widened(_exp_by_table, x)
    none = x < _LEAST_EXPONENT[x.element]

    def any_number() -> Register:
        return _exp_within(kit, kit.at_most(kit.where(none, 0.0, x), _MOST_EXPONENT[x.element]))

    if kit.scales(x):
        return kit.where(none, 0.0, any_number())
    # A nan stays, by the polynomial.
    far = (kit.abs(x) > NORMAL_EXPONENT[x.element]) ^ none
    return kit.where(none, 0.0, _unless(kit, far, _exp_of_normal(kit, x), any_number))


def exp_from(kit: Kit, x: Register, least: float) -> Register:
    """``exp(x)`` of x from ``least``, which is at least `HALF_NORMAL_EXPONENT`; 0 below. Nothing is rounded to a subnormal number then, and
    what may overflow is doubled last: no number takes longer than another."""
    if x.element == "float" and kit.has_tables:
        return kit.widened(lambda kit, x: kit.where(x < least, 0.0, _exp_by_table_within(kit, x)), x)
    none = x < least
    if kit.scales(x):
        known = kit.at_most(kit.where(none, 0.0, x), _MOST_EXPONENT[x.element])
        return kit.where(none, 0.0, _exp_within(kit, known))
    half, rest = _power_and_rest(kit, kit.at_most(x, _MOST_EXPONENT[x.element]), halved=True)
    return kit.where(none, 0.0, kit.fma(half, rest, half) * 2.0)


def exp_of_fall(kit: Kit, x: Register, least: float) -> Register:
    """``exp(x)`` of x up to 0, and that of 0 where x is above; 0 where it is below ``least``, whose exponential is a normal number."""
    none = x < least
    x = kit.at_most(x, 0.0)
    return kit.where(none, 0.0, exp(kit, x) if kit.scales(x) else _exp_of_normal(kit, x))


def _exp_by_table(kit: Kit, x: Register) -> Register:
    return kit.where(x < _LEAST_EXPONENT["float"], 0.0, _exp_by_table_within(kit, x))


def _exp_by_table_within(kit: Kit, x: Register) -> Register:
    """``2**n * 2**(k/16) * exp(r)`` from `_LEAST_EXPONENT` on: the bits of a sum with 1.5 * 2**19 are n and k, and a power of two takes
    the whole part of its exponent."""
    r, whole, index = _sixteenths(kit, kit.at_most(x, _MOST_EXPONENT["float"]))
    near = r * kit.fma(r, kit.polynomial(r, p.EXP_NEAR_F32), 1.0)
    power = kit.looked_up(p.EXP_TABLE_F32, index)
    return scaled(kit, kit.fma(power, near, power), whole)


def _sixteenths(kit: Kit, x: Register) -> tuple[Register, Register, Register]:
    """``(r, whole, index)`` with ``x = r + whole * ln(2)``, ``|r| <= ln(2)/32``; the low bits of the index are the sixteenths
    of ``whole``."""
    shifted = kit.fma(x, 1 / math.log(2), kit.const(MAGIC["float"] / 16, "float"))
    whole = shifted - MAGIC["float"] / 16
    high, low = LN2["float"]
    return kit.fma(whole, -low, kit.fma(whole, -high, x)), whole, kit.bits(shifted)


def exp2(kit: Kit, x: Register) -> Register:
    low, high = (-151.0, 129.0) if x.element == "float" else (-1076.0, 1025.0)
    none = x < low

    def any_number() -> Register:
        bounded = kit.at_most(kit.where(none, 0.0, x), high)
        _, whole = _nearest_power(kit, bounded)  # which decides as there what is next to a half
        return scaled(kit, exp_polynomial(kit, (bounded - whole) * math.log(2)) + 1.0, whole)

    if kit.scales(x):
        return kit.where(none, 0.0, any_number())
    power, whole = _nearest_power(kit, x)
    usual = kit.fma(power, exp_polynomial(kit, (x - whole) * math.log(2)), power)
    far = (kit.abs(x) > (126.0 if x.element == "float" else 1022.0)) ^ none
    return kit.where(none, 0.0, _unless(kit, far, usual, any_number))


def expm1(kit: Kit, x: Register) -> Register:
    low, high = (-18.0, 89.0) if x.element == "float" else (-38.0, 710.0)
    bounded = clamped(kit, x, low, high)
    r, n = exp_reduced(kit, bounded)
    half = _power_of_two(kit, kit.as_integer(n) - 1)
    result = kit.fma(half, exp_polynomial(kit, r), half - 0.5) * 2.0
    # Tiny arguments are their own result; the sum above would lose the sign of zero.
    return kit.where(kit.abs(x) < (1e-9 if x.element == "float" else 1e-18), x, result)


def sigmoid(kit: Kit, x: Register) -> Register:
    """``1 / (1 + exp(-x))``, as a quotient of at most 1."""
    if x.element == "float" and kit.has_tables:
        return kit.widened(_sigmoid_by_table, x)
    below = x < 0.0
    none = x < _LEAST_EXPONENT[x.element]
    if not kit.scales(x):
        normal = NORMAL_EXPONENT[x.element]
        e = _exp_of_normal(kit, -kit.at_most(kit.abs(x), normal))
        e = _unless(kit, (x < -normal) ^ none, e, lambda: _exp_within(kit, kit.where(none, 0.0, kit.at_most(x, 0.0))))
        return kit.where(none, 0.0, kit.where(below, e, kit.const(1.0, x.element)) / (e + 1.0))
    negative = -x
    least = _SLIGHT[x.element]
    bounded = kit.where(none, 0.0, kit.where(below, x, kit.where(negative < least, least, negative)))
    e = kit.where(none, 0.0, _exp_within(kit, bounded))
    return kit.where(below, e, kit.const(1.0, x.element)) / (e + 1.0)


def _sigmoid_by_table(kit: Kit, x: Register) -> Register:
    """The quotient from an approximate reciprocal and one step of Newton's method, whose remainder is exact: it does not see
    how ``1 + e`` was rounded."""
    above, none = x >= 0.0, x < _LEAST_EXPONENT["float"]
    r, whole, index = _sixteenths(kit, kit.negative(x, _SLIGHT["float"], above))
    power = kit.looked_up(p.EXP_TABLE_F32, index)
    # With what the table's entries lost when they were rounded: it would count twice just above a power of two.
    lost = kit.looked_up(p.EXP_TABLE_LOST_F32, index)
    near = kit.fma(r, kit.fma(r, kit.polynomial(r, p.EXP_NEAR_F32), 1.0), lost)
    e = kit.where(none, 0.0, scaled(kit, kit.fma(power, near, power), whole))
    over = kit.where(above, 1.0, e)
    inverse = kit.approximate_reciprocal(e + 1.0)
    quotient = over * inverse
    left = kit.fma(-quotient, e, over - quotient)
    return kit.fma(left, inverse, quotient)


def tanh(kit: Kit, x: Register) -> Register:
    """By a table, or of floats by `_near_or_far`, of doubles ``e / (e + 2)`` with ``e = exp(2 |x|) - 1``, and the sign of x."""
    if x.element == "float":
        if kit.table_lanes:
            return _odd_by_table(kit, x, odd_tables.TANH_16, odd_tables.TANH_8)
        return _near_or_far(kit, x, p.TANH_FAR, p.TANH_NEAR_F32, _tanh_far)
    magnitude = kit.abs(x)
    magnitude = kit.where(magnitude > 20.0, 20.0, magnitude)
    r, n = exp_reduced(kit, magnitude * 2.0)
    power = scaled(kit, kit.const(1.0, x.element), n)
    e = kit.fma(power, exp_polynomial(kit, r), power - 1.0)
    return kit.copysign(e / (e + 2.0), x)


def _near_or_far(
    kit: Kit, x: Register, far: tuple[float, float], near: Sequence[float], of: Callable[[Kit, Register], Register]
) -> Register:
    """An odd function of floats that goes to 1: ``x + x * near(x**2)`` up to the first bound of ``far``, beyond it ``of(|x|)``; from
    the second one on it is the same. Both are computed."""
    magnitude = kit.abs(x)
    square = x * x
    inner = kit.fma(x, kit.polynomial(square, near), x)
    first, last = far
    # Where x is nan neither bound is passed, and the first form is nan.
    outer = kit.copysign(of(kit, kit.at_most(magnitude, last)), x)
    return kit.where(magnitude > first, outer, inner)


def _tanh_far(kit: Kit, x: Register) -> Register:
    """What is left to 1 is small, and so are its errors."""
    power, rest = _power_and_rest(kit, x + x, roughly=True)
    return 1.0 - 2.0 / kit.fma(power, rest, power + 1.0)


def _erf_far(kit: Kit, x: Register) -> Register:
    power, rest = _power_and_rest(kit, kit.polynomial(x, p.LOG_ERFC_F32), roughly=True)
    return kit.fma(-power, rest, 1.0 - power)


def _half_exp(kit: Kit, x: Register) -> Register:
    """``exp(x) / 2``, which overflows later than exp does."""
    bounded = clamped(kit, x, *((-104.0, 90.0) if x.element == "float" else (-746.0, 711.0)))
    r, n = exp_reduced(kit, bounded)
    return scaled(kit, exp_polynomial(kit, r) + 1.0, n - 1.0)


def sinh(kit: Kit, x: Register) -> Register:
    """``(e + e / (e + 1)) / 2`` with ``e = exp(|x|) - 1``, for large x ``exp(|x|) / 2``, and the sign of x."""
    magnitude = kit.abs(x)
    e = expm1(kit, clamped(kit, magnitude, 0.0, 20.0))
    near = (e + e / (e + 1.0)) * 0.5
    return kit.copysign(kit.where(magnitude > 19.0, _half_exp(kit, magnitude), near), x)


def cosh(kit: Kit, x: Register) -> Register:
    half = _half_exp(kit, kit.abs(x))
    return half + 0.25 / half


# -- logarithms


# The bits of the smallest normal number, and how many numbers are normal and positive.
_NORMAL = {"float": (0x00800000, 0x7F000000), "double": (0x0010000000000000, 0x7FE0000000000000)}


def is_normal(kit: Kit, x: Register) -> Register:
    """Whether x is positive, finite and no subnormal number."""
    first, count = _NORMAL[x.element]
    return kit.below(kit.bits(x) - first, count)


def normal_parts(kit: Kit, x: Register) -> tuple[Register, Register]:
    """``(m, e)`` with ``x = m * 2**e``, ``sqrt(1/2) <= m < sqrt(2)``, for normal positive x; e is a whole float."""
    m, exponent = _mantissa_and_exponent(kit, kit.bits(x))
    return m, kit.to_float(exponent, x.element)


def _mantissa_and_exponent(kit: Kit, bits: Register) -> tuple[Register, Register]:
    mantissa, start = (23, 0x3F3504F3) if bits.element == "i32" else (52, 0x3FE6A09E667F3BCD)  # sqrt(1/2)
    exponent = (bits - start) >> mantissa
    return kit.from_bits(bits - (exponent << mantissa)), exponent


def frexp(kit: Kit, x: Register) -> tuple[Register, Register]:
    """`normal_parts` of subnormal numbers too."""
    mantissa, smallest = (23, 2.0**-126) if x.element == "float" else (52, 2.0**-1022)
    tiny = x < smallest
    m, exponent = _mantissa_and_exponent(kit, kit.bits(kit.where(tiny, x * 2.0**mantissa, x)))
    shift = kit.where(tiny, kit.const(mantissa, exponent.element), kit.const(0, exponent.element))
    return m, kit.to_float(exponent - shift, x.element)


def _logarithm(kit: Kit, x: Register, of: Callable[[Register, Register], Register]) -> Register:
    """A logarithm by mantissa and exponent. Zero, infinity, nan, subnormal and negative numbers are rare."""
    usual = of(*normal_parts(kit, x))
    (result,) = kit.rarely(is_normal(kit, x) ^ 1, (usual,), lambda: (_log_limits(kit, x, of(*frexp(kit, x))),))
    return result


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


def _log_by_table(kit: Kit, x: Register, table: t.LogTable) -> Register:
    """Exponent and mantissa are the machine's: those of zero, infinity, subnormal and negative numbers are as the result needs
    them."""
    m = kit.mantissa(x)
    exponent = kit.exponent(x)
    exponent = kit.where(m < 1.0, exponent + 1.0, exponent)
    piece = kit.bits(m) >> 19
    f = kit.fma(m, kit.looked_up(table.inverses, piece), kit.const(-1.0, "float"))
    slope, slope_rest = table.slope
    polynomial = kit.polynomial(f, table.coefficients)
    small = kit.fma(f, slope, f * kit.fma(f, polynomial, slope_rest)) if slope_rest else kit.fma(f * f, polynomial, f)
    high, low = table.exponent
    large = kit.fma(exponent, high, kit.looked_up(table.values, piece))
    return large + (kit.fma(exponent, low, small) if low else small)


def log(kit: Kit, x: Register) -> Register:
    if x.element == "float" and kit.has_tables:
        return kit.widened(lambda kit, x: _log_by_table(kit, x, t.LOG_TABLE_F32), x)
    high, low = LN2[x.element]

    def of(m: Register, e: Register) -> Register:
        f = m - 1.0
        return kit.fma(e, high, f + kit.fma(e, low, _log_of_mantissa(kit, f)))

    return _logarithm(kit, x, of)


def log2(kit: Kit, x: Register) -> Register:
    if x.element == "float" and kit.has_tables:
        return kit.widened(lambda kit, x: _log_by_table(kit, x, t.LOG2_TABLE_F32), x)

    def of(m: Register, e: Register) -> Register:
        f = m - 1.0
        return _times_constant(kit, f, _log_of_mantissa(kit, f), 1 / math.log(2), e)

    return _logarithm(kit, x, of)


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


def log10(kit: Kit, x: Register) -> Register:
    if x.element == "float" and kit.has_tables:
        return kit.widened(lambda kit, x: _log_by_table(kit, x, t.LOG10_TABLE_F32), x)
    high, low = _LOG10_2[x.element]

    def of(m: Register, e: Register) -> Register:
        f = m - 1.0
        fraction = _times_constant(kit, f, _log_of_mantissa(kit, f), 1 / math.log(10), kit.const(0.0, x.element))
        return kit.fma(e, high, kit.fma(e, low, fraction))

    return _logarithm(kit, x, of)


def log1p(kit: Kit, x: Register) -> Register:
    u = x + 1.0  # 0, or no less than half a unit in the last place of 1
    m, e = normal_parts(kit, u)
    # What was lost in 1 + x, relative to it; where 1 + x is near 1, x itself is the exact fraction.
    lost = kit.where(x > 1.0, 1.0 - (u - x), x - (u - 1.0)) / u
    near = e.equals(0.0)
    f = kit.where(near, x, m - 1.0)
    lost = kit.where(near, kit.const(0.0, x.element), lost)
    high, low = LN2[x.element]
    rest = kit.fma(e, low, _log_of_mantissa(kit, f) + lost)
    usual = kit.fma(e, high, f + rest)
    # Of numbers next to 0 the sum above would lose the sign.
    tiny = kit.abs(x) < (1e-9 if x.element == "float" else 1e-18)
    (result,) = kit.rarely(is_normal(kit, u) ^ 1, (usual,), lambda: (_log_limits(kit, u, usual),))
    return kit.where(tiny, x, result)


def _odd_by_table(kit: Kit, x: Register, *tables: OddTable) -> Register:
    """The polynomial of the piece that ``|x|`` lies in, and the sign of x, by the table with as many pieces as the machine looks up."""
    (table,) = (table for table in tables if len(table.centres) == kit.table_lanes)

    def by_pieces(kit: Kit, x: Register) -> Register:
        magnitude = kit.abs(x)
        u = kit.where(magnitude > table.limit, table.limit, magnitude)
        v = u + table.bias if table.scale == 1 else kit.fma(u, table.scale, table.bias)
        piece = kit.bits(v) >> (23 - table.bits)
        d = u - kit.looked_up(table.centres, piece)
        lowest, *lower, result = (kit.looked_up(row, piece) for row in table.coefficients)
        for coefficient in reversed(lower):
            result = kit.fma(result, d, coefficient)
        start = kit.where(v < table.near, u, lowest) if table.near else lowest
        return kit.copysign(kit.fma(result, d, start), x)

    return kit.widened(by_pieces, x)


def erf(kit: Kit, x: Register) -> Register:
    if x.element == "float":
        if kit.table_lanes:
            return _odd_by_table(kit, x, odd_tables.ERF_16, odd_tables.ERF_8)
        return _near_or_far(kit, x, p.ERF_FAR, p.ERF_NEAR_F32, _erf_far)
    magnitude = clamped(kit, kit.abs(x), 0.0, 6.0)
    z = magnitude * magnitude
    near = magnitude * kit.polynomial(z, p.ERF_F64)
    large = magnitude > 1.0
    outer = kit.where(large, magnitude, kit.const(1.0, x.element))
    r, n = exp_reduced(kit, -(outer * outer))
    t = (outer - 2.0) / (outer + 2.0)
    tail = (exp_polynomial(kit, r) + 1.0) * _power_of_two(kit, kit.as_integer(n)) * kit.polynomial(t, p.ERFCX_F64)
    return kit.copysign(kit.where(large, 1.0 - tail, near), x)
