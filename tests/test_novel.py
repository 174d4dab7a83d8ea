"""The programs of `examples/novel.relay` against NumPy, interpreted and compiled, and their gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from entries import Array
from novel_programs import CASES

from tests.entries_of_examples import check_gradients, check_results

MODULE = Path(__file__).parent.parent / "examples" / "novel.relay"


def beliefs(own: Array, pair: Array, src: Array, dst: Array, reverse: Array) -> Array:
    messages = np.full((len(src), own.shape[1]), 1.0)
    for _ in range(10):
        all_of = np.exp(own)
        np.multiply.at(all_of, dst, messages)
        messages = (all_of[src] / messages[reverse]) @ np.exp(pair)
        messages /= messages.sum(1, keepdims=True)
    found = np.exp(own)
    np.multiply.at(found, dst, messages)
    return np.asarray(found / found.sum(1, keepdims=True))


def tridiagonal(below: Array, diagonal: Array, above: Array, right: Array) -> Array:
    whole = np.diag(diagonal) + np.diag(below[1:], -1) + np.diag(above[:-1], 1)
    return np.linalg.solve(whole.astype("float64"), right)[::-1, None]


def warping(costs: Array) -> Array:
    n, m = costs.shape
    far = np.full((n + 1, m + 1), np.inf)
    far[0, 0] = 0
    for i in range(n):
        for j in range(m):
            far[i + 1, j + 1] = costs[i, j] - np.log(np.exp(-np.array([far[i, j], far[i, j + 1], far[i + 1, j]])).sum())
    return np.asarray(far[n, m])


def delta_rule(q: Array, k: Array, v: Array, b: Array) -> Array:
    s, out = np.zeros((q.shape[1], q.shape[1])), []
    for t in range(len(q)):
        s = s + np.outer(k[t], (v[t] - k[t] @ s) / (1 + np.exp(-b[t])))
        out.append(q[t] @ s)
    return np.array(out).reshape(q.shape)


def clouds(x: Array, y: Array) -> Array:
    far = ((x[:, None] - y[None]) ** 2).sum(2)
    return np.asarray(far.min(1).mean() + far.min(0).mean())


def rays(density: Array, colour: Array, step: Array) -> Array:
    depth = np.maximum(density, 0) * abs(step)
    seen = (1 - np.exp(-depth)) * np.exp(depth - np.cumsum(depth, axis=1))
    return np.asarray((seen[..., None] / (1 + np.exp(-colour))).sum(1))


def lattice(
    letters: Array, first: Array, begins: Array, words: Array, wx: Array, u: Array, ww: Array, wu: Array, link: Array
) -> Array:
    def sigmoid(x: Array) -> Array:
        return np.asarray(1 / (1 + np.exp(-x)))

    states, cells = [np.zeros(len(link))], [np.zeros(len(link))]
    for t, x in enumerate(letters):
        (i, g, o, out), s = np.split(wx @ x, 4), np.split(u @ states[-1], 3)
        weights = [np.exp(sigmoid(i + s[0]))]
        values = [np.tanh(g + s[1])]
        for p in range(first[t], first[t + 1]):
            a, b, c = np.split(ww @ words[p] + wu @ states[begins[p]], 3)
            values.append(sigmoid(a) * np.tanh(b) + sigmoid(c) * cells[begins[p]])
            weights.append(np.exp(sigmoid(out + link @ values[-1])))
        cells.append(np.asarray(sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)))
        states.append(sigmoid(o + s[2]) * np.tanh(cells[-1]))
    return np.array(states)


BY_NUMPY = {f.__name__: f for f in (beliefs, tridiagonal, warping, delta_rule, clouds, rays, lattice)}


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    check_results(MODULE, name, CASES[name], (1, 2, 9), BY_NUMPY)


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str) -> None:
    check_gradients(MODULE, name, CASES[name], 5)
