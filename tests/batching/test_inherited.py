"""Arguments that change from call to call: handed down from the root, level by level."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.module import Module
from tests.batching.programs import lowered, module, notes, random_tree, weights
from tests.batching.test_structure import agree, same

TREE = "type Tree[A] { Leaf(A), Node(Tree[A], Tree[A]), }\n"

# A state from above with a cell of its own; what a node gives needs the state, its own words and its parts' results.
TOP_DOWN = (
    TREE
    + """
def @f[d: Dim, h: Dim](%t: Tree[Tensor[(1, d), float32]], %s: Tensor[(1, h), float32], %depth: int32, %u: Tensor[(h, h), float32],
    %w: Tensor[(h, d), float32]) -> Tensor[(1, h), float32] {
  match (%t) {
    Leaf(%x) => tanh(nn.dense(%x, %w) + %s) * cast(%depth, dtype="float32"),
    Node(%a, %b) => {
      let %below = tanh(nn.dense(%s, %u));
      let %l = @f(%a, %below, %depth + 1i32, %u, %w);
      let %r = @f(%b, %below * %s, %depth + 2i32, %u, %w);
      tanh(nn.dense(%l - %r, %u)) + %below + nn.dense(%s, %u)
    },
  }
}
def @main[d: Dim, h: Dim](%t: Tree[Tensor[(1, d), float32]], %s: Tensor[(1, h), float32], %u: Tensor[(h, h), float32],
    %w: Tensor[(h, d), float32]) -> Tensor[(1, h), float32] { @f(%t, %s, 1i32, %u, %w) }
"""
)

# A cell's state is handed down, which the root is given as a tuple: its fields had no types. The result is a tree of the first fields.
CELL_FROM_ABOVE = (
    TREE
    + """
def @f[d: Dim, h: Dim](%t: Tree[Tensor[(1, d), float32]], %s: (Tensor[(1, h), float32], Tensor[(1, h), float32]),
    %w: Tensor[(2*h, d), float32], %u: Tensor[(2*h, h), float32]) -> Tree[Tensor[(1, h), float32]] {
  match (%t) {
    Leaf(%x) => {
      let %g = split(nn.dense(%x, %w) + nn.dense(%s.0, %u), indices_or_sections=2, axis=1);
      Leaf(sigmoid(%g.0) * tanh(%g.1) + %s.1)
    },
    Node(%l, %r) => {
      let %g = split(nn.dense(%s.0, %u), indices_or_sections=2, axis=1);
      let %c = sigmoid(%g.0) * %s.1 + 0.1f;
      let %here = (tanh(%c) * %g.1, %c);
      Node(@f(%l, %here, %w, %u), @f(%r, (%here.1, %here.0), %w, %u))
    },
  }
}
def @main[d: Dim, h: Dim](%t: Tree[Tensor[(1, d), float32]], %s: (Tensor[(1, h), float32], Tensor[(1, h), float32]),
    %w: Tensor[(2*h, d), float32], %u: Tensor[(2*h, h), float32]) -> Tree[Tensor[(1, h), float32]] { @f(%t, %s, %w, %u) }
"""
)

# A tuple is handed down through two functions that call each other; one part is given two states; one constructor has three parts
# and one a part alone; the root is given something computed.
MUTUAL = """
type Odd { Stop(Tensor[(1, 4), float32]), Three(Even, Even, Even), }
type Even { End, One(Odd), Two(Tensor[(1, 4), float32], Odd, Odd), }
def @odd(%t: Odd, %p: (Tensor[(1, 4), float32], Tensor[(1, 4), float32]), %w: Tensor[(4, 4), float32])
    -> (Tensor[(1, 4), float32], Tensor[(4,), float32]) {
  match (%t) {
    Stop(%x) => (nn.dense(%x + %p.0, %w), sum(%p.1, axis=[0])),
    Three(%a, %b, %c) => {
      let %s = tanh(nn.dense(%p.1, %w));
      let %x = @even(%a, %s, %w);
      let %y = @even(%b, %p.0, %w);
      let %z = @even(%a, %p.0 + %s, %w) - @even(%c, %s, %w);
      (%x + %z, sum(%x * %y + %s, axis=[0]))
    },
  }
}
def @even(%t: Even, %s: Tensor[(1, 4), float32], %w: Tensor[(4, 4), float32]) -> Tensor[(1, 4), float32] {
  match (%t) {
    End => sigmoid(%s),
    One(%o) => @odd(%o, (%s, tanh(%s)), %w).0,
    Two(%x, %a, %b) => {
      let %both = split(nn.dense(concatenate((%x, %s), axis=0), %w), indices_or_sections=2, axis=0);
      let %l = @odd(%a, (%both.0, %both.1), %w);
      let %r = @odd(%b, (%both.1, %x), %w);
      %l.0 + reshape(%r.1, newshape=[1, 4]) * %both.0
    },
  }
}
def @main(%t: Even, %w: Tensor[(4, 4), float32]) -> Tensor[(1, 4), float32] { @even(%t, ones(shape=[1, 4], dtype="float32"), %w) }
"""

# The result is a tree with, at every node, what was handed down to it.
LABELS = (
    TREE
    + """
type Out { Here(Tensor[(1, 4), float32]), Inner(Tensor[(1, 4), float32], Tensor[(1, 4), float32], Out, Out), }
def @main(%t: Tree[Tensor[(1, 4), float32]], %s: Tensor[(1, 4), float32], %w: Tensor[(4, 4), float32]) -> Out {
  match (%t) {
    Leaf(%x) => Here(%x * %s),
    Node(%a, %b) => {
      let %below = tanh(nn.dense(%s, %w));
      Inner(%s, %below, @main(%a, %below, %w), @main(%b, %below - %s, %w))
    },
  }
}
"""
)

# Children in lists are given something of their own, of their owner and of its owner; a list is added up on the way down.
ROSE = """
type List[A] { Cons(A, List[A]), Nil, }
type Rose { Rose(Tensor[(1, 4), float32], List[(Tensor[(1, 4), float32], Rose)]), Bud(Tensor[(1, 4), float32]), }
def @map[A, B](%f: fn(A) -> B, %xs: List[A]) -> List[B] {
  match (%xs) { Cons(%x, %rest) => Cons(%f(%x), @map(%f, %rest)), Nil => Nil, }
}
def @foldl[A, B](%f: fn(B, A) -> B, %z: B, %xs: List[A]) -> B {
  match (%xs) { Cons(%x, %rest) => @foldl(%f, %f(%z, %x), %rest), Nil => %z, }
}
def @f(%t: Rose, %s: Tensor[(1, 4), float32], %w: Tensor[(4, 4), float32]) -> Tensor[(1, 4), float32] {
  match (%t) {
    Bud(%x) => tanh(%x * %s),
    Rose(%x, %children) => {
      let %labels = @foldl(fn (%a: Tensor[(1, 4), float32], %c: (Tensor[(1, 4), float32], Rose)) { %a + %c.0 * %x }, %s, %children);
      let %below = tanh(nn.dense(%s + %labels, %w));
      let %found = @map(fn (%c: (Tensor[(1, 4), float32], Rose)) {
        let %given = nn.dense(%below * %c.0 - %s, %w) + %x;
        @f(%c.1, %given, %w) * %given + %below
      }, %children);
      tanh(nn.dense(@foldl(fn (%a: Tensor[(1, 4), float32], %c: Tensor[(1, 4), float32]) { %a + %c }, %x, %found), %w)) + %s
    },
  }
}
def @main(%t: Rose, %w: Tensor[(4, 4), float32]) -> Tensor[(1, 4), float32] { @f(%t, ones(shape=[1, 4], dtype="float32"), %w) }
"""


def rose(mod: Module, rng: np.random.Generator, depth: int) -> Any:
    adt = mod.adt("Rose")
    if depth <= 0 or rng.random() < 0.3:
        return adt.Bud(rng.standard_normal((1, 4), dtype=np.float32))
    children = [
        (rng.standard_normal((1, 4), dtype=np.float32), rose(mod, rng, depth - 1)) for _ in range(rng.integers(0, 4))
    ]
    return adt.Rose(rng.standard_normal((1, 4), dtype=np.float32), children)


def odd(mod: Module, rng: np.random.Generator, depth: int) -> Any:
    adt = mod.adt("Odd")
    if depth <= 0 or rng.random() < 0.2:
        return adt.Stop(rng.standard_normal((1, 4), dtype=np.float32))
    return adt.Three(*(even(mod, rng, depth - 1) for _ in range(3)))


def even(mod: Module, rng: np.random.Generator, depth: int) -> Any:
    adt = mod.adt("Even")
    kind = 0 if depth <= 0 else int(rng.integers(0, 5))
    if kind == 0:
        return adt.End()
    if kind == 1:
        return adt.One(odd(mod, rng, depth - 1))
    return adt.Two(rng.standard_normal((1, 4), dtype=np.float32), *(odd(mod, rng, depth - 1) for _ in range(2)))


@pytest.mark.parametrize("kind", ["random", "left"])
def test_a_state_from_above(kind: str) -> None:
    rng = np.random.default_rng(1)
    mod = module(TOP_DOWN)
    s, u, w = weights(rng, (1, 6), (6, 6), (6, 5))
    agree(mod, [[random_tree(mod, rng, n, 5, kind), s, u, w] for n in (1, 2, 3, 7, 24)])
    agree(mod, [[random_tree(mod, rng, 9, 5, kind), s]], {"u": u, "w": w})


def test_functions_that_call_each_other() -> None:
    rng = np.random.default_rng(2)
    mod = module(MUTUAL)
    (w,) = weights(rng, (4, 4))
    agree(mod, [[even(mod, rng, depth), w] for depth in (0, 1, 2, 3, 5, 6)])


def test_children_in_lists() -> None:
    rng = np.random.default_rng(7)
    mod = module(ROSE)
    (w,) = weights(rng, (4, 4))
    agree(mod, [[rose(mod, rng, depth), w] for depth in (0, 1, 2, 3, 5, 6)])
    requests = [(rose(mod, rng, 4),) for _ in range(3)]
    exe = relay.compile(mod.bind({"w": w}), threads=1)
    for found, args in zip(exe.run_batch("main", requests), requests, strict=True):
        same(found, relay.evaluate(mod, *args, w))


def test_a_node_without_children_gives_what_others_hand_down() -> None:
    """Where a list is empty nothing is handed down: what follows from the state above is computed for these nodes afterwards."""
    rng = np.random.default_rng(8)
    result = "tanh(nn.dense(@foldl("
    assert result in ROSE
    mod = module(ROSE.replace(result, "%below + " + result))
    (w,) = weights(rng, (4, 4))
    bare = mod.adt("Rose").Rose(rng.standard_normal((1, 4), dtype=np.float32), [])
    agree(mod, [[t, w] for t in (bare, *(rose(mod, rng, depth) for depth in (1, 2, 3, 5)))])


def test_parts_that_are_shared_are_given_their_own() -> None:
    rng = np.random.default_rng(3)
    mod = module(TOP_DOWN)
    s, u, w = weights(rng, (1, 6), (6, 6), (6, 5))
    tree = random_tree(mod, rng, 2, 5)
    for _ in range(4):
        tree = mod.adt("Tree").Node(tree, tree)
    agree(mod, [[tree, s, u, w]])


def test_a_tree_of_what_was_handed_down() -> None:
    rng = np.random.default_rng(4)
    mod = module(LABELS)
    (w,) = weights(rng, (4, 4))
    batched, plain = relay.compile(mod, threads=1), relay.compile(mod, threads=1, opt_level=2)
    assert notes(mod)["main"] == "by level"
    for n in (1, 2, 5, 17):
        args = (random_tree(mod, rng, n, 4), rng.standard_normal((1, 4), dtype=np.float32), w)
        expected = tensors(relay.evaluate(mod, *args))
        for found in (batched(*args), plain(*args), relay.evaluate(lowered(mod), *args)):
            same(tensors(found), expected)


def tensors(value: Any) -> tuple[Any, ...]:
    """The tensors of a tree, its constructors' tags among them."""
    if not hasattr(value, "fields"):
        return (np.asarray(value),)
    return (np.array(len(value.fields)), *(t for f in value.fields for t in tensors(f)))


def test_a_cells_state_from_above() -> None:
    rng = np.random.default_rng(13)
    mod = module(CELL_FROM_ABOVE)
    assert "by level" in notes(mod).values()
    held = (tuple(weights(rng, (1, 6), (1, 6))), *weights(rng, (12, 5), (12, 6)))
    requests = [(random_tree(mod, rng, n, 5), *held) for n in (1, 6, 3)]
    exe = relay.compile(mod, threads=1)
    for args, one in zip(requests, exe.run_batch("main", requests), strict=True):
        expected = tensors(relay.evaluate(mod, *args))
        for found in (exe(*args), one, relay.evaluate(lowered(mod), *args)):
            same(tensors(found), expected)


@pytest.mark.parametrize("threads", [1, 2])
def test_many_requests(threads: int) -> None:
    rng = np.random.default_rng(5)
    mod = module(TOP_DOWN)
    bound = dict(zip("suw", weights(rng, (1, 6), (6, 6), (6, 5)), strict=True))
    exe = relay.compile(mod.bind(bound), threads=threads)
    requests = [(random_tree(mod, rng, n, 5),) for n in (1, 4, 9, 2)]
    for found, args in zip(exe.run_batch("main", requests), requests, strict=True):
        same(found, relay.evaluate(mod, *args, *bound.values()))


def test_a_list_is_left_to_its_loop() -> None:
    """One call in a clause: nothing would be done side by side, and a level a node is kept in memory."""
    text = """
    type List { Cons(Tensor[(1, 4), float32], List), Nil, }
    def @main(%xs: List, %s: Tensor[(1, 4), float32], %w: Tensor[(4, 4), float32]) -> Tensor[(1, 4), float32] {
      match (%xs) { Cons(%x, %rest) => @main(%rest, tanh(nn.dense(%s + %x, %w)), %w), Nil => %s, }
    }"""
    (note,) = notes(module(text)).values()
    assert "no two calls are side by side" in str(note)


# What is handed down: its type, what it is first, what each part is given, and why that is refused.
REFUSED = {
    "sizes": (
        "Tensor[(?, 4), float32]", "ones(shape=[2, 4], dtype='float32')", "tanh(%s)", "concatenate((%s, %s), axis=0)",
        "another size",
    ),
    "bits": (
        "Tensor[(3, 4), int4]", "zeros(shape=[3, 4], dtype='int4')", "cast(cast(%s, dtype='int8') + 1i8, dtype='int4')", "%s",
        "cannot be joined",
    ),
    "data types": (
        "(Tensor[(1, 4), float32], Option[int32])", "(ones(shape=[1, 4], dtype='float32'), None)", "(tanh(%s.0), Some(1i32))", "%s",
        "not made of tensors",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_handed_down(name: str) -> None:
    """Found by hand: what had another size in each call was put into rows of one size."""
    type_, start, left, right, why = (text.replace("'", '"') for text in REFUSED[name])
    used = "%s.0" if type_.startswith("(") else 'cast(%s, dtype="float32")'
    mod = module(
        "import prelude\n"
        + TREE
        + f"""
def @f(%t: Tree[Tensor[(1, 4), float32]], %s: {type_}, %w: Tensor[(4, 4), float32]) -> Tensor[(1, 4), float32] {{
  match (%t) {{
    Leaf(%x) => nn.dense(%x + sum({used}, axis=[0], keepdims=True), %w),
    Node(%a, %b) => tanh(@f(%a, {left}, %w)) - @f(%b, {right}, %w),
  }}
}}
def @main(%t: Tree[Tensor[(1, 4), float32]], %w: Tensor[(4, 4), float32]) -> Tensor[(1, 4), float32] {{ @f(%t, {start}, %w) }}"""
    )
    (note,) = notes(mod).values()
    assert why in str(note)
    rng = np.random.default_rng(8)
    (w,) = weights(rng, (4, 4))
    exe = relay.compile(mod, threads=1)
    for n in (1, 3, 5):
        tree = random_tree(mod, rng, n, 4)
        same(exe(tree, w), relay.evaluate(mod, tree, w))
