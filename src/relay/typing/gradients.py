"""The type rules of ``grad`` and ``jvp``."""

from __future__ import annotations

from relay.ir.types import FuncType, RefType, TupleType, Type


def cotangent_type(t: Type) -> Type:
    """The type of the cotangent (and of the tangent) of a value: its own, but functions and references, alone or in tuples, have the empty
    tuple. (The cotangent of an integer or boolean tensor is zeros.)"""
    match t:
        case FuncType() | RefType():
            return TupleType(())
        case TupleType():
            return TupleType(tuple(map(cotangent_type, t.fields)))
        case _:
            return t


def derivative_type(t: FuncType, forward: bool) -> FuncType:
    """The type of ``grad(f)``, or with ``forward`` of ``jvp(f)``, for ``f`` of type ``t``.

    ``grad(f)`` gives the value and the cotangent of each argument; ``jvp(f)`` takes a tangent for each argument, behind
    the arguments, and gives the value and its tangent.
    """
    params = tuple(map(cotangent_type, t.params))
    if forward:
        return FuncType((*t.params, *params), TupleType((t.ret, cotangent_type(t.ret))))
    return FuncType(t.params, TupleType((t.ret, TupleType(params))))
