"""Folds over children whose step uses its accumulator as it likes, and recursive functions inside others', go by level."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay.cli.inspect import VIEWS
from relay.options import Options
from tests.batching.programs import lowered, module, notes, random_rose, weights
from tests.batching.test_structure import agree, same

ZERO = 'zeros(shape=[1, Dim[h]], dtype="float32")'
TREE = """import prelude
def @encode[h: Dim](%t: Tree[Tensor[(1, h), float32]], %w: Tensor[(h, h), float32]) -> Tensor[(1, h), float32] {
  match (%t) { Rose(%x, %kids) => { BODY } }
}
def @main[h: Dim](%t: Tree[Tensor[(1, h), float32]], %w: Tensor[(h, h), float32]) -> Tensor[(1, h), float32] { @encode(%t, %w) }
"""
CELL = (
    "fn (%a: Tensor[(1, h), float32], %k: Tree[Tensor[(1, h), float32]]) { tanh(nn.dense(%a, %w) + @encode(%k, %w)) }"
)
PAIR = """let %r = @foldl(fn (%a: (Tensor[(1, h), float32], float32), %k: Tree[Tensor[(1, h), float32]]) {
  (%a.0 * 0.5f + @encode(%k, %w) * %a.1, %a.1 - sum(%a.0)) }, (%x, 1f), %kids); tanh(nn.dense(%r.0, %w) + %r.1)"""
# Two accumulators and the list of another order, in a loop of one's own.
OWN = """
def @go[h: Dim](%c: Tensor[(1, h), float32], %kids: List[Tree[Tensor[(1, h), float32]]], %a: Tensor[(1, h), float32],
    %w: Tensor[(h, h), float32]) -> (Tensor[(1, h), float32], Tensor[(1, h), float32]) {
  match (%kids) {
    Cons(%k, %rest) => { let %e = @encode(%k, %w); @go(%c + sigmoid(%a * %e), %rest, tanh(nn.dense(%a, %w) - %c * %e), %w) },
    Nil => (%a, %c),
  }
}
"""
FOLDS = {
    "cell": f"@foldl({CELL}, {ZERO}, %kids) + nn.dense(%x, %w)",
    "started by the node": f"@foldl({CELL}, tanh(nn.dense(%x, %w)), %kids)",
    "product": """let %s = @foldl(fn (%a: Tensor[(1, h), float32], %k: Tree[Tensor[(1, h), float32]]) { %a * @encode(%k, %w) }, %x, %kids);
      nn.dense(%s, %w)""",
    "several": PAIR,
    "own": f"let %r = @go({ZERO}, %kids, %x, %w); nn.dense(%r.0, %w) - %r.1",
}


@pytest.mark.parametrize("fold", FOLDS)
def test_left_folds_of_every_step(fold: str) -> None:
    mod = module(TREE.replace("BODY", FOLDS[fold]) + (OWN if fold == "own" else ""))
    rng = np.random.default_rng(3)
    bound = {"w": weights(rng, (5, 5))[0]}
    trees = [
        [random_rose(mod, rng, n, 5, kind)] for n, kind in [(1, "wide"), (2, "chain"), (7, "wide"), (24, "random")]
    ]
    agree(mod, trees, bound)
    exe = relay.compile(mod.bind(bound), threads=1)
    for (tree,), found in zip(trees, exe.run_batch("main", trees), strict=True):
        same(found, relay.evaluate(mod.bind(bound), tree))


def test_gradient_of_a_cell_that_gathers_rows() -> None:
    """The cotangents of rows that several products read are made together only where each of them has a form of its own."""
    step = (
        "tanh(nn.dense(%a, %w) + sigmoid(nn.dense(@encode(%k, %w), %w) + %x))"  # %x: one row for all children of a node
    )
    kind = "fn (%a: Tensor[(1, h), float32], %k: Tree[Tensor[(1, h), float32]])"
    mod = module(TREE.replace("BODY", f"@foldl({kind} {{ {step} }}, %x, %kids)"))
    rng = np.random.default_rng(6)
    args = [random_rose(mod, rng, 9, 3), *weights(rng, (3, 3))]
    slopes = relay.grad(mod, argnums=1)
    same(relay.compile(slopes, threads=1)(*args), relay.evaluate(slopes, *args))


def test_what_starts_a_fold_does_not_part_what_is_shared() -> None:
    """Of a ladder, in which every node has the next one twice, there are as many nodes as rungs: the way down is the folds' alone."""
    mod = module(TREE.replace("BODY", FOLDS["started by the node"]))
    rng = np.random.default_rng(4)
    adt, x = mod.adt("Tree"), [rng.standard_normal((1, 3), dtype=np.float32) for _ in range(40)]
    (w,) = weights(rng, (3, 3))
    rung, state = None, None
    for row in x:
        rung = adt.Rose(row, [] if rung is None else [rung, rung])
        made = np.tanh(row @ w.T)
        for _ in range(0 if state is None else 2):
            made = np.tanh(made @ w.T + state)
        state = made
    same(relay.compile(mod, threads=1)(rung, w), state)


STATEMENTS = """import prelude
type E { Word(Tensor[(1, 4), float32]), Op(E, E) }
type S { Set(E), Block(List[S]) }
def @e(%e: E, %w: Tensor[(4, 8), float32]) -> Tensor[(1, 4), float32] {
  match (%e) { Word(%x) => %x, Op(%a, %b) => tanh(nn.dense(concatenate((@e(%a, %w), @e(%b, %w)), axis=1), %w)) }
}
def @all(%l: List[S], %w: Tensor[(4, 8), float32]) -> Tensor[(1, 4), float32] {
  match (%l) { Nil => zeros(shape=[1, 4], dtype="float32"),
    Cons(%s, %r) => tanh(nn.dense(concatenate((@s(%s, %w), @all(%r, %w)), axis=1), %w)) }
}
def @s(%s: S, %w: Tensor[(4, 8), float32]) -> Tensor[(1, 4), float32] { match (%s) { Set(%e) => @e(%e, %w), Block(%l) => -@all(%l, %w) } }
def @main(%l: List[S], %w: Tensor[(4, 8), float32]) -> Tensor[(1, 4), float32] { @all(%l, %w) }
"""


def test_recursion_inside_recursion_is_one_group() -> None:
    """Expressions stand in statements, and no statement in an expression: all of them are nodes of the same levels."""
    mod = module(STATEMENTS)
    rng = np.random.default_rng(5)
    e, s = mod.adt("E"), mod.adt("S")

    def expression(n: int) -> object:
        return (
            e.Word(rng.standard_normal((1, 4), dtype=np.float32))
            if n < 2
            else e.Op(expression(n // 2), expression(n - n // 2))
        )

    def statements(depth: int) -> list[object]:
        return [s.Set(expression(n)) if n % 2 else s.Block(statements(depth - 1)) for n in range(4 if depth else 0)]

    assert notes(mod)["all"] == "by level"
    agree(mod, [[statements(d)] for d in range(3)], {"w": weights(rng, (4, 8))[0]})


def test_states_are_written_where_they_are() -> None:
    """A level's functions read the states as the ones before them left them: no state is kept beside its successor, and copied."""
    from relay.ir.expr import Call, OpRef
    from relay.transform.blocks import all_bindings, body_of

    levels = lowered(module(STATEMENTS)).functions["all.levels"]
    old: set[object] = set()
    for binding in all_bindings(body_of(levels)):
        value = binding.value
        if isinstance(value, Call) and isinstance(value.fn, OpRef):
            assert not old.intersection(value.args), value.fn.name
            if value.fn.name == "rows.update":
                old.add(value.args[0])
    assert old


DOCUMENT = """import prelude
def @cell(%h: Tensor[(1, 4), float32], %x: Tensor[(1, 3), float32], %w: Tensor[(4, 3), float32], %u: Tensor[(4, 4), float32])
    -> Tensor[(1, 4), float32] { tanh(nn.dense(%x, %w) + nn.dense(%h, %u)) }
def @sentence(%s: List[Tensor[(1, 3), float32]], %w: Tensor[(4, 3), float32], %u: Tensor[(4, 4), float32])
    -> Tensor[(1, 4), float32] {
  @foldl(fn (%h: Tensor[(1, 4), float32], %x: Tensor[(1, 3), float32]) { @cell(%h, %x, %w, %u) },
    zeros(shape=[1, 4], dtype="float32"), %s)
}
def @main(%d: List[List[Tensor[(1, 3), float32]]], %w: Tensor[(4, 3), float32], %u: Tensor[(4, 4), float32],
    %v: Tensor[(4, 4), float32]) -> Tensor[(1, 4), float32] {
  1f - @foldl(fn (%h: Tensor[(1, 4), float32], %s: List[Tensor[(1, 3), float32]]) {
    tanh(nn.dense(@sentence(%s, %w, %u), %v) + %h)
  }, zeros(shape=[1, 4], dtype="float32"), %d)
}
"""


def test_sentences_of_a_document_stand_side_by_side() -> None:
    """Neither fold by itself has calls side by side; from the entry the sentences have. A single sequence has not."""
    mod = module(DOCUMENT)
    assert notes(mod)["main.together"] == "by level"
    (_, said), _ = VIEWS["batching"](mod, Options())
    assert len(said.splitlines()) == 3 and all(line.endswith(": by level") for line in said.splitlines()), said
    rng = np.random.default_rng(21)
    held = weights(rng, (4, 3), (4, 4), (4, 4))
    exe = relay.compile(mod, threads=1)
    for lengths in ((), (0,), (3,), (1, 0, 5), (2, 2, 7, 1)):
        document = [[rng.standard_normal((1, 3), dtype=np.float32) for _ in range(n)] for n in lengths]
        found, expected = exe(document, *held), relay.evaluate(mod, document, *held)
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5, atol=1e-6)
    single = """import prelude
    def @main(%s: List[Tensor[(1, 4), float32]], %u: Tensor[(4, 4), float32]) -> Tensor[(1, 4), float32] {
      @foldl(fn (%h: Tensor[(1, 4), float32], %x: Tensor[(1, 4), float32]) { tanh(%x + nn.dense(%h, %u)) },
        zeros(shape=[1, 4], dtype="float32"), %s)
    }"""
    assert "main.together" not in notes(module(single))
