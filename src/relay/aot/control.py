"""Translations of the instructions that say what runs next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from relay.aot.function import FunctionText, end_of, listed, number
from relay.aot.layout import AT, BITS, FRAME, VALUE
from relay.executable.bytecode import Instruction


def _ret(f: FunctionText, at: Instruction) -> None:
    b = f.builder
    source = number(at.operands[0])
    head, bits = f.value(source)
    f.release_frame({source} - f.flow.scalars.keys())
    frame = f.field("%r", -FRAME)
    code = f.load("ptr", frame, AT["Frame.code"])
    f.store("ptr", frame, "%run", AT["RunState.top"])

    def finish() -> None:
        f.store("i64", head, "%run", AT["RunState.result"])
        f.store("i64", bits, "%run", AT["RunState.result"] + BITS)
        b.do("ret i32 0")

    f.unless(b.emit(f"icmp eq ptr {code}, null"), finish)
    caller = f.load("ptr", frame, AT["Frame.registers"])
    result = b.emit(f"sext i32 {f.load('i32', frame, AT['Frame.result'])} to i64")
    slot = b.emit(f"getelementptr [{VALUE} x i8], ptr {caller}, i64 {result}")
    b.do(f"call void @set(ptr {slot}, i64 {head}, i64 {bits})")
    f.leave(code, caller)


def _invoke(f: FunctionText, at: Instruction) -> None:
    b = f.builder
    out, function, arguments = number(at.operands[0]), number(at.operands[1]), listed(at.operands[2])
    released = [register for register in listed(at.operands[3]) if register in f.held]
    f.poll(at)
    top, limit = f.load("ptr", "%run", AT["RunState.top"]), f.load("ptr", "%run", AT["RunState.limit"])
    room = b.emit(f"sub i64 {b.emit(f'ptrtoint ptr {limit} to i64')}, {b.emit(f'ptrtoint ptr {top} to i64')}")
    small = b.emit(f"icmp slt i64 {room}, {FRAME + VALUE * f.image.functions[function].registers}")
    depth = b.emit(f"add i32 {f.load('i32', '%r', AT['Frame.depth'] - FRAME)}, 1")
    deep = b.emit(f"icmp ugt i32 {depth}, {f.load('i32', '%run', AT['RunState.most_depth'])}")

    def overflow() -> None:
        f.call("overflow", "i32", ("ptr", "%run"), ("ptr", "%r"), ("ptr", f.pc(at.at)), ("i32", function))
        b.do("ret i32 1")

    f.unless(b.emit(f"or i1 {small}, {deep}"), overflow)
    f.store("ptr", f.function_pointer(function), top, AT["Frame.function"])
    f.store("ptr", f.pc(end_of(at)), top, AT["Frame.resume"])
    f.store("ptr", f"@f{f.index}_{end_of(at)}", top, AT["Frame.code"])
    f.store("ptr", "%r", top, AT["Frame.registers"])
    f.store("i32", out, top, AT["Frame.result"])
    f.store("i32", depth, top, AT["Frame.depth"])
    fresh = f.field(top, FRAME)
    moved: set[int] = set()
    for position, register in enumerate(arguments):
        head, bits = f.value(register)
        if register in released and register not in moved:
            moved.add(register)  # the frame's own reference
        else:
            f.keep(register, head, bits)
        f.store("i64", head, fresh, VALUE * position)
        f.store("i64", bits, fresh, VALUE * position + BITS)
    for register in released:
        if register not in moved:
            b.do(f"call void @release_slot(ptr {f.slot(register)})")
        f.store("i64", 0, f.slot(register), 0)
    f.put_live(end_of(at), but=out)
    f.enter(function, fresh, len(arguments))
    f.leave(f"@f{function}_0", fresh)


def _tail_invoke(f: FunctionText, at: Instruction) -> None:
    b = f.builder
    function, arguments = number(at.operands[0]), listed(at.operands[1])
    f.poll(at)
    callee = f.image.functions[function]
    if callee.registers > f.function.registers:  # there may be no room: the runtime sees to it
        end = f.field("%r", VALUE * callee.registers)
        slow, on = b.name("slow"), b.name("on")
        b.branch(b.emit(f"icmp ugt ptr {end}, {f.load('ptr', '%run', AT['RunState.limit'])}"), slow, on)
        b.start(slow)
        f.put_operands(at)
        f.check(f.call("replace", "i32", ("ptr", "%run"), ("ptr", "%r"), ("ptr", f.pc(at.at)), ("i32", function)))
        f.leave(f"@f{function}_0", f.load("ptr", "%run", AT["RunState.registers"]))
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
    f.store("ptr", f.function_pointer(function), "%r", -FRAME)
    for position, (head, bits) in enumerate(values):
        f.store("i64", head, "%r", VALUE * position)
        f.store("i64", bits, "%r", VALUE * position + BITS)
    f.enter(function, "%r", len(values))
    f.leave(f"@f{function}_0", "%r")


def _invoke_closure(f: FunctionText, at: Instruction) -> None:
    resume = f"@f{f.index}_{end_of(at)}"
    f.put_operands(at)
    f.put_live(end_of(at), but=number(at.operands[0]))
    f.check(f.call("InvokeClosure", "i32", ("ptr", "%run"), ("ptr", "%r"), ("ptr", f.pc(at.at)), ("ptr", resume)))
    f.leave(f.load("ptr", "%run", AT["RunState.code"]), f.load("ptr", "%run", AT["RunState.registers"]))


def _tail_invoke_closure(f: FunctionText, at: Instruction) -> None:
    f.put_operands(at)
    f.check(f.call("TailInvokeClosure", "i32", ("ptr", "%run"), ("ptr", "%r"), ("ptr", f.pc(at.at))))
    f.leave(f.load("ptr", "%run", AT["RunState.code"]), f.load("ptr", "%run", AT["RunState.registers"]))


def _if(f: FunctionText, at: Instruction) -> None:
    b = f.builder
    register, target = number(at.operands[0]), number(at.operands[1])
    if f.is_scalar(register, "bool"):
        holds = b.emit(f"trunc i64 {f.value(register)[1]} to i1")
    else:
        f.put_operands(at)
        found = f.call("If", "i32", ("ptr", "%run"), ("ptr", "%r"), ("ptr", f.pc(at.at)))
        f.unless(b.emit(f"icmp slt i32 {found}, 0"), lambda: b.do("ret i32 1"))
        holds = b.emit(f"icmp ne i32 {found}, 0")
    then, orelse = b.name("then"), b.name("else")
    b.branch(holds, then, orelse)
    b.start(then)
    f.go(end_of(at))
    b.start(orelse)
    f.jump(at, target)


def _goto(f: FunctionText, at: Instruction) -> None:
    f.jump(at, number(at.operands[0]))


def _switch(f: FunctionText, at: Instruction) -> None:
    b = f.builder
    register, targets = number(at.operands[0]), listed(at.operands[1])
    known = f.is_scalar(register, "int64")
    f.put_operands(at)
    type_, choice = "i64", ""
    if known:
        choice = f.value(register)[1]
    else:
        type_, choice = "i32", f.call("Switch", "i32", ("ptr", "%run"), ("ptr", "%r"), ("ptr", f.pc(at.at)))
    names = [b.name("case") for _ in targets]
    other = b.name("other")
    b.do(f"switch {type_} {choice}, label %{other} [")
    for position, name in enumerate(names):
        b.do(f"  {type_} {position}, label %{name}")
    b.do("]")
    b.start(other)
    if known:
        f.call("Switch", "i32", ("ptr", "%run"), ("ptr", "%r"), ("ptr", f.pc(at.at)))
    b.do("ret i32 1")
    for name, target in zip(names, targets, strict=True):
        b.start(name)
        f.jump(at, target)


CONTROL: Final[dict[str, Callable[[FunctionText, Instruction], None]]] = {
    "Ret": _ret,
    "Invoke": _invoke,
    "TailInvoke": _tail_invoke,
    "InvokeClosure": _invoke_closure,
    "TailInvokeClosure": _tail_invoke_closure,
    "If": _if,
    "Goto": _goto,
    "Switch": _switch,
}
