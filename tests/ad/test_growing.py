"""Gradients of loops that read what they put behind a growing tensor: the way back is a loop, too."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.module import Module
from tests.ad.checks import plain, problem
from tests.ad.test_loops import VERSION, arguments, calls, first_order, gradient, loops, normal
from tests.batching.programs import lowered

S = "Tensor[(k, 3), float64]"
L = "Tensor[(1, 3), float64]"
W = "Tensor[(3, 3), float64]"
XS = "Tensor[(t, 3), float64]"
X = "expand_dims(take(%xs, %i, axis=0), axis=0)"

ATTENTION = f"""def @go[t: Dim, k: Dim](%i: int64, %xs: {XS}, %s: {S}, %last: {L}, %w: {W}) -> Tensor[(?, 3), float64] {{
  if (%i < Dim[t]) {{
    let %share = nn.softmax(nn.dense(nn.dense(%last, %w), %s));
    let %new = tanh({X} + nn.matmul(%share, %s));
    @go(%i + 1i64, %xs, concatenate((%s, %new), axis=0), %new, %w)
  }} else {{ %s * %s }}
}}
def @main[t: Dim, k: Dim](%xs: {XS}, %s: {S}, %last: {L}, %w: {W}) {{ @go(0i64, %xs, %s, %last, %w) }}"""

LOOKUPS = f"""def @go[t: Dim, k: Dim, m: Dim](%i: int64, %xs: {XS}, %s: {S}, %at: Tensor[(t, m), int64]) -> Tensor[(?, 3), float64] {{
  if (%i < Dim[t]) {{
    let %some = take(%s, take(%at, %i, axis=0), axis=0);
    let %one = take(%s, %i, axis=0);
    let %new = sin({X} + sum(%some * %some, axis=[0], keepdims=True)) * %one;
    @go(%i + 1i64, %xs, concatenate((%s, %new), axis=0), %at)
  }} else {{ %s }}
}}
def @main[t: Dim, k: Dim, m: Dim](%xs: {XS}, %s: {S}, %at: Tensor[(t, m), int64]) {{ @go(0i64, %xs, %s, %at) }}"""

# By name: the program, the shapes of its arguments (or other arguments), those to differentiate by.
GROWING: dict[str, tuple[str, list[Any], tuple[int, ...]]] = {
    "attention over all states so far": (ATTENTION, [(4, 3), (2, 3), (1, 3), (3, 3)], (0, 1, 2, 3)),
    "no step": (ATTENTION, [(0, 3), (2, 3), (1, 3), (3, 3)], (0, 1, 2, 3)),
    "one step": (ATTENTION, [(1, 3), (1, 3), (1, 3), (3, 3)], (0, 1, 2, 3)),
    "one argument": (ATTENTION, [(3, 3), (2, 3), (1, 3), (3, 3)], (3,)),
    # Of two rows and the five that follow; what is not there is the nearest row.
    "rows that are looked up": (LOOKUPS, [(5, 3), (2, 3), np.array([[0, 1], [9, -1], [2, 2], [3, 0], [-7, 5]])], (0, 1)),
    "what is put out is the last row alone": (
        f"""def @go[t: Dim, k: Dim](%i: int64, %xs: {XS}, %s: {S}, %last: {L}) -> {L} {{
          if (%i < Dim[t]) {{
            let %new = {X} * sum(%s, axis=[0], keepdims=True) + %last;
            @go(%i + 1i64, %xs, concatenate((%s, %new), axis=0), %new)
          }} else {{ %last }}
        }}
        def @main[t: Dim](%xs: {XS}, %last: {L}) {{ @go(0i64, %xs, zeros(shape=[0, 3], dtype="float64"), %last) }}""",
        [(4, 3), (1, 3)],
        (0, 1),
    ),
    "two that grow, of rows of other ranks": (
        f"""def @go[t: Dim, k: Dim, m: Dim](%i: int64, %xs: {XS}, %s: {S}, %out: Tensor[(m, 2, 3), float64], %w: {W})
            -> (Tensor[(?, 2, 3), float64], Tensor[(?, 3), float64]) {{
          if (%i < Dim[t]) {{
            let %y = nn.dense({X}, %w) * take(%out, %i, axis=0);
            let %new = sum(nn.matmul(%y, transpose(%s)), axis=[1], keepdims=True) * %y;
            @go(%i + 1i64, %xs, concatenate((%s, expand_dims(take(%new, 0, axis=0), axis=0)), axis=0),
                concatenate((%out, expand_dims(tanh(%new), axis=0)), axis=0), %w)
          }} else {{ (%out, %s) }}
        }}
        def @main[t: Dim, k: Dim](%xs: {XS}, %s: {S}, %out: Tensor[(1, 2, 3), float64], %w: {W}) {{ @go(0i64, %xs, %s, %out, %w) }}""",
        [(3, 3), (2, 3), (1, 2, 3), (3, 3)],
        (0, 1, 2, 3),
    ),
    "their number is calculated with": (
        f"""def @go[t: Dim, k: Dim](%i: int64, %xs: {XS}, %s: {S}) -> Tensor[(?, 3), float64] {{
          if (%i < Dim[t]) {{
            let %mean = sum(%s, axis=[0], keepdims=True) / cast(Dim[k], dtype="float64");
            @go(%i + 1i64, %xs, concatenate((%s, %mean * {X}), axis=0))
          }} else {{ %s }}
        }}
        def @main[t: Dim, k: Dim](%xs: {XS}, %s: {S}) {{ @go(0i64, %xs, %s) }}""",
        [(4, 3), (2, 3)],
        (0, 1),
    ),
    "a branch reads them": (
        f"""def @go[t: Dim, k: Dim](%i: int64, %xs: {XS}, %s: {S}) -> Tensor[(?, 3), float64] {{
          if (%i < Dim[t]) {{
            let %x = {X};
            let %new = if (sum(%x) > 0f64) {{ %x * max(%s, axis=[0], keepdims=True) }} else {{ sin(%x) }};
            @go(%i + 1i64, %xs, concatenate((%s, %new), axis=0))
          }} else {{ %s }}
        }}
        def @main[t: Dim, k: Dim](%xs: {XS}, %s: {S}) {{ @go(0i64, %xs, %s) }}""",
        [(6, 3), (2, 3)],
        (0, 1),
    ),
    "a loop over them in every step": (
        f"""def @over[k: Dim](%j: int64, %s: {S}, %x: {L}, %a: {L}) -> {L} {{
          if (%j < Dim[k]) {{ @over(%j + 1i64, %s, %x, tanh(%a + %x * take(%s, %j, axis=0))) }} else {{ %a }}
        }}
        def @go[t: Dim, k: Dim](%i: int64, %xs: {XS}, %s: {S}) -> Tensor[(?, 3), float64] {{
          if (%i < Dim[t]) {{
            let %x = {X};
            @go(%i + 1i64, %xs, concatenate((%s, @over(0i64, %s, %x, zeros_like(%x))), axis=0))
          }} else {{ %s }}
        }}
        def @main[t: Dim, k: Dim](%xs: {XS}, %s: {S}) {{ @go(0i64, %xs, %s) }}""",
        [(4, 3), (2, 3)],
        (0, 1),
    ),
    "the data decides how many": (
        f"""def @go[k: Dim](%s: {S}, %x: {L}, %w: {W}) -> Tensor[(?, 3), float64] {{
          let %all = sum(abs(%s));
          if (%all < 4f64) {{
            let %new = sin(nn.dense(%x, %w) + sum(%s, axis=[0], keepdims=True));
            @go(concatenate((%s, %new), axis=0), %new, %w)
          }} else {{ %s * %all }}
        }}
        def @main[k: Dim](%s: {S}, %x: {L}, %w: {W}) {{ @go(%s, %x, %w) }}""",
        [(1, 3), (1, 3), (3, 3)],
        (0, 1, 2),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", GROWING)
def test_growing(name: str) -> None:
    """Against finite differences, in both modes, compiled too; first-order."""
    text, given, argnums = GROWING[name]
    assert problem(relay.parse(VERSION + text), arguments(given), argnums, compiled=True) is None
    assert first_order(gradient(text, argnums))


# What a step makes of all rows so far, as one row.
READ = (
    "nn.matmul(nn.softmax(nn.dense(%last, %s)), %s)",
    "sum(%s * %s, axis=[0], keepdims=True)",
    "max(%s, axis=[0], keepdims=True)",
    "expand_dims(take(%s, %i, axis=0), axis=0)",
    "expand_dims(take(%s, Dim[k] - 1i64, axis=0), axis=0)",
    "sum(take(%s, take(%at, %i, axis=0), axis=0), axis=[0], keepdims=True)",
    "mean(sin(%s) * %last, axis=[0], keepdims=True)",
    "sum(cumsum(%s, axis=0), axis=[0], keepdims=True)",
    "sum(concatenate((%s, %last), axis=0), axis=[0], keepdims=True)",
    "transpose(nn.matmul(transpose(%s), sigmoid(nn.matmul(%s, transpose(%last)))))",
    "nn.dense(%x, nn.matmul(transpose(%s), %s))",
    "(if (sum(%last) > 0f64) { sum(%s, axis=[0], keepdims=True) } else { %last })",
    "nn.dense(sum(nn.dense(%s, %w), axis=[0], keepdims=True), %w)",
    "sum(where(%s > %last, %s, %s * 2f64), axis=[0], keepdims=True)",
    'expand_dims(take(%s, argmax(sum(%s, axis=[1]), axis=[0], dtype="int64"), axis=0), axis=0)',
)
RESULTS = {
    "%s": "Tensor[(?, 3), float64]",
    "sum(%s)": "float64",
    "%last": L,
    "(%s * %s, %last)": f"(Tensor[(?, 3), float64], {L})",
}


def random_program(rng: random.Random) -> str:
    read = rng.sample(READ, rng.randint(1, 3))
    lines = "\n".join(f"let %a{n} = {e};" for n, e in enumerate(read))
    total = " + ".join(f"%a{n}" for n in range(len(read)))
    new = rng.choice(["tanh(%x + {})", "sin({}) * %x", "nn.dense(tanh({}), %w) + %x"]).format(total)
    more = rng.choice(["%i < Dim[t]", "logical_and(%i < Dim[t], sum(abs(%last)) < 3f64)"])
    result = rng.choice(list(RESULTS))
    given = f"%xs: {XS}, %s: {S}, %last: {L}, %w: {W}, %at: Tensor[(t, m), int64]"
    return f"""def @go[t: Dim, k: Dim, m: Dim](%i: int64, {given}) -> {RESULTS[result]} {{
      if ({more}) {{
        let %x = {X};
        {lines}
        let %new = {new};
        @go(%i + 1i64, %xs, concatenate((%s, %new), axis=0), {rng.choice(["%new", "%last * 0.5f64 + %new"])}, %w, %at)
      }} else {{ {result} }}
    }}
    def @main[t: Dim, k: Dim, m: Dim]({given}) {{ @go(0i64, %xs, %s, %last, %w, %at) }}"""


@pytest.mark.parametrize("seed", range(8))
def test_random_steps(seed: int) -> None:
    rng = random.Random(seed)
    text = random_program(rng)
    steps, rows = rng.randint(0, 5), rng.randint(1, 3)
    at = np.random.default_rng(seed).integers(-1, 8, (steps, 2))
    args = [normal(steps, 3), normal(rows, 3), normal(1, 3), normal(3, 3), at]
    assert problem(relay.parse(VERSION + text), args, (0, 1, 2, 3), compiled=True) is None, text
    assert first_order(gradient(text, (0, 1, 2, 3))), text


def test_nothing_as_long_as_what_has_grown_is_kept() -> None:
    """Scores and shares of all rows so far are computed again; a weight has one product; no step joins cotangents."""
    module = gradient(ATTENTION, (0, 1, 2, 3))
    inside = Module({str(n): f for n, f in enumerate(loops(module))})
    assert calls(inside, "nn.softmax") == 2 and calls(inside, "rows.add_from") == 1
    assert calls(inside, "concatenate.vjp0") == 0 and calls(inside, "zeros_like") == 0
    assert calls(inside, "nn.dense") == 3


def test_rows_that_were_looked_up_are_added_alone() -> None:
    """Each to its place, and no table as long as what has grown."""
    module = lowered(relay.grad(relay.parse(VERSION + LOOKUPS), (0, 1)), "dce")
    inside = Module({str(n): f for n, f in enumerate(loops(module))})
    assert calls(inside, "rows.add") == 2 and calls(inside, "take.vjp0") == calls(inside, "rows.add_from") == 0


def test_second_derivatives() -> None:
    text = (
        ATTENTION.replace("def @main", "def @value")
        + f"""
    def @main[t: Dim, k: Dim](%xs: {XS}, %s: {S}, %last: {L}, %w: {W}) -> float64 {{ sum(@value(%xs, %s, %last, %w)) }}"""
    )
    module = relay.grad(relay.parse(VERSION + text), 3)
    assert problem(module, [normal(3, 3), normal(2, 3), normal(1, 3), normal(3, 3)], (0, 3), forward=False) is None


def test_of_many_lengths_with_one_compilation() -> None:
    module = relay.grad(relay.parse(VERSION + ATTENTION), (0, 1, 2, 3))
    exe = relay.compile(module)
    for steps, rows in ((0, 1), (1, 4), (2, 1), (9, 3), (40, 2)):
        args = [normal(steps, 3), normal(rows, 3), normal(1, 3), normal(3, 3)]
        for found, expected in zip(plain(exe(*args)), plain(relay.evaluate(module, *args)), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


UNNAMED = {
    # What is put out is made behind the loop, where the gradient finds what is left: states, of which there is one more in each iteration.
    "a loop that is distributed": (
        """def @go(%i: int64, %n: int64, %xs: Tensor[(?, 64), float64], %v: Tensor[(64, 64), float64], %h: Tensor[(1, 64), float64],
    %o: Tensor[(?, 64), float64], %p: Tensor[(?, 64), float64]) -> (Tensor[(?, 64), float64], Tensor[(?, 64), float64]) {
  if (%i < %n) {
    let %h1 = tanh(%h + expand_dims(take(%xs, %i, axis=0), axis=0));
    @go(%i + 1i64, %n, %xs, %v, %h1, concatenate((%o, exp(nn.dense(%h1, %v))), axis=0), concatenate((%p, %h1), axis=0))
  } else { (%o, %p) }
}
def @loss[n: Dim](%xs: Tensor[(n, 64), float64], %h: Tensor[(1, 64), float64], %v: Tensor[(64, 64), float64]) -> float64 {
  let %none = zeros(shape=[0, 64], dtype="float64");
  let %r = @go(0i64, Dim[n], %xs, %v, %h, %none, %none);
  sum(%r.0) + sum(%r.1 * %r.1)
}
def @main[n: Dim](%xs: Tensor[(n, 64), float64], %h: Tensor[(1, 64), float64], %v: Tensor[(64, 64), float64]) {
  grad(@loss)(%xs, %h, %v).1
}""",
        [(64,), (1, 64), (64, 64)],
    ),
    "rows that are read": (
        """def @go(%i: int64, %n: int64, %xs: Tensor[(?, 3), float64], %h: Tensor[(1, 3), float64], %o: Tensor[(?, 3), float64])
    -> (Tensor[(1, 3), float64], Tensor[(?, 3), float64]) {
  if (%i < %n) {
    let %h1 = tanh(%h + expand_dims(take(%xs, %i, axis=0), axis=0)) + mean(%o);
    @go(%i + 1i64, %n, %xs, %h1, concatenate((%o, %h1 * %h), axis=0))
  } else { (%h, %o) }
}
def @loss[n: Dim](%xs: Tensor[(n, 3), float64], %h: Tensor[(1, 3), float64]) -> float64 {
  let %r = @go(0i64, Dim[n], %xs, %h, ones(shape=[2, 3], dtype="float64"));
  sum(%r.0) + sum(%r.1 * %r.1)
}
def @main[n: Dim](%xs: Tensor[(n, 3), float64], %h: Tensor[(1, 3), float64]) { grad(@loss)(%xs, %h).1 }""",
        [(3,), (1, 3)],
    ),
}


@pytest.mark.parametrize("name", UNNAMED)
def test_what_grows_where_sizes_have_no_names(name: str) -> None:
    text, (row, *others) = UNNAMED[name]
    program = relay.parse(VERSION + text)
    exe = relay.compile(program, entries=("main", "loss"))
    rng = np.random.default_rng(3)
    for n in (0, 1, 4):
        args = [rng.standard_normal(s) * 0.3 for s in ((n, *row), *others)]
        found: Any = exe(*args)
        expected: Any = relay.evaluate(program, *args)
        for number, (a, b) in enumerate(zip(found, expected, strict=True)):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-9, atol=1e-12)
            if a.shape[0]:
                step = rng.standard_normal(a.shape)
                there = [
                    float(exe.run("loss", *args[:number], args[number] + t * step, *args[number + 1 :]))
                    for t in (1e-6, -1e-6)
                ]
                np.testing.assert_allclose(
                    (there[0] - there[1]) / 2e-6, np.sum(np.asarray(a) * step), rtol=1e-5, atol=1e-7
                )
