"""Contractions seen as matrix products: which operand is packed, how axes group, how large the register tile is.

``out[batch, rows, columns] = sum(left[batch, rows, k] * right[batch, k, columns])``, where each group may be several
axes or none. The right operand is packed into panels of ``NR`` columns, ``[batch][panel][k][NR]``, zero-padded; the
left operand is read in place, one element at a time, wherever its position is a sum of a part of the row and a part
of ``k``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod

from relay.ir.dim import Dim, DimVar, SymDim, dim_add, dim_mul, dim_sub, dim_vars, known_equal, shape_size
from relay.ir.dim_total import dim_evaluate_total
from relay.ir.record import record
from relay.ir.types import dtype_bits, is_float
from relay.loop.ir import BLOCK_DEPTH
from relay.loop.target import Target
from relay.plan.build import position, position_read
from relay.plan.expand import Env, Expander
from relay.plan.graph import loads
from relay.plan.narrow_rows import turnable
from relay.plan.reduction import initial
from relay.plan.short_rows import FEW
from relay.plan.space import Accesses, Space
from relay.plan.stages import Contraction, Kept
from relay.plan.tiles import PanelRun, Tile, panel_pitch, panel_runs, tile_for, uniform_runs
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Cast,
    Load,
    Reduce,
    Scalar,
    binary,
    cast,
    compare,
    extent_of,
    maximum,
    mentioned,
    select,
    substitute,
)
from relay.te.tensor import Compute, Tensor, stage_bodies

# Of a product whose rows are one vector each, an element is the sum of so many sums: with one, each multiply-add of a single row
# would wait for the one before it.
_PARTIAL_SUMS = 4
# From this depth on: adding them up takes as long as a few multiply-adds.
_DEEP = 64
# So few rows of each of a batch of products are narrow.
_NARROW = 4
# Vectors of the widest tile that any schedule has.
_WIDEST = 6
# A small matrix that is made with lanes across it, and is no vector, has so many products at most; sums of so many terms are fast along
# their operands.
_FEW_PRODUCTS, _PART = 32, 4
# So few sums of each product of a batch are made along lines, without panels.
_FEW_SUMS = 32
# The left operand is widened beforehand where more panels than this would widen it.
_WIDENED_FOR = 2
# Columns that repay a copy of the left operand: about two panels'.
_LAID_FOR = 128
# Vectors of a panel beside each other for matrix registers.
_BLOCK_VECTORS = 2
# A size that is not known, where the largest decide, and one of which an axis is shorter (the window that moves over it).
_LARGE, _WINDOW = 1 << 16, 1 << 4


@record(slots=True, eq=False)
class Product:
    """A contraction whose left operand can be read in place. Axis groups are normalised: joined where traversed as
    one."""

    kept: Kept
    form: Contraction
    left: Load
    space: Space
    # The tile where panels are all of one width, and how columns are shared out over panels of their own.
    tile: Tile
    runs: tuple[PanelRun, ...]
    # How far apart the rows of such a panel lie.
    pitch: int
    # Whether sums run over pairs of neighbours along k, which the target multiplies and adds in one instruction.
    pairs: bool = False
    # How far apart rows of the left operand lie, where the product is made in matrix registers.
    left_stride: Dim | None = None
    # How many sums over parts of k an element is made of, where the right operand is packed when the program is compiled.
    partial: int = 1

    @property
    def batch(self) -> list[Axis]:
        return self.space.groups[0]

    def product_of_batch(self, indices: Indices) -> tuple[Scalar, ...]:
        """Which product of the batch it is, as a number, where panels that were packed are of several. (Which axes the batch has is
        decided later than how panels lie.)"""
        return () if size_of(self.form.batch) == 1 else (flat_position(self.batch, indices),)

    @property
    def rows(self) -> list[Axis]:
        return self.space.groups[1]

    @property
    def columns(self) -> list[Axis]:
        return self.space.groups[2]

    @property
    def reduced(self) -> list[Axis]:
        return [*self.taps, *self.depth]

    @property
    def depth(self) -> list[Axis]:
        return self.space.groups[3]

    @property
    def taps(self) -> list[Axis]:
        return self.space.groups[5]

    @property
    def outer(self) -> list[Axis]:
        return self.space.groups[4]


def product(
    kept: Kept,
    form: Contraction,
    indices: Indices,
    target: Target,
    vectors: int | None = None,
    constants: frozenset[int] = frozenset(),
) -> Product | None:
    """See the contraction as a product to schedule; None where the left operand has to be made first (see
    `left_stage`). ``constants`` are the ids of the constants' stages."""
    load = form.left.a if isinstance(form.left, Cast) else form.left
    if not isinstance(load, Load) or not isinstance(load.source, Tensor):
        return None
    depth = form.reduced[len(form.taps) :]
    groups = (form.batch, form.rows, form.columns, depth, form.outer, form.taps)
    space = Space([list(g) for g in groups], {}, frozenset((0, 2) if form.guard is None else (0, 2, 4, 5)))

    def evaluate(env: Env) -> Accesses:
        expander = Expander(indices, lambda t, i: Load(t, i, t.dtype))
        at = expander.evaluate(load, expander.frame(env))
        assert isinstance(at, Load)
        return Accesses((position_read(indices, at),), frozenset())

    trial = Space([list(g) for g in space.groups], {}, space.whole)
    (poly,) = trial.normalise_splits(indices, evaluate).polys
    for axis in trial.groups[3]:
        stride = indices.coefficient(poly, axis)
        if stride is None or indices.is_index(stride):
            return None
    rows = shape_size(tuple(a.extent for a in form.rows))
    columns = shape_size(tuple(a.extent for a in form.columns))
    plain = not form.turned and form.guard is None and not form.chooses
    pairs = plain and _is_run(trial.groups[3], poly, indices) and _in_pairs(form, target)
    apart: Dim | None = None
    if pairs and target.has_matrix_registers and is_constant(form.right, constants):
        apart = _row_stride(form, trial, poly, indices)
    pairs = pairs and (apart is not None or target.multiplies_pairs)
    if apart is not None:
        vectors = _BLOCK_VECTORS
    free = target if _adds_at_once(form, target) else replace(target, vector_registers=target.vector_registers - 1)
    # Panels that the kernel makes for many tasks are spoken of by column in an expression of their own: they are of one width.
    if form.turned or form.guard is not None:
        runs = uniform_runs(free, form.accumulate, rows, columns)
        tile = runs[0].tile
    else:
        runs = panel_runs(free, form.accumulate, rows, columns, vectors, halves=not pairs)
        tile = tile_for(free, form.accumulate, rows, columns, vectors)
    pitch = panel_pitch(target, form.accumulate, runs)
    partial = _partial_sums(form, columns, len(trial.groups[3]), target) if not pairs else 1
    return Product(kept, form, load, space, tile, runs, pitch, pairs, apart, partial)


def _adds_at_once(form: Contraction, target: Target) -> bool:
    """Whether a product is added to a sum by the instruction that multiplies. Where another one does, the product takes a register between
    them: a tile that leaves none has a sum in memory, which each step waits for (4 x 24 words with AVX2 took twice as long)."""
    if form.parts is not None:
        return form.parts == "bf16" or target.multiplies_words
    return target.fma if is_float(form.accumulate) else not target.triple.startswith("x86_64")


def _row_stride(form: Contraction, space: Space, position: Dim, indices: Indices) -> Dim | None:
    """How far apart rows of the left operand lie, where they are evenly spaced and long enough for matrix registers."""
    depth, moving = size_of(form.reduced), [a for a in space.groups[1] if a.extent != 1]
    if form.outer or form.taps or not isinstance(depth, int) or depth < BLOCK_DEPTH:
        return None
    apart: Dim = 0
    wanted: Dim | None = None  # what the next axis outwards has to step by
    for axis in reversed(moving):
        stride = indices.coefficient(position, axis)
        if stride is None or indices.is_index(stride) or (wanted is not None and stride != wanted):
            return None
        apart = stride if wanted is None else apart
        wanted = dim_mul(stride, axis.extent)
    return apart


def _partial_sums(form: Contraction, columns: Dim, reduced: int, target: Target) -> int:
    """See `Product.partial`. It depends on nothing that a schedule or the number of rows decides: results would."""
    bits = dtype_bits(form.accumulate)
    lanes, depth = target.lanes(bits), size_of(form.reduced)
    if form.turned or form.guard is not None or reduced != 1:
        return 1
    if not isinstance(columns, int) or columns > lanes or not isinstance(depth, int):
        return 1
    most = target.l2_bytes * 8 // (2 * _WIDEST * lanes * bits)  # deeper panels may be computed with by blocks of k
    return _PARTIAL_SUMS if _DEEP <= depth <= most and depth % _PARTIAL_SUMS == 0 else 1


def _is_run(axes: Sequence[Axis], position: Dim, indices: Indices) -> bool:
    """Whether elements along some axes, in order, lie one behind the other."""
    steps = [indices.coefficient(position, a) or 0 for a in axes]
    behind = (known_equal(a, dim_mul(b, axis.extent)) for (a, b), axis in zip(pairwise(steps), axes[1:], strict=True))
    return steps[-1:] == [1] and all(behind)


def _in_pairs(form: Contraction, target: Target) -> bool:
    """Whether products of neighbours can be added in one instruction: bfloat16 operands, float32 sums."""
    if "avx512bf16" not in target.features or form.accumulate != "float32" or form.pairing is not None:
        return False
    depth = size_of(form.reduced)
    return (
        isinstance(depth, int)
        and depth % 2 == 0
        and {narrow(form.left).dtype, narrow(form.right).dtype} == {"bfloat16"}
    )


def narrow(operand: Scalar) -> Scalar:
    """An operand before it was widened to be multiplied."""
    if isinstance(operand, Cast) and dtype_bits(operand.a.dtype) < dtype_bits(operand.dtype):
        return operand.a
    return operand


def is_constant(operand: Scalar, constants: frozenset[int]) -> bool:
    """Whether an operand is made of constants (by the ids of their stages) alone."""
    return all(isinstance(n.source, Tensor) and id(n.source.stage) in constants for n in loads(operand))


def is_narrow(form: Contraction, lanes: int) -> bool:
    """Whether too few rows read the right operand to repay that it is packed: none, or a group's few of a batch where sums of
    several lines at once, with their lanes along the result's lines, read less."""
    if not form.rows:
        return True
    rows, line = size_of(form.rows), form.columns[-1].extent
    few = isinstance(rows, int) and rows <= _NARROW and isinstance(line, int) and 2 * line >= lanes
    return bool(form.batch) and few


def are_small(form: Contraction, lanes: int, indices: Indices) -> bool:
    """Whether a product is one of many small matrices that is made faster with lanes across these (`relay.plan.short_rows`): it has few
    terms, and sums are short or do not go along both operands."""
    batch, sizes = size_of(form.batch), [size_of(axes) for axes in (form.rows, form.columns, form.reduced)]
    if form.guard is not None or form.parts is not None or (isinstance(batch, int) and batch < lanes):
        return False
    reads = [n for side in (form.left, form.right) for n in loads(side)]
    known = [n for n in sizes if isinstance(n, int)]
    if len(known) < len(sizes) or max(known) > FEW or not all(turnable(n.dtype) for n in reads):
        return False
    rows, columns, terms = known
    last = form.reduced[-1] if terms > 1 else None
    along = last is not None and all(indices.coefficient(position_read(indices, n), last) == 1 for n in reads)
    most = _FEW_PRODUCTS if min(rows, columns) > 1 else FEW * FEW
    return last is None or (prod(known) <= most and not (along and terms >= _PART))


def are_few_sums(form: Contraction, lanes: int, indices: Indices) -> bool:
    """Whether the products of a batch are a few long sums each, of windows that move by an element: the gradient of a convolution of
    groups of a few channels by its weights. Panels would have each element once for every tap. With lanes along the lines that both
    operands have (`relay.plan.row_tiles.sums_along_lines`) nothing is copied."""
    sizes = [size_of(axes) for axes in (form.rows, form.columns)]
    if not form.batch or form.guard is not None or form.parts is not None or form.chooses or form.pairing is not None:
        return False
    known = [n for n in sizes if isinstance(n, int)]
    if len(known) < len(sizes) or prod(known) > _FEW_SUMS or len(form.reduced) < 2:
        return False
    line = form.reduced[-1]
    if isinstance(line.extent, int) and 2 * line.extent < lanes:
        return False
    places = [position_read(indices, n) for side in (form.left, form.right) for n in loads(side)]
    along = all(indices.coefficient(at, line) == 1 for at in places)
    return along and any(indices.coefficient(at, c) == 1 for at in places for c in form.columns)


def is_streamable(form: Contraction, constants: frozenset[int], indices: Indices) -> bool:
    """Whether the right operand of a product of one row is packed beforehand or can be read in order where it is, each element
    once: a window that moves over it is none."""
    load = form.right.a if isinstance(form.right, Cast) else form.right
    if is_constant(form.right, constants):
        return True
    if not isinstance(load, Load) or not isinstance(load.source, Tensor):
        return False
    at = position_read(indices, load)
    columns = [a for a in form.columns if a.extent != 1]
    moving = [*columns, *(a for a in form.reduced if a.extent != 1)]
    strides = [indices.coefficient(at, a) for a in moving]
    reads, there = size_of((*form.batch, *moving)), shape_size(load.source.shape)
    left = dim_sub(reads, there)
    # Of sizes that are not known the largest decide, also those that are quotients of others (the windows of a stride).
    shorter = {size for a in moving for size in _taken(a.extent)}
    again = dim_evaluate_total(left, {size: _WINDOW if size in shorter else _LARGE for size in dim_vars(left)}) > 0
    if 1 not in strides or again or any(s is None or indices.is_index(s) for s in strides):
        return False
    # Columns in lines of unknown length that are not one line are packed element by element.
    steps = dict(zip(moving, strides, strict=True))
    apart = pairwise(columns)
    as_one = all(known_equal(steps[a] or 0, dim_mul(steps[b] or 0, b.extent)) for a, b in apart)
    return as_one or isinstance(columns[-1].extent, int)


def _taken(extent: Dim) -> set[DimVar]:
    """The sizes by which an extent is shorter than others: of ``n - k + 1`` places of a window, how long it is."""
    terms = extent.terms if isinstance(extent, SymDim) else ()
    return {atom for monomial, c in terms if c < 0 for atom, _ in monomial if isinstance(atom, DimVar)}


def is_widened_before(p: Product, target: Target) -> bool:
    """Whether the left operand is best widened before it is multiplied: where that is dear, and would be done again for every panel. A
    float16 number by itself takes several instructions on all processors."""
    form, columns = p.form, size_of(p.form.columns)
    half = narrow(form.left).dtype == "float16"
    narrower = half or (target.widens_dearly and narrow(form.left) is not form.left)
    few = target.lanes(dtype_bits(form.accumulate)) if half else _WIDENED_FOR * p.tile.columns
    again = form.rows and not (isinstance(columns, int) and columns <= few)
    plain = form.guard is None and not form.chooses and not form.turned and not p.pairs
    return narrower and bool(again) and plain and is_float(form.accumulate)


def is_laid_before(p: Product, target: Target, constants: frozenset[int]) -> bool:
    """Whether the left operand is best copied to where its pairs of neighbours along k lie together: products by packed pairs take half
    the time, which enough columns repay."""
    form, columns = p.form, size_of(p.form.columns)
    wide = not isinstance(columns, int) or columns >= _LAID_FOR
    plain = form.guard is None and not form.chooses and not form.turned and not p.pairs
    return wide and plain and target.multiplies_pairs and _in_pairs(form, target) and is_constant(form.right, constants)


def as_it_lies(form: Contraction) -> Contraction:
    """The contraction with what is summed in the order in which the left operand has it in memory, so that it is copied by runs."""
    load = narrow(form.left)
    assert isinstance(load, Load)

    def place(axis: Axis) -> int:
        return max(n for n, index in enumerate(load.indices) if axis in mentioned(index))

    return replace(form, reduced=tuple(sorted(form.reduced, key=place)))


def left_stage(form: Contraction, widened: bool = False) -> tuple[Kept, Contraction]:
    """Make the left operand a stage of its own, ``[batch][rows][k]``, ``widened`` or as narrow as it is: that stage, and the contraction
    reading it."""
    own = tuple(a for a in (*form.batch, *form.rows, *form.reduced) if a in mentioned(form.left))
    fresh = {a: Axis(a.name, a.extent) for a in own}
    body = substitute(cast(form.left, form.accumulate) if widened else narrow(form.left), dict(fresh))
    stage = Compute("left", tuple(fresh.values()), (body,))
    tensor = Tensor(stage, 0, stage.shape, body.dtype)
    return Kept(stage, stage, (body.dtype,)), replace(
        form, left=cast(Load(tensor, own, body.dtype), body.dtype if widened else form.left.dtype)
    )


def with_left(kept: Kept, form: Contraction) -> Compute:
    """The contraction's stage with the given left operand (what groups stages looks at its loads)."""
    (body,) = stage_bodies(kept.stage)
    assert isinstance(body, Reduce) and isinstance(kept.stage, Compute)
    product = cast(form.product(form.left, cast(form.right, form.left.dtype)), body.body.dtype)
    if form.terms is not None:
        counts = [compare("eq", axis, place) for axis, place in form.terms.places.items()]
        for part in (form.terms.guard, *counts):
            product = select(part, product, initial("sum", product.dtype))
    return Compute(kept.stage.name, kept.stage.axes, (Reduce("sum", body.axes, product, body.dtype),))


def constant_operand(form: Contraction, constants: Mapping[int, int]) -> int | None:
    """The number of the constant input the right operand is made of, if it is made of one alone and all its sizes are
    known."""
    numbers = {constants.get(id(n.source.stage)) for n in loads(form.right) if isinstance(n.source, Tensor)}
    if len(numbers) != 1:
        return None
    sizes = (*form.batch, *form.columns, *form.reduced)
    return next(iter(numbers)) if all(isinstance(a.extent, int) for a in sizes) else None


def panels(p: Product, indices: Indices) -> Tensor:
    """The packed right operand as a tensor expression ``[batch][panel][k][NR]`` of its constant, in the dtype it had
    before it was widened; for sums over pairs ``[batch][panel][k / 2][NR][2]``."""
    width = p.pitch
    count = size_of(p.columns)
    depth = size_of(p.reduced)
    many = size_of(p.form.batch)
    lead = [] if many == 1 else [Axis("batch", many)]
    panel, lane = Axis("panel", dim_add(p.runs[-1].number, p.runs[-1].count)), Axis("lane", width)
    k: Scalar
    if p.pairs:
        assert isinstance(depth, int), "pairs are of a known depth"
        pair, half = Axis("pair", depth // 2), Axis("half", 2)
        axes, k = [*lead, panel, pair, lane, half], binary("add", binary("mul", pair, 2), half)
    else:
        k = Axis("k", depth)
        axes = [*lead, panel, k, lane]
    column = binary("add", _first_column(p, panel), lane)
    env: dict[Axis, Scalar] = unflatten(p.batch, lead[0]) if lead else {}
    env.update(unflatten(p.columns, column))
    env.update(unflatten(p.reduced, k))
    expander = Expander(indices, lambda t, i: Load(t, i, t.dtype))
    value = expander.evaluate(packed_element(p.form), expander.frame(original(p, env, indices)))
    if p.runs[-1].ragged or any(run.tile.columns < width for run in p.runs):
        value = select(compare("lt", column, extent_of(count)), value, initial("sum", value.dtype))
    stage = Compute("panels", tuple(axes), (value,))
    return Tensor(stage, 0, stage.shape, value.dtype)


def _first_column(p: Product, panel: Scalar) -> Scalar:
    """The column that a panel begins with: past the first run, each panel is so much narrower."""
    column, width = binary("mul", panel, p.runs[0].tile.columns), p.runs[0].tile.columns
    for run in p.runs[1:]:
        beyond = maximum(0, binary("sub", panel, run.number))
        column = binary("sub", column, binary("mul", beyond, width - run.tile.columns))
        width = run.tile.columns
    return column


def packed_element(form: Contraction) -> Scalar:
    """The right operand as it is packed: widened when it is multiplied, not before."""
    element = narrow(form.right)
    return element if dtype_bits(element.dtype) < dtype_bits(form.accumulate) else cast(form.right, form.accumulate)


def size_of(axes: Sequence[Axis]) -> Dim:
    return shape_size(tuple(a.extent for a in axes))


def flat_position(axes: Sequence[Axis], indices: Indices) -> Scalar:
    """The position in a group of axes, row-major."""
    return indices.scalar(position(indices, axes, tuple(a.extent for a in axes)))


def unflatten(axes: Sequence[Axis], position: Scalar) -> dict[Axis, Scalar]:
    """The axes of a group in terms of the position in it, row-major."""
    out: dict[Axis, Scalar] = {}
    left = position
    for n, axis in enumerate(axes):
        if n == len(axes) - 1:
            out[axis] = left
        else:
            size = extent_of(size_of(axes[n + 1 :]))
            outer = binary("floordiv", left, size)
            out[axis] = outer
            left = binary("sub", left, binary("mul", outer, size))
    return out


def original(p: Product, env: Env, indices: Indices) -> dict[Axis, Scalar]:
    """What the contraction's own axes are, given the normalised ones."""
    expander = Expander(indices, lambda t, i: Load(t, i, t.dtype))
    frame = expander.frame(env)
    out: dict[Axis, Scalar] = dict(env)
    for axis, value in p.space.env.items():
        out[axis] = expander.evaluate(value, frame)
    return out
