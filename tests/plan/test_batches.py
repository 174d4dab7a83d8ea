"""Products of batches that have several axes, packed before they are read."""

from __future__ import annotations

from typing import Any

import numpy as np

import relay
from relay import te
from relay.op import registry

TEXT = """#[version = "0.0.5"]
def @main(%q: Tensor[(8, 3, 49, 32), float32], %k: Tensor[(8, 3, 49, 32), float32], %v: Tensor[(8, 3, 49, 32), float32],
          %b: Tensor[(97, 3), float32]) -> float32 { sum(sin(test.biased_attention(%q, %k, %v, %b))) }"""


def biased(q: te.Tensor, k: te.Tensor, v: te.Tensor, bias: te.Tensor) -> te.Tensor:
    """Attention with a bias for each distance and head, the largest score subtracted."""
    b, h, n, d = q.shape
    a, m, s, o = te.reduce_axis(d), te.reduce_axis(n), te.reduce_axis(n), te.reduce_axis(n)

    def score(x: Any, g: Any, i: Any, j: Any) -> Any:
        return te.sum(q[x, g, i, a] * k[x, g, j, a], a) * 0.2 + bias[i - j + te.size(n) - 1, g]

    scores = te.compute((b, h, n, n), score)
    most = te.compute((b, h, n), lambda x, g, i: te.max(scores[x, g, i, m], m))
    each = te.compute((b, h, n, n), lambda x, g, i, j: te.exp(scores[x, g, i, j] - most[x, g, i]))
    total = te.compute((b, h, n), lambda x, g, i: te.sum(each[x, g, i, s], s))
    return te.compute(q.shape, lambda x, g, i, c: te.sum(each[x, g, i, o] * v[x, g, o, c], o) / total[x, g, i])


def test_what_both_ways_read_is_packed_for_a_batch_of_two_axes() -> None:
    """The axes of the batch are one where they lie behind each other, which is found after the panels are laid out."""
    registry.operator("test.biased_attention")(biased)
    try:
        module = relay.value_and_grad(relay.parse(TEXT), argnums=(1, 3))
        rng = np.random.default_rng(0)
        given = [rng.standard_normal((8, 3, 49, 32), np.float32) for _ in range(3)]
        given.append(rng.standard_normal((97, 3), np.float32))
        value, slopes = relay.compile(module)(*given)
        reference: Any = relay.evaluate(module, *given)
        wanted, wanted_slopes = reference
        np.testing.assert_allclose(np.asarray(value), np.asarray(wanted), rtol=1e-4)
        for found, each in zip(slopes, wanted_slopes, strict=True):
            np.testing.assert_allclose(np.asarray(found), np.asarray(each), rtol=1e-3, atol=2e-4)
    finally:
        registry.remove("test.biased_attention")
