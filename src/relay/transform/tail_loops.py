"""Functions that are loops: they choose between calling themselves, last and once, and a result."""

from __future__ import annotations

from relay.ir.dim import DimVar
from relay.ir.expr import Binding, Block, Call, Expr, Function, GlobalVar, If
from relay.ir.record import record
from relay.transform.blocks import as_block, body_of, is_primitive
from relay.transform.fix_invariants import self_calls


@record(frozen=True, slots=True, eq=False)
class TailLoop:
    """``f(params) { before; if (cond) { again; f(call) } else { leave } }``, or with the branches exchanged (``on``: the value of
    ``cond`` for another iteration)."""

    name: str
    function: Function
    before: tuple[Binding, ...]
    cond: Expr
    on: bool
    again: tuple[Binding, ...]
    call: Call
    leave: Block


def tail_loop(name: str, function: Function) -> TailLoop | None:
    """A global function, monomorphic up to dims, as a loop; None where it is none."""
    if is_primitive(function) or not all(isinstance(p, DimVar) for p in function.type_params):
        return None
    body = body_of(function)
    *before, last = body.bindings or (None,)
    if last is None or not isinstance(last.value, If) or body.result is not last.var:
        return None
    cond, then, orelse = last.value.cond, as_block(last.value.then), as_block(last.value.orelse)
    for again, leave in ((then, orelse), (orelse, then)):
        call = tail_call(name, again)
        if call is not None and self_calls(name, function) == [call] and len(call.args) == len(function.params):
            return TailLoop(name, function, tuple(before), cond, again is then, again.bindings[:-1], call, leave)
    return None


def tail_call(name: str, block: Block) -> Call | None:
    """The call of a function that a block ends with."""
    if not block.bindings or block.result is not block.bindings[-1].var:
        return None
    value = block.bindings[-1].value
    found = isinstance(value, Call) and isinstance(value.fn, GlobalVar) and value.fn.name == name
    return value if found and isinstance(value, Call) else None
