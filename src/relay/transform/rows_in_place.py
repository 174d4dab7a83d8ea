"""Loops that add rows to a table do so in the table's memory.

    let %a = rows.without(%ct, %begin, %like);                    let %a = rows.clear(%ct, %begin, %like);
    let %b = take.vjp0(%ct, %index, %d, axis=0, mode="fast");  -> let %sum = rows.add(%a, %d, %index);
    let %sum = add(%a, %b);

The way back through levels is such a loop: what comes back to the results of all nodes is a table, of which a level reads its own rows,
and adds to those of its parts. As sums of tables each level would go through all nodes, so a tree as deep as it has nodes would take
time with the square of these. Sums are put in an order in which one table goes through them: tables first, then rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from relay.ir.expr import Binding, Block, Call, Expr, Function, OpRef, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.ir.types import TensorType
from relay.transform.base import Pass
from relay.transform.blocks import body_of, is_primitive, map_functions, nested_blocks, with_each_nested
from relay.transform.build import internal_call, type_of
from relay.transform.uses import use_counts

# What the routines add.
_DTYPES = ("float32", "float64")


@record(frozen=True, slots=True)
class RowsInPlace(Pass):
    """Add rows to tables in place, in functions that are loops.

    Before: typed blocks. After: the same sums, where rows are among their terms in another order.
    """

    name: ClassVar[str] = "rows_in_place"

    def __call__(self, module: Module) -> Module:
        def change(function: Function) -> Function:
            if is_primitive(function) or "loop" not in function.attrs:
                return function
            whole = body_of(function)
            body = run(_block(whole, use_counts(whole)))
            return function if body is whole else replace(function, body=body)

        return map_functions(module, change)


def _block(block: Block, uses: Counter[Var]) -> Step[Block]:
    made: dict[Var, Call] = {}
    inner: set[Var] = set()  # the sums that are part of one sum
    for binding in block.bindings:
        if isinstance(call := binding.value, Call):
            made[binding.var] = call
            if _is_sum(call):
                inner.update(a for a in call.args if isinstance(a, Var) and _is_part(a, call, made, uses))
    out: list[Binding] = []
    changed = False
    for binding in block.bindings:
        value: Expr = binding.value
        if nested_blocks(value):
            value = yield with_each_nested(value, lambda b: _block(b, uses))
        elif isinstance(value, Call) and _is_sum(value) and binding.var not in inner:
            found = _sum(binding, value, made, uses)
            if found is not None:
                out += found
                changed = True
                continue
        changed |= value is not binding.value
        out.append(binding if value is binding.value else replace(binding, value=value))
    # What has been taken into sums has no use any more: the next removal of dead code finds it.
    return replace(block, bindings=tuple(out)) if changed else block


def _sum(binding: Binding, call: Call, made: Mapping[Var, Call], uses: Counter[Var]) -> list[Binding] | None:
    """A sum as tables that are added up, and rows that are added to these; None where there are no rows, or no table."""
    terms = _terms(call, made, uses)
    rows = {n: r for n, t in enumerate(terms) if (r := _rows(t, made, uses)) is not None}
    tables = [t for n, t in enumerate(terms) if n not in rows]
    if not rows or not tables:
        return None
    ty = type_of(binding.var)
    out: list[Binding] = []

    def bind(op: str, *args: Expr) -> Var:
        out.append(Binding(Var(binding.var.name, None, ty), internal_call(op, args, ty)))
        return out[-1].var

    first, *others = tables
    without = made.get(first) if isinstance(first, Var) and uses[first] == 1 else None
    # Here, and not where it was: what reads the rows that are cleared stands between.
    total: Expr = bind("rows.clear", *without.args) if without is not None and _is(without, "rows.without") else first
    for table in others:
        total = bind("add", total, table)
    for op, added, place in rows.values():
        total = bind(op, total, added, place)
    out[-1] = Binding(binding.var, out[-1].value)
    return out


def _terms(call: Call, made: Mapping[Var, Call], uses: Counter[Var]) -> list[Expr]:
    """What a sum and those that are part of it add up, in order."""
    out: list[Expr] = []
    todo: list[Expr] = [call]
    while todo:
        term = todo.pop()
        if isinstance(term, Call):
            todo += [
                made[a] if isinstance(a, Var) and _is_part(a, term, made, uses) else a for a in reversed(term.args)
            ]
        else:
            out.append(term)
    return out


def _rows(term: Expr, made: Mapping[Var, Call], uses: Counter[Var]) -> tuple[str, Expr, Expr] | None:
    """How a term that is zero but for some rows is added to a table: the operator, the rows and where they are."""
    call = made.get(term) if isinstance(term, Var) and uses[term] == 1 else None
    if call is None:
        return None
    if _is(call, "rows.place"):
        rows, begin, _ = call.args
        return "rows.add_from", rows, begin
    if not _is(call, "take.vjp0") or call.attrs.get("axis") != 0 or call.attrs.get("mode") not in ("clip", "fast"):
        return None
    _, index, rows = call.args
    at = type_of(index)
    if not isinstance(at, TensorType) or not isinstance(at.shape, tuple) or len(at.shape) != 1 or at.dtype != "int64":
        return None
    return None if call.attrs.get("batch_dims") else ("rows.add", rows, index)


def _is_part(term: Var, whole: Call, made: Mapping[Var, Call], uses: Counter[Var]) -> bool:
    """Whether a term of a sum is a sum itself, of the same type, that nothing else reads."""
    return uses[term] == 1 and term in made and _is_sum(made[term]) and made[term].ty == whole.ty


def _is_sum(call: Call) -> bool:
    """Whether a call adds two tables of the same rows."""
    ty = call.ty
    return (
        _is(call, "add")
        and isinstance(ty, TensorType)
        and isinstance(ty.shape, tuple)
        and len(ty.shape) > 1
        and ty.dtype in _DTYPES
        and all(type_of(a) == ty for a in call.args)
    )


def _is(call: Call, name: str) -> bool:
    return isinstance(call.fn, OpRef) and call.fn.name == name
