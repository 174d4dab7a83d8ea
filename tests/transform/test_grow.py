"""State that grows: what becomes an append, and that every earlier state stays what it was."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

import relay
from relay.interpreter.evaluate import evaluate
from relay.transform import GrowState, NameDims
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
    first = append.run("main", (start, row))
    second = append.run("main", (first, row * 2))
    other = append.run("main", (first, row * 3))  # the place after `first` is taken
    addresses = [np.asarray(t).__array_interface__["data"][0] for t in (first, second, other)]
    assert addresses[0] == addresses[1] != addresses[2]
    np.testing.assert_array_equal(np.asarray(first)[8:], row)
    np.testing.assert_array_equal(np.asarray(second)[8:], np.concatenate([row, row * 2]))
    np.testing.assert_array_equal(np.asarray(other)[8:], np.concatenate([row, row * 3]))


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3)), max_size=30))
def test_every_state_keeps_its_rows(steps: list[tuple[int, int]]) -> None:
    """Appending to any of the states made so far, in any order, as NumPy would have it."""
    append = routine("append")
    expected: list[Array] = [np.zeros((1, 3), np.float32)]
    states: list[object] = [expected[0]]
    for number, (which, rows) in enumerate(steps):
        which %= len(states)
        new = np.full((rows, 3), number, np.float32)
        states.append(append.run("main", (states[which], new)))
        expected.append(np.concatenate([expected[which], new]))
    for state, right in zip(states, expected, strict=True):
        np.testing.assert_array_equal(np.asarray(state), right)
