"""Instructions on unboxed scalars mean what the interpreter's operations mean, on the numbers where dtypes differ."""

from __future__ import annotations

import functools
from typing import Any, get_args

import numpy as np
import pytest

from relay.aot.native import with_native_code
from relay.codegen.target import host_target
from relay.executable import Assembler, EntryPoint, Executable, ExecutableImage, FunctionCode
from relay.executable.bytecode import BY_NAME, OPCODES
from relay.ir.diagnostics import ExecutionError
from relay.lower.scalars import opcode_of
from relay.te import numeric
from relay.te.scalar import BinaryOp, CompareOp, UnaryOp
from tests.runtime.programs import function, integer, program

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float32", "float64")
QUOTIENTS = ("floordiv", "truncdiv")  # of floats: rounded, which is not NumPy's
ALL = ("bool", *INTEGERS, *FLOATS)
ON_INTEGERS = ("truncdiv", "mod", "truncmod", "shl", "shr", "pow", "and", "or", "xor")
OPERATIONS = {op: opcode_of(op) for op in (*get_args(BinaryOp), *get_args(CompareOp), *get_args(UnaryOp))}


def numbers(dtype: str) -> list[Any]:
    kind = np.dtype(dtype)
    if dtype == "bool":
        return [kind.type(False), kind.type(True)]
    if dtype in FLOATS:
        values = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, -3.5, 1e30, -np.inf, np.inf, np.nan, 7.0]
        return [kind.type(v) for v in values]
    info = np.iinfo(kind)
    values = sorted({info.min, info.min + 1, 0, 1, 2, 3, 7, info.bits - 1, info.bits, info.max - 1, info.max})
    return [kind.type(v) for v in values] + ([kind.type(v) for v in (-1, -2, -7)] if info.min else [])


def of(dtype: str, op: str) -> bool:
    """Whether the operation is one of the dtype's."""
    if dtype == "bool":
        return op in ("and", "or", "xor", "min", "max", "eq", "ne", "lt", "le", "gt", "ge", "not")
    if dtype in FLOATS:
        return op not in (*ON_INTEGERS, "not", "truncdiv", "floordiv")
    return op != "sqrt" and (op not in ("abs", "neg", "sign") or dtype.startswith("int"))


def instruction(opcode: str, dtypes: tuple[str, ...], arity: int) -> FunctionCode:
    """A function of unboxed scalars that is one instruction."""

    def main(asm: Assembler) -> None:
        for register in range(arity):
            asm.emit("ScalarOf", register, register, dtypes[0])
        out = asm.reg()
        asm.emit(opcode, out, *dtypes, *range(arity))
        asm.emit("Ret", out)

    return function(" ".join((opcode, *dtypes)), arity, main)


@functools.cache
def everything(native: bool) -> Executable:
    """An executable with an entry for every instruction at every dtype that has it, and every conversion."""
    codes = [
        instruction(name, (dtype,), 1 if op in get_args(UnaryOp) else 2)
        for op, name in OPERATIONS.items()
        for dtype in ALL
        if name in BY_NAME and (of(dtype, op) or (op in QUOTIENTS and dtype in FLOATS))
    ]
    codes += [instruction("ScalarCast", (source, target), 1) for source in ALL for target in ALL]
    entries = tuple(EntryPoint(code.name, n, "", (None,) * code.arity) for n, code in enumerate(codes))
    built = ExecutableImage(functions=tuple(codes), entries=entries)
    return Executable.from_bytes((with_native_code(built, host_target()) if native else built).to_bytes())


@pytest.fixture(params=["vm", "aot"])
def exe(request: pytest.FixtureRequest) -> Executable:
    return everything(request.param == "aot")


def meaning(op: Any, dtype: str, operands: list[Any]) -> Any:
    """What the interpreter says."""
    if op in get_args(UnaryOp):
        return numeric.unary(op, operands[0], dtype, "bool" if op.startswith("is") else dtype)
    if op in get_args(CompareOp):
        return numeric.compare(op, operands[0], operands[1], dtype)
    return numeric.binary(op, operands[0], operands[1], dtype)


@pytest.mark.parametrize("op", [op for op, name in OPERATIONS.items() if name in BY_NAME])
def test_operations(op: str, exe: Executable) -> None:
    for dtype in ALL:
        if not of(dtype, op):
            continue
        values = numbers(dtype)
        one = op in get_args(UnaryOp)
        for given in [(a,) for a in values] if one else [(a, b) for a in values for b in values]:
            result = exe.run(f"{OPERATIONS[op]} {dtype}", given).numpy()
            with np.errstate(all="ignore"):
                expected = meaning(op, dtype, [np.asarray(g) for g in given])
            assert result.dtype == expected.dtype, (op, given)
            np.testing.assert_array_equal(result, expected, err_msg=f"{op} {given}")


def test_conversions(exe: Executable) -> None:
    for source in ALL:
        for value in numbers(source):
            for target in ALL:
                result = exe.run(f"ScalarCast {source} {target}", (value,)).numpy()
                with np.errstate(all="ignore"):
                    expected = numeric.cast(np.asarray(value), source, target)
                assert result.dtype == expected.dtype
                np.testing.assert_array_equal(result, expected, err_msg=f"{value!r} to {target}")


@pytest.mark.parametrize(("op", "rounded"), [("floordiv", np.floor), ("truncdiv", np.trunc)])
def test_float_quotients_are_rounded(op: str, rounded: Any, exe: Executable) -> None:
    for a, b in ((a, b) for a in (7.0, -7.0) for b in (2.0, -2.0)):
        for dtype in FLOATS:
            kind = np.dtype(dtype).type
            assert float(exe.run(f"{OPERATIONS[op]} {dtype}", (kind(a), kind(b)))) == rounded(a / b)


def chosen() -> Executable:
    def main(asm: Assembler) -> None:
        condition, out = asm.reg(), asm.reg()
        asm.emit("ScalarLt", condition, "int64", 0, 1)
        asm.emit("ScalarSelect", out, condition, 0, 1)
        asm.emit("Ret", out)

    return program(function("main", 2, main))


def test_selection_and_boxed_operands() -> None:
    exe = chosen()
    assert int(exe.run("main", (3, 4))) == 3 and int(exe.run("main", (5, 4))) == 4
    assert int(exe.run("main", (np.array([5]), np.array(4)))) == 4  # tensors of one element are their element
    with pytest.raises(ExecutionError, match="expected a scalar of int64 and got a scalar of float32"):
        exe.run("main", (np.array(5, np.float32), 4))


@pytest.mark.parametrize("dtype", ALL)
def test_elements_of_tensors(dtype: str) -> None:
    def main(asm: Assembler) -> None:
        out = asm.reg()
        asm.emit("ScalarLoad", out, dtype, 0, 1)
        asm.emit("Ret", out)

    exe = program(function("main", 2, main))
    values = np.array(numbers(dtype))[:2].reshape(2, 1)
    np.testing.assert_array_equal([exe.run("main", (values, n)).numpy() for n in range(2)], values[:, 0])
    for index in (-1, 2):
        with pytest.raises(ExecutionError, match=rf"no element {index} in a tensor of {dtype} and shape \(2, 1\)"):
            exe.run("main", (values, index))
    with pytest.raises(ExecutionError, match=f"whole elements of {dtype}"):
        exe.run("main", (np.zeros(2, np.float16), 0))


def test_elements_on_a_device() -> None:
    def main(asm: Assembler) -> None:
        there, out = asm.reg(), asm.reg()
        asm.emit("DeviceCopy", there, 0, "fake")
        asm.emit("ScalarLoad", out, "float32", there, integer(asm, 1))
        asm.emit("Ret", out)

    assert float(program(function("main", 1, main)).run("main", (np.array([3.0, 4.0], np.float32),))) == 4.0


def test_dtypes_without_arithmetic() -> None:
    with pytest.raises(ExecutionError, match="no arithmetic on unboxed scalars of float16"):
        program(instruction("ScalarAdd", ("float16",), 2)).run("main", (np.float16(1), np.float16(2)))
    with pytest.raises(ExecutionError, match="no such operation"):
        program(instruction("ScalarShl", ("float64",), 2)).run("main", (np.float64(1), np.float64(2)))


def test_a_value_is_taken() -> None:
    def main(asm: Assembler) -> None:
        out, both = asm.reg(), asm.reg()
        asm.emit("Take", out, 0)
        asm.emit("AllocADT", both, -1, [out])
        asm.emit("Kill", out)
        asm.emit("CheckTensor", 0, "float32", 1, 0)
        asm.emit("Ret", both)

    exe = program(function("main", 1, main), messages=("gone",))
    with pytest.raises(ExecutionError, match=r"gone \(found nothing\)"):
        exe.run("main", (np.zeros(2, np.float32),))


def kept(second: int) -> Executable:
    """Storage asked for twice, a tensor on the first: whether the second request gives the same."""

    def main(asm: Assembler) -> None:
        storage, first, again, zero = asm.reg(), asm.reg(), asm.reg(), integer(asm, 0)
        asm.emit("KeepStorage", storage, integer(asm, 64), 64, "cpu")
        asm.emit("AllocTensor", first, storage, zero, "float32", [0])
        asm.emit("KeepStorage", storage, integer(asm, second), 64, "cpu")
        asm.emit("AllocTensor", again, storage, zero, "float32", [0])
        both = asm.reg()
        asm.emit("AllocADT", both, -1, [first, again])
        asm.emit("Ret", both)

    return program(function("main", 1, main))


def test_storage_is_kept_where_it_is_large_enough() -> None:
    for second, same in ((64, True), (1, True), (1 << 16, False)):
        first, again = kept(second).run("main", (4,)).fields
        assert (first.data_ptr == again.data_ptr) == same


def test_fresh_tensors() -> None:
    def main(asm: Assembler) -> None:
        out = asm.reg()
        asm.emit("AllocFresh", out, integer(asm, 32), "float64", "cpu", [0])
        asm.emit("Ret", out)

    exe = program(function("main", 1, main))
    assert exe.run("main", (4,)).shape == (4,)
    with pytest.raises(ExecutionError, match="does not fit 32 bytes"):
        exe.run("main", (5,))


def test_every_operation_with_an_instruction_is_tested() -> None:
    named = {op.name for op in OPCODES if op.name.startswith("Scalar")}
    assert named == {name for name in OPERATIONS.values() if name in BY_NAME} | {
        "ScalarOf", "ScalarLoad", "ScalarCast", "ScalarSelect",
    }  # fmt: skip
