"""What the package gives to others beside its operators."""

from __future__ import annotations

from relay.op.build import as_expr, call
from relay.op.registry import Operator, composition, exists, get, names, operator, routine, trace, view

__all__ = [
    "Operator",
    "as_expr",
    "call",
    "composition",
    "exists",
    "get",
    "names",
    "operator",
    "routine",
    "trace",
    "view",
]
