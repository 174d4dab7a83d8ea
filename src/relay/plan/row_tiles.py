"""Sums of which several are in registers at once, so that what they read in common is read once.

*Along lines*: the gradient of a depthwise convolution by its weights has a few elements, each the sum over all images and lines of
two operands. Line by line every sum would end across the lanes; here the lanes are added up once, at the end, and what
neighbouring elements (the taps of a window) read again is read once for all of them.

*Across lines*: a grouped or depthwise convolution itself has its lanes along the result's lines. Sums of several lines and channels
share an image's elements and the weights: how many of which, says what is read for each multiply-add.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import TYPE_CHECKING

from relay.ir.dim import Dim, ceil_div
from relay.loop.ir import Buffer, For, Stmt, Store
from relay.plan.build import allocate, seq, serial, vectorized
from relay.plan.reduction import accumulator, combine, initial
from relay.plan.row_parts import Lanes, held_lanes
from relay.plan.space import accesses
from relay.te.scalar import Axis, Const, Load, Reduce, Scalar, binary, cast, extent_of, select

if TYPE_CHECKING:
    from relay.plan.row_members import Emitter
    from relay.plan.row_parts import MemberPlan

# Lines, or parts of them, of so many vectors at most.
_VECTORS = 4
# Registers that hold no sum along lines: what is read and multiplied.
_OTHERS = 6
# So many sums at once along an axis at most, and along so many axes; along one of unknown length, what is left over of which has code of
# its own.
_MOST_STEPS, _MOST_AXES, _STEPS_OF_ANY = 16, 2, 8
# Terms of a sum along lines of unknown length at most: longer sums go along memory.
MOST_TERMS = 256


def sums_along_lines(emitter: Emitter, plan: MemberPlan) -> Stmt | None:
    """The sums of a member with their lanes along the last of several reduced axes, the line; None where these are other reductions,
    or lines are known to be long or shorter than half a vector."""
    value = _one_sum(emitter, plan)
    if value is None or len(plan.reduced) < 2:
        return None
    *outer, line = plan.reduced
    lanes = emitter.builder.lanes([accumulator(value)])
    parts: list[Axis] = []
    place: dict[Axis, Scalar] = {}
    if isinstance(line.extent, int):
        if not lanes <= 2 * line.extent <= 2 * _VECTORS * lanes:
            return None
        across = Lanes(line, Const(line.extent, "int64"), line.extent)
    elif not emitter.builder.target.masked or not plan.inner or known_count(plan.inner) > MOST_TERMS:
        return None
    else:
        across, part, place[line] = held_lanes(line, lanes)
        parts.append(part)
    most = (emitter.builder.target.vector_registers - _OTHERS) // -(-across.size // lanes)
    first = len(plan.inner)
    while first and known_count(plan.inner[first - 1 :]) <= most:
        first -= 1
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


def sums_across_lines(emitter: Emitter, plan: MemberPlan) -> Stmt | None:
    """The sums of a member with their lanes along the last of the inner axes, the line; None where these are other reductions, or a
    line is less than half a vector, or not made of parts of some vectors, or of unknown length and sums are long."""
    value = _one_sum(emitter, plan)
    line = plan.inner[-1]
    if value is None or not plan.reduced or line.extent == 0:
        return None
    lanes = emitter.builder.lanes([accumulator(value)])
    if not isinstance(line.extent, int):
        if not emitter.builder.target.masked or known_count(plan.reduced) > MOST_TERMS:
            return None
        across, part, position = held_lanes(line, lanes)
        return _in_blocks(emitter, plan, _steps(emitter, plan, value, 1), part, across, position)
    most = min(_VECTORS * lanes, line.extent)
    size = max(n for n in range(1, most + 1) if line.extent % n == 0)
    if 2 * size < (lanes if size == line.extent else _VECTORS * lanes):
        return None
    part, lane = Axis(line.name, line.extent // size), Axis("lane", size)
    position = binary("add", binary("mul", _variable(part), size), lane)
    across = Lanes(lane, Const(size, "int64"), size)
    return _in_blocks(emitter, plan, _steps(emitter, plan, value, -(-size // lanes)), part, across, position)


def _in_blocks(
    emitter: Emitter, plan: MemberPlan, steps: Mapping[Axis, int], part: Axis, lanes: Lanes, position: Scalar
) -> Stmt:
    """The sums of a member, ``steps`` of them along each inner axis at once, lanes across a part of the line, where they are at
    ``position``. What is left over of an axis of unknown length goes one by one."""
    *others, line = plan.inner

    def blocks(steps: Mapping[Axis, int], first: Mapping[Axis, Scalar], counts: Mapping[Axis, Scalar]) -> Stmt:
        axes = [Axis(a.name, ceil_div(a.extent, steps.get(a, 1))) for a in others]
        sums = _Sums(emitter, plan, lanes)
        for at in product(*(range(steps.get(a, 1)) for a in others)):
            place: dict[Axis, Scalar] = {}
            for a, block, n in zip(others, axes, at, strict=True):
                here = binary("add", binary("mul", _variable(block), steps.get(a, 1)), n)
                place[a] = binary("add", first[a], here) if a in first else here
            place[line] = position
            total = sums.add(place)
            sums.ends.append(sums.stored(Load(total, (lanes.variable,), total.dtype)))
        body = serial([part], sums.loops(plan.reduced, [lanes.loop(seq(sums.ends))]))
        for a, block in reversed(list(zip(others, axes, strict=True))):
            body = For(block, counts[a], body) if a in counts else serial([block], body)
        return body

    left = next((a for a in steps if not isinstance(a.extent, int)), None)
    if left is None:
        return blocks(steps, {}, {})
    extent, many = extent_of(left.extent), steps[left]
    whole = binary("floordiv", extent, many)
    done = binary("mul", whole, many)
    alone = {a: n for a, n in steps.items() if a is not left}
    rest = blocks(alone, {left: done}, {left: binary("sub", extent, done)})
    return seq([blocks(steps, {}, {left: whole}), rest])


def _one_sum(emitter: Emitter, plan: MemberPlan) -> Reduce | None:
    """The sum that a member is."""
    values = emitter.values(plan)
    (value, *more) = values
    return value if isinstance(value, Reduce) and value.kind == "sum" and not more else None


def _steps(emitter: Emitter, plan: MemberPlan, value: Reduce, vectors: int) -> dict[Axis, int]:
    """How many sums to make at once along which axes: those for which least is read, of all that registers hold."""
    *others, line = plan.inner
    indices, registers = emitter.builder.indices, emitter.builder.target.vector_registers
    polys: tuple[Dim, ...] = accesses(indices, [value.body], []).polys
    reads = [{a for a in plan.inner if indices.coefficient(p, a) != 0} for p in polys]
    candidates: list[dict[Axis, int]] = [{}]
    for axis in others:
        if isinstance(axis.extent, int):
            even = [n for n in range(2, _MOST_STEPS + 1) if axis.extent % n == 0]
        else:
            even = [_STEPS_OF_ANY] if axis is others[-1] else []
        candidates += [{**c, axis: n} for c in candidates if len(c) < _MOST_AXES for n in even]

    def read(steps: Mapping[Axis, int], along: bool) -> int:
        return sum(prod(steps.get(a, 1) for a in mine) for mine in reads if (line in mine) == along)

    def fits(steps: Mapping[Axis, int]) -> bool:
        return not steps or prod(steps.values()) * vectors + read(steps, False) + 2 <= registers

    def each(steps: Mapping[Axis, int]) -> tuple[float, int]:
        sums = prod(steps.values())
        return (read(steps, True) * vectors + read(steps, False)) / (sums * vectors), -sums

    return min(filter(fits, candidates), key=each)


@dataclass(slots=True, eq=False)
class _Sums:
    """Sums with a register for each of some lanes. Where lanes are ``added_up`` in the end, nothing may be in those past the last."""

    emitter: Emitter
    plan: MemberPlan
    lanes: Lanes
    added_up: bool = False
    buffers: list[Buffer] = field(default_factory=list)
    starts: list[Stmt] = field(default_factory=list)
    updates: list[Stmt] = field(default_factory=list)
    ends: list[Stmt] = field(default_factory=list)
    place: Mapping[Axis, Scalar] = field(default_factory=dict)

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
        self.starts.append(Store(total, (lane,), initial("sum", total.dtype)))
        more = combine("sum", now, cast(value.body, total.dtype))
        if self.added_up and self.lanes.held:
            more = select(self.lanes.inside, more, now)
        self.updates.append(Store(total, (lane,), more))
        return total

    def stored(self, value: Scalar) -> Stmt:
        """The sum that was added last, where the result has it."""
        emitter, before = self.emitter, self.emitter.env
        for axis, at in self.place.items():
            emitter.bind(axis, at)
        out = emitter.store(self.plan, 0, cast(value, self.plan.member.kept.dtypes[0]))
        emitter.env = before
        return out

    def loops(self, reduced: Sequence[Axis], ends: Sequence[Stmt]) -> Stmt:
        """All sums over the reduced axes (and the lanes), and then ``ends``."""
        steps = serial(reduced, self.lanes.loop(seq(self.updates)))
        return allocate(self.buffers, seq([self.lanes.loop(seq(self.starts)), steps, *ends]))


def _variable(axis: Axis) -> Scalar:
    return Const(0, "int64") if axis.extent == 1 else axis


def known_count(axes: Sequence[Axis]) -> int:
    """The number of elements of some axes; more than any number where it is not known."""
    return prod(a.extent if isinstance(a.extent, int) else 1 << 40 for a in axes)
