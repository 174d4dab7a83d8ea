"""How kernels scale with threads, beside PyTorch: each system and number of threads in a process of its own.

    python benchmarks/many_threads.py [--threads 1,2,4,8,16] [--systems relay,torch] [--only REGEX] [--seconds 0.1] [--rounds 2]

In one process the threads of one system spin while the other is timed, which takes their processors where there are no others. Products
with few panels or few rows, one head of attention, reductions of columns and of everything: what is easily one thread's work.
Microseconds, the least of many calls in rounds of processes that take turns: a machine's clock changes from one to the next.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A program over operands of these shapes, ``weights`` of which are constants; ``r`` in ``typed`` is a size it does not know."""

    name: str
    body: str
    shapes: dict[str, Shape]
    torch: Callable[..., Any]
    typed: dict[str, tuple[int | str, ...]]
    weights: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        typed = {n: self.typed.get(n, s) for n, s in self.shapes.items()}
        params = ", ".join(f"%{n}: Tensor[({''.join(f'{s}, ' for s in shape)}), float32]" for n, shape in typed.items())
        sizes = "[r: Dim]" if self.typed else ""
        return f'#[version = "0.0.5"]\ndef @main{sizes}({params}) {{ {self.body} }}'


def _linear(t: Any, x: Any, w: Any, b: Any) -> Any:
    return t.nn.functional.linear(x, w, b)


def _turned(t: Any, x: Any, w: Any) -> Any:
    return x.T @ w


def _product(t: Any, x: Any, w: Any) -> Any:
    return x @ w


def _attention(t: Any, q: Any, k: Any, v: Any) -> Any:
    return t.nn.functional.scaled_dot_product_attention(q, k, v)


def cases() -> Iterator[Case]:
    """The programs, in PyTorch as calls of a module given first."""
    for m, k, n in (
        (128, 384, 384),
        (53, 768, 768),
        (128, 768, 3072),
        (128, 3072, 768),
        (32, 1024, 4096),
        (1, 3072, 768),
    ):
        shapes: dict[str, Shape] = {"x": (m, k), "w": (n, k), "b": (n,)}
        body = "nn.bias_add(nn.dense(%x, %w), %b)"
        yield Case(f"constant {m} (unknown) x {k} x {n}", body, shapes, _linear, {"x": ("r", k)}, ("w", "b"))
    for m, k, n in ((576, 1143, 390), (214, 856, 601), (768, 1024, 768), (210, 1847, 95)):
        body = "nn.matmul(%x, %w, transpose_a=True)"
        yield Case(f"x[k, i] {m} x {k} x {n}", body, {"x": (k, m), "w": (k, n)}, _turned, {})
    for m, k, n in ((265, 1542, 6), (1024, 1024, 1024)):
        unknown: dict[str, tuple[int | str, ...]] = {"x": ("r", k)}
        yield Case(
            f"w[k, j] {m} (unknown) x {k} x {n}", "nn.matmul(%x, %w)", {"x": (m, k), "w": (k, n)}, _product, unknown
        )
    batched: dict[str, Shape] = {"x": (40, 21, 27), "w": (40, 27, 1178)}
    yield Case("batch of 40, 21 x 27 x 1178", "nn.batch_matmul(%x, %w, transpose_b=False)", batched, _product, {})
    for heads, length in ((12, 128), (1, 512)):
        names = ("q", "k", "v")
        shape, typed = (1, heads, length, 64), (1, heads, "r", 64)
        of: dict[str, Shape] = dict.fromkeys(names, shape)
        yield Case(
            f"attention {heads} x {length} x 64",
            "nn.attention(%q, %k, %v)",
            of,
            _attention,
            dict.fromkeys(names, typed),
        )
    rows: list[tuple[str, str, Callable[..., Any]]] = [
        ("softmax", "nn.softmax(%x)", lambda t, x: t.softmax(x, 1)),
        ("softmax of columns", "nn.softmax(%x, axis=0)", lambda t, x: t.softmax(x, 0)),
        ("sums of columns", "sum(%x, axis=[0])", lambda t, x: t.sum(x, 0)),
        ("sum", "sum(%x)", lambda t, x: t.sum(x)),
        ("gelu", "nn.gelu(%x)", lambda t, x: t.nn.functional.gelu(x)),
    ]
    for name, body, call in rows:
        yield Case(f"{name} 1024 x 768", body, {"x": (1024, 768)}, call, {})


def calls_of(system: str, case: Case, threads: int) -> Callable[[], object]:
    """A call of the case by one system."""
    import numpy as np

    rng = np.random.default_rng(0)
    drawn = {n: (rng.standard_normal(s) * 0.3).astype("float32") for n, s in case.shapes.items()}
    if system == "torch":
        import torch

        torch.set_num_threads(threads)
        tensors = [torch.from_numpy(a) for a in drawn.values()]
        torch.set_grad_enabled(False)
        return lambda: case.torch(torch, *tensors)
    import relay

    module = relay.parse(case.text).bind({n: drawn[n] for n in case.weights})
    exe, given = relay.compile(module, threads=threads), [a for n, a in drawn.items() if n not in case.weights]
    return lambda: exe(*given)


def worker(system: str, threads: int, only: str, seconds: float) -> None:
    """Time all cases in this process; print microseconds by name as JSON."""
    out: dict[str, float] = {}
    for case in cases():
        if not re.search(only, case.name):
            continue
        call, least, end = calls_of(system, case, threads), float("inf"), time.perf_counter() + seconds
        for n in range(1 << 30):
            if n >= 5 and time.perf_counter() >= end:
                break
            start = time.perf_counter()
            call()
            least = min(least, time.perf_counter() - start)
        out[case.name] = least * 1e6
    print(json.dumps(out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", default="1,2,4,8,16")
    parser.add_argument("--systems", default="relay,torch")
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=0.1, help="for each case")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker(given.systems, int(given.threads), given.only, given.seconds)
        return
    columns: dict[str, dict[str, float]] = {}
    for threads in given.threads.split(","):
        for system in given.systems.split(",") * given.rounds:
            asked = [
                "--worker",
                "--threads",
                threads,
                "--systems",
                system,
                "--only",
                given.only,
                "--seconds",
                str(given.seconds),
            ]
            limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
            run = subprocess.run(
                [sys.executable, __file__, *asked],
                check=True,
                capture_output=True,
                text=True,
                env={**os.environ, **limits},
            )
            column = columns.setdefault(f"{system} {threads}", {})
            for name, least in json.loads(run.stdout).items():
                column[name] = min(least, column.get(name, least))
    print(f"{'us':38}" + "".join(f"{name:>11}" for name in columns))
    for name in next(iter(columns.values())):
        print(f"{name:38}" + "".join(f"{column[name]:11.1f}" for column in columns.values()))


if __name__ == "__main__":
    main()
