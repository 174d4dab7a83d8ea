"""Folds over children that put several terms in at once are sums and extremes of segments, as those that put in one are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay.transform.fold_terms import FoldTerms
from tests.ad.checks import problem
from tests.batching.programs import lowered, module, notes, random_rose, weights
from tests.batching.test_structure import agree, same
from tests.transform.support import operators

TREE, STATE = "Tree[Tensor[(1, h), float32]]", "Tensor[(1, h), float32]"
BOTH = "let %s = @encode(%k, %w, %u); let %l = nn.dense(%s, %w); let %r = nn.dense(%s, %u);"
# What is put into the accumulator, and what a level does for it.
STEPS = {
    "two": ("%a + %l + %r", "rows.segment_sum"),
    "the accumulator second": ("%l + (%r + %a)", "rows.segment_sum"),
    "one taken away": ("%a - %l", "rows.segment_sum"),
    "of both kinds": ("%r + (%a - %l) - tanh(%s) + %x", "rows.segment_sum"),
    "the greatest": ("maximum(maximum(%a, %l), %r)", "rows.segment_most"),
    "the least": ("minimum(%r, minimum(%l, %a))", "rows.segment_most"),
}
PAIR = f"""let %p = @foldl(fn (%a: ({STATE}, {STATE}), %k: {TREE}) {{
    {BOTH} (%a.0 + %l - %r, maximum(maximum(%a.1, %s), %r)) }}, (%x, %x), %kids);
  tanh(nn.dense(%p.0, %w) + %p.1)"""
RIGHT = f"tanh(nn.dense(@foldr(fn (%k: {TREE}, %a: {STATE}) {{ {BOTH} %l + %r * %x + %a }}, %x, %kids), %w))"
HEAD = f"""import prelude
def @encode[h: Dim](%t: {TREE}, %w: Tensor[(h, h), float32], %u: Tensor[(h, h), float32]) -> {STATE} {{
  match (%t) {{ Rose(%x, %kids) => {{ BODY }} }}
}}
def @main[h: Dim](%t: {TREE}, %w: Tensor[(h, h), float32], %u: Tensor[(h, h), float32]) -> {STATE} {{ @encode(%t, %w, %u) }}
"""
BODIES = {
    **{
        n: (f"tanh(nn.dense(@foldl(fn (%a: {STATE}, %k: {TREE}) {{ {BOTH} {step} }}, %x, %kids), %w))", made)
        for n, (step, made) in STEPS.items()
    },
    "a pair": (PAIR, "rows.segment_sum"),
    "from the right": (RIGHT, "rows.segment_sum"),
}


@pytest.mark.parametrize("body", BODIES)
def test_every_way_to_run_it(body: str) -> None:
    code, made = BODIES[body]
    mod = module(HEAD.replace("BODY", code))
    rng = np.random.default_rng(3)
    bound = dict(zip("wu", weights(rng, (5, 5), (5, 5)), strict=True))
    trees = [
        [random_rose(mod, rng, n, 5, kind)] for n, kind in [(1, "wide"), (2, "chain"), (7, "wide"), (24, "random")]
    ]
    assert notes(mod)["encode"] == "by level"
    assert made in str(lowered(mod.bind(bound)))  # and an item is no level of its own
    agree(mod, trees, bound)
    exe = relay.compile(mod.bind(bound), threads=1)
    for (tree,), found in zip(trees, exe.run_batch("main", trees), strict=True):
        same(found, relay.evaluate(mod.bind(bound), tree))
        assert np.array_equal(found, exe(tree))


@pytest.mark.parametrize("body", ["of both kinds", "the greatest", "a pair"])
def test_gradients(body: str) -> None:
    text = HEAD.replace("BODY", BODIES[body][0]).replace("def @main", "def @whole")
    text = text.replace("float32", "float64")
    text += f"""def @main(%t: {TREE}, %w: Tensor[(h, h), float32], %u: Tensor[(h, h), float32]) -> float32 {{
      sum(@whole(%t, %w, %u)) }}""".replace("float32", "float64").replace("@main", "@main[h: Dim]")
    mod = module(text)
    rng = np.random.default_rng(4)
    tree = random_rose(mod, rng, 9, 4)

    def as_double(node: Any) -> Any:
        word, kids = node.fields
        return mod.adt("Tree").Rose(word.astype("float64"), [as_double(k) for k in kids])

    args = [as_double(tree), *(w.astype("float64") for w in weights(rng, (4, 4), (4, 4)))]
    assert (wrong := problem(mod, args, [1, 2], forward=False, compiled=True)) is None, wrong


def test_equal_extremes_have_their_cotangent_where_they_had_it() -> None:
    """Of equal values the last one has it: however they are put together."""
    text = """import prelude
def @main(%xs: List[Tensor[(2,), float64]], %v: Tensor[(2,), float64], %u: Tensor[(2,), float64]) -> float64 {
  sum(@foldl(fn (%a: Tensor[(2,), float64], %x: Tensor[(2,), float64]) { maximum(maximum(%a, %x * %v), %x * %u) },
    const([0, 0], (2,), float64), %xs))
}"""
    slopes = relay.value_and_grad(module(text), (1, 2))
    x, one = np.ones(2), np.ones(2)
    args = ([x, 0.5 * x, x], one, one)
    expected: Any = relay.evaluate(slopes, *args)
    for a, b in zip(relay.compile(slopes)(*args)[1], expected[1], strict=True):
        assert np.array_equal(a, b)


def test_what_stays_as_it_is() -> None:
    """Steps that read their accumulator twice, take it away from something, or mix sums and extremes."""
    for step in ("%a + %x + %a", "%x - %a", "maximum(%a, %x) + %x", "maximum(maximum(%a, %x), maximum(%x, %a))"):
        mod = lowered(
            module(f"""import prelude
def @main(%xs: List[Tensor[(2,), float32]]) -> Tensor[(2,), float32] {{
  @foldl(fn (%a: Tensor[(2,), float32], %x: Tensor[(2,), float32]) {{ {step} }}, const([1, 2], (2,), float32), %xs)
}}"""),
            "name_dims",
        )
        assert FoldTerms()(mod) is mod and "negative" not in operators(mod)
