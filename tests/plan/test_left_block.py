"""Left operands whose rows lie along memory, copied by blocks: the gradients of weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import relay
from relay.codegen.target import parse_target
from relay.ir.dim import Dim, DimVar, as_dim
from relay.ir.expr import Expr
from relay.loop.ir import Alloc
from relay.loop.walk import statements
from relay.plan.kernel_plan import KernelPlan
from tests.plan.harness import HOST, Maker, check, primitive, tensor

V = DimVar("n")
N = as_dim(V)
# Caches so small that tests of a second need the copy.
SMALL = replace(HOST, l1_bytes=8 << 10, l2_bytes=64 << 10)


def copies(plan: KernelPlan) -> bool:
    """Whether rows of the left operand are copied."""
    return any(isinstance(s, Alloc) and s.buffer.name.startswith("left") for s in statements(plan.kernel.body))


def product(m: Maker, a: Expr, b: Expr) -> Expr:
    return m("nn.matmul", a, b, transpose_a=True)


@pytest.mark.parametrize(("rows", "columns"), [(257, 210), (300, 256), (385, 330), (512, 256), (512, 210)])
def test_every_residue_of_rows_and_columns(rows: int, columns: int) -> None:
    plan = check(primitive([tensor((150, rows)), tensor((150, columns))], product), {}, target=SMALL)
    assert copies(plan)


@pytest.mark.parametrize("depth", [17, 40, 700])
def test_depths(depth: int) -> None:
    """Of deep products panels are made block by block of k."""
    plan = check(primitive([tensor((depth, 512)), tensor((depth, 256))], product), {}, target=SMALL)
    assert copies(plan)


def test_a_depth_that_is_not_known() -> None:
    fn = primitive([tensor((N, 512)), tensor((N, 256))], product)
    assert copies(check(fn, *({V: s} for s in (0, 1, 2, 30, 200)), target=SMALL))


@pytest.mark.parametrize("columns", [128, 200])
@pytest.mark.parametrize("epilogue", [False, True])
def test_blocks_of_a_depth_that_is_not_known(columns: int, epilogue: bool) -> None:
    """Two panels and more, with what is added to the result after the last block."""

    def build(m: Maker, a: Expr, b: Expr, c: Expr) -> Expr:
        return m("add", product(m, a, b), c) if epilogue else product(m, a, b)

    fn = primitive([tensor((N, 300)), tensor((N, columns)), tensor((300, columns))], build)
    plan = check(fn, *({V: s} for s in (0, 1, 255, 256, 257, 513)), target=SMALL, tolerance=1e-4)
    assert copies(plan) and any(
        isinstance(s, Alloc) and s.buffer.name.startswith("sums") for s in statements(plan.kernel.body)
    )


W, U = DimVar("rows"), DimVar("columns")


@pytest.mark.parametrize(
    ("shapes", "sizes"),
    [
        (((N, as_dim(W)), (N, as_dim(U))), [(2, 3, 5), (700, 47, 64), (300, 200, 70), (530, 61, 17), (1100, 49, 130)]),
        (((N, as_dim(W)), (N, 40)), [(257, 90, 0), (900, 48, 0)]),
        (((N, 130), (N, 64)), [(5, 0, 0), (256, 0, 0), (600, 0, 0)]),
        (((700, as_dim(W)), (700, as_dim(U))), [(0, 100, 33), (0, 5, 4), (0, 60, 0)]),
    ],
)
@pytest.mark.parametrize("epilogue", [False, True])
def test_sizes_that_are_not_known(
    shapes: tuple[tuple[Dim, Dim], tuple[Dim, Dim]], sizes: list[tuple[int, int, int]], epilogue: bool
) -> None:
    """Whether rows are copied is known when the kernel runs; then tiles are as high as they can be, filled up by zeros. (Only where tiles
    of all panels are equally high, which they mostly are not where registers are few.)"""
    left, right = shapes

    def build(m: Maker, a: Expr, b: Expr, c: Expr) -> Expr:
        return m("add", product(m, a, b), c) if epilogue else product(m, a, b)

    fn = primitive([tensor(left), tensor(right), tensor((left[1], right[1]))], build)
    free = {d for shape in shapes for d in shape}
    given = [{v: s for v, s in zip((V, W, U), each, strict=True) if as_dim(v) in free} for each in sizes]
    copied = copies(check(fn, *given, target=SMALL, tolerance=1e-4))
    assert copied or SMALL.vector_registers < 32


def test_a_right_operand_whose_rows_come_in_another_order() -> None:
    """The states of a loop, which its gradient goes through from the last one on."""

    def build(m: Maker, a: Expr, b: Expr) -> Expr:
        return product(m, a, m("reshape", m("reverse", b, axis=0), newshape=(-1, 256)))

    fn = primitive([tensor((3 * N, 300)), tensor((N, 3, 256))], build)
    assert copies(check(fn, *({V: s} for s in (0, 1, 85, 86, 171)), target=SMALL, tolerance=1e-4))


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64"])
def test_targets(name: str) -> None:
    small = replace(parse_target(name), l1_bytes=8 << 10, l2_bytes=64 << 10)
    for depth in (70, 270):
        fn = primitive([tensor((depth, 300)), tensor((depth, 140))], product)
        assert copies(check(fn, {}, target=small))


def test_batches_and_an_epilogue() -> None:
    def build(m: Maker, a: Expr, b: Expr, c: Expr) -> Expr:
        return m("tanh", m("add", m("nn.batch_matmul", a, b, transpose_a=True, transpose_b=False), c))

    fn = primitive([tensor((3, 60, 512)), tensor((3, 60, 256)), tensor((256,))], build)
    assert copies(check(fn, {}, target=SMALL, tolerance=1e-4))


@pytest.mark.parametrize("dtype", ["float64", "float16"])
def test_other_types(dtype: str) -> None:
    fn = primitive([tensor((60, 512), dtype), tensor((60, 256), dtype)], product)
    assert copies(check(fn, {}, target=SMALL, tolerance=1e-2 if dtype == "float16" else 1e-9))


def test_where_lines_stay_in_the_caches_nothing_is_copied() -> None:
    roomy = replace(HOST, l1_bytes=48 << 10, l2_bytes=2 << 20)
    for depth, rows in ((8, 2048), (130, 650)):
        plan = check(primitive([tensor((depth, rows)), tensor((depth, 512))], product), {}, target=roomy)
        assert not copies(plan)


def test_a_constant_right_operand_and_a_left_one_that_is_no_tensor() -> None:
    fn = primitive([tensor((70, 512)), tensor((70, 256))], product)
    assert not copies(check(fn, {}, target=SMALL, constants=frozenset({1})))
    computed = primitive(
        [tensor((70, 512)), tensor((70, 1)), tensor((70, 256))],
        lambda m, a, s, b: product(m, m("tanh", m("multiply", a, s)), b),
    )
    check(computed, {}, target=SMALL)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_gradient_of_a_weight_reads_nothing_beside_its_operands(threads: int) -> None:
    text = """#[version = "0.0.5"]
def @main(%x: Tensor[(67, 330), float32], %w: Tensor[(1024, 330), float32], %g: Tensor[(67, 1024), float32]) {
  nn.dense.vjp1(%x, %w, %g)
}"""
    rng = np.random.default_rng(0)
    x, w, g = (rng.standard_normal(s).astype(np.float32) for s in ((67, 330), (1024, 330), (67, 1024)))
    found = np.asarray(relay.compile(text, check_memory=True, threads=threads)(x, w, g))
    np.testing.assert_allclose(found, g.T @ x, atol=1e-4)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_panels_that_were_packed_before(transpose_a: bool, transpose_b: bool) -> None:
    a, b = (150, 512) if transpose_a else (512, 150), (256, 150) if transpose_b else (150, 256)

    def build(m: Maker, a: Expr, b: Expr) -> Expr:
        return m("nn.matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b)

    plan = check(primitive([tensor(a), tensor(b)], build), {}, target=SMALL, constants=frozenset({1}))
    assert plan.packs and not copies(plan)
