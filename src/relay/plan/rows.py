"""Row nests: reductions, scans and the stages around them, computed row by row.

One parallel loop runs over the nest's rows; inside it each member runs over its own inner axes, so that what a row's
members pass on stays in registers, on the stack or in the thread's slice of the workspace, and later passes over a
row find it in the first cache. A few short rows are taken together, so that none waits for the end of its reduction.

Lanes run along the reduced or inner axis where that is contiguous. Where the contiguous axis is the last row (a
reduction over the first axis), rows are taken in blocks instead and every member runs its lanes across the block,
with an accumulator per lane.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from relay.ir.dim import Dim, ceil_div, dim_mul, known_equal, shape_size
from relay.ir.record import record
from relay.loop.ir import Branch, Buffer, For, Stmt
from relay.plan.build import Builder, Storage, allocate, at_least_one, bound, seq, total_cost
from relay.plan.expand import Env, cost
from relay.plan.graph import tensor_key
from relay.plan.moments import row_steps
from relay.plan.narrow_columns import lie_beside, may_be_few
from relay.plan.narrow_rows import narrow_rows
from relay.plan.nests import Nest, reads_of
from relay.plan.parallel import lines_together, parallel_lines, parallel_rows
from relay.plan.row_members import Emitter
from relay.plan.row_parts import MemberPlan, finds_position, frame_of, overlapping, targets
from relay.plan.row_pipeline import paired, pipelined
from relay.plan.row_temporaries import keys_of, repeated, temporaries
from relay.plan.row_tiles import lines_at_once, rows_at_once
from relay.plan.rows_across import across, held, turned
from relay.plan.short_rows import Short, computes, is_computed, of_small_matrices
from relay.plan.space import Accesses, Space, accesses
from relay.plan.strips import strips
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Const,
    Reduce,
    Scalar,
    binary,
    compare,
    conjunction,
    extent_of,
    iteration_count,
    minimum,
)
from relay.te.tensor import Scan, stage_bodies

# Strides of what lies beside each other, in either order.
_NEIGHBOURS = (1, -1)
# Lanes are loaded about as fast as neighbours from places up to so many elements apart.
_NEAR = 4
# Of a vector (of narrow elements: of as many as are of 32 bits in one) lanes across rows fill such a part at least, where what is reduced
# would fill less.
_PART_FILLED = 4
# Rows that take their steps together, and the longest for which that is done.
_ROWS_TOGETHER, _LONGEST_TOGETHER = 4, 256


def row_nest(builder: Builder, nest: Nest, long: Short | None = None) -> Stmt:
    """The loops of a nest with reductions or scans; ``long``: where that is not short."""
    lanes, given = builder.lanes(nest.dtypes), dict(builder.storage)
    begun = _Begun.of(builder, nest)
    rows, plans, temps, work, emitter = begun.rows, begun.plans, begun.temps, begun.work, begun.emitter
    env, storage = dict(emitter.env), dict(builder.storage)
    narrow = narrow_rows(emitter, plans, rows, temps, lanes)
    if narrow is not None:
        blocks: Stmt | None = turned(emitter, narrow, plans, temps, rows, work)
    else:
        blocks = strips(emitter, plans, rows, temps, lanes, work)
    # Another way of the nest, and other nests, find what they read where it was.
    emitter.env, builder.storage = env, storage
    if blocks is None:
        return _unturned(builder, nest, begun, given, long)
    # Few rows have no block to turn, and rows that turn out to be long are none.
    few = None if isinstance(rows[-1].extent, int) else compare("lt", extent_of(rows[-1].extent), lanes)
    too_long = None if narrow is None else narrow.too_long
    if too_long is not None:
        other = too_long if few is None else binary("or", too_long, few)
        return Branch(other, _unturned(builder, nest, begun, given, long, lines=False), blocks)
    if few is None:
        return blocks
    emitter.near = narrow is not None
    return Branch(few, _along(emitter, plans, temps, rows, work), blocks)


def _unturned(
    builder: Builder,
    nest: Nest,
    begun: _Begun,
    given: dict[tuple[int, int], Storage],
    long: Short | None,
    lines: bool = True,
) -> Stmt:
    """The loops of a nest whose rows are read where they are. ``given``: the memory that there was before the nest; ``lines``: rows that
    are one line may turn out to be short here."""
    lanes = builder.lanes(nest.dtypes)
    rows, plans, temps, work, emitter = begun.rows, begun.plans, begun.temps, begun.work, begun.emitter
    env, storage = dict(emitter.env), dict(builder.storage)

    def as_it_was() -> None:
        """Another way of the nest, and other nests, find what they read where it was."""
        emitter.env, builder.storage = dict(env), dict(storage)

    is_across = _across_rows(builder, lanes, plans, rows, begun.accessed())
    if is_across is True and not _beside(emitter, plans, given.keys(), rows[-1]):
        builder.storage = dict(given)
        temps = temporaries(builder, plans, in_results=False)
        storage = dict(builder.storage)
    at_once = rows_at_once(emitter, plans[0], rows) if is_across is True and len(plans) == 1 and not temps else {}
    if at_once:
        return _several(emitter, plans, rows, work, at_once)
    if is_across is False and rows and (matrices := of_small_matrices(builder, nest, rows[-1])) is not None:
        builder.storage = dict(given)
        made = _across_matrices(builder, matrices)
        as_it_was()
        if made is not None:
            return made
    # Where the last of several rows and what is reduced turn out to be short, lanes run across the rows before; matrices that turn out
    # to be small have nothing for lanes along their rows.
    small = None
    if is_across is True and len(rows) > 1 and any(p.reduced for p in plans):
        small = Short.of(builder, nest.with_rows(len(nest.members[0].rows) - 1))
    elif is_across is False and rows and (lines or any(len(p.inner) + len(p.reduced) > 1 for p in plans)):
        small = Short.of(builder, nest, rows[-1].extent)
    # Where lanes are loaded one by one, that has to be little beside what is computed.
    worth = builder.target.mask_registers or computes(nest)
    if small is not None and worth and small.may_hold and (long is None or not small.implies(long)):
        builder.storage = dict(given)
        made = _across_short(builder, small)
        as_it_was()
        rest = _across if is_across else _along
        return Branch(small.holds, made, rest(emitter, plans, temps, rows, work))
    if isinstance(is_across, bool):
        return (_across if is_across else _along)(emitter, plans, temps, rows, work)
    wide = _across(emitter, plans, temps, rows, work)
    as_it_was()
    return Branch(is_across, wide, _along(emitter, plans, temps, rows, work))


@record(frozen=True, slots=True, eq=False)
class _Begun:
    """A nest with its axes normalised and memory for what its members pass on. ``work``: simple operations for one row."""

    rows: list[Axis]
    plans: list[MemberPlan]
    temps: list[Buffer]
    emitter: Emitter
    space: Space

    @staticmethod
    def of(builder: Builder, nest: Nest, in_results: bool = True) -> _Begun:
        rows = list(nest.members[0].rows)
        plans: list[MemberPlan] = []
        aliases: dict[Axis, Axis] = {}
        for member in nest.members:
            aliases.update({own: row for own, row in zip(member.rows, rows, strict=True) if own is not row})
            plans.append(MemberPlan(member, list(member.inner), list(member.kept.reduce_axes)))
        temps = temporaries(builder, plans, in_results)
        # Axes of one element are neither rows nor inside of them; a value may be made of one (how far a window is from a border).
        units: dict[Axis, Scalar] = {
            a: Const(0, "int64") for m in nest.members for a in m.kept.stage.axes if a.extent == 1 and a not in m.rows
        }
        space = Space([rows, *(g for p in plans for g in (p.inner, p.reduced))], units)
        begun = _Begun(rows, plans, temps, Emitter(builder, aliases, {}), space)
        space.normalise(builder, begun._accesses)
        begun.emitter.env = dict(space.env)
        return begun

    @property
    def work(self) -> Dim:
        return _work(self.plans)

    def accessed(self) -> Accesses:
        """What the members read and write."""
        return self._accesses(self.space.env)

    def _accesses(self, env: Env) -> Accesses:
        builder, plans = self.emitter.builder, self.plans
        values: list[Scalar] = []
        stores: list[Scalar] = []
        for plan in plans:
            frame = frame_of(plan.member, self.emitter.aliases, env)
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


def short_nests(builder: Builder, short: Short, later: Sequence[Nest]) -> Stmt:
    """The loops of several nests as one, where all in it is short. What they pass on to each other, and not to ``later`` ones, is in the
    workspace otherwise, and here with the lanes."""
    given = dict(builder.storage)
    read = {tensor_key(t) for n in later for m in n.members for t, _ in reads_of(m.kept)}
    for member in short.nest.members:
        for key in keys_of(member.kept):
            if key in given and given[key].buffer.scope != "operand" and key not in read:
                del builder.storage[key]
    made = _across_short(builder, short)
    builder.storage = given
    return made


def _across_matrices(builder: Builder, nest: Nest) -> Stmt | None:
    """Lanes across the last of the rows, inside of which all is short: blocks of rows are turned where they can be. None: lanes would be
    loaded one by one, and nothing dear is computed."""
    begun = _Begun.of(builder, nest, in_results=False)
    lanes = builder.lanes(nest.dtypes)
    narrow = narrow_rows(begun.emitter, begun.plans, begun.rows, begun.temps, lanes, matrices=True)
    if narrow is not None:
        return turned(begun.emitter, narrow, begun.plans, begun.temps, begun.rows, begun.work)
    return across(begun.emitter, begun.plans, begun.temps, begun.rows, begun.work) if computes(nest) else None


def _across_short(builder: Builder, short: Short) -> Stmt:
    """Lanes across the last of the rows, inside of which all is found to be short when it runs. What members pass on has memory of its own,
    lane beside lane: in a result rows lie behind each other."""
    nest = short.nest
    begun = _Begun.of(builder, nest, in_results=False)
    begun.emitter.short = builder.target.masked
    parts = begun.emitter, begun.plans, begun.temps, begun.rows, begun.work
    if not builder.target.masked:
        return across(*parts)
    # What was counted need not be what the loops go through: they may be split.
    counted = nest.members[0].rows[-1].extent if short.line is None else short.line
    enough = known_equal(begun.rows[-1].extent, counted)
    return held(*parts, whole=enough or not builder.target.mask_registers, enough=enough)


def _beside(emitter: Emitter, plans: Sequence[MemberPlan], given: Container[tuple[int, int]], row: Axis) -> bool:
    """Whether what members pass on in results (what had no memory ``given``) has a row's neighbours beside it, for lanes across them."""
    passed = [plan for plan in plans if any(key not in given for key in keys_of(plan.member.kept))]
    places = [at for plan in passed for at in emitter.places(plan) if at[0].buffer.scope == "operand"]
    indices, flat = emitter.builder.indices, emitter.builder.flat
    return all(indices.coefficient(indices.poly(flat(where, index)), row) in _NEIGHBOURS for where, index in places)


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
        several = repeated(builder, plans, temps, inside, together)
        emitter.bind(last, binary("add", start, inside))
        count = minimum(together, binary("sub", extent_of(last.extent), start))
        steps = [For(inside, count, emitter.step(group)) for group in emitter.groups(plans)]
        return parallel_rows(builder, [*rows[:-1], block], dim_mul(work, together), allocate(several, seq(steps)))
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


def _across(
    emitter: Emitter, plans: Sequence[MemberPlan], temps: Sequence[Buffer], rows: Sequence[Axis], work: Dim
) -> Stmt:
    """Lanes across the last of the rows; where neighbours along the one before read much in common, and there turn out to be enough of
    them, several of these at once. The last of them are those that end where the axis does."""
    first, *then = plans
    many = lines_at_once(emitter, first, rows) if len(then) <= 1 and not any(p.inner or p.reduced for p in then) else 0
    together = _lines_together(emitter, plans, rows, work, many) if many else None
    made = across(emitter, plans, temps, rows, work)
    return made if together is None else Branch(compare("ge", extent_of(rows[-2].extent), many), together, made)


def _lines_together(
    emitter: Emitter, plans: Sequence[MemberPlan], rows: Sequence[Axis], work: Dim, many: int
) -> Stmt | None:
    """So many neighbours along the row before the last one at once, with lanes along the last one, and what may be made of each; None where
    more than that is made."""
    (first, *then), (*outer, beside, line), builder = plans, rows, emitter.builder
    env, storage = dict(emitter.env), dict(builder.storage)
    part, start, begun = overlapping(beside, many)
    own = Axis(beside.name, many)
    emitter.bind(beside, binary("add", start, own))
    for plan in plans:
        plan.inner = [own, line]
    made = emitter.with_epilogue(first, then[0], []) if then else emitter.member(first, None)
    for plan in plans:
        plan.inner = []
    emitter.env, builder.storage = env, storage
    if made is None:
        return None
    return parallel_rows(builder, [*outer, part], dim_mul(work, shape_size((many, line.extent))), bound([begun], made))


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
        # Of sums down few columns, steps beside each other fill lanes; lanes along columns that are not near are collected one by one.
        loops = [p for p in plans if p.reduced or p.inner]
        sums = [p.reduced[-1] for p in loops if p.reduced]
        stages = [p.member.kept.stage for p in loops]
        scans = any(isinstance(stage, Scan) for stage in stages)
        dear = len(sums) < len(loops) and not scans and any(map(is_computed, stages))
        going = [(p.reduced or p.inner)[-1] for p in loops] if dear else sums
        long = any(not isinstance(axis.extent, int) or axis.extent >= lanes for axis in going)
        down = len(going) == len(loops) and all(may_be_few(last.extent, axis.extent, dear) for axis in going)
        beside = all(lie_beside(indices, found.polys, last, axis) for axis in going)
        few = min(lanes, builder.lanes(("float32",)))
        filled = last.extent * _PART_FILLED >= few and all(
            _fills_less(axis.extent, last.extent, indices, found, rows) or _lie_across(indices, found, axis, last)
            for axis in sums
        )
        if not (filled and sums) and (not (long and beside) or (_is_near(last.extent) and not down)):
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
        elif plan.reduced and plan.inner and iteration_count(plan.inner[-1:]) >= lanes:
            # Sums beside each other, as many as lanes: those that lie along memory are best made so.
            line = plan.inner[-1]
            steps = [(indices.coefficient(p, line), indices.coefficient(p, last)) for p in found.polys]
            votes -= sum(own in _NEIGHBOURS and row not in (0, *_NEIGHBOURS) for own, row in steps)
        for poly in found.polys:
            along_axis, along_row = indices.coefficient(poly, axis), indices.coefficient(poly, last)
            if along_axis == 0 or along_row == 0:
                across |= along_row in _NEIGHBOURS
                continue  # the same for all lanes one way or the other
            undecided = False
            if along_row in _NEIGHBOURS:
                votes += 1
            elif along_axis in _NEIGHBOURS:
                # What all of the other rows read is loaded once for them.
                shared = len(rows) > 1 and _is_shared(indices, poly, rows)
                short = isinstance(axis.extent, int) and axis.extent * (1 if shared else 2) <= lanes
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
    return votes > 0 or (undecided and across)


def _fills_less(extent: Dim, row: int, indices: Indices, found: Accesses, rows: Sequence[Axis]) -> bool:
    """Whether an axis is known to be shorter than the last of the rows, or no longer where the other rows read the same."""
    if not isinstance(extent, int):
        return False
    apart = (p for p in found.polys if indices.coefficient(p, rows[-1]) not in (0, *_NEIGHBOURS))
    return extent < row or (extent == row and all(_is_shared(indices, p, rows) for p in apart))


def _is_shared(indices: Indices, poly: Dim, rows: Sequence[Axis]) -> bool:
    """Whether all rows but the last read the same places."""
    return all(indices.coefficient(poly, row) == 0 for row in rows[:-1])


def _lie_across(indices: Indices, found: Accesses, axis: Axis, row: Axis) -> bool:
    """Whether what differs from row to row lies beside each other there, and apart along an axis."""
    steps = [(indices.coefficient(p, row), indices.coefficient(p, axis)) for p in found.polys]
    return all(across in _NEIGHBOURS and along not in _NEIGHBOURS for across, along in steps if across != 0)


def _is_near(step: Dim | None) -> bool:
    """Whether lanes of a step are loaded about as fast as neighbours."""
    return isinstance(step, int) and abs(step) <= _NEAR
