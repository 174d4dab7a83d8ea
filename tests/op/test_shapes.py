"""Operators that move elements, views, slices and reads through indices, against NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relay
from relay import te
from relay.ir.dim import DimVar, as_dim, dim_var
from relay.op import registry
from tests.op import harness as h
from tests.op.harness import Array, Case, Draw, Drawn


def _any(d: Draw, low: int = 0, high: int = 3, least: int = 0) -> Array:
    return h.array(d, h.shape(d, low, high, least), h.dtype(d, h.ALL))


def _with_axis(extra: int = 0, least: int = 0) -> Callable[[Draw], Drawn]:
    def draw(d: Draw) -> Drawn:
        x = _any(d, 1 - extra, 3, least)
        return (x,), {"axis": h.axis(d, x.ndim + extra)}

    return draw


# -- views


def _draw_reshape(d: Draw) -> Drawn:
    x = _any(d, 0, 3, 1)
    codes: list[int] = []
    style = d(st.sampled_from(["flat", "same", "infer", "rest", "merge", "split", "ones"]))
    match style:
        case "flat":
            codes = [-1]
        case "same":
            codes = [0] * x.ndim
        case "infer" if x.ndim:
            at = d(st.integers(0, x.ndim - 1))
            codes = [-1 if n == at else s for n, s in enumerate(x.shape)]
        case "rest":
            codes = [-2, 1] if d(st.booleans()) else [0, -2] if x.ndim else [-2]
        case "merge" if x.ndim >= 2:
            codes = [-3, -2]
        case "split" if x.ndim:
            codes = [-4, x.shape[0], -1, -2]
        case _:
            codes = [1, *x.shape, 1]
    return (x,), {"newshape": tuple(codes)}


def _reshaped(x: Array, newshape: tuple[int, ...]) -> Array:
    out: list[int] = []
    at = 0
    codes = list(newshape)
    while codes:
        c = codes.pop(0)
        if c == 0:
            out.append(x.shape[at])
            at += 1
        elif c == -2:
            out += x.shape[at:]
            at = x.ndim
        elif c == -3:
            out.append(x.shape[at] * x.shape[at + 1])
            at += 2
        elif c == -4:
            out += [codes.pop(0), codes.pop(0)]
            at += 1
        else:
            out.append(c)
            at += 1
    return x.reshape(out)


def _draw_reshape_like(d: Draw) -> Drawn:
    a, b = d(st.integers(1, 4)), d(st.integers(1, 4))
    shapes = [(a * b,), (a, b), (b, a), (1, a, b), (a, 1, b)]
    old, new = d(st.sampled_from(shapes)), d(st.sampled_from(shapes))
    return (h.array(d, old, h.dtype(d, h.ALL)), h.array(d, new, "int32")), {}


def _draw_squeeze(d: Draw) -> Drawn:
    of = [d(st.integers(1, 3)) for _ in range(d(st.integers(0, 4)))]
    ones = [n for n, s in enumerate(of) if s == 1]
    attrs: dict[str, Any] = {}
    if len(ones) > 0 and d(st.booleans()):
        chosen: list[int] = d(st.lists(st.sampled_from(ones), unique=True, min_size=1))
        attrs["axis"] = tuple(chosen)
    return (h.array(d, of, h.dtype(d, h.ALL)),), attrs


def _draw_expand(d: Draw) -> Drawn:
    x = _any(d)
    return (x,), {"axis": h.axis(d, x.ndim + 1), "num_newaxis": d(st.integers(0, 3))}


def _expand(x: Array, axis: int, num_newaxis: int) -> Array:
    at = axis % (x.ndim + 1)
    return x.reshape(x.shape[:at] + (1,) * num_newaxis + x.shape[at:])


# -- movements


def _draw_transpose(d: Draw) -> Drawn:
    x = _any(d, 0, 4)
    if d(st.booleans()):
        return (x,), {}
    order = d(st.permutations(range(x.ndim)))
    return (x,), {"axes": tuple(n - x.ndim if d(st.booleans()) else n for n in order)}


def _draw_joined(stack: bool) -> Callable[[Draw], Drawn]:
    def draw(d: Draw) -> Drawn:
        of, kind = h.shape(d, 0 if stack else 1, 3), h.dtype(d, h.ALL)
        axis = h.axis(d, len(of) + stack)
        parts = []
        for _ in range(d(st.integers(1, 4))):
            own = list(of)
            if not stack:
                own[axis] = d(st.integers(0, 3))
            parts.append(h.array(d, own, kind))
        return (tuple(parts),), {"axis": axis}

    return draw


def _draw_append(d: Draw) -> Drawn:
    of, kind = h.shape(d, 1, 3), h.dtype(d, h.ALL)
    data = h.array(d, (d(st.integers(0, 3)), *of[1:]), kind)
    return (data, h.array(d, of[1:] if d(st.booleans()) else (d(st.integers(0, 3)), *of[1:]), kind)), {}


def _draw_split(d: Draw) -> Drawn:
    of, sections = list(h.shape(d, 1, 3)), d(st.integers(1, 3))
    axis = h.axis(d, len(of))
    if d(st.booleans()):
        of[axis] = sections * d(st.integers(0, 3))
        return (h.array(d, of, h.dtype(d, h.ALL)),), {"indices_or_sections": sections, "axis": axis}
    at = sorted(d(st.lists(st.integers(0, of[axis]), max_size=3)))
    return (h.array(d, of, h.dtype(d, h.ALL)),), {"indices_or_sections": tuple(at), "axis": axis}


def _split(x: Array, indices_or_sections: Any, axis: int) -> tuple[Array, ...]:
    return tuple(np.split(x, indices_or_sections, axis))


def _draw_tile(d: Draw) -> Drawn:
    return (_any(d),), {"reps": tuple(d(st.lists(st.integers(0, 3), max_size=4)))}


def _draw_repeat(d: Draw) -> Drawn:
    (x,), attrs = _with_axis()(d)
    return (x,), {**attrs, "repeats": d(st.integers(0, 3))}


def _draw_pad(d: Draw) -> Drawn:
    mode = d(st.sampled_from(["constant", "edge", "reflect", "symmetric", "wrap"]))
    x = _any(d, 1, 3, {"constant": 0, "edge": 1, "reflect": 3, "symmetric": 2, "wrap": 1}[mode])
    width = tuple((d(st.integers(0, 2)), d(st.integers(0, 2))) for _ in x.shape)
    attrs: dict[str, Any] = {"pad_width": width, "pad_mode": mode}
    if mode == "constant" and d(st.booleans()):
        return (x, h.array(d, (), x.dtype.name)), attrs
    return (x,), attrs


def _pad(x: Array, value: Array | None = None, *, pad_width: Any, pad_mode: Any) -> Array:
    if pad_mode == "constant":
        out = np.full(
            [s + a + b for s, (a, b) in zip(x.shape, pad_width, strict=True)], 0 if value is None else value, x.dtype
        )
        out[tuple(slice(a, a + s) for s, (a, _) in zip(x.shape, pad_width, strict=True))] = x
        return out
    return np.pad(x, pad_width, mode=pad_mode)


# -- indexing


def _indices(d: Draw, of: tuple[int, ...], low: int, high: int) -> Array:
    return h.array(d, of, d(st.sampled_from(["int32", "int64", "int8"])), low, high)


def _draw_take(d: Draw) -> Drawn:
    x = _any(d, 1, 3, 1)
    attrs: dict[str, Any] = {"mode": d(st.sampled_from(["clip", "wrap"]))}
    if d(st.booleans()):
        attrs["axis"] = h.axis(d, x.ndim)
    return (x, _indices(d, h.shape(d, 0, 2), -7, 7)), attrs


def _take(x: Array, indices: Array, mode: Any, axis: int | None = None) -> Array:
    return np.take(x, indices.astype(np.int64), axis, mode=mode)


def _draw_gather(d: Draw) -> Drawn:
    x = _any(d, 1, 3, 1)
    axis = h.axis(d, x.ndim)
    of = [d(st.integers(1, s)) for s in x.shape]
    of[axis] = d(st.integers(0, 4))
    return (x, _indices(d, tuple(of), 0, x.shape[axis] - 1)), {"axis": axis}


def _gather(x: Array, indices: Array, axis: int) -> Array:
    out = np.empty(indices.shape, x.dtype)
    for at in np.ndindex(indices.shape):
        read = list(at)
        read[axis] = int(indices[at])
        out[at] = x[tuple(read)]
    return out


def _draw_gather_nd(d: Draw) -> Drawn:
    x = _any(d, 1, 3, 2)
    batch = d(st.integers(0, x.ndim - 1))
    count = d(st.integers(0, x.ndim - batch))
    outer = (*x.shape[:batch], *h.shape(d, 0, 1, 1))
    return (x, _indices(d, (count, *outer), 0, 1)), {"batch_dims": batch}


def _gather_nd(x: Array, indices: Array, batch_dims: int) -> Array:
    outer, rest = indices.shape[1:], x.shape[batch_dims + indices.shape[0] :]
    out = np.empty(outer + rest, x.dtype)
    for at in np.ndindex(outer):
        out[at] = x[(*at[:batch_dims], *(int(n) for n in indices[(slice(None), *at)]))]
    return out


def _draw_one_hot(d: Draw) -> Drawn:
    indices = _indices(d, h.shape(d, 0, 2), -1, 4)
    kind = h.dtype(d, ("float32", "int32", "bool"))
    values = (np.array(1, kind), np.array(0, kind))
    return (indices, *values), {"depth": d(st.integers(0, 5)), "axis": h.axis(d, indices.ndim + 1), "dtype": kind}


def _one_hot(i: Array, on: Array, off: Array, depth: int, axis: int, dtype: str) -> Array:
    return np.moveaxis(np.where(i[..., None] == np.arange(depth), on, off).astype(dtype), -1, axis)


def _draw_searched(d: Draw) -> Drawn:
    rows = h.shape(d, 0, 2)
    kind = h.dtype(d, (*h.FLOATS, "int32", "uint8"))
    data = np.sort(h.array(d, (*rows, d(st.integers(0, 40))), kind, 0, 9), axis=-1)
    values = h.array(d, (*rows, d(st.integers(0, 5))) if rows else h.shape(d, 0, 2), kind, 0, 9)
    if kind == "float32" and d(st.booleans()):
        first = values[..., :1] if values.ndim else values[...]
        data[..., -1:], first[...] = np.nan, np.nan
    attrs = {"side": d(st.sampled_from(["left", "right"])), "dtype": d(st.sampled_from(["int32", "int64"]))}
    return (data, values), attrs


def _searched(data: Array, values: Array, side: Any, dtype: str) -> Array:
    if data.ndim == 1:
        return np.asarray(np.searchsorted(h.wide(data), h.wide(values), side)).astype(dtype)
    out = np.zeros(values.shape, dtype)
    for row in np.ndindex(data.shape[:-1]):
        out[row] = np.searchsorted(h.wide(data[row]), h.wide(values[row]), side)
    return out


def _draw_slice(d: Draw) -> Drawn:
    x = _any(d, 1, 3)
    count = d(st.integers(1, x.ndim))
    bound: st.SearchStrategy[int | None] = st.integers(-8, 8) | st.none()
    attrs: dict[str, Any] = {
        "begin": tuple(d(bound) for _ in range(count)),
        "end": tuple(d(bound) for _ in range(count)),
        "strides": tuple(d(st.sampled_from([1, 2, 3, -1, -2])) for _ in range(count)),
    }
    if d(st.booleans()):
        attrs["axes"] = tuple(d(st.permutations(range(x.ndim)))[:count])
    return (x,), attrs


def _slice(x: Array, begin: Any, end: Any, strides: Any, axes: Any = None) -> Array:
    at = [slice(None)] * x.ndim
    for axis, b, e, s in zip(axes or range(len(begin)), begin, end, strides, strict=True):
        at[axis] = slice(b, e, s)
    return x[tuple(at)]


def _draw_slice_like(d: Draw) -> Drawn:
    x = _any(d, 1, 3)
    like = tuple(d(st.integers(0, s)) for s in x.shape)
    axes = tuple(d(st.lists(st.integers(0, x.ndim - 1), unique=True)))
    return (x, h.array(d, like, "float32")), {"axes": axes}


def _slice_like(x: Array, like: Array, axes: tuple[int, ...]) -> Array:
    return x[tuple(slice(like.shape[n]) if n in axes or not axes else slice(None) for n in range(x.ndim))]


def _draw_mask(d: Draw) -> Drawn:
    x = h.array(d, h.shape(d, 2, 3), h.dtype(d, h.NUMBERS))
    axis = d(st.integers(0, 1))
    lengths = h.array(d, (x.shape[1 - axis],), d(st.sampled_from(["int32", "int64", "float32"])), 0, 5)
    return (x, lengths), {"axis": axis, "mask_value": d(st.integers(0, 3))}


def _mask(x: Array, lengths: Array, axis: int, mask_value: float) -> Array:
    out = x.copy()
    for b, n in enumerate(lengths):
        out[(slice(int(n), None), b) if axis == 0 else (b, slice(int(n), None))] = mask_value
    return out


def _triangle(fn: Callable[..., Array]) -> Callable[..., Array]:
    return lambda x, k: np.where(fn(np.ones(x.shape, bool), k), x, np.zeros_like(x))


def _draw_triangle(d: Draw) -> Drawn:
    return (_any(d, 2, 3),), {"k": d(st.integers(-3, 3))}


def _draw_trilu(d: Draw) -> Drawn:
    return (_any(d, 2, 3), h.array(d, (), "int32", -3, 3)), {"upper": d(st.booleans())}


def _trilu(x: Array, k: Array, upper: bool) -> Array:
    return _triangle(np.triu if upper else np.tril)(x, int(k))


# -- creation


def _draw_filled(d: Draw) -> Drawn:
    return (), {"shape": h.shape(d), "dtype": h.dtype(d, h.ALL)}


def _draw_full(d: Draw) -> Drawn:
    return (h.array(d, (), h.dtype(d, h.ALL), 0, 4),), {
        "shape": h.shape(d),
        "dtype": h.dtype(d, ("", "int32", "float64")),
    }


def _draw_arange(d: Draw) -> Drawn:
    if d(st.booleans()):
        step = d(st.sampled_from([1, 2, 3, -1, -3]))
        attrs = {"start": d(st.integers(-5, 5)), "stop": d(st.integers(-5, 9)), "step": step}
        return (), {**attrs, "dtype": h.dtype(d, ("int32", "int64", "float32", "float64"))}
    return (), {
        "start": d(st.sampled_from([0.0, 0.5])),
        "stop": 2.75,
        "step": d(st.sampled_from([0.25, 0.5])),
        "dtype": "float32",
    }


def _draw_any(d: Draw) -> Drawn:
    return (_any(d),), {}


def _draw_sized(d: Draw) -> Drawn:
    return (_any(d),), {"dtype": d(st.sampled_from(["int32", "int64"]))}


CASES = [
    Case("reshape", _draw_reshape, _reshaped),
    Case("reshape_like", _draw_reshape_like, lambda x, y: x.reshape(y.shape), symbolic=False),
    Case("nn.batch_flatten", lambda d: ((_any(d, 1, 4),), {}), lambda x: x.reshape(x.shape[0], math.prod(x.shape[1:]))),
    Case("squeeze", _draw_squeeze, lambda x, axis=None: np.squeeze(x, axis)),
    Case("expand_dims", _draw_expand, _expand),
    Case("transpose", _draw_transpose, lambda x, axes=None: np.transpose(x, axes)),
    Case("reverse", _with_axis(), lambda x, axis: np.flip(x, axis)),
    Case("concatenate", _draw_joined(False), lambda xs, axis: np.concatenate(xs, axis)),
    Case("append", _draw_append, lambda x, y: np.concatenate((x, y if y.ndim == x.ndim else y[None]))),
    Case("stack", _draw_joined(True), lambda xs, axis: np.stack(xs, axis)),
    Case("split", _draw_split, _split),
    Case("tile", _draw_tile, lambda x, reps: np.tile(x, reps)),
    Case("repeat", _draw_repeat, lambda x, repeats, axis: np.repeat(x, repeats, axis)),
    Case("nn.pad", _draw_pad, _pad),
    Case("take", _draw_take, _take),
    Case("gather", _draw_gather, _gather),
    Case("gather_nd", _draw_gather_nd, _gather_nd, symbolic=False),
    Case("searchsorted", _draw_searched, _searched),
    Case("one_hot", _draw_one_hot, _one_hot),
    Case("strided_slice", _draw_slice, _slice),
    Case("slice_like", _draw_slice_like, _slice_like),
    Case("sequence_mask", _draw_mask, _mask),
    Case("triu", _draw_triangle, _triangle(np.triu)),
    Case("tril", _draw_triangle, _triangle(np.tril)),
    Case("trilu", _draw_trilu, _trilu),
    Case("zeros", _draw_filled, lambda shape, dtype: np.zeros(shape, h.numpy_dtype(dtype))),
    Case("ones", _draw_filled, lambda shape, dtype: np.ones(shape, h.numpy_dtype(dtype))),
    Case("zeros_like", _draw_any, np.zeros_like),
    Case("ones_like", _draw_any, np.ones_like),
    Case("full", _draw_full, lambda v, shape, dtype: np.full(shape, v).astype(dtype or v.dtype)),
    Case(
        "full_like",
        lambda d: ((_any(d), h.array(d, (), "int32", 0, 3)), {}),
        lambda x, v: np.full(x.shape, v).astype(x.dtype),
    ),
    Case("arange", _draw_arange, lambda start, stop, step, dtype: np.arange(start, stop, step).astype(dtype)),
    Case("shape_of", _draw_sized, lambda x, dtype: np.array(x.shape, dtype)),
    Case(
        "size_of",
        lambda d: ((), {"size": d(st.integers(0, 9)), "dtype": d(st.sampled_from(["int32", "int64", "float32"]))}),
        lambda size, dtype: np.array(size, dtype),
    ),
    Case("ndarray_size", _draw_sized, lambda x, dtype: np.array(x.size, dtype)),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_against_numpy(case: Case, data: st.DataObject) -> None:
    operands, attrs = case.draw(data.draw)
    h.check(case, operands, attrs)


def _shape(name: str, *inputs: Any, **attrs: Any) -> Any:
    return registry.trace(registry.get(name), inputs, attrs).outputs[0].shape


def test_symbolic_reshape_is_exact() -> None:
    n = dim_var("n", 1)
    assert _shape("reshape", ((n, 384), "float32"), newshape=(-1, 12, 32)) == (n, 12, 32)
    assert _shape("reshape", ((n, 384), "float32"), newshape=(n, 12, 32)) == (n, 12, 32)
    assert _shape("reshape", ((n, 12, 32), "float32"), newshape=(-1, 384)) == (n, 384)
    assert _shape("reshape", ((n, 12, 32), "float32"), newshape=(-3, -2)) == (12 * n, 32)
    assert _shape("reshape", ((n + 1, 4, 6), "float32"), newshape=(0, -1)) == (n + 1, 24)
    assert _shape("nn.batch_flatten", ((n, 4, 6), "float32")) == (n, 24)
    traced = registry.trace(registry.get("reshape"), [((n, 384), "float32")], {"newshape": (-1, 12, 32)})
    assert not traced.demands


def test_symbolic_sizes_of_other_shapes() -> None:
    n, m = dim_var("n", 1), dim_var("m", 1)
    f32 = "float32"
    assert _shape("concatenate", [((n, 4), f32), ((m, 4), f32)]) == (n + m, 4)
    assert _shape("tile", ((n, 4), f32), reps=(2, 3)) == (2 * n, 12)
    assert _shape("strided_slice", ((2 * n, 4), f32), begin=(0,), end=(None,), strides=(2,)) == (n, 4)
    assert _shape("strided_slice", ((n, 4), f32), begin=(1,), end=(2**31 - 1,)) == (n - 1, 4)
    assert _shape("split", ((2 * n, 4), f32), indices_or_sections=2) == (n, 4)
    assert _shape("take", ((n, 4), f32), ((m,), "int32"), axis=0) == (m, 4)
    assert _shape("zeros", shape=(n, 2)) == (n, 2)
    assert _shape("arange", start=0, stop=n, step=1, dtype="int32") == (n,)


def test_unknown_sizes_wait() -> None:
    unknown = DimVar("u")
    collector = te.Trace(is_unknown=lambda v: v is unknown)
    with pytest.raises(te.Undetermined) as info:
        registry.trace(registry.get("squeeze"), [((as_dim(unknown), 1), "float32")], {}, collector)
    assert info.value.variables == (unknown,)


@pytest.mark.parametrize(
    ("name", "shape", "attrs", "message"),
    [
        ("reshape", (2, 3), {"newshape": (4, 2)}, "sizes of reshape's operand and result must agree: 6 and 8"),
        ("reshape", (2, 3), {"newshape": (-1, -1)}, "more than one -1"),
        ("reshape", (2, 3), {"newshape": (0, 0, 0)}, "no axis of"),
        ("squeeze", (2, 3), {"axis": 0}, "must agree: 2 and 1"),
        ("transpose", (2, 3), {"axes": (0, 0)}, "each of 2 axes once"),
        ("split", (5,), {"indices_or_sections": 2}, "equal sections must agree"),
        ("nn.pad", (5,), {"pad_width": ((0, 1), (0, 1))}, "2 pairs of widths for rank 1"),
        ("strided_slice", (5,), {"begin": (0,), "end": (1,), "strides": (0,)}, "stride of strided_slice is 0"),
    ],
)
def test_errors(name: str, shape: tuple[int, ...], attrs: dict[str, Any], message: str) -> None:
    with pytest.raises(te.DefinitionError, match=message):
        h.apply(name, np.ones(shape, np.float32), **attrs)


@pytest.mark.parametrize("size", [1, 2047, 2048, 5000])
def test_a_search_in_a_vector_of_any_size(size: int) -> None:
    """The number of steps follows from the size, which is not known: none is left out where it has one bit more."""
    exe = relay.compile("""#[version = "0.0.5"]
def @main[n: Dim, m: Dim](%x: Tensor[(n,), int32], %v: Tensor[(m,), int32]) {
  (searchsorted(%x, %v), searchsorted(%x, %v, side="right"))
}""")
    data, values = np.arange(size, dtype=np.int32), np.arange(-1, size + 2, dtype=np.int32)
    left, right = (np.asarray(found) for found in exe(data, values))
    np.testing.assert_array_equal(left, np.searchsorted(data, values))
    np.testing.assert_array_equal(right, np.searchsorted(data, values, "right"))
