"""Expressions with their indices in normal form and their index comparisons decided where ranges decide them."""

from __future__ import annotations

from relay.te.autodiff.arithmetic import both, choose, either, is_const
from relay.te.index import Indices
from relay.te.scalar import Binary, Cast, Compare, Load, Scalar, Select, cast, rebuild, transform, walk


def simplified(root: Scalar, indices: Indices) -> Scalar:
    """The same value for every index in range."""

    def visit(node: Scalar) -> Scalar:
        match node:
            case Load() if node.indices:
                return rebuild(node, tuple(indices.simplify(i) for i in node.indices))
            case Cast() if node.a.dtype == "int64":
                return cast(indices.simplify(node.a), node.dtype)
            case Compare() if node.a.dtype == "int64":
                return indices.compare(node.op, node.a, node.b)
            case Binary(op="and") if node.dtype == "bool":
                return both(node.a, node.b)
            case Binary(op="or") if node.dtype == "bool":
                return either(node.a, node.b)
            case Select():
                # Nested choices between a value and the same zero are one, unless the inner one reads what may be nowhere without
                # the outer one.
                nested = isinstance(node.a, Select) and is_const(node.b, 0) and is_const(node.a.b, 0)
                if isinstance(node.a, Select) and nested and not any(isinstance(n, Load) for n in walk(node.a.cond)):
                    return Select(both(node.cond, node.a.cond), node.a.a, node.b, node.dtype)
                chosen = choose(node.cond, node.a, node.b, node.dtype)
                return node if chosen is None else chosen
            case _:
                return node

    return transform(root, visit)


def equalities(root: Scalar) -> list[tuple[Scalar, Scalar]]:
    """Pairs of indices outside of whose equality an expression is zero."""
    out: list[tuple[Scalar, Scalar]] = []
    todo = [root]
    while todo:
        node = todo.pop()
        match node:
            case Select() if is_const(node.b, 0):
                todo += [node.a, node.cond]
            case Binary(op="mul"):
                todo += [node.a, node.b]
            case Binary(op="and") if node.dtype == "bool":
                todo += [node.a, node.b]
            case Compare(op="eq") if node.a.dtype == "int64":
                out.append((node.a, node.b))
            case _:
                pass
    return out
