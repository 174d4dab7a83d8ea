"""Stages that are another tensor but for a few elements: ``out[z, d] = value[k, d] where place[k] == z, else base[z, d]``.

Such a stage is best made from its base by putting the values where they belong, the later over the earlier ones: scatters say it by the
number of the last value for an element, which is a reduction that selects one place (`relay.te.scatter`); ``where`` of a comparison with
one position says it by itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from relay.ir.dim import Dim, dim_add, dim_mul, shape_size
from relay.ir.record import record
from relay.te import numeric
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Compare,
    Const,
    Load,
    Reduce,
    Scalar,
    Select,
    compare,
    conjuncts,
    select,
    substitute,
    transform,
    walk,
)
from relay.te.scatter import Located, located
from relay.te.tensor import Compute, Stage, Tensor


@record(frozen=True, slots=True, eq=False)
class Update:
    """``places`` and ``guard`` say where an iteration of ``over`` puts its ``value``, as in `relay.te.scatter.Scatter`; it does where all
    conditions ``inside`` hold too, which mention the place. Elsewhere the stage is its ``base``. ``counted`` is the stage that numbers the
    iterations, which is not needed for it."""

    places: dict[Axis, Scalar]
    through: tuple[Axis, ...]
    over: tuple[Axis, ...]
    guard: Scalar
    inside: tuple[Scalar, ...]
    value: Scalar
    base: Scalar
    counted: Stage | None = None

    @property
    def size(self) -> Dim:
        """How many values there are."""
        return shape_size(tuple(a.extent for a in (*self.over, *self.through)))

    def asked(self) -> tuple[Scalar, ...]:
        """What is computed to put values, the places first."""
        return (*self.places.values(), self.guard, *self.inside, self.value)

    def body(self) -> Scalar:
        """What is read to make an element, for one iteration: its axes stay free."""
        hits = (*(compare("eq", axis, place) for axis, place in self.places.items()), *self.inside, self.guard)
        value = self.value
        for hit in hits:
            value = select(hit, value, self.base)
        return value


def as_update(stage: Stage, reductions: Mapping[int, Compute], indices: Indices) -> Update | None:
    """See a stage as such an update; None where it is not one. ``reductions`` has the stages that may number iterations, by the id of
    what is read."""
    if not isinstance(stage, Compute) or len(stage.bodies) != 1 or not isinstance(stage.bodies[0], Select):
        return None
    chosen = stage.bodies[0]
    hit = chosen.cond
    number = hit.a if isinstance(hit, Compare) and hit.op == "ge" and _is_zero(hit.b) else None
    if isinstance(number, Load) and isinstance(number.source, Tensor) and id(number.source.stage) in reductions:
        return _counted(stage.axes, chosen, number, reductions[id(number.source.stage)], indices)
    where = located(conjuncts(hit), stage.axes, indices)
    if where is None:
        return None
    return _update(stage.axes, where, (), chosen)


def _update(
    axes: tuple[Axis, ...], where: Located, over: tuple[Axis, ...], chosen: Select, counted: Stage | None = None
) -> Update:
    through = where.through(axes)
    return Update(where.places, through, over, where.guard, where.inside, chosen.a, chosen.b, counted)


def _counted(axes: tuple[Axis, ...], chosen: Select, number: Load, last: Compute, indices: Indices) -> Update | None:
    """The update by the iteration with the greatest number, where numbers follow the order of iterations."""
    reduce = last.bodies[0]
    if not isinstance(reduce, Reduce) or reduce.kind != "max" or reduce.dtype != "int64":
        return None
    assert isinstance(number.source, Tensor)
    counted, neutral = number.source.stage, numeric.identity("max", "int64").astype(object).item()
    count: Scalar = reduce.body
    conditions: list[Scalar] = []
    while isinstance(count, Select) and isinstance(count.b, Const) and count.b.value == neutral:
        conditions += conjuncts(count.cond)
        count = count.a
    order: Dim = 0
    for axis in reduce.axes:
        order = dim_add(dim_mul(order, axis.extent), indices.axis(axis))
    if indices.poly(count) != order or _reads(chosen.b, counted):
        return None
    for load in (n for n in walk(chosen.a) if isinstance(n, Load) and _is_of(n, counted)):
        if any(indices.poly(i) != indices.axis(a) for i, a in zip(load.indices, axes, strict=True)):
            return None
    if any(indices.poly(i) != indices.axis(a) for i, a in zip(number.indices, axes, strict=True)):
        return None
    own: dict[Axis, Scalar] = dict(zip(last.axes, axes, strict=True))
    where = located([substitute(c, own) for c in conditions], axes, indices)
    if where is None:
        return None
    value = transform(chosen.a, lambda n: count if isinstance(n, Load) and _is_of(n, counted) else n)
    return _update(axes, where, reduce.axes, Select(chosen.cond, value, chosen.b, chosen.dtype), counted)


def _is_zero(node: Scalar) -> bool:
    return isinstance(node, Const) and node.value == 0


def _is_of(load: Load, stage: Stage) -> bool:
    return isinstance(load.source, Tensor) and load.source.stage is stage


def _reads(root: Scalar, stage: Stage) -> bool:
    return any(isinstance(n, Load) and _is_of(n, stage) for n in walk(root))
