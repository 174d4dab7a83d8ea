"""Gradients of programs that do not compute a step whose slope is infinite where it would be: 0 times that slope is none of theirs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay import typing
from relay.ir.module import Module
from relay.transform import ToBlocks
from relay.transform.ad.prepare import with_loops
from relay.transform.uses import globals_used

W = np.zeros((4, 4))
UNIT = "%w / sqrt(sum(%w * %w))"
HEAD = '#[version = "0.0.5"]\nimport prelude\n'

# Programs of a matrix of zeros, which is divided by its length only where nothing is computed of it.
NEVER: dict[str, tuple[str, tuple[Any, ...]]] = {
    "a loop without iterations": (
        f"""(%w: Tensor[(4, 4), float64], %k: int64) {{
          sum(@for(0i64, %k, fn (%i: int64, %a: Tensor[(4, 4), float64]) {{ tanh(nn.matmul(%a, {UNIT})) }}, %w))
        }}""",
        (np.int64(0),),
    ),
    "rows": (
        f"""[n: Dim](%w: Tensor[(4, 4), float64], %x: Tensor[(n, 4), float64]) {{
          sum(@fold_rows(fn (%a: Tensor[(4,), float64], %v: Tensor[(4,), float64]) {{ tanh(%a + %v + sum({UNIT}, axis=[0])) }},
              sum(%w, axis=[0]), %x))
        }}""",
        (np.zeros((0, 4)),),
    ),
    "a list": (
        f"""(%w: Tensor[(4, 4), float64], %l: List[Tensor[(4,), float64]]) {{
          sum(@foldl(fn (%a: Tensor[(4,), float64], %v: Tensor[(4,), float64]) {{ tanh(%a + %v + sum({UNIT}, axis=[0])) }},
              sum(%w, axis=[0]), %l))
        }}""",
        ([],),
    ),
    "several of a loop": (
        f"""(%w: Tensor[(4, 4), float64], %k: int64) {{
          sum(@for(0i64, %k, fn (%i: int64, %a: Tensor[(4, 4), float64]) {{
            let %u = {UNIT};
            tanh(nn.matmul(%a, %u) + nn.matmul(%a, log(sum(%u) * %u)))
          }}, %w))
        }}""",
        (np.int64(0),),
    ),
    "behind a second condition": (
        f"""(%w: Tensor[(4, 4), float64], %k: int64) {{ sum(@twice(%w, %w, %k)) }}
        def @twice(%a: Tensor[(4, 4), float64], %w: Tensor[(4, 4), float64], %k: int64) -> Tensor[(4, 4), float64] {{
          if (%k > 0i64) {{
            let %b = tanh(nn.matmul(%a, %w + 1f64));
            if (%k < 3i64) {{ @twice(%b + nn.matmul(%b, {UNIT}), %w, %k - 1i64) }} else {{ %b }}
          }} else {{ %a }}
        }}""",
        (np.int64(3),),
    ),
    "one of two ways on": (
        f"""(%w: Tensor[(4, 4), float64], %k: int64) {{ sum(@either(%w, %w, %k)) }}
        def @either(%a: Tensor[(4, 4), float64], %w: Tensor[(4, 4), float64], %k: int64) -> Tensor[(4, 4), float64] {{
          if (%k <= 0i64) {{ %a }} else {{
            if (%k == 77i64) {{ @either(nn.matmul(%a, {UNIT}), %w, %k - 1i64) }} else {{ @either(tanh(%a + %w), %w, %k - 1i64) }}
          }}
        }}""",
        (np.int64(2),),
    ),
}  # fmt: skip


def module(text: str) -> Module:
    return relay.parse(f"{HEAD}def @main{text}")


def _arrays(results: Any) -> list[Any]:
    return [np.asarray(r) for r in (results if isinstance(results, tuple) else (results,))]


@pytest.mark.parametrize("name", NEVER)
def test_what_is_not_computed_has_no_slope(name: str) -> None:
    """The loops' steps were computed in front of them, and the gradient was no number."""
    text, rest = NEVER[name]
    program = module(text)
    step, along = relay.grad(program, argnums=0), np.random.default_rng(0).normal(size=W.shape)
    found, compiled = _arrays(relay.evaluate(step, W, *rest)), _arrays(relay.compile(step)(W, *rest))
    up, down = (np.asarray(relay.evaluate(program, W + eps * along, *rest)) for eps in (1e-6, -1e-6))
    assert np.isclose(np.sum(found[0] * along), (up - down) / 2e-6)
    assert np.allclose(compiled[0], found[0])


def rows(first: str, end: str, row: str = "%t") -> str:
    """The last state of a loop over rows of unit length, which ``nn.dense`` is given one by one."""
    return f"""[n: Dim](%u: Tensor[(5, 4), float64], %x: Tensor[(n, 4), float64], %k: int64) {{
      sum(@for({first}, {end}, fn (%t: int64, %a: Tensor[(5,), float64]) {{
        let %v = take(%x, {row}, axis=0);
        tanh(%a + nn.dense(%v / sqrt(sum(%v * %v)), %u))
      }}, sum(%u, axis=[1])))
    }}"""


def test_rows_that_the_loop_does_not_come_to_have_no_slopes() -> None:
    """The padding behind a sequence, which was divided by its length of 0, made no numbers of the weights' gradient."""
    random = np.random.default_rng(0)
    u, x = random.normal(size=(5, 4)), random.normal(size=(6, 4))
    step = relay.grad(module(rows("0i64", "%k")), argnums=(0, 1))
    wanted = _arrays(relay.evaluate(step, u, x[:3], np.int64(3)))
    x[3:] = 0
    for result in (relay.evaluate(step, u, x, np.int64(3)), relay.compile(step)(u, x, np.int64(3))):
        found = _arrays(result)
        assert np.allclose(found[0], wanted[0])
        assert np.allclose(found[1][:3], wanted[1]) and not found[1][3:].any()


@pytest.mark.parametrize(
    ("text", "at_once"),
    [
        (rows("0i64", "Dim[n]"), True),
        (rows("0i64", "Dim[n]", "Dim[n] - 1i64 - %t"), True),
        (rows("-1i64", "Dim[n] - 1i64", "%t + 1i64"), True),
        (rows("0i64", "Dim[n] - 1i64"), False),
        (rows("1i64", "Dim[n]"), False),
        (rows("0i64", "%k"), False),
        (rows("0i64", "%k").replace("sum(%v * %v)", "sum(%v * %v) + 0.001f64"), True),
    ],
)
def test_rows_are_made_at_once_where_the_loop_comes_to_all_or_nothing_is_steep(text: str, at_once: bool) -> None:
    blocks = ToBlocks()(typing.monomorphise(relay.grad(module(text), argnums=0), ("main",)))
    loops = [f for n, f in with_loops(blocks, "main", levels=False).functions.items() if n in globals_used(f)]
    assert len(loops) == 1 and ("nn.dense" in str(loops[0])) != at_once
