"""Reductions over the rows of a tensor as folds over the list of the rows, and what is spelled out to be such: a mean, a softmax."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

from relay.ir.expr import Attrs, Binding, Block, Call, Expr, Function, OpRef, Tuple, Var
from relay.ir.types import TensorType, TupleType
from relay.transform.batching.row_loops import RowLoop
from relay.transform.build import op_call

# Reductions, and how one more row is put to what those before have given. Of dtypes that are added up as they are.
_PUTS = {"sum": "add", "max": "maximum", "min": "minimum"}
_DTYPES = ("float32", "float64", "int32", "int64")
_FIRST: Attrs = MappingProxyType({"axis": (0,)})
_FIRST_KEPT: Attrs = MappingProxyType({"axis": (0,), "keepdims": True})


def is_over_rows(call: Call, *names: str) -> bool:
    """Whether an operator of one of these names goes along the first axis of its operand alone."""
    ty = call.args[0].ty if call.args else None
    if not isinstance(call.fn, OpRef) or call.fn.name not in names or call.attrs.get("exclude", False):
        return False
    if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or ty.dtype not in _DTYPES:
        return False
    axis = call.attrs.get("axis", -1 if call.fn.name == "nn.softmax" else None)
    first = {0, -len(ty.shape)}
    return axis in first or (isinstance(axis, tuple) and len(axis) == 1 and axis[0] in first)


def put_over_rows(call: Call) -> str | None:
    """How a reduction over rows puts one more to what those before have given; None for anything else."""
    return _PUTS[call.fn.name] if is_over_rows(call, *_PUTS) and isinstance(call.fn, OpRef) else None


def accumulating(name: str, put: str, row: TensorType) -> RowLoop:
    """The loop that puts rows (its parameter 0) to what it is given to begin with (1)."""
    rows, before, one, after = (Var(hint, None, row) for hint in ("rows", "before", "row", "after"))
    nothing = Block((), Tuple(()), TupleType(()))
    step = Binding(after, op_call(put, (before, one)))
    return RowLoop(name, Function((rows, before), nothing), True, {one: 0}, {1: after}, {}, (step,), nothing)


def spelled(var: Var, call: Call, count: Callable[[], Expr]) -> list[Binding]:
    """A mean over rows, or a softmax along them, in operators that are reductions or do the same for each row, ``count`` giving how many
    there are."""
    out: list[Binding] = []

    def bind(name: str, args: tuple[Expr, ...], attrs: Attrs = MappingProxyType({})) -> Var:
        value = op_call(name, args, attrs)
        out.append(Binding(Var(var.name, None, value.ty), value))
        return out[-1].var

    (data,) = call.args
    if is_over_rows(call, "mean"):
        total = bind("sum", (data,), _FIRST_KEPT if call.attrs.get("keepdims", False) else _FIRST)
        result = bind("divide", (total, count()))
    else:
        weights = bind("exp", (bind("subtract", (data, bind("max", (data,), _FIRST_KEPT))),))
        result = bind("divide", (weights, bind("sum", (weights,), _FIRST_KEPT)))
    return [*out, Binding(var, result)]
