"""Networks whose form the data says, as they are written for one paper: a parser that keeps a stack, statements of expressions, trees with
attention over children, a tree that is encoded and unfolded, steps that are repeated until they have halted. One compilation for all sizes,
in every executor, as requests together, and the gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from tests.generator.compare import difference

HEAD = '#[version = "0.0.5"]\nimport prelude\n'
X, H = "Tensor[(1, 24), float32]", "Tensor[(1, 32), float32]"
WEIGHTS = "%w: Tensor[(32, 24), float32], %u: Tensor[(32, 32), float32], %v: Tensor[(32, 64), float32]"

# Shift or reduce, as a tracking cell says that reads the buffer and the stack's two uppermost states (Bowman et al. 2016).
PARSER = f"""
def @go[n: Dim](%i: int64, %depth: int64, %x: Tensor[(n, 24), float32], %stack: List[{H}], %h: {H}, {WEIGHTS}) -> ({H}, int64) {{
  let %top = match (%stack) {{ Cons(%a, _) => %a, Nil => zeros(shape=[1, 32]) }};
  let %second = match (%stack) {{ Cons(_, Cons(%a, _)) => %a, _ => zeros(shape=[1, 32]) }};
  if (logical_and(%i >= Dim[n], %depth < 2i64)) {{ (%top + %h, %i) }} else {{
    let %next = if (%i < Dim[n]) {{ nn.dense(expand_dims(take(%x, %i, axis=0), axis=0), %w) }} else {{ zeros(shape=[1, 32]) }};
    let %tracked = tanh(nn.dense(%h, %u) + nn.dense(concatenate((%top, %second), axis=1), %v) + %next);
    let %shift = if (%depth < 2i64) {{ True }} else {{ if (%i < Dim[n]) {{ sum(%tracked) > 0f }} else {{ False }} }};
    if (%shift) {{
      @go(%i + 1i64, %depth + 1i64, %x, Cons(%next, %stack), %tracked, %w, %u, %v)
    }} else {{
      let %both = tanh(nn.dense(concatenate((%second, %top), axis=1), %v));
      @go(%i, %depth - 1i64, %x, Cons(%both, @tl(@tl(%stack))), %tracked, %w, %u, %v)
    }}
  }}
}}
def @main[n: Dim](%x: Tensor[(n, 24), float32], {WEIGHTS}) -> {H} {{
  @go(0i64, 0i64, %x, Nil, zeros(shape=[1, 32]), %w, %u, %v).0
}}"""

# Two data types that hold each other, lists of both.
STATEMENTS = f"""
type Expr {{ Name({X}), Binary({X}, Expr, Expr), Apply(Expr, List[Expr]), Lambda(List[Stmt], Expr), }}
type Stmt {{ Assign({X}, Expr), Branch(Expr, List[Stmt], List[Stmt]), Pass, }}
def @expr(%e: Expr, {WEIGHTS}) -> {H} {{
  match (%e) {{
    Name(%x) => tanh(nn.dense(%x, %w)),
    Binary(%x, %l, %r) => tanh(nn.dense(%x, %w) + nn.dense(concatenate((@expr(%l, %w, %u, %v), @expr(%r, %w, %u, %v)), axis=1), %v)),
    Apply(%f, %given) => {{
      let %all = @foldl(fn (%a: {H}, %e: Expr) {{ %a + sigmoid(nn.dense(@expr(%e, %w, %u, %v), %u)) }}, zeros(shape=[1, 32]), %given);
      tanh(nn.dense(concatenate((@expr(%f, %w, %u, %v), %all), axis=1), %v))
    }},
    Lambda(%body, %value) => tanh(@block(%body, %w, %u, %v) + nn.dense(@expr(%value, %w, %u, %v), %u)),
  }}
}}
def @block(%body: List[Stmt], {WEIGHTS}) -> {H} {{
  @foldl(fn (%a: {H}, %s: Stmt) {{ %a + nn.relu(nn.dense(@stmt(%s, %w, %u, %v), %u)) }}, zeros(shape=[1, 32]), %body)
}}
def @stmt(%s: Stmt, {WEIGHTS}) -> {H} {{
  match (%s) {{
    Assign(%x, %e) => tanh(nn.dense(%x, %w) + nn.dense(@expr(%e, %w, %u, %v), %u)),
    Branch(%e, %then, %else) =>
      tanh(@expr(%e, %w, %u, %v) + nn.dense(concatenate((@block(%then, %w, %u, %v), @block(%else, %w, %u, %v)), axis=1), %v)),
    Pass => zeros(shape=[1, 32]),
  }}
}}
def @main(%p: List[Stmt], {WEIGHTS}) -> {H} {{ @block(%p, %w, %u, %v) }}"""

# A word asks the states of its children, of which there are any number.
ATTENTION = f"""
type T {{ Node({X}, List[T]), }}
def @encode(%t: T, {WEIGHTS}) -> {H} {{
  match (%t) {{
    Node(%x, %kids) => {{
      let %q = nn.dense(%x, %w);
      let %sums = @foldl(fn (%a: ({H}, Tensor[(1, 1), float32]), %kid: T) {{
        let %s = @encode(%kid, %w, %u, %v);
        let %weight = exp(0.1f * sum(%q * nn.dense(%s, %u), axis=[1], keepdims=True));
        (%a.0 + %weight * %s, %a.1 + %weight)
      }}, (zeros(shape=[1, 32]), full(0.001f, shape=[1, 1])), %kids);
      tanh(%q + nn.dense(concatenate((%q, %sums.0 / %sums.1), axis=1), %v))
    }}
  }}
}}
def @main(%t: T, {WEIGHTS}) -> {H} {{ @encode(%t, %w, %u, %v) }}"""

# Up the tree, and down it again with what has come up: how far the leaves are from what is unfolded.
UNFOLDED = f"""
type B {{ Leaf({X}), Pair(B, B), }}
def @encode(%t: B, {WEIGHTS}) -> {H} {{
  match (%t) {{
    Leaf(%x) => nn.dense(%x, %w),
    Pair(%l, %r) => tanh(nn.dense(concatenate((@encode(%l, %w, %u, %v), @encode(%r, %w, %u, %v)), axis=1), %v)),
  }}
}}
def @unfold(%t: B, %from: {H}, {WEIGHTS}) -> float32 {{
  match (%t) {{
    Leaf(%x) => {{ let %far = %from - nn.dense(%x, %w); sum(%far * %far) }},
    Pair(%l, %r) => {{
      let %down = nn.dense(%from, %u);
      @unfold(%l, tanh(%down), %w, %u, %v) + @unfold(%r, sigmoid(%down), %w, %u, %v)
    }}
  }}
}}
def @main(%t: B, {WEIGHTS}) -> float32 {{ @unfold(%t, @encode(%t, %w, %u, %v), %w, %u, %v) }}"""

# Adaptive computation time (Graves 2016): a row ponders until its halting weights add up to nearly one.
PONDERING = f"""
def @main[n: Dim](%x: Tensor[(n, 24), float32], {WEIGHTS}) -> {H} {{
  @for(0i64, Dim[n], fn (%t: int64, %s: {H}) -> {H} {{
    let %in = nn.dense(expand_dims(take(%x, %t, axis=0), axis=0), %w);
    @while(fn (%p: ({H}, {H}, float32)) {{ %p.2 < 0.99f }}, fn (%p: ({H}, {H}, float32)) -> ({H}, {H}, float32) {{
      let %h = tanh(%in + nn.dense(%p.0, %u) + nn.dense(concatenate((%p.0, %p.1), axis=1), %v));
      let %halt = sigmoid(take(%h, 0i64, axis=None));
      let %weight = if (%p.2 + %halt >= 0.99f) {{ 1f - %p.2 }} else {{ %halt }};
      (%h, %p.1 + %weight * %h, %p.2 + %weight)
    }}, (%s, zeros(shape=[1, 32]), 0f)).1
  }}, zeros(shape=[1, 32]))
}}"""

PROGRAMS = {
    "parser": PARSER, "statements": STATEMENTS, "attention": ATTENTION, "unfolded": UNFOLDED, "pondering": PONDERING
}  # fmt: skip


class Inputs:
    """Random arguments of a module's entry with about so many words."""

    def __init__(self, module: relay.Module, seed: int) -> None:
        self.module, self.rng = module, np.random.default_rng(seed)

    def floats(self, *shape: int) -> Any:
        return self.rng.standard_normal(shape).astype("float32")

    def weights(self) -> tuple[Any, ...]:
        return tuple(0.2 * self.floats(32, n) for n in (24, 32, 64))

    def of(self, name: str, n: int) -> Any:
        match name:
            case "statements":
                return self.block(n)
            case "attention":
                return self.tree(n)
            case "unfolded":
                return self.pairs(n)
            case _:
                return self.floats(n, 24)

    def parts(self, n: int) -> list[int]:
        """Numbers that add up to ``n``."""
        out: list[int] = []
        while n > 0:
            out.append(int(self.rng.integers(1, n + 1)))
            n -= out[-1]
        return out

    def tree(self, n: int) -> Any:
        return self.module.adt("T").Node(self.floats(1, 24), [self.tree(k) for k in self.parts(n - 1)])

    def pairs(self, n: int) -> Any:
        b = self.module.adt("B")
        if n == 1:
            return b.Leaf(self.floats(1, 24))
        k = int(self.rng.integers(1, n))
        return b.Pair(self.pairs(k), self.pairs(n - k))

    def block(self, n: int) -> list[Any]:
        return [self.statement(k) for k in self.parts(n)]

    def statement(self, n: int) -> Any:
        s, kind = self.module.adt("Stmt"), self.rng.integers(0, 3)
        if kind == 0:
            return s.Branch(self.expression(1), self.block(n // 2), self.block(n // 3))
        return s.Pass() if kind == 1 and n == 1 else s.Assign(self.floats(1, 24), self.expression(n))

    def expression(self, n: int) -> Any:
        e = self.module.adt("Expr")
        if n <= 1:
            return e.Name(self.floats(1, 24))
        match self.rng.integers(0, 3):
            case 0:
                return e.Binary(self.floats(1, 24), self.expression(n // 2), self.expression(n - n // 2))
            case 1:
                return e.Apply(self.expression(1), [self.expression(k) for k in self.parts(n - 1)])
            case _:
                return e.Lambda(self.block(n // 2), self.expression(n // 2))


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_compilation_serves_every_size(name: str) -> None:
    module = relay.parse(HEAD + PROGRAMS[name])
    inputs = Inputs(module, 0)
    bound = module.bind(dict(zip("wuv", inputs.weights(), strict=True)))
    given = [inputs.of(name, n) for n in (1, 2, 5, 19)]
    expected = [relay.evaluate(bound, value) for value in given]
    for executor in ("vm", "aot"):
        exe = relay.compile(bound, executor=executor)
        for value, result in zip(given, expected, strict=True):
            assert difference(exe(value), result) is None
        for found, result in zip(exe.run_batch("main", [(value,) for value in given]), expected, strict=True):
            assert difference(found, result) is None


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_of_the_weights(name: str) -> None:
    text = HEAD + PROGRAMS[name]
    start = text.index("(", text.index("def @main")) + 1
    given = text[start : text.index(") ->", start)]
    dims = "[n: Dim]" if "[n: Dim]" in text[:start].rsplit("def", 1)[1] else ""
    first = given[: given.index(":")]
    module = relay.parse(text + f"\ndef @loss{dims}({given}) -> float32 {{ sum(tanh(@main({first}, %w, %u, %v))) }}")
    inputs = Inputs(module, 1)
    arguments = (inputs.of(name, 7), *inputs.weights())
    gradient: Any = relay.grad(module, (1, 2, 3), entry="loss")
    found = relay.compile(gradient, entries=("loss",)).run("loss", *arguments)
    expected: Any = relay.evaluate(gradient, *arguments, entry="loss")
    for a, b in zip(found, expected, strict=True):
        scale = max(1.0, float(np.abs(np.asarray(b)).max()))
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-3, atol=2e-4 * scale)
