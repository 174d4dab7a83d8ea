"""Operators with sizes that are data, the upper-bound mode, and runtime routines, against NumPy and plain Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relay
from relay import te
from relay.ir.diagnostics import OperatorError, RelayError, TypeError_
from relay.ir.dim import ANY, dim_floordiv, dim_min, dim_sub, dim_var
from relay.ir.types import TensorType, TupleType
from relay.op import registry
from tests.op import harness as h
from tests.op.harness import Array, Case, Draw, Drawn


def _draw_arange(d: Draw) -> Drawn:
    kind = d(st.sampled_from(["int32", "int64", "float32", "float64"]))
    if kind.startswith("int"):
        step = d(st.sampled_from([1, 2, 3, -1, -2]))
        bounds: tuple[float, ...] = (d(st.integers(-5, 5)), d(st.integers(-5, 9)), step)
    else:
        bounds = (d(st.sampled_from([0.0, 0.5])), d(st.sampled_from([-1.0, 2.75])), d(st.sampled_from([0.25, 0.5])))
    return tuple(np.array(b, kind) for b in bounds), {"dtype": d(st.sampled_from(["int32", "float32", "float64"]))}


def _draw_reshape(d: Draw) -> Drawn:
    x = h.array(d, h.shape(d, 1, 3, 1), h.dtype(d, h.ALL))
    codes = d(st.sampled_from([[-1], [0, -1], [*x.shape], [1, *x.shape], [x.shape[0], -1, 1]]))
    return (x, np.array(codes, d(st.sampled_from(["int32", "int64"])))), {}


def _reshaped(x: Array, codes: Array) -> Array:
    return x.reshape([x.shape[n] if c == 0 else int(c) for n, c in enumerate(codes)])


def _draw_broadcast(d: Draw) -> Drawn:
    to = h.shape(d)
    return (h.array(d, h.broadcastable(d, to), h.dtype(d, h.ALL)), np.array(to, np.int64)), {}


def _draw_full(d: Draw) -> Drawn:
    operands = (h.array(d, (), h.dtype(d, h.ALL), 0, 3), np.array(h.shape(d), np.int32))
    return operands, {"dtype": d(st.sampled_from(["", "float32", "int8"]))}


def _draw_slice(d: Draw) -> Drawn:
    x = h.array(d, h.shape(d, 1, 3), h.dtype(d, h.ALL))
    rank, kind = d(st.integers(0, x.ndim)), d(st.sampled_from(["int32", "int64"]))
    bounds = [[d(st.integers(-7, 7)) for _ in range(rank)] for _ in range(2)]
    strides = [d(st.sampled_from([1, 1, 2, 3, -1, -2])) for _ in range(rank)]
    return (x, *(np.array(b, kind) for b in (*bounds, strides))), {}


def _sliced(x: Array, *bounds: Array) -> Array:
    return x[tuple(slice(*(int(b) for b in at)) for at in zip(*bounds, strict=True))]


def _draw_while(d: Draw) -> Drawn:
    x = h.array(d, h.shape(d, 1, 3), h.dtype(d, h.ALL))
    return (x, h.array(d, x.shape[:1], "bool")), {}


def _while(x: Array, condition: Array) -> Array:
    kept = []
    for row, ok in zip(x, condition, strict=True):
        if not ok:
            break
        kept.append(row)
    return np.array(kept, x.dtype).reshape(len(kept), *x.shape[1:])


# -- routines: plain Python on lists

_SORTED = ("float32", "float16", "bfloat16", "int32", "uint8", "int64", "float64", "bool")


def _draw_vector(d: Draw) -> Drawn:
    return (h.array(d, h.shape(d, 1, 1, 0, 8), h.dtype(d, _SORTED), -2, 2),), {}


def _draw_values(d: Draw) -> Drawn:
    return (h.array(d, h.shape(d, 1, 3), h.dtype(d, _SORTED), -1, 1),), {}


def _draw_order(d: Draw) -> Drawn:
    x = h.array(d, h.shape(d, 1, 3, 1), h.dtype(d, _SORTED), -3, 3)
    return (x,), {"axis": h.axis(d, x.ndim), "is_ascend": d(st.booleans())}


def _draw_positions(d: Draw) -> Drawn:
    operands, attrs = _draw_order(d)
    return operands, {**attrs, "dtype": d(st.sampled_from(["int32", "int64"]))}


def _draw_topk(d: Draw) -> Drawn:
    operands, attrs = _draw_positions(d)
    return operands, {**attrs, "k": d(st.integers(0, 6))}


def _order(x: Array, axis: int, is_ascend: bool) -> Array:
    moved = np.moveaxis(x, axis, -1)
    out = np.empty(moved.shape, np.int64)
    for at in np.ndindex(moved.shape[:-1]):
        line = [float(v) for v in moved[at]]
        out[at] = sorted(range(len(line)), key=lambda n, line=line: line[n] if is_ascend else -line[n])  # type: ignore[misc]
    return np.moveaxis(out, -1, axis)


def _topk(x: Array, k: int, axis: int, is_ascend: bool, dtype: str) -> tuple[Array, Array]:
    order = np.take(_order(x, axis, is_ascend), range(min(k, x.shape[axis])), axis)
    return np.take_along_axis(x, order, axis), order.astype(dtype)


def _nonzero(x: Array) -> Array:
    found = [at for at in np.ndindex(x.shape) if float(x[at]) != 0]
    return np.array(found, np.int64).reshape(len(found), x.ndim)


def _draw_boxes(d: Draw) -> Drawn:
    n = d(st.integers(0, 6))
    attrs: dict[str, Any] = {"iou_threshold": d(st.sampled_from([0.0, 0.3, 0.7]))}
    attrs |= {"max_output_size": d(st.sampled_from([-1, 2])), "score_threshold": d(st.sampled_from([-math.inf, 0.0]))}
    return (h.array(d, (n, 4), "float32", 0, 4), h.array(d, (n,), "float32", -1, 1)), attrs


def _overlap(a: list[float], b: list[float]) -> float:
    def area(y1: float, x1: float, y2: float, x2: float) -> float:
        return max(y2 - y1, 0.0) * max(x2 - x1, 0.0)

    a, b = ([min(c[0], c[2]), min(c[1], c[3]), max(c[0], c[2]), max(c[1], c[3])] for c in (a, b))
    both = area(max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3]))
    return both / (area(*a) + area(*b) - both) if both else 0.0


def _suppress(boxes: Array, scores: Array, iou_threshold: float, score_threshold: float, max_output_size: int) -> Array:
    kept: list[int] = []
    for n in sorted(range(len(scores)), key=lambda n: -scores[n]):
        fits = max_output_size < 0 or len(kept) < max_output_size
        clear = all(_overlap(boxes[n].tolist(), boxes[m].tolist()) <= iou_threshold for m in kept)
        if scores[n] > score_threshold and fits and clear:
            kept.append(n)
    return np.array(kept, np.int64)


CASES = [
    Case(
        "dyn.arange",
        _draw_arange,
        lambda a, b, c, dtype: np.arange(a[()], b[()], c[()]).astype(a.dtype).astype(dtype),
    ),
    Case("dyn.reshape", _draw_reshape, _reshaped, symbolic=False),
    Case("dyn.broadcast_to", _draw_broadcast, lambda x, to: np.broadcast_to(x, tuple(to)), symbolic=False),
    Case("dyn.strided_slice", _draw_slice, _sliced, symbolic=False),
    Case("dyn.full", _draw_full, lambda v, of, dtype: np.full(tuple(of), v).astype(dtype or v.dtype), symbolic=False),
    Case("take_while", _draw_while, _while),
    Case("unique", _draw_vector, lambda x: np.array(sorted(set(x.tolist())), x.dtype)),
    Case("argwhere", _draw_values, _nonzero),
    Case("nonzero", _draw_values, lambda x: _nonzero(x).T),
    Case("sort", _draw_order, lambda x, axis, is_ascend: np.take_along_axis(x, _order(x, axis, is_ascend), axis)),
    Case("argsort", _draw_positions, lambda x, dtype, **a: _order(x, **a).astype(dtype)),
    Case("topk", _draw_topk, _topk),
    Case("non_max_suppression", _draw_boxes, _suppress),
    Case("device_copy", lambda d: (_draw_values(d)[0], {"device": "cpu"}), lambda x, device: x),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_against_python(case: Case, data: st.DataObject) -> None:
    operands, attrs = case.draw(data.draw)
    h.check(case, operands, attrs)


def test_routine_types() -> None:
    n = dim_var("n", 3)

    def typed(name: str, *args: TensorType, **attrs: Any) -> Any:
        relation = registry.get(name).relation
        assert relation is not None
        return relation(args, attrs)

    x = TensorType((n, 4), "float32")
    assert typed("unique", TensorType((n,), "int8")) == TensorType((ANY,), "int8")
    assert typed("argwhere", x) == TensorType((ANY, 2), "int64")
    assert typed("nonzero", x) == TensorType((2, ANY), "int64")
    assert typed("sort", x, axis=0) == x
    assert typed("argsort", x, dtype="int64") == TensorType((n, 4), "int64")
    assert typed("topk", x, k=2) == TupleType((TensorType((n, 2), "float32"), TensorType((n, 2), "int32")))
    assert typed("topk", x, k=2, axis=0).fields[0] == TensorType((2, 4), "float32")
    assert typed("topk", x, k=dim_floordiv(n, 2), axis=1).fields[0] == TensorType(
        (n, dim_min(dim_floordiv(n, 2), 4)), "float32"
    )
    with pytest.raises(OperatorError, match=r"must not be negative: n - 4"):
        typed("topk", x, k=dim_sub(n, 4))
    assert typed("non_max_suppression", x, TensorType((n,), "float32")) == TensorType((ANY,), "int64")
    assert typed("device_copy", x, device="fake") == TensorType((n, 4), "float32", "fake")
    halves = TensorType((n,), "uint4")
    assert typed("device_copy", halves, device="fake").dtype == "uint4"
    for name in ("sort", "argsort", "topk", "unique", "nonzero", "argwhere"):
        with pytest.raises(TypeError_, match=f"{name} does not take tensors of uint4") as refused:
            typed(name, halves)
        assert refused.value.hint == 'cast(%x, dtype="uint8") before it'


def test_nan_is_the_greatest() -> None:
    x = np.array([np.nan, 1.0, np.nan, -1.0], np.float32)
    np.testing.assert_array_equal(h.apply("argsort", x), [3, 1, 0, 2])
    np.testing.assert_array_equal(h.apply("argsort", x, is_ascend=False), [0, 2, 1, 3])
    np.testing.assert_array_equal(h.apply("unique", x), [-1.0, 1.0, np.nan])


def test_sizes_found_while_running_are_checked() -> None:
    with pytest.raises(te.DefinitionError, match=r"sizes of dyn.reshape's operand and result must agree: 6 and 8"):
        h.apply("dyn.reshape", np.ones((2, 3), np.float32), np.array([4, 2]))


@pytest.mark.parametrize(
    ("op", "right", "wrong"),
    [
        ("dyn.reshape", [(4, 2), (-1, 4), (8, 1)], [(2, 1), (8, 2), (-1, 3), (-1, -1), (-2, -4)]),
        ("dyn.broadcast_to", [(8, 2), (8, 1), (8, 0)], [(7, 2), (16, 2), (1, 2), (8, -1)]),
    ],
)
def test_compiled_code_checks_sizes_found_while_running(
    op: str, right: list[tuple[int, ...]], wrong: list[tuple[int, ...]]
) -> None:
    """As the interpreter does: more elements than there are would be read from behind the operand."""
    text = f"""#[version = "0.0.5"]
    def @main[n: Dim](%x: Tensor[(n, 1), float32], %to: Tensor[(2,), int64]) {{ {op}(exp(%x), %to) + 1f }}"""
    module = relay.parse(text)
    x = np.arange(8, dtype=np.float32).reshape(8, 1)
    for level in (0, 3):
        exe = relay.compile(module, opt_level=level)
        for to in right:
            expected = np.asarray(relay.evaluate(module, x, np.array(to)))
            np.testing.assert_allclose(np.asarray(exe(x, np.array(to))), expected, rtol=1e-5)
        for to in wrong:
            with pytest.raises(RelayError):
                relay.evaluate(module, x, np.array(to))
            with pytest.raises(RelayError, match=r"must agree|would have size"):
                exe(x, np.array(to))
