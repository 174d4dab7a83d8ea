"""Rows of a few numbers: what a step of a loop in registers puts together of them, and puts behind a tensor.

Each number of a row is an expression by itself, so that a row is in memory only where it is a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

from relay.ir.dim import Dim
from relay.ir.record import record
from relay.te.index import Indices
from relay.te.scalar import Axis, Compare, Const, Load, Scalar, Select, substitute

# Numbers in a row: each is computed and written by itself.
_MOST = 16


@record(frozen=True, slots=True, eq=False)
class Row:
    """A tensor of a few numbers."""

    shape: tuple[int, ...]
    numbers: tuple[Scalar, ...]

    def at(self, load: Load) -> Scalar:
        """The number at the place of a load; the load, where the place is not known, or is none."""
        here, flat = Indices(), 0
        for index, size in zip(load.indices, self.shape, strict=True):
            place = here.poly(index)
            if not isinstance(place, int) or not 0 <= place < size:
                return load
            flat = flat * size + place
        return self.numbers[flat]


def sizes_of_row(shape: Sequence[Dim]) -> tuple[int, ...] | None:
    """The sizes of a row; None where they are not known, or it has no numbers or too many."""
    sizes = tuple(d for d in shape if isinstance(d, int))
    return sizes if len(sizes) == len(shape) and 0 < prod(sizes) <= _MOST else None


def elements_of(axes: Sequence[Axis], body: Scalar, sizes: Sequence[int]) -> tuple[Scalar, ...]:
    """The numbers, in order, of what has ``body`` at each place of axes of these sizes."""
    return tuple(
        substitute(body, {a: Const(n, "int64") for a, n in zip(axes, at, strict=True)})
        for at in product(*map(range, sizes))
    )


def decided(choice: Select) -> Scalar:
    """What is chosen, where a comparison of places decides that."""
    hit = choice.cond
    if not isinstance(hit, Compare) or hit.a.dtype != "int64":
        return choice
    known = Indices().compare(hit.op, hit.a, hit.b)
    if not isinstance(known, Const):
        return choice
    return choice.a if known.value else choice.b
