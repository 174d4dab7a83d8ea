"""What enters a function under differentiation from outside: whether all functions among it are known where the derivative is taken."""

from __future__ import annotations

from collections.abc import Mapping

from relay.ir.expr import Call, Expr, Function, GlobalVar, Grad, Var
from relay.ir.types import FuncType, RefType, TensorType, TupleType, Type, TypeDef
from relay.ir.walk import free_vars
from relay.transform.ad.duals import differentiable
from relay.transform.blocks import all_bindings, body_of, is_closure, is_primitive
from relay.transform.build import type_of
from relay.typing.mentions import holds_function


def definition(e: Expr, values: Mapping[Var, Expr]) -> Expr:
    """What an atom is bound to, other names for it passed over."""
    while isinstance(e, Var) and e in values:
        e = values[e]
    return e


def lifts(value: Expr | None) -> bool:
    """Whether a function value can be differentiated where it is known to be this."""
    return is_closure(value) or isinstance(value, Function | GlobalVar)


def all_known(function: Function, definitions: Mapping[str, TypeDef]) -> bool:
    """Whether every function under a ``grad``, and what it is given and captures of functions, is known where that stands."""
    if is_primitive(function):
        return True
    bindings = list(all_bindings(body_of(function)))
    values = {b.var: b.value for b in bindings}
    return all(_known(b.value.fn, values, definitions) for b in bindings if isinstance(b.value, Grad))


def entering(under: Expr, values: Mapping[Var, Expr]) -> list[Type]:
    """The types of the data that enter a function under ``grad``: its arguments, and what it and the functions that it captures
    capture."""
    ty = type_of(under)
    out: list[Type] = list(ty.params) if isinstance(ty, FuncType) else []
    seen: set[Expr] = set()
    todo: list[Expr] = [under]
    while todo:
        value = definition(todo.pop(), values)
        if value not in seen and lifts(value):
            seen.add(value)
            for v in value.args[1:] if isinstance(value, Call) else free_vars(value):
                if isinstance(v.ty, FuncType):
                    todo.append(v)
                elif v.ty is not None:
                    out.append(v.ty)
    return out


def _holds_reference(t: Type) -> bool:
    """Whether a reference to more than numbers that have no derivative stands in a type, alone or in tuples."""
    match t:
        case RefType(value=TensorType() as content):
            return differentiable(content)
        case RefType():
            return True
        case TupleType():
            return any(map(_holds_reference, t.fields))
        case _:
            return False


def _known(under: Expr, values: Mapping[Var, Expr], definitions: Mapping[str, TypeDef]) -> bool:
    ty = type_of(under)
    if not isinstance(ty, FuncType) or any(holds_function(p, definitions) or _holds_reference(p) for p in ty.params):
        return False
    seen: set[Expr] = set()
    todo: list[Expr] = [under]
    while todo:
        value = definition(todo.pop(), values)
        if value in seen:
            continue
        seen.add(value)
        if not lifts(value):
            return False
        captured = value.args[1:] if isinstance(value, Call) else free_vars(value)
        for v in captured:
            if isinstance(v.ty, FuncType):
                todo.append(v)
            elif v.ty is not None and holds_function(v.ty, definitions):
                return False
    return True
