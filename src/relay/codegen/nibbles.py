"""Elements of four bits: two share a byte, the even one its low half."""

from __future__ import annotations

from typing import Protocol

from relay.codegen.arith import Arithmetic, base_of
from relay.codegen.builder import Builder, vec
from relay.codegen.values import Value


class Bytes(Protocol):
    """Where elements are: a buffer's address and the alias annotations of its accesses."""

    @property
    def pointer(self) -> str: ...

    @property
    def metadata(self) -> str: ...


class Gather(Protocol):
    """Reads elements at the offsets of all active lanes."""

    def __call__(
        self, pointer: str, offsets: str, mask: str, element: str, lanes: int, align: int, metadata: str
    ) -> str: ...


class Nibbles:
    """Emits accesses to elements of four bits."""

    def __init__(self, builder: Builder, arithmetic: Arithmetic, gather: Gather) -> None:
        self.b = builder
        self.a = arithmetic
        self._gather = gather

    def half(self, byte: str, offset: Value, lanes: int) -> str:
        """The half of each byte that the element's index chooses: even ones are the low half."""
        emit, bytes_ = self.b.emit, vec("i8", lanes)
        wide = vec("i64", lanes)
        at = self.a.spread(offset, lanes).text
        odd = emit(f"and {wide} {at}, {self.a.splat('i64', '1', lanes)}")
        doubled = emit(f"shl {wide} {odd}, {self.a.splat('i64', '2', lanes)}")
        shift = emit(f"trunc {wide} {doubled} to {bytes_}")
        return emit(f"trunc {bytes_} {emit(f'lshr {bytes_} {byte}, {shift}')} to {vec('i4', lanes)}")

    def load(self, place: Bytes, offset: Value, mask: str) -> str:
        lanes, emit = offset.lanes, self.b.emit
        if offset.is_ramp and offset.stride == 1 and offset.multiple % 2 == 0 and not mask:
            half, type_ = lanes // 2, vec("i8", lanes // 2)
            start = self.a.binary("floordiv", base_of(offset), self.a.index(2))
            pointer = self._byte(place, start)
            both = emit(f"load {type_}, ptr {pointer}, align 1{place.metadata}")
            high = emit(f"lshr {type_} {both}, {self.a.splat('i8', '4', half)}")
            if half == 1:
                pair = emit(f"insertelement <2 x i8> poison, i8 {both}, i64 0")
                pair = emit(f"insertelement <2 x i8> {pair}, i8 {high}, i64 1")
                return emit(f"trunc <2 x i8> {pair} to <2 x i4>")
            mixed = self.b.shuffled(type_, both, high, [n // 2 + half * (n % 2) for n in range(lanes)])
            return emit(f"trunc {vec('i8', lanes)} {mixed} to {vec('i4', lanes)}")
        at = self.a.spread(offset, lanes).text
        wide = vec("i64", lanes)
        bytes_at = emit(f"ashr {wide} {at}, {self.a.splat('i64', '1', lanes)}")
        got = self._gather(place.pointer, bytes_at, mask, "i8", lanes, 1, place.metadata)
        return self.half(got, offset, lanes)

    def store_one(self, place: Bytes, offset: Value, text: str) -> None:
        """Replace one half of a byte."""
        emit = self.b.emit
        start = self.a.binary("floordiv", offset, self.a.index(2))
        pointer = self._byte(place, start)
        odd = emit(f"and i64 {offset.text}, 1")
        shift = emit(f"trunc i64 {emit(f'shl i64 {odd}, 2')} to i8")
        old = emit(f"load i8, ptr {pointer}, align 1{place.metadata}")
        hole = emit(f"xor i8 {emit(f'shl i8 15, {shift}')}, -1")
        new = emit(f"shl i8 {emit(f'zext i4 {text} to i8')}, {shift}")
        merged = emit(f"or i8 {emit(f'and i8 {old}, {hole}')}, {new}")
        self.b.do(f"store i8 {merged}, ptr {pointer}, align 1{place.metadata}")

    def store(self, place: Bytes, offset: Value, value: Value, mask: str) -> None:
        lanes, emit, b = offset.lanes, self.b.emit, self.b
        if offset.is_ramp and offset.stride == 1 and offset.multiple % 2 == 0 and not mask:
            half, type_ = lanes // 2, vec("i8", lanes // 2)
            wide = emit(f"zext {vec('i4', lanes)} {value.text} to {vec('i8', lanes)}")
            parts = []
            for first in (0, 1):
                if half == 1:
                    parts.append(emit(f"extractelement <2 x i8> {wide}, i64 {first}"))
                    continue
                parts.append(b.lanes(wide, vec("i8", lanes), range(first, lanes, 2)))
            high = emit(f"shl {type_} {parts[1]}, {self.a.splat('i8', '4', half)}")
            both = emit(f"or {type_} {parts[0]}, {high}")
            start = self.a.binary("floordiv", base_of(offset), self.a.index(2))
            b.do(f"store {type_} {both}, ptr {self._byte(place, start)}, align 1{place.metadata}")
            return
        # Neighbouring lanes share bytes: one after the other.
        offsets = self.a.spread(offset, lanes).text
        before, loop, write, following, done = b.block, *(b.name(n) for n in ("lanes", "write", "next", "done"))
        b.jump(loop)
        b.start(loop)
        lane, step = b.local(), b.local()
        b.do(f"{lane} = phi i64 [ 0, %{before} ], [ {step}, %{following} ]")
        active = emit(f"extractelement {vec('i1', lanes)} {mask}, i64 {lane}") if mask else "true"
        b.branch(active, write, following)
        b.start(write)
        at = emit(f"extractelement {vec('i64', lanes)} {offsets}, i64 {lane}")
        item = emit(f"extractelement {vec('i4', lanes)} {value.text}, i64 {lane}")
        self.store_one(place, Value(at, "int64"), item)
        b.jump(following)
        b.start(following)
        b.do(f"{step} = add i64 {lane}, 1")
        b.branch(emit(f"icmp ult i64 {step}, {lanes}"), loop, done)
        b.start(done)

    def _byte(self, place: Bytes, at: Value) -> str:
        """The address of a byte."""
        return place.pointer if at.text == "0" else self.b.emit(f"getelementptr i8, ptr {place.pointer}, i64 {at.text}")
