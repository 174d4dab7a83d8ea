"""Loops whose state is a tuple, seen as loops with a parameter for each field of it.

A recurrence that hands on its state and a sum as one value says of neither alone what becomes of it:

    @go(%i, %a): ... %a.0 ... %a.1 ...; @go(%i + 1, (%x, %y))   ->   @go(%i, %a0, %a1): ... %a0 ... %a1 ...; @go(%i + 1, %x, %y)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relay.ir.expr import Binding, Block, Call, Expr, GlobalVar, If, Proj, Tuple, Var
from relay.ir.record import record
from relay.ir.types import FuncType, TupleType
from relay.ir.walk import free_vars
from relay.transform.blocks import Forward, Scope, as_block, body_of
from relay.transform.build import type_of
from relay.transform.tail_loops import TailLoop, tail_loop
from relay.transform.uses import use_counts


@record(frozen=True, slots=True, eq=False)
class Spread:
    """A ``loop`` with parameters spread; what each of its parameters was made of: ``of``, those of the function before, in order, with the
    fields that are parameters now."""

    loop: TailLoop
    of: tuple[tuple[Var, tuple[Var, ...]], ...]

    def gathered(self, body: Block) -> Block:
        """A body over the spread parameters as one over those before."""
        fields = [
            Binding(f, Proj(p, n, type_of(f))) for p, parts in self.of if parts != (p,) for n, f in enumerate(parts)
        ]
        return replace(body, bindings=(*fields, *body.bindings))


def spread(loop: TailLoop) -> Spread:
    """The loop with a parameter for each field of its tuples, where it makes them in its call of itself and reads their fields alone before
    that; what it returns may be such a tuple."""
    values = {b.var: b.value for b in (*loop.before, *loop.again)}
    of: list[tuple[Var, tuple[Var, ...]]] = []
    for p, arg in zip(loop.function.params, loop.call.args, strict=True):
        ty = type_of(p)
        made = isinstance(arg, Var) and isinstance(values.get(arg), Tuple)
        fields = all(isinstance(value, Proj) or p not in free_vars(value) for value in values.values())
        if made and fields and isinstance(ty, TupleType):
            of.append((p, tuple(Var(p.name, None, t, p.span) for t in ty.fields)))
        else:
            of.append((p, (p,)))
    parts = {p: fields for p, fields in of if fields != (p,)}
    return Spread(_spread(loop, of, parts) if parts else loop, tuple(of))


def _spread(loop: TailLoop, of: Sequence[tuple[Var, tuple[Var, ...]]], parts: dict[Var, tuple[Var, ...]]) -> TailLoop:
    def visit(scope: Scope, var: Var, value: Expr) -> Expr:
        if isinstance(value, Proj) and isinstance(value.tuple, Var) and value.tuple in parts:
            return parts[value.tuple][value.index]
        if isinstance(value, Call) and isinstance(value.fn, GlobalVar) and value.fn.name == loop.name:
            args: list[Expr] = []
            for (p, _), a in zip(of, value.args, strict=True):
                whole = driver.definition(a)
                args += whole.fields if p in parts and isinstance(whole, Tuple) else (a,)
            return replace(value, args=tuple(args))
        return value

    driver = Forward(visit)
    body = body_of(driver.function(loop.function))
    *before, last = body.bindings
    choice = last.value
    assert isinstance(choice, If)
    counts = use_counts(body)
    branches = []
    for branch in map(as_block, (choice.then, choice.orelse)):
        # Without tuples that are not made any more, and with those that the end reads.
        kept = (b for b in branch.bindings if not isinstance(b.value, Tuple) or b.var is branch.result or counts[b.var])
        read = free_vars(branch)
        whole = (Binding(p, Tuple(fields, type_of(p))) for p, fields in parts.items() if p in read)
        branches.append(replace(branch, bindings=(*whole, *kept)))
    chosen = Binding(last.var, replace(choice, then=branches[0], orelse=branches[1]))
    params = tuple(f for _, fields in of for f in fields)
    ty = loop.function.ty
    assert isinstance(ty, FuncType)
    made = replace(
        loop.function,
        params=params,
        body=replace(body, bindings=(*before, chosen)),
        ty=FuncType(tuple(map(type_of, params)), ty.ret, ty.type_params),
    )
    found = tail_loop(loop.name, made)
    assert found is not None
    return found
