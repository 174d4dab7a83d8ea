"""Sums over several axes whose guard asks about each apart, one axis after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from relay import te
from relay.ir.dim import DimVar, as_dim
from relay.op import registry
from relay.plan.graph import te_graph
from relay.plan.separable import separated
from relay.te.scalar import Scalar
from tests.plan.harness import check, primitive, tensor

SIZES = tuple(DimVar(name) for name in "nhw")
N, H, W = map(as_dim, SIZES)
FEW = tuple(dict(zip(SIZES, s, strict=True)) for s in ((1, 1, 1), (2, 7, 19), (1, 16, 5), (3, 33, 40), (2, 0, 3)))

Guard = Callable[[Scalar, Scalar, Scalar, Scalar], Scalar]
GUARDS: dict[str, tuple[bool, Guard]] = {
    "each apart": (True, lambda i, j, k, m: (i - k >= 0) & (j - 2 * m < 3) & (i - k < 4)),
    "both": (False, lambda i, j, k, m: (i - k >= 0) & (j - 2 * m < 3) & (i + j - k - m < 9)),
    "one": (False, lambda i, j, k, m: i - k >= 0),
}


@pytest.fixture
def declare() -> Iterator[Callable[..., object]]:
    yield lambda define: registry.operator("separable.op")(define)
    registry.remove("separable.op")


@pytest.mark.parametrize("which", GUARDS)
def test_what_a_guard_asks_of_each_axis_apart_is_summed_apart(declare: Callable[..., object], which: str) -> None:
    apart, guard = GUARDS[which]

    def op(x: te.Tensor, like: te.Tensor) -> te.Tensor:
        """Sums of the places that a guard takes for near."""
        k, m = te.reduce_axis(x.shape[1]), te.reduce_axis(x.shape[2])
        return te.compute(like.shape, lambda n, i, j: te.sum(te.select(guard(i, j, k, m), x[n, k, m], 0.0), (k, m)))

    declare(op)
    fn = primitive([tensor((N, 9, 8)), tensor((N, H, W))], lambda m, x, y: m("separable.op", x, y))
    graph = te_graph(fn)
    assert (len(te.stages(separated(graph).outputs)) > len(te.stages(graph.outputs))) == apart
    check(fn, *FEW)


def test_what_may_be_outside_along_one_axis_is_not_read_for_another(declare: Callable[..., object]) -> None:
    def op(x: te.Tensor) -> te.Tensor:
        """Sums of windows of 5 x 5, with nothing beyond the border."""
        _, h, w = x.shape
        k, m = te.reduce_axis(5), te.reduce_axis(5)

        def element(n: Scalar, i: Scalar, j: Scalar) -> Scalar:
            near = (i + k < te.size(h)) & (j + m < te.size(w))
            return te.sum(te.select(near, x[n, i + k, j + m], 0.0), (k, m))

        return te.compute(x.shape, element)

    declare(op)
    fn = primitive([tensor((N, H, W))], lambda m, x: m("separable.op", x))
    graph = te_graph(fn)
    assert len(te.stages(separated(graph).outputs)) == len(te.stages(graph.outputs))
    check(fn, *FEW)


def test_gradients_of_means_over_parts_of_an_image() -> None:
    attrs = {"output_size": [5, 3]}
    fn = primitive(
        [tensor((N, 2, H, W)), tensor((N, 2, 5, 3))], lambda m, x, g: m("nn.adaptive_avg_pool2d.vjp0", x, g, **attrs)
    )
    graph = te_graph(fn)
    assert len(te.stages(separated(graph).outputs)) > len(te.stages(graph.outputs))
    check(fn, *FEW)
