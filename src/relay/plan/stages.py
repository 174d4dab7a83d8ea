"""Which stages of a definition get memory, and what they read once everything else is inlined.

A stage is kept when it is an output, a part that an output interleaves, a reduction or a scan; when it is dear and would
be evaluated more than once per element (a softmax's exponentials, an inverse deviation read along a row); when it would be at many
places, as steps that each read several elements of the step before are; or when it is an operand of a contraction and more than a
change of index. All other stages are inlined into those that read them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from relay import te
from relay.ir.dim import Dim, DimOp, SymDim, dim_atoms, dim_mod, dim_mul, dim_sub, shape_size
from relay.ir.dim_total import dim_typical
from relay.ir.record import record
from relay.ir.types import is_float, is_integer
from relay.plan.expand import Expander, Inline, is_expensive
from relay.plan.graph import TeGraph, loads
from relay.plan.pairs import Pairing, pairing
from relay.plan.quotients import divides_dearly, quotients, repeats
from relay.te.index import Indices
from relay.te.interleave import as_interleave
from relay.te.rewrite import output_dtypes
from relay.te.scalar import (
    Axis,
    Binary,
    Cast,
    Const,
    Dot,
    Load,
    Parts,
    Reduce,
    Scalar,
    Select,
    binary,
    mentioned,
    sides,
    walk,
)
from relay.te.tensor import Compute, Placeholder, Scan, Stage, Tensor, stage_bodies

# How much of a stage is evaluated again for an element at most, in nodes of its expression: what it costs to keep it.
_AGAIN = 64
# What a load takes in these where neighbours read what lies anywhere.
_GATHERED = 16
# So many times what is read may be made for that.
_MOST_LEFT = 8
# What is turned once in registers, if it is read at so many places, or made of so many: each of them would be read across memory.
_TURNED_READS = 4


@record(frozen=True, slots=True, eq=False)
class Kept:
    """A stage with memory of its own. ``stage`` is it with its producers inlined; reads name other kept stages by
    ``origin``."""

    origin: Compute | Scan
    stage: Compute | Scan
    dtypes: tuple[str, ...]

    @property
    def reduce_axes(self) -> tuple[Axis, ...]:
        if isinstance(self.stage, Compute):
            for body in self.stage.bodies:
                if isinstance(body, Reduce):
                    return body.axes
        return ()

    @property
    def is_reduction(self) -> bool:
        return bool(self.reduce_axes)


@record(frozen=True, slots=True, eq=False)
class TermChoice:
    """Where a step of a sum counts: at ``places`` on some axes of the batch, if these are inside, and if ``guard`` holds."""

    places: Mapping[Axis, Scalar]
    guard: Scalar


@record(frozen=True, slots=True, eq=False)
class Contraction:
    """``out[batch, rows, columns] = sum(left[batch, rows, k] * right[batch, k, columns])``; any of the axis groups
    may be many. Along ``outer`` axes only ``left`` moves. In a ``turned`` product the rows lie along the result's
    memory, else the columns. With a ``guard``, which outer axes and the first of ``reduced``, the ``taps``, decide, only those taps
    count for which it holds; elsewhere ``left`` may be outside of what it reads."""

    batch: tuple[Axis, ...]
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    reduced: tuple[Axis, ...]
    left: Scalar
    right: Scalar
    accumulate: str
    outer: tuple[Axis, ...] = ()
    turned: bool = False
    taps: tuple[Axis, ...] = ()
    guard: Scalar | None = None
    # What both operands' words hold, if they are words of several elements (`relay.plan.words`), and of which of them the highest bits of
    # all bytes are turned round before they are multiplied.
    parts: Parts | None = None
    flipped: tuple[bool, bool] = (False, False)
    # What is summed up of each pair of elements, where that is no product.
    pairing: Pairing | None = None
    # Which product of the batch a row is of, where each row is of one only (`relay.plan.row_groups`).
    choice: Scalar | None = None
    # Which of them a step of the sum counts for, where each counts for one only (`relay.plan.term_groups`).
    terms: TermChoice | None = None

    @property
    def chooses(self) -> bool:
        """Whether rows or steps of the sum choose among the products of the batch."""
        return self.choice is not None or self.terms is not None

    def product(self, left: Scalar, right: Scalar) -> Scalar:
        """What is summed up: the product of an element of either operand, or what else is made of them."""
        if self.pairing is not None:
            return self.pairing.of(left, right)
        if self.parts is None:
            return binary("mul", left, right)
        left, right = (flip(x) if turned else x for x, turned in zip((left, right), self.flipped, strict=True))
        return Dot(self.parts, left, right, self.accumulate)

    def exchanged(self) -> Contraction:
        """The same with the left operand for the right one."""
        parts = None if self.parts is None else MIRRORED[self.parts]
        pairing = self.pairing and self.pairing.exchanged()
        return replace(self, left=self.right, right=self.left, parts=parts, flipped=self.flipped[::-1], pairing=pairing)


# What words hold where their operands are exchanged.
MIRRORED: Final[Mapping[Parts, Parts]] = {"s8u8": "u8s8", "u8s8": "s8u8", "s16": "s16", "bf16": "bf16"}
# The highest bit of each byte of a word: with it turned round a signed byte is one that is 128 more, and an unsigned one 128 less.
HIGHEST = -0x7F7F7F80


def flip(word: Scalar) -> Scalar:
    """A word with the highest bits of its bytes turned round."""
    return binary("xor", word, Const(HIGHEST, word.dtype))


def unflipped(word: Scalar) -> tuple[Scalar, bool]:
    """A word before that, and whether it was."""
    if isinstance(word, Binary) and word.op == "xor" and isinstance(word.b, Const) and word.b.value == HIGHEST:
        return word.a, True
    return word, False


def contraction(stage: Stage, constants: frozenset[int]) -> Contraction | None:
    """See a stage as a matrix product (or a sum over pairs like one), if it is one worth a matrix kernel. ``constants``: ids of constant
    placeholders' stages.

    The right operand is the one the last output axis belongs to, so that columns are contiguous in the result.
    """
    if not isinstance(stage, Compute) or len(stage.bodies) != 1:
        return None
    body = stage.bodies[0]
    if not isinstance(body, Reduce) or body.kind != "sum":
        return None
    return _product(stage, body, constants) or _of_pairs(stage, body)


def _of_pairs(stage: Compute, body: Reduce) -> Contraction | None:
    """See a sum over pairs that are not multiplied as such a product, if rows and columns read each operand again."""
    wide, reduced = [a for a in stage.axes if a.extent != 1], tuple(a for a in body.axes if a.extent != 1)
    found = pairing(body, wide[-1]) if wide and reduced else None
    if found is None:
        return None
    left, right, each = found
    mine, theirs = mentioned(left), mentioned(right)
    rows, columns = (
        tuple(a for a in wide if (a in mine, a in theirs) == way) for way in ((True, False), (False, True))
    )
    batch = tuple(a for a in wide if a in mine and a in theirs)
    if not rows or not columns or len(rows) + len(columns) + len(batch) < len(wide):
        return None
    if not mine.issuperset(reduced) or not theirs.issuperset(reduced) or is_small(batch + rows + columns + reduced):
        return None
    return Contraction(batch, rows, columns, reduced, left, right, body.dtype, pairing=each)


def _product(stage: Compute, body: Reduce, constants: frozenset[int]) -> Contraction | None:
    """See a sum of products as a matrix product."""
    product = body.body
    guard = None
    if isinstance(product, Select) and isinstance(product.b, Const) and product.b.value == 0:
        guard, product = product.cond, product.a
    widen = product.dtype
    if isinstance(product, Cast):
        product = product.a
    if not isinstance(product, Dot) and not (isinstance(product, Binary) and product.op == "mul"):
        return None
    if not (is_float(widen) or is_integer(widen)):
        return None
    if product.dtype != widen and not (is_float(product.dtype) and is_float(widen)):
        return None
    reduced = tuple(a for a in body.axes if a.extent != 1)
    over = set(reduced)
    wide = [a for a in stage.axes if a.extent != 1]
    if not wide:
        return None
    last = wide[-1]
    # As it is written, or with its factors together as they belong to the columns or not; if possible so that there are rows.
    found = []
    ways = [(product.a, product.b), (product.b, product.a)]
    if isinstance(product, Binary):
        ways.append(sides(product, last))
    for left, right in ways:
        mine, theirs = mentioned(left), mentioned(right)
        if last in theirs and last not in mine and over <= mine and over <= theirs:
            found.append((left, right, mine, theirs))
    if not found:
        return None
    left, right, mine, theirs = next((f for f in found if any(a in f[2] and a not in f[3] for a in wide)), found[0])
    one, flipped = left, (False, False)
    if isinstance(product, Dot):
        (left, turned), (right, too) = unflipped(left), unflipped(right)
        flipped = turned, too
    rows = tuple(a for a in wide if a in mine and a not in theirs)
    columns = tuple(a for a in wide if a in theirs and a not in mine)
    batch = tuple(a for a in wide if a in mine and a in theirs)
    if any(a not in mine and a not in theirs for a in wide):
        return None
    if not rows and not all(_is_constant(n, constants) for n in loads(right)) and not _is_load(right):
        return None  # nothing would repay packing the right operand, and it cannot be read where it is
    if is_small(batch + rows + columns + reduced):
        return None
    accumulate = "float32" if widen in ("float16", "bfloat16") else widen
    if isinstance(product, Dot):
        parts = product.parts if one is product.a else MIRRORED[product.parts]
        form = Contraction(batch, rows, columns, reduced, left, right, accumulate, parts=parts, flipped=flipped)
        return form if guard is None else None
    if guard is None:
        return Contraction(batch, rows, columns, reduced, left, right, accumulate)
    decides = mentioned(guard)
    outer = tuple(a for a in rows if a in decides)
    rows = tuple(a for a in rows if a not in decides)
    taps = tuple(a for a in reduced if a in decides)
    if not rows or decides & {*batch, *columns} or loads(guard):
        return None
    depth = tuple(a for a in reduced if a not in decides)
    return Contraction(batch, rows, columns, (*taps, *depth), left, right, accumulate, outer, taps=taps, guard=guard)


def is_small(axes: Sequence[Axis]) -> bool:
    """Whether a product over so many elements is none worth a matrix kernel."""
    total = shape_size(tuple(a.extent for a in axes))
    return isinstance(total, int) and total < 2048


def _is_load(operand: Scalar) -> bool:
    return isinstance(operand.a if isinstance(operand, Cast) else operand, Load)


def _is_constant(load: Load, constants: frozenset[int]) -> bool:
    return isinstance(load.source, Tensor) and id(load.source.stage) in constants


def is_index_map(stage: Stage) -> bool:
    """Whether a stage only reads one tensor at another index (a transpose, a reshape, a slice)."""
    return isinstance(stage, Compute) and len(stage.bodies) == 1 and isinstance(stage.bodies[0], Load)


def _turns(stage: Stage) -> bool:
    """Whether an index map runs across memory where its result runs along it (a transpose)."""
    (load,) = stage_bodies(stage)
    assert isinstance(load, Load)
    wide = [a for a in _index_variables(stage) if a.extent != 1]
    along = mentioned(load.indices[-1]) if load.indices else set()
    return bool(wide) and wide[-1] not in along and any(a in along for a in wide)


def _goes_round(stage: Stage) -> bool:
    """Whether a stage reads along an axis beyond its end from the start again: a division of an index that splitting the axis
    would not take away, and that would be made for every element by all who read through it."""
    indices = Indices()
    for index in (i for b in stage_bodies(stage) if isinstance(b, Load) for i in b.indices):
        for above, by in indices.divisions(indices.poly(index)):
            low, high = indices.bounds(above)
            steps = [(a.extent, indices.coefficient(above, a)) for a in _index_variables(stage)]
            even = all(s is not None and dim_mod(dim_mul(n, s), by) == 0 for n, s in steps)
            once = isinstance(by, int) and (low is None or high is None or low // by == high // by)
            if not even and not once:
                return True
    return False


def _index_variables(stage: Stage) -> list[Axis]:
    """The axes of a stage and those it reduces over."""
    reduced = [a for b in stage_bodies(stage) if isinstance(b, Reduce) for a in b.axes]
    return reduced if isinstance(stage, Placeholder) else [*stage.axes, *reduced]


def keep(
    graph: TeGraph,
    constants: frozenset[int],
    indices: Indices,
    sums: frozenset[int] = frozenset(),
    steep: float = 0.0,
) -> list[Kept]:
    """The kept stages of a graph, producers first, with everything else inlined. ``constants``: numbers of constant
    inputs. ``sums``: ids of stages that are no products though they look like it. ``steep``: see `quotients`."""
    order = [s for s in te.stages(graph.outputs) if not isinstance(s, Placeholder)]
    constant_ids = graph.stages_of(constants)
    chosen = _choose(order, graph, constant_ids, sums, steep)

    def read(tensor: Tensor, index: tuple[Scalar, ...]) -> Scalar | Inline:
        stage = tensor.stage
        if isinstance(stage, Compute) and id(stage) not in chosen:
            return Inline(stage, tensor.index)
        return Load(tensor, index, tensor.dtype)

    expander = Expander(indices, read)
    top = expander.frame({})
    out: list[Kept] = []
    for stage in order:
        if id(stage) not in chosen:
            continue
        new = tuple(expander.evaluate(b, top) for b in stage_bodies(stage))
        rewritten: Compute | Scan
        if isinstance(stage, Scan):
            rewritten = Scan(
                stage.name, stage.axes, stage.dim, stage.state, new[0], new[1], stage.reverse, stage.exclusive
            )
        else:
            rewritten = Compute(stage.name, stage.axes, new)
        out.append(Kept(stage, rewritten, output_dtypes(stage)))
    return needed(out, {id(t.stage) for t in graph.outputs})


def needed(stages: list[Kept], written: Collection[int]) -> list[Kept]:
    """The stages that what is stored in outputs (their ids) is made of: a triangle that lies beyond a matrix, for one, reads nothing of
    it."""
    needed = set(written)
    for kept in reversed(stages):
        if id(kept.origin) in needed:
            for load in (n for b in stage_bodies(kept.stage) for n in loads(b)):
                assert isinstance(load.source, Tensor)
                needed.add(id(load.source.stage))
    return [k for k in stages if id(k.origin) in needed]


def _choose(
    order: list[Compute | Scan], graph: TeGraph, constants: frozenset[int], sums: frozenset[int], steep: float
) -> set[int]:
    """Ids of the stages to keep. Consumers are decided before producers."""
    outputs = {id(t.stage) for t in graph.outputs}
    readers: dict[int, list[Compute | Scan]] = {}
    for stage in order:
        seen: set[int] = set()
        for body in stage_bodies(stage):
            for load in loads(body):
                assert isinstance(load.source, Tensor)
                producer = id(load.source.stage)
                if producer not in seen:
                    seen.add(producer)
                    readers.setdefault(producer, []).append(stage)
    operands = {
        id(load.source.stage)
        for stage in order
        if id(stage) not in sums and contraction(stage, constants) is not None
        for body in stage_bodies(stage)
        for load in loads(body)
        if isinstance(load.source, Tensor)
    }
    woven = [parts for s in order if id(s) in outputs and (parts := as_interleave(s)) is not None]
    apart = {id(p.tensor.stage) for parts in woven for p in parts}
    chosen: set[int] = set()
    # The kept stages that evaluate an inlined stage, by the inlined stage.
    users: dict[int, set[int]] = {}
    # At how many places these do, for an element.
    places: dict[int, int] = {}
    feeds_contraction: set[int] = set()
    by_id = {id(s): s for s in order}
    for stage in reversed(order):
        key = id(stage)
        mine: set[int] = set()
        for reader in readers.get(key, ()):
            mine |= {id(reader)} if id(reader) in chosen else users[id(reader)]
        feeds = key in operands or any(id(r) in feeds_contraction for r in readers.get(key, ()))
        must = (
            key in outputs
            or key in apart
            or isinstance(stage, Scan)
            or any(isinstance(b, Reduce) for b in stage.bodies)
            or (feeds and (not is_index_map(stage) or _goes_round(stage)))
        )
        if not must and any(is_expensive(b) or divides_dearly(b, steep) for b in stage_bodies(stage)):
            must = len(mine) > 1 or any(_repeats(by_id[u], stage) for u in mine)
        if not must and is_index_map(stage) and _goes_round(stage):
            must = any(_repeats(by_id[u], stage) for u in mine)
        places[key] = sum(_reads(r, key) * (1 if id(r) in chosen else places[id(r)]) for r in readers.get(key, ()))
        if not must and is_index_map(stage) and places[key] >= _TURNED_READS and _turns(stage):
            must = not all(isinstance(b, Reduce) for u in mine for b in stage_bodies(by_id[u]))
        if not must and not is_index_map(stage):
            must = any(is_index_map(r) and _turns(r) for r in readers.get(key, ())) and _is_turned_whole(stage)
        if not must and not is_index_map(stage):
            again = sum(len(walk(b)) for b in stage_bodies(stage))
            if any(_gathers(r, stage, steep) for r in readers.get(key, ())):
                again += _GATHERED * sum(len(loads(b)) for b in stage_bodies(stage))
            must = (places[key] - 1) * again > _AGAIN
        if must:
            chosen.add(key)
        else:
            users[key] = mine
            if feeds:
                feeds_contraction.add(key)
    return chosen


def _reads(reader: Stage, producer: int) -> int:
    """At how many places a stage reads another."""
    found = {
        tuple(map(id, load.indices))
        for body in stage_bodies(reader)
        for load in loads(body)
        if isinstance(load.source, Tensor) and id(load.source.stage) == producer
    }
    return len(found)


def _gathers(reader: Compute | Scan, producer: Stage, steep: float) -> bool:
    """Whether neighbours on the reader's last axis read another stage, most of which is read, at places that only a division finds, or a
    table of such places has."""
    if not reader.axes or dim_typical(shape_size(producer.shape)) > _MOST_LEFT * dim_typical(shape_size(reader.shape)):
        return False

    def is_divided(at: Scalar) -> bool:
        tables = [load.source.stage for load in loads(at) if isinstance(load.source, Tensor)]
        counted = all(isinstance(t, Compute) and not any(map(loads, t.bodies)) for t in tables)
        return reader.axes[-1] in mentioned(at) and (
            bool(quotients(at, steep)) or (bool(tables) and counted) or repeats(at, steep)
        )

    read = [load for body in stage_bodies(reader) for load in loads(body)]
    return any(
        isinstance(load.source, Tensor)
        and load.source.stage is producer
        and load.indices
        and is_divided(load.indices[-1])
        for load in read
    )


def _is_turned_whole(stage: Stage) -> bool:
    """Whether its elements, not what they are made of, are turned by who reads it across memory: that is much, or read under conditions."""
    bodies = stage_bodies(stage)
    if sum(len(loads(b)) for b in bodies) >= _TURNED_READS:
        return True
    return any(isinstance(n, Select) and loads(n) for b in bodies for n in walk(b))


def _repeats(consumer: Stage, producer: Stage) -> bool:
    """Whether the consumer's domain is at least twice the producer's, so that inlining repeats work."""
    domain: Dim = shape_size(consumer.shape)
    for body in stage_bodies(consumer):
        if isinstance(body, Reduce):
            domain = dim_mul(domain, shape_size(tuple(a.extent for a in body.axes)))
            break
    size = shape_size(producer.shape)
    if domain == size:
        return False
    if isinstance(domain, int) and isinstance(size, int):
        return domain >= 2 * size
    left = dim_sub(domain, dim_mul(2, size))
    if any(isinstance(atom, DimOp) for atom in dim_atoms(left)):
        return dim_typical(domain) >= 2 * dim_typical(size)
    # Large sizes decide: the leading term of what is left after subtracting (terms are in order of falling degree).
    return left.terms[0][1] > 0 if isinstance(left, SymDim) else isinstance(left, int) and left >= 0
