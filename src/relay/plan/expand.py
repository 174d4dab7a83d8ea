"""Evaluating a stage's expression under an assignment of its axes, inlining producers on the way.

One engine for both levels: before scheduling it inlines stages that are not worth memory of their own, and while
emitting it turns loads of tensors into loads of buffers. Every index is brought to its normal form and every
comparison of indices that the ranges decide is decided. Sharing is kept: a producer read twice at the same index is
one expression, however often it is used. Iterative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from relay.ir.dim import Dim, dim_sub
from relay.ir.record import record
from relay.ir.types import is_float
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Binary,
    Cast,
    Compare,
    Const,
    Load,
    Named,
    Reduce,
    Scalar,
    Select,
    Size,
    Unary,
    children,
    rebuild,
    walk,
)  # fmt: skip
from relay.te.tensor import Compute, Tensor


@record(frozen=True, slots=True, eq=False)
class Inline:
    """Answer of a reader: evaluate the producer's own expression at this index."""

    stage: Compute
    output: int


Reader = Callable[[Tensor, tuple[Scalar, ...]], Scalar | Inline]
Env = Mapping[Axis, Scalar]


class Expander:
    """Evaluates expressions; everything evaluated through one expander shares what is equal."""

    __slots__ = ("_frames", "_interned", "_memo", "indices", "read")

    def __init__(self, indices: Indices, read: Reader) -> None:
        self.indices = indices
        self.read = read
        self._frames: list[Env] = []
        self._interned: dict[tuple[object, ...], int] = {}
        self._memo: dict[tuple[int, int], tuple[Scalar, Scalar]] = {}

    def frame(self, env: Env) -> int:
        """A number for an assignment of axes, to evaluate several expressions under."""
        self._frames.append(env)
        return len(self._frames) - 1

    def _inline_frame(self, stage: Compute, at: tuple[Scalar, ...]) -> int:
        polys: tuple[Dim, ...] = tuple(self.indices.poly(i) for i in at)
        key = (id(stage), *polys)
        found = self._interned.get(key)
        if found is None:
            found = self._interned[key] = self.frame(dict(zip(stage.axes, at, strict=True)))
        return found

    def evaluate(self, root: Scalar, frame: int) -> Scalar:
        """The expression under the assignment."""
        memo = self._memo
        todo: list[tuple[Scalar, int]] = [(root, frame)]
        while todo:
            node, at = todo[-1]
            if (id(node), at) in memo:
                todo.pop()
                continue
            kids = children(node)
            missing = [k for k in kids if (id(k), at) not in memo]
            if missing:
                todo.extend((k, at) for k in missing)
                continue
            operands = tuple(memo[id(k), at][1] for k in kids)
            value = self._visit(node, operands, at, todo)
            if value is not None:
                memo[id(node), at] = (node, value)
                todo.pop()
        return memo[id(root), frame][1]

    def _visit(
        self, node: Scalar, operands: tuple[Scalar, ...], at: int, todo: list[tuple[Scalar, int]]
    ) -> Scalar | None:
        match node:
            case Axis():
                only = node.extent == 1 and not isinstance(node, Named)  # no loop runs over it
                return self._frames[at].get(node, Const(0, "int64") if only else node)
            case Load() if isinstance(node.source, Tensor):
                index = tuple(self.indices.simplify(o) for o in operands)
                answer = self.read(node.source, index)
                if not isinstance(answer, Inline):
                    return answer
                inner = self._inline_frame(answer.stage, index)
                body = answer.stage.bodies[answer.output]
                done = self._memo.get((id(body), inner))
                if done is None:
                    todo.append((body, inner))
                    return None
                return done[1]
            case Compare() if operands[0].dtype == "int64":
                return self.indices.compare(node.op, operands[0], operands[1])
            case Binary(op="min" | "max") if node.dtype == "int64":
                return self._extreme(node, *operands)
            case Cast() if operands[0].dtype == "int64" and _divides(operands[0]) and not self._by_none(operands[0]):
                # The remainder of what may be negative is dear in vectors, and the quotient is an index too.
                return rebuild(node, (self.indices.simplify(operands[0]),))
            case Select() if isinstance(operands[0], Const):
                return operands[1] if operands[0].value else operands[2]
            case Binary(op="and") if node.dtype == "bool":
                return _logical(node, operands, absorbing=False)
            case Binary(op="or") if node.dtype == "bool":
                return _logical(node, operands, absorbing=True)
            case _:
                return rebuild(node, operands)

    def _extreme(self, node: Binary, a: Scalar, b: Scalar) -> Scalar:
        """The less or the greater of two indices, decided where their ranges decide it."""
        low, high = self.indices.bounds(dim_sub(self.indices.poly(a), self.indices.poly(b)))
        if low is not None and low >= 0:
            return a if node.op == "max" else b
        if high is not None and high <= 0:
            return b if node.op == "max" else a
        return rebuild(node, (a, b))

    def _by_none(self, root: Scalar) -> bool:
        """Whether an expression of axes and sizes may divide by a size of zero, where a value, other than an index, is still asked
        for: zero."""
        divisors = (n.b for n in walk(root) if isinstance(n, Binary) and n.op in ("floordiv", "mod"))
        return any((self.indices.bounds(self.indices.poly(b))[0] or 0) < 1 for b in divisors)


def _divides(root: Scalar) -> bool:
    """Whether an expression is made of axes and sizes, and divides."""
    nodes = walk(root)
    if any(not isinstance(n, Axis | Binary | Const | Size | Unary) or n.dtype != "int64" for n in nodes):
        return False
    return any(isinstance(n, Binary) and n.op in ("floordiv", "mod") for n in nodes)


def _logical(node: Scalar, operands: tuple[Scalar, ...], absorbing: bool) -> Scalar:
    a, b = operands
    for one, other in ((a, b), (b, a)):
        if isinstance(one, Const):
            return one if one.value == absorbing else other
    return rebuild(node, operands)


# Rough costs in simple vector operations; only their order of magnitude matters (what to recompute, when to run in
# parallel).
_UNARY_COST: Mapping[str, int] = {
    "neg": 1, "abs": 1, "not": 1, "floor": 1, "ceil": 1, "round": 1, "trunc": 1, "sign": 2,
    "isnan": 1, "isinf": 1, "isfinite": 1, "sqrt": 6, "rsqrt": 10,
}  # fmt: skip


def cost(root: Scalar) -> int:
    """An estimate of the work of one element (index arithmetic left out)."""
    total = 0
    seen: set[int] = set()
    todo = [root]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        match node:
            case Load():
                total += 1
                todo += [i for i in node.indices if any(isinstance(n, Load) for n in walk(i))]
                continue
            case Unary():
                total += _UNARY_COST.get(node.op, 20)
            case Binary():
                total += 20 if node.op in ("pow", "atan2") else 6 if node.op in ("div", "mod", "truncmod") else 1
            case Reduce():
                total += 1
                for axis in node.axes:
                    total *= axis.extent if isinstance(axis.extent, int) else 64
            case _:
                total += 1
        todo += children(node)
    return total


def is_dear(node: Scalar) -> bool:
    """Whether an operation by itself takes several times what an addition does."""
    if isinstance(node, Unary):
        return _UNARY_COST.get(node.op, 20) >= 6
    return isinstance(node, Binary) and (node.op in ("pow", "atan2") or (node.op == "div" and is_float(node.dtype)))


def is_expensive(root: Scalar) -> bool:
    """Whether an element is worth remembering rather than computing twice: it needs a dear function, or a guarded
    load."""
    return any(
        is_dear(n) or (isinstance(n, Select) and any(isinstance(k, Load) for side in (n.a, n.b) for k in walk(side)))
        for n in walk(root)
        if n.dtype != "int64"
    )
