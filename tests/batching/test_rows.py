"""The operators on rows of nodes: the runtime's routines and their meaning in Python agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay import _runtime
from relay.executable import Assembler, Executable, Value
from relay.executable.bytecode import DTYPE_CODES
from relay.ir.diagnostics import ExecutionError, OperatorError
from relay.ir.expr import Call, OpRef
from relay.op import registry
from relay.op.rows import DTYPES, read_spec
from relay.transform.blocks import all_bindings, body_of
from tests.batching.programs import MIXED, lowered, module, random_expr
from tests.runtime.programs import function, program

OFFSETS = np.array([[0, 3, 0], [2, 3, 4], [2, 5, 4], [3, 6, 9]], np.int64)


def run(name: str, *arguments: Any) -> Any:
    arity = _runtime.routine_arity(name)
    assert arity == len(arguments)

    def emit(asm: Assembler) -> None:
        out = asm.reg()
        asm.emit("InvokeRoutine", out, 0, list(range(arity)))
        asm.emit("Ret", out)

    exe: Executable = program(function("main", arity, emit), routines=(name,))
    result = exe.run("main", arguments)
    return [np.asarray(f) for f in result.fields] if isinstance(result, Value) else result.numpy()


def meaning(name: str, *arguments: Any, **attrs: Any) -> Any:
    reference = registry.get(name).reference
    assert reference is not None
    return reference(*arguments, **attrs)


def test_element_types_have_the_runtimes_codes() -> None:
    assert {d: n for n, d in enumerate(DTYPES)} == dict(DTYPE_CODES)


@pytest.mark.parametrize("level", [-1, 0, 1, 2])
@pytest.mark.parametrize("clause", [0, 1, 2])
def test_rows_of_a_level(level: int, clause: int) -> None:
    rng = np.random.default_rng(1 + level + 10 * clause)
    count = int(OFFSETS[-1, clause] - OFFSETS[0, clause])
    at, of = np.int64(level), np.int64(clause)
    data = rng.standard_normal((count, 2, 3), dtype=np.float32)
    expected = meaning("rows.slice", data, OFFSETS, at, clause=clause)
    no, yes = np.int64(0), np.int64(1)
    np.testing.assert_array_equal(run("rows.slice", data, OFFSETS, at, of, no), expected)
    state = rng.standard_normal((9, 2, 3), dtype=np.float32)
    of_all = meaning("rows.slice", state, OFFSETS, at, clause=clause, of_function=True)
    np.testing.assert_array_equal(run("rows.slice", state, OFFSETS, at, of, yes), of_all)
    before = state.copy()
    for dies in (0, 1):  # an argument is somebody else's memory: it is not written even where it dies
        found = run("rows.update", state, expected, OFFSETS, at, of, np.int64(dies))
        np.testing.assert_array_equal(found, meaning("rows.update", state, expected, OFFSETS, at, clause=clause))
        np.testing.assert_array_equal(state, before)
    one = rng.standard_normal((2, 3), dtype=np.float32)
    np.testing.assert_array_equal(
        run("rows.repeat", one, OFFSETS, at, of), meaning("rows.repeat", one, OFFSETS, at, clause=clause)
    )


def test_scattered_rows() -> None:
    rng = np.random.default_rng(3)
    state, rows = (rng.standard_normal((n, 2, 3), dtype=np.float32) for n in (9, 4))
    before, index = state.copy(), np.array([7, 0, 3, 8], np.int64)
    for dies in (0, 1):
        found = run("rows.scatter", state, rows, index, np.int64(dies))
        np.testing.assert_array_equal(found, meaning("rows.scatter", state, rows, index))
        np.testing.assert_array_equal(state, before)
    none = run("rows.scatter", state, rows[:0], index[:0], np.int64(1))
    np.testing.assert_array_equal(none, state)
    for wrong in ([7, 0, 3, 9], [7, 0, 3, -1], [7, 0, 3]):
        with pytest.raises(ExecutionError, match=r"rows\.scatter"):
            run("rows.scatter", state, rows, np.array(wrong, np.int64), np.int64(1))


@pytest.mark.parametrize("width", [4, 16, 67, 150, 300])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "int64", "int16"])
def test_segments(dtype: str, width: int) -> None:
    """Rows that are a few elements, whole blocks of vectors, and blocks with some left over."""
    rng = np.random.default_rng(1)
    starts = np.array([0, 2, 2, 7], np.int64)
    items = rng.integers(0, 9, (7, width)).astype(dtype)
    for level in (-1, 1, 2):
        first, end = (0, 3) if level < 0 else (int(OFFSETS[level, 1] - 3), int(OFFSETS[level + 1, 1] - 3))
        values = items[starts[first] : starts[end]]
        for init in (np.ones(width, dtype), np.ones((end - first, width), dtype)):
            args = (init, values, starts, OFFSETS, np.int64(level))
            for backwards in (False, True):
                expected = meaning("rows.segment_sum", *args, clause=1, backwards=backwards)
                found = run("rows.segment_sum", *args, np.int64(1), np.int64(backwards))
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("width", [4, 67, 300])
def test_sums_of_gathered_rows(width: int, backwards: bool) -> None:
    """The rows are read through the index, which is clipped."""
    rng = np.random.default_rng(4)
    starts = np.array([0, 2, 2, 7], np.int64)
    data = rng.standard_normal((5, width), dtype=np.float32)
    index = np.array([4, 0, 4, -3, 9, 2, 1], np.int64)
    for level in (-1, 1, 2):
        first, end = (0, 3) if level < 0 else (int(OFFSETS[level, 1] - 3), int(OFFSETS[level + 1, 1] - 3))
        at = index[starts[first] : starts[end]]
        args: tuple[Any, ...] = (np.ones(width, np.float32), data, at, starts, OFFSETS, np.int64(level))
        expected = meaning("rows.gather_sum", *args, clause=1, backwards=backwards)
        np.testing.assert_array_equal(run("rows.gather_sum", *args, np.int64(1), np.int64(backwards)), expected)
        taken = data[np.clip(at, 0, 4)]
        args = (args[0], taken, *args[3:])
        np.testing.assert_array_equal(run("rows.segment_sum", *args, np.int64(1), np.int64(backwards)), expected)
    for few in (index[:6], np.zeros(7, np.float32)):
        with pytest.raises(ExecutionError, match=r"rows\.gather_sum"):
            args = (np.ones(width, np.float32), data, few, starts, OFFSETS, np.int64(-1))
            run("rows.gather_sum", *args, np.int64(1), np.int64(0))


def test_room_of_rows() -> None:
    """An argument is somebody else's memory: room for its rows is elsewhere, even where it dies."""
    state = np.arange(18, dtype=np.float32).reshape(9, 2)
    before = state.copy()
    for dies in (0, 1):
        room = run("rows.room", state, OFFSETS, np.int64(2), np.int64(1), np.int64(dies))
        assert room.shape == (1, 2) and not np.shares_memory(room, state)
    np.testing.assert_array_equal(state, before)
    with pytest.raises(ExecutionError, match=r"rows\.room"):
        run("rows.room", state[:5], OFFSETS, np.int64(2), np.int64(1), np.int64(0))


def test_walks() -> None:
    """The tables of values of every form, made by both readers of descriptions."""
    rng = np.random.default_rng(2)
    mod = module(MIXED)
    (walk,) = (
        b.value
        for b in all_bindings(body_of(lowered(mod).functions["value"]))
        if isinstance(b.value, Call) and isinstance(b.value.fn, OpRef) and b.value.fn.name == "rows.linearise"
    )
    spec = walk.attrs["spec"]
    assert isinstance(spec, tuple)
    exe = relay.compile(mod, threads=1, opt_level=0)
    for n in (0, 1, 3, 9, 30):
        value = random_expr(mod, rng, n)
        inward = exe.signature().arguments((value, np.zeros((9, 4), np.float32), np.zeros((4, 4), np.float32)))[0]
        found = run("rows.linearise", inward, np.array(spec, np.int64), np.zeros(0, np.int64))
        expected = meaning("rows.linearise", value, spec=spec, sizes=())
        assert len(found) == len(expected)
        # Rows of one level may come in another order, so only what does not depend on it is compared.
        np.testing.assert_array_equal(found[0], expected[0])
        np.testing.assert_array_equal(found[1].shape, expected[1].shape)
        for a, b in zip(found, expected, strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype


def test_broken_descriptions_are_refused() -> None:
    value = Value.adt(0, [])
    for words in (
        [],
        [1, 1, 1],
        [1, 1, 1, 0, 99, 6],
        [1, 1, 1, 0, 6, 8, 9, 9],
        [1, 1, 1, 0, 6, 8, 2, 7, 0, 0, 0, 0],
        [1, 1, 1, 0, 6, 8, 2, 0, 0, -1, 0, 0],
    ):
        with pytest.raises(ExecutionError):
            run("rows.linearise", value, np.array(words, np.int64), np.zeros(0, np.int64))
    with pytest.raises(OperatorError):
        read_spec((1, 1, 1, 0, 99, 99))


@pytest.mark.parametrize("mode", ["fast", "wrap"])
def test_products_read_their_rows_through_an_index(mode: str) -> None:
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal(shape).astype(np.float32) for shape in ((23, 37), (11, 29)))
    w = rng.standard_normal((29, 37)).astype(np.float32)
    text = f"""#[version = "0.0.5"]
    def @main[n: Dim](%x: Tensor[(23, 37), float32], %y: Tensor[(11, 29), float32], %w: Tensor[(29, 37), float32],
        %i: Tensor[(n,), int64], %j: Tensor[(n,), int32]) {{
      tanh(nn.dense(take(%x, %i, axis=0, mode="{mode}"), %w)) * take(%y, %j, axis=0)
    }}"""
    exe = relay.compile(relay.infer_type(relay.parse(text)).bind({"w": w}), threads=1)
    for n in (0, 1, 2, 5, 13, 47, 200):
        i, j = rng.integers(-30, 40, n), rng.integers(-3, 15, n).astype(np.int32)
        rows = x[i % 23] if mode == "wrap" else x[np.clip(i, 0, 22)]
        expected = np.tanh(rows @ w.T) * y[np.clip(j, 0, 10)]
        np.testing.assert_allclose(np.asarray(exe(x, y, i, j)), expected, rtol=2e-5, atol=1e-6)
