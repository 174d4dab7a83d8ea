"""Sums whose operands are divided into groups, run as a batch of products."""

from __future__ import annotations

from typing import Any

import pytest

from relay.ir.dim import DimVar, as_dim, dim_mul
from relay.ir.expr import Expr, Function, Tuple
from relay.loop.ir import Alloc
from relay.loop.walk import statements
from tests.plan.harness import Maker, check, primitive, tensor

V = DimVar("n")
N = as_dim(V)
SOME = tuple({V: s} for s in (0, 1, 3))


def convolution(data: tuple[Any, ...], weight: tuple[int, ...], **attrs: Any) -> Function:
    return primitive([tensor(data), tensor(weight)], lambda m, x, w: m("nn.conv2d", x, w, **attrs))


@pytest.mark.parametrize("known", [True, False])
def test_groups_that_are_summed_up_are_rows(known: bool) -> None:
    """A group norm goes through one group at a time: its moments in one pass, and what is computed from them right after."""
    c, s = DimVar("c"), DimVar("s")
    channels, size = (24, 300) if known else (dim_mul(as_dim(c), 8), as_dim(s))

    def build(m: Maker, x: Expr, g: Expr, b: Expr) -> Expr:
        return m("nn.relu", m("nn.group_norm", x, g, b, num_groups=8))

    fn = primitive([tensor((N, channels, size)), tensor((channels,)), tensor((channels,))], build)
    sizes = SOME if known else ({V: 1, c: 1, s: 1}, {V: 3, c: 5, s: 37}, {V: 2, c: 2, s: 300})
    plan = check(fn, *sizes, tolerance=1e-5)
    held = [s.buffer.shape for s in statements(plan.kernel.body) if isinstance(s, Alloc)]
    assert held and all(shape == (1,) for shape in held), "nothing is kept for several groups"


@pytest.mark.parametrize(
    ("channels", "per_group", "groups", "attrs", "product"),
    [
        (64, 16, 4, {"padding": (1, 1)}, True),
        (48, 16, 3, {"strides": (2, 2), "padding": (1, 0)}, True),
        (24, 10, 4, {"dilation": (2, 1)}, True),
        (32, 8, 4, {"padding": (1, 1)}, True),
        (20, 8, 4, {"padding": (1, 1)}, True),
        (16, 4, 4, {"padding": (1, 1)}, False),  # narrow groups: sums along lines
    ],
)
def test_convolutions(channels: int, per_group: int, groups: int, attrs: dict[str, Any], product: bool) -> None:
    fn = convolution((N, per_group * groups, 11, 12), (channels, per_group, 3, 3), groups=groups, **attrs)
    for constants in (frozenset[int](), frozenset({1})):
        plan = check(fn, *SOME, constants=constants)
        assert ("matrix" in plan.variant) == product
        assert len(plan.packs) == (product and len(constants))


@pytest.mark.parametrize("stride", [1, 2, 3])
def test_windows_of_single_channels_of_any_image(stride: int) -> None:
    """Windows that read elements again are no panels, however far apart they begin and whatever the image's size."""
    attrs = {"groups": 6, "padding": (1, 1), "strides": (stride, stride)}
    plan = check(
        convolution((2, 6, N, N), (6, 1, 3, 3) if stride < 3 else (6, 1, 5, 5), **attrs), {V: 3}, {V: 12}, {V: 21}
    )
    assert plan.variant.endswith("rows")


@pytest.mark.parametrize("layout", ["NHWC", "HWNC"])
def test_other_layouts(layout: str) -> None:
    sizes = {"N": 2, "H": 7, "W": 9, "C": 24}
    attrs = {"data_layout": layout, "kernel_layout": "HWIO", "groups": 3, "padding": (1, 1)}
    plan = check(convolution(tuple(sizes[a] for a in layout), (3, 3, 8, 48), **attrs), {})
    assert "matrix" in plan.variant


@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("stride", [1, 2])
def test_gradients(operand: int, stride: int) -> None:
    side = 12 // stride
    given = [tensor((2, 48, 12, 12)), tensor((32, 12, 3, 3)), tensor((2, 32, side, side))]
    attrs = {"padding": (1, 1), "strides": (stride, stride), "groups": 4}
    fn = primitive(given, lambda m, x, w, g: m(f"nn.conv2d.vjp{operand}", x, w, g, **attrs))
    assert "matrix" in check(fn, {}).variant


def test_what_follows_is_computed_on_the_tiles() -> None:
    def build(m: Maker, x: Expr, w: Expr, b: Expr, r: Expr) -> Expr:
        return m("nn.relu", m("add", m("nn.bias_add", m("nn.conv2d", x, w, padding=(1, 1), groups=4), b), r))

    given = [tensor((N, 32, 10, 10)), tensor((64, 8, 3, 3)), tensor((64,)), tensor((N, 64, 10, 10))]
    plan = check(primitive(given, build), *SOME)
    assert plan.variant == "elementwise+matrix"


def test_what_reads_other_elements() -> None:
    """Windows over the result, its channels in another order, and the result itself."""

    def build(m: Maker, x: Expr, w: Expr) -> Expr:
        y = m("nn.conv2d", x, w, padding=(1, 1), groups=2)
        pooled = m("nn.max_pool2d", y, pool_size=(2, 2), strides=(2, 2))
        return Tuple((pooled, m("transpose", y, axes=(0, 2, 3, 1)), m("sum", y, axis=(1,)), y))

    check(primitive([tensor((2, 16, 8, 8)), tensor((32, 8, 3, 3))], build), {})


def test_a_mean_of_groups() -> None:
    """A sum that is divided into groups and no product stays what it is."""
    fn = primitive([tensor((3, 24, 6, 6))], lambda m, x: m("nn.avg_pool2d", x, pool_size=(2, 2), strides=(2, 2)))
    assert "matrix" not in check(fn, {}).variant
