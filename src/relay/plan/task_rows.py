"""How many rows of a matrix product are one task."""

from __future__ import annotations

from relay.ir.dim import Dim
from relay.loop.ir import Buffer
from relay.plan.product import size_of
from relay.plan.product_nest import ProductNest

# Rows of one task: enough that reading or packing a panel is repaid, few enough that tasks can be shared out.
_ROWS_CONSTANT = 192
_ROWS_PACKED = 768
_ROWS_TURNED = 96
# The same of a turned product that reads its rows along k, where no window is read again by the rows beside it: more tasks.
_ROWS_TURNED_ALONG_DEPTH = 48


def task_block(nest: ProductNest, height: int, packed: Buffer | None, task_rows: int | None) -> int:
    """The rows of a task, of tiles of so many rows: about ``task_rows``, where that is not for the model to say."""
    p, rows = nest.p, size_of(nest.p.rows)
    serves_many = p.form.turned or p.form.guard is not None
    along_depth = p.form.turned and len(p.reduced) == 1
    exchanged = _ROWS_TURNED_ALONG_DEPTH if along_depth else _ROWS_TURNED
    limit = exchanged if serves_many else _ROWS_CONSTANT if packed is not None else _ROWS_PACKED
    limit = limit if task_rows is None else task_rows
    block = max(height, limit // height * height)
    if not isinstance(rows, int):
        return block
    # Blocks of nearly one size: a short last one would be one thread's work while the others wait.
    blocks = -(-rows // block)
    block = rows if blocks <= 1 else -(-rows // (blocks * height)) * height
    return _even_block(rows, block, p.rows[-1].extent) if p.form.turned and blocks > 1 else block


def _even_block(rows: int, block: int, line: Dim) -> int:
    """About as many rows as a block, of which there is a whole number in all rows: no code is needed for other heights of
    tiles. If it can be, whole lines of the rows."""
    even = [n for n in range(3 * block // 2, block // 2, -1) if rows % n == 0]
    lines = [n for n in even if isinstance(line, int) and n % line == 0]
    return next(iter((*lines, *even)), block)
