"""Across the lanes of vectors: one element, lanes in another order, all of them combined."""

from __future__ import annotations

from collections.abc import Sequence

from relay.codegen.arith import Arithmetic
from relay.codegen.builder import vec
from relay.codegen.values import Value, register_type
from relay.te.scalar import BinaryOp


def lane(arith: Arithmetic, value: Value, number: int) -> Value:
    """The element in one lane; a scalar is its own."""
    if value.lanes == 1:
        return value
    type_ = vec(register_type(value.dtype), value.lanes)
    return Value(arith.b.emit(f"extractelement {type_} {value.text}, i64 {number}"), value.dtype)


def shuffled(arith: Arithmetic, a: Value, b: Value, which: Sequence[int]) -> Value:
    """Lanes of two vectors of one kind, those of ``b`` numbered behind those of ``a``."""
    type_ = vec(register_type(a.dtype), a.lanes)
    return Value(arith.b.shuffled(type_, a.text, b.text, which), a.dtype, len(which))


def horizontal(arith: Arithmetic, op: BinaryOp, value: Value, numbers: bool = False) -> Value:
    """All lanes combined in a fixed order: halves, then halves of halves. ``numbers``: a float extreme of lanes none of
    which is nan."""
    lanes, text, element = value.lanes, value.text, register_type(value.dtype)
    while lanes > 1:
        half, type_ = lanes // 2, vec(element, lanes)
        if half == 1:
            parts = [arith.b.emit(f"extractelement {type_} {text}, i64 {n}") for n in (0, 1)]
        else:
            parts = [arith.b.lanes(text, type_, range(start, start + half)) for start in (0, half)]
        a, b = (Value(part, value.dtype, half) for part in parts)
        lanes, text = half, (arith.extreme(op, a, b) if numbers else arith.binary(op, a, b)).text
    return Value(text, value.dtype)


def horizontals(arith: Arithmetic, op: BinaryOp, values: Sequence[Value]) -> list[Value]:
    """`horizontal` of several vectors of one kind, in as many shuffles as needed for about one: halves of two
    vectors are combined in one register, until one register holds a lane or more of each. Gives registers whose lanes
    are the results in order."""
    out: list[Value] = []
    start = 0
    while start < len(values):
        count = min(1 << ((len(values) - start).bit_length() - 1), values[start].lanes)
        out.append(_together(arith, op, values[start : start + count]))
        start += count
    return out


def _together(arith: Arithmetic, op: BinaryOp, values: Sequence[Value]) -> Value:
    """The values are a power of two and not more than their lanes."""
    lanes, dtype, element = values[0].lanes, values[0].dtype, register_type(values[0].dtype)
    if len(values) == 1:
        return horizontal(arith, op, values[0])
    texts = [v.text for v in values]
    items, each, type_ = 1, lanes, vec(element, lanes)
    while len(texts) > 1:
        half, paired = each // 2, []
        for a, b in zip(texts[::2], texts[1::2], strict=True):
            halves: list[Value] = []
            for part in (0, half):
                order = [n * each + part + e for n in range(2 * items) for e in range(half)]
                halves.append(Value(arith.b.shuffled(type_, a, b, order), dtype, lanes))
            paired.append(arith.binary(op, halves[0], halves[1]).text)
        texts, items, each = paired, 2 * items, half
    (text,) = texts
    while each > 1:
        half, type_ = each // 2, vec(element, items * each)
        orders = ([n * each + part + e for n in range(items) for e in range(half)] for part in (0, half))
        parts = (Value(arith.b.lanes(text, type_, order), dtype, items * half) for order in orders)
        text = arith.binary(op, *parts).text
        each = half
    return Value(text, dtype, items)
