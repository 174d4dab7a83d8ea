"""Products with their operands exchanged, where the right one would have to be packed element by element.

In ``out[n, o, h, w]`` the columns, which are contiguous, belong to the image: as the right operand its windows would be
gathered into panels, for the few rows that there are output channels. Exchanged, the image is read where it is, one element
at a time, and the panels are of the weights: small, and packed once before all tasks (at compile time where they are
constant). What this costs is that a tile's columns do not lie along the result, so finished tiles are turned in registers.
The same goes for the gradients of a convolution by its data and by its weights.

Where multiply-adds wait for caches, weights ``w[j, k]`` that are given at run time are read so, too, if the rows fill most of a few
vectors: the panels are of the rows, of which there are fewer than columns, and nothing is summed up across lanes.
Source: NeoFlow, section 4.3 (tensor swapping).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from relay.ir.dim import Dim, dim_mul, known_equal
from relay.ir.types import dtype_bits
from relay.loop.target import Target
from relay.plan.build import position_read
from relay.plan.product import Product, flat_position, is_constant, panels, size_of
from relay.plan.stages import Contraction, Kept
from relay.plan.tiles import has_halves
from relay.te.index import Indices
from relay.te.scalar import Axis, Cast, Load, Reduce, binary, cast
from relay.te.tensor import Compute, Tensor, stage_bodies

# So much of the lanes at least must hold columns.
_USED = 0.6
# The same of a batch of products: gathering the windows is repaid by the rows of one product alone.
_USED_OF_BATCH = 0.5
# Of panels, where their columns are runs in memory.
_USED_BY_RUNS = 0.85
# But for runs of windows, which are gathered all the same: they are exchanged from this depth on (one thread, microseconds: 5 x 5 of
# 60 x 60, 16 to 16 channels 514 and 408, 3 to 16 98 and 84; 3 x 3 of 56 x 56, 64 to 64 2133 and 2062; of 60 x 60, 3 to 32 68 and 73).
_DEEP = 36
# Of runs of unknown length: up to this depth turning the results takes longer than what short runs leave of panels empty (12 matrices of
# 256 x 256 mixed with each other take 1.6 ms in place of 3.0, nine places of each 8 us in place of 7; 64 the other way round).
_SHALLOW = 16
# Fewer rows do not fill a tile; so many fill one just about, which is worth it only where it makes less to be packed.
_FEWEST_ROWS = 4
_FEW_ROWS = 8
# Of a constant left operand: so many elements of k repay that results are turned, where so much of panels of its rows is full (one thread,
# microseconds, a constant 768 x 768 by 768 x 1, 5, 17, 100: 100, 100, 327, 1311 and 28, 54, 178, 1039; 256 x 64 by 64 x 5, 64, 1000: 3.7,
# 19.3, 295 and 2.9, 20.9, 325).
_DEEP_OF_CONSTANT, _USED_OF_CONSTANT = 64, 0.9
# Of operands that both lie along k: so much of the lanes of so many vectors at most, from so many vectors along k on, and with so many
# times as many columns as rows. Elsewhere packing the columns, or dot products, takes no longer.
_USED_ALONG_DEPTH, _MOST_VECTORS, _FEWEST_VECTORS_DEEP, _COLUMNS_TO_ROWS = 0.9, 4, 8, 2


def arranged(
    kept: Kept,
    form: Contraction,
    strides: Sequence[Dim],
    indices: Indices,
    target: Target,
    constants: frozenset[int] = frozenset(),
) -> Contraction:
    """The contraction as it is computed best: with its operands exchanged, where its right one would have to be gathered, and with
    the columns that do not lie behind each other as a batch, where that is enough. ``strides``: how the result lies in memory;
    ``constants``: the ids of the constants' stages."""
    load = form.right.a if isinstance(form.right, Cast) else form.right
    if not form.rows or not form.columns or not isinstance(load, Load) or not isinstance(load.source, Tensor):
        return form
    at = position_read(indices, load)
    steps = {a: indices.coefficient(at, a) for a in (*form.columns, *form.reduced)}
    if any(s is None or indices.is_index(s) for s in steps.values()):
        return form
    lanes = target.lanes(dtype_bits(form.accumulate))
    memory = dict(zip(kept.stage.axes, strides, strict=True))
    if (
        target.outruns_caches
        and load is form.right
        and load.dtype == form.accumulate
        and id(load.source.stage) not in constants
        and memory[form.columns[-1]] == 1
        and _lies_along_depth(form, steps)
        and _repays_turning(form, lanes)
    ):
        return _exchanged(form, form.columns, ())
    if len(form.columns) < 2:
        along = (
            is_constant(form.left, constants)
            and not form.taps
            and steps[form.columns[0]] == 1
            and memory[form.columns[0]] == 1
        )
        if along and isinstance(form.left, Load) and load is form.right and _repays_packing(form, lanes, target):
            return _exchanged(form, form.columns, ())
        return form
    run = _joined(form.columns, steps)
    by_runs = replace(form, batch=(*form.batch, *form.columns[: -len(run)]), columns=tuple(run))
    depth = size_of(form.reduced)
    full = steps[run[-1]] == 1 and _used(run, 4 * lanes) >= _USED_BY_RUNS
    gathered = full and isinstance(depth, int) and depth >= _DEEP and _are_windows(form, run, steps)
    if (steps[run[-1]] == 1 and len(run) == len(form.columns)) or (full and not gathered):
        return by_runs
    # What is not exchanged would be gathered, which is repaid by the shortest runs: those of unknown length are taken as they are.
    unknown = steps[run[-1]] == 1 and not isinstance(size_of(run), int)
    otherwise = by_runs if unknown or full else form
    least = _USED_OF_BATCH if form.batch else _USED
    if unknown and (not isinstance(depth, int) or depth <= _SHALLOW):
        return by_runs
    if _used(form.rows, _narrowest(form.rows, lanes, target)) < least:
        return otherwise
    last: list[Axis] = []
    for axis in reversed([a for a in kept.stage.axes if a.extent != 1]):
        if axis not in form.columns:
            break
        last.insert(0, axis)
    rows = _joined(last, memory) if memory[last[-1]] == 1 else last
    number = size_of(rows)
    if isinstance(number, int) and (number < _FEWEST_ROWS or (number <= _FEW_ROWS and _more(form.rows, form.columns))):
        return otherwise
    outer = tuple(a for a in form.columns if a not in rows)
    return _exchanged(form, rows, outer)


def _are_windows(form: Contraction, run: Sequence[Axis], steps: Mapping[Axis, Dim | None]) -> bool:
    """Whether columns of a run read elements of each other: what is summed over goes less far than the run is long."""
    length, counted = size_of(run), [steps[a] for a in form.reduced]
    return isinstance(length, int) and any(isinstance(s, int) and 0 < abs(s) < length for s in counted)


def _exchanged(form: Contraction, rows: Sequence[Axis], outer: Sequence[Axis]) -> Contraction:
    """The contraction with its operands exchanged: ``rows`` and ``outer`` are what its columns become."""
    return replace(
        form.exchanged(),
        rows=tuple(rows),
        columns=form.rows,
        outer=tuple(outer),
        turned=True,
    )


def _lies_along_depth(form: Contraction, steps: Mapping[Axis, Dim | None]) -> bool:
    """Whether each column of the right operand is a run in memory, and all of them are evenly spaced."""
    if not form.reduced or steps[form.reduced[-1]] != 1:
        return False
    return all(len(_joined(axes, steps)) == len(axes) for axes in (form.reduced, form.columns))


def _repays_turning(form: Contraction, lanes: int) -> bool:
    """Whether a right operand whose columns are runs along k is best read where it is, an element at a time, by panels of the few rows
    that the left one has: these are quickly packed, and nothing has to be summed up across lanes."""
    rows, columns, depth = size_of(form.rows), size_of(form.columns), size_of(form.reduced)
    if not isinstance(rows, int) or not isinstance(columns, int) or not isinstance(depth, int):
        return False
    deep = depth >= _FEWEST_VECTORS_DEEP * lanes
    few = rows <= _MOST_VECTORS * lanes and rows * _COLUMNS_TO_ROWS <= columns
    return deep and few and _used(form.rows, lanes) >= _USED_ALONG_DEPTH


def _repays_packing(form: Contraction, lanes: int, target: Target) -> bool:
    """Whether a constant left operand is best packed, and a right one whose columns are runs in memory read an element at a time: the
    few columns that there are, or are left of many, need no whole vectors then, and finished tiles are turned."""
    columns, depth = size_of(form.columns), size_of(form.reduced)
    if not isinstance(depth, int) or depth < _DEEP_OF_CONSTANT or _used(form.rows, 4 * lanes) < _USED_OF_CONSTANT:
        return False
    if not isinstance(columns, int):
        return True
    half = lanes // 2 if has_halves(target) else lanes
    return columns > 1 and (columns <= half or _used(form.columns, half) < _USED_OF_CONSTANT)


def _narrowest(axes: Sequence[Axis], lanes: int, target: Target) -> int:
    """How many lanes a panel of so few columns takes at least: half a vector, where they fit into it."""
    count = size_of(axes)
    return lanes // 2 if isinstance(count, int) and 2 * count <= lanes and has_halves(target) else lanes


def _more(one: Sequence[Axis], other: Sequence[Axis]) -> bool:
    """Whether axes are known to have more elements than others."""
    a, b = size_of(one), size_of(other)
    return isinstance(a, int) and isinstance(b, int) and a > b


def _joined(axes: Sequence[Axis], steps: Mapping[Axis, Dim | None]) -> list[Axis]:
    """The last of the axes that are traversed as one."""
    out = [axes[-1]]
    for axis in reversed(axes[:-1]):
        step = steps[out[0]]
        if step is None or steps[axis] is None or not known_equal(steps[axis], dim_mul(step, out[0].extent)):  # type: ignore[arg-type]
            break
        out.insert(0, axis)
    return out


def _used(axes: Sequence[Axis], width: int) -> float:
    """How much of whole vectors (or panels) of a width the axes fill; nothing where that is not known."""
    count = size_of(axes)
    return count / (width * -(-count // width)) if isinstance(count, int) and count > 0 else 0.0


def with_panels(p: Product, indices: Indices) -> tuple[Kept, Kept]:
    """The panels of a right operand as a stage of its own, and the product's stage reading them."""
    packed = panels(p, indices)
    form, kept = p.form, p.kept
    (body,) = stage_bodies(kept.stage)
    assert isinstance(packed.stage, Compute) and isinstance(body, Reduce) and isinstance(kept.stage, Compute)
    column, width = flat_position(form.columns, indices), p.tile.columns
    place = (
        *p.product_of_batch(indices),
        binary("floordiv", column, width),
        flat_position(form.reduced, indices),
        binary("mod", column, width),
    )
    product = form.product(form.left, cast(Load(packed, place, packed.dtype), form.left.dtype))
    stage = Compute(
        kept.stage.name, kept.stage.axes, (Reduce("sum", body.axes, cast(product, body.body.dtype), body.dtype),)
    )
    return Kept(packed.stage, packed.stage, (packed.dtype,)), replace(kept, stage=stage)
