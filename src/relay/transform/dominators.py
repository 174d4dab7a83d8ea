"""Dominator trees of acyclic graphs given in reverse topological order, with common ancestors in logarithmic time."""

from __future__ import annotations

from collections.abc import Iterable

NONE = -1


class DominatorTree:
    """Post-dominators of ``count`` numbered nodes whose consumers have larger numbers. ``parent`` is `NONE` at the
    roots.

    A node post-dominates another when every path from that other to the graph's end passes through it.
    """

    def __init__(self, count: int) -> None:
        self.parent = [NONE] * count
        self._jump = [NONE] * count
        self._depth = [0] * count

    def set(self, node: int, consumers: Iterable[int], *, escapes: bool) -> None:
        """Place a node under the common ancestor of its consumers (all placed); under none when its value escapes the
        graph."""
        parent = NONE
        if not escapes:
            first = True
            for consumer in consumers:
                parent = consumer if first else self.common(parent, consumer)
                first = False
        self.parent[node] = parent
        if parent == NONE:
            return
        self._depth[node] = self._depth[parent] + 1
        far = self._jump[parent]
        equal = far != NONE and self._length(parent, far) == self._length(far, self._jump[far])
        self._jump[node] = self._jump[far] if equal else parent

    def _length(self, node: int, ancestor: int) -> int:
        return self._depth[node] - (self._depth[ancestor] if ancestor != NONE else -1)

    def common(self, a: int, b: int) -> int:
        """The nearest common ancestor (a node is its own ancestor); `NONE` when there is none."""
        if a == NONE or b == NONE:
            return NONE
        depth, jump, parent = self._depth, self._jump, self.parent
        if depth[a] < depth[b]:
            a, b = b, a
        while depth[a] > depth[b]:
            far = jump[a]
            a = far if far != NONE and depth[far] >= depth[b] else parent[a]
        while a != b:
            if jump[a] != jump[b]:
                a, b = jump[a], jump[b]
            else:
                a, b = parent[a], parent[b]
            if a == NONE or b == NONE:
                return NONE
        return a
