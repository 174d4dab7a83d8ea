"""How often the variables of a function in blocks are used, and from where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from relay.ir.expr import Binding, Block, Expr, Function, GlobalVar, Var
from relay.transform.blocks import all_blocks, is_primitive, operands


def use_counts(root: Block) -> Counter[Var]:
    """The number of places that mention each variable, in this block and all inside it, results of blocks included."""
    counts: Counter[Var] = Counter()
    for block in all_blocks(root):
        for binding in block.bindings:
            for atom in operands(binding.value):
                if isinstance(atom, Var):
                    counts[atom] += 1
        if isinstance(block.result, Var):
            counts[block.result] += 1
    return counts


def needed(bindings: Sequence[Binding], results: Iterable[Expr]) -> list[Binding]:
    """The bindings that the results need, in order; of bindings without blocks inside."""
    used = {r for r in results if isinstance(r, Var)}
    out: list[Binding] = []
    for b in reversed(bindings):
        if b.var in used:
            out.append(b)
            used.update(a for a in operands(b.value) if isinstance(a, Var))
    out.reverse()
    return out


def globals_used(function: Function) -> list[str]:
    """The names of the global functions that a function in blocks mentions, in order, repetitions included."""
    if is_primitive(function):
        return []
    out: list[str] = []
    assert isinstance(function.body, Block)
    for block in all_blocks(function.body):
        for binding in block.bindings:
            out += (a.name for a in operands(binding.value) if isinstance(a, GlobalVar))
        if isinstance(block.result, GlobalVar):
            out.append(block.result.name)
    return out


def components(graph: dict[str, list[str]]) -> list[list[str]]:
    """The strongly connected components of a graph, callees first (Tarjan's algorithm, iterative).

    Names outside it are ignored.
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    path: list[str] = []
    on_path: set[str] = set()
    out: list[list[str]] = []
    for root in graph:
        if root in index:
            continue
        work: list[tuple[str, int]] = [(root, 0)]
        while work:
            node, at = work.pop()
            if at == 0:
                index[node] = low[node] = len(index)
                path.append(node)
                on_path.add(node)
            targets = graph[node]
            while at < len(targets):
                target = targets[at]
                at += 1
                if target not in graph:
                    continue
                if target not in index:
                    work.append((node, at))
                    work.append((target, 0))
                    break
                if target in on_path:
                    low[node] = min(low[node], index[target])
            else:
                if low[node] == index[node]:
                    component: list[str] = []
                    while True:
                        top = path.pop()
                        on_path.discard(top)
                        component.append(top)
                        if top == node:
                            break
                    out.append(component)
                if work:
                    parent = work[-1][0]
                    low[parent] = min(low[parent], low[node])
    return out
