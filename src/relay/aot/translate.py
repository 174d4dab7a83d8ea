"""Bytecode to LLVM IR, so that a program runs without the dispatch loop.

The code keeps frames and registers where the virtual machine keeps them, on the run's control stack, and calls the runtime for what
is not worth inlining (``runtime/include/relay/native.h`` says how the two meet). A function is cut at its calls; its parts pass
control on by guaranteed tail calls, so the native stack never grows and a program recurses as deep as the control stack allows.
Instructions that this file does not know inline are calls of the runtime's own meaning of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from relay import _runtime
from relay.aot.flow import Flow, flow
from relay.codegen.builder import Builder, ModuleText
from relay.executable.bytecode import DTYPE_CODES, OPCODES, FunctionCode, Instruction
from relay.executable.format import ExecutableImage
from relay.ir.diagnostics import CompileError

_AT: Final = _runtime.native_layout()  # sizes, offsets of fields, numbers of kinds
_FRAME, _VALUE, _FUNCTION = _AT["Frame"], _AT["Value"], _AT["NativeFunction"]
_BITS: Final = _AT["Value.bits"]
_SCALAR, _OBJECT, _ADT = _AT["Value.scalar"], _AT["Value.object"], _AT["Adt"]
VERSION: Final = _AT["version"]
SYMBOL: Final = "relay_native_functions"
RUNTIME_PREFIX: Final = "relay_native_"
_MOST_UNROLLED: Final = 16  # registers released one by one

_HELPERS = f"""
define internal void @drop(ptr %object) #1 {{
  %fp = getelementptr i8, ptr %object, i64 {_AT["Object.flags"]}
  %flags = load i8, ptr %fp
  %plain = icmp eq i8 %flags, 0
  br i1 %plain, label %local, label %flagged
local:
  %count = load i32, ptr %object
  %left = add i32 %count, -1
  store i32 %left, ptr %object
  %last = icmp eq i32 %left, 0
  br i1 %last, label %dead, label %done
dead:
  call void @relay_native_destroy(ptr %object)
  ret void
flagged:
  call void @relay_native_release(ptr %object)
  ret void
done:
  ret void
}}
define internal void @keep(i64 %head, i64 %bits) #2 {{
  %kind = and i64 %head, 255
  %is = icmp eq i64 %kind, {_OBJECT}
  br i1 %is, label %object, label %done
object:
  %p = inttoptr i64 %bits to ptr
  %fp = getelementptr i8, ptr %p, i64 {_AT["Object.flags"]}
  %flags = load i8, ptr %fp
  %plain = icmp eq i8 %flags, 0
  br i1 %plain, label %local, label %flagged
local:
  %count = load i32, ptr %p
  %more = add i32 %count, 1
  store i32 %more, ptr %p
  ret void
flagged:
  call void @relay_native_retain(ptr %p)
  ret void
done:
  ret void
}}
define internal void @release(i64 %head, i64 %bits) #2 {{
  %kind = and i64 %head, 255
  %is = icmp eq i64 %kind, {_OBJECT}
  br i1 %is, label %object, label %done
object:
  %p = inttoptr i64 %bits to ptr
  call void @drop(ptr %p)
  ret void
done:
  ret void
}}
define internal void @release_slot(ptr %slot) #2 {{
  %head = load i64, ptr %slot
  %payload = getelementptr i8, ptr %slot, i64 {_BITS}
  %bits = load i64, ptr %payload
  call void @release(i64 %head, i64 %bits)
  ret void
}}
define internal void @release_range(ptr %slot, i64 %n) #1 {{
entry:
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %more, %body ]
  %end = icmp eq i64 %i, %n
  br i1 %end, label %done, label %body
body:
  %at = getelementptr [{_VALUE} x i8], ptr %slot, i64 %i
  call void @release_slot(ptr %at)
  %more = add i64 %i, 1
  br label %next
done:
  ret void
}}
define internal void @set(ptr %slot, i64 %head, i64 %bits) #2 {{
  %old = load i64, ptr %slot
  %payload = getelementptr i8, ptr %slot, i64 {_BITS}
  %oldbits = load i64, ptr %payload
  store i64 %head, ptr %slot
  store i64 %bits, ptr %payload
  call void @release(i64 %old, i64 %oldbits)
  ret void
}}
attributes #0 = {{ nounwind noinline "no-jump-tables"="true" }}
attributes #1 = {{ nounwind noinline }}
attributes #2 = {{ nounwind alwaysinline }}
"""


def translate(image: ExecutableImage, inline: bool = True) -> str:
    """The LLVM IR of an image's functions; its one public symbol, `SYMBOL`, is the table of them.

    ``inline=False`` calls the runtime for every instruction, so that an observer sees them all. Raises CompileError for a control
    instruction that has no translation.
    """
    module = ModuleText()
    module.node("!{}")
    for name in ("destroy", "retain", "release"):
        module.declare(RUNTIME_PREFIX + name, "void", ["ptr"])
    for index, function in enumerate(image.functions):
        _Function(module, image, index, function, inline).translate()
    count = len(image.functions)
    table = ", ".join(f"ptr @f{n}_0" for n in range(count))
    return f"""{module.text()}{_HELPERS}
@table = internal constant [{count} x ptr] [{table}]
define ptr @{SYMBOL}(i32 %version, i32 %count) #0 {{
  %v = icmp eq i32 %version, {VERSION}
  %n = icmp eq i32 %count, {count}
  %both = and i1 %v, %n
  %found = select i1 %both, ptr @table, ptr null
  ret ptr %found
}}
"""


def runtime_functions() -> frozenset[str]:
    """The names that native code may leave to the runtime."""
    names = {op.name for op in OPCODES if not op.control}
    names |= {"poll", "overflow", "replace", "InvokeClosure", "TailInvokeClosure", "If", "Switch"}
    return frozenset(RUNTIME_PREFIX + n for n in names | {"destroy", "retain", "release"})


class _Function:
    """One function: an LLVM function for each of its parts."""

    def __init__(
        self, module: ModuleText, image: ExecutableImage, index: int, function: FunctionCode, inline: bool
    ) -> None:
        self.module = module
        self.image = image
        self.index = index
        self.function = function
        self.inline = inline
        self.flow: Flow = flow(function)
        self.builder = Builder(module)
        self.block = 0  # the one being written

    def translate(self) -> None:
        parts: dict[int, list[int]] = {}
        for begin, head in self.flow.part.items():
            parts.setdefault(head, []).append(begin)
        for head, blocks in parts.items():
            self.builder = Builder(self.module)
            self.builder.jump(f"b{head}")
            for begin in blocks:
                self.builder.start(f"b{begin}")
                self._block(self.flow.blocks[begin])
            self.builder.finish(f"define internal i32 @f{self.index}_{head}(ptr noalias %run, ptr %r) #0")

    def _block(self, instructions: list[Instruction]) -> None:
        self.block = instructions[0].at
        for instruction in instructions:
            self._instruction(instruction)
        last = instructions[-1]
        if last.opcode.name == "Fatal":  # the runtime's failure has ended the run
            self.builder.do("ret i32 1")
        elif not last.opcode.control:
            self.go(_end(last))

    def _instruction(self, at: Instruction) -> None:
        name = at.opcode.name
        if at.opcode.control:
            found = CONTROL.get(name)
            if found is None:
                raise CompileError(
                    f"instruction {name} says what runs next, and relay.aot.translate has no translation of it",
                    hint="add it to CONTROL",
                )
            found(self, at)
        elif not (self.inline and name in INLINE and INLINE[name](self, at)):
            self.call_runtime(at)

    # -- addresses

    def field(self, base: str, offset: int) -> str:
        return base if offset == 0 else self.builder.emit(f"getelementptr i8, ptr {base}, i64 {offset}")

    def load(self, type_: str, base: str, offset: int, constant: bool = False) -> str:
        suffix = ", !invariant.load !0" if constant else ""
        return self.builder.emit(f"load {type_}, ptr {self.field(base, offset)}{suffix}")

    def store(self, type_: str, value: str | int, base: str, offset: int) -> None:
        self.builder.do(f"store {type_} {value}, ptr {self.field(base, offset)}")

    def slot(self, register: int) -> str:
        return self.field("%r", _VALUE * register)

    def value(self, register: int) -> tuple[str, str]:
        """Head (kind and dtype) and payload."""
        dtype = self.flow.scalars.get(register)
        slot = self.slot(register)
        head = str(_scalar_head(dtype)) if dtype is not None else self.load("i64", slot, 0)
        return head, self.load("i64", slot, _BITS)

    def pc(self, at: int) -> str:
        """The address of a word of the function's bytecode."""
        functions = self.load("ptr", "%run", _AT["RunState.functions"], constant=True)
        return self.field(
            self.load("ptr", functions, self.index * _FUNCTION + _AT["NativeFunction.code"], constant=True), 4 * at
        )

    def assign(self, register: int, head: str | int, bits: str | int) -> None:
        """The register holds the value, whose reference it takes over; what it held is released."""
        slot = self.slot(register)
        if register in self.flow.scalars or register in self.flow.assigned_once:
            self.store("i64", head, slot, 0)
            self.store("i64", bits, slot, _BITS)
        else:
            self.builder.do(f"call void @set(ptr {slot}, i64 {head}, i64 {bits})")

    def keep(self, register: int, head: str, bits: str) -> None:
        if register not in self.flow.scalars:
            self.builder.do(f"call void @keep(i64 {head}, i64 {bits})")

    def is_scalar(self, register: int, dtype: str) -> bool:
        return self.flow.scalars.get(register) == dtype

    # -- the runtime

    def call(self, name: str, result: str, *arguments: tuple[str, str | int]) -> str:
        return self.builder.call(RUNTIME_PREFIX + name, result, *((t, str(v)) for t, v in arguments))

    def call_runtime(self, at: Instruction) -> None:
        self.check(self.call(at.opcode.name, "i32", ("ptr", "%run"), ("ptr", "%r"), ("ptr", self.pc(at.at))))

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
        left = self.builder.emit(f"add i64 {self.load('i64', '%run', _AT['RunState.budget'])}, -1")
        self.store("i64", left, "%run", _AT["RunState.budget"])
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

    def go(self, target: int) -> None:
        """Control goes to another block of this function."""
        if self.flow.part[target] == self.flow.part[self.block] != target:
            self.builder.jump(f"b{target}")
        else:
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
            start = self.field(fresh, _VALUE * filled)
            self.builder.call(
                "llvm.memset.p0.i64", "void",
                ("ptr", start), ("i8", "0"), ("i64", str(_VALUE * nil)), ("i1", "false"),
            )  # fmt: skip
        top = self.field(fresh, _VALUE * callee.registers)
        self.store("ptr", top, "%run", _AT["RunState.top"])
        highest = self.load("ptr", "%run", _AT["RunState.highest"])
        higher = self.builder.emit(f"icmp ugt ptr {top}, {highest}")
        self.store(
            "ptr", self.builder.emit(f"select i1 {higher}, ptr {top}, ptr {highest}"), "%run", _AT["RunState.highest"]
        )

    def function_pointer(self, function: int) -> str:
        functions = self.load("ptr", "%run", _AT["RunState.functions"], constant=True)
        return self.load("ptr", functions, function * _FUNCTION + _AT["NativeFunction.function"], constant=True)

    def release_frame(self, moved: set[int]) -> None:
        """Release this frame's registers but for those whose references went elsewhere."""
        held = [r for r in range(self.function.registers) if r not in self.flow.scalars and r not in moved]
        if len(held) <= _MOST_UNROLLED:
            for register in held:
                self.builder.do(f"call void @release_slot(ptr {self.slot(register)})")
            return
        for register in moved:
            self.store("i64", 0, self.slot(register), 0)
        self.builder.do(f"call void @release_range(ptr %r, i64 {self.function.registers})")


def _end(instruction: Instruction) -> int:
    """The word after an instruction."""
    words = 1
    for letter, operand in zip(instruction.opcode.operands, instruction.operands, strict=True):
        words += 1 + len(operand) if isinstance(operand, tuple) else 2 if letter == "I" else 1
    return instruction.at + words


def _scalar_head(dtype: str) -> int:
    return _SCALAR | DTYPE_CODES[dtype] << 8


def _int(operand: int | tuple[int, ...]) -> int:
    assert isinstance(operand, int)
    return operand


def _list(operand: int | tuple[int, ...]) -> tuple[int, ...]:
    assert isinstance(operand, tuple)
    return operand


# -- control: every instruction that says what runs next has its translation here


def _ret(f: _Function, at: Instruction) -> None:
    b = f.builder
    source = _int(at.operands[0])
    head, bits = f.value(source)
    f.release_frame({source} - f.flow.scalars.keys())
    frame = f.field("%r", -_FRAME)
    code = f.load("ptr", frame, _AT["Frame.code"])
    f.store("ptr", frame, "%run", _AT["RunState.top"])

    def finish() -> None:
        f.store("i64", head, "%run", _AT["RunState.result"])
        f.store("i64", bits, "%run", _AT["RunState.result"] + _BITS)
        b.do("ret i32 0")

    f.unless(b.emit(f"icmp eq ptr {code}, null"), finish)
    caller = f.load("ptr", frame, _AT["Frame.registers"])
    result = b.emit(f"sext i32 {f.load('i32', frame, _AT['Frame.result'])} to i64")
    slot = b.emit(f"getelementptr [{_VALUE} x i8], ptr {caller}, i64 {result}")
    b.do(f"call void @set(ptr {slot}, i64 {head}, i64 {bits})")
    f.leave(code, caller)


def _invoke(f: _Function, at: Instruction) -> None:
    b = f.builder
    out, function, arguments = _int(at.operands[0]), _int(at.operands[1]), _list(at.operands[2])
    f.poll(at)
    top, limit = f.load("ptr", "%run", _AT["RunState.top"]), f.load("ptr", "%run", _AT["RunState.limit"])
    room = b.emit(f"sub i64 {b.emit(f'ptrtoint ptr {limit} to i64')}, {b.emit(f'ptrtoint ptr {top} to i64')}")
    small = b.emit(f"icmp slt i64 {room}, {_FRAME + _VALUE * f.image.functions[function].registers}")
    depth = b.emit(f"add i32 {f.load('i32', '%r', _AT['Frame.depth'] - _FRAME)}, 1")
    deep = b.emit(f"icmp ugt i32 {depth}, {f.load('i32', '%run', _AT['RunState.most_depth'])}")

    def overflow() -> None:
        f.call("overflow", "i32", ("ptr", "%run"), ("ptr", "%r"), ("ptr", f.pc(at.at)), ("i32", function))
        b.do("ret i32 1")

    f.unless(b.emit(f"or i1 {small}, {deep}"), overflow)
    f.store("ptr", f.function_pointer(function), top, _AT["Frame.function"])
    f.store("ptr", f.pc(_end(at)), top, _AT["Frame.resume"])
    f.store("ptr", f"@f{f.index}_{_end(at)}", top, _AT["Frame.code"])
    f.store("ptr", "%r", top, _AT["Frame.registers"])
    f.store("i32", out, top, _AT["Frame.result"])
    f.store("i32", depth, top, _AT["Frame.depth"])
    fresh = f.field(top, _FRAME)
    for number, register in enumerate(arguments):
        head, bits = f.value(register)
        f.keep(register, head, bits)
        f.store("i64", head, fresh, _VALUE * number)
        f.store("i64", bits, fresh, _VALUE * number + _BITS)
    f.enter(function, fresh, len(arguments))
    f.leave(f"@f{function}_0", fresh)


def _tail_invoke(f: _Function, at: Instruction) -> None:
    b = f.builder
    function, arguments = _int(at.operands[0]), _list(at.operands[1])
    f.poll(at)
    callee = f.image.functions[function]
    if callee.registers > f.function.registers:  # there may be no room: the runtime sees to it
        end = f.field("%r", _VALUE * callee.registers)
        slow, on = b.name("slow"), b.name("on")
        b.branch(b.emit(f"icmp ugt ptr {end}, {f.load('ptr', '%run', _AT['RunState.limit'])}"), slow, on)
        b.start(slow)
        f.check(f.call("replace", "i32", ("ptr", "%run"), ("ptr", "%r"), ("ptr", f.pc(at.at)), ("i32", function)))
        f.leave(f"@f{function}_0", f.load("ptr", "%run", _AT["RunState.registers"]))
        b.start(on)
    values: list[tuple[str, str]] = []
    moved: set[int] = set()
    for register in arguments:
        head, bits = f.value(register)
        if register in moved:
            f.keep(register, head, bits)
        elif register not in f.flow.scalars:
            moved.add(register)  # the frame's own reference
        values.append((head, bits))
    f.release_frame(moved)
    f.store("ptr", f.function_pointer(function), "%r", -_FRAME)
    for number, (head, bits) in enumerate(values):
        f.store("i64", head, "%r", _VALUE * number)
        f.store("i64", bits, "%r", _VALUE * number + _BITS)
    f.enter(function, "%r", len(values))
    f.leave(f"@f{function}_0", "%r")


def _invoke_closure(f: _Function, at: Instruction) -> None:
    resume = f"@f{f.index}_{_end(at)}"
    f.check(f.call("InvokeClosure", "i32", ("ptr", "%run"), ("ptr", "%r"), ("ptr", f.pc(at.at)), ("ptr", resume)))
    f.leave(f.load("ptr", "%run", _AT["RunState.code"]), f.load("ptr", "%run", _AT["RunState.registers"]))


def _tail_invoke_closure(f: _Function, at: Instruction) -> None:
    f.check(f.call("TailInvokeClosure", "i32", ("ptr", "%run"), ("ptr", "%r"), ("ptr", f.pc(at.at))))
    f.leave(f.load("ptr", "%run", _AT["RunState.code"]), f.load("ptr", "%run", _AT["RunState.registers"]))


def _if(f: _Function, at: Instruction) -> None:
    b = f.builder
    register, target = _int(at.operands[0]), _int(at.operands[1])
    if f.is_scalar(register, "bool"):
        holds = b.emit(f"trunc i64 {f.value(register)[1]} to i1")
    else:
        found = f.call("If", "i32", ("ptr", "%run"), ("ptr", "%r"), ("ptr", f.pc(at.at)))
        f.unless(b.emit(f"icmp slt i32 {found}, 0"), lambda: b.do("ret i32 1"))
        holds = b.emit(f"icmp ne i32 {found}, 0")
    then, orelse = b.name("then"), b.name("else")
    b.branch(holds, then, orelse)
    b.start(then)
    f.go(_end(at))
    b.start(orelse)
    f.jump(at, target)


def _goto(f: _Function, at: Instruction) -> None:
    f.jump(at, _int(at.operands[0]))


def _switch(f: _Function, at: Instruction) -> None:
    b = f.builder
    register, targets = _int(at.operands[0]), _list(at.operands[1])
    known = f.is_scalar(register, "int64")
    type_, choice = "i64", ""
    if known:
        choice = f.value(register)[1]
    else:
        type_, choice = "i32", f.call("Switch", "i32", ("ptr", "%run"), ("ptr", "%r"), ("ptr", f.pc(at.at)))
    names = [b.name("case") for _ in targets]
    other = b.name("other")
    b.do(f"switch {type_} {choice}, label %{other} [")
    for number, name in enumerate(names):
        b.do(f"  {type_} {number}, label %{name}")
    b.do("]")
    b.start(other)
    if known:
        f.call("Switch", "i32", ("ptr", "%run"), ("ptr", "%r"), ("ptr", f.pc(at.at)))
    b.do("ret i32 1")
    for name, target in zip(names, targets, strict=True):
        b.start(name)
        f.jump(at, target)


CONTROL: Final[dict[str, Callable[[_Function, Instruction], None]]] = {
    "Ret": _ret,
    "Invoke": _invoke,
    "TailInvoke": _tail_invoke,
    "InvokeClosure": _invoke_closure,
    "TailInvokeClosure": _tail_invoke_closure,
    "If": _if,
    "Goto": _goto,
    "Switch": _switch,
}


# -- what is worth inlining: each gives False where it needs to know more of its operands than it does


def _move(f: _Function, at: Instruction) -> bool:
    out, source = map(_int, at.operands)
    head, bits = f.value(source)
    f.keep(source, head, bits)
    f.assign(out, head, bits)
    return True


def _kill(f: _Function, at: Instruction) -> bool:
    f.builder.do(f"call void @set(ptr {f.slot(_int(at.operands[0]))}, i64 0, i64 0)")
    return True


def _constant(f: _Function, at: Instruction) -> bool:
    out, dtype, *bits = map(_int, at.operands)
    f.assign(out, _SCALAR | dtype << 8, bits[0] if bits else 0)
    return True


def _integers(f: _Function, registers: tuple[int, ...]) -> list[str] | None:
    """The numbers in the registers, where they are known to be unboxed int64."""
    return [f.value(r)[1] for r in registers] if all(f.is_scalar(r, "int64") for r in registers) else None


def _arithmetic(operation: str) -> Callable[[_Function, Instruction], bool]:
    def inline(f: _Function, at: Instruction) -> bool:
        out, a, b = map(_int, at.operands)
        numbers = _integers(f, (a, b))
        if numbers is None:
            return False
        x, y = numbers
        if operation in ("slt", "sgt"):
            less = f.builder.emit(f"icmp {operation} i64 {x}, {y}")
            result = f.builder.emit(f"select i1 {less}, i64 {x}, i64 {y}")
        else:
            result = f.builder.emit(f"{operation} i64 {x}, {y}")
        f.assign(out, _scalar_head("int64"), result)
        return True

    return inline


def _check(fails: str) -> Callable[[_Function, Instruction], bool]:
    def inline(f: _Function, at: Instruction) -> bool:
        a, b, _ = map(_int, at.operands)
        numbers = _integers(f, (a, b))
        if numbers is None:
            return False
        on = f.builder.name("on")
        slow = f.builder.name("slow")
        f.builder.branch(f.builder.emit(f"icmp {fails} i64 {numbers[0]}, {numbers[1]}"), slow, on)
        f.builder.start(slow)
        f.call_runtime(at)
        f.builder.jump(on)
        f.builder.start(on)
        return True

    return inline


def _constructor_value(f: _Function, register: int, fits: Callable[[str], str]) -> tuple[str, str]:
    """The object in a register, where control goes on when it is a constructor value that fits, and the label of the other way."""
    b = f.builder
    head, bits = f.value(register)
    is_object, is_adt, good, slow = (b.name(n) for n in ("object", "adt", "good", "slow"))
    b.branch(b.emit(f"icmp eq i64 {b.emit(f'and i64 {head}, 255')}, {_OBJECT}"), is_object, slow)
    b.start(is_object)
    pointer = b.emit(f"inttoptr i64 {bits} to ptr")
    b.branch(b.emit(f"icmp eq i8 {f.load('i8', pointer, _AT['Object.type'])}, {_ADT}"), is_adt, slow)
    b.start(is_adt)
    b.branch(fits(pointer), good, slow)
    b.start(good)
    return pointer, slow


def _or_runtime(f: _Function, at: Instruction, slow: str) -> None:
    """The inline way ends here; the other is the runtime's."""
    on = f.builder.name("on")
    f.builder.jump(on)
    f.builder.start(slow)
    f.call_runtime(at)
    f.builder.jump(on)
    f.builder.start(on)


def _get_tag(f: _Function, at: Instruction) -> bool:
    out, source = map(_int, at.operands)
    if source in f.flow.scalars:
        return False
    pointer, slow = _constructor_value(f, source, lambda _: "true")
    tag = f.builder.emit(f"sext i32 {f.load('i32', pointer, _AT['Adt.tag'])} to i64")
    f.assign(out, _scalar_head("int64"), tag)
    _or_runtime(f, at, slow)
    return True


def _get_field(f: _Function, at: Instruction) -> bool:
    out, source, index = map(_int, at.operands)
    if source in f.flow.scalars:
        return False
    b = f.builder
    pointer, slow = _constructor_value(
        f, source, lambda p: b.emit(f"icmp ugt i32 {f.load('i32', p, _AT['Adt.size'])}, {index}")
    )
    head = f.load("i64", pointer, _AT["Adt.fields"] + _VALUE * index)
    bits = f.load("i64", pointer, _AT["Adt.fields"] + _VALUE * index + _BITS)
    f.keep(out, head, bits)
    f.assign(out, head, bits)
    _or_runtime(f, at, slow)
    return True


INLINE: Final[dict[str, Callable[[_Function, Instruction], bool]]] = {
    "Move": _move,
    "Kill": _kill,
    "LoadConsti": _constant,
    "AllocScalar": _constant,
    "IAdd": _arithmetic("add"),
    "ISub": _arithmetic("sub"),
    "IMul": _arithmetic("mul"),
    "IMin": _arithmetic("slt"),
    "IMax": _arithmetic("sgt"),
    "CheckEq": _check("ne"),
    "CheckLe": _check("sgt"),
    "GetTag": _get_tag,
    "GetField": _get_field,
}
