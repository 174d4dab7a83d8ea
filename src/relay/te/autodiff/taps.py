"""Sums over the taps that hit an element, where whole matrix products are left to each.

An element of an image gathers from the places whose window has it: near the borders, and with a stride, from fewer taps than there
are. Where many elements are hit alike (the images of a batch, the rows of a capsule), the products of one place and tap are a matrix
product by themselves: then the taps are looped over, each with the condition that it hits, and nothing is multiplied in vain. Neither a
border of zeros, nor classes of remainders, nor memory for contributions is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from relay.te.autodiff.arithmetic import factors
from relay.te.autodiff.contributions import is_inside
from relay.te.autodiff.simplify import simplified
from relay.te.autodiff.solve import invert
from relay.te.index import Indices
from relay.te.scalar import Axis, Const, Load, Reduce, Scalar, Select, iteration_count, mentioned, substitute

# So many rows at least must be hit alike, to be multiplied with so many columns, in sums so deep: a condition is tested before each.
_ROWS, _COLUMNS, _DEPTH = 4, 16, 16
# What the other forms must do more than is needed.
_WASTE = 1.05


def over_taps(
    load: Load,
    adjoint: Scalar,
    axes: Sequence[Axis],
    over: Sequence[Axis],
    element: Sequence[Axis],
    iterations: Callable[[], int],
) -> Scalar | None:
    """The sum that an element takes of a product of two reads, tap by tap; None where another form is as good. ``iterations`` tells
    how many products that adds up (see `work`)."""
    operands = factors(adjoint)
    if adjoint.dtype not in ("float32", "float64") or len(operands) != 2 or not all(map(is_inside, operands)):
        return None
    own = [mentioned(o) for o in operands]
    used = [[a for a in (*axes, *over) if a.extent != 1 and a in mentioned(i)] for i in load.indices]
    windows = [w for w in used if len(w) > 1]
    last = next((w for a, w in zip(reversed(element), reversed(used), strict=True) if a.extent != 1), [])
    # Of a window's variables one operand has those that are looped over, and what the result has side by side; the other the one
    # that they determine.
    ways: list[tuple[list[Axis], set[Axis], set[Axis]]] = []
    for mine, other in ((own[0], own[1]), (own[1], own[0])):
        taps = [a for w in windows for a in w if a in mine and a not in other]
        beside = len(last) == 1 and last[0] in mine and last[0] not in other
        if (
            taps
            and beside
            and all(sum(a in taps for a in w) == len(w) - 1 and not mine & other & {*w} for w in windows)
        ):
            ways.append((taps, mine, other))
    if not ways:
        return None
    taps, mine, other = min(ways, key=lambda way: _size(way[0]))
    single = [w[0] for w in used if len(w) == 1]
    hidden = [a for a in (*axes, *over) if a.extent != 1 and not any(a in w for w in used)]
    if len(set(taps)) < len(taps) or len(set(single)) < len(single) or not set(hidden) <= mine & other:
        return None
    rows = _size([a for a in single if a not in mine])
    columns = _size([a for a in single if a not in other])
    depth = _size(hidden)
    if rows < _ROWS or columns < _COLUMNS or depth < _DEPTH:
        return None
    if iterations() < _WASTE * iteration_count([*hidden, *single, *(a for w in windows for a in w)]):
        return None
    indices = Indices()
    parts = invert(load.indices, element, (*axes, *over), indices, len(over), loops=taps)
    if len(parts) != 1:
        return None
    (inverse,) = parts
    guard = simplified(inverse.guard, indices)
    if isinstance(guard, Const):
        return None
    decides = mentioned(guard)
    value = simplified(substitute(adjoint, inverse.values), indices)
    if not all(_steps(o, set(inverse.free) - decides, indices) for o in factors(value)):
        return None
    order = sorted(inverse.free, key=lambda a: a not in decides)
    return Reduce("sum", tuple(order), Select(guard, value, Const(0.0, value.dtype), value.dtype), value.dtype)


def _steps(load: Scalar, axes: set[Axis], indices: Indices) -> bool:
    """Whether a read goes along axes by steps of one size."""
    assert isinstance(load, Load)
    found = (indices.coefficient(indices.poly(i), a) for i in load.indices for a in axes)
    return all(step is not None and not indices.is_index(step) for step in found)


def _size(axes: Sequence[Axis]) -> int:
    return prod(a.extent for a in axes if isinstance(a.extent, int))
