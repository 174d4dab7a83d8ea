"""Transposing a block of memory by square blocks in registers.

A square of ``L`` by ``L`` elements, ``L`` being the lanes of a vector register, is read as groups of 128 bits: vector
``(c, r)`` is made of the c-th group of the rows ``r``, ``r + G``, ``r + 2G``, ... (``G`` elements to a group), which
takes loads and insertions only. Exchanging elements inside the groups is then enough, in ``log2 G`` steps of
interleaving. A matrix with fewer columns than that goes by strips, ``L`` rows of a group each. A last block that is not full begins
earlier and overlaps the one before; a matrix smaller than a strip goes element by element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relay.codegen.builder import vec
from relay.codegen.frame import Frame
from relay.codegen.memory import Place, local_type
from relay.codegen.values import Value, is_packed, memory_bytes, memory_type

Counted = Callable[[Value, Value, int, Callable[[Value], None]], None]
_GROUP_BYTES = 16


@dataclass(frozen=True, slots=True)
class Block:
    """Where a matrix is: its first element, and how far apart its rows are."""

    place: Place
    start: Value
    pitch: Value


def transpose(f: Frame, target: Block, source: Block, rows: Value, columns: Value, counted: Counted) -> None:
    """``target[j, i] = source[i, j]`` for ``i < rows``, ``j < columns``. ``counted`` writes a loop."""
    a, b = f.arith, f.builder

    def element(i: Value, j: Value) -> None:
        read = f.memory.load(source.place, _at(f, source, i, j), 1, "", False)
        f.memory.store(target.place, _at(f, target, j, i), read, "")

    def one_by_one() -> None:
        counted(a.index(0), rows, 1, lambda i: counted(a.index(0), columns, 1, lambda j: element(i, j)))

    lanes = min(_lanes(f, target.place), _lanes(f, source.place))
    if lanes < 2:
        one_by_one()
        return

    def blocks(across: int) -> None:
        """By blocks of ``lanes`` rows and ``across`` columns."""
        last_i, last_j = a.binary("sub", rows, a.index(lanes)), a.binary("sub", columns, a.index(across))

        def line(i: Value) -> None:
            here = a.binary("min", i, last_i)
            counted(
                a.index(0),
                columns,
                across,
                lambda j: _block(f, target, source, here, a.binary("min", j, last_j), lanes, across),
            )

        counted(a.index(0), rows, lanes, line)

    def choose(enough: Value, one: Callable[[], None], other: Callable[[], None]) -> None:
        if enough.const is not None:
            (one if enough.const else other)()
            return
        wide, narrow, join = b.name("blocks"), b.name("elements"), b.name("transposed")
        b.branch(enough.text, wide, narrow)
        for label, part in ((wide, one), (narrow, other)):
            b.start(label)
            part()
            b.jump(join)
        b.start(join)

    group = _GROUP_BYTES // memory_bytes(target.place.dtype)
    # Rows are ``lanes`` at least, and columns are ``across``.
    strip, square = (
        a.compare("ge", a.binary("min", rows, a.binary("mul", columns, a.index(lanes // across))), a.index(lanes))
        for across in (group, lanes)
    )
    choose(square, lambda: blocks(lanes), lambda: choose(strip, lambda: blocks(group), one_by_one))


def _lanes(f: Frame, place: Place) -> int:
    """The side of a square; below 2: elements do not fill groups, or are not in memory as they are elsewhere."""
    if is_packed(place.dtype) or (place.local and local_type(place.dtype) != memory_type(place.dtype)):
        return 0
    size = memory_bytes(place.dtype)
    return 0 if size > _GROUP_BYTES // 2 else f.target.vector_bits // 8 // size


def _at(f: Frame, block: Block, row: Value, column: Value) -> Value:
    a = f.arith
    return a.binary("add", a.binary("add", block.start, a.binary("mul", row, block.pitch)), column)


def _block(f: Frame, target: Block, source: Block, i: Value, j: Value, lanes: int, across: int) -> None:
    b, size, element = f.builder, memory_bytes(target.place.dtype), memory_type(target.place.dtype)
    group = _GROUP_BYTES // size
    count = lanes // group
    type_ = vec(element, lanes)

    def address(block: Block, row: Value, column: Value) -> str:
        return f.memory.element(block.place.pointer, element, _at(f, block, row, column).text)

    def row_of(row: int) -> str:
        return address(source, f.arith.binary("add", i, f.arith.index(row)), j)

    pointers = [row_of(r) for r in range(lanes)]
    for c in range(across // group):
        vectors = [_gathered(f, pointers, r, c, count, group, element, size, source) for r in range(group)]
        for _ in range(group.bit_length() - 1):
            vectors = _interleaved(f, vectors, lanes, group, type_)
        for r, text in enumerate(vectors):
            row = f.arith.binary("add", j, f.arith.index(c * group + r))
            b.do(f"store {type_} {text}, ptr {address(target, row, i)}, align {size}{target.place.metadata}")


def _gathered(
    f: Frame, pointers: list[str], r: int, c: int, count: int, group: int, element: str, size: int, source: Block
) -> str:
    """The c-th groups of the rows ``r``, ``r + group``, ... one after the other."""
    b, type_ = f.builder, vec(element, group)
    parts = []
    for n in range(count):
        pointer = f.memory.element(pointers[r + n * group], element, str(c * group))
        parts.append(b.emit(f"load {type_}, ptr {pointer}, align {size}{source.place.metadata}"))
    width = group
    while len(parts) > 1:
        order = ", ".join(f"i32 {n}" for n in range(2 * width))
        half = vec(element, width)
        parts = [
            b.emit(f"shufflevector {half} {parts[n]}, {half} {parts[n + 1]}, <{2 * width} x i32> <{order}>")
            for n in range(0, len(parts), 2)
        ]
        width *= 2
    return parts[0]


def _interleaved(f: Frame, vectors: list[str], lanes: int, group: int, type_: str) -> list[str]:
    """One step of the perfect shuffle: vectors half the list apart alternate element by element inside each group.
    After ``log2(group)`` steps the groups are transposed, in order."""
    out: list[str] = []
    half = group // 2
    for n in range(half):
        for part in (0, half):
            order: list[int] = []
            for first in range(part, lanes, group):
                for at in range(first, first + half):
                    order += [at, lanes + at]
            numbers = ", ".join(f"i32 {o}" for o in order)
            pair = f"{type_} {vectors[n]}, {type_} {vectors[n + half]}"
            out.append(f.builder.emit(f"shufflevector {pair}, <{lanes} x i32> <{numbers}>"))
    return out
