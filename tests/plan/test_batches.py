"""Products of batches: with several axes, packed before they are read; and of which the result's last axis numbers the products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay import te
from relay.ir.dim import Dim, DimVar, as_dim, dim_add
from relay.op import registry
from tests.plan.harness import check, primitive, tensor

V, W = DimVar("n"), DimVar("w")
N, WIDTH = as_dim(V), as_dim(W)

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


def locally_connected(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    """Windows with weights of their own for each place."""
    h, wd, o, c, kh, kw = w.shape
    k, r, s = te.reduce_axis(c), te.reduce_axis(kh), te.reduce_axis(kw)
    return te.compute(
        (x.shape[0], o, h, wd), lambda z, e, i, j: te.sum(x[z, k, i + r, j + s] * w[i, j, e, k, r, s], (k, r, s))
    )


def heads_last(q: te.Tensor, k: te.Tensor) -> te.Tensor:
    d = te.reduce_axis(q.shape[1])
    return te.compute((q.shape[0], k.shape[0], q.shape[2]), lambda i, j, h: te.sum(q[i, d, h] * k[j, d, h], d))


@pytest.mark.parametrize("width", [6, WIDTH])
@pytest.mark.parametrize("rows", [5, N])
def test_a_layer_with_weights_for_each_place_is_a_product_for_each(rows: Dim, width: Dim) -> None:
    registry.operator("test.local")(locally_connected)
    try:
        given = [tensor((rows, 8, 6, dim_add(width, 2))), tensor((4, width, 16, 8, 3, 3))]
        fn = primitive(given, lambda m, x, w: m("nn.relu", m("test.local", x, w)))
        (product,) = check(fn, {V: 1, W: 6}, {V: 5, W: 9}, tolerance=1e-4).products
        assert (product.rows, product.columns) == (rows, 16)
        for n in range(2):
            grown = [*given, tensor((rows, 16, 4, width))]
            fn = primitive(grown, lambda m, *x, n=n: m(f"test.local.vjp{n}", *x))
            check(fn, {V: 1, W: 6}, {V: 3, W: 7}, tolerance=1e-4)
    finally:
        registry.remove("test.local")


def test_operands_that_run_along_the_last_axis_are_read_along_it() -> None:
    registry.operator("test.heads")(heads_last)
    try:
        fn = primitive([tensor((6, 16, 32)), tensor((5, 16, 32))], lambda m, q, k: m("test.heads", q, k))
        assert not check(fn, {}).products
    finally:
        registry.remove("test.heads")
