"""The least cut between two sides of a graph, by the greatest flow that passes from one to the other (Dinic's algorithm)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import field

from relay.ir.record import record

ENDLESS = 1 << 60
SOURCE, SINK = "source", "sink"


@record(slots=True, eq=False)
class Flow:
    """Nodes, and how much may flow from one to another; `SOURCE` and `SINK` are two of them."""

    _numbers: dict[Hashable, int] = field(default_factory=lambda: {SOURCE: 0, SINK: 1})
    # By node: its edges, each next to the one that leads back.
    _edges: list[list[int]] = field(default_factory=lambda: [[], []])
    _ends: list[int] = field(default_factory=list)
    _left: list[int] = field(default_factory=list)

    def limit(self, start: Hashable, end: Hashable, most: int) -> None:
        """At most so much flows directly from one node to another."""
        a, b = self._number(start), self._number(end)
        self._edges[a].append(len(self._ends))
        self._edges[b].append(len(self._ends) + 1)
        self._ends += (b, a)
        self._left += (most, 0)

    def beyond(self) -> set[Hashable]:
        """The nodes on the sink's side of the least cut, the one that is nearest to the sink."""
        while (levels := self._levels())[1] >= 0:
            done = [0] * len(levels)
            while self._augment(levels, done):
                pass
        # From where something may still flow to the sink.
        found, todo = {1}, [1]
        while todo:
            for e in self._edges[todo.pop()]:
                a = self._ends[e]
                if self._left[e ^ 1] and a not in found:
                    found.add(a)
                    todo.append(a)
        return {node for node, number in self._numbers.items() if number in found}

    def _number(self, node: Hashable) -> int:
        number = self._numbers.setdefault(node, len(self._edges))
        if number == len(self._edges):
            self._edges.append([])
        return number

    def _levels(self) -> list[int]:
        """How many edges each node is from the source (-1: nothing more flows there)."""
        levels = [-1] * len(self._edges)
        levels[0] = 0
        todo = [0]
        for node in todo:
            for e in self._edges[node]:
                if self._left[e] and levels[self._ends[e]] < 0:
                    levels[self._ends[e]] = levels[node] + 1
                    todo.append(self._ends[e])
        return levels

    def _augment(self, levels: list[int], done: list[int]) -> bool:
        """Let as much more flow along one shortest way as it has room for. ``done``: how many edges of each node lead nowhere."""
        way: list[int] = []
        node = 0
        while node != 1:
            edges = self._edges[node]
            while done[node] < len(edges):
                e = edges[done[node]]
                if self._left[e] and levels[self._ends[e]] == levels[node] + 1:
                    way.append(e)
                    node = self._ends[e]
                    break
                done[node] += 1
            else:
                if not way:
                    return False
                node = self._ends[way.pop() ^ 1]
                done[node] += 1
        room = min(self._left[e] for e in way)
        for e in way:
            self._left[e] -= room
            self._left[e ^ 1] += room
        return True
