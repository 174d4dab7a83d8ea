"""Register tiles: how many rows and columns of a product are summed at once, and how its columns are shared out over panels.

A tile of ``rows`` by ``V`` vectors takes ``rows * V`` registers for sums, ``V`` for a row of the panel and one more. Columns that are no
multiple of a tile's width would leave lanes of the last panel idle, so panels are of two widths where that leaves fewer: 19 vectors are
four panels of 4 and one of 3. A panel may end in half a vector where processors take vectors in halves and so multiply it in half the
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relay.ir.dim import Dim, ceil_div
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.target import Target

# More rows would not make a tile faster (eight independent sums keep two units busy), only its residues' code longer.
_MAX_ROWS = 8
# Vectors beside each other of one row: enough independent sums, and long runs in memory.
_MAX_VECTORS = 12
# Code for a second width has to save so much of the time.
_GAIN = 0.015
# Rows up to which the number of their tiles is looked at. Where multiply-adds wait for caches each tile waits for its vectors of a
# panel for about a multiply-add; of an unknown number of rows for half of one, as many of them wait less.
_COUNTED_ROWS, _WAIT, _WAIT_OF_ANY = 16, 1.0, 0.5


@record(frozen=True, slots=True)
class Tile:
    """``rows`` by ``columns`` of the result in registers."""

    rows: int
    columns: int


@record(frozen=True, slots=True)
class PanelRun:
    """``count`` neighbouring panels as wide as ``tile``, or as ``apart`` where that is given: the first is panel ``number`` and begins at
    ``column``. ``ragged``: there may be fewer columns in the last one."""

    number: int
    count: Dim
    column: int
    tile: Tile
    ragged: bool
    apart: int | None = None

    @property
    def width(self) -> int:
        """How far apart the panels begin."""
        return self.tile.columns if self.apart is None else self.apart


def tile_for(target: Target, dtype: str, rows: Dim, columns: Dim, vectors: int | None = None) -> Tile:
    """The register tile: as many columns as fit without much padding (or so many ``vectors``), as many rows as there are registers."""
    lanes = target.lanes(dtype_bits(dtype))

    def worth(vectors: int) -> tuple[float, int]:
        assert isinstance(columns, int)
        width = vectors * lanes
        used = columns / (-(-columns // width) * width)
        # Of tiles that are as good as each other for many rows the higher one takes more of few rows at once: 8 by 3 vectors, not 6 by 4.
        height = 0 if isinstance(rows, int) else tile_height(target, vectors)
        return round(used * vectors / _cost(target, vectors, rows), 3), height

    if vectors is None:
        vectors = max(_widths(target), key=worth) if isinstance(columns, int) else 2
    return Tile(_rows_of(target, vectors, rows), vectors * lanes)


def panel_runs(
    target: Target, dtype: str, rows: Dim, columns: Dim, vectors: int | None = None, halves: bool = True
) -> tuple[PanelRun, ...]:
    """The columns shared out over panels, wide ones first: by `_cost`, in at most two widths, or all in one of so many
    ``vectors``. ``halves``: a panel may end in half a vector."""
    uniform = tile_for(target, dtype, rows, columns, vectors)
    count = ceil_div(columns, uniform.columns)
    even = isinstance(columns, int) and columns % uniform.columns == 0
    one = _apart(target, (PanelRun(0, count, 0, uniform, ragged=not even),))
    if vectors is not None or not isinstance(columns, int) or columns == 0:
        return one
    lanes = target.lanes(dtype_bits(dtype))
    parts = 2 if halves and has_halves(target) else 1
    units = -(-columns * parts // lanes)
    assert isinstance(count, int)
    best: tuple[tuple[int, int], ...] | None = None
    least = count * _cost(target, uniform.columns / lanes, rows) * (1 - _GAIN)
    for wide in range(max(_widths(target)) * parts, 0, -1):
        for narrow in range(wide):
            # As many narrow panels as a wide one has units would be as many columns as so many wide ones.
            for several in range(1 if narrow == 0 else wide):
                left = units - several * narrow
                if left <= 0 or left % wide or (narrow and not several):
                    continue
                took = left // wide * _cost(target, wide / parts, rows) + (
                    several and several * _cost(target, narrow / parts, rows)
                )
                if took < least:
                    best, least = ((left // wide, wide), (several, narrow)), took
    if best is None:
        return one
    runs: list[PanelRun] = []
    number = column = 0
    for times, unit in best:
        if times:
            width = unit * lanes // parts
            tile = Tile(_rows_of(target, -(-unit // parts), rows), width)
            end = column + times * width
            runs.append(PanelRun(number, times, column, tile, ragged=end > columns))
            number, column = number + times, end
    return _apart(target, runs)


def _apart(target: Target, runs: Sequence[PanelRun]) -> tuple[PanelRun, ...]:
    """The last of several panels as a run of its own if it is not whole, where masks take vector registers and time: the others have
    none then, and that one's are constants."""
    *others, last = runs
    if target.mask_registers or not last.ragged or not isinstance(last.count, int) or last.count < 2:
        return tuple(runs)
    whole = last.count - 1
    ragged = replace(last, number=last.number + whole, count=1, column=last.column + whole * last.tile.columns)
    return (*others, replace(last, count=whole, ragged=False), ragged)


def uniform_runs(target: Target, dtype: str, rows: Dim, columns: Dim) -> tuple[PanelRun, ...]:
    """The columns shared out over panels of one width, which is half a vector where there are no more of them."""
    lanes = target.lanes(dtype_bits(dtype))
    if isinstance(columns, int) and 2 * columns <= lanes and has_halves(target):
        return (PanelRun(0, 1, 0, Tile(_rows_of(target, 1, rows), lanes // 2), ragged=2 * columns < lanes),)
    return panel_runs(target, dtype, rows, columns, tile_for(target, dtype, rows, columns).columns // lanes)


def narrower(target: Target, dtype: str, rows: Dim, tile: Tile) -> list[Tile]:
    """The tiles that a last panel has of an unknown number of columns where it has fewer than ``tile``, widest first: whole vectors, and
    half of one where that saves time. (Of unknown rows each has code for every height: whole vectors have to do.)"""
    lanes = target.lanes(dtype_bits(dtype))
    vectors = range(tile.columns // lanes - 1, 0, -1)
    out = [Tile(_rows_of(target, v, rows), v * lanes) for v in vectors]
    halves = isinstance(rows, int) and has_halves(target)
    return [*out, Tile(_rows_of(target, 1, rows), lanes // 2)] if halves else out


def has_halves(target: Target) -> bool:
    """Whether half a vector is multiplied in half the time."""
    return target.masked and target.vector_bits >= 512 and not target.outruns_caches


def panel_pitch(target: Target, dtype: str, runs: tuple[PanelRun, ...]) -> int:
    """How far apart the rows of a panel lie, so that whole vectors of them begin at lines."""
    lanes, widest = target.lanes(dtype_bits(dtype)), max(run.tile.columns for run in runs)
    return widest if widest < lanes else -(-widest // lanes) * lanes


def _widths(target: Target) -> tuple[int, ...]:
    return (4, 3, 2, 1) if target.vector_registers >= 32 else (3, 2, 1)


def _cost(target: Target, vectors: float, rows: Dim) -> float:
    """The time of a step along k for a row of a tile: a multiply-add for each vector, and half as much for each load of a vector of
    the panel (once for all rows) and of an element (half of that)."""
    height, wait = float(tile_height(target, -int(-vectors // 1))), 0.5
    if not isinstance(rows, int):
        wait += _WAIT_OF_ANY * target.outruns_caches
    elif 0 < rows <= _COUNTED_ROWS:
        height, wait = rows / -(-rows // height), wait + _WAIT * target.outruns_caches
    return vectors + wait * vectors / height + 0.25


def _rows_of(target: Target, vectors: int, rows: Dim) -> int:
    height = tile_height(target, vectors)
    return min(height, rows) if isinstance(rows, int) else height


def wide_tile(target: Target, dtype: str, rows: int, columns: Dim, widest: int = _MAX_VECTORS) -> Tile:
    """The tile of all of a few rows: as many columns as registers hold sums of (``widest`` vectors at most), a little fewer where no
    rest is left."""
    lanes = target.lanes(dtype_bits(dtype))
    most = max(1, min(widest, (target.vector_registers * 3 // 4) // max(rows, 1)))
    vectors = most
    if isinstance(columns, int):
        count = -(-columns // lanes)
        vectors = next((v for v in range(most, most // 2, -1) if count % v == 0), min(most, count))
    return Tile(max(rows, 1), vectors * lanes)


def tile_height(target: Target, vectors: int, partial: int = 1) -> int:
    """The rows of a register tile that is so many vectors wide, of elements that are made of ``partial`` sums each."""
    return max(1, min(_MAX_ROWS, (target.vector_registers - vectors - 1) // (vectors * partial)))
