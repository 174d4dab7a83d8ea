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

    # Those of `Flag` make their result anew, in ten times the time; passes join effects by the hundred thousand.

    def __or__(self, other: Effect) -> Effect:
        return _BY_VALUE[self._value_ | other._value_]

    def __and__(self, other: Effect) -> Effect:
        return _BY_VALUE[self._value_ & other._value_]

    def __bool__(self) -> bool:
        return self._value_ != 0


_BY_VALUE = tuple(map(Effect, range(64)))

# The middle end's own operations, which are no operators: a run-time check of dims (attributes left, right, relation,
# why), and the making of a closure (of a global function and what it captures, which it takes first).
CHECK_EQUAL, CLOSURE = "check_equal", "closure"
INTERNAL = {CHECK_EQUAL: Effect.MAY_FAIL, CLOSURE: Effect.PURE}

ALL_EFFECTS = Effect.MAY_FAIL | Effect.READS | Effect.ALLOCATES | Effect.WRITES | Effect.HOST | Effect.DIVERGES


_SHOWS = Effect.MAY_FAIL | Effect.WRITES | Effect.HOST | Effect.DIVERGES
_TELLS_APART = Effect.READS | Effect.ALLOCATES | Effect.WRITES | Effect.HOST


def droppable(effects: Effect) -> bool:
    """An unused result may be dropped: nobody could tell."""
    return not effects & _SHOWS


def duplicable(effects: Effect) -> bool:
    """Evaluating twice, or once for two equal expressions, cannot be told from evaluating each once."""
    return not effects & _TELLS_APART
