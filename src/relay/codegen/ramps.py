"""Quotients and remainders of ramps (`relay.codegen.values`) by numbers, without a division for each lane.

What lanes are beyond a multiple of the divisor before the first one is little: it is divided by a multiplication, and where the divisor
divides the base it is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.codegen.builder import vec
from relay.codegen.runs import combined
from relay.codegen.values import Value
from relay.te.scalar import BinaryOp

if TYPE_CHECKING:
    from relay.codegen.arith import Arithmetic

# Of numbers below this, and divisors up to it, ``n * ceil(2**32 / d) >> 32`` is the quotient: the inverse is too large by less than
# ``d / 2**32``, so the product by less than what is left to the next one.
_LITTLE = 1 << 15
_BITS = 32


def divided(arith: Arithmetic, op: BinaryOp, ramp: Value, base: Value, divisor: int) -> Value | None:
    """``floordiv`` or ``mod`` of a ramp with this base by a number above 1; None where it is done otherwise: by a shift, or lanes fall, or
    are far apart."""
    emit, lanes, type_ = arith.b.emit, ramp.lanes, vec("i64", ramp.lanes)
    steps = [n * ramp.stride for n in range(lanes)]
    by = arith.index(divisor)
    runs = combined(op, ramp, by, lanes)

    def numbers(values: list[int]) -> str:
        return f"<{', '.join(f'i64 {n}' for n in values)}>"

    def spread(text: str) -> str:
        return arith.splat("i64", text, lanes)

    if base.multiple % divisor == 0:
        if op == "mod":
            text = numbers([n % divisor for n in steps])
        else:
            text = emit(
                f"add {type_} {spread(arith.binary('floordiv', base, by).text)}, {numbers([n // divisor for n in steps])}"
            )
    elif divisor & (divisor - 1) and ramp.stride > 0 and divisor <= _LITTLE and steps[-1] + divisor <= _LITTLE:
        first = arith.binary("floordiv", base, by)
        # That what is left has few bits lets LLVM multiply halves.
        left = emit(f"and i64 {arith.binary('sub', base, arith.binary('mul', first, by)).text}, {_LITTLE - 1}")
        places = emit(f"add {type_} {spread(left)}, {numbers(steps)}")
        inverse = emit(f"mul {type_} {places}, {spread(str(-(-(1 << _BITS) // divisor)))}")
        text = emit(f"lshr {type_} {inverse}, {spread(str(_BITS))}")
        if op == "mod":
            whole = emit(f"mul {type_} {text}, {spread(str(divisor))}")
            text = emit(f"sub {type_} {places}, {whole}")
        else:
            text = emit(f"add {type_} {spread(first.text)}, {text}")
    else:
        return None
    return Value(
        text, "int64", lanes, multiple=runs.multiple, nonneg=ramp.nonneg, run=runs.length, rise=runs.rise, placed=ramp.is_placed,
    )  # fmt: skip
