"""Clauses that do the same with parts that lie elsewhere are one: its nodes are rows of one product."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.expr import Call, OpRef
from relay.transform.blocks import all_bindings, body_of
from tests.batching.programs import lowered, module, notes, weights
from tests.batching.test_structure import agree, same

S = "Tensor[(1, 4), float32]"
PARAMS = f"%o: {S}, %w: Tensor[(4, 4), float32], %u: Tensor[(4, 8), float32]"


def outside(constructors: int) -> str:
    """From the root down, parts are given what is beside them, which stands in another field of each constructor; one has a list."""
    fields = [", ".join(["int32"] * n + [S, "T", "T"]) for n in range(constructors)]
    states = "\n".join(f"    C{n}({'_, ' * n}%s, _, _) => %s," for n in range(constructors))
    clauses = "\n".join(
        f"""    C{n}({"_, " * n}_, %l, %r) => {{
      let %a = tanh(nn.dense(concatenate((%o, @of(%r)), axis=1), %u));
      let %b = tanh(nn.dense(%o + @of(%l), %w));
      @g(%l, %a, %w, %u) - @g(%r, %b, %w, %u)
    }},"""
        for n in range(constructors)
    )
    return f"""import prelude
type T {{ Leaf({S}), Many({S}, List[T]), {", ".join(f"C{n}({f})" for n, f in enumerate(fields))}, }}
def @of(%t: T) -> {S} {{
  match (%t) {{
    Leaf(%s) => %s,
    Many(%s, _) => %s,
{states}
  }}
}}
def @g(%t: T, {PARAMS}) -> {S} {{
  match (%t) {{
    Leaf(%s) => tanh(nn.dense(%s, %w)) * %o,
    Many(%s, %k) => %s - @foldl(fn (%a: {S}, %t: T) {{ %a + @g(%t, %o, %w, %u) }}, %o, %k),
{clauses}
  }}
}}
def @main(%t: T, {PARAMS}) -> {S} {{ @g(%t, %o, %w, %u) }}
"""


def tree(mod: relay.Module, rng: np.random.Generator, constructors: int, nodes: int) -> Any:
    """Parts are shared now and then."""
    t = mod.adt("T")

    def state() -> Any:
        return rng.standard_normal((1, 4), dtype=np.float32)

    pool = [t.Leaf(state())]
    for _ in range(nodes):
        parts = [pool[int(rng.integers(max(0, len(pool) - 4), len(pool)))] for _ in range(2)]
        kind = int(rng.integers(-2, constructors))
        if kind == -2:
            pool.append(t.Leaf(state()))
        elif kind == -1:
            pool.append(t.Many(state(), parts[: int(rng.integers(3))]))
        else:
            pool.append(getattr(t, f"C{kind}")(*map(np.int32, range(kind)), state(), *parts))
    return pool[-1]


def products(mod: relay.Module, name: str) -> int:
    found = lowered(mod).functions[name]
    values = [b.value for b in all_bindings(body_of(found))]
    return sum(isinstance(v, Call) and isinstance(v.fn, OpRef) and v.fn.name.startswith("nn.dense") for v in values)


@pytest.mark.parametrize("constructors", [1, 3])
def test_states_of_parts_of_any_constructor(constructors: int) -> None:
    mod = module(outside(constructors))
    # One for each of two parts, of whatever constructors parts and node are.
    assert products(mod, "g.down") == 2
    rng = np.random.default_rng(constructors)
    given = weights(rng, (1, 4), (4, 4), (4, 8))
    agree(mod, [[tree(mod, rng, constructors, n), *given] for n in (0, 1, 4, 11)])
    requests = [(tree(mod, rng, constructors, n), *given) for n in (5, 1, 9)]
    for args, answer in zip(requests, relay.compile(mod).run_batch("main", requests), strict=True):
        same(answer, relay.evaluate(mod, *args))


def test_many_cases_are_few_clauses() -> None:
    mod = module(outside(6))
    assert notes(mod)["g"] == "by level"
    assert products(mod, "g.down") == 2


def test_gradients() -> None:
    text = outside(2).replace("def @main", "def @whole") + (
        f"def @main(%t: T, {PARAMS}) -> float32 {{ sum(tanh(@whole(%t, %o, %w, %u))) }}"
    )
    mod = relay.value_and_grad(module(text), (1, 2, 3))
    rng = np.random.default_rng(7)
    given = weights(rng, (1, 4), (4, 4), (4, 8))
    compiled = relay.compile(mod, threads=1)
    for nodes in (0, 3, 8):
        args = [tree(mod, rng, 2, nodes), *given]
        result: Any = relay.evaluate(mod, *args)
        for found, expected in zip(compiled(*args), result, strict=True):
            same(found, expected)
