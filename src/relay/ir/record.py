"""Dataclasses that type checkers hold frozen, and that are made at the speed of ones that are not.

    @record(frozen=True, slots=True, eq=False)
    class Binary: ...

A frozen dataclass sets its fields by way of `object.__setattr__`, which makes an object in twenty times the time: a tenth of a whole
compilation, for what is made by the million (expressions, sizes, loop nests, values of code). Type checkers see `dataclasses.dataclass`
here, and refuse an assignment to a field as ever; when the program runs, nothing does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from collections.abc import Callable
    from dataclasses import dataclass

    def record(*, frozen: bool, slots: bool, eq: bool = True, repr: bool = True) -> Callable[[type], type]:
        """The decorator `dataclasses.dataclass` without the guard of fields; equality and hashes are those of a frozen one."""
        assert frozen and slots, "what is not frozen, or has a dictionary, is a dataclass"
        return dataclass(slots=True, eq=eq, repr=repr, unsafe_hash=eq)


__all__ = ["record"]
