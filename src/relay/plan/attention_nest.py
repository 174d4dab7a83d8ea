"""The loops of attention: see `relay.plan.attention` for what is computed and in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from relay.ir.dim import Dim, ceil_div, dim_add, dim_bounds, dim_min, dim_mul, dim_sub, shape_size
from relay.ir.types import dtype_bits
from relay.loop.ir import Alloc, Branch, Buffer, For, LetScalar, Seq, Stmt, Store, Switch, Transpose
from relay.plan.attention import Attention
from relay.plan.build import STACK_BYTES, Builder, allocate, extent_of, parallel_rows, seq
from relay.plan.generic import pointwise_statements
from relay.plan.nests import Member
from relay.plan.product import unflatten
from relay.plan.reduction import combine, initial
from relay.te.scalar import Axis, Cast, Const, Load, Scalar, binary, cast, compare, maximum, minimum, select, unary

# Rows in registers together, keys of a block, rows of a task.
_ROWS, _KEYS, _TASK = 6, 256, 192
# With fewer rows packing the keys costs more than it saves.
_FEW = 4
# A multiply-add is this much cheaper than the simple operation that costs are counted in.
_FMA_DISCOUNT = 4


def attention_nest(builder: Builder, attention: Attention, members: Sequence[Member]) -> Stmt:
    """The loops of an attention (``members[0]``) and its epilogue (the other members, computed element by element)."""
    rows = shape_size(tuple(a.extent for a in attention.rows))
    many, few = _Emitter(builder, attention, members, False), _Emitter(builder, attention, members, True)
    if not few.reads_keys_along_depth:
        return many.nest()
    low, high = dim_bounds(rows)
    if low is not None and low > _FEW:
        return many.nest()
    if high is not None and high <= _FEW:
        return few.nest()
    return Branch(compare("le", extent_of(rows), _FEW), few.nest(), many.nest())


@dataclass(slots=True, eq=False)
class _Emitter:
    """``few``: one row at a time, its products with the keys as dot products."""

    builder: Builder
    a: Attention
    members: Sequence[Member]
    few: bool
    lanes: int = 1
    # Columns of a tile of the second product, and of a panel of keys.
    width: int = 1
    height: int = 1
    buffers: dict[str, Buffer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        target = self.builder.target
        self.lanes = target.lanes(dtype_bits(self.a.dtype))
        vectors = 4 if target.vector_registers >= 32 else 2
        self.height = 1 if self.few else _ROWS
        self.width = (2 * vectors if self.few else vectors) * self.lanes

    # -- sizes

    @property
    def n_rows(self) -> Dim:
        return shape_size(tuple(a.extent for a in self.a.rows))

    @property
    def n_keys(self) -> Dim:
        return self.a.keys.extent

    @property
    def depth(self) -> int:
        assert isinstance(self.a.depth.extent, int)
        return self.a.depth.extent

    @property
    def columns(self) -> int:
        assert isinstance(self.a.column.extent, int)
        return self.a.column.extent

    @property
    def block(self) -> int:
        """Keys of a block: whole panels."""
        most = _KEYS // self.width * self.width
        return min(most, -(-self.n_keys // self.width) * self.width) if isinstance(self.n_keys, int) else most

    # -- elements

    def frame(self, more: Mapping[Axis, Scalar]) -> dict[Axis, Scalar]:
        """What the attention's axes are, given the split ones that are in scope and these."""
        out: dict[Axis, Scalar] = dict(more)
        for axis, value in self.a.space.env.items():
            out[axis] = self.builder.evaluate([value], more)[0]
        return out

    def element(self, value: Scalar, more: Mapping[Axis, Scalar]) -> Scalar:
        return cast(self.builder.evaluate([value], self.frame(more))[0], self.a.dtype)

    @property
    def reads_keys_along_depth(self) -> bool:
        return self._step(self.a.key, self.a.depth) == 1

    @property
    def packs_values(self) -> bool:
        return self._step(self.a.value, self.a.column) != 1

    def _step(self, value: Scalar, axis: Axis) -> Dim | None:
        load = self.element(value, {})
        load = load.a if isinstance(load, Cast) else load
        assert isinstance(load, Load)
        return self.builder.indices.coefficient(self.builder.indices.poly(load.indices[0]), axis)

    def row(self, at: Scalar) -> tuple[list[tuple[Axis, Scalar]], dict[Axis, Scalar]]:
        """Bindings for a row's number, and what the row axes are in terms of them."""
        line = Axis("row", self.n_rows)
        bindings: list[tuple[Axis, Scalar]] = [(line, at)]
        env: dict[Axis, Scalar] = {}
        for axis, value in unflatten(self.a.rows, line).items():
            name = Axis(axis.name, axis.extent)
            bindings.append((name, value))
            env[axis] = name
        return bindings, env

    # -- tasks

    def nest(self) -> Stmt:
        rows = self.n_rows
        size = _TASK // self.height * self.height
        if isinstance(rows, int) and rows < size:
            size = -(-rows // self.height) * self.height
        part = Axis("part", ceil_div(rows, size))
        work = dim_mul(dim_mul(dim_min(rows, size), self.n_keys), (self.depth + self.columns) // _FMA_DISCOUNT + 8)
        at: Scalar = Const(0, "int64") if part.extent == 1 else part
        return parallel_rows(self.builder, [*self.a.batch, part], work, self.task(at, size))

    def task(self, part: Scalar, size: int) -> Stmt:
        a = self.a
        block, start = self.block, binary("mul", part, size)
        self.buffers = {
            "sums": self.memory("sums", size * self.columns),
            "top": self.memory("top", size),
            "total": self.memory("total", size),
            "before": self.memory("before", self.height),
            "scores": self.memory("scores", self.height * block),
        }
        if not self.few:
            self.buffers["keys"] = self.memory("keys", block * self.depth)
        if self.packs_values:
            self.buffers["values"] = self.memory("values", block * self.columns)
        count_axis, count_value = Axis("count", size + 1), minimum(size, binary("sub", extent_of(self.n_rows), start))
        count: Scalar = Const(size, "int64") if self.n_rows == size else count_axis
        if isinstance(self.n_rows, int) and self.n_rows < size:
            count = Const(self.n_rows, "int64")
        blocks = Axis("kb", ceil_div(self.n_keys, block))
        kb: Scalar = Const(0, "int64") if blocks.extent == 1 else blocks
        first = binary("mul", kb, block)
        whole: Scalar = extent_of(self.n_keys)
        if a.limit is not None:
            whole = self.seen(binary("add", start, binary("sub", count, 1)))
        group = Axis("group", size // self.height)
        offset = Axis("offset", size)
        here: Scalar = Const(0, "int64") if size == self.height else binary("mul", group, self.height)
        seen = Axis("seen", block + 1)
        left = Axis("left", self.height + 1)
        body = self.group(start, offset, left, first, seen, kb)
        if a.limit is not None:
            body = Branch(compare("gt", seen, 0), body)
        ends = binary("add", start, minimum(binary("add", offset, self.height - 1), binary("sub", count, 1)))
        visible = extent_of(self.n_keys) if a.limit is None else self.seen(ends)
        body = LetScalar(seen, maximum(minimum(block, binary("sub", visible, first)), 0), body)
        body = LetScalar(left, minimum(self.height, binary("sub", count, offset)), body)
        body = LetScalar(offset, here, body)
        if size != self.height:
            body = For(group, _ceiling(count, self.height), body)
        across = Axis("across", block + 1)
        packed = [self.pack_keys(first, across)] if not self.few else []
        packed += [self.pack_values(first, across)] if self.packs_values else []
        body = LetScalar(across, minimum(block, binary("sub", extent_of(self.n_keys), first)), seq([*packed, body]))
        if blocks.extent != 1:
            body = For(blocks, _ceiling(whole, block), body)
        body = allocate(list(self.buffers.values()), seq([self.start(count), body, self.finish(start, count)]))
        return LetScalar(count_axis, count_value, body) if count is count_axis else body

    def memory(self, name: str, size: int) -> Buffer:
        """A buffer of the task's own."""
        bits = dtype_bits(self.a.dtype)
        return Buffer(
            self.builder.fresh(name), (size,), self.a.dtype, "stack" if size * bits <= 8 * STACK_BYTES else "worker"
        )

    def seen(self, row: Scalar) -> Scalar:
        """How many keys the row sees."""
        assert self.a.limit is not None
        indices = self.builder.indices
        env = unflatten(self.a.rows, row)
        (limit,) = self.builder.evaluate([indices.scalar(dim_add(self.a.limit, 1))], env)
        return maximum(minimum(limit, extent_of(self.n_keys)), 0)

    def start(self, count: Scalar) -> Stmt:
        """No key yet."""
        dtype = self.a.dtype
        line, lane = Axis("i", self._rows_of("top")), Axis("j", self.columns)
        zero = initial("sum", dtype)
        place = binary("add", binary("mul", line, self.columns), lane)
        sums = For(lane, Const(self.columns, "int64"), Store(self.buffers["sums"], (place,), zero), "vectorized")
        body = seq([
            Store(self.buffers["top"], (line,), initial("max", dtype)),
            Store(self.buffers["total"], (line,), zero),
            sums,
        ])  # fmt: skip
        return For(line, count, body)

    def _rows_of(self, name: str) -> Dim:
        return self.buffers[name].shape[0]

    # -- packing

    def pack_keys(self, first: Scalar, across: Scalar) -> Stmt:
        """Keys in panels ``[panel][depth][lane]``. Lanes past the last key stay what they are: their scores are not read."""
        indices, keys = self.builder.indices, self.buffers["keys"]
        panel, lane, d = Axis("panel", self.block // self.width), Axis("j", self.width), Axis("d", self.depth)
        inside = binary("add", binary("mul", panel, self.width), lane)
        value = self.element(self.a.key, {self.a.keys: binary("add", first, inside), self.a.depth: d})
        start = binary("mul", panel, self.depth * self.width)
        lanes = minimum(self.width, binary("sub", across, binary("mul", panel, self.width)))
        depth = Const(self.depth, "int64")
        if isinstance(value, Load) and isinstance(value.source, Buffer) and self.reads_keys_along_depth:
            at = indices.poly(value.indices[0])
            step = indices.coefficient(at, lane)
            if step is not None:
                at = dim_sub(at, dim_add(dim_mul(step, indices.axis(lane)), indices.axis(d)))
                width = Const(self.width, "int64")
                body: Stmt = Transpose(
                    keys, start, width, value.source, indices.scalar(at), extent_of(step), lanes, depth
                )
                return For(panel, _ceiling(across, self.width), body)
        place = binary("add", binary("add", start, binary("mul", d, self.width)), lane)
        body = For(d, depth, For(lane, lanes, Store(keys, (place,), value), "vectorized"))
        return For(panel, _ceiling(across, self.width), body)

    def pack_values(self, first: Scalar, across: Scalar) -> Stmt:
        """Values as ``[key][column]``."""
        key, lane = Axis("t", self.block), Axis("j", self.columns)
        value = self.element(self.a.value, {self.a.keys: binary("add", first, key), self.a.column: lane})
        store = Store(self.buffers["values"], (binary("add", binary("mul", key, self.columns), lane),), value)
        return For(lane, Const(self.columns, "int64"), For(key, across, store))

    # -- a few rows

    def group(self, start: Scalar, offset: Axis, left: Axis, first: Scalar, seen: Axis, kb: Scalar) -> Stmt:
        """A few rows over a block of keys."""
        return seq([
            self.dots(start, offset, first, seen) if self.few else self.products(start, offset, seen),
            self.softmax(start, offset, left, first, seen, kb),
            *(self.gather(offset, first, seen, c) for c in range(0, self.columns, self.width)),
        ])  # fmt: skip

    def _query(self, row: Scalar, bindings: list[tuple[Axis, Scalar]]) -> Callable[[Axis], Scalar]:
        """A row of the query, by the position in its depth; what it needs is bound first."""
        named, env = self.row(row)
        bindings += named
        element = self.element(self.a.query, env)
        load = element.a if isinstance(element, Cast) else element
        assert isinstance(load, Load)
        indices, depth = self.builder.indices, self.a.depth
        at = indices.poly(load.indices[0])
        step = indices.coefficient(at, depth)
        assert step is not None
        origin = Axis("q", 1 << 62)
        bindings.append((origin, indices.scalar(dim_sub(at, dim_mul(step, indices.axis(depth))))))

        def read(d: Axis) -> Scalar:
            place = binary("add", origin, indices.scalar(dim_mul(step, indices.axis(d))))
            return cast(Load(load.source, (place,), load.dtype), self.a.dtype)

        return read

    def dots(self, start: Scalar, offset: Axis, first: Scalar, seen: Axis) -> Stmt:
        """The products of one row with the keys where they are."""
        dtype, key, d = self.a.dtype, Axis("t", self.block), Axis("d", self.depth)
        bindings: list[tuple[Axis, Scalar]] = []
        query = self._query(binary("add", start, offset), bindings)
        element = self.element(self.a.key, {self.a.keys: binary("add", first, key), self.a.depth: d})
        total = Buffer(self.builder.fresh("dot"), (1,), dtype, "register")
        zero = Const(0, "int64")
        now = Load(total, (zero,), dtype)
        step = Store(total, (zero,), binary("add", now, binary("mul", query(d), element)))
        body = seq([
            Store(total, (zero,), initial("sum", dtype)),
            For(d, Const(self.depth, "int64"), step, "vectorized"),
            Store(self.buffers["scores"], (key,), now),
        ])  # fmt: skip
        return _bound(bindings, Alloc(total, For(key, seen, body)))

    def products(self, start: Scalar, offset: Axis, seen: Axis) -> Stmt:
        """The products of the rows with the block's keys, a tile at a time; a narrower tile for the last keys."""
        bindings: list[tuple[Axis, Scalar]] = []
        last = binary("sub", extent_of(self.n_rows), 1)
        queries = [
            self._query(minimum(binary("add", binary("add", start, offset), i), last), bindings)
            for i in range(self.height)
        ]
        panel, vectors = Axis("panel", self.block // self.width), self.width // self.lanes
        rest = Axis("whole", self.block // self.width + 1)
        many = _ceiling(seen, self.lanes)
        tiles = For(panel, rest, self.product(queries, panel, self.width))
        narrow = [self.product(queries, rest, n * self.lanes) for n in range(1, vectors)]
        body = seq([tiles, Switch(binary("mod", many, vectors), (Seq(()), *narrow))] if narrow else [tiles])
        return _bound([*bindings, (rest, binary("floordiv", many, vectors))], body)

    def product(self, queries: Sequence[Callable[[Axis], Scalar]], panel: Scalar, width: int) -> Stmt:
        """One tile of the first product."""
        dtype, scores = self.a.dtype, self.buffers["scores"]
        tile = Buffer(self.builder.fresh("tile"), (self.height, width), dtype, "register")
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

    def softmax(self, start: Scalar, offset: Axis, left: Axis, first: Scalar, seen: Axis, kb: Scalar) -> Stmt:
        """The weights of the block's keys, and everything so far under the new maximum.

        Each step is done for all rows before the next: rows do not wait for one another.
        """
        i, later = Axis("i", self.height), not isinstance(kb, Const)
        shrink = [Branch(compare("gt", kb, 0), For(i, left, self.shrink(offset, i)))] if later else []
        return seq([
            For(i, left, self.look(start, offset, i, first, seen)),
            *shrink,
            For(i, left, self.weigh(offset, i, seen)),
        ])  # fmt: skip

    def look(self, start: Scalar, offset: Axis, i: Axis, first: Scalar, seen: Axis) -> Stmt:
        """Scores and their maximum: ``top`` becomes the new one, what it was goes to ``before``."""
        dtype, scores, lane, zero = self.a.dtype, self.buffers["scores"], Axis("j", self.block), Const(0, "int64")
        line = binary("add", offset, i)
        bindings, env = self.row(binary("add", start, line))
        at = (binary("add", binary("mul", i, self.block), lane),)
        env = {**env, self.a.keys: binary("add", first, lane), self.a.raw: Load(scores, at, dtype)}
        score, best = Axis("score", 1, dtype), Buffer(self.builder.fresh("best"), (1,), dtype, "register")
        top, before = self.buffers["top"], self.buffers["before"]
        higher = Store(best, (zero,), combine("max", Load(best, (zero,), dtype), score))
        body = LetScalar(score, self.element(self.a.score, env), Seq((Store(scores, at, score), higher)))
        # Where every key so far is hidden the maximum is no number to subtract: then the least finite one is.
        least = Const(-float(np.finfo(dtype).max), dtype)
        highest = maximum(maximum(Load(top, (line,), dtype), Load(best, (zero,), dtype)), least)
        steps: list[Stmt] = [
            Store(best, (zero,), initial("max", dtype)),
            For(lane, seen, body, "vectorized"),
            Store(before, (i,), Load(top, (line,), dtype)),
            Store(top, (line,), highest),
        ]
        return _bound(bindings, Alloc(best, Seq(tuple(steps))))

    def shrink(self, offset: Axis, i: Axis) -> Stmt:
        """What was summed under the maximum before, under the new one."""
        dtype, line, scale = self.a.dtype, binary("add", offset, i), Axis("scale", 1, self.a.dtype)
        total, sums, column = self.buffers["total"], self.buffers["sums"], Axis("c", self.columns)
        place = (binary("add", binary("mul", line, self.columns), column),)
        less = Store(sums, place, binary("mul", Load(sums, place, dtype), scale))
        body = Seq((
            Store(total, (line,), binary("mul", Load(total, (line,), dtype), scale)),
            For(column, Const(self.columns, "int64"), less, "vectorized"),
        ))  # fmt: skip
        fall = binary("sub", Load(self.buffers["before"], (i,), dtype), Load(self.buffers["top"], (line,), dtype))
        return LetScalar(scale, unary("exp", fall), body)

    def weigh(self, offset: Axis, i: Axis, seen: Axis) -> Stmt:
        """Scores become weights, and are added to the total."""
        dtype, scores, lane, zero = self.a.dtype, self.buffers["scores"], Axis("j", self.block), Const(0, "int64")
        line, total = binary("add", offset, i), self.buffers["total"]
        at = (binary("add", binary("mul", i, self.block), lane),)
        new, e = Axis("new", 1, dtype), Axis("e", 1, dtype)
        sum_ = Buffer(self.builder.fresh("sum"), (1,), dtype, "register")
        more = Store(sum_, (zero,), binary("add", Load(sum_, (zero,), dtype), e))
        weight = unary("exp", binary("sub", Load(scores, at, dtype), new))
        body = LetScalar(e, weight, Seq((Store(scores, at, e), more)))
        steps: list[Stmt] = [
            Store(sum_, (zero,), Load(total, (line,), dtype)),
            For(lane, seen, body, "vectorized"),
            Store(total, (line,), Load(sum_, (zero,), dtype)),
        ]
        return LetScalar(new, Load(self.buffers["top"], (line,), dtype), Alloc(sum_, Seq(tuple(steps))))

    def gather(self, offset: Axis, first: Scalar, seen: Axis, begin: int) -> Stmt:
        """Add the block's weighted values to a tile of the rows' sums: columns from ``begin``."""
        dtype, width = self.a.dtype, min(self.width, self.columns - begin)
        tile = Buffer(self.builder.fresh("tile"), (self.height, width), dtype, "register")
        lane, key, lanes = Axis("j", width), Axis("t", self.block), Const(width, "int64")
        scores, sums = self.buffers["scores"], self.buffers["sums"]
        column = binary("add", lane, begin)
        if self.packs_values:
            place = binary("add", binary("mul", key, self.columns), column)
            value: Scalar = Load(self.buffers["values"], (place,), dtype)
        else:
            value = self.element(self.a.value, {self.a.keys: binary("add", first, key), self.a.column: column})
        load: list[Stmt] = []
        steps: list[Stmt] = []
        save: list[Stmt] = []
        for i in range(self.height):
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

    # -- results

    def finish(self, start: Scalar, count: Scalar) -> Stmt:
        """The rows' sums over their totals, through the epilogue, to the outputs."""
        dtype = self.a.dtype
        i, lane = Axis("i", self._rows_of("top")), Axis("j", self.columns)
        bindings, env = self.row(binary("add", start, i))
        inverse = Axis("inverse", 1, dtype)
        one = Const(1.0, dtype)
        total: Scalar = binary("div", one, Load(self.buffers["total"], (i,), dtype))
        low, _ = dim_bounds(self.n_keys)
        if low is None or low < 1:  # a sum over no keys is zero
            total = select(compare("gt", extent_of(self.n_keys), 0), total, one)
        bindings.append((inverse, total))
        place = binary("add", binary("mul", i, self.columns), lane)
        value = binary("mul", Load(self.buffers["sums"], (place,), dtype), inverse)
        inside = self.frame({**env, self.a.column: lane})
        canonical = [x for x in self.a.kept.stage.axes if x.extent != 1]
        units = {x: Const(0, "int64") for m in self.members for x in m.kept.stage.axes if x.extent == 1}

        def frame(member: Member) -> dict[Axis, Scalar]:
            own = {mine: inside.get(axis, axis) for mine, axis in zip(member.rows, canonical, strict=True)}
            return {**units, **inside, **own}

        given = {(id(self.a.kept.origin), 0): cast(value, self.a.kept.dtypes[0])}
        body = pointwise_statements(self.builder, self.members, frame, given)
        return For(i, count, _bound(bindings, For(lane, Const(self.columns, "int64"), body, "vectorized")))


def _bound(bindings: Sequence[tuple[Axis, Scalar]], body: Stmt) -> Stmt:
    for axis, value in reversed(bindings):
        body = LetScalar(axis, value, body)
    return body


def _ceiling(a: Scalar, b: int) -> Scalar:
    if isinstance(a, Const):
        return Const(-(-int(a.value) // b), "int64")
    return binary("floordiv", binary("add", a, b - 1), b)
