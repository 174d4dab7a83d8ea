"""Sums of several products as a product of each, and dear parts that not all axes move."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from novel_definitions import complex_product, triangle

from relay import te
from relay.ir.dim import DimVar, as_dim
from relay.op import registry
from relay.plan.graph import te_graph
from relay.plan.lifted import lifted
from relay.plan.terms import term_by_term
from tests.plan.harness import check, primitive, tensor

V = DimVar("n")
N = as_dim(V)
NONE = frozenset[int]()


@pytest.fixture
def declare() -> Iterator[Callable[..., object]]:
    yield lambda define: registry.operator("terms.op")(define)
    registry.remove("terms.op")


def polynomial(x: te.Tensor, c: te.Tensor, w: te.Tensor) -> te.Tensor:
    """``w``, of three coefficients for each pair, at ``x``, times what its row has."""
    k = te.reduce_axis(x.shape[1])

    def element(i: Any, j: Any) -> Any:
        p = (
            w[k, j, 0] * x[i, k]
            + (w[k, j, 1] * x[i, k] - w[k, j, 2] * c[i]) * (x[i, k] / c[i])
            - w[k, j, 0] * x[i, k] * c[i]
        )
        return te.sum(p * c[i], k)

    return te.compute((x.shape[0], w.shape[1]), element)


@pytest.mark.parametrize(("define", "operands", "products"), [
    (complex_product, [(N, 24, 2), (24, 40, 2)], 4),
    (polynomial, [(N, 24), (N,), (24, 40, 3)], 3),
])  # fmt: skip
def test_each_term_is_a_product(
    declare: Callable[..., object], define: Callable[..., te.Tensor], operands: list[Any], products: int
) -> None:
    declare(define)
    fn = primitive([tensor(s) for s in operands], lambda m, *x: m("terms.op", *x))
    plan = check(fn, {V: 1}, {V: 30}, tolerance=1e-3)
    assert len(plan.products) == products, "what occurs twice is made once"


def turned(x: te.Tensor) -> te.Tensor:
    """Neighbours turned by an angle that rows and columns have, but not heads."""

    def element(i: Any, h: Any, e: Any) -> Any:
        angle = te.cast(i, "float32") * te.exp(te.cast(e, "float32") * -0.3)
        return x[i, h, e] * te.cos(angle) + x[i, h, te.size(x.shape[2]) - 1 - e] * te.sin(angle)

    return te.compute(x.shape, element)


@pytest.mark.parametrize(("define", "operands", "parts"), [
    (triangle, [(N, 9, 20), (N, 9, 20)], 1),
    (turned, [(N, 5, 24)], 2),
])  # fmt: skip
def test_dear_parts_that_not_all_axes_move_are_stages(
    declare: Callable[..., object], define: Callable[..., te.Tensor], operands: list[Any], parts: int
) -> None:
    declare(define)
    fn = primitive([tensor(s) for s in operands], lambda m, *x: m("terms.op", *x))
    graph = te_graph(fn)
    assert len(te.stages(lifted(graph, NONE, True).outputs)) == len(te.stages(graph.outputs)) + parts
    check(fn, {V: 1}, {V: 30}, tolerance=1e-4)


def test_dear_places_stay_places(declare: Callable[..., object]) -> None:
    """Where a value goes is made once for all rows, and gone to: no part of it is made for every element that it may be."""

    def define(x: te.Tensor, p: te.Tensor) -> te.Tensor:
        k = te.reduce_axis(x.shape[1])
        place = te.cast(te.floor(te.tanh(p[k]) * 9.0), "int64") + 9
        return te.compute(
            (x.shape[0], 18), lambda i, z: te.sum(te.select((z - place).equal(0), x[i, k] / te.exp(p[k]), 0.0), k)
        )

    declare(define)
    fn = primitive([tensor((N, 40)), tensor((40,))], lambda m, *x: m("terms.op", *x))
    graph = te_graph(fn)
    assert len(te.stages(lifted(graph, NONE, True).outputs)) == len(te.stages(graph.outputs)) + 2
    assert "scatter" in check(fn, {V: 1}, {V: 30}, tolerance=1e-4).variant


def test_what_is_no_sum_of_products_stays(declare: Callable[..., object]) -> None:
    def define(x: te.Tensor) -> te.Tensor:
        k = te.reduce_axis(x.shape[1])
        return te.compute((x.shape[0],), lambda i: te.sum(x[i, k] * x[i, k] + x[i, k], k))

    declare(define)
    graph = te_graph(primitive([tensor((N, 64))], lambda m, x: m("terms.op", x)))
    assert term_by_term(graph, NONE).outputs == graph.outputs
