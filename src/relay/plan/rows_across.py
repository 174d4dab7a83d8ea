"""Row nests with lanes across the last of the rows: in blocks of rows that take each step before the next one, a vector of rows at a time
with what they pass on in registers, or all columns of a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relay.ir.dim import Dim, dim_mul
from relay.loop.ir import WORKERS, Between, Branch, Buffer, For, Stmt, between
from relay.plan.build import Builder, allocate, bound, ceiling, seq
from relay.plan.lane_shares import SharedLanes
from relay.plan.narrow_columns import may_be_few
from relay.plan.narrow_rows import NarrowRows
from relay.plan.parallel import PARALLEL_COST, parallel_rows
from relay.plan.row_lanes import members_across
from relay.plan.row_members import Emitter
from relay.plan.row_parts import LANE_BLOCK, Lanes, MemberPlan, finds_position
from relay.plan.row_temporaries import widened
from relay.te.scalar import Axis, Const, Scalar, binary, compare, extent_of, maximum, minimum
from relay.te.tensor import Scan

# Columns whose sums one thread makes at a time, and the multiple of which a thread has.
_COLUMNS, _SHARED_VECTORS = 1024, 64
# Numbers of a column, of which the first-level cache holds a block's.
_NUMBERS = 6
# Of all registers so many parts hold what is kept of lanes.
_PART_HELD = 4


def across(
    emitter: Emitter, plans: Sequence[MemberPlan], temps: Sequence[Buffer], rows: Sequence[Axis], work: Dim
) -> Stmt:
    """Lanes across blocks of the last of the rows."""
    builder, last = emitter.builder, rows[-1]
    if all(a.extent == 1 for a in rows[:-1]) and not any(p.inner for p in plans) and _shared(last.extent, work):
        return _columns(builder, emitter, plans, temps, last, work)
    holds = emitter.holds(plans, last)
    most = _COLUMNS if _are_numbers(plans, temps) else LANE_BLOCK
    if holds is False:
        return _in_blocks(emitter, plans, temps, rows, work, most)
    env, storage = dict(emitter.env), dict(builder.storage)
    made = held(emitter, plans, temps, rows, work, whole=holds is True and not builder.target.mask_registers)
    if holds is True:
        return made
    emitter.env, builder.storage = env, storage
    return Branch(holds, made, _in_blocks(emitter, plans, temps, rows, work, most, few=False))


def _are_numbers(plans: Sequence[MemberPlan], temps: Sequence[Buffer]) -> bool:
    """Whether all that is kept of a column is a few numbers, so that the first-level cache holds those of a wide block: then memory is
    read in long runs. (Of 16,384 rows of 768 a running sum takes 5.1 ms in place of 13.2, a softmax 20 in place of 45.)"""
    sums = sum(p.member.kept.is_reduction or isinstance(p.member.kept.stage, Scan) for p in plans)
    return all(t.shape == (1,) for t in temps) and len(temps) + sums <= _NUMBERS


def _in_blocks(
    emitter: Emitter,
    plans: Sequence[MemberPlan],
    temps: Sequence[Buffer],
    rows: Sequence[Axis],
    work: Dim,
    most: int,
    few: bool = True,
) -> Stmt:
    """Lanes across blocks of at most so many of the last of the rows, which take each step before the next one. ``few``: there may be fewer
    than a vector has lanes."""
    builder, last = emitter.builder, rows[-1]
    shared = SharedLanes.of(rows, most, emitter.lanes(plans), work)
    in_registers = _are_few_vectors(emitter, plans, shared)
    row = (last, dict(emitter.env)) if few and not in_registers else None
    lanes = replace(shared.lanes, row=row, held=in_registers)
    wide = widened(builder, plans, temps, lanes.variable, lanes.size, held=in_registers, room=lanes.room)
    emitter.bind(last, binary("add", shared.start, lanes.variable))
    return shared.loop(builder, allocate(wide, seq(members_across(emitter, plans, lanes))))


def _are_few_vectors(emitter: Emitter, plans: Sequence[MemberPlan], shared: SharedLanes) -> bool:
    """Whether registers hold what is kept of all lanes, a row of known length. So many steps that several are taken beside each other
    have memory for that."""
    if shared.blocks:
        return False
    beside = (p for p in plans if not finds_position(p))
    if any(may_be_few(shared.lanes.size, a.extent, dear=True) for p in beside for a in (p.reduced or p.inner)[-1:]):
        return False
    vectors = -(-shared.lanes.size // emitter.lanes(plans))
    return vectors * len(plans) <= emitter.builder.target.vector_registers // _PART_HELD


def held(
    emitter: Emitter,
    plans: Sequence[MemberPlan],
    temps: Sequence[Buffer],
    rows: Sequence[Axis],
    work: Dim,
    whole: bool = False,
    enough: bool = False,
) -> Stmt:
    """Lanes across a vector of the last of the rows at a time, which all members go through before the next: what they pass on is in
    registers. At most ``_COLUMNS`` rows are a task. ``whole``: of as many rows as lanes the last vector is that which ends where they
    do, so that none has a mask: rows that it has in common with the one before are made twice. ``enough``: so many rows there are, and
    nothing that members pass on is where others see it: rows of another task, too, are made twice."""
    builder, last, size = emitter.builder, rows[-1], emitter.lanes(plans)
    shared = SharedLanes.of(rows, _COLUMNS, size, work)
    count, vectors = shared.lanes.count, ceiling(shared.lanes.count, Const(size, "int64"))
    env, storage = dict(emitter.env), dict(builder.storage)

    def each(start: Scalar, many: Scalar, begin: Scalar = shared.start) -> Stmt:
        emitter.env, builder.storage = dict(env), dict(storage)
        lane = Axis("lane", size)
        wide = widened(builder, plans, temps, lane, size, held=True)
        lanes = Lanes(lane, many, size, held=True, row=(last, dict(emitter.env)))
        emitter.bind(last, binary("add", binary("add", begin, start), lane))
        return allocate(wide, seq(members_across(emitter, plans, lanes)))

    vector = Axis("vector", _COLUMNS // size)
    if not whole:
        start = binary("mul", vector, size)
        return shared.loop(builder, For(vector, vectors, each(start, binary("sub", count, start))))
    if enough:
        extent = last.extent
        first = Between("first", extent, low=0, high=(binary("sub", extent_of(extent), size),))
        begun = between(first, binary("add", shared.start, binary("mul", vector, size)))
        body = bound([begun], each(first, Const(size, "int64"), Const(0, "int64")))
        return shared.loop(builder, For(vector, vectors, body))
    end = binary("sub", count, size)
    first = Between("first", _COLUMNS, low=0, high=(end,))
    overlapped = bound([between(first, binary("mul", vector, size))], each(first, Const(size, "int64")))
    few = each(Const(0, "int64"), count)
    return shared.loop(builder, Branch(compare("ge", count, size), For(vector, vectors, overlapped), few))


def turned(
    emitter: Emitter,
    narrow: NarrowRows,
    plans: Sequence[MemberPlan],
    temps: Sequence[Buffer],
    rows: Sequence[Axis],
    work: Dim,
) -> Stmt:
    """Lanes across blocks of the last of the rows, which are turned before and turned back after."""
    builder, last = emitter.builder, rows[-1]
    lanes, blocks, position = narrow.across(last)
    first = binary("mul", blocks[0], lanes.size) if blocks else Const(0, "int64")
    wide = widened(builder, plans, temps, lanes.variable, lanes.size, most=narrow.most)
    lines, before, after = narrow.turned(builder, lanes, first)
    emitter.bind(last, position)
    members = members_across(emitter, plans, lanes)
    body = allocate([*wide, *lines], seq([*before, *members, *after]))
    return parallel_rows(builder, [*rows[:-1], *blocks], dim_mul(work, lanes.size), body)


def _shared(columns: Dim, work: Dim) -> bool:
    """Whether more than one thread may get columns, each of which takes ``work``."""
    if isinstance(columns, int) and columns <= _SHARED_VECTORS:
        return False
    total = dim_mul(columns, work)
    return not isinstance(total, int) or total >= 2 * PARALLEL_COST


def _columns(
    builder: Builder, emitter: Emitter, plans: Sequence[MemberPlan], temps: Sequence[Buffer], last: Axis, work: Dim
) -> Stmt:
    """Reductions over all rows of a matrix, lanes across its columns. Each thread has a share of them, which it takes in
    blocks as wide as the first-level cache holds sums: memory is read in long runs. A column's sum is the same whatever its
    share."""
    extent, one = extent_of(last.extent), Const(1, "int64")
    size = _COLUMNS if not isinstance(last.extent, int) else min(_COLUMNS, last.extent)
    tasks, share, task, own, block = (Axis(hint, last.extent) for hint in ("tasks", "share", "task", "own", "block"))
    worth = binary("floordiv", extent_of(dim_mul(last.extent, work)), PARALLEL_COST)
    vectors = ceiling(ceiling(extent, tasks), Const(_SHARED_VECTORS, "int64"))
    lane, first = Axis("lane", size), binary("mul", block, size)
    lanes = Lanes(lane, minimum(size, binary("sub", own, first)), size, row=(last, dict(emitter.env)))
    wide = widened(builder, plans, temps, lane, size, room=lanes.room)
    emitter.bind(last, binary("add", binary("add", binary("mul", task, share), first), lane))
    body = allocate(wide, seq(members_across(emitter, plans, lanes)))
    blocks = For(block, ceiling(own, Const(size, "int64")), body)
    mine = minimum(share, binary("sub", extent, binary("mul", task, share)))
    run = For(task, ceiling(extent, share), bound([(own, mine)], blocks), "parallel", 1)
    return bound(
        [(tasks, maximum(minimum(WORKERS, worth), one)), (share, binary("mul", vectors, _SHARED_VECTORS))], run
    )
