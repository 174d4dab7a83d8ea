"""Blocks of a left operand whose rows lie along memory, copied before they are multiplied.

In the gradient of a weight, ``out[n, j] = sum(g[k, n] * x[k, j])``, neighbours along k of the left operand are a row of ``g`` apart. A
tile of a few rows takes a part of a line from each: where their distance is divisible by a large power of two, these lines share a few
places of the caches, and are fetched again for the next tile and for every panel. So a task copies its block of rows, line by line, to
where they lie close together, and multiplies it by one panel after the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from relay.ir.dim import Dim, dim_mul
from relay.ir.types import dtype_bits
from relay.loop.ir import LINE_BYTES, Buffer, For, Stmt, Store
from relay.plan.build import extent_of, temporary
from relay.plan.product import original, size_of
from relay.plan.product_nest import LeftRows, ProductNest
from relay.te.scalar import Axis, Const, Load, Scalar, binary, cast, minimum

# Panels that repay the copy.
_FEWEST_PANELS = 3
# A depth to go by where it is not known.
_DEPTH = 512
# A way of the first-level cache is a page.
_PAGE_BYTES = 4096
# Rows of a block: what takes a third of the second-level cache, within these limits; between them where the depth is not known.
_FEWEST_ROWS, _MOST_ROWS, _ROWS = 48, 192, 96
# Tasks that a product is cut in at least, where it has so many rows and panels.
_TASKS = 4


@dataclass(frozen=True, slots=True)
class Cut:
    """A product in tasks: ``parts`` of ``block`` rows by ``groups`` of ``panels`` panels."""

    block: int
    parts: int
    panels: int
    groups: int


def cut(nest: ProductNest, panels: Dim) -> Cut | None:
    """The tasks of a product with so many panels, where its left operand is worth copying."""
    p = nest.p
    rows, depth = size_of(p.rows), size_of(p.reduced)
    if p.form.turned or p.form.guard is not None or len(p.rows) != 1 or len(p.reduced) != 1:
        return None
    if not isinstance(rows, int) or not isinstance(panels, int) or rows < _FEWEST_ROWS or panels < _FEWEST_PANELS:
        return None
    if nest.right_strides()[0] != 1:  # every part packs its panels: what has to be turned for that would cost as much
        return None
    if not _is_far_apart(nest, rows, depth if isinstance(depth, int) else _DEPTH):
        return None
    most = _ROWS
    if isinstance(depth, int):
        fit = nest.builder.target.l2_bytes * 8 // (3 * depth * dtype_bits(p.form.accumulate))
        most = max(_FEWEST_ROWS, min(_MOST_ROWS, fit))
    parts = -(-rows // most)
    parts += parts % 2 if parts > 1 else 0  # of nearly one size for two threads
    each = -(-panels // min(panels, -(-_TASKS // parts)))
    block = -(-rows // (parts * p.tile.rows)) * p.tile.rows
    return Cut(block, -(-rows // block), each, -(-panels // each))


def _is_far_apart(nest: ProductNest, rows: int, depth: int) -> bool:
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


@dataclass(frozen=True, slots=True, eq=False)
class LeftBlock:
    """``count`` rows (``most`` at most) from ``start`` on, in ``buffer``: those of one k behind each other."""

    nest: ProductNest
    buffer: Buffer
    start: Scalar
    count: Scalar
    most: int

    @staticmethod
    def of(nest: ProductNest, part: Scalar, most: int) -> LeftBlock:
        """A part of the rows, ``most`` of them or what is left, in the thread's workspace."""
        rows = size_of(nest.p.rows)
        start = binary("mul", part, most)
        whole = isinstance(rows, int) and rows % most == 0
        count = Const(most, "int64") if whole else minimum(most, binary("sub", extent_of(rows), start))
        size = dim_mul(size_of(nest.p.reduced), most)
        return LeftBlock(nest, temporary(nest.builder.fresh("left"), size, nest.p.form.accumulate), start, count, most)

    def copied(self) -> Stmt:
        """Copy the rows."""
        (k,), lane = self.nest.p.reduced, Axis("i", self.most)
        value = cast(_element(self.nest, binary("add", self.start, lane)), self.buffer.dtype)
        place = binary("add", binary("mul", k, self.most), lane)
        return For(k, extent_of(k.extent), For(lane, self.count, Store(self.buffer, (place,), value), "vectorized"))

    def rows(self, offset: Scalar, height: int, k: Scalar) -> LeftRows:
        """``height`` rows from row ``offset`` of the block on, at a position along k."""
        first = Axis("left", self.most)
        line = binary("add", binary("mul", k, self.most), first)
        elements: list[Scalar] = [
            Load(self.buffer, (binary("add", line, Const(i, "int64")),), self.buffer.dtype) for i in range(height)
        ]
        return LeftRows([(first, offset)], elements)
