"""Remainders and floored quotients of floats: exact remainders for all operands, quotients as NumPy rounds them.

What a division leaves is a number of the dtype, and ``x - trunc(x / y) * y`` computes it without rounding while the quotient has
no more bits than the mantissa. A larger quotient is taken off in pieces of that size, the divisor times a power of two at a
time; that loop is entered only where a lane needs it.
"""

from __future__ import annotations

from relay.codegen.registers import INFINITY, Kit, Register

_MANTISSA = {"float": 24, "double": 53}


def truncated(kit: Kit, x: Register, y: Register) -> Register:
    """C's fmod: exact, with the sign of x; nan for an infinite x or a divisor of 0."""
    return kit.copysign(_magnitude(kit, kit.abs(x), kit.abs(y)), x)


def floored(kit: Kit, x: Register, y: Register) -> Register:
    """The remainder with the sign of y (a zero's too)."""
    rest = truncated(kit, x, y)
    return kit.where(rest.equals(0.0), kit.copysign(rest, y), kit.where(_crosses(rest, y), rest + y, rest))


def floored_quotient(kit: Kit, x: Register, y: Register) -> Register:
    """The quotient rounded towards minus infinity: the whole number nearest to what is left of x without the remainder,
    divided by y. ``x / y`` for a divisor of 0, nan for an infinite x."""
    rest = truncated(kit, x, y)
    quotient = (x - rest) / y
    quotient = kit.where(_crosses(rest, y), quotient - 1.0, quotient)
    whole = kit.rounded("floor", quotient)
    whole = kit.where((quotient - whole) > 0.5, whole + 1.0, whole)
    ratio = x / y
    whole = kit.where(quotient.equals(0.0), kit.copysign(quotient, ratio), whole)
    return kit.where(y.equals(0.0), ratio, whole)


def _crosses(rest: Register, y: Register) -> Register:
    """Whether the truncated quotient, which leaves ``rest``, is not the floored one."""
    return ((rest < 0.0) ^ (y < 0.0)) & (rest.kit.abs(rest) > 0.0)


def _magnitude(kit: Kit, x: Register, y: Register) -> Register:
    """Of numbers that are not negative."""
    quotient = kit.rounded("trunc", x / y)
    rest = _left(kit, x, y, quotient)
    huge = (quotient >= 2.0 ** _MANTISSA[x.element]) & (x < INFINITY) & (y > 0.0)

    def pieces() -> tuple[Register]:
        # Lanes without a huge quotient have nothing left at once.
        return (kit.where(huge, _by_pieces(kit, kit.where(huge, x, 0.0), kit.where(huge, y, 1.0)), rest),)

    return kit.rarely(huge, (rest,), pieces)[0]


def _left(kit: Kit, x: Register, y: Register, quotient: Register) -> Register:
    """``x - quotient * y`` for the truncated quotient as it was rounded: exact, and in ``[0, y)``."""
    if kit.a.target.fma:
        rest = kit.fma(-quotient, y, x)
    elif x.element == "float":
        rest = kit.narrow(kit.widen(x) - kit.widen(quotient) * kit.widen(y))
    else:
        # The halves of a large divisor would overflow; it is scaled down, which is exact wherever the quotient is not 0.
        scale = kit.where(y > 2.0**900, kit.const(2.0**-100, "double"), 1.0)
        product, lost = kit.two_product(quotient, y * scale)
        rest = ((x * scale - product) - lost) / scale
    rest = kit.where(rest < 0.0, rest + y, rest)  # the quotient was rounded over a whole number
    return kit.where(x < y, x, rest)


def _by_pieces(kit: Kit, x: Register, y: Register) -> Register:
    """What is left of x where the quotient has more bits than the mantissa, in a loop over pieces of it."""
    bits, exponent = _MANTISSA[x.element], kit.bits(kit.const(INFINITY, x.element))
    one = kit.bits(kit.const(1.0, x.element))
    normal = kit.where(y < 1.0, y * 2.0**bits, y)
    digits = kit.from_bits((kit.bits(normal) & (exponent ^ -1)) | one)

    def step(left: Register) -> tuple[Register, Register]:
        # y * 2**k, as large as leaves a quotient of bits - 1 or bits - 2 digits; y itself where that is more. What rounds
        # here is less than y.
        power = kit.from_bits(kit.bits(left) & exponent) * 2.0 ** (1 - bits)
        scaled = digits * power
        more = scaled > y
        divisor = kit.where(more, scaled, y)
        return _left(kit, left, divisor, kit.rounded("trunc", left / divisor)), more

    return kit.repeated(x, step)
