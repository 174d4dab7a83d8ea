"""The example programs do what their first comment says, in the interpreter and compiled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relay
from tests.batching.programs import notes
from tests.generator.compare import difference

EXAMPLES = Path(__file__).parent.parent / "examples"
Array = np.ndarray[Any, np.dtype[Any]]


def both(name: str, *args: object) -> Any:
    """The result of an example, the same from the interpreter and compiled."""
    module = relay.load_module(EXAMPLES / name)
    expected = relay.evaluate(module, *args)
    different = difference(expected, relay.compile(module)(*args))
    assert different is None, different
    return expected


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def test_treelstm() -> None:
    d, h = 3, 5
    module = relay.load_module(EXAMPLES / "treelstm.relay")
    t = module.adt("Tree2")
    words = [normal(1, d) + n for n in range(3)]
    zero, none = np.zeros((1, h), np.float32), np.zeros((1, d), np.float32)
    wx, wh, b = normal(4 * h, d), normal(4 * h, h), normal(4 * h)

    def gates(x: Array, state: Array) -> list[Array]:
        return np.split(x @ wx.T + state @ wh.T + b, 4, axis=1)

    def leaf(x: Array) -> tuple[Array, Array]:
        i, _, o, u = gates(x, zero)
        c = sigmoid(i) * np.tanh(u)
        return sigmoid(o) * np.tanh(c), c

    def node(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        i, f, o, u = gates(none, left[0] + right[0])
        c = sigmoid(i) * np.tanh(u) + sigmoid(f) * (left[1] + right[1])
        return sigmoid(o) * np.tanh(c), c

    tree = t.Node(t.Node(t.Leaf(words[0]), t.Leaf(words[1])), t.Leaf(words[2]))
    expected = node(node(leaf(words[0]), leaf(words[1])), leaf(words[2]))[0]
    assert np.allclose(both("treelstm.relay", tree, zero, none, wx, wh, b), expected, atol=1e-5)


def test_bitree() -> None:
    d, h = 3, 4
    module = relay.load_module(EXAMPLES / "bitree.relay")
    t = module.adt("Tree")
    wx, wl, wr, ul, ur = normal(h, d), normal(h, h), normal(h, h) + 0.1, normal(h, h) - 0.1, normal(h, h) * 0.5
    words = [normal(1, d) * n for n in range(1, 6)]
    nothing = np.zeros((1, d), np.float32)

    def tree(n: int, begin: int = 0) -> Any:
        if n == 1:
            return t.Leaf(words[begin])
        return t.Node(nothing, tree(n // 2, begin), tree(n - n // 2, begin + n // 2))

    def up(v: Any) -> Any:
        if len(v.fields) == 1:
            return (np.tanh(np.asarray(v.fields[0]) @ wx.T),)
        left, right = up(v.fields[1]), up(v.fields[2])
        return (np.tanh(left[0] @ wl.T + right[0] @ wr.T), left, right)

    def down(v: Any, above: Array) -> list[Array]:
        here = np.tanh(v[0] + above)
        return [here] if len(v) == 1 else [here, *down(v[1], here @ ul.T), *down(v[2], here @ ur.T)]

    def states(v: Any) -> list[Array]:
        first = np.asarray(v.fields[0])
        return [first, *(s for f in v.fields[1:] for s in states(f))]

    above = normal(1, h)
    found = states(both("bitree.relay", tree(5), above, wx, wl, wr, ul, ur))
    assert len(found) == 9
    for a, b in zip(found, down(up(tree(5)), above), strict=True):
        assert np.allclose(a, b, atol=1e-5)
    by_level = (m for n, m in notes(module).items() if n in ("up", "down"))
    assert list(by_level) == ["by level"] * 2


@pytest.mark.parametrize(("nodes", "edges"), [(9, 30), (5, 0), (1, 3)])
def test_graph_attention(nodes: int, edges: int) -> None:
    rng = np.random.default_rng(nodes)
    src, dst = (rng.integers(0, nodes, edges) for _ in range(2))
    w1, from1, to1, w2, from2, to2 = (
        normal(64, 32),
        normal(4, 16),
        -normal(4, 16),
        normal(64, 64) / 8,
        normal(4, 16),
        normal(4, 16),
    )

    def layer(x: Array, w: Array, out: Array, to: Array) -> Array:
        h = (x @ w.T).reshape(-1, 4, 16)
        result = np.zeros_like(h)
        for n in range(nodes):
            into = src[dst == n]
            score = (h[into] * out).sum(2) + (h[n] * to).sum(1)
            score = np.where(score > 0, score, 0.2 * score)
            weight = np.exp(score - score.max(0, initial=-1e9))
            result[n] = (weight[:, :, None] * h[into]).sum(0) / np.maximum(weight.sum(0), 1e-9)[:, None]
        return np.asarray(result.reshape(-1, 64))

    x = normal(nodes, 32) / 4
    expected = layer(np.maximum(layer(x, w1, from1, to1), 0), w2, from2, to2)
    found = both("graph_attention.relay", x, src, dst, w1, from1, to1, w2, from2, to2)
    assert np.allclose(found, expected, atol=1e-4)


def test_rnn() -> None:
    d, h = 4, 3
    xs = [normal(1, d) * n for n in range(4)]
    w, u, b = normal(h, d), normal(h, h), normal(h)
    state = start = np.zeros((1, h), np.float32)
    for x in xs:
        state = np.tanh(x @ w.T + state @ u.T + b)
    assert np.allclose(both("rnn.relay", xs, start, w, u, b), state, atol=1e-5)


@pytest.mark.parametrize(("n", "steps"), [(1, 0), (6, 8), (27, 111)])
def test_collatz(n: int, steps: int) -> None:
    assert both("collatz.relay", np.int64(n)) == steps


def test_newton() -> None:
    a = np.array([1.0, 2.0, 9.0, 100.0, 12345.0], np.float32)
    roots, rounds = both("newton.relay", a, np.float32(1e-3))
    assert np.allclose(roots, np.sqrt(a), rtol=1e-5) and 3 < rounds < 20


def test_counter() -> None:
    squares, third, total = both("counter.relay", np.array([5, 7, 5, 7, 7], np.int32))
    assert squares == [1, 4, 9] and third == 9 and total == 15


def test_codebook() -> None:
    """The loss, and the gradient with three constants in it, as they are written down by hand."""
    n, d, h, k = 7, 5, 4, 6
    x, w_in, book, w_out = normal(n, d), normal(h, d), normal(k, h) / 2, normal(d, h)
    z = np.tanh(x @ w_in.T)
    of = ((z[:, None] - book) ** 2).sum(2).argmin(1)
    q = book[of]
    y = q @ w_out.T
    expected = ((y - x) ** 2).mean() + 1.25 * ((z - q) ** 2).mean()
    assert len(set(of)) > 1 and np.allclose(both("codebook.relay", x, w_in, book, w_out), expected, rtol=1e-4)

    to_y = 2 * (y - x) / x.size
    to_z = to_y @ w_out + 0.5 * (z - q) / z.size
    to_book = np.zeros_like(book)
    np.add.at(to_book, of, 2 * (q - z) / z.size)
    slopes = [(to_z * (1 - z * z)).T @ x, to_book, to_y.T @ q]
    gradient = relay.grad(relay.load_module(EXAMPLES / "codebook.relay"), (1, 2, 3))
    found: Any
    for found in (relay.compile(gradient)(x, w_in, book, w_out), relay.evaluate(gradient, x, w_in, book, w_out)):
        for a, b in zip(found, slopes, strict=True):
            assert np.allclose(a, b, rtol=1e-3, atol=1e-5)
