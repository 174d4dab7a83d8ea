"""Calls seen as products of matrices, and what their operands are."""

from __future__ import annotations

from itertools import permutations
from typing import TypeVar, cast

from relay.ir.dim import ANY, Dim, known_equal
from relay.ir.expr import Call, Constant, Expr, OpRef, Tuple
from relay.ir.record import record
from relay.ir.types import TensorType, is_float
from relay.op import registry
from relay.op.contractions import equation_labels
from relay.transform.build import type_of
from relay.transform.pattern import Definition

_T = TypeVar("_T")


@record(frozen=True, slots=True, eq=False)
class MatrixProduct:
    """A product of matrices: ``left`` (..., m, k) by ``right`` (..., n, k), (..., m, n), each after its axes were put in this order. The
    last ``shared`` of the left operand's leading axes are not the right one's: matrices there share one."""

    left: Expr
    right: Expr
    left_axes: tuple[int, ...]
    right_axes: tuple[int, ...]
    axes: tuple[int, ...]
    shared: int = 0


def matrix_products(value: Expr, definition: Definition) -> list[MatrixProduct]:
    """The ways to see a value as a product of matrices: an einsum says nothing of which operand is the left one."""
    if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or not registry.exists(value.fn.name):
        return []
    name = value.fn.name
    if name == "einsum":
        return _einsum_products(value, definition)
    if name not in ("nn.batch_matmul", "nn.matmul", "nn.dense") or len(value.args) != 2:
        return []
    attrs = registry.get(name).complete_attrs(value.attrs)
    left, right = value.args
    if not _multiplies(value, left, right) or not all(map(is_sized, (value, left, right))):
        return []
    rank = len(shape_of(value) or ())
    if len(shape_of(left) or ()) != rank or len(shape_of(right) or ()) != rank:
        return []
    plain = tuple(range(rank))
    by_rows = name == "nn.dense" or attrs["transpose_b"]
    left_axes = exchanged(plain) if attrs.get("transpose_a", False) else plain
    return [MatrixProduct(left, right, left_axes, plain if by_rows else exchanged(plain), plain)]


def _einsum_products(value: Call, definition: Definition) -> list[MatrixProduct]:
    operands = definition(value.args[0])
    result = shape_of(value)
    if not isinstance(operands, Tuple) or len(operands.fields) != 2 or result is None:
        return []
    shapes = [shape_of(e) for e in operands.fields]
    known = [s for s in shapes if s is not None]
    if len(known) != 2 or not all(map(is_sized, (value, *operands.fields))):
        return []
    (a, b), out = equation_labels(str(value.attrs["equation"]), [len(s) for s in known])
    sizes = {**dict(zip(a, known[0], strict=True)), **dict(zip(b, known[1], strict=True))}
    if any(
        not known_equal(sizes[x], d)
        for labels, s in zip((a, b), known, strict=True)
        for x, d in zip(labels, s, strict=True)
    ):
        return []
    if len(set(a)) != len(a) or len(set(b)) != len(b):
        return []
    both = [x for x in a if x in b and x in out]
    over = [x for x in a if x in b and x not in out]
    found: list[MatrixProduct] = []
    for (left, mine), (right, other) in permutations(zip(operands.fields, (a, b), strict=True)):
        rows, columns = ([x for x in labels if x not in both and x not in over] for labels in (mine, other))
        if len(over) != 1 or not rows or len(columns) != 1 or not _multiplies(value, left, right):
            continue
        if any(x not in out for x in (*rows, *columns)):
            continue
        for order in (out, mine):  # the result's, or that of the left operand
            batch, own = ([x for x in order if x in labels] for labels in (both, rows))
            left_axes = tuple(mine.index(x) for x in (*batch, *own, *over))
            right_axes = tuple(other.index(x) for x in (*batch, *columns, *over))
            axes = tuple(out.index(x) for x in (*batch, *own, *columns))
            found.append(MatrixProduct(left, right, left_axes, right_axes, axes, len(rows) - 1))
    return found


def _multiplies(value: Call, left: Expr, right: Expr) -> bool:
    """Whether floats are multiplied and summed in their own type, none of them a constant on the right."""
    kind, result = type_of(left), value.ty
    if not isinstance(kind, TensorType) or not isinstance(result, TensorType) or kind.dtype != result.dtype:
        return False
    return isinstance(kind.dtype, str) and is_float(kind.dtype) and not isinstance(right, Constant)


def turned(product: MatrixProduct) -> list[MatrixProduct]:
    """The same product with its operands in the other order, if the one that becomes the right one may be that."""
    if product.shared or isinstance(product.left, Constant):
        return []
    p = product
    return [MatrixProduct(p.right, p.left, p.right_axes, p.left_axes, exchanged(p.axes))]


def exchanged(axes: tuple[_T, ...]) -> tuple[_T, ...]:
    """The same with the last two exchanged."""
    return (*axes[:-2], axes[-1], axes[-2])


def in_order(axes: tuple[int, ...]) -> bool:
    return axes == tuple(range(len(axes)))


def is_view(step: Call) -> bool:
    """Whether this is a call of an operator that only sees its operand in another shape."""
    return isinstance(step.fn, OpRef) and registry.exists(step.fn.name) and registry.get(step.fn.name).kind == "view"


def exchanges_last(step: Call) -> bool:
    """Whether this exchanges the last two axes."""
    if not isinstance(step.fn, OpRef) or step.fn.name != "transpose":
        return False
    rank = len(shape_of(step) or ())
    axes = cast("tuple[int, ...] | None", registry.get("transpose").complete_attrs(step.attrs)["axes"])
    order = tuple(a % rank for a in axes) if axes else tuple(range(rank))[::-1]
    return rank >= 2 and order == exchanged(tuple(range(rank)))


def shape_of(e: Expr) -> tuple[Dim, ...] | None:
    ty = type_of(e)
    return ty.shape if isinstance(ty, TensorType) and isinstance(ty.shape, tuple) else None


def is_sized(e: Expr) -> bool:
    """Whether each size has a value or a name: of two that are unknown nothing says that they are equal."""
    shape = shape_of(e)
    return shape is not None and ANY not in shape


def dtype_of(e: Expr) -> str:
    ty = type_of(e)
    return ty.dtype if isinstance(ty, TensorType) and isinstance(ty.dtype, str) else ""
