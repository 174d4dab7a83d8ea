"""What the virtual machine itself costs: a plain instruction, a kernel call with its allocation, a call from Python; and whole
programs of control flow, interpreted and as native code.

Run: python benchmarks/vm_overhead.py. The first programs are assembled by hand; their kernel does nothing. Each figure is the median
of several rounds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np

import relay
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


HEAD = '#[version = "0.0.5"]\nimport prelude\n'
PROGRAMS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "loop of 1,000,000 steps": (
        """def @loop(%n: int64, %s: int64) -> int64 { if (%n == 0i64) { %s } else { @loop(%n - 1i64, %s + %n * 2i64) } }
        def @main(%n: int64) -> int64 { @loop(%n, 0i64) }""",
        (np.int64(1_000_000),),
    ),
    "Newton, 1,000,000 steps": (
        """def @go(%x: float64, %y: float64, %n: int64) -> float64 {
          if (%n == 0i64) { %y } else { @go(%x, (%y + %x / %y) * 0.5f64, %n - 1i64) }
        }
        def @main(%x: float64, %n: int64) -> float64 { @go(%x, 1f64, %n) }""",
        (np.float64(2), np.int64(1_000_000)),
    ),
    "Collatz to 5,000": (
        """def @steps(%n: int64, %k: int64) -> int64 {
          if (%n == 1i64) { %k } else {
            if (floor_mod(%n, 2i64) == 0i64) { @steps(floor_divide(%n, 2i64), %k + 1i64) } else { @steps(%n * 3i64 + 1i64, %k + 1i64) }
          }
        }
        def @all(%n: int64, %best: int64) -> int64 {
          if (%n == 0i64) { %best } else { @all(%n - 1i64, maximum(%best, @steps(%n, 0i64))) }
        }
        def @main(%n: int64) -> int64 { @all(%n, 0i64) }""",
        (np.int64(5_000),),
    ),
    "fib(25)": (
        """def @fib(%n: int64) -> int64 { if (%n < 2i64) { %n } else { @fib(%n - 1i64) + @fib(%n - 2i64) } }
        def @main(%n: int64) -> int64 { @fib(%n) }""",
        (np.int64(25),),
    ),
    "tree of 65,536 leaves": (
        """type T { L(int64), N(T, T) }
        def @make(%d: int64) -> T { if (%d == 0i64) { L(1i64) } else { N(@make(%d - 1i64), @make(%d - 1i64)) } }
        def @sum(%t: T) -> int64 { match (%t) { L(%x) => %x, N(%a, %b) => @sum(%a) + @sum(%b) } }
        def @main(%d: int64) -> int64 { @sum(@make(%d)) }""",
        (np.int64(16),),
    ),
    "foldr over 100,000": (
        """def @make(%n: int64, %l: List[int64]) -> List[int64] { if (%n == 0i64) { %l } else { @make(%n - 1i64, Cons(%n, %l)) } }
        def @main(%n: int64) -> int64 { @foldr(fn(%a: int64, %b: int64) { %a + %b }, 0i64, @make(%n, Nil)) }""",
        (np.int64(100_000),),
    ),
    "cell of 16, 20,000 steps": (
        """def @go[n: Dim](%t: int64, %h: Tensor[(1, n), float32], %w: Tensor[(n, n), float32]) -> Tensor[(1, n), float32] {
          if (%t == 0i64) { %h } else { @go(%t - 1i64, tanh(nn.dense(%h, %w)), %w) }
        }
        def @main(%t: int64, %h: Tensor[(1, 16), float32], %w: Tensor[(16, 16), float32]) -> Tensor[(1, 16), float32] {
          @go(%t, %h, %w)
        }""",
        (np.int64(20_000), np.ones((1, 16), np.float32), np.full((16, 16), 0.1, np.float32)),
    ),
}


def programs() -> None:
    """Milliseconds of whole programs, interpreted and as native code, in turns."""
    print(f"\n{'':<40}{'machine':>12}{'native':>12}{'':>8}")
    for name, (text, arguments) in PROGRAMS.items():
        exes = [relay.compile(HEAD + text, executor=e, threads=1) for e in ("vm", "aot")]
        times: list[list[float]] = [[], []]
        for _ in range(ROUNDS):
            for exe, kept in zip(exes, times, strict=True):
                start = time.perf_counter()
                exe(*arguments)
                kept.append(1e3 * (time.perf_counter() - start))
        machine, native = map(statistics.median, times)
        print(f"{name:<40}{machine:>9.2f} ms{native:>9.2f} ms{machine / native:>7.1f}x", flush=True)


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
    programs()


if __name__ == "__main__":
    main()
