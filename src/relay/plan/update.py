"""Updates (`relay.te.update`): the base, and then every value put where it belongs, in order.

Where the result is given the memory of the base (`Kernel.in_place`), the base is there already and nothing else is touched. Values that
read what the update may write over by then are all made before the first one is put.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from relay.ir.dim import Dim, shape_size
from relay.ir.types import dtype_bits
from relay.loop.ir import Branch, Buffer, Shared, Stmt, Store
from relay.plan.build import Builder, Storage, allocate, position, position_read, row_major, seq
from relay.plan.expand import cost
from relay.plan.generic import elementwise
from relay.plan.graph import TeGraph, loads, tensor_key
from relay.plan.nests import Member, Nest, own_rows
from relay.plan.scatter import Visit
from relay.plan.stages import Kept
from relay.te.index import Indices
from relay.te.scalar import Load, Scalar, compare, select
from relay.te.tensor import Compute, Stage, Tensor, stage_bodies
from relay.te.update import Update, as_update

# Elements among which one is chosen at least, to put it there by itself: fewer are gone through in a few vectors.
_AMONG = 64


def find_updates(stages: list[Kept], graph: TeGraph, indices: Indices) -> tuple[list[Kept], dict[int, Update]]:
    """The outputs to make as updates, by the id of their stage, and the stages without those that are not needed for them."""
    outputs = {t.stage for t in graph.outputs}
    reductions = {id(k.origin): k.stage for k in stages if k.is_reduction and isinstance(k.stage, Compute)}
    found: dict[int, Update] = {}
    for kept in stages:
        if kept.origin not in outputs or min(map(dtype_bits, kept.dtypes)) < 8:
            continue
        update = as_update(kept.stage, reductions, indices)
        # Other choices than a scatter's are as well made element by element, where no memory can be taken over.
        if update is not None and (update.counted is not None or _may_take_over(kept, update, stages, graph, indices)):
            found[id(kept.origin)] = update
    if not found:
        return stages, found
    new = [_said(k, found[id(k.origin)]) if id(k.origin) in found else k for k in stages]
    read = {source for k in new for source in _sources(k)}
    counted = {u.counted for u in found.values()} - read - outputs
    # Last, what nothing else reads: the others find the base as it was.
    last = [k for k in new if id(k.origin) in found and k.origin not in read]
    return [*(k for k in new if k.origin not in counted and k not in last), *last], found


def _may_take_over(kept: Kept, update: Update, stages: list[Kept], graph: TeGraph, indices: Indices) -> bool:
    alone = not any(kept.origin in _sources(k) for k in stages)
    return alone and _are_few(kept, update) and base_input(kept, update, graph.inputs, indices) is not None


def _are_few(kept: Kept, update: Update) -> bool:
    """Whether what is chosen is so little of the whole that going to each of its rows, or elements, repays."""
    among = shape_size(tuple(a.extent for a in update.places))
    wide = [a for a in kept.stage.axes if a.extent != 1]
    in_rows = bool(wide) and wide[-1] in update.through
    return in_rows or not isinstance(among, int) or among >= _AMONG


def _said(kept: Kept, update: Update) -> Kept:
    """The stage with the body that says what the update reads."""
    return replace(kept, stage=Compute(kept.stage.name, kept.stage.axes, (update.body(),)))


def _sources(kept: Kept) -> set[Stage]:
    every = (n.source for b in stage_bodies(kept.stage) for n in loads(b))
    return {source.stage for source in every if isinstance(source, Tensor)}


def base_input(kept: Kept, update: Update, inputs: Sequence[Tensor], indices: Indices) -> int | None:
    """The number of the input whose elements, each at its own place, are the base, and which does not say where values are put: the
    result may be given its memory."""
    base, stage = update.base, kept.stage
    if not isinstance(base, Load) or not isinstance(base.source, Tensor) or base.dtype != kept.dtypes[0]:
        return None
    source = base.source
    number = next((n for n, t in enumerate(inputs) if tensor_key(t) == tensor_key(source)), None)
    if number is None or shape_size(source.shape) != shape_size(stage.shape):
        return None
    if any(_reads(part, source) for part in update.asked()[:-1]) or not _is_in_order(
        base, stage.axes, stage.shape, indices
    ):
        return None
    return number


def _is_in_order(load: Load, axes: Sequence[Scalar], shape: Sequence[Dim], indices: Indices) -> bool:
    """Whether elements are read where elements with these axes are in a dense result."""
    return position_read(indices, load) == position(indices, axes, shape)


def _reads(root: Scalar, tensor: Tensor) -> bool:
    return any(isinstance(n.source, Tensor) and tensor_key(n.source) == tensor_key(tensor) for n in loads(root))


def taken_over(
    builder: Builder, graph: TeGraph, nests: Sequence[Nest], updates: Mapping[int, Update]
) -> tuple[tuple[int, int], ...]:
    """Pairs (input, output) of updates whose base is an input that no later nest reads."""
    pairs: list[tuple[int, int]] = []
    for at, nest in enumerate(nests):
        kept = nest.members[0].kept
        if id(kept.origin) not in updates:
            continue
        number = base_input(kept, updates[id(kept.origin)], graph.inputs, builder.indices)
        later = {source for n in nests[at + 1 :] for m in n.members for source in _sources(m.kept)}
        if number is not None and graph.inputs[number].stage not in later:
            output = next(n for n, t in enumerate(graph.outputs) if t.stage is kept.origin)
            pairs.append((number, output))
    return tuple(pairs)


def update_nest(builder: Builder, kept: Kept, update: Update, shared: Shared | None) -> Stmt:
    """The loops of an update; ``shared`` says whether the result has the base's memory, if it may."""
    base = replace(kept, stage=Compute(kept.stage.name, kept.stage.axes, (update.base,)))
    copy = elementwise(builder, Nest([Member(base, own_rows(base))]))
    if shared is not None:
        copy = Branch(compare("eq", shared, 0), copy)
    dtype = kept.dtypes[0]
    where = builder.storage[tensor_key(Tensor(kept.origin, 0, kept.stage.shape, dtype))]
    if shared is None or not _may_read_what_is_put(update, builder.indices, kept):
        return seq([copy, _put(builder, kept, update, where)])
    axes = (*update.over, *update.through)
    shape = tuple(a.extent for a in axes)
    values = Storage(Buffer(builder.fresh("values"), (shape_size(shape),), dtype, "workspace"), row_major(shape))
    made = _put(builder, kept, update, where, to=values)
    return allocate([values.buffer], seq([made, copy, _put(builder, kept, update, where, given=values)]))


def _may_read_what_is_put(update: Update, indices: Indices, kept: Kept) -> bool:
    """Whether a value reads the base anywhere but at its own place, or at one that an earlier value may have been put at."""
    assert isinstance(update.base, Load) and isinstance(update.base.source, Tensor)
    source = tensor_key(update.base.source)
    read = [n for n in loads(update.value) if isinstance(n.source, Tensor) and tensor_key(n.source) == source]
    once = all(a.extent == 1 for a in update.over)
    return any(not once or not _is_in_order(n, kept.stage.axes, kept.stage.shape, indices) for n in read)


def _put(
    builder: Builder,
    kept: Kept,
    update: Update,
    where: Storage,
    to: Storage | None = None,
    given: Storage | None = None,
) -> Stmt:
    """Put every value where it belongs, or (``to``) where its iteration is; ``given``: the values were made, and are there."""
    visit = Visit(builder, kept.stage.axes, update.through, update.over, update.places)
    mine = [visit.env.get(a, a) for a in (*update.over, *update.through)]
    at = visit.position(where)
    (value,) = builder.evaluate([update.value], visit.there)
    work = max(1, cost(value))
    if given is not None:
        value = Load(given.buffer, (builder.flat(given, mine),), given.buffer.dtype)
    before, lanewise = visit.asked(update.guard)
    buffer, position = (where.buffer, at) if to is None else (to.buffer, builder.flat(to, mine))
    old = Load(buffer, (position,), buffer.dtype)
    for part in reversed([*lanewise, *builder.evaluate(update.inside, visit.there)]):
        value = select(part, value, old)
    return visit.loops(before, visit.across(Store(buffer, (position,), value), cost(value)), work)
