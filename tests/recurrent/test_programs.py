"""The example programs with control flow that the data decides, each against NumPy, interpreted and compiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import relay
from relay.ir.module import Module
from tests.recurrent.support import Array, both, normal
from tests.recurrent.test_library import close, gru_cell, lstm_cell, rnn_cell, run

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def program(name: str) -> Module:
    return relay.load_module(EXAMPLES / f"{name}.relay")


def softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    out: Array = e / e.sum(axis=axis, keepdims=True)
    return out


@pytest.mark.parametrize("t", [1, 6])
def test_recurrent(t: int) -> None:
    n, d, h = 2, 3, 4
    module, xs, start = program("recurrent"), normal(t, n, d), normal(n, h)
    rnn = (normal(h, d), normal(h, h), normal(h))
    gru = (normal(3 * h, d), normal(3 * h, h), normal(3 * h), normal(3 * h, seed=1))
    lstm = (normal(4 * h, d), normal(4 * h, h), normal(4 * h))
    second = (normal(4 * h, h, seed=1), normal(4 * h, h, seed=2), normal(4 * h, seed=1))
    close(both(module, xs, start, *rnn, entry="rnn_outputs"), run(rnn_cell(*rnn), xs, start, range(t))[0])
    close(both(module, xs, start, *gru, entry="gru_outputs"), run(gru_cell(*gru), xs, start, range(t))[0])
    below = run(lstm_cell(*lstm), xs, (start, start), range(t))[0]
    close(both(module, xs, start, *lstm, entry="lstm_outputs"), below)
    above = run(lstm_cell(*second), below, (start, start), range(t))[0]
    close(both(module, xs, start, *lstm, *second, entry="lstm2_outputs"), above)
    second_rnn = (normal(h, h, seed=1), normal(h, h, seed=2), normal(h, seed=1))
    above = run(rnn_cell(*second_rnn), run(rnn_cell(*rnn), xs, start, range(t))[0], start, range(t))[0]
    close(both(module, xs, start, *rnn, *second_rnn, entry="rnn2_outputs"), above)
    second_gru = (normal(3 * h, h, seed=1), normal(3 * h, h, seed=2), normal(3 * h, seed=1), normal(3 * h, seed=3))
    above = run(gru_cell(*second_gru), run(gru_cell(*gru), xs, start, range(t))[0], start, range(t))[0]
    close(both(module, xs, start, *gru, *second_gru, entry="gru2_outputs"), above)


@pytest.mark.parametrize("first", range(5))
def test_charrnn(first: int) -> None:
    c, letters, h, most, end = 3, 7, 5, 12, 6
    size = c + letters + h
    weights = {
        "i2h": normal(h, size) * 3, "bh": normal(h), "i2o": normal(letters, size) * 3, "bo": normal(letters),
        "o2o": normal(letters, h + letters) * 3, "bp": normal(letters), "eye": np.eye(letters, dtype=np.float32),
    }  # fmt: skip
    category, state = np.eye(c, dtype=np.float32)[[first % c]], np.zeros((1, h), np.float32)
    names: list[int] = []
    letter, hidden = first, state
    while len(names) < most:
        x = np.concatenate((category, weights["eye"][[letter]], hidden), axis=1)
        hidden = x @ weights["i2h"].T + weights["bh"]
        output = x @ weights["i2o"].T + weights["bo"]
        scores = np.concatenate((hidden, output), axis=1) @ weights["o2o"].T + weights["bp"]
        letter = int(scores.argmax())
        if letter == end:
            break
        names.append(letter)
    module = program("charrnn").bind(weights)
    found = both(module, category, np.int64(first), np.int64(end), np.int64(most), state)
    assert found.tolist() == names


def test_dagrnn() -> None:
    n, d, h = 9, 3, 4
    rng = np.random.default_rng(0)
    before = [sorted(rng.choice(t, size=min(t, int(rng.integers(0, 4))), replace=False)) for t in range(n)]
    first = np.cumsum([0, *(len(b) for b in before)])
    edges = np.array([e for b in before for e in b], np.int64)
    xs, w, u, b = normal(n, d), normal(h, d), normal(h, h), normal(h)
    states = np.zeros((n, h), np.float32)
    for t in range(n):
        states[t] = np.tanh(xs[t] @ w.T + b + states[before[t]].sum(axis=0) @ u.T)
    module = program("dagrnn").bind({"w": w, "u": u, "b": b})
    close(both(module, xs, first, edges), states)


V, E, H, END = 11, 3, 4, 2


def decoder() -> dict[str, Array]:
    return {
        "embedding": normal(V, E) * 4, "w": normal(3 * H, E + H) * 2, "u": normal(3 * H, H) * 2, "b": normal(3 * H),
        "c": normal(3 * H, seed=1), "out": normal(V, H) * 4, "bias": normal(V),
    }  # fmt: skip


def decode(words: Array, state: Array, memory: Array) -> tuple[Array, Array]:
    p = decoder()
    weights = softmax((memory * state[None]).sum(axis=2), axis=0)
    context = (weights[:, :, None] * memory).sum(axis=0)
    x = np.concatenate((p["embedding"][words], context), axis=1)
    state = gru_cell(p["w"], p["u"], p["b"], p["c"])(x, state)
    return np.log(softmax(state @ p["out"].T + p["bias"], axis=1)), state


@pytest.mark.parametrize("start", [0, 1, 5])
def test_greedy(start: int) -> None:
    memory, state = normal(6, 1, H) * 3, normal(1, H)
    module = program("seq2seq").bind(decoder(), entry="main")
    found = both(module, np.array([start]), np.int64(END), np.int64(9), memory, state)
    words: list[int] = []
    word = start
    while len(words) < 9 and word != END:
        scores, state = decode(np.array([word]), state, memory)
        memory = np.concatenate((memory, state[None]))
        word = int(scores.argmax())
        words.append(word)
    assert found.tolist() == words


@pytest.mark.parametrize("start", [0, 1, 5])
def test_beam_search(start: int) -> None:
    memory, state = np.repeat(normal(6, 1, H) * 3, 4, axis=1), np.repeat(normal(1, H), 4, axis=0)
    scores = np.array([0, -np.inf, -np.inf, -np.inf], np.float32)
    ending = np.full((1, V), -np.inf, np.float32)
    ending[0, END] = 0
    module = program("seq2seq").bind(decoder(), entry="beam")
    last = np.full(4, start)
    found, found_scores = both(module, last, scores, np.int64(END), np.int64(7), memory, state, ending, entry="beam")
    words = np.zeros((0, 4), np.int64)
    for _ in range(7):
        more, new = decode(last, state, memory)
        total = (scores[:, None] + np.where((last == END)[:, None], ending, more)).reshape(-1)
        best = np.argsort(-total, kind="stable")[:4]
        parents, last, scores = best // V, best % V, total[best]
        memory = np.concatenate((memory, new[None]))[:, parents]
        state, words = new[parents], np.concatenate((words[:, parents], last[None]))
        if (last == END).all():
            break
    assert np.array_equal(found, words)
    np.testing.assert_allclose(found_scores, scores, atol=1e-4)


@pytest.mark.parametrize("enough", [0.0, 0.2, 0.3, 0.4, 1.1])
def test_early_exit(enough: float) -> None:
    d, c = 8, 5
    weights: dict[str, Array] = {}
    for k in range(1, 7):
        weights |= {f"w{k}": normal(d, d, seed=k), f"b{k}": normal(d, seed=k), f"c{k}": normal(c, d, seed=k)}
    x = normal(1, d)
    state = x
    for k in range(1, 7):
        state = np.maximum(state @ weights[f"w{k}"].T + weights[f"b{k}"], 0) + state
        p = softmax(state @ weights[f"c{k}"].T, axis=1)
        if p.max() >= enough:
            break
    found, blocks = both(program("earlyexit").bind(weights), x, np.float32(enough))
    close(found, p)
    assert blocks == k


@pytest.mark.parametrize("n", [0, 1, 12])
def test_experts(n: int) -> None:
    d, g = 4, 6
    weights: dict[str, Array] = {"gate": normal(8, d) * 4}
    for k in range(8):
        weights |= {f"u{k}": normal(g, d, seed=k), f"d{k}": normal(d, g, seed=k)}
    xs = normal(n, d)
    p = softmax(xs @ weights["gate"].T, axis=1) if n else np.zeros((0, 8), np.float32)
    expected = np.zeros((n, d), np.float32)
    for t in range(n):
        k = int(p[t].argmax())
        expected[t] = np.maximum(xs[t] @ weights[f"u{k}"].T, 0) @ weights[f"d{k}"].T * p[t, k]
    close(both(program("experts").bind(weights), xs), expected)
