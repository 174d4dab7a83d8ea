"""Panels gone through from the first to the last and, at the next call, back: what a cache has at the end of one call is what the next one
reads first. The order of panels changes no sum. Of an unknown number of rows, those are done so that have code of their own for a few.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.dim import Dim
from relay.ir.types import dtype_bits
from relay.loop.ir import TURN, WORKERS, Buffer
from relay.plan.build import Residence, ceiling
from relay.plan.product import size_of
from relay.plan.product_nest import ProductNest
from relay.plan.tiles import PanelRun
from relay.te.scalar import Axis, Scalar, binary, compare, extent_of, minimum, select

# Of up to so many rows, and of panels that fill up to so many caches. Two rows are multiplied in the time that panels take to come from the
# second-level cache, so what the first-level one has of them is a gain for a single row.
_MOST_ROWS, _MOST_ROWS_NEAR, MOST_CACHES = 48, 1, 8


def is_kept_in_part(nest: ProductNest, most: int | None, panels: Dim, runs: Sequence[PanelRun], packed: Buffer) -> bool:
    """Whether a cache keeps a good part of all panels, but not all, from one call to the next (a recurrent network's
    weights). From first to last, each call would drive out what the next one reads first; every other call goes back, from what was read
    last. With more rows (``most``, if that is known) multiply-adds take longer than reading."""
    if not isinstance(panels, int) or panels < 2 or nest.builder.weights is Residence.NONE:
        return False
    columns = sum(run.tile.columns * run.count for run in runs if isinstance(run.count, int))
    return stays_in_part(nest, most, columns, packed.dtype)


def stays_in_part(nest: ProductNest, most: int | None, columns: int, dtype: str) -> bool:
    """The same of a right operand's columns, wherever they lie."""
    p, depth = nest.p, size_of(nest.p.reduced)
    if most is None or most > _MOST_ROWS or not isinstance(depth, int):
        return False
    if p.form.guard is not None or p.form.turned or p.outer or p.batch:
        return False
    size, target = columns * depth * dtype_bits(dtype) // 8, nest.builder.target
    near = nest.builder.weights is Residence.NEAR and most <= _MOST_ROWS_NEAR
    cache = target.l1_bytes if near else target.l2_bytes
    return cache // 2 < size <= MOST_CACHES * cache


def turned_round(position: Axis, panels: Dim) -> Scalar:
    """The panel at a position of the order. Each of several threads goes there and back within its own part of the panels, which its own
    cache holds a part of (about the part that it is given: where it begins changes no result)."""
    each = ceiling(extent_of(panels), WORKERS)
    before = binary("mul", binary("floordiv", position, each), each)
    behind = minimum(binary("add", before, each), extent_of(panels))
    back = binary("sub", binary("sub", binary("add", before, behind), 1), position)
    return select(compare("eq", TURN, 1), back, binary("add", position, 0))
