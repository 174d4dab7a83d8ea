"""Loops that add rows to a table do so in the table's memory.

    let %a = rows.without(%ct, %begin, %like);                    let %a = rows.clear(%ct, %begin, %like);
    let %b = take.vjp0(%ct, %index, %d, axis=0, mode="fast");  -> let %sum = rows.add(%a, %d, %index);
    let %sum = add(%a, %b);

The way back through levels is such a loop: what comes back to the results of all nodes is a table, of which a level reads its own rows,
and adds to those of its parts. As sums of tables each level would go through all nodes, so a tree as deep as it has nodes would take
time with the square of these. Sums are put in an order in which one table goes through them: tables first, then rows.

    let %b = take.vjp0(%state, %index, %d, axis=0);
    let %sum = rows.add_from(%a, %b, 0);               ->   let %sum = rows.add(%a, %d, %index);

The way back through a loop whose state grows adds to the rows that there were in an iteration; where few of them were looked up, to these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, cast

import numpy as np

from relay.ir.dim import Dim
from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, OpRef, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.ir.types import TensorType
from relay.op import registry
from relay.transform.base import Pass
from relay.transform.blocks import body_of, is_primitive, map_functions, nested_blocks, with_each_nested
from relay.transform.build import constant, internal_call, op_call, type_of
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
            elif _is(call, "rows.add_from"):
                inner.update(a for a in call.args[1:2] if isinstance(a, Var) and _is_sum_alone(a, made, uses))
    out: list[Binding] = []
    changed = False
    for binding in block.bindings:
        value: Expr = binding.value
        if nested_blocks(value):
            value = yield with_each_nested(value, lambda b: _block(b, uses))
        elif isinstance(value, Call) and binding.var not in inner:
            found = None
            if _is_sum(value):
                found = _sum(binding, value, made, uses)
            elif _is(value, "rows.add_from"):
                found = _added(binding, value, made, uses)
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
    rows = {n: r for n, t in enumerate(terms) if (r := _rows(t, made, uses)) is not None and _is_line(r)}
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


def _added(binding: Binding, call: Call, made: Mapping[Var, Call], uses: Counter[Var]) -> list[Binding] | None:
    """What is added to the first rows of a table, of which some is zero but for rows that were looked up; None where nothing is."""
    total, added, begin = call.args
    if not isinstance(begin, Constant) or int(np.asarray(begin.data)) != 0:
        return None
    terms = _terms(made[added], made, uses) if isinstance(added, Var) and _is_sum_alone(added, made, uses) else [added]
    # A term may be read for its size by another one.
    sizes = Counter(c.args[0] for t in terms if isinstance(t, Var) and (c := made.get(t)) and _is(c, "take.vjp0"))
    alone = Counter({t: uses[t] - sizes[t] for t in terms if isinstance(t, Var)})
    rows = {n: r for n, t in enumerate(terms) if (r := _rows(t, made, alone)) is not None and r[0] == "rows.add"}
    if not rows:
        return None
    ty, part = type_of(binding.var), type_of(added)
    assert isinstance(part, TensorType) and isinstance(part.shape, tuple)
    out: list[Binding] = []

    def bind(value: Call) -> Var:
        out.append(Binding(Var(binding.var.name, None, type_of(value)), value))
        return out[-1].var

    others = [t for n, t in enumerate(terms) if n not in rows]
    if others:
        whole = others[0]
        for other in others[1:]:
            whole = bind(internal_call("add", (whole, other), part))
        total = bind(internal_call("rows.add_from", (total, whole, begin), ty))
    size = bind(op_call("size_of", (), {"size": part.shape[0]}))
    last = bind(op_call("subtract", (size, constant(np.array(1, np.int64), "int64"))))
    for _, found, index in rows.values():
        # The table has more rows than the part: an index behind those of the part is of its last one.
        at: Expr = bind(op_call("cast", (index,), {"dtype": "int64"}))
        at = bind(op_call("minimum", (at, last)))
        if cast(TensorType, type_of(at)).shape == ():
            at, found = (bind(op_call("expand_dims", (a,), {"axis": 0})) for a in (at, found))
        total = bind(internal_call("rows.add", (total, found, at), ty))
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
    if not _is(call, "take.vjp0"):
        return None
    attrs = registry.get("take").complete_attrs(call.attrs)
    if attrs["axis"] != 0 or attrs["mode"] not in ("clip", "fast") or attrs["batch_dims"]:
        return None
    _, index, rows = call.args
    at = type_of(index)
    known = isinstance(at, TensorType) and isinstance(at.shape, tuple) and len(at.shape) <= 1
    return ("rows.add", rows, index) if known else None


def _is_line(found: tuple[str, Expr, Expr]) -> bool:
    """Whether rows are where the routines expect them to be told: at a line of indices, or from one number on."""
    op, _, at = found
    ty = cast(TensorType, type_of(at))
    return op == "rows.add_from" or (len(cast("tuple[Dim, ...]", ty.shape)) == 1 and ty.dtype == "int64")


def _is_part(term: Var, whole: Call, made: Mapping[Var, Call], uses: Counter[Var]) -> bool:
    """Whether a term of a sum is a sum itself, of the same type, that nothing else reads."""
    return uses[term] == 1 and term in made and _is_sum(made[term]) and made[term].ty == whole.ty


def _is_sum_alone(term: Var, made: Mapping[Var, Call], uses: Counter[Var]) -> bool:
    """Whether something is a sum of two tables of the same rows that one reads."""
    return uses[term] == 1 and term in made and _is_sum(made[term])


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
