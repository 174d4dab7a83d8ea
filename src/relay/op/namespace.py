"""Operators by their names: ``relay.op.nn.dense`` is the one that programs call ``nn.dense``."""

from __future__ import annotations

from relay.ir.diagnostics import OperatorError
from relay.op.registry import Operator, exists, get, names


class Namespace:
    """The operators whose names begin with a prefix: ``relay.op.nn`` holds ``nn.dense`` as ``dense``."""

    __slots__ = ("_prefix",)

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __getattr__(self, name: str) -> Operator | Namespace:
        return lookup(f"{self._prefix}.{name}")

    def __dir__(self) -> list[str]:
        start = f"{self._prefix}."
        return [n.removeprefix(start) for n in names() if n.startswith(start)]

    def __call__(self, *_: object, **__: object) -> None:
        raise OperatorError(f"{self._prefix} is not an operator", hint=f"it has: {', '.join(dir(self))}")


def lookup(name: str) -> Operator | Namespace:
    """The operator of this name, or those whose names begin with it. Raises AttributeError when there is none."""
    if name.startswith("_") or "._" in name:
        raise AttributeError(name)
    if exists(name):
        return get(name)
    if any(n.startswith(f"{name}.") for n in names()):
        return Namespace(name)
    try:
        return get(name)
    except OperatorError as error:  # hasattr and getattr with a default expect this one
        raise AttributeError(str(error)) from error
