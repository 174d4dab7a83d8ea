"""Matrices that rows choose are read where they lie, by each product for itself.

    let %ws = take(%table, %labels, axis=0);        einsum((%x, take(%table, %labels, axis=0)), equation="nk,nkj->nj")
    einsum((%x, %ws), equation="nk,nkj->nj")        einsum.vjp0((%x, take(%table, %labels, axis=0)), %d, ...)
    einsum.vjp0((%x, %ws), %d, ...)

A gradient reads what it takes of a table twice, forward and back, so fusion alone would write a matrix for every row. A product reads the
table as well, and rows that choose the same matrix together (`relay.plan.row_groups`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from relay.ir.expr import Binding, Call, Expr, Function, OpRef, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import TensorType
from relay.op import registry
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, map_functions
from relay.transform.build import type_of
from relay.transform.traced import grouped_operands, product_of


@record(frozen=True, slots=True)
class GatherLate(Pass):
    """Copy the ``take`` of whole matrices by a line of indices in front of every product that reads it.

    Before: typed blocks. After: the same values, bit for bit in the interpreter. (What fails in a copy has failed where it was made.)
    """

    name: ClassVar[str] = "gather_late"

    def __call__(self, module: Module) -> Module:
        return map_functions(module, _gathering)


def _gathering(function: Function) -> Function:
    def visit(scope: Scope, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or not registry.exists(value.fn.name):
            return value
        args = [driver.definition(a) for a in value.args]
        flat = [e for a, b in zip(args, value.args, strict=True) for e in (a.fields if isinstance(a, Tuple) else (b,))]
        taken = {n: made for n, e in enumerate(flat) if isinstance(made := _taken(driver.definition(e)), Call)}
        if not taken or registry.get(value.fn.name).kind != "expression":
            return value
        found = product_of(value, flat)
        if found is None or any(f.operand in taken and f.read is None for f in found.factors):
            return value
        for n, take in taken.items():
            flat[n] = own = Var("chosen", None, take.ty)
            scope.bindings.append(Binding(own, replace(take)))
        arguments = grouped_operands(value.args, flat, scope.bindings)
        return Call(value.fn, tuple(arguments), value.attrs, value.type_args, value.ty, value.span)

    driver = Forward(visit)
    return driver.function(function)


def _taken(e: Expr) -> Call | None:
    """A ``take`` of whole matrices, or of more, by a line of indices."""
    if not isinstance(e, Call) or not isinstance(e.fn, OpRef) or e.fn.name != "take" or e.attrs.get("axis") != 0:
        return None
    table, at = (type_of(a) for a in e.args)
    if not isinstance(table, TensorType) or not isinstance(at, TensorType) or e.attrs.get("batch_dims", 0) != 0:
        return None
    whole = isinstance(table.shape, tuple) and len(table.shape) > 2
    line = isinstance(at.shape, tuple) and len(at.shape) == 1
    return e if whole and line else None
