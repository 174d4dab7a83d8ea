"""Vector loops cut where what they compute changes: index-set splitting.

    vectorized j < 384 { y[j] = select(j < 128, a[j], b[j - 128]) }
    ->   vectorized j < 128 { y[j] = a[j] };   vectorized j < 256 { y[j + 128] = b[j] }

What is put side by side (a concatenation, the gradient of a split, a border) is a sum or choice of parts, each under a condition on
the position. In one loop every vector would compute all parts, under masks; a piece computes its own. The conditions are decided
by `relay.loop.simplify`, which knows a piece's range. The result computes what the kernel does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeGuard

from relay.ir.dim import Dim, DimVar, SymDim, as_dim, dim_add, dim_linear, dim_mul, dim_sub
from relay.loop.ir import For, Kernel, LetScalar, Seq, Stmt, Store
from relay.loop.target import Target
from relay.loop.walk import expressions, rewritten, statements
from relay.te.scalar import Axis, Binary, Compare, Const, Scalar, Size, binary, walk

# Vectors of a piece at least: cuts do not fall on whole vectors, so each piece may have one more. And pieces of a loop at most.
_FEWEST_VECTORS, _MOST_PIECES = 2, 8
_DIM_OPS = {"add": dim_add, "sub": dim_sub, "mul": dim_mul}


def in_pieces(kernel: Kernel, target: Target) -> Kernel:
    """The kernel with its vector loops cut; the same object where there is nothing to cut."""
    shortest = _FEWEST_VECTORS * target.lanes(32)
    body = over_vector_loops(kernel.body, lambda loop: _pieces(loop, shortest))
    return kernel if body is kernel.body else replace(kernel, body=body)


def over_vector_loops(root: Stmt, rewrite: Callable[[For], Stmt]) -> Stmt:
    """A statement with its vectorized loops rewritten; the same object where all stay what they are."""
    return rewritten(root, lambda s: rewrite(s) if _is_vector_loop(s) else s, lambda s: not _is_vector_loop(s))


def _is_vector_loop(stmt: Stmt) -> TypeGuard[For]:
    return isinstance(stmt, For) and stmt.kind == "vectorized"


def _pieces(loop: For, shortest: int) -> Stmt:
    count = int(loop.extent.value) if isinstance(loop.extent, Const) else 0
    if count < 2 * shortest or not is_pointwise(loop):
        return loop
    cuts = [0]
    for cut in sorted(_changes(loop)):
        if cut - cuts[-1] >= shortest and count - cut >= shortest:
            cuts.append(cut)
    if not 1 < len(cuts) <= _MOST_PIECES:
        return loop
    made: list[Stmt] = []
    for first, behind in zip(cuts, [*cuts[1:], count], strict=True):
        inner = Axis(loop.var.name, behind - first)
        body = LetScalar(loop.var, binary("add", inner, first), loop.body)
        made.append(For(inner, Const(behind - first, "int64"), body, loop.kind, loop.grain))
    return Seq(tuple(made))


def is_pointwise(loop: For) -> bool:
    """Whether all that a loop does is to store an element for each iteration: sums are added up in the order that they have."""
    for stmt in statements(loop.body):
        if isinstance(stmt, Store):
            if not any(node is loop.var for index in stmt.indices for node in walk(index)):
                return False
        elif not isinstance(stmt, Seq | LetScalar):
            return False
    return True


def _changes(loop: For) -> set[int]:
    """The iterations at which a condition on the loop's variable alone turns."""
    found: set[int] = set()
    at = as_dim(DimVar(loop.var.name))
    memo: dict[int, Dim | None] = {}
    for stmt in statements(loop.body):
        for root in expressions(stmt):
            for node in walk(root):
                if not isinstance(node, Compare) or node.a.dtype != "int64":
                    continue
                a, b = index_dim(node.a, loop.var, at, memo), index_dim(node.b, loop.var, at, memo)
                line = None if a is None or b is None else _line(dim_sub(a, b), at)
                if line is None:
                    continue
                step, start = line
                # Where step * j + start passes 0 (``ge``, ``lt``), and where it passes 1 (``gt``, ``le``).
                ends = {"ge": (0,), "lt": (0,), "gt": (1,), "le": (1,)}.get(node.op, (0, 1))
                found.update(-((start - end) // step) if step > 0 else (start - end) // -step + 1 for end in ends)
    return found


def _line(dim: Dim, at: SymDim) -> tuple[int, int] | None:
    """``(step, start)`` of a dim that is ``step * at + start``; None for any other."""
    for sign in (1, -1):
        each = dim_mul(sign, dim)
        found = dim_linear(each) if isinstance(each, SymDim) else None
        if found is not None and as_dim(found[0]) == at:
            return sign * found[1], sign * found[2]
    return None


def index_dim(root: Scalar, var: Axis, at: Dim, memo: dict[int, Dim | None]) -> Dim | None:
    """An index as a dim, in which ``at`` stands for ``var``; None where it has other variables, or other operations than sums,
    differences and products. ``memo`` has those of the nodes that were asked about before."""
    for node in walk(root):
        if id(node) in memo:
            continue
        out: Dim | None = None
        match node:
            case Const(value=int() as value, dtype="int64"):
                out = value
            case Size(dim=dim):
                out = dim
            case Axis() if node is var:
                out = at
            case Binary(op="add" | "sub" | "mul" as op, dtype="int64"):
                a, b = memo[id(node.a)], memo[id(node.b)]
                out = None if a is None or b is None else _DIM_OPS[op](a, b)
        memo[id(node)] = out
    return memo[id(root)]
