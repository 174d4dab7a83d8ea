"""What is called once goes where it is called, in time that grows with the program alone."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

import relay
from relay.ir.expr import Call, Function, GlobalVar, Var
from relay.ir.module import Module
from relay.transform import DeadCode, Inline, ToBlocks
from relay.transform.blocks import all_bindings, body_of

HEAD = '#[version = "0.0.5"]\n'


def inside(count: int) -> str:
    """Functions inside of each other, each called at once."""
    text = f"%v{count} + 1f"
    for k in range(count, 0, -1):
        given = "%x" if k == 1 else f"%v{k - 1}"
        text = f"let %f{k} = fn (%v{k}: float32) -> float32 {{ {text} }}; %f{k}({given} * 2f)"
    return f"{HEAD}def @main(%x: float32) -> float32 {{ {text} }}"


def conditions(count: int) -> str:
    """Closures that call the one before under a condition."""
    text = "let %f0 = fn (%a: float32) -> float32 { %a + 1f };"
    for k in range(1, count):
        text += f"let %f{k} = fn (%a: float32) -> float32 {{ if (%x > {k}f) {{ %f{k - 1}(%a * 2f) }} else {{ %a }} }};"
    return f"{HEAD}def @main(%x: float32) -> float32 {{ {text} %f{count - 1}(%x) }}"


def functions(count: int) -> str:
    """Functions of the module that call the one before."""
    text = "def @f0(%x: float32) -> float32 { %x + 1f }\n"
    text += "".join(f"def @f{k}(%x: float32) -> float32 {{ @f{k - 1}(%x * 2f) }}\n" for k in range(1, count))
    return f"{HEAD}{text}def @main(%x: float32) -> float32 {{ @f{count - 1}(%x) }}"


def calls(module: Module) -> list[Call]:
    values = [b.value for b in all_bindings(body_of(module.function("main")))]
    return [v for v in values if isinstance(v, Call) and isinstance(v.fn, Var | GlobalVar)]


@pytest.mark.parametrize("program", [inside, conditions, functions])
def test_in_linear_time(program: Callable[[int], str]) -> None:
    def steps(count: int) -> int:
        module, number = ToBlocks()(relay.parse(program(count))), 0

        def profile(frame: object, event: str, arg: object) -> None:
            nonlocal number
            number += event == "call"

        sys.setprofile(profile)
        try:
            found = Inline()(module)
        finally:
            sys.setprofile(None)
        assert not calls(found)
        assert not any(isinstance(b.value, Function) for b in all_bindings(body_of(DeadCode()(found).function("main"))))
        np.testing.assert_array_equal(relay.evaluate(found, 1.5), relay.evaluate(module, 1.5))
        return number

    assert steps(80) < 5 * steps(20)


def test_what_is_called_once_in_a_function_that_is_copied() -> None:
    """Each copy of %h has a copy of the large %f, and of the small %g that is called once inside of it."""
    large = "".join(f"let %v{k + 1} = %v{k} * 0.5f;" for k in range(20))
    module = ToBlocks()(
        relay.parse(f"""{HEAD}def @main(%x: float32) -> float32 {{
  let %f = fn (%v0: float32) -> float32 {{ {large} let %g = fn (%w: float32) -> float32 {{ %w + %v0 }}; %g(%v20) }};
  let %h = fn (%a: float32) -> float32 {{ %f(%a) + 1f }};
  %h(%h(%h(%x)))
}}""")
    )
    found = Inline()(module)
    assert not calls(found)
    variables = [b.var for b in all_bindings(body_of(found.function("main")))]
    assert len(set(variables)) == len(variables)
    np.testing.assert_array_equal(relay.evaluate(found, 3.0), relay.evaluate(module, 3.0))


def test_recursion_stays_in_copies_too() -> None:
    module = ToBlocks()(
        relay.parse(f"""{HEAD}def @main(%x: int32) -> int32 {{
  let %h = fn (%a: int32) -> int32 {{ let %r = fn (%n: int32) -> int32 {{ if (%n > 9) {{ %n }} else {{ %r(%n * 2) }} }}; %r(%a) }};
  %h(%x) + %h(%x + 1)
}}""")
    )
    found = Inline()(module)
    assert len(calls(DeadCode()(found))) == 4  # each copy of %r, once from outside and once by itself
    assert int(np.asarray(relay.evaluate(found, 3))) == int(np.asarray(relay.evaluate(module, 3))) == 12 + 16


def test_an_entry_that_is_called_once_has_a_body_of_its_own() -> None:
    text = f"""{HEAD}def @small(%x: float32) -> float32 {{ %x + 1f }}
def @other(%x: float32) -> float32 {{ @small(%x) * 2f }}
def @main(%x: float32) -> float32 {{ @other(%x) }}"""
    found = Inline(entries=("main", "other"))(ToBlocks()(relay.parse(text)))
    assert not calls(found) and not [
        b for b in all_bindings(body_of(found.function("other"))) if b.value in calls(found)
    ]
    assert len([*all_bindings(body_of(found.function("other")))]) == 2
