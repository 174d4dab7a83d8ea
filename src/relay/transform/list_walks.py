"""Recursion over a list that is a parameter: what is done to an item, and at the end."""

from __future__ import annotations

from collections import Counter

from relay.ir.expr import Binding, Clause, Function, Match, PConstructor, PVar, PWild
from relay.ir.module import Module
from relay.ir.record import record
from relay.transform.batching.lists import Layout, layout_of
from relay.transform.blocks import all_bindings, all_blocks, as_block, body_of, is_primitive, operands
from relay.transform.fix_invariants import invariants, self_calls


@record(frozen=True, slots=True, eq=False)
class ListWalk:
    """A recursive function over the list that is its parameter ``at``: what it does before it looks at it, and its clauses."""

    at: int
    layout: Layout
    head: tuple[Binding, ...]
    whole: Binding
    match: Match
    full: Clause
    empty: Clause

    @property
    def pattern(self) -> PConstructor:
        assert isinstance(self.full.pattern, PConstructor)
        return self.full.pattern


def list_walk(module: Module, name: str, function: Function) -> ListWalk | None:
    """See a function as recursion over a list, all of whose calls of itself are on the rest of it, for the same sizes."""
    shared = None if is_primitive(function) else invariants(name, function)
    if shared is None or len(shared.dims) != len(function.type_params):
        return None
    body = body_of(function)
    whole = body.bindings[-1]
    match, head = whole.value, body.bindings[:-1]
    if not isinstance(match, Match) or body.result is not whole.var or len(match.clauses) != 2:
        return None
    at = next((n for n, p in enumerate(function.params) if p is match.data), None)
    layout = layout_of(module, match.data.ty)
    full = next((c for c in match.clauses if isinstance(c.pattern, PConstructor) and c.pattern.fields), None)
    if at is None or layout is None or full is None or not isinstance(full.pattern, PConstructor):
        return None
    empty = next(c for c in match.clauses if c is not full)
    item, tail = full.pattern.fields[layout.head], full.pattern.fields[layout.tail]
    if not isinstance(item, PVar | PWild) or not isinstance(tail, PVar) or not isinstance(empty.pattern, PConstructor):
        return None
    reads = Counter(a for b in all_bindings(body) for a in operands(b.value))
    reads.update(block.result for block in all_blocks(body))
    calls = self_calls(name, function)
    inside = {a for b in all_bindings(as_block(full.body)) for a in operands(b.value)}
    if reads[match.data] != 1 or reads[tail.var] != len(calls) or not all(c.args[at] is tail.var for c in calls):
        return None
    return ListWalk(at, layout, head, whole, match, full, empty) if tail.var in inside else None
