"""A few rows of packed panels where short vectors wait for their sums: several panels at once."""

from __future__ import annotations

import numpy as np
import pytest

from relay.codegen.target import parse_target
from relay.ir.dim import DimVar, as_dim
from relay.ir.expr import Expr
from relay.loop.bounds import unproved
from relay.loop.ir import Alloc
from relay.loop.walk import statements
from relay.plan import make_plan
from relay.plan.kernel_plan import KernelPlan
from relay.te.evaluate import evaluate
from tests.plan.harness import Maker, Native, check, fresh_name, primitive, random, tensor

V = DimVar("n")
N = as_dim(V)
AVX2 = parse_target("x86-64-v3")
WEIGHT = frozenset({1})


def at_once(plan: KernelPlan, rows: int = 1) -> int:
    """How many tiles of so many rows there are, all of one loop along k where no group is left over."""
    tiles = (s.buffer for s in statements(plan.kernel.body) if isinstance(s, Alloc) and s.buffer.scope == "register")
    return sum(tile.shape[0] == rows for tile in tiles)


@pytest.mark.parametrize("epilogue", ["relu", "tanh"])
@pytest.mark.parametrize("columns", [16, 40, 96, 149, 200])
@pytest.mark.parametrize("known", [0, 1, 2])
def test_few_rows(columns: int, epilogue: str, known: int) -> None:
    """Of panels of one and of two widths, of which a group is left over or none, with epilogues on registers and on memory."""

    def build(m: Maker, x: Expr, w: Expr, b: Expr) -> Expr:
        return m("nn.relu" if epilogue == "relu" else "tanh", m("add", m("nn.dense", x, w), b))

    fn = primitive([tensor((known or N, 37)), tensor((columns, 37)), tensor((columns,))], build)
    plan = check(
        fn, *([{}] if known else [{V: n} for n in (1, 2, 3, 4)]), constants=WEIGHT, target=AVX2, tolerance=1e-4
    )
    if known:
        assert unproved(plan.kernel) == []


def test_panels_that_are_read_fast_enough_alone() -> None:
    fn = primitive([tensor((1, 64)), tensor((480, 64))], lambda m, x, w: m("nn.dense", x, w))
    assert at_once(make_plan(fn, AVX2, WEIGHT, "short")) == 2
    assert at_once(make_plan(fn, parse_target("znver4"), WEIGHT, "long")) == 1
    some = primitive([tensor((N, 64)), tensor((512, 64))], lambda m, x, w: m("nn.dense", x, w))
    assert at_once(make_plan(some, AVX2, WEIGHT, "some"), 2) == 2


def test_a_row_is_the_same_bits_among_others() -> None:
    fn = primitive([tensor((N, 300)), tensor((200, 300))], lambda m, x, w: m("nn.dense", x, w))
    plan = make_plan(fn, AVX2, WEIGHT, fresh_name())
    native = Native(plan.kernel, AVX2)
    x, w = random((5, 300), "float32"), random((200, 300), "float32", 1)
    (pack,) = plan.packs
    (packed,) = evaluate([pack.packed], {pack.source: w})
    found = []
    for rows in (1, 2, 5):
        out = np.zeros((rows, 200), np.float32)
        assert native.run(native.bind([x[:rows].copy(), packed, out], {plan.kernel.dims[0]: rows}, 1)) == 0
        found.append(out[0])
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)
