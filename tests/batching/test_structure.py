"""Recursion over structures: the interpreter, compiled code with batching and compiled code without it agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay import _runtime
from relay.cli.inspect import VIEWS
from relay.ir.diagnostics import ShapeError
from relay.ir.expr import Call, Function, If, OpRef
from relay.ir.module import Module
from relay.options import Options
from relay.transform.batching import clauses, structure
from relay.transform.batching.choices import with_both_branches
from relay.transform.blocks import all_bindings, body_of
from relay.transform.inline import inline_all
from tests.batching.programs import (
    CHILD_SUM,
    EDGES,
    MIXED,
    TREE_LSTM,
    TREE_RNN,
    lowered,
    module,
    notes,
    random_expr,
    random_net,
    random_rose,
    random_tree,
    weights,
)

SIZES = [1, 2, 3, 7, 24]


def flat(value: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(v) for v in value] if isinstance(value, tuple) else [np.asarray(value)]


def same(a: Any, b: Any) -> None:
    for x, y in zip(flat(a), flat(b), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


def agree(mod: Module, arguments: list[list[Any]], bound: dict[str, Any] | None = None) -> None:
    """All ways to run the program give the same on each list of arguments."""
    if bound:
        mod = mod.bind(bound)
    passes = lowered(mod)
    assert "by level" in notes(mod).values()
    batched = relay.compile(mod, threads=1)
    plain = relay.compile(mod, threads=1, opt_level=2)
    for args in arguments:
        expected = relay.evaluate(mod, *args)
        same(relay.evaluate(passes, *args), expected)
        same(batched(*args), expected)
        same(plain(*args), expected)


@pytest.mark.parametrize("bind", [False, True])
@pytest.mark.parametrize("kind", ["random", "balanced", "left", "right"])
def test_trees(kind: str, bind: bool) -> None:
    rng = np.random.default_rng(1)
    mod = module(TREE_LSTM)
    held = dict(zip(("wl", "bl", "wn", "bn"), weights(rng, (18, 5), (18,), (30, 12), (30,)), strict=True))
    trees = [random_tree(mod, rng, n, 5, kind) for n in SIZES]
    agree(mod, [[t] if bind else [t, *held.values()] for t in trees], held if bind else None)


def test_against_numpy() -> None:
    rng = np.random.default_rng(2)
    mod = module(TREE_RNN)
    wl, wn = weights(rng, (6, 5), (6, 12))

    def encode(t: Any) -> Any:
        if t.constructor == "Leaf":
            return np.tanh(t.fields[0].astype(np.float64) @ wl.T)
        return np.tanh(np.concatenate([encode(f) for f in t.fields], axis=1) @ wn.T)

    exe = relay.compile(mod, threads=1)
    for n in (1, 2, 40):
        tree = random_tree(mod, rng, n, 5)
        np.testing.assert_allclose(np.asarray(exe(tree, wl, wn)), encode(tree), rtol=1e-5, atol=1e-6)


def test_every_form_of_structure() -> None:
    rng = np.random.default_rng(3)
    mod = module(MIXED)
    table, w = weights(rng, (9, 4), (4, 4))
    agree(mod, [[random_expr(mod, rng, n), table, w] for n in (0, 1, 2, 3, 5, 8, 13, 20, 30, 40) for _ in range(3)])


@pytest.mark.parametrize("bind", [False, True])
@pytest.mark.parametrize("kind", ["random", "chain", "wide"])
def test_children_in_lists(kind: str, bind: bool) -> None:
    rng = np.random.default_rng(10)
    mod = module(CHILD_SUM)
    names = ("wx", "wh", "b", "wf", "uf", "bf")
    made = weights(rng, (18, 5), (18, 6), (18,), (6, 5), (6, 6), (6,))
    held = dict(zip(names, made, strict=True))
    trees = [random_rose(mod, rng, n, 5, kind) for n in (1, 2, 3, 9, 40)]
    agree(mod, [[t] if bind else [t, *held.values()] for t in trees], held if bind else None)


def test_lists_of_every_form() -> None:
    rng = np.random.default_rng(11)
    mod = module(EDGES)
    (w,) = weights(rng, (4, 4))
    zero = np.zeros(4, np.float32)
    agree(mod, [[random_net(mod, rng, n), w, zero] for n in (0, 1, 2, 4, 8, 15, 25) for _ in range(3)])
    assert notes(mod)["net"] == "by level"


def test_sums_are_in_the_programs_order() -> None:
    """Numbers whose sum depends on the order: first to last for foldl, last to first for foldr."""
    text = """
    import prelude
    def @encode(%t: Tree[float32], %w: Tensor[(1, 1), float32]) -> float32 {
      match (%t) {
        Rose(%x, %kids) => {
          let %s = @map(fn (%k: Tree[float32]) { @encode(%k, %w) }, %kids);
          let %y = reshape(nn.dense(reshape(%x, newshape=[1, 1]), %w), newshape=[]);
          @FOLD + %y
        },
      }
    }
    def @main(%t: Tree[float32], %w: Tensor[(1, 1), float32]) -> float32 { @encode(%t, %w) }
    """
    left = "@foldl(fn (%a: float32, %v: float32) { %a + %v }, 0f, %s)"
    right = "@foldr(fn (%v: float32, %a: float32) { %v + %a }, 0f, %s)"
    values = [1e8, 1.0, -1e8, 3.0, 1e8, -1e8, 0.5]
    found = []
    for fold in (left, right):
        mod = module(text.replace("@FOLD", fold))
        adt = mod.adt("Tree")
        tree = adt.Rose(np.float32(0), [adt.Rose(np.float32(v), []) for v in values])
        one = np.ones((1, 1), np.float32)
        assert notes(mod)["encode"] == "by level"
        got, expected = (float(np.asarray(f)) for f in (relay.compile(mod)(tree, one), relay.evaluate(mod, tree, one)))
        assert got == expected
        found.append(got)
    assert found[0] != found[1]


FOLDS = {
    "greatest": '@foldl(fn (%a: V, %s: V) { maximum(%a, %s) }, zeros(shape=[1, 4], dtype="float32"), %states)',
    "least, from the last": "@foldr(fn (%s: V, %a: V) { minimum(%s, %a) }, %in, %states)",
    "attention": """{
      let %p = @foldl(fn (%a: (Tensor[(1, 1), float32], V), %s: V) {
        let %e = exp(tanh(sum(%s * %in, axis=[1], keepdims=True)));
        (%a.0 + %e, %a.1 + %e * %s)
      }, (ones(shape=[1, 1], dtype="float32"), zeros(shape=[1, 4], dtype="float32")), %states);
      %p.1 / %p.0
    }""",
    "softmax": """{
      let %m = @foldl(fn (%a: float32, %s: V) { maximum(sum(%s), %a) }, 0f, %states);
      let %p = @foldr(fn (%s: V, %a: (float32, V)) {
        let %e = exp(sum(%s) - %m);
        (%a.0 + %e, %e * %s + %a.1)
      }, (1e-6f, zeros(shape=[1, 4], dtype="float32")), %states);
      %p.1 / %p.0
    }""",
    "how many": """{
      let %p = @foldl(fn (%a: (float32, V, V), %s: V) { (%a.0 + 1f, %a.1 + %s, maximum(%s, %a.2)) }, (0f, %in, %in), %states);
      %p.1 / (%p.0 + 1f) + %p.2
    }""",
}


@pytest.mark.parametrize("fold", FOLDS.values(), ids=FOLDS)
def test_folds_of_several_accumulators(fold: str) -> None:
    """What folds take the greatest or the least of, and several of them at once; items may use what is made of all of them."""
    text = """
    import prelude
    def @encode(%t: Tree[V], %w: Tensor[(4, 4), float32]) -> V {
      match (%t) {
        Rose(%x, %kids) => {
          let %in = nn.dense(%x, %w);
          let %states = @map(fn (%k: Tree[V]) { @encode(%k, %w) }, %kids);
          tanh(FOLD + %in)
        },
      }
    }
    def @main(%t: Tree[V], %w: Tensor[(4, 4), float32]) -> V { @encode(%t, %w) }
    """
    mod = module(text.replace("FOLD", fold).replace("V", "Tensor[(1, 4), float32]"))
    rng = np.random.default_rng(21)
    adt = mod.adt("Tree")

    def tree(nodes: int) -> Any:
        parts: list[Any] = []
        left = nodes - 1
        while left:
            size = int(rng.integers(1, left + 1))
            parts.append(tree(size))
            left -= size
        return adt.Rose(rng.standard_normal((1, 4), dtype=np.float32), parts)

    (w,) = weights(rng, (4, 4))
    trees = [tree(n) for n in (1, 2, 3, 9, 30)]
    agree(mod, [[t, w] for t in trees])
    assert notes(mod)["encode"] == "by level"
    results = relay.compile(mod, threads=1).run_batch("main", [(t, w) for t in trees])
    for t, found in zip(trees, results, strict=True):
        same(found, relay.evaluate(mod, t, w))


CHOICE = """
    type Tree[A] { Leaf(A), Node(Tree[A], Tree[A]), }
    def @encode(%t: Tree[(float32, Tensor[(1, 4), float32])], %w: Tensor[(4, 8), float32]) -> (float32, Tensor[(1, 4), float32]) {
      match (%t) {
        Leaf(%x) => if (%x.0 > 0f) { %x } else { (1f, tanh(%x.1)) },
        Node(%l, %r) => {
          let %a = @encode(%l, %w);
          let %b = @encode(%r, %w);
          let %s = nn.dense(concatenate((%a.1, %b.1), axis=1), %w);
          let %n = %a.0 + %b.0;
          CHOICE
        },
      }
    }
    def @main(%t: Tree[(float32, Tensor[(1, 4), float32])], %w: Tensor[(4, 8), float32]) -> (float32, Tensor[(1, 4), float32]) {
      let %r = @encode(%t, %w);
      if (%r.0 < 2f) { %r } else { (%r.0 / 2f, tanh(%r.1)) }
    }
"""


def choice_tree(mod: Module, rng: np.random.Generator, leaves: int) -> Any:
    adt = mod.adt("Tree")
    if leaves == 1:
        return adt.Leaf((np.float32(rng.normal()), rng.standard_normal((1, 4), dtype=np.float32)))
    cut = int(rng.integers(1, leaves))
    return adt.Node(choice_tree(mod, rng, cut), choice_tree(mod, rng, leaves - cut))


@pytest.mark.parametrize(
    "choice",
    [
        "if (%n > 2f) { (%n - 2f, %s / (%n - 2f)) } else if (sum(%s) > 0f) { (0f, sqrt(%s)) } else { %b }",
        "(%n, if (%n == 0f) { %s } else { %s / %n })",  # what is not taken is a quotient by 0
    ],
)
def test_choices_of_little_work_are_computed_both_ways(choice: str) -> None:
    mod = module(CHOICE.replace("CHOICE", choice))
    rng = np.random.default_rng(8)
    (w,) = weights(rng, (4, 8))
    trees = [choice_tree(mod, rng, n) for n in SIZES]
    agree(mod, [[t, w] for t in trees])
    assert notes(mod)["encode"] == "by level"
    exe = relay.compile(mod, threads=1)
    for t, found in zip(trees, exe.run_batch("main", [(t, w) for t in trees]), strict=True):
        same(found, relay.evaluate(mod, t, w))
    _, (_, text) = VIEWS["batching"](mod, Options())
    assert text == "@main: one batch"


def test_a_product_is_computed_where_it_is_wanted() -> None:
    """A branch that multiplies matrices is not computed for nodes that do not take it."""
    choice = "if (%n > 0f) { (%n, nn.dense(concatenate((%s, %s), axis=1), %w)) } else { %a }"
    mod = module(CHOICE.replace("CHOICE", choice))
    assert "`if` decides" in str(notes(mod)["encode"])


def test_each_call_is_asked_once_for_what_it_costs_however_many_choices_are_around_it() -> None:
    body = "%x"
    for n in range(40):
        body = f"if (sum(%x) > {n}f) {{ {body} }} else {{ tanh(%x) * {n}f }}"
    (main,) = lowered(
        module(f'#[version = "0.0.5"]\ndef @main(%x: Tensor[(4,), float32]) {{ {body} }}')
    ).functions.values()
    asked: list[int] = []

    def cheap(call: Call) -> bool:
        asked.append(id(call))
        return True

    out = with_both_branches(main, cheap)
    assert len(asked) == len(set(asked)) > 100
    assert not any(isinstance(b.value, If) for b in body_of(out).bindings)


def test_shared_parts_are_one_node() -> None:
    """A value that doubles at every level has 2^40 nodes as a tree, and 41 as what it is."""
    rng = np.random.default_rng(4)
    mod = module(TREE_RNN)
    wl, wn = weights(rng, (6, 5), (6, 12))
    adt = mod.adt("Tree")
    exe = relay.compile(mod, threads=1)
    leaf = adt.Leaf(rng.standard_normal((1, 5), dtype=np.float32))
    value: Any = exe.signature().arguments((leaf, wl, wn))[0]
    tree = leaf
    for n in range(40):
        value = _runtime.Value.adt(1, [value, value])
        if n < 6:
            tree = adt.Node(tree, tree)
        if n == 5:
            same(exe(value, wl, wn), relay.evaluate(mod, tree, wl, wn))
    state = np.tanh(leaf.fields[0] @ wl.T)
    for _ in range(40):
        state = np.tanh(np.concatenate([state, state], axis=1) @ wn.T)
    np.testing.assert_allclose(np.asarray(exe(value, wl, wn)), state, rtol=1e-4, atol=1e-5)


def test_leaves_without_fields_are_one_node() -> None:
    """They are one object, whoever has made them: a row where the arguments are the same for all, a row for each where not."""
    fixed = """
    type Bin { End, Fork(Tensor[(1, 3), float32], Bin, Bin), }
    def @f(%t: Bin, %w: Tensor[(3, 9), float32]) -> Tensor[(1, 3), float32] {
      match (%t) {
        End => expand_dims(sum(%w, axis=[1]), axis=0),
        Fork(%x, %l, %r) => tanh(nn.dense(concatenate((%x, @f(%l, %w), @f(%r, %w)), axis=1), %w)) } }
    def @main(%t: Bin, %w: Tensor[(3, 9), float32]) -> Tensor[(1, 3), float32] { @f(%t, %w) }"""
    changing = """
    type Bin { End, Fork(Tensor[(1, 3), float32], Bin, Bin), }
    def @f(%t: Bin, %s: Tensor[(1, 3), float32], %w: Tensor[(3, 9), float32]) -> Tensor[(1, 3), float32] {
      match (%t) {
        End => %s,
        Fork(%x, %l, %r) =>
          tanh(nn.dense(concatenate((%x, @f(%l, tanh(%s + %x), %w), @f(%r, tanh(%s - %x), %w)), axis=1), %w)) } }
    def @main(%t: Bin, %w: Tensor[(3, 9), float32]) -> Tensor[(1, 3), float32] { @f(%t, mean(%w) * ones(shape=[1, 3]), %w) }"""
    for text in (fixed, changing):
        rng = np.random.default_rng(3)
        mod = module(text)
        adt, (w,) = mod.adt("Bin"), weights(rng, (3, 9))

        def grown(forks: int, adt: Any = adt, rng: np.random.Generator = rng) -> Any:
            if forks == 0:
                return adt.End()
            left = int(rng.integers(0, forks))
            return adt.Fork(rng.standard_normal((1, 3), dtype=np.float32), grown(left), grown(forks - 1 - left))

        trees = [grown(n) for n in (0, 1, 2, 9)]
        assert "by level" in notes(mod).values()
        for found, t in zip(
            relay.compile(mod, threads=1).run_batch("main", [(t, w) for t in trees]), trees, strict=True
        ):
            same(found, relay.evaluate(mod, t, w))
        if text == changing:
            continue
        text = (
            text.replace("def @main", "def @all")
            + "def @main(%t: Bin, %w: Tensor[(3, 9), float32]) -> float32 { sum(@all(%t, %w)) }"
        )
        slope = relay.grad(relay.parse(f'#[version = "0.0.5"]{text}'), argnums=1)
        same(relay.compile(slope, threads=1)(trees[-1], w), relay.evaluate(slope, trees[-1], w))


# Ways to reach a part twice that only one value holds: from the part that holds it and from the one above that, by two functions, as the
# first child and as one of all, in a list that is there twice.
REACHED = {
    "the part that holds it and the one above": """
    type Chain { End, Next(Chain), }
    def @f(%c: Chain, %w: Tensor[(2, 2), float32], %x: Tensor[(1, 2), float32]) -> Tensor[(1, 2), float32] {
      match (%c) {
        End => %x,
        Next(%r) => match (%r) {
          End => tanh(nn.dense(%x, %w)),
          Next(%s) => tanh(nn.dense(@f(%r, %w, %x) + @f(%s, %w, %x), %w)),
        },
      }
    }""",
    "two functions": """
    type Chain { End, Next(Chain), }
    def @f(%c: Chain, %w: Tensor[(2, 2), float32], %x: Tensor[(1, 2), float32]) -> Tensor[(1, 2), float32] {
      match (%c) { End => %x, Next(%r) => tanh(nn.dense(@f(%r, %w, %x) + @g(%r, %w, %x), %w)), }
    }
    def @g(%c: Chain, %w: Tensor[(2, 2), float32], %x: Tensor[(1, 2), float32]) -> Tensor[(1, 2), float32] {
      match (%c) { End => %x + %x, Next(%r) => tanh(nn.dense(@f(%r, %w, %x) - @g(%r, %w, %x), %w)), }
    }""",
    "the first and all": """
    type Chain { End, Next(List[Chain]), }
    def @f(%c: Chain, %w: Tensor[(2, 2), float32], %x: Tensor[(1, 2), float32]) -> Tensor[(1, 2), float32] {
      match (%c) {
        End => %x,
        Next(%l) => {
          let %s = match (%l) { Nil => %x, Cons(%k, _) => @f(%k, %w, %x), };
          let %all = @map(fn (%k: Chain) { @f(%k, %w, %x) }, %l);
          tanh(nn.dense(%s - @foldl(fn (%a: Tensor[(1, 2), float32], %v: Tensor[(1, 2), float32]) { maximum(%a, %v) }, %x, %all), %w))
        },
      }
    }""",
    "a list": """
    type Chain { End, Next(List[Chain], List[Chain]), }
    def @f(%c: Chain, %w: Tensor[(2, 2), float32], %x: Tensor[(1, 2), float32]) -> Tensor[(1, 2), float32] {
      match (%c) {
        End => %x,
        Next(%l, %m) => {
          let %a = @foldl(fn (%a: Tensor[(1, 2), float32], %k: Chain) { %a + @f(%k, %w, %x) }, %x, %l);
          let %b = @foldl(fn (%a: Tensor[(1, 2), float32], %k: Chain) { %a - @f(%k, %w, %x) }, %x, %m);
          tanh(nn.dense(%a - %b, %w))
        },
      }
    }""",
}


@pytest.mark.parametrize("way", REACHED)
def test_a_part_that_one_value_holds_is_one_node(way: str) -> None:
    """However often it is reached: on a chain node by node takes exponentially many calls."""
    main = "(%c: Chain, %w: Tensor[(2, 2), float32], %x: Tensor[(1, 2), float32]) { @f(%c, %w, %x) }"
    mod = module(f"import prelude\n{REACHED[way]}\ndef @main{main}")
    w, x = weights(np.random.default_rng(12), (2, 2), (1, 2))
    exe = relay.compile(mod, threads=1)
    assert notes(mod)["f"] == "by level"
    adt = mod.adt("Chain")
    fields = len(mod.types["Chain"].constructors[1].fields)

    def chain(length: int) -> Any:
        value: Any = exe.signature().arguments((adt.End(), w, x))[0]
        for _ in range(length):
            inside = value
            if "List" in REACHED[way]:
                inside = _runtime.Value.adt(0, [value, _runtime.Value.adt(1, [])])
            value = _runtime.Value.adt(1, [inside] * fields)
        return value

    plain = relay.compile(mod, threads=1, opt_level=2)
    for length in (0, 1, 2, 7):
        same(exe(chain(length), w, x), plain(chain(length), w, x))
    assert np.isfinite(np.asarray(exe(chain(80), w, x))).all()


def test_a_part_in_an_item_of_two_lists_is_one_node() -> None:
    """The item is what two lists hold; the part itself is held once, by the item."""
    mod = module("""
    import prelude
    type Chain { End, Next(List[(Chain,)], List[(Chain,)]), }
    def @f(%c: Chain, %w: Tensor[(2, 2), float32], %x: Tensor[(1, 2), float32]) -> Tensor[(1, 2), float32] {
      match (%c) {
        End => %x,
        Next(%l, %m) => {
          let %a = @foldl(fn (%a: Tensor[(1, 2), float32], %k: (Chain,)) { %a + @f(%k.0, %w, %x) }, %x, %l);
          let %b = @foldl(fn (%a: Tensor[(1, 2), float32], %k: (Chain,)) { %a - @f(%k.0, %w, %x) }, %x, %m);
          tanh(nn.dense(%a - %b, %w))
        },
      }
    }
    def @longer(%c: Chain) -> Chain { let %item = (%c,); Next(Cons(%item, Nil), Cons(%item, Nil)) }
    def @main(%c: Chain, %w: Tensor[(2, 2), float32], %x: Tensor[(1, 2), float32]) { @f(%c, %w, %x) }""")
    w, x = weights(np.random.default_rng(12), (2, 2), (1, 2))
    exe, plain = (relay.compile(mod, threads=1, opt_level=n, entries=["main", "longer"]) for n in (3, 2))
    assert notes(mod)["f"] == "by level"

    def chain(length: int) -> Any:
        value: Any = exe.signature().arguments((mod.adt("Chain").End(), w, x))[0]
        for _ in range(length):
            value = exe.program.run("longer", (value,))
        return value

    for length in (0, 1, 2, 7):
        same(exe(chain(length), w, x), plain(chain(length), w, x))
    assert np.isfinite(np.asarray(exe(chain(80), w, x))).all()


@pytest.mark.parametrize("width", [8, 48])
@pytest.mark.parametrize("shared", [False, True])
def test_large_matrices_in_nodes_are_not_copied_to_be_rows(width: int, shared: bool) -> None:
    mod = module(
        """
    type T { Leaf(Tensor[(WIDTH, WIDTH), float32]), Node(Tensor[(WIDTH, WIDTH), float32], T, T) }
    def @f(%t: T, %x: Tensor[(1, WIDTH), float32], %u: Tensor[(INNER, WIDTH), float32]) -> Tensor[(1, WIDTH), float32] {
      match (%t) { Leaf(%m) => nn.dense(%x, %m), Node(%m, %a, %b) => { let %y = MADE; @f(%a, %y, %u) - @f(%b, %y, %u) } }
    }
    def @main(%t: T, %x: Tensor[(1, WIDTH), float32], %u: Tensor[(INNER, WIDTH), float32]) -> Tensor[(1, WIDTH), float32] {
      @f(%t, %x, %u)
    }""".replace(
            "MADE",
            "tanh(nn.dense(nn.matmul(nn.relu(nn.dense(%x, %u)), %u), %m))" if shared else "tanh(nn.dense(%x, %m))",
        )
        .replace("WIDTH", str(width))
        .replace("INNER", str(8 * width))
    )
    by_level = width == 8 or shared
    assert notes(mod)["f"] == ("by level" if by_level else f"no: {structure._OWN_MATRICES}")
    rng, adt = np.random.default_rng(14), mod.adt("T")
    x, u = (0.1 * w for w in weights(rng, (1, width), (8 * width, width)))

    def tree(nodes: int) -> Any:
        m = 0.1 * weights(rng, (width, width))[0]
        return adt.Leaf(m) if nodes < 3 else adt.Node(m, tree(nodes // 2), tree(nodes - 1 - nodes // 2))

    exe = relay.compile(mod, threads=1)
    trees = [tree(n) for n in (5, 1, 9)]
    for found, t in zip(exe.run_batch("main", [(t, x, u) for t in trees]), trees, strict=True):
        np.testing.assert_allclose(np.asarray(found), np.asarray(relay.evaluate(mod, t, x, u)), rtol=1e-3, atol=1e-4)


def test_matrices_of_a_table_are_read_where_they_lie() -> None:
    """Levels take those of their nodes, in the products: of all nodes they would be copied to a tensor that no cache holds."""
    mod = module("""
    type T { Leaf(Tensor[(1, 4), float32]), Node(int32, T, T) }
    def @f(%t: T, %ws: Tensor[(3, 4, 8), float32], %m: Tensor[(3, 4, 4), float32]) -> Tensor[(1, 4), float32] {
      match (%t) {
        Leaf(%x) => %x,
        Node(%n, %a, %b) => {
          let %s = concatenate((@f(%a, %ws, %m), @f(%b, %ws, %m)), axis=1);
          tanh(nn.dense(tanh(nn.dense(%s, take(%ws, %n, axis=0))), take(%m, %n, axis=0)))
        }
      }
    }
    def @main(%t: T, %ws: Tensor[(3, 4, 8), float32], %m: Tensor[(3, 4, 4), float32]) -> Tensor[(1, 4), float32] { @f(%t, %ws, %m) }""")
    rng, adt = np.random.default_rng(13), mod.adt("T")
    ws, m = weights(rng, (3, 4, 8), (3, 4, 4))

    def tree(leaves: int) -> Any:
        if leaves < 2:
            return adt.Leaf(rng.standard_normal((1, 4), dtype=np.float32))
        left = int(rng.integers(1, leaves))
        return adt.Node(np.int32(rng.integers(3)), tree(left), tree(leaves - left))

    agree(mod, [[tree(n), ws, m] for n in SIZES])
    taken = [
        k[0] for k in relay.compile(mod, threads=1).program.kernels if "take_batched" in k[0] or "take_nn_dense" in k[0]
    ]
    assert len(taken) == 2 and all("nn_dense_batched" in name for name in taken)
    exe = relay.compile(mod, threads=1)
    trees = [tree(n) for n in (5, 1, 9)]
    for found, t in zip(exe.run_batch("main", [(t, ws, m) for t in trees]), trees, strict=True):
        same(found, relay.evaluate(mod, t, ws, m))


def test_one_vector_by_the_matrices_of_nodes_is_a_product_of_rows() -> None:
    """Modules of a network: each leaf asks the same vector by a matrix of a table. As a vector it would go by each matrix for itself."""
    mod = module("""
    type M { Find(int32), Both(M, M) }
    def @value(%m: M, %x: Tensor[(1, 4), float32], %f: Tensor[(3, 4, 4), float32], %w: Tensor[(4, 8), float32]) -> Tensor[(1, 4), float32] {
      match (%m) {
        Find(%n) => tanh(nn.dense(%x, take(%f, %n, axis=0))),
        Both(%a, %b) => tanh(nn.dense(concatenate((@value(%a, %x, %f, %w), @value(%b, %x, %f, %w)), axis=1), %w)),
      }
    }
    def @main(%m: M, %x: Tensor[(1, 4), float32], %f: Tensor[(3, 4, 4), float32], %w: Tensor[(4, 8), float32]) -> Tensor[(1, 4), float32] {
      @value(%m, %x, %f, %w)
    }""")
    rng, adt = np.random.default_rng(14), mod.adt("M")
    x, f, w = weights(rng, (1, 4), (3, 4, 4), (4, 8))

    def modules(count: int) -> Any:
        if count < 2:
            return adt.Find(np.int32(rng.integers(3)))
        left = int(rng.integers(1, count))
        return adt.Both(modules(left), modules(count - left))

    agree(mod, [[modules(n), x, f, w] for n in SIZES])
    (product,) = (
        b.value
        for b in all_bindings(body_of(lowered(mod).functions["value"]))
        if isinstance(b.value, Call) and isinstance(b.value.fn, OpRef) and b.value.fn.name == "nn.dense.batched"
    )
    assert product.attrs["mask"] == (1, 1)


def test_thousands_of_nodes() -> None:
    rng = np.random.default_rng(5)
    mod = module(TREE_RNN)
    held = weights(rng, (6, 5), (6, 12))
    batched, plain = relay.compile(mod, threads=1), relay.compile(mod, threads=1, opt_level=2)
    for kind, n in (("random", 5000), ("balanced", 4096), ("left", 20000)):
        tree = random_tree(mod, rng, n, 5, kind)
        same(batched(tree, *held), plain(tree, *held))


def test_threads_do_not_matter() -> None:
    rng = np.random.default_rng(6)
    mod = module(TREE_RNN)
    held = weights(rng, (64, 50), (64, 128))
    tree = random_tree(mod, rng, 300, 50)
    one, two = (np.asarray(relay.compile(mod, threads=n)(tree, *held)) for n in (1, 2))
    np.testing.assert_array_equal(one, two)


def test_other_sizes_in_the_structure_are_refused() -> None:
    """What the types say of the parts of a value is checked before a kernel reads them."""
    rng = np.random.default_rng(7)
    mod = module(TREE_RNN)
    tree = random_tree(mod, rng, 3, 4)
    with pytest.raises(ShapeError, match=r"argument %t of @main, at .* has shape \(1, 4\), expected \(1, 5\)"):
        relay.compile(mod, threads=1)(tree, *weights(rng, (6, 5), (6, 12)))


HEADER = "type Tree { Leaf(Tensor[(1, 4), float32]), Node(Tree, Tree), }\n"
REFUSED = {
    "results of sizes that nodes decide": (
        """def @f(%t: Tree, %w: Tensor[(4, 4), float32]) -> (Tensor[(?, 4), float32], Tensor[(1, 4), float32]) {
             match (%t) {
               Leaf(%x) => (%x, tanh(nn.dense(%x, %w))),
               Node(%a, %b) => {
                 let %l = @f(%a, %w);
                 let %r = @f(%b, %w);
                 (concatenate((%l.0, %r.0), axis=0), tanh(nn.dense(%l.1, %w) + %r.1))
               },
             }
           }
           def @main(%t: Tree, %w: Tensor[(4, 4), float32]) -> Tensor[(?, 4), float32] {
             let %r = @f(%t, %w); nn.dense(%r.0, %w) + %r.1 }""",
        "gives a tensor whose size may be another one for each node",
    ),
    "references": (
        """def @f(%t: Tree, %w: Tensor[(4, 4), float32], %r: Ref[Tensor[(1, 4), float32]]) -> Tensor[(1, 4), float32] {
             match (%t) {
               Leaf(%x) => nn.dense(%x, %w),
               Node(%a, %b) => { let %s = @f(%a, %w, %r) + @f(%b, %w, %r); %r := %s; %s + !%r },
             }
           }
           def @main(%t: Tree, %w: Tensor[(4, 4), float32]) -> Tensor[(1, 4), float32] {
             let %r = ref(zeros(shape=[1, 4], dtype="float32")); @f(%t, %w, %r) }""",
        "references",
    ),
    "data decides": (
        """def @main(%t: Tree, %w: Tensor[(4, 4), float32]) -> Tensor[(1, 4), float32] {
             match (%t) {
               Leaf(%x) => nn.dense(%x, %w),
               Node(%a, %b) => {
                 let %l = @main(%a, %w);
                 if (sum(%l) > 0f) { %l } else { nn.dense(%l + @main(%b, %w), %w) }
               },
             }
           }""",
        "an `if` decides",
    ),
    "an argument changes": (
        """def @f(%t: Tree, %w: Tensor[(4, 4), float32], %s: Tensor[(1, 4), float32]) -> Tensor[(1, 4), float32] {
             match (%t) {
               Leaf(%x) => nn.dense(%x + %s, %w),
               Node(%a, %b) => { let %l = @f(%a, %w, %s); @f(%b, %w, %l) },
             }
           }
           def @main(%t: Tree, %w: Tensor[(4, 4), float32]) -> Tensor[(1, 4), float32] {
             @f(%t, %w, zeros(shape=[1, 4], dtype="float32")) }""",
        "depends on the result of another",
    ),
    "not on a part": (
        """def @main(%t: Tree, %w: Tensor[(4, 4), float32]) -> Tensor[(1, 4), float32] {
             match (%t) {
               Leaf(%x) => nn.dense(%x, %w),
               Node(Leaf(%x), %b) => nn.dense(%x, %w) + @main(%b, %w),
               Node(Node(%a, %b), %c) => @main(Node(%a, Node(%b, %c)), %w),
             }
           }""",
        "not on a part",
    ),
    "nothing to gain": (
        """def @main(%t: Tree) -> Tensor[(1, 4), float32] {
             match (%t) { Leaf(%x) => %x, Node(%a, %b) => @main(%a) + @main(%b), }
           }""",
        "nothing is gained",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_batched_says_why(name: str) -> None:
    text, why = REFUSED[name]
    mod = module(HEADER + text)
    found = [str(n) for n in notes(mod).values()]
    assert found and all(n.startswith("no: ") for n in found)
    assert any(why in n for n in found), found
    rng = np.random.default_rng(8)
    adt = mod.adt("Tree")
    for n in (1, 2, 3, 6):
        tree = adt.Leaf(rng.standard_normal((1, 4), dtype=np.float32))
        for _ in range(n):
            tree = adt.Node(tree, adt.Leaf(rng.standard_normal((1, 4), dtype=np.float32)))
        args = [tree, *weights(rng, (4, 4))][: len(mod.functions["main"].params)]
        got: Any = relay.compile(mod, threads=1)(*args)
        expected: Any = relay.evaluate(mod, *args)
        same(got, expected)


def test_sharing_survives_the_way_in() -> None:
    """A Python value with shared parts is converted part by part, not path by path."""
    rng = np.random.default_rng(9)
    mod = module(TREE_RNN)
    wl, wn = weights(rng, (6, 5), (6, 12))
    adt = mod.adt("Tree")
    tree = adt.Leaf(rng.standard_normal((1, 5), dtype=np.float32))
    state = np.tanh(tree.fields[0] @ wl.T)
    for _ in range(60):
        tree = adt.Node(tree, tree)
        state = np.tanh(np.concatenate([state, state], axis=1) @ wn.T)
    np.testing.assert_allclose(np.asarray(relay.compile(mod, threads=1)(tree, wl, wn)), state, rtol=1e-4, atol=1e-5)


def test_inspect_says_what_became_of_recursive_functions() -> None:
    (_, batched), _ = VIEWS["batching"](module(TREE_RNN), Options())
    assert batched == "@encode: by level"
    (_, refused), _ = VIEWS["batching"](module(HEADER + REFUSED["references"][0]), Options())
    assert refused == "@f: no: it uses references"


def test_a_fold_that_forgets_the_rest() -> None:
    """Found by generated programs: the item's result is an empty list whatever the rest gives."""
    text = """#[version = "0.0.5"]
    type List[A] { Cons(A, List[A]), Nil, }
    def @fold[A, B](%f: fn (A, B) -> B, %z: B, %xs: List[A]) -> B {
      match (%xs) { Cons(%x, %rest) => { let %r = @fold(%f, %z, %rest); %f(%x, %r) }, Nil => %z, }
    }
    def @main(%xs: List[float32]) -> List[float32] { @fold(fn (%a: float32, %b: List[float32]) { Nil }, Nil, %xs) }"""
    program = relay.parse(text)
    for xs in ([], [1.0, 2.0]):
        assert relay.compile(program)(xs) == relay.evaluate(program, xs) == []


def states(number: int, product: bool) -> str:
    """An automaton that goes two ways from every state, at each item of a list."""
    ty = "Tensor[(4, 4), float32]"
    step = "nn.dense(%x, %y)" if product else "%x * %y"
    functions = [
        f"""def @f{n}(%l: List[{ty}], %x: {ty}) -> {ty} {{
          match (%l) {{ Nil => %x, Cons(%y, %r) => @f{(n + 1) % number}(%r, {step} * {n}f) + @f{(n * 7 + 3) % number}(%r, %x) }}
        }}"""
        for n in range(number)
    ]
    return (
        '#[version = "0.0.5"]\nimport prelude\n'
        + "\n".join(functions)
        + f"def @main(%l: List[{ty}], %x: {ty}) {{ @f0(%l, %x) }}"
    )


@pytest.mark.parametrize("product", [False, True])
def test_large_groups_are_read_once(product: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is made of each function of a group does not depend on which one is asked about, and the parameters that change are found
    together."""
    made: list[str] = []
    read: list[str] = []

    def inlined(module: Module, names: Any, name: str, keep: Any) -> Function:
        made.append(name)
        return inline_all(module, names, name, keep)

    def group(module: Module, root: str, *rest: Any) -> clauses.Group:
        read.append(root)
        return found(module, root, *rest)

    found = clauses._group
    monkeypatch.setattr(structure, "inline_all", inlined)
    monkeypatch.setattr(clauses, "_group", group)
    said = {str(n) for n in notes(module(states(40, product))).values()}
    reason = (
        "there are too many cases to tell apart" if product else "it has no product of matrices, so nothing is gained"
    )
    assert said == {f"no: {reason}"}
    assert max(made.count(f"f{n}") for n in range(40)) <= 2  # the group, and what goes through many requests
    asked = [n for n in read if not n.startswith("main")]
    assert len(asked) <= 40 * 4 if product else not asked


def test_a_group_of_states_is_one_batch() -> None:
    mod = module(states(5, product=True))
    rng = np.random.default_rng(10)
    agree(mod, [[list(rng.standard_normal((n, 4, 4), dtype=np.float32)), *weights(rng, (4, 4))] for n in (0, 1, 2, 6)])
