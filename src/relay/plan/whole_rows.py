"""Shallow products whose results are written row by row.

The gradient of a weight for a few rows (``out[n, j] = sum(g[k, n] * x[k, j])``, k short) takes about as long to write as to multiply. Panel
after panel, each tile writes short runs of rows that are pages apart, and comes back to them with the next panel, when no cache has their
pages' addresses and the machine's prefetchers have lost them. So a task packs all its panels first, and each tile of rows goes through
them: its rows are written from end to end. The panels, which are read again by every tile of rows, stay in the second-level cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from relay.ir.dim import Dim, dim_add, dim_floordiv, dim_mul
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import Branch, Buffer, For, LetScalar, Stmt
from relay.plan.build import allocate, bound, seq, temporary
from relay.plan.left_block import LeftBlock, is_far_apart
from relay.plan.panels import Panel
from relay.plan.parallel import parallel_rows
from relay.plan.product import size_of
from relay.plan.product_nest import FMA_DISCOUNT, ProductNest, balanced
from relay.plan.register_tiles import Task, variable
from relay.plan.row_shares import RowShares, part_of
from relay.plan.task_tiles import TaskTiles
from relay.plan.tiles import PanelRun
from relay.te.scalar import Axis, Scalar, binary, compare, minimum

# Up to this depth results take a good part of the time.
DEEPEST = 128
# A task's panels take this part of the second-level cache at most; results that have less than this part of it stay there.
_PART_OF_PANELS, _PART_OF_RESULTS = 4, 2
# Rows are divided into so many tasks, of so many at least.
_TASKS, _FEWEST_ROWS = 4, 48


@record(frozen=True, slots=True)
class RowCut:
    """A product in tasks of ``block`` rows by ``panels`` panels, the rows of the left operand copied before or not."""

    block: int
    parts: int
    panels: int
    groups: int
    copies: bool


def row_cut(nest: ProductNest, panels: Dim) -> RowCut | None:
    """The tasks of a product with so many panels, where its results are best written row by row: if it is no deeper than `DEEPEST`."""
    p, target = nest.p, nest.builder.target
    rows, depth, columns = size_of(p.rows), size_of(p.reduced), size_of(p.columns)
    if p.form.turned or p.form.guard is not None or p.batch or p.outer or len(p.rows) != 1 or len(p.reduced) != 1:
        return None
    if not target.outruns_caches or not isinstance(panels, int) or panels < 2:
        return None
    if not isinstance(rows, int) or not isinstance(columns, int):
        return None
    if isinstance(depth, int) and not 0 < depth <= DEEPEST:
        return None
    size, depth = dtype_bits(p.form.accumulate) // 8, depth if isinstance(depth, int) else DEEPEST
    if rows < _FEWEST_ROWS or rows * columns * size < target.l2_bytes // _PART_OF_RESULTS:
        return None
    most = max(1, target.l2_bytes // (_PART_OF_PANELS * depth * p.pitch * size))
    groups = -(-panels // most)
    height = min(run.tile.rows for run in p.runs)
    block = -(-max(rows // _TASKS, _FEWEST_ROWS) // height) * height
    return RowCut(block, -(-rows // block), -(-panels // groups), groups, is_far_apart(nest, rows, depth))


def row_by_row(nest: ProductNest, runs: Sequence[PanelRun], by: RowCut) -> Stmt:
    """A product whose tasks pack all their panels first, and write their results row by row."""
    p, last = nest.p, runs[-1]
    panels, depth, rows = dim_add(last.number, last.count), size_of(p.reduced), size_of(p.rows)
    assert isinstance(panels, int) and isinstance(rows, int)
    each = (depth if isinstance(depth, int) else DEEPEST) * p.pitch
    height = min(run.tile.rows for run in runs)
    work = dim_floordiv(dim_mul(panels * rows * p.pitch, depth), FMA_DISCOUNT)
    shares = RowShares.of(rows, rows, by.block, height, by.groups, work)
    group, part = Axis("group", by.groups), Axis("part", by.parts if shares is None else 1 << 16)
    made = temporary(nest.builder.fresh("panels"), by.panels * each, p.form.accumulate)
    start, count, names = part_of(variable(part), rows, by.block, 1, shares)
    left = LeftBlock.of(nest, (start, count), by.block, deepest=DEEPEST) if by.copies else None
    before = binary("mul", variable(group), by.panels)
    several = minimum(by.panels, binary("sub", panels, before))

    def through(of: Callable[[TaskTiles, Task], Stmt]) -> Stmt:
        """What is done for each of the panels."""
        inner, panel = Axis("inner", by.panels), Axis("panel", panels)
        at = binary("mul", inner, each)

        def one(run: PanelRun) -> Stmt:
            tiles = TaskTiles(replace(nest, p=replace(p, tile=run.tile), env={}), run, None)
            first, across = tiles.columns(variable(panel))
            columns = Panel(tiles.shared, variable(panel), first, across, None, made, at)
            return of(tiles, Task(start, count, 1, by.block, columns, made, left))

        body = one(last)
        for run in reversed(runs[:-1]):
            body = Branch(compare("lt", panel, dim_add(run.number, run.count)), one(run), body)
        return For(inner, several, LetScalar(panel, binary("add", before, inner), body))

    def tile(row: Scalar, height: int, offset: Scalar) -> Stmt:
        def multiplied(tiles: TaskTiles, task: Task) -> Stmt:
            def finish(held: Buffer) -> list[Stmt]:
                return tiles.shared.finish_tile(held, row, task.panel.first, task.panel.across)

            return tiles.micro(task, row, height, offset, None, finish)

        return through(multiplied)

    packed = through(lambda _, task: seq(task.panel.packed_first(None)))
    fewest = min(by.block, rows - (by.parts - 1) * by.block) if shares is None else shares.fewest
    tiled = balanced(start, count, by.block, height, tile, None, fewest)
    body = allocate([made], seq([packed, tiled]))
    if left is not None:
        body = allocate([left.buffer], seq([left.copied(), body]))
    body = bound(names, body)
    if shares is None:
        work = dim_floordiv(dim_mul(by.panels * by.block * p.pitch, depth), FMA_DISCOUNT)
        return parallel_rows(nest.builder, [group, part], work, body)
    return shares.loop([group], (part, shares.number), by.groups, work, body)
