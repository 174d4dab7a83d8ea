"""Products made once for each iteration that reads, and put together afterwards.

The sum that an element gathers goes over what is left free of the iterations that hit it, which is a box: near the ends of the
tensor it reaches beyond them, and there the border of zeros is multiplied too. For few places and many taps that is much: a window
of 5 in an image of 7 has 3 places, and each of the 7 elements has up to 5 taps, 35 in all for the 15 that there are. In the
other order nothing is multiplied in vain. First come the contributions, one for each place and tap, which are the sums over
everything that does not say which element is hit: a matrix product without borders and classes. Then every element takes the sum
of those that hit it. The contributions are a tensor of their own, so this is for products that are deep enough to pay for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from relay.ir.record import record
from relay.te.autodiff.arithmetic import choose
from relay.te.autodiff.stages import source_of, stage
from relay.te.index import Indices
from relay.te.scalar import Axis, Load, Reduce, Scalar, binary, guarded_factors, iteration_count, mentioned

# So many multiply-adds have to be saved for each contribution, which is stored and read again: from a cache, or from memory where
# there are more than so many.
_SAVED, _SAVED_IN_MEMORY, MOST_IN_CACHE = 12, 32, 1 << 21
# Factors of a product at most.
_MOST_FACTORS = 4
# What an axis of the contributions counts as, to be ordered, whose size is not known.
_LONG = 1 << 40


@record(frozen=True, slots=True, eq=False)
class Contributions:
    """What stands in the place of an adjoint: the contribution of each index of ``axes`` and ``over``."""

    value: Scalar
    axes: tuple[Axis, ...]
    over: tuple[Axis, ...]


def contributions(
    load: Load, adjoint: Scalar, axes: Sequence[Axis], over: Sequence[Axis], iterations: Callable[[], int]
) -> Contributions | None:
    """The contributions to what a load reads, if making them first is the less work; ``iterations`` tells how many products are
    added up in the other order (see `iteration_count`)."""
    if adjoint.dtype not in ("float32", "float64"):
        return None
    placed = mentioned(*load.indices)
    hidden = [a for a in (*axes, *over) if a not in placed]
    conditions, operands = guarded_factors(adjoint)
    own = [mentioned(o) for o in operands]
    if (
        not all(isinstance(o, Load) for o in operands)
        or not 2 <= len(own) <= _MOST_FACTORS
        or not all({a for a in hidden if a.extent != 1} <= mine for mine in own)
        or not mentioned(*conditions) <= placed
    ):
        return None
    if not all(is_inside(o) for o in operands):
        return None
    depth, places = iteration_count(hidden), iteration_count([a for a in (*axes, *over) if a in placed])
    saved = _SAVED if places <= MOST_IN_CACHE else _SAVED_IN_MEMORY
    if depth == 1 or iterations() - depth * places < saved * places:
        return None
    body = reduce(lambda a, b: binary("mul", a, b), operands)
    others = set[Axis]().union(*own[1:])
    order = _in_order(load, [a for a in (*axes, *over) if a in placed and a in own[0] | others], [own[0], others])
    product = stage("contributions", order, Reduce("sum", tuple(hidden), body, body.dtype))
    value: Scalar | None = product[tuple(order)]
    for condition in conditions:
        value = choose(condition, value, None, adjoint.dtype)
    assert value is not None
    return Contributions(value, tuple(a for a in axes if a in placed), tuple(a for a in over if a in placed))


def is_inside(load: Scalar) -> bool:
    """Whether it is a read that needs no condition."""
    source = source_of(load)
    if not isinstance(load, Load) or source is None:
        return False
    indices = Indices()
    return all(indices.within(indices.poly(i), size) for i, size in zip(load.indices, source.shape, strict=True))


def _in_order(load: Load, axes: Sequence[Axis], own: Sequence[set[Axis]]) -> list[Axis]:
    """Axes of the contributions: what both operands have, then one operand's, then those of the other, which is the one that goes
    along the last axis of what is read. Among the last, taps come before those that move an index furthest."""
    moving: list[Axis] = []
    for index in load.indices:
        # One that the operands do not have is none of the contributions'.
        named = mentioned(index)
        moved = [a for a in axes if a.extent != 1 and a in named]
        if moved:
            moving.append(max(moved, key=lambda a: (a.extent if isinstance(a.extent, int) else _LONG, axes.index(a))))
    last = 1 if moving and moving[-1] in own[1] else 0

    def rank(axis: Axis) -> tuple[int, bool]:
        if axis in own[0] and axis in own[1]:
            return 0, False
        return (2, axis in moving) if axis in own[last] else (1, False)

    return sorted(axes, key=rank)
