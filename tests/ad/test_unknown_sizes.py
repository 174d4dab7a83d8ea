"""Derivatives of programs whose state has sizes that nobody knows: they grow, shrink, and are calculated with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from tests.ad.checks import problem

M = "Tensor[(?, 2), float64]"
ROW = "Tensor[(1, 2), float64]"
HEAD = f"""#[version = "0.0.5"]
import prelude
type State {{ State({M}, fn({M}) -> {ROW}, Ref[{M}]) }}
def @scaled[n: Dim, d: Dim](%m: Tensor[(n, d), float64]) -> Tensor[(?, d), float64] {{ %m / cast(Dim[n], dtype="float64") }}
def @mean[n: Dim, d: Dim](%m: Tensor[(n, d), float64]) -> Tensor[(1, d), float64] {{
  sum(%m, axis=[0], keepdims=True) / cast(Dim[n + 1], dtype="float64") }}
def @kept[n: Dim, d: Dim](%m: Tensor[(n, d), float64], %x: Tensor[(1, d), float64]) -> Tensor[(?, d), float64] {{
  if (Dim[n] >= 4i64) {{ concatenate((strided_slice(%m, begin=[1], end=[Dim[n]]), %x)) }} else {{ concatenate((%m, %x)) }} }}
"""
X = np.random.default_rng(0).normal(size=(3, 2)) * 0.5
K = np.int32(3)
ROWS = [np.full((1, 2), 0.1 * n) for n in range(1, 4)]

# Name: the program, its arguments, the arguments to differentiate by.
PROGRAMS: dict[str, tuple[str, tuple[Any, ...], tuple[int, ...]]] = {
    "rows that a function from a list makes": (
        f"""def @main[n: Dim](%x: Tensor[(n, 2), float64], %k: int32) -> Tensor[(n, 2), float64] {{
  let %es = Cons(fn (%v: {ROW}) -> {ROW} {{ tanh(%v) }}, Nil);
  let %go = fn (%i: int64, %acc: {M}) -> {M} {{ if (%i == Dim[n]) {{ %acc }} else {{
    let %row = expand_dims(take(%x, %i, axis=0), axis=0);
    %go(%i + 1i64, concatenate((%acc, @nth(%es, %k)(%row) * sum(%row)))) }} }};
  let %y: Tensor[(n, 2), float64] = %go(0i64, zeros(shape=[0, 2], dtype="float64"));
  %y }}""",
        (X, np.int32(0)),
        (0,),
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    text, args, argnums = PROGRAMS[name]
    assert problem(relay.parse(HEAD + text), args, argnums, compiled=True) is None
