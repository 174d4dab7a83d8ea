"""Reading ahead: what tiles ask for of the panels behind the one that they multiply, so that memory delivers it meanwhile.

The first of several tiles over a panel would wait for memory and the others leave it idle: each asks for its share of the next
panel, at every step along k. A single tile goes through its panels in order and asks for what comes a fixed way behind.
"""

from __future__ import annotations

from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import Branch, Buffer, Prefetch, Stmt
from relay.plan.build import Residence, ceiling, seq
from relay.plan.product import size_of
from relay.plan.product_nest import LINE_BITS, ProductNest
from relay.te.scalar import Axis, Const, Scalar, binary, compare, minimum, select

# How many lines a tile asks for at a step along k: its share of the next panel is 4/7 of it
# at most (7 rows are 4 and 3), and asking for some of the lines only would mislead the machine's own prefetchers.
_LINES_AHEAD = 3
# How far ahead in its panels a single tile asks, and from how many rows on, where multiply-adds wait for memory alone. Of panels that the
# last cache holds (20 MB, us without asking and with it: 4 rows 392 and 365, 6 rows 560 and 536, 3 rows as long; with vectors of 256 bits,
# of which a processor has half as many bytes in flight, 4 rows 1018 and 613):
_BITS_AHEAD = 8 * (16 << 10)
_ROWS_AHEAD = 4
# Of others the machine's own prefetchers do better alone until there are more rows (226 MB: 4 rows 11.1 ms with asking and 7.8 without,
# 6 rows 9.5 and 8.3, 7 rows 8.5 and 9.1), but not those of shorter vectors (4 to 6 rows with AVX2: 20.4, 21.1, 20.3 ms with asking, 20.0,
# 28.8, 46.7 without).
_ROWS_AHEAD_FAR = 7
# With short vectors 2 rows of panels that the last cache holds ask, too, and of panels that are widened, of which a line takes so many
# times as long, half as many or a quarter (Zen 3, 4096 x 4096, us without asking and with it: 2 rows of bfloat16 2274 and 1751, 3 2264 and
# 1592, 4 2471 and 1815; 2 rows of int8 1319 and 976, 1 row 861 and 762).
_ROWS_AHEAD_NEAR = 2
# The same where multiply-adds wait for caches: behind a tile of two rows the machine's own prefetchers fall back, unless panels stay in the
# second-level cache, where asking takes the place of loads (900 KB, microseconds with asking and without: 2 rows 11.3 and 9.0, 4 rows 13.8
# and 11.1, 5 rows 14.4 and 13.4, 6 rows as long). So they do behind one row of panels that are widened (75 MB of float32 as bfloat16, one
# row: 2.7 ms with asking, 3.7 without; as int8 1.5 and 2.3).
_ROWS_AHEAD_WAITING, _ROWS_AHEAD_STAYING = 2, 6


@record(frozen=True, slots=True, eq=False)
class Reading:
    """How panel ``number`` of ``packed`` is read: all of k, or a ``block`` of it (its number and length). ``pairs``: its rows hold pairs of
    neighbours along k. ``fewest``: fewer rows are never multiplied by it."""

    nest: ProductNest
    packed: Buffer
    number: Scalar
    pairs: bool
    block: tuple[Axis, int] | None
    fewest: int
    # 1 where panels are gone through from the last to the first; None: that never happens.
    back: Scalar | None = None
    # How many elements behind this panel's block of k begins what is multiplied next, where that is not the next block or panel.
    behind: Scalar | None = None

    def ask_behind(self, here: Scalar, height: int) -> list[Stmt]:
        """What a single tile of ``height`` rows asks for at step ``here`` along k. Steps that have a line in common ask for it once."""
        if not self._asks(height):
            return []
        at = binary("add", binary("mul", here, self._row), _BITS_AHEAD // dtype_bits(self.packed.dtype))
        if self.block is not None:
            at = binary("add", at, binary("mul", self.block[0], self.nest.p.pitch * self.block[1]))
        if self.behind is not None:
            past = compare("ge", at, self._panel)
            at = binary("add", at, select(past, binary("sub", self.behind, self._panel), 0))
        elif self.back is not None:
            past = compare("ge", at, self._panel)
            at = binary("sub", at, select(past, binary("mul", self.back, 2 * self._panel), 0))
        read = self.nest.p.tile.columns * (2 if self.pairs else 1)
        asked = [self._ask(binary("add", at, n)) for n in range(0, read, self._line)]
        every = self.steps_of_line
        return asked if every == 1 else [Branch(compare("eq", binary("mod", here, every), 0), seq(asked))]

    @property
    def steps_of_line(self) -> int:
        """How many steps along k have their rows of a panel on one line."""
        return max(1, self._line // self._row)

    def ask_for_share(self, here: Scalar, height: int, offset: Scalar, count: Scalar) -> list[Stmt]:
        """What one of several tiles, of ``height`` rows from ``offset`` on of ``count``, asks for at step ``here`` along k: its share
        of the next panel (or block). Where multiply-adds wait for caches, what the second-level one has is read in time, and asking takes
        the place of loads."""
        p = self.nest.p
        if 2 * height < p.tile.rows or (self._waits and self.nest.builder.weights_stay):
            return []
        chunk = self._panel if self.block is None else p.pitch * self.block[1]
        stride = ceiling(Const(self._row * height, "int64"), count)
        if self.fewest <= p.tile.rows:
            stride = binary("mul", minimum(1, binary("floordiv", binary("sub", count, 1), p.tile.rows)), stride)
        at = binary("add", self._next(chunk), binary("floordiv", binary("mul", chunk, offset), count))
        if self.block is not None:
            at = binary("add", at, binary("mul", self.block[0], chunk))
        at = binary("add", at, binary("mul", here, stride))
        lines = min(self._lines(height, count), max(1, self._row // self._line))
        return [self._ask(binary("add", at, n * self._line)) for n in range(lines)]

    def _next(self, chunk: int) -> Scalar:
        """How far behind this one begins what is multiplied next: a panel, or a block of k of so many elements."""
        if self.behind is not None:
            return self.behind
        ahead = Const(chunk, "int64")
        if self.block is None:
            return ahead if self.back is None else binary("sub", ahead, binary("mul", self.back, 2 * chunk))
        number, blocks = self.block[0], -(-self._panel // chunk)
        rest = self._panel - (blocks - 1) * chunk
        if self.back is None and rest == chunk:
            return ahead
        beside: Scalar = Const(rest, "int64")
        if self.back is not None:
            beside = binary("sub", beside, binary("mul", self.back, 2 * self._panel))
        return select(compare("eq", number, blocks - 1), beside, ahead)

    @property
    def _panel(self) -> int:
        """Elements of a panel."""
        depth = size_of(self.nest.p.reduced)
        assert isinstance(depth, int)
        return self.nest.p.pitch * depth

    def _lines(self, height: int, count: Scalar) -> int:
        """How many lines a tile of ``height`` rows of ``count`` asks for at a step along k: no more than its share."""
        if isinstance(count, Const):
            fewest = int(count.value)
        elif self._waits:
            # Of several tiles, whose heights differ by one at most, the others have nearly as many rows.
            several = self.fewest > self.nest.p.tile.rows
            fewest = max(self.fewest, 2 * height - 1 if several else height)
        else:
            return _LINES_AHEAD
        lines = -(-self._row * height // (fewest * self._line))
        return max(1, lines if self._waits else min(_LINES_AHEAD, lines))

    def _asks(self, height: int) -> bool:
        """Whether a single tile of so many rows asks."""
        if not self._waits:
            far = self.nest.builder.weights is Residence.NONE
            if self.nest.builder.target.vector_bits >= 512 or self.nest.builder.weights_stay:
                return height >= (_ROWS_AHEAD_FAR if far else _ROWS_AHEAD)
            return height * self._widening >= (_ROWS_AHEAD if far else _ROWS_AHEAD_NEAR)
        if self.nest.builder.weights_stay:
            return height >= _ROWS_AHEAD_STAYING
        return height * self._widening >= _ROWS_AHEAD_WAITING

    @property
    def _waits(self) -> bool:
        return self.nest.builder.target.outruns_caches

    @property
    def _widening(self) -> int:
        """How many times as wide elements are multiplied as they are packed: a line takes so many times as long."""
        return dtype_bits(self.nest.p.form.accumulate) // dtype_bits(self.packed.dtype)

    @property
    def _row(self) -> int:
        """Elements from one step along k to the next."""
        return self.nest.p.pitch * (2 if self.pairs else 1)

    @property
    def _line(self) -> int:
        return LINE_BITS // dtype_bits(self.packed.dtype)

    def _ask(self, at: Scalar) -> Stmt:
        """Ask for the line with an element of the panel, counted from its first."""
        batch = self.nest.p.product_of_batch(self.nest.builder.indices)
        inner = [Const(0, "int64")] * (len(self.packed.shape) - len(batch) - 2)
        return Prefetch(self.packed, (*batch, self.number, *inner, at))
