"""Reductions inside expressions: each becomes a stage of its own, so that a stage's body is an expression or one reduction of such.

A definition may write ``te.sum(...) + x[i]`` or a sum of maxima. What stands inside is computed first, once for every value of the index
variables that it mentions, and read where it stood.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from relay.te.index import Indices
from relay.te.scalar import (
    TRUE,
    Axis,
    Compare,
    Load,
    Reduce,
    Scalar,
    Select,
    children,
    compare,
    select,
    substitute,
    transform,
    walk,
    wrap,
)


class Made(Protocol):
    """A stage's output."""

    def __getitem__(self, indices: tuple[Scalar, ...], /) -> Load: ...


Make = Callable[[tuple[Axis, ...], Scalar], Made]


def free_axes(root: Scalar) -> list[Axis]:
    """The index variables that an expression mentions and does not reduce over, in the order in which they are first met."""
    out: dict[int, dict[Axis, None]] = {}
    for node in walk(root):
        if isinstance(node, Axis):
            out[id(node)] = {node: None}
            continue
        found: dict[Axis, None] = {}
        for kid in children(node):
            found.update(out[id(kid)])
        for axis in node.axes if isinstance(node, Reduce) else ():
            found.pop(axis, None)
        out[id(node)] = found
    return list(out[id(root)])


def stray_axis(root: Scalar, known: Collection[Axis]) -> Axis | None:
    """An index variable of the expression that is neither known nor reduced over, if there is one."""
    if all(node in known for node in walk(root) if isinstance(node, Axis)):
        return None
    return next((axis for axis in free_axes(root) if axis not in known), None)


def without_inner_reductions(value: Scalar, axes: Sequence[Axis], make: Make, root: bool = True) -> Scalar:
    """The body of a stage over ``axes`` with stages, which ``make`` makes from their index variables and their body, in the place of
    reductions inside it. They go along their variables in the order of the stage, and then of the reductions around them.

    ``root``: the body itself may be a reduction.
    """
    while True:
        inner = next((n for n in walk(value) if isinstance(n, Reduce) and not (root and n is value)), None)
        if inner is None:
            return value
        # Loads in the side of a select that is not chosen may be out of bounds: there the reduction is over zeros.
        guard = _condition(value, inner)
        if _is_wide(guard, {*free_axes(inner)}) and Indices().reads_inside(inner.body):
            guard = TRUE  # nothing is outside: it is computed once for all of the axes that it does not mention
        # A reduction around this one may be over the same variable, which the guard may mention.
        own = {a: Axis(a.name, a.extent, a.dtype) for a in inner.axes}
        body = substitute(inner.body, dict(own))
        if guard is not TRUE:
            body = select(guard, body, wrap(0, body.dtype))
        lifted = Reduce(inner.kind, tuple(own.values()), body, inner.dtype)
        free = free_axes(lifted)
        outer = (*(a for a in axes if a in free), *(a for a in free if a not in axes))
        read: Scalar = make(outer, without_inner_reductions(lifted, (*outer, *lifted.axes), make))[outer]
        value = transform(value, lambda n, inner=inner, read=read: read if n is inner else n)  # type: ignore[misc]


def _is_wide(guard: Scalar, mentioned: Collection[Axis]) -> bool:
    """Whether a reduction over ``mentioned`` axes is better made without its guard: this says something of other axes, or nothing as
    narrow as an equation, and what it excludes costs less than asking it for every element."""
    narrow = any(isinstance(n, Compare) and n.op == "eq" and n.a.dtype == "int64" for n in walk(guard))
    return not narrow or any(a not in mentioned for a in free_axes(guard))


def _condition(root: Scalar, wanted: Scalar) -> Scalar:
    """When the value of a node inside an expression is used: the conditions of the selects around it."""
    paths: dict[int, list[Scalar]] = {id(root): [TRUE]}
    for node in reversed(walk(root)):
        if node is wanted:
            break
        here = _either(paths.pop(id(node)))
        if isinstance(node, Select):
            sides: Sequence[tuple[Scalar, Scalar]] = (
                (node.cond, here),
                (node.a, _both(here, node.cond)),
                (node.b, _both(here, compare("eq", node.cond, False))),
            )
        else:
            sides = [(kid, here) for kid in children(node)]
        for kid, condition in sides:
            paths.setdefault(id(kid), []).append(condition)
    return _either(paths[id(wanted)])


def _both(a: Scalar, b: Scalar) -> Scalar:
    return b if a is TRUE else a & b


def _either(conditions: Sequence[Scalar]) -> Scalar:
    out = conditions[0]
    for condition in conditions[1:]:
        if out is TRUE or condition is out:
            continue
        out = TRUE if condition is TRUE else out | condition
    return out
