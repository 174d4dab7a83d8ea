"""Matrix products of random sizes beside PyTorch: no size is one that anything was tuned for.

    python benchmarks/random_products.py [--count 60] [--seed 2] [--threads 1] [--seconds 0.25]

Rows, columns and depth are drawn from 4 to 2,000 (evenly by their logarithms), batches from 2 to 40; the right operand is constant or
given at run time, either operand may be turned round, and half of the programs do not know their rows. Each is checked against
PyTorch's result, and timed in turns with it: microseconds, the least of many calls.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import relay

Array = npt.NDArray[np.float32]
# Of two operands: einsum's equation, and the call where one is the usual way to write it.
FORMS = {
    "constant": ("mk,nk->mn", "nn.dense(%x, %w)"),
    "w[k, j]": ("mk,kn->mn", "nn.matmul(%x, %w)"),
    "w[j, k]": ("mk,nk->mn", "nn.dense(%x, %w)"),
    "x[k, i]": ("km,kn->mn", None),
    "batch, w[k, j]": ("bmk,bkn->bmn", None),
    "batch, w[j, k]": ("bmk,bnk->bmn", None),
}
BATCHES = (2, 3, 8, 12, 40)
MOST_WORK, MOST_ELEMENTS = 1.5e9, 4e6


@dataclass(frozen=True, slots=True)
class Product:
    form: str
    sizes: dict[str, int]
    unknown_rows: bool

    def operands(self, rng: np.random.Generator) -> list[Array]:
        left, right = FORMS[self.form][0].partition("->")[0].split(",")
        return [rng.standard_normal([self.sizes[c] for c in letters], dtype=np.float32) for letters in (left, right)]

    def compiled(self, x: Array, w: Array, threads: int) -> Callable[[], object]:
        equation, call = FORMS[self.form]

        def typed(letters: str) -> str:
            sizes = ["r" if c == "m" and self.unknown_rows else str(self.sizes[c]) for c in letters]
            return f"Tensor[({', '.join(sizes)}), float32]"

        left, right = equation.partition("->")[0].split(",")
        head = "@main[r: Dim]" if self.unknown_rows else "@main"
        body = call or f'einsum((%x, %w), equation="{equation}")'
        text = f'#[version = "0.0.5"]\ndef {head}(%x: {typed(left)}, %w: {typed(right)}) {{ {body} }}'
        if self.form == "constant":
            exe = relay.compile(relay.parse(text).bind({"w": w}), threads=threads)
            return lambda: exe(x)
        exe = relay.compile(text, threads=threads)
        return lambda: exe(x, w)

    def __str__(self) -> str:
        rows = f"{self.sizes['m']}{' (unknown)' if self.unknown_rows else ''}"
        batch = f"{self.sizes['b']} x " if self.form.startswith("batch") else ""
        return f"{self.form:15} {batch}{rows} x {self.sizes['k']} x {self.sizes['n']}"


def drawn(rng: random.Random) -> Product:
    form = rng.choice(list(FORMS))
    sizes = {c: int(2 ** rng.uniform(2, 11)) for c in "mnk"} | {
        "b": rng.choice(BATCHES) if form.startswith("batch") else 1
    }

    def is_much() -> bool:
        pairs = (sizes["m"] * sizes["k"], sizes["n"] * sizes["k"], sizes["m"] * sizes["n"])
        return math.prod(sizes.values()) > MOST_WORK or sizes["b"] * max(pairs) > MOST_ELEMENTS

    while is_much():
        sizes |= {c: max(1, sizes[c] // 2) for c in "mnk"}
    return Product(form, sizes, rng.random() < 0.5)


def least(calls: list[Callable[[], object]], seconds: float) -> list[float]:
    """The shortest time of each in many turns."""
    best, repeats = [math.inf] * len(calls), [1] * len(calls)
    for n, call in enumerate(calls):
        call()
        start = time.perf_counter()
        call()
        repeats[n] = max(1, min(50, int(2e-4 / max(time.perf_counter() - start, 1e-7))))
    end, turns = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or turns < 5:
        for n, call in enumerate(calls):
            start = time.perf_counter()
            for _ in range(repeats[n]):
                call()
            best[n] = min(best[n], (time.perf_counter() - start) / repeats[n])
        turns += 1
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.25, help="for each product")
    given = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(given.threads)
    import torch

    torch.set_num_threads(given.threads)
    torch.set_grad_enabled(False)
    draw, rng = random.Random(given.seed), np.random.default_rng(given.seed)
    ratios: list[float] = []
    for _ in range(given.count):
        product = drawn(draw)
        x, w = product.operands(rng)
        ours, theirs = product.compiled(x, w, given.threads), (torch.from_numpy(x), torch.from_numpy(w))
        equation = FORMS[product.form][0]
        calls = [ours, peer(product.form, equation, *theirs)]
        expected = np.asarray(calls[1]())
        assert np.allclose(np.asarray(ours()), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max()), product
        mine, other = least(calls, given.seconds)
        ratios.append(other / mine)
        rate = 2e-9 * math.prod(product.sizes.values()) / mine
        print(
            f"{product!s:45} relay {mine * 1e6:9.1f} ({rate:5.1f} GFLOP/s)  torch {other * 1e6:9.1f}  {ratios[-1]:5.2f}",
            flush=True,
        )
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(
        f"PyTorch takes {mean:.2f} times as long (geometric mean), {min(ratios):.2f} at the least, {max(ratios):.2f} at the most"
    )


def peer(form: str, equation: str, x: Any, w: Any) -> Callable[[], object]:
    """PyTorch's product, of views of what is turned round."""
    from torch.nn.functional import linear

    left = x.transpose(-1, -2) if equation.startswith("k") else x
    right = w.transpose(-1, -2) if "nk->" in equation else w
    return (lambda: linear(x, w)) if form == "constant" else (lambda: left @ right)


if __name__ == "__main__":
    main()
