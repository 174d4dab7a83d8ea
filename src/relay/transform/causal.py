"""Masks that hide later keys: seen by what a program computes them from, however it spells that.

    cols <= rows + offset,   not (cols > rows),   where(cols <= rows, 0, -inf),   (1 - tril) * -inf,   a stored triangle

A mask is computed from the positions of its elements by operators with expressions. Composed, these are one expression of a
row and a key, and what is asked of it is whether it compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from relay import te
from relay.ir.diagnostics import RelayError
from relay.ir.dim import Dim, dim_add, dim_sub
from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, OpRef, Var
from relay.ir.types import Type
from relay.loop.walk import same
from relay.op import registry
from relay.plan.expand import Expander, Inline
from relay.plan.graph import TeGraph, te_graph, tensor_key
from relay.te.evaluate import evaluate
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Binary,
    Cast,
    Compare,
    Const,
    Load,
    Reduce,
    Scalar,
    binary,
    cast,
    children,
    compare,
    select,
    transform,
    walk,
)
from relay.te.tensor import Compute, Tensor
from relay.transform.build import type_of
from relay.transform.pattern import Definition

Array = npt.NDArray[np.generic]
# Operations behind a mask that are looked at.
_MOST_STEPS = 32
_INTEGERS = ("int32", "int64")


def hides_later_keys(mask: Expr, definition: Definition, rows: Dim, keys: Dim) -> bool:
    """Whether a mask (..., rows, keys) of scores lets row ``r`` see exactly the keys up to ``r + keys - rows``: of booleans the
    true ones are let through, floats are 0 there and -inf elsewhere."""
    graph, stored = _computation(mask, definition)
    if graph is None:
        return False
    (out,) = graph.outputs
    if len(out.shape) < 2 or out.shape[-2:] != (rows, keys) or any(d != 1 for d in out.shape[:-2]):
        return False
    row, key = Axis("row", rows), Axis("key", keys)
    indices = Indices()
    value = _element(out, (row, key), indices, stored)
    if value is None:
        return False
    compared = [n for n in walk(value) if isinstance(n, Compare) and not any(isinstance(k, Compare) for k in _under(n))]
    if not compared or any(not same(c, compared[0]) for c in compared):
        return False
    room = _room(compared[0], indices)
    if room is None:
        return False
    wanted = dim_add(dim_sub(indices.axis(row), indices.axis(key)), dim_sub(keys, rows))
    answers = [_decided(value, compared[0], truth) for truth in (True, False)]
    seen, hidden = (True, False) if out.dtype == "bool" else (0.0, -np.inf)
    if answers == [seen, hidden]:
        return room == wanted
    # Hidden where the room is 0 or more: seen where one less than what is missing is.
    return answers == [hidden, seen] and dim_sub(-1, room) == wanted


def _computation(mask: Expr, definition: Definition) -> tuple[TeGraph | None, Mapping[tuple[int, int], Array]]:
    """What computes a mask from constants and sizes alone, and the data of its inputs."""
    bindings: dict[Var, Call] = {}
    todo: list[tuple[Expr, bool]] = [(mask, False)]
    while todo:
        atom, ready = todo.pop()
        value = definition(atom)
        if isinstance(value, Constant) or (isinstance(atom, Var) and atom in bindings):
            continue
        if not isinstance(atom, Var) or not isinstance(value, Call) or not isinstance(value.fn, OpRef):
            return None, {}
        if not registry.exists(value.fn.name) or len(bindings) == _MOST_STEPS:
            return None, {}
        op = registry.get(value.fn.name)
        if op.kind not in ("expression", "view") or op.by_routine or op.shape_mode != "independent":
            return None, {}
        if ready:
            bindings[atom] = value
        else:
            todo.append((atom, True))
            todo += [(a, False) for a in value.args if not (isinstance(a, Var) and a in bindings)]
    params: dict[int, tuple[Var, Array]] = {}

    def operand(atom: Expr) -> Expr:
        value = definition(atom)
        if not isinstance(value, Constant) or value.data.size == 1:
            return value if isinstance(value, Constant) else atom
        found = params.get(id(value))
        if found is None:
            found = params[id(value)] = Var("stored", None, type_of(value)), np.asarray(value.data)
        return found[0]

    lines = [
        Binding(v, Call(c.fn, tuple(operand(a) for a in c.args), c.attrs, c.type_args, c.ty))
        for v, c in bindings.items()
    ]
    result, ty = operand(mask), type_of(mask)
    try:
        graph = te_graph(_primitive([v for v, _ in params.values()], lines, result, ty))
    except RelayError:
        return None, {}
    data = [d for _, d in params.values()]
    return graph, {tensor_key(t): d for t, d in zip(graph.inputs, data, strict=True)}


def _primitive(params: Sequence[Var], lines: Sequence[Binding], result: Expr, ty: Type) -> Function:
    return Function(tuple(params), Block(tuple(lines), result, ty), ty, attrs=MappingProxyType({"Primitive": 1}))


def _element(
    out: Tensor, at: tuple[Scalar, Scalar], indices: Indices, stored: Mapping[tuple[int, int], Array]
) -> Scalar | None:
    """The element of the mask at a row and a key; None where it depends on anything else."""

    def read(tensor: Tensor, index: tuple[Scalar, ...]) -> Scalar | Inline:
        if isinstance(tensor.stage, Compute) and not isinstance(tensor.stage.bodies[tensor.index], Reduce):
            return Inline(tensor.stage, tensor.index)
        data = stored.get(tensor_key(tensor))
        found: Scalar | None = None
        if data is not None:
            found = _triangle(data, index)
            found = _positions(data, index) if found is None else found
        return found if found is not None else Load(tensor, index, tensor.dtype)

    zeros = (Const(0, "int64"),) * (len(out.shape) - 2)
    expander = Expander(indices, read)
    value = expander.evaluate(Load(out, (*zeros, *at), out.dtype), expander.frame({}))
    return None if any(isinstance(n, Load | Reduce) for n in walk(value)) else value


def _triangle(data: Array, index: Sequence[Scalar]) -> Scalar | None:
    """An element of a stored matrix that has one value up to a diagonal and another above it, as a comparison."""
    if data.ndim < 2 or data.size != data.shape[-1] * data.shape[-2] or data.dtype.kind not in "bifu":
        return None
    height, width = data.shape[-2:]
    matrix = data.reshape(height, width)
    low, high = matrix[-1, 0], matrix[0, -1]
    if low == high:
        return None
    diagonal = int((matrix[0] == low).sum()) - 1
    below = np.arange(width) <= np.arange(height)[:, None] + diagonal
    if not np.array_equal(matrix, np.where(below, low, high)):
        return None
    dtype = str(data.dtype)
    here = compare("le", index[-1], binary("add", index[-2], diagonal))
    return select(here, Const(low.item(), dtype), Const(high.item(), dtype))


def _positions(data: Array, index: Sequence[Scalar]) -> Scalar | None:
    """An element of stored integers that grow by the same along the one axis that has more than one, as arithmetic: of positions that
    were computed when the program was compiled."""
    wide = [n for n, size in enumerate(data.shape) if size != 1]
    if len(wide) != 1 or str(data.dtype) not in _INTEGERS:
        return None
    values = data.reshape(-1).astype(np.int64)
    steps = np.diff(values)
    if not len(steps) or np.any(steps != steps[0]):
        return None
    here = binary("add", binary("mul", index[wide[0]], int(steps[0])), int(values[0]))
    return cast(here, str(data.dtype))


def _in_int64(node: Scalar) -> Scalar:
    """Integers that stand for positions, as positions: what they count lies in memory, so none is beyond their range."""
    match node:
        case Const() if node.dtype == "int32":
            return Const(int(node.value), "int64")
        case Cast() if node.dtype in _INTEGERS and node.a.dtype == "int64":
            return node.a
        case Binary() if node.dtype == "int32" and node.a.dtype == node.b.dtype == "int64":
            return binary(node.op, node.a, node.b)
        case _:
            return node


def _room(decides: Compare, indices: Indices) -> Dim | None:
    """A polynomial that is 0 or more exactly where the comparison of two integers holds."""
    left, right = (transform(operand, _in_int64) for operand in (decides.a, decides.b))
    if left.dtype != "int64" or right.dtype != "int64":
        return None
    a, b = indices.poly(left), indices.poly(right)
    match decides.op:
        case "le":
            return dim_sub(b, a)
        case "lt":
            return dim_sub(dim_sub(b, a), 1)
        case "ge":
            return dim_sub(a, b)
        case "gt":
            return dim_sub(dim_sub(a, b), 1)
        case _:
            return None


def _decided(value: Scalar, decides: Compare, truth: bool) -> bool | float | None:
    """The value where a comparison has this answer, if nothing else matters."""
    closed = transform(value, lambda n: Const(truth, "bool") if isinstance(n, Compare) and same(n, decides) else n)
    if not all(isinstance(n, Const) or children(n) for n in walk(closed)):
        return None
    stage = te.compute((), lambda: cast(closed, "float64" if value.dtype != "bool" else "bool"), "decided")
    (answer,) = evaluate([stage], {})
    return bool(answer) if value.dtype == "bool" else float(answer)


def _under(node: Scalar) -> list[Scalar]:
    return [n for k in children(node) for n in walk(k)]
