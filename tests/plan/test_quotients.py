"""Places that only a division finds are made once for all lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import inf
from typing import Any

import pytest

from relay import te
from relay.codegen.target import parse_target
from relay.ir.dim import Dim, DimVar, as_dim
from relay.loop.ir import Buffer
from relay.loop.walk import buffers_used
from relay.op import registry
from relay.plan.kernel_plan import KernelPlan, make_plan
from relay.plan.quotients import dear_quotients, quotients, repeats
from relay.te.scalar import Axis, Scalar, binary, extent_of
from tests.plan.harness import ZEN4, check, primitive, tensor

VC, VH, VW = DimVar("c"), DimVar("h"), DimVar("w")
C, H, W = as_dim(VC), as_dim(VH), as_dim(VW)
SIZES = [{VC: c, VH: h, VW: w} for c, h, w in ((3, 7, 9), (1, 20, 41), (2, 1, 1), (0, 3, 3), (1, 28, 14), (2, 90, 7))]


def tables(plan: KernelPlan) -> list[Buffer]:
    """What is allocated of places and of shares, which are of one line."""
    return [b for b in buffers_used(plan.kernel.body) if b.dtype == "int64" or "_part" in b.name]


@pytest.mark.parametrize("mode", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize("method", ["linear", "nearest_neighbor"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("size", [[19, 23], [1, 40]])
def test_images_are_resized_by_tables(mode: str, method: str, layout: str, size: list[int]) -> None:
    shape: tuple[Dim, ...] = (1, C, H, W) if layout == "NCHW" else (1, H, W, C)
    fn = primitive(
        [tensor(shape)],
        lambda m, x: m(
            "image.resize2d", x, size=size, layout=layout, method=method, coordinate_transformation_mode=mode
        ),
    )
    plan = check(fn, *SIZES, tolerance=1e-5)
    # (Lanes along channels are all of one place.)
    assert bool(tables(plan)) == (layout == "NCHW")


def test_one_axis_is_finished_before_what_gathers_along_it() -> None:
    """Each place of a line between two of the image would be made again for both of its neighbours, by reads of single elements."""
    fn = primitive([tensor((1, C, H, W))], lambda m, x: m("image.resize2d", x, size=[40, 40], layout="NCHW"))
    assert [b.name for b in buffers_used(check(fn, *SIZES, tolerance=1e-5).kernel.body) if b.name == "between"]
    # What would mostly not be read is not made.
    fn = primitive([tensor((1, 3, 20, 2000))], lambda m, x: m("image.resize2d", x, size=[20, 30], layout="NCHW"))
    assert not [b.name for b in buffers_used(check(fn, {}, tolerance=1e-5).kernel.body) if b.name == "between"]


@pytest.mark.parametrize(
    ("index", "is_one"),
    [
        (lambda i: (i * extent_of(H) + 3) // 7, True),
        (lambda i: (i * 5 + 3) // extent_of(H), True),
        (lambda i: (i * 5 + 3) // 7, False),  # vectors look up whole ones
        (lambda i: (i + 3) // 7, False),  # neighbours are in one place, or in the next
        (lambda i: (i * 14 + 3) // 7, False),
        (lambda i: i // extent_of(H), False),
        (lambda i: i * 5 + 3, False),
    ],
)
def test_which_quotients_are_looked_up(index: Callable[[Scalar], Any], is_one: bool) -> None:
    assert bool(quotients(index(Axis("i", 100)), steep=0.0)) == is_one


@pytest.fixture
def declare() -> Iterator[Callable[..., object]]:
    yield lambda define: registry.operator("quotients.op")(define)
    registry.remove("quotients.op")


def test_places_of_one_row_are_computed_where_they_are_read(declare: Callable[..., object]) -> None:
    def stretched(x: te.Tensor) -> te.Tensor:
        size = te.size(x.shape[0])
        return te.compute((50,), lambda i: x[te.minimum((i * size) // 50, size - 1)])

    declare(stretched)
    fn = primitive([tensor((W,))], lambda m, x: m("quotients.op", x))
    assert not tables(check(fn, {VW: 7}, {VW: 60}))


def test_known_places_are_a_table_where_vectors_are_not_looked_up() -> None:
    index = binary("floordiv", Axis("i", 100) * 5 + 3, 7)
    assert quotients(index, steep=inf) and quotients(index, steep=1.0) and not quotients(index, steep=0.5)
    fn = primitive([tensor((1, 3, 20, 41))], lambda m, x: m("image.resize2d", x, size=[19, 23], layout="NCHW"))
    avx2 = make_plan(fn, parse_target("x86-64-v3"))
    assert tables(avx2)


@pytest.mark.parametrize(("size", "places"), [([40, 82], False), ([30, 123], True)])
def test_images_made_larger_by_whole_numbers(size: list[int], places: bool) -> None:
    """Neighbours repeat then: an axis is finished before the next one, and shares are a table; places too, unless they are shifts."""
    fn = primitive([tensor((1, 3, 20, 41))], lambda m, x: m("image.resize2d", x, size=size, layout="NCHW"))
    plan = check(fn, {}, target=parse_target("x86-64-v3"), tolerance=1e-5)
    assert any(b.dtype == "float32" for b in tables(plan))
    assert any(b.dtype == "int64" for b in tables(plan)) == places
    assert any(b.name == "between" for b in buffers_used(plan.kernel.body))


def test_which_quotients_repeat() -> None:
    i = Axis("i", 100)
    assert repeats((i + 1) // 2, inf) and repeats((2 - i) // 3, inf) and repeats((i * 2 + 1) // 4, inf)
    assert not any(repeats(n, inf) for n in ((i * 4 + 1) // 2, i // extent_of(H), (i * 5 + 3) // 7))
    assert repeats((i + 1) // 2, 1.0) and not repeats((i + 1) // 2, 0.0)
    assert dear_quotients((i + 1) // 3, inf) and not dear_quotients((i + 1) // 3, 0.0)
    assert not dear_quotients((i + 1) // 2, inf)


def test_places_that_rise_fast_are_looked_up_where_gathers_are_fast() -> None:
    """An image made larger goes by tables there, one made smaller by look-ups; where gathers are slow both go by look-ups."""
    for size, tabled in ([33, 57], True), ([11, 23], False):
        fn = primitive(
            [tensor((1, 3, 20, 41))], lambda m, x, size=size: m("image.resize2d", x, size=size, layout="NCHW")
        )
        for cpu, table in ("sapphirerapids", tabled), ("znver4", False):
            assert bool(tables(check(fn, {}, target=replace(ZEN4, cpu=cpu), tolerance=1e-5))) == table
