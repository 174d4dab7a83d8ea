"""Choices between values that cost little: both are computed and one is taken, for each node its own.

A level computes one thing for all its nodes, so an ``if`` that decides by what a node has computed ends a batch. Where neither branch does
more than elementwise work and sums, computing both takes less than going node by node: ``if (c) { a / b } else { a }`` becomes
``where(c, a / b, a)``. (What is not taken has no derivative of its own, though: 0 times the slope of a quotient by 0 is no 0. So this is
not done to what is differentiated.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from relay.ir.dim import is_any
from relay.ir.expr import Binding, Block, Call, Expr, Function, If, OpRef, Proj, Tuple, Var
from relay.ir.trampoline import Step, run
from relay.ir.types import TensorType, TupleType, Type
from relay.transform.blocks import as_block, body_of, is_atom, nested_blocks, with_each_nested
from relay.transform.build import internal_call, type_of

Cheap = Callable[[Call], bool]


def with_both_branches(function: Function, cheap: Cheap) -> Function:
    """The function with both branches of each ``if`` computed whose calls are all ``cheap`` calls of operators without effects, and whose
    result is made of tensors."""
    body = run(_block(body_of(function), cheap, {}))
    return function if body is function.body else replace(function, body=body)


def _block(block: Block, cheap: Cheap, plain: dict[int, Block]) -> Step[Block]:
    """The block; it is added to those that are ``plain``, by identity, where nothing in it is left that cannot be computed anyway: a
    choice around it does not ask that of each binding again."""
    out: list[Binding] = []
    all_plain = True
    changed = False
    for binding in block.bindings:
        value: Expr = binding.value
        if nested_blocks(value):
            value = yield with_each_nested(value, lambda b: _block(b, cheap, plain))
        both = _both(value, binding.var, plain) if isinstance(value, If) else None
        if both is not None:
            out += both
        else:
            all_plain = all_plain and _is_plain(value, cheap)
            out.append(binding if value is binding.value else replace(binding, value=value))
        changed |= both is not None or value is not binding.value
    new = replace(block, bindings=tuple(out)) if changed else block
    if all_plain:
        plain[id(new)] = new
    return new


def _both(choice: If, var: Var, plain: Mapping[int, Block]) -> list[Binding] | None:
    """What binds a variable to the value of a choice without making it."""
    then, orelse = as_block(choice.then), as_block(choice.orelse)
    if id(then) not in plain or id(orelse) not in plain:
        return None
    out = [*then.bindings, *orelse.bindings]
    return out if _select(choice.cond, then.result, orelse.result, var, out) else None


def _is_plain(value: Expr, cheap: Cheap) -> bool:
    if isinstance(value, Call):
        return isinstance(value.fn, OpRef) and cheap(value)
    return isinstance(value, Tuple | Proj) or is_atom(value)


def _select(condition: Expr, then: Expr, orelse: Expr, var: Var, out: list[Binding]) -> bool:
    """Bind a variable to what is chosen; whether that can be done."""
    todo: list[tuple[Expr, Expr, Var]] = [(then, orelse, var)]
    wholes: list[Binding] = []  # tuples: bound behind their fields
    while todo:
        a, b, chosen = todo.pop()
        ty = type_of(chosen)
        if type_of(a) != ty or type_of(b) != ty:
            return False
        if isinstance(ty, TupleType):
            fields = [Var(chosen.name, None, t) for t in ty.fields]
            wholes.append(Binding(chosen, Tuple(tuple(fields), ty)))
            todo += zip(_fields(a, ty.fields, out), _fields(b, ty.fields, out), fields, strict=True)
        elif _is_sized(ty):
            out.append(Binding(chosen, internal_call("where", (condition, a, b), ty, MappingProxyType({}))))
        else:
            return False
    out += reversed(wholes)
    return True


def _fields(atom: Expr, types: Sequence[Type], out: list[Binding]) -> list[Var]:
    made = [Var("field", None, t) for t in types]
    out += [Binding(v, Proj(atom, n, t)) for n, (v, t) in enumerate(zip(made, types, strict=True))]
    return made


def _is_sized(ty: Type) -> bool:
    return isinstance(ty, TensorType) and isinstance(ty.shape, tuple) and not any(map(is_any, ty.shape))
