"""Elementwise nests: every member has the same axes and reads the others in place.

All axes that every access traverses together become one (a chain on whole tensors is one flat loop); an axis that an
index divides is split so that the division disappears. The last axis runs in vector lanes, the others outside, in
parallel where there is enough work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from types import MappingProxyType

from relay.ir.dim import Dim, ceil_div, dim_mul, known_equal, shape_size
from relay.ir.dim_total import dim_typical
from relay.ir.inequality import is_count
from relay.ir.types import dtype_bits
from relay.loop.ahead import operands_ahead, results_ahead
from relay.loop.ir import Branch, Buffer, For, LetScalar, Stmt, Store, Transpose
from relay.loop.walk import statements
from relay.plan.build import Builder, allocate, seq, serial, vectorized
from relay.plan.expand import Env, cost, is_dear
from relay.plan.graph import loads, tensor_key
from relay.plan.narrow_lines import narrow_lines
from relay.plan.nests import Member, Nest
from relay.plan.parallel import PARALLEL_COST, parallel, parallel_lines, parallel_rows
from relay.plan.space import Accesses, Space, accesses
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Const,
    Load,
    Named,
    Scalar,
    always_read,
    binary,
    compare,
    conjunction,
    extent_of,
    minimum,
    transform,
    walk,
)
from relay.te.tensor import stage_bodies

Frames = Callable[[Member], dict[Axis, Scalar]]
Values = Mapping[tuple[int, int], Scalar]
NO_VALUES: Values = MappingProxyType({})

# Elements of one chunk of a flat loop at least: a few pages, so that chunks do not share cache lines to speak of.
_BLOCK = 4096
# Elements of so many bits are looked up in registers.
_LOOKED_UP = 32
# Lanes are loaded and stored about as fast as neighbours from places up to so many elements apart.
_NEAR = 4
# Iterations of known axes that stay inside of those of unknown extent.
_INSIDE = 16
# Rows and columns of a block that is turned.
_TURNED = 64


def elementwise(builder: Builder, nest: Nest) -> Stmt:
    """The loops of an elementwise nest. Its last axis is split where elements repeat as often as a size says (``x[j // n]``), unless that
    turns out to be a few times: then vectors are looked up in vectors."""
    sizes: list[Dim] = []
    split = _elementwise(builder, nest, sizes)
    if not sizes:
        return split
    fewest = builder.lanes(nest.members[-1].kept.dtypes) // 2
    few = conjunction(compare("lt", extent_of(size), fewest) for size in dict.fromkeys(sizes))
    return Branch(few, _elementwise(builder, nest, None), split)


def _elementwise(builder: Builder, nest: Nest, sizes: list[Dim] | None) -> Stmt:
    """The loops with the last axis split by ``sizes`` where it goes by them, or not (None)."""
    rows = list(nest.members[-1].rows)
    original = list(rows)
    bits = {dtype_bits(d) for m in nest.members for d in m.kept.dtypes}
    looks_up = builder.target.mask_registers and bits == {_LOOKED_UP}
    fewest = builder.lanes(nest.members[-1].kept.dtypes) // 2 if looks_up else 0
    space = Space([rows], {}, fewest=fewest, whole_by_sizes=sizes is None, sizes=[] if sizes is None else sizes)

    def evaluate(env: Env) -> Accesses:
        return accesses(builder.indices, *pointwise_values(builder, nest.members, row_frames(original, env)))

    def innermost(env: Env) -> Stmt:
        return pointwise_statements(builder, nest.members, row_frames(original, env))

    space.normalise(builder, evaluate)
    axes = space.groups[0]
    values, _ = pointwise_values(builder, nest.members, row_frames(original, space.env))
    work = sum(max(1, cost(v)) for v in values)
    if not axes:
        return innermost(space.env)
    dear = any(n.dtype != "int64" and is_dear(n) for v in values for n in walk(v))

    def looped(lane: Axis, extent: Scalar, env: Env) -> Stmt:
        """A vector loop. Between so much arithmetic a processor does not look far enough ahead to what is read and written."""
        return vector(lane, extent, innermost(env))

    def vector(lane: Axis, extent: Scalar, body: Stmt) -> Stmt:
        asked: list[Stmt] = []
        if dear:
            asked += operands_ahead(body, lane, builder.target)
            asked += results_ahead([s for s in statements(body) if isinstance(s, Store)], builder.target)
        return vectorized(lane, extent, seq([*asked, body]))

    if len(axes) == 1:
        return _flat(builder, axes[0], work, space.env, looped)
    turned = _turned(builder, nest, axes, row_frames(original, space.env))
    if turned is not None:
        return turned
    found = evaluate(space.env)
    lanes = builder.lanes(d for m in nest.members for d in m.kept.dtypes)
    together = narrow_lines(builder, axes, found, lambda: innermost(space.env), work, vector, lanes, dear)
    if together is None:
        return _by_lines(builder, nest, axes, found, work, space.env, looped)
    short, made = together
    if short is None:
        return made
    return Branch(short, made, _by_lines(builder, nest, axes, found, work, space.env, looped))


def _by_lines(
    builder: Builder,
    nest: Nest,
    axes: Sequence[Axis],
    found: Accesses,
    work: int,
    env: Env,
    looped: Callable[[Axis, Scalar, Env], Stmt],
) -> Stmt:
    """Vectors along the last axis, or across it where it has next to no elements."""
    last = axes[-1]
    if _is_across(builder, found, axes, nest):
        *others, line, few = axes

        def each(lane: Axis, extent: Scalar, env: Env) -> Stmt:
            """Every second (to fourth) element at a time."""
            return For(few, extent_of(few.extent), looped(lane, extent, env), "unrolled")

        if not others:
            return _flat(builder, line, work * dim_typical(few.extent), env, each)
        outer, between = _parallel_axes(others)
        inside = dim_mul(shape_size(tuple(a.extent for a in (*between, line, few))), work)
        return parallel_lines(builder, outer, inside, serial(between, each(line, extent_of(line.extent), env)))
    outer, between = _parallel_axes(axes[:-1])
    body = serial(between, looped(last, extent_of(last.extent), env))
    inside = dim_mul(shape_size(tuple(a.extent for a in (*between, last))), work)
    return parallel_lines(builder, outer, inside, body)


def _is_across(builder: Builder, found: Accesses, axes: Sequence[Axis], nest: Nest) -> bool:
    """Whether vectors go along the last axis but one: the last one has so few elements that hardly a lane would be used, and along the
    other elements lie near each other."""
    line, last = axes[-2], axes[-1]
    lanes = builder.lanes(d for m in nest.members for d in m.kept.dtypes)
    if (
        not builder.target.mask_registers
        or not isinstance(last.extent, int)
        or last.extent > _NEAR
        or 2 * last.extent > lanes
    ):
        return False
    if isinstance(line.extent, int) and 2 * line.extent < lanes:
        return False
    steps = [builder.indices.coefficient(place, line) for place in found.polys]
    return all(isinstance(step, int) and abs(step) <= _NEAR for step in steps)


def _turned(builder: Builder, nest: Nest, axes: Sequence[Axis], frames: Frames) -> Stmt | None:
    """A nest whose operands run along memory on another axis than its result does: by blocks. A copy is turned in registers on
    its way to the result, other operands are turned into a block on the stack first."""
    values, stores = pointwise_values(builder, nest.members, frames)
    if len(values) != 1 or len(stores) != 1:
        return None
    (value,), (place,) = values, stores
    where, indices, last = builder.storage[id(nest.members[0].kept.origin), 0].buffer, builder.indices, axes[-1]
    reads = [*always_read(value), *_may_be_read(value, indices)]
    found = [(load, *how) for load in reads if (how := _turning(indices, load, axes)) is not None]
    written = indices.poly(place)
    if not found or indices.coefficient(written, last) != 1:
        return None
    along = found[0][1]
    pitch = indices.coefficient(written, along)
    if pitch is None or _may_be_negative(pitch, axes):
        return None
    starts: dict[Axis, Scalar] = {}
    counts: list[Scalar] = []
    outer = [a for a in axes if a is not last and a is not along]
    for axis in (last, along):
        block = Axis(axis.name + "b", ceil_div(axis.extent, _TURNED))
        outer.append(block)
        at: Scalar = Const(0, "int64") if block.extent == 1 else block
        starts[axis] = binary("mul", at, _TURNED)
        counts.append(minimum(_TURNED, binary("sub", extent_of(axis.extent), starts[axis])))
    work = 2 * max(1, cost(value)) * _TURNED * _TURNED

    def turn(load: Load, stride: Dim, target: Buffer, to: Scalar, step: Scalar) -> Stmt:
        (start,) = builder.evaluate(load.indices, starts)
        assert isinstance(load.source, Buffer)
        return Transpose(target, to, step, load.source, start, indices.scalar(stride), counts[0], counts[1])

    if value is found[0][0] and value.dtype == where.dtype:
        (to,) = builder.evaluate([place], starts)
        return parallel_rows(builder, outer, work, turn(value, found[0][2], where, to, indices.scalar(pitch)))
    few = builder.lanes([where.dtype])
    if any(isinstance(a.extent, int) and a.extent < few for a in (last, along)):
        return None  # too little to be turned in registers
    row, lane, zero = Axis("j", _TURNED), Axis("i", _TURNED), Const(0, "int64")
    blocks: list[Buffer] = []
    steps: list[Stmt] = []
    held: dict[int, Scalar] = {}
    turned: dict[tuple[object, Dim], Buffer] = {}  # by what is read, however often
    for load, axis, stride in found:
        if axis is along:
            what = load.source, indices.poly(load.indices[0])
            if what not in turned:
                turned[what] = Buffer(builder.fresh("turned"), (_TURNED * _TURNED,), load.dtype, "stack")
                blocks.append(turned[what])
                steps.append(turn(load, stride, turned[what], zero, Const(_TURNED, "int64")))
            held[id(load)] = Load(turned[what], (binary("add", binary("mul", row, _TURNED), lane),), load.dtype)
    inside = {last: binary("add", starts[last], lane), along: binary("add", starts[along], row)}
    # Those that are turned are kept apart: the others are read where they are.
    names = {key: Named(f"x{n}", load.dtype) for n, (key, load) in enumerate(held.items())}
    rest = _replaced(value, names)
    changed, at_place = builder.evaluate([rest, place], inside)
    changed = _replaced(changed, {id(name): held[key] for key, name in names.items()})
    body = For(row, counts[1], vectorized(lane, counts[0], Store(where, (at_place,), changed)))
    return parallel_rows(builder, outer, work, allocate(blocks, seq([*steps, body])))


def _replaced(root: Scalar, by: Mapping[int, Scalar]) -> Scalar:
    """An expression with some of its nodes exchanged, by their ids."""
    memo = dict(by)
    return transform(root, lambda n: n, memo)


def _may_be_read(root: Scalar, indices: Indices) -> list[Load]:
    """The loads that only some elements take, which all could: there is an element at every place."""
    always = {id(n) for n in always_read(root)}
    reads = [n for n in walk(root) if isinstance(n, Load)]
    looked_up = {id(n) for load in reads for i in load.indices for n in walk(i)}

    def may(load: Load) -> bool:
        if id(load) in always or id(load) in looked_up or not isinstance(load.source, Buffer):
            return False
        return indices.within(indices.poly(load.indices[0]), shape_size(load.source.shape))

    return [load for load in reads if may(load)]


def _may_be_negative(step: Dim, axes: Sequence[Axis]) -> bool:
    """Whether a step between elements may be one back. The size of axes (``n - 1``) is not, wherever there are elements."""
    if is_count(step):
        return False
    some = (found for n in range(1, len(axes) + 1) for found in combinations(axes, n))
    return not any(known_equal(step, shape_size(tuple(a.extent for a in found))) for found in some)


def _turning(indices: Indices, load: Load, axes: Sequence[Axis]) -> tuple[Axis, Dim] | None:
    """The axis on which an operand runs along memory and its stride on the last one, where that is another."""
    if not isinstance(load.source, Buffer) or dtype_bits(load.dtype) < 8:
        return None
    if any(isinstance(n, Load) for n in walk(load.indices[0])):
        return None
    read = indices.poly(load.indices[0])
    stride = indices.coefficient(read, axes[-1])
    along = [a for a in axes[:-1] if indices.coefficient(read, a) == 1]
    if stride is None or stride in (0, 1) or not along or _may_be_negative(stride, axes):
        return None
    return along[-1], stride


def _parallel_axes(axes: Sequence[Axis]) -> tuple[list[Axis], list[Axis]]:
    """The outer axes to run in parallel: as few as give a good number of iterations; the others stay serial loops, as do a few
    iterations behind an axis of unknown extent: to find out where each of them is takes a division for each axis."""
    iterations, count = 1, len(axes)
    for n, axis in enumerate(axes):
        iterations *= axis.extent if isinstance(axis.extent, int) else 1
        if iterations >= 8:
            count = n + 1
            break
    inside = 1
    while count > 1 and any(not isinstance(a.extent, int) for a in axes[: count - 1]):
        extent = axes[count - 1].extent
        if not isinstance(extent, int) or inside * extent > _INSIDE:
            break
        inside, count = inside * extent, count - 1
    return list(axes[:count]), list(axes[count:])


def _flat(builder: Builder, axis: Axis, work: int, env: Env, looped: Callable[[Axis, Scalar, Env], Stmt]) -> Stmt:
    extent = axis.extent
    if isinstance(extent, int) and extent * work <= PARALLEL_COST:
        return looped(axis, extent_of(extent), env)
    size = max(_BLOCK, PARALLEL_COST // work // _BLOCK * _BLOCK)
    blocks: Dim = ceil_div(extent, size)
    lane = Axis("i", size)

    def block(b: Axis) -> Stmt:
        start = binary("mul", b, size)
        position = binary("add", start, lane)
        inner = {k: builder.evaluate([v], {axis: position})[0] for k, v in env.items()}
        inner[axis] = position
        count = minimum(size, binary("sub", extent_of(extent), start))
        return looped(lane, count, inner)

    return parallel(builder, blocks, size * work, block, "block")


def row_frames(nest_rows: Sequence[Axis], env: Env) -> Frames:
    """What a member's own axes are: the rows of the nest, which are expressions of the loop variables."""

    def frame(member: Member) -> dict[Axis, Scalar]:
        own = {mine: env.get(row, row) for mine, row in zip(member.rows, nest_rows, strict=True)}
        return {**env, **own}

    return frame


def pointwise_values(
    builder: Builder, members: Sequence[Member], frames: Frames, given: Values = NO_VALUES
) -> tuple[list[Scalar], list[Scalar]]:
    """The values of all members' elements and the flat positions of all stores. ``given`` are members' values already
    known."""
    values: list[Scalar] = []
    stores: list[Scalar] = []
    for member, key, value, frame in _elements(builder, members, frames, given):
        values.append(value)
        where = builder.storage.get(key)
        if where is not None:
            stores.append(builder.flat(where, [frame.get(a, a) for a in member.kept.stage.axes]))
        builder.values[key] = Named("e", value.dtype)
    builder.values.clear()
    return values, stores


def pointwise_statements(
    builder: Builder, members: Sequence[Member], frames: Frames, given: Values = NO_VALUES
) -> Stmt:
    """The straight-line code of one element: values that another member reads are named."""
    read = _read_inside(members)
    parts: list[tuple[Axis | None, Scalar, Store | None]] = []
    for member, key, value, frame in _elements(builder, members, frames, given):
        where = builder.storage.get(key)
        name: Axis | None = None
        if key in read:
            name = Named(builder.fresh("e"), value.dtype)
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


def _elements(
    builder: Builder, members: Sequence[Member], frames: Frames, given: Values
) -> Iterator[tuple[Member, tuple[int, int], Scalar, dict[Axis, Scalar]]]:
    """Each output of each member: its key, its value and the frame; a value is evaluated after those before it were
    named."""
    builder.values.clear()
    for member in members:
        frame = frames(member)
        known = given.get((id(member.kept.origin), 0))
        values = [known] if known is not None else builder.evaluate(stage_bodies(member.kept.stage), frame)
        for n, value in enumerate(values):
            yield member, (id(member.kept.origin), n), value, frame


def _read_inside(members: Sequence[Member]) -> set[tuple[int, int]]:
    own = {id(m.kept.origin) for m in members}
    out: set[tuple[int, int]] = set()
    for member in members:
        for body in stage_bodies(member.kept.stage):
            for load in loads(body):
                key = tensor_key(load.source)  # type: ignore[arg-type]
                if key[0] in own:
                    out.add(key)
    return out
