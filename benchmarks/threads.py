"""Throughput of one executable shared by many threads, beside one thread.

    python benchmarks/threads.py [--threads 32] [--seconds 3] [--native]

Each call may use one thread (threads=1) and each thread has an input of its own, so what is measured is how calls get in each other's
way: Python's lock, the storage pool, what is shared in the executable. Rounds with one thread and with all take turns; the medians of
the rounds are printed.
With ``--native`` the programs are libraries for C, called by threads of a C program (threads.c): without Python's lock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import relay
from relay.aot.library import include_folder

PROGRAMS = {
    # name: text of a program with one float32 input of (rows, 256), and how many rows
    "small (one kernel)": ("nn.relu(%x)", 4),
    "network (4 dense layers)": (None, 16),
    "recursion (64 calls)": ("@fold(64i64, %x)", 1),
}
WEIGHTS = 4


def module(body: str | None) -> relay.ir.module.Module:
    """The program of a body; None is a network with constant weights."""
    head = '#[version = "0.0.5"]\n'
    fold = """def @fold[n: Dim](%k: int64, %x: Tensor[(n, 256), float32]) -> Tensor[(n, 256), float32] {
      if (%k == 0i64) { %x } else { tanh(@fold(%k - 1i64, %x)) }
    }
    """
    if body is not None:
        text = f"{head}{fold}def @main[n: Dim](%x: Tensor[(n, 256), float32]) -> Tensor[(n, 256), float32] {{ {body} }}"
        return relay.parse(text)
    params = "".join(f", %w{k}: Tensor[(256, 256), float32]" for k in range(WEIGHTS))
    layers = "%x"
    for k in range(WEIGHTS):
        layers = f"nn.relu(nn.dense({layers}, %w{k}))"
    text = f"{head}def @main[n: Dim](%x: Tensor[(n, 256), float32]{params}) -> Tensor[(n, 256), float32] {{ {layers} }}"
    random = np.random.default_rng(0)
    weights = {f"w{k}": random.standard_normal((256, 256)).astype(np.float32) / 16 for k in range(WEIGHTS)}
    return relay.parse(text).bind(weights)


def native(body: str | None, rows: int, folder: Path) -> Callable[[int, float], float]:
    """Calls per second of so many threads of a C program, for so many seconds."""
    library = folder / "program.so"
    relay.build_library(module(body), library)
    command = ["cc", "-O2", "-std=gnu11", str(Path(__file__).with_suffix(".c")), str(library), f"-Wl,-rpath,{folder}"]
    include = ["-I", str(folder), "-I", str(include_folder())]
    subprocess.run([*command, *include, "-lpthread", "-o", str(folder / "threads")], check=True)

    def measure(threads: int, seconds: float) -> float:
        given = [str(folder / "threads"), str(threads), str(seconds), "256", str(rows)]
        return float(subprocess.run(given, check=True, capture_output=True, text=True).stdout)

    return measure


def rate(begin_calls: Callable[[], Callable[[], object]], threads: int, seconds: float) -> float:
    """Calls per second of that many threads together, each of which makes what it calls."""
    counts = [0] * threads
    start = threading.Barrier(threads + 1)
    stop = threading.Event()

    def work(number: int) -> None:
        call = begin_calls()
        start.wait()
        done = 0
        while not stop.is_set():
            call()
            done += 1
        counts[number] = done

    workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    start.wait()
    begin = time.perf_counter()
    time.sleep(seconds)
    stop.set()
    for worker in workers:
        worker.join()
    return sum(counts) / (time.perf_counter() - begin)


def from_python(body: str | None, rows: int) -> Callable[[int, float], float]:
    """The same of so many threads of Python."""
    exe = relay.compile(module(body), threads=1)
    data = np.random.default_rng(1).standard_normal((rows, 256)).astype(np.float32)

    def begin_calls() -> Callable[[], object]:
        x = relay.Tensor.from_numpy(data, copy=True)
        return lambda: exe(x)

    begin_calls()()
    return lambda threads, seconds: rate(begin_calls, threads, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=3.0, help="per program and number of threads")
    parser.add_argument("--native", action="store_true", help="from threads of a C program")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for name, (body, count) in PROGRAMS.items():
        one: list[float] = []
        many: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            measure = native(body, count, Path(folder)) if options.native else from_python(body, count)
            for _ in range(5):
                one.append(measure(1, options.seconds / 5))
                many.append(measure(options.threads, options.seconds / 5))
        a, b = statistics.median(one), statistics.median(many)
        rows.append({"program": name, "us_per_call": 1e6 / a, "one": a, "many": b, "gain": b / a})
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'program':28}{'us/call':>10}{'1 thread/s':>14}{f'{options.threads} threads/s':>14}{'gain':>8}")
    for row in rows:
        print(f"{row['program']:28}{row['us_per_call']:10.1f}{row['one']:14.0f}{row['many']:14.0f}{row['gain']:8.2f}")


if __name__ == "__main__":
    main()
