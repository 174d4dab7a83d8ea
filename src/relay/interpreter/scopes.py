"""Where each expression of a function is evaluated: the scopes of graph bindings, and what each closure captures.

The text's ``%0 = e;`` shares a node, and a shared node is computed once. It belongs to the innermost region (the body of a
function, a branch of an ``if``, a clause of a ``match``) that contains all its uses. Where some use lies in a region further
inside, the node is computed before that region is entered (after the condition, before the branch), so that evaluation stays strict.

Linear in the size of the function but for the logarithm of climbs; nothing recurses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from relay.ir.expr import (
    Block,
    Constant,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    If,
    Match,
    OpRef,
    Var,
)  # fmt: skip
from relay.ir.record import record
from relay.ir.regions import Region
from relay.ir.walk import children, pattern_vars, post_order

ATOMS = (Var, GlobalVar, Constant, OpRef, ConstructorRef)


@record(slots=True, eq=False)
class Scopes:
    """What the machine needs to know about one top-level function.

    ``shared``: nodes with several uses, remembered once evaluated. ``before``: what is computed before a function is
    made or a branch is taken. ``captures``: per inner function its free variables and the shared nodes that it uses and does not own.
    """

    shared: set[Expr] = field(default_factory=set)
    before: dict[Expr, list[Expr]] = field(default_factory=dict)
    captures: dict[Function, dict[Expr, None]] = field(default_factory=dict)


class _Region(Region):
    """A region held by a function, an ``if`` or a ``match``. ``body`` is the region of the innermost function's body."""

    __slots__ = ("body",)

    def __init__(self, parent: _Region | None, holder: Expr) -> None:
        super().__init__(parent, holder)
        self.body: _Region = self if parent is None or isinstance(holder, Function) else parent.body


def _edges(node: Expr, region: _Region) -> Iterator[tuple[Expr, _Region]]:
    """The children of a node, each with the region it is used in."""
    match node:
        case Function():
            yield node.body, _Region(region, node)
        case If():
            yield node.cond, region
            yield node.then, _Region(region, node)
            yield node.orelse, _Region(region, node)
        case Match():
            yield node.data, region
            for clause in node.clauses:
                yield clause.body, _Region(region, node)
        case _:
            for kid in children(node):
                yield kid, region


def analyse(root: Function) -> Scopes:
    """The scopes of a top-level function (its own free variables, if any, are looked up in the environment it is given)."""
    order = list(post_order(root))
    rank = {id(node): n for n, node in enumerate(order)}
    uses: dict[Expr, list[_Region]] = {root: []}
    owner: dict[Expr, _Region] = {}
    scopes = Scopes()
    top = _Region(None, root)
    # Parents come before children, so the region of a node is known when its uses of others are met.
    for node in reversed(order):
        if isinstance(node, ATOMS):
            continue
        used = uses.pop(node)
        region = top
        if used:
            region = used[0]
            for other in used[1:]:
                region = region.common(other)
        if len(used) > 1:
            scopes.shared.add(node)
            owner[node] = region
            for inner in used:
                if inner is not region:
                    holder = inner.ancestor(region.depth + 1).holder
                    scopes.before.setdefault(holder, []).append(node)
                    _capture(scopes, node, inner, region)
        if isinstance(node, Block):
            for binding in node.bindings:
                owner[binding.var] = region
        for index, (kid, inside) in enumerate(_edges(node, region)):
            if isinstance(node, Function):
                scopes.captures.setdefault(node, {})
                owner.update(dict.fromkeys(node.params, inside))
            elif isinstance(node, Match) and index:
                owner.update(dict.fromkeys(pattern_vars(node.clauses[index - 1].pattern), inside))
            if isinstance(kid, Var) or not isinstance(kid, ATOMS):
                uses.setdefault(kid, []).append(inside)
    for var, where in uses.items():
        home = owner.get(var)
        for inner in where:
            _capture(scopes, var, inner, home)
    for holder, nodes in scopes.before.items():
        scopes.before[holder] = sorted(dict.fromkeys(nodes), key=lambda n: rank[id(n)])
    return scopes


def _capture(scopes: Scopes, what: Expr, inner: _Region, home: _Region | None) -> None:
    """Note a use in region ``inner`` of something that lives in region ``home`` in every function between the two."""
    limit = 1 if home is None else home.depth
    body = inner.body
    while body.depth > limit:
        function = body.holder
        assert isinstance(function, Function)
        captured = scopes.captures.setdefault(function, {})
        if what in captured:
            return  # and so in every function further out
        captured[what] = None
        body = body.parent.body


__all__ = ["Scopes", "analyse"]
