"""Vector loops over positions that are mirrored or stay at an end compute the same in pieces, and the middle finds no minimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.ir.dim import Dim, DimVar, as_dim, dim_add
from relay.loop.evaluate import evaluate
from relay.loop.ir import Branch, Buffer, For, Kernel, Stmt, Store
from relay.loop.mirrors import unmirrored
from relay.loop.target import Target
from relay.loop.verify import verify
from relay.loop.walk import expressions, statements
from relay.te.scalar import Axis, Binary, Load, Scalar, Size, binary, maximum, minimum, walk

TARGET = Target("x86_64-unknown-linux-gnu")  # of 4 lanes: axes of 4 or more
N = DimVar("n")


def kernel(extent: Dim, before: int, after: int, mode: str) -> Kernel:
    """``y[j] = x[j - before]``, with what lies outside mirrored, at the border or behind it, or the element at the border."""
    count = dim_add(extent, before + after)
    x, y, j = Buffer("x", (extent,), "int64"), Buffer("y", (count,), "int64"), Axis("j", count)
    whole: Scalar = Size(extent)
    at: Scalar = binary("sub", j, before)
    if mode == "edge":
        at = minimum(maximum(at, 0), binary("sub", whole, 1))
    else:
        behind = 1 if mode == "symmetric" else 0
        at = maximum(at, binary("sub", -behind, at))
        at = minimum(at, binary("sub", binary("sub", binary("mul", whole, 2), 2 - behind), at))
    loop = For(j, Size(count), Store(y, (j,), Load(x, (at,), "int64")), "vectorized")
    return Kernel("mirror", (x,), (y,), () if isinstance(extent, int) else (N,), loop)


def loops(root: Stmt) -> list[For]:
    """The loops of the pieces: those of the first way, where the size decides at run time."""
    top = root.then if isinstance(root, Branch) else root
    return [s for s in statements(top) if isinstance(s, For)]


def extremes(loop: For) -> int:
    nodes = [n for s in statements(loop.body) for e in expressions(s) for n in walk(e)]
    return sum(isinstance(n, Binary) and n.op in ("min", "max") for n in nodes)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_borders(data: st.DataObject) -> None:
    mode = data.draw(st.sampled_from(("edge", "reflect", "symmetric")))
    n = data.draw(st.integers(2, 40))
    most = min(5, n - 1)
    before, after = data.draw(st.integers(0, most)), data.draw(st.integers(0, most))
    whole = kernel(n if data.draw(st.booleans()) else as_dim(N), before, after, mode)
    cut = unmirrored(whole, TARGET)
    verify(cut)
    x = np.arange(10, 10 + n)
    wanted = np.pad(x, (before, after), mode)  # type: ignore[call-overload]
    for one in (whole, cut):
        y = np.zeros(n + before + after, np.int64)
        evaluate(one, [x.copy(), y], {N: n} if whole.dims else {})
        np.testing.assert_array_equal(y, wanted)


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric"])
@pytest.mark.parametrize("extent", [30, as_dim(N)])
def test_the_middle_finds_no_extreme(mode: str, extent: Dim) -> None:
    made = loops(unmirrored(kernel(extent, 1, 1, mode), TARGET).body)
    assert len(made) >= 3 and any(extremes(loop) == 0 for loop in made)
    assert len(made) <= 4


def test_what_is_short_or_depends_on_the_rest_stays() -> None:
    short = kernel(1, 1, 1, "edge")
    assert unmirrored(short, TARGET) is short
    x, y, j = Buffer("x", (50,), "int64"), Buffer("y", (50,), "int64"), Axis("j", 50)
    loop = For(j, Size(50), Store(y, (j,), Load(x, (minimum(Load(x, (j,), "int64"), 3),), "int64")), "vectorized")
    looked_up = Kernel("looked_up", (x,), (y,), (), loop)
    assert unmirrored(looked_up, TARGET) is looked_up
    # How many elements of a window lie within an axis is no position: a vector of it takes less time than two pieces.
    counted = Store(y, (j,), minimum(binary("sub", 50, j), 3))
    windows = Kernel("windows", (), (y,), (), For(j, Size(50), counted, "vectorized"))
    assert unmirrored(windows, TARGET) is windows
