"""Products as register tiles over a right operand that is read where it is, its rows (``w[k, j]``) along memory.

All of a few rows are one tile, the wider the fewer they are: sums stay in registers over all of k, and the operand is read
once, in runs as long as the tile is wide. More rows are several tiles of the usual width. The machine's prefetchers do not
follow such runs from row to row, so each step along k asks for the run some rows below, and at the bottom for the first ones
of the panel beside it, which is this thread's next. An operand from behind the second-level cache is gone through by blocks of k, with
each of which all panels of a task are multiplied: what the machine brings beside the runs that are asked for is read soon after.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from relay.ir.dim import Dim, ceil_div, dim_add, dim_floordiv, dim_max, dim_mul
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import WORKERS, Alloc, Behind, Branch, Buffer, For, LetScalar, Stmt, Store, Switch
from relay.plan.build import allocate, bound, ceiling, seq, serial, temporary
from relay.plan.parallel import LEAST_SHARE, parallel_rows
from relay.plan.product import narrow, size_of
from relay.plan.product_nest import CHEAP_EPILOGUE, FMA_DISCOUNT, LINE_BITS, ProductNest, balanced
from relay.plan.reduction import initial
from relay.plan.row_shares import RowShares, part_of
from relay.plan.tiles import Tile, narrower, wide_tile
from relay.te.scalar import Axis, Const, Load, Scalar, binary, compare, extent_of, maximum, minimum, select

# Numbers of rows that are done this way, and those of them that are one tile at most, also where tiles wait for caches: there up to so many
# rows of an operand that is larger than so many second-level caches are streamed.
FEWEST, _MOST_IN_ONE, _MOST_IN_ONE_WAITING = 4, 8, 12
_MOST_STREAMED, _LARGE = 4, 2
# Up to so many rows packing is not repaid: where the operand's rows meet in few places of the second-level cache, where they
# do not, and for each place in one of its ways.
_MOST, _MOST_SPREAD, _ROWS_OF_A_PLACE, _WAYS = 24, 256, 4, 8
# An operand of more than so many second-level caches is far; so many panels are not few.
_FAR, _PANELS = 4, 32
# Nothing is asked for of an operand that takes at most this part of the second-level cache (5 to 12 rows of up to 0.8 MB where it has 2:
# 0.85 to 0.99 of the time; of 1.2 MB 0.90 to 1.10, of 1.4 MB 0.97 to 1.18).
_AT_HAND = 0.5
# Reading an element costs as much as the multiply-adds of so many rows.
_ROWS_TO_READ = 2
# A task goes through an operand by blocks of k that take this part of the second-level cache, and have so many rows of it at least, where
# the operand has more than two fifths of that cache's size; the sums take half of it at most. So many rows do, more of an operand that the
# cache does not hold. (13 to 16 rows of less, which tiles pack: 0.88 to 0.95 of the time.)
_PART_OF_CACHE, _FEWEST_IN_BLOCK, _AWAITED, _PART_OF_SUMS = 8, 32, 0.4, 2
_MOST_IN_BLOCKS, _MOST_IN_BLOCKS_OF_FAR = 16, 48


def is_unpacked(nest: ProductNest) -> bool:
    """Whether whole vectors of the right operand, and of a last panel what there is of them, can be read where they are."""
    along, down = nest.right_strides()
    columns = size_of(nest.p.columns)
    tiles = [nest.p.tile, *(_one_tile(nest, rows) for rows in range(FEWEST, most_in_one(nest) + 1))]
    whole = isinstance(columns, int) and all(columns % tile.columns == 0 for tile in tiles)
    return along == 1 and down is not None and (whole or nest.masked)


def _is_larger(nest: ProductNest, size: float) -> bool:
    """Whether the right operand (of one product of a batch) is known to have more than so many bytes."""
    return nest.right_bytes is not None and nest.right_bytes > size


def most_in_blocks(nest: ProductNest) -> int:
    """Up to how many rows go through the right operand by blocks of k; 0: none do."""
    p, target = nest.p, nest.builder.target
    columns = size_of(p.columns)
    if not target.outruns_caches or p.batch or p.outer or len(p.reduced) != 1 or not isinstance(columns, int):
        return 0
    if not _is_larger(nest, target.l2_bytes * _AWAITED):
        return 0
    most = _MOST_IN_BLOCKS_OF_FAR if _is_larger(nest, target.l2_bytes) else _MOST_IN_BLOCKS
    held = target.l2_bytes // _PART_OF_SUMS * 8 // (columns * dtype_bits(p.form.accumulate))
    return min(most, held) if held >= most_in_one(nest) else 0


def block_of_depth(nest: ProductNest) -> int | None:
    """The length of the blocks of k by which a few rows go through the right operand; None: all at once."""
    columns, depth = size_of(nest.p.columns), size_of(nest.p.reduced)
    if not most_in_blocks(nest) or not isinstance(columns, int) or not isinstance(depth, int):
        return None
    row = columns * dtype_bits(narrow(nest.p.form.right).dtype) // 8
    length = max(_FEWEST_IN_BLOCK, nest.builder.target.l2_bytes // (_PART_OF_CACHE * row))
    return length if length < depth else None


def most_in_one(nest: ProductNest) -> int:
    """Up to how many rows are one tile, which reads the operand once: more rows where reading it again takes longer than more elements
    of the left operand; fewer where registers would not hold a line of sums of each: the next panel's tile would bring the rest of
    lines that the first-level cache has lost by then (eight rows of 768 x 768 with AVX2: 240 us, packed 160)."""
    target = nest.builder.target
    if target.outruns_caches:
        return _MOST_IN_ONE_WAITING
    vectors_of_line = max(1, LINE_BITS // target.vector_bits)
    return max(FEWEST, min(_MOST_IN_ONE, target.vector_registers * 3 // 4 // vectors_of_line))


def fewest_unpacked(nest: ProductNest) -> int:
    """From how many rows on tiles are faster than streaming the operand, in long runs that the machine's prefetchers follow."""
    target = nest.builder.target
    streamed = target.outruns_caches and _is_larger(nest, _LARGE * target.l2_bytes)
    return _MOST_STREAMED + 1 if streamed else FEWEST


@record(slots=True, eq=False)
class Unpacked:
    """A product whose right operand's rows are ``down`` elements apart; ``fewer`` makes the loops for less than ``fewest`` rows."""

    shared: ProductNest
    down: Dim
    fewest: int
    fewer: Callable[[], Stmt]

    @property
    def most(self) -> int:
        """Up to how many rows packing is not repaid. Rows of the operand whose distance is divisible by a large power of two
        share few places in the caches, and tiles after the first do not find them there. Where tiles wait for caches, vectors that
        lie in two lines are dear."""
        target = self.shared.builder.target
        if not self.shared.right_is_read:
            return most_in_one(self.shared)  # what is put together is put together once
        if target.outruns_caches:
            return most_in_one(self.shared) if block_of_depth(self.shared) is None else most_in_blocks(self.shared)
        if not target.mask_registers:
            # Asking for the rows below takes as long as half of the multiply-adds of shorter vectors.
            return most_in_one(self.shared)
        if not isinstance(self.down, int):
            return _MOST
        way = target.l2_bytes // _WAYS
        size = dtype_bits(narrow(self.shared.p.form.right).dtype) // 8
        spread = _ROWS_OF_A_PLACE * way // math.gcd(max(self.down * size, 1), way)
        return max(_MOST, min(_MOST_SPREAD, spread))

    def nest(self) -> Stmt:
        nest = self.shared
        rows, one_tile = size_of(nest.p.rows), most_in_one(nest)
        if isinstance(rows, int):
            if rows < self.fewest:
                return self.fewer()
            return _Tiles(nest, _one_tile(nest, rows) if rows <= one_tile else nest.p.tile, rows).nest()
        count = extent_of(rows)
        if not nest.has_known_columns:
            # Neither is known, so no width can be right for a height: one tile for all saves half of the code.
            made: Stmt = _Tiles(nest, nest.p.tile, self.most, fewest=self.fewest).nest()
        else:
            heights = range(self.fewest, one_tile + 1)
            one = [_Tiles(nest, _one_tile(nest, n), n, exactly=True).nest() for n in heights]
            made = Switch(binary("sub", count, self.fewest), tuple(one))
            if one_tile < self.most:
                several = _Tiles(nest, nest.p.tile, self.most, fewest=one_tile + 1).nest()
                made = Branch(compare("le", count, one_tile), made, several)
        return Branch(compare("ge", count, self.fewest), made, self.fewer())


def _one_tile(nest: ProductNest, rows: int) -> Tile:
    return wide_tile(nest.builder.target, nest.p.form.accumulate, rows, size_of(nest.p.columns))


@record(slots=True, eq=False)
class _Tiles:
    """A product of ``fewest`` to ``most`` rows (``exactly`` so many), in tiles."""

    shared: ProductNest
    tile: Tile
    most: int
    exactly: bool = False
    fewest: int = 1

    def nest(self) -> Stmt:
        shared, p, width = self.shared, self.shared.p, self.tile.columns
        shared.env = {}
        length = block_of_depth(shared)
        if length is not None:
            return self._by_blocks(length)
        behind = self._behind()
        places = size_of(p.columns) if behind is None else dim_add(size_of(p.columns), behind.extent)
        panel = Axis("panel", ceil_div(places, width))
        number: Scalar = Const(0, "int64") if panel.extent == 1 else panel
        rows: Dim = self.most if self.exactly else size_of(p.rows)
        each = dim_mul(size_of(p.reduced), width)
        work = dim_floordiv(dim_mul(each, dim_max(rows, _ROWS_TO_READ)), FMA_DISCOUNT)
        others = dim_mul(size_of([*p.outer, *p.batch]), panel.extent)
        shares = RowShares.of(rows, self.most, self.most, self.tile.rows, others, dim_mul(work, others))
        part = Axis("part", 1 if shares is None else 1 << 16)
        if behind is None:
            first = number if isinstance(number, Const) else binary("mul", number, width)
            across, nothing = shared.across(first, width), Const(0, "int64")
            body = self._panel(first, nothing, across, part, shares)
            if not shared.has_known_columns:
                # A last panel that has few columns is narrower: most lanes would multiply what nobody asked for.
                for tile in narrower(shared.builder.target, p.form.accumulate, rows, self.tile):
                    less = replace(self, tile=tile)._panel(first, nothing, minimum(tile.columns, across), part, shares)
                    body = Branch(compare("le", across, tile.columns), less, body)
        else:
            start, begin = Axis("start", 1 << 62), Axis("begin", behind.extent)
            body = Branch(
                compare("lt", start, extent_of(size_of(p.columns))),
                self._panel(
                    start, begin, minimum(width, binary("sub", extent_of(size_of(p.columns)), start)), part, shares
                ),
            )
            body = bound([
                (start, binary("sub", binary("mul", number, width), behind)),
                (begin, maximum(0, binary("sub", 0, start))),
            ], body)  # fmt: skip
        order = [*p.outer, *p.batch, panel]
        if shares is None:
            return parallel_rows(shared.builder, order, work, body, LEAST_SHARE)
        return shares.loop(order, (part, shares.number), others, dim_mul(work, others), body)

    def _by_blocks(self, length: int) -> Stmt:
        """All panels of a task by one block of k after the other; their sums wait in memory. There are as many tasks as threads."""
        shared, p, width = self.shared, self.shared.p, self.tile.columns
        (k,), columns, nothing = p.reduced, size_of(p.columns), Const(0, "int64")
        assert isinstance(columns, int) and isinstance(k.extent, int)
        panels = -(-columns // width)
        threads, each, task = Axis("threads", 1 << 16), Axis("each", panels + 1), Axis("task", panels)
        inner, number = Axis("inner", panels), Axis("kb", -(-k.extent // length))
        step, first = Axis("step", length), Axis("column", columns)
        begin, size = Axis("begin", k.extent), Axis("length", length + 1)
        sums = temporary(shared.builder.fresh("sums"), panels * self.most * width, p.form.accumulate)
        base = binary("mul", inner, self.most * width)
        rows: Dim = self.most if self.exactly else size_of(p.rows)
        across = shared.across(first, width)
        # Of several tiles the first leaves behind what the others read: rows far apart share few places of the first-level cache.
        several = self.most > self.tile.rows and columns > width
        copy = temporary(shared.builder.fresh("copy"), length * width, p.form.accumulate) if several else None

        def tile(row: Scalar, height: int, offset: Scalar) -> Stmt:
            def part(end: Scalar, is_first: bool) -> Stmt:
                return self._part((row, height), first, end, (begin, step, size), (sums, base), (copy, is_first))

            def some(start: Scalar, end: Scalar) -> Stmt:
                if copy is None:
                    return part(end, True)
                return Branch(compare("eq", offset, 0), part(end, True), part(end, False))

            return self._either(across, nothing, some)

        def finish(start: Scalar, end: Scalar) -> Stmt:
            return shared.finish_rows(nothing, extent_of(rows), first, end, sums, base, width)

        body = balanced(nothing, extent_of(rows), self.most, self.tile.rows, tile, fewest=self.fewest)
        last = compare("eq", number, binary("sub", extent_of(number.extent), 1))
        body = seq([body, Branch(last, self._either(across, nothing, finish))])
        count = minimum(each, binary("sub", panels, binary("mul", task, each)))
        column = binary("mul", binary("add", binary("mul", task, each), inner), width)
        body = For(inner, count, LetScalar(first, column, body))
        at = binary("mul", number, length)
        body = bound([(begin, at), (size, minimum(length, binary("sub", k.extent, at)))], body)
        buffers = [sums] if copy is None else [sums, copy]
        body = allocate(buffers, For(number, extent_of(number.extent), body))
        work = dim_floordiv(dim_mul(dim_mul(k.extent, columns), dim_max(rows, _ROWS_TO_READ)), FMA_DISCOUNT)
        worth = binary("floordiv", extent_of(work), LEAST_SHARE)
        return bound([
            (threads, maximum(minimum(WORKERS, worth), 1)),
            (each, ceiling(Const(panels, "int64"), minimum(threads, panels))),
        ], For(task, ceiling(Const(panels, "int64"), each), body, "parallel", 1))  # fmt: skip

    def _part(
        self,
        rows: tuple[Scalar, int],
        first: Scalar,
        across: Scalar,
        block: tuple[Axis, Axis, Axis],
        held: tuple[Buffer, Scalar],
        copied: tuple[Buffer | None, bool],
    ) -> Stmt:
        """Some rows (the first, and how many) of a tile over a block of k (its begin, the steps in it and how many they are), added to
        what is ``held`` (from where on). ``copied``: where the block of the panel is copied to, if it is, and whether by this tile."""
        shared, p, width, (row, height) = self.shared, self.shared.p, self.tile.columns, rows
        begin, step, length = block
        (k,), dtype = p.reduced, p.form.accumulate
        tile = Buffer(shared.builder.fresh("registers"), (height, width), dtype, "register")
        lane, lanes = Axis("j", width), Const(width, "int64")
        shared.env = {k: binary("add", begin, step)}
        left = shared.left_rows(row, height, [step])
        right = shared.right_element(binary("add", first, lane))
        if not self._is_whole(across):
            right = select(compare("lt", lane, across), right, initial("sum", dtype))
        copy, is_first = copied
        reads: list[Stmt] = []
        if is_first:
            reads += self._asked(first, (begin, length))
        if copy is not None:
            spot_in_copy = (binary("add", binary("mul", step, width), lane),)
            if is_first:
                reads.append(For(lane, lanes, Store(copy, spot_in_copy, right), "vectorized"))
            right = Load(copy, spot_in_copy, dtype)
        clear: list[Stmt] = []
        so_far: list[Stmt] = []
        adds: list[Stmt] = []
        base = binary("add", held[1], binary("mul", row, width))
        for i in range(height):
            place = (Const(i, "int64"), lane)
            spot = binary("add", binary("add", base, i * width), lane)
            total = binary("add", Load(tile, place, dtype), p.form.product(left.elements[i], right))
            clear.append(For(lane, lanes, Store(tile, place, initial("sum", dtype)), "vectorized"))
            so_far.append(For(lane, lanes, Store(tile, place, Load(held[0], (spot,), dtype)), "vectorized"))
            adds.append(For(lane, lanes, Store(tile, place, total), "vectorized"))
        loop = For(step, length, seq([*reads, *adds]))
        shared.env = {}
        start = Branch(compare("eq", begin, 0), seq(clear), seq(so_far))
        return left.bind(Alloc(tile, seq([start, loop, *shared.hand_over(tile, held[0], base)])))

    def _asked(self, first: Scalar, block: tuple[Scalar, Scalar] | None = None) -> list[Stmt]:
        """What a step along k asks for of the panel that begins at column ``first``."""
        return [] if self.shared.is_at_hand(_AT_HAND) else [self.shared.ask_below(first, self.tile.columns, block)]

    def _either(self, across: Scalar, begin: Scalar, make: Callable[[Scalar, Scalar], Stmt]) -> Stmt:
        """What is made for columns ``begin`` to ``across`` of a panel; for whole ones, where most are, it has code of its own."""
        if isinstance(across, Const) or not self.shared.has_known_columns:
            return make(begin, across)
        width, columns = self.tile.columns, size_of(self.shared.p.columns)
        full = compare("eq", across if isinstance(begin, Const) else binary("sub", across, begin), width)
        if isinstance(begin, Const) and isinstance(columns, int):
            across = Const(columns % width, "int64")  # only the last panel is not whole
        return Branch(full, make(Const(0, "int64"), Const(width, "int64")), make(begin, across))

    def _is_whole(self, across: Scalar) -> bool:
        return isinstance(across, Const) and across.value == self.tile.columns

    def _behind(self) -> Behind | None:
        """How many elements behind a line panels begin that are to begin at lines: neighbouring panels share no line then, which
        would be brought twice from where memory is far. One panel more is not worth that where there are few and the last cache
        holds the operand."""
        columns, depth = size_of(self.shared.p.columns), size_of(self.shared.p.reduced)
        if not isinstance(columns, int) or not isinstance(depth, int):
            return None
        target, many = self.shared.builder.target, columns >= _PANELS * self.tile.columns
        size = columns * depth * dtype_bits(self.shared.p.form.accumulate) // 8
        far = size > (_FAR * target.l2_bytes if many else target.l3_bytes // 2)
        return self.shared.behind_line() if far else None

    def _panel(self, first: Scalar, begin: Scalar, across: Scalar, part: Axis, shares: RowShares | None) -> Stmt:
        """A part of the rows, or all, of columns ``begin`` to ``across`` (at most the tile's) from the first one on. A dear epilogue takes
        finished tiles from memory, so that its code is not needed for every height."""
        shared, width, fewest = self.shared, self.tile.columns, self.fewest
        start: Scalar = Const(0, "int64")
        count: Scalar = Const(self.most, "int64") if self.exactly else extent_of(size_of(shared.p.rows))
        names: list[tuple[Axis, Scalar]] = []
        if shares is not None:
            start, count, names = part_of(part, shares.rows, self.most, fewest, shares)
            fewest = shares.least(fewest)
        dear = shared.epilogue_cost() > CHEAP_EPILOGUE
        held = temporary(shared.builder.fresh("tile"), self.tile.rows * width, shared.p.form.accumulate)

        def tile(row: Scalar, height: int, _: Scalar) -> Stmt:
            return self._either(
                across, begin, lambda start, end: self._micro(row, height, first, start, end, held if dear else None)
            )

        def finish(row: Scalar, height: Scalar, _: Scalar) -> Stmt:
            def columns(start: Scalar, end: Scalar) -> Stmt:
                count = binary("sub", end, start)
                return shared.finish_rows(row, height, binary("add", first, start), count, held, start, width)

            return self._either(across, begin, columns)

        if not dear:
            return bound(names, balanced(start, count, self.most, self.tile.rows, tile, fewest=fewest))
        return bound(names, allocate([held], balanced(start, count, self.most, self.tile.rows, tile, finish, fewest)))

    def _micro(
        self, row: Scalar, height: int, first: Scalar, begin: Scalar, across: Scalar, held: Buffer | None
    ) -> Stmt:
        """``height`` rows of a tile over all of k, in registers, and then in ``held`` or through the epilogue."""
        shared, p, width, nothing = self.shared, self.shared.p, self.tile.columns, Const(0, "int64")
        dtype = p.form.accumulate
        tile = Buffer(shared.builder.fresh("registers"), (height, width), dtype, "register")
        lane, lanes = Axis("j", width), Const(width, "int64")
        left = shared.left_rows(row, height, p.reduced)
        right = shared.right_element(binary("add", first, lane))
        if not self._is_whole(across):
            inside = compare("lt", lane, across)
            if not isinstance(begin, Const):
                inside = binary("and", compare("ge", lane, begin), inside)
            right = select(inside, right, initial("sum", dtype))
        clear: list[Stmt] = []
        adds: list[Stmt] = []
        for i in range(height):
            place = (Const(i, "int64"), lane)
            total = binary("add", Load(tile, place, dtype), p.form.product(left.elements[i], right))
            clear.append(For(lane, lanes, Store(tile, place, initial("sum", dtype)), "vectorized"))
            adds.append(For(lane, lanes, Store(tile, place, total), "vectorized"))
        loop = serial(p.reduced, seq([*self._asked(first), *adds]))
        # Tiles of whole panels have code of their own.
        last = (
            shared.hand_over(tile, held, nothing)
            if held
            else shared.finish_tile(tile, row, first, across, partial=True, begin=begin)
        )
        return left.bind(Alloc(tile, seq([*clear, loop, *last])))
