"""Cotangents of one operator that are made together, and those that are not."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay import te
from relay.interpreter.evaluation import evaluate
from relay.op import registry
from relay.transform import DeadCode, Gradient, JoinCotangents, PartialEvaluate
from tests.transform.support import operators, run, typed

RNG = np.random.default_rng(3)


def scored(q: te.Tensor, k: te.Tensor, v: te.Tensor) -> te.Tensor:
    """Attention whose scores are squared: sum_j (q_i k_j)^2 v_j / sum_j (q_i k_j)^2."""
    n, d = k.shape
    c, s, j = te.reduce_axis(d), te.reduce_axis(n), te.reduce_axis(n)
    score = te.compute((q.shape[0], n), lambda i, j: te.sum(q[i, c] * k[j, c], c))
    weight = te.compute(score.shape, lambda i, j: score[i, j] * score[i, j])
    total = te.compute((q.shape[0],), lambda i: te.sum(weight[i, s], s))
    return te.compute((q.shape[0], v.shape[1]), lambda i, o: te.sum(weight[i, j] / total[i] * v[j, o], j))


def registered() -> str:
    name = "test.scored"
    if not registry.exists(name):
        relay.operator(name)(scored)
    return name


@pytest.mark.parametrize("size", ["64", "n"])
def test_scores_are_made_once(size: str) -> None:
    own = "" if size == "64" else "[n: Dim]"
    params = ", ".join(f"%{x}: Tensor[({size}, 64), float64]" for x in "qkv")
    text = f"def @main{own}({params}) {{ {registered()}(%q, %k, %v) }}"
    module = relay.grad(typed(text), argnums=(0, 1, 2))
    before = run(module, Gradient(), PartialEvaluate(strict=False), DeadCode())
    after = run(before, JoinCotangents())
    assert sum("vjp" in o for o in operators(after)) == 1
    inputs = [RNG.uniform(0.5, 1.5, (64, 64)) for _ in range(3)]
    found: tuple[object, ...] = (evaluate(before, *inputs), evaluate(after, *inputs))
    np.testing.assert_allclose(np.asarray(found[0]), np.asarray(found[1]), rtol=1e-10, atol=1e-12)


def test_of_some_operands_only() -> None:
    params = ", ".join(f"%{x}: Tensor[(64, 64), float64]" for x in "qkv")
    module = relay.grad(typed(f"def @main({params}) {{ {registered()}(%q, %k, %v) }}"), argnums=(0, 2))
    after = run(module, Gradient(), PartialEvaluate(strict=False), DeadCode(), JoinCotangents())
    assert [o for o in operators(after) if "vjp" in o] == [f"{registered()}.vjp0_2"]


@pytest.mark.parametrize(
    ("params", "body"),
    [
        ("%x: Tensor[(32, 64), float64], %w: Tensor[(48, 64), float64]", "nn.dense(%x, %w)"),
        ("%x: Tensor[(4, 3, 9, 9), float64], %w: Tensor[(5, 3, 3, 3), float64]", "nn.conv2d(%x, %w, strides=(2, 2))"),
        (
            "%x: Tensor[(32, 64), float64], %g: Tensor[(64,), float64], %b: Tensor[(64,), float64]",
            "nn.layer_norm(%x, %g, %b)",
        ),
    ],
)
def test_what_shares_nothing_dear_stays_apart(params: str, body: str) -> None:
    module = relay.grad(typed(f"def @main({params}) {{ sum({body} * {body}) }}"))
    before = run(module, Gradient(), PartialEvaluate(strict=False), DeadCode())
    after = run(before, JoinCotangents())
    assert operators(after) == operators(before)
