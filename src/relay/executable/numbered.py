"""Things by number, the same number for equal texts."""

from __future__ import annotations

from threading import Lock
from typing import Generic, TypeVar

T = TypeVar("T")


class Numbered(Generic[T]):
    """A table that grows, also while several threads convert values by it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._things: list[T] = []
        self._numbers: dict[str, int] = {}

    def __getitem__(self, number: int) -> T:
        return self._things[number]

    def number(self, text: str, thing: T) -> int:
        """The number of what a text stands for."""
        found = self._numbers.get(text)
        if found is not None:
            return found
        with self._lock:
            found = self._numbers.setdefault(text, len(self._things))
            if found == len(self._things):
                self._things.append(thing)
            return found

    def known(self, text: str) -> int | None:
        """The number of what a text stands for, if it has one."""
        return self._numbers.get(text)
