"""Calls whose results nobody asks a derivative of are those of the functions as they are, and derivatives stay right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay.differentiate import differentiated
from tests.ad.checks import problem

VERSION = '#[version = "0.0.5"]\nimport prelude\n'
V, H = "Tensor[(3,), float64]", "Tensor[(h,), float64]"
R, M = "Tensor[(1, 3), float64]", "Tensor[(3, 3), float64]"
X = np.array([0.5, -0.3, 0.8])
ROWS = np.array([[0.1, 0.2, 0.9], [-0.4, 0.3, 0.2], [0.6, -0.5, 0.7], [0.3, 0.1, -0.2]])

# Until it stands still; which row is nearest.
SETTLED = f"""
def @settled[h: Dim](%x: {H}, %w: {H}, %far: float64) -> {H} {{
  if (%far > 0.001f64) {{
    let %next = tanh(%x * %w) + 0.1f64;
    @settled(%next, %w, max(abs(%next - %x)))
  }} else {{ %x }}
}}
"""
NEAREST = f"""
def @nearest[n: Dim](%i: int64, %rows: Tensor[(n, 3), float64], %x: {V}, %least: float64, %best: int64) -> int64 {{
  if (%i < Dim[n]) {{
    let %d = take(%rows, %i, axis=0) - %x;
    let %far = sum(%d * %d);
    if (%far < %least) {{ @nearest(%i + 1i64, %rows, %x, %far, %i) }} else {{ @nearest(%i + 1i64, %rows, %x, %least, %best) }}
  }} else {{ %best }}
}}
"""
# The program, its arguments, what to differentiate by, what the derivative must not contain (None: it has to be there).
PROGRAMS: dict[str, tuple[str, tuple[Any, ...], tuple[int, ...], str | None]] = {
    "a comparison of what a loop makes": (
        f"{SETTLED}def @main[h: Dim](%x: {H}, %w: {H}) {{ where(@settled(%x, %w, 1f64) > 0.1f64, %x * %w, sin(%x)) }}",
        (X, X + 0.2),
        (0, 1),
        ".forward",
    ),
    "an index that a loop chooses": (
        f"{NEAREST}def @main[n: Dim](%rows: Tensor[(n, 3), float64], %x: {V}) "
        "{ take(%rows, @nearest(0i64, %rows, %x, 1000f64, 0i64), axis=0) * %x }",
        (ROWS, X),
        (0, 1),
        ".forward",
    ),
    "in each iteration of another loop": (
        f"{NEAREST}def @main[n: Dim](%rows: Tensor[(n, 3), float64], %x: {V}) {{ @for(0i64, 3i64, fn (%i: int64, %s: {V}) -> {V} "
        "{ sin(%s) + take(%rows, @nearest(0i64, %rows, %s, 1000f64, 0i64), axis=0) * %s }, %x) }",
        (ROWS, X),
        (0, 1),
        "@nearest.forward",
    ),
    "in a branch, for a list": (
        f"def @longest(%l: List[{V}], %most: float64) -> float64 "
        "{ match (%l) { Nil => %most, Cons(%x, %r) => @longest(%r, maximum(%most, sum(%x))) } }\n"
        f"def @main(%l: List[{V}], %x: {V}) {{ if (sum(%x) > 0f64) {{ %x * floor(3f64 * @longest(%l, 0f64)) }} else {{ cos(%x) }} }}",
        ([X, X + 0.4], X),
        (0, 1),
        "@longest.ad",
    ),
    "of a pair one half": (
        f"{SETTLED}def @both[h: Dim](%x: {H}, %w: {H}) -> ({H}, int32) {{ (@settled(%x, %w, 1f64), 2) }}\n"
        f"def @main[h: Dim](%x: {H}, %w: {H}) {{ let %p = @both(%x, %w); %x * %w + sign(%p.0) }}",
        (X, X + 0.2),
        (0, 1),
        ".forward",
    ),
    "a loop that is asked for": (
        f"{SETTLED}def @main[h: Dim](%x: {H}, %w: {H}) {{ let %s = @settled(%x, %w, 1f64); where(%s > 0.1f64, %s, %x) }}",
        (X, X + 0.2),
        (0, 1),
        None,
    ),
    "a tree that a function makes, and another goes through by level": (
        f"type T {{ Leaf({R}), Node({R}, T, T), }}\n"
        f"def @make(%l: List[{R}], %w: {M}) -> T {{ match (%l) "
        "{ Nil => Leaf(sum(%w, axis=[0], keepdims=True)), Cons(%x, %r) => Node(tanh(nn.dense(%x, %w)), @make(%r, %w), Leaf(%x * %x)) } }\n"
        f"def @read(%t: T, %o: {R}, %w: {M}) -> {R} {{ match (%t) "
        "{ Leaf(%x) => sin(nn.dense(%x + %o, %w)), Node(%x, %a, %b) => @read(%a, %x, %w) * @read(%b, %o - %x, %w) } }\n"
        f'def @main(%l: List[{R}], %w: {M}) {{ @read(@make(%l, %w), zeros(shape=[1, 3], dtype="float64"), %w) }}',
        ([X[None], X[None] + 0.4], ROWS[:3]),
        (0, 1),
        None,
    ),
    "what a function puts into a reference": (
        f"def @put(%r: Ref[{V}], %x: {V}, %n: int32) -> int32 "
        "{ if (%n < 1) { 7 } else { %r := !%r * %x; @put(%r, %x, %n - 1) } }\n"
        f'def @main(%x: {V}) {{ let %r = ref(%x); let %n = @put(%r, %x, 2); !%r * cast(%n, dtype="float64") }}',
        (X,),
        (0,),
        None,
    ),
    "what a function calls": (
        f"def @calls(%f: fn ({V}) -> int32, %x: {V}, %n: int32) -> int32 "
        "{ if (%n < 1) { 3 } else { %f(%x) + @calls(%f, %x, %n - 1) } }\n"
        f"def @main(%x: {V}) {{ let %r = ref(%x); let %n = @calls(fn (%y: {V}) -> int32 {{ %r := !%r * %y; 1 }}, %x, 2); "
        'sin(!%r) * cast(%n, dtype="float64") }',
        (X,),
        (0,),
        None,
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_derivatives(name: str) -> None:
    text, args, argnums, without = PROGRAMS[name]
    module = relay.parse(VERSION + text)
    assert problem(module, args, argnums, compiled=True) is None
    if without is not None:
        assert without not in str(differentiated(relay.value_and_grad(module, argnums))).partition("\ndef ")[2]


def test_a_fixed_point_that_counts_as_a_constant() -> None:
    """One step from where the iteration has come to, which goes without tapes; the derivative is that of the step."""
    module = relay.parse(
        f"{VERSION}{SETTLED}def @main[h: Dim](%x: {H}, %w: {H}) "
        "{ let %s = stop_gradient(@settled(%x, %w, 1f64)); sum(tanh(%s * %w)) }"
    )
    for derivative in (relay.value_and_grad(module, (0, 1)), relay.grad(relay.grad(module, 1), 1), relay.jvp(module)):
        assert ".forward" not in str(differentiated(derivative))
    s, w, far = X, X + 0.2, 1.0
    while far > 0.001:
        before, s = s, np.tanh(s * w) + 0.1
        far = float(np.abs(s - before).max())
    value, (by_x, by_w) = relay.compile(relay.value_and_grad(module, (0, 1)))(X, w)
    assert np.allclose(value, np.tanh(s * w).sum()) and not np.asarray(by_x).any()
    assert np.allclose(by_w, s / np.cosh(s * w) ** 2)
