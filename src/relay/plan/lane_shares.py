"""Lanes across blocks of columns, shared out where blocks as wide as caches allow do not keep all threads busy.

How many threads there are is known when the kernel runs: of few blocks, there are as many narrower ones, of whole vectors, as they can be
shared out evenly. A column is computed the same way whatever the block it is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from relay.ir.dim import Dim, ceil_div, dim_mul, shape_size
from relay.ir.record import record
from relay.loop.ir import WORKERS, Between, Stmt, between
from relay.plan.build import Builder, bound, ceiling
from relay.plan.parallel import PARALLEL_COST, parallel_rows, parallel_tasks
from relay.plan.row_parts import Lanes, lane_blocks
from relay.te.scalar import Axis, Const, Scalar, binary, compare, extent_of, maximum, minimum, select

# So many blocks are enough for any number of threads; fewer elements are no block.
_MANY, _FEWEST = 64, 64


@record(frozen=True, slots=True, eq=False)
class SharedLanes:
    """``lanes`` across blocks of the last of the rows, which begin at ``start``; ``loop`` runs over blocks and other rows."""

    lanes: Lanes
    start: Scalar
    rows: tuple[Axis, ...]
    blocks: tuple[Axis, ...]
    work: Dim
    counts: tuple[tuple[Axis, Scalar], ...] = ()
    begin: tuple[Axis, Scalar] | None = None

    @staticmethod
    def of(rows: Sequence[Axis], most: int, vector: int, work: Dim) -> SharedLanes:
        """Across the last of the rows, each of which takes so much work, in blocks of ``most`` at most."""
        *others, last = rows
        extent, many = last.extent, shape_size(tuple(a.extent for a in others))
        size = most if not isinstance(extent, int) else min(most, extent)
        blocks, total = dim_mul(many, ceil_div(extent, size)), dim_mul(dim_mul(many, extent), work)
        few = isinstance(extent, int) and extent <= _FEWEST
        if (
            few
            or not isinstance(many, int)
            or (isinstance(blocks, int) and blocks >= _MANY)
            or (isinstance(total, int) and total < 2 * PARALLEL_COST)
        ):
            lanes, loops, _ = lane_blocks(last, most)
            start = binary("mul", loops[0], size) if loops else Const(0, "int64")
            return SharedLanes(lanes, start, tuple(others), tuple(loops), dim_mul(work, size))
        threads, wanted, number = (Axis(name, 1 << 40) for name in ("threads", "wanted", "blocks"))
        share = Between("share", size + 1, low=1, high=(Const(size, "int64"),))
        block, lane, columns = Axis("block", extent), Axis("lane", size), extent_of(extent)
        worth = binary("floordiv", extent_of(total), PARALLEL_COST)
        # A whole number for each thread, where these blocks are all that there is.
        rounds = ceiling(ceiling(columns, Const(size, "int64")), threads)
        enough = binary("mul", rounds, threads) if many == 1 else ceiling(threads, Const(many, "int64"))
        vectors = ceiling(ceiling(columns, wanted), Const(vector, "int64"))
        start = Between("start", extent, low=0, high=(columns,))
        # Few columns are reduced several steps beside each other (`plan/narrow_columns.py`), for any number of threads.
        whole = binary("or", compare("eq", threads, 1), compare("le", columns, _FEWEST))
        multiple = gcd(vector, size, extent) if isinstance(extent, int) else 1
        lanes = Lanes(lane, minimum(share, binary("sub", columns, start)), size, multiple=multiple)
        return SharedLanes(lanes, start, tuple(others), (block,), total, (
            (threads, maximum(minimum(WORKERS, worth), 1)),
            (wanted, maximum(enough, 1)),
            between(share, select(whole, Const(size, "int64"), binary("mul", vectors, vector))),
            (number, ceiling(columns, share)),
        ), between(start, binary("mul", block, share)))  # fmt: skip

    def loop(self, builder: Builder, body: Stmt) -> Stmt:
        """The body for all rows."""
        if not self.counts:
            return parallel_rows(builder, [*self.rows, *self.blocks], self.work, body)
        assert self.begin is not None
        (block,), (number, _) = self.blocks, self.counts[-1]
        return bound(self.counts, parallel_tasks(self.rows, [(block, number)], self.work, bound([self.begin], body)))
