"""The expressions behind calls: what a call computes of the tensors that it is given, with those of a tuple one by one."""

from __future__ import annotations

from collections.abc import Sequence

from relay import te
from relay.ir.expr import Binding, Call, Expr, OpRef, Tuple, Var
from relay.ir.types import TensorType, TupleType
from relay.op import registry
from relay.te.bilinear import Bilinear, bilinear
from relay.transform.build import type_of


def traced_call(call: Call, operands: Sequence[Expr]) -> registry.Traced | None:
    """The expression of a call of an operator; None where sizes are not known. ``operands`` are its arguments, a tuple's fields each."""
    assert isinstance(call.fn, OpRef)
    types = [type_of(e) for e in operands]
    known = [
        (t.shape, t.dtype)
        for t in types
        if isinstance(t, TensorType) and isinstance(t.shape, tuple) and isinstance(t.dtype, str)
    ]
    if len(known) < len(types):
        return None
    given = iter(known)
    inputs = [[next(given) for _ in a.ty.fields] if isinstance(a.ty, TupleType) else next(given) for a in call.args]
    try:
        return registry.trace(registry.get(call.fn.name), inputs, call.attrs)
    except (te.Undetermined, te.DefinitionError):
        return None


def product_of(call: Call, operands: Sequence[Expr]) -> Bilinear | None:
    """What a call sums up, where that is products of two operands."""
    traced = traced_call(call, operands)
    return None if traced is None else bilinear(traced.inputs, traced.outputs)


def grouped_operands(args: Sequence[Expr], flat: Sequence[Expr], bindings: list[Binding]) -> list[Expr]:
    """Tensors as the operands ``args`` are: those of a tuple together."""
    given, out = iter(flat), list[Expr]()
    for arg in args:
        if not isinstance(arg.ty, TupleType):
            out.append(next(given))
            continue
        fields = tuple(next(given) for _ in arg.ty.fields)
        whole = Var("operands", None, TupleType(tuple(map(type_of, fields))))
        bindings.append(Binding(whole, Tuple(fields, whole.ty)))
        out.append(whole)
    return out
