"""Loops that no library has as an operator (`examples/loops.relay`): forward, and with the gradients of all tensors of floats that they
are given, beside JAX's loops.

    python benchmarks/loops.py [--steps 64] [--programs memory flow] [--threads 1] [--out results]

JAX differentiates loops of a known number of steps only, and has no dynamic program over rows that grow.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from table import Table, add_out
from turns import PAUSE, medians

import relay

EXAMPLE = Path(__file__).parents[1] / "examples" / "loops.relay"
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Case:
    """An entry with what it is given for a number of steps; whether it has a gradient, here and in JAX."""

    arguments: Callable[[int, Callable[..., Array]], list[Array]]
    gradient: bool = True
    by_jax: bool = True


def letters(n: int) -> Array:
    return np.random.default_rng(n).integers(0, 5, n).astype(np.int32)


def definite(n: int, f: Callable[..., Array]) -> Array:
    a = f(n, n)
    return (a @ a.T / n + np.eye(n)).astype(np.float32)


def number(value: float) -> Array:
    return np.asarray(value, np.float32)


CASES = {
    "selective_scan": Case(lambda n, f: [f(n, 256), abs(f(n, 256)) * 0.1, -abs(f(256, 16)), f(n, 16), f(n, 16)]),
    "retention": Case(lambda n, f: [f(n, 64), f(n, 64), f(n, 64)]),
    "all_paths": Case(lambda n, f: [f(n, 24), f(24, 24)]),
    "memory": Case(lambda n, f: [f(n, 32), f(20, 32) * 0.3, f(20, 32) * 0.3, f(64, 20)]),
    "centres": Case(lambda n, f: [f(16 * n, 16), f(10, 16)]),
    "transport": Case(lambda n, f: [abs(f(n, n + 3)), number(1e-3)], by_jax=False),
    "flow": Case(lambda n, f: [f(1, 64), f(128, 64) * 0.2, f(64, 128) * 0.2, number(1e-3)], by_jax=False),
    "solve": Case(lambda n, f: [definite(n, f), f(n)], by_jax=False),
    "edit_distance": Case(lambda n, f: [letters(n), letters(n + 7)], gradient=False, by_jax=False),
}


def in_jax() -> dict[str, Callable[..., Any]]:
    """The same programs; without `edit_distance`."""
    import jax
    import jax.numpy as jnp

    scan, loop = jax.lax.scan, jax.lax.while_loop

    def selective_scan(x: Any, step: Any, a: Any, b: Any, c: Any) -> Any:
        def one(h: Any, row: Any) -> Any:
            x, d, b, c = row[0], row[1][:, None], row[2], row[3]
            h = jnp.exp(d * a) * h + (d * x[:, None]) * b[None]
            return h, (h * c[None]).sum(1)

        return scan(one, jnp.zeros_like(a), (x, step, b, c))[1]

    def retention(q: Any, k: Any, v: Any) -> Any:
        def one(s: Any, row: Any) -> Any:
            s = s * 0.95 + row[1][:, None] * row[2][None]
            return s, (s * row[0][:, None]).sum(0)

        return scan(one, jnp.zeros((64, 64)), (q, k, v))[1]

    def all_paths(scores: Any, moves: Any) -> Any:
        def one(alpha: Any, row: Any) -> Any:
            return jax.nn.logsumexp(alpha[:, None] + moves, axis=0) + row, None

        return jax.nn.logsumexp(scan(one, jnp.zeros(24), scores)[0])

    def memory(xs: Any, key: Any, erase: Any, first: Any) -> Any:
        def one(m: Any, x: Any) -> Any:
            k, e = key @ x, jax.nn.sigmoid(erase @ x)
            near = (m * k).sum(1) / jnp.sqrt((m * m).sum(1) * (k @ k) + 1e-6)
            w = jax.nn.softmax(near * 5)[:, None]
            return m * (1 - w * e) + w * jnp.tanh(k), (w * m).sum(0)

        return scan(one, first, xs)[1]

    def centres(x: Any, first: Any) -> Any:
        def one(c: Any, _: Any) -> Any:
            mine = jax.nn.one_hot(((c * c).sum(1) - 2 * x @ c.T).argmin(1), 10)
            return mine.T @ x / (mine.sum(0)[:, None] + 1e-6), None

        return scan(one, first, None, length=10)[0]

    def transport(cost: Any, tolerance: Any) -> Any:
        k = jnp.exp(-cost * 10)

        def one(s: Any) -> Any:
            rows = 1 / (k * s[1]).sum(1, keepdims=True)
            columns = 1 / (k * rows).sum(0, keepdims=True)
            moved = jnp.abs(rows - s[0]).max() / rows.max()
            return rows, columns, s[2] + 1, (moved > tolerance) & (s[2] < 200)

        start = jnp.ones_like(cost).sum(1, keepdims=True), jnp.ones_like(cost).sum(0, keepdims=True), -1, True
        rows, columns, steps, _ = loop(lambda s: s[3], one, start)
        return k * rows * columns, steps

    def flow(y: Any, w1: Any, w2: Any, tolerance: Any) -> Any:
        def field(y: Any) -> Any:
            return jnp.tanh(y @ w1.T) @ w2.T

        def one(s: Any) -> Any:
            t, h, y, i = s
            k1 = field(y)
            k2 = field(y + h * k1)
            return jax.lax.cond(
                jnp.abs(k2 - k1).max() * h * 0.5 > tolerance,
                lambda: (t, h * 0.5, y, i + 1),
                lambda: (t + h, jnp.minimum(h * 1.3, 1 - t - h + 1e-6), y + h * 0.5 * (k1 + k2), i + 1),
            )

        start = jnp.float32(0), jnp.float32(0.1), y, 0
        return loop(lambda s: (s[0] < 1) & (s[3] < 1000), one, start)[2:]

    def solve(a: Any, b: Any) -> Any:
        def one(s: Any) -> Any:
            x, r, p, rs, i = s
            ap = a @ p
            far = rs / (p @ ap)
            left = r - far * ap
            now = left @ left
            return x + far * p, left, left + (now / rs) * p, now, i + 1

        done = loop(lambda s: (s[3] > 1e-8) & (s[4] < 100), one, (jnp.zeros_like(b), b, b, b @ b, 0))
        return done[0], done[4]

    found = (selective_scan, retention, all_paths, memory, centres, transport, flow, solve)
    return {f.__name__: f for f in found}


def leaves(value: Any) -> list[Array]:
    return [a for v in value for a in leaves(v)] if isinstance(value, tuple | list) else [np.asarray(value)]


def programs(name: str, steps: int, threads: int, jax_one: Callable[..., Any] | None) -> dict[str, dict[str, Any]]:
    """What is measured of a case: ``forward`` and ``gradient``, each as calls of systems."""
    case, rng = CASES[name], np.random.default_rng(0)
    given = case.arguments(steps, lambda *shape: rng.standard_normal(shape).astype(np.float32))
    wanted = tuple(n for n, a in enumerate(given) if a.dtype == np.float32 and a.ndim)
    module = relay.load_module(EXAMPLE)
    forward = relay.compile(module, entries=(name,), threads=threads)
    out: dict[str, dict[str, Any]] = {"forward": {"relay": lambda: forward.run(name, *given)}}
    if case.gradient:
        derived = relay.compile(relay.grad(module, wanted, entry=name), entries=(name,), threads=threads)
        out["gradient"] = {"relay": lambda: derived.run(name, *given)}
    if jax_one is None:
        return out
    import jax
    import jax.numpy as jnp

    held = [jnp.asarray(a) for a in given]
    run = jax.jit(jax_one)
    out["forward"]["jax"] = lambda: jax.block_until_ready(run(*held))
    if case.by_jax:

        def total(*arguments: Any) -> Any:
            return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(jax_one(*arguments)))

        back = jax.jit(jax.grad(total, wanted))
        out["gradient"]["jax"] = lambda: jax.block_until_ready(back(*held))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=64, help="steps, or rows of a sixteenth, of each loop")
    parser.add_argument("--programs", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    add_out(parser)
    args = parser.parse_args()
    # JAX has no option for this: what it may use is what the process may use.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.threads])
    try:
        peers = in_jax()
    except ImportError:
        peers = {}
    title = f"Loops of {args.steps} steps, forward and with gradients, {args.threads} thread(s)"
    table = Table(f"loops-{args.threads}", title, "us", "program", ["relay", "jax", "jax / ours"])
    print(table.head())
    for name in args.programs:
        for what, calls in programs(name, args.steps, args.threads, peers.get(name)).items():
            found = {system: leaves(call()) for system, call in calls.items()}
            # A comparison that decides when to stop may go the other way where sums are rounded otherwise.
            for a, b in zip(found["relay"], found.get("jax", found["relay"]), strict=True):
                apart = np.linalg.norm(np.subtract(a, b, dtype=np.float64)) / max(1.0, float(np.linalg.norm(a)))
                assert apart < 2e-2, f"{name}, {what}: JAX differs by {apart}"
            times = medians(calls, args.rounds, dict.fromkeys(calls, PAUSE), 0.02)
            figures = {system: t * 1e6 for system, t in times.items()}
            if "jax" in figures:
                figures["jax / ours"] = figures["jax"] / figures["relay"]
            print(table.add(name if what == "forward" else f"{name}, gradient", figures), flush=True)
    table.keep(args.out)


if __name__ == "__main__":
    main()
