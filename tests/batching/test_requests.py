"""Many requests of one entry: as one batch, side by side or in turn, they give what single runs give."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import relay
from relay._runtime import Value, live_objects
from relay.cli.inspect import VIEWS
from relay.executable.errors import TimeLimitError
from relay.ir.diagnostics import ExecutionError, RelayError, ShapeError, TypeError_
from relay.ir.module import Module
from relay.ir.value import AdtValue
from relay.options import Options
from relay.transform.batching.requests import ANSWERS
from tests.batching.programs import (
    CHILD_SUM,
    EDGES,
    MIXED,
    TREE_LSTM,
    TREE_RNN,
    lowered,
    module,
    random_expr,
    random_net,
    random_rose,
    random_tree,
    weights,
)
from tests.batching.test_structure import same

COUNTS = (2, 3, 11)

# What is done with one request besides the recursion: another structure, a head, a choice by the structure.
PAIR = (
    TREE_RNN.partition("def @main")[0]
    + """
type Maybe { Nothing, Just(Tree[Tensor[(1, 5), float32]]), }
def @main(%m: Maybe, %a: Tree[Tensor[(1, 5), float32]], %wl: Tensor[(6, 5), float32], %wn: Tensor[(6, 12), float32],
    %head: Tensor[(3, 6), float32]) -> (Tensor[(1, 3), float32], (Tensor[(), float32], Tensor[(1, 6), float32])) {
  let %ha = @encode(%a, %wl, %wn);
  match (%m) {
    Nothing => (nn.softmax(nn.dense(%ha, %head)), (0.5f, sum(%wl) * %ha)),
    Just(%b) => {
      let %hb = @encode(%b, %wl, %wn);
      (nn.softmax(nn.dense(%ha * %hb, %head)), (sum(%hb), %hb))
    },
  }
}
"""
)
# The requests are lists of trees.
FOREST = (
    "import prelude\n"
    + TREE_RNN.replace("Tree", "Binary").partition("def @main")[0]
    + """
def @main(%ts: List[Binary[Tensor[(1, 5), float32]]], %wl: Tensor[(6, 5), float32], %wn: Tensor[(6, 12), float32])
    -> Tensor[(1, 6), float32] {
  let %each = @map(fn (%t: Binary[Tensor[(1, 5), float32]]) { @encode(%t, %wl, %wn) }, %ts);
  tanh(@foldl(fn (%a: Tensor[(1, 6), float32], %s: Tensor[(1, 6), float32]) { %a + %s }, zeros(shape=[1, 6], dtype="float32"), %each))
}
"""
)
# What is handed to the recursion is computed before it.
BEFORE = (
    TREE_RNN.partition("def @main")[0]
    + """
def @main(%t: Tree[Tensor[(1, 5), float32]], %wl: Tensor[(6, 5), float32], %wn: Tensor[(6, 12), float32]) -> Tensor[(1, 6), float32] {
  @encode(%t, %wl * 2f, %wn - 1f)
}
"""
)


def how(mod: Module) -> str:
    return str(lowered(mod).functions["main"].attrs[ANSWERS])


def agree(mod: Module, requests: list[tuple[Any, ...]], executors: Sequence[str] = ("vm",), **options: Any) -> None:
    """As one batch, and each in the interpreter."""
    assert how(mod) == "one batch"
    expected = [relay.evaluate(mod, *args) for args in requests]
    for executor in executors:
        exe = relay.compile(mod, executor=executor, **options)
        assert exe.entries == ("main",)
        for found, wanted in zip(exe.run_batch("main", requests), expected, strict=True):
            same_nested(found, wanted)


def same_nested(found: Any, wanted: Any) -> None:
    assert isinstance(found, tuple) == isinstance(wanted, tuple)
    if isinstance(wanted, tuple):
        for f, w in zip(found, wanted, strict=True):
            same_nested(f, w)
    else:
        assert np.asarray(found).shape == np.asarray(wanted).shape
        same(found, wanted)


@pytest.mark.parametrize("bind", [False, True])
def test_trees(bind: bool) -> None:
    rng = np.random.default_rng(1)
    mod = module(TREE_LSTM)
    held = dict(zip(("wl", "bl", "wn", "bn"), weights(rng, (18, 5), (18,), (30, 12), (30,)), strict=True))
    trees = [
        random_tree(mod, rng, n, 5, kind)
        for n, kind in ((1, "left"), (7, "random"), (20, "right"), (1, "left"), (6, "left"))
    ]
    trees.append(trees[1])
    if bind:
        mod = mod.bind(held)
    agree(mod, [(t,) if bind else (t, *held.values()) for t in trees])


def test_children_in_lists() -> None:
    rng = np.random.default_rng(2)
    mod = module(CHILD_SUM)
    names = ("wx", "wh", "b", "wf", "uf", "bf")
    made = weights(rng, (18, 5), (18, 6), (18,), (6, 5), (6, 6), (6,))
    mod = mod.bind(dict(zip(names, made, strict=True)))
    agree(mod, [(random_rose(mod, rng, n, 5, kind),) for n in (1, 4, 9) for kind in ("random", "chain", "wide")])


def test_every_form_of_structure() -> None:
    rng = np.random.default_rng(3)
    mod = module(MIXED)
    held = weights(rng, (9, 4), (4, 4))
    for count in COUNTS:
        agree(mod, [(random_expr(mod, rng, int(rng.integers(25))), *held) for _ in range(count)])
    mod = module(EDGES)
    held = [*weights(rng, (4, 4)), np.zeros(4, np.float32)]
    agree(mod, [(random_net(mod, rng, int(rng.integers(12))), *held) for _ in range(7)])


def test_a_head_and_a_choice_around_the_recursion() -> None:
    rng = np.random.default_rng(4)
    mod = module(PAIR)
    maybe, held = mod.adt("Maybe"), weights(rng, (6, 5), (6, 12), (3, 6))
    requests = []
    for n in range(9):
        first = maybe.Nothing() if n % 3 == 1 else maybe.Just(random_tree(mod, rng, n + 1, 5))
        requests.append((first, random_tree(mod, rng, 9 - n, 5), *held))
    agree(mod, requests, ("vm", "aot"), threads=2)
    agree(mod, requests[1:2] * 2)


def test_requests_that_are_lists_of_structures() -> None:
    rng = np.random.default_rng(5)
    mod = module(FOREST)
    held = weights(rng, (6, 5), (6, 12))
    leaf = mod.adt("Binary").Leaf
    some = [leaf(rng.standard_normal((1, 5), dtype=np.float32)) for _ in range(5)]
    trees = [*some, mod.adt("Binary").Node(mod.adt("Binary").Node(some[0], some[1]), some[2])]
    requests = [([trees[int(rng.integers(6))] for _ in range(n)], *held) for n in (0, 3, 1, 0, 4)]
    agree(mod, requests)


def test_what_is_handed_on_may_be_computed() -> None:
    rng = np.random.default_rng(6)
    mod = module(BEFORE)
    held = weights(rng, (6, 5), (6, 12))
    agree(mod, [(random_tree(mod, rng, n, 5), *held) for n in (3, 1, 8)])


def test_passes_make_what_the_program_says() -> None:
    """The function beside the entry, in the interpreter."""
    rng = np.random.default_rng(7)
    mod = module(TREE_LSTM)
    held = weights(rng, (18, 5), (18,), (30, 12), (30,))
    made = lowered(mod)
    trees = [random_tree(mod, rng, n, 5) for n in (1, 5, 2)]
    listed = AdtValue("Requests", "Requests.End", 1, ())
    for tree in reversed(trees):
        listed = AdtValue("Requests", "Requests.More", 0, ((tree,), listed))
    rows: Any = relay.evaluate(made, listed, *held, entry="main.requests")
    for row, tree in zip(np.asarray(rows[0]), trees, strict=True):
        same(row, relay.evaluate(mod, tree, *held))


# What an entry gives, and of which type: values of data types alone, in tuples beside tensors, one that depends on the structure.
VALUES = {
    "a tree": ("@marked(%t, %wl, %wn).1", "Tree[Tensor[(1, 6), float32]]"),
    "a list": ("{ let %s = @marked(%t, %wl, %wn).0; Cons(%s, Cons(tanh(%s), Nil)) }", "List[Tensor[(1, 6), float32]]"),
    "in tuples": ("{ let %r = @marked(%t, %wl, %wn); ((%r.1, sum(%r.0)), (%r.0, %r.1)) }",
        "((Tree[Tensor[(1, 6), float32]], float32), (Tensor[(1, 6), float32], Tree[Tensor[(1, 6), float32]]))"),
    "an option": ("match (%t) { Leaf(_) => None, Node(%l, _) => Some(@marked(%l, %wl, %wn).1) }",
        "Option[Tree[Tensor[(1, 6), float32]]]"),
}  # fmt: skip
MARKED = (
    "import prelude\n"
    + TREE_RNN.partition("def @encode")[0].replace("Tree", "Binary")
    + """
def @marked(%t: Binary[Tensor[(1, 5), float32]], %wl: Tensor[(6, 5), float32], %wn: Tensor[(6, 12), float32])
    -> (Tensor[(1, 6), float32], Binary[Tensor[(1, 6), float32]]) {
  match (%t) {
    Leaf(%x) => { let %s = tanh(nn.dense(%x, %wl)); (%s, Leaf(%s)) },
    Node(%a, %b) => {
      let %l = @marked(%a, %wl, %wn);
      let %r = @marked(%b, %wl, %wn);
      let %s = tanh(nn.dense(concatenate((%l.0, %r.0), axis=1), %wn));
      (%s, Node(%l.1, %r.1))
    },
  }
}
"""
)


@pytest.mark.parametrize("kind", VALUES)
def test_results_that_are_values_of_data_types(kind: str) -> None:
    body, gives = (text.replace("Tree", "Binary") for text in VALUES[kind])
    mod = module(
        MARKED
        + "def @main(%t: Binary[Tensor[(1, 5), float32]], %wl: Tensor[(6, 5), float32], %wn: Tensor[(6, 12), float32])"
        f" -> {gives} {{ {body} }}"
    )
    rng = np.random.default_rng(14)
    wl, wn = weights(rng, (6, 5), (6, 12))
    mod = mod.bind({"wl": wl, "wn": wn})
    assert how(mod) == "one batch"
    binary = mod.adt("Binary")
    a, b, c = (binary.Leaf(rng.standard_normal((1, 5), dtype=np.float32)) for _ in range(3))
    trees = [a, binary.Node(binary.Node(b, a), c), binary.Node(c, b)]
    requests = [(t,) for t in (*trees, trees[1])]
    for executor in ("vm", "aot"):
        exe = relay.compile(mod, executor=executor, threads=1)
        for found, args in zip(exe.run_batch("main", requests), requests, strict=True):
            assert repr_of(found) == repr_of(exe(*args))
            same_values(found, relay.evaluate(mod, *args))
    listed = AdtValue("Requests", "Requests.End", 1, ())
    for tree in reversed(trees):
        listed = AdtValue("Requests", "Requests.More", 0, ((tree,), listed))
    made: Any = relay.evaluate(lowered(mod), listed, entry="main.requests")
    rest = made[-1]
    for tree in trees:
        wanted: Any = relay.evaluate(mod, tree)
        same_values(rest.fields[0], wanted if kind != "in tuples" else wanted[1][1])
        rest = rest.fields[1]
    assert rest.constructor == "Requests.End"


def repr_of(value: Any) -> Any:
    """A result with its tensors as numbers."""
    if isinstance(value, AdtValue):
        return value.constructor, *map(repr_of, value.fields)
    if isinstance(value, list | tuple):
        return type(value), *map(repr_of, value)
    return value if value is None else np.asarray(value).tolist()


def same_values(found: Any, wanted: Any) -> None:
    if isinstance(wanted, AdtValue):
        assert found.constructor == wanted.constructor
        found, wanted = found.fields, wanted.fields
    if isinstance(wanted, list | tuple):
        for f, w in zip(found, wanted, strict=True):
            same_values(f, w)
    elif wanted is not None:
        same(found, wanted)


def test_other_weights_in_each_request() -> None:
    rng = np.random.default_rng(8)
    mod = module(TREE_RNN)
    requests = [(random_tree(mod, rng, n, 5), *weights(rng, (6, 5), (6, 12))) for n in (2, 5)]
    for found, args in zip(relay.compile(mod).run_batch("main", requests), requests, strict=True):
        same(found, relay.evaluate(mod, *args))


NOT_TOGETHER = {
    "no recursion": (
        """def @main[n: Dim](%x: Tensor[(n, 4), float32], %w: Tensor[(4, 4), float32]) -> Tensor[(n, 4), float32] {
             tanh(nn.dense(%x, %w)) }""",
        "side by side: it has no recursion",
    ),
    "sizes of their own": (
        """import prelude
           def @main[n: Dim](%x: Tensor[(n, 4), float32], %w: Tensor[(4, 4), float32]) -> Tensor[(n, 4), float32] {
             @fold_rows(fn (%a: Tensor[(4,), float32], %r: Tensor[(4,), float32]) { tanh(%a + %r) }, sum(%w, axis=[0]), %x) + %x }""",
        "side by side: ",
    ),
    "a reference": (
        """def @main(%x: Tensor[(2, 4), float32], %w: Tensor[(4, 4), float32]) -> Tensor[(2, 4), float32] {
             let %r = ref(%x); %r := !%r + %x; nn.dense(!%r, %w) }""",
        "one by one: ",
    ),
}


@pytest.mark.parametrize("name", NOT_TOGETHER)
def test_programs_that_are_not_one_batch(name: str) -> None:
    text, says = NOT_TOGETHER[name]
    mod = module(text)
    assert how(mod).startswith(says)
    rng = np.random.default_rng(9)
    (w,) = weights(rng, (4, 4))
    rows = (2, 2, 2) if name == "a reference" else (1, 5, 300)
    requests = [(*weights(rng, (n, 4)), w) for n in rows]
    for threads in (1, 2):
        for found, args in zip(relay.compile(mod, threads=threads).run_batch("main", requests), requests, strict=True):
            same(found, relay.evaluate(mod, *args))


def test_side_by_side_on_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.executable.program._WORTH_A_THREAD", 0.0)
    rng = np.random.default_rng(10)
    mod = module(NOT_TOGETHER["no recursion"][0])
    (w,) = weights(rng, (4, 4))
    requests = [(*weights(rng, (n, 4)), w) for n in range(1, 40)]
    exe = relay.compile(mod, threads=2)
    for found, args in zip(exe.run_batch("main", requests), requests, strict=True):
        same(found, relay.evaluate(mod, *args))
    requests[7] = (requests[7][0].astype(np.float64), w)
    with pytest.raises(RelayError, match="float64"):
        exe.run_batch("main", requests)


def test_few_requests() -> None:
    rng = np.random.default_rng(11)
    mod = module(TREE_RNN)
    held = weights(rng, (6, 5), (6, 12))
    tree = random_tree(mod, rng, 4, 5)
    exe = relay.compile(mod)
    assert exe.run_batch("main", []) == []
    (found,) = exe.run_batch("main", [(tree, *held)])
    same(found, exe(tree, *held))


def test_results_are_freed_with_their_last_reference() -> None:
    """They are in no cycle of references, which would keep them until Python looks for such."""
    rng = np.random.default_rng(12)
    mod = module(TREE_LSTM)
    held = [relay.Tensor.from_numpy(w) for w in weights(rng, (18, 5), (18,), (30, 12), (30,))]
    requests = [(random_tree(mod, rng, n, 5), *held) for n in (3, 5)]
    exe = relay.compile(mod)
    exe.run_batch("main", requests)
    gc.collect()
    gc.disable()
    try:
        before = live_objects()
        found = exe.run_batch("main", requests)
        assert live_objects() != before
        del found
        assert live_objects() == before
    finally:
        gc.enable()


class Counted:
    """A program of the runtime that counts its runs."""

    def __init__(self, program: Any) -> None:
        self.program, self.runs = program, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.program, name)

    def run(self, *args: Any) -> Any:
        self.runs += 1
        return self.program.run(*args)


def test_large_batches_are_parted_so_that_rows_stay_near_the_caches() -> None:
    """What is in the nodes is 60 MB; the results are those of one batch, to the bit."""
    rng = np.random.default_rng(15)
    plain = module(TREE_RNN)
    words = rng.standard_normal((7, 1, 8192), dtype=np.float32)

    def tree(leaves: int) -> Any:
        if leaves == 1:
            return plain.adt("Tree").Leaf(words[int(rng.integers(7))])
        return plain.adt("Tree").Node(tree(leaves // 2), tree(leaves - leaves // 2))

    def counted(mod: Module, threads: int = 1) -> tuple[Any, Counted]:
        exe = relay.compile(mod, threads=threads)
        runs = exe._program = Counted(exe.program)  # type: ignore[assignment]
        return exe, runs

    wl, wn = weights(rng, (4, 8192), (4, 8))
    many = [(tree(int(n)),) for n in rng.integers(10, 30, 100)]
    exe, of = counted(plain.bind({"wl": wl, "wn": wn}))
    found = exe.run_batch("main", many)
    assert 1 < of.runs < 8 and len(found) == len(many)
    for result, request in zip(found, many, strict=True):
        np.testing.assert_array_equal(result, exe(*request))
    two, _ = counted(plain.bind({"wl": wl, "wn": wn}), 2)
    np.testing.assert_array_equal(two.run_batch("main", many), found)
    # There is one part of few rows, of what requests share, and where weights would be packed for each.
    shared, *each = (exe.signature().arguments((t,))[0] for t in (tree(2), *(t for (t,) in many)))
    for program, requests in (
        ((exe, of), many[:20]),
        ((exe, of), [(Value.adt(1, [shared, t]),) for t in each]),
        (counted(plain), [(t, wl, wn) for (t,) in many]),
    ):
        program[1].runs = 0
        assert len(program[0].run_batch("main", requests)) == len(requests) and program[1].runs == 1
    exe.limits = relay.Limits(seconds=1e-6)
    with pytest.raises(TimeLimitError):
        exe.run_batch("main", many)


MATRICES = """
type Pair { Leaf(Tensor[(1, 64), float32], Tensor[(64, 64), float32]), Node(Pair, Pair), }
def @up(%t: Pair, %w: Tensor[(64, 128), float32], %m: Tensor[(64, 128), float32])
    -> (Tensor[(1, 64), float32], Tensor[(64, 64), float32]) {
  match (%t) {
    Leaf(%x, %a) => (%x, %a),
    Node(%l, %r) => {
      let %a = @up(%l, %w, %m);
      let %b = @up(%r, %w, %m);
      let %v = concatenate((nn.dense(%a.0, %b.1), nn.dense(%b.0, %a.1)), axis=1);
      (tanh(nn.dense(%v, %w)), nn.matmul(%m, concatenate((%a.1, %b.1), axis=0)))
    },
  }
}
def @main(%t: Pair, %w: Tensor[(64, 128), float32], %m: Tensor[(64, 128), float32]) { @up(%t, %w, %m) }
"""


def test_matrices_are_as_many_rows_as_they_have() -> None:
    """A vector and a matrix for each node: 15 MB of few nodes, of which each is 64 rows to a product."""
    rng = np.random.default_rng(16)
    plain = module(MATRICES)
    pair = plain.adt("Pair")

    def tree(leaves: int) -> Any:
        if leaves == 1:
            return pair.Leaf(*weights(rng, (1, 64), (64, 64)))
        return pair.Node(tree(leaves // 2), tree(leaves - leaves // 2))

    w, m = weights(rng, (64, 128), (64, 128))
    bound = plain.bind({"w": w, "m": m * np.float32(0.1)})
    exe = relay.compile(bound, threads=1)
    runs = exe._program = Counted(exe.program)  # type: ignore[assignment]
    many = [(tree(int(n)),) for n in rng.integers(5, 15, 32)]
    found = exe.run_batch("main", many)
    assert runs.runs > 3
    for result, request in zip(found, many, strict=True):
        meant: Any = relay.evaluate(bound, *request)
        for a, b, c in zip(result, exe(*request), meant, strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-4)


def test_errors_name_the_request() -> None:
    rng = np.random.default_rng(12)
    mod = module(TREE_RNN).bind(dict(zip(("wl", "wn"), weights(rng, (6, 5), (6, 12)), strict=True)))
    exe = relay.compile(mod)
    good, bad = random_tree(mod, rng, 3, 5), random_tree(mod, rng, 2, 4)
    with pytest.raises(
        ShapeError, match=r"argument %t of @main in request 1, at Node\.0/Leaf\.0 has shape \(1, 4\), expected"
    ):
        exe.run_batch("main", [(good,), (bad,)])
    with pytest.raises(TypeError_, match="takes 1 arguments"):
        exe.run_batch("main", [(good,), ()])
    with pytest.raises(RelayError, match="no entry @other"):
        exe.run_batch("other", [(good,)])


def test_inspect_says_how_requests_are_answered() -> None:
    _, (title, text) = VIEWS["batching"](module(TREE_RNN), Options())
    assert (title, text) == ("many requests", "@main: one batch")
    _, (_, text) = VIEWS["batching"](module(NOT_TOGETHER["a reference"][0]), Options())
    assert text.startswith("@main: one by one: ")


@pytest.mark.parametrize("effects", [False, True])
def test_an_error_says_which_request_it_is_of(effects: bool) -> None:
    """Of requests that run by themselves: side by side, and in turn where they have effects."""
    read = "@nth(%xs, !ref(%n))" if effects else "@nth(%xs, %n)"
    exe = relay.compile(
        f"""#[version = "0.0.5"]
import prelude
def @main(%xs: List[int32], %n: int32) -> int32 {{ {read} }}""",
        cache=False,
        threads=2,
    )
    good: tuple[object, ...] = ([np.int32(1), np.int32(2)], np.int32(1))
    bad: tuple[object, ...] = ([], np.int32(3))
    with pytest.raises(ExecutionError, match=r"^request 2: no clause of the match .* fits a Nil of List"):
        exe.run_batch("main", [good, good, bad, good])
    with pytest.raises(ExecutionError, match=r"^request 0: no clause"):
        exe.run_batch("main", [bad])
    with pytest.raises(RelayError, match=r"^request 1: argument %n of @main: expected int32"):
        exe.run_batch("main", [good, (good[0], np.float32(1)), good])
    with pytest.raises(TypeError_, match=r"^request 1: @main takes 2 arguments"):
        exe.run_batch("main", [good, good[:1]])
    with pytest.raises(RelayError, match=r"^request 1 to @main must be a list of its arguments"):
        exe.run_batch("main", [good, 3])  # type: ignore[list-item]
