"""Loops that put a few elements into their state: the interpreter's results, whoever else holds it, and time that does not grow with it."""

from __future__ import annotations

import time
from typing import Literal

import numpy as np
import pytest

import relay
from tests.generator.compare import difference

HEAD = '#[version = "0.0.5"]\n'
M, X = "Tensor[(n, 24), float32]", "Tensor[(24,), float32]"


def loop(update: str, before: str = "", result: str = "%m") -> str:
    """%steps updates of %m at rows %k, some of them again and some outside."""
    return f"""{HEAD}
def @go[n: Dim](%steps: int64, %m: {M}, %x: {X}) -> {M} {{
  if (%steps == 0i64) {{ {result} }} else {{
    let %k = floor_mod(%steps * 7i64, Dim[n + 1]);
    let %at = reshape(%k, newshape=[1, 1]);
    let %v = %x + cast(%steps, dtype="float32");
    {before}
    @go(%steps - 1i64, {update}, %x)
  }}
}}
def @main[n: Dim](%steps: int64, %m: {M}, %x: {X}) -> {M} {{ @go(%steps, %m, %x) }}"""


ROW = 'take(%m, %k, axis=0, mode="clip")'
TWICE = "concatenate((%at, %at - 1i64, %at), axis=1)"
UPDATES = {
    "a row": loop("scatter_nd(%m, %at, expand_dims(%v, axis=0))"),
    "a row that is read": loop(f"scatter_nd(%m, %at, expand_dims({ROW} * 0.5f + %v, axis=0))"),
    "a row that was read": loop("scatter_nd(%m, %at, expand_dims(%r * 0.5f + %v, axis=0))", f"let %r = {ROW};"),
    "a row after a product": loop(
        "scatter_nd(%m, %at, expand_dims(tanh(%r * %s), axis=0))", f"let %r = {ROW}; let %s = sum(%r * %x);"
    ),
    "rows, one of them twice": loop(f"scatter_nd(%m, {TWICE}, stack((%v, {ROW}, %v * 0.5f), axis=0))"),
    "an element": loop("scatter_nd(%m, reshape(stack((%k, floor_mod(%k, 24i64)), axis=0), newshape=[2]), take(%v, 3i64))"),
    "elements": loop("scatter_elements(%m, full(%k, shape=[1, 24]), expand_dims(%v, axis=0), axis=0)"),
    "a row that is chosen": loop(
        'where(expand_dims(equal(arange(stop=Dim[n], dtype="int64"), %k), axis=1), %m * 0.5f + expand_dims(%v, axis=0), %m)'
    ),
}  # fmt: skip


@pytest.mark.parametrize("executor", ["vm", "aot"])
@pytest.mark.parametrize("name", UPDATES)
def test_the_interpreters_results(name: str, executor: Literal["vm", "aot"]) -> None:
    module = relay.parse(UPDATES[name])
    exes = [relay.compile(module, executor=executor, threads=t) for t in (1, 2)]
    exes.append(relay.compile(module, executor=executor, threads=1, check_memory=True))
    rng = np.random.default_rng(5)
    for n in (1, 2, 9):
        m, x = rng.standard_normal((n, 24)).astype(np.float32), rng.standard_normal(24).astype(np.float32)
        for steps in (0, 1, 2, 11):
            given = m.copy()
            expected = relay.evaluate(module, np.int64(steps), m, x)
            for exe in exes:
                assert difference(expected, exe(np.int64(steps), given, x)) is None
                np.testing.assert_array_equal(given, m)


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_a_state_that_others_hold_stays(executor: Literal["vm", "aot"]) -> None:
    module = relay.parse(f"""{HEAD}import prelude
def @go[n: Dim](%steps: int64, %m: {M}, %x: {X}, %all: List[{M}]) -> List[{M}] {{
  if (%steps == 0i64) {{ Cons(%m, %all) }} else {{
    let %next = scatter_nd(%m, reshape(floor_mod(%steps, Dim[n]), newshape=[1, 1]), expand_dims(%x, axis=0));
    if (floor_mod(%steps, 2i64) == 0i64) {{ @go(%steps - 1i64, %next, %x * 0.5f, Cons(%m, %all)) }}
    else {{ @go(%steps - 1i64, %next, %x - 1f, %all) }}
  }}
}}
def @main[n: Dim](%steps: int64, %m: {M}, %x: {X}) -> List[{M}] {{ @go(%steps, exp(%m), %x, Nil) }}""")
    rng = np.random.default_rng(5)
    m, x = rng.standard_normal((4, 24)).astype(np.float32), rng.standard_normal(24).astype(np.float32)
    exe = relay.compile(module, executor=executor)
    assert difference(relay.evaluate(module, np.int64(7), m, x), exe(np.int64(7), m, x)) is None


@pytest.mark.parametrize("name", UPDATES)
def test_a_step_touches_what_it_updates(name: str) -> None:
    """A thousand steps on 25 MB of state; touching it would take a second or more."""
    exe = relay.compile(relay.parse(UPDATES[name]), threads=1)
    m, x = np.zeros((1 << 18, 24), np.float32), np.ones(24, np.float32)

    def seconds(steps: int) -> float:
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            exe(np.int64(steps), m, x)
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(1001) - seconds(1) < 0.2
