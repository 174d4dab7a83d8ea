"""Loads and stores: where a buffer is, and how the elements at uniform, consecutive or scattered places are reached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd

from relay.codegen.arith import Arithmetic, base_of
from relay.codegen.builder import Builder, vec
from relay.codegen.convert import Conversions
from relay.codegen.masked import Masked
from relay.codegen.nibbles import Nibbles
from relay.codegen.values import Value, is_packed, memory_bytes, memory_type, register_type
from relay.ir.record import record
from relay.ir.types import dtype_bits, is_float

# What is said of a load from memory that nothing writes.
INVARIANT = ", !invariant.load !0"
# Bytes of neighbouring lanes that are worth an access of their own.
_SHORTEST_RUN = 8


@record(frozen=True, slots=True)
class Place:
    """A buffer while code is written.

    ``local`` memory is the function's own (stack slots, to become registers): its elements are whole bytes in
    register form and it is padded, so that a vector access that begins inside is harmless. ``private`` is the
    lane count of a local buffer that holds one element per lane, ``room`` how many elements a local one has room
    for, ``line`` how many a line of it has, and how many with its padding. ``metadata`` are the alias annotations of
    its accesses. ``streamed``, where given, is a bit that says whether whole vectors are written past the caches,
    ``rows`` one that says whether they are where an offset is not known to be at a whole vector, but every row begins at one.
    """

    pointer: str
    strides: tuple[Value, ...]
    dtype: str
    align: int
    local: bool = False
    private: int = 1
    room: int = 0
    line: tuple[int, int] = (0, 0)
    metadata: str = ""
    streamed: str = ""
    rows: str = ""

    @property
    def constant(self) -> bool:
        """Whether nothing writes it while the kernel runs."""
        return self.metadata.endswith(INVARIANT)


def local_type(dtype: str) -> str:
    """The element type of local memory."""
    if dtype == "bool" or is_packed(dtype):
        return "i8"
    return register_type(dtype)


def local_bytes(dtype: str) -> int:
    return 4 if is_float(dtype) and dtype_bits(dtype) == 16 else memory_bytes(dtype)


class Memory:
    """Emits accesses. ``mask`` is the mask of active lanes in a vectorized loop ("" when all are)."""

    def __init__(self, builder: Builder, arithmetic: Arithmetic, conversions: Conversions) -> None:
        self.b = builder
        self.a = arithmetic
        self.c = conversions
        self.masked = Masked(builder, arithmetic.target, arithmetic.first)
        self._nibbles = Nibbles(builder, arithmetic, self.masked.gather)
        self._harmless = ""
        # The bits that decide whether stores of this function go past the caches.
        self.streams: dict[str, None] = {}
        # The vectors of local memory that were written as a whole.
        self._written: set[tuple[str, int, int]] = set()

    def offset(self, place: Place, indices: Sequence[Value]) -> Value:
        """The row-major element offset."""
        total: Value | None = None
        for index, stride in zip(indices, place.strides, strict=True):
            term = self.a.binary("mul", index, stride)
            total = term if total is None else self.a.binary("add", total, term)
        return self.a.index(0) if total is None else total

    def load(self, place: Place, offset: Value, lanes: int, mask: str, guarded: bool) -> Value:
        """The elements at an offset. ``guarded``: there may be no active lane, and then nothing may be read."""
        dtype = place.dtype
        if place.private > 1:
            used = mask if guarded and offset.const is None else ""
            text = self._private_load(place, offset, used)
            return Value(text if used else self._active(text, mask, dtype, place.private), dtype, place.private)
        if offset.is_uniform:
            return self._load_one(place, offset, lanes, mask if guarded else "")
        if place.local:
            text = self._from_local(self._load_local(place, offset, mask, guarded), dtype, offset.lanes)
            written = _vector_of(place, offset) in self._written and not guarded
            return Value(text if written else self._active(text, mask, dtype, offset.lanes), dtype, offset.lanes)
        if is_packed(dtype):
            return Value(self._nibbles.load(place, offset, mask), dtype, offset.lanes)
        text = self._load_vector(place, offset, mask, memory_type(dtype))
        return Value(self.c.from_memory(text, dtype, offset.lanes), dtype, offset.lanes)

    def _active(self, text: str, mask: str, dtype: str, lanes: int) -> str:
        """0 in the lanes that are not active: what nobody wrote may be numbers with which arithmetic takes a hundred times as long."""
        if not mask or not is_float(dtype):
            return text
        type_ = vec(register_type(dtype), lanes)
        return self.a.select_text(mask, text, "zeroinitializer", type_, lanes)

    def store(self, place: Place, offset: Value, value: Value, mask: str, guarded: bool = False) -> None:
        """Write elements; a uniform value is written to every place. ``guarded``: the first lanes may be inactive, and lie anywhere."""
        dtype = place.dtype
        if place.private > 1:
            self._private_store(place, offset, self.a.spread(value, place.private), mask)
            return
        lanes = offset.lanes
        if lanes == 1:
            self._store_one(place, offset, value)
            return
        value = self.a.spread(value, lanes)
        if place.local:
            text = self._to_local(value.text, dtype, lanes)
            self._store_local(place, offset, text, mask, guarded)
        elif is_packed(dtype):
            self._nibbles.store(place, offset, value, mask)
        else:
            self._store_vector(place, offset, self.c.to_memory(value.text, dtype, lanes), mask, memory_type(dtype))

    def prefetch(self, place: Place, offset: Value, write: bool, level: int = 2) -> None:
        """Ask for an element's line, into the cache of this level (1 or 2), as what will be written if ``write``; a place outside of
        any memory is not asked for, nor one that is written past the caches."""
        if is_packed(place.dtype):
            offset = self.a.binary("floordiv", base_of(offset), self.a.index(2))
        pointer = self.b.element(place.pointer, memory_type(place.dtype), offset.text)
        use, near, data = ("i32", str(int(write))), ("i32", str(4 - level)), ("i32", "1")
        decided = write and bool(place.streamed)
        asked, done = self.b.name("asked"), self.b.name("done")
        if decided:
            self.b.branch(place.streamed, done, asked)
            self.b.start(asked)
        self.b.call("llvm.prefetch.p0", "void", ("ptr", pointer), use, near, data)
        if decided:
            self.b.jump(done)
            self.b.start(done)

    # -- pairs of sixteen bits

    def pairs(self, place: Place, offset: Value) -> str:
        """A vector of neighbours: the ramp steps over two elements a lane."""
        base, count = base_of(offset), 2 * offset.lanes
        pointer = self.b.element(place.pointer, "i16", base.text)
        aligned = self._aligned(place, base, 2)
        text = self.b.emit(f"load {vec('i16', count)}, ptr {pointer}, align {aligned}{place.metadata}")
        return self.b.emit(f"bitcast {vec('i16', count)} {text} to {vec('bfloat', count)}")

    def pair_everywhere(self, place: Place, offset: Value, lanes: int) -> str:
        """Two neighbours, repeated in every lane."""
        pointer = self.b.element(place.pointer, "i16", offset.text)
        text = self.b.emit(f"load i32, ptr {pointer}, align {self._aligned(place, offset, 2)}{place.metadata}")
        return self.b.emit(
            f"bitcast {vec('i32', lanes)} {self.a.splat('i32', text, lanes)} to {vec('bfloat', 2 * lanes)}"
        )

    # -- one element

    def _load_one(self, place: Place, offset: Value, lanes: int, guard: str) -> Value:
        dtype = place.dtype
        element = local_type(dtype) if place.local else memory_type(dtype)
        where = offset
        if is_packed(dtype) and not place.local:
            where = self.a.binary("floordiv", offset, self.a.index(2))
        pointer = self._of_rows(place.pointer, element, where) if lanes > 1 else ""
        pointer = pointer or self.b.element(place.pointer, element, where.text)
        if guard and (not place.local or offset.const is None):
            active = self.a.any_lane(guard, lanes)
            pointer = self.b.emit(f"select i1 {active}, ptr {pointer}, ptr {self._harmless_slot()}")
        size = local_bytes(dtype) if place.local else memory_bytes(dtype)
        text = self.b.emit(f"load {element}, ptr {pointer}, align {self._aligned(place, where, size)}{place.metadata}")
        if place.local:
            return Value(self._from_local(text, dtype, 1), dtype)
        if is_packed(dtype):
            return Value(self._nibbles.half(text, offset, 1), dtype)
        return Value(self.c.from_memory(text, dtype, 1), dtype)

    def _store_one(self, place: Place, offset: Value, value: Value) -> None:
        dtype = place.dtype
        if place.local:
            text, element, size = self._to_local(value.text, dtype, 1), local_type(dtype), local_bytes(dtype)
        elif is_packed(dtype):
            self._nibbles.store_one(place, offset, value.text)
            return
        else:
            text, element, size = self.c.to_memory(value.text, dtype, 1), memory_type(dtype), memory_bytes(dtype)
        pointer = self.b.element(place.pointer, element, offset.text)
        self.b.do(f"store {element} {text}, ptr {pointer}, align {self._aligned(place, offset, size)}{place.metadata}")

    def _of_rows(self, pointer: str, element: str, offset: Value) -> str:
        """The address of an element at a place that stays and one that a loop moves by distances that are not known; "" of others. Rows of
        a register tile are such places: what moves is the same for all, and one register. LLVM would have two for each row, which
        are more than there are, if it saw that both are sums."""
        parts = self.a.staying(offset)
        if parts is None:
            return ""
        stays, moves, number = parts
        row = self.b.element(pointer, element, stays.text)
        return self.b.element(self.b.element(row, element, self.b.hidden(moves.text)), element, number.text)

    def _aligned(self, place: Place, offset: Value, size: int) -> int:
        return gcd(place.align, offset.multiple * size) if offset.multiple else place.align

    def _harmless_slot(self) -> str:
        """Where loads go that no lane wants."""
        if not self._harmless:
            self._harmless = self.b.alloca("i64")
            with self.b.in_entry():
                self.b.do(f"store i64 0, ptr {self._harmless}, align 8")
        return self._harmless

    # -- vectors in memory that others see

    def vector_at(self, place: Place, at: Value, lanes: int, mask: str) -> str:
        """The neighbours from a place on, as they are in memory; 0 where the mask has no bit."""
        element = local_type(place.dtype) if place.local else memory_type(place.dtype)
        size = local_bytes(place.dtype) if place.local else memory_bytes(place.dtype)
        pointer, align = self.b.element(place.pointer, element, at.text), self._aligned(place, at, size)
        return self.masked.load(element, lanes, pointer, align, mask, place.metadata)

    def _load_vector(self, place: Place, offset: Value, mask: str, element: str) -> str:
        lanes, size = offset.lanes, memory_bytes(place.dtype)
        type_ = vec(element, lanes)
        if offset.is_ramp and offset.stride in (1, -1):
            base = base_of(offset)
            if offset.stride == -1:
                base = self.a.binary("sub", base, self.a.index(lanes - 1))
                mask = self.b.lanes(mask, vec("i1", lanes), range(lanes)[::-1]) if mask else ""
            pointer = self.b.element(place.pointer, element, base.text)
            text = self.masked.load(element, lanes, pointer, self._aligned(place, base, size), mask, place.metadata)
            return self.b.lanes(text, type_, range(lanes)[::-1]) if offset.stride == -1 else text
        return self._load_scattered(place, offset, mask, element, size)

    def _load_scattered(self, place: Place, offset: Value, mask: str, element: str, size: int) -> str:
        """Elements that are no neighbours, by what is quickest for how they lie."""
        if self._apart(offset, size, stores=False) or (size < 4 and not mask and self._is_apart(offset)):
            return self._load_apart(place, offset, mask, element, size)
        if self._in_runs(offset, size, mask):
            return self._load_runs(place, offset, mask, element, size)
        at = self.a.spread(offset, offset.lanes).text
        return self.masked.gather(place.pointer, at, mask, element, offset.lanes, size, place.metadata)

    def _apart(self, offset: Value, size: int, stores: bool) -> bool:
        """Whether the lanes are every second, third or fourth element, which masks are worth picking; where these are no bits in registers
        of their own they are worth it for loads. Narrow elements are stored one by one: spread over vectors, some that were narrowed
        came out wrong (with LLVM 22; `tests/plan/test_rows.py`, classes of rows)."""
        target = self.a.target
        if stores and size < 4:
            return False
        return self._is_apart(offset) and (target.mask_registers or (target.masked and not stores and size in (4, 8)))

    def _is_apart(self, offset: Value) -> bool:
        return offset.is_ramp and offset.stride in (2, 3, 4)

    def _parts(self, offset: Value, mask: str, whole: bool = False) -> Iterator[tuple[Value, dict[int, int], str]]:
        """The whole vectors around lanes that are apart: where each begins, which lane each of its elements is, and the mask that
        leaves out those between. ``whole``: those between may be read, and those behind the last lane are in none of the vectors."""
        lanes, step, base, masks = offset.lanes, offset.stride, base_of(offset), vec("i1", offset.lanes)
        for part in range(step):
            here = {n * step - lanes * part: n for n in range(lanes) if n * step // lanes == part}
            if whole and not mask:
                first = min(lanes * part, step * (lanes - 1) + 1 - lanes)
                moved = {place + lanes * part - first: n for place, n in here.items()}
                yield self.a.binary("add", base, self.a.index(first)), moved, ""
                continue
            if mask:
                active = self.b.shuffled(masks, mask, "zeroinitializer", [here.get(n, lanes) for n in range(lanes)])
            else:
                active = f"<{', '.join(f'i1 {str(n in here).lower()}' for n in range(lanes))}>"
            yield self.a.binary("add", base, self.a.index(lanes * part)), here, active

    def _load_apart(self, place: Place, offset: Value, mask: str, element: str, size: int) -> str:
        """What lies around them is loaded as whole vectors and shuffled together. That takes a fraction of a gather's time, and
        reads nothing that a gather would not, or what lies between them where elements are narrow or masks take a register each."""
        lanes, type_ = offset.lanes, vec(element, offset.lanes)
        text = "poison"
        for at, here, active in self._parts(offset, mask, whole=size < 4 or not self.a.target.mask_registers):
            pointer, align = self.b.element(place.pointer, element, at.text), self._aligned(place, at, size)
            got = self.masked.load(element, lanes, pointer, align, active, place.metadata)
            from_here = {lane: lanes + n for n, lane in here.items()}
            text = self.b.shuffled(type_, text, got, [from_here.get(n, n) for n in range(lanes)])
        return text

    def _store_apart(self, place: Place, offset: Value, text: str, mask: str, element: str, size: int) -> None:
        """The lanes are spread over whole vectors, of which only they are written."""
        lanes, type_ = offset.lanes, vec(element, offset.lanes)
        for at, here, active in self._parts(offset, mask):
            order = ", ".join(f"i32 {here[n]}" if n in here else "i32 poison" for n in range(lanes))
            spread = self.b.emit(f"shufflevector {type_} {text}, {type_} poison, <{lanes} x i32> <{order}>")
            pointer, align = self.b.element(place.pointer, element, at.text), self._aligned(place, at, size)
            self.masked.store(element, lanes, spread, pointer, align, active, place.metadata)

    def _in_runs(self, offset: Value, size: int, mask: str) -> bool:
        """Whether the lanes are runs of neighbours that are worth an access each."""
        whole = not mask or self.a.target.masks(8 * size)
        return offset.run > 1 and offset.rise == 1 and offset.run * size >= _SHORTEST_RUN and whole

    def _runs(self, place: Place, offset: Value, mask: str, element: str) -> Iterator[tuple[int, str, str]]:
        """The first lane of each run, where it is in memory, and which of its lanes are active."""
        lanes, length = offset.lanes, offset.run
        for first in range(0, lanes, length):
            at = self.b.emit(f"extractelement {vec('i64', lanes)} {offset.text}, i64 {first}")
            active = self.b.lanes(mask, vec("i1", lanes), range(first, first + length)) if mask else ""
            yield first, self.b.element(place.pointer, element, at), active

    def _load_runs(self, place: Place, offset: Value, mask: str, element: str, size: int) -> str:
        """One load for each run, put together two by two."""
        length, type_ = offset.run, vec(element, offset.run)
        texts = [
            self.masked.load(element, length, pointer, gcd(place.align, size), active, place.metadata)
            for _, pointer, active in self._runs(place, offset, mask, element)
        ]
        while len(texts) > 1:
            type_, length = vec(element, length), 2 * length
            pairs = zip(texts[::2], texts[1::2], strict=True)
            texts = [self.b.shuffled(type_, a, b, range(length)) for a, b in pairs]
        return texts[0]

    def _store_runs(self, place: Place, offset: Value, text: str, mask: str, element: str, size: int) -> None:
        """One store for each run."""
        length, type_, align = offset.run, vec(element, offset.run), gcd(place.align, size)
        for first, pointer, active in self._runs(place, offset, mask, element):
            part = self.b.lanes(text, vec(element, offset.lanes), range(first, first + length))
            if active:
                self.masked.store(element, length, part, pointer, align, active, place.metadata)
            else:
                self.b.do(f"store {type_} {part}, ptr {pointer}, align {align}{place.metadata}")

    def _store_vector(self, place: Place, offset: Value, text: str, mask: str, element: str) -> None:
        lanes, size = offset.lanes, memory_bytes(place.dtype)
        type_, masks = vec(element, lanes), vec("i1", lanes)
        if offset.is_ramp and offset.stride in (1, -1):
            base = base_of(offset)
            if offset.stride == -1:
                base = self.a.binary("sub", base, self.a.index(lanes - 1))
                text = self.b.lanes(text, type_, range(lanes)[::-1])
                mask = self.b.lanes(mask, masks, range(lanes)[::-1]) if mask else ""
            pointer, align = self.b.element(place.pointer, element, base.text), self._aligned(place, base, size)
            if not mask:
                store = f"store {type_} {text}, ptr {pointer}, align {align}{place.metadata}"
                if place.streamed and lanes * size == self.a.target.vector_bits // 8:
                    self._stream(place, base, f"store {type_} {text}, ptr {pointer}", store, lanes * size)
                else:
                    self.b.do(store)
                return
            self.masked.store(element, lanes, text, pointer, align, mask, place.metadata)
            return
        if self._apart(offset, size, stores=True):
            self._store_apart(place, offset, text, mask, element, size)
            return
        if self._in_runs(offset, size, mask):
            self._store_runs(place, offset, text, mask, element, size)
            return
        offsets = self.a.spread(offset, lanes).text
        self.masked.scatter(place.pointer, offsets, text, mask, element, lanes, size, place.metadata)

    def _stream(self, place: Place, base: Value, store: str, otherwise: str, size: int) -> None:
        """A store of a whole vector that goes past the caches if the place's bit is set. The bit promises that the buffer begins at
        a whole vector. An offset that is not known to be at one too is asked, where every row is said to begin at one: of lines that
        are written partly past the caches and partly through them, both wait."""
        streamed = place.streamed
        if base.multiple * memory_bytes(place.dtype) % size:
            if not place.rows:
                self.b.do(otherwise)
                return
            inside = self.b.emit(f"and i64 {base.text}, {size // memory_bytes(place.dtype) - 1}")
            streamed = self.b.emit(f"and i1 {place.rows}, {self.b.emit(f'icmp eq i64 {inside}, 0')}")
        self.streams[place.streamed] = None
        past, within, done = self.b.name("past"), self.b.name("within"), self.b.name("stored")
        self.b.branch(streamed, past, within)
        self.b.start(past)
        one = self.b.module.shared_node("!{i32 1}")
        self.b.do(f"{store}, align {size}, !nontemporal {one}{place.metadata}")
        self.b.jump(done)
        self.b.start(within)
        self.b.do(otherwise)
        self.b.jump(done)
        self.b.start(done)

    # -- local memory

    def _from_local(self, text: str, dtype: str, lanes: int) -> str:
        if dtype == "bool" or is_packed(dtype):
            return self.b.emit(f"trunc {vec('i8', lanes)} {text} to {vec(register_type(dtype), lanes)}")
        return text

    def _to_local(self, text: str, dtype: str, lanes: int) -> str:
        if dtype == "bool" or is_packed(dtype):
            return self.b.emit(f"zext {vec(register_type(dtype), lanes)} {text} to {vec('i8', lanes)}")
        return text

    def _load_local(self, place: Place, offset: Value, mask: str, guarded: bool) -> str:
        """Behind a guard the offset may lie outside of the buffer: then only the active lanes are read."""
        element, lanes = local_type(place.dtype), offset.lanes
        size = local_bytes(place.dtype)
        if offset.is_ramp and offset.stride == 1:
            pointer = self.b.element(place.pointer, element, offset.text)
            align = self._aligned(place, base_of(offset), size)
            used = mask if guarded and not _is_inside(place, offset) else ""
            return self.masked.load(element, lanes, pointer, align, used, place.metadata)
        return self._load_scattered(place, offset, mask, element, size)

    def _store_local(self, place: Place, offset: Value, text: str, mask: str, guarded: bool) -> None:
        """Behind a guard the offset may lie outside of the buffer: then only the active lanes are written."""
        element, lanes, size = local_type(place.dtype), offset.lanes, local_bytes(place.dtype)
        if offset.is_ramp and offset.stride == 1:
            type_ = vec(element, lanes)
            pointer = self.b.element(place.pointer, element, offset.text)
            align = self._aligned(place, base_of(offset), size)
            if guarded and not _is_inside(place, offset):
                self.masked.store(element, lanes, text, pointer, align, mask, place.metadata)
                return
            if mask:
                old = self.b.emit(f"load {type_}, ptr {pointer}, align {align}{place.metadata}")
                text = self.a.select_text(mask, text, old, type_, lanes)
            elif (vector := _vector_of(place, offset)) is not None:
                self._written.add(vector)
            self.b.do(f"store {type_} {text}, ptr {pointer}, align {align}{place.metadata}")
            return
        as_memory = replace(place, local=False, dtype={"float": "float32"}.get(element, place.dtype))
        self._store_vector(as_memory, offset, text, mask, element)

    def _private_load(self, place: Place, offset: Value, mask: str) -> str:
        pointer, _ = self._private_pointer(place, offset)
        align, element = self._private_align(place), local_type(place.dtype)
        text = self.masked.load(element, place.private, pointer, align, mask, place.metadata)
        return self._from_local(text, place.dtype, place.private)

    def _private_store(self, place: Place, offset: Value, value: Value, mask: str) -> None:
        pointer, type_ = self._private_pointer(place, offset)
        text = self._to_local(value.text, place.dtype, place.private)
        align = self._private_align(place)
        if mask:
            old = self.b.emit(f"load {type_}, ptr {pointer}, align {align}{place.metadata}")
            text = self.a.select_text(mask, text, old, type_, place.private)
        self.b.do(f"store {type_} {text}, ptr {pointer}, align {align}{place.metadata}")

    def _private_align(self, place: Place) -> int:
        return min(64, place.private * local_bytes(place.dtype))

    def _private_pointer(self, place: Place, offset: Value) -> tuple[str, str]:
        assert offset.is_uniform, "private buffers are indexed alike in all lanes"
        element = local_type(place.dtype)
        where = self.a.binary("mul", offset, self.a.index(place.private))
        return self.b.element(place.pointer, element, where.text), vec(element, place.private)


def _vector_of(place: Place, offset: Value) -> tuple[str, int, int] | None:
    """Which vector of local memory neighbours are; None where it is known only in the kernel."""
    first = base_of(offset).const
    return (place.pointer, first, offset.lanes) if isinstance(first, int) else None


def fills_line(place: Place, offset: Value, count: int) -> bool:
    """Whether the first ``count`` of neighbours in local memory are the last of a line, and the others its padding."""
    first, (size, pitch) = base_of(offset).const, place.line
    if not offset.is_ramp or offset.stride != 1 or not isinstance(first, int) or pitch == 0:
        return False
    at = first % pitch
    return size <= at + count and at + offset.lanes <= pitch


def _is_inside(place: Place, offset: Value) -> bool:
    """Whether neighbours in local memory are known to lie in it, all of them. Whole vectors of it become registers, which what is
    accessed under a mask does not."""
    first = base_of(offset).const
    return isinstance(first, int) and 0 <= first <= place.room - offset.lanes
