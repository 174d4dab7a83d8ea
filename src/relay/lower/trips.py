"""How often a loop of numbers runs, where a counter says it."""

from __future__ import annotations

from collections.abc import Mapping

from relay.ir.types import is_integer
from relay.te.scalar import MIRRORED, Axis, Binary, Compare, CompareOp, Const, Scalar, cast, maximum, substitute, walk

_OPPOSITE: Mapping[CompareOp, CompareOp] = {"lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}


def counts(number: Axis, value: Scalar) -> int | None:
    """The step of a counter: one more or one less each time."""
    if not isinstance(value, Binary) or value.op not in ("add", "sub") or not is_integer(value.dtype):
        return None
    a, b = value.a, value.b
    if value.op == "add" and isinstance(a, Const):
        a, b = b, a
    if a is not number or not isinstance(b, Const) or b.value not in (1, -1):
        return None
    return int(b.value) if value.op == "add" else -int(b.value)


def trips_of(
    condition: Scalar,
    on: bool,
    counters: Mapping[Axis, int],
    given: Mapping[Axis, Scalar],
    known: Mapping[Axis, Scalar],
) -> Scalar | None:
    """How many steps there are until a counter reaches a bound that all steps share (int64): they go on while ``condition`` holds, if
    ``on``, or does not. ``counters``: with their steps; ``given``: what numbers are before the first one; ``known``: those that never
    change. None where it is no such condition."""
    if not isinstance(condition, Compare) or condition.op not in MIRRORED:
        return None
    op = condition.op
    at, bound = condition.a, condition.b
    if at not in counters:
        op, at, bound = MIRRORED[op], bound, at
    if not on:
        op = _OPPOSITE[op]
    if not isinstance(at, Axis) or at not in counters or (counters[at] > 0) != op.startswith("l"):
        return None
    bound = substitute(bound, dict(known))
    if any(isinstance(n, Axis) for n in walk(bound)):
        return None
    first, end = cast(given[at], "int64"), cast(bound, "int64")
    way = end - first if counters[at] > 0 else first - end
    return maximum(way + 1 if op.endswith("e") else way, 0)
