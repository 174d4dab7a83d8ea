"""Products that read beyond an image of unknown size."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from relay import te
from relay.ir.dim import DimVar, as_dim, ceil_div
from relay.op import registry
from relay.plan.bordered import bordered
from relay.plan.graph import te_graph
from tests.plan.harness import check, primitive, tensor

V = DimVar("n")
N = as_dim(V)
SOME = tuple({V: s} for s in (0, 1, 2, 9))


def convolution(inset: int, step: int) -> Callable[[te.Tensor, te.Tensor], te.Tensor]:
    """Windows of 3 x 3, ``step`` apart, over an image with zeros around all but ``inset`` of its last columns."""

    def define(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        channels, height, width = x.shape
        c, r, s = te.reduce_axis(channels), te.reduce_axis(3), te.reduce_axis(3)

        def read(c: Any, i: Any, j: Any) -> Any:
            inside = (i >= 0) & (i < te.size(height)) & (j >= 0) & (j < te.size(width) - inset)
            return te.select(inside, x[c, i, j], 0.0)

        shape = (w.shape[0], ceil_div(height, step), ceil_div(width, step))
        return te.compute(
            shape, lambda o, i, j: te.sum(read(c, step * i + r - 1, step * j + s - 1) * w[o, c, r, s], (c, r, s))
        )

    return define


@pytest.fixture
def declare() -> Iterator[Callable[..., object]]:
    yield lambda define: registry.operator("bordered.op")(define)
    registry.remove("bordered.op")


@pytest.mark.parametrize(("size", "inset", "step", "made"), [
    (N, 0, 1, True),
    (N, 0, 2, True),
    (N, 1, 1, False),  # more is left out than lies outside
    (9, 0, 1, False),  # places are known when panels are filled
])  # fmt: skip
def test_a_border_is_made_once(declare: Callable[..., object], size: Any, inset: int, step: int, made: bool) -> None:
    declare(convolution(inset, step))
    fn = primitive([tensor((8, size, size)), tensor((16, 8, 3, 3))], lambda m, x, w: m("bordered.op", x, w))
    graph = te_graph(fn)
    assert len(te.stages(bordered(graph, frozenset()).outputs)) == len(te.stages(graph.outputs)) + made
    assert "matrix" in check(fn, *(SOME if size is N else ({},)), tolerance=1e-4).variant
