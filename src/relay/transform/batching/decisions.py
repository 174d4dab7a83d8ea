"""How a recursive function looks at a node: a decision tree, with straight-line code at its ends."""

from __future__ import annotations

from collections.abc import Mapping

from relay.ir.expr import Binding, Expr, Var
from relay.ir.record import record
from relay.transform.batching.lists import Items, Layout

# Where a part of the structure is: field numbers from the node on. A list's layout in it: that list turned round.
Path = tuple[int | Layout, ...]


@record(frozen=True, slots=True, eq=False)
class Switch:
    """Look at the constructor of a part: a tree for each tag (None: no clause of the match fits)."""

    path: Path
    arms: tuple[Tree | None, ...]


@record(frozen=True, slots=True, eq=False)
class Clause:
    """Straight-line code. ``parts`` are the variables that stand for parts of the structure; ``lists`` says of calls of functions
    over lists, by the variables that they are bound to, what is done to each item."""

    function: int
    bindings: tuple[Binding, ...]
    result: Expr
    parts: dict[Var, Path]
    lists: dict[Var, Items]

    def all_bindings(self) -> list[Binding]:
        """The code, and that for items of lists, of those that have any."""
        return [*self.bindings, *(b for items in self.lists.values() if not items.empty for b in items.code)]


@record(frozen=True, slots=True, eq=False)
class Elsewhere:
    """A clause some of whose parts lie elsewhere here, by where they lie there."""

    clause: Clause
    paths: Mapping[Path, Path]

    def path(self, there: Path) -> Path:
        """Where the part that lies ``there`` in the clause lies here."""
        return self.paths.get(there, there)


def others(tree: Tree) -> list[Elsewhere]:
    """Where else in a tree its clauses stand."""
    out: list[Elsewhere] = []
    todo = [tree]
    while todo:
        here = todo.pop()
        if isinstance(here, Switch):
            todo += (a for a in here.arms if a is not None)
        elif isinstance(here, Elsewhere):
            out.append(here)
    return out


Tree = Switch | Clause | Elsewhere
