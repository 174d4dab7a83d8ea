"""Products of bfloat16 numbers in matrix registers."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import pytest

from relay._runtime import cpu_has
from relay.codegen.kernel_object import prepared
from relay.codegen.llvm import emit
from relay.codegen.objects import assembly
from relay.ir.dim import DimVar, as_var, dim_var
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Expr, Function
from relay.loop.evaluate import evaluate as run_slowly
from relay.loop.ir import BlockProduct
from relay.loop.printer import kernel_text
from relay.loop.walk import statements
from relay.plan.graph import te_graph
from relay.plan.kernel_plan import KernelPlan, make_plan
from relay.te.evaluate import evaluate
from tests.plan.harness import ZEN4, Maker, Native, check, fresh_name, primitive, random, tensor

N = dim_var("n")
V = cast(DimVar, as_var(N))
WEIGHT = frozenset({1})
MATRICES = replace(ZEN4, features=tuple(sorted({*ZEN4.features, "amx-bf16", "amx-tile"})))
needs_them = pytest.mark.skipif(not cpu_has("amx-bf16"), reason="this machine has no matrix registers")


def dense(columns: int, depth: int) -> Function:
    def build(m: Maker, x: Expr, w: Expr, b: Expr) -> Expr:
        return m("nn.relu", m("add", m("nn.dense", x, w, out_dtype="float32"), b))

    return primitive([tensor((N, depth), "bfloat16"), tensor((columns, depth), "bfloat16"), tensor((columns,))], build)


def products(plan: KernelPlan) -> list[BlockProduct]:
    return [s for s in statements(plan.kernel.body) if isinstance(s, BlockProduct)]


@pytest.mark.parametrize(("columns", "depth"), [(32, 32), (20, 64), (70, 34), (40, 98)])
def test_meaning(columns: int, depth: int) -> None:
    """On any machine, as the loop nest says it. What is left of a depth goes element by element, which takes longest: of few rows."""
    fn = dense(columns, depth)
    plan, graph = make_plan(fn, MATRICES, WEIGHT), te_graph(fn)
    assert products(plan) and plan.packs[0].packed.shape == (-(-columns // 32), depth // 2, 32, 2)
    assert "multiply tile" in kernel_text(plan.kernel)
    for rows in (1, 16, 17, 33, 70) if depth % 32 == 0 else (1, 17, 33):
        arrays = [
            random((rows, depth), "bfloat16"),
            random((columns, depth), "bfloat16", 1),
            random((columns,), "float32", 2),
        ]
        (wanted,) = evaluate(graph.outputs, dict(zip(graph.inputs, arrays, strict=True)), {V: rows})
        (packed,) = evaluate([plan.packs[0].packed], {plan.packs[0].source: arrays[1]})
        got = np.full((rows, columns), 77, np.float32)
        assert run_slowly(plan.kernel, [arrays[0].reshape(-1), packed, arrays[2], got.reshape(-1)], {V: rows}) == 0
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-4)


def test_code_without_the_machine() -> None:
    plan = make_plan(dense(96, 128), MATRICES, WEIGHT)
    text = assembly(emit(prepared(plan.kernel, MATRICES), MATRICES), MATRICES)
    assert text.count("tdpbf16ps") == 8, "of one row, of up to 16 and up to 32 rows, by two times 16 columns"
    for name in ("ldtilecfg", "tileloadd", "tilestored", "tilerelease"):
        assert name in text


@pytest.mark.parametrize(
    ("reason", "fn", "constants"),
    [
        ("nothing packs pairs of what comes at run time", dense(64, 64), frozenset[int]()),
        ("no whole step along k", dense(64, 30), WEIGHT),
        ("no pairs", dense(64, 63), WEIGHT),
        ("no bfloat16", primitive([tensor((N, 64)), tensor((64, 64))], lambda m, x, w: m("nn.dense", x, w)), WEIGHT),
    ],
)
def test_where_they_are_not_for(reason: str, fn: Function, constants: frozenset[int]) -> None:
    assert not products(make_plan(fn, MATRICES, constants)), reason
    assert not products(make_plan(dense(64, 64), ZEN4, WEIGHT)), "the target has none"


@needs_them
@pytest.mark.parametrize(("columns", "depth"), [(32, 32), (20, 64), (70, 50), (333, 98), (256, 768)])
def test_on_this_machine(columns: int, depth: int) -> None:
    sizes = [{V: n} for n in (0, 1, 5, 15, 16, 17, 31, 32, 33, 64, 65, 97, 200, 400)]
    assert products(check(dense(columns, depth), *sizes, constants=WEIGHT, target=MATRICES, tolerance=5e-5))


@needs_them
def test_batches_and_rows_that_lie_apart() -> None:
    def batch(m: Maker, x: Expr, w: Expr) -> Expr:
        return m("nn.matmul", x, w, out_dtype="float32")

    fn = primitive([tensor((3, N, 64), "bfloat16"), tensor((64, 40), "bfloat16")], batch)
    assert products(check(fn, {V: 1}, {V: 7}, {V: 50}, constants=WEIGHT, target=MATRICES))

    def part(m: Maker, x: Expr, w: Expr) -> Expr:
        half = m("strided_slice", x, begin=[0, 0], end=[50, 64], strides=[2, 1], ty=tensor((25, 64), "bfloat16"))
        return m("nn.dense", half, w, out_dtype="float32")

    fn = primitive([tensor((50, 96), "bfloat16"), tensor((40, 64), "bfloat16")], part)
    assert products(check(fn, constants=WEIGHT, target=MATRICES))


@needs_them
def test_a_row_is_the_same_among_others() -> None:
    plan = make_plan(dense(100, 160), MATRICES, WEIGHT, fresh_name())
    native, x, w, b = (
        Native(plan.kernel, MATRICES),
        random((300, 160), "bfloat16"),
        random((100, 160), "bfloat16", 1),
        random((100,), "float32"),
    )
    (packed,) = evaluate([plan.packs[0].packed], {plan.packs[0].source: w})
    whole = np.zeros((300, 100), np.float32)
    native.run(native.bind([x, packed, b, whole], {V: 300}))
    for rows in (1, 16, 31, 40, 129):
        out = np.zeros((rows, 100), np.float32)
        native.run(native.bind([np.ascontiguousarray(x[:rows]), packed, b, out], {V: rows}, workers=1))
        np.testing.assert_array_equal(out, whole[:rows])


@needs_them
def test_subnormal_numbers_are_zeros_and_others_stay() -> None:
    """What the instruction makes of numbers at the ends of the range."""
    plan = make_plan(dense(32, 32), MATRICES, WEIGHT, fresh_name())
    native, kind = Native(plan.kernel, MATRICES), numpy_dtype("bfloat16")
    x, w = np.zeros((2, 32), kind), np.zeros((32, 32), kind)
    x[0, 0], w[:, 0] = 1e-39, 1.0
    x[1, 3], w[:, 3] = np.inf, 2.0
    (packed,) = evaluate([plan.packs[0].packed], {plan.packs[0].source: w})
    out = np.zeros((2, 32), np.float32)
    native.run(native.bind([x, packed, np.zeros(32, np.float32), out], {V: 2}))
    assert (out[0] == 0).all() and np.isinf(out[1]).all()
