"""One function's native code: an LLVM function for each of its parts, and what translations of instructions are made of.

Unboxed scalars whose dtype is known live in cells, which LLVM puts into machine registers. They are in their places on the control
stack where control leaves a part, as far as they are still wanted, and around what the runtime does with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from relay.aot.flow import Flow, flow, hold, registers_read
from relay.aot.kinds import destination
from relay.aot.layout import AT, BITS, FUNCTION, RUNTIME_PREFIX, VALUE, scalar_head
from relay.codegen.arith import Arithmetic
from relay.codegen.builder import Builder, ModuleText
from relay.codegen.convert import Conversions
from relay.codegen.elementary import Elementary
from relay.executable.bytecode import FunctionCode, Instruction
from relay.executable.format import ExecutableImage
from relay.loop.target import Target

_MOST_UNROLLED: Final = 16  # registers released one by one

Translate = Callable[["FunctionText", Instruction], None]


class FunctionText:
    """Writes one function. ``scalars``: the registers that hold unboxed scalars of one dtype only; ``inline``: whether instructions
    are translated that the runtime could do."""

    def __init__(
        self,
        module: ModuleText,
        image: ExecutableImage,
        target: Target,
        index: int,
        scalars: Mapping[int, str],
        inline: bool,
    ) -> None:
        self.module = module
        self.image = image
        self.target = target
        self.index = index
        self.function: FunctionCode = image.functions[index]
        self.inline = inline
        self.flow: Flow = flow(self.function, scalars if inline else {})
        self.block = 0  # the one being written
        self.held: set[int] = set()  # the registers that may hold a reference, at the instruction being written
        self._open()

    def _open(self) -> None:
        self.builder = Builder(self.module)
        self.cells: dict[int, str] = {}
        self.assigned: set[int] = (
            set()
        )  # what this part assigns, anywhere: elsewhere it is in its place on the stack already
        self.arith = Arithmetic(self.builder, self.target)
        self.math = Elementary(self.arith)
        self.convert = Conversions(self.arith)

    def translate(self, instruction: Translate) -> None:
        """Write all parts; ``instruction`` writes one instruction."""
        parts: dict[int, list[int]] = {}
        for begin, head in self.flow.part.items():
            parts.setdefault(head, []).append(begin)
        for head, blocks in parts.items():
            self._open()
            self.assigned = {
                d for begin in blocks for i in self.flow.blocks[begin] if (d := destination(i)) is not None
            }
            for register in sorted(self.flow.live[head]):
                self.fetch(register)
            self.builder.jump(f"b{head}")
            for begin in blocks:
                self.builder.start(f"b{begin}")
                self._block(begin, instruction)
            self.builder.finish(f"define internal i32 @f{self.index}_{head}(ptr noalias %run, ptr %r) #0")

    def _block(self, begin: int, instruction: Translate) -> None:
        self.block, self.held = begin, set(self.flow.held[begin])
        instructions = self.flow.blocks[begin]
        for at in instructions:
            instruction(self, at)
            hold(at, self.held, self.flow.scalars)
        last = instructions[-1]
        if last.opcode.name == "Fatal":  # the runtime's failure has ended the run
            self.builder.do("ret i32 1")
        elif not last.opcode.control:
            self.go(end_of(last))

    # -- addresses

    def field(self, base: str, offset: int) -> str:
        return base if offset == 0 else self.builder.emit(f"getelementptr i8, ptr {base}, i64 {offset}")

    def load(self, type_: str, base: str, offset: int, constant: bool = False) -> str:
        suffix = ", !invariant.load !0" if constant else ""
        return self.builder.emit(f"load {type_}, ptr {self.field(base, offset)}{suffix}")

    def store(self, type_: str, value: str | int, base: str, offset: int) -> None:
        self.builder.do(f"store {type_} {value}, ptr {self.field(base, offset)}")

    def slot(self, register: int) -> str:
        return self.field("%r", VALUE * register)

    # -- registers

    def cell(self, register: int) -> str:
        """Where a scalar is kept in this part."""
        found = self.cells.get(register)
        if found is None:
            found = self.cells[register] = self.builder.alloca("i64", 8)
        return found

    def fetch(self, register: int) -> None:
        """The scalar is in its place on the stack: take it from there."""
        self.builder.do(f"store i64 {self.load('i64', self.slot(register), BITS)}, ptr {self.cell(register)}")

    def put(self, register: int) -> None:
        """The scalar is in its place on the stack from here on."""
        if register not in self.assigned:
            return
        slot = self.slot(register)
        self.store("i64", scalar_head(self.flow.scalars[register]), slot, 0)
        self.store("i64", self.payload(register), slot, BITS)

    def payload(self, register: int) -> str:
        """The bits of a scalar."""
        return self.builder.emit(f"load i64, ptr {self.cell(register)}")

    def value(self, register: int) -> tuple[str, str]:
        """Head (kind and dtype) and payload."""
        dtype = self.flow.scalars.get(register)
        if dtype is not None:
            return str(scalar_head(dtype)), self.payload(register)
        slot = self.slot(register)
        return self.load("i64", slot, 0), self.load("i64", slot, BITS)

    def pc(self, at: int) -> str:
        """The address of a word of the function's bytecode."""
        functions = self.load("ptr", "%run", AT["RunState.functions"], constant=True)
        return self.field(
            self.load("ptr", functions, self.index * FUNCTION + AT["NativeFunction.code"], constant=True), 4 * at
        )

    def assign(self, register: int, head: str | int, bits: str | int) -> None:
        """The register holds the value, whose reference it takes over; what it held is released."""
        if register in self.flow.scalars:
            self.builder.do(f"store i64 {bits}, ptr {self.cell(register)}")
            return
        slot = self.slot(register)
        if register in self.held:
            self.builder.do(f"call void @set(ptr {slot}, i64 {head}, i64 {bits})")
        else:
            self.store("i64", head, slot, 0)
            self.store("i64", bits, slot, BITS)

    def keep(self, register: int, head: str, bits: str) -> None:
        if register not in self.flow.scalars:
            self.builder.do(f"call void @keep(i64 {head}, i64 {bits})")

    def is_scalar(self, register: int, dtype: str) -> bool:
        return self.flow.scalars.get(register) == dtype

    # -- the runtime

    def call(self, name: str, result: str, *arguments: tuple[str, str | int]) -> str:
        return self.builder.call(RUNTIME_PREFIX + name, result, *((t, str(v)) for t, v in arguments))

    def call_runtime(self, at: Instruction) -> None:
        """Leave an instruction to the runtime, which finds its operands on the stack and its result goes there."""
        scalars = self.put_operands(at)
        self.check(self.call(at.opcode.name, "i32", ("ptr", "%run"), ("ptr", "%r"), ("ptr", self.pc(at.at))))
        out = destination(at)
        if out is not None and out in self.flow.scalars:
            self.fetch(out)
        elif at.opcode.name == "InvokeKernel":
            written = listed(at.operands[2])[-self.image.kernels[number(at.operands[0])].outputs :]
            for register in (r for r in scalars if r in written):
                self.fetch(register)

    def check(self, status: str) -> None:
        """Go on when the status is 0; otherwise the run has failed."""
        self.unless(self.builder.emit(f"icmp ne i32 {status}, 0"), lambda: self.builder.do("ret i32 1"))

    def unless(self, rare: str, then: Callable[[], None]) -> None:
        """When the condition holds, which is rare, do something that ends the block; otherwise go on."""
        slow, on = self.builder.name("slow"), self.builder.name("on")
        self.builder.branch(rare, slow, on)
        self.builder.start(slow)
        then()
        self.builder.start(on)

    def poll(self, at: Instruction) -> None:
        left = self.builder.emit(f"add i64 {self.load('i64', '%run', AT['RunState.budget'])}, -1")
        self.store("i64", left, "%run", AT["RunState.budget"])
        slow, on = self.builder.name("slow"), self.builder.name("on")
        self.builder.branch(self.builder.emit(f"icmp slt i64 {left}, 1"), slow, on)
        self.builder.start(slow)
        self.check(self.call("poll", "i32", ("ptr", "%run"), ("ptr", "%r"), ("ptr", self.pc(at.at))))
        self.builder.jump(on)
        self.builder.start(on)

    # -- passing control on

    def leave(self, code: str, registers: str) -> None:
        """Control goes to code of another frame (or another part of this function) and does not come back here."""
        result = self.builder.emit(f"musttail call i32 {code}(ptr %run, ptr {registers})")
        self.builder.do(f"ret i32 {result}")

    def put_live(self, target: int, but: int = -1) -> None:
        """What is read from a block on goes to its place on the stack: the block begins another part."""
        for register in sorted(self.flow.live[target]):
            if register != but:
                self.put(register)

    def put_operands(self, at: Instruction) -> list[int]:
        """The scalars that an instruction reads go to their places; gives their registers."""
        scalars = [r for r in dict.fromkeys(registers_read(at)) if r in self.flow.scalars]
        for register in scalars:
            self.put(register)
        return scalars

    def go(self, target: int) -> None:
        """Control goes to another block of this function."""
        if self.flow.part[target] == self.flow.part[self.block]:
            self.builder.jump(f"b{target}")
        else:
            self.put_live(target)
            self.leave(f"@f{self.index}_{target}", "%r")

    def jump(self, at: Instruction, target: int) -> None:
        if target <= at.at:
            self.poll(at)
        self.go(target)

    def enter(self, function: int, fresh: str, filled: int) -> None:
        """The new frame's remaining registers are nil; the stack ends behind them."""
        callee = self.image.functions[function]
        nil = callee.registers - filled
        if nil:
            start = self.field(fresh, VALUE * filled)
            self.builder.call(
                "llvm.memset.p0.i64", "void",
                ("ptr", start), ("i8", "0"), ("i64", str(VALUE * nil)), ("i1", "false"),
            )  # fmt: skip
        top = self.field(fresh, VALUE * callee.registers)
        self.store("ptr", top, "%run", AT["RunState.top"])
        highest = self.load("ptr", "%run", AT["RunState.highest"])
        higher = self.builder.emit(f"icmp ugt ptr {top}, {highest}")
        self.store(
            "ptr", self.builder.emit(f"select i1 {higher}, ptr {top}, ptr {highest}"), "%run", AT["RunState.highest"]
        )

    def function_pointer(self, function: int) -> str:
        functions = self.load("ptr", "%run", AT["RunState.functions"], constant=True)
        return self.load("ptr", functions, function * FUNCTION + AT["NativeFunction.function"], constant=True)

    def release_frame(self, moved: set[int]) -> None:
        """Release this frame's registers but for those whose references went elsewhere."""
        held = sorted(self.held - moved)
        if len(held) <= _MOST_UNROLLED:
            for register in held:
                self.builder.do(f"call void @release_slot(ptr {self.slot(register)})")
            return
        for register in moved:
            self.store("i64", 0, self.slot(register), 0)
        self.builder.do(f"call void @release_range(ptr %r, i64 {self.function.registers})")


def end_of(instruction: Instruction) -> int:
    """The word after an instruction."""
    words = 1
    for letter, operand in zip(instruction.opcode.operands, instruction.operands, strict=True):
        words += 1 + len(operand) if isinstance(operand, tuple) else 2 if letter == "I" else 1
    return instruction.at + words


def number(operand: int | tuple[int, ...]) -> int:
    """An operand that is no list."""
    assert isinstance(operand, int)
    return operand


def listed(operand: int | tuple[int, ...]) -> tuple[int, ...]:
    """An operand that is a list."""
    assert isinstance(operand, tuple)
    return operand
