"""The models of `examples/models.relay` against NumPy, interpreted and compiled, and their gradients."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from entries import Array, arguments, leaves
from models import CASES

import relay
from tests.entries_of_examples import check_gradients, check_results

MODULE = Path(__file__).parent.parent / "examples" / "models.relay"


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def silu(x: Array) -> Array:
    return x * sigmoid(x)


def mamba(
    x: Array, w_in: Array, taps: Array, b_taps: Array, w_x: Array, w_step: Array, b_step: Array, *rest: Array
) -> Array:
    decay, skip, w_out = rest
    r, s = w_step.shape[1], decay.shape[1]
    before, z = np.split(x @ w_in.T, 2, axis=1)
    padded = np.concatenate([np.zeros((taps.shape[2] - 1, len(taps))), before])
    near = [sum(padded[t + k] * taps[:, 0, k] for k in range(taps.shape[2])) for t in range(len(x))]
    u = silu(np.array(near) + b_taps)
    p = u @ w_x.T
    step, state, rows = np.log1p(np.exp(p[:, :r] @ w_step.T + b_step)), np.zeros_like(decay), []
    for t in range(len(x)):
        new = (step[t] * u[t])[:, None] * p[t, r : r + s]
        state = np.exp(-step[t][:, None] * np.exp(decay)) * state + new
        rows.append(state @ p[t, r + s :])
    return np.asarray(((np.array(rows) + u * skip) * silu(z)) @ w_out.T)


def rwkv(
    x: Array, mix_k: Array, mix_v: Array, mix_r: Array, w_k: Array, w_v: Array, w_r: Array, w_o: Array, *rest: Array
) -> Array:
    decay, first = (a.astype(np.float64) for a in rest)
    last = np.concatenate([np.zeros_like(x[:1]), x[:-1]])
    k, v, r = ((x * m + last * (1 - m)) @ w.T for m, w in ((mix_k, w_k), (mix_v, w_v), (mix_r, w_r)))
    rows = []
    for t in range(len(x)):
        # Of step i, seen from t, what has decayed since; the step itself has a weight of its own.
        weights = [np.exp(k[i] - (t - 1 - i) * np.exp(decay)) for i in range(t)] + [np.exp(first + k[t])]
        rows.append(sum(w * v[i] for i, w in enumerate(weights)) / sum(weights))
    return np.asarray((sigmoid(r) * np.array(rows)) @ w_o.T)


def paths(scores: Array, moves: Array) -> dict[tuple[int, ...], float]:
    """The score of every sequence of labels."""
    n, c = scores.shape
    return {
        p: float(sum(scores[t, p[t]] for t in range(n)) + sum(moves[i, j] for i, j in itertools.pairwise(p)))
        for p in itertools.product(range(c), repeat=n)
    }


def viterbi(scores: Array, moves: Array) -> Array:
    found = paths(scores, moves)
    return np.array(max(found, key=found.__getitem__))


def crf(scores: Array, moves: Array, labels: Array) -> Array:
    found = paths(scores, moves)
    return np.asarray(np.log(np.sum(np.exp(list(found.values())))) - found[tuple(labels.tolist())])


def ctc(logits: Array, labels: Array) -> Array:
    likely = np.exp(logits - logits.max(1, keepdims=True))
    likely /= likely.sum(1, keepdims=True)
    wanted = labels.tolist()
    used = sorted({0, *wanted})
    total = 0.0
    for path in itertools.product(used, repeat=len(logits)):
        if [c for c, _ in itertools.groupby(path) if c] == wanted:
            total += float(np.prod([likely[t, c] for t, c in enumerate(path)]))
    return np.asarray(-np.log(total))


def depths(x: Array, router: Array, w1: Array, w2: Array) -> Array:
    from math import erf

    score, out = x @ router, x.copy()
    for n in np.argsort(-score)[: (len(x) + 1) // 2]:
        h = w1 @ x[n]
        gelu = np.array([v * 0.5 * (1 + erf(v / np.sqrt(2))) for v in h])
        out[n] += sigmoid(score[n]) * (w2 @ gelu)
    return out


BY_NUMPY = {f.__name__: f for f in (mamba, rwkv, viterbi, crf, ctc, depths)}
# Of every sequence of labels: few steps.
STEPS = {"viterbi": (1, 3), "crf": (1, 3), "ctc": (1, 6)}


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    check_results(MODULE, name, CASES[name], STEPS.get(name, (1, 7)), BY_NUMPY)


def test_a_pointer_names_each_row_once() -> None:
    exe = relay.compile(relay.load_module(MODULE), entries=("pointer",))
    (order,) = leaves(exe.run("pointer", *arguments(CASES["pointer"], 9)))
    assert sorted(order.tolist()) == list(range(9))


@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.gradient])
def test_gradients(name: str) -> None:
    check_gradients(MODULE, name, CASES[name], 4)


def test_bound_to_weights() -> None:
    """Weights as constants give their sizes: the same results."""
    module = relay.load_module(MODULE)
    given = arguments(CASES["mamba"], 5)
    names = [p.name for p in module.function("mamba").params]
    bound = module.bind(dict(zip(names[1:], given[1:], strict=True)), entry="mamba")
    (found,) = leaves(relay.compile(bound, entries=("mamba",)).run("mamba", given[0]))
    np.testing.assert_allclose(found, mamba(*given), rtol=2e-3, atol=2e-4)
