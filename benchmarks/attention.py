"""Attention beside PyTorch's scaled_dot_product_attention, in one run, interleaved: 12 heads, symbolic lengths.

Each row is one size: the median time of both systems, our rate (two products of 2 m n d each, half of them under a causal mask,
nothing for the softmax) as a share of the peak of multiply-adds measured beside it, and the ratio of the times. One query against
many keys is counted in GB/s of keys and values. ``python benchmarks/attention.py [--threads 1] [--heads 32,64,128]
[--lengths 5,16,...] [--causal] [--decode] [--rounds 9]``
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence

import numpy as np
from machine import multiplying
from turns import PAUSE, medians

import relay

HEADS = 12
LENGTHS = (5, 8, 16, 32, 48, 64, 128, 256, 512, 1024, 2048)
CACHES = (16, 64, 256, 1024, 4096)
Call = Callable[[], object]


def program(size: int, causal: bool) -> str:
    """Relay text for heads of a size."""
    q, kv = (f"Tensor[({HEADS}, {n}, {size}), float32]" for n in "mn")
    flag = ", causal=True" if causal else ""
    return f"""#[version = "0.0.5"]
    def @main[m: Dim, n: Dim](%q: {q}, %k: {kv}, %v: {kv}) {{ nn.attention(%q, %k, %v{flag}) }}"""


def systems(m: int, n: int, size: int, causal: bool, threads: int) -> dict[str, Call]:
    """One call of each system on the same operands; their results are compared first."""
    rng = np.random.default_rng(0)
    arrays = [np.asarray(rng.standard_normal((HEADS, t, size)), np.float32) for t in (m, n, n)]
    exe = relay.compile(program(size, causal), threads=threads)
    out: dict[str, Call] = {"relay": lambda: exe(*arrays)}
    try:
        import torch
    except ImportError:
        return out
    torch.set_num_threads(threads)
    q, k, v = (torch.from_numpy(a)[None] for a in arrays)

    def theirs() -> object:
        with torch.inference_mode():
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

    found = np.asarray(torch.as_tensor(theirs())[0])
    np.testing.assert_allclose(np.asarray(exe(*arrays)), found, rtol=1e-4, atol=1e-5)
    out["torch"] = theirs
    return out


def report(sizes: Sequence[tuple[int, int]], size: int, causal: bool, threads: int, rounds: int) -> list[float]:
    """Measure and print; the ratios of our times to PyTorch's."""
    ratios: list[float] = []
    operations, multiply = multiplying(threads)
    for m, n in sizes:
        calls = systems(m, n, size, causal, threads)
        pauses = dict.fromkeys(calls, PAUSE) if len(calls) > 1 else {}
        found = medians({**calls, "multiply": multiply}, rounds, pauses, turn=1e-3, most=100)
        ours, peak = found["relay"], operations / found.pop("multiply")
        if m == 1:
            rate = f"{2 * HEADS * n * size * 4 / ours / 1e9:7.1f} GB/s"
        else:
            flops = 4 * HEADS * m * n * size * (0.5 if causal else 1.0)
            rate = f"{100 * flops / ours / peak:6.1f} % of peak"
        times = " ".join(f"{name} {t * 1e6:9.1f}" for name, t in found.items())
        other = found.get("torch")
        if other is not None:
            ratios.append(ours / other)
        ratio = f"relay / torch {ours / other:.2f}" if other is not None else ""
        kind = "causal" if causal else ""
        print(f"{m:5d} x {n:<5d} head {size:<4d} {kind:7} {times:38} {rate:>18}  {ratio}", flush=True)
    return ratios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--heads", default="32,64,128", help="sizes of a head")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--causal", action="store_true", help="each query sees the keys up to its own place")
    parser.add_argument("--decode", action="store_true", help="one query against caches of keys")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    lengths = [int(t) for t in args.lengths.split(",")]
    sizes = [(1, n) for n in CACHES] if args.decode else [(t, t) for t in lengths]
    print(f"us per call, {HEADS} heads, {args.threads} thread(s)")
    ratios: list[float] = []
    for size in map(int, args.heads.split(",")):
        ratios += report(sizes, size, args.causal, args.threads, args.rounds)
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        print(f"geometric mean of relay / torch: {mean:.2f}, worst {max(ratios):.2f}")


if __name__ == "__main__":
    main()
