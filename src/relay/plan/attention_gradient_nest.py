"""The loops of the gradient of attention: see `relay.plan.attention_gradient` for what is computed.

A task has all rows and keys of one element of the batch. First it finds the maximum of each row and the total of its weights.
Then it takes the keys a block at a time, and for each of these the rows a block at a time: packs them, makes their scores and the
products with the values, from these the weights of the block, and adds three products of these to the cotangents, of which those of
the block's keys and values, and all of the query's, lie in the thread's workspace. So each product runs in tiles of a few rows by a
few vectors, over memory that is in a near cache, and no result depends on the number of threads. Where all keys are one block, the
maximum and the total are those of the scores that are there anyway.

What goes back to a bias is added to where it belongs as soon as a row's weights of a block are made: `relay.plan.attention_beside`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, replace
from math import isfinite

from relay.ir.dim import ceil_div, dim_add, dim_bounds, dim_mul
from relay.ir.record import record
from relay.loop.ir import Alloc, Branch, Buffer, For, LetScalar, Seq, Stmt, Store, Switch
from relay.plan.attention_beside import BesideSums
from relay.plan.attention_gradient import AttentionGradient, Rows
from relay.plan.attention_lines import NOTHING, Lines
from relay.plan.build import Builder, allocate, bound, ceiling, seq
from relay.plan.reduction import initial
from relay.te.scalar import (
    Axis,
    Const,
    Load,
    Named,
    Scalar,
    binary,
    compare,
    extent_of,
    maximum,
    minimum,
    select,
    substitute,
    unary,
    walk,
)

# Rows in registers together; rows and keys of a block; keys that are one block where there are no more.
_HEIGHT, _ROWS, _KEYS, _FEW_KEYS = 6, 48, 128, 256
_ZERO = Const(0, "int64")

# An element of an operand that is summed over, by a row of the result and a step.
Left = Callable[[Scalar, Scalar], Scalar]


@record(frozen=True, slots=True, eq=False)
class Place:
    """Rows in a buffer: row r begins at ``begin + r * pitch``."""

    buffer: Buffer
    pitch: int
    begin: Scalar

    def at(self, row: Scalar, lane: Scalar) -> Scalar:
        """Where an element is."""
        return binary("add", binary("mul", row, self.pitch), binary("add", self.begin, lane))


def attention_gradient_nest(builder: Builder, gradient: AttentionGradient) -> Stmt:
    """The loops of the cotangents: where there may be few keys or many, for either."""
    made = (gradient.weight, gradient.counted, *(b.value for b in gradient.beside))
    again = any(n is gradient.of.raw for value in made for n in walk(value))
    few, many = (_Gradient(builder, gradient.of, (), gradient=gradient, is_one_block=one) for one in (True, False))
    keys = gradient.of.keys.extent
    low, high = dim_bounds(keys)
    if again or (low is not None and low > _FEW_KEYS):
        return many.nest()
    if high is not None and high <= _FEW_KEYS:
        return few.nest()
    return Branch(compare("le", extent_of(keys), _FEW_KEYS), few.nest(), many.nest())


@record(slots=True, eq=False, kw_only=True)
class _Gradient(Lines):
    """Blocks of keys by blocks of rows."""

    gradient: AttentionGradient
    # Whether the scores of a row are all there at once.
    is_one_block: bool
    # Columns of a tile and of a panel, numbers between rows of a block's scores.
    width: int = 1
    # Where some score of a hidden key is finite and such a key weighs something: not 0.
    everything: Buffer = field(init=False)
    beside: BesideSums = field(init=False)

    def __post_init__(self) -> None:
        Lines.__post_init__(self)
        self.width = (4 if self.builder.target.vector_registers >= 32 else 2) * self.lanes
        self.everything = Buffer(self.builder.fresh("everything"), (1,), self.a.dtype, "stack")
        if self.is_one_block and self.asks_for_all:
            # So few keys are not worth looking at twice.
            self.a = replace(self.a, since=None, limit=None)
        self.beside = BesideSums(self.builder, self.gradient, self.hides)

    # -- sizes

    @property
    def asks_for_all(self) -> bool:
        """Whether keys that are left out may turn out to weigh something."""
        return self.hides and isfinite(self.a.hidden)

    @property
    def block(self) -> int:
        """Keys of a block."""
        most = _FEW_KEYS if self.is_one_block else _KEYS
        return min(most, -(-self.n_keys // self.lanes) * self.lanes) if isinstance(self.n_keys, int) else most

    @property
    def pitch(self) -> int:
        """How far apart rows of scores are: not a power of two, or they would meet in few sets of the first-level cache."""
        return self.block + max(self.lanes, _HEIGHT)

    @property
    def height(self) -> int:
        """Rows of a block."""
        rows = self.n_rows
        return min(_ROWS, -(-rows // _HEIGHT) * _HEIGHT) if isinstance(rows, int) else _ROWS

    # -- tasks

    def nest(self) -> Stmt:
        work = dim_mul(dim_mul(self.n_rows, self.n_keys), 3 * self.cost)
        return self.beside.loops(work, self.task())

    def task(self) -> Stmt:
        block, height, panels = self.block, self.height, -(-self.block // self.width) * self.width
        sizes = {
            "queries": height * self.depth,
            "cotangents": height * self.columns,
            "scores": height * self.pitch,
            "weights": height * self.pitch,
            "before": height,
            "keys": block * self.depth,
            "key_panels": panels * self.depth,
            "value_panels": panels * self.columns,
            "of_keys": (block + _HEIGHT) * self.depth,
            "of_values": (block + _HEIGHT) * self.columns,
        }
        self.buffers = {name: self.memory(name, size) for name, size in sizes.items()}
        of_rows = {"top": 1, "total": 1, "of_queries": self.depth}
        for name, each in of_rows.items():
            shape = (dim_mul(dim_add(self.n_rows, _HEIGHT), each),)
            self.buffers[name] = Buffer(self.builder.fresh(name), shape, self.a.dtype, "worker")
        line, key = Axis("i", self.n_rows), Axis("key", block)
        # Tiles reach past the last row and key. What lies there does not matter, but arithmetic on the subnormal numbers that old
        # memory may hold takes many times as long.
        rows = minimum(height, binary("add", extent_of(self.n_rows), _HEIGHT))
        keys = minimum(self.pitch, binary("add", extent_of(self.n_keys), max(self.lanes, _HEIGHT)))
        used = [self.cleared("queries", self.depth, rows), self.cleared("cotangents", self.columns, rows)]
        used += [self.cleared(name, self.pitch, rows, keys) for name in ("scores", "weights")]
        used.append(self.cleared("of_queries", self.depth, binary("add", extent_of(self.n_rows), _HEIGHT)))
        steps: list[Stmt] = [*used, For(line, extent_of(self.n_rows), self.reset(line))]
        if not self.is_one_block:
            steps += self.statistics()
        kb, across = Axis("kb", ceil_div(self.n_keys, block)), Axis("across", block + 1)
        number: Scalar = _ZERO if kb.extent == 1 else kb
        first = binary("mul", number, block)
        body = seq([
            self.pack_panels(self.buffers["key_panels"], self.a.key, self.a.depth, first, across, self.width),
            self.pack_panels(self.buffers["value_panels"], self.a.value, self.a.column, first, across, self.width),
            For(key, across, self.copy("keys", key, self.a.key, {self.a.keys: binary("add", first, key)}, self.a.depth)),
            *(
                self.cleared(name, each, binary("add", across, _HEIGHT))
                for name, each in (("of_keys", self.depth), ("of_values", self.columns))
            ),
            self.each_rows(lambda start, count: self.rows(start, count, first, across)),
            For(key, across, seq([
                self.give("of_keys", self.gradient.of_key, first, key, self.a.depth),
                self.give("of_values", self.gradient.of_value, first, key, self.a.column),
            ])),
        ])  # fmt: skip
        steps += [self.each_keys(kb, across, body), For(line, extent_of(self.n_rows), self.give_query(line))]
        whole = allocate(list(self.buffers.values()), seq(steps))
        if not self.asks_for_all:
            return whole
        return Alloc(self.everything, seq([Store(self.everything, (_ZERO,), initial("sum", self.a.dtype)), whole]))

    def each_keys(self, kb: Axis, across: Axis, body: Stmt) -> Stmt:
        """``body`` for each block of keys; ``across`` are those of the block."""
        keys, block = extent_of(self.n_keys), self.block
        number: Scalar = _ZERO if kb.extent == 1 else kb
        body = LetScalar(across, minimum(block, binary("sub", keys, binary("mul", number, block))), body)
        return body if kb.extent == 1 else For(kb, ceiling(keys, Const(block, "int64")), body)

    def each_rows(self, step: Callable[[Scalar, Axis], Stmt]) -> Stmt:
        """A statement for each block of rows: of the first and how many there are."""
        rows, height = self.n_rows, self.height
        part, count = Axis("part", ceil_div(rows, height)), Axis("count", height + 1)
        start: Scalar = _ZERO if part.extent == 1 else binary("mul", part, height)
        body = LetScalar(count, minimum(height, binary("sub", extent_of(rows), start)), step(start, count))
        return body if part.extent == 1 else For(part, ceiling(extent_of(rows), Const(height, "int64")), body)

    def visible(self, start: Scalar, count: Scalar, first: Scalar, across: Scalar) -> Scalar:
        """How many keys of a block (``across`` from ``first`` on) some of the rows see, up to a whole tile of keys; none if what they see
        begins after it."""
        if not self.hides:
            return across
        begin, end = self.begin(start), self.seen(binary("add", start, binary("sub", count, 1)))
        if self.asks_for_all:
            every = compare("gt", Load(self.everything, (_ZERO,), self.a.dtype), 0.0)
            begin, end = select(every, _ZERO, begin), select(every, extent_of(self.n_keys), end)
        end = select(compare("lt", begin, binary("add", first, across)), end, _ZERO)
        tiles = ceiling(maximum(binary("sub", end, first), 0), Const(_HEIGHT, "int64"))
        return minimum(across, binary("mul", tiles, _HEIGHT))

    # -- maxima and totals

    def statistics(self) -> list[Stmt]:
        """The maximum of each row and one over the total of its weights. Where the score of hidden keys is finite, they are left out
        at first; a row whose maximum is not far above that score is one in which they weigh something: then all is done again."""
        kb, across = Axis("kb", ceil_div(self.n_keys, self.block)), Axis("across", self.block + 1)
        number: Scalar = _ZERO if kb.extent == 1 else kb
        first, line = binary("mul", number, self.block), Axis("i", self.n_rows)

        def rows(start: Scalar, count: Axis) -> Stmt:
            seen, r = Axis("seen", self.block + 1), Axis("r", self.height)
            row = binary("add", start, r)
            step: list[Stmt] = [
                self.look(row, row, r, first, seen, self.pitch),
                self.shrink_total(row, r),
                self.weigh(row, row, r, first, seen, self.pitch),
            ]
            body = seq([*self.scores(start, count, seen), For(r, count, seq(step))])
            body = body if not self.hides else Branch(compare("gt", seen, 0), body)
            return LetScalar(seen, self.visible(start, count, first, across), body)

        packed = self.pack_panels(self.buffers["key_panels"], self.a.key, self.a.depth, first, across, self.width)
        whole = self.each_keys(kb, across, seq([packed, self.each_rows(rows)]))
        if self.asks_for_all:
            dtype, attempt = self.a.dtype, Axis("attempt", 2)
            nearest = Const(self.a.hidden + NOTHING[dtype], dtype)
            weighs = compare("le", Load(self.buffers["top"], (line,), dtype), nearest)
            found = Branch(weighs, Store(self.everything, (_ZERO,), Const(1.0, dtype)))
            again = seq([For(line, extent_of(self.n_rows), self.reset(line)), whole])
            again = seq([again, For(line, extent_of(self.n_rows), found)])
            needed = Load(self.everything, (_ZERO,), dtype)
            ask = select(compare("eq", attempt, 0), Const(1.0, dtype), needed)
            whole = For(attempt, Const(2, "int64"), Branch(compare("gt", ask, 0.0), again))
        return [whole, For(line, extent_of(self.n_rows), self.invert(line))]

    def reset(self, line: Scalar) -> Stmt:
        top, total = self.buffers["top"], self.buffers["total"]
        return Seq((
            Store(top, (line,), initial("max", self.a.dtype)),
            Store(total, (line,), initial("sum", self.a.dtype)),
        ))  # fmt: skip

    def shrink_total(self, line: Scalar, held: Scalar) -> Stmt:
        """The total under the maximum before, under the new one."""
        total, dtype = self.buffers["total"], self.a.dtype
        fall = binary("sub", Load(self.buffers["before"], (held,), dtype), Load(self.buffers["top"], (line,), dtype))
        return Store(total, (line,), binary("mul", Load(total, (line,), dtype), unary("exp", fall)))

    def invert(self, line: Scalar) -> Stmt:
        total, dtype = self.buffers["total"], self.a.dtype
        return Store(total, (line,), binary("div", Const(1.0, dtype), Load(total, (line,), dtype)))

    # -- a block of rows with a block of keys

    def rows(self, start: Scalar, count: Axis, first: Scalar, across: Axis) -> Stmt:
        seen, r = Axis("seen", self.block + 1), Axis("r", self.height)
        row = binary("add", start, r)
        step: list[Stmt] = []
        if self.is_one_block:
            step += [
                self.look(row, row, r, first, seen, self.pitch),
                self.weigh(row, row, r, first, seen, self.pitch),
                self.invert(row),
            ]
        bindings, env = self.row(row)
        pack = bound(bindings, self.copy("cotangents", r, self.gradient.cotangent, env, self.a.column))
        scores, weights = self.buffers["scores"], self.buffers["weights"]

        def across_rows(source: Buffer) -> Left:
            def read(key: Scalar, t: Scalar) -> Scalar:
                return Load(source, (binary("add", binary("mul", t, self.pitch), key),), self.a.dtype)

            return read

        body = seq([
            *self.scores(start, count, seen),
            For(r, count, pack),
            self.tiles(weights, self.read("cotangents", self.columns), count, "value_panels", self.columns, seen),
            For(r, count, seq([*step, self.weights(row, r, first, seen)])),
            self.add("of_queries", start, count, self.read("weights", self.pitch), "keys", self.depth, seen),
            self.add("of_keys", _ZERO, seen, across_rows(weights), "queries", self.depth, count),
            self.add("of_values", _ZERO, seen, across_rows(scores), "cotangents", self.columns, count),
        ])  # fmt: skip
        body = body if not self.hides else Branch(compare("gt", seen, 0), body)
        return LetScalar(seen, self.visible(start, count, first, across), body)

    def scores(self, start: Scalar, count: Axis, seen: Axis) -> list[Stmt]:
        """The products of rows with the block's keys; the rows stay packed."""
        r = Axis("r", self.height)
        bindings, env = self.row(binary("add", start, r))
        pack = bound(bindings, self.copy("queries", r, self.a.query, env, self.a.depth))
        left, out = self.read("queries", self.depth), self.buffers["scores"]
        return [For(r, count, pack), self.tiles(out, left, count, "key_panels", self.depth, seen)]

    def weights(self, line: Scalar, held: Scalar, first: Scalar, seen: Axis) -> Stmt:
        """What the values and the keys are weighed with, in the place of a row's scores and products."""
        dtype, g, lane = self.a.dtype, self.gradient, Axis("j", self.pitch)
        scores, weights = self.buffers["scores"], self.buffers["weights"]
        bindings, env = self.row(line)
        at = (binary("add", binary("mul", held, self.pitch), lane),)
        top, inverse, raw, share = (Named(n, dtype) for n in ("top", "inverse", "raw", "share"))
        counted, weight = Named("counted", dtype), Named("weight", dtype)
        env = {**env, self.a.keys: binary("add", first, lane), self.a.raw: raw, g.share: share}
        env[g.of_share] = Load(weights, at, dtype)
        score = raw if self.is_one_block else self.exponential(self.element(self.a.score, env), top)
        sums = self.beside.sums(self.element, env, dtype)
        body = bound([
            (raw, Load(scores, at, dtype)),
            (share, binary("mul", score, inverse)),
            (counted, self.element(g.counted, env)),
            (weight, self.element(g.weight, env)),
        ], seq([*sums.updates, Store(scores, at, counted), Store(weights, at, weight)]))  # fmt: skip
        bindings += [
            (top, Load(self.buffers["top"], (line,), dtype)),
            (inverse, Load(self.buffers["total"], (line,), dtype)),
        ]
        whole = seq([*sums.starts, For(lane, seen, body, "vectorized"), *sums.ends])
        return bound(bindings, allocate(sums.buffers, whole))

    # -- products

    def read(self, name: str, pitch: int) -> Left:
        """Rows of a buffer, along memory."""
        source = self.buffers[name]
        return lambda row, t: Load(source, (binary("add", binary("mul", row, pitch), t),), self.a.dtype)

    def tiles(self, out: Buffer, left: Left, rows: Scalar, panels: str, depth: int, seen: Axis) -> Stmt:
        """``out[row, key] = sum over depth of left * panels``, for the rows of a block and ``seen`` keys of its panels."""
        panel, vectors = Axis("panel", 1 << 16), self.width // self.lanes
        whole, many = Axis("whole", 1 << 16), ceiling(seen, Const(self.lanes, "int64"))

        def tile(number: Scalar, width: int) -> Stmt:
            right = Place(self.buffers[panels], self.width, binary("mul", number, depth * self.width))
            to = Place(out, self.pitch, binary("mul", number, self.width))
            return self.product(to, rows, width, left, right, Const(depth, "int64"), True)

        narrow = [tile(whole, n * self.lanes) for n in range(1, vectors)]
        body = seq([
            For(panel, whole, tile(panel, self.width)),
            Switch(binary("mod", many, vectors), (Seq(()), *narrow)),
        ])  # fmt: skip
        return LetScalar(whole, binary("floordiv", many, vectors), body)

    def add(self, name: str, start: Scalar, rows: Scalar, left: Left, right: str, columns: int, depth: Scalar) -> Stmt:
        """``name[start + row, column] += sum over depth of left * right``."""
        source, out = self.buffers[right], self.buffers[name]
        parts: list[Stmt] = []
        for begin in range(0, columns, self.width):
            to = Place(out, columns, binary("add", binary("mul", start, columns), begin))
            read = Place(source, columns, Const(begin, "int64"))
            parts.append(self.product(to, rows, min(self.width, columns - begin), left, read, depth, False))
        return seq(parts)

    def product(
        self, out: Place, rows: Scalar, width: int, left: Left, right: Place, depth: Scalar, fresh: bool
    ) -> Stmt:
        """Tiles of `_HEIGHT` rows and ``width`` columns, ``fresh`` or added to what is there. Past the last row up to a whole tile
        is computed, of whatever lies there."""
        dtype, group, t = self.a.dtype, Axis("group", 1 << 16), Axis("t", 1 << 16)
        tile = Buffer(self.builder.fresh("tile"), (_HEIGHT, width), dtype, "register")
        lane, lanes = Axis("j", width), Const(width, "int64")
        begin: list[Stmt] = []
        steps: list[Stmt] = []
        end: list[Stmt] = []
        for i in range(_HEIGHT):
            row = binary("add", binary("mul", group, _HEIGHT), i)
            at = (Const(i, "int64"), lane)
            now = Load(tile, at, dtype)
            to = out.at(row, lane)
            initially = initial("sum", dtype) if fresh else Load(out.buffer, (to,), dtype)
            factor = Load(right.buffer, (right.at(t, lane),), dtype)
            more = binary("add", now, binary("mul", left(row, t), factor))
            begin.append(For(lane, lanes, Store(tile, at, initially), "vectorized"))
            steps.append(For(lane, lanes, Store(tile, at, more), "vectorized"))
            end.append(For(lane, lanes, Store(out.buffer, (to,), now), "vectorized"))
        body = Alloc(tile, seq([*begin, For(t, depth, seq(steps)), *end]))
        return For(group, ceiling(rows, Const(_HEIGHT, "int64")), body)

    # -- in and out

    def copy(self, name: str, row: Scalar, value: Scalar, env: dict[Axis, Scalar], along: Axis) -> Stmt:
        """A row of an operand to a row of a buffer."""
        assert isinstance(along.extent, int)
        lane = Axis("j", along.extent)
        place = binary("add", binary("mul", row, along.extent), lane)
        store = Store(self.buffers[name], (place,), self.element(value, {**env, along: lane}))
        return For(lane, Const(along.extent, "int64"), store, "vectorized")

    def cleared(self, name: str, pitch: int, rows: Scalar, many: Scalar | None = None) -> Stmt:
        """Zeros for so ``many`` numbers at the beginning of each of the rows, which are ``pitch`` apart (all: one row after the other)."""
        buffer, row, lane = self.buffers[name], Axis("r", 1 << 32), Axis("j", 1 << 48)
        place: Scalar = lane if many is None else binary("add", binary("mul", row, pitch), lane)
        store = Store(buffer, (place,), initial("sum", self.a.dtype))
        if many is None:
            return For(lane, binary("mul", rows, pitch), store, "vectorized")
        return For(row, rows, For(lane, many, store, "vectorized"))

    def give(self, name: str, rows: Rows, first: Scalar, key: Axis, along: Axis) -> Stmt:
        """The sums of a key to where they belong."""
        assert isinstance(along.extent, int)
        lane = Axis("j", along.extent)
        env: dict[Axis, Scalar] = {**self.env, self.a.keys: binary("add", first, key), along: lane}
        where = self.builder.storage[id(rows.kept.origin), 0]
        at = self.builder.flat(where, [substitute(rows.env[a], env) for a in rows.kept.stage.axes])
        value = Load(self.buffers[name], (binary("add", binary("mul", key, along.extent), lane),), self.a.dtype)
        return For(lane, Const(along.extent, "int64"), Store(where.buffer, (at,), value), "vectorized")

    def give_query(self, line: Axis) -> Stmt:
        """The sums of a row to where they belong."""
        kept, along = self.a.kept, self.gradient.along
        lane = Axis("j", self.depth)
        bindings, env = self.row(line)
        inside = self.frame({**env, along: lane})
        where = self.builder.storage[id(kept.origin), 0]
        at = self.builder.flat(where, [_ZERO if a.extent == 1 else inside.get(a, a) for a in kept.stage.axes])
        value = Load(self.buffers["of_queries"], (binary("add", binary("mul", line, self.depth), lane),), self.a.dtype)
        return bound(bindings, For(lane, Const(self.depth, "int64"), Store(where.buffer, (at,), value), "vectorized"))
