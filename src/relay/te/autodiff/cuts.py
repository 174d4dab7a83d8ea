"""The iterations of a read cut in pieces, in which its index functions have no minimum, maximum or magnitude.

min(a, b)         a where a <= b, and b where a = b + 1 + s with a new s >= 0 (max alike)
abs(a)            a where a >= 0, and -a where a = -1 - s with a new s >= 0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from relay.ir.dim import dim_max, dim_mul, dim_sub
from relay.ir.record import record
from relay.te.index import Indices
from relay.te.scalar import Axis, Binary, Const, Load, Scalar, Unary, binary, children, compare, transform, unary, walk


@record(frozen=True, slots=True, eq=False)
class Piece:
    """A part of the iterations, in which the read has no minimum or maximum: ``variables`` has those to tell it, ``also`` the
    equations and ``where`` the conditions for being in it."""

    read: tuple[Scalar, ...]
    variables: tuple[Axis, ...]
    also: tuple[tuple[Scalar, Scalar], ...]
    where: tuple[Scalar, ...]


def cut(piece: Piece, indices: Indices) -> list[Piece] | None:
    """The piece cut in two at a minimum or maximum of indices, or where a magnitude turns; None where there is none to cut at."""
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
        nowhere, everywhere = over.extent == 0, isinstance(low, int) and low > 0
        edge: Scalar = Const(0, "int64") if isinstance(node, Unary) else b
        beyond = binary("add", edge, further) if least else binary("sub", edge, further)
        one, other = (tuple(_replaced(i, node, to, indices) for i in piece.read) for to in (a, b))
        within = compare("le" if least else "ge", a, edge)
        first = Piece(one, piece.variables, piece.also, (*piece.where, within))
        second = Piece(other, (*piece.variables, over), (*piece.also, (a, beyond)), piece.where)
        return [first] if nowhere else [second] if everywhere else [first, second]
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
