"""Reductions down columns of which there are fewer than fill vectors, several steps beside each other.

    for k in K { acc[lane] += x[k * n + lane] }
    ->   for g in K / S { wide[w] += x[g * S * n + w] };  acc[lane] = sum of wide[s * n + lane]

With lanes across three columns a vector has work for three lanes, and waits for the one before it. But where columns lie beside each other
S steps are S * n elements behind each other, of which lanes take as many as they are: each of S sums of a column takes every S-th
step, and at the end they are added up. What all steps read alike of a column (its mean) is repeated S times first. Whether that is done
depends on sizes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from relay.ir.dim import Dim, ceil_div, dim_mul
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import Buffer, For, Stmt, Store
from relay.plan.build import STACK_BYTES, Builder, allocate, ceiling, seq, serial, vectorized
from relay.plan.reduction import combine, initial
from relay.plan.space import accesses
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Const,
    Load,
    Reduce,
    Scalar,
    binary,
    cast,
    compare,
    conjunction,
    extent_of,
    maximum,
    minimum,
    transform,
    walk,
)

# Steps beside each other, and columns that are few: where it is not known how many there are, or something dear is computed, and where
# they are known, which accumulators in registers hold then.
_ABREAST, _FEW, _FEW_KNOWN = 64, 32, 16
# Sums of a column that are added up one after the other at the end; the others are added to these before.
_PARTS = 16
# So many steps repay what is between them, and so many for each column. (Sums of 400 matrices of 160 x 12, of which a step alone fills
# three quarters of a vector, take 58 us beside each other and 46 one by one, of 500 x 12 215 and 160, of 500 x 7 100 and 156.)
_LEAST, _LEAST_OF_A_COLUMN = 256, 64
# What is kept of all columns, so that the first-level cache holds it.
_BYTES = 2 * STACK_BYTES
_KINDS = ("sum", "prod", "max", "min")


@record(frozen=True, slots=True, eq=False)
class Columns:
    """Columns that lanes run across: the axis, how many of them accumulators have room for, the lane, and a loop over the lanes."""

    axis: Axis
    room: int
    lane: Axis
    loop: Callable[[Stmt], Stmt]


@record(frozen=True, slots=True, eq=False)
class Sums:
    """Reductions over the same axes, the last of them ``step``: what is added to each accumulator as an expression of step and column."""

    step: Axis
    values: tuple[Reduce, ...]
    buffers: tuple[Buffer, ...]


def may_be_few(columns: Dim, steps: Dim, dear: bool = False) -> bool:
    """Whether there may be few columns, and steps that repay it; ``dear``: something is computed of each element."""
    least = _LEAST
    if isinstance(columns, int):
        if not 1 < columns <= (_FEW if dear else _FEW_KNOWN):
            return False
        least = max(least, _LEAST_OF_A_COLUMN * columns)
    return not isinstance(steps, int) or steps >= least


def lie_beside(indices: Indices, polys: Iterable[Dim], column: Axis, step: Axis) -> bool:
    """Whether all that changes with a step lies a step's columns behind that of the one before."""
    steps = [(indices.coefficient(p, column), indices.coefficient(p, step)) for p in polys]
    return all(by_step == 0 or (by_column == 1 and by_step == column.extent) for by_column, by_step in steps)


def abreast(builder: Builder, columns: Columns, sums: Sums, outer: Sequence[Axis]) -> tuple[Scalar | None, Stmt] | None:
    """The loops of such sums, several steps beside each other, which add the results to what their buffers hold, a column each; and on what
    condition (None: always). ``outer``: the axes that are reduced around the steps. None: what they read lies otherwise."""
    column, step = columns.axis, sums.step
    if any(value.kind not in _KINDS for value in sums.values):
        return None
    repeated = _repeated(builder, columns, sums, outer)
    if repeated is None:
        return None
    kept = [*(load.dtype for load in repeated.values()), *(b.dtype for b in sums.buffers)]
    most = min(columns.room, _FEW, _BYTES // (_ABREAST * sum(max(1, dtype_bits(d) // 8) for d in kept)))
    if isinstance(column.extent, int):
        if column.extent > most:
            return None
        most = column.extent
    wide = Axis("wide", dim_mul(column.extent, _ABREAST))
    width, extent = extent_of(column.extent), extent_of(step.extent)
    tiles = {
        key: Buffer(builder.fresh("repeated"), (_ABREAST * most,), load.dtype, "stack")
        for key, load in repeated.items()
    }
    accs = [Buffer(builder.fresh("wide"), (_ABREAST * most,), b.dtype, "stack") for b in sums.buffers]

    def updates(first: Scalar) -> list[Stmt]:
        """What the steps from one on, beside each other, add."""
        held = {key: Load(tile, (wide,), tile.dtype) for key, tile in tiles.items()}
        out: list[Stmt] = []
        for value, acc in zip(sums.values, accs, strict=True):
            (element,) = builder.evaluate([_replaced(value.body, held)], {step: first, column: wide})
            out.append(
                Store(acc, (wide,), combine(value.kind, Load(acc, (wide,), acc.dtype), cast(element, acc.dtype)))
            )
        return out

    def across(count: Scalar, body: Sequence[Stmt]) -> Stmt:
        return vectorized(wide, count, seq(body))

    all_of_them = binary("mul", width, _ABREAST)
    starts = [Store(acc, (wide,), initial(value.kind, acc.dtype)) for value, acc in zip(sums.values, accs, strict=True)]
    several = Axis(step.name + "s", ceil_div(step.extent, _ABREAST))
    begin = binary("mul", several, _ABREAST)
    count = binary("mul", minimum(_ABREAST, binary("sub", extent, begin)), width)
    loops = For(several, ceiling(extent, Const(_ABREAST, "int64")), across(count, updates(begin)))
    again, part = Axis("again", _ABREAST // _PARTS - 1), Axis("part", _PARTS)
    more = binary("add", binary("mul", binary("mul", binary("add", again, 1), _PARTS), width), wide)
    folds: list[Stmt] = []
    for value, acc in zip(sums.values, accs, strict=True):
        now = Load(acc, (wide,), acc.dtype)
        folds.append(Store(acc, (wide,), combine(value.kind, now, Load(acc, (more,), acc.dtype))))
    first = binary("mul", width, _PARTS)
    folded = For(again, Const(_ABREAST // _PARTS - 1, "int64"), across(first, folds))
    ends: list[Stmt] = []
    for value, acc, buffer in zip(sums.values, accs, sums.buffers, strict=True):
        now = Load(buffer, (columns.lane,), buffer.dtype)
        own = Load(acc, (binary("add", binary("mul", part, width), columns.lane),), acc.dtype)
        ends.append(Store(buffer, (columns.lane,), combine(value.kind, now, own)))
    end = [folded, For(part, Const(_PARTS, "int64"), columns.loop(seq(ends)))]
    fills: list[Stmt] = []
    for key, tile in tiles.items():
        time = Axis("time", _ABREAST)
        (load,) = builder.evaluate([repeated[key]], {column: columns.lane})
        place = binary("add", binary("mul", time, width), columns.lane)
        fills.append(For(time, Const(_ABREAST, "int64"), columns.loop(Store(tile, (place,), load))))
    body = [*fills, across(all_of_them, starts), serial(outer, loops), *end]
    tests: list[Scalar] = []
    if not isinstance(column.extent, int):
        tests.append(compare("le", width, most))
    if not isinstance(step.extent, int) or not isinstance(column.extent, int):
        tests.append(compare("ge", extent, maximum(_LEAST, binary("mul", width, _LEAST_OF_A_COLUMN))))
    return conjunction(tests) if tests else None, allocate([*tiles.values(), *accs], seq(body))


def _repeated(builder: Builder, columns: Columns, sums: Sums, outer: Sequence[Axis]) -> Mapping[int, Load] | None:
    """What is read of a column alike in all steps, by the ids of the loads. None: something is read otherwise than that, or than step after
    step as columns lie beside each other, or computed from where a column or a step is."""
    indices, column, step = builder.indices, columns.axis, sums.step
    bodies = [value.body for value in sums.values]
    if accesses(indices, bodies, ()).fixed & {column, step, columns.lane}:
        return None
    out: dict[int, Load] = {}
    loads = {id(n): n for body in bodies for n in walk(body) if isinstance(n, Load)}
    if any(isinstance(n, Load) for load in loads.values() for i in load.indices for n in walk(i)):
        return None
    for key, load in loads.items():
        polys = [indices.poly(i) for i in load.indices]
        if len(polys) != 1 or not isinstance(load.source, Buffer):
            return None
        (poly,) = polys
        by_column, by_lane, by_step = (indices.coefficient(poly, a) for a in (column, columns.lane, step))
        if by_step == 0 and sorted((by_column, by_lane), key=str) == [0, 1]:
            if any(indices.coefficient(poly, a) != 0 for a in outer):
                return None
            out[key] = load
        elif by_lane != 0 or by_column not in (0, 1) or by_step != dim_mul(column.extent, by_column):
            return None
    return out


def _replaced(root: Scalar, by: Mapping[int, Scalar]) -> Scalar:
    return transform(root, lambda n: n, dict(by))
