"""Row nests: reductions, scans and the stages around them, computed row by row.

One parallel loop runs over the nest's rows; inside it each member runs over its own inner axes, so that what a row's
members pass on stays in registers, on the stack or in the thread's slice of the workspace, and later passes over a
row find it in the first cache. A few short rows are taken together, so that none waits for the end of its reduction.

Lanes run along the reduced or inner axis where that is contiguous. Where the contiguous axis is the last row (a
reduction over the first axis), rows are taken in blocks instead and every member runs its lanes across the block,
with an accumulator per lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from relay.ir.dim import Dim, ceil_div, dim_bounds, dim_mul, known_equal, shape_size
from relay.ir.types import dtype_bits
from relay.loop.ir import WORKERS, Branch, Buffer, For, Stmt
from relay.loop.workspace import buffer_bytes
from relay.plan.build import (
    Builder,
    Storage,
    allocate,
    at_least_one,
    bound,
    ceiling,
    row_major,
    seq,
    temporary,
    total_cost,
)
from relay.plan.expand import Env, cost
from relay.plan.graph import loads, tensor_key
from relay.plan.lane_shares import SharedLanes
from relay.plan.moments import row_steps
from relay.plan.narrow_rows import NarrowRows, narrow_rows
from relay.plan.nests import Nest
from relay.plan.parallel import PARALLEL_COST, lines_together, parallel_lines, parallel_rows
from relay.plan.row_lanes import members_across
from relay.plan.row_members import Emitter
from relay.plan.row_parts import LANE_BLOCK, Lanes, MemberPlan, finds_position, frame_of, targets
from relay.plan.row_pipeline import paired, pipelined
from relay.plan.row_tiles import rows_at_once
from relay.plan.space import Accesses, Space, accesses
from relay.plan.strips import strips
from relay.te.scalar import (
    Axis,
    Const,
    Reduce,
    Scalar,
    binary,
    compare,
    conjunction,
    extent_of,
    maximum,
    minimum,
)  # fmt: skip
from relay.te.tensor import Scan, stage_bodies

# Strides of what lies beside each other, in either order.
_NEIGHBOURS = (1, -1)
# Lanes are loaded about as fast as neighbours from places up to so many elements apart.
_NEAR = 4
# Matrices of unknown sizes have lanes across them where their rows and columns have at most so many elements.
_NARROW = 8
# Columns whose sums one thread makes at a time, and the multiple of which a thread has.
_COLUMNS, _SHARED_VECTORS = 1024, 64
# Rows that take their steps together, and the longest for which that is done.
_ROWS_TOGETHER, _LONGEST_TOGETHER = 4, 256


def row_nest(builder: Builder, nest: Nest) -> Stmt:
    """The loops of a nest with reductions or scans."""
    rows = list(nest.members[0].rows)
    plans: list[MemberPlan] = []
    aliases: dict[Axis, Axis] = {}
    for member in nest.members:
        aliases.update({own: row for own, row in zip(member.rows, rows, strict=True) if own is not row})
        plans.append(MemberPlan(member, list(member.inner), list(member.kept.reduce_axes)))
    temps = _temporaries(builder, plans)
    # Axes of one element are neither rows nor inside of them; a value may be made of one (how far a window is from a border).
    units: dict[Axis, Scalar] = {
        a: Const(0, "int64") for m in nest.members for a in m.kept.stage.axes if a.extent == 1 and a not in m.rows
    }
    space = Space([rows, *(g for p in plans for g in (p.inner, p.reduced))], units)

    def evaluate(env: Env) -> Accesses:
        values: list[Scalar] = []
        stores: list[Scalar] = []
        for plan in plans:
            frame = frame_of(plan.member, aliases, env)
            for body in builder.evaluate(stage_bodies(plan.member.kept.stage), frame):
                values.append(body.body if isinstance(body, Reduce) else body)
            index = [frame.get(a, a) for a in plan.member.kept.stage.axes]
            stores += [builder.flat(s, index) for s in targets(builder, plan)]
        found = accesses(builder.indices, values, stores)
        # The axis of a scan runs in order, and the position a reduction finds is counted along its axis: neither is
        # joined.
        ordered = {
            plan.member.kept.stage.axes[plan.member.kept.stage.dim]
            for plan in plans
            if isinstance(plan.member.kept.stage, Scan)
        }
        counted = {a for plan in plans if finds_position(plan) for a in plan.member.kept.reduce_axes}
        return Accesses(found.polys, found.fixed | ordered | counted)

    space.normalise(builder, evaluate)
    work, emitter = _work(plans), Emitter(builder, aliases, dict(space.env))
    lanes = builder.lanes(d for m in nest.members for d in m.kept.dtypes)
    env, storage = dict(emitter.env), dict(builder.storage)

    def as_it_was() -> None:
        """Another way of the nest, and other nests, find what they read where it was."""
        emitter.env, builder.storage = dict(env), dict(storage)

    narrow = narrow_rows(emitter, plans, rows, temps, lanes)
    if narrow is not None:
        turned: Stmt | None = _turned(emitter, narrow, plans, temps, rows, work)
    else:
        turned = strips(emitter, plans, rows, temps, lanes, work)
    as_it_was()
    if turned is not None:
        if isinstance(rows[-1].extent, int):
            return turned
        # Few rows have no block to turn.
        emitter.near = narrow is not None
        few = compare("lt", extent_of(rows[-1].extent), lanes)
        return Branch(few, _along(emitter, plans, temps, rows, work), turned)
    across = _across_rows(builder, lanes, plans, rows, evaluate(space.env))
    at_once = rows_at_once(emitter, plans[0], rows) if across is True and len(plans) == 1 and not temps else {}
    if at_once:
        return _several(emitter, plans, rows, work, at_once)
    if across is True and (exchanged := _exchanged(plans, rows, lanes)) is not None:
        short, others = exchanged
        made = _across(emitter, plans, temps, others, work)
        as_it_was()
        return Branch(short, made, _across(emitter, plans, temps, rows, work))
    if isinstance(across, bool):
        return _across(emitter, plans, temps, rows, work) if across else _along(emitter, plans, temps, rows, work)
    wide = _across(emitter, plans, temps, rows, work)
    as_it_was()
    return Branch(across, wide, _along(emitter, plans, temps, rows, work))


def _along(
    emitter: Emitter, plans: Sequence[MemberPlan], temps: Sequence[Buffer], rows: Sequence[Axis], work: Dim
) -> Stmt:
    """A row at a time, or a few together, lanes along it."""
    builder, together = emitter.builder, _together(plans, rows, temps)
    if together > 1:
        jammed = lines_together(builder, rows, work, _one_by_one(emitter, plans, temps))
        if jammed is not None:
            return jammed
        last, inside = rows[-1], Axis("r", together)
        block = Axis("rows", ceil_div(last.extent, together))
        start = binary("mul", Const(0, "int64") if block.extent == 1 else block, together)
        repeated = _repeat(builder, plans, temps, inside, together)
        emitter.bind(last, binary("add", start, inside))
        count = minimum(together, binary("sub", extent_of(last.extent), start))
        steps = [For(inside, count, emitter.step(group)) for group in emitter.groups(plans)]
        return parallel_rows(builder, [*rows[:-1], block], dim_mul(work, together), allocate(repeated, seq(steps)))
    groups = emitter.groups(plans)
    if (skewed := pipelined(emitter, rows, groups, temps, work)) is not None:
        return skewed
    env, storage = dict(emitter.env), dict(builder.storage)
    pairs = paired(emitter, rows, groups, temps, work)
    if pairs is not None and not pairs[0]:
        return pairs[1]
    emitter.env, builder.storage = env, storage
    alone = parallel_lines(builder, rows, work, _one_by_one(emitter, plans, temps))
    return alone if pairs is None else Branch(conjunction(pairs[0]), pairs[1], alone)


def _several(
    emitter: Emitter, plans: Sequence[MemberPlan], rows: Sequence[Axis], work: Dim, at_once: Mapping[Axis, int]
) -> Stmt:
    """Rows of one element each: the last of them as the line of a member that is made for several of the others at once."""
    *outer, line = rows
    inside: list[Axis] = []
    for n, axis in enumerate(outer):
        count = at_once.get(axis, 1)
        if count > 1:
            own, outer[n] = Axis(axis.name, count), Axis(axis.name, ceil_div(axis.extent, count))
            start = binary("mul", Const(0, "int64") if outer[n].extent == 1 else outer[n], count)
            emitter.bind(axis, binary("add", start, own))
            inside.append(own)
    plans[0].inner = [*inside, line]
    one = dim_mul(work, shape_size(tuple(a.extent for a in plans[0].inner)))
    return parallel_lines(emitter.builder, [a for a in outer if a.extent != 1], one, _one_by_one(emitter, plans, []))


def _one_by_one(emitter: Emitter, plans: Sequence[MemberPlan], temps: Sequence[Buffer]) -> Stmt:
    """All steps of a row."""
    return allocate([t for t in temps if t.scope != "operand"], seq(row_steps(emitter, plans)))


def _across(
    emitter: Emitter, plans: Sequence[MemberPlan], temps: Sequence[Buffer], rows: Sequence[Axis], work: Dim
) -> Stmt:
    """Lanes across blocks of the last of the rows."""
    builder, last = emitter.builder, rows[-1]
    if all(a.extent == 1 for a in rows[:-1]) and not any(p.inner for p in plans) and _shared(last.extent, work):
        return _columns(builder, emitter, plans, temps, last, work)
    alone = not temps and not any(p.inner for p in plans)
    held = emitter.holds(plans, last)
    most = _COLUMNS if alone else LANE_BLOCK
    if held is False:
        return _in_blocks(emitter, plans, temps, rows, work, most)
    env, storage = dict(emitter.env), dict(builder.storage)
    made = _held(emitter, plans, temps, rows, work)
    if held is True:
        return made
    emitter.env, builder.storage = env, storage
    return Branch(held, made, _in_blocks(emitter, plans, temps, rows, work, most))


def _in_blocks(
    emitter: Emitter, plans: Sequence[MemberPlan], temps: Sequence[Buffer], rows: Sequence[Axis], work: Dim, most: int
) -> Stmt:
    """Lanes across blocks of at most so many of the last of the rows, which take each step before the next one."""
    builder, last = emitter.builder, rows[-1]
    shared = SharedLanes.of(rows, most, emitter.lanes(plans), work)
    lanes = shared.lanes
    widened = _widen(builder, plans, temps, lanes.variable, lanes.size)
    emitter.bind(last, binary("add", shared.start, lanes.variable))
    return shared.loop(builder, allocate(widened, seq(members_across(emitter, plans, lanes))))


def _held(
    emitter: Emitter,
    plans: Sequence[MemberPlan],
    temps: Sequence[Buffer],
    rows: Sequence[Axis],
    work: Dim,
) -> Stmt:
    """Lanes across a vector of the last of the rows at a time, which all members go through before the next: what they pass on is in
    registers. At most ``_COLUMNS`` rows are a task."""
    builder, last, size = emitter.builder, rows[-1], emitter.lanes(plans)
    shared = SharedLanes.of(rows, _COLUMNS, size, work)
    count, vector, lane = shared.lanes.count, Axis("vector", _COLUMNS // size), Axis("lane", size)
    start = binary("mul", vector, size)
    lanes = Lanes(lane, binary("sub", count, start), size, held=True)
    widened = _widen(builder, plans, temps, lane, size, held=True)
    emitter.bind(last, binary("add", binary("add", shared.start, start), lane))
    body = allocate(widened, seq(members_across(emitter, plans, lanes)))
    return shared.loop(builder, For(vector, ceiling(count, Const(size, "int64")), body))


def _turned(
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
    widened = _widen(builder, plans, temps, lanes.variable, lanes.size)
    lines, before, after = narrow.turned(builder, lanes, first)
    emitter.bind(last, position)
    members = members_across(emitter, plans, lanes)
    body = allocate([*widened, *lines], seq([*before, *members, *after]))
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
    lanes = Lanes(lane, minimum(size, binary("sub", own, first)), size)
    widened = _widen(builder, plans, temps, lane, size)
    emitter.bind(last, binary("add", binary("add", binary("mul", task, share), first), lane))
    body = allocate(widened, seq(members_across(emitter, plans, lanes)))
    blocks = For(block, ceiling(own, Const(size, "int64")), body)
    mine = minimum(share, binary("sub", extent, binary("mul", task, share)))
    run = For(task, ceiling(extent, share), bound([(own, mine)], blocks), "parallel", 1)
    return bound(
        [(tasks, maximum(minimum(WORKERS, worth), one)), (share, binary("mul", vectors, _SHARED_VECTORS))], run
    )


def _temporaries(builder: Builder, plans: Sequence[MemberPlan]) -> list[Buffer]:
    """Give what has no memory yet (what is read inside this nest alone) a temporary over its inner axes."""
    temps: list[Buffer] = []
    for number, plan in enumerate(plans):
        stage = plan.member.kept.stage
        for n, dtype in enumerate(plan.member.kept.dtypes):
            key = (id(plan.member.kept.origin), n)
            if key in builder.storage:
                continue
            if plan.inner and (place := _in_result(builder, plans, number, n)) is not None:
                builder.storage[key] = place
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


def _in_result(builder: Builder, plans: Sequence[MemberPlan], number: int, output: int) -> Storage | None:
    """The memory of a later result that may hold a member until then: the result is what reads the member last, element by
    element. So memory that has to be written anyway is fetched while there is arithmetic to do, and only once: unless it is written
    past the caches."""
    kept = plans[number].member.kept
    tensor = (id(kept.origin), output)
    readers = [
        (n, load)
        for n in range(number + 1, len(plans))
        for body in stage_bodies(plans[n].member.kept.stage)
        for load in loads(body)
        if tensor_key(load.source) == tensor  # type: ignore[arg-type]
    ]
    last = plans[readers[-1][0]] if readers else None
    if last is None or last.member.kept.is_reduction or isinstance(last.member.kept.stage, Scan):
        return None
    axes, finals = last.member.kept.stage.axes, last.member.kept.dtypes
    (dtype, *others) = finals
    where = builder.storage.get((id(last.member.kept.origin), 0))
    if where is None or where.buffer.scope != "operand" or others or dtype != kept.dtypes[output]:
        return None
    if _streamed(builder, where, last):
        return None
    found = {tuple(load.indices) for n, load in readers if plans[n] is last}
    if len(found) != 1:
        return None
    (index,) = found
    strides: list[Dim] = []
    used: set[Axis] = set()
    for own, i in zip(kept.stage.axes, index, strict=True):
        if own.extent == 1:
            strides.append(0)
            continue
        axis = builder.indices.as_axis(builder.indices.poly(i))
        if axis is None or axis not in axes or axis in used or not known_equal(axis.extent, own.extent):
            return None
        used.add(axis)
        strides.append(where.strides[axes.index(axis)])
    if any(a.extent != 1 and a not in used for a in axes):
        return None
    # Only this member: a second one would be overwritten.
    taken = any(s.buffer is where.buffer for key, s in builder.storage.items() if key[0] != id(last.member.kept.origin))
    return None if taken else Storage(where.buffer, tuple(strides), where.offset)


def _streamed(builder: Builder, where: Storage, plan: MemberPlan) -> bool:
    """Whether a result may be so large that it is written past the caches, row by row in whole vectors: then nothing else lies
    in its memory before."""
    most, bits = dim_bounds(buffer_bytes(where.buffer))[1], dtype_bits(where.buffer.dtype)
    limit = builder.target.streamed_bytes
    if limit is None or (most is not None and most < limit):
        return False
    rows = [s for a, s in zip(plan.member.kept.stage.axes, where.strides, strict=True) if a in plan.member.rows]
    return all(isinstance(s, int) and s * bits % builder.target.vector_bits == 0 for s in rows)


def _together(plans: Sequence[MemberPlan], rows: Sequence[Axis], temps: Sequence[Buffer]) -> int:
    """How many rows take each step before any takes the next: a reduction's last additions, and what is computed from its
    result, wait for one another, but not for those of another row. Long rows have enough to do meanwhile."""
    if not rows or len(plans) < 2 or any(isinstance(p.member.kept.stage, Scan) for p in plans):
        return 1
    if not any(p.reduced for p in plans) or (isinstance(rows[-1].extent, int) and rows[-1].extent < _ROWS_TOGETHER):
        return 1
    sizes = [shape_size(tuple(a.extent for a in (*p.inner, *p.reduced))) for p in plans]
    sizes += [t.shape[0] for t in temps]
    return _ROWS_TOGETHER if all(isinstance(s, int) and s <= _LONGEST_TOGETHER for s in sizes) else 1


def _repeat(
    builder: Builder, plans: Sequence[MemberPlan], temps: Sequence[Buffer], row: Axis, count: int
) -> list[Buffer]:
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


def _widen(
    builder: Builder, plans: Sequence[MemberPlan], temps: Sequence[Buffer], lane: Axis, size: int, held: bool = False
) -> list[Buffer]:
    """Temporaries with an element per lane; ``held``: those with nothing else are registers."""
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
            if held and count == size:
                buffer = replace(buffer, scope="register")
            elif buffer.scope == "register":
                buffer = replace(buffer, scope="stack")
            wide.append(buffer)
            builder.storage[key] = Storage(buffer, tuple(dim_mul(s, size) for s in where.strides), offset)
    return wide


def _work(plans: Sequence[MemberPlan]) -> Dim:
    """Simple operations for one row."""
    parts: list[Dim] = []
    for plan in plans:
        size = shape_size(tuple(a.extent for a in (*plan.inner, *plan.reduced)))
        bodies = stage_bodies(plan.member.kept.stage)
        each = sum(max(1, cost(b.body if isinstance(b, Reduce) else b)) for b in bodies)
        parts.append(dim_mul(at_least_one(size), each))
    return total_cost(parts)


def _across_rows(
    builder: Builder, lanes: int, plans: Sequence[MemberPlan], rows: Sequence[Axis], found: Accesses
) -> bool | Scalar:
    """Whether lanes should run across the last row: it is contiguous where the inner and reduced axes are not, or
    they are short, or nothing goes along them (a sum of parts, each of which is the same at all places). Where as much is
    contiguous one way as the other, across, whose lanes need not be added up, if there are as many rows as lanes."""
    if not rows:
        return False
    last, indices = rows[-1], builder.indices
    if isinstance(last.extent, int) and last.extent * 2 < lanes:
        return False
    votes, undecided, across = 0, True, False
    # Windows beside each other, as long as they are apart: across where they turn out to be short.
    windows: list[Dim] = []
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
                across |= along_row in _NEIGHBOURS
                continue  # the same for all lanes one way or the other
            undecided = False
            if along_row in _NEIGHBOURS:
                votes += 1
            elif along_axis in _NEIGHBOURS:
                short = isinstance(axis.extent, int) and axis.extent * 2 <= lanes
                near = isinstance(along_row, int) and along_row <= _NEAR  # windows that lie close to each other
                alone = shape_size(tuple(a.extent for a in (*plan.inner, *plan.reduced))) == axis.extent
                votes += 1 if short and (near or alone) else -1
                if not isinstance(axis.extent, int) and along_row == axis.extent and not alone:
                    windows.append(axis.extent)
            elif along_axis is not None and _is_near(along_row) and not _is_near(along_axis):
                votes += 1
    if votes == 0 and not undecided and any(p.reduced for p in plans):
        return last.extent >= lanes if isinstance(last.extent, int) else compare("ge", extent_of(last.extent), lanes)
    if windows and votes <= 0 < votes + 2 * len(windows):
        return conjunction(compare("le", extent_of(size), _NEAR) for size in dict.fromkeys(windows))
    across_all = votes > 0 or (undecided and across)
    # Matrices that turn out to be small have nothing for lanes along their rows.
    matrices = not across_all and any(len(p.inner) + len(p.reduced) > 1 for p in plans)
    small = _narrow(plans, [], last, lanes) if matrices else None
    return across_all if small is None else small


def _exchanged(plans: Sequence[MemberPlan], rows: Sequence[Axis], lanes: int) -> tuple[Scalar, list[Axis]] | None:
    """The rows with the last two exchanged, and whether lanes should run across what is the last one then: the other one, and what is
    reduced, are of unknown length and turn out to be short."""
    if len(rows) < 2 or not any(p.reduced for p in plans):
        return None
    *outer, line, last = rows
    short = _narrow(plans, [last], line, lanes)
    return None if short is None else (short, [*outer, last, line])


def _narrow(plans: Sequence[MemberPlan], rows: Sequence[Axis], line: Axis, lanes: int) -> Scalar | None:
    """Whether what is inside of rows, and these, turns out to be short, and there are as many elements of a line as lanes; None where
    that is known of a size."""
    if any(isinstance(p.member.kept.stage, Scan) for p in plans):
        return None
    sizes = dict.fromkeys([*(a.extent for a in rows), *(a.extent for p in plans for a in (*p.inner, *p.reduced))])
    if any(isinstance(s, int) for s in sizes) or (isinstance(line.extent, int) and line.extent < lanes):
        return None
    short = [compare("le", extent_of(size), _NARROW) for size in sizes]
    return conjunction([*short, compare("ge", extent_of(line.extent), lanes)])


def _is_near(step: Dim | None) -> bool:
    """Whether lanes of a step are loaded about as fast as neighbours."""
    return isinstance(step, int) and abs(step) <= _NEAR
