"""Requests whose recursion needs what other recursion gives are one batch, phase by phase."""

from __future__ import annotations

from typing import Any, TypeGuard, cast

import numpy as np
import pytest

import relay
from relay.ir.expr import Call, Expr, OpRef
from relay.ir.module import Module
from relay.ir.value import AdtValue
from relay.transform.blocks import all_bindings, body_of
from tests.batching.programs import EXAMPLES, lowered, module, weights
from tests.batching.test_requests import how
from tests.generator.compare import difference

# A tree's vector; the tree with a state at every node; the same from above; a list from a state; a list's vector.
PARTS = """
import prelude
type B { Leaf(S), Node(B, B), }
def @encode(%t: B, %w: W, %u: W) -> S {
  match (%t) { Leaf(%x) => tanh(nn.dense(%x, %w)), Node(%a, %b) => tanh(nn.dense(@encode(%a, %w, %u), %u) - @encode(%b, %w, %u)) }
}
def @noted(%t: B, %w: W, %u: W) -> (S, B) {
  match (%t) {
    Leaf(%x) => { let %s = tanh(nn.dense(%x, %u)); (%s, Leaf(%s)) },
    Node(%a, %b) => {
      let %l = @noted(%a, %w, %u);
      let %r = @noted(%b, %w, %u);
      (tanh(nn.dense(%l.0, %w) + %r.0), Node(%r.1, %l.1))
    }
  }
}
def @down(%t: B, %s: S, %w: W, %u: W) -> B {
  match (%t) {
    Leaf(%x) => Leaf(tanh(%x - %s)),
    Node(%a, %b) => Node(@down(%a, tanh(nn.dense(%s, %w)), %w, %u), @down(%b, tanh(nn.dense(%s, %u)), %w, %u))
  }
}
def @decode(%xs: List[S], %s: S, %w: W, %u: W) -> List[S] {
  match (%xs) {
    Nil => Nil,
    Cons(%x, %more) => { let %next = tanh(nn.dense(%x, %w) + nn.dense(%s, %u)); Cons(%next - %x, @decode(%more, %next, %w, %u)) }
  }
}
def @read(%xs: List[S], %s: S, %w: W, %u: W) -> S {
  @foldl(fn (%h: S, %x: S) { tanh(nn.dense(%x, %u) + nn.dense(%h, %w)) }, %s, %xs)
}
def @asked(%t: B, %q: (S, float32), %w: W, %u: W) -> (S, float32) {
  match (%t) {
    Leaf(%x) => (%x * sigmoid(nn.dense(%q.0, %w)), %q.1 + 1f),
    Node(%a, %b) => { let %l = @asked(%a, %q, %w, %u); let %r = @asked(%b, %q, %w, %u); (%l.0 * %r.0 + %q.0, %l.1 * 0.5f + %r.1) }
  }
}
"""
STATE, WEIGHT = "Tensor[(1, 4), float32]", "Tensor[(4, 4), float32]"


def typed(text: str) -> Module:
    for short, ty in (("S", STATE), ("W", WEIGHT)):
        for end in (" ", ")", ",", "]"):
            for begin in (" ", "(", "["):
                text = text.replace(f"{begin}{short}{end}", f"{begin}{ty}{end}")
    return module(text)


def drawn(seed: int) -> str:
    """A program of several recursions over two trees and a list, and over what these have made."""
    rng = np.random.default_rng(seed)
    pool = {"B": ["%t", "%v"], "L": ["%xs"], "S": ["%c", "nn.relu(%c)"], "P": ["(%c, 0.25f)"]}
    lines: list[str] = []

    def some(kind: str) -> str:
        """What was made last, more often than not."""
        found = pool[kind]
        return found[-1] if rng.integers(3) else found[int(rng.integers(len(found)))]

    calls = {
        "encode": ("S", "B"), "noted": ("B", "B"), "down": ("B", "BS"), "decode": ("L", "LS"), "read": ("S", "LS"), "asked": ("P", "BP"),
        "plain": ("S", "SS"), "pair": ("P", "SP"), "first": ("S", "P"),
    }  # fmt: skip
    for n in range(int(rng.integers(5, 10))):
        name = sorted(calls)[int(rng.integers(len(calls)))]
        kind, takes = calls[name]
        args = [some(k) for k in takes]
        value = {"plain": "{0} * {1} - %c", "pair": "({0}, {1}.1 - 1f)", "first": "{0}.0 * {0}.1"}.get(name)
        made = value.format(*args) if value else f"@{name}({', '.join(args)}, %w, %u)"
        lines.append(f"  let %r{n} = {made};")
        pool[kind].append(f"%r{n}.1" if name == "noted" else f"%r{n}")
        if name == "noted":
            pool["S"].append(f"%r{n}.0")
    results = [v for kind in "SLBP" for v in pool[kind] if v.startswith("%r")]
    out = [results[int(rng.integers(len(results)))] for _ in range(int(rng.integers(1, 4)))]
    result = out[0] if len(out) == 1 else f"({', '.join(out)})"
    head = "def @main(%t: B, %v: B, %xs: List[S], %c: S, %w: W, %u: W) {\n"
    return PARTS + head + "\n".join(lines) + f"\n  {result}\n}}\n"


def a_tree(mod: Module, rng: np.random.Generator, leaves: int) -> Any:
    if leaves == 1:
        return mod.adt("B").Leaf(rng.standard_normal((1, 4), dtype=np.float32))
    at = int(rng.integers(1, leaves))
    return mod.adt("B").Node(a_tree(mod, rng, at), a_tree(mod, rng, leaves - at))


def requests_to(mod: Module, rng: np.random.Generator, sizes: tuple[int, ...]) -> list[tuple[Any, ...]]:
    held = weights(rng, (1, 4), (4, 4), (4, 4))
    out = []
    for n in sizes:
        words = [rng.standard_normal((1, 4), dtype=np.float32) for _ in range(int(rng.integers(0, n + 2)))]
        out.append((a_tree(mod, rng, n), a_tree(mod, rng, int(rng.integers(1, n + 2))), words, *held))
    return out


def agree(mod: Module, requests: list[tuple[Any, ...]], **options: Any) -> None:
    expected = [relay.evaluate(mod, *args) for args in requests]
    exe = relay.compile(mod, **options)
    for found, wanted in zip(exe.run_batch("main", requests), expected, strict=True):
        assert (wrong := difference(wanted, found, str(options))) is None, wrong


@pytest.mark.programs(10)
def test_drawn_programs(seed: int) -> None:
    mod = typed(drawn(seed))
    assert how(mod) == "one batch" or "no recursion" in how(mod) or "no product" in how(mod)
    requests = requests_to(mod, np.random.default_rng(seed), (1, 3, 8, 5, 1))
    agree(mod, requests, threads=2)
    agree(mod, requests, threads=1, executor="aot")


def test_several_phases_are_drawn() -> None:
    found = [lowered(typed(drawn(seed))).functions for seed in range(24)]
    assert sum("main.requests.2" in f for f in found) > 8 and any("main.requests.3" in f for f in found)


def is_listing(value: Expr) -> TypeGuard[Call]:
    return isinstance(value, Call) and isinstance(value.fn, OpRef) and value.fn.name == "rows.requests"


def test_what_is_the_same_in_all_requests_is_not_handed_on() -> None:
    """A matrix made of weights is read by both phases; a row of it for each request would be another product."""
    mod = typed(
        PARTS
        + """
def @main(%t: B, %w: W, %u: W) {
  let %m = transpose(%w) * 2f;
  @down(%t, @encode(%t, %m, %u), %m, %u)
}"""
    )
    made = lowered(mod)
    (call,) = [b.value for b in all_bindings(body_of(made.functions["main.requests"])) if is_listing(b.value)]
    assert len(cast("tuple[int, ...]", call.attrs["spec"])) == 4  # the tree and its vector
    requests = [(r[0], *r[4:]) for r in requests_to(mod, np.random.default_rng(3), (2, 6, 1))]
    agree(mod, requests, threads=1)


@pytest.mark.parametrize(
    "main",
    [
        "let %n = @noted(%t, %w, %u); (@down(%n.1, %n.0, %w, %u), %n.0)",
        "(%t, @asked(%t, (@encode(%t, %w, %u), 1f), %w, %u).0).1",
    ],
    ids=["up and down", "asked"],
)
def test_the_passes_program(main: str) -> None:
    """What answers many requests means the same in the interpreter."""
    mod = typed(PARTS + f"def @main(%t: B, %c: S, %w: W, %u: W) {{ {main} }}")
    made = lowered(mod)
    rng = np.random.default_rng(4)
    requests = [(r[0], *r[3:]) for r in requests_to(mod, rng, (3, 1, 7))]
    listed = AdtValue("Requests", "Requests.End", 1, ())
    for tree, *_ in reversed(requests):
        listed = AdtValue("Requests", "Requests.More", 0, ((tree,), listed))
    answer: Any = relay.evaluate(made, listed, *requests[0][1:], entry="main.requests")
    rows, *lists = answer
    for n, args in enumerate(requests):
        found: Any = np.asarray(rows)[n]
        if lists:
            value, rest = lists[0].fields
            found, lists = (value, found), [rest]
        assert (wrong := difference(relay.evaluate(mod, *args), found, "in phases")) is None, wrong


def test_a_tree_up_and_down_again() -> None:
    mod = relay.infer_type(relay.load_module(EXAMPLES / "bitree.relay"))
    assert how(mod) == "one batch"
    rng = np.random.default_rng(5)
    held = weights(rng, (1, 6), (6, 4), *[(6, 6)] * 4)
    adt = mod.adt("Tree")

    def tree(leaves: int) -> Any:
        word = rng.standard_normal((1, 4), dtype=np.float32)
        if leaves == 1:
            return adt.Leaf(word)
        return adt.Node(word, tree(leaves // 2), tree(leaves - leaves // 2))

    requests = [(tree(n), *held) for n in (1, 9, 4, 1, 30)]
    agree(mod, requests, threads=1)
    agree(
        mod.bind(dict(zip(("c", "wx", "wl", "wr", "ul", "ur"), held, strict=True))),
        [r[:1] for r in requests],
        threads=2,
    )


def test_large_batches_are_parted_in_phases_too() -> None:
    """The first phase may answer a part of the requests; the others go through as many."""
    mod = typed(PARTS + "def @main(%t: B, %c: S, %w: W, %u: W) { @down(%t, @encode(%t, %w, %u), %w, %u) }")
    rng = np.random.default_rng(6)
    c, w, u = weights(rng, (1, 4), (4, 4), (4, 4))
    bound = mod.bind({"c": c, "w": w, "u": u})
    requests = [(a_tree(mod, rng, int(n)),) for n in rng.integers(20, 60, 4000)]
    exe = relay.compile(bound, threads=1)
    found = exe.run_batch("main", requests)
    for n in range(0, 4000, 57):
        assert (wrong := difference(exe(*requests[n]), found[n], "of many")) is None, wrong


NOT_TOGETHER = {
    "a phase that decides by data": (
        "{ let %s = @encode(%t, %w, %u); if (sum(%s) > 0f) { @encode(%v, %w, %u) } else { %s } }",
        "an `if` decides by computed data",
    ),
    "a part of the structure in a value that is made": (
        "{ @encode(Node(%t, Leaf(@encode(%v, %w, %u))), %w, %u) }",
        "in phase 1 of 2 %t, a part of the structure that is no tensor, is used as a whole",
    ),
}


@pytest.mark.parametrize("name", NOT_TOGETHER)
def test_what_is_left_alone(name: str) -> None:
    body, why = NOT_TOGETHER[name]
    mod = typed(PARTS + f"def @main(%t: B, %v: B, %w: W, %u: W) -> S {body}")
    assert how(mod).startswith("side by side: ") and why in how(mod)
    requests = [(r[0], r[1], *r[4:]) for r in requests_to(mod, np.random.default_rng(7), (2, 5))]
    agree(mod, requests, threads=2)


ASKED = {
    "of its own": "@asked(%t, (%c * sum(%x), 2f), %w, %u)",
    "brought": "@asked(%t, (%x, 0f), %w, %u)",
    "of lists of trees": """{
      let %q = nn.dense(%x, %w);
      let %first = @each(%t, %q, %w, %u);
      let %all = @map(fn (%y: B) { @each(%y, %q, %w, %u) }, %ts);
      (@foldl(fn (%a: S, %b: S) { %a + %b }, %first, %all), 1f)
    }""",
    "and from above": "{ let %s = @from(%t, nn.dense(%x, %u), %x, %w); (%s, 0f) }",
}


@pytest.mark.parametrize("name", ASKED)
def test_nodes_ask_their_request_for_what_is_the_same_in_all_of_them(name: str) -> None:
    """What follows from it alone is computed once for a request: a product of its rows, not of rows of nodes."""
    mod = typed(
        PARTS
        + """
def @each(%t: B, %q: S, %w: W, %u: W) -> S {
  match (%t) {
    Leaf(%x) => tanh(%x + nn.dense(%q, %u)),
    Node(%a, %b) => %q * nn.dense(%q, %w) - @each(%a, %q, %w, %u) * @each(%b, %q, %w, %u)
  }
}
def @from(%t: B, %above: S, %q: S, %w: W) -> S {
  match (%t) {
    Leaf(%x) => %x * %above + nn.dense(%q, %w),
    Node(%a, %b) => @from(%a, tanh(nn.dense(%above, %w) + %q), %q, %w) - @from(%b, %above * sigmoid(%q), %q, %w)
  }
}
"""
        + f"""
def @main(%t: B, %ts: List[B], %r: (S, List[float32]), %c: S, %w: W, %u: W) -> (S, float32) {{
  let %x = %r.0;
  {ASKED[name]}
}}"""
    )
    assert how(mod) == "one batch"
    rng = np.random.default_rng(8)
    held = weights(rng, (1, 4), (4, 4), (4, 4))
    requests = []
    for n in (1, 6, 3, 1):
        trees = [a_tree(mod, rng, int(k)) for k in rng.integers(1, 5, n - 1)]
        requests.append((a_tree(mod, rng, n), trees, (*weights(rng, (1, 4)), []), *held))
    requests.append((requests[1][0], requests[2][1], *requests[0][2:]))  # trees of other requests
    agree(mod, requests, threads=1)
    agree(mod, requests, threads=2, executor="aot")
    if name == "brought":
        assert not any(n.endswith(".down") for n in lowered(mod).functions if n.startswith("main.requests"))
