"""Operators that a program's author declared: what a program computes depends on their definitions, which its text does not show."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from relay.ir.diagnostics import RelayError
from relay.ir.expr import Attrs, Call, Expr, OpRef
from relay.ir.types import Type
from relay.ir.walk import post_order
from relay.op import registry
from relay.op.custom_gradients import has_declared_rule
from relay.op.gradient import operand_signature
from relay.te.errors import DefinitionError, Undetermined
from relay.te.text import definition_text


def is_foreign(name: str) -> bool:
    """Whether an operator, or the one that it is derived from (``my.op.vjp0``), was declared outside of this package."""
    known = registry.declared(name)
    return known is not None and not registry.is_own(known)


def foreign_definitions(roots: Iterable[Expr]) -> list[str] | None:
    """The definitions of all foreign operators that the expressions call, as they are for the calls' operands. None where some cannot
    be told: an operator that is no plain expression or has a gradient rule, or operands whose rank or base type is open."""
    out: list[str] = []
    foreign = cache(lambda name: is_foreign(name) or has_declared_rule(name))
    for root in roots:
        called: set[int] = set()
        named: set[int] = set()
        for node in post_order(root):
            if isinstance(node, OpRef) and foreign(node.name):
                named.add(id(node))
            elif isinstance(node, Call) and isinstance(node.fn, OpRef) and foreign(node.fn.name):
                text = _definition(node.fn.name, [a.ty for a in node.args], node.attrs)
                if text is None:
                    return None
                out.append(text)
                called.add(id(node.fn))
        if named - called:
            return None
    return out


def _definition(name: str, types: list[Type | None], attrs: Attrs) -> str | None:
    op = registry.get(name)
    if has_declared_rule(name):
        return None
    if op.kind not in ("expression", "view") or op.shape_mode != "independent" or registry.declared(name) is not op:
        return None
    operands = [None if t is None else operand_signature(t) for t in types]
    if None in operands:
        return None
    try:
        traced = registry.trace(op, operands, attrs)  # type: ignore[arg-type]
    except (Undetermined, DefinitionError, RelayError):
        return None  # an operand of a size that only running tells
    return f"{name} {definition_text(traced.inputs, traced.outputs, traced.demands)}"
