"""A recursion that reads fields of the values it has made, as the items of a list too: by level, and the same as node by node."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import relay
from relay.ir.module import Module
from tests.batching.programs import lowered, module, notes, random_rose, weights
from tests.batching.test_values import same

VECTOR = "Tensor[(1, 6), float32]"
# What is made: one constructor, or one for leaves, with the state elsewhere in it.
TYPES = {
    "one": (
        f"type Ann {{ Ann({VECTOR}, List[Ann]), }}",
        "match (ITEM) { Ann(%h, _) => %h }",
        "Ann(%h, %done)",
    ),
    "two": (
        f"type Ann {{ Ann(List[Ann], {VECTOR}, float32), End({VECTOR}), }}",
        "match (ITEM) { Ann(_, %h, _) => %h, End(%h) => %h }",
        "match (%kids) { Nil => End(%h), Cons(_, _) => Ann(%done, %h, sum(%h)) }",
    ),
}
# What is done with the list of them. (INNER: the rest of what reading a field is for stands in the match, of one constructor.)
FOLDS = {
    "sum": f"@foldl(fn (%acc: {VECTOR}, %a: Ann) -> {VECTOR} {{ %acc + tanh(READ) }}, %zero, %done)",
    "from the right": f"@foldr(fn (%a: Ann, %acc: {VECTOR}) -> {VECTOR} {{ %acc + READ * 0.5f }}, %zero, %done)",
    "greatest": f"@foldl(fn (%acc: {VECTOR}, %a: Ann) -> {VECTOR} {{ maximum(%acc, READ) }}, %zero, %done)",
    "written out": "@total(%done, %zero)",
    "a map first": f"""@foldl(fn (%acc: {VECTOR}, %s: {VECTOR}) -> {VECTOR} {{ %acc + %s }}, %zero,
        @map(fn (%a: Ann) -> {VECTOR} {{ exp(READ) }}, %done))""",
    "twice": f"""@foldl(fn (%acc: {VECTOR}, %a: Ann) -> {VECTOR} {{ %acc + READ }}, %zero, %done)
        * sigmoid(@foldl(fn (%acc: {VECTOR}, %a: Ann) -> {VECTOR} {{ maximum(%acc, READ) }}, %zero, %done))""",
}
INNER = f"""@foldl(fn (%acc: {VECTOR}, %a: Ann) -> {VECTOR} {{
        match (%a) {{ Ann(%h, _) => {{ let %g = sigmoid(%h); %acc + %g * %h }} }} }}, %zero, %done)"""


def program(kind: str, fold: str) -> str:
    made, read, result = TYPES[kind]
    return f"""import prelude
{made}
def @total(%as: List[Ann], %acc: {VECTOR}) -> {VECTOR} {{
  match (%as) {{ Nil => %acc, Cons(%a, %rest) => @total(%rest, %acc + {read.replace("ITEM", "%a")}) }}
}}
def @up(%t: Tree[Tensor[(1, 5), float32]], %wx: Tensor[(6, 5), float32], %wh: Tensor[(6, 6), float32], %zero: {VECTOR}) -> Ann {{
  match (%t) {{
    Rose(%x, %kids) => {{
      let %done = @map(fn (%k: Tree[Tensor[(1, 5), float32]]) -> Ann {{ @up(%k, %wx, %wh, %zero) }}, %kids);
      let %s = {fold.replace("READ", "(" + read.replace("ITEM", "%a") + ")")};
      let %h = tanh(nn.dense(%x, %wx) + nn.dense(%s, %wh));
      {result}
    }},
  }}
}}
def @main(%t: Tree[Tensor[(1, 5), float32]], %wx: Tensor[(6, 5), float32], %wh: Tensor[(6, 6), float32], %zero: {VECTOR}) -> Ann {{
  @up(%t, %wx, %wh, %zero)
}}
"""


def check(mod: Module, seed: int, gained: bool = True) -> None:
    """All ways to run the program give the same for drawn trees, by themselves and as one batch."""
    rng = np.random.default_rng(seed)
    held = [*weights(rng, (6, 5), (6, 6)), np.zeros((1, 6), np.float32)]
    trees = [random_rose(mod, rng, n, 5, k) for n, k in itertools.product((1, 2, 7, 30), ("random", "chain", "wide"))]
    said = notes(mod)
    assert ("by level" in said.values()) == gained, said
    assert not any(".read" in n or ".values" in n for n in said)
    passes = lowered(mod)
    exe, native = (relay.compile(mod, threads=1, executor=e) for e in ("vm", "aot"))
    expected = [relay.evaluate(mod, t, *held) for t in trees]
    for t, meant, many in zip(trees, expected, exe.run_batch("main", [(t, *held) for t in trees]), strict=True):
        for found in (relay.evaluate(passes, t, *held), exe(t, *held), native(t, *held), many):
            same(found, meant)


@pytest.mark.parametrize("fold", FOLDS)
@pytest.mark.parametrize("kind", TYPES)
def test_items_of_a_list_that_was_made(kind: str, fold: str) -> None:
    check(module(program(kind, FOLDS[fold])), 1)


def test_what_is_done_with_a_field_stands_in_the_match() -> None:
    check(module(program("one", INNER)), 2)


@pytest.mark.parametrize(
    "fold",
    [
        # The rest of the list is wanted as it is, another field is read, and the list is read in no order.
        f"@foldl(fn (%acc: {VECTOR}, %a: Ann) -> {VECTOR} {{ match (%a) {{ Ann(%h, %below) => "
        '%acc + %h * cast(@length(%below), dtype="float32") } }, %zero, %done)',
        'match (%done) { Nil => %zero, Cons(%a, %rest) => READ * cast(@length(%rest), dtype="float32") }',
    ],
)
def test_what_is_read_otherwise_is_left_alone(fold: str) -> None:
    check(module(program("one", fold)), 3, gained=False)
