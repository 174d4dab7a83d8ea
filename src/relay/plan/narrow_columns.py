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

from relay.ir.dim import Dim, dim_mul
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import Between, Buffer, For, LetScalar, Stmt, Store, between
from relay.plan.build import STACK_BYTES, Builder, allocate, bound, ceiling, seq, serial, vectorized
from relay.plan.reduction import combine, initial
from relay.plan.row_parts import ABREAST, FEW_COLUMNS
from relay.plan.space import accesses
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Const,
    Load,
    Named,
    Reduce,
    Scalar,
    binary,
    cast,
    compare,
    conjunction,
    extent_of,
    maximum,
    minimum,
    select,
    transform,
    walk,
)

# Columns that are few where they are known and nothing dear is computed: accumulators in registers hold more.
_FEW_KNOWN = 16
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
    """Columns that lanes run across: the axis, how many of them accumulators have room for, the lane, how many there are, a loop over them,
    and the column of the first: none, where columns are few."""

    axis: Axis
    room: int
    lane: Axis
    count: Scalar
    loop: Callable[[Stmt], Stmt]
    first: Scalar


@record(frozen=True, slots=True, eq=False)
class Element:
    """What is computed of each step and column by itself, and where it belongs, as expressions of these; sums know it by its name."""

    name: Named
    value: Scalar
    buffer: Buffer
    place: Scalar


@record(frozen=True, slots=True, eq=False)
class Steps:
    """Reductions over the same axes, the last of them ``step``: what is added to each accumulator as an expression of step and column, and
    of the ``elements`` that are made in the same steps before."""

    step: Axis
    values: tuple[Reduce, ...]
    buffers: tuple[Buffer, ...]
    elements: tuple[Element, ...] = ()


def may_be_few(columns: Dim, steps: Dim, dear: bool = False) -> bool:
    """Whether there may be few columns, and steps that repay it; ``dear``: something is computed of each element."""
    least = _LEAST
    if isinstance(columns, int):
        if not 1 < columns <= (FEW_COLUMNS if dear else _FEW_KNOWN):
            return False
        least = max(least, _LEAST_OF_A_COLUMN * columns)
    return not isinstance(steps, int) or steps >= least


def lie_beside(indices: Indices, polys: Iterable[Dim], column: Axis, step: Axis) -> bool:
    """Whether all that changes with a step lies a step's columns behind that of the one before."""
    steps = [(indices.coefficient(p, column), indices.coefficient(p, step)) for p in polys]
    return all(by_step == 0 or (by_column == 1 and by_step == column.extent) for by_column, by_step in steps)


def abreast(
    builder: Builder, columns: Columns, steps: Steps, outer: Sequence[Axis]
) -> tuple[Scalar | None, Stmt] | None:
    """The loops of such steps, several beside each other, which add the results to what their buffers hold, a column each; and on what
    condition (None: always). Where there are elements, the loops are for any number of columns: of many a step goes alone. ``outer``: the
    axes that are gone through around the steps. None: what they read lies otherwise."""
    column, step = columns.axis, steps.step
    if any(value.kind not in _KINDS for value in steps.values):
        return None
    repeated = _repeated(builder, columns, steps, outer)
    if repeated is None:
        return None
    kept = [*(load.dtype for load in repeated.values()), *(b.dtype for b in steps.buffers)]
    most = min(columns.room, FEW_COLUMNS, _BYTES // (ABREAST * max(1, sum(max(1, dtype_bits(d) // 8) for d in kept))))
    if isinstance(column.extent, int):
        if column.extent > most:
            return None
        most = column.extent
    width, extent = extent_of(column.extent), extent_of(step.extent)
    tests: list[Scalar] = []
    if not isinstance(column.extent, int):
        tests.append(compare("le", width, most))
    if not isinstance(step.extent, int) or not isinstance(column.extent, int):
        tests.append(compare("ge", extent, maximum(_LEAST, binary("mul", width, _LEAST_OF_A_COLUMN))))
    cond = conjunction(tests) if tests else None
    if cond is None or not steps.elements:
        return cond, _loops(builder, columns, steps, outer, repeated, Const(ABREAST, "int64"), ABREAST * most)
    lines = Between("lines", ABREAST + 1, low=1, high=(Const(ABREAST, "int64"),))
    size = max(ABREAST * most, columns.room)
    loops = _loops(builder, columns, steps, outer, repeated, lines, size)
    return None, bound([between(lines, select(cond, Const(ABREAST, "int64"), Const(1, "int64")))], loops)


def _loops(
    builder: Builder,
    columns: Columns,
    steps: Steps,
    outer: Sequence[Axis],
    repeated: Mapping[int, Load],
    lines: Scalar,
    size: int,
) -> Stmt:
    """The loops of steps, so many ``lines`` beside each other, of which ``size`` elements are kept at most. ``repeated``: what they read of
    a column alike. Where the memory of a column's number has room for as many, its first line is there already."""
    step, extent = steps.step, extent_of(steps.step.extent)
    few = isinstance(lines, Const)
    width = extent_of(columns.axis.extent) if few else columns.count
    wide, at_lane = Axis("wide", size), builder.indices.poly(columns.lane)
    own: list[Buffer] = []

    def memory(buffer: Buffer, name: str, may: bool) -> tuple[Buffer, int]:
        """Memory for all lines, and how many of them are there."""
        (room,) = buffer.shape
        if may and buffer.scope in ("stack", "worker") and isinstance(room, int) and room >= size:
            return buffer, 1
        own.append(Buffer(builder.fresh(name), (size,), buffer.dtype, "stack"))
        return own[-1], 0

    def line(name: str, number: Scalar, room: Scalar) -> tuple[Between, tuple[Axis, Scalar]]:
        """Where a line begins, behind which there is so much room, and what is to be bound for that."""
        at = Between(name, size, low=0, high=(binary("sub", size, room),))
        return at, between(at, binary("mul", number, width))

    held: dict[int, Scalar] = {}
    fills: list[Stmt] = []
    tiles: dict[tuple[object, Dim], Buffer] = {}
    for key, load in repeated.items():
        assert isinstance(load.source, Buffer)
        place = builder.indices.poly(load.indices[0])
        if (load.source, place) not in tiles:
            tile, there = memory(load.source, "repeated", place == at_lane)
            tiles[load.source, place] = tile
            own_column = binary("add", columns.first, columns.lane)
            (value,) = builder.evaluate([load], {columns.axis: own_column})
            time = Axis("time", ABREAST)
            at, begins = line("at", binary("add", time, there), width)
            fill = columns.loop(Store(tile, (binary("add", at, columns.lane),), value))
            fills.append(For(time, binary("sub", lines, there), bound([begins], fill)))
        held[key] = Load(tiles[load.source, place], (wide,), load.dtype)
    accs = [memory(b, "wide", True) for b in steps.buffers]

    def updates(first: Scalar) -> list[Stmt]:
        """What the steps from one on, beside each other, add."""
        at = {step: first, columns.axis: wide if few and not steps.elements else binary("add", columns.first, wide)}
        out: list[Stmt] = []
        for value, (acc, _) in zip(steps.values, accs, strict=True):
            (element,) = builder.evaluate([_replaced(value.body, held)], at)
            now = Load(acc, (wide,), acc.dtype)
            out.append(Store(acc, (wide,), combine(value.kind, now, cast(element, acc.dtype))))
        for made in reversed(steps.elements):
            inner, place = builder.evaluate([_replaced(made.value, held), made.place], at)
            out = [LetScalar(made.name, inner, seq([Store(made.buffer, (place,), made.name), *out]))]
        return out

    starts: list[Stmt] = []
    folds: list[Stmt] = []
    ends: list[Stmt] = []
    again, part = Axis("again", ABREAST // _PARTS - 1), Axis("part", _PARTS)
    more, folds_from = line("more", binary("mul", binary("add", again, 1), _PARTS), Const(0, "int64"))
    for value, (acc, there), buffer in zip(steps.values, accs, steps.buffers, strict=True):
        first = binary("mul", width, there)
        rest = minimum(binary("sub", size, first), binary("mul", binary("sub", lines, there), width))
        starts.append(vectorized(wide, rest, Store(acc, (binary("add", first, wide),), initial(value.kind, acc.dtype))))
        now, behind = Load(acc, (wide,), acc.dtype), Load(acc, (binary("add", more, wide),), acc.dtype)
        folds.append(Store(acc, (wide,), combine(value.kind, now, behind)))
        at, begins = line("at", binary("add", part, there), width)
        own_part = Load(acc, (binary("add", at, columns.lane),), acc.dtype)
        both = combine(value.kind, Load(buffer, (columns.lane,), buffer.dtype), own_part)
        end = bound([begins], columns.loop(Store(buffer, (columns.lane,), both)))
        ends.append(For(part, binary("sub", minimum(lines, _PARTS), there), end))
    several = Axis(step.name + "s", step.extent)
    begin = binary("mul", several, lines)
    left = binary("sub", extent, begin)
    count = binary("mul", minimum(lines, left), width)
    if not few:  # of columns that are not all at hand, a step goes alone
        every = binary("mul", left, extent_of(columns.axis.extent))
        count = minimum(count, binary("sub", every, columns.first))
    loops = serial(
        outer, For(several, ceiling(extent, lines), vectorized(wide, minimum(size, count), seq(updates(begin))))
    )
    if folds:
        rounds = binary("sub", ceiling(lines, Const(_PARTS, "int64")), 1)
        whole = minimum(binary("mul", width, _PARTS), binary("sub", size, more))
        ends = [For(again, rounds, bound([folds_from], vectorized(wide, whole, seq(folds)))), *ends]
    return allocate(own, seq([*fills, *starts, loops, *ends]))


def _repeated(builder: Builder, columns: Columns, steps: Steps, outer: Sequence[Axis]) -> Mapping[int, Load] | None:
    """What is read of a column alike in all steps, by the ids of the loads. None: something is read otherwise than that, or than step after
    step as columns lie beside each other, or computed from where a column or a step is."""
    indices, column, step = builder.indices, columns.axis, steps.step
    bodies = [*(value.body for value in steps.values), *(made.value for made in steps.elements)]
    if accesses(indices, bodies, ()).fixed & {column, step, columns.lane}:
        return None
    places = [indices.poly(made.place) for made in steps.elements]
    if any(indices.coefficient(p, column) != 1 or indices.coefficient(p, columns.lane) != 0 for p in places):
        return None
    if not lie_beside(indices, places, column, step):
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
