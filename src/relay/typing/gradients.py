"""The type rule of ``grad``."""

from __future__ import annotations

from relay.ir.types import FuncType, RefType, TupleType, Type


def cotangent_type(t: Type) -> Type:
    """The type of the cotangent of a value: its own, but functions and references, alone or in tuples, have the empty
    tuple. (The cotangent of an integer or boolean tensor is zeros.)"""
    match t:
        case FuncType() | RefType():
            return TupleType(())
        case TupleType():
            return TupleType(tuple(map(cotangent_type, t.fields)))
        case _:
            return t


def gradient_type(t: FuncType) -> FuncType:
    """The type of ``grad(f)`` for ``f`` of type ``t``: the value, and the cotangent of each argument."""
    return FuncType(t.params, TupleType((t.ret, TupleType(tuple(map(cotangent_type, t.params))))))
