"""Vector loops over positions that are mirrored at an end, or stay there, cut where they turn.

    vectorized j < n + 2 { y[j] = x[min(max(j - 1, 1 - j), 2 * n - 1 - j)] }
    ->   vectorized j < 1 { y[j] = x[1 - j] };  vectorized j < n { y[j + 1] = x[j] };  vectorized j < 1 { y[j + n + 1] = x[n - 2 - j] }

In one loop each element is looked up at an index of its own; in a piece the elements lie behind each other. Where a size is not
known, turns are kept within the loop, so that a piece may be empty. The result computes what the kernel does.
"""

from __future__ import annotations

from dataclasses import replace

from relay.ir.dim import (
    Dim,
    DimVar,
    SymDim,
    as_dim,
    as_var,
    dim_add,
    dim_floordiv,
    dim_max,
    dim_min,
    dim_mul,
    dim_sub,
    dim_substitute,
)
from relay.loop.ir import Branch, For, Kernel, LetScalar, Seq, Stmt
from relay.loop.pieces import index_dim, is_pointwise, over_vector_loops
from relay.loop.target import Target
from relay.loop.walk import expressions, rewritten, statements, with_values
from relay.te.scalar import Axis, Binary, Load, Scalar, binary, compare, extent_of, transform, walk

# Vectors of a loop that repay pieces of a few elements at its ends, how many turns are looked for, and pieces of a loop at most.
_FEWEST_VECTORS, _MOST_TURNS, _MOST_PIECES = 1, 4, 8


def unmirrored(kernel: Kernel, target: Target) -> Kernel:
    """The kernel with such loops cut; the same object where there is none."""
    least = _FEWEST_VECTORS * target.lanes(32)
    body = over_vector_loops(kernel.body, lambda loop: _cut(loop, least))
    return kernel if body is kernel.body else replace(kernel, body=body)


def _cut(loop: For, least: int) -> Stmt:
    count = index_dim(loop.extent, loop.var, 0, {}) if is_pointwise(loop) else None
    if count is None or (isinstance(count, int) and count < least):
        return loop
    made = _pieces(loop, loop.body, 0, count, _MOST_TURNS, least)
    if not 1 < len(made) <= _MOST_PIECES:
        return loop
    cut = Seq(tuple(made))
    return cut if isinstance(count, int) else Branch(compare("ge", extent_of(count), least), cut, loop)


def _pieces(loop: For, body: Stmt, first: Dim, behind: Dim, turns: int, least: int) -> list[Stmt]:
    """The iterations from ``first`` to ``behind``, in loops of their own; short ones are not cut any more."""
    length = dim_sub(behind, first)
    if length == 0:
        return []
    found = _turn(loop, body) if turns and not (isinstance(length, int) and length < least) else None
    if found is None:
        inner = Axis(loop.var.name, length)
        moved = LetScalar(loop.var, binary("add", inner, extent_of(first)), body)
        return [replace(loop, var=inner, extent=extent_of(length), body=moved)]
    node, at, before, later = found
    turn = dim_min(dim_max(at, first), behind)
    early = _pieces(loop, _with(body, node, before), first, turn, turns - 1, least)
    return early + _pieces(loop, _with(body, node, later), turn, behind, turns - 1, least)


def _turn(loop: For, body: Stmt) -> tuple[Binary, Dim, Scalar, Scalar] | None:
    """A minimum or maximum of two positions where something is read, of which one moves away from the other: from which iteration on it is
    the other one, what it is before, and from there. One that is no position is computed in less time than a piece takes."""
    at = as_dim(DimVar(loop.var.name))
    memo: dict[int, Dim | None] = {}
    reads = (n for stmt in statements(body) for root in expressions(stmt) for n in walk(root) if isinstance(n, Load))
    for node in (n for load in reads for index in load.indices for n in walk(index)):
        if not isinstance(node, Binary) or node.op not in ("min", "max") or node.dtype != "int64":
            continue
        a, b = index_dim(node.a, loop.var, at, memo), index_dim(node.b, loop.var, at, memo)
        if a is None or b is None:
            continue
        difference = dim_sub(a, b)
        start, step = _at(difference, at, 0), dim_sub(_at(difference, at, dim_add(at, 1)), difference)
        if not isinstance(step, int) or step == 0:
            continue
        # From here on the difference is not negative (or, where it falls, negative).
        ahead = dim_mul(-1, dim_floordiv(start, step)) if step > 0 else dim_add(dim_floordiv(start, -step), 1)
        least_first = (node.op == "min") == (step > 0)
        return node, ahead, *((node.a, node.b) if least_first else (node.b, node.a))
    return None


def _at(dim: Dim, var: SymDim, value: Dim) -> Dim:
    name = as_var(var)
    return dim_substitute(dim, lambda v: value if v == name else as_dim(v)) if isinstance(dim, SymDim) else dim


def _with(body: Stmt, node: Binary, value: Scalar) -> Stmt:
    """The body with an expression for a node."""
    memo: dict[int, Scalar] = {}
    return rewritten(body, lambda s: with_values(s, lambda e: transform(e, lambda n: value if n is node else n, memo)))
