"""Stages that go by parts of an axis that all of them have: one loop around them, in place of one in each.

    s[b, i] = f(x[b, i]);  p[b, j] = sum(s[b, i] * w[i, j], i);  y[b, j] = g(p[b, j])

Stage by stage, all of ``s`` is written before any of it is read again, and so is ``p``; where these are larger than a cache, each goes to
memory and back. A batch of images, say, goes through all of such stages image by image, and what is between them is as large as one
image takes, and written again and again in the same place. Threads share out the parts; where there are fewer parts than threads, they
share out each stage of each part.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from relay.ir.dim import Dim, dim_add, dim_mul, known_equal, shape_size
from relay.ir.dim_total import dim_typical
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import WORKERS, Between, For, LetScalar, Stmt, between
from relay.plan.build import Builder, Storage, bound
from relay.plan.graph import TeGraph, loads
from relay.plan.nests import Nest
from relay.plan.product import Product
from relay.plan.stages import Kept
from relay.te.index import Indices
from relay.te.rewrite import result_of
from relay.te.scalar import Axis, Const, Load, Reduce, Scalar, binary, compare, extent_of, minimum, select, transform
from relay.te.tensor import Compute, Tensor, stage_bodies

# So often an element that products read in each part is multiplied there at least: fewer do not repay that it is read again.
_FEWEST = 24
# Parts for each thread, where not all have as many: the last ones wait for one part at most.
_ROUNDS = 4


@record(frozen=True, slots=True, eq=False)
class Parts:
    """``stages`` to run for one part after the other: each computes its elements where the axis that they share is in part number
    ``number`` of ``count``. ``before``: all others, which run before. ``stands_for``: which stage each was, by ids."""

    number: Axis
    count: Dim
    before: list[Kept]
    stages: list[Kept]
    stands_for: Mapping[int, int]

    def divided(self, stages: Sequence[Kept]) -> tuple[list[Kept], list[Kept]]:
        """Stages that run before, and those that are one of these or made of one."""
        mine = set(self.stands_for)
        before: list[Kept] = []
        inside: list[Kept] = []
        for kept in stages:
            if id(kept.origin) in mine or any(source in mine for source, _ in _reads(kept)):
                mine.add(id(kept.origin))
                inside.append(kept)
            else:
                before.append(kept)
        return before, inside

    def loop(self, body: Stmt) -> Stmt:
        """``body`` for each part: these are tasks, where threads have as many each, or some."""
        whole = extent_of(self.count)
        many, per, task, step = (Axis(name, self.count) for name in ("many", "per", "task", "step"))
        start = Between("start", self.count, low=0, high=(whole,))
        count = minimum(per, binary("sub", whole, start))
        run = bound(
            [between(start, binary("mul", task, per))],
            For(step, count, LetScalar(self.number, binary("add", start, step), body)),
        )
        even = compare("eq", binary("mod", whole, WORKERS), 0)
        enough = binary("or", even, compare("ge", whole, binary("mul", WORKERS, _ROUNDS)))
        there = [(many, select(enough, whole, Const(1, "int64"))), (per, select(enough, Const(1, "int64"), whole))]
        return bound(there, For(task, many, run, "parallel"))


@record(frozen=True, slots=True, eq=False)
class _Shared:
    """Stages that share an axis: which one it is of each, in the order of the stages."""

    axes: Mapping[int, int]
    stages: Sequence[Kept]

    def extent(self) -> Dim:
        first = self.stages[0]
        return first.stage.axes[self.axes[id(first.origin)]].extent


def in_outer_parts(
    builder: Builder,
    graph: TeGraph,
    nests: Sequence[Nest],
    products: Mapping[int, Product],
    alone: Collection[int],
) -> Parts | None:
    """The stages by parts of an axis that some of them share, where what nests leave to each other is more than the second-level cache
    holds. ``products``: those that are matrix products, by the ids of their stages; ``alone``: ids of those that are neither such nor loops
    over elements."""
    outputs = {id(t.stage) for t in graph.outputs}
    stages = [m.kept for nest in nests for m in nest.members]
    home = {id(m.kept.origin): n for n, nest in enumerate(nests) for m in nest.members}
    readers: dict[int, list[Kept]] = {}
    for kept in stages:
        for source in {source for source, _ in _reads(kept)}:
            readers.setdefault(source, []).append(kept)
    last = next((k for k in reversed(stages) if id(k.origin) not in readers), None)
    if last is None:
        return None
    for n in range(len(last.stage.axes)):
        found = _shared(builder.indices, stages, readers, outputs, alone, n, last.stage.axes[n].extent)
        if found is not None:
            between = [k for k in found.stages if _is_left(k, readers.get(id(k.origin), ()), home)]
            each = _each(builder, found, between, products)
            if each is not None:
                return _cut(builder, stages, found, each)
    return None


def _reads(kept: Kept) -> list[tuple[int, Load]]:
    """What a stage reads, with the ids of the stages that it is of."""
    found = [load for body in stage_bodies(kept.stage) for load in loads(body)]
    return [(id(load.source.stage), load) for load in found if isinstance(load.source, Tensor)]


def _shared(
    indices: Indices,
    stages: Sequence[Kept],
    readers: Mapping[int, Sequence[Kept]],
    outputs: Collection[int],
    alone: Collection[int],
    n: int,
    extent: Dim,
) -> _Shared | None:
    """The stages that share axis ``n`` of the results that nothing reads: what is read of them is at the reader's own place."""
    if extent == 1:
        return None
    axes: dict[int, int] = {}
    chosen: list[Kept] = []
    for kept in reversed(stages):
        key = id(kept.origin)
        if not isinstance(kept.stage, Compute) or key in alone:
            continue
        if key not in readers:
            axis: int | None = (
                n if n < len(kept.stage.axes) and known_equal(kept.stage.axes[n].extent, extent) else None
            )
        else:
            axis = None if key in outputs else _read_at(indices, key, readers[key], axes)
        if axis is not None:
            axes[key] = axis
            chosen.append(kept)
    chosen.reverse()
    return _Shared(axes, chosen) if len(chosen) > 1 else None


def _read_at(indices: Indices, key: int, readers: Sequence[Kept], axes: Mapping[int, int]) -> int | None:
    """Which axis of a stage all its readers read at their own place on the axis that they share, if all share one."""
    found: set[int] | None = None
    for reader in readers:
        own = axes.get(id(reader.origin))
        if own is None:
            return None
        shared = reader.stage.axes[own]
        for source, load in _reads(reader):
            if source == key:
                at = {n for n, i in enumerate(load.indices) if indices.as_axis(indices.poly(i)) is shared}
                found = at if found is None else found & at
    return min(found) if found else None


def _is_left(kept: Kept, readers: Sequence[Kept], home: Mapping[int, int]) -> bool:
    """Whether a nest leaves the stage to another one."""
    return any(home[id(r.origin)] != home[id(kept.origin)] for r in readers)


def _each(builder: Builder, found: _Shared, between: Sequence[Kept], products: Mapping[int, Product]) -> int | None:
    """How many places on the axis are a part: as many as there is room for in the second-level cache for what nests leave to each other
    (``between``), if products are made in parts of this size. None where all of it stays there, or nothing is known of how large a part
    is."""
    extent = found.extent()
    one = 0
    for kept in between:
        at = found.axes[id(kept.origin)]
        size = shape_size((*kept.stage.shape[:at], *kept.stage.shape[at + 1 :]))
        if not isinstance(size, int) and not builder.fewest:
            return None
        one += sum(dim_typical(size) * dtype_bits(d) // 8 for d in kept.dtypes)
    fewest = _fewest(builder, found, products)
    room = builder.target.l2_bytes
    if fewest is None or dim_typical(dim_mul(one, extent)) <= room:
        return None
    if not isinstance(extent, int):
        return 1 if fewest == 1 else None
    even = [n for n in range(fewest, extent // 2 + 1) if extent % n == 0]
    return max((n for n in even if n <= room // one), default=min(even, default=None))


def _fewest(builder: Builder, found: _Shared, products: Mapping[int, Product]) -> int | None:
    """How many places on the axis a part has at least, so that what products read again in each part is multiplied often enough there; None
    where no product has the axis, or nothing is known of it."""
    fewest: int | None = None
    for kept in found.stages:
        product = products.get(id(kept.origin))
        if product is None:
            continue
        axis, form = kept.stage.axes[found.axes[id(kept.origin)]], product.form
        side = next((s for s in (form.rows, form.columns) if axis in s), None)
        others = 1 if side is None else shape_size(tuple(a.extent for a in side if a is not axis))
        if not isinstance(others, int):
            others = builder.least(others)
            if others == 0:
                return None
        fewest = max(fewest or 1, 1 if side is None else -(-_FEWEST // max(others, 1)))
    return fewest


def _cut(builder: Builder, stages: Sequence[Kept], found: _Shared, each: int) -> Parts:
    """The stages, each over a part of the axis."""
    extent = found.extent()
    count = extent // each if isinstance(extent, int) else extent
    number = Axis("part", count)
    new: dict[int, Compute] = {}
    made: list[Kept] = []
    for kept in found.stages:
        stage = kept.stage
        assert isinstance(stage, Compute)
        at = found.axes[id(kept.origin)]
        own = Axis(stage.axes[at].name, each)
        local: Scalar = Const(0, "int64") if each == 1 else own
        place = binary("add", binary("mul", number, each), local)
        axes = (*stage.axes[:at], own, *stage.axes[at + 1 :])
        cut = Compute(
            stage.name, axes, tuple(_placed(b, stage.axes[at], place, local, found, new) for b in stage.bodies)
        )
        new[id(kept.origin)] = cut
        made.append(Kept(cut, cut, kept.dtypes))
        for n in range(len(kept.dtypes)):
            where = builder.storage.get((id(kept.origin), n))
            if where is not None:
                step = where.strides[at]
                strides = (*where.strides[:at], 0 if each == 1 else step, *where.strides[at + 1 :])
                offset = dim_add(where.offset, dim_mul(dim_mul(step, each), builder.indices.poly(number)))
                builder.storage[id(cut), n] = Storage(where.buffer, strides, offset)
    before = [k for k in stages if id(k.origin) not in found.axes]
    return Parts(number, count, before, made, {id(cut): key for key, cut in new.items()})


def _placed(
    body: Scalar, axis: Axis, place: Scalar, local: Scalar, found: _Shared, new: Mapping[int, Compute]
) -> Scalar:
    """What a stage computes at a ``place`` on the axis, which is place ``local`` of the part."""

    def visit(node: Scalar) -> Scalar:
        if node is axis:
            return place
        if isinstance(node, Load) and isinstance(node.source, Tensor) and id(node.source.stage) in new:
            at = found.axes[id(node.source.stage)]
            source = result_of(new[id(node.source.stage)], node.source.index)
            return Load(source, (*node.indices[:at], local, *node.indices[at + 1 :]), node.dtype)
        return node

    if isinstance(body, Reduce):
        return Reduce(body.kind, body.axes, transform(body.body, visit), body.dtype)
    return transform(body, visit)
