"""Branches inside an iteration of a loop: the way back makes the choice again.

In the general scheme a branch returns its backpropagator, a closure, which no tape can hold. Here the branch itself stays as it is, and on
the way back the same condition chooses between the ways back through either side, each of which computes first what it needs of its
side: some arithmetic twice, nothing kept but what the branch reads, and no closure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.ir.effects import CHECK_EQUAL, CLOSURE, Effect
from relay.ir.expr import Binding, Block, Call, Constant, Expr, If, OpRef, Proj, Tuple, Var
from relay.ir.trampoline import run
from relay.ir.types import TupleType
from relay.ir.walk import free_vars
from relay.op import registry
from relay.transform.ad.conversions import zeros_like
from relay.transform.ad.duals import Lifting
from relay.transform.ad.loops import made_of_tensors
from relay.transform.ad.terms import project, tuple_of
from relay.transform.ad.values import Fields, Frame, Other, Tensor, Value
from relay.transform.blocks import as_block, nested_blocks
from relay.transform.build import type_of
from relay.transform.copying import Copier

if TYPE_CHECKING:
    from relay.transform.ad.reverse import Reverse

# Branches inside branches are lifted by functions inside functions.
_DEEPEST = 8


def branch_again(reverse: Reverse, var: Var, e: If, frame: Frame) -> Value | None:
    """A branch in this form; None where it does more than compute tensors."""
    if not _suits(e, reverse.lifting):
        return None
    free = free_vars(Block((Binding(var, e),), var, type_of(e)))
    around = {v: reverse.env[v] for v in free}
    if any(isinstance(v, Other) and reverse.lifting.changes(v.ty) for v in around.values()):
        return None
    code = frame.forward
    copy = Copier({v: value.primal for v, value in around.items()}).copy(Block((Binding(var, e),), var, type_of(e)))
    code.bindings += copy.bindings
    outer = [t for v in around.values() for t in v.tensors()]
    result = reverse.argument(frame, copy.result, type_of(e), e.span, active=any(t.active for t in outer))
    leaves = list(result.tensors())

    def way_back(side: Block, cotangents: list[Expr]) -> tuple[Frame, list[Expr | None]]:
        inner = Frame()
        mirrored = {v: _mirrored(reverse, value, inner) for v, value in around.items()}
        before = {v: reverse.env[v] for v in around if v in reverse.env}
        reverse.env.update(mirrored)
        value = run(reverse.block(side, inner))
        inner.forward.open = False
        for t, ct in zip(value.tensors(), cotangents, strict=True):
            inner.give(t, ct)
        inner.go_back()
        reverse.env.update(before)
        return inner, [inner.total(t) for v in mirrored.values() for t in v.tensors()]

    def back(f: Frame) -> None:
        found = [f.total(t) for t in leaves]
        if all(d is None for d in found):
            return
        whole = [f.back.bind(zeros_like(t.primal)) if d is None else d for t, d in zip(leaves, found, strict=True)]
        condition = around[e.cond].primal if isinstance(e.cond, Var) else e.cond
        sides = [way_back(as_block(b), whole) for b in (e.then, e.orelse)]
        wanted = [n for n in range(len(outer)) if any(totals[n] is not None for _, totals in sides)]
        if not wanted:
            return
        blocks: list[Block] = []
        for inner, totals in sides:
            parts = [inner.back.bind(zeros_like(outer[n].primal)) if (d := totals[n]) is None else d for n in wanted]
            whole_block = (*inner.forward.bindings, *inner.back.bindings)
            out = Var("parts", None, tuple_of(parts).ty)
            blocks.append(Block((*whole_block, Binding(out, tuple_of(parts))), out, out.ty))
        chosen = f.back.bind(If(condition, blocks[0], blocks[1], TupleType(tuple(outer[n].ty for n in wanted)), e.span))
        for k, n in enumerate(wanted):
            f.give(outer[n], f.back.bind(project(chosen, k), "d"))

    frame.tape.append(back)
    return result


def _mirrored(reverse: Reverse, value: Value, frame: Frame) -> Value:
    """A value as one of another block, with cotangents of its own."""
    match value:
        case Tensor():
            return reverse.tensor(value.ty, frame, value.primal, active=value.active)
        case Fields():
            return Fields(value.ty, frame, tuple(_mirrored(reverse, f, frame) for f in value.fields), None, value.plain)
        case Other():
            return value


def _suits(e: If, lifting: Lifting) -> bool:
    """Whether there are only operators without effects, tuples and branches of such in a branch that chooses between tensors, not nested
    too deeply."""
    todo: list[tuple[Expr, int]] = [(e, 0)]
    while todo:
        value, depth = todo.pop()
        match value:
            case If():
                if depth >= _DEEPEST or not made_of_tensors(type_of(value), lifting):
                    return False
                todo += ((b.value, depth + 1) for block in nested_blocks(value) for b in block.bindings)
            case Call(fn=OpRef(name=name)):
                plain = name not in (CLOSURE, CHECK_EQUAL) and registry.exists(name)
                if not plain or registry.get(name).effects is not Effect.PURE:
                    return False
            case Tuple() | Proj() | Var() | Constant():
                pass
            case _:
                return False
    return True
