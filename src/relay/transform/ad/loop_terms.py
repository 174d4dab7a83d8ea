"""Terms of a sum over the iterations of a loop that can be computed for all iterations at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import field, replace
from itertools import islice
from typing import cast

from relay import te
from relay.ir.diagnostics import RelayError
from relay.ir.dim import Dim, DimVar, as_dim, is_any
from relay.ir.expr import Binding, Call, Constant, Expr, OpRef, Tuple, Var
from relay.ir.record import record
from relay.ir.types import TensorType, TupleType, Type
from relay.op import registry
from relay.te.scalar import Axis, Binary, Cast, Const, Load, Reduce, Scalar, Select, children, walk
from relay.te.tensor import Compute, Placeholder, Tensor
from relay.transform.ad.loop_tapes import Tapes
from relay.transform.ad.loops import keeps
from relay.transform.ad.terms import BEHIND_EACH_OTHER, Code
from relay.transform.blocks import with_operands
from relay.transform.build import op_call, type_of, zeros_of

_Given = tuple[tuple[Dim, ...], str]


@record(frozen=True, slots=True, eq=False)
class Collected:
    """A term of a cotangent whose sum over all iterations is one call: of ``call``'s operator, where the operands ``rows`` (by
    position) are those of all iterations, or the one of them is their sum."""

    call: Call
    rows: tuple[int, ...]
    stacked: bool  # rows of rows: one for each iteration; otherwise the iterations' own rows one after the other
    summed: bool = False


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


def of_a_sum(part: Expr | None, fixed: Set[Var]) -> Collected | None:
    """A term as one of the sum of what it is made of in all iterations: an operator that puts elements of one operand elsewhere, chooses
    among them or adds them up, and makes more of them than there are. None for other terms."""
    if not isinstance(part, Call) or not isinstance(part.fn, OpRef):
        return None
    varying = [n for n, a in enumerate(part.args) if not isinstance(a, Constant) and a not in fixed]
    if len(varying) != 1 or not isinstance(part.args[varying[0]], Var):
        return None
    if not _is_larger(type_of(part), type_of(part.args[varying[0]])) or any(_count(a) != 1 for a in part.args):
        return None
    traced = _traced(part, {})
    stage = None if traced is None else _only_stage(traced)
    if traced is None or stage is None:
        return None
    body = stage.bodies[0]
    body = body.body if isinstance(body, Reduce) and body.kind == "sum" else body
    return Collected(part, (varying[0],), False, True) if _is_linear(body, traced.inputs[varying[0]].stage) else None


def _is_larger(ty: Type, other: Type) -> bool:
    """Whether a tensor has more elements than another, as far as that is known."""
    if not isinstance(ty, TensorType) or not isinstance(other, TensorType):
        return False
    shapes = ty.shape, other.shape
    if not isinstance(shapes[0], tuple) or not isinstance(shapes[1], tuple):
        return False
    if all(isinstance(d, int) for d in (*shapes[0], *shapes[1])):
        return _elements(ty) > _elements(other)
    return len(shapes[0]) > len(shapes[1])


def _is_linear(body: Scalar, source: object) -> bool:
    """Whether an expression is an element of this tensor, or zero, as conditions say that do not read it: so that it is zero of zeros,
    and its sum that of the sum."""
    match body:
        case Select(cond=cond, a=a, b=b):
            reads_it = any(
                isinstance(n, Load) and isinstance(n.source, Tensor) and n.source.stage is source for n in walk(cond)
            )
            return not reads_it and _is_linear(a, source) and _is_linear(b, source)
        case Load(source=Tensor() as tensor, indices=indices):
            return tensor.stage is source and not any(isinstance(n, Load) for i in indices for n in walk(i))
        case Const(value=0):
            return True
        case _:
            return False


def nothing_of_zeros(part: Expr | None, fixed: Set[Var]) -> Collected | None:
    """A term as `collected`, where it is nothing but products of elements of rows, added up to a tensor that has more of them than the
    rows, or a row at an index, or as `of_a_sum`: then rows of zeros add nothing, whatever the other rows are (and to a tensor without
    rows there is nothing to add). None for other terms."""
    found = collected(part, fixed)
    if found is None:
        return of_a_sum(part, fixed)
    if found.stacked:
        return found
    found = without_unread_rows(found)
    result = type_of(found.call)
    types = [type_of(found.call.args[n]) for n in found.rows]
    if not isinstance(result, TensorType) or not isinstance(result.shape, tuple):
        return None
    ranks = [len(t.shape) for t in types if isinstance(t, TensorType) and isinstance(t.shape, tuple)]
    if len(ranks) < len(types) or len(result.shape) < max(ranks):
        return None
    total = _sum_over_rows(found.call, found.rows)
    return found if total is not None and _is_zero_of_zeros(*total) else None


def _is_zero_of_zeros(total: Reduce, rows: Set[object]) -> bool:
    """Whether the terms of a sum are nothing but products of elements of rows, all or as a condition says: of zeros they are zero."""
    todo: list[Scalar] = [total.body]
    while todo:
        match todo.pop():
            case Binary(op="mul", a=a, b=b) | Select(a=a, b=b):
                todo += (a, b)
            case Cast(a=a):
                todo.append(a)
            case Load(source=Tensor() as source) if source.stage in rows:
                pass
            case Const(value=0):
                pass
            case _:
                return False
    return True


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


def without_unread(bindings: Iterable[Binding], given: Iterable[Expr], fixed: frozenset[DimVar]) -> list[Binding]:
    """The bindings, where operands that tell only their type are values of the same type that are there anyway (``given`` or made before),
    or zeros of sizes that all iterations share."""
    there = {type_of(e): e for e in given}
    code = Code()

    def stands_in(ty: Type) -> Expr | None:
        if ty not in there and isinstance(ty, TensorType) and keeps(ty, fixed):
            there[ty] = code.bind(zeros_of(ty), "unread")
        if ty not in there and isinstance(ty, TupleType):
            fields = [stands_in(f) for f in ty.fields]
            if None not in fields:
                there[ty] = code.bind(Tuple(tuple(cast("list[Expr]", fields)), ty), "unread")
        return there.get(ty)

    for b in bindings:
        if isinstance(b.value, Call) and isinstance(b.value.fn, OpRef):
            read = reads(b.value)
            args = enumerate(b.value.args)
            new = [a if n in read or not isinstance(a, Var) else stands_in(type_of(a)) or a for n, a in args]
            b = Binding(b.var, with_operands(b.value, (b.value.fn, *new)))
        code.bindings.append(b)
        there.setdefault(type_of(b.var), b.var)
    return code.bindings


def reads_one_row(call: Call) -> bool:
    """Whether this is the cotangent of ``x`` in ``take(x, i)``, a row of x, or in ``gather_nd(x, i)`` at one place."""
    assert isinstance(call.fn, OpRef)
    if call.fn.name not in ("take.vjp0", "gather_nd.vjp0") or call.attrs.get("batch_dims", 0) != 0:
        return False
    data, index = type_of(call.args[0]), type_of(call.args[1])
    if not isinstance(data, TensorType) or not isinstance(data.shape, tuple) or not isinstance(index, TensorType):
        return False
    if call.fn.name == "gather_nd.vjp0":
        return isinstance(index.shape, tuple) and len(index.shape) == 1
    axis = call.attrs.get("axis")
    return index.shape == () and (axis == 0 or (len(data.shape) == 1 and axis in (None, -1)))


def operand_of_rows(code: Code, operator: str, position: int, rows: Expr, stacked: bool) -> Expr:
    """The rows of all iterations, which stand in rows of their own, as an operand of a term."""
    if not stacked:
        return code.bind(op_call("reshape", (rows,), BEHIND_EACH_OTHER), "rows")
    if operator == "gather_nd.vjp0" and position == 1:
        return code.bind(op_call("transpose", (rows,), {"axes": (1, 0)}), "rows")  # an index vector is a column
    return rows


def sums_over_rows(call: Call, rows: Sequence[int]) -> bool:
    """Whether a call is a sum over the leading axis of its operands ``rows``, of terms that each read one row of these: then the sum
    of several such calls is the call on all their rows."""
    return _sum_over_rows(call, rows) is not None


def _sum_over_rows(call: Call, rows: Sequence[int]) -> tuple[Reduce, Set[object]] | None:
    """The sum that such a call is, and the stages that its rows are."""
    shapes: list[tuple[Dim, ...]] = []
    for a in call.args:
        ty = type_of(a)
        if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or any(map(is_any, ty.shape)):
            return None
        shapes.append(ty.shape)
    if len({shapes[n][:1] for n in rows}) != 1 or not shapes[rows[0]]:
        return None
    many = as_dim(DimVar("rows"))
    traced = _traced(call, dict.fromkeys(rows, many))
    stage = None if traced is None else _only_stage(traced)
    if traced is None or stage is None or any(axis.extent == many for axis in stage.axes):
        return None
    sources: Set[object] = {traced.inputs[n].stage for n in rows}
    body = stage.bodies[0]
    if not isinstance(body, Reduce) or body.kind != "sum" or not _is_over_rows(body, sources):
        return None
    return body, sources


def reads(call: Call) -> frozenset[int]:
    """The operands whose elements an operator reads, by position; all of them where that is not known."""
    every = frozenset(range(len(call.args)))
    traced = _traced(call, {})
    if traced is None:
        return every
    stages = set(te.stages(traced.outputs))
    inputs = iter(traced.inputs)
    given = [[t.stage for t in islice(inputs, _count(a))] for a in call.args]
    return frozenset(n for n in every if not stages.isdisjoint(given[n]))


def _count(operand: Expr) -> int:
    """How many tensors an operand is."""
    ty = type_of(operand)
    return len(ty.fields) if isinstance(ty, TupleType) else 1


def _traced(call: Call, leading: Mapping[int, Dim]) -> registry.Traced | None:
    """What defines a call of an operator, with other sizes for the first axes of some operands; None where nothing does."""
    assert isinstance(call.fn, OpRef)
    if not registry.exists(call.fn.name):
        return None
    op = registry.get(call.fn.name)
    if op.kind != "expression" or op.by_routine or op.shape_mode != "independent" or len(op.inputs) != len(call.args):
        return None
    given: list[_Given | list[_Given]] = []
    for n, (spec, a) in enumerate(zip(op.inputs, call.args, strict=True)):
        group: list[_Given] = []
        ty = type_of(a)
        for t in ty.fields if spec.variadic and isinstance(ty, TupleType) else (ty,):
            if not isinstance(t, TensorType) or not isinstance(t.shape, tuple) or not isinstance(t.dtype, str):
                return None
            group.append(((leading[n], *t.shape[1:]) if n in leading else t.shape, t.dtype))
        given.append(group if spec.variadic else group[0])
    try:
        return registry.trace(op, given, call.attrs)
    except (te.Undetermined, te.DefinitionError, RelayError):
        return None


def _only_stage(traced: registry.Traced) -> Compute | None:
    """The stage that makes the one result of an operator which demands nothing of its operands."""
    stages = [s for s in te.stages(traced.outputs) if not isinstance(s, Placeholder)]
    if len(stages) != 1 or not isinstance(stages[0], Compute) or len(stages[0].bodies) != 1 or traced.demands:
        return None
    return stages[0]


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
    assert isinstance(term.call.fn, OpRef)
    operator, args = term.call.fn.name, list(term.call.args)
    # Rows one after the other only ever meet rows in the same order.
    even = [row for n in term.rows if layout.count(row := cast(Var, args[n])) is None]
    turned = rows_of.turned(even)
    for n in term.rows:
        row = cast(Var, args[n])
        rows = rows_of.rows(row, turned)
        if layout.count(row) is None:
            rows = operand_of_rows(code, operator, n, rows, term.stacked)
        args[n] = rows
    return code.bind(op_call(operator, args, term.call.attrs), "d")
