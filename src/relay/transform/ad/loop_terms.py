"""Terms of a sum over the iterations of a loop that can be computed for all iterations at once."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from dataclasses import field, replace
from typing import cast

from relay import te
from relay.ir.diagnostics import RelayError
from relay.ir.dim import Dim, DimVar, as_dim, is_any
from relay.ir.expr import Call, Constant, Expr, OpRef, Var
from relay.ir.record import record
from relay.ir.types import TensorType, Type
from relay.op import registry
from relay.te.scalar import Axis, Binary, Load, Reduce, Scalar, children
from relay.te.tensor import Compute, Placeholder, Tensor
from relay.transform.ad.loop_tapes import Tapes
from relay.transform.ad.terms import BEHIND_EACH_OTHER, Code
from relay.transform.blocks import with_operands
from relay.transform.build import op_call, type_of


@record(frozen=True, slots=True, eq=False)
class Collected:
    """A term of a cotangent whose sum over all iterations is one call: of ``call``'s operator, where the operands ``rows`` (by
    position) are those of all iterations."""

    call: Call
    rows: tuple[int, ...]
    stacked: bool  # rows of rows: one for each iteration; otherwise the iterations' own rows one after the other


def collected(part: Expr | None, fixed: Set[Var]) -> Collected | None:
    """A term as one that can be computed at once; ``fixed`` is what is the same in all iterations. None for other terms."""
    if not isinstance(part, Call) or not isinstance(part.fn, OpRef):
        return None
    rows: list[int] = []
    for n, a in enumerate(part.args):
        if isinstance(a, Var) and a not in fixed:
            rows.append(n)
        elif not isinstance(a, Var | Constant):
            return None
    types = [type_of(part.args[n]) for n in rows]
    if not types or not all(isinstance(t, TensorType) for t in types):
        return None
    if reads_one_row(part) and rows == [1, 2]:
        return Collected(part, (1, 2), True)
    found = tuple(rows)
    return Collected(part, found, False) if sums_over_rows(part, found) else None


@record(slots=True, eq=False)
class Rows:
    """The rows of all iterations, by what they are in one: ``tapes`` from the first one on, ``columns`` from the last one on. Where
    both meet, those with less in them are turned around."""

    code: Code
    tapes: dict[Var, Expr]
    columns: dict[Var, Expr]
    reversed: dict[Var, Expr] = field(default_factory=dict)

    def turned(self, rows: Sequence[Var]) -> frozenset[Var]:
        """Those of some rows to turn around, so that all are in one order."""
        sides = [v for v in rows if v not in self.columns], [v for v in rows if v in self.columns]
        return frozenset(min(sides, key=lambda vs: sum(_elements(type_of(v)) for v in vs)))

    def rows(self, v: Var, turned: frozenset[Var]) -> Expr:
        """The rows of all iterations of one value."""
        found = self.columns[v] if v in self.columns else self.tapes[v]
        if v not in turned:
            return found
        if v not in self.reversed:
            self.reversed[v] = self.code.bind(op_call("reverse", (found,), {"axis": 0}), v.name)
        return self.reversed[v]


def _elements(ty: Type) -> int:
    """How many elements a row has, as far as its sizes are numbers."""
    assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple)
    return math.prod(d for d in ty.shape if isinstance(d, int))


def summed_products(part: Expr | None, fixed: Set[Var]) -> Collected | None:
    """A term as `collected`, where it is nothing but products of elements of rows, added up to a tensor that has more of them than the
    rows: then rows of zeros add nothing, whatever the other rows are. None for other terms, and for a row at an index: of a tensor without
    rows there is none."""
    found = collected(part, fixed)
    if found is None or found.stacked:
        return None
    found = without_unread_rows(found)
    result = type_of(found.call)
    types = [type_of(found.call.args[n]) for n in found.rows]
    if not isinstance(result, TensorType) or not isinstance(result.shape, tuple):
        return None
    ranks = [len(t.shape) for t in types if isinstance(t, TensorType) and isinstance(t.shape, tuple)]
    if len(ranks) < len(types) or len(result.shape) < max(ranks):
        return None
    total = _sum_over_rows(found.call, found.rows)
    todo: list[Scalar] = [] if total is None else [total.body]
    while todo:
        match todo.pop():
            case Binary(op="mul", a=a, b=b):
                todo += (a, b)
            case Load():
                pass
            case _:
                return None
    return None if total is None else found


def without_unread_rows(term: Collected) -> Collected:
    """The term, where rows that tell only their type are other rows of this type."""
    args, read = list(term.call.args), reads(term.call)
    there = {type_of(args[n]): args[n] for n in term.rows if n in read}
    for n in term.rows:
        if n not in read:
            args[n] = there.get(type_of(args[n]), args[n])
    call = with_operands(term.call, (term.call.fn, *args))
    assert isinstance(call, Call)
    return replace(term, call=call)


def reads_one_row(call: Call) -> bool:
    """Whether this is the cotangent of ``x`` in ``take(x, i)``, a row of x."""
    assert isinstance(call.fn, OpRef)
    if call.fn.name != "take.vjp0" or call.attrs.get("batch_dims", 0) != 0:
        return False
    data, index = type_of(call.args[0]), type_of(call.args[1])
    if not isinstance(data, TensorType) or not isinstance(data.shape, tuple) or not isinstance(index, TensorType):
        return False
    axis = call.attrs.get("axis")
    return index.shape == () and (axis == 0 or (len(data.shape) == 1 and axis in (None, -1)))


def sums_over_rows(call: Call, rows: Sequence[int]) -> bool:
    """Whether a call is a sum over the leading axis of its operands ``rows``, of terms that each read one row of these: then the sum
    of several such calls is the call on all their rows."""
    return _sum_over_rows(call, rows) is not None


def _sum_over_rows(call: Call, rows: Sequence[int]) -> Reduce | None:
    """The sum that such a call is."""
    assert isinstance(call.fn, OpRef)
    if not registry.exists(call.fn.name):
        return None
    op = registry.get(call.fn.name)
    if op.kind != "expression" or op.by_routine or op.shape_mode != "independent" or any(s.variadic for s in op.inputs):
        return None
    many = as_dim(DimVar("rows"))
    given: list[tuple[tuple[Dim, ...], str]] = []
    leading: set[Dim] = set()
    for n, a in enumerate(call.args):
        ty = type_of(a)
        if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or not isinstance(ty.dtype, str):
            return None
        shape = ty.shape
        if any(is_any(d) for d in shape):
            return None
        if n in rows:
            if not shape:
                return None
            leading.add(shape[0])
            shape = (many, *shape[1:])
        given.append((shape, ty.dtype))
    if len(leading) != 1:
        return None
    try:
        traced = registry.trace(op, given, call.attrs)
    except (te.Undetermined, te.DefinitionError, RelayError):
        return None
    stages = [s for s in te.stages(traced.outputs) if not isinstance(s, Placeholder)]
    if len(stages) != 1 or not isinstance(stages[0], Compute) or len(stages[0].bodies) != 1 or traced.demands:
        return None
    stage = stages[0]
    if any(axis.extent == many for axis in stage.axes):
        return None
    sources = {traced.inputs[n].stage for n in rows}
    body = stage.bodies[0]
    return body if isinstance(body, Reduce) and body.kind == "sum" and _is_over_rows(body, sources) else None


def reads(call: Call) -> frozenset[int]:
    """The operands whose elements an operator reads, by position; all of them where that is not known."""
    assert isinstance(call.fn, OpRef)
    every = frozenset(range(len(call.args)))
    if not registry.exists(call.fn.name):
        return every
    op = registry.get(call.fn.name)
    if op.kind != "expression" or op.by_routine or op.shape_mode != "independent" or any(s.variadic for s in op.inputs):
        return every
    given: list[tuple[tuple[Dim, ...], str]] = []
    for a in call.args:
        ty = type_of(a)
        if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or not isinstance(ty.dtype, str):
            return every
        given.append((ty.shape, ty.dtype))
    try:
        traced = registry.trace(op, given, call.attrs)
    except (te.Undetermined, te.DefinitionError, RelayError):
        return every
    stages = set(te.stages(traced.outputs))
    return frozenset(n for n in every if traced.inputs[n].stage in stages)


def _is_over_rows(total: Reduce, sources: Set[object]) -> bool:
    """Whether one axis of a sum is the row of every load from the sources, and is nothing else."""
    found: set[Axis] = set()
    todo: list[Scalar] = [total.body]
    others: set[Scalar] = set()
    while todo:
        node = todo.pop()
        if isinstance(node, Load) and isinstance(node.source, Tensor) and node.source.stage in sources:
            first, *rest = node.indices
            if not isinstance(first, Axis):
                return False
            found.add(first)
            todo += rest
        elif isinstance(node, Axis):
            others.add(node)
        else:
            todo += children(node)
    return len(found) == 1 and not found & others and next(iter(found)) in total.axes


def at_once(code: Code, term: Collected, rows_of: Rows, layout: Tapes) -> Expr:
    """A term for all iterations."""
    args = list(term.call.args)
    # Rows one after the other only ever meet rows in the same order.
    even = [row for n in term.rows if layout.count(row := cast(Var, args[n])) is None]
    turned = rows_of.turned(even)
    for n in term.rows:
        row = cast(Var, args[n])
        rows = rows_of.rows(row, turned)
        if not term.stacked and layout.count(row) is None:
            rows = code.bind(op_call("reshape", (rows,), BEHIND_EACH_OTHER))
        args[n] = rows
    assert isinstance(term.call.fn, OpRef)
    return code.bind(op_call(term.call.fn.name, args, term.call.attrs), "d")
