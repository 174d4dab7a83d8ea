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

from relay.loop.ir import For, Kernel, LetScalar, Seq, Stmt, Store
from relay.loop.target import Target
from relay.loop.walk import expressions, rewritten, statements
from relay.te.scalar import Axis, Binary, Compare, Const, Scalar, binary, children, walk

# Vectors of a piece at least: cuts do not fall on whole vectors, so each piece may have one more. And pieces of a loop at most.
_FEWEST_VECTORS, _MOST_PIECES = 2, 8


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
    memo: dict[int, tuple[int, int] | None] = {}
    for stmt in statements(loop.body):
        for root in expressions(stmt):
            for node in walk(root):
                if not isinstance(node, Compare) or node.a.dtype != "int64":
                    continue
                a, b = _line(node.a, loop.var, memo), _line(node.b, loop.var, memo)
                if a is None or b is None or a[0] == b[0]:
                    continue
                step, start = a[0] - b[0], a[1] - b[1]
                # Where step * j + start passes 0 (``ge``, ``lt``), and where it passes 1 (``gt``, ``le``).
                ends = {"ge": (0,), "lt": (0,), "gt": (1,), "le": (1,)}.get(node.op, (0, 1))
                found.update(-((start - end) // step) if step > 0 else (start - end) // -step + 1 for end in ends)
    return found


def _line(root: Scalar, var: Axis, memo: dict[int, tuple[int, int] | None]) -> tuple[int, int] | None:
    """``(step, start)`` of an index that is ``step * var + start``; None for any other."""
    todo: list[tuple[Scalar, bool]] = [(root, False)]
    while todo:
        node, ready = todo.pop()
        if id(node) in memo:
            continue
        if isinstance(node, Binary) and node.dtype == "int64" and node.op in ("add", "sub", "mul"):
            if not ready:
                todo.append((node, True))
                todo.extend((k, False) for k in children(node))
                continue
            memo[id(node)] = _combined(node.op, memo[id(node.a)], memo[id(node.b)])
        elif node is var:
            memo[id(node)] = (1, 0)
        else:
            memo[id(node)] = (0, int(node.value)) if isinstance(node, Const) and node.dtype == "int64" else None
    return memo[id(root)]


def _combined(op: str, a: tuple[int, int] | None, b: tuple[int, int] | None) -> tuple[int, int] | None:
    if a is None or b is None:
        return None
    match op:
        case "add":
            return a[0] + b[0], a[1] + b[1]
        case "sub":
            return a[0] - b[0], a[1] - b[1]
        case _:
            return None if a[0] and b[0] else (a[0] * b[1] + b[0] * a[1], a[1] * b[1])
