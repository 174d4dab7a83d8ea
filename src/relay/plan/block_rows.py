"""Products by blocks in matrix registers: all rows of a task by a panel of pairs.

The rows are shared out over as few blocks as hold them, all of one height, because setting another one takes long: the last block begins
earlier where they do not divide evenly, and only its own rows are finished. Sums are handed over in memory, which the first-level cache
holds. What is left of k behind the last whole step of the registers is added in vectors.
"""

from __future__ import annotations

from relay.loop.ir import BLOCK_DEPTH, MOST_BLOCK_ROWS, BlockProduct, Buffer, For, LetScalar, Stmt, Store
from relay.plan.build import bound, ceiling, seq
from relay.plan.panels import Panel
from relay.plan.product import size_of
from relay.plan.product_nest import LINE_BITS, ProductNest
from relay.te.scalar import Axis, Cast, Const, Load, Scalar, binary, cast, compare, extent_of, minimum, select

# Up to so many rows (one register) are multiplied faster than a panel is read, and the machine's own prefetchers do better alone.
_ROWS_READ_ALONE = 16


def held_size(nest: ProductNest) -> int:
    """Elements of the memory that sums are handed over in."""
    return MOST_BLOCK_ROWS * nest.p.tile.columns


def block_rows(nest: ProductNest, panel: Panel, packed: Buffer, rows: tuple[Scalar, Scalar, int], held: Buffer) -> Stmt:
    """The product of ``rows`` (the first, how many, how many at most) with a panel, and the epilogue on it."""
    start, count, most = rows
    p, width, depth = nest.p, nest.p.tile.columns, size_of(nest.p.reduced)
    assert isinstance(depth, int) and p.left_stride is not None
    number, height, step = (
        Axis("blocks", most + 1),
        Axis("height", MOST_BLOCK_ROWS + 1),
        Axis("block", -(-most // MOST_BLOCK_ROWS)),
    )
    own, begin = Axis("own", most), Axis("begin", most)
    (k,) = p.reduced
    outside = nest.env
    nest.env = {**outside, k: Const(0, "int64")}
    left = nest.left_rows(binary("add", start, begin), 1, [])
    nest.env = outside
    element = left.elements[0].a if isinstance(left.elements[0], Cast) else left.elements[0]
    assert isinstance(element, Load) and isinstance(element.source, Buffer)
    (at,), source, stride = element.indices, element.source, extent_of(p.left_stride)
    multiplied = BlockProduct(
        held, Const(0, "int64"), source, at, stride, packed, (*p.product_of_batch(nest.builder.indices), panel.number), height,
        depth - depth % BLOCK_DEPTH, _ahead(depth, width, count, number, step),
    )  # fmt: skip
    rest = _rest(nest, panel, (source, at, stride), (held, height), depth)
    lines = minimum(height, binary("sub", count, own))
    skipped = binary("mul", binary("sub", own, begin), width)
    finish = nest.finish_rows(binary("add", start, own), lines, panel.first, panel.across, held, skipped, width)
    body = seq([left.bind(seq([multiplied, *rest])), finish])
    body = LetScalar(begin, minimum(own, binary("sub", count, height)), body)
    body = LetScalar(own, binary("mul", step, height), body)
    # The smaller of these is always the first: the others are what places are proved by.
    even = minimum(minimum(ceiling(count, number), MOST_BLOCK_ROWS), count)
    return bound([(number, ceiling(count, Const(MOST_BLOCK_ROWS, "int64"))), (height, even)], For(step, number, body))


def _ahead(depth: int, width: int, count: Scalar, number: Scalar, step: Scalar) -> tuple[Scalar, Scalar]:
    """What a block asks for at every step along k: its share of the next panel."""
    line = LINE_BITS // 16
    several = compare("gt", count, _ROWS_READ_ALONE)
    lines = select(several, ceiling(Const(width, "int64"), number), Const(0, "int64"))
    before = binary("mul", binary("mul", step, lines), line * (depth // BLOCK_DEPTH))
    return binary("add", before, width * depth), lines


def _rest(
    nest: ProductNest, panel: Panel, left: tuple[Buffer, Scalar, Scalar], held: tuple[Buffer, Scalar], depth: int
) -> list[Stmt]:
    """Add what is left of k."""
    pairs, width = depth % BLOCK_DEPTH // 2, nest.p.tile.columns
    if not pairs:
        return []
    (source, at, stride), (sums, height), dtype = left, held, nest.p.form.accumulate
    i, pair, lane = Axis("i", MOST_BLOCK_ROWS), Axis("pair", pairs), Axis("j", width)
    place = binary("add", binary("mul", i, width), lane)
    behind = binary("add", binary("mul", pair, 2), depth - 2 * pairs)
    first = binary("add", binary("add", at, binary("mul", i, stride)), behind)
    total: Scalar = Load(sums, (place,), dtype)
    for half in (0, 1):
        element = cast(Load(source, (binary("add", first, half),), source.dtype), dtype)
        factor = panel.pair(binary("add", pair, (depth - 2 * pairs) // 2), half, lane)
        total = binary("add", total, binary("mul", element, factor))
    store = For(lane, Const(width, "int64"), Store(sums, (place,), total), "vectorized")
    return [For(i, height, For(pair, Const(pairs, "int64"), store))]
