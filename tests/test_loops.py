"""The loops of `examples/loops.relay` against NumPy, interpreted and compiled, and their gradients."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from entries import Array, arguments, leaves
from loops import CASES

import relay
from tests.entries_of_examples import check_gradients, check_results

MODULE = Path(__file__).parent.parent / "examples" / "loops.relay"


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def selective_scan(x: Array, step: Array, a: Array, b: Array, c: Array) -> Array:
    h, out = np.zeros_like(a), []
    for t in range(len(x)):
        d = step[t][:, None]
        h = np.exp(d * a) * h + d * x[t][:, None] * b[t]
        out.append(h @ c[t])
    return np.array(out)


def retention(q: Array, k: Array, v: Array) -> Array:
    age = np.subtract.outer(np.arange(len(q)), np.arange(len(q)))
    weights = np.where(age >= 0, 0.95 ** np.maximum(age, 0), 0.0)
    return np.asarray((q @ k.T * weights) @ v)


def all_paths(scores: Array, moves: Array) -> Array:
    paths = np.zeros(scores.shape[1])
    for row in scores:
        paths = np.log(np.exp(paths) @ np.exp(moves)) + row
    return np.asarray(np.log(np.exp(paths).sum()))


def memory(xs: Array, key: Array, erase: Array, first: Array) -> Array:
    m, out = first, []
    for x in xs:
        k, e = key @ x, sigmoid(erase @ x)
        near = np.exp(5 * (m @ k) / np.sqrt((m * m).sum(1) * (k @ k) + 1e-6))
        w = (near / near.sum())[:, None]
        out.append((w * m).sum(0))
        m = m * (1 - w * e) + w * np.tanh(k)
    return np.array(out)


def words_to_come(words: Array, start: Array, table: Array, u: Array, out: Array) -> Array:
    h, loss = start, 0.0
    for word, following in itertools.pairwise(words):
        h = np.tanh(table[word] + h @ u.T)
        scores = (h @ out.T)[0]
        loss -= scores[following] - np.log(np.exp(scores).sum())
    return np.asarray(loss)


def tags(xs: Array, start: Array, u: Array, out: Array) -> Array:
    h, rows = start, []
    for x in xs:
        h = np.tanh(x + h @ u.T)
        scores = np.exp((h @ out.T)[0])
        rows.append(scores / scores.sum())
    return np.array(rows)


def looks_back(xs: Array, first: Array, ask: Array, own: Array, seen: Array) -> Array:
    states = [first[0]]
    for x in xs:
        s, last = np.array(states), states[-1]
        scores = np.exp(s @ (ask @ last))
        states.append(np.tanh(x + own @ last + seen @ (scores @ s / scores.sum())))
    return np.array(states)


def known_words(words: Array, start: Array, table: Array, w: Array) -> Array:
    h = start
    for word in words:
        h = np.tanh(h @ w.T + table[word]) if word > 0 else h
    return h


def centres(x: Array, first: Array) -> Array:
    c = first
    for _ in range(10):
        mine = ((x[:, None] - c) ** 2).sum(2).argmin(1)
        c = np.array([x[mine == n].sum(0) / (np.sum(mine == n) + 1e-6) for n in range(len(c))])
    return c


def kalman(ys: Array, f: Array, h: Array, q: Array, r: Array) -> Array:
    x, p, likely = np.zeros((6, 1)), q, 0.0
    for y in ys:
        x, p = f @ x, f @ p @ f.T + q
        off, spread = y[:, None] - h @ x, h @ p @ h.T + r
        gain = p @ h.T @ np.linalg.inv(spread)
        likely -= 0.5 * ((off.T @ np.linalg.solve(spread, off)).item() + np.linalg.slogdet(spread)[1])
        x, p = x + gain @ off, p - gain @ h @ p
    return np.asarray(likely)


def edit_distance(a: Array, b: Array) -> Array:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a):
        last, row = row, [i + 1]
        for j, y in enumerate(b):
            row.append(min(last[j] + int(x != y), last[j + 1] + 1, row[j] + 1))
    return np.asarray(row[-1])


BY_NUMPY = {
    f.__name__: f
    for f in (
        selective_scan,
        retention,
        all_paths,
        memory,
        known_words,
        looks_back,
        words_to_come,
        tags,
        centres,
        kalman,
        edit_distance,
    )
} | {"cholesky": np.linalg.cholesky}


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    check_results(MODULE, name, CASES[name], (1, 6), BY_NUMPY)


def test_what_is_iterated_until_it_is_right() -> None:
    exe = relay.compile(relay.load_module(MODULE), entries=("transport", "solve"))
    plan, _ = leaves(exe.run("transport", *arguments(CASES["transport"], 8)))
    np.testing.assert_allclose(plan.sum(0), 1.0, rtol=1e-3)
    a, b = arguments(CASES["solve"], 12)
    found, steps = leaves(exe.run("solve", a, b))
    np.testing.assert_allclose(a @ found, b, atol=1e-3)
    assert 1 < int(steps) < 100


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.gradient])
def test_gradients(name: str) -> None:
    check_gradients(MODULE, name, CASES[name], 3)
