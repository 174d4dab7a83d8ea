"""Recursion that makes values of data types, level by level: interpreter, batched code (VM and native) and code node by node agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.module import Module
from relay.ir.value import AdtValue
from tests.batching.programs import EXAMPLES, lowered, module, notes, random_rose, random_tree, weights

# A state at every node, beside numbers and what is the same everywhere; the order of the parts changes.
LABELLED = """
type Tree[A] { Leaf(A), Node(Tree[A], Tree[A]), }
type Label[A, B] { End(A, float32), Mid(B, Label[A, B], (A, B), Label[A, B]), }
def @encode[d: Dim, h: Dim](%t: Tree[Tensor[(1, d), float32]], %wl: Tensor[(h, d), float32], %wn: Tensor[(h, 2*h), float32])
    -> (Label[Tensor[(1, h), float32], float32], Tensor[(1, h), float32]) {
  match (%t) {
    Leaf(%x) => { let %s = tanh(nn.dense(%x, %wl)); (End(%s, 2f), %s) },
    Node(Leaf(%x), Leaf(_)) => { let %s = nn.dense(%x, %wl); (End(%s, sum(%x)), %s) },
    Node(%l, %r) => {
      let %a = @encode(%l, %wl, %wn);
      let %b = @encode(%r, %wl, %wn);
      let %s = tanh(nn.dense(concatenate((%a.1, %b.1), axis=1), %wn));
      (Mid(sum(%s), %b.0, (exp(%s), max(%s)), %a.0), %s)
    },
  }
}
def @main[d: Dim, h: Dim](%t: Tree[Tensor[(1, d), float32]], %wl: Tensor[(h, d), float32], %wn: Tensor[(h, 2*h), float32])
    -> (Tensor[(1, h), float32], Label[Tensor[(1, h), float32], float32]) {
  let %r = @encode(%t, %wl, %wn);
  (%r.1, %r.0)
}
"""

# The same tree with every word projected: nothing goes from level to level.
PROJECTED = """
import prelude
def @main(%t: Tree[Tensor[(1, 5), float32]], %w: Tensor[(6, 5), float32]) -> Tree[Tensor[(1, 6), float32]] {
  match (%t) {
    Rose(%x, %kids) => Rose(nn.dense(%x, %w), @map(fn (%k: Tree[Tensor[(1, 5), float32]]) { @main(%k, %w) }, %kids)),
  }
}
"""

# Lists of parts, and a list of what each part says, for a sum over the parts.
SUMMED = """
import prelude
type Scored { Scored(Tensor[(1, 6), float32], List[Scored], List[(float32, Tensor[(1, 6), float32])]), }
def @encode(%t: Tree[Tensor[(1, 5), float32]], %w: Tensor[(6, 5), float32], %u: Tensor[(6, 6), float32],
    %zero: Tensor[(1, 6), float32]) -> (Scored, Tensor[(1, 6), float32]) {
  match (%t) {
    Rose(%x, %kids) => {
      let %below = @map(fn (%k: Tree[Tensor[(1, 5), float32]]) { @encode(%k, %w, %u, %zero) }, %kids);
      let %sum = @foldl(fn (%a: Tensor[(1, 6), float32], %s: (Scored, Tensor[(1, 6), float32])) { %a + %s.1 }, %zero, %below);
      let %own = nn.dense(%x, %w);
      let %state = tanh(%own + nn.dense(%sum, %u));
      let %parts = @map(fn (%s: (Scored, Tensor[(1, 6), float32])) { %s.0 }, %below);
      let %seen = @map(fn (%s: (Scored, Tensor[(1, 6), float32])) { (sum(%s.1 * %own), nn.dense(%s.1, %u)) }, %below);
      (Scored(%state, %parts, %seen), %state)
    },
  }
}
def @main(%t: Tree[Tensor[(1, 5), float32]], %w: Tensor[(6, 5), float32], %u: Tensor[(6, 6), float32]) -> Scored {
  @encode(%t, %w, %u, zeros(shape=[1, 6], dtype="float32")).0
}
"""

# Syntax: four types that mention each other, a function for each.
SYNTAX = """
import prelude
type Term { Word(int32), Pair(Term, Term), Quote(Stmt), }
type Stmt { Say(Term), If(Term, Block, Block), Do(Block), }
type Block { Last(Stmt), Then(Stmt, Block), }
type Note { Atom(Tensor[(1, 4), float32]), Both(Note, Note, float32), Said(Note, Tensor[(1, 4), float32]), None_, }
def @term(%t: Term, %table: Tensor[(9, 4), float32], %w: Tensor[(4, 8), float32]) -> (Note, Tensor[(1, 4), float32]) {
  match (%t) {
    Word(%n) => { let %v = expand_dims(take(%table, %n, axis=0), axis=0); (Atom(%v), %v) },
    Pair(%a, %b) => {
      let %x = @term(%a, %table, %w);
      let %y = @term(%b, %table, %w);
      let %v = tanh(nn.dense(concatenate((%x.1, %y.1), axis=1), %w));
      (Both(%x.0, %y.0, sum(%v)), %v)
    },
    Quote(%s) => { let %x = @stmt(%s, %table, %w); (Said(None_, %x.1), negative(%x.1)) },
  }
}
def @stmt(%s: Stmt, %table: Tensor[(9, 4), float32], %w: Tensor[(4, 8), float32]) -> (Note, Tensor[(1, 4), float32]) {
  match (%s) {
    Say(%t) => @term(%t, %table, %w),
    Do(%b) => { let %x = @block(%b, %table, %w); (Said(%x.0, %x.1 * 2f), %x.1) },
    If(%c, %a, %b) => {
      let %t = @term(%c, %table, %w);
      let %x = @block(%a, %table, %w);
      let %y = @block(%b, %table, %w);
      let %v = nn.dense(concatenate((%x.1 * %t.1, %y.1), axis=1), %w);
      (Both(%t.0, Both(%y.0, %x.0, 1f), max(%v)), %v)
    },
  }
}
def @block(%b: Block, %table: Tensor[(9, 4), float32], %w: Tensor[(4, 8), float32]) -> (Note, Tensor[(1, 4), float32]) {
  match (%b) {
    Last(%s) => @stmt(%s, %table, %w),
    Then(%s, %rest) => {
      let %x = @stmt(%s, %table, %w);
      let %y = @block(%rest, %table, %w);
      (Both(%x.0, %y.0, 0f), sigmoid(nn.dense(concatenate((%x.1, %y.1), axis=1), %w)))
    },
  }
}
def @main(%s: Stmt, %table: Tensor[(9, 4), float32], %w: Tensor[(4, 8), float32]) -> (Note, Tensor[(1, 4), float32]) {
  @stmt(%s, %table, %w)
}
"""

# A list of the states of the nodes of a graph, each made of those before it.
GRAPH = """
import prelude
type Vertex { Vertex(Tensor[(1, 5), float32], List[Vertex]), }
def @state(%v: Vertex, %w: Tensor[(6, 5), float32], %u: Tensor[(6, 6), float32], %zero: Tensor[(1, 6), float32])
    -> Tensor[(1, 6), float32] {
  match (%v) {
    Vertex(%x, %before) => {
      let %states = @map(fn (%p: Vertex) { @state(%p, %w, %u, %zero) }, %before);
      let %sum = @foldl(fn (%a: Tensor[(1, 6), float32], %s: Tensor[(1, 6), float32]) { %a + %s }, %zero, %states);
      tanh(nn.dense(%x, %w) + nn.dense(%sum, %u))
    },
  }
}
def @all(%g: Vertex, %w: Tensor[(6, 5), float32], %u: Tensor[(6, 6), float32], %zero: Tensor[(1, 6), float32])
    -> List[Tensor[(1, 6), float32]] {
  match (%g) { Vertex(_, %vertices) => @map(fn (%p: Vertex) { @state(%p, %w, %u, %zero) }, %vertices), }
}
def @main(%g: Vertex, %w: Tensor[(6, 5), float32], %u: Tensor[(6, 6), float32]) -> List[Tensor[(1, 6), float32]] {
  @all(%g, %w, %u, zeros(shape=[1, 6], dtype="float32"))
}
"""


def same(a: Any, b: Any) -> None:
    """Equal values, whatever their nesting; iterative."""
    todo = [(a, b)]
    while todo:
        x, y = todo.pop()
        if isinstance(y, AdtValue):
            assert isinstance(x, AdtValue) and (x.adt, x.constructor) == (y.adt, y.constructor)
            x, y = x.fields, y.fields
        if isinstance(y, tuple | list):
            assert len(x) == len(y)
            todo += zip(x, y, strict=True)
        else:
            x, y = np.asarray(x), np.asarray(y)
            assert x.dtype == y.dtype and x.shape == y.shape
            np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-6)


def agree(mod: Module, arguments: list[list[Any]]) -> None:
    assert "by level" in notes(mod).values(), notes(mod)
    passes = lowered(mod)
    runs = [relay.compile(mod, threads=1, **o) for o in ({}, {"executor": "aot"}, {"opt_level": 2})]
    for args in arguments:
        expected = relay.evaluate(mod, *args)
        same(relay.evaluate(passes, *args), expected)
        for exe in runs:
            same(exe(*args), expected)


def random_syntax(mod: Module, rng: np.random.Generator, size: int) -> Any:
    """A statement with about so many nodes; parts are shared now and then."""
    term, stmt, block = mod.adt("Term"), mod.adt("Stmt"), mod.adt("Block")
    terms = [term.Word(np.int32(n)) for n in range(3)]
    stmts = [stmt.Say(terms[0])]
    blocks = [block.Last(stmts[0])]

    def one(pool: list[Any]) -> Any:
        return pool[int(rng.integers(max(0, len(pool) - 4), len(pool)))]

    for _ in range(size):
        match int(rng.integers(7)):
            case 0:
                terms.append(term.Pair(one(terms), one(terms)))
            case 1:
                terms.append(term.Quote(one(stmts)))
            case 2:
                stmts.append(stmt.Say(one(terms)))
            case 3:
                stmts.append(stmt.If(one(terms), one(blocks), one(blocks)))
            case 4:
                stmts.append(stmt.Do(one(blocks)))
            case 5:
                blocks.append(block.Last(one(stmts)))
            case _:
                blocks.append(block.Then(one(stmts), one(blocks)))
    return stmts[-1]


@pytest.mark.parametrize("kind", ["random", "balanced", "left"])
def test_a_value_at_every_node(kind: str) -> None:
    rng = np.random.default_rng(1)
    mod = module(LABELLED)
    held = weights(rng, (6, 5), (6, 12))
    agree(mod, [[random_tree(mod, rng, n, 5, kind), *held] for n in (1, 2, 3, 9, 30)])


@pytest.mark.parametrize("kind", ["random", "chain", "wide"])
def test_lists_in_what_is_made(kind: str) -> None:
    rng = np.random.default_rng(2)
    for text, shapes in ((PROJECTED, [(6, 5)]), (SUMMED, [(6, 5), (6, 6)])):
        mod = module(text)
        held = weights(rng, *shapes)
        agree(mod, [[random_rose(mod, rng, n, 5, kind), *held] for n in (1, 2, 9, 25)])


def test_functions_of_several_types() -> None:
    rng = np.random.default_rng(3)
    mod = module(SYNTAX)
    held = weights(rng, (9, 4), (4, 8))
    agree(mod, [[random_syntax(mod, rng, n), *held] for n in (0, 3, 8, 15, 30, 60) for _ in range(2)])


def test_a_list_of_states() -> None:
    rng = np.random.default_rng(4)
    mod = module(GRAPH)
    vertex = mod.adt("Vertex").Vertex
    made: list[Any] = []
    for n in range(30):
        before = rng.choice(n, size=min(n, int(rng.integers(1, 4))), replace=False)
        made.append(vertex(rng.standard_normal((1, 5), dtype=np.float32), [made[m] for m in before]))
    whole = vertex(np.zeros((1, 5), np.float32), made)
    agree(mod, [[v, *weights(rng, (6, 5), (6, 6))] for v in (vertex(made[0].fields[0], []), made[5], whole)])


def test_an_entry_goes_through_all_its_structures_at_once() -> None:
    """The states of a list of nodes (`examples/dag.relay`): what is before several of them is computed once."""
    rng = np.random.default_rng(6)
    w, u, b = weights(rng, (6, 5), (6, 6), (6,))
    program = (EXAMPLES / "dag.relay").read_text()
    for mod, held in ((module(program), [w, u, b]), (module(program).bind({"w": w, "u": u, "b": b}), [])):
        assert notes(mod)["main.together"] == "by level"
        vertex = mod.adt("Vertex").Vertex
        nodes: list[Any] = []
        states = np.zeros((20, 6), np.float32)
        for n in range(20):
            before = rng.choice(n, size=min(n, int(rng.integers(0, 4))), replace=False)
            nodes.append(vertex(rng.standard_normal((1, 5), dtype=np.float32), [nodes[m] for m in before]))
            states[n] = np.tanh(nodes[n].fields[0] @ w.T + b + states[before].sum(axis=0) @ u.T)[0]
        found: Any = relay.compile(mod, threads=1)(nodes, *held)
        np.testing.assert_allclose(np.concatenate([np.asarray(v) for v in found]), states, rtol=1e-5, atol=1e-6)
        agree(mod, [[given, *held] for given in ([], nodes[:1], nodes[3:9], [nodes[7], nodes[7]])])


def test_two_structures_of_an_entry() -> None:
    text = (
        LABELLED[: LABELLED.index("def @main")]
        + """
    def @main(%s: Tree[Tensor[(1, 5), float32]], %x: Tensor[(1, 6), float32], %t: Tree[Tensor[(1, 5), float32]],
        %wl: Tensor[(6, 5), float32], %wn: Tensor[(6, 12), float32])
        -> (float32, Label[Tensor[(1, 6), float32], float32], Tensor[(1, 6), float32]) {
      let %a = @encode(%s, %wl, %wn);
      let %b = @encode(%t, %wl, %wn);
      (sum(%a.1 * %b.1), %b.0, %a.1 + %x)
    }
    """
    )
    rng = np.random.default_rng(7)
    mod = module(text)
    assert notes(mod)["main.together"] == "by level"
    wl, wn, x = weights(rng, (6, 5), (6, 12), (1, 6))
    pairs = [(random_tree(mod, rng, n, 5), random_tree(mod, rng, m, 5)) for n, m in ((1, 1), (1, 7), (20, 3))]
    agree(mod, [[s, x, t, wl, wn] for s, t in pairs])


def test_what_is_made_shares_what_was_shared() -> None:
    """A tree that doubles at every level has 2^40 leaves; what is made of it has as many parts as it."""
    rng = np.random.default_rng(5)
    mod = module(LABELLED)
    held = weights(rng, (6, 5), (6, 12))
    adt = mod.adt("Tree")
    tree = adt.Node(adt.Leaf(np.ones((1, 5), np.float32)), adt.Leaf(np.ones((1, 5), np.float32)))
    for _ in range(40):
        tree = adt.Node(tree, tree)
    exe = relay.compile(mod, threads=1)
    value = exe.signature().arguments((tree, *held))
    found = exe.program.run("main", value, 1, (), None, None)
    made = found.fields[1]
    for _ in range(40):
        (_, first, _, second) = made.fields
        made = second
    assert made.tag == 0 and first.tag == 0


def test_a_part_of_the_structure_in_the_result_is_not_batched() -> None:
    text = """
    type Op { Plus, Minus, }
    type Tree { Leaf(Tensor[(1, 4), float32]), Node(Op, Tree, Tree), }
    def @main(%t: Tree, %w: Tensor[(4, 4), float32]) -> Tree {
      match (%t) {
        Leaf(%x) => Leaf(nn.dense(%x, %w)),
        Node(%op, %a, %b) => Node(%op, @main(%b, %w), @main(%a, %w)),
      }
    }
    """
    mod = module(text)
    assert any("used as a whole" in str(n) for n in notes(mod).values()), notes(mod)


# The state of a part is read off the part that the recursion has made, wherever its constructor has it; a part may be given as it is.
ANNOTATED = """
type Tree[A] { Leaf(A), Node(Tree[A], Tree[A]), Same(Tree[A]), }
type Noted[A] { End(A), Mid(Noted[A], A, float32, Noted[A]), }
def @state[A](%t: Noted[A]) -> A { match (%t) { End(%s) => %s, Mid(_, %s, _, _) => %s } }
def @encode[d: Dim, h: Dim](%t: Tree[Tensor[(1, d), float32]], %wl: Tensor[(h, d), float32], %wn: Tensor[(h, 2*h), float32])
    -> Noted[Tensor[(1, h), float32]] {
  match (%t) {
    Leaf(%x) => End(tanh(nn.dense(%x, %wl))),
    Node(Leaf(%x), Leaf(_)) => { let %s = nn.dense(%x, %wl); Mid(End(%s), exp(%s), sum(%x), End(%s)) },
    Node(%l, %r) => {
      let %a = @encode(%l, %wl, %wn);
      let %b = @encode(%r, %wl, %wn);
      let %s = tanh(nn.dense(concatenate((@state(%a), @state(%b)), axis=1), %wn));
      Mid(%b, %s, max(%s), %a)
    },
    Same(%p) => @encode(%p, %wl, %wn),
  }
}
def @main[d: Dim, h: Dim](%t: Tree[Tensor[(1, d), float32]], %wl: Tensor[(h, d), float32], %wn: Tensor[(h, 2*h), float32])
    -> (Tensor[(1, h), float32], Noted[Tensor[(1, h), float32]]) {
  let %r = @encode(%t, %wl, %wn);
  (@state(%r), %r)
}
"""


@pytest.mark.parametrize("bound", [False, True])
def test_a_recursion_reads_what_it_has_made(bound: bool) -> None:
    rng = np.random.default_rng(31)
    mod = module(ANNOTATED)
    held = dict(zip(("wl", "wn"), weights(rng, (6, 5), (6, 12)), strict=True))
    trees = [random_tree(mod, rng, n, 5, "random") for n in (1, 2, 3, 8, 21)]
    adt = mod.adt("Tree")
    trees.append(adt.Same(adt.Node(trees[3], adt.Node(adt.Same(adt.Same(trees[2])), trees[3]))))
    mod = mod.bind(held) if bound else mod
    agree(mod, [[t] if bound else [t, *held.values()] for t in trees])
    assert notes(mod)["encode__fixed" if bound else "encode"] == "by level"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Mid(_, %s, _, _) => %s }", "Mid(%p, _, _, _) => @state(%p) }"),  # the field of a part
        ("max(%s), %a)", "max(@state2(%a)), %a)"),  # two fields
    ],
)
def test_a_recursion_that_reads_otherwise_is_left_alone(old: str, new: str) -> None:
    other = "def @state2[A](%t: Noted[A]) -> A { match (%t) { End(%s) => %s, Mid(End(%s), _, _, _) => %s, Mid(_, %s, _, _) => %s } }\n"
    mod = module(ANNOTATED.replace(old, new).replace("def @encode", other + "def @encode"))
    rng = np.random.default_rng(32)
    held = weights(rng, (6, 5), (6, 12))
    assert str(notes(mod)["encode"]).startswith("no: ")
    assert not any(".read" in n for n in notes(mod))
    tree = random_tree(mod, rng, 9, 5, "random")
    same(relay.compile(mod, threads=1)(tree, *held), relay.evaluate(mod, tree, *held))
