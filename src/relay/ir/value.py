"""Values of algebraic data types, as Python sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from relay.ir.diagnostics import TypeError_
from relay.ir.types import ConstructorDef, TypeDef


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class AdtValue:
    """A constructor applied to its fields. ``tag`` is the constructor's position in the type ``adt``."""

    adt: str
    constructor: str
    tag: int
    fields: tuple[Any, ...]

    def __repr__(self) -> str:
        """Nesting is shown to a limit, and the rest as ``...``."""
        out: list[str] = []
        todo: list[object] = [self]
        while todo and len(out) < 400:
            item = todo.pop()
            if isinstance(item, _Piece):
                out.append(item.text)
            elif isinstance(item, AdtValue | tuple | list):
                # What holds others is taken apart here: parts that are shared would otherwise be shown as often as there are ways to them.
                name, opened, closed, parts = _taken_apart(item)
                out.append(name)
                if parts or not name:
                    out.append(opened)
                    todo.append(_Piece(closed))
                    for n in range(len(parts) - 1, -1, -1):
                        todo.append(parts[n])
                        if n:
                            todo.append(_Piece(", "))
            else:
                out.append(repr(item))
        return "".join(out) + (" ..." if todo else "")


def _taken_apart(item: AdtValue | tuple[Any, ...] | list[Any]) -> tuple[str, str, str, Sequence[Any]]:
    """What stands before the parts of a value, around them, and the parts."""
    if isinstance(item, AdtValue):
        return item.constructor, "(", ")", item.fields
    if isinstance(item, list):
        return "", "[", "]", item
    return "", "(", ",)" if len(item) == 1 else ")", item


@dataclass(frozen=True, slots=True)
class _Piece:
    text: str


class Adt:
    """The constructors of a type as Python functions: ``T = mod.adt("Tree"); T.Node(T.Leaf(x), T.Leaf(y))``."""

    def __init__(self, definition: TypeDef) -> None:
        self.definition = definition
        self._constructors = {c.name: c for c in definition.constructors}

    def __reduce__(self) -> tuple[type[Adt], tuple[TypeDef]]:
        return Adt, (self.definition,)

    def __getattr__(self, name: str) -> Callable[..., AdtValue]:
        found = self._constructors.get(name)
        if found is None:
            raise AttributeError(
                f"type {self.definition.name} has no constructor {name}; it has {', '.join(self._constructors)}"
            )
        return _maker(found)

    def __getitem__(self, name: str) -> Callable[..., AdtValue]:
        """The constructor by name (for names that are words of Python, such as ``None``)."""
        if name not in self._constructors:
            raise KeyError(name)
        return _maker(self._constructors[name])

    def __dir__(self) -> Iterable[str]:
        return self._constructors

    def __repr__(self) -> str:
        return f"<type {self.definition.name}: {', '.join(self._constructors)}>"


def _maker(constructor: ConstructorDef) -> Callable[..., AdtValue]:
    def make(*fields: object) -> AdtValue:
        if len(fields) != len(constructor.fields):
            raise TypeError_(f"{constructor.name} has {len(constructor.fields)} fields, {len(fields)} were given")
        return AdtValue(constructor.adt, constructor.name, constructor.tag, fields)

    make.__name__ = constructor.name
    return make


def list_value(items: Iterable[object]) -> AdtValue:
    """A Python sequence as the prelude's ``List``."""
    made = AdtValue("List", "Nil", 1, ())
    for item in reversed(tuple(items)):
        made = AdtValue("List", "Cons", 0, (item, made))
    return made


def from_list(value: AdtValue) -> list[Any]:
    """The items of a ``List``. Raises TypeError_ for a value of another type."""
    items: list[Any] = []
    while value.constructor == "Cons" and value.adt == "List":
        head, value = value.fields
        items.append(head)
    if value.adt != "List":
        raise TypeError_(f"expected a List, found a {value.adt}")
    return items


def option_value(value: object) -> AdtValue:
    """``None`` or a value as the prelude's ``Option``."""
    return AdtValue("Option", "None", 1, ()) if value is None else AdtValue("Option", "Some", 0, (value,))


def from_option(value: AdtValue) -> Any:
    """The value in an ``Option``, or None. Raises TypeError_ for a value of another type."""
    if value.adt != "Option":
        raise TypeError_(f"expected an Option, found a {value.adt}")
    return value.fields[0] if value.fields else None
