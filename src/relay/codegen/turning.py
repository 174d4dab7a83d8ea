"""Transposing a block of memory by square blocks in registers.

A square of ``L`` by ``L`` elements, ``L`` being the lanes of a vector register, is read as groups of 128 bits: vector
``(c, r)`` is made of the c-th group of the rows ``r``, ``r + G``, ``r + 2G``, ... (``G`` elements to a group), which
takes loads and insertions only. Exchanging elements inside the groups is then enough, in ``log2 G`` steps of
interleaving. A matrix with fewer columns than that goes by strips, ``L`` rows of a group each, one with fewer rows by
bands, ``G`` rows of a vector each, of which the groups are stored one by one. One that has no such block goes by smaller
squares, down to a group a side, and if it is smaller than that, element by element. A last block that is not full begins
earlier and overlaps the one before. A block is hundreds of instructions, so the module has one function for each kind of
block, which everything that is turned calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from relay.codegen.builder import vec
from relay.codegen.frame import Frame
from relay.codegen.memory import Place, local_type
from relay.codegen.values import Value, is_packed, memory_bytes, memory_type
from relay.ir.record import record

_GROUP_BYTES = 16
# So many lines are few.
_FEW = 32


@record(frozen=True, slots=True)
class Block:
    """Where a matrix is: its first element, and how far apart its rows are."""

    place: Place
    start: Value
    pitch: Value


def transpose(f: Frame, target: Block, source: Block, rows: Value, columns: Value) -> None:
    """``target[j, i] = source[i, j]`` for ``i < rows``, ``j < columns``."""
    lanes, dtype = min(_lanes(f, target.place), _lanes(f, source.place)), target.place.dtype
    if lanes < 2:
        _one_by_one(f, target, source, rows, columns)
        return
    group = _GROUP_BYTES // memory_bytes(dtype)
    squares = [lanes >> n for n in range(1, lanes.bit_length()) if lanes >> n >= group]
    ways = [(lanes, lanes), (lanes, group), (group, lanes), *((side, side) for side in squares)]
    known = _known(f, rows, columns, ways)
    if known is not None:
        _blocks(f, target, source, rows, columns, known)
        return
    # What decides is known when it runs: a function of the module's that chooses. A few lines on the stack go by strips or bands alone,
    # which take hardly longer than squares, and far less code.
    few_rows, few_columns = (_lines(b) in range(1, _FEW + 1) for b in (source, target))
    name = f"turn_{dtype}"
    if few_rows or few_columns:
        name += "_lines" if few_rows else "_columns"
        ways = [(group, lanes) if few_rows else (lanes, group), (group, group)]
    if f.builder.module.lacks(name):
        with _helper(f, name, dtype, ("rows", "columns")) as (inner, turned, given, (down, across)):
            _choose(inner, turned, given, down, across, ways)
    sides = [f"ptr {_address(f, b, f.arith.index(0), f.arith.index(0))}, i64 {b.pitch.text}" for b in (target, source)]
    f.builder.do(f"call void @{name}({', '.join(sides)}, i64 {rows.text}, i64 {columns.text})")


def _lines(block: Block) -> int:
    """How many rows a block on the stack has at most; 0: it is elsewhere, or nobody knows."""
    pitch = block.pitch.const
    return block.place.room // int(pitch) if block.place.local and pitch else 0


def _known(f: Frame, rows: Value, columns: Value, ways: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """The first kind of block of which there is a whole one, where that is known."""
    for down, across in ways:
        enough = _enough(f, rows, columns, down, across)
        if enough.const:
            return down, across
        if enough.const is None and not any(
            n.const is not None and n.const < least for n, least in ((rows, down), (columns, across))
        ):
            return None
    return None


def _enough(f: Frame, rows: Value, columns: Value, down: int, across: int) -> Value:
    a = f.arith
    least = a.binary("min", a.binary("mul", rows, a.index(across)), a.binary("mul", columns, a.index(down)))
    return a.compare("ge", least, a.index(down * across))


def _choose(
    f: Frame, target: Block, source: Block, rows: Value, columns: Value, ways: Sequence[tuple[int, int]]
) -> None:
    """By the first kind of block of which there is a whole one, else element by element."""
    b, join = f.builder, f.builder.name("transposed")
    for down, across in ways:
        wide, narrow = b.name("blocks"), b.name("elements")
        b.branch(_enough(f, rows, columns, down, across).text, wide, narrow)
        b.start(wide)
        _blocks(f, target, source, rows, columns, (down, across))
        b.jump(join)
        b.start(narrow)
    _one_by_one(f, target, source, rows, columns)
    b.jump(join)
    b.start(join)


def _one_by_one(f: Frame, target: Block, source: Block, rows: Value, columns: Value) -> None:
    zero = f.arith.index(0)

    def element(i: Value, j: Value) -> None:
        read = f.memory.load(source.place, _at(f, source, i, j), 1, "", False)
        f.memory.store(target.place, _at(f, target, j, i), read, "")

    f.counted(zero, rows, 1, lambda i: f.counted(zero, columns, 1, lambda j: element(i, j)))


def _blocks(f: Frame, target: Block, source: Block, rows: Value, columns: Value, kind: tuple[int, int]) -> None:
    """By blocks of so many rows and columns. The short side is gone through first: what is read or written a group at a time is wanted
    again for the next group."""
    a, (down, across) = f.arith, kind
    sizes = ((rows, down), (columns, across)) if down >= across else ((columns, across), (rows, down))
    (long, step), (short, inner) = sizes
    last_long, last_short = a.binary("sub", long, a.index(step)), a.binary("sub", short, a.index(inner))

    def line(n: Value) -> None:
        here = a.binary("min", n, last_long)

        def one(m: Value) -> None:
            there = a.binary("min", m, last_short)
            i, j = (here, there) if down >= across else (there, here)
            _block(f, target, source, i, j, down, across)

        f.counted(a.index(0), short, inner, one)

    f.counted(a.index(0), long, step, line)


def _lanes(f: Frame, place: Place) -> int:
    """The side of a square; below 2: elements do not fill groups, or are not in memory as they are elsewhere."""
    if is_packed(place.dtype) or (place.local and local_type(place.dtype) != memory_type(place.dtype)):
        return 0
    size = memory_bytes(place.dtype)
    return 0 if size > _GROUP_BYTES // 2 else f.target.vector_bits // 8 // size


def _at(f: Frame, block: Block, row: Value, column: Value) -> Value:
    a = f.arith
    return a.binary("add", a.binary("add", block.start, a.binary("mul", row, block.pitch)), column)


def _address(f: Frame, block: Block, row: Value, column: Value) -> str:
    return f.builder.element(block.place.pointer, memory_type(block.place.dtype), _at(f, block, row, column).text)


@contextmanager
def _helper(
    f: Frame, name: str, dtype: str, numbers: Sequence[str] = ()
) -> Iterator[tuple[Frame, Block, Block, list[Value]]]:
    """A function of the module's: its frame, the blocks that it is given (where they begin, and how far apart their rows are; the target
    first), and ``numbers`` that it is given."""
    inner = Frame(f.builder.module, f.target, ())
    target, source = (
        Block(Place(f"%{n}", (), dtype, memory_bytes(dtype)), inner.arith.index(0), Value(f"%{n}.pitch", "int64"))
        for n in ("target", "source")
    )
    yield inner, target, source, [Value(f"%{n}", "int64", nonneg=True) for n in numbers]
    inner.builder.do("ret void")
    parameters = "ptr noalias %target, i64 %target.pitch, ptr noalias %source, i64 %source.pitch"
    given = "".join(f", i64 %{n}" for n in numbers)
    inner.builder.finish(f"define internal void @{name}({parameters}{given}) noinline #0")


def _block(f: Frame, target: Block, source: Block, i: Value, j: Value, rows: int, columns: int) -> None:
    """Turn the block of ``rows`` by ``columns`` that begins in row ``i`` and column ``j`` of the source."""
    dtype = target.place.dtype
    name = f"turn_{memory_type(dtype)}_{rows}x{columns}"
    if f.builder.module.lacks(name):
        with _helper(f, name, dtype) as (inner, turned, given, _):
            _write_block(inner, turned, given, rows, columns)
    sides = ((target, j, i), (source, i, j))
    f.builder.do(
        f"call void @{name}({', '.join(f'ptr {_address(f, *side)}, i64 {side[0].pitch.text}' for side in sides)})"
    )


def _write_block(f: Frame, target: Block, source: Block, rows: int, columns: int) -> None:
    b, size, element = f.builder, memory_bytes(target.place.dtype), memory_type(target.place.dtype)
    group = _GROUP_BYTES // size

    def line(block: Block, row: int) -> str:
        return _address(f, block, f.arith.index(row), f.arith.index(0))

    def store(column: int, type_: str, text: str) -> None:
        b.do(f"store {type_} {text}, ptr {line(target, column)}, align {size}")

    pointers = [line(source, r) for r in range(rows)]
    if rows == group:
        type_, part = vec(element, columns), vec(element, group)
        lines = [b.emit(f"load {type_}, ptr {p}, align {size}") for p in pointers]
        for n, text in enumerate(_turned(f, lines, columns, group, type_)):
            for c in range(columns // group):
                store(c * group + n, part, b.lanes(text, type_, range(c * group, (c + 1) * group)))
        return
    count, type_ = rows // group, vec(element, rows)
    for c in range(columns // group):
        vectors = [_gathered(f, pointers, r, c, count, group, element, size) for r in range(group)]
        for n, text in enumerate(_turned(f, vectors, rows, group, type_)):
            store(c * group + n, type_, text)


def _turned(f: Frame, vectors: list[str], lanes: int, group: int, type_: str) -> list[str]:
    """As many vectors as a group has elements, each group of which is turned with its like in the others."""
    for _ in range(group.bit_length() - 1):
        vectors = _interleaved(f, vectors, lanes, group, type_)
    return vectors


def _gathered(f: Frame, pointers: list[str], r: int, c: int, count: int, group: int, element: str, size: int) -> str:
    """The c-th groups of the rows ``r``, ``r + group``, ... one after the other."""
    b, type_ = f.builder, vec(element, group)
    parts = []
    for n in range(count):
        pointer = f.builder.element(pointers[r + n * group], element, str(c * group))
        parts.append(b.emit(f"load {type_}, ptr {pointer}, align {size}"))
    width = group
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [b.shuffled(vec(element, width), x, y, range(2 * width)) for x, y in pairs]
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
            out.append(f.builder.shuffled(type_, vectors[n], vectors[n + half], order))
    return out
