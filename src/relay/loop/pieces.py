"""Vector loops cut where what they compute changes: index-set splitting.

    vectorized j < 384 { y[j] = select(j < 128, a[j], b[j - 128]) }
    ->   vectorized j < 128 { y[j] = a[j] };   vectorized j < 256 { y[j + 128] = b[j] }

What is put side by side (a concatenation, the gradient of a split, a border) is a sum or choice of parts, each under a condition on
the position. In one loop every vector would compute all parts, under masks; a piece computes its own. The conditions are decided
by `relay.loop.simplify`, which knows a piece's range. Where extents are not known, pieces that are long enough are taken when it runs:

    vectorized j < n + m { y[j] = select(j < n, a[j], b[j - n]) }
    ->   if (n >= 32) & (m >= 32) { vectorized j < n { y[j] = a[j] };   vectorized j < m { y[j + n] = b[j] } }
         else                     { vectorized j < n + m { y[j] = select(j < n, a[j], b[j - n]) } }

The result computes what the kernel does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import TypeGuard

from relay.ir.dim import Dim, DimVar, SymDim, as_dim, dim_add, dim_linear, dim_mul, dim_sub, dim_vars
from relay.ir.dim_total import dim_typical
from relay.loop.ir import Branch, For, Kernel, LetScalar, Prefetch, Seq, Stmt, Store
from relay.loop.target import Target
from relay.loop.walk import expressions, rewritten, statements, with_values
from relay.te.scalar import (
    Axis,
    Binary,
    Compare,
    Const,
    Scalar,
    Size,
    binary,
    compare,
    conjunction,
    extent_of,
    transform,
    walk,
)

# Vectors of a piece at least: cuts do not fall on whole vectors, so each piece may have one more. And pieces of a loop at most.
_FEWEST_VECTORS, _MOST_PIECES = 2, 8
# Of a loop of unknown length, each of which is code of its own beside the loop as it was.
_MOST_UNKNOWN = 4
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
    if not is_pointwise(loop):
        return loop
    if not isinstance(loop.extent, Const):
        return _unknown_pieces(loop, shortest)
    count = int(loop.extent.value)
    if count < 2 * shortest:
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


def _unknown_pieces(loop: For, shortest: int) -> Stmt:
    """The same for a loop whose extent is a size. Pieces that are known to be short are no reason to cut; whether the others are long
    enough, and follow each other as sizes usually do, is asked when it runs."""
    at = as_dim(DimVar(loop.var.name))
    count, turns = index_dim(loop.extent, loop.var, at, {}), _turns(loop, at)
    if not isinstance(count, SymDim):
        return loop
    cuts: list[Dim] = [0]
    for cut in sorted(dict.fromkeys(turn for turn, _ in turns.values()), key=dim_typical):
        if not any(_is_short(length, shortest) for length in (dim_sub(cut, cuts[-1]), dim_sub(count, cut))):
            cuts.append(cut)
    if not 1 < len(cuts) <= _MOST_UNKNOWN:
        return loop
    made: list[Stmt] = []
    for number, (first, behind) in enumerate(pairwise([*cuts, count])):
        inner = Axis(loop.var.name, dim_sub(behind, first))
        length, later = extent_of(inner.extent), cuts[1 : number + 1]
        known = {key: before is not (turn in later) for key, (turn, before) in turns.items() if turn in cuts[1:]}
        body = LetScalar(loop.var, binary("add", inner, extent_of(first)), _decided(loop.body, known))
        made.append(replace(loop, var=inner, extent=length, body=body))
    lengths = dict.fromkeys(dim_sub(behind, first) for first, behind in pairwise([*cuts, count]))
    long = conjunction(compare("ge", extent_of(each), shortest) for each in lengths)
    return Branch(long, Seq(tuple(made)), loop)


def _is_short(length: Dim, shortest: int) -> bool:
    return isinstance(length, int) and length < shortest


def _turns(loop: For, at: SymDim) -> dict[int, tuple[Dim, bool]]:
    """From which iteration on conditions on the loop's variable, by their ids, are others than before, and whether they hold before."""
    found: dict[int, tuple[Dim, bool]] = {}
    memo: dict[int, Dim | None] = {}
    for node in (n for stmt in statements(loop.body) for root in expressions(stmt) for n in walk(root)):
        if not isinstance(node, Compare) or node.op not in ("ge", "gt", "lt", "le") or node.a.dtype != "int64":
            continue
        a, b = index_dim(node.a, loop.var, at, memo), index_dim(node.b, loop.var, at, memo)
        if a is None or b is None:
            continue
        far, holds_above = dim_sub(a, b), node.op in ("ge", "gt")
        for step in (1, -1):
            start = dim_sub(far, dim_mul(step, at))
            if isinstance(start, SymDim) and any(as_dim(v) == at for v in dim_vars(start)):
                continue
            # ``step * j + start`` is at least 0 (``ge``, ``lt``), or at least 1, from there on or until there.
            least = 0 if node.op in ("ge", "lt") else 1
            turn = dim_sub(least, start) if step > 0 else dim_add(dim_sub(start, least), 1)
            found[id(node)] = turn, holds_above == (step < 0)
    return found


def _decided(body: Stmt, known: dict[int, bool]) -> Stmt:
    """The body where these conditions are known."""
    memo: dict[int, Scalar] = {}

    def value(node: Scalar) -> Scalar:
        return Const(known[id(node)], "bool") if id(node) in known else node

    return rewritten(body, lambda s: with_values(s, lambda e: transform(e, value, memo)))


def is_pointwise(loop: For) -> bool:
    """Whether all that a loop does is to store an element for each iteration: sums are added up in the order that they have."""
    for stmt in statements(loop.body):
        if isinstance(stmt, Store):
            if not any(node is loop.var for index in stmt.indices for node in walk(index)):
                return False
        elif not isinstance(stmt, Seq | LetScalar | Prefetch):
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
