"""Scatters and reductions of segments, against loops in NumPy; large ones, their derivatives, and what is an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relay
from relay import te
from relay.ir.diagnostics import RelayError
from relay.ir.dtypes import numpy_dtype
from tests.generator.compare import difference
from tests.op import harness as h
from tests.op.harness import Array, Case, Draw, Drawn

_REDUCTIONS = ("update", "add", "mul", "min", "max")
_TOGETHER: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum, "update": lambda _, new: new,
}  # fmt: skip
HEADER = '#[version = "0.0.5"]\n'


def _wide(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.name in h.FLOATS else x.copy()


def _indices(d: Draw, of: tuple[int, ...], most: int) -> Array:
    return h.array(d, of, d(st.sampled_from(["int32", "int64", "int8"])), -1, most)


def _draw_elements(d: Draw) -> Drawn:
    reduction = d(st.sampled_from(_REDUCTIONS))
    kind = h.dtype(d, h.ALL if reduction == "update" else h.NUMBERS)
    x = h.array(d, h.shape(d, 1, 3, 1), kind)
    axis = h.axis(d, x.ndim)
    of = [d(st.integers(0, s)) for s in x.shape]
    of[axis] = d(st.integers(0, 5))
    operands = (x, _indices(d, tuple(of), x.shape[axis]), h.array(d, of, kind, -2, 2))
    return operands, {"axis": axis, "reduction": reduction}


def _elements(x: Array, indices: Array, updates: Array, axis: int, reduction: str) -> Array:
    out = _wide(x)
    for at in np.ndindex(indices.shape):
        to = list(at)
        to[axis] = int(indices[at])
        if 0 <= to[axis] < x.shape[axis]:
            out[tuple(to)] = _TOGETHER[reduction](out[tuple(to)], updates[at].astype(out.dtype))
    return out.astype(x.dtype)


def _draw_nd(d: Draw) -> Drawn:
    mode = d(st.sampled_from(_REDUCTIONS))
    kind = h.dtype(d, h.ALL if mode == "update" else h.NUMBERS)
    x = h.array(d, h.shape(d, 1, 3, 1), kind)
    count = d(st.integers(0, x.ndim))
    outer = h.shape(d, 0, 2, 0, 3)
    return (x, _indices(d, (count, *outer), 4), h.array(d, (*outer, *x.shape[count:]), kind, -2, 2)), {"mode": mode}


def _nd(x: Array, indices: Array, updates: Array, mode: str) -> Array:
    out = _wide(x)
    for at in np.ndindex(indices.shape[1:]):
        to = tuple(int(n) for n in indices[(slice(None), *at)])
        if all(0 <= n < size for n, size in zip(to, x.shape, strict=False)):
            out[to] = _TOGETHER[mode](out[to], updates[at].astype(out.dtype))
    return out.astype(x.dtype)


def _draw_segments(kinds: tuple[str, ...]) -> Callable[[Draw], Drawn]:
    def draw(d: Draw) -> Drawn:
        x = h.array(d, h.shape(d, 1, 3), h.dtype(d, kinds))
        return (x, _indices(d, x.shape[:1], 4)), {"num_segments": d(st.integers(0, 5))}

    return draw


def _segments(kind: str) -> Callable[..., Array]:
    def expect(x: Array, ids: Array, num_segments: int) -> Array:
        first: Any = 0
        if kind in ("max", "min"):
            bounds = np.iinfo(x.dtype) if x.dtype.name in h.INTEGERS else None
            first = (
                (-np.inf if kind == "max" else np.inf)
                if bounds is None
                else bounds.min
                if kind == "max"
                else bounds.max
            )
        out = np.full((num_segments, *x.shape[1:]), first, _wide(x).dtype)
        counts = np.zeros(num_segments)
        for row, s in zip(_wide(x), ids, strict=True):
            if 0 <= s < num_segments:
                out[s] = _TOGETHER["add" if kind == "mean" else kind](out[s], row)
                counts[s] += 1
        if kind == "mean":
            out /= np.maximum(counts, 1).reshape(-1, *([1] * (x.ndim - 1)))
        return out.astype(x.dtype)

    return expect


CASES = [
    Case("scatter_elements", _draw_elements, _elements),
    Case("scatter_nd", _draw_nd, _nd, symbolic=False),
    Case("segment_sum", _draw_segments(h.NUMBERS), _segments("add")),
    Case("segment_max", _draw_segments(h.NUMBERS), _segments("max")),
    Case("segment_min", _draw_segments(h.NUMBERS), _segments("min")),
    Case("segment_mean", _draw_segments(h.FLOATS), _segments("mean")),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@settings(max_examples=40)
@given(st.data())
def test_against_numpy(case: Case, data: st.DataObject) -> None:
    operands, attrs = case.draw(data.draw)
    h.check(case, operands, attrs)


SEGMENTS = """def @main[n: Dim, e: Dim](%x: Tensor[(e, 24), float32], %to: Tensor[(e,), int32], %like: Tensor[(n,), float32])
    -> Tensor[(n, 24), float32] {{ {} }}"""
FORMS = {
    "segment_sum": "segment_sum(%x, %to, num_segments=Dim[n])",
    "segment_max": "segment_max(%x, %to, num_segments=Dim[n])",
    "segment_min": "segment_min(tanh(%x), %to, num_segments=Dim[n])",
    "segment_mean": "segment_mean(%x * %x, %to, num_segments=Dim[n])",
    "scatter_nd": """scatter_nd(zeros(shape=[Dim[n], 24], dtype="float32"), expand_dims(%to, axis=0), %x, mode="max")""",
    "scatter_elements": """scatter_elements(ones(shape=[Dim[n], 24], dtype="float32"),
        repeat(expand_dims(%to, axis=1), repeats=24, axis=1), %x)""",
}


@pytest.mark.parametrize("form", sorted(FORMS))
def test_derivatives_are_made_where_values_go(form: str) -> None:
    """One pass over the values each: where every element asked every value, this would take minutes."""
    module = relay.parse(HEADER + SEGMENTS.format(FORMS[form]))
    n, e = 3000, 100_000
    generator = np.random.default_rng(0)
    x = generator.standard_normal((e, 24)).astype(np.float32)
    to = generator.integers(-1, n + 1, e).astype(np.int32)
    like = np.zeros(n, np.float32)
    tangents = (generator.standard_normal(x.shape).astype(np.float32), to, like)
    for derived, args in (
        (module, (x, to, like)),
        (relay.value_and_grad(module), (x, to, like)),
        (relay.jvp(module), (x, to, like, *tangents)),
    ):
        small = tuple(a[:40] if a.shape[:1] == (e,) else a[:7] for a in args)
        few = tuple(np.minimum(a, 8) if a.dtype == np.int32 else a for a in small)
        assert (
            difference(
                relay.evaluate(derived, *few), relay.compile(derived, options=relay.Options(check_memory=True))(*few)
            )
            is None
        )
        once, twice = (relay.compile(derived, threads=t)(*args) for t in (1, 2))
        assert difference(once, twice) is None


def test_what_cannot_be_scattered_is_an_error() -> None:
    x, y = np.zeros((3, 2), np.float32), np.zeros((4, 2), np.float64)
    ids = np.zeros(4, np.int32)
    for name, operands, attrs, message in (
        ("scatter_elements", (x, ids, x), {}, "operands have ranks 2, 1 and 2"),
        ("scatter_elements", (x, np.zeros((4, 2), np.int32), y), {}, "must have one dtype, not float32 and float64"),
        ("scatter_nd", (x, np.zeros((3, 2), np.int32), x[:2, 0]), {}, "3 indices for data of rank 2"),
        ("segment_sum", (y, ids[:3]), {"num_segments": 2}, "rows of segment_sum's data and its segment ids"),
        ("segment_mean", (ids, ids), {"num_segments": 2}, "segment_mean needs a floating-point tensor, not int32"),
        ("segment_max", (x, ids[:3]), {"num_segments": -1}, "must not be negative: -1"),
    ):
        with pytest.raises((RelayError, te.DefinitionError), match=message):
            h.apply(name, *operands, **dict[str, Any](attrs))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_of_sixteen_bits_do_not_stop_growing(dtype: str) -> None:
    """The gradient of rows that are looked up many times."""
    loss = relay.parse(
        f"{HEADER}def @main(%t: Tensor[(4, 3), {dtype}], %i: Tensor[(9000,), int32]) -> {dtype} {{ sum(take(%t, %i, axis=0)) }}"
    )
    gradient = relay.grad(loss, argnums=0)
    table, rows = np.ones((4, 3), numpy_dtype(dtype)), np.arange(9000, dtype=np.int32) % 10 // 9
    wanted = np.asarray(relay.evaluate(gradient, table, rows)).astype(np.float32)
    np.testing.assert_allclose(wanted[:2], [[8100] * 3, [900] * 3], rtol=1e-2)
    np.testing.assert_array_equal(np.asarray(relay.compile(gradient)(table, rows)).astype(np.float32), wanted)
