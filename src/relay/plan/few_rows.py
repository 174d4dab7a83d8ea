"""Products of a few rows with a right operand that is read once, where it is: nothing would repay packing it.

Two ways, by how the operand lies in memory. Where its rows are along the columns of the result (``w[k, j]``), tiles
take it where it is (see `unpacked`), or, for one to three rows or without masks, the results of a chunk of columns stay
in the first-level cache and ``S`` rows of the operand at a time are *streamed* over them: ``S`` long reads in order,
whatever its shape. Where its rows are along k (``w[j, k]``), each result is a *dot
product* in vector lanes, a few columns beside each other, so that their chains and reads overlap, asking for the next ones.

Streamed sums run over k in order like those of a register tile. Dot products run in lanes, so their rounding differs
from a tile's; neither depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Protocol

from relay.ir.dim import ceil_div, dim_add, dim_floordiv, dim_mul
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import WORKERS, Alloc, Behind, Branch, Buffer, For, Stmt, Store
from relay.plan.build import allocate, bound, ceiling, seq, serial, temporary
from relay.plan.parallel import LEAST_SHARE, parallel_rows
from relay.plan.product import narrow, size_of, unflatten
from relay.plan.product_nest import FMA_DISCOUNT, ProductNest, balanced
from relay.plan.reduction import initial
from relay.plan.there_and_back import stays_in_part, turned_round
from relay.plan.unpacked import Unpacked, fewest_unpacked, is_unpacked
from relay.te.scalar import Axis, Const, Load, Named, Scalar, binary, compare, extent_of, maximum, minimum, select

# More rows than this repay packing; of dot products, which end in sums across lanes, the shorter the fewer, and the fewer where
# multiply-adds wait for caches.
_MOST_STREAMED = 48
_MOST_DOTTED, _MOST_DOTTED_WAITING, _FEWEST_DOTTED, _DEPTH_OF_A_ROW = 48, 18, 6, 8
# Where masks take vector registers: up to so many rows of an operand that the second-level cache is not known to hold are streamed, if its
# rows are not known to be shorter than so many vectors.
_MOST_STREAMED_FAR, _VECTORS_OF_A_ROW = 12, 4
# Rows of the left operand that one pass over a chunk of the right one serves.
_STREAMED_ROWS = 6
# Rows of the right operand streamed at once: more would meet in few sets of the first-level cache where the distance of
# rows is a power of two.
_STREAMS = 4
# Sums of a chunk that stay in the first-level cache beside what streams through it.
_CHUNK_BYTES = 16 << 10
# Rows and columns of a tile of dot products, and columns of a task: where there are 32 vector registers, and where there are fewer.
_DOTS, _DOTS_OF_FEW = (6, 4, 32), (4, 3, 48)
# Up to so many rows the loads are what dot products wait for, and those of a vector in two lines are dear; so many lines of a column
# repay what is left of the first one and of the last.
_MOST_IN_LINES, _FEWEST_LINES = 3, 8


class FewRows(Protocol):
    """A way to compute a product of at most ``most`` rows."""

    @property
    def most(self) -> int: ...

    def nest(self) -> Stmt: ...


def few_rows(nest: ProductNest) -> FewRows | None:
    """How to compute a product with the right operand where it is; None: it has to be packed."""
    along, down = nest.right_strides()
    if along is None or down is None:
        return None
    if along == 1:
        if not is_unpacked(nest):
            return _Streamed(nest)
        if most := _most_streamed(nest):
            return _Streamed(nest, most)
        fewest = fewest_unpacked(nest)
        return Unpacked(nest, down, fewest, _Streamed(nest, fewest - 1).nest)
    if down == 1 and _left_along_depth(nest):
        depth = nest.p.reduced[-1].extent
        most = depth // _DEPTH_OF_A_ROW if isinstance(depth, int) else _FEWEST_DOTTED
        limit = _MOST_DOTTED_WAITING if nest.builder.target.outruns_caches else _MOST_DOTTED
        return _Dotted(nest, max(_FEWEST_DOTTED, min(most, limit)))
    return None


def _most_streamed(nest: ProductNest) -> int:
    """Up to how many rows are streamed where vectors are short, and tiles narrow: what they read of a row of the operand is a line or two,
    far from those of the next row, that no prefetcher sees coming. 0: tiles read the operand better, a near or narrow one."""
    target, columns = nest.builder.target, size_of(nest.p.columns)
    near = nest.right_bytes is not None and nest.right_bytes <= target.l2_bytes
    short = isinstance(columns, int) and columns < _VECTORS_OF_A_ROW * nest.builder.lanes([nest.p.form.accumulate])
    if target.mask_registers or near or short:
        return 0
    if not nest.right_is_read:
        return _STREAMED_ROWS  # what is put together is put together once
    return _MOST_STREAMED_FAR


def _left_along_depth(nest: ProductNest) -> bool:
    indices = nest.builder.indices
    (left,) = nest.builder.evaluate([nest.p.left], nest.p.space.env)
    assert isinstance(left, Load)
    return indices.coefficient(indices.poly(left.indices[0]), nest.p.reduced[-1]) == 1


def _rows(nest: ProductNest, most: int) -> int:
    """The largest number of rows code is made for."""
    rows = size_of(nest.p.rows)
    return min(rows, most) if isinstance(rows, int) else most


@record(slots=True, eq=False)
class _Streamed:
    shared: ProductNest
    most: int = _MOST_STREAMED

    def nest(self) -> Stmt:
        """All columns, in chunks whose sums the first-level cache holds: long runs in memory, but one for each thread
        that there is work for."""
        shared, p = self.shared, self.shared.p
        rows, columns, batch = size_of(p.rows), size_of(p.columns), size_of(p.batch)
        lanes = shared.builder.lanes([p.form.accumulate])
        held = _CHUNK_BYTES * 8 // dtype_bits(p.form.accumulate)
        shared.env = {}
        behind = shared.behind_line()
        places = columns if behind is None else dim_add(columns, lanes - 1)
        whole, pairs = extent_of(columns), extent_of(batch)
        across = whole if behind is None else binary("add", behind, whole)
        vectors = ceil_div(places, lanes)
        work = dim_floordiv(dim_mul(dim_mul(size_of(p.reduced), columns), dim_mul(batch, rows)), FMA_DISCOUNT)
        tasks = dim_mul(batch, vectors)
        threads, width, chunks = Axis("threads", 1 << 16), Axis("width", held + 1), Axis("chunks", vectors)
        begin, per, step, task = Axis("part", 1 << 16), Axis("per", tasks), Axis("t", tasks), Axis("task", tasks)
        pair, chunk = Axis("pair", batch), Axis("chunk", vectors)
        total = binary("mul", pairs, chunks)
        exact = isinstance(places, int) and places % lanes == 0
        inner = bound([
            (task, binary("add", binary("mul", begin, per), step)),
            (pair, binary("floordiv", task, chunks)),
            (chunk, binary("sub", task, binary("mul", pair, chunks))),
            *unflatten(p.batch, pair).items(),
        ], self._task(_Chunk(chunk, width, across, behind, lanes, exact and behind is None), held))  # fmt: skip
        count = minimum(per, binary("sub", total, binary("mul", begin, per)))
        share = binary("mul", ceiling(across, binary("mul", ceiling(threads, pairs), lanes)), lanes)
        height = minimum(_STREAMED_ROWS, extent_of(rows))
        most = binary("mul", binary("floordiv", held // lanes, maximum(height, 1)), lanes)
        return bound([
            (threads, maximum(minimum(WORKERS, binary("floordiv", extent_of(work), LEAST_SHARE)), 1)),
            (width, maximum(minimum(share, most), lanes)),
            (chunks, ceiling(across, width)),
            (per, maximum(ceiling(total, threads), 1)),
        ], For(begin, ceiling(total, per), For(step, count, inner), "serial" if tasks == 1 else "parallel", 1))  # fmt: skip

    def _task(self, chunk: _Chunk, size: int) -> Stmt:
        """All rows of a chunk of columns, a few at a time."""
        shared = self.shared
        held = temporary(shared.builder.fresh("sums"), size, shared.p.form.accumulate)
        nothing, limit = Const(0, "int64"), _rows(shared, self.most)
        tiles = balanced(
            nothing, extent_of(size_of(shared.p.rows)), limit, _STREAMED_ROWS,
            lambda row, n, _: self._sums(row, n, chunk, held),
            lambda row, n, _: shared.finish_rows(
                row, n, chunk.column(chunk.begin), binary("sub", chunk.end, chunk.begin), held, chunk.begin, chunk.width
            ),
        )  # fmt: skip
        return allocate([held], chunk.named(tiles))

    def _sums(self, row: Scalar, rows: int, chunk: _Chunk, held: Buffer) -> Stmt:
        shared = self.shared
        lane, zero = Axis("j", _elements(held)), initial("sum", held.dtype)
        clear = [For(lane, chunk.room, Store(held, (chunk.spot(lane, r),), zero), "vectorized") for r in range(rows)]
        *outer, k = shared.p.reduced
        whole = binary("floordiv", extent_of(k.extent), _STREAMS)
        group, single = Axis("kb", dim_floordiv(k.extent, _STREAMS)), Axis("k", k.extent)
        done = binary("mul", whole, _STREAMS)
        grouped = [binary("add", binary("mul", group, _STREAMS), u) for u in range(_STREAMS)]
        main = self._rank_update(row, rows, chunk, held, group, grouped)
        rest = self._rank_update(row, rows, chunk, held, single, [binary("add", done, single)])
        body = seq([main(whole), rest(binary("sub", extent_of(k.extent), done))])
        return seq([*clear, serial(outer, body)])

    def _rank_update(
        self, row: Scalar, rows: int, chunk: _Chunk, held: Buffer, step: Axis, places: Sequence[Scalar]
    ) -> Callable[[Scalar], Stmt]:
        """Add the products of a few rows of the right operand to the sums of a chunk, for each value of ``step``."""
        *outer, k = self.shared.p.reduced
        shared, dtype = self.shared, held.dtype
        bindings: list[tuple[Axis, Scalar]] = []
        left: list[tuple[Axis, Scalar]] = []
        for u, place in enumerate(places):
            shared.env = {k: place}
            found = shared.left_rows(row, rows, [*outer, step])
            bindings += found.bindings
            left += [(Named(f"a{r}_{u}", dtype), e) for r, e in enumerate(found.elements)]
        shared.env = {}

        def added(lane: Scalar, inside: Scalar | None) -> Stmt:
            right: list[tuple[Axis, Scalar]] = []
            for u, place in enumerate(places):
                shared.env = {k: place}
                element = shared.right_element(chunk.column(lane))
                here = element if inside is None else select(inside, element, initial("sum", dtype))
                right.append((Named(f"b{u}", dtype), here))
            shared.env = {}
            sums: list[Stmt] = []
            for r in range(rows):
                total, at = Buffer("total", (1,), dtype, "register"), (Const(0, "int64"),)
                spot = (chunk.spot(lane, r),)
                so_far = Load(total, at, dtype)
                adds = [
                    Store(total, at, binary("add", so_far, shared.p.form.product(left[u * rows + r][0], right[u][0])))
                    for u in range(len(places))
                ]
                sums.append(
                    Alloc(total, seq([Store(total, at, Load(held, spot, dtype)), *adds, Store(held, spot, so_far)]))
                )
            return bound(right, seq(sums))

        body = bound(left, chunk.lanes_of(added, _elements(held)))
        return lambda count: bound(bindings, For(step, count, body))


@record(slots=True, eq=False)
class _Chunk:
    """Chunk ``number`` of columns, ``width`` places for sums. Where all rows of the right operand begin ``behind`` a line, places are
    counted from that line, so that vectors of them and of the operand begin at lines: the first chunk begins with the rest of one."""

    number: Axis
    width: Scalar
    across: Scalar  # places of all chunks
    behind: Axis | None
    vector: int
    exact: bool  # whether places of all chunks are known to be whole vectors
    # In the chunk: the first place, the first whole vector's and the one behind the last; the first column is counted from place 0.
    begin: Scalar = field(init=False)
    whole: Scalar = field(init=False)
    end: Axis = field(init=False)
    first: Axis = field(init=False)

    @property
    def room(self) -> Scalar:
        """Places of whole vectors: what is behind the last place of a chunk is its own, too."""
        return self.end if self.exact else binary("mul", ceiling(self.end, Const(self.vector, "int64")), self.vector)

    def __post_init__(self) -> None:
        self.begin = self.whole = Const(0, "int64")
        if self.behind is not None:
            self.begin, self.whole = Axis("begin", self.vector), Axis("whole", self.vector + 1)
        self.end, self.first = Axis("end", 1 << 16), Axis("first", 1 << 62)

    def named(self, body: Stmt) -> Stmt:
        """The names that the other methods use, for a statement."""
        before = binary("mul", self.number, self.width)
        names: list[tuple[Axis, Scalar]] = [(self.end, minimum(self.width, binary("sub", self.across, before)))]
        if self.behind is None:
            return bound([*names, (self.first, before)], body)
        zero = Const(0, "int64")
        assert isinstance(self.begin, Axis) and isinstance(self.whole, Axis)
        names.append((self.first, binary("sub", before, self.behind)))
        names.append((self.begin, select(compare("eq", self.number, 0), self.behind, zero)))
        rest = select(compare("gt", self.begin, 0), minimum(self.vector, self.end), zero)
        return bound([*names, (self.whole, rest)], body)

    def column(self, place: Scalar) -> Scalar:
        """The column of the result that a place has."""
        return binary("add", self.first, place)

    def spot(self, place: Scalar, row: int) -> Scalar:
        """Where the sums of a row have a place: rows of a chunk lie one behind the other."""
        return binary("add", binary("mul", self.width, row), place)

    def lanes_of(self, body: Callable[[Scalar, Scalar | None], Stmt], most: int) -> Stmt:
        """A statement for every place of the chunk, as lanes of whole vectors: of the first and of the last one the second operand says
        which lanes there are, those that may be read. Sums of the others are written, too: stores under masks take longer."""
        lane, some = Axis("j", most), Axis("j", self.vector)
        if self.exact:
            return For(lane, self.end, body(lane, None), "vectorized")

        def part(at: Scalar, inside: Scalar) -> Stmt:
            return For(some, Const(self.vector, "int64"), body(at, inside), "vectorized")

        vectors = binary("mul", binary("floordiv", binary("sub", self.end, self.whole), self.vector), self.vector)
        last = binary("add", binary("add", self.whole, vectors), some)
        stmts: list[Stmt] = [For(lane, vectors, body(binary("add", self.whole, lane), None), "vectorized")]
        stmts.append(
            Branch(
                compare("lt", binary("add", self.whole, vectors), self.end), part(last, compare("lt", last, self.end))
            )
        )
        if self.behind is not None:
            inside = binary("and", compare("ge", some, self.begin), compare("lt", some, self.whole))
            stmts.insert(0, Branch(compare("gt", self.whole, 0), part(some, inside)))
        return seq(stmts)


def _elements(held: Buffer) -> int:
    (size,) = held.shape
    assert isinstance(size, int)
    return size


@record(slots=True, eq=False)
class _Dotted:
    shared: ProductNest
    most: int

    def nest(self) -> Stmt:
        shared, p = self.shared, self.shared.p
        rows, columns = size_of(p.rows), size_of(p.columns)
        high, wide, most = _DOTS if shared.builder.target.vector_registers >= 32 else _DOTS_OF_FEW
        width = min(most, columns) if isinstance(columns, int) else most
        chunk = Axis("chunk", ceil_div(columns, width))
        number: Scalar = Const(0, "int64") if chunk.extent == 1 else chunk
        shared.env = {}
        first = binary("mul", number, width)
        across = shared.across(first, width)
        limit = _rows(shared, self.most)
        held = temporary(shared.builder.fresh("sums"), limit * width, p.form.accumulate)
        groups = Axis("group", -(-width // wide))
        column = Axis("column", width)
        several = binary("floordiv", across, wide)
        done = binary("mul", several, wide)
        nothing = Const(0, "int64")
        behind = self._behind()

        def dots(row: Scalar, n: int, at: Scalar, beside: int) -> Stmt:
            column = binary("add", first, at)
            if behind is not None and beside > 1 and n <= _MOST_IN_LINES:
                return self._tile_in_lines(row, n, column, at, beside, held, width, behind)
            return self._tile(row, n, column, at, beside, held, width)

        def columns_of(made: Callable[[Scalar, int], Stmt]) -> Stmt:
            return seq([
                For(groups, several, made(binary("mul", groups, wide), wide)),
                For(column, binary("sub", across, done), made(binary("add", done, column), 1)),
            ])  # fmt: skip

        def rows_of(made: Callable[[Scalar, int], Stmt]) -> Stmt:
            return balanced(nothing, extent_of(rows), limit, high, lambda row, n, _: made(row, n))

        # Which tile it is, is asked for each group of columns only where several tiles take turns with what a cache holds of them.
        if limit <= high:
            made = rows_of(lambda row, n: columns_of(lambda at, beside: dots(row, n, at, beside)))
        else:
            made = columns_of(lambda at, beside: rows_of(lambda row, n: dots(row, n, at, beside)))
        body = seq([made, shared.finish_rows(nothing, extent_of(rows), first, across, held, nothing, width)])
        work = dim_floordiv(dim_mul(dim_mul(size_of(p.reduced), width), rows), FMA_DISCOUNT)
        body = allocate([held], body)
        if (
            isinstance(columns, int)
            and chunk.extent != 1
            and isinstance(rows, int)
            and stays_in_part(shared, rows, columns, narrow(p.form.right).dtype)
        ):
            at = Axis("at", chunk.extent)
            body = bound([(chunk, turned_round(at, chunk.extent))], body)
            return parallel_rows(shared.builder, [at], work, body, LEAST_SHARE)
        return parallel_rows(shared.builder, [*p.batch, chunk], work, body, LEAST_SHARE)

    def _tile(self, row: Scalar, rows: int, column: Scalar, at: Scalar, beside: int, held: Buffer, width: int) -> Stmt:
        """The dot products of ``rows`` rows with ``beside`` columns, all over k at once."""
        shared, dtype = self.shared, held.dtype
        *outer, k = shared.p.reduced
        sums = Buffer(shared.builder.fresh("dots"), (rows * beside,), dtype, "register")
        left = shared.left_rows(row, rows, [*outer, k])
        right = [(Named(f"b{c}", dtype), shared.right_element(binary("add", column, c))) for c in range(beside)]
        named = [(Named(f"a{r}", dtype), e) for r, e in enumerate(left.elements)]
        clear: list[Stmt] = []
        adds: list[Stmt] = []
        for r in range(rows):
            for c in range(beside):
                spot = (Const(r * beside + c, "int64"),)
                so_far = Load(sums, spot, dtype)
                clear.append(Store(sums, spot, initial("sum", dtype)))
                adds.append(Store(sums, spot, binary("add", so_far, shared.p.form.product(named[r][0], right[c][0]))))
        ahead = self._ahead(column, beside, rows) if beside > 1 else []
        body = For(k, extent_of(k.extent), bound([*named, *right], seq([*ahead, *adds])), "vectorized")
        out = self._handed_over(sums, row, rows, at, beside, held, width)
        return left.bind(Alloc(sums, seq([*clear, serial(outer, body), *out])))

    def _handed_over(
        self, sums: Buffer, row: Scalar, rows: int, at: Scalar, beside: int, held: Buffer, width: int
    ) -> list[Stmt]:
        """The sums of a tile, to the places of its rows and columns."""
        out: list[Stmt] = []
        for r in range(rows):
            lane = Axis("c", beside)
            place = binary("add", binary("mul", binary("add", row, r), width), binary("add", at, lane))
            found = Load(sums, (binary("add", r * beside, lane),), sums.dtype)
            out.append(For(lane, Const(beside, "int64"), Store(held, (place,), found), "vectorized"))
        return out

    def _behind(self) -> Behind | None:
        """How many elements behind a line every column of the right operand begins; None: nothing is gained by reading whole lines."""
        p = self.shared.p
        behind, depth = self.shared.behind_line(down=True), p.reduced[-1].extent
        if behind is None or len(p.reduced) > 1 or not isinstance(depth, int) or not isinstance(behind.extent, int):
            return None
        if p.form.pairing is not None:
            return None  # of what is no product zeros for lanes outside are no zeros
        return behind if depth >= _FEWEST_LINES * behind.extent else None

    def _tile_in_lines(
        self, row: Scalar, rows: int, column: Scalar, at: Scalar, beside: int, held: Buffer, width: int, behind: Behind
    ) -> Stmt:
        """The same where columns begin ``behind`` a line and are read in whole ones: a lane has the elements that are as far behind a
        line, and takes them in the same order wherever the operand lies. Lanes are folded by halves, each with the one half of all
        lanes further, so the result is the same bit for bit whichever lane is the first."""
        shared, dtype, line = self.shared, held.dtype, behind.extent
        (k,) = shared.p.reduced
        assert isinstance(line, int)
        size, depth, zero = Const(line, "int64"), extent_of(k.extent), initial("sum", dtype)
        sums = Buffer(shared.builder.fresh("lanes"), (rows * beside, line), dtype, "register")
        dots = Buffer(shared.builder.fresh("dots"), (rows * beside,), dtype, "register")
        begin = Axis("begin", 1 << 62)

        def step(start: Scalar, inside: Callable[[Scalar], Scalar] | None = None) -> Stmt:
            """The elements of a line that begins at ``start`` along k, those that there are."""
            lane = Axis("j", line)

            def here(element: Scalar) -> Scalar:
                return element if inside is None else select(inside(lane), element, zero)

            shared.env = {k: binary("add", begin, lane)}
            left = shared.left_rows(row, rows, [begin, lane])
            right = [shared.right_element(binary("add", column, c)) for c in range(beside)]
            named = [(Named(f"b{c}", dtype), here(e)) for c, e in enumerate(right)]
            named += [(Named(f"a{r}", dtype), here(e)) for r, e in enumerate(left.elements)]
            adds = self._ahead(column, beside, rows)
            shared.env = {}
            for n in range(rows * beside):
                spot = (Const(n, "int64"), lane)
                product = self.shared.p.form.product(named[beside + n // beside][0], named[n % beside][0])
                adds.append(Store(sums, spot, binary("add", Load(sums, spot, dtype), product)))
            return bound([(begin, start)], left.bind(For(lane, size, bound(named, seq(adds)), "vectorized")))

        whole, ends = Axis("whole", 1 << 62), Axis("rest", line)
        group = Axis("kb", k.extent // line if isinstance(k.extent, int) else 1 << 62)
        lane = Axis("j", line)
        clear: list[Stmt] = []
        folded: list[Stmt] = []
        for n in range(rows * beside):
            spot = (Const(n, "int64"), lane)
            clear.append(For(lane, size, Store(sums, spot, zero), "vectorized"))
            so_far = Load(dots, (Const(n, "int64"),), dtype)
            folded.append(Store(dots, (Const(n, "int64"),), binary("add", so_far, Load(sums, spot, dtype))))
        first = binary("sub", 0, behind)
        loops = bound([
            (whole, binary("floordiv", binary("add", binary("sub", depth, size), behind), line)),
            (ends, binary("sub", binary("add", binary("sub", depth, size), behind), binary("mul", whole, line))),
        ], seq([
            step(first, lambda lane: compare("ge", lane, behind)),
            For(group, whole, step(binary("add", first, binary("mul", binary("add", group, 1), line)))),
            Branch(
                compare("gt", ends, 0),
                step(
                    binary("add", first, binary("mul", binary("add", whole, 1), line)), lambda lane: compare("lt", lane, ends)
                ),
            ),
        ]))  # fmt: skip
        empty = [Store(dots, (Const(n, "int64"),), zero) for n in range(rows * beside)]
        out = self._handed_over(dots, row, rows, at, beside, held, width)
        fold = [*empty, For(lane, size, seq(folded), "vectorized"), *out]
        return Alloc(sums, Alloc(dots, seq([*clear, loops, *fold])))

    def _ahead(self, column: Scalar, beside: int, rows: int) -> list[Stmt]:
        """Ask for what the columns behind these take at the current k: the machine's own prefetchers lose rows that are read side by
        side and end soon. A single row is bound by loads, as are a few where multiply-adds wait for caches: asking takes a third of
        their slots, and is repaid by operands only that hardly are in a cache when they are read."""
        p, target = self.shared.p, self.shared.builder.target
        asked = [s for c in range(beside) for s in self.shared.ask_for(binary("add", column, beside + c))]
        if rows > (_MOST_IN_LINES if target.outruns_caches else 1):
            return asked
        size = dim_mul(size_of([*p.batch, *p.columns, *p.reduced]), dtype_bits(p.form.accumulate))
        near = target.l3_bytes * 2
        if isinstance(size, int):
            return asked if size > near else []
        return [Branch(compare("gt", extent_of(size), near), seq(asked))]
