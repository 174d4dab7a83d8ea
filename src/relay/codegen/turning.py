"""Transposing a block of memory by square blocks in registers.

A square of ``L`` by ``L`` elements, ``L`` being the lanes of a vector register, is read as groups of 128 bits: vector
``(c, r)`` is made of the c-th group of the rows ``r``, ``r + G``, ``r + 2G``, ... (``G`` elements to a group), which
takes loads and insertions only. Exchanging elements inside the groups is then enough, in ``log2 G`` steps of
interleaving. A matrix with fewer columns than that goes by strips, ``L`` rows of a group each, one with fewer rows by
bands, ``G`` rows of a vector each, of which the groups are stored one by one. One that has no such block goes by smaller
squares, down to a group a side, and if it is smaller than that, element by element. A last block that is not full begins
earlier and overlaps the one before. A block is hundreds of instructions, so the module has one function for each kind of
block, which everything that is turned calls.

Two to four lines that fill no group (the channels of an image, coordinates), and whose elements lie one of each after the other on
the other side, are taken apart, or put together, by lanes: a vector of each line is as many vectors of that side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from relay.codegen.builder import vec
from relay.codegen.frame import Frame
from relay.codegen.memory import Place, local_type
from relay.codegen.values import Value, is_packed, memory_bytes, memory_type
from relay.ir.record import record

_GROUP_BYTES = 16
# So many lines are few.
_FEW = 32
# Lines that are taken apart or put together by lanes: each vector takes a shuffle for every one of them.
_SCATTERED = (2, 3, 4)


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
    scattered = [(count, joins) for count in _SCATTERED if count % group for joins in (True, False)]
    for count, joins in scattered:
        if _are_scattered(f, target, source, rows, columns, count, joins, lanes).const:
            _by_lanes(f, target, source, columns if joins else rows, count, joins, lanes)
            return
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
        scattered = [(count, joins) for count, joins in scattered if joins == few_rows]
    if f.builder.module.lacks(name):
        with _helper(f, name, dtype, ("rows", "columns")) as (inner, turned, given, (down, across)):
            _choose(inner, turned, given, down, across, ways, scattered)
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
    f: Frame,
    target: Block,
    source: Block,
    rows: Value,
    columns: Value,
    ways: Sequence[tuple[int, int]],
    scattered: Sequence[tuple[int, bool]],
) -> None:
    """By lanes where there are few lines, else by the first kind of block of which there is a whole one, or element by element."""
    b, join = f.builder, f.builder.name("transposed")
    lanes = min(_lanes(f, target.place), _lanes(f, source.place))

    def choice(holds: Value, block: Callable[[], None]) -> None:
        chosen, other = b.name("blocks"), b.name("others")
        b.branch(holds.text, chosen, other)
        b.start(chosen)
        block()
        b.jump(join)
        b.start(other)

    for count, joins in scattered:
        along = columns if joins else rows
        holds = _are_scattered(f, target, source, rows, columns, count, joins, lanes)
        choice(holds, partial(_by_lanes, f, target, source, along, count, joins, lanes))
    for kind in ways:
        choice(_enough(f, rows, columns, *kind), partial(_blocks, f, target, source, rows, columns, kind))
    _one_by_one(f, target, source, rows, columns)
    b.jump(join)
    b.start(join)


def _are_scattered(
    f: Frame, target: Block, source: Block, rows: Value, columns: Value, count: int, joins: bool, lanes: int
) -> Value:
    """Whether so many lines (of the source where they are joined, else of the target) have a vector each at least, and their elements lie
    one of each after the other on the other side."""
    a = f.arith
    lines, length, pitch = (rows, columns, target.pitch) if joins else (columns, rows, source.pitch)
    are_lines = a.binary("and", a.compare("eq", lines, a.index(count)), a.compare("eq", pitch, a.index(count)))
    return a.binary("and", are_lines, a.compare("ge", length, a.index(lanes)))


def _by_lanes(f: Frame, target: Block, source: Block, length: Value, count: int, joins: bool, lanes: int) -> None:
    """Join ``count`` lines of the source to one, or take them apart: a function of the module's."""
    dtype = target.place.dtype
    element, size = memory_type(dtype), memory_bytes(dtype)
    name = f"{'join' if joins else 'part'}_{element}_{count}x{lanes}"
    if f.builder.module.lacks(name):
        with _helper(f, name, dtype, ("length",)) as (inner, turned, given, (end,)):
            a, b, type_ = inner.arith, inner.builder, vec(element, lanes)
            last = a.binary("sub", end, a.index(lanes))

            def places(block: Block, at: Value, are_lines: bool) -> list[str]:
                """Where the vectors of a block begin: of each line, or of their elements one after the other."""
                if are_lines:
                    return [_address(inner, block, a.index(n), at) for n in range(count)]
                first = a.binary("mul", at, a.index(count))
                zero = a.index(0)
                return [_address(inner, block, zero, a.binary("add", first, a.index(n * lanes))) for n in range(count)]

            def vector(n: Value) -> None:
                at = a.binary("min", n, last)
                read = [b.emit(f"load {type_}, ptr {p}, align {size}") for p in places(given, at, joins)]
                for number, pointer in enumerate(places(turned, at, not joins)):
                    if joins:
                        which = [divmod(number * lanes + lane, count)[::-1] for lane in range(lanes)]
                    else:
                        which = [divmod(lane * count + number, lanes) for lane in range(lanes)]
                    b.do(f"store {type_} {_chosen(inner, type_, read, which)}, ptr {pointer}, align {size}")

            inner.counted(a.index(0), end, lanes, vector)
    sides = [f"ptr {_address(f, b, f.arith.index(0), f.arith.index(0))}, i64 {b.pitch.text}" for b in (target, source)]
    f.builder.do(f"call void @{name}({', '.join(sides)}, i64 {length.text})")


def _chosen(f: Frame, type_: str, vectors: Sequence[str], which: Sequence[tuple[int, int]]) -> str:
    """A vector of which every lane is one of some vectors': the number of that, and of its lane."""
    text, lanes = vectors[0], len(which)
    for number, other in enumerate(vectors[1:], 1):
        order = [
            lanes + at if n == number else here if n < number and number > 1 else at
            for here, (n, at) in enumerate(which)
        ]
        text = f.builder.shuffled(type_, text, other, order)
    return text


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
