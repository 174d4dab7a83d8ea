"""State that grows: what becomes an append, and that every earlier state stays what it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relay
from relay.executable import Assembler
from relay.interpreter.evaluation import evaluate
from relay.transform import DeadCode, GrowState, NameDims
from tests.runtime.programs import function, program
from tests.runtime.test_routines import routine
from tests.transform.support import operators, run, typed

Array = npt.NDArray[np.float32]
RNG = np.random.default_rng(5)

LOOP = """
def @go(%state: Tensor[(?, 4), float32], %left: int32) -> Tensor[(?, 4), float32] {
  if (%left <= 0) { %state } else {
    @go(concatenate((%state, sum(%state, axis=0, keepdims=True) * 0.5f), axis=0), %left - 1)
  }
}
def @main(%x: Tensor[(?, 4), float32], %steps: int32) -> Tensor[(?, 4), float32] { @go(%x, %steps) }"""


def test_a_loop_appends() -> None:
    assert operators(run(typed(LOOP), NameDims(), GrowState()), "go").count("append") == 1
    module = relay.parse('#[version = "0.0.5"]' + LOOP)
    x = RNG.uniform(-1, 1, (2, 4)).astype(np.float32)
    expected = np.asarray(evaluate(module, x, np.int32(20)))
    np.testing.assert_allclose(np.asarray(relay.compile(module)(x, 20)), expected, rtol=1e-5)


def test_what_does_not_leave_stays_in_its_kernel() -> None:
    text = "def @main(%x: Tensor[(3, 4), float32], %y: Tensor[(2, 4), float32]) { exp(concatenate((%x, %y), axis=0)) }"
    assert "append" not in operators(run(typed(text), GrowState()))
    text = "def @main(%x: Tensor[(3, 4), float32], %y: Tensor[(3, 4), float32]) { concatenate((%x, %y), axis=1) }"
    assert "append" not in operators(run(typed(text), GrowState()))
    text = "def @main(%x: Tensor[(3, 4), float32]) { concatenate((exp(%x), tanh(%x)), axis=0) }"
    assert "append" not in operators(run(typed(text), GrowState()))


def test_fields_of_a_state() -> None:
    text = """def @main[n: Dim](%s: (Tensor[(n, 4), float32], Tensor[(n,), int64]), %r: Tensor[(1, 4), float32]) {
      (concatenate((%s.0, %r), axis=-2), concatenate((%s.1, 7i64 + zeros(shape=[1], dtype="int64"))))
    }"""
    assert operators(run(typed(text), GrowState())).count("append") == 2


def test_appending_in_place() -> None:
    """A second row goes behind the first without copying; the shorter states keep their rows."""
    append = routine("append")
    start, row = np.zeros((8, 4), np.float32), np.ones((1, 4), np.float32)
    first = append.run("main", (start, row, 0))
    second = append.run("main", (first, row * 2, 0))
    other = append.run("main", (first, row * 3, 0))  # the place after `first` is taken
    addresses = [np.asarray(t).__array_interface__["data"][0] for t in (first, second, other)]
    assert addresses[0] == addresses[1] != addresses[2]
    np.testing.assert_array_equal(np.asarray(first)[8:], row)
    np.testing.assert_array_equal(np.asarray(second)[8:], np.concatenate([row, row * 2]))
    np.testing.assert_array_equal(np.asarray(other)[8:], np.concatenate([row, row * 3]))


BRANCHES = """
def @go[n: Dim](%state: Tensor[(n,), int32], %left: int32, %all: int32) -> (Tensor[(?,), int32], Tensor[(?,), int32], int32) {
  if (%left <= 0) { (%state, %state, %all) } else {
    let %longer = concatenate((%state, expand_dims(%left * 3, axis=0)), axis=0);
    let %rest = @go(%longer, %left - 1, %all + take(%longer, 0, axis=0));
    let %other = concatenate((%state, expand_dims(%left * 5, axis=0)), axis=0);
    (%rest.0, %other, %rest.2 + sum(%state))
  }
}
def @main(%x: Tensor[(?,), int32], %steps: int32) -> (Tensor[(?,), int32], Tensor[(?,), int32], int32) { @go(%x, %steps, 0) }"""


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_an_element_is_appended_where_others_still_read_the_state(executor: Any) -> None:
    """No view is made of an element; a state that is read later stays what it was, and what the caller gave too."""
    assert "expand_dims" not in operators(run(typed(BRANCHES), NameDims(), GrowState(), DeadCode()), "go")
    module = relay.parse('#[version = "0.0.5"]' + BRANCHES)
    exe = relay.compile(module, executor=executor)
    for length, steps in ((1, 0), (1, 40), (3, 5)):
        x = np.arange(1, 1 + length, dtype=np.int32)
        wanted: Any = evaluate(module, x, np.int32(steps))
        got: Any = exe(x, steps)
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        np.testing.assert_array_equal(x, np.arange(1, 1 + length))


@pytest.mark.parametrize("dies", [False, True])
def test_a_state_that_nobody_reads_grows_itself(dies: bool) -> None:
    """The routine gives the tensor it was given, longer, where it may: here its register shows."""

    def emit(asm: Assembler) -> None:
        count, row, yes_or_no = asm.reg("int64"), asm.reg("float32"), asm.reg("int64")
        start, first, out = (asm.reg() for _ in range(3))
        for register, dtype, value in ((count, "int64", 4), (row, "float32", 2.0), (yes_or_no, "int64", int(dies))):
            asm.emit("LoadConsti", register, dtype, value)
        asm.emit("InvokeRoutine", start, 1, [0, count])
        asm.emit("InvokeRoutine", first, 0, [start, row, yes_or_no])
        asm.emit("AllocADT", out, -1, [start, first])
        asm.emit("Ret", out)

    exe = program(function("main", 1, emit), routines=("append", "rows.reserve"))
    start, first = (np.asarray(f) for f in exe.run("main", (np.ones(2, np.float32),)).fields)
    np.testing.assert_array_equal(first, np.array([1, 1, 2], np.float32))
    assert len(start) == (3 if dies else 2)
    assert start.__array_interface__["data"][0] == first.__array_interface__["data"][0]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=30))
def test_every_state_keeps_its_rows(steps: list[tuple[int, int]]) -> None:
    """Appending to any of the states made so far, in any order, as NumPy would have it."""
    append = routine("append")
    expected: list[Array] = [np.zeros((1, 3), np.float32)]
    states: list[object] = [expected[0]]
    for number, (which, rows) in enumerate(steps):
        which %= len(states)
        new = np.full((rows, 3), number, np.float32)
        states.append(append.run("main", (states[which], new, 0)))
        expected.append(np.concatenate([expected[which], new]))
    for state, right in zip(states, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(state), right)
