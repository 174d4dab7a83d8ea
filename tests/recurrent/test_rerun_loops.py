"""Loops that other loops run, for all rows of a tensor or for some: same values, and no product of rows that nobody reads."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay.ir.module import Module
from tests.ad.checks import problem
from tests.recurrent.support import both, compiled, normal, operators

# What the inner loop reads of row %p: of a tensor that is the same in all calls, of one that the outer loop changes, of both.
ROWS = {
    "fixed": "nn.dense(expand_dims(take(%xs, %p, axis=0), axis=0), %w)",
    "changing": "nn.dense(expand_dims(take(%ys, %p, axis=0), axis=0), %u)",
    "both": "tanh(nn.dense(expand_dims(take(%xs, %p, axis=0), axis=0), %w) + nn.dense(expand_dims(take(%ys, %p, axis=0), axis=0), %u))",
}
# Where it begins and ends in step %t of the outer loop.
RANGES = {
    "all": ("0i64", "Dim[n]", "less", "add"),
    "edges": ("take(%first, %t, axis=0)", "take(%first, %t + 1i64, axis=0)", "less", "add"),
    "triangle": ("%t", "Dim[n]", "less", "add"),
    "back": ("%t", "0i64", "greater_equal", "subtract"),
}


def program(row: str, over: str, state: str = "tanh(%h + sum(%ys))") -> str:
    start, end, test, move = RANGES[over]
    shapes = """%first: Tensor[(m,), int64], %xs: Tensor[(n, 3), float32], %ys: Tensor[(n, 4), float32], %w: Tensor[(4, 3), float32],
      %u: Tensor[(4, 4), float32], %h: Tensor[(1, 4), float32]"""
    return f"""#[version = "0.0.5"]
    def @inner[n: Dim](%p: int64, %end: int64, %xs: Tensor[(n, 3), float32], %ys: Tensor[(n, 4), float32], %w: Tensor[(4, 3), float32],
        %u: Tensor[(4, 4), float32], %h: Tensor[(1, 4), float32]) -> Tensor[(1, 4), float32] {{
      if ({test}(%p, %end)) {{ @inner({move}(%p, 1i64), %end, %xs, %ys, %w, %u, %h * 0.5f + {ROWS[row]}) }} else {{ %h }}
    }}
    def @outer[n: Dim, m: Dim](%t: int64, {shapes}) -> Tensor[(1, 4), float32] {{
      if (%t < Dim[n]) {{
        let %new = @inner({start}, {end}, %xs, %ys, %w, %u, %h);
        @outer(%t + 1i64, %first, %xs, %ys + {state}, %w, %u, %new)
      }} else {{ %h }}
    }}
    def @main[n: Dim, m: Dim]({shapes}) -> Tensor[(1, 4), float32] {{ @outer(0i64, %first, %xs, %ys, %w, %u, %h) }}"""


def given(n: int) -> list[np.ndarray]:
    """Rows, where those of each step of the outer loop begin (none in some), and weights."""
    first = np.sort(np.random.default_rng(n).integers(0, n + 1, n + 1)).astype(np.int64)
    return [first, normal(n, 3), normal(n, 4), normal(4, 3), normal(4, 4), normal(1, 4)]


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("over", RANGES)
def test_same_values(row: str, over: str) -> None:
    module = relay.parse(program(row, over))
    args = given(6)
    expected = both(module, *args)
    assert np.array_equal(relay.compile(module)(*args), relay.compile(module, executor="aot")(*args))
    served = module.bind(dict(zip(["w", "u"], args[3:5], strict=True)))
    np.testing.assert_allclose(both(served, *args[:3], args[5]), expected, atol=1e-5)
    both(module, *given(1))
    compiled(module)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("over", ["all", "edges"])
def test_gradients(row: str, over: str) -> None:
    text = program(row, over).replace("float32", "float64").replace("0.5f", "0.5f64")
    args = [a if a.dtype == np.int64 else a.astype(np.float64) for a in given(4)]
    module = relay.infer_type(relay.parse(text))
    assert (wrong := problem(module, args, [1, 2, 3, 4, 5], forward=False, compiled=True)) is None, wrong


def bound(row: str, over: str) -> Module:
    args = given(4)
    return relay.parse(program(row, over)).bind({"w": args[3], "u": args[4]})


def test_rows_of_what_never_changes_are_computed_once() -> None:
    """Of the products with %xs none is left in either loop, however the inner one goes through its rows."""
    for over in RANGES:
        after = compiled(bound("fixed", over))
        loops = [n for n in after.functions if n.endswith("__steps")]
        assert len(loops) == 2, over
        assert not any("nn.dense" in operators(after, n) for n in loops), over


def test_some_rows_of_what_changes_are_computed_where_they_are_read() -> None:
    after = compiled(bound("changing", "edges"))
    (inner,) = (n for n in after.functions if n.startswith("inner"))
    assert "nn.dense" in operators(after, inner)
    assert not any("nn.dense" in operators(after, n) for n in after.functions if n != inner)


def test_all_rows_of_what_changes_leave_the_inner_loop() -> None:
    after = compiled(bound("changing", "all"))
    (inner,) = (n for n in after.functions if n.startswith("inner") and n.endswith("__steps"))
    assert "nn.dense" not in operators(after, inner)
    assert any("nn.dense" in operators(after, n) for n in after.functions)
