"""Matrix products: register tiles of an outer product over packed panels, the epilogue on each tile.

A tile of ``MR`` rows and ``NR`` columns is held in registers over all of ``k`` (or a block of it, if a panel would
overflow the second-level cache) and then handed to the epilogue through a few lines of the first-level cache. With
``V = NR / lanes`` vectors to a row, ``MR * V + V + 1`` registers are in use. Rows left over take a tile of exactly
their number, chosen by a switch: no bounds test is in an inner loop, and the result of an element does not depend on
where it lies or on the number of threads.

A constant right operand is packed at compile time; any other is packed, panel by panel, into the thread's slice of
the workspace by the task that uses the panel. Tasks are panels by blocks of rows, so that a few rows still keep all
threads busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from relay.ir.dim import Dim, ceil_div, dim_add, dim_floordiv, dim_min, dim_mul, dim_sub
from relay.ir.types import dtype_bits
from relay.loop.ir import Alloc, Branch, Buffer, For, LetScalar, Seq, Stmt, Store, Switch
from relay.plan.build import (
    Accesses,
    Builder,
    accesses,
    allocate,
    extent_of,
    parallel_rows,
    row_major,
    seq,
    serial,
    temporary,
)  # fmt: skip
from relay.plan.expand import Env
from relay.plan.generic import pointwise_statements, pointwise_values
from relay.plan.nests import Member
from relay.plan.product import Product, original, size_of, unflatten
from relay.plan.reduction import initial
from relay.te.scalar import Axis, Cast, Const, Load, Scalar, binary, cast, compare, minimum

# Rows of one task: enough that packing a panel is repaid, few enough that tasks can be shared out.
_ROWS_CONSTANT = 192
_ROWS_PACKED = 768
# A multiply-add is this much cheaper than the simple operation that costs are counted in.
_FMA_DISCOUNT = 4


def matrix_nest(builder: Builder, p: Product, members: Sequence[Member], packed: Buffer | None) -> Stmt:
    """The loops of a product (``members[0]``) and its epilogue (the other members, whose rows are the product's axes
    in order).

    ``packed`` is the operand that holds the panels of a constant right operand.
    """
    emitter = _Emitter(builder, p, members, packed)
    p.space.normalise(builder, emitter.accesses)
    return emitter.nest()


@dataclass(slots=True, eq=False)
class _Emitter:
    builder: Builder
    p: Product
    members: Sequence[Member]
    packed: Buffer | None
    # What the normalised axes are inside the statement being made.
    env: dict[Axis, Scalar] = field(default_factory=dict)

    def accesses(self, env: Env) -> Accesses:
        """What the left operand and the epilogue read and write."""
        (left,) = self.builder.evaluate([self.p.left], env)
        assert isinstance(left, Load)
        found = accesses(
            self.builder.indices,
            *pointwise_values(
                self.builder, self.members, self._frames(env), self._given(Axis("c", 1, self.p.form.accumulate))
            ),
        )
        return Accesses((self.builder.indices.poly(left.indices[0]), *found.polys), found.fixed)

    def _frames(self, env: Env) -> Callable[[Member], dict[Axis, Scalar]]:
        canonical = [a for a in self.p.kept.stage.axes if a.extent != 1]
        inside = original(self.p, env, self.builder.indices)
        units = {a: Const(0, "int64") for m in self.members for a in m.kept.stage.axes if a.extent == 1}

        def frame(member: Member) -> dict[Axis, Scalar]:
            own = {mine: inside.get(axis, axis) for mine, axis in zip(member.rows, canonical, strict=True)}
            return {**units, **inside, **own}

        return frame

    def _given(self, value: Scalar) -> dict[tuple[int, int], Scalar]:
        return {(id(self.p.kept.origin), 0): cast(value, self.p.kept.dtypes[0])}

    # -- tasks

    def nest(self) -> Stmt:
        p, tile = self.p, self.p.tile
        columns, rows = size_of(p.columns), size_of(p.rows)
        limit = _ROWS_CONSTANT if self.packed is not None else _ROWS_PACKED
        block = max(tile.rows, limit // tile.rows * tile.rows)
        if isinstance(rows, int) and rows <= block:
            block = rows
        panel, part = Axis("panel", ceil_div(columns, tile.columns)), Axis("part", ceil_div(rows, block))
        each = dim_mul(size_of(p.reduced), tile.columns)
        work = dim_floordiv(dim_mul(each, dim_min(rows, block)), _FMA_DISCOUNT)
        return parallel_rows(
            self.builder, [*p.batch, panel, part], work, self._task(_variable(panel), _variable(part), rows, block)
        )

    def _task(self, panel: Scalar, part: Scalar, rows: Dim, block: int) -> Stmt:
        p, width = self.p, self.p.tile.columns
        columns, depth = size_of(p.columns), size_of(p.reduced)
        first = binary("mul", panel, width)
        across: Scalar = Const(width, "int64")
        if not isinstance(columns, int) or columns % width:
            across = minimum(width, binary("sub", extent_of(columns), first))
        start = binary("mul", part, block)
        count: Scalar = (
            Const(block, "int64") if rows == block else minimum(block, binary("sub", extent_of(rows), start))
        )
        buffers: list[Buffer] = []
        before: list[Stmt] = []
        self.env = {}
        if self.packed is None and not self._in_place(width):
            panel_buffer = temporary(self.builder.fresh("panel"), dim_mul(depth, width), p.form.accumulate)
            buffers.append(panel_buffer)
            before.append(self._pack(panel_buffer, first, across))
        else:
            panel_buffer = None

        def right(lane: Axis) -> Scalar:
            if self.packed is not None:
                return Load(self.packed, (*p.batch, panel, self._k(), lane), self.packed.dtype)
            if panel_buffer is not None:
                return Load(panel_buffer, (self._flat([self._k(), lane], (depth, width)),), panel_buffer.dtype)
            return self._right_element(binary("add", first, lane))

        blocks = self._depth_blocks(depth)
        size: Dim = block * width if blocks is not None else p.tile.rows * width
        held = temporary(self.builder.fresh("tile"), size, p.form.accumulate)
        buffers.append(held)
        body = self._rows(start, count, block, first, across, held, right, blocks)
        return allocate(buffers, seq([*before, body]))

    def _k(self) -> Scalar:
        """The position in the reduced axes, row-major."""
        axes = self.p.reduced
        return self._flat([self.env.get(a, a) for a in axes], tuple(a.extent for a in axes))

    def _flat(self, index: Sequence[Scalar], shape: Sequence[Dim]) -> Scalar:
        indices = self.builder.indices
        total: Dim = 0
        for i, stride in zip(index, row_major(shape), strict=True):
            total = dim_add(total, dim_mul(indices.poly(i), stride))
        return indices.scalar(total)

    def _depth_blocks(self, depth: Dim) -> int | None:
        """The length of a block of ``k``, where a panel of all of it would not stay in the second-level cache."""
        if not isinstance(depth, int) or len(self.p.reduced) != 1:
            return None
        target, bits = self.builder.target, dtype_bits(self.p.form.accumulate)
        most = max(128, target.l2_bytes * 8 // (2 * self.p.tile.columns * bits))
        if depth <= most:
            return None
        return -(-depth // -(-depth // most))

    # -- the right operand

    def _in_place(self, width: int) -> bool:
        """Whether a panel can be read where it is: rows of it as wide as the tile, one after the other."""
        p = self.p
        load = p.form.right.a if isinstance(p.form.right, Cast) else p.form.right
        if not isinstance(load, Load) or size_of(p.columns) != width or len(p.columns) != 1:
            return False
        (at,) = self.builder.evaluate([load], original(p, {}, self.builder.indices))
        assert isinstance(at, Load)
        poly = self.builder.indices.poly(at.indices[0])
        linear = all(self.builder.indices.coefficient(poly, a) is not None for a in p.reduced)
        return linear and self.builder.indices.coefficient(poly, p.columns[0]) == 1

    def _right_element(self, column: Scalar) -> Scalar:
        p = self.p
        env = {**self.env, **unflatten(p.columns, column)}
        (value,) = self.builder.evaluate([p.form.right], original(p, env, self.builder.indices))
        return cast(value, p.form.accumulate)

    def _pack(self, panel: Buffer, first: Scalar, across: Scalar) -> Stmt:
        """Copy one panel. Its columns past the last stay what they are: the products with them are never stored."""
        p, width = self.p, self.p.tile.columns
        lane = Axis("j", width)
        target = (self._flat([self._k(), lane], (size_of(p.reduced), width)),)
        value = self._right_element(binary("add", first, lane))
        store = Store(panel, target, value)
        if self._along_depth(value, lane):
            # The operand's rows are along k: read them in order, one column of the panel after the other.
            return For(lane, across, serial(p.reduced, store))
        return serial(p.reduced, For(lane, across, store, "vectorized"))

    def _along_depth(self, value: Scalar, lane: Axis) -> bool:
        found = accesses(self.builder.indices, [value], [])
        last = self.p.reduced[-1] if self.p.reduced else None
        if last is None:
            return False
        coefficient = self.builder.indices.coefficient
        return any(coefficient(q, last) == 1 and coefficient(q, lane) != 1 for q in found.polys)

    # -- rows

    def _rows(
        self, start: Scalar, count: Scalar, block: int, first: Scalar, across: Scalar, held: Buffer,
        right: Callable[[Axis], Scalar], depth_block: int | None,
    ) -> Stmt:  # fmt: skip
        """All rows of a task, a tile at a time."""
        p, height, width = self.p, self.p.tile.rows, self.p.tile.columns
        step, offset = Axis("tile", -(-block // height)), Axis("first", block)
        here = binary("mul", step, height)
        steps = _ceiling(count, height)

        def tiles(body: Stmt) -> Stmt:
            bound = LetScalar(offset, here, body)
            return For(step, steps, bound) if step.extent != 1 else LetScalar(offset, Const(0, "int64"), body)

        left_over = minimum(height, binary("sub", count, offset))
        row = binary("add", start, offset)
        if depth_block is None:
            micro = self._sized(
                count, height, left_over, lambda n: self._micro(row, n, held, Const(0, "int64"), right, None)
            )
            return tiles(seq([micro, self._epilogue(row, left_over, first, across, held, Const(0, "int64"))]))
        # Blocks of k: partial sums of all rows of the task wait in memory.
        (k,) = p.reduced
        blocks = Axis("kb", -(-p.reduced[0].extent // depth_block))  # type: ignore[operator]
        assert isinstance(k.extent, int)
        base = binary("mul", offset, width)
        run = self._sized(
            count, height, left_over, lambda n: self._micro(row, n, held, base, right, (blocks, depth_block))
        )
        lane, line = Axis("j", width), Axis("i", block)
        zero = For(
            lane,
            Const(width, "int64"),
            Store(held, (binary("add", binary("mul", line, width), lane),), initial("sum", held.dtype)),
            "vectorized",
        )
        return seq([
            For(line, count, zero),
            For(blocks, extent_of(blocks.extent), tiles(run)),
            tiles(self._epilogue(row, left_over, first, across, held, base)),
        ])  # fmt: skip

    def _sized(self, count: Scalar, height: int, left_over: Scalar, micro: Callable[[int], Stmt]) -> Stmt:
        """A tile of the number of rows there are: the full one, or by a switch one of the smaller ones."""
        if isinstance(count, Const):
            rest = int(count.value) % height
            if rest == 0:
                return micro(height)
            if count.value < height:
                return micro(rest)
            return Branch(compare("eq", left_over, height), micro(height), micro(rest))
        if height == 1:
            return micro(1)
        smaller = Switch(left_over, (Seq(()), *(micro(n) for n in range(1, height))))
        return Branch(compare("eq", left_over, height), micro(height), smaller)

    def _micro(
        self, row: Scalar, height: int, held: Buffer, base: Scalar, right: Callable[[Axis], Scalar],
        blocks: tuple[Axis, int] | None,
    ) -> Stmt:  # fmt: skip
        """``height`` rows of a tile over all of k (or one block of it), in registers."""
        p, width = self.p, self.p.tile.columns
        indices, dtype = self.builder.indices, p.form.accumulate
        tile = Buffer(self.builder.fresh("registers"), (height, width), dtype, "register")
        lane = Axis("j", width)
        lanes = Const(width, "int64")
        bindings: list[tuple[Axis, Scalar]] = []
        elements: list[Scalar] = []
        k_axes = list(p.reduced)
        before = self.env
        loop_extent: Scalar | None = None
        if blocks is not None:
            (k,) = p.reduced
            inner = Axis("k", blocks[1])
            begin = binary("mul", blocks[0], blocks[1])
            self.env = {**before, k: binary("add", begin, inner)}
            k_axes = [inner]
            loop_extent = minimum(blocks[1], binary("sub", extent_of(k.extent), begin))
        for i in range(height):
            line = Axis(f"row{i}", size_of(p.rows))
            bindings.append((line, binary("add", row, i)))
            env = dict(self.env)
            for axis, value in unflatten(p.rows, line).items():
                if isinstance(value, Axis):
                    env[axis] = value
                else:
                    name = Axis(axis.name, axis.extent)
                    bindings.append((name, value))
                    env[axis] = name
            (load,) = self.builder.evaluate([p.left], original(p, env, indices))
            assert isinstance(load, Load)
            at = indices.poly(load.indices[0])
            moving: Dim = 0
            for axis in k_axes:
                stride = indices.coefficient(at, axis)
                assert stride is not None
                moving = dim_add(moving, dim_mul(indices.axis(axis), stride))
            origin = Axis(f"left{i}", 1 << 62)
            bindings.append((origin, indices.scalar(dim_sub(at, moving))))
            element = Load(load.source, (binary("add", origin, indices.scalar(moving)),), load.dtype)
            elements.append(cast(element, dtype))
        b = right(lane)
        updates: list[Stmt] = []
        for i, a in enumerate(elements):
            place = (Const(i, "int64"), lane)
            total = binary("add", Load(tile, place, dtype), binary("mul", a, b))
            updates.append(For(lane, lanes, Store(tile, place, total), "vectorized"))
        self.env = before
        loop: Stmt = seq(updates)
        loop = serial(k_axes, loop) if loop_extent is None else For(k_axes[0], loop_extent, loop)

        def spot(i: int) -> tuple[Scalar]:
            return (binary("add", binary("add", base, i * width), lane),)

        zero = initial("sum", dtype)
        start: list[Stmt] = []
        end: list[Stmt] = []
        for i in range(height):
            place = (Const(i, "int64"), lane)
            from_memory = zero if blocks is None else Load(held, spot(i), dtype)
            start.append(For(lane, lanes, Store(tile, place, from_memory), "vectorized"))
            end.append(For(lane, lanes, Store(held, spot(i), Load(tile, place, dtype)), "vectorized"))
        out: Stmt = Alloc(tile, seq([*start, loop, *end]))
        for axis, value in reversed(bindings):
            out = LetScalar(axis, value, out)
        return out

    def _epilogue(self, row: Scalar, count: Scalar, first: Scalar, across: Scalar, held: Buffer, base: Scalar) -> Stmt:
        """Rows of a finished tile through the epilogue to the outputs."""
        p, width = self.p, self.p.tile.columns
        i, lane = Axis("i", p.tile.rows), Axis("j", width)
        line = Axis("row", size_of(p.rows))
        bindings: list[tuple[Axis, Scalar]] = [(line, binary("add", row, i))]
        env: dict[Axis, Scalar] = dict(self.env)
        for axis, value in unflatten(p.rows, line).items():
            name = Axis(axis.name, axis.extent)
            bindings.append((name, value))
            env[axis] = name
        env.update(unflatten(p.columns, binary("add", first, lane)))
        place = binary("add", binary("add", base, binary("mul", i, width)), lane)
        given = self._given(Load(held, (place,), held.dtype))
        body: Stmt = For(
            lane, across, pointwise_statements(self.builder, self.members, self._frames(env), given), "vectorized"
        )
        for axis, value in reversed(bindings):
            body = LetScalar(axis, value, body)
        return For(i, count, body)


def _variable(axis: Axis) -> Scalar:
    """The value of a loop variable: 0 for a loop of one iteration, which is left out."""
    return Const(0, "int64") if axis.extent == 1 else axis


def _ceiling(a: Scalar, b: int) -> Scalar:
    if isinstance(a, Const):
        return Const(-(-int(a.value) // b), "int64")
    return binary("floordiv", binary("add", a, b - 1), b)
