"""Panels gone through from the first to the last and, at the next call, back: what a cache has at the end of one call is what the next one
reads first. The order of panels changes no sum.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.dim import Dim
from relay.ir.types import dtype_bits
from relay.loop.ir import TURN, WORKERS, Buffer
from relay.plan.build import extent_of
from relay.plan.product import size_of
from relay.plan.product_nest import ProductNest
from relay.plan.tiles import PanelRun
from relay.te.scalar import Axis, Scalar, binary, compare, select

# Of up to so many rows, and of panels that fill up to so many second-level caches.
_MOST_ROWS, _MOST_CACHES = 24, 8


def is_kept_in_part(nest: ProductNest, rows: Dim, panels: Dim, runs: Sequence[PanelRun], packed: Buffer) -> bool:
    """Whether the second-level cache keeps a good part of all panels, but not all, from one call to the next (a recurrent network's
    weights). From first to last, each call would drive out what the next one reads first; every other call goes back, from what was read
    last. With more rows multiply-adds take longer than reading."""
    p = nest.p
    if not isinstance(rows, int) or rows > _MOST_ROWS or not isinstance(panels, int) or panels < 2:
        return False
    depth = size_of(p.reduced)
    if p.form.guard is not None or p.form.turned or p.outer or p.batch or not isinstance(depth, int):
        return False
    columns = sum(run.tile.columns * run.count for run in runs if isinstance(run.count, int))
    size, cache = columns * depth * dtype_bits(packed.dtype) // 8, nest.builder.target.l2_bytes
    return cache // 2 < size <= _MOST_CACHES * cache


def goes_back() -> Scalar:
    """1 where a call goes from the last panel to the first. Several threads keep to the panels that each had before."""
    return select(compare("eq", WORKERS, 1), TURN, 0)


def turned_round(position: Axis, panels: Dim) -> Scalar:
    """The panel at a position of the order."""
    last = binary("sub", extent_of(panels), 1)
    return select(compare("eq", goes_back(), 1), binary("sub", last, position), binary("add", position, 0))
