"""Attention of a few rows against many keys: keys and values are read once, where they are, in the order of memory.

A query against a cache of keys is as fast as the cache can be read. Where the heads of a key lie side by side in memory, a task
takes several heads, so that it reads long runs: all of a key's heads, then the next key's. Products with the keys are dot
products in vector lanes; values are added to sums in the first-level cache, a few keys at a time. What is read some keys later is
asked for meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relay.ir.dim import ceil_div, dim_mul, shape_size
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import LINE_BYTES, WORKERS, Alloc, Branch, Buffer, For, LetScalar, Prefetch, Stmt, Store
from relay.plan.attention_lines import Lines
from relay.plan.build import allocate, bound, ceiling, seq
from relay.plan.parallel import PARALLEL_COST, parallel_rows
from relay.plan.product import unflatten
from relay.plan.reduction import initial
from relay.te.scalar import (
    Axis,
    Cast,
    Const,
    Load,
    Named,
    Scalar,
    binary,
    compare,
    extent_of,
    maximum,
    minimum,
    substitute,
)

# A statement for each line, of its number and its row.
EachLine = Callable[[Callable[[Scalar, Scalar], Stmt]], Stmt]
# With more rows packing the keys is repaid.
FEW = 4
# Keys of a block, heads of a task, keys whose values are added together.
_KEYS, _HEADS, _TOGETHER = 256, 16, 4
# Bytes between what is asked for and what is read.
_AHEAD = 16 << 10


@record(frozen=True, slots=True, eq=False)
class EachHead:
    """A statement for each head of a task, and whether these are all that a key has, one beside the other (None: no)."""

    each: Callable[[Callable[[], Stmt]], Stmt]
    all: Scalar | None


@record(slots=True, eq=False)
class Stream(Lines):
    """At most `FEW` rows of some heads, over blocks of keys."""

    @property
    def block(self) -> int:
        return min(_KEYS, self.n_keys) if isinstance(self.n_keys, int) else _KEYS

    @property
    def pitch(self) -> int:
        """How far apart the scores of lines are: not a power of two, or they would meet in few sets of the first-level cache."""
        return self.block + self.lanes

    @property
    def most_rows(self) -> int:
        return min(FEW, self.n_rows) if isinstance(self.n_rows, int) else FEW

    @property
    def side_by_side(self) -> Axis | None:
        """The axis of the heads, if those of one key lie nearer than the keys of one head."""
        for axis in reversed(self.a.batch):
            inner, outer = self.step(self.a.key, axis), self.step(self.a.key, self.a.keys)
            if isinstance(inner, int) and isinstance(outer, int) and 0 < inner < outer:
                return axis
        return None

    # -- tasks

    def nest(self) -> Stmt:
        heads = self.side_by_side
        work = dim_mul(dim_mul(self.n_rows, self.n_keys), self.cost)
        if heads is None:
            one = Axis("head", 1)
            return parallel_rows(self.builder, self.a.batch, work, self.task(None, one, Const(1, "int64"), 1))
        outer = [a for a in self.a.batch if a is not heads]
        others, all_ = shape_size(tuple(a.extent for a in outer)), extent_of(heads.extent)
        total = dim_mul(others, heads.extent)
        threads, width, chunks, per = (Axis(n, 1 << 16) for n in ("threads", "width", "chunks", "per"))
        part, step, task = Axis("part", 1 << 16), Axis("t", total), Axis("task", total)
        pair, chunk, first = Axis("pair", others), Axis("chunk", heads.extent), Axis("first", heads.extent)
        most = min(_HEADS, heads.extent) if isinstance(heads.extent, int) else _HEADS
        tasks = binary("mul", extent_of(others), chunks)
        body = self.task(heads, first, minimum(width, binary("sub", all_, first)), most)
        body = bound([
            (task, binary("add", binary("mul", part, per), step)),
            (pair, binary("floordiv", task, chunks)),
            (chunk, binary("sub", task, binary("mul", pair, chunks))),
            (first, binary("mul", chunk, width)),
            *unflatten(outer, pair).items(),
        ], body)  # fmt: skip
        share = ceiling(all_, ceiling(threads, extent_of(others)))
        cost = extent_of(dim_mul(work, total))
        return bound([
            (threads, maximum(minimum(WORKERS, binary("floordiv", cost, PARALLEL_COST)), 1)),
            (width, maximum(minimum(share, most), 1)),
            (chunks, ceiling(all_, width)),
            (per, maximum(ceiling(tasks, threads), 1)),
        ], For(
            part, ceiling(tasks, per), For(step, minimum(per, binary("sub", tasks, binary("mul", part, per))), body),
            "serial" if total == 1 else "parallel", 1,
        ))  # fmt: skip

    def task(self, heads: Axis | None, first: Axis, count: Scalar, most: int) -> Stmt:
        """``count`` heads (``most`` at most) from ``first`` on; None: the one that is bound."""
        size = most * self.most_rows
        self.buffers = {
            "sums": self.memory("sums", size * self.columns),
            "top": self.memory("top", size),
            "total": self.memory("total", size),
            "before": self.memory("before", size),
            "scores": self.memory("scores", size * self.pitch),
        }
        kb, seen = Axis("kb", ceil_div(self.n_keys, self.block)), Axis("seen", self.block + 1)
        number: Scalar = Const(0, "int64") if kb.extent == 1 else kb
        keys = extent_of(self.n_keys)
        begin = binary("mul", number, self.block)

        def lines(step: Callable[[Scalar, Scalar], Stmt]) -> Stmt:
            """A statement for each line: of its number and its row."""
            return self.lines_of(heads, first, count, most, step)

        each = EachHead(
            lambda step: self.heads_of(heads, first, count, most, lambda _: step()),
            None if heads is None else compare("eq", count, extent_of(heads.extent)),
        )

        shrink = [Branch(compare("gt", number, 0), lines(lambda line, _: self.shrink(line, line)))]
        body = seq([
            self.dots(begin, seen, lines, each),
            lines(lambda line, row: self.look(line, row, line, begin, seen, self.pitch)),
            *(shrink if kb.extent != 1 else []),
            lines(lambda line, row: self.weigh(line, row, line, begin, seen, self.pitch)),
            self.gather(begin, seen, lines, each),
        ])  # fmt: skip
        body = LetScalar(seen, minimum(self.block, binary("sub", keys, begin)), body)
        body = body if kb.extent == 1 else For(kb, ceiling(keys, Const(self.block, "int64")), body)
        clear, finish = lines(lambda line, _: self.clear(line)), lines(self.finish)
        return allocate(list(self.buffers.values()), seq([clear, body, finish]))

    def lines_of(
        self, heads: Axis | None, first: Axis, count: Scalar, most: int, step: Callable[[Scalar, Scalar], Stmt]
    ) -> Stmt:
        rows = extent_of(self.n_rows)
        row: Scalar = Const(0, "int64") if self.n_rows == 1 else Axis("row", self.most_rows)

        def of(head: Scalar) -> Stmt:
            body = step(binary("add", binary("mul", head, rows), row), row)
            return For(row, rows, body) if isinstance(row, Axis) else body

        return self.heads_of(heads, first, count, most, of)

    def heads_of(
        self, heads: Axis | None, first: Axis, count: Scalar, most: int, step: Callable[[Scalar], Stmt]
    ) -> Stmt:
        if heads is None:
            return step(Const(0, "int64"))
        head, place = Axis("head", most), Axis("place", heads.extent)
        self.env = {heads: place}
        body = step(head)
        self.env = {}
        return For(head, count, LetScalar(place, binary("add", first, head), body))

    # -- products

    def dots(self, begin: Scalar, seen: Scalar, lines: EachLine, heads: EachHead) -> Stmt:
        """The scores of a block of keys: all lines of a key, then the next key. Asks for what comes next."""
        dtype, key = self.a.dtype, Axis("key", self.block)

        def dot(line: Scalar, row: Scalar) -> Stmt:
            d, zero = Axis("d", self.depth), Const(0, "int64")
            bindings: list[tuple[Axis, Scalar]] = []
            query = self.query(row, bindings)
            element = self.element(self.a.key, {self.a.keys: binary("add", begin, key), self.a.depth: d})
            total = Buffer(self.builder.fresh("dot"), (1,), dtype, "register")
            now = Load(total, (zero,), dtype)
            step = Store(total, (zero,), binary("add", now, binary("mul", query(d), element)))
            place = binary("add", binary("mul", line, self.pitch), key)
            body = seq([
                Store(total, (zero,), initial("sum", dtype)),
                For(d, Const(self.depth, "int64"), step, "vectorized"),
                Store(self.buffers["scores"], (place,), now),
            ])  # fmt: skip
            return bound(bindings, Alloc(total, body))

        ahead = binary("add", key, self.ahead)
        there = binary("add", begin, ahead)
        here, then = (self.a.key, self.a.depth, there), (self.a.value, self.a.column, binary("sub", there, seen))
        asked = Branch(compare("lt", ahead, seen), self.ask(*here, heads), self.ask(*then, heads))
        return For(key, seen, seq([asked, lines(dot)]))

    def gather(self, begin: Scalar, seen: Scalar, lines: EachLine, heads: EachHead) -> Stmt:
        """Add the block's weighted values to the sums of all lines, a few keys at a time. Asks for what comes next."""
        dtype, sums = self.a.dtype, self.buffers["sums"]
        whole = binary("floordiv", seen, _TOGETHER)
        group, single = Axis("group", self.block // _TOGETHER + 1), Axis("key", self.block)
        done = binary("mul", whole, _TOGETHER)

        def add(places: Sequence[Scalar]) -> Callable[[Scalar, Scalar], Stmt]:
            def step(line: Scalar, row: Scalar) -> Stmt:
                lane, zero = Axis("j", self.columns), Const(0, "int64")
                named = [(Named(f"w{n}", dtype), self._score(line, p)) for n, p in enumerate(places)]
                total = Buffer(self.builder.fresh("total"), (1,), dtype, "register")
                spot = (binary("add", binary("mul", line, self.columns), lane),)
                now = Load(total, (zero,), dtype)
                more: list[Stmt] = []
                for (weight, _), place in zip(named, places, strict=True):
                    at = {self.a.keys: binary("add", begin, place), self.a.column: lane}
                    value = self.element(self.a.value, at)
                    more.append(Store(total, (zero,), binary("add", now, binary("mul", weight, value))))
                inner = seq([Store(total, (zero,), Load(sums, spot, dtype)), *more, Store(sums, spot, now)])
                return bound(named, For(lane, Const(self.columns, "int64"), Alloc(total, inner), "vectorized"))

            return step

        many = add([binary("add", binary("mul", group, _TOGETHER), n) for n in range(_TOGETHER)])
        one = add([binary("add", done, single)])
        each = Axis("each", _TOGETHER)
        ahead = binary("add", binary("add", binary("mul", group, _TOGETHER), each), self.ahead)
        there = binary("add", begin, ahead)
        here, then = (self.a.value, self.a.column, there), (self.a.key, self.a.depth, there)
        asked = Branch(compare("lt", ahead, seen), self.ask(*here, heads), self.ask(*then, heads))
        return seq([
            For(group, whole, seq([For(each, Const(_TOGETHER, "int64"), asked), lines(many)])),
            For(single, binary("sub", seen, done), lines(one)),
        ])  # fmt: skip

    @property
    def ahead(self) -> int:
        """How many keys lie between what is asked for and what is read."""
        heads = self.side_by_side
        count = 1 if heads is None else heads.extent
        most = min(_HEADS, count) if isinstance(count, int) else _HEADS
        return max(1, _AHEAD * 8 // (most * self.depth * dtype_bits(self.a.dtype)))

    def ask(self, value: Scalar, along: Axis, key: Scalar, heads: EachHead) -> Stmt:
        """Ask for what an operand has for a key along an axis, of each head. Nothing promises that it begins at a line."""

        def every(lines: int) -> Stmt:
            def one() -> Stmt:
                load = self.element(value, {self.a.keys: key})
                load = load.a if isinstance(load, Cast) else load
                assert isinstance(load, Load) and isinstance(load.source, Buffer) and isinstance(along.extent, int)
                return seq([
                    Prefetch(load.source, tuple(substitute(i, {along: Const(n, "int64")}) for i in load.indices))
                    for n in range(0, along.extent, lines * LINE_BYTES * 8 // dtype_bits(load.dtype))
                ])  # fmt: skip

            return heads.each(one)

        # What is read in the order of memory the machine follows: to be asked for every other line it takes less time than
        # to be asked for all.
        return every(1) if heads.all is None else Branch(heads.all, every(2), every(1))

    def _score(self, line: Scalar, key: Scalar) -> Scalar:
        scores = self.buffers["scores"]
        return Load(scores, (binary("add", binary("mul", line, self.pitch), key),), scores.dtype)
