"""Sibling reductions: kernels that reduce the same tensor over the same axes become one kernel with several results.

The greatest of some candidates and its place, a mean beside a maximum, the gradients of a scale and of a shift: none reads another, so no
dominator joins them, but each goes through the same elements. One kernel reads these once and is one call. What makes the tensor joins them
where nothing else reads it, so that it is never written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from relay.ir.dim import Dim
from relay.ir.expr import Call, Var
from relay.transform.grouping import Group, Grouping
from relay.transform.matrix_products import shape_of

# A tensor, how many of its leading axes are rows, and these; or the result's shape, where there are none.
_Over = tuple[Var, int, tuple[Dim, ...]]


def join_siblings(grouping: Grouping, levels: Iterable[tuple[int, Group]]) -> None:
    """Merge groups that reduce one tensor. Groups come with levels: those of one level do not depend on each other."""
    first: dict[tuple[int, _Over], Group] = {}
    for level, group in levels:
        for over in list(_reduced(grouping, group)):
            sibling = first.setdefault((level, over), group)
            now, other = (grouping.of[g.members[0]] for g in (group, sibling))
            if now is not other and grouping.fits([other, now]):
                _with_producer(grouping, over[0], grouping.merge([other, now]))


def _reduced(grouping: Grouping, group: Group) -> Iterator[_Over]:
    """The tensors from outside that a group of reductions goes through whole."""
    nodes = [grouping.nodes[n] for n in group.members]
    reductions = [n for n in nodes if n.access.kind == "reduction"]
    if group.injective or not reductions or any(n.access.kind in ("contraction", "opaque") for n in nodes):
        return
    rows, shape = min(n.access.rows for n in reductions), reductions[0].shape
    if shape is None or any(n.access.windows for n in reductions):
        return
    made = {n.var for n in nodes}
    sources = (a for n in reductions if isinstance(n.value, Call) for a in n.value.args[:1])
    domains = {shape_of(a) for a in sources if isinstance(a, Var)}
    seen: set[Var] = set()
    for node in nodes:
        if not isinstance(node.value, Call):
            continue
        for atom in node.value.args:
            if isinstance(atom, Var) and atom not in made and atom not in seen and shape_of(atom) in domains:
                seen.add(atom)
                # (Axes of one element, which sums leave where they were, are no rows.)
                yield atom, rows, shape[:rows] if any(d != 1 for d in shape[:rows]) else shape


def _with_producer(grouping: Grouping, tensor: Var, readers: Group) -> None:
    """The elementwise operators that make a tensor for these readers alone join them."""
    inputs = {i for n in readers.members for i in grouping.nodes[n].inputs}
    maker = next((grouping.of[i] for i in inputs if grouping.nodes[i].var is tensor), None)
    if maker is None or maker is readers or not maker.plain:
        return
    both = {*maker.members, *readers.members}
    inside = all(not grouping.nodes[n].escapes and both.issuperset(grouping.nodes[n].consumers) for n in maker.members)
    if inside and grouping.fits([maker, readers]):
        grouping.merge([maker, readers])
