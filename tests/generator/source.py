"""Where the generator's decisions come from: a seed, or hypothesis (which can shrink them). Smaller numbers mean simpler programs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Source(Protocol):
    """A stream of decisions."""

    def below(self, n: int) -> int:
        """A number in ``[0, n)``."""
        ...


class Seeded:
    """Decisions from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, n: int) -> int:
        return self._random.randrange(n)


class Drawn:
    """Decisions from bytes that hypothesis draws: it shrinks them towards zero, and where they end everything is simplest."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def below(self, n: int) -> int:
        width = 1 if n <= 64 else 2
        taken = self._data[self._at : self._at + width]
        self._at += width
        return int.from_bytes(taken, "little") % n


class Choices:
    """Convenience over a source."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def pick(self, items: Sequence[T]) -> T:
        return items[self.source.below(len(items))]

    def chance(self, percent: int) -> bool:
        """True in about ``percent`` of a hundred cases; False is the simpler outcome."""
        return self.source.below(100) >= 100 - percent

    def between(self, lo: int, hi: int) -> int:
        """A number from ``lo`` to ``hi``, both included."""
        return lo + self.source.below(hi - lo + 1)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        left = list(items)
        return [left.pop(self.source.below(len(left))) for _ in items]


# The names in scope, by kind.
Scope = dict[str, list[str]]


def extended(scope: Scope, kind: str, *names: str) -> Scope:
    """The scope with more names of a kind."""
    return {**scope, kind: [*scope.get(kind, []), *names]}
