"""Reductions whose lanes run across rows: an accumulator for each lane, reduced axes serial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING

from relay.ir.dim import Dim, known_equal
from relay.loop.ir import Branch, Buffer, For, LetScalar, Scope, Seq, Stmt, Store
from relay.loop.workspace import buffer_bytes
from relay.plan.build import allocate, seq, serial
from relay.plan.expand import is_dear
from relay.plan.graph import loads
from relay.plan.narrow_columns import Columns, Element, Steps, abreast, may_be_few
from relay.plan.reduction import accumulator, combine, initial, position_update
from relay.plan.row_parts import Lanes, MemberPlan, Reductions, counted, finds_position, position_dtype, targets
from relay.te.scalar import (
    Axis,
    Const,
    Load,
    Named,
    Reduce,
    Scalar,
    binary,
    cast,
    extent_of,
    select,
    transform,
    walk,
)
from relay.te.tensor import Scan

if TYPE_CHECKING:
    from relay.plan.row_members import Emitter

# Steps of a reduction across rows that are taken at once; and of so many lanes and more where what is read is half of the last cache or
# more: memory is asked for in as many places at once. (Of 16,384 rows of 768 sums take 0.89 of the time, greatest elements 0.82;
# where the last cache has what is read, up to 1.06, of 100,000 rows of 64 1.10.)
_STEPS_AT_ONCE, _FAR_STEPS, _WIDE = 4, 8, 512
# So many steps of something dear are not written out: with 3 to 5 exponentials in short rows that takes 0.9 of the time, with 8 and more as
# long as one by one, and compiling a softmax of ten classes takes twice as long.
_DEAR_STEPS = 7


def members_across(emitter: Emitter, plans: Sequence[MemberPlan], lanes: Lanes) -> list[Stmt]:
    """All members for a block of rows, lanes across them. Reductions over the same axes that read the same elements, and of which none
    needs another, share their loops; so do elements and reductions of them, which find in a register what would have to come from memory
    once more: a softmax's exponentials and their sum."""
    parts: list[list[MemberPlan]] = []
    axes: dict[tuple[int, Dim], Axis] = {}
    elements = {id(plan): _elements(emitter, plan, axes) for plan in plans if _is_alone(plan)}
    for plan in plans:
        sibling = _sibling(emitter, parts, plan, elements)
        if sibling is None:
            parts.append([plan])
        else:
            sibling.append(plan)
    return [_part(emitter, p, lanes) for p in parts]


def _part(emitter: Emitter, plans: Sequence[MemberPlan], lanes: Lanes) -> Stmt:
    """The loops of members that share them, or of one."""
    if len(plans) > 1:
        return reduce_lanes(emitter, plans, lanes)
    (plan,) = plans
    few = _few_columns(emitter, plans, [], lanes, _is_dear(emitter, plan)) if _is_elements(plan) else None
    return few[1] if few is not None else emitter.member(plan, lanes)


def _is_alone(plan: MemberPlan) -> bool:
    """Whether a member is a reduction with one element for each lane."""
    return plan.member.kept.is_reduction and not plan.inner


def _is_elements(plan: MemberPlan) -> bool:
    """Whether a member is what is computed of each element by itself."""
    kept = plan.member.kept
    return bool(plan.inner) and not kept.is_reduction and not isinstance(kept.stage, Scan)


def _steps(plan: MemberPlan) -> list[Axis]:
    """The axes that a member goes through for each lane."""
    return plan.reduced if plan.member.kept.is_reduction else plan.inner


def _sibling(
    emitter: Emitter,
    parts: Sequence[list[MemberPlan]],
    plan: MemberPlan,
    elements: Mapping[int, AbstractSet[tuple[int, tuple[Dim, ...]]]],
) -> list[MemberPlan] | None:
    """Reductions over the same axes before which a reduction may as well be done, and of which one reads what it reads: loops over others
    would only have more operands to go through at once, and sums that the first-level cache does not hold. ``elements``: what a step of
    each reduction reads."""
    if not _is_alone(plan):
        return None
    reads, writes = emitter.reads(plan), {id(t.buffer) for t in targets(emitter.builder, plan)}
    for part in reversed(parts):
        first = part[0]
        if _is_elements(first) and part is parts[-1] and _at_hand(emitter, part, plan):
            return part
        if _is_alone(first) and len(first.reduced) == len(plan.reduced):
            same = all(known_equal(a.extent, b.extent) for a, b in zip(first.reduced, plan.reduced, strict=True))
            free = same and all(reads.isdisjoint(_writes(emitter, p)) for p in part)
            if free and any(not elements[id(plan)].isdisjoint(elements[id(p)]) for p in part):
                return part
        if any(_writes(emitter, p) & (reads | writes) or emitter.reads(p) & writes for p in part):
            return None
    return None


def _at_hand(emitter: Emitter, part: Sequence[MemberPlan], plan: MemberPlan) -> bool:
    """Whether a reduction reads, of what the members of a part make, elements at hand alone, and some of them."""
    (first, *others), mine = part, _steps(plan)
    if any(len(_steps(p)) != len(mine) for p in part) or any(_writes(emitter, p) & emitter.reads(plan) for p in others):
        return False
    before, indices, steps = emitter.env, emitter.builder.indices, _steps(first)
    if not all(known_equal(a.extent, b.extent) for a, b in zip(steps, mine, strict=True)):
        return False
    for own, axis in zip(mine, steps, strict=True):
        emitter.bind(own, axis)
    made = {id(where.buffer): indices.poly(emitter.builder.flat(where, at)) for where, at in emitter.places(first)}
    found = [load for value in emitter.values(plan) for load in loads(value) if id(load.source) in made]
    emitter.env = before
    return bool(found) and all(indices.poly(load.indices[0]) == made[id(load.source)] for load in found)


def _elements(
    emitter: Emitter, plan: MemberPlan, axes: dict[tuple[int, Dim], Axis]
) -> set[tuple[int, tuple[Dim, ...]]]:
    """The elements that a step of a reduction reads, by the id of their buffer and their place, in terms of ``axes`` that all reductions
    of its sizes have in common."""
    before, indices = emitter.env, emitter.builder.indices
    for n, own in enumerate(plan.reduced):
        emitter.bind(own, axes.setdefault((n, own.extent), Axis("k", own.extent)))
    found = {
        (id(load.source), tuple(indices.poly(i) for i in load.indices))
        for value in emitter.values(plan)
        for load in loads(value)
    }
    emitter.env = before
    return found


def _writes(emitter: Emitter, plan: MemberPlan) -> set[int]:
    return {id(t.buffer) for t in targets(emitter.builder, plan)}


def reduce_lanes(emitter: Emitter, plans: Sequence[MemberPlan], lanes: Lanes) -> Stmt:
    """A block of elements of reductions over the same axes: an accumulator per lane, all reduced axes serial. Several steps of
    a long axis are taken at once, in order, so that accumulators come from the cache once for all of them. The first of the members may
    be what is computed of each element by itself: where that is dear, accumulators are little beside it."""
    at = (lanes.variable,)
    reduced, before = _steps(plans[0]), emitter.env
    for plan in plans[1:]:
        for own, axis in zip(plan.reduced, reduced, strict=True):
            emitter.bind(own, axis)
    elements = [plan for plan in plans if _is_elements(plan)]
    sums = plans[len(elements) :]
    bound, each = emitter.env, [_reductions(emitter, plan, lanes) for plan in sums]
    whole = Reductions()
    for part in each:
        whole.add(part)
    last = reduced[-1] if reduced else None
    dear = any(_is_dear(emitter, plan, lanes.variable) for plan in sums)
    one_by_one = emitter.short or any(_is_dear(emitter, plan) for plan in elements)

    def across(body: list[Stmt]) -> Stmt:
        return lanes.loop(seq(body))

    def updates() -> list[Stmt]:
        names: dict[int, Named] = {}
        made: list[tuple[Named, Scalar, Stmt]] = []
        for plan in elements:
            for n, (value, where) in enumerate(zip(emitter.values(plan), targets(emitter.builder, plan), strict=True)):
                name = Named(emitter.builder.fresh("e"), value.dtype)
                made.append((name, value, emitter.store(plan, n, name)))
                names[id(where.buffer)] = name
        steps: list[Stmt] = []
        for plan, part in zip(sums, each, strict=True):
            steps += _updates(emitter, plan, part.buffers, at, names)
        for name, value, store in reversed(made):
            steps = [LetScalar(name, value, seq([store, *steps]))]
        return steps

    def at_once(values: Sequence[Scalar]) -> list[Stmt]:
        """The steps of the last axis at these places, in order."""
        out: list[Stmt] = []
        for value in values:
            assert last is not None
            emitter.bind(last, value)
            out += updates()
            emitter.env = bound
        return out

    if last is None:
        steps = across(updates())
    elif (
        isinstance(last.extent, int) and last.extent < (_DEAR_STEPS if dear else 4 * _STEPS_AT_ONCE) and not one_by_one
    ):
        every = at_once([Const(n, "int64") for n in range(last.extent)])
        steps = serial(reduced[:-1], across(every))
    elif one_by_one or dear:
        step = Axis(last.name, last.extent)
        steps = serial([*reduced[:-1], step], across(at_once([step])))
    else:
        extent, many = extent_of(last.extent), _FAR_STEPS if _is_far(emitter, plans, lanes) else _STEPS_AT_ONCE
        groups = binary("floordiv", extent, many)
        group, single = Axis(last.name + "g", last.extent), Axis(last.name + "s", many)
        first, done = binary("mul", group, many), binary("mul", groups, many)
        loops: list[Stmt] = [
            For(group, groups, across(at_once([binary("add", first, n) for n in range(many)]))),
            For(single, binary("sub", extent, done), across(at_once([binary("add", done, single)]))),
        ]
        steps = serial(reduced[:-1], seq(loops))
    emitter.env = before
    if last is not None:
        few = _few_columns(emitter, plans, each, lanes, dear or one_by_one) if one_by_one or not elements else None
        if few is not None:
            cond, beside = few
            steps = beside if cond is None else Branch(cond, beside, steps)
    return allocate(whole.buffers, seq([across(whole.starts), steps, *lanes.each(whole.ends)]))


def _few_columns(
    emitter: Emitter, plans: Sequence[MemberPlan], parts: Sequence[Reductions], lanes: Lanes, dear: bool
) -> tuple[Scalar | None, Stmt] | None:
    """The loops of few columns, several steps beside each other, and on what condition; None: they lie otherwise. ``parts``: of those of
    the members that are reductions, the others before them are what is computed of each element by itself."""
    steps = _steps(plans[0])
    if lanes.row is None or not steps or not may_be_few(lanes.row[0].extent, steps[-1].extent, dear):
        return None
    if any(finds_position(plan) or (lanes.held and _is_elements(plan)) for plan in plans):
        return None
    before, builder = emitter.env, emitter.builder
    (start,) = builder.evaluate([before[lanes.row[0]]], {lanes.variable: Const(0, "int64")})
    emitter.env = dict(lanes.row[1])
    for plan in plans[1:]:
        for own, axis in zip(_steps(plan), steps, strict=True):
            emitter.bind(own, axis)
    elements: list[Element] = []
    names: dict[int, Named] = {}
    values: list[Reduce] = []
    for plan in plans:
        if _is_elements(plan):
            made = zip(emitter.values(plan), emitter.places(plan), strict=True)
            for value, (where, index) in made:
                name = Named(builder.fresh("e"), value.dtype)
                elements.append(Element(name, value, where.buffer, builder.flat(where, index)))
                names[id(where.buffer)] = name
            continue
        found = (v for v in emitter.values(plan) if isinstance(v, Reduce))
        values += [replace(v, body=_at_names(v.body, names)) for v in found]
    emitter.env = before
    *outer, step = steps
    columns = Columns(lanes.row[0], lanes.size, lanes.variable, lanes.count, lanes.loop, start)
    made_so = Steps(step, tuple(values), tuple(b for p in parts for b in p.buffers), tuple(elements))
    return abreast(builder, columns, made_so, outer)


def _at_names(value: Scalar, names: Mapping[int, Named]) -> Scalar:
    """What reads elements at hand, by the ids of the buffers that these are put into."""
    return transform(value, lambda n: names.get(id(n.source), n) if isinstance(n, Load) else n)


def _is_far(emitter: Emitter, plans: Sequence[MemberPlan], lanes: Lanes) -> bool:
    """Whether a wide block reads what is known to be far away."""
    read = {n.source for plan in plans for value in emitter.values(plan) for n in loads(value)}
    sizes = [buffer_bytes(b) for b in read if isinstance(b, Buffer) and b.scope == "operand"]
    return lanes.size >= _WIDE and 2 * sum(n for n in sizes if isinstance(n, int)) >= emitter.builder.target.l3_bytes


def _is_dear(emitter: Emitter, plan: MemberPlan, lane: Axis | None = None) -> bool:
    """Whether something dear is in an element; with a ``lane``, something that differs from lane to lane."""
    made = (n for value in emitter.values(plan) for n in walk(value) if n.dtype != "int64" and is_dear(n))
    return any(lane is None or lane in walk(n) for n in made)


def _updates(
    emitter: Emitter, plan: MemberPlan, buffers: Sequence[Buffer], at: tuple[Scalar, ...], names: Mapping[int, Named]
) -> list[Stmt]:
    """One step of each reduction of a member, that of the elements at hand, into the accumulators in order. ``names`` has what was just
    put into a buffer."""
    left, axis = iter(buffers), counted(plan)
    updates: list[Stmt] = []
    for value in emitter.values(plan):
        value = _at_names(value, names)
        if not isinstance(value, Reduce):
            continue
        acc = next(left)
        now, element = Load(acc, at, acc.dtype), cast(value.body, acc.dtype)
        if value.kind not in ("argmax", "argmin"):
            updates.append(Store(acc, at, combine(value.kind, now, element)))
            continue
        place = next(left)
        assert axis is not None
        position = emitter.env.get(axis, axis)
        flag, new = Named(emitter.builder.fresh("better"), "bool"), Named(emitter.builder.fresh("e"), acc.dtype)
        stores = (
            Store(place, at, select(flag, cast(position, place.dtype), Load(place, at, place.dtype))),
            Store(acc, at, select(flag, new, now)),
        )
        better = LetScalar(flag, position_update(value.kind, now, new), Seq(stores))
        updates.append(LetScalar(new, element, better))
    return updates


def _reductions(emitter: Emitter, plan: MemberPlan, lanes: Lanes) -> Reductions:
    """Accumulators for each lane, what is done with them before and at the end."""
    at, out = (lanes.variable,), Reductions()
    for n, value in enumerate(emitter.values(plan)):
        if not isinstance(value, Reduce):
            out.ends.append(emitter.store(plan, n, value))
            continue
        scope: Scope = "register" if lanes.held else "stack"
        acc = Buffer(emitter.builder.fresh("acc"), (lanes.room,), accumulator(value), scope)
        out.buffers.append(acc)
        now = Load(acc, at, acc.dtype)
        if value.kind in ("argmax", "argmin"):
            axis = counted(plan)
            assert axis is not None
            place = Buffer(emitter.builder.fresh("place"), (lanes.size,), position_dtype(axis, value.dtype), scope)
            out.buffers.append(place)
            out.starts += [
                Store(acc, at, initial("max" if value.kind == "argmax" else "min", acc.dtype)),
                Store(place, at, Const(0, place.dtype)),
            ]
            out.ends.append(emitter.store(plan, n, cast(Load(place, at, place.dtype), value.dtype)))
        else:
            out.starts.append(Store(acc, at, initial(value.kind, acc.dtype)))
            out.ends.append(emitter.store(plan, n, cast(now, value.dtype)))
    return out
