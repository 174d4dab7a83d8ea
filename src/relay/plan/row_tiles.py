"""Sums of which several are in registers at once, so that what they read in common is read once.

*Along lines*: the gradient of a depthwise convolution by its weights has a few elements, each the sum over all images and lines of
two operands. Line by line every sum would end across the lanes; here the lanes are added up once, at the end, and what
neighbouring elements (the taps of a window) read again is read once for all of them.

*Across lines*: a grouped or depthwise convolution itself has its lanes along the result's lines. Sums of several lines and channels
share an image's elements and the weights: how many of which, says what is read for each multiply-add.

*Across rows*: with the channels innermost lanes are channels. Sums of neighbouring places share the weights, and the elements that
their windows have in common.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from relay.ir.dim import ceil_div, dim_floordiv, dim_mul, dim_sub
from relay.ir.record import record
from relay.loop.ir import Branch, Buffer, For, Stmt, Store
from relay.plan.build import allocate, bound, ceiling, seq, serial, vectorized
from relay.plan.reduction import accumulator, combine, initial
from relay.plan.row_parts import Lanes, held_lanes, overlapping
from relay.plan.sum_steps import (
    MOST_AXES,
    MOST_TAPS,
    SHARED,
    in_order,
    read_each,
    reads_of,
    steps_and_tap,
    steps_of_sums,
)
from relay.te.scalar import (
    Axis,
    Const,
    Load,
    Reduce,
    ReduceKind,
    Scalar,
    binary,
    cast,
    compare,
    conjunction,
    extent_of,
    minimum,
    select,
)

if TYPE_CHECKING:
    from relay.plan.epilogues import Epilogue
    from relay.plan.row_members import Emitter
    from relay.plan.row_parts import MemberPlan

# Lines, or parts of them, of so many vectors at most.
_VECTORS = 4
# Registers that hold no sum along lines: what is read and multiplied.
_OTHERS = 6
# Terms of a sum along lines of unknown length at most: longer sums go along memory.
MOST_TERMS = 256


def sums_along_lines(emitter: Emitter, plan: MemberPlan) -> Stmt | None:
    """The sums of a member with their lanes along the last of several reduced axes, the line, or along a part of it at a time; None where
    these are other reductions, lines are shorter than half a vector, or so long that to begin and end one is little, and registers do not
    hold several sums of a part."""
    value = _one_reduction(emitter, plan, "sum")
    if value is None or len(plan.reduced) < 2:
        return None
    *outer, line = plan.reduced
    lanes = emitter.builder.lanes([accumulator(value)])
    parts: list[Axis] = []
    place: dict[Axis, Scalar] = {}
    if isinstance(line.extent, int):
        size = _part_of_line(emitter, plan, value, line, line.extent, lanes)
        if size is None:
            return None
        if size == line.extent:
            across = Lanes(line, Const(size, "int64"), size)
        else:
            part, lane = Axis(line.name, line.extent // size), Axis("lane", size)
            across, place[line] = (
                Lanes(lane, Const(size, "int64"), size),
                binary("add", binary("mul", part, size), lane),
            )
            parts.append(part)
    elif not emitter.builder.target.masked or not plan.inner or known_count(plan.inner) > MOST_TERMS:
        return None
    else:
        across, part, place[line] = held_lanes(line, lanes)
        parts.append(part)
    first = _first_together(emitter, plan, across.size, lanes)
    sums = _Sums(emitter, plan, across, added_up=True)
    together = plan.inner[first:]
    for at in product(*(range(a.extent) for a in together if isinstance(a.extent, int))):
        total = sums.add({**place, **{a: Const(n, "int64") for a, n in zip(together, at, strict=True)}})
        zero, lane = Const(0, "int64"), Axis("j", across.size)
        whole = Buffer(f"{total.name}w", (1,), total.dtype, "register")
        here = Load(whole, (zero,), whole.dtype)
        added = Store(whole, (zero,), combine("sum", here, Load(total, (lane,), total.dtype)))
        sums.buffers.append(whole)
        sums.ends += [
            Store(whole, (zero,), initial("sum", whole.dtype)),
            vectorized(lane, extent_of(lane.extent), added),
        ]
        sums.ends.append(sums.stored(here))
    return serial(plan.inner[:first], sums.loops([*outer, *parts], sums.ends))


def _first_together(emitter: Emitter, plan: MemberPlan, size: int, lanes: int) -> int:
    """From which of the inner axes on registers hold all sums, with so many elements of a line each."""
    most = (emitter.builder.target.vector_registers - _OTHERS) // -(-size // lanes)
    first = len(plan.inner)
    while first and known_count(plan.inner[first - 1 :]) <= most:
        first -= 1
    return first


def _part_of_line(emitter: Emitter, plan: MemberPlan, value: Reduce, line: Axis, length: int, lanes: int) -> int | None:
    """How much of a line of known length is gone through at once: all of it, or whole vectors that divide it, of whichever registers hold
    the sums that read least together."""
    if 2 * length < lanes:
        return None

    def together(size: int) -> dict[Axis, int]:
        axes = plan.inner[_first_together(emitter, plan, size, lanes) :]
        return {a: a.extent for a in axes if isinstance(a.extent, int)}

    def read(size: int) -> tuple[float, int]:
        return read_each(emitter, value, together(size), {}, -(-size // lanes), line), -size

    whole = [length] if length <= _VECTORS * lanes else []
    parts = [n * lanes for n in range(1, _VECTORS + 1) if length % (n * lanes) == 0]
    best = min([*whole, *(n for n in parts if prod(together(n).values()) > 1)], key=read, default=None)
    # A whole line is begun once for all of its vectors.
    return length if whole and best is not None and read(best)[0] > SHARED * read(length)[0] else best


def sums_across_lines(
    emitter: Emitter, plan: MemberPlan, then: Epilogue | None = None, short: bool = False
) -> Stmt | None:
    """The sums (or extremes) of a member with their lanes along the last of the inner axes, the line, and ``then`` what is made of each.
    None where these are other reductions, or a line fills little of a vector, or is not made of parts of some vectors, or of unknown
    length and sums are long, unless these are known to be ``short`` when it runs."""
    value = _one_reduction(emitter, plan, "sum", "max", "min")
    *others, line = plan.inner
    if value is None or not plan.reduced or line.extent == 0:
        return None
    lanes = emitter.builder.lanes([accumulator(value)])
    if not isinstance(line.extent, int):
        if not emitter.builder.target.masked or not (short or known_count(plan.reduced) <= MOST_TERMS):
            return None
        across, part, position = held_lanes(line, lanes)
        steps, tap = steps_and_tap(emitter, plan, value, others, 1, line)
        # Where masks have registers of their own they cost less than lines shorter than a vector would, which go one by one there.
        if steps and not emitter.short and not emitter.builder.target.mask_registers:
            return _in_whole_blocks(emitter, plan, others, steps, lanes, tap, line, then)
        if steps:
            return _in_blocks(emitter, plan, others, steps, across, {line: position}, [part], tap, line, then=then)
        return _in_wide_blocks(emitter, plan, value, others, line, lanes, then)
    most = min(_VECTORS * lanes, line.extent)
    size = max(n for n in range(1, most + 1) if line.extent % n == 0)
    if (4 * size < min(lanes, _words(emitter))) if size == line.extent else (size < 2 * lanes):
        return None
    part, lane = Axis(line.name, line.extent // size), Axis("lane", size)
    position = binary("add", binary("mul", _variable(part), size), lane)
    across = Lanes(lane, Const(size, "int64"), size)
    steps, tap = steps_and_tap(emitter, plan, value, others, -(-size // lanes), line)
    return _in_blocks(emitter, plan, others, steps, across, {line: position}, [part], tap, line, then=then)


def _in_whole_blocks(
    emitter: Emitter,
    plan: MemberPlan,
    others: Sequence[Axis],
    steps: Mapping[Axis, int],
    size: int,
    tap: Axis | None,
    line: Axis,
    then: Epilogue | None,
) -> Stmt:
    """The sums along a line of unknown length, of several lines at once, without masks and without sums that are left over: the last
    vector of a line, and the last lines, are those that end where line and lines do. Where there are fewer than that, line by line."""
    lane, left = Axis("lane", size), _unknown(steps)
    part, start, begin = overlapping(line, size)
    whole, place = Lanes(lane, Const(size, "int64"), size), {line: binary("add", start, lane)}
    blocks = _in_blocks(emitter, plan, others, steps, whole, place, [part], tap, line, begin, then)
    across, part, position = held_lanes(line, size)
    alone = {a: n for a, n in steps.items() if a is not left}
    few = _in_blocks(emitter, plan, others, alone, across, {line: position}, [part], tap, line, then=then)
    enough = [compare("ge", extent_of(line.extent), size)]
    if left is not None:
        enough.append(compare("ge", extent_of(left.extent), steps[left]))
    return Branch(conjunction(enough), blocks, few)


def _in_wide_blocks(
    emitter: Emitter,
    plan: MemberPlan,
    value: Reduce,
    others: Sequence[Axis],
    line: Axis,
    lanes: int,
    then: Epilogue | None,
) -> Stmt:
    """The sums along a line of unknown length: some vectors at once, which do not wait for each other, and what is left over one by one."""
    size = _VECTORS * lanes
    part, lane = Axis(line.name, dim_floordiv(line.extent, size)), Axis("lane", size)
    wide = Lanes(lane, Const(size, "int64"), size)
    first = dim_mul(part.extent, size)
    left = Axis(line.name, dim_sub(line.extent, first))
    across, block, behind = held_lanes(left, lanes)
    bodies = []
    for vectors, each, at, loop in (
        (_VECTORS, wide, binary("add", binary("mul", part, size), lane), part),
        (1, across, binary("add", extent_of(first), behind), block),
    ):
        _, tap = steps_and_tap(emitter, plan, value, [], vectors, line)
        bodies.append(_in_blocks(emitter, plan, others, {}, each, {line: at}, [loop], tap, line, then=then))
    return seq(bodies)


def rows_at_once(emitter: Emitter, plan: MemberPlan, rows: Sequence[Axis]) -> dict[Axis, int]:
    """For how many rows of one element each, along which axes, the sums of a member are best made at once, with lanes along the last axis:
    none where these are other reductions, or such sums have little in common."""
    value = _one_reduction(emitter, plan, "sum", "max", "min")
    *outer, line = rows
    known = [a for a in outer if isinstance(a.extent, int) and a.extent > 1][-MOST_AXES:]
    lanes = 0 if value is None else emitter.builder.lanes([accumulator(value)])
    if value is None or not plan.reduced or plan.inner or not known or not isinstance(line.extent, int):
        return {}
    if not min(lanes, _words(emitter)) <= 2 * line.extent <= 2 * _VECTORS * lanes:
        return {}
    vectors = ceil_div(line.extent, lanes)
    assert isinstance(vectors, int)
    steps, tap = steps_and_tap(emitter, plan, value, known, vectors, line)
    taps = {tap: tap.extent} if tap is not None and isinstance(tap.extent, int) else {}
    alone = read_each(emitter, value, {}, {}, vectors, line)
    return steps if read_each(emitter, value, steps, taps, vectors, line) <= SHARED * alone else {}


def lines_at_once(emitter: Emitter, plan: MemberPlan, rows: Sequence[Axis]) -> int:
    """How many neighbours along the row before the last one are best summed at once, with lanes along the last one, where it is not known
    how many there are: none where these are other reductions, or such sums have little in common."""
    value, target = _one_reduction(emitter, plan, "sum", "max", "min"), emitter.builder.target
    if value is None or len(rows) < 2 or not plan.reduced or plan.inner or not target.masked:
        return 0
    *_, beside, line = rows
    if isinstance(line.extent, int) or isinstance(beside.extent, int) or known_count(plan.reduced) > MOST_TERMS:
        return 0
    steps, tap = steps_and_tap(emitter, plan, value, [beside], 1, line)
    taps = {tap: tap.extent} if tap is not None and isinstance(tap.extent, int) else {}
    alone = read_each(emitter, value, {}, {}, 1, line)
    return steps.get(beside, 0) if read_each(emitter, value, steps, taps, 1, line) <= SHARED * alone else 0


def reductions_across_rows(emitter: Emitter, plan: MemberPlan, lanes: Lanes) -> Stmt | None:
    """The elements of a member for a block of rows, several of them at once, lanes across a vector of the rows at a time; None where these
    are other reductions, or what such elements have in common is little."""
    value, builder = _one_reduction(emitter, plan, "sum", "max", "min"), emitter.builder
    if value is None or not plan.inner or not plan.reduced or lanes.vector is not None:
        return None
    size = builder.lanes([accumulator(value)])
    whole = lanes.multiple % size == 0
    if lanes.size < size or not (whole or builder.target.masked):
        return None
    tap = plan.reduced[-1]
    taps = tap.extent if isinstance(tap.extent, int) and tap.extent <= MOST_TAPS else 1
    steps = steps_of_sums(emitter, value, plan.inner, 1, unrolled={tap: taps})
    together = read_each(emitter, value, steps, {tap: taps}, 1, None)
    if together > SHARED * reads_of(emitter, value, {}):
        return None
    if lanes.held:
        return _in_blocks(emitter, plan, plan.inner, steps, lanes, {}, [], tap if taps > 1 else None)
    vector, lane = Axis("vector", ceil_div(lanes.size, size)), Axis("lane", size)
    start = binary("mul", _variable(vector), size)
    count = Const(size, "int64") if whole else binary("sub", lanes.count, start)
    mine, position = Lanes(lane, count, size, held=not whole), binary("add", start, lane)
    env, storage = emitter.env, dict(builder.storage)
    emitter.bind(lanes.variable, position)
    own = builder.indices.poly(lanes.variable)
    for key, where in storage.items():
        if where.offset == own:  # what is passed on from member to member
            builder.storage[key] = replace(where, offset=builder.indices.poly(position))
    body = _in_blocks(emitter, plan, plan.inner, steps, mine, {}, [], tap if taps > 1 else None)
    emitter.env = env
    builder.storage.update(storage)
    return body if vector.extent == 1 else For(vector, ceiling(lanes.count, Const(size, "int64")), body)


def _in_blocks(
    emitter: Emitter,
    plan: MemberPlan,
    others: Sequence[Axis],
    steps: Mapping[Axis, int],
    lanes: Lanes,
    fixed: Mapping[Axis, Scalar],
    parts: Sequence[Axis],
    unrolled: Axis | None = None,
    line: Axis | None = None,
    begin: tuple[Axis, Scalar] | None = None,
    then: Epilogue | None = None,
) -> Stmt:
    """The elements of a member, ``steps`` of them along each of the ``others`` of its inner axes at once, for each of some ``parts``; where
    ``fixed`` says where they are on the remaining axes. Lanes are along a ``line``, or across rows. What is left over of an axis of
    unknown length goes one by one; of a short one its last element is made several times. ``begin``: where a part begins, as is bound in
    its loop; then there are as many elements as steps, too, and the last of them are made again in place of what is left over. ``then``:
    what is made of each."""
    last: dict[Axis, Scalar] = {}

    def blocks(
        steps: Mapping[Axis, int],
        first: Mapping[Axis, Scalar],
        counts: Mapping[Axis, Scalar],
        overlapped: Mapping[Axis, tuple[Axis, Scalar, tuple[Axis, Scalar]]],
    ) -> Stmt:
        axes = [
            overlapped[a][0] if a in overlapped else Axis(a.name, ceil_div(a.extent, steps.get(a, 1))) for a in others
        ]
        sums = _Sums(emitter, plan, lanes, then=then)
        ways = list(product(*(range(steps.get(a, 1)) for a in others)))
        order: list[tuple[int, int]] | None = None
        if line is not None:
            value = _one_reduction(emitter, plan, "sum", "max", "min")
            assert value is not None
            order = in_order(emitter, value, others, ways, unrolled, line)
        for at in ways:
            place: dict[Axis, Scalar] = dict(fixed)
            for a, block, n in zip(others, axes, at, strict=True):
                here = binary("mul", _variable(block), steps.get(a, 1)) if a not in overlapped else overlapped[a][1]
                here = binary("add", here, n)
                here = binary("add", first[a], here) if a in first else here
                place[a] = minimum(here, last[a]) if a in last else here
            total = sums.add(place)
            sums.ends.append(sums.stored(Load(total, (lanes.variable,), total.dtype)))
        body = sums.loops(plan.reduced, [lanes.loop(seq(sums.ends))], unrolled, order)
        body = serial(parts, body if begin is None else bound([begin], body))
        for a, block in reversed(list(zip(others, axes, strict=True))):
            if a in overlapped:
                body = bound([overlapped[a][2]], body)
            body = For(block, counts[a], body) if a in counts else serial([block], body)
        return body

    left = _unknown(steps)
    if left is None:
        return blocks(steps, {}, {}, {})
    extent, many = extent_of(left.extent), steps[left]
    if begin is not None:
        return blocks(steps, {}, {}, {left: overlapping(left, many)})
    if emitter.short:
        last[left] = binary("sub", extent, 1)
        return blocks(steps, {}, {left: ceiling(extent, Const(many, "int64"))}, {})
    whole = binary("floordiv", extent, many)
    done = binary("mul", whole, many)
    alone = {a: n for a, n in steps.items() if a is not left}
    rest = blocks(alone, {left: done}, {left: binary("sub", extent, done)}, {})
    return seq([blocks(steps, {}, {left: whole}, {}), rest])


def _words(emitter: Emitter) -> int:
    """As many elements of 32 bits as a vector has: that many narrower ones are worth one, too."""
    return emitter.builder.lanes(("float32",))


def _unknown(steps: Mapping[Axis, int]) -> Axis | None:
    """The axis of unknown length along which several elements are made at once."""
    return next((a for a in steps if not isinstance(a.extent, int)), None)


def _one_reduction(emitter: Emitter, plan: MemberPlan, *kinds: ReduceKind) -> Reduce | None:
    """The reduction of one of these kinds that a member is, where it is one of something."""
    (value, *more) = emitter.values(plan)
    if any(a.extent == 0 for a in plan.reduced):
        return None
    return value if isinstance(value, Reduce) and value.kind in kinds and not more else None


@record(slots=True, eq=False)
class _Sums:
    """Sums with a register for each of some lanes. Where lanes are ``added_up`` in the end, nothing may be in those past the last.
    ``then``: what is made of each."""

    emitter: Emitter
    plan: MemberPlan
    lanes: Lanes
    added_up: bool = False
    buffers: list[Buffer] = field(default_factory=list)
    starts: list[Stmt] = field(default_factory=list)
    updates: list[Stmt] = field(default_factory=list)
    ends: list[Stmt] = field(default_factory=list)
    place: Mapping[Axis, Scalar] = field(default_factory=dict)
    then: Epilogue | None = None

    def add(self, place: Mapping[Axis, Scalar]) -> Buffer:
        """One more sum, for the element at a place; where it is summed."""
        emitter, before = self.emitter, self.emitter.env
        self.place = place
        for axis, at in place.items():
            emitter.bind(axis, at)
        (value,) = emitter.values(self.plan)
        emitter.env = before
        assert isinstance(value, Reduce)
        total = Buffer(emitter.builder.fresh("acc"), (self.lanes.size,), accumulator(value), "register")
        lane = self.lanes.variable
        now = Load(total, (lane,), total.dtype)
        self.buffers.append(total)
        self.starts.append(Store(total, (lane,), initial(value.kind, total.dtype)))
        more = combine(value.kind, now, cast(value.body, total.dtype))
        if self.added_up and self.lanes.held:
            more = select(self.lanes.inside, more, now)
        self.updates.append(Store(total, (lane,), more))
        return total

    def stored(self, value: Scalar) -> Stmt:
        """The sum that was added last, where the result has it."""
        emitter, before = self.emitter, self.emitter.env
        for axis, at in self.place.items():
            emitter.bind(axis, at)
        value = cast(value, self.plan.member.kept.dtypes[0])
        then = self.then
        out = emitter.store(self.plan, 0, value) if then is None else then.stored(emitter, self.place, value)
        emitter.env = before
        return out

    def loops(
        self,
        reduced: Sequence[Axis],
        ends: Sequence[Stmt],
        unrolled: Axis | None = None,
        order: Sequence[tuple[int, int]] | None = None,
    ) -> Stmt:
        """All sums over the reduced axes (and the lanes), and then ``ends``. ``unrolled``: one of these axes, if it is written out;
        ``order``: the terms of the sums, by their numbers and those of its steps, in this order."""
        if order is not None:
            steps = self.lanes.loop(seq([self._term(n, unrolled, step) for n, step in order]))
        else:
            steps = self.lanes.loop(seq(self.updates))
            if unrolled is not None:
                steps = For(unrolled, extent_of(unrolled.extent), steps, "unrolled")
        steps = serial([a for a in reduced if a is not unrolled], steps)
        return allocate(self.buffers, seq([self.lanes.loop(seq(self.starts)), steps, *ends]))

    def _term(self, number: int, axis: Axis | None, step: int) -> Stmt:
        """What is added to a sum at a step of an axis."""
        update = self.updates[number]
        if axis is None or not isinstance(update, Store):
            return update
        (value,) = self.emitter.builder.evaluate([update.value], {axis: Const(step, "int64")})
        return replace(update, value=value)


def _variable(axis: Axis) -> Scalar:
    return Const(0, "int64") if axis.extent == 1 else axis


def known_count(axes: Sequence[Axis]) -> int:
    """The number of elements of some axes; more than any number where it is not known."""
    return prod(a.extent if isinstance(a.extent, int) else 1 << 40 for a in axes)
