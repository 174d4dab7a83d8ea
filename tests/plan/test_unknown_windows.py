"""Windows, blocks and repeats of a size that is not known: planned as those of known sizes are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from relay import te
from relay.ir.dim import DimVar, as_dim, dim_add, dim_bounds, dim_sub
from relay.loop.ir import For, Kernel
from relay.loop.walk import statements
from relay.op import registry
from tests.plan.harness import HOST, check, primitive, tensor

B, C, H, W, P = (DimVar(name) for name in "bchwp")
b, c, h, w, p = (as_dim(v) for v in (B, C, H, W, P))


def depthwise(x: te.Tensor, weight: te.Tensor) -> te.Tensor:
    (n, m, y, z), (_, k, _) = x.shape, weight.shape
    r, s = te.reduce_axis(k), te.reduce_axis(k)
    places = (dim_add(dim_sub(y, k), 1), dim_add(dim_sub(z, k), 1))
    return te.compute((n, m, *places), lambda i, j, u, v: te.sum(x[i, j, u + r, v + s] * weight[j, r, s], (r, s)))


def vectors(kernel: Kernel) -> list[For]:
    return [s for s in statements(kernel.body) if isinstance(s, For) and s.kind == "vectorized"]


@pytest.fixture(autouse=True)
def _operators() -> Iterator[None]:
    defined: list[Callable[..., te.Tensor]] = [depthwise]
    for define in defined:
        registry.operator(f"test.{define.__name__}")(define)
    yield
    for define in defined:
        registry.remove(f"test.{define.__name__}")


def test_an_axis_that_ends_before_it_begins_has_no_lanes() -> None:
    """The border around a cotangent is as wide as a window less one: without elements in either, a line of it would have -1."""
    made = (b, c, dim_add(dim_sub(h, p), 1), dim_add(dim_sub(w, p), 1))
    given = [tensor((b, c, h, w)), tensor((c, p, p)), tensor(made)]
    plan = check(primitive(given, lambda m, x, y, g: m("test.depthwise.vjp0", x, y, g)), {B: 2, C: 2, H: 5, W: 0, P: 0})
    assert any(dim_bounds(loop.var.extent)[0] == -1 for loop in vectors(plan.kernel)) or not HOST.masked
