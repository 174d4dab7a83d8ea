"""Effects of expressions and functions."""

# Programs and their effects stand on a line each.

from __future__ import annotations

import pytest

from relay.ir.effects import ALL_EFFECTS, Effect
from relay.ir.expr import Block, Function, Var
from relay.typing import Effects
from tests.typing.programs import typed

X = "%x: Tensor[(3, 4), float32]"
LIST = 'import "prelude"\n'

PROGRAMS = [
    (f"def @main({X}) {{ exp(%x) }}", Effect.PURE),
    (f"def @main({X}) {{ ref(%x) }}", Effect.ALLOCATES),
    ("def @main(%r: ref(int32)) {{ !%r }}", Effect.READS),
    ("def @main(%r: ref(int32)) {{ %r := 1 }}", Effect.WRITES),
    # making a function is pure, calling it is not
    ("def @main(%r: ref(int32)) { fn() { !%r } }", Effect.PURE),
    ("def @main(%r: ref(int32)) { (fn() { !%r })() }", Effect.READS),
    ("def @main(%r: ref(int32)) { let %f = fn(%y: int32) { %r := %y }; %f(1) }", Effect.WRITES),
    ("def @main(%c: bool, %r: ref(int32)) { (if (%c) { fn() { !%r } } else { fn() { 1 } })() }", Effect.READS),
    # calls, recursion, unknown callees
    ("def @f(%r: ref(int32)) { !%r }\ndef @main(%r: ref(int32)) { @f(%r) }", Effect.READS),
    (
        "def @f(%x: int32) -> int32 { @g(%x) }\ndef @g(%x: int32) -> int32 { @f(%x) }\ndef @main() { @f(1) }",
        Effect.DIVERGES,
    ),
    (
        "def @main(%n: int32) { let %f = fn(%i: int32) { if (%i < 1) { 0 } else { %f(%i - 1) } }; %f(%n) }",
        Effect.DIVERGES,
    ),
    ("def @main(%f: fn(int32) -> int32) { %f(1) }", ALL_EFFECTS),
    ("def @main(%t: (fn(int32) -> int32, int32)) { %t.0(1) }", ALL_EFFECTS),
    # what can fail
    (LIST + "def @main(%x: List[int32]) { match? (%x) { Nil => 1 } }", Effect.MAY_FAIL),
    (LIST + "def @main(%x: List[int32]) { match (%x) { Nil => 1, Cons(%y, _) => %y } }", Effect.PURE),
    ("def @main(%x: Tensor[(?, 4), float32], %w: Tensor[(8, ?), float32]) { nn.dense(%x, %w) }", Effect.MAY_FAIL),
    ("def @main(%x: Tensor[(?, 4), float32], %w: Tensor[(8, 4), float32]) { nn.dense(%x, %w) }", Effect.PURE),
    ("def @main(%x: Tensor[(?, 4), float32]) { exp(%x) }", Effect.PURE),
    # grad of a known function is as it is
    ("def @main(%x: float32) { grad(fn(%y: float32) { exp(%y) })(%x) }", Effect.PURE),
]


@pytest.mark.parametrize(("text", "expected"), PROGRAMS, ids=range(len(PROGRAMS)))
def test_effects(text: str, expected: Effect) -> None:
    module = typed(text)
    effects = Effects(module)
    main = module.function("main")
    assert effects.of(main) == Effect.PURE
    assert effects.of(main.body) == expected
    assert effects.latent(main) == expected


def test_a_group_shares_what_any_of_it_does() -> None:
    module = typed(
        "def @f(%r: ref(int32)) -> int32 { @g(%r) }\n"
        "def @g(%r: ref(int32)) -> int32 { if (True) { @f(%r) } else { !%r } }\n"
        "def @h() -> int32 { 1 }"
    )
    effects = Effects(module)
    assert effects.latent(module.function("f")) == Effect.READS | Effect.DIVERGES
    assert effects.latent(module.function("g")) == Effect.READS | Effect.DIVERGES
    assert effects.latent(module.function("h")) == Effect.PURE


def test_a_pass_can_say_what_its_new_variables_hold() -> None:
    module = typed("def @main() { let %f = fn() { 1 }; %f() }")
    body = module.function("main").body
    assert isinstance(body, Block) and isinstance(body.bindings[0].value, Function)
    effects = Effects(module)
    new = Var("g", None, body.bindings[0].var.ty)
    assert effects.of_call(new) == ALL_EFFECTS
    effects.bind(new, body.bindings[0].value)
    assert effects.of_call(new) == Effect.PURE
