"""What the typing tests share: text to typed modules, and the types of functions as text."""

from __future__ import annotations

import relay.op  # noqa: F401  (declares the operators)
from relay.ir.module import Module
from relay.ir.parser import parse_module
from relay.typing import infer, type_text, verify_types

HEADER = '#[version = "0.0.5"]\n'


def parsed(text: str) -> Module:
    return parse_module(HEADER + text, "test")


def typed(text: str) -> Module:
    """The typed module, checked by `verify_types` as well."""
    module = infer(parsed(text))
    verify_types(module)
    return module


def type_of(text: str, name: str = "main") -> str:
    """The type of a function of the program, as text."""
    t = typed(text).function(name).ty
    assert t is not None
    return type_text(t)
