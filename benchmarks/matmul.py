"""Matrix products beside NumPy's and beside the peak of fused multiply-adds, all measured in one run.

Each size is compiled for a symbolic number of rows with constant weights, as in a network, and runs in the virtual
machine. The peak is a generated kernel of independent multiply-adds in registers, measured next to every size.

    python benchmarks/matmul.py [--threads 2] [--sizes 128x384x384,...]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from functools import partial

# NumPy's library reads these when it is loaded; per-size control would need another dependency.
_threads = argparse.ArgumentParser(add_help=False)
_threads.add_argument("--threads", type=int, default=1)
_known, _ = _threads.parse_known_args()
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = str(_known.threads)

import numpy as np  # noqa: E402
import numpy.typing as npt  # noqa: E402

import relay  # noqa: E402
from relay.codegen.llvm import emit  # noqa: E402
from relay.codegen.objects import compile_text  # noqa: E402
from relay.codegen.target import host_target  # noqa: E402
from relay.loop.ir import Alloc, Buffer, For, Kernel, Seq, Store  # noqa: E402
from relay.loop.target import Target  # noqa: E402
from relay.te.scalar import Axis, Const, Load, Scalar, binary  # noqa: E402

Array = npt.NDArray[np.float32]
SIZES = [f"{rows}x384x384" for rows in (1, 2, 5, 16, 64, 128)]
SIZES += ["128x384x1536", "128x1536x384", "512x512x512", "1024x1024x1024"]
PEAK_STEPS = 100_000


def fastest(run: Callable[[], object], seconds: float = 0.15) -> float:
    """The shortest of many runs, in seconds."""
    run()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 1000):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def peak_kernel(target: Target, threads: int) -> tuple[Kernel, float]:
    """Independent multiply-adds in a register tile on each thread, and how many floating-point operations they are."""
    lanes = target.lanes(32)
    rows, width = (6, 4 * lanes) if target.vector_registers >= 32 else (6, 2 * lanes)
    size = rows * width
    given = Buffer("given", (threads * size,), "float32", alignment=4)
    out = Buffer("out", (threads * size,), "float32", alignment=4)
    tile = Buffer("tile", (rows, width), "float32", "register")
    worker, step, lane = Axis("worker", threads), Axis("step", PEAK_STEPS), Axis("lane", width)

    def number(value: int) -> Scalar:
        return Const(value, "int64")

    def each(row: int, value: Scalar) -> For:
        return For(lane, number(width), Store(tile, (number(row), lane), value), "vectorized")

    def place(row: int) -> tuple[Scalar]:
        return (binary("add", binary("add", binary("mul", worker, size), row * width), lane),)

    def held(row: int) -> Scalar:
        return Load(tile, (number(row), lane), "float32")

    start = tuple(each(r, Load(given, place(r), "float32")) for r in range(rows))
    add = tuple(each(r, binary("add", held(r), binary("mul", held(r), Const(0.5, "float32")))) for r in range(rows))
    end = tuple(For(lane, number(width), Store(out, place(r), held(r)), "vectorized") for r in range(rows))
    body = Alloc(tile, Seq((*start, For(step, number(PEAK_STEPS), Seq(add)), *end)))
    kernel = Kernel("peak", (given,), (out,), (), For(worker, number(threads), body, "parallel"))
    return kernel, 2.0 * threads * size * PEAK_STEPS


def peak(target: Target, threads: int) -> Callable[[], float]:
    """A function that measures the peak in FLOP/s: a compiled program whose kernel is replaced by the multiply-adds."""
    kernel, flops = peak_kernel(target, threads)
    (size,) = kernel.outputs[0].shape
    assert isinstance(size, int)
    vector = f"Tensor[({size},), float32]"
    text = f"def @main(%x: {vector}) -> {vector} {{ exp(%x) }}"
    exe = relay.compile(f'#[version = "0.0.5"]\n{text}', threads=threads)
    exe.program.profile(True)
    x = np.zeros(size, np.float32)
    exe(x)
    (name,) = exe.program.kernel_statistics()
    exe.program.profile(False)
    exe.program.replace_kernel(name, compile_text(emit(kernel, target), target), "peak")
    given = relay.Tensor.from_numpy(x)
    return lambda: flops / fastest(lambda: exe(given), 0.02)


def dense(columns: int, depth: int, weight: Array, threads: int) -> relay.Executable:
    """A dense layer on constant weights, for any number of rows."""
    module = relay.parse(
        f"""#[version = "0.0.5"]
        def @main[n: Dim](%x: Tensor[(n, {depth}), float32], %w: Tensor[({columns}, {depth}), float32]) {{
          nn.dense(%x, %w)
        }}
        """
    )
    return relay.compile(module.bind({"w": weight}), threads=threads)


def measure(sizes: Sequence[str], threads: int) -> list[dict[str, object]]:
    target = host_target()
    flops_peak = peak(target, threads)
    rng = np.random.default_rng(0)
    compiled: dict[tuple[int, int], tuple[relay.Executable, Array]] = {}
    table: list[dict[str, object]] = []
    for size in sizes:
        rows, depth, columns = (int(s) for s in size.split("x"))
        if (columns, depth) not in compiled:
            weight = rng.standard_normal((columns, depth), dtype=np.float32)
            compiled[columns, depth] = dense(columns, depth, weight, threads), weight
        exe, weight = compiled[columns, depth]
        x = rng.standard_normal((rows, depth), dtype=np.float32)
        given, out = relay.Tensor.from_numpy(x), np.empty((rows, columns), np.float32)
        turned = np.ascontiguousarray(weight.T)
        np.testing.assert_allclose(np.asarray(exe(given)), x @ weight.T, rtol=1e-3, atol=1e-3 * np.sqrt(depth))
        flops = 2.0 * rows * depth * columns
        ours, theirs = fastest(partial(exe, given)), fastest(partial(np.matmul, x, turned, out=out))
        top = flops_peak()
        row: dict[str, object] = {"size": size, "threads": threads, "microseconds": 1e6 * ours}
        row |= {"gflops": flops / ours / 1e9, "of_peak": flops / ours / top, "peak_gflops": top / 1e9}
        row |= {"numpy_gflops": flops / theirs / 1e9, "ratio": theirs / ours}
        table.append(row)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], parents=[_threads])
    parser.add_argument("--sizes", default=",".join(SIZES), help="rows x depth x columns, separated by commas")
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    given = parser.parse_args()
    table = measure(given.sizes.split(","), given.threads)
    if given.json:
        print(json.dumps(table, indent=2))
        return
    heads = ["us", "GFLOP/s", "of peak", "NumPy", "ratio"]
    print(f"{'rows x depth x columns':>24}" + "".join(f"{h:>10}" for h in heads) + f"   ({given.threads} threads)")
    for r in table:
        ours = f"{r['microseconds']:10.1f}{r['gflops']:10.1f}{r['of_peak']:10.1%}"
        print(f"{r['size']:>24}{ours}{r['numpy_gflops']:10.1f}{r['ratio']:10.2f}")


if __name__ == "__main__":
    main()
