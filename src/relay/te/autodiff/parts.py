"""Parts of an expression whose cotangent is made once, for all that they read.

    y[i, c] = sum(exp(s[i, k] - m[i]) / t[i] * v[k, c], k)

Here ``s``, ``m`` and ``t`` are read in a part that stays the same over ``c``. The cotangent of the part is one sum over ``c``, a
matrix product, and those of what it reads are made of it without one; by itself each of them would have a sum of its own over all
that the whole expression reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relay.ir.types import is_float
from relay.te.autodiff.contributions import MOST_IN_CACHE
from relay.te.index import Indices
from relay.te.scalar import Axis, Binary, Load, Scalar, children, iteration_count, mentioned, mentioned_by_node, walk

# Over how many iterations a part stays the same, at the least: one that is no larger than what it reads, and any other.
_AGAIN, _AGAIN_LARGER = 4, 16


def shared_parts(
    body: Scalar, axes: Sequence[Axis], active: Callable[[Scalar], bool]
) -> list[tuple[Scalar, tuple[Axis, ...]]]:
    """The largest parts of an element at each index of ``axes`` that stay the same over some of these, read two or more tensors, an
    ``active`` one among them, and are worth a tensor; and the axes of it."""
    mentions = mentioned_by_node(body)
    reads: dict[int, frozenset[Load]] = {}
    for node in walk(body):
        load = frozenset({node} if isinstance(node, Load) and is_float(node.dtype) else ())
        reads[id(node)] = load.union(*(reads[id(k)] for k in children(node)))
    found: dict[int, tuple[Scalar, tuple[Axis, ...]]] = {}
    todo, seen = [body], set[int]()
    while todo:
        node = todo.pop()
        if id(node) in seen or not is_float(node.dtype) or not any(active(load) for load in reads[id(node)]):
            continue
        seen.add(id(node))
        own = tuple(a for a in axes if a in mentions[id(node)])
        hidden = [a for a in axes if a not in mentions[id(node)]]
        if _repays(own, hidden, reads[id(node)]) and Indices().reads_inside(node):
            found[id(node)] = node, own
        else:
            todo += reversed(children(node))
    return list(found.values())


def _repays(own: Sequence[Axis], hidden: Sequence[Axis], loads: frozenset[Load]) -> bool:
    """Whether a part is worth a tensor over its ``own`` axes: it is no larger than what it reads, or little beside the whole."""
    if len({load.source for load in loads}) < 2:
        return False
    wide = {a for a in own if a.extent != 1}
    plain = all(isinstance(i, Axis) for load in loads for i in load.indices)
    if plain and any(wide <= set(load.indices) for load in loads):
        return iteration_count(hidden) >= _AGAIN
    return iteration_count(hidden) >= _AGAIN_LARGER and iteration_count(own) <= MOST_IN_CACHE and _meet(loads)


def _meet(loads: frozenset[Load]) -> bool:
    """Whether reads all have to do with each other, by the axes that they are along. Of others, as of those that a quotient and a
    remainder of one axis tell apart, products one by one are less than all at once."""
    if any(
        isinstance(n, Binary) and n.op in ("floordiv", "mod") for load in loads for i in load.indices for n in walk(i)
    ):
        return False
    sets = [mentioned(load) for load in loads]
    together, *rest = sets
    while joined := [s for s in rest if not s.isdisjoint(together)]:
        together = together.union(*joined)
        rest = [s for s in rest if s.isdisjoint(together)]
    return not rest
