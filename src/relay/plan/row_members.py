"""The members of a row nest as loops over one row (or over a block of rows whose lanes run across them)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relay.ir.dim import Dim, dim_bounds, dim_sub, known_equal
from relay.ir.types import is_float
from relay.loop.ahead import where_far
from relay.loop.ir import Branch, Buffer, For, LetScalar, LoopKind, Stmt, Store
from relay.loop.running import running_step
from relay.plan.build import Builder, Storage, allocate, hoisted, seq, serial, vectorized
from relay.plan.epilogues import epilogue
from relay.plan.expand import Env, is_dear
from relay.plan.graph import loads
from relay.plan.reduction import accumulator, combine, initial
from relay.plan.row_lanes import reduce_lanes
from relay.plan.row_parts import (
    MOST_POSITIONS,
    Lanes,
    MemberPlan,
    Reductions,
    counted,
    finds_position,
    frame_of,
    held_lanes,
    lane_blocks,
    position_dtype,
    targets,
)
from relay.plan.row_tiles import (
    MOST_TERMS,
    known_count,
    reductions_across_rows,
    sums_across_lines,
    sums_along_lines,
)
from relay.plan.space import accesses
from relay.te.scalar import (
    Axis,
    Const,
    Load,
    Named,
    Reduce,
    ReduceKind,
    Scalar,
    binary,
    cast,
    compare,
    extent_of,  # fmt: skip
    minimum,
    select,
    transform,
    unary,
    walk,
)
from relay.te.tensor import Scan, stage_bodies


class Emitter:
    """Emits the members of one nest under the final assignment of axes. ``near``: what the nest reads is known to be little; ``short``:
    axes of unknown length inside of a row are."""

    __slots__ = ("aliases", "builder", "env", "near", "short")

    def __init__(self, builder: Builder, aliases: dict[Axis, Axis], env: dict[Axis, Scalar]) -> None:
        self.builder = builder
        self.aliases = aliases
        self.env = env
        self.near = self.short = False

    def bind(self, axis: Axis, value: Scalar) -> None:
        """Give an axis its final value."""
        self.env = {k: self.builder.evaluate([v], {axis: value})[0] for k, v in self.env.items()}
        self.env[axis] = value

    def groups(self, plans: Sequence[MemberPlan]) -> list[list[MemberPlan]]:
        """What a row goes through, step by step. Neighbours that run over the same elements, and of which none needs what
        another has only at its end, share a loop: a softmax's exponentials and their sum."""
        out: list[list[MemberPlan]] = []
        for plan in plans:
            if out and self._shares(out[-1], plan):
                out[-1].append(plan)
            else:
                out.append([plan])
        return out

    def step(self, group: Sequence[MemberPlan]) -> Stmt:
        """A step as a statement."""
        return self.member(group[0], None) if len(group) == 1 else self._shared(group)

    def values_at(self, plan: MemberPlan, axis: Axis) -> list[Scalar]:
        """What a member computes where its vector loop (`along`) is at ``axis``."""
        before, along = self.env, self.along(plan)
        assert along is not None
        self.bind(along, axis)
        values = self.values(plan)
        self.env = before
        return values

    def member(self, plan: MemberPlan, lanes: Lanes | None) -> Stmt:
        stage = plan.member.kept.stage
        if isinstance(stage, Scan):
            return self._scan(plan, stage, lanes)
        if not plan.member.kept.is_reduction:
            return self._pointwise(plan, lanes)
        if lanes is None and self._is_across_lines(plan):
            return sums_across_lines(self, plan) or self._blocked(plan)
        if lanes is not None:
            return reductions_across_rows(self, plan, lanes) or serial(plan.inner, reduce_lanes(self, [plan], lanes))
        along = sums_along_lines(self, plan) or serial(plan.inner, self._reduce_row(plan))
        across = sums_across_lines(self, plan, short=True) if self._may_be_windows(plan) else None
        if across is None:
            return along
        short = compare("lt", extent_of(plan.reduced[-1].extent), extent_of(plan.inner[-1].extent))
        return Branch(short, across, along)

    def _may_be_windows(self, plan: MemberPlan) -> bool:
        """Whether lanes of a reduction run along an axis that may turn out to be shorter than a line along which memory is read, too:
        nobody knows how long either is."""
        if not plan.inner or not plan.reduced:
            return False
        axis, line = plan.reduced[-1], plan.inner[-1]
        if isinstance(axis.extent, int) or isinstance(line.extent, int) or finds_position(plan):
            return False
        found = accesses(self.builder.indices, [b.body for b in self.values(plan) if isinstance(b, Reduce)], [])
        across = [self.builder.indices.coefficient(p, line) for p in found.polys]
        return 1 in across and all(step in (0, 1) for step in across)

    def with_epilogue(self, plan: MemberPlan, then: MemberPlan, later: Sequence[MemberPlan]) -> Stmt | None:
        """A step of sums across lines with the step behind it; None where they are two."""
        if not plan.member.kept.is_reduction or not self._is_across_lines(plan):
            return None
        made = epilogue(self, plan, then, later)
        return None if made is None else sums_across_lines(self, plan, made)

    def _is_across_lines(self, plan: MemberPlan) -> bool:
        """Whether lanes of a reduction run along the innermost inner axis."""
        return bool(plan.inner) and not self._reduce_contiguous(plan)

    # -- parts

    def values(self, plan: MemberPlan, extra: Env | None = None) -> list[Scalar]:
        """What a member computes, in the loops' variables."""
        frame = frame_of(plan.member, self.aliases, self.env)
        if extra:
            frame.update(extra)
        return self.builder.evaluate(stage_bodies(plan.member.kept.stage), frame)

    def store(self, plan: MemberPlan, output: int, value: Scalar) -> Stmt:
        """Put an element of an output where it belongs."""
        frame = frame_of(plan.member, self.aliases, self.env)
        where = self.builder.storage[id(plan.member.kept.origin), output]
        index = [frame.get(a, a) for a in plan.member.kept.stage.axes]
        return Store(where.buffer, (self.builder.flat(where, index),), value)

    def _pointwise(self, plan: MemberPlan, lanes: Lanes | None) -> Stmt:
        body = seq([self.store(plan, n, v) for n, v in enumerate(self.values(plan))])
        if lanes is not None:
            return serial(plan.inner, lanes.loop(body))
        if not plan.inner:
            return body
        last = plan.inner[-1]
        return serial(plan.inner[:-1], vectorized(last, extent_of(last.extent), body))

    def _reduce_contiguous(self, plan: MemberPlan) -> bool:
        """Whether lanes along the innermost reduced axis beat lanes along the innermost inner one."""
        if not plan.reduced:
            return False
        axis, inner = plan.reduced[-1], plan.inner[-1]
        lanes = self.builder.lanes(plan.member.kept.dtypes)
        if isinstance(axis.extent, int) and axis.extent < lanes:
            return isinstance(inner.extent, int) and inner.extent < axis.extent
        if isinstance(inner.extent, int) and inner.extent < lanes:
            return True
        found = accesses(self.builder.indices, [b.body for b in self.values(plan) if isinstance(b, Reduce)], [])
        along = [self.builder.indices.coefficient(p, axis) for p in found.polys]
        across = [self.builder.indices.coefficient(p, inner) for p in found.polys]
        # Lanes that have to be collected one by one cost more than anything that is the same for all of them.
        apart = [sum(step not in (0, 1, -1) for step in steps) for steps in (along, across)]
        return apart[0] < apart[1] if apart[0] != apart[1] else along.count(1) > across.count(1)

    def _reduce_row(self, plan: MemberPlan) -> Stmt:
        """One element: accumulators in registers, lanes along the innermost reduced axis."""
        last = plan.reduced[-1] if plan.reduced else None
        parts = self._reductions(plan, self.values(plan), last)
        passes: list[Stmt] = list(parts.starts)
        for body in (parts.updates, parts.finds):
            if body and last is not None:
                kind: LoopKind = "vectorized" if self._wide(plan) else "serial"
                count = extent_of(last.extent)
                axis = counted(plan) if body is parts.finds else None
                if axis is not None:
                    count = self._positions(last, position_dtype(axis, plan.member.kept.dtypes[0]))
                loop = For(last, count, seq(body), kind)
                far = kind == "vectorized" and not self.near
                whole = where_far(loop, self.builder.target, hoisted) if far else hoisted(loop)
                passes.append(serial(plan.reduced[:-1], whole))
            else:
                passes += body
        return allocate(parts.buffers, seq([*passes, *parts.ends]))

    def _wide(self, plan: MemberPlan) -> bool:
        """Whether the innermost reduced axis is long enough for lanes."""
        extent = plan.reduced[-1].extent if plan.reduced else 1
        return not (isinstance(extent, int) and extent * 2 <= self.builder.lanes(plan.member.kept.dtypes))

    def _reductions(self, plan: MemberPlan, values: Sequence[Scalar], last: Axis | None) -> Reductions:
        """A member's accumulators and what is done with them before, in and after the loop over ``last``."""
        out = Reductions()
        zero = Const(0, "int64")
        for n, value in enumerate(values):
            if not isinstance(value, Reduce):
                out.ends.append(self.store(plan, n, value))
                continue
            if last is None and value.kind in ("argmax", "argmin"):  # of one element
                out.ends.append(self.store(plan, n, Const(0, value.dtype)))
                continue
            acc = Buffer(self.builder.fresh("acc"), (1,), accumulator(value), "register")
            out.buffers.append(acc)
            now, element = Load(acc, (zero,), acc.dtype), cast(value.body, acc.dtype)
            kind: ReduceKind = value.kind
            result: Scalar = now
            if value.kind in ("argmax", "argmin"):
                kind = "max" if value.kind == "argmax" else "min"
                axis = counted(plan)
                assert axis is not None
                place = Buffer(self.builder.fresh("place"), (1,), position_dtype(axis, value.dtype), "register")
                out.buffers.append(place)
                # The first place where the extreme is met (or a nan, which is then the extreme).
                hit: Scalar = compare("eq", element, now)
                if is_float(acc.dtype):
                    hit = binary("or", hit, unary("isnan", element))
                behind = cast(self._positions(axis, place.dtype), place.dtype)
                candidate = select(hit, cast(self.env.get(axis, axis), place.dtype), behind)
                result = Load(place, (zero,), place.dtype)
                out.starts.append(Store(place, (zero,), behind))
                out.finds.append(Store(place, (zero,), minimum(result, candidate)))
            out.starts.append(Store(acc, (zero,), initial(kind, acc.dtype)))
            out.updates.append(Store(acc, (zero,), combine(kind, now, element)))
            out.ends.append(self.store(plan, n, cast(result, value.dtype)))
        return out

    def _positions(self, axis: Axis, dtype: str) -> Scalar:
        """How many elements of an axis are looked at for a position of this type: no others can be told."""
        extent = extent_of(axis.extent)
        return extent if dtype == "int64" or isinstance(axis.extent, int) else minimum(extent, MOST_POSITIONS)

    # -- members that share a loop

    def along(self, plan: MemberPlan) -> Axis | None:
        """The one axis that a member's vector loop runs over."""
        if isinstance(plan.member.kept.stage, Scan) or finds_position(plan):
            return None
        if plan.member.kept.is_reduction:
            return plan.reduced[0] if len(plan.reduced) == 1 and not plan.inner and self._wide(plan) else None
        return plan.inner[0] if len(plan.inner) == 1 else None

    def _shares(self, group: Sequence[MemberPlan], plan: MemberPlan) -> bool:
        """Whether a member can run in the loop of those before it: it reads of them only the element at hand."""
        mine, first = self.along(plan), self.along(group[0])
        if mine is None or first is None or not known_equal(mine.extent, first.extent):
            return False
        before, shared = self.env, Axis("j", first.extent)
        written: dict[int, Dim | None] = {}
        for other in group:
            along = self.along(other)
            assert along is not None
            self.bind(along, shared)
            for where, index in self.places(other):
                at = (
                    None
                    if other.member.kept.is_reduction
                    else self.builder.indices.poly(self.builder.flat(where, index))
                )
                # Two outputs of the group in one buffer: nothing is known of it.
                written[id(where.buffer)] = None if id(where.buffer) in written else at
        self.bind(mine, shared)
        values = self.values(plan)
        self.env = before
        for value in values:
            for load in loads(value):
                at = written.get(id(load.source), 0)
                if id(load.source) in written and (at is None or self.builder.indices.poly(load.indices[0]) != at):
                    return False
        return True

    def places(self, plan: MemberPlan) -> list[tuple[Storage, list[Scalar]]]:
        """Where each output of a member is, and which element of it at hand."""
        frame = frame_of(plan.member, self.aliases, self.env)
        index = [frame.get(a, a) for a in plan.member.kept.stage.axes]
        return [(where, index) for where in targets(self.builder, plan)]

    def _shared(self, group: Sequence[MemberPlan]) -> Stmt:
        """One loop over the elements of several members: what one computes the others find in a register."""
        first = self.along(group[0])
        assert first is not None
        shared = Axis("j", first.extent)
        parts, element = self.element(group, shared)
        loop = For(shared, extent_of(shared.extent), element, "vectorized")
        return allocate(parts.buffers, seq([*parts.starts, loop, *parts.ends]))

    def element(self, group: Sequence[MemberPlan], shared: Axis) -> tuple[Reductions, Stmt]:
        """What a step does with the element at ``shared``, and what around the loop: each member has a loop of its own
        (`along`), over as many elements."""
        before = self.env
        for plan in group:
            along = self.along(plan)
            assert along is not None
            self.bind(along, shared)
        whole = Reductions()
        names: dict[int, Axis] = {}
        body: list[tuple[Axis | None, Scalar, Stmt]] = []
        for plan in group:
            values = [
                transform(v, lambda n: names.get(id(n.source), n) if isinstance(n, Load) else n)
                for v in self.values(plan)
            ]
            if plan.member.kept.is_reduction:
                parts = self._reductions(plan, values, shared)
                whole.add(parts)
                body += [(None, Const(0, "int64"), update) for update in parts.updates]
                continue
            for n, (value, where) in enumerate(zip(values, targets(self.builder, plan), strict=True)):
                name = Named(self.builder.fresh("e"), value.dtype)
                body.append((name, value, self.store(plan, n, name)))
                if where.buffer.dtype == value.dtype:
                    names[id(where.buffer)] = name
        inside: list[Stmt] = []
        for named, value, stmt in reversed(body):
            inside.insert(0, stmt)
            if named is not None:
                inside = [LetScalar(named, value, seq(inside))]
        self.env = before
        return whole, seq(inside)

    def reads(self, plan: MemberPlan) -> set[int]:
        """The ids of the buffers that a member reads."""
        return {id(load.source) for value in self.values(plan) for load in loads(value)}

    def computes(self, plan: MemberPlan) -> bool:
        """Whether a member computes something dear of each element of its loop."""
        axis = self.along(plan)
        return axis is not None and any(
            node.dtype != "int64" and is_dear(node) and any(n is axis for n in walk(node))
            for value in self.values(plan)
            for node in walk(value)
        )

    def _blocked(self, plan: MemberPlan) -> Stmt:
        """Lanes along the member's last inner axis, a block at a time."""
        last = plan.inner[-1]
        before = self.env
        if self.holds([replace(plan, inner=[])], last) is True:
            lanes, block, position = held_lanes(last, self.lanes([plan]))
            blocks = [block]
        else:
            lanes, blocks, position = lane_blocks(last)
        self.bind(last, position)
        body = reduce_lanes(self, [plan], lanes)
        self.env = before
        return serial([*plan.inner[:-1], *blocks], body)

    def lanes(self, plans: Sequence[MemberPlan]) -> int:
        """The lanes of a vector of what some members compute."""
        return self.builder.lanes(d for p in plans for d in p.member.kept.dtypes)

    def holds(self, plans: Sequence[MemberPlan], line: Axis) -> bool | Scalar:
        """Whether members with lanes across an axis are best made a vector at a time, with accumulators in registers: what is done for an
        element is little, and nobody knows how many vectors there are. Where it is not known whether it is little, what says when it runs
        that there is one vector: what is kept of less than one in memory would be waited for."""
        scans = any(isinstance(p.member.kept.stage, Scan) for p in plans)
        if scans or isinstance(line.extent, int) or not self.builder.target.masked:
            return False
        if all(known_count([*p.inner, *p.reduced]) <= MOST_TERMS for p in plans):
            return True
        if any(known_count(p.inner) > MOST_TERMS for p in plans):
            return False
        return compare("le", extent_of(line.extent), self.lanes(plans))

    def runs(self, plan: MemberPlan) -> bool:
        """Whether a scan along a row goes in vectors: the steps of one combine (`relay.loop.running`)."""
        stage = plan.member.kept.stage
        assert isinstance(stage, Scan)
        state, at = Buffer("state", (1,), stage.state.dtype, "register"), (Const(0, "int64"),)
        _, update = self.values(plan, {stage.state: Load(state, at, state.dtype)})
        return running_step(Store(state, at, update)) is not None

    def _scan(self, plan: MemberPlan, stage: Scan, lanes: Lanes | None) -> Stmt:
        """Along the scanned axis, with the state in an accumulator (per lane): one step after the other, or in vectors where steps of a
        row combine (`relay.loop.running`)."""
        along = stage.axes[stage.dim]
        others = [a for a in plan.inner if a is not along]
        across = lanes
        before = self.env
        blocks: list[Axis] = []
        if across is None and others:
            across, blocks, position = lane_blocks(last := others.pop())
            self.bind(last, position)
        at: tuple[Scalar, ...] = (across.variable,) if across is not None else (Const(0, "int64"),)
        size = across.size if across is not None else 1
        dtype = stage.state.dtype
        state = Buffer(self.builder.fresh("state"), (size,), dtype, "stack" if across is not None else "register")
        now = Load(state, at, dtype)
        length = extent_of(along.extent)
        count = binary("sub", length, 1) if stage.exclusive else length
        step = Axis("step", dim_sub(along.extent, 1) if stage.exclusive else along.extent)
        row = self.env

        def place(number: Scalar) -> None:
            self.env = row
            self.bind(along, binary("sub", binary("sub", length, 1), number) if stage.reverse else number)

        def over(stmt: Stmt) -> Stmt:
            return stmt if across is None else vectorized(across.variable, across.count, stmt)

        place(step)
        init, update = self.values(plan, {stage.state: now})
        start, advance = Store(state, at, init), Store(state, at, update)
        if stage.exclusive:
            place(binary("add", step, 1))
        body = over(seq([advance, self.store(plan, 0, now)]))
        if across is not None or running_step(advance) is None:
            steps: Stmt = For(step, count, body)
        else:
            loop = For(step, count, body, "vectorized")
            steps = hoisted(loop) if self.near else where_far(loop, self.builder.target, hoisted)
        if stage.exclusive:
            place(Const(0, "int64"))
            steps = Branch(compare("lt", 0, length), seq([over(self.store(plan, 0, now)), steps]))
        self.env = before
        whole = where_begun(stage, init, seq([over(start), steps]))
        return serial([*others, *blocks], allocate([state], whole))


def where_begun(stage: Scan, init: Scalar, steps: Stmt) -> Stmt:
    """``steps`` of a scan, where it has any: what it begins with may be read of an axis that is as long as it (``x[0]``)."""
    extent = stage.axes[stage.dim].extent
    if (dim_bounds(extent)[0] or 0) > 0 or not any(isinstance(n, Load) for n in walk(init)):
        return steps
    return Branch(compare("lt", 0, extent_of(extent)), steps)
