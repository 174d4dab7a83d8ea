"""Sums of products of several tensors in steps, products split by all axes that are read by quotient and remainder, and stages that are
kept since they would be evaluated at many places."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from novel_definitions import kronecker, sorting_network, subpixel, tensor_train

from relay.ir.dim import Dim, DimVar, as_dim, as_var, dim_mul
from relay.loop.ir import Fail, For
from relay.loop.walk import expressions, statements
from relay.op import registry
from relay.plan.factored import factored
from relay.plan.graph import te_graph
from relay.te.scalar import Binary, walk
from tests.op.test_unusual_indices import bilinear, outer_product_mean
from tests.plan.harness import Maker, check, primitive, tensor

V = DimVar("n")
N = as_dim(V)


@pytest.fixture
def declare() -> Iterator[Callable[..., object]]:
    yield lambda define: registry.operator("factored.op")(define)
    registry.remove("factored.op")


def test_three_factors_are_two_products(declare: Callable[..., object]) -> None:
    declare(outer_product_mean)
    operands = [tensor((N, 12, 8)), tensor((N, 12, 8)), tensor((8, 8, 16))]
    plan = check(primitive(operands, lambda m, *x: m("factored.op", *x)), {V: 1}, {V: 20}, tolerance=1e-4)
    assert len(plan.products) == 2


def test_a_bilinear_form_is_a_product_and_a_sum(declare: Callable[..., object]) -> None:
    declare(bilinear)
    operands = [tensor((N, 24)), tensor((N, 32)), tensor((16, 24, 32))]
    plan = check(primitive(operands, lambda m, *x: m("factored.op", *x)), {V: 1}, {V: 40}, tolerance=1e-4)
    assert len(plan.products) >= 1


P, Q, R = (as_dim(DimVar(name)) for name in "pqr")


@pytest.mark.parametrize(
    ("define", "shapes", "result"),
    [
        (tensor_train, [(24, 6 * 8), (6, 5, 4), (4, 8, 16)], (24, 80)),
        (kronecker, [(6, 5), (16, 8), (24, 40)], (24, 96)),
        (tensor_train, [(N, dim_mul(P, Q)), (P, R, 4), (4, Q, 16)], (N, dim_mul(R, 16))),
        (kronecker, [(P, 5), (R, Q), (N, dim_mul(5, Q))], (N, dim_mul(P, R))),
    ],
)
def test_factors_of_quotients_and_of_remainders_are_products(
    declare: Callable[..., object],
    define: Callable[..., object],
    shapes: list[tuple[Dim, ...]],
    result: tuple[Dim, ...],
) -> None:
    """Forward, and the gradients by all operands: axes are split by numbers and by sizes."""
    declare(define)
    values = [dict(zip((V, *map(as_var, (P, Q, R))), sizes, strict=True)) for sizes in ((1, 1, 1, 1), (7, 3, 9, 5))]
    operands = [tensor(shape) for shape in shapes]
    primitives = [primitive(operands, lambda m, *x: m("factored.op", *x))]
    for n in range(len(shapes)):
        given = [*operands, tensor(result)]
        primitives.append(primitive(given, lambda m, *x, n=n: m(f"factored.op.vjp{n}", *x)))
    for fn in primitives:
        plan = check(fn, *values, tolerance=1e-4)  # type: ignore[arg-type]
        assert len(plan.products) == 2
        assert not any(isinstance(s, Fail) for s in statements(plan.kernel.body))


def test_two_tensors_and_what_goes_with_one_of_them_are_one_step() -> None:
    def build(m: Maker, *x: object) -> object:
        return m("nn.dense", m("multiply", x[0], x[1]), m("sigmoid", x[2]))  # type: ignore[arg-type]

    graph = te_graph(primitive([tensor((N, 64)), tensor((64,)), tensor((32, 64))], build))  # type: ignore[arg-type]
    assert factored(graph).outputs == graph.outputs


def test_pixels_of_a_block_are_columns_of_one_product(declare: Callable[..., object]) -> None:
    declare(subpixel)
    operands = [tensor((8, 12, 12)), tensor((16, 8, 3, 3))]
    plan = check(primitive(operands, lambda m, *x: m("factored.op", *x)), tolerance=1e-4)
    (product,) = plan.products
    assert {product.rows, product.columns} == {144, 16}


def test_steps_that_read_several_elements_are_not_written_into_each_other(declare: Callable[..., object]) -> None:
    declare(sorting_network)
    kernel = check(primitive([tensor((N, 8))], lambda m, x: m("factored.op", x)), {V: 1}, {V: 33}).kernel
    assert sum(len(walk(root)) for s in statements(kernel.body) for root in expressions(s)) < 4000


@pytest.mark.parametrize("reps", [(2, 2), (2, 1), (1, 3)])
def test_an_axis_that_goes_round_a_size_is_split_by_it(reps: tuple[int, int]) -> None:
    w = DimVar("w")
    plan = check(
        primitive([tensor((N, as_dim(w)))], lambda m, x: m("tile", x, reps=reps)),
        {V: 3, w: 5},
        {V: 1, w: 40},
        {V: 2, w: 0},
    )
    loops = [s for s in statements(plan.kernel.body) if isinstance(s, For) and s.kind == "vectorized"]
    inside = [n for s in loops for t in statements(s.body) for root in expressions(t) for n in walk(root)]
    assert loops and not any(isinstance(n, Binary) and n.op in ("mod", "floordiv") for n in inside)
