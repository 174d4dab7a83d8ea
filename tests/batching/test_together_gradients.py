"""Gradients of what goes through several structures: all of them at once, by level, and what they are one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.module import Module
from tests.batching.programs import TREE_RNN, lowered, module, random_tree, weights
from tests.batching.test_values import same

ENCODE = "import prelude\n" + TREE_RNN.replace("Tree", "Binary").partition("def @main")[0]
PARAMS = "%wl: Tensor[(6, 5), float32], %wn: Tensor[(6, 12), float32]"
ONE = "Binary[Tensor[(1, 5), float32]]"
LISTED = (
    ENCODE
    + f"""def @main(%ts: List[{ONE}], {PARAMS}) -> float32 {{
  @foldl(fn (%a: float32, %t: {ONE}) -> float32 {{ %a + sum(@encode(%t, %wl, %wn) * %wl) }}, 0f, %ts)
}}""".replace("* %wl", "")
)
# A vector beside each tree, which is asked with it.
ASKED = (
    ENCODE
    + f"""def @main(%ts: List[({ONE}, Tensor[(1, 6), float32])], {PARAMS}) -> float32 {{
  @foldl(fn (%a: float32, %t: ({ONE}, Tensor[(1, 6), float32])) -> float32 {{ %a + sum(@encode(%t.0, %wl, %wn) * %t.1) }}, 0f, %ts)
}}"""
)
TWO = (
    ENCODE
    + f"""def @main(%t: {ONE}, %wl: Tensor[(6, 5), float32], %wn: Tensor[(6, 12), float32], %u: {ONE}) -> float32 {{
  let %a = @encode(%t, %wl, %wn);
  sum(tanh(%a) * @encode(%u, %wl, %wn))
}}"""
)
# The vector stands in a tuple with the tree, and has a gradient: the request is not a constant.
PAIRED = (
    ENCODE
    + f"""def @main(%q: ({ONE}, Tensor[(1, 6), float32]), {PARAMS}, %u: {ONE}) -> float32 {{
  sum(@encode(%q.0, %wl, %wn) * %q.1 * @encode(%u, %wl, %wn))
}}"""
)


def trees(mod: Module, rng: np.random.Generator, counts: tuple[int, ...]) -> list[Any]:
    return [random_tree(_Binary(mod), rng, n, 5) for n in counts]  # type: ignore[arg-type]


class _Binary:
    """The module whose trees are called otherwise: the prelude has a type of their name."""

    def __init__(self, mod: Module) -> None:
        self.mod = mod

    def adt(self, name: str) -> Any:
        return self.mod.adt("Binary")


def check(mod: Module, wanted: tuple[int, ...], arguments: list[list[Any]], at_once: bool) -> None:
    graded = relay.value_and_grad(mod, wanted)
    passes = lowered(graded, last="gradient")
    assert any(".together" in n for n in passes.functions) == at_once, list(passes.functions)
    runs = [relay.compile(graded, threads=1, executor=e) for e in ("vm", "aot")]
    for args in arguments:
        meant = relay.evaluate(graded, *args)
        for exe in runs:
            same(exe(*args), meant)


COUNTS = ((), (1,), (3, 1, 8), (2, 17, 5, 1, 9))


def test_a_list_of_trees() -> None:
    rng = np.random.default_rng(41)
    mod = module(LISTED)
    held = weights(rng, (6, 5), (6, 12))
    check(mod, (1, 2), [[trees(mod, rng, c), *held] for c in COUNTS], True)


def test_a_vector_beside_each_tree() -> None:
    rng = np.random.default_rng(42)
    mod = module(ASKED)
    held = weights(rng, (6, 5), (6, 12))
    lists = [[(t, *weights(rng, (1, 6))) for t in trees(mod, rng, c)] for c in COUNTS]
    check(mod, (1, 2), [[ts, *held] for ts in lists], True)


def test_two_trees() -> None:
    rng = np.random.default_rng(43)
    mod = module(TWO)
    held = weights(rng, (6, 5), (6, 12))
    pairs = [trees(mod, rng, c) for c in ((1, 1), (2, 9), (14, 3))]
    shared = pairs[1][1]
    check(mod, (1, 2), [[a, *held, b] for a, b in [*pairs, (shared, shared)]], True)


def test_what_stands_beside_a_tree_may_have_a_gradient() -> None:
    rng = np.random.default_rng(44)
    mod = module(PAIRED)
    held = weights(rng, (6, 5), (6, 12))
    pairs = [trees(mod, rng, c) for c in ((1, 1), (2, 9), (14, 3))]
    check(mod, (0, 1, 2), [[(a, *weights(rng, (1, 6))), *held, b] for a, b in pairs], False)


@pytest.mark.parametrize("text", [LISTED, TWO])
def test_gradients_of_the_trees_themselves(text: str) -> None:
    rng = np.random.default_rng(45)
    mod = module(text)
    held = weights(rng, (6, 5), (6, 12))
    few = trees(mod, rng, (3, 6))
    args = [few, *held] if text is LISTED else [few[0], *held, few[1]]
    check(mod, (0, 1), [args], False)
