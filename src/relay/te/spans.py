"""Reductions over a part of an axis that what stands in memory says: ``y[i] = sum(select((k >= first[i]) & (k < end[i]), v[i, k], 0), k)``.

Rows of a sparse matrix, segments of a list and boxes of an image are such parts. Loops that begin and end where they do take time for
what is there alone. Parts may be of an axis that is summed over, or of one of the result (gradients by what sums of the first kind
read): then values are added to the places of a part, part after part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from relay.ir.record import record
from relay.te.index import Indices
from relay.te.scalar import (
    MIRRORED,
    Axis,
    Compare,
    Load,
    Reduce,
    ReduceKind,
    Scalar,
    binary,
    extent_of,
    maximum,
    mentioned,
    minimum,
    walk,
)
from relay.te.scatter import Located, conditional, guard_of, located
from relay.te.tensor import Stage


@record(frozen=True, slots=True, eq=False)
class Span:
    """A part of an axis: none of ``first`` lies behind its begin, and none of ``end`` before its end."""

    first: tuple[Scalar, ...]
    end: tuple[Scalar, ...]


@record(frozen=True, slots=True, eq=False)
class Spread:
    """A reduction by ``kind`` over such parts. ``order``: the axes to go through, one inside of another, reduced ones and those of the
    result that have ``spans``, too. ``through``: the others of the result, at all of whose places it is made, but for those whose
    ``places`` an iteration says. ``inner``: reduced axes that nothing is asked about, inside of all others. An iteration adds its value
    where ``guard`` holds."""

    reduce: Reduce
    spans: Mapping[Axis, Span]
    places: dict[Axis, Scalar]
    through: tuple[Axis, ...]
    order: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    value: Scalar
    guard: Scalar

    @property
    def kind(self) -> ReduceKind:
        return self.reduce.kind

    @property
    def stays(self) -> bool:
        """Whether what is combined in an element of the result comes one after the other."""
        return not self.places and all(a in self.reduce.axes for a in self.order)


def as_spread(stage: Stage, indices: Indices) -> Spread | None:
    """See a stage as such a reduction, if it is one."""
    given = conditional(stage)
    if given is None:
        return None
    stage, found = given
    reduced = found.reduce.axes
    spans, rest = _spans(found.conditions, [a for a in (*stage.axes, *reduced) if a.extent != 1], indices)
    if not spans:
        return None
    mine = tuple(a for a in stage.axes if a not in spans)
    where = located(rest, mine, indices, reduced) or Located({}, (), guard_of(rest))
    asked = mentioned(where.guard, *where.places.values(), *where.inside)
    asked |= spans.keys() | {a for span in spans.values() for a in mentioned(*span.first, *span.end)}
    inner = tuple(a for a in reduced if a not in asked)
    through = where.through(mine)
    order = _order([a for a in (*reduced, *stage.axes) if a in asked and a not in mine], spans, set(through))
    if order is None:
        return None
    return Spread(found.reduce, spans, where.places, through, order, inner, found.asking(where.inside), where.guard)


def _spans(
    conditions: Sequence[Scalar], axes: Sequence[Axis], indices: Indices
) -> tuple[dict[Axis, Span], list[Scalar]]:
    """The parts of axes outside of which conditions do not hold, by what is read for both of their ends, and the other conditions."""
    ends: dict[Axis, tuple[list[Scalar], list[Scalar]]] = {}
    bounds: dict[int, Axis] = {}
    for part in conditions:
        found = _bound(part, axes, indices)
        if found is not None:
            axis, behind, bound = found
            ends.setdefault(axis, ([], []))[behind].append(bound)
            bounds[id(part)] = axis
    spans = {a: Span(tuple(first), tuple(end)) for a, (first, end) in ends.items() if first and end}
    return spans, [c for c in conditions if bounds.get(id(c)) not in spans]


def _bound(cond: Scalar, axes: Sequence[Axis], indices: Indices) -> tuple[Axis, bool, Scalar] | None:
    """The axis that a comparison bounds by what is read, whether it bounds its end, and where; it may be asked before the axis is gone
    through."""
    if not isinstance(cond, Compare) or cond.op not in MIRRORED:
        return None
    for axis, op, bound in ((cond.a, cond.op, cond.b), (cond.b, MIRRORED[cond.op], cond.a)):
        if not isinstance(axis, Axis) or axis not in axes or axis in mentioned(bound):
            continue
        if any(isinstance(n, Load) for n in walk(bound)) and indices.reads_inside(bound):
            if op in ("le", "gt"):  # the place behind it, also of the greatest number
                last = binary("sub", extent_of(axis.extent), 1)
                bound = binary("add", maximum(minimum(bound, last), -1), 1)
            return axis, op in ("lt", "le"), bound
    return None


def _order(axes: Sequence[Axis], spans: Mapping[Axis, Span], outer: set[Axis]) -> tuple[Axis, ...] | None:
    """Axes in an order in which each comes after those that its ends depend on; None where there is none."""
    order: list[Axis] = []
    left = list(axes)
    while left:
        known = outer.union(order)
        ready = next((a for a in left if a not in spans or mentioned(*spans[a].first, *spans[a].end) <= known), None)
        if ready is None:
            return None
        order.append(ready)
        left.remove(ready)
    return tuple(order)
