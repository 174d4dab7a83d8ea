"""Sums over pairs of elements that are no products: distances, agreements, penalties.

    out[i, j] = sum(abs(x[i, k] - y[j, k]), k)

An element of either operand is read for all elements of the other, as in a matrix product, whatever is made of the two; so it is scheduled
as one (`relay.plan.stages.Contraction`), with panels of one operand and register tiles of sums, if that is a few cheap operations.
"""

from __future__ import annotations

from collections.abc import Callable

from relay.ir.record import record
from relay.loop.walk import same
from relay.plan.expand import is_dear
from relay.plan.graph import loads
from relay.te.scalar import (
    Axis,
    Binary,
    Compare,
    Const,
    Load,
    Named,
    Reduce,
    Scalar,
    Select,
    Unary,
    children,
    mentioned,
    mentioned_by_node,
    substitute,
    transform,
    walk,
)

# Simple operations for a pair at most: those of a tile are written out, and each needs registers beside the sums.
_MOST_WORK = 8


@record(frozen=True, slots=True, eq=False)
class Pairing:
    """``value`` is what is made of an element of the left operand and one of the right, which variables stand for in it."""

    left: Named
    right: Named
    value: Scalar

    def of(self, left: Scalar, right: Scalar) -> Scalar:
        """It of two elements."""
        return substitute(self.value, {self.left: left, self.right: right})

    def exchanged(self) -> Pairing:
        """The same with the operands exchanged."""
        return Pairing(self.right, self.left, self.value)


def pairing(body: Reduce, last: Axis) -> tuple[Scalar, Scalar, Pairing] | None:
    """The operands of a sum over pairs, of which the right one alone moves with ``last``, and what is made of them; None: it is another
    sum, or much is done for a pair."""
    if body.kind != "sum" or body.dtype not in ("float32", "float64") or body.body.dtype != body.dtype:
        return None
    moving = mentioned_by_node(body.body)

    def belongs(node: Scalar) -> bool | None:
        """Whether an operand's part is the right one's; None: it belongs to both, or to none."""
        sides = {last in moving[id(load)] for load in loads(node)}
        return sides.pop() if len(sides) == 1 else None

    # Operands as large as they can be, which is to say computed before; or as they are read.
    return _apart(body, belongs) or _apart(body, lambda node: belongs(node) if isinstance(node, Load) else None)


def _apart(body: Reduce, belongs: Callable[[Scalar], bool | None]) -> tuple[Scalar, Scalar, Pairing] | None:
    found: dict[bool, Scalar] = {}
    names = {side: Named(name, body.dtype) for side, name in ((False, "l"), (True, "r"))}
    memo: dict[int, Scalar] = {}
    todo = [body.body]
    while todo:
        node = todo.pop()
        side = belongs(node) if node.dtype == body.dtype else None
        if side is None:
            todo += () if isinstance(node, Load) else children(node)
        elif same(found.setdefault(side, node), node):
            memo[id(node)] = names[side]
        else:
            return None
    if len(found) < 2:
        return None
    value = transform(body.body, lambda node: node, memo)
    if not mentioned(value) <= set(names.values()) or loads(value) or not _is_little(value):
        return None
    return found[False], found[True], Pairing(names[False], names[True], value)


def _is_little(value: Scalar) -> bool:
    done: list[Scalar] = []
    for node in walk(value):
        if isinstance(node, Const | Named) or any(same(node, other) for other in done):
            continue
        if not isinstance(node, Binary | Unary | Compare | Select) or is_dear(node) or len(done) == _MOST_WORK:
            return False
        done.append(node)
    return True
