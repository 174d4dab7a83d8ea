"""Where the generator's decisions come from: a seed, or hypothesis (which can shrink them). Smaller numbers mean simpler programs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from hypothesis import strategies as st

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
    """Decisions drawn by hypothesis."""

    def __init__(self, draw: Callable[[st.SearchStrategy[int]], int]) -> None:
        self._draw = draw

    def below(self, n: int) -> int:
        return self._draw(st.integers(0, n - 1)) if n > 1 else 0


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
