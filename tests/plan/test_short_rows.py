"""Nests of small matrices, whose lanes run across the rows that these belong to."""

from __future__ import annotations

import re

import numpy as np
import pytest

from relay.ir.dim import Dim, DimVar, as_dim
from relay.ir.expr import Expr
from relay.ir.types import TensorType
from relay.loop.ir import Transpose
from relay.loop.printer import kernel_text
from relay.loop.walk import statements
from tests.plan.harness import Maker, check, primitive, tensor

V, S, T = DimVar("n"), DimVar("s"), DimVar("t")
N = as_dim(V)
ROWS = (0, 1, 15, 16, 37)


def shares(m: Maker, x: Expr, w: Expr, y: Expr) -> Expr:
    """Two softmaxes, of matrices and of rows, and what both say of the matrices: two nests where rows are long."""
    of_matrices = m("nn.softmax", m("add", m("expand_dims", x, axis=2), w), axis=1)
    of_rows = m("nn.softmax", y, axis=1)
    return m("multiply", of_matrices, m("expand_dims", of_rows, axis=1))


def operands(size: Dim) -> list[TensorType]:
    return [tensor((N, size)), tensor((size, size)), tensor((N, size))]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 9, 12])
def test_matrices_of_known_sizes(size: int) -> None:
    plan = check(primitive(operands(size), shares), *({V: n} for n in ROWS), tolerance=1e-4)
    assert ("in workspace" in kernel_text(plan.kernel)) == (size > 8), "what small ones pass on stays with the lanes"


def test_matrices_that_turn_out_to_be_small() -> None:
    sizes = [{V: n, S: s} for n in ROWS[1:] for s in (1, 3, 4, 6, 8, 9, 20)]
    plan = check(primitive(operands(as_dim(S)), shares), *sizes, {V: 0, S: 3}, {V: 20, S: 0}, tolerance=1e-4)
    text = kernel_text(plan.kernel)
    assert len(re.findall(r"if .*s <= 8", text)) == 1, (
        "one way for all of it, and no other in the ways of those that are long"
    )


@pytest.mark.parametrize("size", [3, 6, 7])
def test_small_matrices_are_turned(size: int) -> None:
    """Blocks of them, where each is read as it lies: lanes would be loaded one by one. One that all rows read is loaded once for them."""

    def best(m: Maker, x: Expr, w: Expr) -> Expr:
        return m("max", m("add", m("expand_dims", x, axis=1), w), axis=2)

    def turned(*shape: Dim) -> bool:
        plan = check(primitive([tensor((N, size)), tensor((*shape, size, size))], best), *({V: n} for n in ROWS))
        return any(isinstance(s, Transpose) for s in statements(plan.kernel.body))

    assert turned(N) and not turned()


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("sums", [1, 2, 3, 4, 6])
def test_products_of_small_matrices(rows: int, sums: int) -> None:
    for columns in (1, 2, 3, 4):
        for dtype in ("float32", "float64", "float16"):
            a, b = tensor((N, rows, sums), dtype), tensor((N, columns, sums), dtype)
            build = lambda m, a, b: m("nn.relu", m("nn.batch_matmul", a, b))  # noqa: E731
            plan = check(
                primitive([a, b], build), {V: 1}, {V: 19}, {V: 40}, tolerance=2e-2 if dtype == "float16" else 1e-4
            )
            if dtype != "float16" and sums in (1, 3) and rows * columns * sums <= 32:
                assert "matrix" not in plan.variant
            elif sums == 4 and min(rows, columns) > 1:
                assert "matrix" in plan.variant


REDUCTIONS = ("sum", "max", "min", "mean", "logsumexp", "argmax")


@pytest.mark.parametrize("seed", range(12))
def test_drawn_chains(seed: int) -> None:
    """Chains of reductions and what is made of them beside the matrices, of known and unknown sizes."""
    rng = np.random.default_rng(seed)
    a, b = (as_dim(S) if rng.random() < 0.5 else int(rng.integers(1, 9)) for _ in range(2))

    def build(m: Maker, x: Expr, y: Expr) -> Expr:
        out, draw = x, np.random.default_rng(seed)
        for _ in range(int(draw.integers(2, 5))):
            axis, op = int(draw.integers(1, 3)), str(draw.choice(REDUCTIONS[:-1]))
            out = m("tanh", out) if draw.random() < 0.3 else out
            found = m(op, out, axis=axis, keepdims=True)
            how = int(draw.integers(3))
            out = m("subtract", out, found) if how == 0 else m("multiply", out, m("sigmoid", found))
            if how == 2:
                out = m("add", out, m("expand_dims", m("nn.softmax", y, axis=1), axis=2))
        last = str(draw.choice(REDUCTIONS))
        return m.tuple(out, m(last, out, axis=int(draw.integers(1, 3)))) if draw.random() < 0.5 else out

    rows = [{V: n, S: s} for n in (1, 16, 33) for s in (2, 5, 8, 11)]
    check(primitive([tensor((N, a, b)), tensor((N, a))], build), *rows, tolerance=1e-3)


@pytest.mark.parametrize("op", ["sum", "max", "prod", "argmin"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int32"])
def test_rows_that_turn_out_to_be_short(op: str, dtype: str) -> None:
    """Of which a reduction reads each once: 33,333 rows of three took eight times as long as those of a known length."""
    sizes = [
        {V: n, S: s} for n in (0, 1, 15, 16, 17, 64, 150) for s in (0, 1, 3, 4, 5, 8, 9) if s or op in ("sum", "prod")
    ]
    tolerance = 2e-2 if dtype == "float16" else 1e-4
    plan = check(primitive([tensor((N, as_dim(S)), dtype)], lambda m, x: m(op, x, axis=1)), *sizes, tolerance=tolerance)
    most = 8 if dtype in ("float32", "float64", "int32") else 4
    assert f"s <= {most}" in kernel_text(plan.kernel) or op == "argmin", "rows that take several steps are turned"


def test_rows_of_several_axes_that_turn_out_to_be_short() -> None:
    """Lanes run across all rows that lie behind each other; pairs of points read one side by lanes and the other alike."""
    axes = [{V: n, S: s} for n in (0, 1, 3, 4, 5, 9) for s in (1, 2, 3, 8, 11)]
    plan = check(primitive([tensor((N, N, as_dim(S)))], lambda m, x: m("max", x, axis=2)), *axes)
    assert "(s <= 8) & ((n*n) >= 16)" in kernel_text(plan.kernel)

    def pairs(m: Maker, x: Expr, y: Expr) -> Expr:
        apart = m("subtract", m("expand_dims", x, axis=1), m("expand_dims", y, axis=0))
        return m("sum", m("multiply", apart, apart), axis=2)

    given = [tensor((N, as_dim(S))), tensor((as_dim(T), as_dim(S)))]
    check(primitive(given, pairs), *({V: 3, S: s, T: t} for s in (0, 1, 3, 8, 9) for t in (1, 15, 16, 19, 40)))
