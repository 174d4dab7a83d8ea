"""Programs that no library has as an operator or a model (`examples/novel.relay`): forward, and with the gradients of all tensors of
floats that they are given, beside JAX.

    python benchmarks/novel_programs.py [--steps 64] [--programs beliefs warping] [--threads 1] [--out results]
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from entries import Array, Case, main

EXAMPLE = Path(__file__).parents[1] / "examples" / "novel.relay"


def grid(n: int) -> list[Array]:
    """The edges of a grid of about ``4 * n`` nodes, both ways: where each begins and ends, and the number of its reverse."""
    side = max(2, int((4 * n) ** 0.5))
    place = np.arange(side * side).reshape(side, side)
    a = np.concatenate([place[:, :-1].ravel(), place[:-1].ravel()])
    b = np.concatenate([place[:, 1:].ravel(), place[1:].ravel()])
    one, other = np.arange(len(a)), np.arange(len(a), 2 * len(a))
    return [np.concatenate([a, b]), np.concatenate([b, a]), np.concatenate([other, one])]


def nodes(n: int) -> int:
    return int(grid(n)[0].max()) + 1


def lattice(n: int) -> list[Array]:
    """Where the words that end at each of ``n`` letters are in a list of them (up to three each), and where each begins."""
    rng = np.random.default_rng(n)
    counts = rng.integers(0, 4, n)
    begins = [rng.integers(0, t + 1, c) for t, c in enumerate(counts)]
    return [np.concatenate([[0], np.cumsum(counts)]), np.concatenate(begins)]


CASES = {
    "beliefs": Case(lambda n, f: [f(nodes(n), 4), f(4, 4), *grid(n)]),
    "tridiagonal": Case(lambda n, f: [f(8 * n), f(8 * n) * 0.3 + 4, f(8 * n), f(8 * n)]),
    "warping": Case(lambda n, f: [abs(f(n, n + 7))]),
    "delta_rule": Case(lambda n, f: [f(n, 32), f(n, 32) * 0.15, f(n, 32), f(n)]),
    "clouds": Case(lambda n, f: [f(5 * n, 3), f(4 * n, 3)]),
    "rays": Case(lambda n, f: [f(4 * n, 48), f(4 * n, 48, 3), f(4 * n, 48) * 0.1]),
    "lattice": Case(
        lambda n, f: [
            f(n, 64),
            *lattice(n),
            f(int(lattice(n)[0][-1]), 64),
            *(0.1 * f(rows * 64, 64) for rows in (4, 3, 3, 3, 1)),
        ]
    ),
}


def in_jax() -> dict[str, Callable[..., Any]]:
    """The same programs."""
    import jax
    import jax.numpy as jnp

    scan, total = jax.lax.scan, jax.ops.segment_sum

    def beliefs(own: Any, pair: Any, src: Any, dst: Any, reverse: Any) -> Any:
        def one(m: Any, _: Any) -> Any:
            others = (own + total(m, dst, len(own)))[src] - m[reverse]
            following = jax.nn.logsumexp(others[:, :, None] + pair[None], axis=1)
            return following - jax.nn.logsumexp(following, axis=1, keepdims=True), None

        m = scan(one, jnp.zeros((len(src), own.shape[1])), None, length=10)[0]
        return jax.nn.softmax(own + total(m, dst, len(own)))

    def tridiagonal(below: Any, diagonal: Any, above: Any, right: Any) -> Any:
        def forth(s: Any, row: Any) -> Any:
            by = row[1] - row[0] * s[0]
            s = row[2] / by, (row[3] - row[0] * s[1]) / by
            return s, s

        def back(x: Any, row: Any) -> Any:
            x = row[1] - row[0] * x
            return x, x

        zero = jnp.float32(0)
        rows = scan(forth, (zero, zero), (below, diagonal, above, right))[1]
        return scan(back, zero, rows, reverse=True)[1][::-1, None]

    def warping(costs: Any) -> Any:
        far = jnp.float32(1e8)

        def line(s: Any, costs: Any) -> Any:
            def one(s: Any, cell: Any) -> Any:
                (corner, left), (up, cost) = s, cell
                least = jnp.minimum(jnp.minimum(corner, up), left)
                soft = least - jnp.log(jnp.exp(least - corner) + jnp.exp(least - up) + jnp.exp(least - left))
                return (up, soft + cost), soft + cost

            return (scan(one, (s[1], far), (s[0], costs))[1], far), None

        return scan(line, (jnp.full(costs.shape[1], far), jnp.float32(0)), costs)[0][0][-1]

    def delta_rule(q: Any, k: Any, v: Any, b: Any) -> Any:
        def one(s: Any, row: Any) -> Any:
            q, k, v, b = row
            s = s + k[:, None] * ((v - (s * k[:, None]).sum(0)) * jax.nn.sigmoid(b))[None]
            return s, (s * q[:, None]).sum(0)

        return scan(one, jnp.zeros((q.shape[1], q.shape[1])), (q, k, v, b))[1]

    def clouds(x: Any, y: Any) -> Any:
        far = ((x[:, None] - y[None]) ** 2).sum(2)
        return far.min(1).mean() + far.min(0).mean()

    def rays(density: Any, colour: Any, step: Any) -> Any:
        depth = jax.nn.relu(density) * abs(step)
        seen = (1 - jnp.exp(-depth)) * jnp.exp(depth - jnp.cumsum(depth, axis=1))
        return (seen[..., None] * jax.nn.sigmoid(colour)).sum(1)

    def lattice(letters: Any, first: Any, begins: Any, words: Any, wx: Any, u: Any, ww: Any, wu: Any, link: Any) -> Any:
        n, h = len(letters), len(link)
        sigmoid, three = jax.nn.sigmoid, jnp.arange(3)
        words = words @ ww.T

        def one(s: Any, row: Any) -> Any:
            states, cells, last = s
            t, x = row
            x, s = x.reshape(4, h), (u @ last).reshape(3, h)
            at = first[t] + three
            ends, at = (at < first[t + 1])[:, None], jnp.minimum(at, len(begins) - 1)
            g = (words[at] + states[begins[at]] @ wu.T).reshape(3, 3, h)
            c = sigmoid(g[:, 0]) * jnp.tanh(g[:, 1]) + sigmoid(g[:, 2]) * cells[begins[at]]
            weight = jnp.where(ends, jnp.exp(sigmoid(x[3] + c @ link.T)), 0)
            begin = jnp.exp(sigmoid(x[0] + s[0]))
            cell = (begin * jnp.tanh(x[1] + s[1]) + (weight * c).sum(0)) / (begin + weight.sum(0))
            new = sigmoid(x[2] + s[2]) * jnp.tanh(cell)
            return (states.at[t + 1].set(new), cells.at[t + 1].set(cell), new), None

        zero = jnp.zeros((n + 1, h))
        return scan(one, (zero, zero, zero[0]), (jnp.arange(n), letters @ wx.T))[0][0]

    return {f.__name__: f for f in (beliefs, tridiagonal, warping, delta_rule, clouds, rays, lattice)}


if __name__ == "__main__":
    main(__doc__, EXAMPLE, CASES, in_jax)
