"""The loops of attention: see `relay.plan.attention` for what is computed and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite

from relay.ir.dim import ceil_div, dim_bounds, dim_min, dim_mul, shape_size
from relay.ir.record import record
from relay.loop.ir import Alloc, Branch, Buffer, For, LetScalar, Seq, Stmt, Store, Switch
from relay.plan.attention import Attention
from relay.plan.attention_lines import NOTHING, Lines
from relay.plan.attention_stream import FEW, Stream
from relay.plan.build import Builder, allocate, bound, ceiling, seq
from relay.plan.nests import Member
from relay.plan.parallel import parallel_rows
from relay.plan.product import size_of
from relay.plan.reduction import initial
from relay.plan.row_shares import RowShares, part_of
from relay.te.scalar import Axis, Const, Load, Scalar, binary, compare, extent_of, maximum, minimum, select

# Rows in registers together, keys of a block, rows of a task.
_ROWS, _KEYS, _TASK = 6, 256, 192


def attention_nest(builder: Builder, attention: Attention, members: Sequence[Member]) -> Stmt:
    """The loops of an attention (``members[0]``) and its epilogue (the other members, computed element by element)."""
    rows = shape_size(tuple(a.extent for a in attention.rows))
    many, few = _Tiles(builder, attention, members), Stream(builder, attention, members)
    if not (few.reads_keys_along_depth and few.reads_values_along_columns):
        return many.nest()
    low, high = dim_bounds(rows)
    if low is not None and low > FEW:
        return many.nest()
    if high is not None and high <= FEW:
        return few.nest()
    return Branch(compare("le", extent_of(rows), FEW), few.nest(), many.nest())


@record(slots=True, eq=False)
class _Tiles(Lines):
    """A few rows at a time over panels of packed keys."""

    # Columns of a tile of the second product, and of a panel of keys.
    width: int = 1
    height: int = _ROWS

    def __post_init__(self) -> None:
        Lines.__post_init__(self)
        self.width = (4 if self.builder.target.vector_registers >= 32 else 2) * self.lanes

    @property
    def block(self) -> int:
        """Keys of a block: whole panels."""
        most = _KEYS // self.width * self.width
        return min(most, -(-self.n_keys // self.width) * self.width) if isinstance(self.n_keys, int) else most

    # -- tasks

    def nest(self) -> Stmt:
        rows = self.n_rows
        size = _TASK // self.height * self.height
        if isinstance(rows, int) and rows < size:
            size = -(-rows // self.height) * self.height
        others, of_row = size_of(self.a.batch), dim_mul(self.n_keys, self.cost)
        work = dim_mul(dim_mul(rows, of_row), others)
        # Where rows see different keys, those that go through them together see each other's, which makes the order of a sum.
        known = rows if isinstance(rows, int) else None
        shares = None if self.hides else RowShares.of(rows, known, size, self.height, others, work)
        if shares is not None:
            part = Axis("part", 1 << 16)
            return shares.loop(self.a.batch, (part, shares.number), others, work, self.task(part, size, shares))
        part = Axis("part", ceil_div(rows, size))
        at: Scalar = Const(0, "int64") if part.extent == 1 else part
        each = dim_mul(dim_min(rows, size), of_row)
        return parallel_rows(self.builder, [*self.a.batch, part], each, self.task(at, size, None))

    def task(self, part: Scalar, size: int, shares: RowShares | None) -> Stmt:
        """Some rows over all keys that they see; over all keys where those that are hidden turn out to count."""
        block = self.block
        self.buffers = {
            "sums": self.memory("sums", size * self.columns),
            "top": self.memory("top", size),
            "total": self.memory("total", size),
            "before": self.memory("before", self.height),
            "scores": self.memory("scores", self.height * block),
            "keys": self.memory("keys", block * self.depth),
        }
        if not self.reads_values_along_columns:
            self.buffers["values"] = self.memory("values", block * self.columns)
        start, count, names = part_of(part, self.n_rows, size, 1, shares)
        if shares is None and not isinstance(count, Const):
            named = Axis("count", size + 1)
            names, count = [(named, count)], named
        line = Axis("i", size)
        result = For(line, count, self.finish(line, binary("add", start, line)))
        body = allocate(list(self.buffers.values()), seq([self.attempts(start, count, size), result]))
        return bound(names, body)

    def attempts(self, start: Scalar, count: Scalar, size: int) -> Stmt:
        """The sums of all rows. Where the score of hidden keys is finite, they are left out at first; a row whose maximum is not
        far above that score is one in which they weigh something: then all is done again with all keys."""
        line = Axis("i", size)
        clear = For(line, count, self.clear(line))
        if not self.hides or not isfinite(self.a.hidden):
            return seq([clear, self.blocks(start, count, size, None)])
        dtype, zero, attempt = self.a.dtype, Const(0, "int64"), Axis("attempt", 2)
        again = Buffer(self.builder.fresh("again"), (1,), dtype, "stack")
        nearest = Const(self.a.hidden + NOTHING[dtype], dtype)
        weighs = compare("le", Load(self.buffers["top"], (line,), dtype), nearest)
        ask = Branch(weighs, Store(again, (zero,), Const(1.0, dtype)))
        once = seq([
            clear,
            self.blocks(start, count, size, attempt),
            Store(again, (zero,), initial("sum", dtype)),
            For(line, count, ask),
        ])  # fmt: skip
        body = For(attempt, Const(2, "int64"), Branch(compare("gt", Load(again, (zero,), dtype), 0.0), once))
        return Alloc(again, seq([Store(again, (zero,), Const(1.0, dtype)), body]))

    def blocks(self, start: Scalar, count: Scalar, size: int, attempt: Axis | None) -> Stmt:
        """All rows over the blocks of keys; from the second attempt on over those that they do not see, too."""
        block = self.block
        number, blocks = Axis("number", ceil_div(self.n_keys, block)), Axis("kb", ceil_div(self.n_keys, block))
        kb: Scalar = Const(0, "int64") if blocks.extent == 1 else blocks
        first, zero = binary("mul", kb, block), Const(0, "int64")
        whole, visible = extent_of(self.n_keys), extent_of(self.n_keys)
        skipped: Scalar = zero
        begin: Scalar = zero
        group, offset = Axis("group", size // self.height + 1), Axis("offset", size)
        seen, left = Axis("seen", block + 1), Axis("left", self.height + 1)
        if self.hides:
            begins = binary("add", start, offset)
            ends = binary("add", begins, binary("sub", left, 1))
            whole, visible = self.seen(binary("add", start, binary("sub", count, 1))), self.seen(ends)
            skipped, begin = self.begin(start), self.begin(begins)
            if attempt is not None:
                early = compare("eq", attempt, 0)
                whole, visible = (select(early, v, extent_of(self.n_keys)) for v in (whole, visible))
                skipped, begin = (select(early, v, zero) for v in (skipped, begin))
        later = compare("gt", zero if isinstance(kb, Const) else number, 0)
        body = self.group(self.height, start, offset, left, first, seen, later)
        if self.height > 1:
            lower = self.group(self.height - 1, start, offset, left, first, seen, later)
            body = Branch(compare("eq", left, self.height), body, lower)
        if self.hides:
            body = Branch(compare("gt", seen, 0), body)
        many = maximum(minimum(block, binary("sub", visible, first)), 0)
        if self.a.since is not None:
            many = select(compare("lt", begin, binary("add", first, block)), many, zero)
        body = LetScalar(seen, many, body)
        body = self.groups(body, group, offset, left, count, size)
        across = Axis("across", block + 1)
        packed = [self.pack_panels(self.buffers["keys"], self.a.key, self.a.depth, first, across, self.width)]
        packed += [] if self.reads_values_along_columns else [self.pack_values(first, across)]
        body = LetScalar(across, minimum(block, binary("sub", extent_of(self.n_keys), first)), seq([*packed, body]))
        if blocks.extent == 1:
            return body
        # What no row sees before the first of them does.
        before, width = Axis("before", ceil_div(self.n_keys, block)), Const(block, "int64")
        body = LetScalar(blocks, binary("add", before, number), body)
        turns = maximum(binary("sub", ceiling(whole, width), before), 0)
        return LetScalar(before, binary("floordiv", skipped, block), For(number, turns, body))

    def groups(self, body: Stmt, group: Axis, offset: Axis, left: Axis, count: Scalar, size: int) -> Stmt:
        """``body`` for ``left`` rows from ``offset`` on, until all ``count`` rows had their turn.

        The fewest groups of at most `height` rows: all have that many rows or one less, or, where so few rows cannot be shared out
        so, all but the last have that many.
        """
        height, nothing = self.height, Const(0, "int64")
        if size == height:
            return LetScalar(offset, nothing, LetScalar(left, count, body))
        groups, pitch, more = Axis("groups", size // height + 1), Axis("pitch", height + 1), Axis("more", size)
        low = binary("floordiv", count, groups)
        even = compare("ge", low, height - 1)
        taller = minimum(1, binary("sub", more, minimum(group, more)))
        here = binary("add", binary("mul", group, pitch), minimum(group, more))
        mine = minimum(binary("add", pitch, taller), binary("sub", count, offset))
        body = For(group, groups, LetScalar(offset, here, LetScalar(left, mine, body)))
        return bound([
            (groups, ceiling(count, Const(height, "int64"))),
            (pitch, select(even, low, Const(height, "int64"))),
            (more, select(even, binary("sub", count, binary("mul", groups, low)), nothing)),
        ], body)  # fmt: skip

    # -- packing

    def pack_values(self, first: Scalar, across: Scalar) -> Stmt:
        """Values as ``[key][column]``."""
        key, lane = Axis("t", self.block), Axis("j", self.columns)
        value = self.element(self.a.value, {self.a.keys: binary("add", first, key), self.a.column: lane})
        store = Store(self.buffers["values"], (binary("add", binary("mul", key, self.columns), lane),), value)
        return For(lane, Const(self.columns, "int64"), For(key, across, store))

    # -- a few rows

    def group(
        self, height: int, start: Scalar, offset: Axis, left: Axis, first: Scalar, seen: Axis, later: Scalar
    ) -> Stmt:
        """A few rows over a block of keys, in tiles of so many rows."""
        return seq([
            self.products(height, start, offset, seen),
            self.softmax(start, offset, left, first, seen, later),
            *(self.gather(height, offset, first, seen, c) for c in range(0, self.columns, self.width)),
        ])  # fmt: skip

    def products(self, height: int, start: Scalar, offset: Axis, seen: Axis) -> Stmt:
        """The products of the rows with the block's keys, a tile at a time; a narrower tile for the last keys."""
        bindings: list[tuple[Axis, Scalar]] = []
        last = binary("sub", extent_of(self.n_rows), 1)
        queries = [
            self.query(minimum(binary("add", binary("add", start, offset), i), last), bindings) for i in range(height)
        ]
        panel, vectors = Axis("panel", self.block // self.width), self.width // self.lanes
        rest = Axis("whole", self.block // self.width + 1)
        many = ceiling(seen, Const(self.lanes, "int64"))
        tiles = For(panel, rest, self.product(queries, panel, self.width))
        narrow = [self.product(queries, rest, n * self.lanes) for n in range(1, vectors)]
        body = seq([tiles, Switch(binary("mod", many, vectors), (Seq(()), *narrow))] if narrow else [tiles])
        return bound([*bindings, (rest, binary("floordiv", many, vectors))], body)

    def product(self, queries: Sequence[Callable[[Axis], Scalar]], panel: Scalar, width: int) -> Stmt:
        """One tile of the first product."""
        dtype, scores = self.a.dtype, self.buffers["scores"]
        tile = Buffer(self.builder.fresh("tile"), (len(queries), width), dtype, "register")
        lane, d, lanes = Axis("j", width), Axis("d", self.depth), Const(width, "int64")
        place = binary("add", binary("mul", binary("add", binary("mul", panel, self.depth), d), self.width), lane)
        key = Load(self.buffers["keys"], (place,), dtype)
        begin: list[Stmt] = []
        steps: list[Stmt] = []
        end: list[Stmt] = []
        for i, query in enumerate(queries):
            at = (Const(i, "int64"), lane)
            now = Load(tile, at, dtype)
            to = binary("add", binary("add", binary("mul", panel, self.width), i * self.block), lane)
            begin.append(For(lane, lanes, Store(tile, at, initial("sum", dtype)), "vectorized"))
            steps.append(
                For(lane, lanes, Store(tile, at, binary("add", now, binary("mul", query(d), key))), "vectorized")
            )
            end.append(For(lane, lanes, Store(scores, (to,), now), "vectorized"))
        return Alloc(tile, seq([*begin, For(d, Const(self.depth, "int64"), seq(steps)), *end]))

    def softmax(self, start: Scalar, offset: Axis, left: Axis, first: Scalar, seen: Axis, later: Scalar) -> Stmt:
        """The weights of the block's keys, and everything so far under the new maximum.

        Each step is done for all rows before the next: rows do not wait for one another.
        """
        i = Axis("i", self.height)
        line = binary("add", offset, i)
        shrink = [] if isinstance(later, Const) else [Branch(later, For(i, left, self.shrink(line, i)))]
        return seq([
            For(i, left, self.look(line, binary("add", start, line), i, first, seen, self.block)),
            *shrink,
            For(i, left, self.weigh(line, binary("add", start, line), i, first, seen, self.block)),
        ])  # fmt: skip

    def gather(self, height: int, offset: Axis, first: Scalar, seen: Axis, begin: int) -> Stmt:
        """Add the block's weighted values to a tile of the rows' sums: columns from ``begin``."""
        dtype, width = self.a.dtype, min(self.width, self.columns - begin)
        tile = Buffer(self.builder.fresh("tile"), (height, width), dtype, "register")
        lane, key, lanes = Axis("j", width), Axis("t", self.block), Const(width, "int64")
        scores, sums = self.buffers["scores"], self.buffers["sums"]
        column = binary("add", lane, begin)
        if self.reads_values_along_columns:
            value = self.element(self.a.value, {self.a.keys: binary("add", first, key), self.a.column: column})
        else:
            place = binary("add", binary("mul", key, self.columns), column)
            value = Load(self.buffers["values"], (place,), dtype)
        load: list[Stmt] = []
        steps: list[Stmt] = []
        save: list[Stmt] = []
        for i in range(height):
            at = (Const(i, "int64"), lane)
            now = Load(tile, at, dtype)
            weight = Load(scores, (binary("add", key, i * self.block),), dtype)
            place = binary("add", binary("mul", binary("add", offset, i), self.columns), column)
            load.append(For(lane, lanes, Store(tile, at, Load(sums, (place,), dtype)), "vectorized"))
            steps.append(
                For(lane, lanes, Store(tile, at, binary("add", now, binary("mul", weight, value))), "vectorized")
            )
            save.append(For(lane, lanes, Store(sums, (place,), now), "vectorized"))
        return Alloc(tile, seq([*load, For(key, seen, seq(steps)), *save]))
