"""Sums of outer products of which each belongs to one matrix: products over the rows of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest

import relay
from relay.codegen.target import parse_target
from relay.ir.dim import DimVar, as_dim
from relay.ir.expr import Expr, Function
from relay.loop.printer import kernel_text
from relay.plan.kernel_plan import KernelPlan, make_plan
from tests.plan.harness import HOST, ZEN4, Array, Maker, Native, check, fresh_name, primitive, random, tensor

V, W = DimVar("n"), DimVar("e")
N, E = as_dim(V), as_dim(W)
ROWS = (0, 1, 2, 9, 90, 300)


def is_grouped(plan: KernelPlan) -> bool:
    return "scatter" not in plan.variant and "order" in kernel_text(plan.kernel)


def outer(m: Maker, x: Expr, y: Expr) -> Expr:
    return m("multiply", m("expand_dims", x, axis=2), m("expand_dims", y, axis=1))


def summed(numbers: Any, rows: Any, columns: Any, matrices: Any = 5, dtype: str = "float32") -> Function:
    """The sum of the outer products of rows of two matrices, by the matrix that each row chooses."""
    given = [tensor((numbers, rows), dtype), tensor((numbers, columns), dtype), tensor((numbers,), "int64")]
    return primitive(given, lambda m, x, y, g: m("segment_sum", outer(m, x, y), g, num_segments=matrices))


def given(numbers: int, rows: int, columns: int, choices: Array | None = None, dtype: str = "float32") -> list[Array]:
    """Choices that may be outside of five matrices."""
    drawn = np.random.default_rng(numbers).integers(-1, 6, numbers)
    x, y = random((numbers, rows), dtype, 1), random((numbers, columns), dtype, 2)
    return [x, y, drawn if choices is None else choices]


@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (37, 70), (300, 9), (5, 200), (131, 600)])
def test_any_number_of_rows(rows: int, columns: int) -> None:
    """Some choose no matrix; of a matrix there may be none, one, or more than a block."""
    fn = summed(N, rows, columns)
    assert is_grouped(make_plan(fn, ZEN4))
    check(fn, *({V: n} for n in ROWS), inputs=lambda env: given(env[V], rows, columns))
    check(fn, {V: 300}, inputs=given(300, rows, columns, np.full(300, 3)))


def test_sizes_that_are_known_and_sizes_that_are_not() -> None:
    rows, columns = DimVar("a"), DimVar("b")
    fn = summed(N, as_dim(rows), as_dim(columns))
    sizes = [{V: n, rows: a, columns: b} for a, b in ((1, 1), (3, 70), (140, 9), (200, 130)) for n in (0, 1, 40)]
    assert is_grouped(check(fn, *sizes, inputs=lambda env: given(env[V], env[rows], env[columns])))
    for n in (1, 6, 140):
        assert is_grouped(check(summed(n, 40, 50), inputs=given(n, 40, 50))) or n == 1


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float64", 1e-12), ("bfloat16", 2e-2), ("float16", 4e-3), ("int32", 0)]
)
def test_other_elements(dtype: str, tolerance: float) -> None:
    fn = summed(N, 33, 40, dtype=dtype)
    sizes = [{V: n} for n in (1, 9, 150)]
    assert is_grouped(check(fn, *sizes, inputs=lambda env: given(env[V], 33, 40, dtype=dtype), tolerance=tolerance))


@pytest.mark.parametrize("triple", ["x86-64-v3", "x86-64-v4"])
def test_other_processors(triple: str) -> None:
    """Without masks for what is left of a row, and where results go past the caches."""
    target = parse_target(triple)
    for own in (target, replace(target, l3_bytes=16 << 10)):
        for columns in (70, 64):
            sizes, fn = [{V: n} for n in (1, 40, 200)], summed(N, 33, columns)
            inputs = lambda env, columns=columns: given(env[V], 33, columns)  # noqa: E731
            assert is_grouped(check(fn, *sizes, inputs=inputs, target=own))


def test_what_is_small_or_no_outer_product_stays_a_scatter() -> None:
    for fn in (summed(N, 3, 64), summed(N, 64, 3), summed(N, 7, 8), summed(3, 8, 8)):
        assert not is_grouped(make_plan(fn, ZEN4))
    rows = primitive([tensor((N, 64)), tensor((N,), "int64")], lambda m, x, g: m("segment_sum", x, g, num_segments=5))
    assert not is_grouped(make_plan(rows, ZEN4))
    most = primitive(
        [tensor((N, 64)), tensor((N, 64)), tensor((N,), "int64")],
        lambda m, x, y, g: m("segment_max", outer(m, x, y), g, num_segments=5),
    )
    assert not is_grouped(make_plan(most, ZEN4))


def test_several_heads_of_a_row() -> None:
    """An axis of the matrices that both operands have."""
    shape = [tensor((N, 3, 24)), tensor((N, 3, 40)), tensor((N,), "int64")]

    def build(m: Maker, x: Expr, y: Expr, g: Expr) -> Expr:
        product = m("multiply", m("expand_dims", x, axis=3), m("expand_dims", y, axis=2))
        return m("segment_sum", product, g, num_segments=5)

    def values(env: Mapping[DimVar, int]) -> list[Array]:
        n = env[V]
        return [random((n, 3, 24), "float32", 1), random((n, 3, 40), "float32", 2), given(n, 1, 1)[2]]

    assert is_grouped(check(primitive(shape, build), *({V: n} for n in (0, 1, 40)), inputs=values))


def test_operands_that_are_computed() -> None:
    shape = [tensor((N, 40)), tensor((N, 50)), tensor((N,), "int64")]

    def build(m: Maker, x: Expr, y: Expr, g: Expr) -> Expr:
        return m("segment_sum", outer(m, m("exp", x), m("nn.relu", y)), g, num_segments=5)

    fn, sizes = primitive(shape, build), [{V: n} for n in (1, 40)]
    assert is_grouped(check(fn, *sizes, inputs=lambda env: given(env[V], 40, 50), tolerance=1e-4))


def test_what_is_done_with_the_sums_is_an_epilogue() -> None:
    """A step of an optimiser: results go to memory once, also those that no row counts for."""
    shape = [tensor((N, 40)), tensor((N, 50)), tensor((N,), "int64"), tensor((5, 40, 50))]

    def build(m: Maker, x: Expr, y: Expr, g: Expr, w: Expr) -> Expr:
        made = m("segment_sum", outer(m, x, y), g, num_segments=5)
        return m("subtract", w, m("multiply", made, m.constant(0.5)))

    fn = primitive(shape, build)
    w = random((5, 40, 50), "float32", 3)
    sizes = [{V: n} for n in (0, 1, 40, 300)]
    assert is_grouped(check(fn, *sizes, inputs=lambda env: [*given(env[V], 40, 50), w]))


def test_an_element_is_the_same_bits_whatever_other_rows_there_are() -> None:
    native = Native(make_plan(summed(N, 70, 90, 4), HOST, frozenset(), fresh_name()).kernel, HOST)
    x, y = random((400, 70), "float32", 1), random((400, 90), "float32", 2)
    g = np.random.default_rng(3).integers(0, 4, 400)

    def run(some: Array) -> Array:
        out = np.empty((4, 70, 90), "float32")
        arrays = [np.ascontiguousarray(a[some]) for a in (x, y, g)]
        assert native.run(native.bind([*arrays, out], {V: len(some)})) == 0
        return out

    whole = run(np.arange(400))
    for matrix in range(4):
        np.testing.assert_array_equal(run(np.flatnonzero(g == matrix))[matrix], whole[matrix])


@pytest.mark.parametrize("executor", ["vm", "aot"])
@pytest.mark.parametrize("mode", ["clip", "wrap"])
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_gradients_of_two_layers_of_experts(executor: str, mode: str, index: str) -> None:
    """Both layouts of the matrices, choices outside of them, and the same bits for one thread and several."""
    text = f"""#[version = "0.0.5"]
def @main[n: Dim](%x: Tensor[(n, 24), float32], %g: Tensor[(n,), {index}],
    %w: Tensor[(5, 24, 70), float32], %v: Tensor[(5, 33, 70), float32]) -> float32 {{
  let %h = nn.gelu(einsum((%x, take(%w, %g, axis=0, mode="{mode}")), equation="nk,nkj->nj"));
  mean(tanh(einsum((%h, take(%v, %g, axis=0, mode="{mode}")), equation="nj,nij->ni")))
}}"""
    module = relay.value_and_grad(relay.parse(text), argnums=(0, 2, 3))
    one, two = (relay.compile(module, executor=executor, threads=n) for n in (1, 2))
    for n in (1, 7, 150):
        values = (
            random((n, 24), "float32", 1),
            np.random.default_rng(n).integers(-2, 7, n).astype(index),
            random((5, 24, 70), "float32", 2),
            random((5, 33, 70), "float32", 3),
        )
        (_, got), (_, other) = one(*values), two(*values)
        _, wanted = cast(tuple[Array, tuple[Array, ...]], relay.evaluate(module, *values))
        for a, b, c in zip(got, other, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
            np.testing.assert_allclose(np.asarray(a), np.asarray(c), rtol=1e-4, atol=1e-5)
