"""Vectors that every row reads again (a scale, a bias) are read from whole cache lines.

Where a machine's vectors are as long as its lines and an operand does not begin at one (NumPy's memory begins 16 bytes behind one), each
load touches two lines. What comes from memory comes no later for that, but what the first-level cache holds takes up to twice as long. So
before a loop over many rows such operands are copied to the stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from relay.codegen.frame import Frame
from relay.codegen.memory import INVARIANT, Place
from relay.codegen.values import Value, is_packed, memory_bytes
from relay.loop.ir import LINE_BYTES, Behind, Buffer, For
from relay.loop.walk import nodes, parts
from relay.te.index import Indices
from relay.te.scalar import Const, Load

# How often an operand is read at least: copying takes as long as a few times reading.
_FEWEST = 16
# The share of the first-level cache that a copy takes at most, and all of a function together.
_ONE, _ALL = 4, 2


class WholeLines:
    """The copies of one function."""

    def __init__(self, frame: Frame) -> None:
        self.f = frame
        self._room = frame.target.l1_bytes // _ALL
        self._read: dict[int, Mapping[Buffer, int]] = {}
        self._copies: dict[Buffer, str] = {}

    @contextmanager
    def over(self, loop: For, begin: Value, end: Value) -> Iterator[None]:
        """While the iterations of a loop from ``begin`` to ``end`` are written, operands that they read often are at whole lines."""
        f = self.f
        before: dict[Buffer, Place] = {}
        if f.lanes == 1 and f.target.vector_bits == 8 * LINE_BYTES:
            if id(loop) not in self._read:
                self._read[id(loop)] = self._times_read(loop)
            for buffer, times in self._read[id(loop)].items():
                place = f.places[buffer]
                if place.constant:
                    self._copy(buffer, place, f.arith.binary("sub", end, begin), -(-_FEWEST // times))
                    before[buffer] = place
        yield
        f.places.update(before)

    def _copy(self, buffer: Buffer, place: Place, count: Value, fewest: int) -> None:
        """Copy an operand where ``count`` is ``fewest`` and it is not at whole lines."""
        f, b, size = self.f, self.f.builder, memory_bytes(buffer.dtype) * _length(buffer)
        often = f.arith.compare("ge", count, f.arith.index(fewest))
        known = often.const is not None
        if known and not often.const:
            return
        if buffer not in self._copies:
            if size > min(self._room, f.target.l1_bytes // _ONE):
                return
            self._room -= size
            self._copies[buffer] = b.alloca(f"[{size} x i8]")
        copy, source = self._copies[buffer], place.pointer
        inside = b.emit(f"and i64 {b.emit(f'ptrtoint ptr {source} to i64')}, {LINE_BYTES - 1}")
        bit = b.emit(f"icmp ne i64 {inside}, 0")
        if not known:
            bit = b.emit(f"and i1 {bit}, {often.text}")
        copying, ready = b.name("copying"), b.name("ready")
        b.branch(bit, copying, ready)
        b.start(copying, dominated=True)
        given = (("ptr", copy), ("ptr", source), ("i64", str(size)), ("i1", "false"))
        b.call("llvm.memcpy.p0.p0.i64", "void", *given)
        b.jump(ready)
        b.start(ready, dominated=True)
        # LLVM is not to see that it is one of two, or it may load both. And what is copied was not always there.
        pointer = b.hidden(b.emit(f"select i1 {bit}, ptr {copy}, ptr {source}"), "ptr")
        f.places[buffer] = replace(place, pointer=pointer, metadata=place.metadata.removesuffix(INVARIANT))

    def _times_read(self, loop: For) -> dict[Buffer, int]:
        """How many times, as far as that is known, one iteration's vector loops read an operand from one end to the other, up to what is
        often enough."""
        out: dict[Buffer, int] = {}
        todo = [(part, 1) for part in parts(loop)]
        while todo:
            stmt, times = todo.pop()
            if isinstance(stmt, For):
                if stmt.kind == "vectorized":
                    for buffer in self._read_along(stmt):
                        out[buffer] = max(out.get(buffer, 0), times)
                    continue
                # Loops of unknown length have copies of their own, and so do the functions of parallel ones.
                if stmt.kind == "parallel" or not isinstance(stmt.extent, Const):
                    continue
                times = min(times * max(int(stmt.extent.value), 1), _FEWEST)
            todo += [(part, times) for part in parts(stmt)]
        # Where an operand begins is asked of the operand.
        asked = {n.buffer for n in nodes(loop) if isinstance(n, Behind)} if out else set()
        return {buffer: times for buffer, times in out.items() if buffer not in asked}

    def _read_along(self, loop: For) -> dict[Buffer, None]:
        """The operands from outside whose elements a vector loop reads in order, all of them; as they occur."""
        if not isinstance(loop.extent, Const):
            return {}
        shape, places = (loop.extent.value,), self.f.places
        fit = {b for b in places if b.shape == shape and b.alignment < LINE_BYTES and places[b].constant}
        if not fit:
            return {}
        indices = Indices()
        loads = ((n, n.source) for n in nodes(loop.body) if isinstance(n, Load) and isinstance(n.source, Buffer))
        return {
            buffer: None
            for load, buffer in loads
            if buffer in fit and not is_packed(buffer.dtype) and indices.poly(load.indices[0]) == indices.axis(loop.var)
        }


def _length(buffer: Buffer) -> int:
    (length,) = buffer.shape
    assert isinstance(length, int)
    return length
