"""Matching values against patterns."""

from __future__ import annotations

from typing import assert_never

from relay.interpreter.values import Value, kind_of
from relay.ir.diagnostics import ExecutionError
from relay.ir.expr import Pattern, PConstructor, PTuple, PVar, PWild, Var
from relay.ir.value import AdtValue


def matches(pattern: Pattern, value: Value, bound: list[tuple[Var, Value]]) -> bool:
    """Whether a value has the form of a pattern; ``bound`` receives the variables with their parts. Iterative."""
    todo: list[tuple[Pattern, Value]] = [(pattern, value)]
    while todo:
        p, v = todo.pop()
        match p:
            case PWild():
                pass
            case PVar():
                bound.append((p.var, v))
            case PTuple():
                if not isinstance(v, tuple) or len(v) != len(p.fields):
                    raise ExecutionError(f"a tuple pattern of {len(p.fields)} against {kind_of(v)}", p.span)
                todo.extend(zip(p.fields, v, strict=True))
            case PConstructor():
                if not isinstance(v, AdtValue):
                    raise ExecutionError(f"the pattern {p.name} against {kind_of(v)}", p.span)
                if v.constructor != p.name:
                    return False
                if len(v.fields) != len(p.fields):
                    raise ExecutionError(
                        f"the pattern {p.name} has {len(p.fields)} fields, not {len(v.fields)}", p.span
                    )
                todo.extend(zip(p.fields, v.fields, strict=True))
            case _:
                assert_never(p)
    return True
