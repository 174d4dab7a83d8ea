"""Folds from the left whose accumulator depends on recursive calls, as recursion from the last item.

``go(acc, xs)`` that calls itself on the rest of the list with ``f(acc, item)`` hands something down which follows from the results of
recursive calls, and levels go up. The same values are made by ``go'(start, sx)`` on the list turned round, whose result for the rest of
it is the accumulator before the item:

    match (%xs) { Nil => %acc, Cons(%x, %rest) => go(f(%acc, %x), %rest) }           before
    match (%sx) { Nil => %start, Cons(%x, %rest) => let %acc = go'(%start, %rest); f(%acc, %x) }       after

so a recurrent cell over the children of a node goes by level like any other recursion. The walk turns the list round (`describe`).
(One whose accumulator follows from the items alone is a loop, unless many requests go through theirs at once.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relay.ir.expr import (
    Binding,
    Block,
    Call,
    Clause,
    Expr,
    Function,
    GlobalVar,
    Match,
    PConstructor,
    Proj,
    PVar,
    Tuple,
    Var,
)
from relay.ir.module import Module
from relay.ir.types import TupleType, Type
from relay.ir.walk import free_vars
from relay.transform.batching.lists import layout_of
from relay.transform.blocks import as_block, body_of, is_primitive
from relay.transform.build import type_of


def from_the_end(module: Module, name: str, function: Function, alone: bool) -> Function | None:
    """The function on the list turned round; None where it is no left fold, or, unless those that stand ``alone`` are wanted too, its
    accumulators follow from no recursive calls."""
    body = body_of(function)
    if is_primitive(function) or not body.bindings or not isinstance(match := body.bindings[-1].value, Match):
        return None
    head, whole = body.bindings[:-1], body.bindings[-1]
    layout = layout_of(module, match.data.ty)
    data = next((n for n, p in enumerate(function.params) if p is match.data), None)
    if data is None or layout is None or body.result is not whole.var or len(match.clauses) != 2:
        return None
    full = next((c for c in match.clauses if isinstance(c.pattern, PConstructor) and c.pattern.fields), None)
    empty = next(c for c in match.clauses if c is not full)
    if full is None or not isinstance(full.pattern, PConstructor):
        return None
    tail = full.pattern.fields[layout.tail]
    step = as_block(full.body)
    again = step.bindings[-1] if step.bindings else None
    if (
        again is None
        or step.result is not again.var
        or not isinstance(call := again.value, Call)
        or not isinstance(tail, PVar)
    ):
        return None
    if not (isinstance(call.fn, GlobalVar) and call.fn.name == name and call.args[data] is tail.var):
        return None
    rest = step.bindings[:-1]
    changed = [n for n, p in enumerate(function.params) if n != data and call.args[n] is not p]
    results = _results(function, changed, as_block(empty.body))
    if results is None or not (alone or _follows([call.args[n] for n in changed], rest)):
        return None
    fixed = {v for b in (*head, *rest) for v in free_vars(b.value)}
    early = {v for b in head for v in free_vars(b.value)}
    if tail.var in fixed or any(function.params[n] in early for n in [data, *changed]):
        return None
    # The accumulator before the item is bound to the variable that it was handed down in.
    ty = type_of(whole.var)
    of = {n: ty.fields[at] if at is not None and isinstance(ty, TupleType) else ty for n, at in results}
    if any(type_of(function.params[n]) != t for n, t in of.items()):
        return None
    given = {n: Var(p.name, p.annotation, p.ty) for n, p in enumerate(function.params) if n in of}
    params = tuple(given.get(n, p) for n, p in enumerate(function.params))
    before = Var("before", None, ty)
    args = tuple(tail.var if n == data else p for n, p in enumerate(params))
    start = [Binding(before, Call(call.fn, args, type_args=call.type_args, ty=ty))]
    start += [
        Binding(function.params[n], before if at is None else Proj(before, at, type_of(function.params[n])))
        for n, at in results
    ]
    made = _result(ty, {at: call.args[n] for n, at in results})
    ended = _result(ty, {at: given[n] for n, at in results})
    first = Block((*start, *rest, *made.bindings), made.result, ty)
    turned = Match(match.data, (Clause(full.pattern, first), Clause(empty.pattern, ended)), match.complete, ty=match.ty)
    return replace(
        function, params=params, body=Block((*head, Binding(whole.var, turned)), whole.var, body.ty, body.span)
    )


def _results(function: Function, changed: Sequence[int], last: Block) -> list[tuple[int, int | None]] | None:
    """Which field of the result for the empty list each changed parameter is (None: it is the result); None where that is not all."""
    params = function.params
    if not last.bindings:
        return [(n, None) for n in changed] if len(changed) == 1 and last.result is params[changed[0]] else None
    value = last.bindings[0].value
    if len(last.bindings) != 1 or last.result is not last.bindings[0].var or not isinstance(value, Tuple):
        return None
    found = [(n, at) for at, f in enumerate(value.fields) for n in changed if f is params[n]]
    return list(found) if len(found) == len(value.fields) == len(changed) == len({n for n, _ in found}) else None


def _result(ty: Type, fields: dict[int | None, Expr]) -> Block:
    if None in fields:
        return Block((), fields[None], ty)
    assert isinstance(ty, TupleType)
    whole = Var("after", None, ty)
    return Block((Binding(whole, Tuple(tuple(fields[n] for n in range(len(ty.fields))), ty)),), whole, ty)


def _follows(values: Sequence[Expr], code: Sequence[Binding]) -> bool:
    """Whether some of these values follow from what functions of the module give."""
    wanted = {v for v in values if isinstance(v, Var)}
    for binding in reversed(code):
        if binding.var in wanted:
            if isinstance(binding.value, Call) and isinstance(binding.value.fn, GlobalVar):
                return True
            wanted.update(free_vars(binding.value))
    return False
