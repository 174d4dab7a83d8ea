"""Axes that a loop goes through as one: where it is among them is counted on, not divided in each iteration."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from relay.codegen.digits import digits_of
from relay.codegen.llvm import emit
from relay.ir.dim import DimVar, as_dim, dim_mul
from relay.ir.expr import Expr
from relay.loop.ir import Buffer, For, Kernel, LetScalar, Seq, Stmt, Store
from relay.plan.parallel import unflattened
from relay.te.scalar import Axis, Scalar, Size, binary, extent_of
from tests.plan.harness import HOST, ZEN4, Maker, Native, check, primitive, tensor

NAMES = [DimVar(name) for name in "bchw"]
B, C, H, W = (as_dim(v) for v in NAMES)


def loop_over(axes: list[Axis], *, moved: bool = False, last: Stmt | None = None) -> For:
    """A loop over axes as one, from a start on if ``moved``."""
    whole: Scalar = extent_of(1)
    for axis in axes:
        whole = binary("mul", whole, extent_of(axis.extent))
    count, number = Axis("t", 1 << 40), Axis("r", 1 << 40)
    body: Stmt = last or Seq(())
    for axis, value in reversed(unflattened(axes, number if moved else count)):
        body = LetScalar(axis, value, body)
    if moved:
        body = LetScalar(number, binary("add", Size(dim_mul(B, 7)), count), body)
    return For(count, whole, body)


@pytest.mark.parametrize("moved", [False, True])
def test_what_a_loop_divides_by_is_found(moved: bool) -> None:
    axes = [Axis(name, size) for name, size in zip("ijkl", (B, C, H, W), strict=True)]
    inner = For(Axis("x", 3), extent_of(3), Seq(()))
    found = digits_of(loop_over(axes, moved=moved, last=inner))
    assert found is not None and found.body is inner
    assert [d.quotient for d in found.digits] == axes[:-1]


def test_quotients_by_numbers_and_by_what_a_loop_changes_stay() -> None:
    assert digits_of(loop_over([Axis("i", B), Axis("j", 8), Axis("k", 4)])) is None
    loop = loop_over([Axis("i", B), Axis("j", C)])
    assert isinstance(loop.body, LetScalar)
    turning = replace(loop.body, value=binary("floordiv", loop.var, binary("add", loop.var, 1)))
    assert digits_of(replace(loop, body=turning)) is None


def test_rows_of_unknown_axes_are_divided_once_for_a_thread() -> None:
    """A mask that heads share keeps axes apart; rows of nothing, of one element and of several vectors, chunks that begin anywhere."""

    def build(m: Maker, x: Expr, mask: Expr) -> Expr:
        return m("nn.softmax", m("add", x, mask))

    sizes = ((2, 3, 5, 17), (1, 1, 1, 1), (3, 2, 7, 40), (2, 3, 1, 0), (2, 0, 4, 4), (5, 7, 3, 2), (2, 3, 40, 40))
    fn = primitive([tensor((B, C, H, W)), tensor((B, 1, H, W))], build)
    plan = check(fn, *(dict(zip(NAMES, each, strict=True)) for each in sizes))
    assert re.search(r"%carried\d+ = phi i64", emit(plan.kernel, ZEN4))


@pytest.mark.parametrize("first", [0, -3])
def test_numbers_below_zero_are_divided(first: int) -> None:
    """Quotients round down, of 0 they are 0."""
    size, count = DimVar("n"), 11
    out, t = Buffer("out", (2 * count,), "int64"), Axis("t", count)
    number, quotient, rest = (Axis(name, 1 << 40) for name in ("x", "q", "rest"))
    body: Stmt = Seq(
        (Store(out, (binary("mul", t, 2),), quotient), Store(out, (binary("add", binary("mul", t, 2), 1),), rest))
    )
    body = LetScalar(rest, binary("sub", number, binary("mul", quotient, Size(as_dim(size)))), body)
    body = LetScalar(quotient, binary("floordiv", number, Size(as_dim(size))), body)
    loop = For(t, extent_of(count), LetScalar(number, binary("add", t, first), body))
    assert digits_of(loop) is not None
    native = Native(Kernel("counted", (), (out,), (size,), loop), HOST)
    for n in (0, 1, 3, 20):
        found = np.zeros((count, 2), np.int64)
        assert native.run(native.bind([found], {size: n})) == 0
        numbers = np.arange(first, first + count)
        wanted = numbers // n if n else np.zeros(count, np.int64)
        np.testing.assert_array_equal(found, np.stack((wanted, numbers - wanted * n), 1))
