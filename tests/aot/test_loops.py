"""Functions that call themselves last, as loops: the interpreter's results on both executors, and constant memory."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay import _runtime
from relay.executable.bytecode import decode
from relay.options import Options
from relay.pipeline import build

HEAD = '#[version = "0.0.5"]\nimport prelude\n'
STATE = "(int64, Tensor[(3,), float32])"
PROGRAMS = {
    # parameters change places; a tuple is taken apart, and made again by what comes after
    "swap": f"""
def @go(%n: int64, %a: Tensor[(3,), float32], %b: Tensor[(3,), float32], %s: {STATE}) -> ({STATE}, Tensor[(3,), float32]) {{
  if (%n == 0i64) {{ (%s, %a) }} else {{ @go(%n - 1i64, %b, %a, (%s.0 + %n, tanh(%s.1 + %a * %b))) }}
}}
def @main(%n: int64, %x: Tensor[(3,), float32]) -> ({STATE}, Tensor[(3,), float32]) {{ @go(%n, %x, exp(%x), (2i64, %x)) }}
""",
    # tuples of tuples that are carried, and made where the loop ends: in a list, as an argument, as they are, by branches
    "ends": f"""
def @sum_of(%s: {STATE}, %x: Tensor[(3,), float32]) -> {STATE} {{ (%s.0 * 2i64, %s.1 + %x) }}
def @go(%n: int64, %s: {STATE}, %both: ({STATE}, Tensor[(3,), float32])) -> List[{STATE}] {{
  if (%n == 0i64) {{
    if (%s.0 > 10i64) {{ Cons(%s, Cons(@sum_of(%s, %both.1), Cons(%both.0, Nil))) }} else {{ Cons(%both.0, Nil) }}
  }} else {{ @go(%n - 1i64, (%s.0 + %n, tanh(%s.1)), (%s, %both.1 + %s.1)) }}
}}
def @main(%n: int64, %x: Tensor[(3,), float32]) -> List[{STATE}] {{ @go(%n, (2i64, %x), ((1i64, %x), exp(%x))) }}
""",
    # three values in a circle, one of them read by the others' successors
    "circle": """
def @go(%n: int64, %a: int64, %b: int64, %c: int64) -> int64 {
  if (%n <= 0i64) { %a * 100i64 + %b * 10i64 + %c } else { @go(%n - 1i64, %b, %c, %a) }
}
def @main(%n: int64, %x: Tensor[(3,), float32]) -> int64 { @go(%n, 1i64, 2i64, 3i64) }
""",
    # what grows: the sizes change from iteration to iteration
    "growing": """
def @go[k: Dim](%n: int64, %x: Tensor[(k,), float32]) -> Tensor[(?,), float32] {
  if (%n == 0i64) { %x } else { @go(%n - 1i64, concatenate((%x * 0.5f, tanh(%x)), axis=0)) }
}
def @main(%n: int64, %x: Tensor[(3,), float32]) -> Tensor[(?,), float32] { @go(%n, %x) }
""",
    # a call of itself that is not the last thing is a call, one that is goes round; branches in branches
    "both": """
def @go(%n: int64, %x: Tensor[(3,), float32]) -> Tensor[(3,), float32] {
  if (%n <= 0i64) { %x } else {
    let %y = if (floor_mod(%n, 2i64) == 0i64) { @go(%n - 3i64, tanh(%x)) + %x } else { %x * %x };
    if (floor_mod(%n, 3i64) == 0i64) { @go(%n - 1i64, %y * 0.25f) } else { @go(%n - 2i64, %y - %x) }
  }
}
def @main(%n: int64, %x: Tensor[(3,), float32]) -> Tensor[(3,), float32] { @go(%n, %x) }
""",
    # lists and closures go round
    "list": """
def @go(%n: int64, %xs: List[Tensor[(3,), float32]], %f: fn(Tensor[(3,), float32]) -> Tensor[(3,), float32]) -> Tensor[(3,), float32] {
  if (%n == 0i64) { @foldl(fn(%a: Tensor[(3,), float32], %b: Tensor[(3,), float32]) { %a - %b }, @hd(%xs), %xs) } else {
    match (%xs) {
      Cons(%x, %rest) => @go(%n - 1i64, Cons(%f(%x), %xs), fn(%z: Tensor[(3,), float32]) { %f(%z) + %x }),
      Nil => @go(0i64, %xs, %f),
    }
  }
}
def @main(%n: int64, %x: Tensor[(3,), float32]) -> Tensor[(3,), float32] {
  @go(%n, Cons(%x, Nil), fn(%z: Tensor[(3,), float32]) { tanh(%z) })
}
""",
    # a state handed round whole, by a function that is not known
    "while": f"""
def @main(%n: int64, %x: Tensor[(3,), float32]) -> {STATE} {{
  @while(fn(%s: {STATE}) {{ %s.0 < %n }}, fn(%s: {STATE}) {{ (%s.0 + 1i64, tanh(%s.1) - %x) }}, (0i64, %x))
}}
""",
}  # fmt: skip


@pytest.mark.parametrize("level", [1, 3])
@pytest.mark.parametrize("executor", ["vm", "aot"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_loops_mean_what_the_interpreter_says(name: str, executor: str, level: int) -> None:
    module = relay.parse(HEAD + PROGRAMS[name])
    exe = relay.compile(module, executor=executor, opt_level=level)
    x = np.array([0.5, -1.25, 2.0], np.float32)
    for n in (0, 1, 2, 5, 6):
        found, expected = exe(np.int64(n), x), relay.evaluate(module, np.int64(n), x)
        same(found, expected)


def test_a_state_returned_within_a_tuple_is_carried_in_parts() -> None:
    """The tuples are made once, where the loop ends."""
    built = build(relay.parse(HEAD + PROGRAMS["swap"]), Options())
    codes = [[i.opcode.name for i in decode(f.code)] for f in built.image.functions]
    (names,) = [names for names in codes if "Goto" in names]
    assert names[: names.index("Ret")].count("AllocADT") == names.count("AllocADT") == 2  # what goes on comes behind


def same(found: object, expected: object) -> None:
    if isinstance(expected, tuple):
        assert isinstance(found, tuple) and len(found) == len(expected)
        for f, e in zip(found, expected, strict=True):
            same(f, e)
    elif isinstance(expected, list):
        assert isinstance(found, list)
        same(tuple(found), tuple(expected))
    else:
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_an_iteration_allocates_nothing(executor: str) -> None:
    """What stays within an iteration has its memory once, states exchange theirs; what changes none is computed before."""
    text = f"""{HEAD}
def @go(%n: int64, %h: Tensor[(1, 64), float32], %w: Tensor[(64, 64), float32]) -> Tensor[(1, 64), float32] {{
  if (%n == 0i64) {{ %h }} else {{ @go(%n - 1i64, tanh(nn.dense(tanh(nn.dense(%h, %w)), %w)), %w) }}
}}
def @main(%n: int64, %h: Tensor[(1, 64), float32], %w: Tensor[(64, 64), float32]) -> Tensor[(1, 64), float32] {{ @go(%n, %h, %w) }}
"""
    exe = relay.compile(text, executor=executor, threads=1)
    h, w = np.ones((1, 64), np.float32), np.eye(64, dtype=np.float32)
    counts = []
    for n in (10, 110):
        before = _runtime.pool_statistics()["allocations"]
        exe(np.int64(n), h, w)
        counts.append(_runtime.pool_statistics()["allocations"] - before)
    assert counts[1] == counts[0]
