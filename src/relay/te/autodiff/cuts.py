"""The iterations of a read cut in pieces, in which its index functions have no minimum, maximum or magnitude.

min(a, b)         a where a <= b, and b where a = b + 1 + s with a new s >= 0 (max alike)
abs(a)            a where a >= 0, and -a where a = -1 - s with a new s >= 0
n * a, a // n     itself where the size n is not zero, and 0 where it is

An equation is solved by dividing by its sizes. Where one of them is zero nothing is left of what it multiplies, and all of it reads the
same. There is no piece for that where the iterations are none then; nor a condition, where the tensor is empty, or where the size divides
only: equations are not divided by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from typing import TypeGuard

from relay.ir.dim import SymDim, dim_max, dim_mul, dim_sub, dim_sum
from relay.ir.inequality import is_count
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Binary,
    Const,
    Load,
    Scalar,
    Size,
    Unary,
    binary,
    children,
    compare,
    transform,
    unary,
    walk,
)
from relay.te.zero_sizes import divides, may_be_zero, vanishes_with


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A part of the iterations, in which the read has no minimum or maximum: ``variables`` has those to tell it, ``also`` the
    equations and ``where`` the conditions for being in it. The sizes ``some`` are not zero in it. Without ``read`` the conditions say
    it all."""

    read: tuple[Scalar, ...]
    variables: tuple[Axis, ...]
    also: tuple[tuple[Scalar, Scalar], ...]
    where: tuple[Scalar, ...]
    some: tuple[SymDim, ...] = ()


def cut(piece: Piece, element: Sequence[Scalar], indices: Indices) -> list[Piece] | None:
    """The piece cut in two at a size that may be zero, at a minimum or maximum of indices, or where a magnitude turns; None where there
    is none to cut at. ``element`` is the place that is read."""
    return _at_size(piece, element, indices) or _at_turn(piece, indices)


def _at_size(piece: Piece, element: Sequence[Scalar], indices: Indices) -> list[Piece] | None:
    shape = {a.extent for at in element for a in walk(at) if isinstance(a, Axis)}
    multiplied: dict[SymDim, bool] = {}
    for index in piece.read:
        _add_sizes(multiplied, index, indices)
    sizes = [
        size
        for size in multiplied
        if not vanishes_with(size, shape) and not any(divides(size, known) for known in piece.some)
    ]
    if not sizes:
        return None
    extents = [a.extent for a in piece.variables]
    left: list[tuple[SymDim, Scalar]] = []
    there: list[Scalar] = []
    for size in sizes:
        some = compare("gt" if is_count(size) else "ne", Size(size), 0)
        is_left = not vanishes_with(size, extents)
        if is_left:
            left.append((size, unary("not", some)))
        if is_left or multiplied[size]:
            there.append(some)
    one = replace(piece, where=(*piece.where, *there), some=(*piece.some, *sizes))
    if not left:
        return [one]
    if len(left) == 1:
        ((size, none),) = left
        read = tuple(_without(index, size, indices) for index in piece.read)
        return [one, replace(piece, read=read, where=(*piece.where, none))]
    # A piece for each of them would be cut at all others.
    none = reduce(partial(binary, "or"), (none for _, none in left))
    equal = [compare("eq", index, at) for index, at in zip(piece.read, element, strict=True)]
    return [one, replace(piece, read=(), where=(*piece.where, none, *equal))]


def _add_sizes(multiplied: dict[SymDim, bool], index: Scalar, indices: Indices) -> None:
    """Note the sizes in an index that multiply or divide something, and may be zero, and whether they multiply."""
    sums = [index]
    for node in walk(index):
        if isinstance(node, Binary | Unary) and node.dtype == "int64" and node.op not in ("add", "sub", "mul", "neg"):
            sums += children(node)
            if isinstance(node, Binary) and node.op in ("floordiv", "mod"):
                by = indices.poly(node.b)
                if isinstance(by, SymDim) and not indices.is_index(by) and may_be_zero(by):
                    multiplied.setdefault(by, False)
    for each in sums:
        for of, size in indices.strides(indices.poly(each)):
            if of != 1 and isinstance(size, SymDim) and not indices.is_index(size) and may_be_zero(size):
                multiplied[size] = True


def _without(index: Scalar, size: SymDim, indices: Indices) -> Scalar:
    """The index where a size is zero: nothing is left of what it multiplies, and a quotient and a remainder by it are zero."""

    def visit(node: Scalar) -> Scalar:
        if node.dtype != "int64":
            return node
        if isinstance(node, Binary) and node.op in ("floordiv", "mod") and divides(size, indices.poly(node.b)):
            return Const(0, "int64")
        terms = indices.strides(indices.poly(node))
        left = [(of, by) for of, by in terms if of == 1 or not divides(size, by)]
        return node if len(left) == len(terms) else indices.scalar(dim_sum([dim_mul(of, by) for of, by in left]))

    return transform(index, visit)


def _at_turn(piece: Piece, indices: Indices) -> list[Piece] | None:
    for node in (n for index in piece.read for n in walk(index)):
        if not _is_cut(node) or not _varies(node, piece.variables) or any(isinstance(n, Load) for n in walk(node)):
            continue
        if isinstance(node, Unary):
            a, b, least = node.a, unary("neg", node.a), False
            low, high = indices.ends(dim_mul(-1, indices.poly(a)))
        else:
            a, b = (node.a, node.b) if _varies(node.a, piece.variables) else (node.b, node.a)
            least = node.op == "min"
            by = dim_sub(indices.poly(a), indices.poly(b))
            low, high = indices.ends(by if least else dim_mul(-1, by))
        if high is None:
            continue
        over = Axis("s", dim_max(high, 0))  # how far a is beyond b (or below 0), less one
        further = binary("add", over, 1)
        known = isinstance(low, int) and low > 0, isinstance(high, int) and high <= 0
        edge: Scalar = Const(0, "int64") if isinstance(node, Unary) else b
        beyond = binary("add", edge, further) if least else binary("sub", edge, further)
        one, other = (tuple(_replaced(i, node, to, indices) for i in piece.read) for to in (a, b))
        within = compare("le" if least else "ge", a, edge)
        first = replace(piece, read=one, where=(*piece.where, within))
        second = replace(piece, read=other, variables=(*piece.variables, over), also=(*piece.also, (a, beyond)))
        return [second] if known[0] else [first] if known[1] else [first, second]
    return None


def _is_cut(node: Scalar) -> TypeGuard[Binary | Unary]:
    if isinstance(node, Unary):
        return node.op == "abs" and node.dtype == "int64"
    return isinstance(node, Binary) and node.op in ("min", "max")


def _varies(node: Scalar, variables: Sequence[Axis]) -> bool:
    return any(isinstance(n, Axis) and n in variables for n in walk(node))


def _replaced(index: Scalar, node: Binary | Unary, value: Scalar, indices: Indices) -> Scalar:
    """The index with what is equal to a node replaced."""

    def key(of: Binary | Unary) -> tuple[object, ...]:
        return (of.op, *map(indices.poly, children(of)))

    def visit(each: Scalar) -> Scalar:
        same = isinstance(each, Binary | Unary) and each.dtype == "int64" and each.op == node.op
        return value if same and key(each) == key(node) else each  # type: ignore[arg-type]

    return transform(index, visit)
