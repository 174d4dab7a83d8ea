"""What evaluating something can do besides giving a value. Passes that drop, duplicate, move or merge code must ask."""

from __future__ import annotations

from enum import Flag


class Effect(Flag):
    """A set of effects. The empty set, `Effect.PURE`, may be dropped, duplicated and moved freely."""

    PURE = 0
    MAY_FAIL = 1  # may raise an execution error: a run-time check, a partial match
    READS = 2  # reads a reference
    ALLOCATES = 4  # makes a reference: identity matters, so it must not be duplicated or merged
    WRITES = 8  # writes a reference
    HOST = 16  # talks to the outside
    DIVERGES = 32  # may not return


# The middle end's own operations, which are no operators: a run-time check of dims (attributes left, right, relation,
# why), and the making of a closure (of a global function and what it captures, which it takes first).
CHECK_EQUAL, CLOSURE = "check_equal", "closure"
INTERNAL = {CHECK_EQUAL: Effect.MAY_FAIL, CLOSURE: Effect.PURE}

ALL_EFFECTS = Effect.MAY_FAIL | Effect.READS | Effect.ALLOCATES | Effect.WRITES | Effect.HOST | Effect.DIVERGES


def droppable(effects: Effect) -> bool:
    """An unused result may be dropped: nobody could tell."""
    return not effects & (Effect.MAY_FAIL | Effect.WRITES | Effect.HOST | Effect.DIVERGES)


def duplicable(effects: Effect) -> bool:
    """Evaluating twice, or once for two equal expressions, cannot be told from evaluating each once."""
    return not effects & (Effect.READS | Effect.ALLOCATES | Effect.WRITES | Effect.HOST)


def movable(effects: Effect) -> bool:
    """May be evaluated earlier, later or not at all relative to other code."""
    return effects == Effect.PURE
