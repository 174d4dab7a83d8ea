"""Results that are written into rows of a state are computed there.

A kernel's result of which ``rows.update`` makes rows of a state, and which nothing reads afterwards, gets these rows as its memory, so
that nothing is left to copy. It is written before the update then: that is allowed where the update says that nothing reads what these
rows were before (``fresh``), and the state dies with the update. Whether nobody else holds the state shows when the program runs
(``rows.room``).
"""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.expr import Block, Call, Expr, OpRef, Var
from relay.ir.record import record
from relay.lower.escape import Tensors


@record(frozen=True, slots=True)
class Room:
    """Rows of ``state`` (those of ``clause`` on a level); ``ends``: what nothing reads any more after they are the state's."""

    state: Var
    offsets: Expr
    level: Expr
    clause: int
    ends: frozenset[Var]


def find_rooms(block: Block, tensors: Tensors, ends: Sequence[set[Var]]) -> dict[int, Room]:
    """The rooms of a block's tensors by key. ``ends`` has, for each binding, the variables that nothing reads after it."""
    position = {b.var: n for n, b in enumerate(block.bindings)}
    found: dict[int, Room] = {}
    for at, binding in enumerate(block.bindings):
        call = _update(binding.value)
        if call is None:
            continue
        rows, offsets, level = call.args[1:]
        key = tensors.origin.get(rows) if isinstance(rows, Var) else None
        if not isinstance(key, int) or key in tensors.escaped or tensors.end[key] != at or key in found:
            continue
        made = tensors.start[key]
        state = _before(call.args[0], made, block, position)
        there = all(position.get(a, -1) < made for a in (offsets, level) if isinstance(a, Var))
        clause = call.attrs["clause"]
        if state is not None and there and isinstance(clause, int):
            dead = frozenset().union(*ends[made : at + 1])
            found[key] = Room(state, offsets, level, clause, dead)
    return found


def _update(value: Expr) -> Call | None:
    fresh = isinstance(value, Call) and isinstance(value.fn, OpRef) and value.fn.name == "rows.update"
    return value if isinstance(value, Call) and fresh and value.attrs.get("fresh") else None


def _before(state: Expr, made: int, block: Block, position: dict[Var, int]) -> Var | None:
    """The variable that is there before binding ``made`` and in whose memory the state is, if only such updates lie between."""
    while isinstance(state, Var) and position.get(state, -1) >= made:
        call = _update(block.bindings[position[state]].value)
        if call is None:
            return None
        state = call.args[0]
    return state if isinstance(state, Var) else None
