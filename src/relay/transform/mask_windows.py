"""Masks that hide keys by their distance: seen by what a program computes them from, however it spells that.

    cols <= rows + offset,   not (cols > rows),   where(cols <= rows, 0, -inf),   (1 - tril) * -inf,   a stored triangle
    cols <= rows and cols > rows - width,   abs(rows - cols) <= width,   a stored band

A mask is computed from the positions of its elements by operators with expressions. Composed, these are one expression of a
row and a key, and what is asked of it is whether it compares the two.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product

import numpy as np
import numpy.typing as npt

from relay import te
from relay.ir.diagnostics import RelayError
from relay.ir.dim import Dim, DimVar, SymDim, dim_add, dim_sub, dim_vars
from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, OpRef, Var
from relay.ir.record import record
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
    Unary,
    binary,
    cast,
    children,
    compare,
    select,
    transform,
    unary,
    walk,
)
from relay.te.tensor import Compute, Tensor
from relay.transform.build import type_of
from relay.transform.pattern import Definition
from relay.transform.primitive import PRIMITIVE

Array = npt.NDArray[np.generic]
# Comparisons in a mask that are looked at.
_MOST_COMPARISONS = 3
# Operations behind a mask that are looked at.
_MOST_STEPS = 32
_INTEGERS = ("int32", "int64")
# How many there are of a type's numbers that are not negative.
_COUNTED = {"int32": 1 << 31, "int64": 1 << 63}
# Whole numbers up to this are exact in a floating-point type; 16 bits are too few for positions.
_EXACT = {"float32": 1 << 24, "float64": 1 << 53}
_OTHERWISE = {"le": "gt", "lt": "ge", "ge": "lt", "gt": "le"}


@record(frozen=True, slots=True)
class Window:
    """The keys that a row sees: from ``before`` places before its own one to ``after`` places behind it; None: all there."""

    before: int | None = None
    after: int | None = None

    def __and__(self, other: Window) -> Window:
        """What both see."""

        def least(a: int | None, b: int | None) -> int | None:
            return b if a is None else a if b is None else min(a, b)

        return Window(least(self.before, other.before), least(self.after, other.after))


def window_of(mask: Expr, definition: Definition, rows: Dim, keys: Dim) -> Window | None:
    """The window of keys that a mask (..., rows, keys) of scores lets each row see, where it lets through exactly those: of booleans the
    true ones are let through, floats are 0 there and -inf elsewhere. Row ``r`` has its own place at key ``r + keys - rows``."""
    graph, stored = _computation(mask, definition)
    if graph is None:
        return None
    (out,) = graph.outputs
    if len(out.shape) < 2 or out.shape[-2:] != (rows, keys) or any(d != 1 for d in out.shape[:-2]):
        return None
    row, key = Axis("row", rows), Axis("key", keys)
    indices = Indices()
    value = _element(out, (row, key), indices, stored)
    if value is None:
        return None
    compared: list[Compare] = []
    for node in walk(value):
        if isinstance(node, Compare) and not any(isinstance(k, Compare) for k in _under(node)):
            compared += [] if any(same(node, c) for c in compared) else [node]
    if not 0 < len(compared) <= _MOST_COMPARISONS:
        return None
    seen, hidden = (True, False) if out.dtype == "bool" else (0.0, -np.inf)
    ways = list(product((True, False), repeat=len(compared)))
    answers = [_decided(value, dict(zip(map(id, compared), way, strict=True)), compared) for way in ways]
    if answers.count(seen) != 1 or answers.count(hidden) != len(ways) - 1:
        return None
    # Seen is exactly what all comparisons say in one way.
    apart = dim_add(dim_sub(indices.axis(row), indices.axis(key)), dim_sub(keys, rows))
    places = (indices.axis(row), indices.axis(key), *(d for d in (rows, keys) if isinstance(d, SymDim)))
    of = {v for d in places for v in dim_vars(d)}
    before, after = list[int](), list[int]()
    for comparison, truth in zip(compared, ways[answers.index(seen)], strict=True):
        rooms = _rooms(comparison, truth, of, rows == keys, indices)
        if rooms is None:
            return None
        for room in rooms:
            later, earlier = dim_sub(room, apart), dim_add(room, apart)
            if isinstance(later, int):
                after.append(later)
            elif isinstance(earlier, int):
                before.append(earlier)
            else:
                return None
    found = Window(*(min(bounds) if bounds else None for bounds in (before, after)))
    return found if all(n is None or n >= 0 for n in (found.before, found.after)) else None


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
    return Function(tuple(params), Block(tuple(lines), result, ty), ty, attrs=PRIMITIVE)


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
            found = _band(data, index)
            found = _positions(data, index) if found is None else found
        return found if found is not None else Load(tensor, index, tensor.dtype)

    zeros = (Const(0, "int64"),) * (len(out.shape) - 2)
    expander = Expander(indices, read)
    value = expander.evaluate(Load(out, (*zeros, *at), out.dtype), expander.frame({}))
    return None if any(isinstance(n, Load | Reduce) for n in walk(value)) else value


def _band(data: Array, index: Sequence[Scalar]) -> Scalar | None:
    """An element of a stored matrix that has one value between two diagonals and another outside of them, as comparisons."""
    if data.ndim < 2 or data.size != data.shape[-1] * data.shape[-2] or data.dtype.kind not in "bifu":
        return None
    height, width = data.shape[-2:]
    matrix = data.reshape(height, width)
    if not np.array_equal(matrix[1:, 1:], matrix[:-1, :-1]):
        return None
    # The diagonals, from the lowest to the highest, and where the value changes.
    diagonals = np.concatenate([matrix[::-1, 0], matrix[0, 1:]])
    changes = np.flatnonzero(diagonals[1:] != diagonals[:-1])
    if not 1 <= len(changes) <= 2 or (len(changes) == 2 and diagonals[0] != diagonals[-1]):
        return None
    dtype, first = str(data.dtype), 1 - height
    high = compare("le", index[-1], binary("add", index[-2], int(changes[-1]) + first))
    if len(changes) == 1:
        return select(high, Const(diagonals[0].item(), dtype), Const(diagonals[-1].item(), dtype))
    low = compare("ge", index[-1], binary("add", index[-2], int(changes[0]) + 1 + first))
    inside, outside = (Const(diagonals[n].item(), dtype) for n in (changes[-1], 0))
    return select(low, select(high, inside, outside), outside)


def _positions(data: Array, index: Sequence[Scalar]) -> Scalar | None:
    """An element of stored whole numbers that grow by the same along the one axis that has more than one, as arithmetic: of positions
    that were computed when the program was compiled."""
    wide = [n for n, size in enumerate(data.shape) if size != 1]
    if len(wide) != 1 or str(data.dtype) not in (*_INTEGERS, *_EXACT):
        return None
    if str(data.dtype) in _EXACT and not np.all((data == np.trunc(data)) & (np.abs(data) < _EXACT[str(data.dtype)])):
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
        case Unary(op="abs") if node.dtype == "int32" and node.a.dtype == "int64":
            return unary("abs", node.a)
        case Binary() if node.dtype == "int32" and node.a.dtype == node.b.dtype == "int64":
            return binary(node.op, node.a, node.b)
        case _:
            return node


def _whole(node: Scalar) -> Scalar | None:
    """Floats that are made of positions by adding and subtracting, in the same way of integers; None for others."""
    match node:
        case Const():
            value = float(node.value)
            return Const(int(value), "int64") if value.is_integer() else None
        case Cast():
            inner = transform(node.a, _in_int64)
            return inner if inner.dtype == "int64" else None
        case Binary(op="mul") if isinstance(node.b, Const) and node.b.value == 1:  # an arange is made with its step
            return _whole(node.a)
        case Binary(op="add" | "sub"):
            a, b = _whole(node.a), _whole(node.b)
            return None if a is None or b is None else binary(node.op, a, b)
        case Unary(op="abs" | "neg"):
            a = _whole(node.a)
            return None if a is None else unary(node.op, a)
        case _:
            return None


def _is_exact(node: Scalar, of: Collection[DimVar], indices: Indices) -> bool:
    """Whether floats made of integers are never rounded: no sum in them has more than three places or sizes ``of`` rows and keys in it.

    Queries of as many keys as there are of them have fewer than 4 million, the quarter of what a float32 counts: else their scores would
    take hours.
    """
    quarter = _EXACT[node.dtype] // 4
    places, numbers = 0, 0
    for part in walk(node):
        if isinstance(part, Const) and part.dtype == node.dtype:
            numbers += abs(int(part.value))
        elif isinstance(part, Cast) and part.dtype == node.dtype:
            sums = indices.poly(transform(part.a, _in_int64))
            if isinstance(sums, int):
                numbers += abs(sums)
            for monomial, factor in sums.terms if isinstance(sums, SymDim) else ():
                if not monomial:
                    numbers += abs(factor)
                elif len(monomial) == 1 and monomial[0][1] == 1 and monomial[0][0] in of:
                    places += abs(factor)
                else:
                    return False
    return places <= 3 and numbers <= quarter


def _stays_in_range(node: Scalar, of: Collection[DimVar], indices: Indices) -> bool:
    """Whether nothing in whole numbers made of places and sizes ``of`` rows and keys wraps around: what these count lies in memory, which
    is less than an eighth of what the type counts, and no sum has more than six of them in it, and a number of less than a quarter."""
    for part in walk(node):
        if part.dtype not in _COUNTED:
            continue
        counted = transform(part, _in_int64)
        if isinstance(counted, Unary) and counted.op == "abs":
            continue
        sums = indices.poly(counted)
        if isinstance(sums, int):
            places, numbers = 0, abs(sums)
        elif not isinstance(sums, SymDim) or any(v not in of for v in dim_vars(sums)):
            return False
        else:
            places = sum(abs(factor) for monomial, factor in sums.terms if monomial)
            numbers = sum(abs(factor) for monomial, factor in sums.terms if not monomial)
        if places > 6 or numbers >= _COUNTED[part.dtype] // 4:
            return False
    return True


def _rooms(decides: Compare, truth: bool, of: Collection[DimVar], square: bool, indices: Indices) -> list[Dim] | None:
    """Polynomials that are all 0 or more exactly where the comparison of two positions has this answer; ``of``: see `_is_exact`, which
    holds where there are as many rows as keys (``square``)."""
    sides = (decides.a, decides.b)
    if decides.a.dtype in _EXACT:
        made = [_whole(side) for side in sides]
        counted = of if square else ()
        found = [m for m, side in zip(made, sides, strict=True) if m is not None and _is_exact(side, counted, indices)]
    else:
        whole = [side for side in sides if _stays_in_range(side, of, indices)]
        found = [m for side in whole if (m := transform(side, _in_int64)).dtype == "int64"]
    if len(found) < 2:
        return None
    left, right = found
    op = decides.op if truth else _OTHERWISE.get(decides.op)
    if op in ("ge", "gt"):
        left, right, op = right, left, "le" if op == "ge" else "lt"
    if op not in ("le", "lt"):
        return None
    b = indices.poly(right)
    if op == "lt":
        b = dim_sub(b, 1)
    if isinstance(left, Unary) and left.op == "abs":
        a = indices.poly(left.a)
        return [dim_sub(b, a), dim_add(b, a)]
    return [dim_sub(b, indices.poly(left))]


def _decided(value: Scalar, truths: Mapping[int, bool], compared: Sequence[Compare]) -> bool | float | None:
    """The value where comparisons have these answers, if nothing else matters."""

    def close(node: Scalar) -> Scalar:
        for c in compared if isinstance(node, Compare) else ():
            if same(node, c):
                return Const(truths[id(c)], "bool")
        return node

    closed = transform(value, close)
    if not all(isinstance(n, Const) or children(n) for n in walk(closed)):
        return None
    stage = te.compute((), lambda: cast(closed, "float64" if value.dtype != "bool" else "bool"), "decided")
    (answer,) = evaluate([stage], {})
    return bool(answer) if value.dtype == "bool" else float(answer)


def _under(node: Scalar) -> list[Scalar]:
    return [n for k in children(node) for n in walk(k)]
