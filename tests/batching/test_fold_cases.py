"""Folds whose step looks at what an item is: what it gives is a function of the item, done for all items of a level at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay.transform.fold_cases import FoldCases
from tests.ad.checks import problem
from tests.batching.programs import lowered, module, notes, weights
from tests.batching.test_structure import agree, same

S = "Tensor[(1, 4), float32]"
W = "%w: Tensor[(4, 4), float32], %v: Tensor[(4, 4), float32]"
ZERO = "zeros(shape=[1, 4])"
# What a tree's edge is stands beside the part, or around it.
BESIDE = f"import prelude\ntype E {{ Sub, Obj(float32), Mod({S}), }} type T {{ N({S}, List[(E, T)]), }}\n"
AROUND = f"import prelude\ntype E {{ Sub(T), Obj(float32, T), Mod({S}, T), }} type T {{ N({S}, List[E]), }}\n"
CASES = "Sub => nn.dense(%c, %w), Obj(%s) => nn.dense(%c, %v) * %s + %x, Mod(%y) => %c * %y,"
AROUND_CASES = (
    CASES.replace("Sub", "Sub(%t)")
    .replace("Obj(%s)", "Obj(%s, %t)")
    .replace("Mod(%y)", "Mod(%y, %t)")
    .replace("%c", "@f(%t, %w, %v)")
)
F = f"def @f(%t: T, {W}) -> {S} {{ match (%t) {{ N(%x, %k) => "
MAIN = f"def @main(%t: T, {W}) -> {S} {{ @f(%t, %w, %v) }}"


def written_out(own: str) -> str:
    """The fold as recursion of the program's own, from the last item on."""
    return (
        f"{F}tanh(@total(%k, {own}, %w, %v)) }} }}\n"
        f"def @total(%k: List[(E, T)], %x: {S}, {W}) -> {S} {{ match (%k) {{ Nil => %x, Cons(%e, %r) => "
        f"{{ let %c = @f(%e.1, %w, %v); let %m = match (%e.0) {{ {CASES} }}; %m + @total(%r, %x, %w, %v) }} }} }}\n{MAIN}"
    )


PROGRAMS = {
    "beside": BESIDE
    + f"{F}tanh(%x + @foldl(fn (%a: {S}, %e: (E, T)) {{ let %c = @f(%e.1, %w, %v); %a + match (%e.0) {{ {CASES} }} }}, {ZERO}, %k)) }} }}\n"
    + MAIN,
    "around": AROUND
    + f"{F}tanh(%x + @foldl(fn (%a: {S}, %e: E) {{ %a + match (%e) {{ {AROUND_CASES} }} }}, {ZERO}, %k)) }} }}\n"
    + MAIN,
    "the greatest": BESIDE
    + f"{F}tanh(nn.dense(@foldr(fn (%e: (E, T), %a: {S}) {{ let %c = @f(%e.1, %w, %v); "
    + f"maximum(%a, match (%e.0) {{ {CASES} }}) }}, %x, %k), "
    + f"%w)) }} }}\n{MAIN}",
    "written out": BESIDE + written_out("%x"),
}


def tree(mod: relay.Module, rng: np.random.Generator, nodes: int) -> Any:
    """Parts, and edges with their parts, are shared now and then."""
    e, t = mod.adt("E"), mod.adt("T")
    around = len(mod.types["E"].constructors[0].fields) > 0

    def word() -> Any:
        return rng.standard_normal((1, 4), dtype=np.float32)

    def edge(part: Any) -> Any:
        kind = int(rng.integers(3))
        own = [(), (np.float32(rng.standard_normal()),), (word(),)][kind]
        label = [e.Sub, e.Obj, e.Mod][kind]
        return label(*own, part) if around else (label(*own), part)

    pool = [t.N(word(), [])]
    edges = [edge(pool[0])]
    for _ in range(nodes):
        edges.append(edge(pool[int(rng.integers(max(0, len(pool) - 4), len(pool)))]))
        last = edges[-1]
        pool.append(t.N(word(), [*(edges[int(rng.integers(len(edges)))] for _ in range(int(rng.integers(3)))), last]))
    return pool[-1]


@pytest.mark.parametrize("name", PROGRAMS)
def test_steps_that_look_at_their_items(name: str) -> None:
    mod = module(PROGRAMS[name])
    assert notes(mod)["f"] == "by level"
    rng = np.random.default_rng(3)
    given = weights(rng, (4, 4), (4, 4))
    agree(mod, [[tree(mod, rng, n), *given] for n in (0, 1, 3, 9)])
    requests = [(tree(mod, rng, n), *given) for n in (4, 0, 7)]
    for args, answer in zip(requests, relay.compile(mod).run_batch("main", requests), strict=True):
        same(answer, relay.evaluate(mod, *args))


@pytest.mark.parametrize("name", ["beside", "around"])
def test_derivatives(name: str) -> None:
    mod = module(PROGRAMS[name].replace("float32", "float64").replace(ZERO, 'zeros(shape=[1, 4], dtype="float64")'))
    rng = np.random.default_rng(4)
    given = [w.astype(np.float64) for w in weights(rng, (4, 4), (4, 4))]
    assert problem(mod, [_wide(tree(mod, rng, 6)), *given], (1, 2), compiled=True, forward=False) is None


def _wide(value: Any) -> Any:
    """A value with numbers of double width."""
    if isinstance(value, tuple | list):
        return type(value)(map(_wide, value))
    if hasattr(value, "constructor"):
        return type(value)(value.adt, value.constructor, value.tag, tuple(map(_wide, value.fields)))
    return np.asarray(value, np.float64)


@pytest.mark.parametrize(
    "step",
    [
        "match (%e.0) { Sub => tanh(%a + %c), Obj(%s) => %a * %s, Mod(%y) => %y }",  # it depends on the accumulator
        "%a + %c * match (%e.0) { Sub => %c, Obj(%s) => %c * %s, Mod(%y) => %y }",  # what it reads is wanted beside it
    ],
)
def test_steps_that_stay(step: str) -> None:
    step = f"let %c = nn.dense(@f(%e.1, %w, %v), %w); {step}"
    text = f"{BESIDE}{F}tanh(%x + @foldl(fn (%a: {S}, %e: (E, T)) {{ {step} }}, {ZERO}, %k)) }} }}\n{MAIN}"
    mod = module(text)
    assert not any(n.endswith(".case") for n in lowered(mod, "fold_cases").functions)
    rng = np.random.default_rng(5)
    args = [tree(mod, rng, 6), *weights(rng, (4, 4), (4, 4))]
    same(relay.compile(mod)(*args), relay.evaluate(mod, *args))


def test_what_is_read_and_written_stays_in_order() -> None:
    text = (
        f"{BESIDE}def @f(%t: T, %n: Ref[{S}], {W}) -> {S} {{ match (%t) {{ N(%x, %k) => "
        f"tanh(@foldl(fn (%a: {S}, %e: (E, T)) {{ let %c = @f(%e.1, %n, %w, %v); %n := !%n + %x; "
        f"%a + match (%e.0) {{ Sub => nn.dense(%c, %w), Obj(%s) => !%n * %s, Mod(%y) => %c * %y, }} }}, %x, %k)) }} }}\n"
        f"def @main(%t: T, {W}) -> ({S}, {S}) {{ let %n = ref({ZERO}); let %y = @f(%t, %n, %w, %v); (%y, !%n) }}"
    )
    mod = module(text)
    passed = lowered(mod, "fold_cases")
    assert FoldCases()(passed) is passed and not any(n.endswith(".case") for n in passed.functions)
    rng = np.random.default_rng(6)
    args = [tree(mod, rng, 6), *weights(rng, (4, 4), (4, 4))]
    same(relay.compile(mod)(*args), relay.evaluate(mod, *args))
