"""Functions that call themselves in tail position run as loops: what changes from iteration to iteration, and what does not."""

from __future__ import annotations

from relay.ir.dim import DimVar, as_dim
from relay.ir.expr import Block, Call, Function, GlobalVar, If, Match, Proj, PTuple, Tuple, Var
from relay.ir.record import record
from relay.ir.types import TupleType
from relay.transform.blocks import all_blocks, body_of, nested_blocks, operands


@record(frozen=True, slots=True)
class TailLoop:
    """``invariant``: the parameters, by position, that every iteration passes on unchanged. ``dims``: the sizes that it does.
    ``unpacked``: tuples among the others that are only taken apart, and so need not be made: their fields are carried. ``tails``: the
    blocks in tail position."""

    invariant: frozenset[int]
    dims: frozenset[DimVar]
    unpacked: frozenset[int]
    tails: tuple[Block, ...]


def tail_loop(name: str, function: Function) -> TailLoop | None:
    """The loop that a global function is, or None when no call of itself is in tail position."""
    calls, tails = _tail_calls(name, body_of(function))
    if not calls:
        return None
    params = function.params
    invariant = frozenset(n for n, p in enumerate(params) if all(c.args[n] is p for c in calls))
    own = function.type_params
    dims = frozenset(
        d
        for n, d in enumerate(own)
        if isinstance(d, DimVar) and all(len(c.type_args) == len(own) and c.type_args[n] == as_dim(d) for c in calls)
    )
    tuples = {p: n for n, p in enumerate(params) if n not in invariant and isinstance(p.ty, TupleType) and p.ty.fields}
    unpacked = _unpacked(tuples, body_of(function), calls, tails) if tuples else frozenset()
    return TailLoop(invariant, dims, unpacked, tuple(tails))


def _tail_calls(name: str, body: Block) -> tuple[list[Call], list[Block]]:
    """A function's calls of itself in tail position, and the blocks in tail position."""
    calls: list[Call] = []
    tails: list[Block] = []
    todo = [body]
    while todo:
        block = todo.pop()
        tails.append(block)
        if not block.bindings or block.bindings[-1].var is not block.result:
            continue
        value = block.bindings[-1].value
        if isinstance(value, If | Match):
            todo.extend(nested_blocks(value))
        elif isinstance(value, Call) and isinstance(value.fn, GlobalVar) and value.fn.name == name:
            calls.append(value)
    return calls, tails


def _unpacked(tuples: dict[Var, int], body: Block, calls: list[Call], tails: list[Block]) -> frozenset[int]:
    """The tuples that are projected, matched, passed on in their own place, or returned, also within what is made where the loop ends."""
    again, last = {id(c) for c in calls}, {id(b) for b in tails}
    ends = {id(b) for b in tails if not _goes_on(b, again)}
    whole: set[Var] = set()
    for block in all_blocks(body):
        if isinstance(block.result, Var) and id(block) not in last:
            whole.add(block.result)
        for binding in block.bindings:
            value = binding.value
            match value:
                case Proj():
                    continue
                case Match() if all(isinstance(c.pattern, PTuple) for c in value.clauses):
                    continue
                case Tuple() | Call() if id(block) in ends:
                    continue
                case Call() if id(value) in again:
                    whole |= {a for n, a in enumerate(value.args) if isinstance(a, Var) and tuples.get(a, n) != n}
                case _:
                    whole |= {a for a in operands(value) if isinstance(a, Var)}
    return frozenset(n for p, n in tuples.items() if p not in whole)


def _goes_on(block: Block, again: set[int]) -> bool:
    """Whether a block in tail position may end with the next iteration (one of the calls ``again``): what it makes, all of them make."""
    if not block.bindings or block.bindings[-1].var is not block.result:
        return False
    value = block.bindings[-1].value
    return isinstance(value, If | Match) or id(value) in again
