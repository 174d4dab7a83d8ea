"""What the machine can do, measured by generated kernels: fused multiply-adds in registers, and reading memory.

Both are compiled programs whose kernel is replaced by the loop that is measured, so that they run on the same threads
and pay the same cost of a call as what is compared with them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

import relay
from relay.codegen.llvm import emit
from relay.codegen.objects import compile_text
from relay.codegen.target import host_target
from relay.loop.ir import Alloc, Buffer, For, Kernel, Seq, Store
from relay.te.scalar import Axis, Const, Load, Scalar, binary

PEAK_STEPS = 20_000
# Elements that the reading loop takes from each of its streams at once: enough loads in flight for every cache.
_READ_ROWS = 8


def fastest(run: Callable[[], object], seconds: float) -> float:
    """The shortest of many runs, in seconds."""
    run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 1000):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _number(value: int) -> Scalar:
    return Const(value, "int64")


def _replaced(kernel: Kernel, threads: int) -> Callable[[], object]:
    """A call of a compiled program of one vector input and output whose kernel is this one."""
    (size,), (made,) = kernel.inputs[0].shape, kernel.outputs[0].shape
    assert isinstance(size, int) and isinstance(made, int)
    text = f"def @main(%x: Tensor[({size},), float32]) {{ exp(strided_slice(%x, begin=[0], end=[{made}])) }}"
    exe = relay.compile(f'#[version = "0.0.5"]\n{text}', threads=threads)
    exe.program.profile(True)
    # Not zeros: pages that were never written are all one.
    x = relay.Tensor.from_numpy(np.full(size, 0.25, np.float32))
    exe(x)
    (name,) = exe.program.kernel_statistics()
    exe.program.profile(False)
    exe.program.replace_kernel(name, compile_text(emit(kernel, host_target()), host_target()), kernel.name)
    return lambda: exe(x)


def peak(threads: int) -> Callable[[], float]:
    """A function that measures the peak of float32 multiply-adds in FLOP/s."""
    target = host_target()
    lanes = target.lanes(32)
    rows, width = (6, 4 * lanes) if target.vector_registers >= 32 else (6, 2 * lanes)
    size = rows * width
    given = Buffer("given", (threads * size,), "float32", alignment=4)
    out = Buffer("out", (threads * size,), "float32", alignment=4)
    tile = Buffer("tile", (rows, width), "float32", "register")
    worker, step, lane = Axis("worker", threads), Axis("step", PEAK_STEPS), Axis("lane", width)

    def each(row: int, value: Scalar) -> For:
        return For(lane, _number(width), Store(tile, (_number(row), lane), value), "vectorized")

    def place(row: int) -> tuple[Scalar]:
        return (binary("add", binary("add", binary("mul", worker, size), row * width), lane),)

    def held(row: int) -> Scalar:
        return Load(tile, (_number(row), lane), "float32")

    start = tuple(each(r, Load(given, place(r), "float32")) for r in range(rows))
    add = tuple(each(r, binary("add", held(r), binary("mul", held(r), Const(0.5, "float32")))) for r in range(rows))
    end = tuple(For(lane, _number(width), Store(out, place(r), held(r)), "vectorized") for r in range(rows))
    body = Alloc(tile, Seq((*start, For(step, _number(PEAK_STEPS), Seq(add)), *end)))
    kernel = Kernel("peak", (given,), (out,), (), For(worker, _number(threads), body, "parallel"))
    run = _replaced(kernel, threads)
    flops = 2.0 * threads * size * PEAK_STEPS
    return lambda: flops / fastest(run, 0.01)


def reading(size: int, threads: int) -> Callable[[], object]:
    """A call that reads ``size`` bytes of float32 once, each thread its part: what streaming weights of that size
    costs."""
    lanes = host_target().lanes(32)
    width = _READ_ROWS * lanes
    steps = max(1, size // 4 // threads // width)
    given = Buffer("given", (threads * steps * width,), "float32", alignment=4)
    out = Buffer("out", (threads * width,), "float32", alignment=4)
    tile = Buffer("tile", (width,), "float32", "register")
    worker, step, lane = Axis("worker", threads), Axis("step", steps), Axis("lane", width)
    position = binary("add", binary("mul", binary("add", binary("mul", worker, steps), step), width), lane)

    def each(buffer: Buffer, index: Scalar, value: Scalar) -> For:
        return For(lane, _number(width), Store(buffer, (index,), value), "vectorized")

    total = binary("add", Load(tile, (lane,), "float32"), Load(given, (position,), "float32"))
    body = Seq((
        each(tile, lane, Const(0.0, "float32")),
        For(step, _number(steps), each(tile, lane, total)),
        each(out, binary("add", binary("mul", worker, width), lane), Load(tile, (lane,), "float32")),
    ))  # fmt: skip
    kernel = Kernel("reading", (given,), (out,), (), For(worker, _number(threads), Alloc(tile, body), "parallel"))
    return _replaced(kernel, threads)
