"""Where the nodes of a graph belong: the innermost braces around all uses of each node.

Braces are the body of a function, a branch, a clause, a block that is not such a body.
A node that is used in several scopes belongs to their lowest common ancestor, and is printed before the statement there that
leads to a use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from relay.ir.expr import Block, Constant, ConstructorRef, Expr, Function, GlobalVar, If, Match, OpRef, Var
from relay.ir.record import record
from relay.ir.regions import Region
from relay.ir.walk import children

_ATOMS = frozenset({Var, GlobalVar, Constant, OpRef, ConstructorRef})


def _compound_nodes(root: Expr) -> list[Expr]:
    """Every node of the graph that has children, once, children before parents."""
    order: list[Expr] = []
    seen: set[int] = set()
    open_nodes: list[Expr] = []
    todo: list[Expr | None] = [root]
    while todo:
        node = todo.pop()
        if node is None:
            order.append(open_nodes.pop())
        elif id(node) not in seen:
            seen.add(id(node))
            open_nodes.append(node)
            todo.append(None)
            todo.extend(k for k in reversed(children(node)) if k.__class__ not in _ATOMS)
    return order


@record(slots=True)
class Layout:
    """``inlined``: blocks that are the body of their braces; ``variable_uses``: uses of variables, counted, by identity."""

    inlined: set[int] = field(default_factory=set)
    variable_uses: dict[int, int] = field(default_factory=dict)
    _uses: dict[int, int] = field(default_factory=dict)
    _before: dict[int, list[Expr]] = field(default_factory=dict)

    def shared(self, e: Expr) -> bool:
        """Used more than once."""
        return self._uses.get(id(e), 0) > 1

    def before(self, e: Expr) -> Sequence[Expr]:
        """Nodes to print before ``e``, because its braces use them and something outside does too."""
        return self._before.get(id(e), ())

    @classmethod
    def of(cls, root: Expr) -> Layout:
        """The layout of an expression. A function at the root is taken as a definition: its body is the outermost scope."""
        layout = cls()
        uses, variables = layout._uses, layout.variable_uses
        order = _compound_nodes(root)
        home: dict[int, Region] = {}
        elsewhere: dict[int, list[Region]] = {}  # further scopes of use
        as_body: set[int] = {id(root)}

        def use(e: Expr, scope: Region) -> None:
            key = id(e)
            uses[key] = uses.get(key, 0) + 1
            first = home.setdefault(key, scope)
            if first is not scope:
                elsewhere.setdefault(key, [first]).append(scope)

        home[id(root)] = Region(None, root)
        for e in reversed(order):
            key = id(e)
            scope = home[key]
            if key in elsewhere:
                places = elsewhere[key]
                for place in places:
                    scope = scope.common(place)
                for owner in {
                    id(s): s for s in (p.ancestor(scope.depth + 1) for p in places if p is not scope)
                }.values():
                    layout._before.setdefault(id(owner.holder), []).append(e)
                home[key] = scope
            match e:
                case Function():
                    inside: tuple[Expr, ...] = (e.body,)
                    outside: tuple[Expr, ...] = ()
                case If():
                    inside, outside = (e.then, e.orelse), (e.cond,)
                case Match():
                    inside, outside = tuple(c.body for c in e.clauses), (e.data,)
                case Block():
                    if key in as_body and uses.get(key, 1) == 1:
                        layout.inlined.add(key)
                    else:
                        scope = Region(scope, e)
                    inside, outside = (), (*(b.value for b in e.bindings), e.result)
                case _:
                    inside, outside = (), children(e)
            for kid in outside:
                if isinstance(kid, Var):
                    variables[id(kid)] = variables.get(id(kid), 0) + 1
                elif kid.__class__ not in _ATOMS:
                    use(kid, scope)
            for kid in inside:
                if isinstance(kid, Var):
                    variables[id(kid)] = variables.get(id(kid), 0) + 1
                elif kid.__class__ not in _ATOMS:
                    as_body.add(id(kid))
                    use(kid, Region(scope, e))
        for nodes in layout._before.values():
            nodes.reverse()
        return layout
