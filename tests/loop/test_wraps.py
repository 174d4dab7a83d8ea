"""Vector loops that go round an axis compute the same in pieces, and no piece divides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.ir.dim import Dim, DimVar, as_dim, dim_add
from relay.loop.evaluate import evaluate
from relay.loop.ir import Branch, Buffer, For, Kernel, Stmt, Store
from relay.loop.printer import stmt_text
from relay.loop.simplify import simplify
from relay.loop.target import Target
from relay.loop.verify import verify
from relay.loop.walk import statements
from relay.loop.wraps import unwrapped
from relay.te.scalar import Axis, Load, Scalar, Size, binary

TARGET = Target("x86_64-unknown-linux-gnu")  # of 4 lanes: axes of 4 or more
N = DimVar("n")


def size(dim: Dim) -> Scalar | int:
    return dim if isinstance(dim, int) else Size(dim)


def kernel(period: Dim, over: int, shifts: list[int], op: str) -> Kernel:
    """``y[j]`` is a sum of quotients, or of elements found by remainders, of ``j`` and shifts by the period."""
    count = dim_add(period, over)
    x, y, j = Buffer("x", (period,), "int64"), Buffer("y", (count,), "int64"), Axis("j", count)
    value: Scalar = j
    for n, shift in enumerate(shifts):
        at = binary("add", j, shift)
        quotient = binary("floordiv", at, size(period))
        found: Scalar = quotient
        if op == "look up":
            found = Load(x, (binary("sub", at, binary("mul", quotient, size(period))),), "int64")
        elif op == "mod":
            found = binary("mod", at, size(period))
        value = binary("add", value, binary("mul", found, 1000**n))
    loop = For(
        j, Size(count) if not isinstance(count, int) else binary("add", count, 0), Store(y, (j,), value), "vectorized"
    )
    return Kernel("round", (x,), (y,), () if isinstance(period, int) else (N,), loop)


def in_pieces(root: Stmt) -> list[For]:
    """The loops of the pieces: those of the first way, where the size decides at run time."""
    top = root.then if isinstance(root, Branch) else root
    return [s for s in statements(top) if isinstance(s, For)]


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_random_shifts(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 60))
    period: Dim = n if data.draw(st.booleans()) else as_dim(N)
    over = data.draw(st.integers(0, 5))
    shifts = data.draw(st.lists(st.integers(-9, 9) | st.integers(n - 3, n + 3), min_size=1, max_size=3))
    first = kernel(period, over, shifts, data.draw(st.sampled_from(["floordiv", "mod", "look up"])))
    made = simplify(unwrapped(simplify(first), TARGET))
    verify(made)
    x = np.arange(n) * 7
    want, got = np.zeros(n + over, "int64"), np.zeros(n + over, "int64")
    env = {} if isinstance(period, int) else {N: n}
    assert evaluate(first, [x, want], env) == 0
    assert evaluate(made, [x, got], env) == 0
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("period", [100, as_dim(N)])
def test_no_piece_divides(period: Dim) -> None:
    made = simplify(unwrapped(kernel(period, 4, [-2, 1], "look up"), TARGET))
    pieces = in_pieces(made.body)
    assert len(pieces) == 4, "two before the start, those within, one behind the end, and the four behind that"
    assert not any("//" in stmt_text(piece.body) for piece in pieces)


def test_short_axes_stay() -> None:
    short = kernel(3, 0, [1], "look up")
    assert unwrapped(short, TARGET) is short
