"""Copies that swap two axes, by squares of vectors transposed in registers.

Element by element such a copy either reads or writes with a stride: one element an instruction. A square of as many rows
as a vector has lanes is read by rows, transposed by a network of shuffles (in step s the off-diagonal blocks of size s
change places) and written by rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from relay.codegen.builder import Builder, vec
from relay.ir.types import dtype_bits
from relay.loop.ir import For, Store
from relay.te.index import Indices
from relay.te.scalar import Axis, Load, walk


@dataclass(frozen=True, slots=True, eq=False)
class TransposingCopy:
    """``inner`` inside a loop, around the one store: memory is read along ``inner`` and written along the outer loop."""

    inner: For
    store: Store


def transposing_copy(loop: For) -> TransposingCopy | None:
    """See a loop as a copy that swaps its two axes, if it is one of 32-bit elements."""
    inner = loop.body
    if not isinstance(inner, For) or not isinstance(inner.body, Store) or loop.kind != "serial":
        return None
    store = inner.body
    if inner.kind not in ("serial", "vectorized") or not isinstance(store.value, Load):
        return None
    value = store.value
    if value.dtype != store.buffer.dtype or dtype_bits(value.dtype) != 32 or value.source is store.buffer:
        return None
    if len(value.indices) != 1 or len(store.indices) != 1 or _mentions(inner, loop.var):
        return None
    if any(isinstance(n, Load) for root in (*value.indices, *store.indices) for n in walk(root)):
        return None
    indices = Indices()
    read, written = indices.poly(value.indices[0]), indices.poly(store.indices[0])
    steps = [indices.coefficient(p, a) for p in (read, written) for a in (loop.var, inner.var)]
    if any(s is None for s in steps) or steps[1] != 1 or steps[2] != 1 or steps[0] == 1:
        return None
    return TransposingCopy(inner, store)


def _mentions(loop: For, axis: Axis) -> bool:
    return any(n is axis for n in walk(loop.extent))


def transposed(builder: Builder, rows: list[str], element: str) -> list[str]:
    """The columns of a square whose rows are these vectors."""
    lanes = len(rows)
    type_ = vec(element, lanes)
    size = 1
    while size < lanes:
        new = list(rows)
        for first in (n for n in range(lanes) if not n & size):
            a, b = rows[first], rows[first + size]
            for offset, at in ((0, first), (size, first + size)):
                # Of each pair of neighbouring blocks one comes from the first vector, one from the second.
                order = [k + offset if not k & size else lanes + k - size + offset for k in range(lanes)]
                picks = ", ".join(f"i32 {n}" for n in order)
                new[at] = builder.emit(f"shufflevector {type_} {a}, {type_} {b}, <{lanes} x i32> <{picks}>")
        rows = new
        size *= 2
    return rows
