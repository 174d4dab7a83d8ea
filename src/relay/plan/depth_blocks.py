"""How a product's depth is cut into blocks, so that the panels that several tiles read one after the other stay in a cache.

Of a few rows, processors that outrun their caches wait for constant panels that come from behind the second-level cache: what memory
delivers is what a product takes. It delivers most where what is asked for is asked for shortly before it is needed, in order, and at an
even pace. So numbers of rows have code of their own by how they get through a panel: a single tile reads it in order and asks for what
comes a little later (`Reading.ask_behind`); a few tiles go through it by blocks that stay in the first-level cache, and each asks for its
share of the next block (`Reading.ask_for_share`). More rows are bound by their multiply-adds, and take longer blocks. Panels that are
widened as they are read (`is_widened`) take the same blocks.

Where k is so long that the left operand of a number of rows is driven out of the second-level cache by what is read of the panels, a task
multiplies all its panels by one block of k after the other (`OuterBlock`): it reads the left operand once in place of once for each panel.
"""

from __future__ import annotations

from relay.ir.dim import shape_size
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import Buffer
from relay.plan.product import size_of
from relay.plan.product_nest import ProductNest
from relay.te.scalar import Axis, Scalar, binary, compare, extent_of

# Panels that the second-level cache is to hold where tiles wait for it: what was read last, what is read and what comes, and room for
# other things; and how long one may be at most: the first tile over a block waits for what was not asked for in time.
_PANELS_HELD, _PANEL_BYTES = 4, 256 << 10
# Up to so many rows take about as long to multiply as what they read takes to come.
FEW_ROWS = 48
# Panels of more than this part of the second-level cache: a program's other operands drive them out between two calls. Where all weights
# stay there, those of fewer are found there, and blocks of k would only make their sums wait in memory.
_PART_OF_CACHE, _PART_STAYING = 4, 2
# With k outermost, sums of all panels take this part of the second-level cache at most, those of so many rows (and of up to twice as many)
# do at least; a few rows of the left operand take more than that part; and the length of a block of k.
_PART_OF_SUMS, _FEWEST_ROWS, _PART_OF_LEFT, _OUTER_LENGTH = 3, 128, 4, 384


@record(frozen=True, slots=True, eq=False)
class OuterBlock:
    """The block of k that a task multiplies all its panels by before the next one: its ``number`` and its ``length``. ``sums`` are
    where those of a panel wait meanwhile, from ``base`` on. ``behind``: how many elements behind the panel's block begins what is
    multiplied next, where that is asked for. ``depth``: how long k is, where it is not all of its axis."""

    number: Axis
    length: int
    sums: Buffer
    base: Scalar
    behind: Scalar | None = None
    depth: Scalar | None = None

    @property
    def along(self) -> tuple[Axis, int]:
        """Its number and length."""
        return self.number, self.length

    @property
    def is_last(self) -> Scalar:
        """Whether it is the last block of k."""
        if self.depth is not None:
            return compare("le", self.depth, binary("mul", binary("add", self.number, 1), self.length))
        return compare("eq", self.number, binary("sub", extent_of(self.number.extent), 1))


def depth_block(nest: ProductNest, packed: Buffer | None, most: int | None, widened: bool = False) -> int | None:
    """The length of a block of k (of its outermost axis), where a panel of all of it would not stay in the second-level cache beside the
    one before and the one behind it, or would be long to wait for. ``most``: more rows never come. ``widened``: tiles read the
    elements of the panel as they are multiplied, not as they are packed."""
    p = nest.p
    depth = size_of(p.reduced)
    if (
        not isinstance(depth, int)
        or not p.reduced
        or (len(p.reduced) > 1 and not p.form.turned)
        or p.form.guard is not None
    ):
        return None  # (with a guard, sums of all taps are in registers)
    target = nest.builder.target
    bits = dtype_bits(p.form.accumulate if packed is None or widened else packed.dtype)
    size = min(target.l2_bytes // _PANELS_HELD, _PANEL_BYTES) if target.outruns_caches else target.l2_bytes // 2
    if packed is not None and most is not None and most <= FEW_ROWS and (widened or is_awaited(nest, packed)):
        if most <= p.tile.rows:
            return None  # a single tile reads its panels in order
        size = target.l1_bytes * 2 // 3
    longest = max(128, size * 8 // (p.pitch * bits))
    if depth <= longest:
        return None
    whole, rest = p.reduced[0].extent, size_of(p.reduced[1:])
    assert isinstance(whole, int) and isinstance(rest, int)
    length = -(-whole // -(-whole // max(1, longest // rest)))
    return length + length % 2 if rest == 1 else length


def outer_cut(nest: ProductNest, packed: Buffer, panels: int, fewest: int) -> tuple[int, int] | None:
    """How many rows a task has at most and how long a block of k is, where k is best gone through outermost: of constant panels that
    tiles wait for, and of so many rows (``fewest`` at least) that multiply-adds take longer than what they read takes to come, where the
    left operand does not stay in the second-level cache beside the panels."""
    p, target = nest.p, nest.builder.target
    depth, size = size_of(p.reduced), dtype_bits(p.form.accumulate) // 8
    if fewest <= FEW_ROWS or nest.builder.weights_stay or p.pairs or p.partial > 1 or p.batch or len(p.reduced) != 1:
        return None
    if not isinstance(depth, int) or depth <= _OUTER_LENGTH or not is_awaited(nest, packed) or is_widened(nest, packed):
        return None
    rows = target.l2_bytes // (_PART_OF_SUMS * panels * p.pitch * size)
    if rows < _FEWEST_ROWS or FEW_ROWS * depth * size <= target.l2_bytes // _PART_OF_LEFT:
        return None
    length = -(-depth // -(-depth // _OUTER_LENGTH))
    return min(rows, 2 * _FEWEST_ROWS) // p.tile.rows * p.tile.rows, length + length % 2


def few_row_limits(nest: ProductNest, packed: Buffer | None) -> tuple[int, ...]:
    """Up to which numbers of rows there is code of its own, where the number is known when the kernel runs: of a single tile, and of a
    few. Processors that do not outrun their caches need only the first, of panels that the second-level cache does not hold: of so few
    rows multiply-adds take as long as these take to come."""
    if packed is None:
        return ()
    tile = min(run.tile.rows for run in nest.p.runs)
    if is_awaited(nest, packed) or is_widened(nest, packed):
        return tile, FEW_ROWS
    target, size = nest.builder.target, packed_bytes(nest, packed)
    return (tile,) if not target.outruns_caches and size is not None and size > target.l2_bytes else ()


def is_widened(nest: ProductNest, packed: Buffer) -> bool:
    """Whether the first of several tiles over a packed panel leaves its elements behind as they are multiplied, because every tile would
    widen them again."""
    p, target = nest.p, nest.builder.target
    narrow = dtype_bits(packed.dtype) < dtype_bits(p.form.accumulate)
    plain = not p.pairs and p.partial == 1 and not p.form.turned and p.form.guard is None
    return narrow and plain and target.widens_dearly


def is_awaited(nest: ProductNest, packed: Buffer) -> bool:
    """Whether tiles of a few rows wait for their panels. (Matrix registers take so few rows as they take more.)"""
    target, size = nest.builder.target, packed_bytes(nest, packed)
    if not target.outruns_caches or size is None:
        return False
    part = _PART_STAYING if nest.builder.weights_stay else _PART_OF_CACHE
    return size > target.l2_bytes // part


def packed_bytes(nest: ProductNest, packed: Buffer) -> int | None:
    """How large constant panels are that tiles read in order; None of others."""
    p, elements = nest.p, shape_size(packed.shape)
    plain = not p.form.turned and p.form.guard is None and not p.outer and p.left_stride is None
    return elements * dtype_bits(packed.dtype) // 8 if plain and isinstance(elements, int) else None
