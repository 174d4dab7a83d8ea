"""Recursion with several tail calls as a loop with one: branches choose what the next iteration is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from relay.ir.dim import DimVar, as_dim
from relay.ir.expr import Binding, Block, Call, Expr, Function, GlobalVar, If, OpRef, Proj, Tuple, Var
from relay.ir.record import record
from relay.ir.types import TensorType, TupleType, Type
from relay.op import registry
from relay.transform.ad.terms import project, tuple_of
from relay.transform.blocks import all_bindings, as_block, body_of, is_primitive
from relay.transform.build import constant, type_of
from relay.transform.copying import Copier
from relay.transform.tail_loops import tail_call

# Branches in tail position, one inside the other.
_DEEPEST = 8


@record(frozen=True, slots=True)
class _Leaf:
    """An end of a function: the bindings in front of it from the first branch on, and the block; ``call`` where that calls the function."""

    path: tuple[Binding, ...]
    block: Block
    call: Call | None


def one_call(name: str, function: Function) -> Function:
    """The function with a single tail call, where it has several, all with the same sizes, and one end without.

    ``if (a) { f(x) } else { if (b) { f(y) } else { r } }`` becomes ``let t = ...; if (t.0) { f(t.1) } else { r }``, where t is
    ``(true, x)``, ``(true, y)`` or ``(false, the parameters)``. Other functions come back as they are.
    """
    if is_primitive(function) or not all(_is_tensors(type_of(p)) for p in function.params):
        return function
    body = body_of(function)
    if not body.bindings or body.result is not body.bindings[-1].var or not isinstance(body.bindings[-1].value, If):
        return function
    leaves = _leaves(name, body)
    if leaves is None:
        return function
    calls = [leaf.call for leaf in leaves if leaf.call is not None]
    ends = [leaf for leaf in leaves if leaf.call is None]
    mentioned = sum(isinstance(b.value, Call) and _calls(name, b.value) for b in all_bindings(body))
    own = tuple(as_dim(d) if isinstance(d, DimVar) else d for d in function.type_params)
    if len(calls) < 2 or len(ends) != 1 or mentioned != len(calls) or not _is_plain(ends[0].path):
        return function
    if any(c.type_args != own or len(c.args) != len(function.params) for c in calls):
        return function
    varying = [n for n, p in enumerate(function.params) if any(c.args[n] is not p for c in calls)]
    if any(type_of(c.args[n]) != type_of(function.params[n]) for c in calls for n in varying):
        return function
    return _with_one(function, body, calls[0], ends[0], varying, name)


def _with_one(function: Function, body: Block, call: Call, end: _Leaf, varying: Sequence[int], name: str) -> Function:
    *before, last = body.bindings
    own = [function.params[n] for n in varying]
    ty = TupleType((TensorType((), "bool"), *(type_of(p) for p in own)))

    def chosen(block: Block) -> Block:
        """What a block in tail position gives, as the choice."""
        *first, final = block.bindings or (None,)
        if final is not None and final.var is block.result and isinstance(final.value, If):
            inner = If(
                final.value.cond,
                chosen(as_block(final.value.then)),
                chosen(as_block(final.value.orelse)),
                ty,
                final.value.span,
            )
            var = Var("next", None, ty)
            return Block((*(b for b in first if b is not None), Binding(var, inner)), var, ty)
        again = tail_call(name, block)
        given = [function.params[n] if again is None else again.args[n] for n in varying]
        kept = () if again is None else block.bindings[:-1]
        var = Var("next", None, ty)
        return Block((*kept, Binding(var, tuple_of((constant(np.array(again is not None), "bool"), *given)))), var, ty)

    choice = chosen(Block((last,), last.var, type_of(last.var)))
    code = [*before, *choice.bindings]
    more = Var("more", None, TensorType((), "bool"))
    assert isinstance(choice.result, Var)
    code.append(Binding(more, project(choice.result, 0)))
    args: list[Expr] = list(function.params)
    then: list[Binding] = []
    for k, n in enumerate(varying):
        part = Var(function.params[n].name, None, type_of(own[k]))
        then.append(Binding(part, Proj(choice.result, k + 1, type_of(own[k]))))
        args[n] = part
    rest, result = Var("rest", None, type_of(last.var)), Var("result", None, type_of(last.var))
    then.append(Binding(rest, replace(call, args=tuple(args))))
    leave = Copier().copy(Block((*end.path, *end.block.bindings), end.block.result, type_of(last.var)))
    code.append(Binding(result, If(more, Block(tuple(then), rest, type_of(rest)), leave, type_of(result))))
    return replace(function, body=Block(tuple(code), result, body.ty, body.span))


def _leaves(name: str, body: Block) -> list[_Leaf] | None:
    """The ends of a function; None where branches in tail position are nested too deeply."""
    out: list[_Leaf] = []
    todo: list[tuple[tuple[Binding, ...], Block, int]] = [((), Block(body.bindings[-1:], body.result, body.ty), 0)]
    while todo:
        path, block, depth = todo.pop()
        final = block.bindings[-1] if block.bindings else None
        if final is not None and final.var is block.result and isinstance(final.value, If):
            if depth >= _DEEPEST:
                return None
            inner = (*path, *block.bindings[:-1])
            todo += ((inner, as_block(b), depth + 1) for b in (final.value.then, final.value.orelse))
        else:
            out.append(_Leaf(path, block, tail_call(name, block)))
    return out


def _calls(name: str, value: Call) -> bool:
    return isinstance(value.fn, GlobalVar) and value.fn.name == name


def _is_plain(bindings: Sequence[Binding]) -> bool:
    """Whether bindings may be computed a second time."""
    return all(
        isinstance(b.value, Tuple | Proj)
        or (isinstance(b.value, Call) and isinstance(b.value.fn, OpRef) and registry.exists(b.value.fn.name))
        for b in bindings
    )


def _is_tensors(ty: Type) -> bool:
    todo = [ty]
    while todo:
        t = todo.pop()
        if isinstance(t, TupleType):
            todo += t.fields
        elif not isinstance(t, TensorType):
            return False
    return True
