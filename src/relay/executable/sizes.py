"""Sizes in the types that travel with an executable (`relay.lower.signature`): a number, a name, ``[operation, size, size]``, or None."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from relay.executable.numbered import Numbered
from relay.ir.diagnostics import ShapeError

Size = Any
OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "min": min,
    "max": max,
}
_SIGNS = {"add": "+", "mul": "*", "floordiv": "//", "mod": "%"}
# What no tensor's size is equal to.
_NEVER = 1 << 62


def with_sizes(size: Size, meaning: Callable[[str], Size]) -> Size:
    """A size with others in place of its names; what is computed from numbers is one, from what is not known or not there None."""
    if isinstance(size, str):
        return meaning(size)
    if not isinstance(size, list):
        return size
    name, *operands = size
    a, b = (with_sizes(o, meaning) for o in operands)
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 and name in ("floordiv", "mod") else OPERATIONS[name](a, b)
    return None if a is None or b is None else [name, a, b]


def linear(size: Size) -> Iterator[tuple[str, int, int]]:
    """The name, factor and constant of a size that is ``factor * name + constant`` with a positive factor; nothing for any other."""
    if isinstance(size, str):
        yield size, 1, 0
    elif isinstance(size, list) and size[0] in ("add", "mul") and any(isinstance(o, int) for o in size[1:]):
        operation, *operands = size
        number = next(o for o in operands if isinstance(o, int))
        (other,) = (o for o in operands if not isinstance(o, int))
        for name, factor, constant in linear(other):
            if operation == "add":
                yield name, factor, constant + number
            elif number > 0:
                yield name, factor * number, constant * number


def size_text(size: Size) -> str:
    """For people: ``2 * n``, ``?``."""
    if not isinstance(size, list):
        return "?" if size is None else str(size)
    name, *operands = size
    a, b = map(size_text, operands)
    if name not in _SIGNS:
        return f"{name}({a}, {b})"
    a, b = (f"({t})" if isinstance(o, list) else t for o, t in zip(operands, (a, b), strict=True))
    return f"{a} {_SIGNS[name]} {b}"


def names_in(size: Size) -> Iterator[str]:
    """The names that a size is computed from."""
    if isinstance(size, str):
        yield size
    elif isinstance(size, list):
        for operand in size[1:]:
            yield from names_in(operand)


class NamedSizes:
    """The sizes of an entry's parameters that are names or computed from names, by number. Tensors inside of algebraic values are
    checked against them: what compiled code knows of a size it has from one tensor."""

    def __init__(self, entry: str, bounds: Mapping[str, tuple[int, int | None]]) -> None:
        self.entry = entry
        self._bounds = bounds
        self._sizes = Numbered[Size]()

    def code(self, size: Size) -> int:
        """As `relay._runtime.Converter` takes a size: a number as it is, -1 for any, -2 - 2 k for name k, -3 - 2 k for what is computed
        from names, or has bounds: when one is met, `settle` is to look at it."""
        if size is None:
            return -1
        if isinstance(size, int):
            return size if size >= 0 else _NEVER
        number = self._sizes.number(json.dumps(size), size)
        return -2 - 2 * number - (isinstance(size, list) or size in self._bounds)

    def computed(self, number: int, known: Sequence[int]) -> int | None:
        """Size ``number``, if the sizes it is computed from are known (not -1)."""
        found = with_sizes(self._sizes[number], lambda name: self._value(name, known))
        return found if not isinstance(found, int) or found >= 0 else _NEVER

    def _value(self, name: str, known: Sequence[int]) -> int | None:
        n = self._sizes.known(json.dumps(name))
        return known[n] if n is not None and n < len(known) and known[n] >= 0 else None

    def settle(self, known: Sequence[int]) -> None:
        """Raises ShapeError where a size is not what it is computed to be, or outside of its bounds."""
        met = [(self._sizes[number], found) for number, found in enumerate(known) if found >= 0]
        solved: dict[str, int] = {}

        def meaning(name: str) -> Size:
            value = solved.get(name, self._value(name, known))
            return name if value is None else value

        for size, found in met:  # what only a computed size says of a name, which the others then have to agree with
            if not isinstance(size, list):
                continue
            left = with_sizes(size, meaning)
            for name, factor, constant in linear(left):
                value, rest = divmod(found - constant, factor)
                if rest or value < 0:
                    raise self._wrong(size, found, f"which no size {name} gives")
                solved[name] = value
                self._within_bounds(name, value)
        for size, found in met:
            expected = with_sizes(size, lambda name: solved.get(name, self._value(name, known)))
            if isinstance(expected, int) and expected != found:
                raise self._wrong(size, found, f"expected {'no size' if expected < 0 else expected}")
            if isinstance(size, str):
                self._within_bounds(size, found)

    def _within_bounds(self, name: str, found: int) -> None:
        least, most = self._bounds.get(name, (0, None))
        if found < least:
            raise self._wrong(name, found, f"expected at least {least}")
        if most is not None and found > most:
            raise self._wrong(name, found, f"expected at most {most}")

    def _wrong(self, size: Size, found: int, what: str) -> ShapeError:
        return ShapeError(
            f"the sizes of the arguments of @{self.entry}: an axis of {size_text(size)} has size {found}, {what}"
        )
