"""Sums of guarded products: what the guard does not ask about is a product of its own, before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import relay
from relay import te
from relay.ir.diagnostics import RelayError
from relay.ir.dim import Dim, DimVar, as_dim
from relay.op import registry
from relay.plan.graph import te_graph
from relay.plan.guarded import before_guards
from tests.plan.harness import check, primitive, tensor

V, W = DimVar("n"), DimVar("d")
N, D = as_dim(V), as_dim(W)


@pytest.fixture
def declare() -> Iterator[Callable[..., object]]:
    yield lambda define: registry.operator("guarded.op")(define)
    registry.remove("guarded.op")


def pairs(v: te.Tensor, x: te.Tensor) -> te.Tensor:
    """The pairs of a factorisation machine."""
    n, k = v.shape
    i, j, f = te.reduce_axis(n), te.reduce_axis(n), te.reduce_axis(k)
    return te.compute(
        (x.shape[0],),
        lambda b: te.sum(te.select(i < j, v[i, f] * v[j, f] * x[b, i] * x[b, j], 0.0), (i, j, f)),
    )


def blocks(x: te.Tensor, w: te.Tensor, row: te.Tensor, column: te.Tensor) -> te.Tensor:
    """A matrix of square blocks, which two tensors put where they belong, times each row of another."""
    side: Any = w.shape[1]
    t, k = te.reduce_axis(w.shape[0]), te.reduce_axis(side)

    def element(z: Any, i: Any) -> Any:
        here = te.cast(row[t], "int64").equal(i // side)
        return te.sum(te.select(here, w[t, i % side, k] * x[z, te.cast(column[t], "int64") * side + k], 0.0), (t, k))

    return te.compute(x.shape, element)


@pytest.mark.parametrize(("n", "d"), [(24, 16), (N, 16), (N, D)])
def test_pairs_are_one_matrix_for_all(declare: Callable[..., object], n: Dim, d: Dim) -> None:
    declare(pairs)
    given = [tensor((n, d)), tensor((32, n))]
    plan = check(primitive(given, lambda m, *x: m("guarded.op", *x)), {V: 1, W: 1}, {V: 33, W: 7}, tolerance=1e-4)
    (product,) = plan.products
    assert (product.rows, product.columns) == (n, n)


def test_what_is_excluded_is_not_used(declare: Callable[..., object]) -> None:
    declare(pairs)
    module = relay.parse("""#[version = "0.0.5"]
def @main(%v: Tensor[(40, 8), float32], %x: Tensor[(16, 40), float32]) { guarded.op(%v, %x) }""")
    rng = np.random.default_rng(0)
    v, x = rng.standard_normal((40, 8), np.float32), rng.standard_normal((16, 40), np.float32)
    x[3, 5], v[39] = np.inf, 0.0
    found, wanted = relay.compile(module)(v, x), relay.evaluate(module, v, x)
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sizes", ["", "[n: Dim, g: Dim, t: Dim, b: Dim]"])
def test_blocks_are_multiplied_once_and_put_where_they_belong(declare: Callable[..., object], sizes: str) -> None:
    declare(blocks)
    n, g, t, b = 8, 6, 20, 16
    text = f"""#[version = "0.0.5"]
def @main{sizes}(%x: Tensor[(n, g*b), float32], %w: Tensor[(t, b, b), float32], %i: Tensor[(t,), int32], %j: Tensor[(t,), int32],
    %l: Tensor[(g,), float32]) {{ guarded.op(%x, %w, %i, %j) }}"""
    if not sizes:
        text = (
            text.replace("g*b", str(g * b)).replace("(n,", f"({n},").replace("(t,", f"({t},").replace("(g,", f"({g},")
        )
        text = text.replace("b, b)", f"{b}, {b})")
    exe = relay.compile(relay.parse(text))
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((n, g * b), np.float32), rng.standard_normal((t, b, b), np.float32)
    i, j = (rng.integers(0, g, t).astype(np.int32) for _ in range(2))
    i[3], j[3] = -1, 1000  # belongs nowhere, so nobody asks what it reads
    like = np.zeros(g, np.float32)
    wanted = np.zeros((n, g, b), np.float32)
    for each in range(t):
        if i[each] >= 0:
            wanted[:, i[each]] += x.reshape(n, g, b)[:, j[each]] @ w[each].T
    np.testing.assert_allclose(np.asarray(exe(x, w, i, j, like)), wanted.reshape(n, -1), rtol=1e-3, atol=1e-3)
    j[4] = g
    with pytest.raises(RelayError):
        exe(x, w, i, j, like)


def test_what_the_guard_asks_for_all_elements_stays(declare: Callable[..., object]) -> None:
    """A sum under a mask of its result has nothing that is computed again."""

    def masked(q: te.Tensor, k: te.Tensor) -> te.Tensor:
        d = te.reduce_axis(q.shape[1])
        return te.compute((q.shape[0], k.shape[0]), lambda i, j: te.sum(te.select(j <= i, q[i, d] * k[j, d], 0.0), d))

    declare(masked)
    graph = te_graph(primitive([tensor((N, 16)), tensor((N, 16))], lambda m, *x: m("guarded.op", *x)))
    assert before_guards(graph).outputs == graph.outputs
