"""Native objects: relocations, what they may call, and damaged ones."""

from __future__ import annotations

import random

import numpy as np
import pytest

from relay import _runtime
from relay.executable import Assembler, Executable, KernelEntry, Operand
from relay.ir.diagnostics import FileError, RelayError
from tests.runtime.programs import ADD_ONE, function, object_code, program

# Two functions, of which one calls the other; a table of pointers (absolute relocations); external calls of
# all three kinds; a zero-initialised global; a global that other objects could define.
EVERYTHING = """
@names = private constant [2 x ptr] [ptr @one, ptr @two]
@counter = global i64 0
@scratch = internal global [64 x i8] zeroinitializer
declare ptr @memcpy(ptr, ptr, i64)
declare ptr @memmove(ptr, ptr, i64)
declare ptr @memset(ptr, i32, i64)
define i64 @one(i64 %x) noinline {
  %y = add i64 %x, 1
  ret i64 %y
}
define i64 @two(i64 %x) noinline {
  %y = call i64 @one(i64 %x)
  %z = mul i64 %y, 2
  ret i64 %z
}
define i32 @main(ptr %ctx, ptr %buffers, ptr %dims) {
  %out = load ptr, ptr %buffers
  %n = load i64, ptr %dims
  %slot = getelementptr [2 x ptr], ptr @names, i64 0, i64 %n
  %f = load ptr, ptr %slot
  %v = call i64 %f(i64 20)
  %before = load volatile i64, ptr @counter
  %after = add i64 %before, 1
  store volatile i64 %after, ptr @counter
  %size = add i64 %n, 40
  %p = call ptr @memset(ptr @scratch, i32 1, i64 %size)
  %q = call ptr @memmove(ptr getelementptr (i8, ptr @scratch, i64 1), ptr @scratch, i64 %size)
  store i64 %v, ptr %out
  %second = getelementptr i64, ptr %out, i64 1
  store i64 %after, ptr %second
  %third = getelementptr i64, ptr %out, i64 2
  %r = call ptr @memcpy(ptr %third, ptr @scratch, i64 8)
  ret i32 0
}
"""


def run_everything() -> Executable:
    def emit(asm: Assembler) -> None:
        size, storage, out = asm.reg(), asm.reg(), asm.reg()
        asm.emit("LoadConsti", size, "int64", 3)
        zero, nbytes = asm.reg(), asm.reg()
        asm.emit("LoadConsti", zero, "int64", 0)
        asm.emit("LoadConsti", nbytes, "int64", 24)
        asm.emit("AllocStorage", storage, nbytes, 64, "cpu")
        asm.emit("AllocTensor", out, storage, zero, "int64", [size])
        asm.emit("InvokeKernel", 0, None, [out], [0])
        asm.emit("Ret", out)

    kernel = KernelEntry("main", 0, "main", (Operand("int64", 1, 64),), 1, 1)
    return program(function("main", 1, emit), kernels=[kernel], objects=[object_code(EVERYTHING)])


def test_functions_data_and_external_calls_are_linked() -> None:
    exe = run_everything()
    ones = int.from_bytes(b"\1" * 8, "little")
    np.testing.assert_array_equal(exe.run("main", (0,)), [21, 1, ones])
    np.testing.assert_array_equal(exe.run("main", (1,)), [42, 2, ones])


def load_kernel(code: bytes, symbol: str = "add_one") -> None:
    kernel = KernelEntry("k", 0, symbol, (Operand("float32", 1), Operand("float32", 1)), 1, 1)
    program(function("main", 0, lambda asm: asm.emit("Fatal", 0)), kernels=[kernel], objects=[code], messages=("",))


def test_other_external_functions_are_refused() -> None:
    text = "declare i32 @puts(ptr)\ndefine i32 @add_one(ptr %a, ptr %b, ptr %c) {\n %r = call i32 @puts(ptr %a)\n ret i32 %r\n}"
    with pytest.raises(FileError, match="needs 'puts': kernels may only call memcpy, memmove and memset"):
        load_kernel(object_code(text))


@pytest.mark.skipif(_runtime.host_architecture() != "x86_64", reason="loads the other architecture's object")
def test_objects_of_another_machine_are_refused() -> None:
    with pytest.raises(FileError, match="is for ELF machine 183, this one needs 62"):
        load_kernel(object_code(ADD_ONE, "aarch64-unknown-linux-gnu"))


def test_damaged_objects_are_errors() -> None:
    good = object_code(EVERYTHING)
    dice = random.Random(1)
    for length in range(0, len(good), 7):
        with pytest.raises(RelayError):
            load_kernel(good[:length], "main")
    refused = 0
    for _ in range(2000):
        bad = bytearray(good)
        for _ in range(dice.randint(1, 3)):
            bad[dice.randrange(len(bad))] = dice.randrange(256)
        try:
            load_kernel(bytes(bad), "main")
        except RelayError:
            refused += 1
    assert refused > 100


def writable_code() -> set[str]:
    with open("/proc/self/maps") as maps:
        return {line.split()[0] for line in maps if line.split()[1].startswith("rwx")}


def test_native_code_is_not_writable() -> None:
    before = writable_code()
    exe = run_everything()
    assert exe.statistics()["kernels"] == 1
    assert writable_code() == before
