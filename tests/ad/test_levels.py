"""Gradients of recursion over trees: taken of the form that goes level by level, where all that is wanted lies in its rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relay
from relay.differentiate import differentiated
from relay.ir.module import Module
from relay.transform import DeadCode, DeadFunctions, DeadReferences, Inline, PartialEvaluate, Pipeline
from relay.transform.ad.prepare import goes_by_level
from tests.ad.checks import Derivatives, problem
from tests.ad.test_loops import first_order

D, H = 3, 4
TREE = f"""#[version = "0.0.5"]
type Binary {{ Leaf(Tensor[(1, {D}), float64]), Node(Binary, Binary), }}
def @encode(%t: Binary, %wl: Tensor[({2 * H}, {D}), float64], %wn: Tensor[({3 * H}, {2 * H}), float64], %b: Tensor[({3 * H},), float64])
    -> (Tensor[(1, {H}), float64], Tensor[(1, {H}), float64]) {{
  match (%t) {{
    Leaf(%x) => {{
      let %g = split(nn.dense(%x, %wl), indices_or_sections=2, axis=1);
      (tanh(%g.0), sigmoid(%g.1))
    }},
    Node(%left, %right) => {{
      let %l = @encode(%left, %wl, %wn, %b);
      let %r = @encode(%right, %wl, %wn, %b);
      let %g = split(nn.bias_add(nn.dense(concatenate((%l.0, %r.0), axis=1), %wn), %b), indices_or_sections=3, axis=1);
      let %c = sigmoid(%g.0) * %l.1 + tanh(%g.1) * %r.1;
      (sigmoid(%g.2) * tanh(%c), %c)
    }},
  }}
}}
def @main(%t: Binary, %wl: Tensor[({2 * H}, {D}), float64], %wn: Tensor[({3 * H}, {2 * H}), float64], %b: Tensor[({3 * H},), float64]) {{
  let %r = @encode(%t, %wl, %wn, %b);
  sum(%r.0 * %r.1)
}}
"""


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape) * 0.5


def tree(module: Module, leaves: int, random: np.random.Generator) -> Any:
    t = module.adt("Binary")
    if leaves == 1:
        return t.Leaf(random.normal(size=(1, D)))
    cut = int(random.integers(1, leaves))
    return t.Node(tree(module, cut, random), tree(module, leaves - cut, random))


WEIGHTS = (normal(2 * H, D), normal(3 * H, 2 * H), normal(3 * H))


def test_weights() -> None:
    module = relay.parse(TREE)
    derivatives = Derivatives(module, (1, 2, 3))
    for leaves in (1, 2, 7):
        args = (tree(module, leaves, np.random.default_rng(leaves)), *WEIGHTS)
        assert derivatives.problem(args, compiled=True) is None


def test_it_goes_by_level() -> None:
    """No closures, no references, and one product for each weight."""
    made = differentiated(relay.grad(relay.parse(TREE), (1, 2, 3)))
    made = Pipeline([PartialEvaluate(), DeadReferences(), DeadFunctions(), Inline(), DeadCode()])(made)
    assert goes_by_level(made) and first_order(made)


@pytest.mark.parametrize("name", ["tree_lstm", "child_sum"])
def test_examples_of_any_width(name: str) -> None:
    """Sizes that are variables: splits stay splits, of rows."""
    text = (Path(__file__).parents[2] / "examples" / f"{name}.relay").read_text().replace("float32", "float64")
    module = relay.infer_type(relay.parse(text))
    t, random = module.adt("Tree"), np.random.default_rng(3)

    def word() -> Any:
        return random.normal(size=(1, D))

    if name == "tree_lstm":
        root: Any = t.Node(t.Node(t.Leaf(word()), t.Leaf(word())), t.Leaf(word()))
        shapes: list[tuple[int, ...]] = [(3 * H, D), (3 * H,), (5 * H, 2 * H), (5 * H,)]
    else:
        root = t.Rose(word(), [t.Rose(word(), []), t.Rose(word(), [t.Rose(word(), [])])])
        shapes = [(3 * H, D), (3 * H, H), (3 * H,), (H, D), (H, H), (H,)]
    weights = tuple(normal(*s) for s in shapes)
    assert problem(module, (root, *weights), tuple(range(1, 1 + len(weights))), forward=False) is None


def test_words_too() -> None:
    """The cotangent of the tree itself is found node by node."""
    module = relay.parse(TREE)
    args = (tree(module, 3, np.random.default_rng(0)), *WEIGHTS)
    assert not goes_by_level(differentiated(relay.grad(module, (0, 1))))
    assert problem(module, args, (0, 1)) is None


BUSH = f"""#[version = "0.0.5"]
import prelude
type Bush {{ Bush(Tensor[(1, {D}), float64], List[Bush]), }}
def @encode(%t: Bush, %w: Tensor[({H}, {D}), float64], %u: Tensor[({H}, {H}), float64], %z: Tensor[(1, {H}), float64])
    -> Tensor[(1, {H}), float64] {{
  match (%t) {{
    Bush(%x, %parts) => {{
      let %below = @map(fn (%p: Bush) {{ @encode(%p, %w, %u, %z) }}, %parts);
      let %sum = FOLD;
      tanh(nn.dense(%x, %w) + nn.dense(%sum, %u))
    }},
  }}
}}
def @main(%t: Bush, %w: Tensor[({H}, {D}), float64], %u: Tensor[({H}, {H}), float64], %z: Tensor[(1, {H}), float64]) {{
  let %r = @encode(%t, %w, %u, %z);
  sum(%r * %r)
}}
"""
STATE = f"Tensor[(1, {H}), float64]"
FOLDS = (
    f"@foldl(fn (%a: {STATE}, %s: {STATE}) {{ %a + %s }}, %z, %below)",
    f"@foldr(fn (%s: {STATE}, %a: {STATE}) {{ %s + %a }}, %z, %below)",
    f"@foldl(fn (%a: {STATE}, %s: {STATE}) {{ %a + sin(%s) }}, nn.dense(%x, %w), %below)",  # a start for each node
    f"@foldl(fn (%a: {STATE}, %s: {STATE}) {{ maximum(%a, %s) }}, %z, %below)",
    f"@foldl(fn (%a: ({STATE}, {STATE}), %s: {STATE}) {{ (minimum(%s, %a.0), %a.1 + %s * %s) }}, (%z, %z), %below).0",
)


def bush(module: Module, nodes: int, random: np.random.Generator) -> Any:
    """A tree of so many nodes; a node has from none to three others below it."""
    parts: list[Any] = []
    left = nodes - 1
    while left:
        size = left if len(parts) == 2 else int(random.integers(1, left + 1))
        parts.append(bush(module, size, random))
        left -= size
    return module.adt("Bush").Bush(random.normal(size=(1, D)), parts)


@pytest.mark.parametrize("fold", FOLDS)
def test_lists_of_parts(fold: str) -> None:
    """What adds up the items of each node gives each item its node's cotangent, level by level."""
    module = relay.parse(BUSH.replace("FOLD", fold))
    assert goes_by_level(differentiated(relay.grad(module, (1, 2, 3))))
    derivatives = Derivatives(module, (1, 2, 3))
    for nodes in (1, 9):
        args = (bush(module, nodes, np.random.default_rng(nodes)), normal(H, D), normal(H, H), normal(1, H))
        assert derivatives.problem(args, compiled=fold is FOLDS[0]) is None


@pytest.mark.parametrize("most", ["maximum(%a, %s)", "maximum(%s, %a)", "minimum(%a, %s)"])
@pytest.mark.parametrize("fold", ["foldl(fn (%a: V, %s: V)", "foldr(fn (%s: V, %a: V)"])
def test_equal_items(most: str, fold: str) -> None:
    """Of equal items, and of what a fold starts with, the one that a fold's own operators say gets the cotangent."""
    text = BUSH.replace("FOLD", f"@{fold} {{ {most} }}, %z, %below)".replace("V", STATE))
    text = text.replace("tanh(nn.dense(%x, %w) + nn.dense(%sum, %u))", "nn.dense(%x, %w) + nn.dense(%sum, %u)")
    module = relay.parse(text)
    bushes, (x, y) = module.adt("Bush"), np.eye(2, D)[:, None]
    below = [bushes.Bush(v, []) for v in (x, y, y, x, 0 * x)]
    args = (
        bushes.Bush(x + y, [*below, bushes.Bush(y, below)]),
        np.ones((H, D)) - np.eye(H, D),
        np.eye(H),
        np.ones((1, H)),
    )
    slopes = relay.grad(module, (1, 2, 3))
    assert goes_by_level(differentiated(slopes))
    plain: Any = relay.compile(slopes, opt_level=0)(*args)
    found: Any
    for found in (relay.evaluate(slopes, *args), relay.compile(slopes, threads=1)(*args)):
        for a, b in zip(found, plain, strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b))


def test_a_part_that_is_shared() -> None:
    module = relay.parse(TREE)
    t = module.adt("Binary")
    part = tree(module, 2, np.random.default_rng(5))
    assert problem(module, (t.Node(t.Node(part, part), part), *WEIGHTS), (1, 2, 3), compiled=True) is None


def test_one_index() -> None:
    """The cotangent of a table from which one row is taken by a tensor of one index."""
    text = """#[version = "0.0.5"]
def @main(%x: Tensor[(3, 2), float64], %i: Tensor[(1,), int64]) { sum(sin(take(%x, %i, axis=0))) }"""
    assert problem(relay.parse(text), (normal(3, 2), np.array([1])), (0,)) is None


def test_rows() -> None:
    """The operators of these gradients, against NumPy."""
    x, rows = normal(5, 2), normal(2, 2)

    def run(name: str, *args: Any, **attrs: Any) -> Any:
        params = [relay.var(f"x{n}", a.shape, str(a.dtype)) for n, a in enumerate(args)]
        made = relay.Function(params, relay.op.call(name, *params, **attrs))
        return np.asarray(relay.evaluate(Module({"main": made}), *args))

    for begin in range(4):
        at = np.int64(begin)

        np.testing.assert_array_equal(run("rows.pick", x, at, rows), x[begin : begin + 2])
        placed, without = np.zeros_like(x), x.copy()
        placed[begin : begin + 2], without[begin : begin + 2] = rows, 0
        np.testing.assert_array_equal(run("rows.place", rows, at, x), placed)
        np.testing.assert_array_equal(run("rows.without", x, at, rows), without)
    starts = np.array([0, 2, 2, 7, 9, 9])
    for begin, count in ((0, 3), (1, 2), (0, 5), (4, 1)):
        data, items = normal(count, 2), int(starts[begin + count] - starts[begin])
        wanted = data.repeat(np.diff(starts[begin : begin + count + 1]), 0)
        args = (data, starts, np.int64(begin), np.zeros((items, 2)))
        np.testing.assert_array_equal(run("rows.spread", *args), wanted)
    values, owners = np.array([[1.0, 5], [3, 2], [3, 5], [0, 1]]), np.array([0, 0, 0, 2])
    like, slope = np.zeros((4, 2)), normal(4, 2)
    nothing = np.finfo(float).min
    for put, least, chosen in (
        ("maximum", [[3, 5], [nothing] * 2, [0, 1], [nothing] * 2], ([1, 0], [2, 2])),
        ("minimum", [[1, 2], [-nothing] * 2, [0, 1], [-nothing] * 2], ([0, 1], [0, 1])),
    ):
        for first in (True, False):
            most = run("rows.segment_most", values, owners, like, put=put, first=first)
            reached = np.isfinite(most) & (np.abs(most) < -nothing / 2)
            np.testing.assert_array_equal(most[[0, 2]], np.array(least)[[0, 2]])
            assert not reached[[1, 3]].any() and reached[[0, 2]].all()
            got = run("rows.segment_chosen", values, owners, most, first=first)
            np.testing.assert_array_equal(got[0], chosen[0 if first else 1])
            back = run("rows.segment_most_cotangent", got, owners, slope, values)
            wanted = np.zeros((4, 2))
            for column, item in enumerate(got[0]):
                wanted[item, column] = slope[0, column]
            wanted[3] = slope[2]
            np.testing.assert_array_equal(back, wanted)


def test_arguments_handed_down() -> None:
    """A state from above: its cotangents come back from the leaves to the root, through the same levels."""
    text = f"""#[version = "0.0.5"]
    type Binary {{ Leaf(Tensor[(1, {D}), float64]), Node(Binary, Binary), }}
    def @f(%t: Binary, %s: Tensor[(1, {H}), float64], %wx: Tensor[({H}, {D}), float64], %wh: Tensor[({H}, {H}), float64])
        -> Tensor[(1, {H}), float64] {{
      match (%t) {{
        Leaf(%x) => tanh(nn.dense(%x, %wx) * %s),
        Node(%a, %b) => {{
          let %below = tanh(nn.dense(%s, %wh));
          let %l = @f(%a, %below, %wx, %wh);
          let %r = @f(%b, %below - %s, %wx, %wh);
          tanh(nn.dense(%l * %r, %wh)) * %below + %s
        }},
      }}
    }}
    def @main(%t: Binary, %s: Tensor[(1, {H}), float64], %wx: Tensor[({H}, {D}), float64], %wh: Tensor[({H}, {H}), float64]) {{
      sum(@f(%t, %s, %wx, %wh))
    }}"""
    module = relay.parse(text)
    weights = (normal(1, H), normal(H, D), normal(H, H))
    derivatives = Derivatives(module, (1, 2, 3))
    for leaves in (1, 2, 6):
        args = (tree(module, leaves, np.random.default_rng(leaves)), *weights)
        assert derivatives.problem(args, compiled=True) is None
    made = differentiated(relay.grad(module, (1, 2, 3)))
    made = Pipeline([PartialEvaluate(), DeadReferences(), DeadFunctions(), Inline(), DeadCode()])(made)
    assert goes_by_level(made) and first_order(made)


def test_what_no_node_computes_gives_nothing_back() -> None:
    """Attention to no children is the same for every node without children, and 0 / 0: of a tree that has no such node its slopes are
    not met."""
    module = relay.parse(f"""#[version = "0.0.5"]
import prelude
type Rose {{ Leaf(Tensor[(1, {H}), float64]), Many(List[Rose]), }}
def @encode(%t: Rose, %w: Tensor[({H}, {H}), float64], %zero: Tensor[(1, {H}), float64]) -> Tensor[(1, {H}), float64] {{
  match (%t) {{
    Leaf(%x) => tanh(%x),
    Many(%parts) => {{
      let %sum = @foldl(fn (%a: (Tensor[(1, {H}), float64], Tensor[(1, 1), float64]), %p: Rose) {{
        let %s = @encode(%p, %w, %zero);
        let %e = exp(sum(%s, axis=[1], keepdims=True));
        (%a.0 + %e * %s, %a.1 + %e)
      }}, (%zero, zeros(shape=[1, 1], dtype="float64")), %parts);
      tanh(nn.dense(%sum.0 / %sum.1, %w))
    }},
  }}
}}
def @main(%t: Rose, %w: Tensor[({H}, {H}), float64], %zero: Tensor[(1, {H}), float64]) {{ sum(@encode(%t, %w, %zero)) }}""")
    t = module.adt("Rose")
    a, b, c = (t.Leaf(normal(1, H) + n) for n in range(3))
    derivatives = Derivatives(module, (1, 2))
    for value in (a, t.Many([a, t.Many([b, c]), c])):
        assert derivatives.problem((value, normal(H, H), np.zeros((1, H))), compiled=True) is None


@pytest.mark.parametrize("nodes", [0, 1, 3])
def test_matrices_of_what_no_node_computes_give_nothing_back(nodes: int) -> None:
    """A matrix by its length, which is 0, is met in a clause that the tree at hand does not have."""
    module = relay.parse(f"""#[version = "0.0.5"]
type T {{ Leaf(Tensor[(1, {H}), float64]), Node(T, T), Odd(T), }}
def @encode(%t: T, %w: Tensor[({H}, {H}), float64], %u: Tensor[({H}, {H}), float64]) -> Tensor[(1, {H}), float64] {{
  match (%t) {{
    Leaf(%x) => tanh(%x),
    Node(%l, %r) => tanh(nn.dense(@encode(%l, %w, %u) + @encode(%r, %w, %u), %w)),
    Odd(%p) => tanh(nn.dense(@encode(%p, %w, %u), %u / sqrt(sum(%u * %u)))),
  }}
}}
def @main(%t: T, %w: Tensor[({H}, {H}), float64], %u: Tensor[({H}, {H}), float64]) {{ sum(@encode(%t, %w, %u)) }}""")
    t = module.adt("T")
    value = t.Leaf(normal(1, H))
    for n in range(nodes):
        value = t.Node(value, t.Leaf(normal(1, H) + n))
    assert goes_by_level(differentiated(relay.grad(module, (1, 2))))
    assert Derivatives(module, (1, 2)).problem((value, normal(H, H), np.zeros((H, H))), compiled=True) is None
    assert Derivatives(module, (1, 2)).problem((t.Odd(value), normal(H, H), normal(H, H)), compiled=True) is None


WORD = f"Tensor[(1, {D}), float64]"
# What is done with a list of lists of words; `@pool` with one of these, and with what has been made of them.
LISTS = {
    "a sum of products": f"""def @main(%d: List[{WORD}], %w: Tensor[({D}, {D}), float64], %u: Tensor[(1, {D}), float64]) {{
  @foldl(fn (%s: {WORD}, %x: {WORD}) {{ %s + tanh(nn.dense(%x, %w)) * %u }}, zeros(shape=[1, {D}], dtype="float64"), %d)
}}""",
    "the greatest of mapped items": f"""def @main(%d: List[{WORD}], %w: Tensor[({D}, {D}), float64], %u: Tensor[(1, {D}), float64]) {{
  let %y = @map(fn (%x: {WORD}) {{ nn.dense(tanh(nn.dense(%x, %w) + %u), %w) }}, %d);
  @foldl(fn (%s: {WORD}, %x: {WORD}) {{ maximum(%s, %x) }}, full(-9f64, shape=[1, {D}], dtype="float64"), %y)
}}""",
    "sums in a sum": f"""def @all(%s: List[{WORD}], %w: Tensor[({D}, {D}), float64]) -> {WORD} {{
  nn.dense(@foldl(fn (%a: {WORD}, %x: {WORD}) {{ %a + tanh(nn.dense(%x, %w)) }}, zeros(shape=[1, {D}], dtype="float64"), %s), %w)
}}
def @main(%d: List[List[{WORD}]], %w: Tensor[({D}, {D}), float64], %u: Tensor[(1, {D}), float64]) {{
  @foldl(fn (%a: {WORD}, %s: List[{WORD}]) {{ %a + sigmoid(@all(%s, %w)) * %u }}, zeros(shape=[1, {D}], dtype="float64"), %d)
}}""",
    "one function at both levels": f"""def @pool(%s: List[{WORD}], %w: Tensor[({D}, {D}), float64], %u: Tensor[(1, {D}), float64])
    -> {WORD} {{
  let %r = @foldl(fn (%a: ({WORD}, Tensor[(1, 1), float64]), %x: {WORD}) {{
    let %e = exp(nn.dense(tanh(nn.dense(%x, %w)), %u));
    (%a.0 + %e * %x, %a.1 + %e)
  }}, (zeros(shape=[1, {D}], dtype="float64"), ones(shape=[1, 1], dtype="float64")), %s);
  %r.0 / %r.1
}}
def @main(%d: List[List[{WORD}]], %w: Tensor[({D}, {D}), float64], %u: Tensor[(1, {D}), float64]) {{
  @pool(@map(fn (%s: List[{WORD}]) {{ @pool(%s, %w, %u) }}, %d), %w, %u)
}}""",
}


def words(counts: int | tuple[int, ...]) -> Any:
    """A list of so many words, or a list of such lists."""
    if isinstance(counts, tuple):
        return [words(n) for n in counts]
    return [np.random.default_rng(10 * counts + n).normal(size=(1, D)) for n in range(counts)]


@pytest.mark.parametrize("name", LISTS)
def test_items_of_lists(name: str) -> None:
    """What is done to the items of a list is done to all of them at once, though nothing else stands side by side."""
    module = relay.parse(f'#[version = "0.0.5"]\nimport prelude\n{LISTS[name]}')
    nested = "List[List" in LISTS[name]
    for wanted, by_level in (((1, 2), True), ((0, 1), False)):
        assert goes_by_level(differentiated(relay.grad(module, wanted))) == by_level
        derivatives = Derivatives(module, wanted)
        for counts in [(3, 0, 5), (0, 1), (2,), ()] if nested else [5, 1, 0]:
            assert derivatives.problem((words(counts), normal(D, D), normal(1, D)), compiled=True) is None


@pytest.mark.parametrize(("rows", "by_level"), [(4, True), (9000, False)])
def test_large_items(rows: int, by_level: bool) -> None:
    """Items that keep a kernel busy by themselves are done one after the other."""
    module = relay.parse(f"""#[version = "0.0.5"]
import prelude
def @main(%d: List[Tensor[({rows}, {D}), float64]], %w: Tensor[({D}, {D}), float64]) {{
  @foldl(fn (%s: {WORD}, %x: Tensor[({rows}, {D}), float64]) {{ %s + sum(tanh(nn.dense(%x, %w)), axis=[0], keepdims=True) }},
    zeros(shape=[1, {D}], dtype="float64"), %d)
}}""")
    assert goes_by_level(differentiated(relay.grad(module, 1))) == by_level
