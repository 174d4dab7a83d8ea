"""Vector loops in pieces compute the same, and a piece has no condition that its range decides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.ir.dim import Dim, DimVar, as_dim, dim_add, dim_mul
from relay.loop.evaluate import evaluate
from relay.loop.ir import Alloc, Branch, Buffer, For, Kernel, Seq, Stmt, Store
from relay.loop.pieces import in_pieces
from relay.loop.printer import kernel_text
from relay.loop.simplify import simplify
from relay.loop.target import Target
from relay.loop.verify import verify
from relay.loop.walk import statements
from relay.te.scalar import Axis, Compare, CompareOp, Const, Load, Scalar, Select, Size, binary, extent_of

TARGET = Target("x86_64-unknown-linux-gnu")  # of 4 lanes: pieces of 8 or more
COMPARISONS: list[CompareOp] = ["eq", "ne", "lt", "le", "gt", "ge"]


def cut(kernel: Kernel) -> Kernel:
    return simplify(in_pieces(simplify(kernel), TARGET))


def loops(root: Stmt) -> list[int]:
    return [int(s.extent.value) for s in statements(root) if isinstance(s, For) and isinstance(s.extent, Const)]


def vectorized(axis: Axis, body: Stmt) -> For:
    return For(axis, Size(axis.extent), body, "vectorized")


def test_what_is_put_side_by_side_is_copied_piece_by_piece() -> None:
    a, b, y = (Buffer(n, (s,), "float32") for n, s in (("a", 20), ("b", 30), ("y", 50)))
    j = Axis("j", 50)
    first = Compare("lt", j, Const(20, "int64"))
    value = Select(first, Load(a, (j,), "float32"), Load(b, (binary("sub", j, 20),), "float32"), "float32")
    kernel = Kernel("side", (a, b), (y,), (), vectorized(j, Store(y, (j,), value)))
    made = cut(kernel)
    verify(made)
    assert loops(made.body) == [20, 30] and "select" not in kernel_text(made)
    arrays = [np.arange(20, dtype="f"), np.arange(30, dtype="f"), np.zeros(50, "f")]
    assert evaluate(made, arrays) == 0
    np.testing.assert_array_equal(arrays[2], np.concatenate(arrays[:2]))


def test_short_pieces_and_sums_stay() -> None:
    y, j = Buffer("y", (50,), "float32"), Axis("j", 50)
    near = Select(Compare("lt", j, Const(5, "int64")), Const(1.0, "float32"), Const(2.0, "float32"), "float32")
    border = Kernel("border", (), (y,), (), vectorized(j, Store(y, (j,), near)))
    assert in_pieces(border, TARGET) is border
    total, at, zero = Buffer("total", (1,), "float32", "register"), (Const(0, "int64"),), Const(0.0, "float32")
    half = Select(Compare("lt", j, Const(25, "int64")), Const(1.0, "float32"), Const(2.0, "float32"), "float32")
    add = vectorized(j, Store(total, at, binary("add", Load(total, at, "float32"), half)))
    out = Store(y, at, Load(total, at, "float32"))
    summed = Kernel("summed", (), (y,), (), Alloc(total, Seq((Store(total, at, zero), add, out))))
    assert in_pieces(summed, TARGET) is summed


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_conditions(data: st.DataObject) -> None:
    """Conditions ``a*j + b op c*j + d``, several in one value: every piece computes what the loop did there."""
    count = data.draw(st.integers(8, 70))
    j, x, y = Axis("j", count), Buffer("x", (count,), "int64"), Buffer("y", (count,), "int64")

    def side() -> Scalar:
        step, start = data.draw(st.integers(-3, 3)), data.draw(st.integers(-80, 80))
        return binary("add", binary("mul", j, step), start)

    value: Scalar = Load(x, (j,), "int64")
    for n in range(data.draw(st.integers(1, 4))):
        cond = Compare(data.draw(st.sampled_from(COMPARISONS)), side(), side())
        value = Select(cond, binary("add", value, 10**n), value, "int64")
    kernel = Kernel("random", (x,), (y,), (), vectorized(j, Store(y, (j,), value)))
    made = cut(kernel)
    verify(made)
    given_, want, got = np.arange(count), np.zeros(count, "int64"), np.zeros(count, "int64")
    evaluate(kernel, [given_, want])
    evaluate(made, [given_, got])
    np.testing.assert_array_equal(got, want)
    if len(lengths := loops(made.body)) > 1:
        assert min(lengths) >= 8 and sum(lengths) == count and len(lengths) <= 8


def test_parts_of_unknown_length_that_are_long_have_loops_of_their_own() -> None:
    n, m = DimVar("n"), DimVar("m")
    both = dim_add(as_dim(n), as_dim(m))
    a, b, y = (Buffer(name, (s,), "float32") for name, s in (("a", as_dim(n)), ("b", as_dim(m)), ("y", both)))
    j = Axis("j", both)
    second = Load(b, (binary("sub", j, Size(as_dim(n))),), "float32")
    value = Select(Compare("lt", j, Size(as_dim(n))), Load(a, (j,), "float32"), second, "float32")
    kernel = Kernel("side", (a, b), (y,), (n, m), vectorized(j, Store(y, (j,), value)))
    made = cut(kernel)
    verify(made)
    assert isinstance(made.body, Branch)
    assert sum(isinstance(s, For) for s in statements(made.body.then)) == 2
    assert "select" not in kernel_text(replace(made, body=made.body.then))
    for lengths in ((20, 30), (8, 8), (7, 30), (30, 7), (0, 9), (9, 0)):
        arrays = [np.arange(k, dtype="f") for k in lengths] + [np.zeros(sum(lengths), "f")]
        assert evaluate(made, arrays, dict(zip((n, m), lengths, strict=True))) == 0
        np.testing.assert_array_equal(arrays[2], np.concatenate(arrays[:2]))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_conditions_on_sizes(data: st.DataObject) -> None:
    """Conditions ``a*j + b*n + c op d*j + e*m + f`` for unknown ``n`` and ``m``, over ``n + m`` elements."""
    sizes = [DimVar("n"), DimVar("m")]
    n, m = (as_dim(v) for v in sizes)
    j = Axis("j", dim_add(n, m))
    x, y = Buffer("x", (j.extent,), "int64"), Buffer("y", (j.extent,), "int64")

    def side(size: Dim) -> Scalar:
        step, times, start = data.draw(st.integers(-1, 1)), data.draw(st.integers(-1, 2)), data.draw(st.integers(-9, 9))
        return binary("add", binary("mul", j, step), extent_of(dim_add(dim_mul(size, times), start)))

    value: Scalar = Load(x, (j,), "int64")
    for digit in range(data.draw(st.integers(1, 4))):
        cond = Compare(data.draw(st.sampled_from(COMPARISONS)), side(n), side(m))
        value = Select(cond, binary("add", value, 10**digit), value, "int64")
    kernel = Kernel("random", (x,), (y,), tuple(sizes), vectorized(j, Store(y, (j,), value)))
    made = cut(kernel)
    verify(made)
    for _ in range(3):
        dims = {v: data.draw(st.integers(0, 40)) for v in sizes}
        count = sum(dims.values())
        given_, want, got = np.arange(count), np.zeros(count, "int64"), np.zeros(count, "int64")
        evaluate(kernel, [given_, want], dims)
        evaluate(made, [given_, got], dims)
        np.testing.assert_array_equal(got, want)
