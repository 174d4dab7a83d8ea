"""What reaches what in a call graph."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

N = TypeVar("N", bound=Hashable)


def components(edges: Mapping[N, Sequence[N]]) -> list[list[N]]:
    """Groups of names that reach each other, each group after those it points to (Tarjan's algorithm, iterative). What has no entry
    in ``edges`` is ignored."""
    index: dict[N, int] = {}
    low: dict[N, int] = {}
    stack: list[N] = []
    on_stack: set[N] = set()
    out: list[list[N]] = []
    for root in edges:
        if root in index:
            continue
        work: list[tuple[N, Iterator[N]]] = [(root, iter(edges[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            name, rest = work[-1]
            for target in rest:
                if target not in edges:
                    continue
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    on_stack.add(target)
                    work.append((target, iter(edges[target])))
                    break
                if target in on_stack:
                    low[name] = min(low[name], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    group: list[N] = []
                    while not group or group[-1] != name:
                        group.append(stack.pop())
                        on_stack.discard(group[-1])
                    out.append(group[::-1])
    return out


def below(edges: Mapping[N, Sequence[N]], roots: Iterable[N]) -> dict[N, None]:
    """What the roots reach, themselves included, in order of discovery."""
    found = dict.fromkeys(roots)
    todo = list(found)
    while todo:
        for target in edges[todo.pop()]:
            if target in edges and target not in found:
                found[target] = None
                todo.append(target)
    return found
