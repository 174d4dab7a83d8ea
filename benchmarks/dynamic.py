"""Networks whose work the data decides beside other systems: recurrent layers on sequences of many lengths, a character
generator, a decoder and its beam search, networks over graphs, early exit, a mixture of experts.

Systems take turns with all inputs, after a pause in which the threads of the one before stop spinning, and after calls that bring the
weights back into the caches. The figures are medians in microseconds per token (per call, where there are no tokens). Beside them is
the floor, what the machine allows, measured in the same turns: weights read once per step at the bandwidth of the cache that they fit
in, products at the peak of multiply-adds (each program's `floor` says which). ``vs floor`` is ours over it, ``vs best`` the best other
system over ours; a line that misses a bar of its program ends with it.

    python benchmarks/dynamic.py [--threads 1] [--programs lstm,gru,...] [--systems relay,torch,...] [--seconds 2]
        [--hidden 64,128,...] [--batch 1,8,...]

``--hidden`` and ``--batch`` are for the layers only: how wide their states are, and of how many sequences a step is (microseconds are
then those of a step of all of them).
``--systems relay,onnxruntime,onnx tables,jax,jax tables`` tells of graphs what systems take that are given their levels,
``--systems relay,aot`` compares with native programs, ``--systems relay,fixed`` with layers compiled for each of the inputs' lengths.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product

# Libraries read these when they are loaded.
_threads = argparse.ArgumentParser(add_help=False)
_threads.add_argument("--threads", type=int, default=1)
_known, _ = _threads.parse_known_args()
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = str(_known.threads)
os.environ.setdefault("XLA_FLAGS", f"--xla_cpu_multi_thread_eigen={str(_known.threads > 1).lower()}")

import numpy as np  # noqa: E402
from dynamic_control import charrnn, earlyexit, experts  # noqa: E402
from dynamic_decoder import decoder  # noqa: E402
from dynamic_graphs import grids, random_graphs  # noqa: E402
from dynamic_layers import GATES, layer  # noqa: E402
from dynamic_program import HIDDEN, Bar, Machine, Program, Run  # noqa: E402
from machine import multiplying, reading, usual  # noqa: E402
from table import FLOOR, Table, add_out  # noqa: E402
from turns import PAUSE  # noqa: E402

PROGRAMS: Mapping[str, Callable[[], Program]] = {
    "charrnn": charrnn, "decoder": lambda: decoder(1), "beam": lambda: decoder(4),
    "graphs": random_graphs, "grids": grids, "earlyexit": earlyexit, "experts": experts,
}  # fmt: skip
SYSTEMS = ("relay", "torch", "onnxruntime", "openvino", "jax")
# They are told what the others find out inside the timing: they count as no system in `judged`.
GIVEN = {"onnx tables", "jax tables"}


def cases(names: Sequence[str], hidden: Sequence[int], batches: Sequence[int]) -> dict[str, Callable[[], Program]]:
    """What to measure, by what its row is called."""
    found: dict[str, Callable[[], Program]] = {}
    for name in names:
        if name in PROGRAMS:
            found[name] = PROGRAMS[name]
            continue
        for size, batch in product(hidden, batches):
            row = name + (f" {size}" if size != HIDDEN else "") + (f", batch {batch}" if batch != 1 else "")
            found[row] = partial(layer, name, size, batch)
    return found


def start(program: Program, wanted: Sequence[str], threads: int) -> dict[str, Run]:
    """The systems that can run the program and are installed; they agree about its results."""
    runs: dict[str, Run] = {}
    for name in wanted:
        if name in program.systems:
            try:
                runs[name] = program.systems[name](threads)
            except ImportError as error:
                print(f"{name}: {error}")
    for x in program.inputs:
        results = {name: np.asarray(run(x)) for name, run in runs.items()}
        for name, found in results.items():
            np.testing.assert_allclose(found, next(iter(results.values())), atol=2e-4, err_msg=name)
    return runs


def measure(program: Program, runs: Mapping[str, Run], threads: int, seconds: float) -> dict[str, float]:
    """Microseconds per token of each system and of the floor: medians over rounds, the systems in turns."""
    first = next(iter(runs.values()))
    tokens = [program.tokens(x, np.asarray(first(x))) for x in program.inputs]
    times: dict[str, list[list[float]]] = {name: [[] for _ in program.inputs] for name in runs}
    (flops, multiply), read = multiplying(threads), reading(program.streamed, threads)
    floors: list[float] = []
    pause = PAUSE if len(runs) > 1 else 0.0
    end = time.perf_counter() + (seconds + pause) * len(runs)
    while time.perf_counter() < end:
        time.sleep(pause)
        machine = Machine(flops / usual(multiply, 0.01), program.streamed / usual(read, 0.05))
        floors.append(sum(program.floor(x, n, machine) for x, n in zip(program.inputs, tokens, strict=True)))
        for name, run in runs.items():
            time.sleep(pause)  # the threads of the one before spin for a while
            for x in program.inputs:
                run(x)  # what others drove out of the caches comes back
            for k, x in enumerate(program.inputs):
                begin = time.perf_counter()
                run(x)
                times[name][k].append(time.perf_counter() - begin)
    scale = 1e6 / sum(tokens)
    found = {name: scale * float(sum(np.median(t) for t in kept)) for name, kept in times.items()}
    return {**found, FLOOR: scale * float(np.median(floors))}


def judged(found: Mapping[str, float], bar: Bar) -> tuple[str, str]:
    """How ours stands beside the floor and the best other system, and which bars it misses."""
    ours = found["relay"]
    others = {s: t for s, t in found.items() if s not in {"relay", "aot", "fixed", FLOOR, *GIVEN}}
    over = ours / found[FLOOR]
    missed = [] if bar.over_floor is None or over <= bar.over_floor else [f"floor x {bar.over_floor:g}"]
    text = f"{over:10.2f}"
    if others:
        best = min(others, key=others.__getitem__)
        ratio = others[best] / ours
        text += f"{ratio:10.2f} {best}"
        missed += [] if ratio >= bar.over_peers else [f"{bar.over_peers:g} x {best}"]
    return text, f"   MISSED: {', '.join(missed)}" if missed else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], parents=[_threads])
    parser.add_argument("--programs", default=",".join((*GATES, *PROGRAMS)))
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--hidden", default=str(HIDDEN), help="of the layers")
    parser.add_argument("--batch", default="1", help="of the layers")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each system and program")
    add_out(parser)
    given = parser.parse_args()
    # JAX has no option for this: what it may use is what the process may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: given.threads])
    unknown = {*given.programs.split(",")} - {*GATES, *PROGRAMS}
    if unknown:
        parser.error(f"there is no program {', '.join(sorted(unknown))}; there are {', '.join((*GATES, *PROGRAMS))}")
    wanted = given.systems.split(",")
    sizes, batches = ([int(n) for n in text.split(",")] for text in (given.hidden, given.batch))
    title = f"Networks whose work the data decides, {given.threads} thread(s)"
    table = Table(f"dynamic-{given.threads}", title, "us a token (or a call)", "program", [*wanted, FLOOR])
    print(f"{table.head()}{'vs floor':>10}{'vs best':>10}")
    for name, make in cases(given.programs.split(","), sizes, batches).items():
        program = make()
        found = measure(program, start(program, wanted, given.threads), given.threads, given.seconds)
        row = table.add(name, found)
        if "relay" in found:
            text, missed = judged(found, program.bars.get(given.threads, Bar()))
            row += text + missed
        print(row, flush=True)
    table.keep(given.out)


if __name__ == "__main__":
    main()
