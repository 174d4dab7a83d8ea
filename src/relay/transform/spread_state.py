"""Loops whose state is a tuple, seen as loops with a parameter for each field of it.

@go(%i, %a): ... %a.0 ... %a.1 ...; @go(%i + 1, (%x, %y))   ->   @go(%i, %a0, %a1): ... %a0 ... %a1 ...; @go(%i + 1, %x, %y)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relay.ir.expr import Binding, Block, Call, Expr, Function, GlobalVar, If, Proj, Tuple, Var
from relay.ir.record import record
from relay.ir.types import FuncType, TupleType
from relay.ir.walk import free_vars
from relay.transform.ad.loops import tail_call
from relay.transform.blocks import Forward, Scope, all_bindings, as_block, body_of
from relay.transform.build import type_of
from relay.transform.fix_invariants import self_calls
from relay.transform.uses import use_counts


@record(frozen=True, slots=True, eq=False)
class Spread:
    """A ``function`` that calls itself, with parameters spread; what each of its parameters was made of: ``of``, those of the function
    before, in order, with the fields that are parameters now."""

    function: Function
    of: tuple[tuple[Var, tuple[Var, ...]], ...]

    def gathered(self, body: Block) -> Block:
        """A body over the spread parameters as one over those before."""
        fields = [
            Binding(f, Proj(p, n, type_of(f))) for p, parts in self.of if parts != (p,) for n, f in enumerate(parts)
        ]
        return replace(body, bindings=(*fields, *body.bindings))


def spread(name: str, function: Function) -> Spread:
    """The function with a parameter for each field of its tuples, where it makes them in its call of itself and reads their fields alone
    before that; what it returns may be such a tuple."""
    calls = self_calls(name, function)
    values = {b.var: b.value for b in all_bindings(body_of(function))}
    of: list[tuple[Var, tuple[Var, ...]]] = []
    for n, p in enumerate(function.params):
        ty = type_of(p)
        args = [c.args[n] for c in calls]
        made = len(args) == 1 and isinstance(args[0], Var) and isinstance(values.get(args[0]), Tuple)
        if made and isinstance(ty, TupleType) and _reads_fields(name, function, p):
            of.append((p, tuple(Var(p.name, None, t, p.span) for t in ty.fields)))
        else:
            of.append((p, (p,)))
    parts = {p: fields for p, fields in of if fields != (p,)}
    return Spread(_spread(name, function, of, parts) if parts else function, tuple(of))


def _reads_fields(name: str, function: Function, p: Var) -> bool:
    """Whether nothing but fields of a parameter is read where the function goes on."""
    *before, last = body_of(function).bindings or (None,)
    if last is None or not isinstance(last.value, If):
        return False
    branches = [as_block(last.value.then), as_block(last.value.orelse)]
    goes_on = (b for branch in branches if tail_call(name, branch) for b in branch.bindings)
    return all(isinstance(b.value, Proj) or p not in free_vars(b.value) for b in (*before, *goes_on))


def _spread(
    name: str, function: Function, of: Sequence[tuple[Var, tuple[Var, ...]]], parts: dict[Var, tuple[Var, ...]]
) -> Function:
    def visit(scope: Scope, var: Var, value: Expr) -> Expr:
        if isinstance(value, Proj) and isinstance(value.tuple, Var) and value.tuple in parts:
            return parts[value.tuple][value.index]
        if isinstance(value, Call) and isinstance(value.fn, GlobalVar) and value.fn.name == name:
            args: list[Expr] = []
            for (p, _), a in zip(of, value.args, strict=True):
                whole = driver.definition(a)
                args += whole.fields if p in parts and isinstance(whole, Tuple) else (a,)
            return replace(value, args=tuple(args))
        return value

    driver = Forward(visit)
    body = body_of(driver.function(function))
    *before, last = body.bindings
    choice = last.value
    assert isinstance(choice, If)
    counts = use_counts(body)
    branches = []
    for branch in map(as_block, (choice.then, choice.orelse)):
        # Tuples that are not made any more, and those that the end reads.
        bindings = tuple(
            b for b in branch.bindings if not isinstance(b.value, Tuple) or b.var is branch.result or counts[b.var]
        )
        read = free_vars(branch)
        whole = tuple(Binding(p, Tuple(fields, type_of(p))) for p, fields in parts.items() if p in read)
        branches.append(replace(branch, bindings=(*whole, *bindings)))
    chosen = Binding(last.var, replace(choice, then=branches[0], orelse=branches[1]))
    params = tuple(f for _, fields in of for f in fields)
    ty = function.ty
    assert isinstance(ty, FuncType)
    return replace(
        function,
        params=params,
        body=replace(body, bindings=(*before, chosen)),
        ty=FuncType(tuple(map(type_of, params)), ty.ret, ty.type_params),
    )
