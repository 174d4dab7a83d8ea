"""What calls do not need: an operand of which only the sizes count, a call whose result is its operand.

Derivatives are full of both: the cotangent of a mean's operand repeats a number in that operand's shape, the cotangent of a sum's is
the sum's own where nothing was repeated. Taken at its word, the first keeps a tensor in memory until the way back just for its
sizes, and keeps it from being computed inside of the kernel that reads it; the second copies. Both are read off the operators'
expressions (`relay.transform.access`).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import field
from typing import ClassVar

from relay.ir.dim import DimVar, dim_vars, is_any, known_equal
from relay.ir.expr import Binding, Call, Expr, Function, OpRef, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import TensorType, Type
from relay.transform.access import AccessTable
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, map_functions
from relay.transform.build import type_of, zeros_of
from relay.transform.dims import whole_axes
from relay.transform.simplify import reshaped


@record(frozen=True, slots=True)
class DropIdentities(Pass):
    """Replace calls by the operand that they are, element by element, or by a view of it where axes of one element come or go.

    Before: typed blocks without ``?`` in tensor types. After: the same values; no call but views is left whose expression is one
    of its operands, element by element.
    """

    name: ClassVar[str] = "drop_identities"
    table: AccessTable = field(default_factory=AccessTable, repr=False, compare=False)

    def __call__(self, module: Module) -> Module:
        def visit(scope: Scope, var: Var, value: Expr) -> Expr:
            if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or not value.args:
                return value
            access = self.table.of(value)
            if access is None or access.same is None:
                return value
            operand = value.args[access.same]
            if _same_type(type_of(operand), var.ty):
                return operand
            return value if access.view else reshaped(operand, value) or value

        return map_functions(module, lambda f: Forward(visit).function(f))


@record(frozen=True, slots=True)
class DropUnread(Pass):
    """Put ``zeros`` of its type in the place of every operand that no element of a call's result depends on.

    Before: typed blocks without ``?`` in tensor types. After: the same values. The zeros are never made: a kernel that does not read
    an operand has none (`FuseOps`); what only such calls read is dead code. An operand that may be what tells a size at run time
    (one whose sizes no parameter of the function has as an axis) stays.
    """

    name: ClassVar[str] = "drop_unread"
    table: AccessTable = field(default_factory=AccessTable, repr=False, compare=False)

    def __call__(self, module: Module) -> Module:
        def dropper(function: Function) -> Forward:
            known = {d for p in function.params for d, _ in whole_axes(p.ty)}

            def visit(scope: Scope, var: Var, value: Expr) -> Expr:
                if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or not value.args:
                    return value
                access = self.table.of(value)
                if access is None or not access.unread:
                    return value
                args = list(value.args)
                for n in access.unread:
                    ty = type_of(args[n])
                    if _can_fill(ty, known) and not _is_fill(driver.definition(args[n])):
                        args[n] = zeros = Var("unread", None, ty)
                        scope.bindings.append(Binding(zeros, zeros_of(ty)))
                if all(a is b for a, b in zip(args, value.args, strict=True)):
                    return value
                return Call(value.fn, tuple(args), value.attrs, value.type_args, value.ty, value.span)

            driver = Forward(visit)
            return driver

        return map_functions(module, lambda f: dropper(f).function(f))


def _same_type(a: Type, b: Type | None) -> bool:
    if not isinstance(a, TensorType) or not isinstance(b, TensorType) or a.dtype != b.dtype or a.device != b.device:
        return False
    if not isinstance(a.shape, tuple) or not isinstance(b.shape, tuple) or len(a.shape) != len(b.shape):
        return False
    return all(known_equal(x, y) for x, y in zip(a.shape, b.shape, strict=True))


def _can_fill(ty: Type, known: Set[DimVar]) -> bool:
    """Whether it is a tensor that is worth dropping, and that an attribute can say the shape of, in sizes that are known."""
    if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or ty.device is not None:
        return False
    if ty.shape == () or not isinstance(ty.dtype, str) or any(is_any(d) for d in ty.shape):
        return False
    return all(v in known for d in ty.shape for v in dim_vars(d))


def _is_fill(e: Expr) -> bool:
    return isinstance(e, Call) and not e.args
