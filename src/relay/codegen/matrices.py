"""Products of blocks in matrix registers (AMX): registers of 16 rows of 64 bytes, whose rows in use are set beforehand.

Registers 0 to 3 hold the sums of two times 16 rows by two times 16 columns, 4 and 5 the rows of the left operand, 6 and 7 the columns of
the right one. How many rows there are is set where it is not what it was: setting it takes as long as a few products of registers. What is
in the registers is let go of where a function ends, so that the system need not keep it when it switches threads.
"""

from __future__ import annotations

from relay.codegen.frame import Frame
from relay.codegen.memory import Place
from relay.codegen.values import Value, memory_type
from relay.ir.record import record
from relay.loop.ir import BLOCK_COLUMNS, BLOCK_DEPTH

_ROWS, _ROW_BYTES = 16, 64
_SUMS, _LEFT, _RIGHT = ((0, 1), (2, 3)), (4, 5), (6, 7)
# Where a description of registers says which kind it is, how many bytes their rows have, and how many rows there are.
_DESCRIPTION_BYTES, _ROW_BYTES_AT, _ROWS_AT = 64, 16, 48


@record(frozen=True, slots=True)
class Rows:
    """Where rows are: the first one's first element, and how far apart they are."""

    place: Place
    start: Value
    pitch: Value


class Matrices:
    """Writes products of blocks into a function."""

    def __init__(self, frame: Frame) -> None:
        self.f = frame
        # Where the function keeps the description, and the number of rows that was set last.
        self._slots: tuple[str, str] | None = None

    @property
    def in_use(self) -> bool:
        """Whether the function has any."""
        return self._slots is not None

    def multiply(
        self, target: Rows, left: Rows, right: Place, begin: Value, rows: Value, columns: int, depth: int,
        ahead: tuple[Value, Value] | None,
    ) -> None:  # fmt: skip
        """``target[i, j] = sum of left[i, k] * right[k, j]``: ``rows`` (1 to 32) by ``columns``. The panel begins at ``begin``;
        ``ahead`` is where in it, and how many, lines are asked for at every step along k."""
        a, b = self.f.arith, self.f.builder
        self._set(rows)

        def of(blocks: int) -> None:
            for first in range(0, columns, 2 * BLOCK_COLUMNS):
                beside = min(2, (columns - first) // BLOCK_COLUMNS)
                asked = ahead if first == 0 else None
                self._block(target, left, right, begin, blocks, (first, beside), columns, depth, asked)

        several = a.compare("gt", rows, a.index(_ROWS))
        if several.const is not None:
            of(2 if several.const else 1)
            return
        two, one, done = b.name("two"), b.name("one"), b.name("multiplied")
        b.branch(several.text, two, one)
        for label, blocks in ((two, 2), (one, 1)):
            b.start(label)
            of(blocks)
            b.jump(done)
        b.start(done)

    def forget(self) -> None:
        """What was set may be no more: something else ran on this thread."""
        _, last = self._made()
        self.f.builder.do(f"store i64 0, ptr {last}, align 8")

    def release(self) -> None:
        """At the end of a function."""
        if self.in_use:
            self.f.builder.call("llvm.x86.tilerelease", "void")

    # -- parts

    def _made(self) -> tuple[str, str]:
        if self._slots is None:
            b = self.f.builder
            description, last = b.alloca(f"[{_DESCRIPTION_BYTES} x i8]"), b.alloca("i64")
            lengths = ", ".join([f"i16 {_ROW_BYTES}"] * 8)
            with b.in_entry():
                b.do(f"store i64 0, ptr {last}, align 8")
                b.do(f"store <{_DESCRIPTION_BYTES} x i8> zeroinitializer, ptr {description}, align 64")
                b.do(f"store i8 1, ptr {description}, align 64")
                b.do(f"store <8 x i16> <{lengths}>, ptr {self._byte(description, _ROW_BYTES_AT)}, align 16")
                for register in _RIGHT:
                    b.do(f"store i8 {_ROWS}, ptr {self._byte(description, _ROWS_AT + register)}, align 1")
            self._slots = description, last
        return self._slots

    def _byte(self, pointer: str, offset: int) -> str:
        return self.f.builder.emit(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    def _set(self, rows: Value) -> None:
        """Set the rows of the registers, where they are others than the last time."""
        a, b = self.f.arith, self.f.builder
        description, last = self._made()
        setting, ready = b.name("set"), b.name("ready")
        before = b.emit(f"load i64, ptr {last}, align 8")
        b.branch(b.emit(f"icmp ne i64 {before}, {rows.text}"), setting, ready)
        b.start(setting)
        upper = a.binary("min", rows, a.index(_ROWS))
        lower = a.binary("max", a.binary("sub", rows, a.index(_ROWS)), a.index(1))
        for count, registers in ((upper, (*_SUMS[0], _LEFT[0])), (lower, (*_SUMS[1], _LEFT[1]))):
            byte = b.emit(f"trunc i64 {count.text} to i8")
            for register in registers:
                b.do(f"store i8 {byte}, ptr {self._byte(description, _ROWS_AT + register)}, align 1")
        b.do(f"store i64 {rows.text}, ptr {last}, align 8")
        b.call("llvm.x86.ldtilecfg", "void", ("ptr", description))
        b.jump(ready)
        b.start(ready)

    def _block(
        self, target: Rows, left: Rows, right: Place, begin: Value, blocks: int, part: tuple[int, int], columns: int, depth: int,
        ahead: tuple[Value, Value] | None,
    ) -> None:  # fmt: skip
        """One or two times 16 rows by the columns of a ``part``: from where on, and how many times 16."""
        a, b = self.f.arith, self.f.builder
        first, beside = part
        sums = [(i, j) for i in range(blocks) for j in range(beside)]
        for i, j in sums:
            b.call("llvm.x86.tilezero", "void", ("i8", str(_SUMS[i][j])))
        apart = a.binary("mul", left.pitch, a.index(_ROWS))

        def step(k: Value) -> None:
            along = a.binary("add", left.start, a.binary("mul", k, a.index(BLOCK_DEPTH)))
            row = a.binary("add", begin, a.binary("mul", k, a.index(BLOCK_DEPTH * columns)))
            for j in range(beside):
                there = a.binary("add", row, a.index(2 * (first + j * BLOCK_COLUMNS)))
                self._load(_RIGHT[j], right, there, a.index(2 * columns))
                for i in range(blocks):
                    if j == 0:
                        self._load(_LEFT[i], left.place, a.binary("add", along, apart) if i else along, left.pitch)
                    given = (_SUMS[i][j], _LEFT[i], _RIGHT[j])
                    b.call("llvm.x86.tdpbf16ps", "void", *(("i8", str(n)) for n in given))
            if ahead is not None:
                self._ask(right, begin, k, ahead)

        self.f.counted(a.index(0), a.index(depth // BLOCK_DEPTH), 1, step)
        for i, j in sums:
            down = a.binary("mul", target.pitch, a.index(i * _ROWS))
            there = a.binary("add", a.binary("add", target.start, down), a.index(first + j * BLOCK_COLUMNS))
            self._move("llvm.x86.tilestored64", _SUMS[i][j], target.place, there, target.pitch)

    def _load(self, register: int, place: Place, start: Value, pitch: Value) -> None:
        self._move("llvm.x86.tileloadd64", register, place, start, pitch)

    def _move(self, name: str, register: int, place: Place, start: Value, pitch: Value) -> None:
        element = memory_type(place.dtype)
        pointer = self.f.builder.element(place.pointer, element, start.text)
        size = self.f.arith.index(4 if element == "float" else 2)
        apart = self.f.arith.binary("mul", pitch, size)
        self.f.builder.call(name, "void", ("i8", str(register)), ("ptr", pointer), ("i64", apart.text))

    def _ask(self, right: Place, begin: Value, k: Value, ahead: tuple[Value, Value]) -> None:
        """Ask for the lines of a step."""
        a = self.f.arith
        where, lines = ahead
        here = a.binary(
            "add", a.binary("add", begin, where), a.binary("mul", a.binary("mul", k, lines), a.index(BLOCK_DEPTH))
        )
        self.f.counted(
            a.index(0),
            lines,
            1,
            lambda n: self.f.memory.prefetch(
                right, a.binary("add", here, a.binary("mul", n, a.index(BLOCK_DEPTH))), False
            ),
        )
