"""Reductions over parts of axes that what stands in memory says (`te.spans`): loops that begin and end where a part does.

Where an element of the result is combined of what comes one after the other, it is in registers meanwhile, with lanes along the result's
last axis, or else along what is reduced. Where parts are of the result, or an iteration says a place there, values are combined where
the result is; each element by one thread, in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from relay.ir.dim import Dim, dim_mul, shape_size
from relay.loop.ir import WORKERS, Between, Branch, Buffer, For, LetScalar, LoopKind, Stmt, Store, between
from relay.plan.build import Builder, Storage, allocate, bound, ceiling, seq, serial, vectorized
from relay.plan.expand import Env, cost
from relay.plan.graph import tensor_key
from relay.plan.parallel import PARALLEL_COST, parallel_rows
from relay.plan.reduction import accumulator, combine, initial
from relay.plan.row_parts import Lanes, held_lanes
from relay.plan.scatter import Visit, collected, wide
from relay.plan.stages import Kept
from relay.te.scalar import (
    Axis,
    Const,
    Load,
    Scalar,
    binary,
    cast,
    compare,
    conjuncts,
    extent_of,
    maximum,
    mentioned,
    minimum,
    select,
)
from relay.te.spans import Spread
from relay.te.tensor import Tensor

# How many iterations a part is taken to have where it is decided how many threads there should be.
_USUAL = 16
# Vectors of accumulators across a line that is longer than one.
_VECTORS = 4


def spread_nest(builder: Builder, kept: Kept, form: Spread) -> Stmt:
    """The loops of one such reduction."""
    where = builder.storage[tensor_key(Tensor(kept.origin, 0, kept.origin.shape, kept.dtypes[0]))]
    if not form.stays:
        return _where_it_is(builder, kept, form, where)
    axes = [a for a in form.through if a.extent != 1]
    ends = mentioned(*(e for span in form.spans.values() for e in (*span.first, *span.end)))
    if not axes or axes[-1] in ends:
        return _Element(builder, kept, form, where).along(axes)
    return _Element(builder, kept, form, where).across(axes)


def _loops(builder: Builder, form: Spread, env: Env, axes: Sequence[Axis], body: Stmt) -> Stmt:
    """The body for every iteration of some axes, one inside of another."""
    return reduce(lambda inside, axis: _loop(builder, form, env, axis, inside), reversed(axes), body)


def _loop(
    builder: Builder,
    form: Spread,
    env: Env,
    axis: Axis,
    body: Stmt,
    kind: LoopKind = "serial",
    within: tuple[Scalar, Scalar] | None = None,
) -> Stmt:
    """The body for every place of an axis, or of the part that counts; ``within``: of that, from the one place to the other."""
    size = extent_of(axis.extent)
    span = form.spans.get(axis)
    if span is None:
        return vectorized(axis, size, body) if kind == "vectorized" else serial([axis], body)
    first, end = (Between(builder.fresh(hint), axis.extent, low=0, high=(size,)) for hint in ("first", "end"))
    begins, ends = builder.evaluate(span.first, env), builder.evaluate(span.end, env)
    if within is not None:
        begins, ends = [*begins, within[0]], [*ends, within[1]]
    start, stop = reduce(maximum, begins), reduce(minimum, ends)
    step = Axis(builder.fresh("step"), axis.extent)
    loop = For(step, binary("sub", end, first), LetScalar(axis, binary("add", first, step), body), kind)
    return bound([between(first, start), between(end, maximum(stop, first))], loop)


def _iterations(form: Spread, axes: Sequence[Axis]) -> Dim:
    """How many iterations axes have, about."""
    return shape_size(tuple(_USUAL if a in form.spans else a.extent for a in axes))


def _work(form: Spread) -> Dim:
    """Simple operations for an element."""
    return dim_mul(_iterations(form, (*form.order, *form.inner)), max(1, cost(form.value)))


class _Element:
    """An element of the result, combined in registers."""

    def __init__(self, builder: Builder, kept: Kept, form: Spread, where: Storage) -> None:
        self.builder, self.kept, self.form, self.where = builder, kept, form, where
        self.loops = [a for a in (*form.order, *form.inner) if a.extent != 1]
        every = (*kept.stage.axes, *form.reduce.axes)
        self.env: dict[Axis, Scalar] = {a: Const(0, "int64") for a in every if a.extent == 1}
        self.dtype = accumulator(form.reduce)

    def along(self, axes: Sequence[Axis]) -> Stmt:
        """Element by element, lanes along the innermost of what is gone through."""
        acc, at = Buffer(self.builder.fresh("acc"), (1,), self.dtype, "register"), Const(0, "int64")
        value, kind = self._value(self.env), self.form.kind
        for part in reversed(self.builder.evaluate(conjuncts(self.form.guard), self.env)):
            value = select(part, value, initial(kind, self.dtype))
        *outer, last = self.loops
        update = Store(acc, (at,), combine(kind, Load(acc, (at,), acc.dtype), value))
        steps = _loop(self.builder, self.form, self.env, last, update, "vectorized")
        body = seq(
            [
                self._start(acc, at),
                _loops(self.builder, self.form, self.env, outer, steps),
                self._stored(acc, at, self.env),
            ]
        )
        return parallel_rows(self.builder, axes, _work(self.form), allocate([acc], body))

    def across(self, axes: Sequence[Axis]) -> Stmt:
        """Lanes along the last axis of the result: a vector at a time, or several where it is longer."""
        *outer, line = axes
        one = self.builder.lanes([self.dtype])
        if isinstance(line.extent, int):
            return self._across(outer, line, min(-(-line.extent // one), _VECTORS) * one)
        few = compare("le", extent_of(line.extent), one)
        return Branch(few, self._across(outer, line, one), self._across(outer, line, _VECTORS * one))

    def _across(self, outer: Sequence[Axis], line: Axis, size: int) -> Stmt:
        builder, form = self.builder, self.form
        lanes, block, position = held_lanes(line, size)
        if block.extent == 1:
            lanes, position = Lanes(lanes.variable, extent_of(line.extent), size, held=True), lanes.variable
        env = {**self.env, line: position}
        acc = Buffer(builder.fresh("acc"), (size,), self.dtype, "register")
        at = lanes.variable
        parts = conjuncts(form.guard)
        value = self._value(env)
        for part in reversed(builder.evaluate([p for p in parts if line in mentioned(p)], env)):
            value = select(part, value, initial(form.kind, self.dtype))
        body = lanes.loop(Store(acc, (at,), combine(form.kind, Load(acc, (at,), acc.dtype), value)))
        for part in reversed(builder.evaluate([p for p in parts if line not in mentioned(p)], env)):
            if not (isinstance(part, Const) and part.value):
                body = Branch(part, body)
        steps = [
            lanes.loop(self._start(acc, at)),
            _loops(builder, form, env, self.loops, body),
            lanes.loop(self._stored(acc, at, env)),
        ]
        return parallel_rows(builder, [*outer, block], dim_mul(_work(form), size), allocate([acc], seq(steps)))

    def _value(self, env: Env) -> Scalar:
        """What is added, in the dtype that it is added in."""
        (value,) = self.builder.evaluate([self.form.value], env)
        return cast(value, self.dtype)

    def _start(self, acc: Buffer, at: Scalar) -> Stmt:
        return Store(acc, (at,), initial(self.form.kind, self.dtype))

    def _stored(self, acc: Buffer, at: Scalar, env: Env) -> Stmt:
        index = self.builder.flat(self.where, [env.get(a, a) for a in self.kept.stage.axes])
        return Store(self.where.buffer, (index,), cast(Load(acc, (at,), acc.dtype), self.where.buffer.dtype))


def _where_it_is(builder: Builder, kept: Kept, form: Spread, where: Storage) -> Stmt:
    """Values combined where the result is."""
    visit = _Parts(builder, kept, form)
    made, at = wide(builder, where, form.kind), visit.position(where)
    before, lanewise = visit.asked(form.guard)
    (value,) = builder.evaluate([form.value], visit.there)
    value = cast(value, made.dtype)
    for guard in lanewise:
        value = select(guard, value, initial(form.kind, made.dtype))
    inner = [a for a in form.inner if a.extent != 1]
    now = Load(made, (at,), made.dtype)
    if inner and visit.lane is None:
        acc, zero = Buffer(builder.fresh("acc"), (1,), made.dtype, "register"), Const(0, "int64")
        *outer, last = inner
        held = Load(acc, (zero,), acc.dtype)
        update = Store(acc, (zero,), combine(form.kind, held, value))
        steps = serial(outer, vectorized(last, extent_of(last.extent), update))
        added = Store(made, (at,), combine(form.kind, now, held))
        body: Stmt = allocate([acc], seq([Store(acc, (zero,), initial(form.kind, acc.dtype)), steps, added]))
    else:
        body = serial(inner, visit.across(Store(made, (at,), combine(form.kind, now, value)), cost(value)))
    work = dim_mul(shape_size(tuple(a.extent for a in inner)), max(1, cost(value)))
    return collected(builder, where, made, form.kind, visit.loops(before, body, work))


class _Parts(Visit):
    """Going through parts of axes, and to the places that iterations say. Where nothing else is there to be shared out, each thread has a
    share of an axis of the result, and goes through what lies in it of all parts."""

    def __init__(self, builder: Builder, kept: Kept, form: Spread) -> None:
        super().__init__(builder, kept.stage.axes, form.through, [*form.order, *form.inner], form.places)
        self.form = form
        self._owned = None if self.tasks else next((a for a in form.order if a in kept.stage.axes), None)
        self._task, self._share = (
            Axis(builder.fresh(h), self._owned.extent if self._owned else 1) for h in ("task", "share")
        )

    def shared(self, work: Dim, body: Stmt) -> Stmt:
        if self._owned is None:
            return super().shared(work, body)
        size, one = extent_of(self._owned.extent), Const(1, "int64")
        worth = binary("floordiv", extent_of(work), PARALLEL_COST)
        each = ceiling(size, maximum(minimum(WORKERS, worth), one))
        tasks = For(self._task, ceiling(size, self._share), body, "parallel", 1)
        return LetScalar(self._share, maximum(each, one), tasks)

    @property
    def iterations(self) -> Dim:
        return _iterations(self.form, self.form.order)

    def through(self, body: Stmt) -> Stmt:
        for axis in reversed(self.form.order):
            mine = binary("mul", self._task, self._share)
            within = (mine, binary("add", mine, self._share)) if axis is self._owned else None
            body = _loop(self.builder, self.form, self.env, axis, body, within=within)
        return body
