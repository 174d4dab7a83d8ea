"""Shallow products whose results are written row by row.

The gradient of a weight for a few rows (``out[n, j] = sum(g[k, n] * x[k, j])``, k short) takes about as long to write as to multiply. Panel
after panel, each tile writes short runs of rows that are pages apart, and comes back to them with the next panel, when no cache has their
pages' addresses and the machine's prefetchers have lost them. So a task packs all its panels first, and each tile of rows goes through
them: its rows are written from end to end. The panels, which are read again by every tile of rows, stay in the second-level cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from relay.ir.dim import Dim
from relay.ir.types import dtype_bits
from relay.plan.left_block import is_far_apart
from relay.plan.product import size_of
from relay.plan.product_nest import ProductNest

# Up to this depth results take a good part of the time.
DEEPEST = 128
# A task's panels take this part of the second-level cache at most; results that have less than this part of it stay there.
_PART_OF_PANELS, _PART_OF_RESULTS = 4, 2
# Rows are divided into so many tasks, of so many at least.
_TASKS, _FEWEST_ROWS = 4, 48


@dataclass(frozen=True, slots=True)
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
