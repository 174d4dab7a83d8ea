"""What the virtual machine itself costs: a plain instruction, a kernel call with its allocation, a call from Python.

Run: python benchmarks/vm_overhead.py. Programs are assembled by hand; the kernel does nothing. Each figure is the median of
several rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import llvmlite.binding as llvm
import numpy as np

from relay.executable import (
    Assembler,
    EntryPoint,
    Executable,
    ExecutableImage,
    FunctionCode,
    KernelEntry,
    Operand,
    Tensor,
)

ROUNDS = 7
EMPTY_KERNEL = "define i32 @nothing(ptr %ctx, ptr %buffers, ptr %dims) {\n  ret i32 0\n}\n"


def empty_kernel() -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(opt=2, reloc="pic", codemodel="small")
    code: bytes = machine.emit_object(llvm.parse_assembly(EMPTY_KERNEL))
    return code


def program(emit: Callable[[Assembler], None], arity: int) -> Executable:
    asm = Assembler("main", arity)
    emit(asm)
    kernels = (KernelEntry("nothing", 0, "nothing", (Operand("float32", 1), Operand("float32", 1, 64)), 1, 1),)
    return Executable.from_bytes(
        ExecutableImage(
            functions=(asm.finish(), identity()),
            entries=(EntryPoint("main", 0, "", (None,) * arity),),
            kernels=kernels,
            objects=(empty_kernel(),),
        ).to_bytes()
    )


def identity() -> FunctionCode:
    asm = Assembler("identity", 1)
    asm.emit("Ret", 0)
    return asm.finish()


def constant(asm: Assembler, value: int) -> int:
    register = asm.reg()
    asm.emit("LoadConsti", register, "int64", value)
    return register


def repeated(body: Callable[[Assembler, list[int]], None], prepare: Callable[[Assembler], list[int]]) -> Executable:
    """main(n, x): the body n times, in a loop of a subtraction, a minimum, a switch and a jump."""

    def emit(asm: Assembler) -> None:
        one, flag = constant(asm, 1), asm.reg()
        held = prepare(asm)
        top, again, done = asm.label(), asm.label(), asm.label()
        asm.bind(top)
        asm.emit("IMin", flag, 0, one)
        asm.emit("Switch", flag, [done, again])
        asm.bind(again)
        asm.emit("ISub", 0, 0, one)
        body(asm, held)
        asm.emit("Goto", top)
        asm.bind(done)
        asm.emit("Ret", 0)

    return program(emit, 2)


def per_iteration(exe: Executable, n: int) -> float:
    """Nanoseconds of one iteration."""
    x = Tensor.from_numpy(np.zeros(4, np.float32))
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        exe.run("main", (n, x))
        times.append((time.perf_counter_ns() - start) / n)
    return statistics.median(times)


def nothing(asm: Assembler) -> list[int]:
    return []


def two(asm: Assembler) -> list[int]:
    return [constant(asm, 1), constant(asm, 2)]


def five(asm: Assembler) -> list[int]:
    return [constant(asm, 0), constant(asm, 4), constant(asm, 16), asm.reg(), asm.reg()]


def plain(asm: Assembler, held: list[int]) -> None:
    for _ in range(50):
        asm.emit("IAdd", held[0], held[0], held[1])


def moves(asm: Assembler, held: list[int]) -> None:
    for _ in range(50):
        asm.emit("Move", held[0], 1)


def kernel_call(asm: Assembler, held: list[int]) -> None:
    zero, size, nbytes, storage, out = held
    asm.emit("AllocStorage", storage, nbytes, 64, "cpu")
    asm.emit("AllocTensor", out, storage, zero, "float32", [size])
    asm.emit("Kill", storage)
    asm.emit("InvokeKernel", 0, None, [1, out], [size])


def call(asm: Assembler, held: list[int]) -> None:
    asm.emit("Invoke", held[0], 1, [held[0]])


def python_calls() -> tuple[float, float]:
    """Microseconds of a call with two tensors, and with two NumPy arrays."""

    def emit(asm: Assembler) -> None:
        asm.emit("Ret", 0)

    exe = program(emit, 2)
    x = np.zeros(4, np.float32)
    results = []
    for arguments in ((Tensor.from_numpy(x), Tensor.from_numpy(x)), (x, x)):
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter_ns()
            for _ in range(20_000):
                exe.run("main", arguments)
            times.append((time.perf_counter_ns() - start) / 20_000 / 1000)
        results.append(statistics.median(times))
    return results[0], results[1]


def main() -> None:
    n = 200_000
    loop = per_iteration(repeated(lambda asm, held: None, nothing), n)
    add = (per_iteration(repeated(plain, two), n) - loop) / 50
    move = (per_iteration(repeated(moves, two), n) - loop) / 50
    kernel = per_iteration(repeated(kernel_call, five), n) - loop
    invoke = per_iteration(repeated(call, two), n) - loop
    tensors, arrays = python_calls()
    rows = [
        ("integer addition", f"{add:.1f} ns", "30 ns"),
        ("move of a tensor", f"{move:.1f} ns", "30 ns"),
        ("call of a function and return", f"{invoke:.1f} ns", ""),
        ("kernel call, its storage and tensor", f"{kernel:.1f} ns", "100 ns"),
        ("call from Python with two tensors", f"{tensors:.2f} us", "2 us"),
        ("call from Python with two NumPy arrays", f"{arrays:.2f} us", "2 us"),
    ]
    print(f"{'':<40}{'measured':>12}{'at most':>12}")
    for name, measured, limit in rows:
        print(f"{name:<40}{measured:>12}{limit:>12}")


if __name__ == "__main__":
    main()
