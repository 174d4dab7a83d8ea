"""Neighbouring lines that go through their loops together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import relay
from relay import te
from relay.ir.dim import Dim, DimVar, as_dim
from relay.ir.expr import Expr
from relay.loop.ir import Alloc, For, Store
from relay.loop.walk import statements
from relay.op import registry
from relay.plan.kernel_plan import KernelPlan
from tests.plan.harness import Maker, check, primitive, tensor

H, V, W = (DimVar(name) for name in "hvw")
SIZES = ({H: 3, V: 9, W: 21}, {H: 1, V: 1, W: 64}, {H: 4, V: 4, W: 3}, {H: 2, V: 0, W: 5}, {H: 2, V: 8, W: 133})


def lines(plan: KernelPlan) -> int:
    """The most elements of results that an iteration of a vector loop writes."""
    loops = [s for s in statements(plan.kernel.body) if isinstance(s, For) and s.kind == "vectorized"]
    stores = [[s for s in statements(loop) if isinstance(s, Store)] for loop in loops]
    return max(sum(s.buffer.scope == "operand" for s in each) for each in stores)


UNKNOWN = as_dim(H), as_dim(V), as_dim(W)


@pytest.mark.parametrize(
    ("shape", "sizes"), [(UNKNOWN, SIZES), ((3, 9, 40), ({},)), ((2, 8, 64), ({},)), ((5, 4, 48), ({},))]
)
def test_lines_of_a_state_share_what_multiplies_them(
    shape: tuple[Dim, ...], sizes: Sequence[dict[DimVar, int]]
) -> None:
    """A matrix for each head, of which what a key reads is taken away: its lines have the key and the decays in common."""
    heads, rows, width = shape
    state, row = tensor(shape), tensor((heads, 1, width))

    def build(m: Maker, before: Expr, key: Expr, decay: Expr) -> Expr:
        k, d = (m("expand_dims", x, axis=1, ty=row) for x in (key, decay))
        read = m("sum", m("multiply", before, k, ty=state), axis=[2], keepdims=True, ty=tensor((heads, rows, 1)))
        return m("subtract", m("multiply", before, d), m("multiply", read, k))

    assert lines(check(primitive([state, *[tensor((heads, width))] * 2], build), *sizes)) == 4


@pytest.mark.parametrize(
    ("width", "sizes"), [(as_dim(W), [{V: 9, W: 21}, {V: 1, W: 64}, {V: 6, W: 300}]), (100, [{V: 1}, {V: 4}, {V: 7}])]
)
def test_short_rows_of_a_norm_share_scale_and_shift(width: Dim, sizes: Sequence[dict[DimVar, int]]) -> None:
    def build(m: Maker, x: Expr, scale: Expr, shift: Expr) -> Expr:
        return m("nn.layer_norm", x, scale, shift)

    types = [tensor((as_dim(V), width)), tensor((width,)), tensor((width,))]
    assert lines(check(primitive(types, build), *sizes, tolerance=1e-4)) == 4


def test_what_is_dear_or_has_nothing_in_common_goes_line_by_line() -> None:
    row = tensor((UNKNOWN[0], 1, UNKNOWN[2]))

    def dear(m: Maker, x: Expr, y: Expr) -> Expr:
        return m("exp", m("multiply", x, m("expand_dims", y, axis=1, ty=row)))

    def apart(m: Maker, x: Expr, y: Expr) -> Expr:
        return m("multiply", x, m("expand_dims", y, axis=2, ty=tensor((*UNKNOWN[:2], 1))))

    assert lines(check(primitive([tensor(UNKNOWN), tensor((UNKNOWN[0], UNKNOWN[2]))], dear), *SIZES)) == 1
    assert lines(check(primitive([tensor(UNKNOWN), tensor(UNKNOWN[:2])], apart), *SIZES)) == 1


def test_short_sums_of_unknown_length_end_together() -> None:
    def build(m: Maker, x: Expr, weights: Expr) -> Expr:
        return m("sum", m("multiply", x, weights), axis=[2])

    plan = check(primitive([tensor(UNKNOWN), tensor(UNKNOWN[1:])], build), *SIZES)
    assert any(isinstance(s, Alloc) and s.buffer.shape == (4,) for s in statements(plan.kernel.body))


def test_lines_whose_length_is_known_in_the_middle_of_them() -> None:
    """The lines of a gradient go by blocks, the last of which is shorter: none of that can be asked before a line begins."""

    def read(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        m, n = x.shape
        b = te.reduce_axis(n)
        made = te.compute((m, m, m), lambda i, j, k: te.sum(y[i, j] * x[k, b], b))
        size = te.size(m)
        at = te.const(1, "int64") % size
        return te.compute(x.shape, lambda i, j: te.select(i * 3 < size, made[at, i * 3, j % size], 0.0))

    registry.operator("jammed.read")(read)
    try:
        slope = relay.grad(
            relay.parse("""#[version = "0.0.5"]
def @main[m: Dim, n: Dim](%x: Tensor[(m, n), float32], %y: Tensor[(m, m), float32]) { jammed.read(%x, %y) }"""),
            argnums=0,
        )
        exe: Any = relay.compile(slope, cache=False)
        for m, n in ((1, 1), (3, 5), (7, 4), (20, 31)):
            random = np.random.default_rng(m)
            x, y = (random.standard_normal((m, k)).astype(np.float32) for k in (n, m))
            wanted: Any = relay.evaluate(slope, x, y)
            np.testing.assert_allclose(np.asarray(exe(x, y)), np.asarray(wanted), 1e-4, 1e-4)
    finally:
        registry.remove("jammed.read")
