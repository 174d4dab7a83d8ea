"""What stands anywhere in the values of a type, through the definitions of algebraic types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from relay.ir.types import AdtType, FuncType, RefType, TupleType, Type, TypeArg, TypeDef


def mentioned(t: TypeArg, definitions: Mapping[str, TypeDef]) -> Iterator[Type]:
    """Every type in values of type ``t``: fields, arguments of algebraic types and the fields of their constructors (as the definition
    has them), contents of references, parameters and results of functions."""
    todo: list[TypeArg] = [t]
    seen: set[str] = set()
    while todo:
        now = todo.pop()
        if isinstance(now, Type):
            yield now
        match now:
            case TupleType():
                todo += now.fields
            case FuncType():
                todo += (*now.params, now.ret)
            case RefType():
                todo.append(now.value)
            case AdtType():
                todo += now.args
                if now.name not in seen and now.name in definitions:
                    seen.add(now.name)
                    todo += (f for c in definitions[now.name].constructors for f in c.fields)
            case _:
                pass


def holds_reference(t: TypeArg, definitions: Mapping[str, TypeDef]) -> bool:
    """Whether a value of the type may have a reference in it."""
    return any(isinstance(part, RefType) for part in mentioned(t, definitions))


def holds_function(t: TypeArg, definitions: Mapping[str, TypeDef]) -> bool:
    """Whether a value of the type may have a function in it."""
    return any(isinstance(part, FuncType) for part in mentioned(t, definitions))
