"""Powers ``x ** y``, as C defines them: those of floats are computed in doubles, those of doubles by a logarithm in two parts."""

from __future__ import annotations

from relay.codegen import log_tables as t
from relay.codegen import polynomials as p
from relay.codegen.exponentials import (
    LN2,
    clamped,
    exp_polynomial,
    exp_reduced,
    frexp,
    is_normal,
    log,
    normal_parts,
    scaled,
)
from relay.codegen.registers import INFINITY, MAGIC, NAN, Kit, Register


def pow(kit: Kit, x: Register, y: Register) -> Register:
    """``x ** y``, as C defines it."""
    if x.element == "double":
        return _doubles_power(kit, x, y, True)
    return kit.widened(_floats_power, x, y) if kit.has_tables else _floats_power(kit, x, y)


def _floats_power(kit: Kit, x: Register, y: Register) -> Register:
    """Of floats: that of ``|x|``, and where x is negative what becomes of its sign."""
    magnitude = kit.abs(x)
    if kit.has_tables:
        power = kit.in_doubles(_power_by_table, magnitude, y)
        power = kit.where(magnitude.equals(1.0), 1.0, power)
    else:
        power = _power_by_parts(kit, magnitude, y)
    (power,) = kit.rarely(kit.bits(x) < 0, (power,), lambda: (_with_sign(kit, x, y, power),))
    return kit.where(y.equals(0.0), 1.0, power)


def _power_by_parts(kit: Kit, x: Register, y: Register) -> Register:
    """``x ** y`` of floats, x not below 0: mantissa and exponent of x are found in floats, what they make in doubles."""
    power = kit.in_doubles(_power_of_parts, *normal_parts(kit, x), y)
    usual = is_normal(kit, x) & (kit.abs(y) < INFINITY)

    def anywhere() -> tuple[Register]:
        return (kit.narrow(_doubles_power(kit, kit.widen(x), kit.widen(y), False)),)

    (power,) = kit.rarely(usual ^ 1, (power,), anywhere)
    return power


def _power_of_parts(kit: Kit, m: Register, e: Register, y: Register) -> Register:
    """``(m * 2**e) ** y``, to 28 bits within what floats hold; the logarithm is an odd function of ``(m - 1) / (m + 1)``."""
    s = (m - 1.0) / (m + 1.0)
    product = y * kit.fma(s, kit.polynomial(s * s, p.LOG2_NEAR_F64), e)
    bounded = clamped(kit, product, -151.0, 129.0)
    shifted = bounded + MAGIC["double"]
    r = bounded - (shifted - MAGIC["double"])
    near = kit.fma(r, kit.polynomial(r, p.EXP2_F64), 1.0)
    return kit.from_bits(kit.bits(near) + (kit.bits(shifted) << 52))


def _power_by_table(kit: Kit, x: Register, y: Register) -> Register:
    """``x ** y`` of doubles, x not below 0, to 30 bits within what floats hold. Zero and infinity have infinite logarithms."""
    table, m, exponent = t.LOG2_TABLE_F64, kit.mantissa(x), kit.exponent(x)
    exponent = kit.where(m < 1.0, exponent + 1.0, exponent)
    piece = kit.bits(m) >> 48
    f = kit.fma(m, kit.looked_up(table.inverses, piece), kit.const(-1.0, "double"))
    logarithm = kit.fma(f, kit.polynomial(f, table.coefficients), exponent + kit.looked_up(table.values, piece))
    product = y * logarithm
    none = product < -151.0
    bounded = clamped(kit, product, -151.0, 129.0)
    # The bits of the sum are whole sixteenths; a power of two takes the whole part of its exponent.
    shifted = bounded + MAGIC["double"] / 16
    whole = shifted - MAGIC["double"] / 16
    near = bounded - whole
    near = near * kit.polynomial(near, p.EXP2_NEAR_F64)
    power = kit.looked_up(p.EXP2_TABLE_F64, kit.bits(shifted))
    return kit.where(none, 0.0, scaled(kit, kit.fma(power, near, power), whole))


def _with_sign(kit: Kit, x: Register, y: Register, power: Register) -> Register:
    """The power of ``|x|`` as that of x: odd integers keep the sign of a base, other integers drop it, fractions of negative
    numbers have no result."""
    whole = kit.rounded("trunc", y).equals(y)
    halves = kit.rounded("trunc", y * 0.5).equals(y * 0.5)
    negative = kit.copysign(kit.const(1.0, x.element), x) < 0.0
    power = kit.where(negative & whole & (halves ^ 1), -power, power)
    return kit.where((x < 0.0) & (x > -INFINITY) & (whole ^ 1), NAN, power)


def _doubles_power(kit: Kit, x: Register, y: Register, careful: bool) -> Register:
    """``careful`` keeps the logarithm in two parts."""
    magnitude = kit.abs(x)
    if careful:
        log_high, log_low = _log_in_parts(kit, magnitude)
        product, product_low = kit.two_product(y, log_high)
        product_low = kit.fma(y, log_low, product_low)
        finite = kit.abs(product) < 800.0
        product_low = kit.where(finite, product_low, kit.const(0.0, "double"))
    else:
        product, product_low = y * log(kit, magnitude), kit.const(0.0, "double")
    bounded = clamped(kit, product, -746.0, 710.0)
    r, n = exp_reduced(kit, bounded)
    result = scaled(kit, exp_polynomial(kit, r + product_low) + 1.0, n)
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
    result = _with_sign(kit, x, y, result)
    result = kit.where(kit.is_nan(x), x, kit.where(kit.is_nan(y), y, result))
    return kit.where(y.equals(0.0), one, kit.where(x.equals(1.0), one, result))


def _two_sum(x: Register, y: Register) -> tuple[Register, Register]:
    """The sum of ``|x| >= |y|`` and its rounding error."""
    total = x + y
    return total, y - (total - x)


def _log_in_parts(kit: Kit, x: Register) -> tuple[Register, Register]:
    """The logarithm of a positive double as a sum of two: ten more bits than one holds."""
    m, e = frexp(kit, x)
    f = m - 1.0
    above, above_low = _two_sum(kit.const(2.0, "double"), f)
    s = f / above
    product, product_low = kit.two_product(s, above)
    s_low = ((f - product) - product_low - s * above_low) / above
    z = s * s
    cubed = s * z
    tail = cubed * kit.polynomial(z, p.LOG_F64)
    high, low = LN2["double"]
    whole = e * high
    # |e| * ln(2) is 0 or larger than the fraction's logarithm.
    head, head_low = _two_sum(whole, s * 2.0)
    near = kit.where(e.equals(0.0), s * 2.0, head)
    near_low = kit.where(e.equals(0.0), kit.const(0.0, "double"), head_low)
    return _two_sum(near, near_low + (tail + s_low * 2.0 + e * low))
