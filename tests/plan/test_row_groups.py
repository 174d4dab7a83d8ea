"""Rows of which each chooses its matrix: those of one matrix are a product of tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.dim import DimVar, as_dim
from relay.ir.expr import Expr, Function, Tuple
from relay.loop.printer import kernel_text
from relay.plan.kernel_plan import KernelPlan, make_plan
from tests.plan.harness import HOST, Maker, Native, check, fresh_name, primitive, random, tensor

V, W = DimVar("n"), DimVar("e")
N, E = as_dim(V), as_dim(W)
ROWS = (0, 1, 2, 5, 23, 90)
WEIGHT = frozenset({2})


def is_grouped(plan: KernelPlan) -> bool:
    return "order" in kernel_text(plan.kernel)


def chosen(
    rows: Any, matrices: Any, depth: int, columns: int, along_depth: bool = False, dtype: str = "float32"
) -> Function:
    shape = (matrices, columns, depth) if along_depth else (matrices, depth, columns)
    letters = "nk,njk->nj" if along_depth else "nk,nkj->nj"

    def build(m: Maker, x: Expr, g: Expr, w: Expr) -> Expr:
        return m("einsum", Tuple((x, m("take", w, g, axis=0))), equation=letters)

    return primitive([tensor((rows, depth), dtype), tensor((rows,), "int64"), tensor(shape, dtype)], build)


@pytest.mark.parametrize("along_depth", [False, True])
@pytest.mark.parametrize("constants", [frozenset[int](), WEIGHT])
@pytest.mark.parametrize(("depth", "columns"), [(64, 64), (37, 70), (300, 9), (5, 200), (40, 256), (33, 610)])
def test_any_number_of_rows(along_depth: bool, constants: frozenset[int], depth: int, columns: int) -> None:
    """Five matrices of which each may have no rows, one, or many."""
    fn = chosen(N, 5, depth, columns, along_depth)
    plan = check(fn, *({V: n} for n in ROWS), constants=constants)
    assert is_grouped(plan) and len(plan.packs) == len(constants)


@pytest.mark.parametrize("rows", [1, 4, 33])
def test_a_known_number_of_rows(rows: int) -> None:
    assert is_grouped(check(chosen(rows, 5, 40, 50), constants=WEIGHT)) == (rows > 1)


def test_more_matrices_than_rows_and_an_unknown_number_of_them() -> None:
    """Where matrices are not counted, rows of one that follow each other are together all the same."""
    assert is_grouped(check(chosen(N, E, 33, 40), *({V: n, W: e} for n in ROWS for e in (5, 40, 1000))))
    choices = np.array([999, 999, 0, 3, 3, 3, 999], "int64")
    given = [random((7, 33), "float32", 1), choices, random((1000, 33, 40), "float32", 2)]
    check(chosen(N, 1000, 33, 40), {V: 7}, inputs=given)


def test_what_reads_other_tensors_of_a_row_is_an_epilogue() -> None:
    """A bias that the row chooses too, and a residual."""

    def build(m: Maker, x: Expr, g: Expr, w: Expr, b: Expr, r: Expr) -> Expr:
        made = m("einsum", Tuple((m("nn.relu", x), m("take", w, g, axis=0))), equation="nk,nkj->nj")
        return m("nn.gelu", m("add", m("add", made, m("take", b, g, axis=0)), r))

    given = [tensor((N, 48)), tensor((N,), "int64"), tensor((6, 48, 40)), tensor((6, 40)), tensor((N, 40))]
    for constants in (frozenset[int](), WEIGHT):
        assert is_grouped(check(primitive(given, build), *({V: n} for n in ROWS), constants=constants))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float64", 1e-12), ("bfloat16", 2e-2), ("float16", 2e-3), ("int32", 0)]
)
def test_other_elements(dtype: str, tolerance: float) -> None:
    for constants in (frozenset[int](), WEIGHT):
        fn = chosen(N, 5, 64, 40, dtype=dtype)
        check(fn, *({V: n} for n in ROWS), constants=constants, tolerance=tolerance)


def test_rows_of_a_product_that_choose_a_matrix_together_stay_a_batch() -> None:
    """Three rows each: a batch of products, of which each reads its matrix where it is."""
    given = [tensor((N, 3, 40)), tensor((N,), "int64"), tensor((5, 40, 50))]

    def build(m: Maker, x: Expr, g: Expr, w: Expr) -> Expr:
        return m("einsum", Tuple((x, m("take", w, g, axis=0))), equation="nik,nkj->nij")

    assert not is_grouped(check(primitive(given, build), *({V: n} for n in (0, 1, 7))))


def test_an_element_is_the_same_bits_whatever_rows_are_beside_it() -> None:
    plan = make_plan(chosen(N, 4, 70, 90), HOST, frozenset(), fresh_name())
    native = Native(plan.kernel, HOST)
    x, w = random((60, 70), "float32", 1), random((4, 70, 90), "float32", 2)
    g = np.random.default_rng(3).integers(0, 4, 60)
    whole = np.empty((60, 90), "float32")
    assert native.run(native.bind([x, g, w, whole], {V: 60})) == 0
    for some in ([7], [3, 1, 2], list(range(0, 60, 2)), list(reversed(range(60)))):
        part = np.empty((len(some), 90), "float32")
        native.run(native.bind([np.ascontiguousarray(x[some]), np.ascontiguousarray(g[some]), w, part], {V: len(some)}))
        np.testing.assert_array_equal(part, whole[some])


@pytest.mark.parametrize("executor", ["vm", "aot"])
@pytest.mark.parametrize("mode", ["clip", "wrap"])
def test_choices_outside_of_the_matrices(executor: str, mode: str) -> None:
    text = f"""#[version = "0.0.5"]
def @main[n: Dim](%x: Tensor[(n, 16), float32], %g: Tensor[(n,), int64], %w: Tensor[(3, 16, 20), float32]) -> Tensor[(n, 20), float32] {{
  einsum((%x, take(%w, %g, axis=0, mode="{mode}")), equation="nk,nkj->nj")
}}"""
    given = random((6, 16), "float32", 1), np.array([0, 3, 2, -1, 100, -5]), random((3, 16, 20), "float32", 2)
    got, wanted = relay.compile(text, executor=executor)(*given), relay.evaluate(text, *given)
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), rtol=1e-4, atol=1e-4)
