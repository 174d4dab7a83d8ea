"""Sums and squared distances of a row in one pass.

A variance reads its row twice: once for the mean, once for the squared distances from it. Beside a number that is near the
row's mean already, one pass makes both sums, and what the mean differs from that number is put right at the end:

    sum (x - m)^2 = sum (x - k)^2 - (m - k) (2 sum (x - k) - n (m - k))

This loses digits only as far as k is far from the mean, beside the deviation. Here k is the mean of a part of the row (Chan,
Golub and LeVeque, Algorithms for computing the sample variance, 1983): of a share p of the elements, that factor is at most 1 / p,
whatever the elements are, because a part that lies far off contributes to the deviation itself. The part's mean is made of distances
from the row's first element, so it is exact for a row of one number; and the distance of m from k is taken from the sums, not
from m, which is rounded. A row of one number has no deviation then, however great the number; in two passes the rounding of its
mean, squared, can be infinite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from relay.ir.dim import Dim, ceil_div, dim_min, dim_mul
from relay.ir.record import record
from relay.loop.ahead import where_far
from relay.loop.ir import Buffer, For, LetScalar, Stmt, Store
from relay.loop.walk import same
from relay.plan.build import allocate, seq
from relay.plan.row_members import Emitter
from relay.plan.row_parts import MemberPlan, Reductions
from relay.te.scalar import (
    Axis,
    Binary,
    Const,
    Load,
    Named,
    Reduce,
    Scalar,
    binary,
    cast,
    compare,
    extent_of,
    select,
    unary,
    walk,
)

# The share of a row whose mean stands for its mean, and rows that are too short to gain by it.
_SHARE, _SHORTEST = 16, 256


def row_steps(emitter: Emitter, plans: Sequence[MemberPlan]) -> list[Stmt]:
    """What a row goes through, with sums and squared distances of the same elements made in one pass, and what follows sums of windows made
    with them."""
    groups = emitter.groups(plans)
    out: list[Stmt] = []
    at = 0
    while at < len(groups):
        if at + 1 < len(groups) and len(groups[at]) == len(groups[at + 1]) == 1:
            both = emitter.with_epilogue(groups[at][0], groups[at + 1][0], [p for g in groups[at + 2 :] for p in g])
            if both is not None:
                out.append(both)
                at += 2
                continue
        found = moments(emitter, groups[at:])
        out.append(emitter.step(groups[at]) if found is None else _one_pass(emitter, found))
        at += 1 if found is None else len(found.plans)
    return out


@record(frozen=True, slots=True, eq=False)
class Moments:
    """``total`` is a sum, ``spread`` the sum of squared distances of the same elements from ``centre``, which is known after the
    members ``between`` them."""

    total: MemberPlan
    between: list[MemberPlan]
    spread: MemberPlan
    centre: Scalar

    @property
    def plans(self) -> list[MemberPlan]:
        """The members, in the order of their steps."""
        return [self.total, *self.between, self.spread]


def moments(emitter: Emitter, groups: Sequence[list[MemberPlan]]) -> Moments | None:
    """Whether a sum and what follows it are the moments of a row: the first of some steps."""
    (total, *others), between = groups[0], list[MemberPlan]()
    element = None if others else _summed(emitter, total, axis := Axis("j", 1))
    if element is None:
        return None
    for group in groups[1:]:
        if len(group) > 1 or group[0].inner:
            return None
        (plan,) = group
        if not plan.member.kept.is_reduction:
            between.append(plan)
            continue
        square = _summed(emitter, plan, axis)
        centre = _centre(square, element, axis) if square is not None and _as_long(emitter, total, plan) else None
        return None if centre is None else Moments(total, between, plan, centre)
    return None


def _summed(emitter: Emitter, plan: MemberPlan, axis: Axis) -> Scalar | None:
    """What a member sums at ``axis``, if that is all it does in one loop over a long row of floats."""
    along = emitter.along(plan)
    if (
        along is None
        or not plan.member.kept.is_reduction
        or (isinstance(along.extent, int) and along.extent < _SHORTEST)
    ):
        return None
    values = emitter.values_at(plan, axis)
    if len(values) != 1 or not isinstance(value := values[0], Reduce) or value.kind != "sum":
        return None
    exact = value.dtype == value.body.dtype and value.dtype in ("float32", "float64")
    return value.body if exact else None


def _as_long(emitter: Emitter, a: MemberPlan, b: MemberPlan) -> bool:
    first, second = emitter.along(a), emitter.along(b)
    return first is not None and second is not None and first.extent == second.extent


def _centre(square: Scalar, element: Scalar, axis: Axis) -> Scalar | None:
    """The number whose distance from the element is squared."""
    if not isinstance(square, Binary) or square.op != "mul" or not same(square.a, square.b):
        return None
    distance = square.a
    if not isinstance(distance, Binary) or distance.op != "sub":
        return None
    for centre, other in ((distance.b, distance.a), (distance.a, distance.b)):
        if same(other, element) and not any(n is axis for n in walk(centre)):
            return centre
    return None


def _one_pass(emitter: Emitter, found: Moments) -> Stmt:
    along = emitter.along(found.total)
    assert along is not None
    every = Axis("j", along.extent)
    parts, element = summed_once(emitter, found, every)
    loop = where_far(For(every, extent_of(every.extent), element, "vectorized"), emitter.builder.target)
    return allocate(parts.buffers, seq([*parts.starts, loop, *parts.ends]))


def summed_once(emitter: Emitter, found: Moments, every: Axis) -> tuple[Reductions, Stmt]:
    """What the one pass does with the element at ``every``, and what around its loop; the first elements of the row are read before it."""
    along = emitter.along(found.total)
    assert along is not None
    builder, zero, dtype = emitter.builder, Const(0, "int64"), found.centre.dtype
    one, few = Axis("one", dim_min(along.extent, 1)), Axis("few", _part(along.extent, builder.lanes([dtype])))
    names = ("origin", "part", "near", "first", "second")
    origin, part, near, first, second = sums = [Buffer(builder.fresh(n), (1,), dtype, "register") for n in names]
    start, apart, off = (Named(builder.fresh(n), dtype) for n in ("start", "apart", "off"))

    def now(buffer: Buffer) -> Scalar:
        return Load(buffer, (zero,), dtype)

    def put(buffer: Buffer, value: Scalar) -> Stmt:
        return Store(buffer, (zero,), value)

    def more(buffer: Buffer, value: Scalar) -> Stmt:
        return put(buffer, binary("add", now(buffer), value))

    def at(axis: Axis) -> Scalar:
        element = _summed(emitter, found.total, axis)
        assert element is not None
        return element

    def count(axis: Axis) -> Scalar:
        return Const(float(axis.extent), dtype) if isinstance(axis.extent, int) else cast(extent_of(axis.extent), dtype)

    def over(value: Scalar, axis: Axis) -> Scalar:
        if isinstance(axis.extent, int):
            return binary("mul", value, Const(1.0 / axis.extent, dtype))
        return binary("div", value, count(axis))

    mean = binary("add", now(origin), over(now(part), few))
    guess = select(compare("lt", unary("abs", mean), Const(math.inf, dtype)), mean, Const(0.0, dtype))
    distance = binary("sub", at(every), now(near))
    element = LetScalar(apart, distance, seq([more(first, apart), more(second, binary("mul", apart, apart))]))
    total = binary("add", binary("mul", now(near), count(every)), now(first))
    # A mean is rounded to a number; what it differs from ``near`` by is known better than that: from the sum of distances.
    given = binary("sub", found.centre, now(near))
    precise = binary("add", over(now(first), every), binary("sub", found.centre, binary("div", total, count(every))))
    precise = select(compare("lt", unary("abs", total), Const(math.inf, dtype)), precise, given)
    twice = binary("sub", binary("mul", now(first), Const(2.0, dtype)), binary("mul", off, count(every)))
    right = binary("max", binary("sub", now(second), binary("mul", off, twice)), Const(0.0, dtype))
    # Beyond the greatest number the squares are infinite, unless an element was: then there is no distance.
    beyond = binary("sub", now(second), binary("sub", now(first), now(first)))
    spread = select(compare("lt", now(second), Const(math.inf, dtype)), right, beyond)
    if not isinstance(along.extent, int):  # a row of nothing has no centre, and no distance from it
        spread = select(compare("lt", zero, extent_of(along.extent)), spread, Const(0.0, dtype))
    ahead = For(few, extent_of(few.extent), more(part, binary("sub", at(few), start)), "vectorized")
    starts = [
        *(put(b, Const(0.0, dtype)) for b in sums),
        For(one, extent_of(one.extent), put(origin, at(one))),
        LetScalar(start, now(origin), ahead),
        put(near, guess),
    ]
    ends = [
        emitter.store(found.total, 0, total),
        *(emitter.member(p, None) for p in found.between),
        LetScalar(off, precise, emitter.store(found.spread, 0, spread)),
    ]
    return Reductions(sums, starts, [], [], ends), element


def _part(extent: Dim, lanes: int) -> Dim:
    """So many elements are a share of the row, in whole vectors."""
    return dim_min(extent, dim_mul(ceil_div(extent, _SHARE * lanes), lanes))
