"""The circular functions and their inverses."""

from __future__ import annotations

import math
from collections.abc import Sequence

from relay.codegen import polynomials as p
from relay.codegen.registers import INFINITY, MAGIC, Kit, Register
from relay.codegen.turns import reduced

# pi/2 as a sum, the leading part to few enough bits that multiples of it up to 2**20 are exact, or (to be multiplied and
# subtracted with one rounding) to all of them.
_HALF_PI_SHORT = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487959506e-21)
_HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)
_PI_2_LOW = _HALF_PI[1]
# Numbers up to here are reduced by subtracting multiples of them.
_FAR, _FAR_SHORT = 3e13, 1e6
# pi as a sum of floats. With multiplications and subtractions rounded once, taking multiples of it from numbers up to the limit
# is exact but for the last two parts, and the multiple chosen is off the nearest by a thousandth at most.
_PI_FLOATS = (3.1415927410125732, -8.742277657347586e-08, -3.4302490200117637e-15)
_NEAR_FLOATS = 1e5


def _quadrant(kit: Kit, given: Register) -> tuple[Register, Register]:
    """``(r, n)``: a number less n quarter turns, ``|r| <= pi/4``, in double; of infinities and nan r is nan."""
    x = kit.widen(given) if given.element == "float" else given
    whole = kit.nearest(x, 2 / math.pi)
    rest = x
    for part in _HALF_PI if kit.a.target.fma else _HALF_PI_SHORT:
        rest = kit.fma(whole, -part, rest)
    number = kit.as_integer(whole)
    huge = kit.abs(given) > (_FAR if kit.a.target.fma else _FAR_SHORT)

    def deep() -> tuple[Register, Register]:
        turned, turns = reduced(kit, x)  # infinities stay, and less themselves are nan
        return kit.where(huge, turned + (turned - turned), rest), kit.where(huge, turns, number)

    rest, number = kit.rarely(huge, (rest, number), deep)
    return rest, number


def _sin_polynomial(kit: Kit, r: Register, coefficients: Sequence[float]) -> Register:
    z = r * r
    return kit.fma(r * z, kit.polynomial(z, coefficients), r)


def _cos_polynomial(kit: Kit, r: Register, coefficients: Sequence[float]) -> Register:
    z = r * r
    half = z * 0.5
    main = 1.0 - half
    lost = (1.0 - main) - half
    return main + kit.fma(z * z, kit.polynomial(z, coefficients), lost)


def _by_quadrants(kit: Kit, x: Register, turn: int) -> Register:
    """The sine (turn 0) or cosine (turn 1), from that of what is left of the angle within an eighth of a turn."""
    single = x.element == "float"
    r, n = _quadrant(kit, x)
    r = kit.narrow(r) if single else r
    n = n + turn
    odd = (n & 1).equals(1)
    s = _sin_polynomial(kit, r, p.SIN_F32 if single else p.SIN_F64)
    c = _cos_polynomial(kit, r, p.COS_F32 if single else p.COS_F64)
    value = kit.where(odd, c, s)
    value = kit.where((n & 2).equals(2), -value, value)
    return value if turn else kit.where(x.equals(0.0), x, value)


def _by_half_turns(kit: Kit, x: Register, turn: int) -> Register:
    """The sine (turn 0) or cosine (turn 1) of floats, in floats: less a whole number of half turns (for the cosine a half more)
    an angle is within a quarter turn, where the sine is one odd polynomial; each half turn changes its sign. For machines that
    multiply and subtract with one rounding. Numbers beyond the limit take the way of the others."""
    magnitude = kit.abs(x)
    shifted = kit.fma(magnitude, 1 / math.pi, MAGIC["float"] if turn == 0 else 0.5)
    shifted = shifted if turn == 0 else shifted + MAGIC["float"]
    whole = shifted - MAGIC["float"]
    r, halves = magnitude, whole if turn == 0 else whole - 0.5
    for part in _PI_FLOATS:
        r = kit.fma(halves, -part, r)
    z = r * r
    value = kit.fma(r * z, kit.polynomial(z, p.SIN_HALF_TURN_F32), r)
    sign = kit.bits(shifted) << 31
    if turn == 0:
        sign = sign ^ (kit.bits(x) & -(1 << 31))
    value = kit.from_bits(kit.bits(value) ^ sign)
    far = magnitude > _NEAR_FLOATS
    # Lane by lane: a result does not depend on what else is in its vector.
    (value,) = kit.rarely(far, (value,), lambda: (kit.where(far, _by_quadrants(kit, x, turn), value),))
    return value


def _sin_cos(kit: Kit, x: Register, turn: int) -> Register:
    return (_by_half_turns if x.element == "float" and kit.a.target.fma else _by_quadrants)(kit, x, turn)


def sin(kit: Kit, x: Register) -> Register:
    return _sin_cos(kit, x, 0)


def cos(kit: Kit, x: Register) -> Register:
    return _sin_cos(kit, x, 1)


def _tan_by_quarter_turns(kit: Kit, x: Register) -> Register:
    """Of floats, in floats: less a whole number of quarter turns an angle is within an eighth of a turn, where the tangent is one odd
    polynomial, and of odd quarter turns it is -1 over that. What rounding takes from the angle and from the polynomial is kept
    beside them, because near its poles the tangent is as wrong as they are. For machines that multiply and subtract with one
    rounding. Numbers beyond the limit take the way of doubles."""
    shifted = kit.fma(x, 2 / math.pi, MAGIC["float"])
    whole = shifted - MAGIC["float"]
    first, second, third = (part / 2 for part in _PI_FLOATS)
    near = kit.fma(whole, -first, x)
    less = whole * -second
    lost = kit.fma(whole, -second, -less)
    r = near + less
    back = r - near
    rest = (near - (r - back)) + (less - back)
    rest = kit.fma(whole, -third, rest + lost)
    near, r = r, r + rest
    rest = rest - (r - near)
    z = r * r
    bend = r * z * kit.polynomial(z, p.TAN_F32)
    tangent = r + bend
    rest = (bend - (tangent - r)) + rest * kit.fma(tangent, tangent, 1.0)
    inverse = -1.0 / tangent
    wrong = kit.fma(inverse, rest, kit.fma(inverse, tangent, 1.0))
    odd = (kit.bits(shifted) & 1).equals(1)
    value = kit.where(odd, kit.fma(inverse, wrong, inverse), tangent + rest)
    value = kit.where(x.equals(0.0), x, value)
    far = kit.abs(x) > _NEAR_FLOATS
    (value,) = kit.rarely(far, (value,), lambda: (kit.where(far, _tan_by_quadrants(kit, x), value),))
    return value


def tan(kit: Kit, x: Register) -> Register:
    return (_tan_by_quarter_turns if x.element == "float" and kit.a.target.fma else _tan_by_quadrants)(kit, x)


def _tan_by_quadrants(kit: Kit, x: Register) -> Register:
    """Of floats in double, where neither sine nor cosine is rounded to a float before the division."""
    single = x.element == "float"
    r, n = _quadrant(kit, x)
    odd = (n & 1).equals(1)
    s = _sin_polynomial(kit, r, p.SIN_F32 if single else p.SIN_F64)
    c = _cos_polynomial(kit, r, p.COS_F32 if single else p.COS_F64)
    quotient = kit.where(odd, -c, s) / kit.where(odd, s, c)
    return kit.where(x.equals(0.0), x, kit.narrow(quotient) if single else quotient)


def _asin_small(kit: Kit, x: Register) -> Register:
    """What to add to x to get its arc sine, for ``|x| <= 1/2``."""
    z = x * x
    return x * z * kit.polynomial(z, p.ASIN_F32 if x.element == "float" else p.ASIN_F64)


def asin(kit: Kit, x: Register) -> Register:
    magnitude = kit.abs(x)
    large = magnitude > 0.5
    root = kit.sqrt((1.0 - magnitude) * 0.5)
    argument = kit.where(large, root, magnitude)
    small = _asin_small(kit, argument)
    low = _PI_2_LOW if x.element == "double" else -4.3711390001862426e-08
    # The first difference is exact where the result is small.
    outer = (math.pi / 2 - argument * 2.0) - (small * 2.0 - low)
    return kit.copysign(kit.where(large, outer, argument + small), x)


def acos(kit: Kit, x: Register) -> Register:
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


def atan(kit: Kit, x: Register) -> Register:
    return kit.copysign(_atan_reduced(kit, kit.abs(x)), x)


def atan2(kit: Kit, y: Register, x: Register) -> Register:
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
