"""Reductions that select one place (`te.scatter`): the neutral element, and then every value added to where it belongs, in order.

Threads share out the axes that a value has in common with the result, never the places: each element is made by one thread in one
order, so the result does not depend on their number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from relay.ir.dim import Dim, ceil_div, dim_mul, shape_size
from relay.ir.types import dtype_bits, is_float
from relay.loop.ir import Branch, Buffer, LetScalar, Stmt, Store
from relay.loop.walk import with_values
from relay.plan.build import Builder, Storage, allocate, seq, serial, vectorized
from relay.plan.expand import cost
from relay.plan.graph import tensor_key
from relay.plan.parallel import parallel, parallel_rows
from relay.plan.reduction import combine, initial
from relay.plan.stages import Kept
from relay.te.scalar import (
    Axis,
    Const,
    Load,
    ReduceKind,
    Scalar,
    binary,
    cast,
    compare,
    conjuncts,
    extent_of,
    minimum,
    select,
    substitute,
    walk,
)
from relay.te.scatter import Scatter
from relay.te.tensor import Tensor

# Elements of a row that one task owns.
_BLOCK = 128
# Values up to this cost are written out for each part of what is left of a row.
_CHEAP = 16
# Elements that are cleared at a time.
_PAGES = 4096


def scatter_nest(builder: Builder, kept: Kept, form: Scatter) -> Stmt:
    """The loops of one such reduction."""
    stage = kept.origin
    dtype = kept.dtypes[0]
    where = builder.storage[tensor_key(Tensor(stage, 0, stage.shape, dtype))]
    visit = Visit(builder, stage.axes, form.through, form.over, form.places)
    at = visit.position(where)
    before, lanewise = visit.asked(form.guard)
    (value,) = builder.evaluate([form.value], visit.there)
    for guard in lanewise:
        value = select(guard, value, initial(form.kind, dtype))
    made = wide(builder, where, form.kind)
    now = Load(made, (at,), made.dtype)
    body = Store(made, (at,), combine(form.kind, now, cast(value, made.dtype)))
    each = max(1, cost(value))
    return collected(builder, where, made, form.kind, visit.loops(before, visit.across(body, each), each))


def collected(builder: Builder, where: Storage, made: Buffer, kind: ReduceKind, loops: Stmt) -> Stmt:
    """What loops combine in a buffer that begins with what adds nothing, and then where the result is."""
    steps = [_everywhere(builder, made, lambda _: initial(kind, made.dtype)), loops]
    if made is where.buffer:
        return seq(steps)
    dtype = where.buffer.dtype
    narrowed = _everywhere(builder, where.buffer, lambda at: cast(Load(made, (at,), made.dtype), dtype))
    return allocate([made], seq([*steps, narrowed]))


class Visit:
    """Going to the places that all iterations of ``over`` say, in order; tasks share out the axes ``through``, the last of them in vector
    lanes where it runs along memory. ``env`` has the axes' values, ``there`` also those of the place's."""

    def __init__(
        self,
        builder: Builder,
        axes: Sequence[Axis],
        through: Sequence[Axis],
        over: Sequence[Axis],
        places: Mapping[Axis, Scalar],
    ) -> None:
        self.builder = builder
        self.axes, self.over, self.places = axes, over, places
        self.env: dict[Axis, Scalar] = {a: Const(0, "int64") for a in (*axes, *over) if a.extent == 1}
        self.tasks = [a for a in through if a.extent != 1]
        self.lane: Axis | None = None
        self._names = {a: Axis(builder.fresh("at"), a.extent) for a in places}
        wide = [a for a in axes if a.extent != 1]
        self._last = self.tasks[-1] if self.tasks else None
        last = self._last
        if last is not None and last is wide[-1] and not any(last in walk(p) for p in places.values()):
            block, self.lane = Axis("block", ceil_div(last.extent, _BLOCK)), Axis("lane", _BLOCK)
            start: Scalar = Const(0, "int64") if block.extent == 1 else binary("mul", block, _BLOCK)
            self._count = minimum(_BLOCK, binary("sub", extent_of(last.extent), start))
            self.env[last] = binary("add", start, self.lane)
            self.tasks[-1] = block
        self.there = {**self.env, **self._names}

    def position(self, where: Storage) -> Scalar:
        """Where the element is that is gone to."""
        return self.builder.flat(where, [self.there.get(a, a) for a in self.axes])

    def asked(self, guard: Scalar) -> tuple[list[Scalar], list[Scalar]]:
        """The parts of a guard: what is the same for all lanes and asked before the place is read, and what is not."""
        lanewise = [p for p in conjuncts(guard) if self.lane is not None and self._last in walk(p)]
        before = [p for p in conjuncts(guard) if p not in lanewise]
        return self.builder.evaluate(before, self.env), self.builder.evaluate(lanewise, self.env)

    def across(self, body: Store, each: int) -> Stmt:
        """What is done with an element, in all lanes; it costs ``each``.

        Where it is added to, what is left of a row after whole vectors goes by halves of one, quarters and so on: the value after it may
        belong to the same place, and processors do not forward what was stored under a mask.
        """
        if self.lane is None:
            return body
        size, last = self.builder.lanes([body.buffer.dtype]), self._last
        whole = last is None or (isinstance(last.extent, int) and last.extent % size == 0)
        added = any(isinstance(n, Load) and n.source is body.buffer for n in walk(body.value))
        if whole or not added or each > _CHEAP or not self.builder.target.masked:
            return vectorized(self.lane, self._count, body)
        done = binary("mul", binary("floordiv", self._count, size), size)
        rest = binary("sub", self._count, done)
        parts = [vectorized(self.lane, done, body)]
        while size > 1:
            before = binary("mul", binary("floordiv", rest, size), size)
            size //= 2
            lane = Axis("lane", size)
            at = binary("add", binary("add", done, before), lane)
            part = vectorized(
                lane, Const(size, "int64"), with_values(body, partial(substitute, mapping={self.lane: at}))
            )
            parts.append(Branch(compare("eq", binary("mod", binary("floordiv", rest, size), 2), 1), part))
        return seq(parts)

    def loops(self, before: Sequence[Scalar], body: Stmt, work: Dim) -> Stmt:
        """``body`` at every place that is inside, where all that is asked ``before`` holds; ``work``: of an element."""
        place = self.builder.evaluate([self.places[a] for a in self._names], self.env)
        for (axis, name), index in zip(self._names.items(), place, strict=True):
            inside = binary("and", compare("ge", name, 0), compare("lt", name, extent_of(axis.extent)))
            body = LetScalar(name, index, Branch(inside, body))
        for guard in reversed(before):
            if not (isinstance(guard, Const) and guard.value):
                body = Branch(guard, body)
        total = dim_mul(self.iterations, work)
        if self.lane is not None:
            total = dim_mul(total, _BLOCK)
        return self.shared(total, self.through(body))

    def shared(self, work: Dim, body: Stmt) -> Stmt:
        """All tasks, each of so much work."""
        return parallel_rows(self.builder, self.tasks, work, body)

    @property
    def iterations(self) -> Dim:
        """How many iterations a task has."""
        return shape_size(tuple(a.extent for a in self.over))

    def through(self, body: Stmt) -> Stmt:
        """All iterations of a task."""
        return serial(self.over, body)


def wide(builder: Builder, where: Storage, kind: ReduceKind) -> Buffer:
    """Where values are combined: sums and products of sixteen bits in float32, as everywhere (a sum would stop growing at 256 times
    what is added); anything else where the result is."""
    buffer = where.buffer
    if kind not in ("sum", "prod") or not is_float(buffer.dtype) or dtype_bits(buffer.dtype) != 16:
        return buffer
    return Buffer(builder.fresh("sums"), buffer.shape, "float32", "workspace")


def _everywhere(builder: Builder, buffer: Buffer, value: Callable[[Scalar], Scalar]) -> Stmt:
    """What ``value`` says of a place, in the whole buffer, along memory."""
    total = buffer.shape[0]
    lane = Axis("lane", _PAGES)

    def block(b: Axis) -> Stmt:
        start = binary("mul", b, _PAGES)
        count = minimum(_PAGES, binary("sub", extent_of(total), start))
        place = binary("add", start, lane)
        return vectorized(lane, count, Store(buffer, (place,), value(place)))

    return parallel(builder, ceil_div(total, _PAGES), _PAGES, block, "block")
