"""What this machine can do, measured: fused multiply-adds in registers, and reading each level of memory.

Both are loops generated for this machine and run as the kernel of a compiled program, on the same threads and at the same cost of a
call as what is compared with them. Measured once and kept on disk under the machine's identity.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from relay import compiling
from relay._runtime import Tensor, available_threads
from relay.codegen.llvm import emit
from relay.codegen.objects import compile_text
from relay.codegen.target import host_target
from relay.ir.diagnostics import FileError
from relay.ir.files import write_whole
from relay.ir.record import record
from relay.loop.costs import Machine
from relay.loop.ir import Alloc, Buffer, For, Kernel, Prefetch, Seq, Store
from relay.loop.target import Target
from relay.options import Options
from relay.te.scalar import Axis, Const, Load, Scalar, binary

LEVELS = ("L1", "L2", "L3", "DRAM")
_STEPS = 20_000  # of multiply-adds in one call
_STREAMS = 16  # vector accumulators of the reading loop: enough loads in flight for every level
_ROUNDS, _SECONDS = 4, 0.05  # spread out, so that a moment of other work on the machine does not count
# A multiply-add is two operations, and half of the slots of other code go to loads, stores and waiting.
_SIMPLE = 4
# Kernels of a program, more than one, whose calls are timed.
_CALLS = 64
# Rows asked for ahead, and the part of a table between one and the next: multiples of it are spread evenly.
_ROWS_AHEAD, _GOLDEN = 4, 0.618
_LEAST_READ = 64 << 20  # bytes that one call reads, so that its own cost does not count


@record(frozen=True, slots=True)
class Limits:
    """A machine's limits with so many threads: ``flops`` of float32 multiply-adds a second (a multiply-add is two), and bytes read a
    second out of each level of ``LEVELS``; ``bytes`` is how many were read, by all threads together, to measure the level. ``call``: the
    seconds that a kernel adds to a program by being called."""

    machine: str
    threads: int
    flops: float
    bandwidth: Mapping[str, float]
    bytes: Mapping[str, int]
    call: float = Machine().call

    def level(self, size: int) -> str:
        """The level of memory that data of this size is read from again and again."""
        return next((name for name in LEVELS[:-1] if size <= self.bytes[name]), LEVELS[-1])

    def floor(self, flops: float, size: float) -> float:
        """The least seconds for so many operations and bytes, whichever binds (bytes from the level they fit in)."""
        return max(flops / self.flops, size / self.bandwidth[self.level(int(size))])

    def costs(self) -> Machine:
        """These limits as fusion weighs with them (`relay.Options.machine`), for a thread."""
        share = self.threads * _SIMPLE
        return Machine(
            flops=self.flops / share,
            bandwidth=(
                self.bandwidth["L2"] / self.threads,
                self.bandwidth["L3"] / self.threads,
                self.bandwidth["DRAM"] / self.threads,
            ),
            caches=(2 * self.bytes["L2"] // self.threads, 2 * self.bytes["L3"]),
            call=self.call,
        )


def machine_limits(threads: int | None = None, options: Options | None = None, again: bool = False) -> Limits:
    """The limits of this machine for so many threads (None: one for each core), from the cache unless ``again``."""
    count = threads or available_threads()
    directory = (options or Options()).directory
    path = directory / "limits" / f"{_identity(count)}.json" if directory is not None else None
    if path is not None and not again:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            return Limits(**json.loads(path.read_text()))
    found = measure(count)
    if path is not None:
        with contextlib.suppress(OSError, FileError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, lambda temporary: temporary.write_text(json.dumps(asdict(found))))
    return found


def measure(threads: int) -> Limits:
    """Measure now: some seconds."""
    target = host_target()
    sizes = {
        "L1": threads * target.l1_bytes // 2,
        "L2": threads * target.l2_bytes // 2,
        "L3": max(target.l3_bytes // 2, 2 * threads * target.l2_bytes),
        "DRAM": max(4 * target.l3_bytes, 256 << 20),
    }
    flops, calls = 0.0, {level: reading(target, threads, size, _LEAST_READ) for level, size in sizes.items()}
    work, multiply = multiplying(target, threads)
    bandwidth = dict.fromkeys(LEVELS, 0.0)
    for _ in range(_ROUNDS):
        flops = max(flops, work / _fastest(multiply))
        for level, (size, read) in calls.items():
            bandwidth[level] = max(bandwidth[level], size / _fastest(read))
    return Limits(machine_name(), threads, flops, bandwidth, sizes, calling())


def calling() -> float:
    """The seconds that a kernel call costs in a program: of kernels that do next to nothing, more and fewer."""

    def chain(calls: int) -> Callable[[], object]:
        steps = "".join("let %x = cumsum(%x, axis=0); " for _ in range(calls))
        exe = compiling.compile(
            f'#[version = "0.0.5"]\ndef @main(%x: Tensor[(2,), float32]) {{ {steps} %x }}', threads=1
        )
        x = Tensor.from_numpy(np.ones(2, np.float32))
        return lambda: exe(x)

    return max(_fastest(chain(1 + _CALLS)) - _fastest(chain(1)), 0.0) / _CALLS


def machine_name() -> str:
    """The processor, as the system calls it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _identity(threads: int) -> str:
    parts = (
        machine_name(),
        platform.node(),
        repr(host_target()),
        threads,
        available_threads(),
        Path(__file__).read_text(),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _number(value: int) -> Scalar:
    return Const(value, "int64")


def _fastest(run: Callable[[], object]) -> float:
    run()
    times: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def _call(kernel: Kernel, target: Target, threads: int) -> Callable[[], object]:
    """A call of a compiled program of one vector operand and result whose kernel is this one."""
    (size,), (made,) = kernel.inputs[0].shape, kernel.outputs[0].shape
    assert isinstance(size, int) and isinstance(made, int)
    text = f"def @main(%x: Tensor[({size},), float32]) {{ exp(strided_slice(%x, begin=[0], end=[{made}])) }}"
    exe = compiling.compile(f'#[version = "0.0.5"]\n{text}', threads=threads)
    (name,) = exe.program.kernel_statistics()
    exe.program.replace_kernel(name, compile_text(emit(kernel, target), target), kernel.name)
    x = Tensor.from_numpy(np.ones(size, np.float32))  # pages of zeros that nobody has written are one page
    return lambda: exe(x)


def multiplying(target: Target, threads: int) -> tuple[float, Callable[[], object]]:
    """How many floating-point operations a call does, and the call: multiply-adds on a tile of registers, each thread on its own."""
    lanes = target.lanes(32)
    rows, width = (6, 4 * lanes) if target.vector_registers >= 32 else (6, 2 * lanes)
    size = rows * width
    given, out = (Buffer(name, (threads * size,), "float32", alignment=4) for name in ("given", "out"))
    tile = Buffer("tile", (rows, width), "float32", "register")
    worker, step, lane = Axis("worker", threads), Axis("step", _STEPS), Axis("lane", width)

    def each(row: int, value: Scalar) -> For:
        return For(lane, _number(width), Store(tile, (_number(row), lane), value), "vectorized")

    def place(row: int) -> tuple[Scalar]:
        return (binary("add", binary("add", binary("mul", worker, size), row * width), lane),)

    def held(row: int) -> Scalar:
        return Load(tile, (_number(row), lane), "float32")

    start = tuple(each(r, Load(given, place(r), "float32")) for r in range(rows))
    add = tuple(each(r, binary("add", held(r), binary("mul", held(r), Const(0.5, "float32")))) for r in range(rows))
    end = tuple(For(lane, _number(width), Store(out, place(r), held(r)), "vectorized") for r in range(rows))
    body = Alloc(tile, Seq((*start, For(step, _number(_STEPS), Seq(add)), *end)))
    kernel = Kernel("peak", (given,), (out,), (), For(worker, _number(threads), body, "parallel"))
    return 2.0 * threads * size * _STEPS, _call(kernel, target, threads)


def reading(target: Target, threads: int, size: int, least: int = 0) -> tuple[float, Callable[[], object]]:
    """How many bytes a call reads, and the call: each thread reads its part of ``size`` bytes, until ``least`` are read in all."""
    width = _STREAMS * target.lanes(32)
    steps = max(1, size // 4 // threads // width)
    part = steps * width
    passes = max(1, least // (4 * part * threads))
    given = Buffer("given", (threads * part,), "float32", alignment=4)
    out = Buffer("out", (threads * width,), "float32", alignment=4)
    tile = Buffer("tile", (width,), "float32", "register")
    worker, again, step, lane = (
        Axis(n, e) for n, e in (("worker", threads), ("pass", passes), ("step", steps), ("lane", width))
    )

    def each(buffer: Buffer, index: Scalar, value: Scalar) -> For:
        return For(lane, _number(width), Store(buffer, (index,), value), "vectorized")

    position = binary("add", binary("mul", binary("add", binary("mul", worker, steps), step), width), lane)
    total = binary("add", Load(tile, (lane,), "float32"), Load(given, (position,), "float32"))
    body = Seq((
        each(tile, lane, Const(0.0, "float32")),
        For(again, _number(passes), For(step, _number(steps), each(tile, lane, total))),
        each(out, binary("add", binary("mul", worker, width), lane), Load(tile, (lane,), "float32")),
    ))  # fmt: skip
    kernel = Kernel("read", (given,), (out,), (), For(worker, _number(threads), Alloc(tile, body), "parallel"))
    return 4.0 * part * threads * passes, _call(kernel, target, threads)


def copying(target: Target, threads: int, size: int) -> Callable[[], object]:
    """A call that copies ``size`` bytes into a new result, each thread its part; past the caches where results of that size are
    written so."""
    width = _STREAMS * target.lanes(32)
    part = max(1, size // 4 // threads // width) * width
    given, out = (Buffer(name, (threads * part,), "float32", alignment=4) for name in ("given", "out"))
    worker, lane = Axis("worker", threads), Axis("lane", part)
    position = (binary("add", binary("mul", worker, part), lane),)
    body = For(lane, _number(part), Store(out, position, Load(given, position, "float32")), "vectorized")
    streamed = (0,) if target.streamed_bytes is not None else ()
    kernel = Kernel("copy", (given,), (out,), (), For(worker, _number(threads), body, "parallel"), streamed=streamed)
    return _call(kernel, target, threads)


def scattered(target: Target, threads: int, rows: int, width: int, table: int) -> Callable[[], object]:
    """A call that copies ``rows`` rows of ``width`` numbers into a new result from places all over a table of so many rows, each thread its
    part. Rows are asked for before they are needed: their places are computed, so that nothing else is read."""
    part = max(1, rows // threads)
    given = Buffer("given", (table * width,), "float32", alignment=4)
    out = Buffer("out", (threads * part * width,), "float32", alignment=4)
    worker, step, lane = Axis("worker", threads), Axis("step", part), Axis("lane", width)
    apart = round(table * _GOLDEN) | 1

    def place(number: Scalar) -> Scalar:
        row = binary("mod", binary("mul", number, apart), table)
        return binary("add", binary("mul", row, width), lane)

    number = binary("add", binary("mul", worker, part), step)
    copied = Store(out, (binary("add", binary("mul", number, width), lane),), Load(given, (place(number),), "float32"))
    asked = Prefetch(given, (place(binary("add", number, _ROWS_AHEAD)),))
    row = For(lane, _number(width), Seq((asked, copied)), "vectorized")
    body = For(step, _number(part), row)
    streamed = (0,) if target.streamed_bytes is not None else ()
    kernel = Kernel("rows", (given,), (out,), (), For(worker, _number(threads), body, "parallel"), streamed=streamed)
    return _call(kernel, target, threads)
