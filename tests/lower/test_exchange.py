"""Loops whose kernels write where the state of the iteration before was: the interpreter's results, whoever else holds a state."""

from __future__ import annotations

from random import Random
from typing import Literal

import numpy as np
import pytest

import relay
from relay import _runtime
from tests.generator.compare import difference

HEAD = '#[version = "0.0.5"]\nimport prelude\n'
V, M = "Tensor[(n,), float32]", "Tensor[(n, n), float32]"

# A step reads its whole state for every element, so that nothing is computed in place.
PROGRAMS = {
    "one state": f"""
def @go[n: Dim](%t: int64, %x: {V}, %w: {M}) -> {V} {{
  if (%t == 0i64) {{ %x }} else {{ @go(%t - 1i64, tanh(max(expand_dims(%x, axis=1) * %w, axis=[0])), %w) }}
}}
def @main[n: Dim](%t: int64, %x: {V}, %w: {M}) -> {V} {{ @go(%t, %x, %w) }}""",
    "what the caller holds": f"""
def @go[n: Dim](%t: int64, %x: {V}, %w: {M}) -> {V} {{
  if (%t == 0i64) {{ %x }} else {{ @go(%t - 1i64, max(expand_dims(%x, axis=1) * %w, axis=[0]), %w) }}
}}
def @main[n: Dim](%t: int64, %x: {V}, %w: {M}) -> {V} {{ let %y = exp(%x); @go(%t, %y, %w) + @go(%t + 1i64, %y, %w) * %y }}""",
    "two states that change places": f"""
def @go[n: Dim](%t: int64, %x: {V}, %y: {V}, %w: {M}) -> ({V}, {V}) {{
  if (%t == 0i64) {{ (%x, %y) }} else {{ @go(%t - 1i64, %y, max(expand_dims(%x, axis=1) * %w, axis=[0]) - %y, %w) }}
}}
def @main[n: Dim](%t: int64, %x: {V}, %w: {M}) -> ({V}, {V}) {{ @go(%t, %x, %x, %w) }}""",
    "two states that become one": f"""
def @go[n: Dim](%t: int64, %x: {V}, %y: {V}, %w: {M}) -> {V} {{
  if (%t == 0i64) {{ %x - %y }} else {{
    let %z = max(expand_dims(%x + %y, axis=1) * %w, axis=[0]); @go(%t - 1i64, %z, %z, %w)
  }}
}}
def @main[n: Dim](%t: int64, %x: {V}, %w: {M}) -> {V} {{ @go(%t, %x, %x * 2f, %w) }}""",
    "a pair that is carried in parts": f"""
def @go[n: Dim](%t: int64, %s: ({V}, {V}), %w: {M}) -> ({V}, {V}) {{
  if (%t == 0i64) {{ %s }} else {{
    let %a = max(expand_dims(%s.0, axis=1) * %w, axis=[0]) + %s.1;
    let %b = sum(expand_dims(%s.1, axis=1) * %w, axis=[0]) * 0.1f + %a;
    @go(%t - 1i64, (%a, %b), %w)
  }}
}}
def @main[n: Dim](%t: int64, %x: {V}, %w: {M}) -> ({V}, {V}) {{ @go(%t, (%x, %x), %w) }}""",
    "a pair of which each part is written over": f"""
def @go[n: Dim](%t: int64, %s: ({M}, {V}), %w: {M}) -> ({M}, {V}) {{
  if (%t == 0i64) {{ %s }} else {{
    let %a = %s.0 * 0.5f + %w;
    let %b = %s.1 * 0.5f + max(%a, axis=[0]);
    @go(%t - 1i64, (%a, %b), %w)
  }}
}}
def @main[n: Dim](%t: int64, %x: {V}, %w: {M}) -> ({M}, {V}) {{ @go(%t, (%w * expand_dims(%x, axis=1), %x), %w) }}""",
    "every state is kept": f"""
def @go[n: Dim](%t: int64, %x: {V}, %all: List[{V}], %w: {M}) -> List[{V}] {{
  if (%t == 0i64) {{ Cons(%x, %all) }} else {{
    @go(%t - 1i64, max(expand_dims(%x, axis=1) * %w, axis=[0]), Cons(%x, %all), %w)
  }}
}}
def @sum_of[n: Dim](%l: List[{V}], %to: {V}) -> {V} {{
  match (%l) {{ Nil => %to, Cons(%x, %more) => @sum_of(%more, %to * 0.5f + %x) }}
}}
def @main[n: Dim](%t: int64, %x: {V}, %w: {M}) -> {V} {{ @sum_of(@go(%t, %x, Nil, %w), %x) }}""",
    "rows of every state": f"""
def @main[n: Dim](%t: int64, %x: {V}, %w: {M}) -> ({V}, Tensor[(?, n), float32]) {{
  @scan(0i64, %t, fn (%i: int64, %s: {V}) -> ({V}, {V}) {{
    let %z = max(expand_dims(%s, axis=1) * %w, axis=[0]); (%z, %z + %s)
  }}, %x, %x)
}}""",
    "one way of two computes in place": f"""
def @go[n: Dim](%t: int64, %x: {V}, %w: {M}) -> {V} {{
  if (%t == 0i64) {{ %x }} else {{
    if (%x[0] > 0.5f) {{ @go(%t - 1i64, %x * 0.5f, %w) }}
    else {{ @go(%t - 1i64, max(expand_dims(%x, axis=1) * %w, axis=[0]) + 0.75f, %w) }}
  }}
}}
def @main[n: Dim](%t: int64, %x: {V}, %w: {M}) -> {V} {{ @go(%t, %x, %w) }}""".replace("%x[0]", "take(%x, 0i64)"),
    "a state stays and is another one too": f"""
def @go[n: Dim](%t: int64, %x: {V}, %y: {V}, %z: {V}, %w: {M}) -> ({V}, {V}, {V}) {{
  if (%t == 0i64) {{ (%x, %y, %z) }} else {{
    if (sum(%z) > 0f) {{ @go(%t - 1i64, %x, %x, max(expand_dims(%y, axis=1) * %w, axis=[0]) - 1f, %w) }}
    else {{ @go(%t - 1i64, tanh(%x + reverse(%y, axis=0)), %z, %z, %w) }}
  }}
}}
def @main[n: Dim](%t: int64, %x: {V}, %w: {M}) -> ({V}, {V}, {V}) {{ @go(%t, %x, %x * 0.5f, %x + 0.25f, %w) }}""",
    "the old state leaves with the new one": f"""
def @go[n: Dim](%t: int64, %x: {V}, %w: {M}) -> ({V}, {V}) {{
  let %z = max(expand_dims(%x, axis=1) * %w, axis=[0]);
  if (%t == 0i64) {{ (%x, %z) }} else {{ @go(%t - 1i64, %z, %w) }}
}}
def @main[n: Dim](%t: int64, %x: {V}, %w: {M}) -> ({V}, {V}) {{ @go(%t, %x, %w) }}""",
}


@pytest.mark.parametrize("executor", ["vm", "aot"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_loops_exchange_states(name: str, executor: Literal["vm", "aot"]) -> None:
    module = relay.parse(HEAD + PROGRAMS[name])
    plain = relay.compile(module, executor=executor, threads=1)
    checked = relay.compile(module, executor=executor, threads=1, check_memory=True)
    rng = np.random.default_rng(5)
    for n in (1, 5, 40):
        x, w = rng.standard_normal(n).astype(np.float32), rng.standard_normal((n, n)).astype(np.float32)
        for steps in (0, 1, 2, 3, 7):
            given = x.copy()
            expected = _flat(relay.evaluate(module, np.int64(steps), x, w))
            for exe in (plain, checked):
                found = _flat(exe(np.int64(steps), given, w))
                for e, f in zip(expected, found, strict=True):
                    np.testing.assert_allclose(np.asarray(f), np.asarray(e), rtol=1e-4, atol=1e-5)
                np.testing.assert_array_equal(given, x)


def _flat(value: object) -> list[object]:
    return [x for v in value for x in _flat(v)] if isinstance(value, tuple) else [value]


@pytest.mark.parametrize(
    "name",
    [
        "one state",
        "two states that change places",
        "a pair that is carried in parts",
        "a pair of which each part is written over",
    ],
)
def test_iterations_allocate_nothing(name: str) -> None:
    exe = relay.compile(relay.parse(HEAD + PROGRAMS[name]), threads=1)
    x, w = np.ones(40, np.float32), np.eye(40, dtype=np.float32)
    counts = []
    for steps in (10, 10, 1000):
        before = _runtime.pool_statistics()["allocations"]
        exe(np.int64(steps), x, w)
        counts.append(_runtime.pool_statistics()["allocations"] - before)
    assert counts[2] == counts[1]


def drawn(random: Random) -> str:
    """A loop of up to four states, each of which stays, becomes others or is made anew in each of two ways that an iteration may go."""
    states = [f"%s{n}" for n in range(random.randint(1, 4))]

    def again() -> str:
        made = [
            f"max(expand_dims({random.choice(states)}, axis=1) * %w, axis=[0]) - 0.3f",
            f"tanh({random.choice(states)} + reverse({random.choice(states)}, axis=0))",
            f"squeeze(expand_dims({random.choice(states)}, axis=0), axis=[0])",
        ]
        names = [*states, "%a", "%b"]
        given = [s if random.random() < 0.3 else random.choice(names) for s in states]
        a, b = random.choice(made), random.choice(made)
        return f"let %a = {a}; let %b = {b}; @go(%t - 1i64, {', '.join(given)}, %w)"

    test, last = random.choice(states), ", ".join(random.choice(states) for _ in range(2))
    params, first = ", ".join(f"{s}: {V}" for s in states), ", ".join(random.choice(("%x", "%y")) for _ in states)
    return f"""{HEAD}
def @go[n: Dim](%t: int64, {params}, %w: {M}) -> ({V}, {V}) {{
  if (%t == 0i64) {{ ({last}) }} else {{ if (take({test}, 0i64) > 0.11f) {{ {again()} }} else {{ {again()} }} }}
}}
def @main[n: Dim](%t: int64, %x: {V}, %w: {M}) -> ({V}, {V}) {{ let %y = exp(%x); @go(%t, {first}, %w) }}"""


@pytest.mark.programs(12)
def test_states_that_stay_and_change_places_at_random(seed: int) -> None:
    module = relay.parse(drawn(Random(seed)))
    exe = relay.compile(module, threads=1, executor="aot" if seed % 2 else "vm")
    rng = np.random.default_rng(seed)
    for n in (1, 5):
        x, w = rng.standard_normal(n).astype(np.float32), rng.standard_normal((n, n)).astype(np.float32)
        for steps in (0, 1, 2, 3, 7):
            expected = relay.evaluate(module, np.int64(steps), x, w)
            assert difference(expected, exe(np.int64(steps), x, w)) is None, steps
