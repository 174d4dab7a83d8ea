"""Accesses of vectors under masks, gathers and scatters, as LLVM has them; where a processor is slow at one, what it is quick at.

Everywhere ``pointer`` is an address, ``element`` LLVM's type of an element in memory, ``align`` what is known of the address in bytes,
``mask`` the mask of active lanes ("" when all are) and ``metadata`` the alias annotations of the access.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from relay.codegen.builder import Builder, mangled, vec
from relay.codegen.values import Value, register_bits, register_type
from relay.loop.target import Target


class Masked:
    """Emits them."""

    def __init__(self, builder: Builder, target: Target, first: dict[str, str]) -> None:
        """``first``: masks that are known to have the first lanes and no other, and how many (no more than all)."""
        self.b = builder
        self.target = target
        self.first = first

    def load(self, element: str, lanes: int, pointer: str, align: int, mask: str, metadata: str) -> str:
        type_ = vec(element, lanes)
        if not mask:
            return self.b.emit(f"load {type_}, ptr {pointer}, align {align}{metadata}")
        name, masks = f"llvm.masked.load.{mangled(element, lanes)}.p0", vec("i1", lanes)
        self.b.module.declare(name, type_, ["ptr", masks, type_])
        given = f"ptr align {align} {pointer}, {masks} {mask}, {type_} zeroinitializer"
        return self.b.emit(f"call {type_} @{name}({given}){metadata}")

    def store(self, element: str, lanes: int, text: str, pointer: str, align: int, mask: str, metadata: str) -> None:
        if mask.startswith("<") and not self.target.mask_registers:
            self._store_pieces(element, text, pointer, align, mask, metadata)
            return
        if mask in self.first and not self.target.mask_registers:
            self._store_first(element, lanes, text, pointer, align, self.first[mask], metadata)
            return
        type_ = vec(element, lanes)
        name, masks = f"llvm.masked.store.{mangled(element, lanes)}.p0", vec("i1", lanes)
        if element in ("i8", "i16", "i32"):
            mask = self._unseen(mask, lanes)
        self.b.module.declare(name, "void", [type_, "ptr", masks])
        given = f"{type_} {text}, ptr align {align} {pointer}, {masks} {mask}"
        self.b.do(f"call void @{name}({given}){metadata}")

    def _store_pieces(self, element: str, text: str, pointer: str, align: int, mask: str, metadata: str) -> None:
        """A store under a constant mask as stores of powers of two of lanes: where masks are no bits in registers of their own some
        processors take more than ten cycles for one."""
        active = [bit.endswith("true") for bit in mask.strip("<>").split(", ")]
        lane, lanes, size = 0, len(active), _bytes_of(element)
        type_ = vec(element, lanes)
        while lane < lanes:
            if not active[lane]:
                lane += 1
                continue
            count = 1
            while lane % (2 * count) == 0 and lane + 2 * count <= lanes and all(active[lane : lane + 2 * count]):
                count *= 2
            place = self.b.element(pointer, element, str(lane))
            if count == 1:
                part, kind = self.b.emit(f"extractelement {type_} {text}, i64 {lane}"), element
            else:
                part, kind = self.b.lanes(text, type_, range(lane, lane + count)), vec(element, count)
            self.b.do(f"store {kind} {part}, ptr {place}, align {gcd(align, lane * size)}{metadata}")
            lane += count

    def _store_first(
        self, element: str, lanes: int, text: str, pointer: str, align: int, count: str, metadata: str
    ) -> None:
        """A store of the first lanes, for the same reason: of all, or half of a vector, a quarter and so on, as the bits of their number
        say. What is read of it next can be forwarded, too."""
        emit, half = self.b.emit, lanes
        while half:
            type_, has, done = vec(element, half), self.b.name("has"), self.b.name("done")
            bit = emit(f"icmp ne i64 {emit(f'and i64 {count}, {half}')}, 0")
            place = self.b.element(pointer, element, emit(f"and i64 {count}, {-2 * half}"))
            part = text if half == lanes else self._part(text, vec(element, 2 * half), 0, half)
            self.b.branch(bit, has, done)
            with self.b.scope():
                self.b.start(has)
                self.b.do(f"store {type_} {part}, ptr {place}, align {gcd(align, _bytes_of(element) * half)}{metadata}")
                self.b.jump(done)
            self.b.start(done, dominated=True)
            if half < lanes:
                behind = self._part(text, vec(element, 2 * half), half, half)
                part = emit(f"select i1 {bit}, {type_} {behind}, {type_} {part}")
            text, half = part, half // 2

    def _part(self, text: str, type_: str, first: int, count: int) -> str:
        """So many neighbouring lanes of a vector; of one lane the element itself."""
        if count == 1:
            return self.b.emit(f"extractelement {type_} {text}, i64 {first}")
        return self.b.lanes(text, type_, range(first, first + count))

    def chosen(self, value: Value) -> Value:
        """The same vector, of which LLVM does not see that a select made it: where one side is what was at the place that it is stored to,
        LLVM stores the other under a mask, which takes some processors ten cycles where masks take vector registers."""
        target, bits = self.target, register_bits(value.dtype)
        if target.mask_registers or not target.masks(bits) or value.lanes * bits != target.vector_bits:
            return value
        whole = vec(register_type(value.dtype), value.lanes)
        return replace(value, text=self.b.emit(f'call {whole} asm "", "=x,0"({whole} {value.text})'))

    def _unseen(self, mask: str, lanes: int) -> str:
        """The same mask, of which LLVM does not see what it is: where it sees one bit, LLVM 22 stores all bits of a value that was
        narrowed."""
        masks, bits, word = vec("i1", lanes), f"i{lanes}", "i32" if lanes <= 32 else "i64"
        text = self.b.emit(f"bitcast {masks} {mask} to {bits}")
        if bits != word:
            text = self.b.emit(f"zext {bits} {text} to {word}")
        text = self.b.emit(f'call {word} asm "", "=r,0"({word} {text})')
        if bits != word:
            text = self.b.emit(f"trunc {word} {text} to {bits}")
        return self.b.emit(f"bitcast {bits} {text} to {masks}")

    def gather(self, pointer: str, offsets: str, mask: str, element: str, lanes: int, align: int, metadata: str) -> str:
        type_, masks, pointers = vec(element, lanes), vec("i1", lanes), vec("ptr", lanes)
        if not mask and self.target.gathers_slowly:
            return self._pick(pointer, offsets, element, lanes, align, metadata)
        where = self.b.emit(f"getelementptr {element}, ptr {pointer}, {vec('i64', lanes)} {offsets}")
        name = f"llvm.masked.gather.{mangled(element, lanes)}.{mangled('ptr', lanes)}"
        self.b.module.declare(name, type_, [pointers, masks, type_])
        active = mask or "splat (i1 true)"
        given = f"{pointers} align {align} {where}, {masks} {active}, {type_} zeroinitializer"
        return self.b.emit(f"call {type_} @{name}({given}){metadata}")

    def scatter(
        self, pointer: str, offsets: str, text: str, mask: str, element: str, lanes: int, align: int, metadata: str
    ) -> None:
        type_, masks, pointers = vec(element, lanes), vec("i1", lanes), vec("ptr", lanes)
        where = self.b.emit(f"getelementptr {element}, ptr {pointer}, {vec('i64', lanes)} {offsets}")
        name = f"llvm.masked.scatter.{mangled(element, lanes)}.{mangled('ptr', lanes)}"
        self.b.module.declare(name, "void", [type_, pointers, masks])
        active = mask or "splat (i1 true)"
        given = f"{type_} {text}, {pointers} align {align} {where}, {masks} {active}"
        self.b.do(f"call void @{name}({given}){metadata}")

    def _pick(self, pointer: str, offsets: str, element: str, lanes: int, align: int, metadata: str) -> str:
        """A gather as one load for each lane, each put in its place as it comes."""
        emit, type_ = self.b.emit, vec(element, lanes)
        text = "poison"
        for lane in range(lanes):
            at = emit(f"extractelement {vec('i64', lanes)} {offsets}, i64 {lane}")
            one = emit(f"load {element}, ptr {self.b.element(pointer, element, at)}, align {align}{metadata}")
            text = emit(f"insertelement {type_} {text}, {element} {one}, i64 {lane}")
        return text


def _bytes_of(element: str) -> int:
    """Of LLVM's type of an element in memory."""
    return {"double": 8, "float": 4, "half": 2, "bfloat": 2}.get(element) or int(element[1:]) // 8
