"""Structural keys: what shares a kernel and what does not."""

from __future__ import annotations

from relay.ir.dim import DimVar, as_dim
from relay.ir.expr import Function
from relay.loop.target import Target
from relay.plan import plan_key
from tests.plan.harness import primitive, tensor

TARGET = Target("x86_64-unknown-linux-gnu")
NONE: frozenset[int] = frozenset()


def dense(name: str, units: int = 8, lo: int = 0) -> tuple[Function, DimVar]:
    var = DimVar(name, lo)
    fn = primitive([tensor((as_dim(var), 16)), tensor((units, 16))], lambda m, x, w: m("nn.dense", x, w))
    return fn, var


def test_equal_up_to_names() -> None:
    (a, n), (b, k) = dense("n"), dense("k")
    first, second = plan_key(a, TARGET, NONE), plan_key(b, TARGET, NONE)
    assert first.text == second.text
    assert first.dims == (n,) and second.dims == (k,)


def test_different_in_shape_constants_target_bounds_or_attributes() -> None:
    base = plan_key(dense("n")[0], TARGET, NONE).text
    assert plan_key(dense("n", 9)[0], TARGET, NONE).text != base
    assert plan_key(dense("n")[0], TARGET, frozenset({1})).text != base
    assert plan_key(dense("n")[0], Target("aarch64-unknown-linux-gnu"), NONE).text != base
    assert plan_key(dense("n", lo=1)[0], TARGET, NONE).text != base
    one = primitive([tensor((4, 5))], lambda m, x: m("sum", x, axis=0))
    two = primitive([tensor((4, 5))], lambda m, x: m("sum", x, axis=1))
    assert plan_key(one, TARGET, NONE).text != plan_key(two, TARGET, NONE).text


def test_sharing_is_part_of_the_structure() -> None:
    same = primitive([tensor((4,)), tensor((4,))], lambda m, x, y: m("add", x, x))
    both = primitive([tensor((4,)), tensor((4,))], lambda m, x, y: m("add", x, y))
    assert plan_key(same, TARGET, NONE).text != plan_key(both, TARGET, NONE).text
