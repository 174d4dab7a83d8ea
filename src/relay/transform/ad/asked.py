"""What nobody asks a derivative of: calls whose results go where no cotangent comes back from.

    let %z = stop_gradient(@fixed_point(%x, %w));   let %near = @nearest(%points);  take(%w, %near)

What a call computes for `stop_gradient`, for a comparison, for indices or for a condition has no cotangent, and its tangent changes
nothing. Such a call is that of the function as it is: no loop keeps for a way back what no way back reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from relay.ir.diagnostics import CompileError
from relay.ir.effects import CHECK_EQUAL, CLOSURE
from relay.ir.expr import (
    Binding,
    Call,
    Constant,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    Grad,
    If,
    Match,
    OpRef,
    Proj,
    RefNew,
    RefRead,
    RefWrite,
    Tuple,
    Var,
)  # fmt: skip
from relay.ir.types import AdtType, TupleType, Type
from relay.ir.walk import free_vars, pattern_vars
from relay.op.gradient import differentiable
from relay.transform.ad.duals import Lifting
from relay.transform.blocks import as_block
from relay.transform.build import type_of


def idle_calls(
    bindings: Sequence[Binding], results: Iterable[Expr], lifting: Lifting, is_data: Callable[[Type], bool]
) -> set[Var]:
    """The results of calls of global functions that nobody asks a derivative of, in blocks inside too, where those of ``results``
    are asked for. Such functions are given data, and give data: nothing else of them comes back (`Activity.is_data`)."""
    asked = {e for e in results if isinstance(e, Var)}
    idle: set[Var] = set()
    # From the last to the first: every use of a value comes before it. What a match takes apart follows what its clauses use.
    todo: list[Binding | Match] = list(bindings)
    while todo:
        item = todo.pop()
        if isinstance(item, Match):
            if any(v in asked for c in item.clauses for v in pattern_vars(c.pattern)):
                asked.update(_variables((item.data,)))
            continue
        var, value = item.var, item.value
        is_asked = var in asked and lifting.concerns(type_of(var))
        match value:
            case Call(fn=GlobalVar(), args=args) if not is_asked and _gives_data(value, lifting, is_data):
                idle.add(var)
            case Call(fn=OpRef(name=name), args=args) if name != CLOSURE:
                if is_asked and name != CHECK_EQUAL:
                    asked.update(_variables(_passing_on(value, name)))
            case Call(fn=ConstructorRef(), args=args) if is_asked:
                asked.update(_variables(args))
            case Tuple(fields=fields) if is_asked:
                asked.update(_variables(fields))
            case Proj(tuple=whole) if is_asked:
                asked.update(_variables((whole,)))
            case Var() if is_asked:
                asked.add(value)
            case If():
                blocks = [as_block(value.then), as_block(value.orelse)]
                if is_asked:
                    asked.update(_variables(b.result for b in blocks))
                todo += (b for block in blocks for b in block.bindings)
            case Match():
                blocks = [as_block(c.body) for c in value.clauses]
                if is_asked:
                    asked.update(_variables(b.result for b in blocks))
                todo += (value, *(b for block in blocks for b in block.bindings))
            case Function() | Grad():
                asked.update(free_vars(value))
            case Call() if not isinstance(value.fn, ConstructorRef):
                asked.update(_variables((value.fn, *value.args)))
            case RefNew(value=kept):
                asked.update(_variables((kept,)))
            case RefWrite(ref=ref, value=kept):
                asked.update(_variables((ref, kept)))
            case RefRead(ref=ref):
                asked.update(_variables((ref,)))
            case Call() | Tuple() | Proj() | Var() | Constant() | GlobalVar():
                pass
            case _:
                raise AssertionError(f"{type(value).__name__} is not an operation of a block")
    return idle


def _variables(atoms: Iterable[Expr]) -> Iterator[Var]:
    return (a for a in atoms if isinstance(a, Var))


def _gives_data(call: Call, lifting: Lifting, is_data: Callable[[Type], bool]) -> bool:
    types = (type_of(call), *map(type_of, call.args))
    return all(is_data(t) or not lifting.concerns(t) for t in types)


def _passing_on(call: Call, name: str) -> Iterator[Expr]:
    """The operands to which something of the result's cotangent may go."""
    types = [type_of(a) for a in call.args]
    first = 0
    for a, t in zip(call.args, types, strict=True):
        count = len(t.fields) if isinstance(t, TupleType) else 1
        # What is no tensor is a value of a data type, whose tensors an operator reads (`rows.linearise`).
        if isinstance(t, AdtType) or any(_may_pass(call, name, types, n) for n in range(first, first + count)):
            yield a
        first += count


def _may_pass(call: Call, name: str, types: Sequence[Type], index: int) -> bool:
    try:
        return differentiable(name, call.attrs, types, index)
    except CompileError:
        return True  # it is said where the derivative is taken
