"""Derivatives of programs whose state has sizes that nobody knows: they grow, shrink, and are calculated with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from tests.ad.checks import problem
from tests.ad.sizes_generator import example

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
    "a loop calculates with the size of its state": (
        f"""def @go(%k: int32, %m: {M}) -> {M} {{ if (%k == 0) {{ %m }} else {{ @go(%k - 1, tanh(@scaled(%m))) }} }}
def @main[n: Dim](%m: Tensor[(n, 2), float64], %k: int32) -> {M} {{ @go(%k, %m) }}""",
        (X, K),
        (0,),
    ),
    "a chart whose rows get shorter, by numbers of places that a loop counts": (
        """def @width[n: Dim, m: Dim, k: Dim](%c: Tensor[(n, 2), float64], %i: Tensor[(m,), int64], %k: Tensor[(k,), int64])
    -> Tensor[(n, 2), float64] {
  let %both = expand_dims(take(%c, %i, axis=0), axis=1) * expand_dims(take(%c, %k, axis=0), axis=0);
  scatter_nd(%c, expand_dims(%i, axis=0), sum(tanh(%both), axis=[1])) }
def @main[n: Dim](%c: Tensor[(n, 2), float64]) -> Tensor[(n, 2), float64] {
  @for(1i64, Dim[n], fn (%w: int64, %c: Tensor[(n, 2), float64]) -> Tensor[(n, 2), float64] {
    @width(%c, dyn.arange(0i64, Dim[n] - %w, 1i64, dtype="int64"), dyn.arange(0i64, %w, 1i64, dtype="int64")) }, %c) }""",
        (X,),
        (0,),
    ),
    "a chart whose places are made of two unknown sizes": (
        """def @width[n: Dim, m: Dim, k: Dim](%c: Tensor[(n, 2), float64], %i: Tensor[(m,), int64], %k: Tensor[(k,), int64])
    -> Tensor[(n, 2), float64] {
  let %ii = broadcast_to(expand_dims(%i, axis=1), shape=[Dim[m], Dim[k]]);
  let %kk = broadcast_to(expand_dims(%k, axis=0), shape=[Dim[m], Dim[k]]);
  scatter_nd(%c, expand_dims(%i, axis=0), sum(tanh(take(%c, %ii + %kk, axis=0)), axis=[1])) }
def @main[n: Dim](%c: Tensor[(n, 2), float64]) -> Tensor[(n, 2), float64] {
  @for(1i64, Dim[n], fn (%w: int64, %c: Tensor[(n, 2), float64]) -> Tensor[(n, 2), float64] {
    @width(%c, dyn.arange(0i64, Dim[n] - %w, 1i64, dtype="int64"), dyn.arange(0i64, %w, 1i64, dtype="int64")) }, %c) }""",
        (X,),
        (0,),
    ),
    "recursion calculates with the size of its state": (
        f"""def @go(%l: List[int32], %m: {M}) -> {M} {{ match (%l) {{ Nil => %m, Cons(_, %r) => tanh(@go(%r, @scaled(%m))) }} }}
def @main[n: Dim](%m: Tensor[(n, 2), float64]) -> {M} {{ @go(Cons(1, Cons(2, Nil)), %m) }}""",
        (X,),
        (0,),
    ),
    "a size before its tensor": (
        f"""def @size[n: Dim](%m: Tensor[(n, 2), float64]) -> float64 {{ cast(Dim[n], dtype="float64") }}
def @go(%k: int32, %x: {ROW}, %m: {M}) -> {ROW} {{
  if (%k == 0) {{ %x }} else {{ @go(%k - 1, sin(%x) * @size(%m), concatenate((%m, %x))) }} }}
def @main[n: Dim](%x: {ROW}, %m: Tensor[(n, 2), float64], %k: int32) -> {ROW} {{ @go(%k, %x, %m) }}""",
        (X[:1], X, K),
        (0, 1),
    ),
    "a declared size before its tensor": (
        f"""def @size[n: Dim](%m: Tensor[(n, 2), float64]) -> float64 {{ cast(Dim[n], dtype="float64") }}
def @go[n: Dim](%k: int32, %x: {ROW}, %m: Tensor[(n, 2), float64]) -> {ROW} {{
  if (%k == 0) {{ %x }} else {{ @go(%k - 1, sin(%x) * @size(%m), concatenate((%m, %x))) }} }}
def @main[n: Dim](%x: {ROW}, %m: Tensor[(n, 2), float64], %k: int32) -> {ROW} {{ @go(%k, %x, %m) }}""",
        (X[:1], X, K),
        (0, 1),
    ),
    "a loop that grows what it was given": (
        f"""def @go(%k: int32, %x: {ROW}, %m: {M}) -> {M} {{
  if (%k == 0) {{ %m }} else {{ @go(%k - 1, sin(%x), concatenate((%m, %x))) }} }}
def @main(%x: {ROW}, %m: {M}, %k: int32) -> {M} {{ @go(%k, %x, sin(%m)) }}""",
        (X[:1], X, K),
        (0, 1),
    ),
    "a window": (
        f"""def @go(%l: List[{ROW}], %m: {M}) -> {M} {{
  match (%l) {{ Nil => %m, Cons(%x, %r) => @go(%r, @kept(sin(%m), %x * @mean(%m))) }} }}
def @main(%l: List[{ROW}], %m: Tensor[(3, 2), float64]) -> {M} {{ @go(%l, %m) }}""",
        (ROWS, X),
        (0, 1),
    ),
    "a tuple with a size": (
        f"""def @go(%k: int32, %s: ({M}, {ROW})) -> ({M}, {ROW}) {{
  if (%k == 0) {{ %s }} else {{ let %x = sin(%s.1) + @mean(%s.0); @go(%k - 1, (concatenate((@scaled(%s.0), %x)), %x)) }} }}
def @main(%x: {ROW}, %k: int32) -> ({M}, {ROW}) {{ @go(%k, (%x, %x)) }}""",
        (X[:1], K),
        (0,),
    ),
    "a loop over what has an unknown size": (
        f"""def @hop[n: Dim](%q: {ROW}, %m: Tensor[(n, 2), float64], %k: int32) -> {ROW} {{
  if (%k == 0) {{ %q }} else {{ @hop(%q * 0.5f64 + nn.matmul(tanh(nn.dense(%q, %m)), %m), %m, %k - 1) }} }}
def @main(%q: {ROW}, %m: {M}, %k: int32) -> {ROW} {{ @hop(%q, %m, %k) }}""",
        (X[:1], X, K),
        (0, 1),
    ),
    "a loop over what has an unknown size in a tuple": (
        f"""def @hop[n: Dim](%q: {ROW}, %p: (Tensor[(n, 2), float64], {ROW}), %k: int32) -> {ROW} {{
  if (%k == 0) {{ %q }} else {{ @hop(%q * %p.1 + nn.matmul(tanh(nn.dense(%q, %p.0)), %p.0), %p, %k - 1) }} }}
def @main(%q: {ROW}, %m: {M}, %k: int32) -> {ROW} {{ @hop(%q, (sin(%m), %q), %k) }}""",
        (X[:1], X, K),
        (0, 1),
    ),
    "a reference that grows": (
        f"""def @main(%x: {ROW}, %k: int32) -> ({ROW}, {M}) {{
  let %r: Ref[{M}] = ref(%x);
  let %go = fn (%i: int32, %q: {ROW}) -> {ROW} {{
    if (%i == %k) {{ %q }} else {{
      let %n = tanh(@mean(!%r) + %x);
      %r := concatenate((!%r, %n));
      %go(%i + 1, %n) }} }};
  let %q = %go(0, %x);
  (%q, !%r) }}""",
        (X[:1], K),
        (0,),
    ),
    "a reference to data that grows": (
        f"""def @main(%x: {ROW}, %k: int32) -> ({M}, {ROW}) {{
  let %r: Ref[({M}, {ROW})] = ref((%x, sin(%x)));
  let %go = fn (%i: int32) -> {M} {{
    let %s = !%r;
    if (%i == %k) {{ %s.0 }} else {{
      %r := (concatenate((%s.0, tanh(@mean(%s.0) * %s.1))), cos(%s.1));
      %go(%i + 1) }} }};
  let %m = %go(0);
  (%m, (!%r).1) }}""",
        (X[:1], K),
        (0,),
    ),
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
    "the size of what a loop is given": (
        f"""def @size[n: Dim](%m: Tensor[(n, 2), float64]) -> float64 {{ cast(Dim[n], dtype="float64") }}
def @hop[n: Dim](%k: int32, %m: Tensor[(n, 2), float64], %x: {ROW}) -> {ROW} {{
  if (%k == 0) {{ %x }} else {{ @hop(%k - 1, %m, sin(%x) * @size(%m)) }} }}
def @main[n: Dim](%m: Tensor[(n, 2), float64], %x: {ROW}, %k: int32) -> {ROW} {{ @hop(%k, %m, %x) }}""",
        (X, X[:1], K),
        (0, 1),
    ),
    "a loop over what has an unknown size there too": (
        f"""def @hop(%q: {ROW}, %m: {M}, %k: int32) -> {ROW} {{
  if (%k == 0) {{ %q }} else {{ @hop(%q * 0.5f64 + nn.matmul(tanh(nn.dense(%q, %m)), tanh(%m)), %m, %k - 1) }} }}
def @main(%q: {ROW}, %m: {M}, %k: int32) -> {ROW} {{ @hop(%q, %m, %k) }}""",
        (X[:1], X, K),
        (0, 1),
    ),
    "the size of what is chosen": (
        f"""def @go(%l: List[{ROW}], %m: {M}) -> {M} {{ match (%l) {{ Nil => %m, Cons(%x, %r) => {{
  let %n = if (sum(%m) > 0.1f64) {{ concatenate((%m, %x)) }} else {{ @scaled(%m) }};
  tanh(@go(%r, @scaled(%n))) }} }} }}
def @main(%l: List[{ROW}], %m: {M}) -> {M} {{ @go(%l, %m) }}""",
        (ROWS, X),
        (0, 1),
    ),
    "the size of what the function under grad is given": (
        f"""def @go(%k: int32, %m: {M}) -> {M} {{ if (%k == 0) {{ %m }} else {{ @go(%k - 1, sin(@scaled(%m))) }} }}
def @main(%m: {M}, %x: {ROW}, %k: int32) -> {M} {{ @go(%k, @scaled(concatenate((%m, %x)))) }}""",
        (X, X[:1], K),
        (0, 1),
    ),
    "a way back is given half of what it calculates with": (
        f"""def @half[n: Dim](%m: Tensor[(n, 2), float64]) -> {M} {{ strided_slice(%m, begin=[Dim[n // 2]], end=[Dim[n]]) }}
def @seen[n: Dim](%x: {ROW}, %m: Tensor[(n, 2), float64]) -> {ROW} {{ nn.matmul(tanh(nn.dense(%x, %m)), tanh(%m)) }}
def @go(%k: int32, %m: {M}, %x: {ROW}) -> {M} {{
  if (%k == 0) {{ %m }} else {{ @go(%k - 1, concatenate((%m, %x)), tanh(@seen(%x, %m))) }} }}
def @main(%m: {M}, %x: {ROW}, %k: int32) -> {M} {{ @kept(@go(2, @half(%m), %x), %x) }}""",
        (X, X[:1], K),
        (0, 1),
    ),
    "rows of a tensor that is longer by one than one shorter by one": (
        """def @main[t: Dim](%x: Tensor[(t, 2), float64], %w: Tensor[(2,), float64]) -> Tensor[(2,), float64] {
  let %before = concatenate((zeros(shape=[1, 2], dtype="float64"), strided_slice(%x, begin=[0, 0], end=[Dim[t - 1], 2])));
  let %both = %before * %w + %x;
  @for(0i64, Dim[t], fn (%i: int64, %h: Tensor[(2,), float64]) -> Tensor[(2,), float64] { sin(%h) * take(%both, %i, axis=0) }, %w) }""",
        (X, X[0]),
        (0, 1),
    ),
    "a size that only a list has": (
        """def @main[b: Dim](%l: List[Tensor[(b, 2), float64]]) -> Tensor[(b, 2), float64] {
  match? (%l) { Cons(%x, _) => tanh(%x) } }""",
        (ROWS,),
        (0,),
    ),
    "data with a function of a size": (
        f"""def @go(%k: int32, %s: State, %w: Tensor[(2, 2), float64]) -> State {{
  if (%k == 0) {{ %s }} else {{ match (%s) {{ State(%m, %f, %r) => {{
    let %x = tanh(nn.dense(%f(%m), %w));
    %r := concatenate((!%r, %x));
    let %g = if (floor_mod(%k, 2) == 0) {{ fn (%q: {M}) -> {ROW} {{ @mean(%q) }} }}
      else {{ fn (%q: {M}) -> {ROW} {{ %f(%q) * 0.5f64 + %x }} }};
    @go(%k - 1, State(concatenate((%m, %x)), %g, %r), %w) }} }} }} }}
def @main(%x: Tensor[(2, 2), float64], %w: Tensor[(2, 2), float64], %k: int32) -> ({M}, {M}) {{
  match (@go(%k, State(%x, fn (%q: {M}) -> {ROW} {{ @mean(%q) }}, ref(zeros(shape=[0, 2], dtype="float64"))), %w)) {{
    State(%m, _, %r) => (%m, !%r) }} }}""",
        (X[:2], X[:2] + 0.3, K),
        (0, 1),
    ),
}


@pytest.mark.parametrize(("rows", "others"), [(3, 1), (1, 3), (3, 3)])
def test_what_a_loop_hands_on_may_be_of_one_element(rows: int, others: int) -> None:
    """The name that all its calls share for a ``?`` broadcasts as that does."""
    made = relay.parse("""#[version = "0.0.5"]
import prelude
def @main(%x: Tensor[(?,), float64], %y: Tensor[(?,), float64], %n: int64) {
  @for(0i64, %n, fn (%i: int64, %s: Tensor[(?,), float64]) -> Tensor[(?,), float64] { tanh(%s * %y) + %x }, %x) }""")
    rng = np.random.default_rng(0)
    assert problem(made, (rng.normal(size=rows), rng.normal(size=others), np.int64(3)), (0, 1), compiled=True) is None


@pytest.mark.parametrize("name", PROGRAMS)
def test_program(name: str) -> None:
    text, args, argnums = PROGRAMS[name]
    assert problem(relay.parse(HEAD + text), args, argnums, compiled=True) is None


@pytest.mark.programs(12)
def test_generated_program(seed: int) -> None:
    e = example(seed)
    found = problem(relay.parse(e.text), e.args, (0, 1, 2), seed=seed, compiled=True)
    assert found is None, f"program {seed}: {found}\n{e.text}\narguments: {e.args}"


def test_the_generator_reaches_everything() -> None:
    texts = [example(seed).text for seed in range(100)]
    for part in (
        "@loop",
        "@hops",
        "@walk",
        "@pairs",
        ": Ref[",
        "Both(%",
        "@foldl(",
        "if (@size(",
        "@half(",
        "[n: Dim](%k",
    ):
        assert sum(part in t[t.index("def @asked") + 80 :] for t in texts) >= 10, part
