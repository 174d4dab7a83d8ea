"""Elementwise nests: every member has the same axes and reads the others in place.

All axes that every access traverses together become one (a chain on whole tensors is one flat loop); an axis that an index divides is
split so that the division disappears. The last axis runs in vector lanes, the others outside, in parallel where there is enough work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relay.ir.dim import Dim, ceil_div, dim_mul, shape_size
from relay.loop.ir import LetScalar, Stmt, Store
from relay.plan.build import (
    PARALLEL_COST, Accesses, Builder, Space, accesses, extent_of, parallel, parallel_rows, seq, serial, vectorized,
)  # fmt: skip
from relay.plan.expand import Env, cost
from relay.plan.graph import loads, tensor_key
from relay.plan.nests import Member, Nest
from relay.te.scalar import Axis, Scalar, binary, minimum
from relay.te.tensor import stage_bodies

# Elements of one chunk of a flat loop at least: a few pages, so that chunks do not share cache lines to speak of.
_BLOCK = 4096


def elementwise(builder: Builder, nest: Nest) -> Stmt:
    """The loops of an elementwise nest."""
    rows = list(nest.members[-1].rows)
    aliases = {
        own: row for m in nest.members for own, row in zip(m.rows, rows, strict=True) if own is not row
    }
    space = Space([rows], {})

    def evaluate(env: Env) -> Accesses:
        values, stores = _evaluate(builder, nest.members, aliases, env)
        return accesses(builder.indices, [v for v, _ in values], stores)

    space.normalise(builder, evaluate)
    axes = space.groups[0]
    values, _ = _evaluate(builder, nest.members, aliases, space.env)
    work = sum(max(1, cost(v)) for v, _ in values)

    def innermost(env: Env) -> Stmt:
        return _statements(builder, nest.members, aliases, env)

    if not axes:
        return innermost(space.env)
    if len(axes) == 1:
        return _flat(builder, axes[0], work, space.env, innermost)
    last = axes[-1]
    outer, between = _parallel_axes(axes[:-1])
    body = serial(between, vectorized(last, extent_of(last.extent), innermost(space.env)))
    inside = dim_mul(shape_size(tuple(a.extent for a in (*between, last))), work)
    return parallel_rows(builder, outer, inside, body)


def _parallel_axes(axes: Sequence[Axis]) -> tuple[list[Axis], list[Axis]]:
    """The outer axes to run in parallel: as few as give a good number of iterations; the others stay serial loops."""
    iterations = 1
    for n, axis in enumerate(axes):
        iterations *= axis.extent if isinstance(axis.extent, int) else 1
        if iterations >= 8:
            return list(axes[: n + 1]), list(axes[n + 1 :])
    return list(axes), []


def _flat(builder: Builder, axis: Axis, work: int, env: Env, innermost: Callable[[Env], Stmt]) -> Stmt:
    extent = axis.extent
    if isinstance(extent, int) and extent * work <= PARALLEL_COST:
        return vectorized(axis, extent_of(extent), innermost(env))
    size = max(_BLOCK, PARALLEL_COST // work // _BLOCK * _BLOCK)
    blocks: Dim = ceil_div(extent, size)
    lane = Axis("i", size)

    def block(b: Axis) -> Stmt:
        start = binary("mul", b, size)
        position = binary("add", start, lane)
        inner = {k: builder.evaluate([v], {axis: position})[0] for k, v in env.items()}
        inner[axis] = position
        count = minimum(size, binary("sub", extent_of(extent), start))
        return vectorized(lane, count, innermost(inner))

    return parallel(builder, blocks, size * work, block, "block")


def _bodies(member: Member) -> tuple[Scalar, ...]:
    return stage_bodies(member.kept.stage)


def _frame(member: Member, aliases: Env, env: Env) -> dict[Axis, Scalar]:
    """What a member's own axes are: a row of the nest, which is an expression of the loop variables."""
    out: dict[Axis, Scalar] = dict(env)
    for own in member.rows:
        row = aliases.get(own, own)
        assert isinstance(row, Axis)
        out[own] = env.get(row, row)
    return out


def _evaluate(
    builder: Builder, members: Sequence[Member], aliases: Env, env: Env
) -> tuple[list[tuple[Scalar, str]], list[Scalar]]:
    """All values (with their dtypes) and the flat positions of all stores, members' values standing for their loads."""
    values: list[tuple[Scalar, str]] = []
    stores: list[Scalar] = []
    builder.values.clear()
    for member in members:
        frame = _frame(member, aliases, env)
        for n, value in enumerate(builder.evaluate(_bodies(member), frame)):
            values.append((value, value.dtype))
            key = (id(member.kept.origin), n)
            where = builder.storage.get(key)
            if where is not None:
                index = [frame.get(a, a) for a in member.kept.stage.axes]
                stores.append(builder.flat(where, index))
            builder.values[key] = Axis("e", 1, value.dtype)
    builder.values.clear()
    return values, stores


def _statements(builder: Builder, members: Sequence[Member], aliases: Env, env: Env) -> Stmt:
    """The straight-line code of one element: values that another member reads are named."""
    read = _read_inside(members)
    parts: list[tuple[Axis | None, Scalar, Store | None]] = []
    builder.values.clear()
    for member in members:
        frame = _frame(member, aliases, env)
        for n, value in enumerate(builder.evaluate(_bodies(member), frame)):
            key = (id(member.kept.origin), n)
            where = builder.storage.get(key)
            name: Axis | None = None
            if key in read:
                name = Axis(builder.fresh("e"), 1, value.dtype)
                builder.values[key] = name
            store = None
            if where is not None:
                index = [frame.get(a, a) for a in member.kept.stage.axes]
                store = Store(where.buffer, (builder.flat(where, index),), name if name is not None else value)
            parts.append((name, value, store))
    builder.values.clear()
    after: list[Stmt] = []
    for name, value, store in reversed(parts):
        if store is not None:
            after.insert(0, store)
        if name is not None:
            after = [LetScalar(name, value, seq(after))]
    return seq(after)


def _read_inside(members: Sequence[Member]) -> set[tuple[int, int]]:
    own = {id(m.kept.origin) for m in members}
    out: set[tuple[int, int]] = set()
    for member in members:
        for body in _bodies(member):
            for load in loads(body):
                key = tensor_key(load.source)  # type: ignore[arg-type]
                if key[0] in own:
                    out.add(key)
    return out
