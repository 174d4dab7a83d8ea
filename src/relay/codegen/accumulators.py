"""Reductions across lanes: a buffer that a vectorized loop reduces into has an accumulator in every lane, and one for each of several
chains, which are folded into it behind the loop. A running one (`relay.loop.running`) has what has been reduced up to each lane."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from relay.codegen.analysis import VectorPlan
from relay.codegen.arith import with_stride
from relay.codegen.builder import vec
from relay.codegen.frame import Frame
from relay.codegen.lanes import horizontal, horizontals, lane, shuffled
from relay.codegen.memory import Place, local_type
from relay.codegen.values import Value, register_type
from relay.ir.record import record
from relay.loop.ir import Buffer
from relay.te.scalar import BinaryOp

# A stack slot for a key, of a type.
Slot = Callable[[tuple[object, ...], str], str]


def accumulators(f: Frame, slot: Slot, plan: VectorPlan, buffer: Buffer, chains: int) -> list[Place]:
    """Vector accumulators for a buffer that a vectorized loop reduces into, holding the operation's identity."""
    place, element, lanes = f.places[buffer], local_type(buffer.dtype), plan.lanes
    count = padded_size(place, buffer)
    places = []
    identity = f.arith.spread(f.arith.identity(plan.reductions[buffer], buffer.dtype), lanes)
    for chain in range(chains):
        pointer = slot((buffer, lanes, chain), f"[{count * lanes} x {element}]")
        vectors = replace(place, pointer=pointer, align=64, private=lanes)
        places.append(vectors)
        for offset in _offsets(place, buffer):
            f.memory.store(vectors, f.arith.index(offset), identity, "")
    return places


def combine(f: Frame, op: BinaryOp, buffer: Buffer, place: Place, chains: list[Place], nans: Nans | None) -> None:
    """Fold the vector accumulators into the buffer: chains in order, then lanes by halves."""
    a = f.arith
    positions = _offsets(place, buffer)
    totals: list[Value] = []
    for position in positions:
        parts = [f.memory.load(chain, a.index(position), 1, "", False) for chain in chains]
        total = parts[0]
        for part in parts[1:]:
            total = a.binary(op, total, part) if nans is None else a.extreme(op, total, part)
        totals.append(total)
    found = horizontals(a, op, totals) if nans is None else [nans.result(f, horizontal(a, op, totals[0], numbers=True))]
    for total in found:
        mine, positions = positions[: total.lanes], positions[total.lanes :]
        first = mine[0]
        if total.lanes > 1 and mine == list(range(first, first + len(mine))):
            _accumulate(f, op, place, with_stride(a.index(first), 1, total.lanes), total)
            continue
        for number, position in enumerate(mine):
            _accumulate(f, op, place, a.index(position), lane(a, total, number))


def _accumulate(f: Frame, op: BinaryOp, place: Place, offset: Value, total: Value) -> None:
    f.memory.store(place, offset, f.arith.accumulated(op, f.memory.load(place, offset, 1, "", False), total), "")


@record(frozen=True, slots=True)
class Running:
    """A running reduction: its value up to each lane of the vector at hand, and (in all lanes of ``before``) up to the next vector."""

    op: BinaryOp
    buffer: Buffer
    here: Place
    before: Place

    @classmethod
    def begun(cls, f: Frame, slot: Slot, plan: VectorPlan, buffer: Buffer) -> Running:
        """As the buffer is before the loop."""
        place, lanes = f.places[buffer], plan.lanes
        kind = f"[{lanes} x {local_type(buffer.dtype)}]"
        here, before = (
            replace(place, pointer=slot((buffer, lanes, part), kind), align=64, private=lanes)
            for part in ("here", "before")
        )
        value = f.memory.load(place, f.arith.index(0), 1, "", False)
        f.memory.store(before, f.arith.index(0), value, "")
        return cls(plan.running[buffer], buffer, here, before)

    def advance(self, f: Frame, element: Value) -> None:
        """One more element in each active lane. Halves of 2, 4, 8, ... lanes are combined: the upper one with the last lane of the lower
        one. Only then comes what there was, so that the next vector waits for one operation."""
        a, lanes, dtype = f.arith, self.here.private, self.buffer.dtype
        type_ = vec(register_type(dtype), lanes)
        total, neutral = a.spread(element, lanes), a.spread(a.identity(self.op, dtype), lanes)
        if f.mask:
            total = replace(total, text=a.select_text(f.mask, total.text, neutral.text, type_, lanes))
        half = 1
        while half < lanes:
            lower = [(n - half) // half * half + half - 1 if n & half else lanes + n for n in range(lanes)]
            total = a.binary(self.op, shuffled(a, total, neutral, lower), total)
            half *= 2
        zero = a.index(0)
        before = f.memory.load(self.before, zero, 1, "", False)
        f.memory.store(self.here, zero, a.binary(self.op, before, total), "")
        last = shuffled(a, total, total, [lanes - 1] * lanes)
        f.memory.store(self.before, zero, a.binary(self.op, before, last), "")

    def end(self, f: Frame, place: Place) -> None:
        """Leave its last value in the buffer."""
        zero = f.arith.index(0)
        last = f.memory.load(self.before, zero, 1, "", False)
        f.memory.store(place, zero, lane(f.arith, last, 0), "")


@record(frozen=True, slots=True)
class Nans:
    """Which lanes of a reduction have met nan: a slot for a vector of bits where the machine has registers of them, else of
    integers as wide as the elements."""

    slot: str
    kind: str

    @staticmethod
    def type(f: Frame, buffer: Buffer, lanes: int) -> str:
        """The LLVM type of the notes."""
        wide = "i64" if register_type(buffer.dtype) == "double" else "i32"
        return vec("i1" if f.target.mask_registers else wide, lanes)

    @classmethod
    def none(cls, f: Frame, slot: str, buffer: Buffer, lanes: int) -> Nans:
        """No lane yet."""
        nans = cls(slot, cls.type(f, buffer, lanes))
        f.builder.do(f"store {nans.kind} zeroinitializer, ptr {slot}")
        return nans

    def note(self, f: Frame, element: Value) -> None:
        """Look at one more element in each active lane."""
        b, type_, bits = f.builder, vec(register_type(element.dtype), element.lanes), vec("i1", element.lanes)
        found = b.emit(f"fcmp uno {type_} {element.text}, zeroinitializer")
        if f.mask:
            found = b.emit(f"and {bits} {found}, {f.mask}")
        if self.kind != bits:
            found = b.emit(f"sext {bits} {found} to {self.kind}")
        noted = b.emit(f"load {self.kind}, ptr {self.slot}")
        b.do(f"store {self.kind} {b.emit(f'or {self.kind} {noted}, {found}')}, ptr {self.slot}")

    def result(self, f: Frame, best: Value) -> Value:
        """The extreme of all lanes, or nan."""
        b = f.builder
        noted = b.emit(f"load {self.kind}, ptr {self.slot}")
        any_ = b.emit(f"bitcast {self.kind} {noted} to i{_bits(self.kind)}")
        met = b.emit(f"icmp ne i{_bits(self.kind)} {any_}, 0")
        nan = f.arith.constant(math.nan, best.dtype)
        return f.arith.select(Value(met, "bool"), nan, best)


def _bits(vector: str) -> int:
    """The width of an LLVM vector of integers."""
    count, element = vector.strip("<>").split(" x i")
    return int(count) * int(element)


def _offsets(place: Place, buffer: Buffer) -> list[int]:
    """The offset of every element of a small local buffer."""
    out = [0]
    for dim, stride in zip(buffer.shape, place.strides, strict=True):
        assert isinstance(dim, int) and isinstance(stride.const, int)
        out = [start + index * stride.const for start in out for index in range(dim)]
    return out


def padded_size(place: Place, buffer: Buffer) -> int:
    """Elements that a small local buffer takes."""
    return max(_offsets(place, buffer)) + 1
