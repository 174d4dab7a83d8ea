"""Blocks of a left operand whose rows lie along memory, copied before they are multiplied.

In the gradient of a weight, ``out[n, j] = sum(g[k, n] * x[k, j])``, neighbours along k of the left operand are a row of ``g`` apart. A
tile of a few rows takes a part of a line from each: where their distance is divisible by a large power of two, these lines share a few
places of the caches, and are fetched again for the next tile and for every panel. So a task copies its block of rows, line by line, to
where they lie close together, and multiplies it by one panel after the other. Where k is long, as where the gradient is one over all
tokens of a batch, it does so for a block of k after the other (Goto and van de Geijn, Anatomy of high-performance matrix multiplication,
2008): each operand is read from far away a few times only, and sums of all the task's panels wait in the second-level cache.
"""

from __future__ import annotations

import math

from relay.ir.dim import Dim, ceil_div, dim_max, dim_mul
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import LINE_BYTES, Buffer, For, Stmt, Store
from relay.plan.build import ceiling, seq, temporary
from relay.plan.product import original, size_of
from relay.plan.product_nest import LeftRows, ProductNest
from relay.te.scalar import Axis, Const, Load, Scalar, binary, cast, compare, conjunction, extent_of, minimum

# Panels that repay the copy; fewer do where each task has all of them, and a block of k at a time.
_FEWEST_PANELS, _FEWEST_OF_BLOCKS = 3, 2
# A depth to go by where it is not known.
_DEPTH = 512
# A way of the first-level cache is a page.
_PAGE_BYTES = 4096
# Rows of a block: what takes a third of the second-level cache, within these limits; between them where the depth is not known.
FEWEST_COPIED, _MOST_ROWS, _ROWS = 48, 192, 96
# Tasks that a product is cut in at least, where it has so many rows and panels.
_TASKS = 4
# A block of k: a panel of it is read from the second-level cache or nearer, and a tile's sums are fetched for so many multiply-adds.
_LENGTH = 256
# A left operand of more than this part of the second-level cache does not stay there beside the panels, as far as sizes are not known.
_PART_OF_CACHE = 3


@record(frozen=True, slots=True)
class Cut:
    """A product in tasks: ``parts`` of ``block`` rows by ``groups`` of ``panels`` panels, by blocks of k of this ``length``. With a
    ``height`` all tiles are of so many rows: zeros stand behind the rows of a part."""

    block: int
    parts: Dim
    panels: int
    groups: Dim
    length: int | None
    height: int | None = None


def cut(nest: ProductNest, panels: Dim, blocks: bool) -> Cut | None:
    """The tasks of a product with so many panels, where its left operand is worth copying; with ``blocks`` of k, if they may be."""
    p = nest.p
    rows, depth = size_of(p.rows), size_of(p.reduced)
    if p.form.turned or p.form.guard is not None or len(p.rows) != 1 or len(p.reduced) != 1:
        return None
    if not isinstance(rows, int) or not isinstance(panels, int) or rows < FEWEST_COPIED or panels < _FEWEST_OF_BLOCKS:
        return None
    if nest.right_strides()[0] != 1:  # every part packs its panels: what has to be turned for that would cost as much
        return None
    if not is_far_apart(nest, rows, depth if isinstance(depth, int) else _DEPTH):
        return None
    most, size, cache = _ROWS, dtype_bits(p.form.accumulate) // 8, nest.builder.target.l2_bytes // 3
    deep = blocks and not (isinstance(depth, int) and depth <= _LENGTH)
    length = _LENGTH if deep else depth
    if isinstance(length, int):
        most = max(FEWEST_COPIED, min(_MOST_ROWS, cache // (length * size)))
    parts = -(-rows // most)
    parts += parts % 2 if parts > 1 else 0  # of nearly one size for two threads
    block = -(-rows // (parts * p.tile.rows)) * p.tile.rows
    each = -(-panels // min(panels, -(-_TASKS // parts)))
    if panels < _FEWEST_PANELS:
        if not deep or parts == 1:
            return None
        each = panels
    elif deep:
        each = min(each, max(1, cache // (block * p.pitch * size)))
    return Cut(block, -(-rows // block), each, -(-panels // each), _LENGTH if deep else None)


def cut_if_large(nest: ProductNest, panels: Dim, heights: set[int]) -> tuple[Scalar, Cut] | None:
    """The tasks of a product of which not all sizes are known, by blocks of k, and what says when it runs that its left operand is worth
    copying. Its tiles, of these ``heights``, are as high as they can be, which is little code beside that of any number of rows."""
    p, target = nest.p, nest.builder.target
    rows, depth = size_of(p.rows), size_of(p.reduced)
    if p.form.turned or p.form.guard is not None or len(p.rows) != 1 or len(p.reduced) != 1 or len(heights) != 1:
        return None
    if all(isinstance(size, int) for size in (rows, panels, depth)) or nest.right_strides()[0] != 1:
        return None
    if (isinstance(rows, int) and rows < FEWEST_COPIED) or not runs_along_rows(nest):
        return None
    size, (height,) = dtype_bits(p.form.accumulate) // 8, heights
    most = max(FEWEST_COPIED, min(_MOST_ROWS, target.l2_bytes // 3 // (_LENGTH * size)))
    block = most // height * height
    each = max(1, target.l2_bytes // 3 // (block * p.pitch * size))
    large = conjunction(
        [
            compare("ge", extent_of(rows), FEWEST_COPIED),
            compare("gt", extent_of(depth), _LENGTH),
            compare("gt", extent_of(dim_mul(rows, depth)), target.l2_bytes // (_PART_OF_CACHE * size)),
        ]
    )
    return large, Cut(block, ceil_div(rows, block), each, ceil_div(panels, each), _LENGTH, height)


def runs_along_rows(nest: ProductNest) -> bool:
    """Whether neighbouring rows are neighbours in memory, and neighbours along k are not, as far as is known."""
    indices, (row,), (k,) = nest.builder.indices, nest.p.rows, nest.p.reduced
    load = _element(nest, row)
    if not isinstance(load, Load):
        return False
    at = indices.poly(load.indices[0])
    stride = indices.coefficient(at, k)
    near = stride is None or (isinstance(stride, int) and stride * dtype_bits(load.dtype) // 8 < LINE_BYTES)
    return indices.coefficient(at, row) == 1 and not near


def is_far_apart(nest: ProductNest, rows: int, depth: int) -> bool:
    """Whether neighbouring rows are neighbours in memory, and lines along k do not stay in a cache until they are read again: they
    share few places of the first-level one, or the operand is more than half of the second-level one."""
    indices, (row,), (k,) = nest.builder.indices, nest.p.rows, nest.p.reduced
    load = _element(nest, row)
    if not isinstance(load, Load):
        return False
    at, size = indices.poly(load.indices[0]), dtype_bits(load.dtype) // 8
    stride = indices.coefficient(at, k)
    if indices.coefficient(at, row) != 1 or not isinstance(stride, int) or stride * size < LINE_BYTES:
        return False
    target = nest.builder.target
    places = _PAGE_BYTES // max(LINE_BYTES, math.gcd(stride * size, _PAGE_BYTES))
    return depth > target.l1_bytes // _PAGE_BYTES * places or rows * depth * size > target.l2_bytes // 2


def _element(nest: ProductNest, row: Scalar) -> Scalar:
    """The left operand's element in a row, at the current k."""
    (axis,) = nest.p.rows
    inside = original(nest.p, {**nest.env, axis: row}, nest.builder.indices)
    (value,) = nest.builder.evaluate([nest.p.left], inside)
    return value


@record(frozen=True, slots=True, eq=False)
class LeftBlock:
    """``count`` rows (``most`` at most) from ``start`` on, in ``buffer``: those of one k behind each other. ``along``: the number of
    a block of k, and its length, where these are all that it has. Zeros fill up tiles of ``height`` rows."""

    nest: ProductNest
    buffer: Buffer
    start: Scalar
    count: Scalar
    most: int
    along: tuple[Axis, int] | None = None
    height: int = 1

    @staticmethod
    def of(
        nest: ProductNest,
        rows: tuple[Scalar, Scalar],
        most: int,
        length: int | None = None,
        deepest: int | None = None,
        height: int | None = None,
    ) -> LeftBlock:
        """A part of the rows (its first one and how many, ``most`` at most) in the thread's workspace; a block of k of some length at a
        time. ``deepest``: k is no longer, where its length is not known. ``height``: of the tiles that zeros fill up."""
        depth = size_of(nest.p.reduced)
        deep = length or (depth if isinstance(depth, int) else deepest or depth)
        buffer = temporary(nest.builder.fresh("left"), dim_mul(deep, most), nest.p.form.accumulate)
        along = None if length is None else (Axis("kb", dim_max(1, ceil_div(depth, length))), length)
        return LeftBlock(nest, buffer, *rows, most, along, height or 1)

    @property
    def begin(self) -> Scalar:
        """Where along k the block begins."""
        return Const(0, "int64") if self.along is None else binary("mul", *self.along)

    def copied(self) -> Stmt:
        """Copy the rows."""
        (k,), lane, before = self.nest.p.reduced, Axis("i", self.most), self.nest.env
        line, extent = (k, extent_of(k.extent)) if self.along is None else (Axis("k", self.along[1]), self._extent(k))
        self.nest.env = {**before, k: binary("add", self.begin, line)}
        value = cast(_element(self.nest, binary("add", self.start, lane)), self.buffer.dtype)
        self.nest.env = before
        place = binary("add", binary("mul", line, self.most), lane)
        body: Stmt = For(lane, self.count, Store(self.buffer, (place,), value), "vectorized")
        if self.height > 1:
            behind, zero = Axis("i", self.height - 1), Const(0.0, self.buffer.dtype)
            spot = binary("add", binary("add", binary("mul", line, self.most), self.count), behind)
            left = binary("sub", binary("mul", self.tiles, self.height), self.count)
            body = seq([body, For(behind, left, Store(self.buffer, (spot,), zero), "vectorized")])
        return For(line, extent, body)

    @property
    def tiles(self) -> Scalar:
        """How many tiles of its height hold the rows."""
        return ceiling(self.count, Const(self.height, "int64"))

    def _extent(self, k: Axis) -> Scalar:
        assert self.along is not None
        return minimum(self.along[1], binary("sub", extent_of(k.extent), self.begin))

    def rows(self, offset: Scalar, height: int, k: Scalar) -> LeftRows:
        """``height`` rows from row ``offset`` of the block on, at a position along k."""
        first = Axis("left", self.most)
        line = binary("add", binary("mul", binary("sub", k, self.begin), self.most), first)
        elements: list[Scalar] = [
            Load(self.buffer, (binary("add", line, Const(i, "int64")),), self.buffer.dtype) for i in range(height)
        ]
        return LeftRows([(first, offset)], elements)
