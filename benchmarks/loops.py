"""Loops that no library has as an operator (`examples/loops.relay`): forward, and with the gradients of all tensors of floats that they
are given, beside JAX's loops.

    python benchmarks/loops.py [--steps 64] [--programs memory flow] [--threads 1] [--out results]

JAX differentiates loops of a known number of steps only, and has no dynamic program over rows that grow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from entries import Array, Case, letters, main, number

EXAMPLE = Path(__file__).parents[1] / "examples" / "loops.relay"


def definite(n: int, f: Callable[..., Array]) -> Array:
    a = f(n, n)
    return (a @ a.T / n + np.eye(n)).astype(np.float32)


CASES = {
    "selective_scan": Case(lambda n, f: [f(n, 256), abs(f(n, 256)) * 0.1, -abs(f(256, 16)), f(n, 16), f(n, 16)]),
    "retention": Case(lambda n, f: [f(n, 64), f(n, 64), f(n, 64)]),
    "all_paths": Case(lambda n, f: [f(n, 24), f(24, 24)]),
    "memory": Case(lambda n, f: [f(n, 32), f(20, 32) * 0.3, f(20, 32) * 0.3, f(64, 20)]),
    "known_words": Case(lambda n, f: [letters(n), f(1, 64), f(1000, 64) * 0.3, f(64, 64) * 0.1]),
    "looks_back": Case(lambda n, f: [f(n, 64), f(1, 64), *(f(64, 64) * 0.1 for _ in range(3))]),
    "words_to_come": Case(
        lambda n, f: [letters(n, 1000), f(1, 128), f(1000, 128) * 0.3, f(128, 128) * 0.1, f(1000, 128) * 0.1]
    ),
    "tags": Case(lambda n, f: [f(n, 128), f(1, 128), f(128, 128) * 0.1, f(1000, 128) * 0.1]),
    "centres": Case(lambda n, f: [f(16 * n, 16), f(10, 16)]),
    "transport": Case(lambda n, f: [abs(f(n, n + 3)), number(1e-3)], by_jax=False),
    "flow": Case(lambda n, f: [f(1, 64), f(128, 64) * 0.2, f(64, 128) * 0.2, number(1e-3)], by_jax=False),
    "solve": Case(lambda n, f: [definite(n, f), f(n)], by_jax=False),
    "cholesky": Case(lambda n, f: [definite(n, f)]),
    "kalman": Case(
        lambda n, f: [
            f(n, 3),
            (0.7 * np.eye(6, dtype=np.float32) + f(6, 6) * 0.05),
            f(3, 6),
            definite(6, f),
            definite(3, f),
        ]
    ),
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

    def known_words(words: Any, start: Any, table: Any, w: Any) -> Any:
        def one(h: Any, word: Any) -> Any:
            return jax.lax.cond(word > 0, lambda h: jnp.tanh(h @ w.T + table[word]), lambda h: h, h), None

        return scan(one, start, words)[0]

    def looks_back(xs: Any, first: Any, ask: Any, own: Any, seen: Any) -> Any:
        def one(state: Any, step: Any) -> Any:
            s, last = state
            i, x = step
            share = jax.nn.softmax(jnp.where(jnp.arange(len(s)) <= i, (last @ ask.T) @ s.T, -jnp.inf))
            new = jnp.tanh(x + last @ own.T + (share @ s) @ seen.T)
            return (s.at[i + 1].set(new[0]), new), None

        states = jnp.zeros((len(xs) + 1, 64)).at[0].set(first[0])
        return scan(one, (states, first), (jnp.arange(len(xs)), xs))[0][0]

    def words_to_come(words: Any, start: Any, table: Any, u: Any, out: Any) -> Any:
        def one(state: Any, pair: Any) -> Any:
            h = jnp.tanh(table[pair[0]] + state[0] @ u.T)
            return (h, state[1] - jax.nn.log_softmax(h @ out.T)[0, pair[1]]), None

        return scan(one, (start, 0.0), (words[:-1], words[1:]))[0][1]

    def tags(xs: Any, start: Any, u: Any, out: Any) -> Any:
        def one(h: Any, x: Any) -> Any:
            new = jnp.tanh(x + h @ u.T)
            return new, jax.nn.softmax(new @ out.T)[0]

        return scan(one, start, xs)[1]

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

    def cholesky(a: Any) -> Any:
        at = jnp.arange(len(a))

        def one(factor: Any, j: Any) -> Any:
            c = a[:, j] - factor @ factor[j]
            return factor.at[:, j].set(jnp.where(at >= j, c * jax.lax.rsqrt(c[j]), 0)), None

        return scan(one, jnp.zeros_like(a), at)[0]

    def inverse(a: Any) -> Any:
        at = jnp.arange(len(a))

        def one(s: Any, i: Any) -> Any:
            row, here = s[0][i], at == i
            new = jnp.where(here, 1, row) / row[i]
            others = jnp.where(here, 0, s[0]) - s[0][:, i][:, None] * new
            return (jnp.where(here[:, None], new, others), s[1] + jnp.log(row[i])), None

        return scan(one, (a, 0.0), at)[0]

    def kalman(ys: Any, f: Any, h: Any, q: Any, r: Any) -> Any:
        def one(s: Any, y: Any) -> Any:
            x, p = f @ s[0], f @ s[1] @ f.T + q
            off, seen = y[:, None] - h @ x, p @ h.T
            inverted, volume = inverse(h @ seen + r)
            gain = seen @ inverted
            likely = (off * (inverted @ off)).sum() + volume
            return (x + gain @ off, p - gain @ seen.T, s[2] - likely * 0.5), None

        return scan(one, (jnp.zeros((6, 1)), q, 0.0), ys)[0][2]

    found = (
        selective_scan,
        retention,
        all_paths,
        memory,
        known_words,
        looks_back,
        words_to_come,
        tags,
        centres,
        transport,
        flow,
        solve,
        cholesky,
        kalman,
    )
    return {f.__name__: f for f in found}


if __name__ == "__main__":
    main(__doc__, EXAMPLE, CASES, in_jax)
