"""Row nests: reductions, scans and the stages around them, computed row by row.

One parallel loop runs over the nest's rows; inside it each member runs over its own inner axes, so that what a row's
members pass on stays in registers, on the stack or in the thread's slice of the workspace, and later passes over a
row find it in the first cache. A few short rows are taken together, so that none waits for the end of its reduction.

Lanes run along the reduced or inner axis where that is contiguous. Where the contiguous axis is the last row (a
reduction over the first axis), rows are taken in blocks instead and every member runs its lanes across the block,
with an accumulator per lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from relay.ir.dim import Dim, ceil_div, dim_mul, shape_size
from relay.loop.ir import Buffer, For, LetScalar, Seq, Stmt, Store
from relay.plan.build import (
    Accesses,
    Builder,
    Space,
    Storage,
    accesses,
    allocate,
    at_least_one,
    extent_of,
    hoisted,
    parallel_rows,
    row_major,
    seq,
    serial,
    temporary,
    total_cost,
    vectorized,
)  # fmt: skip
from relay.plan.expand import Env, cost
from relay.plan.nests import Member, Nest
from relay.plan.reduction import combine, initial, position_update
from relay.te.scalar import Axis, Const, Load, Reduce, ReduceKind, Scalar, binary, cast, compare, minimum, select, unary
from relay.te.tensor import Scan, stage_bodies

# Rows of a block whose lanes run across the rows.
_LANE_BLOCK = 256
# Rows that take their steps together, and the longest for which that is done.
_ROWS_TOGETHER, _LONGEST_TOGETHER = 4, 256


@dataclass(slots=True, eq=False)
class _Plan:
    """A member with its loops: ``inner`` and ``reduced`` axes after normalisation."""

    member: Member
    inner: list[Axis]
    reduced: list[Axis]
    stores: list[Storage] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class _Lanes:
    """Vector lanes across an axis: ``variable`` runs over ``count`` (at most ``size``) elements."""

    variable: Axis
    count: Scalar
    size: int


def row_nest(builder: Builder, nest: Nest) -> Stmt:
    """The loops of a nest with reductions or scans."""
    rows = list(nest.members[0].rows)
    plans: list[_Plan] = []
    aliases: dict[Axis, Axis] = {}
    for member in nest.members:
        aliases.update({own: row for own, row in zip(member.rows, rows, strict=True) if own is not row})
        plans.append(_Plan(member, list(member.inner), list(member.kept.reduce_axes)))
    temps = _temporaries(builder, plans)
    space = Space([rows, *(g for p in plans for g in (p.inner, p.reduced))], {})

    def evaluate(env: Env) -> Accesses:
        values: list[Scalar] = []
        stores: list[Scalar] = []
        for plan in plans:
            frame = _frame(plan.member, aliases, env)
            for body in builder.evaluate(stage_bodies(plan.member.kept.stage), frame):
                values.append(body.body if isinstance(body, Reduce) else body)
            index = [frame.get(a, a) for a in plan.member.kept.stage.axes]
            stores += [builder.flat(s, index) for s in _targets(builder, plan)]
        found = accesses(builder.indices, values, stores)
        # The axis of a scan runs in order, and the position a reduction finds is counted along its axis: neither is
        # joined.
        ordered = {
            plan.member.kept.stage.axes[plan.member.kept.stage.dim]
            for plan in plans
            if isinstance(plan.member.kept.stage, Scan)
        }
        counted = {a for plan in plans if _finds_position(plan) for a in plan.member.kept.reduce_axes}
        return Accesses(found.polys, found.fixed | ordered | counted)

    space.normalise(builder, evaluate)
    across = _across_rows(builder, nest, plans, rows, evaluate(space.env))
    work = _work(plans)
    emitter = _Emitter(builder, aliases, dict(space.env))
    together = 1 if across else _together(plans, rows, temps)
    if together > 1:
        last, inside = rows[-1], Axis("r", together)
        block = Axis("rows", ceil_div(last.extent, together))
        start = binary("mul", Const(0, "int64") if block.extent == 1 else block, together)
        repeated = _repeat(builder, plans, temps, inside, together)
        emitter.bind(last, binary("add", start, inside))
        count = minimum(together, binary("sub", extent_of(last.extent), start))
        steps = [For(inside, count, emitter.member(p, None)) for p in plans]
        return parallel_rows(builder, [*rows[:-1], block], dim_mul(work, together), allocate(repeated, seq(steps)))
    if not across:
        buffers = [t for t in temps if t.scope != "operand"]
        body = allocate(buffers, seq([emitter.member(p, None) for p in plans]))
        return parallel_rows(builder, rows, work, body)
    last = rows[-1]
    lanes, blocks, position = _lane_blocks(last)
    widened = _widen(builder, plans, temps, lanes.variable, lanes.size)
    emitter.bind(last, position)
    body = allocate(widened, seq([emitter.member(p, lanes) for p in plans]))
    return parallel_rows(builder, [*rows[:-1], *blocks], dim_mul(work, lanes.size), body)


def _lane_blocks(axis: Axis) -> tuple[_Lanes, list[Axis], Scalar]:
    """Lanes across blocks of an axis: the lanes, the loop over blocks (none for a single block) and the axis in terms
    of both."""
    size = _LANE_BLOCK if not isinstance(axis.extent, int) else min(_LANE_BLOCK, axis.extent)
    lane = Axis("lane", size)
    if size == axis.extent:
        return _Lanes(lane, Const(size, "int64"), size), [], lane
    block = Axis("block", ceil_div(axis.extent, size))
    start = binary("mul", block, size)
    return (
        _Lanes(lane, minimum(size, binary("sub", extent_of(axis.extent), start)), size),
        [block],
        binary("add", start, lane),
    )


def _targets(builder: Builder, plan: _Plan) -> list[Storage]:
    origin = id(plan.member.kept.origin)
    return [builder.storage[origin, n] for n in range(len(plan.member.kept.dtypes))]


def _temporaries(builder: Builder, plans: Sequence[_Plan]) -> list[Buffer]:
    """Give what has no memory yet (what is read inside this nest alone) a temporary over its inner axes."""
    temps: list[Buffer] = []
    for plan in plans:
        stage = plan.member.kept.stage
        for n, dtype in enumerate(plan.member.kept.dtypes):
            key = (id(plan.member.kept.origin), n)
            if key in builder.storage:
                continue
            shape = [1 if a in plan.member.rows else a.extent for a in stage.axes]
            # An axis of size 1 is read at 0 whatever the index: a guarded read may be outside, and a register has no
            # other element.
            strides = [0 if n == 1 else s for n, s in zip(shape, row_major(shape), strict=True)]
            buffer = temporary(builder.fresh(stage.name), shape_size(tuple(shape)), dtype)
            if plan.inner and buffer.scope == "register":
                buffer = replace(buffer, scope="stack")
            temps.append(buffer)
            builder.storage[key] = Storage(buffer, tuple(strides))
    return temps


def _together(plans: Sequence[_Plan], rows: Sequence[Axis], temps: Sequence[Buffer]) -> int:
    """How many rows take each step before any takes the next: a reduction's last additions, and what is computed from its
    result, wait for one another, but not for those of another row. Long rows have enough to do meanwhile."""
    if not rows or len(plans) < 2 or any(isinstance(p.member.kept.stage, Scan) for p in plans):
        return 1
    if not any(p.reduced for p in plans) or (isinstance(rows[-1].extent, int) and rows[-1].extent < _ROWS_TOGETHER):
        return 1
    sizes = [shape_size(tuple(a.extent for a in (*p.inner, *p.reduced))) for p in plans]
    sizes += [t.shape[0] for t in temps]
    return _ROWS_TOGETHER if all(isinstance(s, int) and s <= _LONGEST_TOGETHER for s in sizes) else 1


def _repeat(builder: Builder, plans: Sequence[_Plan], temps: Sequence[Buffer], row: Axis, count: int) -> list[Buffer]:
    """Temporaries with a place for each of several rows."""
    mine = {id(t) for t in temps}
    at = builder.indices.poly(row)
    out: list[Buffer] = []
    for plan in plans:
        for n in range(len(plan.member.kept.dtypes)):
            key = (id(plan.member.kept.origin), n)
            where = builder.storage[key]
            if id(where.buffer) not in mine:
                continue
            (size,) = where.buffer.shape
            buffer = temporary(where.buffer.name, dim_mul(size, count), where.buffer.dtype)
            out.append(buffer)
            builder.storage[key] = Storage(buffer, where.strides, dim_mul(at, size))
    return out


def _widen(builder: Builder, plans: Sequence[_Plan], temps: Sequence[Buffer], lane: Axis, size: int) -> list[Buffer]:
    """Temporaries with an element per lane."""
    offset = builder.indices.poly(lane)
    wide: list[Buffer] = []
    mine = {id(t) for t in temps}
    for plan in plans:
        for n in range(len(plan.member.kept.dtypes)):
            key = (id(plan.member.kept.origin), n)
            where = builder.storage[key]
            if id(where.buffer) not in mine:
                continue
            count = dim_mul(where.buffer.shape[0], size)
            buffer = temporary(where.buffer.name, count, where.buffer.dtype)
            if buffer.scope == "register":
                buffer = replace(buffer, scope="stack")
            wide.append(buffer)
            builder.storage[key] = Storage(buffer, tuple(dim_mul(s, size) for s in where.strides), offset)
    return wide


def _frame(member: Member, aliases: dict[Axis, Axis], env: Env) -> dict[Axis, Scalar]:
    out: dict[Axis, Scalar] = dict(env)
    for own in member.rows:
        row = aliases.get(own, own)
        out[own] = env.get(row, row)
    return out


def _work(plans: Sequence[_Plan]) -> Dim:
    """Simple operations for one row."""
    parts: list[Dim] = []
    for plan in plans:
        size = shape_size(tuple(a.extent for a in (*plan.inner, *plan.reduced)))
        bodies = stage_bodies(plan.member.kept.stage)
        each = sum(max(1, cost(b.body if isinstance(b, Reduce) else b)) for b in bodies)
        parts.append(dim_mul(at_least_one(size), each))
    return total_cost(parts)


def _finds_position(plan: _Plan) -> bool:
    return any(isinstance(b, Reduce) and b.kind in ("argmax", "argmin") for b in stage_bodies(plan.member.kept.stage))


def _across_rows(builder: Builder, nest: Nest, plans: Sequence[_Plan], rows: Sequence[Axis], found: Accesses) -> bool:
    """Whether lanes should run across the last row: it is contiguous where the inner and reduced axes are not, or
    they are short."""
    if not rows:
        return False
    last, indices = rows[-1], builder.indices
    lanes = builder.lanes(d for m in nest.members for d in m.kept.dtypes)
    if isinstance(last.extent, int) and last.extent < lanes:
        return False
    votes = 0
    for plan in plans:
        along = plan.reduced or plan.inner
        if not along:
            continue
        axis = along[-1]
        if isinstance(plan.member.kept.stage, Scan):
            axis = plan.member.kept.stage.axes[plan.member.kept.stage.dim]
            votes += 1
        for poly in found.polys:
            along_axis, along_row = indices.coefficient(poly, axis), indices.coefficient(poly, last)
            if along_axis == 0 or along_row == 0:
                continue  # the same for all lanes one way or the other
            if along_row == 1:
                votes += 1
            elif along_axis == 1:
                short = isinstance(axis.extent, int) and axis.extent * 2 <= lanes
                votes += 1 if short and shape_size(tuple(a.extent for a in along)) == axis.extent else -1
    return votes > 0


class _Emitter:
    """Emits the members of one nest under the final assignment of axes."""

    __slots__ = ("aliases", "builder", "env")

    def __init__(self, builder: Builder, aliases: dict[Axis, Axis], env: dict[Axis, Scalar]) -> None:
        self.builder = builder
        self.aliases = aliases
        self.env = env

    def bind(self, axis: Axis, value: Scalar) -> None:
        """Give an axis its final value."""
        self.env = {k: self.builder.evaluate([v], {axis: value})[0] for k, v in self.env.items()}
        self.env[axis] = value

    def member(self, plan: _Plan, lanes: _Lanes | None) -> Stmt:
        stage = plan.member.kept.stage
        if isinstance(stage, Scan):
            return self._scan(plan, stage, lanes)
        if not plan.member.kept.is_reduction:
            return self._pointwise(plan, lanes)
        if lanes is None and plan.inner and not self._reduce_contiguous(plan):
            return self._blocked(plan)
        if lanes is not None:
            return serial(plan.inner, self._reduce_lanes(plan, lanes))
        return serial(plan.inner, self._reduce_row(plan))

    # -- parts

    def _values(self, plan: _Plan, extra: Env | None = None) -> list[Scalar]:
        frame = _frame(plan.member, self.aliases, self.env)
        if extra:
            frame.update(extra)
        return self.builder.evaluate(stage_bodies(plan.member.kept.stage), frame)

    def _store(self, plan: _Plan, output: int, value: Scalar) -> Stmt:
        frame = _frame(plan.member, self.aliases, self.env)
        where = self.builder.storage[id(plan.member.kept.origin), output]
        index = [frame.get(a, a) for a in plan.member.kept.stage.axes]
        return Store(where.buffer, (self.builder.flat(where, index),), value)

    def _pointwise(self, plan: _Plan, lanes: _Lanes | None) -> Stmt:
        body = seq([self._store(plan, n, v) for n, v in enumerate(self._values(plan))])
        if lanes is not None:
            return serial(plan.inner, vectorized(lanes.variable, lanes.count, body))
        if not plan.inner:
            return body
        last = plan.inner[-1]
        return serial(plan.inner[:-1], vectorized(last, extent_of(last.extent), body))

    def _reduce_contiguous(self, plan: _Plan) -> bool:
        """Whether lanes along the innermost reduced axis beat lanes along the innermost inner one."""
        if not plan.reduced:
            return False
        axis, inner = plan.reduced[-1], plan.inner[-1]
        lanes = self.builder.lanes(plan.member.kept.dtypes)
        if isinstance(axis.extent, int) and axis.extent < lanes:
            return isinstance(inner.extent, int) and inner.extent < axis.extent
        if isinstance(inner.extent, int) and inner.extent < lanes:
            return True
        found = accesses(self.builder.indices, [b.body for b in self._values(plan) if isinstance(b, Reduce)], [])
        along = sum(self.builder.indices.coefficient(p, axis) == 1 for p in found.polys)
        across = sum(self.builder.indices.coefficient(p, inner) == 1 for p in found.polys)
        return along > across

    def _reduce_row(self, plan: _Plan) -> Stmt:
        """One element: accumulators in registers, lanes along the innermost reduced axis."""
        values = self._values(plan)
        last = plan.reduced[-1] if plan.reduced else None
        lanes = self.builder.lanes(plan.member.kept.dtypes)
        wide = last is not None and not (isinstance(last.extent, int) and last.extent * 2 <= lanes)
        passes: list[Stmt] = []
        buffers: list[Buffer] = []
        starts: list[Stmt] = []
        updates: list[Stmt] = []
        finds: list[Stmt] = []
        ends: list[Stmt] = []
        zero = Const(0, "int64")
        for n, value in enumerate(values):
            if not isinstance(value, Reduce):
                ends.append(self._store(plan, n, value))
                continue
            if last is None and value.kind in ("argmax", "argmin"):  # of one element
                ends.append(self._store(plan, n, Const(0, value.dtype)))
                continue
            acc = Buffer(self.builder.fresh("acc"), (1,), _accumulator(value), "register")
            buffers.append(acc)
            element = cast(value.body, acc.dtype)
            if value.kind in ("argmax", "argmin"):
                kind: ReduceKind = "max" if value.kind == "argmax" else "min"
                place = Buffer(self.builder.fresh("place"), (1,), "int64", "register")
                buffers.append(place)
                starts.append(Store(acc, (zero,), initial(kind, acc.dtype)))
                updates.append(Store(acc, (zero,), combine(kind, Load(acc, (zero,), acc.dtype), element)))
                # The first place where the extreme is met (or a nan, which is then the extreme).
                hit: Scalar = compare("eq", element, Load(acc, (zero,), acc.dtype))
                if acc.dtype.startswith("float"):
                    hit = binary("or", hit, unary("isnan", element))
                assert last is not None
                candidate = select(hit, last, extent_of(last.extent))
                starts.append(Store(place, (zero,), extent_of(last.extent)))
                finds.append(Store(place, (zero,), minimum(Load(place, (zero,), "int64"), candidate)))
                ends.append(self._store(plan, n, cast(Load(place, (zero,), "int64"), value.dtype)))
            else:
                starts.append(Store(acc, (zero,), initial(value.kind, acc.dtype)))
                updates.append(Store(acc, (zero,), combine(value.kind, Load(acc, (zero,), acc.dtype), element)))
                ends.append(self._store(plan, n, cast(Load(acc, (zero,), acc.dtype), value.dtype)))
        passes += starts
        for body in (updates, finds):
            if body and last is not None:
                loop = For(last, extent_of(last.extent), seq(body), "vectorized" if wide else "serial")
                passes.append(serial(plan.reduced[:-1], hoisted(loop)))
            else:
                passes += body
        return allocate(buffers, seq([*passes, *ends]))

    def _reduce_lanes(self, plan: _Plan, lanes: _Lanes) -> Stmt:
        """A block of elements: an accumulator per lane, all reduced axes serial."""
        at = (lanes.variable,)
        buffers: list[Buffer] = []
        starts: list[Stmt] = []
        updates: list[Stmt] = []
        ends: list[Stmt] = []
        for n, value in enumerate(self._values(plan)):
            if not isinstance(value, Reduce):
                ends.append(self._store(plan, n, value))
                continue
            acc = Buffer(self.builder.fresh("acc"), (lanes.size,), _accumulator(value), "stack")
            buffers.append(acc)
            now = Load(acc, at, acc.dtype)
            element = cast(value.body, acc.dtype)
            if value.kind in ("argmax", "argmin"):
                place = Buffer(self.builder.fresh("place"), (lanes.size,), "int64", "stack")
                buffers.append(place)
                better = position_update(value.kind, now, element)
                position = plan.reduced[-1] if plan.reduced else Const(0, "int64")
                starts += [
                    Store(acc, at, initial("max" if value.kind == "argmax" else "min", acc.dtype)),
                    Store(place, at, Const(0, "int64")),
                ]
                flag = Axis(self.builder.fresh("better"), 1, "bool")
                stores = [
                    Store(place, at, select(flag, position, Load(place, at, "int64"))),
                    Store(acc, at, select(flag, element, now)),
                ]
                updates.append(LetScalar(flag, better, Seq(tuple(stores))))
                ends.append(self._store(plan, n, cast(Load(place, at, "int64"), value.dtype)))
            else:
                starts.append(Store(acc, at, initial(value.kind, acc.dtype)))
                updates.append(Store(acc, at, combine(value.kind, now, element)))
                ends.append(self._store(plan, n, cast(now, value.dtype)))

        def across(body: list[Stmt]) -> Stmt:
            return vectorized(lanes.variable, lanes.count, seq(body))

        return allocate(buffers, seq([across(starts), serial(plan.reduced, across(updates)), across(ends)]))

    def _blocked(self, plan: _Plan) -> Stmt:
        """Lanes along the member's last inner axis, a block at a time."""
        last = plan.inner[-1]
        lanes, blocks, position = _lane_blocks(last)
        before = self.env
        self.bind(last, position)
        body = self._reduce_lanes(plan, lanes)
        self.env = before
        return serial([*plan.inner[:-1], *blocks], body)

    def _scan(self, plan: _Plan, stage: Scan, lanes: _Lanes | None) -> Stmt:
        """Serial along the scanned axis with the state in an accumulator (per lane)."""
        along = stage.axes[stage.dim]
        others = [a for a in plan.inner if a is not along]
        across = lanes
        before = self.env
        blocks: list[Axis] = []
        if across is None and others:
            across, blocks, position = _lane_blocks(last := others.pop())
            self.bind(last, position)
        at: tuple[Scalar, ...] = (across.variable,) if across is not None else (Const(0, "int64"),)
        size = across.size if across is not None else 1
        dtype = stage.state.dtype
        state = Buffer(self.builder.fresh("state"), (size,), dtype, "stack" if across is not None else "register")
        step = Axis("step", along.extent)
        at_step = binary("sub", extent_of(along.extent), binary("add", step, 1)) if stage.reverse else step
        now = Load(state, at, dtype)
        self.bind(along, at_step)
        init, update = self._values(plan, {stage.state: now})
        advance = Store(state, at, update)
        keep = self._store(plan, 0, now)
        body = seq([keep, advance] if stage.exclusive else [advance, keep])

        def over(stmt: Stmt) -> Stmt:
            return stmt if across is None else vectorized(across.variable, across.count, stmt)

        steps = For(step, extent_of(along.extent), over(body))
        whole = allocate([state], seq([over(Store(state, at, init)), steps]))
        self.env = before
        return serial([*others, *blocks], whole)


def _accumulator(value: Reduce) -> str:
    dtype = value.body.dtype
    if value.kind in ("sum", "prod") and dtype in ("float16", "bfloat16"):
        return "float32"
    return dtype
