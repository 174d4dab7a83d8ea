"""Broadcasting operators against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relay
from relay import te
from relay.ir.diagnostics import ExecutionError
from tests.op import harness as h
from tests.op.harness import Array, Case, Draw, Drawn


def _binary(
    name: str,
    fn: Callable[[Array, Array], Any],
    dtypes: tuple[str, ...],
    low: float = -4,
    high: float = 4,
    second: tuple[float, float] | None = None,
) -> Case:
    def draw(d: Draw) -> Drawn:
        of, kind = h.shape(d), h.dtype(d, dtypes)
        a, b = h.broadcastable(d, of), of
        if d(st.booleans()):
            a, b = b, a
        return (h.array(d, a, kind, low, high), h.array(d, b, kind, *(second or (low, high)))), {}

    return Case(name, draw, lambda a, b: np.asarray(fn(h.wide(a), h.wide(b))).astype(a.dtype))


def _compare(name: str, fn: Callable[[Array, Array], Any]) -> Case:
    base = _binary(name, fn, h.ALL, -2, 2)
    return Case(name, base.draw, lambda a, b: np.asarray(fn(a, b)))


def _nonzero(case: Case, *, exact: bool) -> Case:
    """The second operand without zeros; with ``exact`` floats are small integers over powers of two, so quotients do not jump."""

    def draw(d: Draw) -> Drawn:
        (a, b), attrs = case.draw(d)
        assert isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
        if exact and a.dtype.name in h.FLOATS:
            a, b = (np.asarray(np.round(h.wide(x) * 2) / 2).astype(x.dtype) for x in (a, b))
            b = np.asarray(
                np.where(b != 0, np.sign(h.wide(b)) * 2.0 ** np.floor(np.log2(np.abs(h.wide(b)) + (b == 0))), 1)
            ).astype(a.dtype)
        else:
            b = np.where(b == 0, np.ones_like(b), b)
        return (a, b), attrs

    return Case(case.name, draw, case.expect)


def _truncated(a: Array, b: Array) -> Any:
    if a.dtype.kind == "f":
        return a / b
    return np.trunc(a.astype(np.float64) / b.astype(np.float64))


def _draw_where(d: Draw) -> Drawn:
    of, kind = h.shape(d), h.dtype(d, h.ALL)
    condition = h.array(d, h.broadcastable(d, of), d(st.sampled_from(["bool", "int32", "float32"])), 0, 1)
    return (condition, h.array(d, of, kind), h.array(d, h.broadcastable(d, of), kind)), {}


def _draw_broadcast_to(d: Draw) -> Drawn:
    to = h.shape(d)
    return (h.array(d, h.broadcastable(d, to), h.dtype(d, h.ALL)),), {"shape": to}


def _draw_broadcast_like(d: Draw) -> Drawn:
    to = h.shape(d)
    return (h.array(d, h.broadcastable(d, to), h.dtype(d, h.ALL)), h.array(d, to, "float32")), {}


def _draw_collapse(d: Draw) -> Drawn:
    of = h.shape(d)
    kind = h.dtype(d, ("float32", "float64", "int32"))
    return (h.array(d, of, kind), h.array(d, h.broadcastable(d, of), kind)), {}


def _collapse(x: Array, to: Array) -> Array:
    lead = x.ndim - to.ndim
    out = x.sum(tuple(range(lead)), dtype=x.dtype)
    gone = tuple(n for n, size in enumerate(to.shape) if size == 1)
    return np.asarray(out.sum(gone, keepdims=True, dtype=x.dtype))


def _draw_channel(dtypes: tuple[str, ...]) -> Callable[[Draw], Drawn]:
    def draw(d: Draw) -> Drawn:
        of, kind = h.shape(d, 2, 4), h.dtype(d, dtypes)
        axis = h.axis(d, len(of))
        return (h.array(d, of, kind), h.array(d, (of[axis],), kind)), {"axis": axis}

    return draw


def _along(v: Array, x: Array, axis: int) -> Array:
    shape = [1] * x.ndim
    shape[axis] = -1
    return v.reshape(shape)


_BITS = (*h.INTEGERS, "bool")
CASES = [
    _binary("add", np.add, h.NUMBERS),
    _binary("subtract", np.subtract, h.NUMBERS),
    _binary("multiply", np.multiply, h.NUMBERS),
    _nonzero(_binary("divide", _truncated, h.NUMBERS), exact=False),
    _nonzero(_binary("floor_divide", np.floor_divide, h.NUMBERS), exact=True),
    _nonzero(_binary("mod", np.fmod, h.NUMBERS), exact=True),
    _nonzero(_binary("floor_mod", np.mod, h.NUMBERS), exact=True),
    _binary("power", np.power, h.FLOATS, 0.25, 4, (-2, 2)),
    _binary("maximum", np.maximum, h.ALL),
    _binary("minimum", np.minimum, h.ALL),
    _binary("logical_and", np.logical_and, ("bool",)),
    _binary("logical_or", np.logical_or, ("bool",)),
    _binary("logical_xor", np.logical_xor, ("bool",)),
    _binary("bitwise_and", np.bitwise_and, _BITS),
    _binary("bitwise_or", np.bitwise_or, _BITS),
    _binary("bitwise_xor", np.bitwise_xor, _BITS),
    _binary("left_shift", np.left_shift, h.INTEGERS, second=(0, 6)),
    _binary("right_shift", np.right_shift, h.INTEGERS, -100, 100, second=(0, 6)),
    _compare("equal", np.equal),
    _compare("not_equal", np.not_equal),
    _compare("less", np.less),
    _compare("less_equal", np.less_equal),
    _compare("greater", np.greater),
    _compare("greater_equal", np.greater_equal),
    Case("where", _draw_where, lambda c, x, y: np.where(c.astype(bool), x, y)),
    Case("broadcast_to", _draw_broadcast_to, lambda x, shape: np.broadcast_to(x, shape)),
    Case("broadcast_to_like", _draw_broadcast_like, lambda x, to: np.broadcast_to(x, to.shape)),
    Case("collapse_sum_like", _draw_collapse, _collapse),
    Case(
        "nn.bias_add",
        _draw_channel(h.NUMBERS),
        lambda x, b, axis: (h.wide(x) + h.wide(_along(b, x, axis))).astype(x.dtype),
    ),
    Case(
        "nn.prelu",
        _draw_channel(h.FLOATS),
        lambda x, a, axis: np.where(x > 0, h.wide(x), h.wide(x) * h.wide(_along(a, x, axis))).astype(x.dtype),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_against_numpy(case: Case, data: st.DataObject) -> None:
    operands, attrs = case.draw(data.draw)
    h.check(case, operands, attrs)


def test_operands_of_two_dtypes() -> None:
    with pytest.raises(te.DefinitionError, match="one dtype, not float32 and int32"):
        h.apply("add", np.ones(2, np.float32), np.ones(2, np.int32))


def test_shapes_that_do_not_broadcast() -> None:
    with pytest.raises(te.DefinitionError, match="add's operands must agree: 2 and 3"):
        h.apply("add", np.ones(2, np.float32), np.ones(3, np.float32))


def test_integer_division_by_zero_is_zero() -> None:
    x, zero = np.array([7, -7], np.int32), np.zeros(2, np.int32)
    for name in ("divide", "floor_divide", "mod", "floor_mod"):
        np.testing.assert_array_equal(h.apply(name, x, zero), [0, 0])


def test_signs_of_remainders() -> None:
    x, y = np.array([7, -7, 7, -7], np.int32), np.array([3, 3, -3, -3], np.int32)
    np.testing.assert_array_equal(h.apply("divide", x, y), [2, -2, -2, 2])
    np.testing.assert_array_equal(h.apply("mod", x, y), [1, -1, 1, -1])
    np.testing.assert_array_equal(h.apply("floor_divide", x, y), [2, -3, -3, 2])
    np.testing.assert_array_equal(h.apply("floor_mod", x, y), [1, 2, -2, -1])


ROWS = """#[version = "0.0.5"]
def @main[n: Dim, m: Dim](%x: Tensor[(n, 3), float32], %y: Tensor[(m, 3), float32]) {
  let %first = strided_slice(%y, begin=[0], end=[1]);
  let %last = strided_slice(%x, begin=[-1], end=[Dim[n]]);
  let %picked = where(%last > %x, %x * %first, exp(%x));
  let %scores = einsum((expand_dims(%picked, axis=1), expand_dims(%first, axis=2)), equation="...ij,...jk->...ik");
  (sum(%picked * %picked), sum(%scores))
}"""


def test_slices_of_one_row_broadcast_to_as_many_rows_as_a_run_has() -> None:
    """A size that is 1 at most is not taken for one that must be equal to the other."""
    module = relay.parse(ROWS)
    exe, slopes = relay.compile(module), relay.grad(relay.parse(ROWS), argnums=(0, 1))
    compiled = relay.compile(slopes)
    random = np.random.default_rng(0)
    for n, m in (5, 4), (1, 1), (2, 1), (1, 7), (0, 0), (0, 3):
        x, y = (random.normal(size=(rows, 3)).astype(np.float32) for rows in (n, m))
        picked = np.where(x[-1:] > x, x * y[:1], np.exp(x))
        wanted = (np.sum(picked * picked), np.sum(picked * y[:1]))
        results: list[Any] = [relay.evaluate(module, x, y), exe(x, y)]
        for found in results:
            np.testing.assert_allclose([np.asarray(v) for v in found], wanted, rtol=1e-4)
        by_interpreter, by_kernels = cast(Any, relay.evaluate(slopes, x, y)), cast(Any, compiled(x, y))
        for a, b in zip(by_interpreter, by_kernels, strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-4, atol=1e-4)
    with pytest.raises(ExecutionError, match="must agree unless the second is 1: 4 and 0"):
        exe(np.ones((4, 3), np.float32), np.ones((0, 3), np.float32))
