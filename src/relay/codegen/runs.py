"""Vectors of indices whose lanes come in runs: ``(j // 4) * 100 + j % 4`` reaches four neighbours, and then four others.

What is read or written at such places is a few short vectors, in place of as many single elements as there are lanes.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from relay.codegen.values import Value
from relay.te.scalar import BinaryOp


class Runs(NamedTuple):
    """``length`` lanes after each other, each ``rise`` more than the one before; ``multiple`` divides the first lane of every run."""

    length: int
    rise: int
    multiple: int


def runs_of(value: Value, lanes: int) -> Runs:
    """A value as runs of a vector of so many lanes."""
    if value.is_ramp or value.is_uniform:
        return Runs(lanes, value.stride, value.multiple)
    return Runs(value.run, value.rise, value.multiple)


def combined(op: BinaryOp, a: Value, b: Value, lanes: int) -> Runs:
    """The runs of the result of an operation on indices."""
    x, y = runs_of(a, lanes), runs_of(b, lanes)
    if op in ("floordiv", "mod"):
        divisor = b.const
        if not isinstance(divisor, int) or divisor <= 0 or x.rise != 1:
            return Runs(1, 0, 1)
        # Up to the next multiple of the divisor the quotient is one, and the remainder goes up.
        length = gcd(x.length, divisor, x.multiple)
        return Runs(length, 0, 1) if op == "floordiv" else Runs(length, 1, length)
    length = gcd(x.length, y.length)
    first, second = (gcd(r.multiple, length * r.rise) for r in (x, y))
    match op:
        case "add" | "sub":
            return Runs(length, x.rise + y.rise if op == "add" else x.rise - y.rise, gcd(first, second))
        case "mul" if isinstance(b.const, int):
            return Runs(length, x.rise * b.const, first * abs(b.const))
        case "mul" if isinstance(a.const, int):
            return Runs(length, y.rise * a.const, second * abs(a.const))
        case "mul" if x.rise == y.rise == 0:
            return Runs(length, 0, first * second)
        case _:
            return Runs(1, 0, 1)
