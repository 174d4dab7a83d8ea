"""Branches inside an iteration of a loop: the way back makes the choice again.

In the general scheme a branch returns its backpropagator, a closure, which no tape can hold. Here the branch itself stays as it is, and on
the way back the same condition chooses between the ways back through either side, each of which computes first what it needs of its
side: some arithmetic twice, nothing kept but what the branch reads, and no closure. Terms of a weight's cotangent leave the branch as the
rows that they are made of, zeros on the side that has none, so that one product, or one look-up's cotangent, of the rows of all iterations
makes them.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from relay.ir.dim import DimVar
from relay.ir.effects import CHECK_EQUAL, CLOSURE, Effect
from relay.ir.expr import Binding, Block, Call, Constant, Expr, If, OpRef, Proj, Tuple, Var
from relay.ir.record import record
from relay.ir.trampoline import run
from relay.ir.types import mentions_any
from relay.ir.walk import free_vars
from relay.op import registry
from relay.transform.ad.conversions import zeros_like
from relay.transform.ad.duals import Lifting
from relay.transform.ad.loop_terms import Collected, nothing_of_zeros
from relay.transform.ad.loops import made_of_tensors
from relay.transform.ad.terms import Code, project, tuple_of
from relay.transform.ad.values import Fields, Frame, Other, Tensor, Value
from relay.transform.blocks import as_block, nested_blocks
from relay.transform.build import op_call, type_of, zeros_of
from relay.transform.copying import Copier
from relay.transform.dims import DimUses

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
    sizes = frozenset(d for t in outer for d in DimUses().of_type(t.ty))

    def way_back(side: Block, cotangents: list[Expr]) -> _Side:
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
        tensors = [t for v in mirrored.values() for t in v.tensors()]
        terms = [_taken_out(inner, t, reverse.loops.fixed, sizes) for t in tensors]
        return _Side(inner, [inner.total(t) for t in tensors], terms)

    def back(f: Frame) -> None:
        found = [f.total(t) for t in leaves]
        if all(d is None for d in found):
            return
        whole = [f.back.bind(zeros_like(t.primal)) if d is None else d for t, d in zip(leaves, found, strict=True)]
        condition = around[e.cond].primal if isinstance(e.cond, Var) else e.cond
        sides = [way_back(as_block(b), whole) for b in (e.then, e.orelse)]
        wanted = [n for n in range(len(outer)) if any(side.totals[n] is not None for side in sides)]
        terms = _paired([side.terms for side in sides])
        if not wanted and not terms:
            return
        blocks: list[Block] = []
        for number, side in enumerate(sides):
            code = side.frame.back
            parts = [code.bind(zeros_like(outer[n].primal)) if (d := side.totals[n]) is None else d for n in wanted]
            parts += [r for _, pair in terms for r in _rows(code, pair, number)]
            out = Var("parts", None, tuple_of(parts).ty)
            blocks.append(
                Block((*side.frame.forward.bindings, *code.bindings, Binding(out, tuple_of(parts))), out, out.ty)
            )
        chosen = f.back.bind(If(condition, blocks[0], blocks[1], type_of(blocks[0].result), e.span))
        for k, n in enumerate(wanted):
            f.give(outer[n], f.back.bind(project(chosen, k), "d"))
        k = len(wanted)
        for n, pair in terms:
            term = next(t for t in pair if t is not None)
            args = list(term.call.args)
            for position in term.rows:
                args[position] = f.back.bind(project(chosen, k), "row")
                k += 1
            assert isinstance(term.call.fn, OpRef)
            f.give(outer[n], f.back.bind(op_call(term.call.fn.name, args, term.call.attrs), "d"))

    frame.tape.append(back)
    return result


@record(slots=True, eq=False)
class _Side:
    """The way back through one side: what it finds of each tensor's cotangent, and the terms of each that are left for later."""

    frame: Frame
    totals: list[Expr | None]
    terms: list[list[Collected]]


def _taken_out(frame: Frame, t: Tensor, fixed: Set[Var], sizes: frozenset[DimVar]) -> list[Collected]:
    """The terms of what all iterations share that can be made of the rows of all of them, after the loop; taken from the frame's parts.
    They leave the branch as their rows, which are small."""
    if t.primal not in fixed or t not in frame.parts:
        return []
    made = {b.var: b.value for b in frame.back.bindings}
    uses = DimUses()
    left: list[Expr] = []
    terms: list[Collected] = []
    for part in frame.parts.pop(t):
        term = nothing_of_zeros(made.get(part), fixed) if isinstance(part, Var) else None
        types = () if term is None else tuple(type_of(term.call.args[n]) for n in term.rows)
        if term is None or any(mentions_any(ty) or not sizes.issuperset(uses.of_type(ty)) for ty in types):
            left.append(part)
        else:
            terms.append(term)
    if left:
        frame.parts[t] = left
    return terms


_Pair = tuple[Collected | None, Collected | None]


def _paired(sides: Sequence[Sequence[Sequence[Collected]]]) -> list[tuple[int, _Pair]]:
    """The terms of both sides by the number of the tensor: those that differ in their rows alone are one."""
    out: list[tuple[int, _Pair]] = []
    for n, (then, orelse) in enumerate(zip(*sides, strict=True)):
        others = list(orelse)
        for term in then:
            alike = next((o for o in others if _are_alike(term, o)), None)
            if alike is not None:
                others.remove(alike)
            out.append((n, (term, alike)))
        out += [(n, (None, term)) for term in others]
    return out


def _are_alike(a: Collected, b: Collected) -> bool:
    one, other = a.call, b.call
    assert isinstance(one.fn, OpRef) and isinstance(other.fn, OpRef)
    if (
        one.fn.name != other.fn.name
        or one.attrs != other.attrs
        or (a.rows, a.stacked, a.summed) != (b.rows, b.stacked, b.summed)
    ):
        return False
    return all(
        type_of(x) == type_of(y) if n in a.rows else x is y
        for n, (x, y) in enumerate(zip(one.args, other.args, strict=True))
    )


def _rows(code: Code, pair: _Pair, side: int) -> list[Expr]:
    """The rows of a term on this side; where it has none, zeros."""
    own = pair[side]
    if own is not None:
        return [own.call.args[n] for n in own.rows]
    other = pair[1 - side]
    assert other is not None
    return [code.bind(zeros_of(type_of(other.call.args[n]))) for n in other.rows]


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
