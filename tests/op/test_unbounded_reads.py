"""Operators whose authors bound no index: where one is outside of its tensor, interpreter and compiled code both say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay import te
from relay.ir.diagnostics import ExecutionError, RelayError
from relay.ir.dim import dim_sub
from relay.loop.ir import Branch, Fail, For
from relay.loop.printer import kernel_text
from relay.loop.walk import statements
from relay.op.registry import operator, remove
from relay.options import Options
from relay.pipeline import build
from relay.te.scalar import Axis, walk

Array = npt.NDArray[Any]


@operator("test.pick")
def pick(data: te.Tensor, index: te.Tensor) -> te.Tensor:
    return te.compute(index.shape, lambda i: data[index[i]], "pick")


@operator("test.pick_some")
def pick_some(data: te.Tensor, index: te.Tensor, some: te.Tensor) -> te.Tensor:
    nothing = te.const(-1.0, "float32")
    return te.compute(index.shape, lambda i: te.select(some[i], data[index[i]], nothing), "pick_some")


@operator("test.pick_twice")
def pick_twice(data: te.Tensor, index: te.Tensor) -> te.Tensor:
    return te.compute(index.shape, lambda i: data[index[index[i]]], "pick_twice")


@operator("test.pick_of_a_stage")
def pick_of_a_stage(data: te.Tensor, index: te.Tensor) -> te.Tensor:
    row = te.compute((1, *data.shape), lambda _, i: data[i] + 1.0, "row")
    place = te.compute(index.shape, lambda i: te.cast(index[i], "int64") // 2, "place")
    return te.compute(index.shape, lambda i: row[0, place[index[i]]], "pick_of_a_stage")


@operator("test.pick_where_another_is")
def pick_where_another_is(data: te.Tensor, index: te.Tensor) -> te.Tensor:
    row = te.compute((1, *data.shape), lambda _, i: data[i] + 1.0, "row")
    return te.compute(index.shape, lambda i: te.select(row[0, index[i]] > 0.0, row[0, index[i] + 1], 0.0), "chosen")


@operator("test.rows_of_a_sparse_matrix")
def sparse_sums(data: te.Tensor, column: te.Tensor, start: te.Tensor) -> te.Tensor:
    k = te.reduce_axis(column.shape[0])
    zero = te.const(0.0, "float32")

    def row(i: te.Scalar) -> te.Scalar:
        return te.sum(
            te.select(
                (te.cast(k, start.dtype) >= start[i]) & (te.cast(k, start.dtype) < start[i + 1]), data[column[k]], zero
            ),
            k,
        )

    return te.compute((dim_sub(start.shape[0], 1),), row, "sums")


@operator("test.pick_within")
def pick_within(data: te.Tensor, index: te.Tensor) -> te.Tensor:
    def chosen(i: te.Scalar) -> te.Scalar:
        inside = (index[i] >= 0) & (index[i] < te.size(data.shape[0]))
        return te.select(inside, data[index[i]], te.const(0.0, "float32"))

    return te.compute(index.shape, chosen, "pick_within")


@operator("test.first_of_largest")
def largest(data: te.Tensor) -> te.Tensor:
    k = te.reduce_axis(data.shape[0])
    return te.compute(data.shape, lambda i: data[te.argmax(data[k], k)] * data[i], "largest")


CALLS = {
    "an element": "test.pick(%x, %i)",
    "a choice": "test.pick_some(%x, %i, %f)",
    "an index of an index": "test.pick_twice(%x, %i)",
    "of a stage at an index that is read": "test.pick_of_a_stage(%x, %i)",
    "a choice by one that is read": "test.pick_where_another_is(%x, %i)",
    "in a kernel with others": "sum(tanh(test.pick(exp(%x), %i)))",
    "an index that is computed": "test.pick(test.first_of_largest(%x), %i)",
    "a sum": "test.rows_of_a_sparse_matrix(%x, %i, %i)",
}


def program(call: str, index: str = "int64") -> relay.Module:
    return relay.parse(
        '#[version = "0.0.5"]\n'
        f"def @main[n: Dim, m: Dim](%x: Tensor[(n,), float32], %i: Tensor[(m,), {index}], %f: Tensor[(m,), bool]) {{ {call} }}"
    )


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16"])
@pytest.mark.parametrize("name", CALLS)
def test_executors_agree(name: str, dtype: str, tmp_path: Path) -> None:
    module = program(CALLS[name], dtype)
    exe = relay.compile(module, cache_dir=tmp_path)
    failures = 0
    for size in (3, 37):
        rng = np.random.default_rng(size)
        x = rng.standard_normal(size).astype(np.float32)
        for bad in (None, min(1 << 40, np.iinfo(dtype).max), -1, size):
            index = rng.integers(0, size, size).astype(dtype)
            some = rng.integers(0, 2, size).astype(bool)
            if bad is not None:
                index[size // 2] = bad
            try:
                expected: Array | None = np.asarray(relay.evaluate(module, x, index, some))
            except ExecutionError:
                expected = None
            if expected is not None:
                np.testing.assert_allclose(np.asarray(exe(x, index, some)), expected, rtol=1e-5)
                continue
            failures += 1
            with pytest.raises(ExecutionError):
                exe(x, index, some)
    assert failures > 0


def test_an_index_is_an_integer() -> None:
    @operator("test.no_index")
    def no_index(data: te.Tensor) -> te.Tensor:
        return te.compute(data.shape, lambda i: data[te.cast(i, "float32")])

    try:
        with pytest.raises(RelayError, match="data is read at an index of dtype float32: cast it to an integer"):
            program("test.no_index(%x)")
    finally:
        remove("test.no_index")


def test_what_is_bounded_is_not_asked_for() -> None:
    def texts(call: str) -> list[str]:
        return [kernel_text(p.kernel) for p in build(program(call), Options()).plan.kernels]

    assert "fail" in "".join(texts("test.pick(%x, %i)"))
    assert "fail" not in "".join(texts("test.pick_within(%x, %i)"))
    assert all(text.count("fail") == 1 for text in texts("take(%x, %i, axis=0)"))  # for an axis without elements


def test_an_index_is_asked_before_conditions_of_other_variables() -> None:
    """One that few variables say and that reads nothing: where it is inside, no place is gone through."""

    @operator("test.of_groups")
    def of_groups(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        (c, n), (g, _) = data.shape, weight.shape

        def near(i: te.Scalar, j: te.Scalar) -> te.Scalar:
            group = i // (c // g)  # type: ignore[operator]
            return te.select((j + 1 < te.size(n)), weight[group, j + 1], 0.0)

        return te.compute((c, n), lambda i, j: data[i, j] * near(i, j))

    try:
        module = relay.parse(
            "fn [c: Dim, n: Dim, g: Dim] (%x: Tensor[(c, n), float32], %w: Tensor[(g, n), float32]) { test.of_groups(%x, %w) }"
        )
        (plan,) = build(module, Options(cache=False, workers=1)).plan.kernels
        asked = next(s for s in statements(plan.kernel.body) if isinstance(s, Branch) and isinstance(s.then, For))
        assert any(isinstance(s, Fail) for s in statements(asked.then))
        assert len({n for n in walk(asked.cond) if isinstance(n, Axis)}) == 1
        exe = relay.compile(module, cache=False, check_memory=True)
        for c, g, n, inside in ((6, 3, 4, True), (7, 3, 4, False), (7, 3, 1, True), (2, 3, 4, True)):
            x, w = np.ones((c, n), np.float32), np.ones((g, n), np.float32)
            if inside:
                np.testing.assert_array_equal(np.asarray(exe(x, w)), np.asarray(relay.evaluate(module, x, w)))
                continue
            for run in (exe, lambda *given: relay.evaluate(module, *given)):
                with pytest.raises(ExecutionError, match="outside"):
                    run(x, w)
    finally:
        remove("test.of_groups")


def test_a_loop_that_makes_no_step_reads_nothing() -> None:
    """What is the same in all steps and may fail is computed in front of them where there is a step."""
    loop = """#[version = "0.0.5"]
def @go[n: Dim](%x: Tensor[(n,), float32], %i: Tensor[(n,), int32], %k: int32, %s: Tensor[(n,), float32]) -> Tensor[(n,), float32] {{
  if (%k <= 0) {{ %s }} else {{ @go(%x, %i, %k - 1, %s + tanh({}(%x, %i))) }}
}}
def @main[n: Dim](%x: Tensor[(n,), float32], %i: Tensor[(n,), int32], %k: int32) {{ @go(%x, %i, %k, zeros(shape=[Dim[n]])) }}"""
    x, bad = np.arange(3, dtype=np.float32), np.array([0, 9, 1], np.int32)

    @operator("test.pick_clamped")
    def pick_clamped(data: te.Tensor, index: te.Tensor) -> te.Tensor:
        last = te.size(data.shape[0]) - 1

        def body(i: te.Scalar) -> te.Scalar:
            at = te.minimum(te.maximum(te.cast(index[i], "int64"), 0), last)
            return te.select(last >= 0, data[at], 0.0)

        return te.compute(index.shape, body)

    try:
        for name, bounded in (("test.pick", False), ("test.pick_clamped", True)):
            module = relay.parse(loop.format(name))
            exe = relay.compile(module)
            for k in (0, 3):
                if k and not bounded:
                    with pytest.raises(ExecutionError, match="outside"):
                        exe(x, bad, np.int32(k))
                    continue
                expected = np.asarray(relay.evaluate(module, x, bad, np.int32(k)))
                np.testing.assert_allclose(np.asarray(exe(x, bad, np.int32(k))), expected, rtol=1e-5)
            assert "go__steps" in build(module, Options()).module.functions
    finally:
        remove("test.pick_clamped")
