"""Runtime routines against NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import relay
from relay import _runtime
from relay.executable import Assembler, Executable, Value
from relay.executable.bytecode import DTYPE_CODES
from relay.ir.diagnostics import ExecutionError
from tests.runtime.programs import function, program

Array = npt.NDArray[Any]
DTYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"]


def routine(name: str) -> Executable:
    arity = _runtime.routine_arity(name)
    assert arity is not None

    def emit(asm: Assembler) -> None:
        out = asm.reg()
        asm.emit("InvokeRoutine", out, 0, list(range(arity)))
        asm.emit("Ret", out)

    return program(function("main", arity, emit), routines=(name,))


def run(name: str, *arguments: Any) -> Any:
    result = routine(name).run("main", arguments)
    return [np.asarray(f) for f in result.fields] if isinstance(result, Value) else result.numpy()


arrays = st.sampled_from(DTYPES).flatmap(
    lambda d: hnp.arrays(
        d,
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=6),
    )
)
INT32, INT64 = DTYPE_CODES["int32"], DTYPE_CODES["int64"]


@given(arrays)
def test_unique(x: Array) -> None:
    flat = x.reshape(-1)
    np.testing.assert_array_equal(run("unique", flat), np.unique(flat))


@given(arrays)
def test_nonzero_and_argwhere(x: Array) -> None:
    np.testing.assert_array_equal(run("nonzero", x), np.stack(np.nonzero(x)))
    np.testing.assert_array_equal(run("argwhere", x), np.argwhere(x))


@given(arrays, st.integers(-3, 2), st.booleans())
def test_sort_and_argsort(x: Array, axis: int, ascending: bool) -> None:
    axis = axis % x.ndim
    order = np.argsort(x, axis=axis, kind="stable")
    if not ascending:  # stable in this direction too: reverse, sort, reverse back
        size = x.shape[axis]
        order = np.flip(size - 1 - np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)
    np.testing.assert_array_equal(run("argsort", x, axis, ascending, INT64), order)
    np.testing.assert_array_equal(run("sort", x, axis, ascending), np.take_along_axis(x, order, axis))
    small = run("argsort", x, axis - x.ndim, ascending, INT32)
    assert small.dtype == np.int32
    np.testing.assert_array_equal(small, order)


@given(arrays, st.integers(0, 8), st.booleans())
def test_topk(x: Array, k: int, ascending: bool) -> None:
    axis = x.ndim - 1
    values, indices = run("topk", x, k, axis, ascending, INT32)
    order = run("argsort", x, axis, ascending, INT32)[..., :k]
    assert indices.dtype == np.int32 and values.dtype == x.dtype
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "float16", "float32", "float64"])
@pytest.mark.parametrize("ascending", [True, False])
def test_topk_of_long_lines(dtype: str, ascending: bool) -> None:
    """Lines that are looked at many elements at a time: ties, elements that are no numbers, ends of all lengths, lines whose
    elements lie apart."""
    random = np.random.default_rng(0)
    for n in (8, 63, 64, 65, 127, 200, 1000):
        x = random.integers(0, 100, size=(3, n)).astype(dtype)
        if dtype.startswith("float"):
            x[0, random.integers(0, n, size=n // 2)] = np.nan
            x[1] = np.nan
            x[1, n // 2] = 1
        for k in (0, 1, 5, 16, 17, 60):
            values, indices = run("topk", x, k, 1, ascending, INT64)
            order = run("argsort", x, 1, ascending, INT64)[:, :k]
            np.testing.assert_array_equal(indices, order)
            np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1))
            values, indices = run("topk", np.ascontiguousarray(x.T), k, 0, ascending, INT64)
            np.testing.assert_array_equal(indices, order.T)
            np.testing.assert_array_equal(values, np.take_along_axis(x, order, 1).T)


@pytest.mark.parametrize(
    "dtype", ["bool", "int8", "uint8", "int32", "int64", "uint64", "float16", "bfloat16", "float32", "float64"]
)
@pytest.mark.parametrize("ascending", [True, False])
def test_short_lines_in_order(dtype: str, ascending: bool) -> None:
    """Lines whose elements are compared all with all, fewer and more of them than go together, and the first that are not: ties, both
    zeros, infinities, elements that are no numbers, the ends of the integers."""
    random = np.random.default_rng(1)
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    for n in (0, 1, 2, 7, 15, 16, 17, 33, 63, 64, 95, 96, 97):
        x = random.integers(0, 20, size=((4, 18, 21, 3)[n % 4], n)).astype(kind)
        if dtype in ("float16", "bfloat16", "float32", "float64"):
            values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, -1.5]).astype(kind)
            x[1] = random.choice(values, size=n)
            x[2] = np.nan
        elif dtype != "bool":
            x[1] = random.choice(np.array([np.iinfo(kind).min, np.iinfo(kind).max, 0, 1], kind), size=n)
        key = x.astype(np.float64) if kind.kind not in "iu" else x
        order = np.argsort(key, axis=1, kind="stable")
        if not ascending:
            order = n - 1 - np.argsort(np.flip(key, 1), axis=1, kind="stable")[:, ::-1]
        np.testing.assert_array_equal(run("argsort", x, 1, ascending, INT64), order)
        np.testing.assert_array_equal(run("argsort", np.ascontiguousarray(x.T), 0, ascending, INT64), order.T)


def test_brain_floats_and_bools() -> None:
    x = np.array([2.5, -1, 0, 2.5, -0.0], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(run("unique", x).astype(np.float32), [-1, 0, 2.5])
    np.testing.assert_array_equal(run("argwhere", x), [[0], [1], [3]])
    np.testing.assert_array_equal(run("unique", np.array([True, False, True])), [False, True])


def test_rank_zero() -> None:
    assert run("argwhere", np.float32(2)).shape == (1, 0)
    assert run("argwhere", np.float32(0)).shape == (0, 0)
    assert run("nonzero", np.float32(2)).shape == (0, 1)


def reference_suppression(boxes: Array, scores: Array, iou: float, least: float, most: int) -> list[int]:
    kept: list[int] = []
    for i in sorted(range(len(scores)), key=lambda j: (-scores[j], j)):
        if scores[i] <= least or (0 <= most <= len(kept)):
            continue
        a = boxes[i]

        def overlap(b: Array, a: Array = a) -> float:
            height = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
            width = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
            both = height * width
            return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both) if both else 0.0

        if all(overlap(boxes[j]) <= iou for j in kept):
            kept.append(i)
    return kept


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("most", [-1, 0, 3])
def test_non_max_suppression(seed: int, most: int) -> None:
    random = np.random.default_rng(seed)
    corners = random.uniform(0, 10, (20, 2))
    boxes = np.concatenate([corners, corners + random.uniform(1, 5, (20, 2))], axis=1)
    scores = random.uniform(0, 1, 20).round(1)
    expected = reference_suppression(boxes, scores, 0.4, 0.2, most)
    np.testing.assert_array_equal(run("non_max_suppression", boxes, scores, 0.4, 0.2, most), expected)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("unique", (np.zeros((2, 2)),), "takes a vector and got rank 2"),
        ("sort", (np.zeros(2), 1, False), "no axis 1 in a tensor of rank 1"),
        ("sort", (1.0, 0, False), "no axis 0 in a tensor of rank 0"),
        ("argsort", (np.zeros(2), 0, False, 0), "indices are int32 or int64, not dtype 0"),
        ("topk", (np.zeros(2), -1, 0, True, INT64), "k is -1"),
        ("unique", (np.zeros(2, ml_dtypes.int4),), "does not take tensors of int4"),
        ("non_max_suppression", (np.zeros((2, 3)), np.zeros(2), 0.5, 0.0, -1), "takes boxes of shape"),
        ("unique", ((1,),), "needs a tensor and got a tuple"),
    ],
)
def test_what_routines_refuse(name: str, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ExecutionError, match=message):
        run(name, *arguments)


def test_unknown_routines_have_no_arity() -> None:
    assert _runtime.routine_arity("fft") is None


@pytest.mark.parametrize("dtype", [*DTYPES, "bfloat16"])
@pytest.mark.parametrize("ascending", [True, False])
def test_long_lines_in_order(dtype: str, ascending: bool) -> None:
    """Many elements, with ties, both zeros, infinities and nan, along memory and across it."""
    rng = np.random.default_rng(3)
    if dtype in DTYPES and np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        x = rng.integers(info.min, info.max, (3, 700), dtype, endpoint=True)
        x[1] %= 7  # ties
    else:
        x = rng.standard_normal((3, 700)) * 10.0 ** rng.integers(-3, 3, (3, 700))
        x[1] = np.round(x[1] / 100)
        x[2, ::50] = [np.nan, -np.inf, np.inf, 0.0, -0.0, -np.nan, 0.0] * 2
        x = x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    wide = x.astype(np.float64) if x.dtype.kind not in "iu" else x
    order = np.argsort(wide, axis=1, kind="stable")
    if not ascending:
        order = np.flip(699 - np.argsort(np.flip(wide, 1), axis=1, kind="stable"), 1)
    ordered = np.take_along_axis(x, order, 1)
    for axis, given_, turn in ((1, x, lambda a: a), (0, np.ascontiguousarray(x.T), np.transpose)):
        np.testing.assert_array_equal(turn(run("argsort", given_, axis, ascending, INT64)), order)
        sorted_ = turn(run("sort", given_, axis, ascending))
        np.testing.assert_array_equal(sorted_.view(f"u{x.itemsize}"), ordered.view(f"u{x.itemsize}"))
        for k in (1, 8, 16, 17, 699):
            values, places = run("topk", given_, k, axis, ascending, INT32)
            np.testing.assert_array_equal(turn(places), order[:, :k])
            np.testing.assert_array_equal(turn(values).view(f"u{x.itemsize}"), ordered[:, :k].view(f"u{x.itemsize}"))


@pytest.mark.parametrize(
    "call", ["sort(%x, axis=AXIS)", "argsort(%x, axis=AXIS, is_ascend=False)", "topk(%x, k=5, axis=AXIS).1"]
)
def test_lines_are_shared_out(call: str) -> None:
    x = np.random.default_rng(0).integers(0, 50, (9, 130, 70)).astype(np.float32)
    for axis in range(3):
        text = f'#[version = "0.0.5"]\ndef @main(%x: Tensor[(9, 130, 70), float32]) {{ {call.replace("AXIS", str(axis))} }}'
        one, several = (np.asarray(relay.compile(text, threads=threads)(x)) for threads in (1, 4))
        wanted: Array = np.argsort(-x if "sort(%x, axis" not in call or "False" in call else x, axis, kind="stable")
        if "topk" in call:
            wanted = wanted.take(range(5), axis)
        elif call.startswith("sort"):
            wanted = np.take_along_axis(x, wanted, axis)
        np.testing.assert_array_equal(one, wanted)
        np.testing.assert_array_equal(several, one)
