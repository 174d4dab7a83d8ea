"""Choices that are the same for all of a vector loop, made before it: loop unswitching.

    vectorized j < n { y[i, j] = select(i < 1, a[j], b[j]) }
    ->   if i < 1 { vectorized j < n { y[i, j] = a[j] } } else { vectorized j < n { y[i, j] = b[j] } }

Tensors that are put behind each other along a leading axis are a chain of such choices, one for each of them; in one loop every vector
would read all of them. The result computes what the kernel does.
"""

from __future__ import annotations

from dataclasses import replace

from relay.loop.ir import Branch, For, Kernel, LetScalar, Seq, Stmt, Store
from relay.loop.pieces import over_vector_loops
from relay.loop.walk import expressions, rewritten, same, statements, with_values
from relay.te.scalar import Axis, Load, Scalar, Select, children, transform, walk

# Loops that one may become. Each is code of its own.
_MOST_LOOPS = 64


def unswitched(kernel: Kernel) -> Kernel:
    """The kernel with choices made outside of its vector loops; the same object where there is none to make."""
    body = over_vector_loops(kernel.body, _made_before)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _made_before(loop: For) -> Stmt:
    arms: list[tuple[Scalar, Stmt]] = []
    rest = loop
    while (cond := _choice(rest)) is not None:
        if len(arms) + 1 == _MOST_LOOPS:
            return loop
        arms.append((cond, _decided(rest, cond, True)))
        rest = _decided(rest, cond, False)
    out: Stmt = rest
    for cond, chosen in reversed(arms):
        out = Branch(cond, chosen, out)
    return out


def _choice(loop: For) -> Scalar | None:
    """The condition of the first choice between elements that nothing inside of the loop decides."""
    inside: set[Axis] = {loop.var}
    found: Scalar | None = None
    for stmt in statements(loop.body):
        if isinstance(stmt, LetScalar):
            inside.add(stmt.var)
        elif not isinstance(stmt, Store | Seq):
            return None
    for stmt in statements(loop.body):
        for root in expressions(stmt):
            todo = [root]
            while todo and found is None:
                node = todo.pop()
                if isinstance(node, Select) and _is_outside(node.cond, inside) and _reads(node):
                    found = node.cond
                todo.extend(reversed(children(node)))
    return found


def _is_outside(cond: Scalar, inside: set[Axis]) -> bool:
    return not any(isinstance(n, Load) or (isinstance(n, Axis) and n in inside) for n in walk(cond))


def _reads(choice: Select) -> bool:
    return any(isinstance(n, Load) for arm in (choice.a, choice.b) for n in walk(arm))


def _decided(loop: For, cond: Scalar, value: bool) -> For:
    """The loop where the condition is known."""
    memo: dict[int, Scalar] = {}

    def known(node: Scalar) -> Scalar:
        return (node.a if value else node.b) if isinstance(node, Select) and same(node.cond, cond) else node

    body = rewritten(loop.body, lambda stmt: with_values(stmt, lambda e: transform(e, known, memo)))
    return replace(loop, body=body)
