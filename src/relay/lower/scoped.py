"""A map whose entries are forgotten where the scope ends in which they were made, as fast at any depth."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Scoped(dict[K, V]):
    """A dict; what is set by ``[]`` after `enter` is as it was after `leave`."""

    __slots__ = ("_before", "_marks")

    def __init__(self) -> None:
        super().__init__()
        self._before: list[tuple[K, V | None]] = []  # what was there where something was set, in order
        self._marks: list[int] = []

    def enter(self) -> None:
        self._marks.append(len(self._before))

    def leave(self) -> None:
        mark = self._marks.pop()
        while len(self._before) > mark:
            key, value = self._before.pop()
            if value is None:
                del self[key]
            else:
                super().__setitem__(key, value)

    def __setitem__(self, key: K, value: V) -> None:
        if self._marks:
            self._before.append((key, self.get(key)))
        super().__setitem__(key, value)

    def keep(self, key: K, value: V) -> None:
        """Set what has no value yet, and stays when scopes end."""
        super().__setitem__(key, value)
