"""The operators. ``relay.op.add(x, y)`` and ``relay.op.nn.dense(x, w, units=8)`` make calls; ``names()`` lists all.

Each module declares one family; importing this package makes all known to `relay.op.registry`.
"""

from __future__ import annotations

from typing import Any

from relay.ir.diagnostics import OperatorError
from relay.op import (
    assemble,
    attention,
    batched,
    broadcast,
    convolution,
    creation,
    custom_gradients,
    dynamic,
    einsum,
    elementwise,
    gradient,
    indexing,
    layouts,
    matrix,
    normalize,
    pooling,
    reduction,
    registry,
    resize,
    routines,
    row_gradients,
    rows,
    shapes,
    views,
)
from relay.op.build import as_expr, call
from relay.op.registry import Operator, composition, exists, get, names, operator, routine, trace, view

__all__ = [
    "Namespace",
    "Operator",
    "as_expr",
    "assemble",
    "attention",
    "batched",
    "broadcast",
    "call",
    "composition",
    "convolution",
    "creation",
    "custom_gradients",
    "dynamic",
    "einsum",
    "elementwise",
    "exists",
    "get",
    "gradient",
    "indexing",
    "layouts",
    "matrix",
    "names",
    "normalize",
    "operator",
    "pooling",
    "reduction",
    "registry",
    "resize",
    "routine",
    "routines",
    "row_gradients",
    "rows",
    "shapes",
    "trace",
    "view",
    "views",
]


class Namespace:
    """The operators whose names begin with a prefix: ``relay.op.nn`` holds ``nn.dense`` as ``dense``."""

    __slots__ = ("_prefix",)

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def __getattr__(self, name: str) -> Any:
        return _lookup(f"{self._prefix}.{name}")

    def __dir__(self) -> list[str]:
        start = f"{self._prefix}."
        return [n.removeprefix(start) for n in names() if n.startswith(start)]

    def __call__(self, *_: object, **__: object) -> None:
        raise OperatorError(f"{self._prefix} is not an operator", hint=f"it has: {', '.join(dir(self))}")


def _lookup(name: str) -> Operator | Namespace:
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


def __getattr__(name: str) -> Any:
    return _lookup(name)
