"""Under which choices a node of an expression is computed: of a `Select` only the chosen side is."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from relay.te.scalar import FALSE, Axis, Binary, Compare, Load, Scalar, Select, Unary, children, walk

# Conditions and whether they hold, the outermost first: the choices on a way from an expression to a node in it.
Way = tuple[tuple[Scalar, bool], ...]


def ways(root: Scalar, suspects: Container[int], most: int | None = None) -> Iterator[tuple[Load, Way]]:
    """The reads of an expression whose identities are given, with the choices on the ways to one: it is made where one of them is gone,
    and none says what others say already. Of nodes with more than ``most`` ways to them it is said that they are always computed."""
    nodes, leads = walk(root), set[int]()
    for node in nodes:
        if id(node) in suspects or any(id(k) in leads for k in children(node)):
            leads.add(id(node))
    found: dict[int, list[Way]] = {id(root): [()]}
    for node in reversed(nodes):
        here = found.pop(id(node), None)
        if here is None:
            continue
        if most is not None and len(here) > most:
            here = [()]
        if id(node) in suspects:
            assert isinstance(node, Load)
            yield from ((node, way) for way in here)
        for n, kid in enumerate(children(node)):
            if id(kid) in leads:
                to_kid = found.setdefault(id(kid), [])
                for way in here:
                    _go(to_kid, (*way, (node.cond, n == 1)) if isinstance(node, Select) and n > 0 else way)


def _go(ways: list[Way], way: Way) -> None:
    """Add a way to others, where they do not cover it; two that differ in one choice alone are one way without it."""
    choices = {(id(cond), truth) for cond, truth in way}
    if any((cond, not truth) in choices for cond, truth in choices):
        return  # nobody goes it
    for at, other in enumerate(ways):
        theirs = {(id(cond), truth) for cond, truth in other}
        if theirs <= choices:
            return
        more = choices - theirs
        if len(more) == 1:
            ((cond, truth),) = more
            if theirs - choices == {(cond, not truth)}:
                del ways[at]
                return _go(ways, tuple(c for c in way if id(c[0]) != cond))
    ways[:] = [w for w in ways if not choices <= {(id(cond), truth) for cond, truth in w}]
    ways.append(way)


def comparisons(way: Way, values: Mapping[Axis, Scalar] | None = None) -> Iterator[tuple[Compare, bool]]:
    """The comparisons that hold, or do not, where all of a way's conditions are what they are said to be. ``values``: what variables
    stand for."""
    todo = list(way)
    while todo:
        node, holds = todo.pop()
        match node:
            case Binary(op="and") if holds:
                todo += [(node.a, True), (node.b, True)]
            case Binary(op="or") if not holds:
                todo += [(node.a, False), (node.b, False)]
            case Select(b=other) if holds and other is FALSE:
                todo += [(node.cond, True), (node.a, True)]
            case Unary(op="not"):
                todo.append((node.a, not holds))
            case Axis() if values is not None and node in values:
                todo.append((values[node], holds))
            case Compare():
                yield node, holds
            case _:
                pass
