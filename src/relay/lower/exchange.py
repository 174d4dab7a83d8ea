"""Results of a loop's kernels that become its parameters, and exchange places with what these were.

A tensor that a loop carries dies when the next one is made. It cannot be written over while it is read, but the iteration after that
writes where it was: parameter and result exchange their registers, and nothing is allocated after the second iteration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from relay.ir.expr import Block, Call, Expr, Function, GlobalVar, Match, OpRef, Proj, PTuple, PVar, Tuple, Var
from relay.ir.record import record
from relay.ir.types import TensorType, TupleType, Type
from relay.lower.tail_loops import TailLoop
from relay.transform.blocks import all_bindings, all_blocks, body_of, operands

# A parameter by its position, and the number of its field where it is a tuple that is carried in parts.
Carried = tuple[int, int | None]
# A result of a kernel: the variable of the call, and the number of the output.
Result = tuple[Var, int]


@record(frozen=True, slots=True)
class Exchanges:
    """``results``: what exchanges places with parameters. ``carried``: these parameters, by the id of the block in tail position, each
    with the result that takes its place."""

    results: set[Result] = field(default_factory=set)
    carried: dict[int, dict[Carried, Expr]] = field(default_factory=dict)


def find_exchanges(
    name: str,
    function: Function,
    loop: TailLoop,
    only_reads: Callable[[Call, int], bool],
    is_view: Callable[[str], bool],
) -> Exchanges:
    """What exchanges places in the loop that a function of this name is. ``only_reads`` says whether a call of a kernel never writes
    over an operand, by its position; ``is_view`` which operators' results are in the memory of their first operand."""
    found = Exchanges()
    for block in loop.tails:
        values = {b.var: b.value for b in block.bindings}
        call = values.get(block.result) if isinstance(block.result, Var) else None
        if not isinstance(call, Call) or not isinstance(call.fn, GlobalVar) or call.fn.name != name:
            continue  # where the loop ends
        changing = _changing(function, loop, call, values)
        free = {c: ty for c, ty, _ in changing if _are_read(_names(function, c), block, only_reads, is_view)}
        # What a parameter becomes is made where it was itself, if that may be, or where another was.
        for own in (True, False):
            for at, ty, given in changing:
                made = _made(given, values)
                places = [c for c in free if free[c] == ty and (c == at or not own)]
                if made is not None and made not in found.results and places:
                    found.results.add(made)
                    found.carried.setdefault(id(block), {})[places[0]] = given
                    del free[places[0]]
    return found


def _changing(
    function: Function, loop: TailLoop, call: Call, values: dict[Var, Expr]
) -> list[tuple[Carried, TensorType, Expr]]:
    """The parameters, or fields of such, that get another tensor of their type, and what they get."""
    found: list[tuple[Carried, TensorType, Expr]] = []
    for number, (param, arg) in enumerate(zip(function.params, call.args, strict=True)):
        if number in loop.invariant:
            continue
        parts: list[tuple[Type | None, int | None, Expr]] = [(param.ty, None, arg)]
        if number in loop.unpacked:
            whole = values.get(arg) if isinstance(arg, Var) else None
            fields = whole.fields if isinstance(whole, Tuple) else ()
            assert isinstance(param.ty, TupleType)
            parts = [(ty, n, f) for n, (ty, f) in enumerate(zip(param.ty.fields, fields, strict=False))]
        for ty, index, given in parts:
            if isinstance(ty, TensorType) and ty.shape != () and given.ty == ty:
                found.append(((number, index), ty, given))
    return found


def _made(given: Expr, values: dict[Var, Expr]) -> Result | None:
    """The kernel's result that an atom is."""
    if not isinstance(given, Var):
        return None
    value, index, of = values.get(given), 0, given
    if isinstance(value, Proj) and isinstance(value.tuple, Var):
        index, of = value.index, value.tuple
        value = values.get(of)
    return (of, index) if isinstance(value, Call) and isinstance(value.fn, Function) else None


def _names(function: Function, carried: Carried) -> set[Var]:
    """The variables that a parameter, or a field of it, has."""
    number, index = carried
    param = function.params[number]
    if index is None:
        return {param}
    found: set[Var] = set()
    for binding in all_bindings(body_of(function)):
        value = binding.value
        if isinstance(value, Proj) and value.tuple is param and value.index == index:
            found.add(binding.var)
        elif isinstance(value, Match) and value.data is param:
            fields = [c.pattern.fields[index] for c in value.clauses if isinstance(c.pattern, PTuple)]
            found |= {p.var for p in fields if isinstance(p, PVar)}
    return found


def _are_read(
    names: set[Var], block: Block, only_reads: Callable[[Call, int], bool], is_view: Callable[[str], bool]
) -> bool:
    """Whether all that is done with these variables in a block is that kernels read them, or views of them."""
    names = set(names)
    for inner in all_blocks(block):
        if inner.result in names:
            return False
        for binding in inner.bindings:
            value = binding.value
            if not any(a in names for a in operands(value)):
                continue
            if not isinstance(value, Call):
                return False
            if isinstance(value.fn, OpRef) and is_view(value.fn.name):
                names.add(binding.var)
            elif not isinstance(value.fn, Function) or not all(
                only_reads(value, n) for n, a in enumerate(value.args) if a in names
            ):
                return False
    return True
