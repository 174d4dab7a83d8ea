"""Room for the rows that a loop makes: which loops are entered with it, and that nothing but memory changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import relay
from relay.interpreter.evaluation import evaluate
from relay.transform import NameDims, RoomForRows
from tests.transform.support import operators, run, typed

# Steps from `first` on, as long as `test` holds of the counter and the bound; two more rows in each.
LOOP = """
def @go[k: Dim](%t: int64, %end: int64, %x: Tensor[(2, 3), float32], %done: Tensor[(k, 3), float32]) -> Tensor[(?, 3), float32] {{
  if ({test}) {{ @go(%t {step}, %end, %x * 0.5f, concatenate((%done, %x + cast(%t, dtype="float32")), axis=0)) }} else {{ %done }}
}}
def @main[n: Dim](%t: int64, %end: int64, %x: Tensor[(2, 3), float32], %done: Tensor[(n, 3), float32]) -> Tensor[(?, 3), float32] {{
  @go(%t, %end, %x, %done)
}}"""
UP = ["%t < %end", "%t <= %end", "%end > %t", "%end >= %t"]
DOWN = ["%t > %end", "%t >= %end", "%end < %t", "%end <= %t"]


def _rooms(text: str) -> int:
    return operators(run(typed(text), NameDims(), RoomForRows()), "main").count("rows.reserve")


@pytest.mark.parametrize("by", [1, 3])
@pytest.mark.parametrize("test", [*UP, *DOWN])
def test_loops_that_count(test: str, by: int) -> None:
    text = LOOP.format(test=test, step=f"{'+' if test in UP else '-'} {by}i64")
    assert _rooms(text) == 1


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from([*UP, *DOWN]), st.integers(1, 3), st.integers(-3, 9), st.integers(-3, 9), st.integers(0, 2),
    st.sampled_from(["vm", "aot"]),
)  # fmt: skip
def test_the_same_rows(test: str, by: int, first: int, end: int, before: int, executor: str) -> None:
    text = LOOP.format(test=test, step=f"{'+' if test in UP else '-'} {by}i64")
    module = relay.parse('#[version = "0.0.5"]' + text)
    rng = np.random.default_rng(0)
    x, done = (rng.uniform(-1, 1, (n, 3)).astype(np.float32) for n in (2, before))
    given = (np.int64(first), np.int64(end), x, done)
    expected = np.asarray(evaluate(module, *given))
    found = relay.compile(module, executor=executor)(*given)
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("test", "step"),
    [
        ("logical_and(%t < %end, sum(%x) < 2f)", "+ 1i64"),
        ('%t < cast(sum(%x), dtype="int64")', "+ 1i64"),
        ("%t != %end", "+ 1i64"),
        ("%t < %end", "- 1i64"),
    ],
)
def test_loops_of_an_unknown_number_of_steps(test: str, step: str) -> None:
    """What decides besides the counter, a bound that moves, and a counter that goes the other way."""
    assert _rooms(LOOP.format(test=test, step=step)) == 0


def test_two_loops_have_rooms_of_their_own() -> None:
    text = (
        LOOP.format(test="%t < %end", step="+ 1i64")
        + """
def @both(%end: int64, %x: Tensor[(2, 3), float32]) -> (Tensor[(?, 3), float32], Tensor[(?, 3), float32]) {
  let %none = zeros(shape=[0, 3], dtype="float32");
  (@go(0i64, %end, %x, %none), @go(0i64, %end, negative(%x), %none))
}"""
    )
    module = relay.parse('#[version = "0.0.5"]' + text)
    x = np.ones((2, 3), np.float32)
    exe = relay.compile(module, entries=("both",))
    for found, sign in zip(exe.run("both", np.int64(5), x), (1, -1), strict=True):
        expected = evaluate(module, np.int64(0), np.int64(5), x * np.float32(sign), np.zeros((0, 3), np.float32))
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-6)


def test_loops_that_have_room() -> None:
    """One room is enough, also where the loop is called by way of another function."""
    text = """#[version = "0.0.5"]
    import nn
    def @main[t: Dim](%xs: Tensor[(t, 1, 8), float32], %h: Tensor[(1, 4), float32], %w: Tensor[(4, 8), float32],
        %u: Tensor[(4, 4), float32], %b: Tensor[(4,), float32]) {
      grad(fn (%w: Tensor[(4, 8), float32]) -> Tensor[(), float32] { sum(@rnn(%xs, %h, %w, %u, %b).0) })(%w)
    }"""
    rng = np.random.default_rng(1)
    shapes = {"xs": (6, 1, 8), "h": (1, 4), "w": (4, 8), "u": (4, 4), "b": (4,)}
    given = [rng.uniform(-1, 1, s).astype(np.float32) for s in shapes.values()]
    module = relay.parse(text)
    exe = relay.compile(module)
    found, expected = exe(*given), relay.evaluate(module, *given)
    for a, b in zip(_tensors(found), _tensors(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    module = run(typed(LOOP.format(test="%t < %end", step="+ 1i64")), NameDims(), RoomForRows())
    again = RoomForRows()(module)
    assert operators(again, "main").count("rows.reserve") == 1


def _tensors(value: object) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return [t for v in value for t in _tensors(v)] if isinstance(value, tuple) else [np.asarray(value)]
