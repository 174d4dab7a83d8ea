"""Elementwise operators against NumPy and Python's math."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay import te
from tests.op import harness as h
from tests.op.harness import Array, Case, Draw, Drawn


def _unary(name: str, fn: Callable[[Array], Any], dtypes: tuple[str, ...], low: float = -4, high: float = 4) -> Case:
    def draw(d: Draw) -> Drawn:
        return (h.array(d, h.shape(d), h.dtype(d, dtypes), low, high),), {}

    return Case(name, draw, lambda x: np.asarray(fn(h.wide(x))).astype(x.dtype))


def _question(name: str, fn: Callable[[Array], Any]) -> Case:
    def draw(d: Draw) -> Drawn:
        x = h.array(d, h.shape(d, 1, 2, 1), h.dtype(d, h.ALL))
        if x.dtype.name in h.FLOATS:
            x.flat[0] = d(st.sampled_from([math.nan, math.inf, -math.inf, 0.0]))
        return (x,), {}

    return Case(name, draw, lambda x: np.asarray(fn(x.astype(np.float64))))


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _sigmoid(x: Array) -> Any:
    return 1 / (1 + np.exp(-x.astype(np.float64)))


def _draw_cast(d: Draw) -> Drawn:
    source, target = h.dtype(d, (*h.ALL, "int4", "uint4")), h.dtype(d, (*h.ALL, "int4", "uint4"))
    reach = 7 if source == "int4" else 15 if source == "uint4" else 100
    return (h.array(d, h.shape(d), source, -min(reach, 8) if source == "int4" else -reach, reach),), {"dtype": target}


def _cast(x: Array, dtype: str) -> Array:
    """Element by element, in Python's exact numbers."""
    values = [v for v in x.astype(np.float64).ravel().tolist()]
    out: list[Any] = []
    for v in values:
        if dtype == "bool":
            out.append(v != 0)
        elif dtype in h.FLOATS:
            out.append(v)
        else:
            bits, signed = int(dtype.lstrip("uint")), dtype[0] == "i"
            low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
            n = int(v)
            out.append(min(max(n, low), high) if x.dtype.name in h.FLOATS else (n - low) % (2**bits) + low)
    wide = np.float64 if dtype in h.FLOATS else object if "64" in dtype else bool if dtype == "bool" else np.int64
    return np.array(out, wide).astype(h.numpy_dtype(dtype)).reshape(x.shape)


def _draw_clip(d: Draw) -> Drawn:
    low = d(st.integers(-3, 2))
    return (h.array(d, h.shape(d), h.dtype(d, h.NUMBERS)),), {"a_min": low, "a_max": low + d(st.integers(0, 3))}


def _clip(x: Array, a_min: float, a_max: float) -> Array:
    if x.dtype.name.startswith("u"):
        a_min, a_max = max(a_min, 0), max(a_max, 0)
    return np.clip(h.wide(x), a_min, a_max).astype(x.dtype)


def _draw_pair(d: Draw) -> Drawn:
    return (h.array(d, h.shape(d), h.dtype(d, h.NUMBERS), 0, 7), h.array(d, h.shape(d), h.dtype(d, h.NUMBERS))), {}


def _draw_float(d: Draw) -> Drawn:
    return (h.array(d, h.shape(d), h.dtype(d, h.FLOATS)),), {}


def _draw_leaky(d: Draw) -> Drawn:
    return _draw_float(d)[0], {"alpha": d(st.sampled_from([0.01, 0.25, 1.0]))}


def _draw_dropout(d: Draw) -> Drawn:
    return _draw_float(d)[0], {"rate": d(st.sampled_from([0.0, 0.1, 0.5]))}


CASES = [
    _unary("exp", np.exp, h.FLOATS),
    _unary("log", np.log, h.FLOATS, 0.1, 9),
    _unary("log2", np.log2, h.FLOATS, 0.1, 9),
    _unary("log10", np.log10, h.FLOATS, 0.1, 9),
    _unary("log1p", np.log1p, h.FLOATS, -0.5, 9),
    _unary("expm1", np.expm1, h.FLOATS),
    _unary("sqrt", np.sqrt, h.FLOATS, 0, 9),
    _unary("rsqrt", lambda x: 1 / np.sqrt(x), h.FLOATS, 0.1, 9),
    _unary("sigmoid", _sigmoid, h.FLOATS, -9, 9),
    _unary("tanh", np.tanh, h.FLOATS),
    _unary("sin", np.sin, h.FLOATS),
    _unary("cos", np.cos, h.FLOATS),
    _unary("tan", np.tan, h.FLOATS, -1.4, 1.4),
    _unary("asin", np.arcsin, h.FLOATS, -0.9, 0.9),
    _unary("acos", np.arccos, h.FLOATS, -0.9, 0.9),
    _unary("atan", np.arctan, h.FLOATS),
    _unary("sinh", np.sinh, h.FLOATS),
    _unary("cosh", np.cosh, h.FLOATS),
    _unary("erf", _erf, h.FLOATS),
    _unary("abs", np.abs, h.NUMBERS),
    _unary("negative", np.negative, h.NUMBERS),
    _unary("sign", np.sign, h.NUMBERS),
    _unary("floor", np.floor, h.NUMBERS),
    _unary("ceil", np.ceil, h.NUMBERS),
    _unary("round", np.round, h.NUMBERS),
    _unary("trunc", np.trunc, h.NUMBERS),
    _question("isnan", np.isnan),
    _question("isinf", np.isinf),
    _question("isfinite", np.isfinite),
    _unary("logical_not", np.logical_not, ("bool",)),
    _unary("bitwise_not", np.invert, (*h.INTEGERS, "bool")),
    Case("clip", _draw_clip, _clip),
    Case("cast", _draw_cast, _cast),
    Case("cast_like", _draw_pair, lambda x, y: _cast(x, y.dtype.name)),
    _unary("copy", lambda x: x, h.ALL),
    _unary("stop_gradient", lambda x: x, h.ALL),
    _unary("nn.relu", lambda x: np.maximum(x, 0), h.NUMBERS),
    Case("nn.leaky_relu", _draw_leaky, lambda x, alpha: np.where(x > 0, h.wide(x), h.wide(x) * alpha).astype(x.dtype)),
    _unary("nn.gelu", lambda x: x * 0.5 * (1 + _erf(x / math.sqrt(2))), h.FLOATS),
    Case("nn.dropout", _draw_dropout, lambda x, rate: (x, np.ones_like(x))),
    _unary("nn.silu", lambda x: x * _sigmoid(x), h.FLOATS),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_against_numpy(case: Case, data: st.DataObject) -> None:
    operands, attrs = case.draw(data.draw)
    h.check(case, operands, attrs)


def test_copy_is_fresh() -> None:
    x = np.arange(3, dtype=np.float32)
    y = h.apply("copy", x)
    y[0] = 7
    assert x[0] == 0


@pytest.mark.parametrize("name", ["exp", "sqrt", "nn.gelu", "sigmoid"])
def test_functions_of_reals_refuse_integers(name: str) -> None:
    with pytest.raises(te.DefinitionError, match="floating-point tensor, not int32"):
        h.apply(name, np.ones(2, np.int32))


def test_cast_saturates_and_wraps() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 3e9, -7.9], np.float32)
    np.testing.assert_array_equal(h.apply("cast", x, dtype="int32"), [0, 2**31 - 1, -(2**31), 2**31 - 1, -7])
    np.testing.assert_array_equal(h.apply("cast", x, dtype="uint8"), [0, 255, 0, 255, 0])
    np.testing.assert_array_equal(h.apply("cast", np.array([300, -1], np.int32), dtype="int8"), [44, -1])


def test_cast_to_nothing_known() -> None:
    with pytest.raises(te.DefinitionError, match="no dtype 'float33'"):
        h.apply("cast", np.ones(2, np.float32), dtype="float33")
