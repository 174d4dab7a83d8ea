"""Panels whose results are written together.

A few rows of a result are far apart in memory, and a panel writes a short run of each: every run is a page that was not touched for a
while, whose address has to be looked up, and a line that no cache has. Where memory delivers panels as fast as they are multiplied, that
takes time from it: so the sums of several panels wait in the second-level cache, and their epilogues write runs several times as long.
"""

from __future__ import annotations

from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import Buffer
from relay.plan.depth_blocks import FEW_ROWS, is_awaited
from relay.plan.product_nest import ProductNest
from relay.te.scalar import Scalar

# Panels whose results are written together at most, and the groups of each of several threads: the last ones are shared out.
MOST_TOGETHER, GROUPS_OF_THREAD = 16, 2
# Their sums take this part of the second-level cache at most.
_PART_OF_CACHE = 8


@record(frozen=True, slots=True, eq=False)
class PanelGroup:
    """Where the sums of a panel wait (``sums``, from ``base`` on), and whether they are to be finished or made."""

    sums: Buffer
    base: Scalar
    finishes: bool


def are_gathered(nest: ProductNest, packed: Buffer, most: int | None) -> bool:
    """Whether so many rows (``most``) of constant panels wait for memory, and their results for each other."""
    if nest.p.batch or nest.builder.weights_stay or not is_awaited(nest, packed):
        return False
    return most is not None and nest.p.tile.rows < most <= FEW_ROWS


def panels_together(nest: ProductNest, size: int) -> int:
    """How many panels, whose sums are of so many elements, are a group at most."""
    room = nest.builder.target.l2_bytes // _PART_OF_CACHE
    return max(1, min(MOST_TOGETHER, room * 8 // (size * dtype_bits(nest.p.form.accumulate))))
