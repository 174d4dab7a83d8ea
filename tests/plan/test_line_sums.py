"""Sums over lines that other stages go through as well are no products of a vector and a matrix."""

from __future__ import annotations

import pytest

from relay.ir.dim import Dim, DimVar, as_dim
from relay.ir.expr import Expr
from relay.loop.ir import Branch, For
from relay.loop.walk import statements
from relay.plan.kernel_plan import make_plan
from tests.plan.harness import ZEN4, Maker, check, fresh_name, primitive, tensor

V = DimVar("n")
N = as_dim(V)


def cotangent(m: Maker, dy: Expr, gamma: Expr) -> Expr:
    """A norm's way back in short: what is left of each line without its mean weighted by ``gamma``."""
    scaled = m("multiply", dy, gamma)
    return m("subtract", scaled, m("mean", scaled, axis=(1,), keepdims=True))


def weighted(m: Maker, dy: Expr, gamma: Expr) -> Expr:
    """Sums of products, and what is left of each line without them."""
    sums = m("nn.dense", dy, m("expand_dims", gamma, axis=0))
    return m("subtract", m("tanh", dy), sums)


@pytest.mark.parametrize("build", [cotangent, weighted])
@pytest.mark.parametrize("rows", [N, 7])
def test_sums_over_lines_that_something_else_goes_through_are_made_line_by_line(build: object, rows: object) -> None:
    fn = primitive([tensor((rows, 300)), tensor((300,))], build)  # type: ignore[arg-type]
    plan = check(fn, *([{V: 1}, {V: 5}, {V: 33}] if rows != 7 else [{}]))
    assert "matrix" not in plan.variant and plan.kernel.shared_bytes == 0


@pytest.mark.parametrize("width", [768, as_dim(DimVar("w"))])
def test_the_gradient_of_a_norm_goes_through_its_rows_once(width: Dim) -> None:
    matrix, vector = tensor((N, width)), tensor((width,))

    def build(m: Maker, x: Expr, g: Expr, b: Expr, c: Expr, y: Expr) -> Expr:
        return m("nn.layer_norm.vjp0", x, g, b, m("multiply", c, y, ty=matrix), ty=matrix)

    plan = make_plan(primitive([matrix, vector, vector, matrix, matrix], build), ZEN4, name=fresh_name())
    assert plan.variant == "rows" and plan.kernel.shared_bytes == 0
    body = plan.kernel.body
    ways = [body.then, body.orelse] if isinstance(body, Branch) else [body]
    assert len(ways) == (1 if width == 768 else 2), "rows that turn out to be short are turned"
    for way in ways:
        assert way is not None
        assert len([s for s in statements(way) if isinstance(s, For) and s.kind == "parallel"]) == 1


def test_a_vector_times_a_matrix_that_nothing_else_reads_is_a_product() -> None:
    fn = primitive([tensor((40, 300)), tensor((300,))], lambda m, x, v: m("nn.dense", x, m("expand_dims", v, axis=0)))
    assert "matrix" in check(fn, {}).variant
