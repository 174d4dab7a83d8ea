"""Sums over pairs of elements that are no products, by register tiles like products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from relay import te
from relay.codegen.target import parse_target
from relay.ir.dim import Dim, DimVar, as_dim
from relay.ir.expr import Function
from relay.op import registry
from relay.te.scalar import Scalar
from tests.plan.harness import HOST, check, primitive, tensor

SIZES = tuple(DimVar(name) for name in "abk")
A, B, K = map(as_dim, SIZES)
FEW = tuple(
    dict(zip(SIZES, s, strict=True)) for s in ((1, 1, 1), (5, 70, 3), (40, 33, 17), (2, 130, 40), (7, 5, 0), (0, 3, 2))
)

Each = Callable[[Scalar, Scalar], Scalar]
EACH: dict[str, Each] = {
    "squares": lambda x, y: (x - y) * (x - y),
    "distances": lambda x, y: abs(x - y),
    "extremes": lambda x, y: te.maximum(x, y),
    "no zero of zeros": lambda x, y: abs(x - y + 1.0),
    "penalties": lambda x, y: te.select(abs(x - y) < 1.0, (x - y) * (x - y), 2.0 * abs(x - y) - 1.0),
    "of one operand made before": lambda x, y: abs(te.exp(x) - y * 2.0),
}


@pytest.fixture
def over_pairs() -> Iterator[Callable[..., Function]]:
    def of(each: Each, a: Dim, b: Dim, k: Dim, dtype: str = "float32", batch: tuple[Dim, ...] = ()) -> Function:
        def op(x: te.Tensor, y: te.Tensor) -> te.Tensor:
            """Sums over pairs of rows."""
            *lead, rows, depth = x.shape
            n = te.reduce_axis(depth)
            shape = (*lead, rows, y.shape[-2])
            return te.compute(shape, lambda *at: te.sum(each(x[*at[:-1], n], y[*at[:-2], at[-1], n]), n))

        registry.operator("pairs.op")(op)
        operands = [tensor((*batch, a, k), dtype), tensor((*batch, b, k), dtype)]
        return primitive(operands, lambda m, x, y: m("negative", m("pairs.op", x, y)))

    yield of
    registry.remove("pairs.op")


@pytest.mark.parametrize("what", EACH)
def test_pairs_of_unknown_numbers(over_pairs: Callable[..., Function], what: str) -> None:
    assert "matrix" in check(over_pairs(EACH[what], A, B, K), *FEW, tolerance=1e-4).variant


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(40, 70, 17), (3, 200, 64), (64, 64, 4), (50, 100, 256)])
def test_pairs_of_known_numbers(over_pairs: Callable[..., Function], shape: tuple[int, int, int], dtype: str) -> None:
    assert "matrix" in check(over_pairs(EACH["distances"], *shape, dtype), tolerance=1e-4).variant


def test_batches_of_pairs(over_pairs: Callable[..., Function]) -> None:
    assert "matrix" in check(over_pairs(EACH["squares"], 20, 33, 7, "float32", (3,)), tolerance=1e-4).variant


@pytest.mark.parametrize("target", [HOST, parse_target("x86-64-v3"), replace(HOST, masked=False)])
def test_lanes_past_the_end_of_a_row_do_not_count(over_pairs: Callable[..., Function], target: object) -> None:
    """They hold zeros, products of which are none; of what is made of a pair that need not be so."""
    check(over_pairs(EACH["no zero of zeros"], 2, 300, 256), target=target, tolerance=1e-4)  # type: ignore[arg-type]


def test_what_is_dear_for_each_pair_is_no_tile(over_pairs: Callable[..., Function]) -> None:
    dear = check(over_pairs(lambda x, y: te.tanh(x + y), 20, 30, 40), tolerance=1e-4)
    one = check(over_pairs(lambda x, y: x * y + x * x + y * y * x, 1, 30, 100), tolerance=1e-4)
    assert "matrix" not in dear.variant and "matrix" not in one.variant
