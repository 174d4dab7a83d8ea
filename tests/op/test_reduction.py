"""Reductions, softmax and normalisations against NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay import te
from tests.op import harness as h
from tests.op.harness import Array, Case, Draw, Drawn

Axes = int | tuple[int, ...] | None


def _over(x: Array, axis: Axes, exclude: bool) -> tuple[int, ...]:
    if axis is None:
        return () if exclude else tuple(range(x.ndim))
    chosen = {a % x.ndim for a in ((axis,) if isinstance(axis, int) else axis)}
    return tuple(n for n in range(x.ndim) if (n in chosen) != exclude)


def _draw(dtypes: Sequence[str], low: float = -2, high: float = 2, least: int = 0) -> Callable[[Draw], Drawn]:
    def draw(d: Draw) -> Drawn:
        of = h.shape(d, 0, 3, least)
        attrs: dict[str, Any] = {"axis": h.axes(d, len(of)), "keepdims": d(st.booleans()), "exclude": d(st.booleans())}
        return (h.array(d, of, h.dtype(d, dtypes), low, high),), attrs

    return draw


def _reduction(
    name: str, fn: Callable[..., Any], dtypes: Sequence[str], low: float = -2, high: float = 2, least: int = 0
) -> Case:
    def expect(x: Array, axis: Axes, keepdims: bool, exclude: bool) -> Array:
        return np.asarray(
            fn(x.astype(np.float64) if x.dtype.name in h.FLOATS else x, axis=_over(x, axis, exclude), keepdims=keepdims)
        ).astype(x.dtype)

    return Case(name, _draw(dtypes, low, high, least), expect)


def _extreme(name: str, fn: Callable[..., Any], empty: Callable[[str], Any]) -> Case:
    def expect(x: Array, axis: Axes, keepdims: bool, exclude: bool) -> Array:
        over = _over(x, axis, exclude)
        if over and 0 in [x.shape[n] for n in over]:
            shape = [1 if n in over else s for n, s in enumerate(x.shape) if keepdims or n not in over]
            return np.full(shape, empty(x.dtype.name)).astype(x.dtype)
        return np.asarray(fn(h.wide(x), axis=over, keepdims=keepdims)).astype(x.dtype)

    return Case(name, _draw((*h.FLOATS, "int8", "int32", "uint8", "bool")), expect)


def _least(kind: str) -> Any:
    return -np.inf if kind in h.FLOATS else False if kind == "bool" else np.iinfo(kind).min


def _greatest(kind: str) -> Any:
    return np.inf if kind in h.FLOATS else True if kind == "bool" else np.iinfo(kind).max


def _position(name: str, fn: Callable[..., Any]) -> Case:
    def draw(d: Draw) -> Drawn:
        (x,), attrs = _draw(("float32", "int32", "uint8", "float16", "bool"), -2, 2, 1)(d)
        return (x,), {**attrs, "dtype": d(st.sampled_from(["int32", "int64"]))}

    def expect(x: Array, axis: Axes, keepdims: bool, exclude: bool, dtype: str) -> Array:
        over = _over(x, axis, exclude)
        rest = [n for n in range(x.ndim) if n not in over]
        flat = h.wide(x).transpose([*rest, *over]).reshape([x.shape[n] for n in rest] + [-1])
        found = fn(flat, axis=-1)
        return np.asarray(np.expand_dims(found, over) if keepdims else found).astype(dtype)

    return Case(name, draw, expect)


def _draw_scan(d: Draw) -> Drawn:
    of = h.shape(d, 1, 3)
    attrs: dict[str, Any] = {"exclusive": d(st.booleans()), "dtype": d(st.sampled_from(["", "float64", "int64"]))}
    if len(of) > 1 or d(st.booleans()):
        attrs["axis"] = h.axis(d, len(of))
    return (h.array(d, of, h.dtype(d, ("float32", "float64", "float16", "int32", "int8")), -2, 2),), attrs


def _scanned(fn: Callable[..., Any], start: int) -> Callable[..., Any]:
    def expect(x: Array, exclusive: bool, dtype: str, axis: int = 0) -> Array:
        kind = np.dtype(dtype or x.dtype)
        held = np.dtype(np.float32) if kind == np.float16 else kind
        values = x.astype(held)
        if exclusive:
            first = np.full([1 if n == axis % x.ndim else s for n, s in enumerate(x.shape)], start, held)
            values = np.concatenate([first, np.delete(values, -1, axis)], axis) if x.shape[axis] else values
        return np.asarray(fn(values, axis=axis, dtype=held).astype(kind))

    return expect


def _logsumexp(x: Array, axis: Any, keepdims: bool) -> Any:
    return np.log(np.sum(np.exp(x), axis=axis, keepdims=keepdims))


def _softmax(x: Array, axis: int) -> Array:
    e = np.exp(x.astype(np.float64))
    out: Array = (e / e.sum(axis, keepdims=True)).astype(x.dtype)
    return out


def _log_softmax(x: Array, axis: int) -> Array:
    wide = x.astype(np.float64)
    out: Array = (wide - np.log(np.exp(wide).sum(axis, keepdims=True))).astype(x.dtype)
    return out


def _draw_axis(d: Draw) -> Drawn:
    of = h.shape(d, 1, 3)
    return (h.array(d, of, h.dtype(d, h.FLOATS)),), {"axis": h.axis(d, len(of))}


def _draw_l2(d: Draw) -> Drawn:
    of = h.shape(d, 1, 3, 1)
    return (h.array(d, of, h.dtype(d, h.FLOATS)),), {
        "axis": h.axes(d, len(of)),
        "eps": d(st.sampled_from([1e-12, 1.0])),
    }


def _l2(x: Array, axis: Axes, eps: float) -> Array:
    wide = x.astype(np.float64)
    total = (wide * wide).sum(_over(x, axis, False), keepdims=True)
    out: Array = (wide / np.sqrt(np.maximum(total, eps))).astype(x.dtype)
    return out


def _draw_norm(vectors: int, first: int = 0) -> Callable[[Draw], Drawn]:
    def draw(d: Draw) -> Drawn:
        of, kind = h.shape(d, 1 + first, 4, 1), h.dtype(d, h.FLOATS)
        axis = d(st.integers(first, len(of) - 1))
        attrs: dict[str, Any] = {"axis": axis - len(of) if d(st.booleans()) else axis, "epsilon": 1e-3}
        attrs |= {"center": d(st.booleans()), "scale": d(st.booleans())}
        weights = [h.array(d, (of[axis],), kind, 0.5, 2) for _ in range(vectors)]
        return (h.array(d, of, kind), *weights), attrs

    return draw


def _normal(
    x: Array, mean: Array, var: Array, g: Array, b: Array, axis: int, epsilon: float, center: bool, scale: bool
) -> Array:
    shape = [1] * x.ndim
    shape[axis] = -1
    out = (x - mean) / np.sqrt(var + epsilon)
    out = out * g.astype(np.float64).reshape(shape) if scale else out
    return out + b.astype(np.float64).reshape(shape) if center else out


def _normalised(over: Callable[[int, int], tuple[int, ...]]) -> Callable[..., Array]:
    def expect(x: Array, g: Array, b: Array, axis: int, **attrs: Any) -> Array:
        wide, axes = x.astype(np.float64), over(x.ndim, axis % x.ndim)
        mean, var = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
        return _normal(wide, mean, var, g, b, axis, **attrs).astype(x.dtype)

    return expect


def _batch_norm(
    x: Array, g: Array, b: Array, mean: Array, var: Array, axis: int, **attrs: Any
) -> tuple[Array, Array, Array]:
    shape = [1] * x.ndim
    shape[axis] = -1
    m, v = (a.astype(np.float64).reshape(shape) for a in (mean, var))
    return _normal(x.astype(np.float64), m, v, g, b, axis, **attrs).astype(x.dtype), mean, var


def _draw_group_norm(d: Draw) -> Drawn:
    groups, size, kind = d(st.integers(1, 3)), d(st.integers(1, 3)), h.dtype(d, h.FLOATS)
    of = (d(st.integers(1, 3)), groups * size, *h.shape(d, 0, 2, 1))
    data = h.array(d, of, kind)
    weights = [h.array(d, (of[1],), kind, 0.5, 2) for _ in range(2)]
    return (data, *weights), {"num_groups": groups, "epsilon": 1e-3}


def _group_norm(x: Array, g: Array, b: Array, num_groups: int, epsilon: float) -> Array:
    grouped = x.astype(np.float64).reshape(x.shape[0], num_groups, -1)
    normal = (grouped - grouped.mean(2, keepdims=True)) / np.sqrt(grouped.var(2, keepdims=True) + epsilon)
    along = (-1,) + (1,) * (x.ndim - 2)
    out: Array = (
        normal.reshape(x.shape) * g.astype(np.float64).reshape(along) + b.astype(np.float64).reshape(along)
    ).astype(x.dtype)
    return out


_NUMBERS = ("float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8")
# Half an ulp of the 16-bit result after cancellation.
_LOOSE = {"bfloat16": 6e-2, "float16": 1e-2, "float32": 2e-4}
CASES = [
    _reduction("sum", np.sum, _NUMBERS, -1, 1),
    _reduction("prod", np.prod, _NUMBERS, 0, 1.5),
    _extreme("max", np.max, _least),
    _extreme("min", np.min, _greatest),
    _reduction("all", np.all, ("bool",)),
    _reduction("any", np.any, ("bool",)),
    _reduction("mean", np.mean, h.FLOATS, least=1),
    _reduction("variance", np.var, h.FLOATS, least=1),
    _reduction("std", np.std, ("float32", "float64"), least=1),
    _reduction("logsumexp", _logsumexp, h.FLOATS, least=1),
    _position("argmax", np.argmax),
    _position("argmin", np.argmin),
    Case("cumsum", _draw_scan, _scanned(np.cumsum, 0)),
    Case("cumprod", _draw_scan, _scanned(np.cumprod, 1)),
    Case("nn.softmax", _draw_axis, _softmax),
    Case("nn.log_softmax", _draw_axis, _log_softmax),
    Case("nn.l2_normalize", _draw_l2, _l2),
    Case("nn.layer_norm", _draw_norm(2), _normalised(lambda rank, axis: (axis,)), tolerance=_LOOSE),
    Case("nn.batch_norm", _draw_norm(4), _batch_norm, tolerance=_LOOSE),
    Case(
        "nn.instance_norm",
        _draw_norm(2, 1),
        _normalised(lambda rank, axis: tuple(n for n in range(1, rank) if n != axis)),
        tolerance=_LOOSE,
    ),
    Case("nn.group_norm", _draw_group_norm, _group_norm, symbolic=False, tolerance=_LOOSE),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_against_numpy(case: Case, data: st.DataObject) -> None:
    operands, attrs = case.draw(data.draw)
    h.check(case, operands, attrs)


@pytest.mark.parametrize(("dtype", "least"), [("float32", -86.0), ("float64", -707.0)])
def test_weights_are_no_subnormal_numbers(dtype: str, least: float) -> None:
    x = np.array([3.0, 3 + least, 2 + least, least - 5, -np.inf], dtype)
    weights = np.exp([0.0, least, -np.inf, -np.inf, -np.inf])
    np.testing.assert_allclose(h.apply("nn.softmax", x), weights, rtol=1e-6, atol=0)
    np.testing.assert_allclose(h.apply("nn.log_softmax", x), x - 3, rtol=1e-6)
    np.testing.assert_array_equal(h.apply("logsumexp", x), np.asarray(3, dtype))


def test_softmax_of_large_numbers() -> None:
    x = np.array([1000.0, 1000.0, -1000.0], np.float32)
    np.testing.assert_allclose(h.apply("nn.softmax", x), [0.5, 0.5, 0.0])
    np.testing.assert_allclose(h.apply("nn.log_softmax", x), [-np.log(2), -np.log(2), -2000 - np.log(2)], rtol=1e-6)
    np.testing.assert_allclose(h.apply("logsumexp", x), 1000 + np.log(2), rtol=1e-6)


def test_logsumexp_of_infinities() -> None:
    x = np.array([[-np.inf, -np.inf], [np.inf, 0.0]], np.float32)
    np.testing.assert_array_equal(h.apply("logsumexp", x, axis=1), [-np.inf, np.inf])


def test_half_precision_sums_are_accumulated_wide() -> None:
    x = np.full(4096, 0.1, np.float16)
    assert abs(float(h.apply("sum", x)) - 409.5) < 0.5
    assert abs(float(h.apply("mean", x)) - 0.1) < 1e-3


def test_maximum_passes_nan_on() -> None:
    assert np.isnan(h.apply("max", np.array([1.0, np.nan, 2.0], np.float32)))
    assert h.apply("argmax", np.array([1.0, np.nan, 2.0], np.float32)) == 1


def test_axis_out_of_range() -> None:
    with pytest.raises(te.DefinitionError, match=r"rank 2, so axis 2 is not in \[-2, 2\)"):
        h.apply("sum", np.ones((2, 2), np.float32), axis=2)
    with pytest.raises(te.DefinitionError, match="not distinct"):
        h.apply("sum", np.ones((2, 2), np.float32), axis=(0, -2))


def test_large_reductions_are_cut_in_pieces() -> None:
    x = np.random.default_rng(0).integers(0, 3, (3000, 3001)).astype(np.int32)
    assert h.apply("sum", x) == x.sum(dtype=np.int32)
    np.testing.assert_array_equal(h.apply("max", x, axis=0), x.max(0))
    np.testing.assert_array_equal(h.apply("argmax", x, axis=1), x.argmax(1))
