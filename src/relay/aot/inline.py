"""Translations of instructions that are worth inlining: each gives False where it needs to know more of its operands than it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from relay.aot.function import FunctionText, number
from relay.aot.kinds import OPERATIONS, TESTS
from relay.aot.layout import AT, BITS, OBJECT, VALUE, scalar_head
from relay.codegen.values import Value, register_type
from relay.executable.bytecode import BY_NAME, DTYPES, Instruction
from relay.lower.scalars import ARITHMETIC, has_operation
from relay.te.scalar import BinaryOp, CompareOp, UnaryOp


def _move(f: FunctionText, at: Instruction) -> bool:
    out, source = map(number, at.operands)
    head, bits = f.value(source)
    f.keep(source, head, bits)
    f.assign(out, head, bits)
    return True


def _take(f: FunctionText, at: Instruction) -> bool:
    out, source = map(number, at.operands)
    head, bits = f.value(source)
    if source not in f.flow.scalars:
        f.store("i64", 0, f.slot(source), 0)
    f.assign(out, head, bits)
    return True


def _kill(f: FunctionText, at: Instruction) -> bool:
    register = number(at.operands[0])
    if register in f.held:
        f.builder.do(f"call void @set(ptr {f.slot(register)}, i64 0, i64 0)")
    return True


def _constant(f: FunctionText, at: Instruction) -> bool:
    out, dtype, *bits = map(number, at.operands)
    f.assign(out, scalar_head(DTYPES[dtype]), bits[0] if bits else 0)
    return True


def _integers(f: FunctionText, registers: tuple[int, ...]) -> list[str] | None:
    """The numbers in the registers, where they are known to be unboxed int64."""
    return [f.value(r)[1] for r in registers] if all(f.is_scalar(r, "int64") for r in registers) else None


def _extreme(operation: str) -> Callable[[FunctionText, Instruction], bool]:
    def inline(f: FunctionText, at: Instruction) -> bool:
        out, a, b = map(number, at.operands)
        numbers = _integers(f, (a, b))
        if numbers is None:
            return False
        x, y = numbers
        less = f.builder.emit(f"icmp {operation} i64 {x}, {y}")
        f.assign(out, scalar_head("int64"), f.builder.emit(f"select i1 {less}, i64 {x}, i64 {y}"))
        return True

    return inline


def _size(operation: str) -> Callable[[FunctionText, Instruction], bool]:
    """Arithmetic of sizes. Where the result is more than int64 holds, the runtime's instruction says so."""

    def inline(f: FunctionText, at: Instruction) -> bool:
        out, a, b = map(number, at.operands)
        numbers = _integers(f, (a, b))
        if numbers is None:
            return False
        given = [("i64", n) for n in numbers]
        both = f.builder.call(f"llvm.{operation}.with.overflow.i64", "{ i64, i1 }", *given)
        slow, good = f.builder.name("slow"), f.builder.name("good")
        f.builder.branch(f.builder.emit(f"extractvalue {{ i64, i1 }} {both}, 1"), slow, good)
        f.builder.start(good)
        f.assign(out, scalar_head("int64"), f.builder.emit(f"extractvalue {{ i64, i1 }} {both}, 0"))
        _or_runtime(f, at, slow)
        return True

    return inline


def _check(fails: str) -> Callable[[FunctionText, Instruction], bool]:
    def inline(f: FunctionText, at: Instruction) -> bool:
        a, b, _ = map(number, at.operands)
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


# -- unboxed scalars: by the code generation of kernels


def _typed(f: FunctionText, register: int, dtype: str) -> Value | None:
    """The number in a register, where it is known to be an unboxed one of the dtype."""
    if not f.is_scalar(register, dtype):
        return None
    bits, type_ = f.payload(register), register_type(dtype)
    if type_ in ("float", "double"):
        word = "i32" if type_ == "float" else "i64"
        narrow = f.builder.emit(f"trunc i64 {bits} to {word}") if word != "i64" else bits
        return Value(f.builder.emit(f"bitcast {word} {narrow} to {type_}"), dtype)
    return Value(bits if type_ == "i64" else f.builder.emit(f"trunc i64 {bits} to {type_}"), dtype)


def _assign(f: FunctionText, register: int, value: Value) -> None:
    text, type_ = value.text, register_type(value.dtype)
    if type_ in ("float", "double"):
        word = "i32" if type_ == "float" else "i64"
        text, type_ = f.builder.emit(f"bitcast {type_} {text} to {word}"), word
    f.assign(
        register, scalar_head(value.dtype), text if type_ == "i64" else f.builder.emit(f"zext {type_} {text} to i64")
    )


def _operation(f: FunctionText, at: Instruction) -> bool:
    """An operation of `relay.te.scalar`."""
    op, dtype = OPERATIONS[at.opcode.name], DTYPES[number(at.operands[1])]
    given = [_typed(f, number(r), dtype) for r in at.operands[2:]]
    operands = [v for v in given if v is not None]
    if len(operands) < len(given) or not has_operation(op, dtype):
        return False
    if len(operands) == 1:
        result = f.math.unary(cast(UnaryOp, op), operands[0])
    elif at.opcode.name in TESTS:
        result = f.arith.compare(cast(CompareOp, op), operands[0], operands[1])
    else:
        result = f.arith.binary(cast(BinaryOp, op), operands[0], operands[1])
    _assign(f, number(at.operands[0]), result)
    return True


def _convert(f: FunctionText, at: Instruction) -> bool:
    out, source, target, register = map(number, at.operands)
    if not {DTYPES[source], DTYPES[target]} <= ARITHMETIC or (value := _typed(f, register, DTYPES[source])) is None:
        return False
    _assign(f, out, f.convert.cast(value, DTYPES[target]))
    return True


def _select(f: FunctionText, at: Instruction) -> bool:
    out, condition, a, b = map(number, at.operands)
    chosen = _typed(f, condition, "bool")
    if chosen is None or f.flow.scalars.get(a, "") != f.flow.scalars.get(b) or out not in f.flow.scalars:
        return False
    picked = f.builder.emit(f"select i1 {chosen.text}, i64 {f.payload(a)}, i64 {f.payload(b)}")
    f.assign(out, scalar_head(f.flow.scalars[a]), picked)
    return True


def _scalar_of(f: FunctionText, at: Instruction) -> bool:
    out, source, dtype = map(number, at.operands)
    if not f.is_scalar(source, DTYPES[dtype]):
        return False
    f.assign(out, scalar_head(DTYPES[dtype]), f.payload(source))
    return True


# -- constructor values


def _constructor_value(f: FunctionText, register: int, fits: Callable[[str], str]) -> tuple[str, str]:
    """The object in a register, where control goes on when it is a constructor value that fits, and the label of the other way."""
    b = f.builder
    head, bits = f.value(register)
    is_object, is_adt, good, slow = (b.name(n) for n in ("object", "adt", "good", "slow"))
    b.branch(b.emit(f"icmp eq i64 {b.emit(f'and i64 {head}, 255')}, {OBJECT}"), is_object, slow)
    b.start(is_object)
    pointer = b.emit(f"inttoptr i64 {bits} to ptr")
    b.branch(b.emit(f"icmp eq i8 {f.load('i8', pointer, AT['Object.type'])}, {AT['Adt']}"), is_adt, slow)
    b.start(is_adt)
    b.branch(fits(pointer), good, slow)
    b.start(good)
    return pointer, slow


def _or_runtime(f: FunctionText, at: Instruction, slow: str) -> None:
    """The inline way ends here; the other is the runtime's."""
    on = f.builder.name("on")
    f.builder.jump(on)
    f.builder.start(slow)
    f.call_runtime(at)
    f.builder.jump(on)
    f.builder.start(on)


def _get_tag(f: FunctionText, at: Instruction) -> bool:
    out, source = map(number, at.operands)
    if source in f.flow.scalars:
        return False
    pointer, slow = _constructor_value(f, source, lambda _: "true")
    tag = f.builder.emit(f"sext i32 {f.load('i32', pointer, AT['Adt.tag'])} to i64")
    f.assign(out, scalar_head("int64"), tag)
    _or_runtime(f, at, slow)
    return True


def _get_field(f: FunctionText, at: Instruction) -> bool:
    out, source, index = map(number, at.operands)
    if source in f.flow.scalars:
        return False
    b = f.builder
    pointer, slow = _constructor_value(
        f, source, lambda p: b.emit(f"icmp ugt i32 {f.load('i32', p, AT['Adt.size'])}, {index}")
    )
    head = f.load("i64", pointer, AT["Adt.fields"] + VALUE * index)
    bits = f.load("i64", pointer, AT["Adt.fields"] + VALUE * index + BITS)
    f.keep(out, head, bits)
    f.assign(out, head, bits)
    _or_runtime(f, at, slow)
    return True


INLINE: Final[dict[str, Callable[[FunctionText, Instruction], bool]]] = {
    "Move": _move,
    "Take": _take,
    "Kill": _kill,
    "LoadConsti": _constant,
    "AllocScalar": _constant,
    "IAdd": _size("sadd"),
    "ISub": _size("ssub"),
    "IMul": _size("smul"),
    "IMin": _extreme("slt"),
    "IMax": _extreme("sgt"),
    "CheckEq": _check("ne"),
    "CheckLe": _check("sgt"),
    "GetTag": _get_tag,
    "GetField": _get_field,
    "ScalarOf": _scalar_of,
    "ScalarCast": _convert,
    "ScalarSelect": _select,
    **dict.fromkeys((name for name in OPERATIONS if name in BY_NAME), _operation),
}
