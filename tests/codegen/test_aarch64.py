"""AArch64 code run under an emulator, where one and the binary tools for it are installed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relay.codegen.kernels import build
from relay.codegen.target import parse_target
from relay.ir.dim import as_var, dim_evaluate, dim_var
from relay.loop.evaluate import evaluate
from relay.loop.ir import Alloc, Buffer, For, Kernel, Seq, Store
from relay.te.scalar import Axis, Const, Load, Scalar, Size, Unary, cast, select

TOOLS = ("qemu-aarch64", "aarch64-linux-gnu-as", "aarch64-linux-gnu-ld")
pytestmark = pytest.mark.skipif(not all(map(shutil.which, TOOLS)), reason=f"needs {', '.join(TOOLS)}")

Array = np.ndarray[Any, Any]
N = dim_var("n")
VAR = as_var(N)
assert VAR is not None

# Reads the operand from its input, calls the kernel and writes the result to its output.
_START = """
.globl _start
_start:
  adrp x19, input
  add x19, x19, :lo12:input
  ldr x20, =IN_BYTES
1: cbz x20, 2f
  mov x0, #0
  mov x1, x19
  mov x2, x20
  mov x8, #63
  svc #0
  cmp x0, #0
  b.le 2f
  add x19, x19, x0
  sub x20, x20, x0
  b 1b
2: mov x0, #0
  adrp x1, buffers
  add x1, x1, :lo12:buffers
  adrp x2, dims
  add x2, x2, :lo12:dims
  bl kernel
  mov w21, w0
  mov x0, #1
  adrp x1, output
  add x1, x1, :lo12:output
  ldr x2, =OUT_BYTES
  mov x8, #64
  svc #0
  mov w0, w21
  mov x8, #93
  svc #0
.data
.p2align 6
buffers: .quad input, output
dims: .quad SIZE
.bss
.p2align 6
input: .skip IN_BYTES + 64
.p2align 6
output: .skip OUT_BYTES + 64
"""


def run(kernel: Kernel, given: Array, result: Array, size: int, directory: Path) -> int:
    """Link the kernel with the program above, run it, and read the result. Returns the kernel's code."""
    (code,) = build([kernel], parse_target("aarch64"), cache=False)
    text = _START.replace("bl kernel", f"bl {code.symbol}")
    for name, value in (("IN_BYTES", given.nbytes), ("OUT_BYTES", result.nbytes), ("SIZE", size)):
        text = text.replace(name, str(value))
    (directory / "start.s").write_text(text)
    (directory / "kernel.o").write_bytes(code.data)
    for command in (["as", "-o", "start.o", "start.s"], ["ld", "-static", "-o", "program", "start.o", "kernel.o"]):
        subprocess.run([f"aarch64-linux-gnu-{command[0]}", *command[1:]], cwd=directory, check=True)
    program = [TOOLS[0], str(directory / "program")]
    done = subprocess.run(program, input=given.tobytes(), capture_output=True, timeout=60)
    result[...] = np.frombuffer(done.stdout, result.dtype).reshape(result.shape)
    return done.returncode


def elementwise(dtype: str, value: Scalar, x: Buffer, i: Axis, out: str) -> Kernel:
    assert VAR is not None
    y = Buffer("y", (N,), out)
    return Kernel("kernel", (x,), (y,), (VAR,), For(i, Size(N), Store(y, (i,), value), "vectorized"))


def kernels() -> list[Kernel]:
    assert VAR is not None
    out: list[Kernel] = []
    for dtype in ("float32", "float64", "float16"):
        x, i = Buffer("x", (N,), dtype), Axis("i", N)
        load = Load(x, (i,), dtype)
        value = Unary("tanh", load, dtype) + Unary("erf", load, dtype) * Unary("sin", load, dtype)
        shifted = select(i.__lt__(Size(N) - 3), Load(x, (i + 3,), dtype), value)
        out.append(elementwise(dtype, value + shifted, x, i, dtype))
        out.append(elementwise(dtype, cast(load * 3.0, "int8"), x, i, "int8"))
    x, y, i = Buffer("x", (N,), "float32"), Buffer("y", (), "float32"), Axis("i", N)
    acc = Buffer("acc", (), "float32", "register")
    step = For(i, Size(N), Store(acc, (), Load(acc, (), "float32") + Load(x, (i,), "float32")), "vectorized")
    total = Alloc(acc, Seq((Store(acc, (), Const(0.0, "float32")), step, Store(y, (), Load(acc, (), "float32")))))
    out.append(Kernel("kernel", (x,), (y,), (VAR,), total))
    return out


def shape(buffer: Buffer, size: int) -> Sequence[int]:
    assert VAR is not None
    return [dim_evaluate(d, {VAR: size}) for d in buffer.shape]


@pytest.mark.parametrize("number", range(7))
def test_under_an_emulator(number: int, tmp_path: Path) -> None:
    kernel = kernels()[number]
    assert VAR is not None
    size = 37
    values = np.linspace(-3, 3, size).astype(kernel.inputs[0].dtype)
    want = np.zeros(shape(kernel.outputs[0], size), kernel.outputs[0].dtype)
    got = want.copy()
    assert evaluate(kernel, [values, want], {VAR: size}) == run(kernel, values, got, size, tmp_path) == 0
    loose = 4e-3 if got.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(got.astype(np.float64), want.astype(np.float64), rtol=loose, atol=loose)
