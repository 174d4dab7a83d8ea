"""Reductions that select one place: ``out[z, d] = sum over k of (value[k, d] where place[k] == z)``; products, least and greatest
elements too.

Such a reduction is best made the other way round: start from its neutral element, and for each k in order add the value to where it
belongs. The gradients of gathers and embeddings are such sums. The expression stays what it means; this only tells that it has this
form.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

from relay.ir.dim import Dim, SymDim, dim_mul, dim_sub
from relay.ir.dim_total import dim_typical
from relay.ir.record import record
from relay.te import numeric
from relay.te.index import Indices
from relay.te.scalar import (
    FALSE,
    TRUE,
    Axis,
    Compare,
    Const,
    Load,
    Reduce,
    ReduceKind,
    Scalar,
    Select,
    binary,
    conjuncts,
    iteration_count,
    select,
    walk,
)
from relay.te.tensor import Compute, Stage

# Reductions whose elements come together one by one.
_KINDS = ("sum", "prod", "max", "min")
# Variables of a sum at least: an equality of one is solved for it where a gradient is made.
_FREE = 2


@record(frozen=True, slots=True, eq=False)
class Scatter:
    """``places`` says for some axes of the result where an iteration of ``over`` adds its ``value`` (by ``kind``); the other axes,
    ``through``, are the value's own. It adds nothing where a place is out of range, or ``guard`` does not hold: then its place may not
    be read either. The value may mention the axes of ``places``: they are the place."""

    kind: ReduceKind
    places: dict[Axis, Scalar]
    through: tuple[Axis, ...]
    over: tuple[Axis, ...]
    value: Scalar
    guard: Scalar


def as_scatter(stage: Stage, indices: Indices) -> Scatter | None:
    """See a stage as such a reduction; None where it is not one, or where its indices can be computed by arithmetic alone."""
    given = conditional(stage)
    if given is None:
        return None
    stage, found = given
    where = located(found.conditions, stage.axes, indices, found.reduce.axes)
    if where is None:
        return None
    kind, value = found.reduce.kind, found.asking(where.inside)
    return Scatter(kind, where.places, where.through(stage.axes), found.reduce.axes, value, where.guard)


@record(frozen=True, slots=True, eq=False)
class Conditional:
    """A reduction of a ``value`` that counts where all ``conditions`` hold. What one of them reads, or the value, may be inside only
    where those before it do."""

    reduce: Reduce
    conditions: tuple[Scalar, ...]
    value: Scalar

    def asking(self, conditions: Sequence[Scalar]) -> Scalar:
        """The value where some conditions hold, else what adds nothing."""
        value = self.value
        for part in reversed(conditions):
            value = select(part, value, Const(_neutral(self.reduce), value.dtype))
        return value


def conditional(stage: Stage) -> tuple[Compute, Conditional] | None:
    """See a stage as such a reduction of elements that come together one by one."""
    if not isinstance(stage, Compute) or len(stage.bodies) != 1:
        return None
    (body,) = stage.bodies
    if not isinstance(body, Reduce) or body.kind not in _KINDS or not isinstance(body.body, Select):
        return None
    neutral = _neutral(body)
    value: Scalar = body.body
    conditions: list[Scalar] = []
    while isinstance(value, Select) and isinstance(value.b, Const) and value.b.value == neutral:
        conditions += conjuncts(value.cond)
        value = value.a
    return stage, Conditional(body, tuple(conditions), value)


def _neutral(body: Reduce) -> bool | int | float:
    neutral: bool | int | float = numeric.identity(body.kind, body.dtype).astype(object).item()
    return neutral


@record(frozen=True, slots=True, eq=False)
class Located:
    """Conditions taken apart: ``places`` says where on some axes they can only hold; ``inside`` are those that mention these axes, to be
    asked there, and ``guard`` is the rest."""

    places: dict[Axis, Scalar]
    inside: tuple[Scalar, ...]
    guard: Scalar

    def through(self, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        """The axes on which they may hold anywhere."""
        return tuple(a for a in axes if a not in self.places)


def located(
    conditions: Sequence[Scalar], axes: tuple[Axis, ...], indices: Indices, over: tuple[Axis, ...] = ()
) -> Located | None:
    """Where on the axes all conditions hold, what is asked first asked first; None where nothing says it that is loaded, or bent by the
    variables ``over`` that are gone through."""
    places: dict[Axis, Scalar] = {}
    rest: list[Scalar] = []
    for part in conditions:
        found = _place(part, axes, over, indices)
        if found is None or found[0] in places:
            rest.append(part)
        else:
            places[found[0]] = found[1]
    if not places or any(_mentions(place, places) for place in places.values()):
        return None
    guard = guard_of([p for p in rest if not _mentions(p, places)])
    return Located(places, tuple(p for p in rest if _mentions(p, places)), guard)


def guard_of(conditions: Sequence[Scalar]) -> Scalar:
    """Whether all conditions hold; what one of them reads is read where those before it do."""
    guard: Scalar = TRUE
    for part in conditions:
        reads = any(isinstance(n, Load) for n in walk(part))
        guard = part if guard is TRUE else select(guard, part, FALSE) if reads else binary("and", guard, part)
    return guard


def _mentions(root: Scalar, axes: Container[Scalar]) -> bool:
    return any(n in axes for n in walk(root) if isinstance(n, Axis))


def _place(
    cond: Scalar, axes: tuple[Axis, ...], over: tuple[Axis, ...], indices: Indices
) -> tuple[Axis, Scalar] | None:
    """The axis that an equality determines from what is loaded, or from what is no sum of multiples of the variables that are gone
    through (a square, bits that are turned), or a sum of several (the distance of two) or of multiples of sizes, and its value."""
    if not isinstance(cond, Compare) or cond.op != "eq" or cond.a.dtype != "int64":
        return None
    difference: Dim = dim_sub(indices.poly(cond.a), indices.poly(cond.b))
    loads = any(isinstance(n, Load) for n in walk(cond))
    going = [a for a in over if indices.mentions(difference, a)]
    steps = [indices.coefficient(difference, a) for a in going]
    bent = any(c is None or indices.is_index(c) for c in steps)
    sized = any(isinstance(c, SymDim) for c in steps)
    if not loads and not bent and not sized and sum(c in (1, -1) for c in steps) < _FREE:
        return None
    mine = [a for a in axes if indices.mentions(difference, a)]
    for axis in mine:
        sign = indices.coefficient(difference, axis)
        if isinstance(sign, int) and abs(sign) == 1:
            rest = dim_sub(difference, dim_mul(sign, indices.axis(axis)))
            # A few that are gone through for each element are tried, in vectors. How many windows there are that a size sets apart is not
            # to be guessed: few if that is large, but nearly as many as there are elements if it is small.
            if not loads and not sized and iteration_count(going) < dim_typical(axis.extent) // 2:
                return None
            return axis, indices.scalar(dim_mul(-sign, rest))
    return None
