"""Where the members of a row nest keep what they pass on: memory of a row, of several rows, or of a lane for each, or a result's memory
until that is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relay.ir.dim import Dim, dim_bounds, dim_mul, known_equal, shape_size
from relay.ir.types import dtype_bits
from relay.loop.ir import Buffer
from relay.loop.workspace import buffer_bytes
from relay.plan.build import Builder, Storage, row_major, temporary
from relay.plan.graph import loads, tensor_key
from relay.plan.row_parts import MemberPlan
from relay.plan.stages import Kept
from relay.te.scalar import Axis
from relay.te.tensor import Scan, stage_bodies


def keys_of(kept: Kept) -> list[tuple[int, int]]:
    """What a stage's outputs are called in `Builder.storage`."""
    return [(id(kept.origin), n) for n in range(len(kept.dtypes))]


def temporaries(builder: Builder, plans: Sequence[MemberPlan], in_results: bool = True) -> list[Buffer]:
    """Give what has no memory yet (what is read inside this nest alone) a temporary over its inner axes, or, unless not
    ``in_results``, the memory of a result until that is written."""
    temps: list[Buffer] = []
    for number, plan in enumerate(plans):
        stage = plan.member.kept.stage
        for n, (key, dtype) in enumerate(zip(keys_of(plan.member.kept), plan.member.kept.dtypes, strict=True)):
            if key in builder.storage:
                continue
            if in_results and plan.inner and (place := _in_result(builder, plans, number, n)) is not None:
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


def repeated(
    builder: Builder, plans: Sequence[MemberPlan], temps: Sequence[Buffer], row: Axis, count: int
) -> list[Buffer]:
    """Temporaries with a place for each of several rows."""
    at = builder.indices.poly(row)
    out: list[Buffer] = []
    for key, where in _stored(builder, plans, temps):
        (size,) = where.buffer.shape
        buffer = temporary(where.buffer.name, dim_mul(size, count), where.buffer.dtype)
        out.append(buffer)
        builder.storage[key] = Storage(buffer, where.strides, dim_mul(at, size))
    return out


def widened(
    builder: Builder,
    plans: Sequence[MemberPlan],
    temps: Sequence[Buffer],
    lane: Axis,
    size: int,
    held: bool = False,
    most: int | None = None,
    room: int = 0,
) -> list[Buffer]:
    """Temporaries with an element per lane; ``held``: those with nothing else are registers. ``most``: so many elements are those of
    unknown size at most; ``room``: so many elements have those with nothing else at least."""
    offset = builder.indices.poly(lane)
    wide: list[Buffer] = []
    for key, where in _stored(builder, plans, temps):
        (own,) = where.buffer.shape
        count = dim_mul(own if most is None or isinstance(own, int) else most, size)
        buffer = temporary(where.buffer.name, count, where.buffer.dtype)
        if count == size and room > size:
            buffer = temporary(where.buffer.name, room, where.buffer.dtype)
        elif held and count == size:
            buffer = replace(buffer, scope="register")
        elif buffer.scope == "register":
            buffer = replace(buffer, scope="stack")
        wide.append(buffer)
        builder.storage[key] = Storage(buffer, tuple(dim_mul(s, size) for s in where.strides), offset)
    return wide


def _stored(
    builder: Builder, plans: Sequence[MemberPlan], temps: Sequence[Buffer]
) -> list[tuple[tuple[int, int], Storage]]:
    """The outputs that are in temporaries, and where."""
    mine = {id(t) for t in temps}
    keys = (key for plan in plans for key in keys_of(plan.member.kept))
    return [(key, where) for key in keys if id((where := builder.storage[key]).buffer) in mine]
