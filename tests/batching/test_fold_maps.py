"""Recurrent cells over what a map has made of a node's children: one recursion, which goes by level."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay.ir.module import Module
from tests.ad.checks import problem
from tests.batching.programs import lowered, module, notes, random_rose, weights
from tests.batching.test_structure import agree, same
from tests.recurrent.support import both

TREE = "Tree[Tensor[(1, h), float32]]"
STATE = "Tensor[(1, h), float32]"
# What is made of the children before the fold.
MAPS = {
    "the recursion": f"let %s = @map(fn (%k: {TREE}) {{ @encode(%k, %w, %u) }}, %kids);",
    "more than the recursion": f"let %s = @map(fn (%k: {TREE}) {{ tanh(%x * @encode(%k, %w, %u)) }}, %kids);",
    "a map of a map": f"""let %a = @map(fn (%k: {TREE}) {{ @encode(%k, %w, %u) }}, %kids);
      let %s = @map(fn (%k: {STATE}) {{ sigmoid(nn.dense(%k, %w) + %x) }}, %a);""",
}
# The folds, and what is done with their results.
FOLDS = {
    "cell": f"@foldl(fn (%a: {STATE}, %k: {STATE}) {{ tanh(nn.dense(%a, %w) + nn.dense(%k, %u)) }}, nn.dense(%x, %w), %s)",
    "from the right": f"@foldr(fn (%k: {STATE}, %a: {STATE}) {{ tanh(nn.dense(%a, %w) - %k) }}, %x, %s)",
    "pair": f"""{{ let %r = @foldl(fn (%a: ({STATE}, float32), %k: {STATE}) {{ (%a.0 * 0.5f + %k * %a.1, %a.1 - mean(%a.0)) }},
      (%x, 1f), %s);
      tanh(nn.dense(%r.0, %w) + %r.1) }}""",
}
HEAD = f"""import prelude
def @encode[h: Dim](%t: {TREE}, %w: Tensor[(h, h), float32], %u: Tensor[(h, h), float32]) -> {STATE} {{
  match (%t) {{ Rose(%x, %kids) => {{ BODY }} }}
}}
def @main[h: Dim](%t: {TREE}, %w: Tensor[(h, h), float32], %u: Tensor[(h, h), float32]) -> {STATE} {{ @encode(%t, %w, %u) }}
"""


def program(made: str, fold: str) -> Module:
    return module(HEAD.replace("BODY", f"{MAPS[made]} {FOLDS[fold]}"))


@pytest.mark.parametrize("made", MAPS)
@pytest.mark.parametrize("fold", FOLDS)
def test_every_way_to_run_it(made: str, fold: str) -> None:
    mod = program(made, fold)
    rng = np.random.default_rng(3)
    bound = dict(zip("wu", weights(rng, (5, 5), (5, 5)), strict=True))
    trees = [
        [random_rose(mod, rng, n, 5, kind)] for n, kind in [(1, "wide"), (2, "chain"), (7, "wide"), (24, "random")]
    ]
    assert notes(mod) == {"encode": "by level"}
    agree(mod, trees, bound)
    exe = relay.compile(mod.bind(bound), threads=1)
    native = relay.compile(mod.bind(bound), threads=1, executor="aot")
    for (tree,), found in zip(trees, exe.run_batch("main", trees), strict=True):
        same(found, relay.evaluate(mod.bind(bound), tree))
        assert np.array_equal(exe(tree), native(tree))


@pytest.mark.parametrize("fold", FOLDS)
def test_gradients(fold: str) -> None:
    text = HEAD.replace("BODY", f"{MAPS['a map of a map']} {FOLDS[fold]}").replace("float32", "float64")
    mod = module(text.replace("0.5f", "0.5f64").replace("1f)", "1f64)"))
    rng = np.random.default_rng(4)
    tree = random_rose(mod, rng, 6, 3)
    adt = mod.adt("Tree")

    def wide(t: object) -> object:
        return adt.Rose(np.asarray(t.fields[0], np.float64), [wide(k) for k in t.fields[1]])  # type: ignore[attr-defined]

    args = [wide(tree), *(w.astype(np.float64) for w in weights(rng, (3, 3), (3, 3)))]
    assert (wrong := problem(mod, args, [1, 2], forward=False, compiled=True)) is None, wrong


def test_what_others_read_too_is_made_once() -> None:
    """Two folds over one map: the map stays."""
    mod = module(HEAD.replace("BODY", f"{MAPS['the recursion']} {FOLDS['cell']} + {FOLDS['from the right']}"))
    rng = np.random.default_rng(5)
    bound = dict(zip("wu", weights(rng, (5, 5), (5, 5)), strict=True))
    assert any(n.startswith("map") for n in lowered(mod).functions)
    both(mod.bind(bound), random_rose(mod, rng, 9, 5))


EFFECTS = """import prelude
def @main(%xs: List[float32], %y: float32) -> (float32, float32) {
  let %log = ref(1f);
  let %ys = @map(fn (%x: float32) -> float32 { %log := !%log * 2f + %x; %x + !%log }, %xs);
  let %r = @foldl(fn (%a: float32, %x: float32) -> float32 { STEP }, %y, %ys);
  (%r, !%log)
}
"""


@pytest.mark.parametrize(
    "step", ["%log := !%log * 3f - %a; %a * 0.5f + %x", "%a * 0.5f + %x * !%log", "%a * 0.5f + %x"]
)
def test_the_order_of_effects_stays(step: str) -> None:
    mod = module(EFFECTS.replace("STEP", step))
    for xs in ([], [1.0], [0.5, 2.0, -1.0]):
        both(mod, [np.float32(x) for x in xs], np.float32(0.25))
