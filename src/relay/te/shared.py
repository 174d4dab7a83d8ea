"""Equal expressions as one node.

A derivative puts the same expression at many places: each read of a tensor gives its own share, made of what all of them have in
common. Found to be equal once, it is gone through, scheduled and compiled once.
"""

from __future__ import annotations

from relay.te.scalar import Axis, Binary, Bits, Cast, Compare, Const, Dot, Load, Reduce, Scalar, Select, Size, Unary
from relay.te.tensor import Tensor


class Shared:
    """The first node of each kind over the same operands; nodes are given to it operands first. Axes are equal to themselves only."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: dict[tuple[object, ...], Scalar] = {}

    def of(self, node: Scalar) -> Scalar:
        """The node that stands for this one, whose operands stand for themselves."""
        return node if isinstance(node, Axis) else self._first.setdefault(_key(node), node)


def _key(node: Scalar) -> tuple[object, ...]:
    # Nodes are compared by identity, so they are their own keys.
    match node:
        case Binary() | Unary() | Compare():
            operands = (node.a,) if isinstance(node, Unary) else (node.a, node.b)
            return (type(node), node.op, node.dtype, *operands)
        case Dot():
            return (Dot, node.parts, node.a, node.b)
        case Load():
            return (Load, *_source(node), *node.indices)
        case Const():
            return (Const, node.dtype, repr(node.value))  # 0.0 is not -0.0, and nan is nan
        case Select():
            return (Select, node.cond, node.a, node.b)
        case Cast() | Bits():
            return (type(node), node.dtype, node.a)
        case Size():
            return (Size, node.dim, node.dtype)
        case Reduce():
            return (Reduce, node.kind, node.axes, node.body, node.dtype)
        case Axis():
            return (node,)


def _source(load: Load) -> tuple[object, ...]:
    source = load.source
    return (source.stage, source.index) if isinstance(source, Tensor) else (source,)
