"""What the schedules of a product share: where rows of the left operand are, the right operand's elements, and the
epilogue on finished elements.

A schedule makes results in a register tile or in a temporary and hands them over row by row; the epilogue is the other
members of the nest, element by element, ending in the stores of the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace

from relay.ir.dim import Dim, dim_add, dim_mod, dim_mul, dim_sub
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import (
    LINE_BYTES,
    Behind,
    Between,
    Branch,
    Buffer,
    For,
    LetScalar,
    Prefetch,
    Stmt,
    Store,
    Switch,
    between,
)
from relay.loop.walk import statements
from relay.plan.build import Builder, bound, ceiling, each_row, hoisted, position, seq, serial
from relay.plan.expand import Env, cost
from relay.plan.generic import pointwise_statements, pointwise_values
from relay.plan.graph import loads
from relay.plan.nests import Member
from relay.plan.product import Product, narrow, original, size_of, unflatten
from relay.plan.space import Accesses, accesses
from relay.te.scalar import (
    Axis,
    Cast,
    Const,
    Load,
    Named,
    Scalar,
    binary,
    cast,
    compare,
    conjuncts,
    extent_of,
    minimum,
    select,
    substitute,
    walk,
)

# Up to this cost an epilogue is written out for every row of every tile height.
CHEAP_EPILOGUE = 8
# A multiply-add is this much cheaper than the simple operation that costs are counted in.
FMA_DISCOUNT = 4
LINE_BITS = 8 * LINE_BYTES
# Rows of the right operand that are asked for ahead where it is: about what memory takes to deliver them.
_ROWS_AHEAD = 24


@record(slots=True, eq=False)
class LeftRows:
    """Some rows of the left operand: ``bindings`` come before the loop over k, ``elements`` are inside it."""

    bindings: list[tuple[Axis, Scalar]]
    elements: list[Scalar]

    def bind(self, body: Stmt) -> Stmt:
        return bound(self.bindings, body)


@record(slots=True, eq=False)
class ProductNest:
    """A product (``members[0]``) and its epilogue (the other members, whose rows are the product's axes in order)."""

    builder: Builder
    p: Product
    members: Sequence[Member]
    # What the normalised axes are inside the statement being made.
    env: dict[Axis, Scalar] = field(default_factory=dict)
    # The numbers of the rows, where tiles do not take them in their order.
    order: Buffer | None = None

    def normalise(self) -> None:
        """Join and split the product's axes so that everything it accesses is linear in them where it can be."""
        self.p.space.normalise(self.builder, self._accesses)

    def of_one_row(self) -> ProductNest:
        """The same where all of the rows are one."""
        space = self.p.space
        groups = [*space.groups[:1], [], *space.groups[2:]]
        nothing: dict[Axis, Scalar] = {axis: Const(0, "int64") for axis in self.p.rows}
        env = {**{axis: substitute(value, nothing) for axis, value in space.env.items()}, **nothing}
        return replace(self, p=replace(self.p, space=replace(space, groups=groups, env=env)), env={})

    def _accesses(self, env: Env) -> Accesses:
        """What the left operand and the epilogue read and write."""
        (left,) = self.builder.evaluate([self.p.left], env)
        assert isinstance(left, Load)
        found = accesses(self.builder.indices, *self._pointwise(env))
        guard = self.p.form.guard
        decides = {n for n in walk(guard) if isinstance(n, Axis)} if guard is not None else set()
        return Accesses((self.builder.indices.poly(left.indices[0]), *found.polys), found.fixed | decides)

    def _pointwise(self, env: Env) -> tuple[list[Scalar], list[Scalar]]:
        given = self._given(Named("c", self.p.form.accumulate))
        return pointwise_values(self.builder, self.members, self._frames(env), given)

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

    def epilogue_cost(self) -> int:
        """Simple operations of one element of the epilogue."""
        values, _ = self._pointwise(self.p.space.env)
        return sum(cost(v) for v in values)

    # -- operands

    def flat(self, index: Sequence[Scalar], shape: Sequence[Dim]) -> Scalar:
        """The row-major position of an index."""
        indices = self.builder.indices
        return indices.scalar(position(indices, index, shape))

    def position_in_depth(self) -> Scalar:
        """The position in the reduced axes, row-major."""
        axes = self.p.reduced
        return self.flat([self.env.get(a, a) for a in axes], tuple(a.extent for a in axes))

    def right_element(self, column: Scalar) -> Scalar:
        """The right operand's element in a column, at the current k."""
        p = self.p
        env = {**self.env, **unflatten(p.columns, column)}
        (value,) = self.builder.evaluate([p.form.right], original(p, env, self.builder.indices))
        return cast(value, p.form.accumulate)

    def right_strides(self) -> tuple[Dim | None, Dim | None]:
        """How far apart in memory the right operand's neighbours in a row (along the columns) and in a column (along
        k) are (of what a word is put together from, each of its elements); None for those that are not evenly spaced in one loop."""
        p, indices = self.p, self.builder.indices
        load = p.form.right.a if isinstance(p.form.right, Cast) else p.form.right
        reads = [load] if isinstance(load, Load) else loads(load) if p.form.parts is not None else []
        if not reads:
            return None, None
        polys: list[Dim] = []
        for at in self.builder.evaluate(reads, original(p, {}, indices)):
            assert isinstance(at, Load)
            polys.append(indices.poly(at.indices[0]))
        poly = polys[0]
        if any(indices.is_index(dim_sub(other, poly)) for other in polys):
            return None, None

        def even(axes: Sequence[Axis]) -> bool:
            strides = [indices.coefficient(poly, a) for a in axes]
            return not any(s is None or indices.is_index(s) for s in strides)

        along = indices.coefficient(poly, p.columns[0]) if len(p.columns) == 1 and even(p.columns) else None
        down = indices.coefficient(poly, p.reduced[-1]) if p.reduced and even(p.reduced) else None
        return along, down

    @property
    def masked(self) -> bool:
        """Whether there are masks for less than a vector of the right operand and of the results."""
        dtypes = [d for m in self.members for d in m.kept.dtypes]
        loads = (n for n in walk(self.p.form.right) if isinstance(n, Load))
        return self.builder.target.masks(min(dtype_bits(d) for d in (*dtypes, *(n.dtype for n in loads))))

    def behind_line(self, down: bool = False) -> Behind | None:
        """How many elements behind a line every row of the right operand (along the columns; ``down``: every column, along k) begins.
        None: they begin at lines, or at different places in them, or masks are dear."""
        p, indices, load = self.p, self.builder.indices, self.p.form.right
        along = self.right_strides()[1 if down else 0]
        if along != 1 or not isinstance(load, Load) or not self.builder.target.mask_registers:
            return None
        (at,) = self.builder.evaluate([load], original(p, {}, indices))
        assert isinstance(at, Load) and isinstance(at.source, Buffer)
        line, axis = LINE_BITS // dtype_bits(load.dtype), p.reduced[-1] if down else p.columns[0]
        begins = dim_sub(indices.poly(at.indices[0]), indices.axis(axis))
        if at.source.alignment >= LINE_BYTES or dim_mod(begins, line) != 0:
            return None
        return Behind(f"{at.source.name}_behind", line, buffer=at.source)

    def left_rows(self, row: Scalar, height: int, k_axes: Sequence[Axis]) -> LeftRows:
        """``height`` rows from a row on, as loads that move along the given axes of k (bound to `env`).

        Along k the operand is evenly spaced, so where the elements are is asked with the axes of k as they are, and what `env` has in their
        places is put there afterwards: of ``4 * block + 1`` nothing says that it is inside of an axis of unknown size.
        """
        p, indices = self.p, self.builder.indices
        found = LeftRows([], [])
        inside = {axis: self.env[axis] for axis in p.depth if axis in self.env}
        divided = self.order is None and any(not isinstance(axis.extent, int) for axis in p.rows[1:])
        above: dict[Axis, Scalar] = {}
        for i in range(height):
            env = {axis: value for axis, value in self.env.items() if axis not in inside}
            if above and divided:
                env.update(self._row_below(above, found.bindings))
            else:
                line = Axis(f"row{i}", size_of(p.rows))
                found.bindings.append((line, binary("add", row, i)))
                self._name_rows(line, env, found.bindings)
            above = {axis: env[axis] for axis in p.rows}
            (load,) = self.builder.evaluate([p.left], original(p, env, indices))
            assert isinstance(load, Load)
            at = indices.poly(load.indices[0])
            for axis, value in inside.items():
                stride = indices.coefficient(at, axis)
                assert stride is not None
                at = dim_add(at, dim_mul(dim_sub(indices.poly(value), indices.axis(axis)), stride))
            moving: Dim = 0
            for axis in k_axes:
                stride = indices.coefficient(at, axis)
                assert stride is not None
                moving = dim_add(moving, dim_mul(indices.axis(axis), stride))
            origin = Axis(f"left{i}", 1 << 62)
            found.bindings.append((origin, indices.scalar(dim_sub(at, moving))))
            apart = self._apart(at, above) if i == 0 else None
            # Rows of one axis are one address and a number each, which an instruction adds: registers for addresses are few, and a
            # row of short vectors is multiplied in less time than it takes to compute one.
            for below in range(1 if apart is None else height):
                place = binary("add", origin, indices.scalar(dim_add(moving, below * (apart or 0))))
                found.elements.append(cast(Load(load.source, (place,), load.dtype), p.form.accumulate))
            if apart is not None:
                break
        return found

    def _apart(self, at: Dim, above: Mapping[Axis, Scalar]) -> int | None:
        """How many elements the left operand's rows are apart, where ``at`` is the place of one and that is the same number for all."""
        rows = [row for row in above.values() if isinstance(row, Axis)]
        stride = self.builder.indices.coefficient(at, rows[0]) if len(rows) == 1 == len(above) else None
        return stride if isinstance(stride, int) and self.order is None else None

    def over_taps(self, body: Stmt) -> Stmt:
        """The loops over taps, around what is done for each that counts: a condition is tested as far outside as it can be."""
        p, indices = self.p, self.builder.indices
        if p.form.guard is None:
            return body
        parts = self.builder.evaluate(conjuncts(p.form.guard), original(p, self.env, indices))
        inside: list[list[Scalar]] = [[] for _ in range(len(p.taps) + 1)]
        for part in parts:
            used = {n for n in walk(part) if isinstance(n, Axis)}
            inside[max((n + 1 for n, tap in enumerate(p.taps) if tap in used), default=0)].append(part)
        for number in reversed(range(len(inside))):
            for part in reversed(inside[number]):
                body = Branch(part, body)
            if number:
                body = serial(p.taps[number - 1 : number], body)
        return body

    def _name_rows(self, line: Scalar, env: dict[Axis, Scalar], bindings: list[tuple[Axis, Scalar]]) -> None:
        """Add the row axes at a row to an environment, as names for what takes computing."""
        if self.order is not None:
            rows = size_of(self.p.rows)
            number = Between("number", rows, low=0, high=(binary("sub", extent_of(rows), 1),))
            bindings.append(between(number, Load(self.order, (line,), "int64")))
            line = number
        for axis, value in unflatten(self.p.rows, line).items():
            if isinstance(value, Axis):
                env[axis] = value
            else:
                name = Axis(axis.name, axis.extent)
                bindings.append((name, value))
                env[axis] = name

    def _row_below(self, above: Mapping[Axis, Scalar], bindings: list[tuple[Axis, Scalar]]) -> dict[Axis, Scalar]:
        """The row axes at the row after one, found without a division: the last one goes on, and where it ends the one before it."""
        below: dict[Axis, Scalar] = {}
        steps: Scalar = Const(1, "int64")
        for axis in reversed(self.p.rows):
            further = binary("add", above[axis], steps)
            ends = compare("ge", further, extent_of(axis.extent))
            name = below[axis] = Axis(axis.name, axis.extent)
            bindings.append((name, select(ends, Const(0, "int64"), further)))
            steps = select(ends, Const(1, "int64"), Const(0, "int64"))
        return below

    def ask_below(self, first: Scalar, width: int, block: tuple[Scalar, Scalar] | None = None) -> Stmt:
        """Ask for the run of ``width`` elements of the right operand, from column ``first`` on, that is read some rows later
        than the one at the current k; at the bottom (of a ``block`` of k: where it begins, and how long it is) for the first runs of
        the panel beside it. Nothing promises that a run begins with a line."""
        p = self.p
        *_, k = p.reduced
        row, column = Axis("ahead", k.extent), Axis("beside", size_of(p.columns))
        below = binary("add", self.env.get(k, k), _ROWS_AHEAD)
        begin, length = block or (Const(0, "int64"), extent_of(k.extent))
        inside = compare("lt", below, binary("add", begin, length))
        there = [
            (column, binary("add", first, select(inside, Const(0, "int64"), Const(width, "int64")))),
            (row, select(inside, below, binary("sub", below, length))),
        ]
        before, self.env = self.env, {**self.env, k: row}
        asked: list[Stmt] = []
        bits = dtype_bits(narrow(p.form.right).dtype if self.right_is_read else loads(p.form.right)[0].dtype)
        for offset in (*range(0, width, LINE_BITS // bits), width - 1):
            asked += self.ask_for(binary("add", column, offset))
        self.env = before
        return bound(there, seq(asked))

    @property
    def has_known_columns(self) -> bool:
        """Whether the number of columns is known. Where it is not there is one tile, under masks: code for whole ones would be half of
        all."""
        return isinstance(size_of(self.p.columns), int)

    def ask_for(self, column: Scalar) -> list[Stmt]:
        """Ask for the right operand's element in a column, at the current k (for all that a word is put together from)."""
        asked: list[Stmt] = []
        for load in loads(self.right_element(column)):
            assert isinstance(load.source, Buffer)
            asked.append(Prefetch(load.source, load.indices))
        return asked

    @property
    def right_bytes(self) -> int | None:
        """How many bytes the right operand has (of one product of a batch), where that is known."""
        elements = size_of([*self.p.columns, *self.p.reduced])
        return elements * dtype_bits(narrow(self.p.form.right).dtype) // 8 if isinstance(elements, int) else None

    def is_at_hand(self, part: float) -> bool:
        """Whether the right operand takes at most a part of the second-level cache, where it stays then, and multiply-adds wait for caches:
        asking for what is read would take the place of loads."""
        target, size = self.builder.target, self.right_bytes
        return target.outruns_caches and size is not None and size <= part * target.l2_bytes

    @property
    def right_is_read(self) -> bool:
        """Whether elements of the right operand are in memory as they are packed: they are not put together."""
        right = self.p.form.right
        return isinstance(right.a if isinstance(right, Cast) else right, Load)

    # -- results

    def finish_row(self, row: Scalar, first: Scalar, lane: Axis, value: Scalar, wrap: Callable[[Stmt], Stmt]) -> Stmt:
        """The epilogue of one row from column ``first`` on: ``value`` is the product's element at ``lane``, and
        ``wrap`` makes the loop over lanes."""
        bindings: list[tuple[Axis, Scalar]] = []
        line = Axis("row", size_of(self.p.rows))
        bindings.append((line, row))
        env = dict(self.env)
        self._name_rows(line, env, bindings)
        env.update(unflatten(self.p.columns, binary("add", first, lane)))
        body = wrap(pointwise_statements(self.builder, self.members, self._frames(env), self._given(value)))
        return bound(bindings, body)

    def ask_for_results(self, row: Scalar, height: int, first: Scalar, width: int) -> list[Stmt]:
        """Ask for the lines that the results of ``height`` rows go to, from column ``first`` on: stores wait for lines that no cache has,
        one after the other, and a tile makes many of them at once. Nothing promises that a run begins with a line."""
        lane = Axis("j", width)
        anything = Load(
            Buffer("none", (1,), self.p.form.accumulate, "register"), (Const(0, "int64"),), self.p.form.accumulate
        )

        def lines(body: Stmt) -> Stmt:
            asked: list[Stmt] = []
            for stmt in statements(body):
                if not isinstance(stmt, Store):
                    continue
                indices = self.builder.indices
                if indices.coefficient(indices.poly(stmt.indices[-1]), lane) != 1:
                    continue
                for offset in range(0, width, LINE_BITS // dtype_bits(stmt.buffer.dtype)):
                    place = tuple(substitute(i, {lane: Const(offset, "int64")}) for i in stmt.indices)
                    asked.append(Prefetch(stmt.buffer, place, write=True))
            return seq(asked)

        return each_row(self.builder, self.finish_row(row, first, lane, anything, lines), row, height)

    def finish_tile(
        self,
        tile: Buffer,
        row: Scalar,
        first: Scalar,
        across: Scalar,
        partial: bool = False,
        begin: Scalar | None = None,
    ) -> list[Stmt]:
        """The epilogue on a tile's registers; only in the last panel are some columns left out, and those before ``begin`` where that is
        given. ``partial``: this is that panel."""
        height, width = tile.shape
        assert isinstance(height, int) and isinstance(width, int)

        def rows(masked: bool) -> Stmt:
            lane, number = Axis("j", width), Const(0, "int64")

            def wrap(body: Stmt) -> Stmt:
                inside = compare("lt", lane, across)
                if begin is not None and not isinstance(begin, Const):
                    inside = binary("and", compare("ge", lane, begin), inside)
                return For(lane, Const(width, "int64"), Branch(inside, body) if masked else body, "vectorized")

            value = Load(tile, (number, lane), tile.dtype)
            one = self.finish_row(row, first, lane, value, wrap)
            return seq(each_row(self.builder, one, row, height, lambda i: {number: Const(i, "int64")}))

        if isinstance(across, Const):
            return [rows(across.value != width)]
        partial |= not self.has_known_columns
        return [rows(True) if partial else Branch(compare("eq", across, width), rows(False), rows(True))]

    def hand_over(self, tile: Buffer, held: Buffer, base: Scalar) -> list[Stmt]:
        """Write a tile to memory, from ``base`` on."""
        height, width = tile.shape
        assert isinstance(height, int) and isinstance(width, int)
        out: list[Stmt] = []
        for i in range(height):
            lane = Axis("j", width)
            place = (binary("add", binary("add", base, i * width), lane),)
            value = Load(tile, (Const(i, "int64"), lane), tile.dtype)
            out.append(For(lane, extent_of(lane.extent), Store(held, place, value), "vectorized"))
        return out

    def finish_rows(
        self, row: Scalar, count: Scalar, first: Scalar, across: Scalar, held: Buffer, base: Scalar, pitch: int | Scalar
    ) -> Stmt:
        """Rows of finished elements in ``held`` (``pitch`` apart, from ``base`` on) through the epilogue to the
        outputs."""
        i, lane = Axis("i", size_of(self.p.rows)), Axis("j", held.shape[0])
        place = binary("add", binary("add", base, binary("mul", i, pitch)), lane)
        value = Load(held, (place,), held.dtype)
        number: Scalar = Const(0, "int64") if i.extent == 1 else i
        line = self.finish_row(
            binary("add", row, number), first, lane, value, lambda body: For(lane, across, body, "vectorized")
        )
        return LetScalar(i, Const(0, "int64"), line) if i.extent == 1 else For(i, count, line)

    def finish_columns(
        self, row: Scalar, count: Scalar, most: int, first: Scalar, across: Scalar, held: Buffer, pitch: int
    ) -> Stmt:
        """Columns of finished elements in ``held`` (``pitch`` apart), of up to ``most`` rows from a row on, through the
        epilogue to the outputs: lanes run along the rows."""
        indices, last = self.builder.indices, self.p.rows[-1].extent if self.p.rows else 1
        i, j = Axis("i", most), Axis("j", held.shape[0])
        column = Axis("column", size_of(self.p.columns))
        bindings: list[tuple[Axis, Scalar]] = [(column, binary("add", first, j))]
        columns: dict[Axis, Scalar] = {}
        for axis, place in unflatten(self.p.columns, column).items():
            columns[axis] = Axis(axis.name, axis.extent)
            bindings.append((columns[axis], place))  # type: ignore[arg-type]

        def at(line: Scalar) -> tuple[Callable[[Member], dict[Axis, Scalar]], dict[tuple[int, int], Scalar]]:
            env = {**self.env, **unflatten(self.p.rows, binary("add", row, line)), **columns}
            value = Load(held, (binary("add", binary("mul", j, pitch), line),), held.dtype)
            return self._frames(env), self._given(value)

        _, stores = pointwise_values(self.builder, self.members, *at(i))
        near = (1, 2, 3, 4) if self.builder.target.mask_registers else (1,)
        if all(indices.coefficient(indices.poly(place), i) in near for place in stores):
            body = pointwise_statements(self.builder, self.members, *at(i))
            return For(j, across, bound(bindings, hoisted(For(i, count, body, "vectorized"))))
        # Elements that lie further apart are stored one by one: a scatter of lanes takes longer.
        if isinstance(count, Const) and isinstance(last, int) and int(count.value) % last == 0:
            outer, inner = Axis("o", int(count.value) // last), Axis("i", last)
            body = pointwise_statements(
                self.builder, self.members, *at(binary("add", binary("mul", outer, last), inner))
            )
            return For(
                j, across, bound(bindings, For(outer, extent_of(outer.extent), For(inner, extent_of(last), body)))
            )
        return For(j, across, bound(bindings, For(i, count, pointwise_statements(self.builder, self.members, *at(i)))))

    def across(self, first: Scalar, width: int) -> Scalar:
        """How many of ``width`` columns there are from column ``first`` on."""
        columns = size_of(self.p.columns)
        if isinstance(columns, int) and (columns % width == 0 or isinstance(first, Const)):
            before = int(first.value) if isinstance(first, Const) else 0
            return Const(min(width, columns - before), "int64")
        return minimum(width, binary("sub", extent_of(columns), first))


# (row, height, its offset in the task): the code of a tile of that many rows; the same with the height an expression.
RowTile = Callable[[Scalar, int, Scalar], Stmt]
AfterTile = Callable[[Scalar, Scalar, Scalar], Stmt]


def balanced(
    start: Scalar, count: Scalar, limit: int, most: int, tile: RowTile, after: AfterTile | None = None, fewest: int = 1
) -> Stmt:
    """``count`` (``fewest`` to ``limit``, or none) rows from ``start`` on as the fewest tiles of at most ``most`` rows, their
    heights differing by one at most: a tile of one row would stream the right operand for little. ``after`` follows each.
    Code is made for the heights that can occur."""
    most = min(most, limit)

    def one(offset: Scalar, height: int) -> Stmt:
        row = binary("add", start, offset)
        behind = [] if after is None else [after(row, Const(height, "int64"), offset)]
        return seq([tile(row, height, offset), *behind])

    if isinstance(count, Const):
        rows = int(count.value)
        number = -(-rows // most)
        height, more = divmod(rows, number)
        parts: list[Stmt] = []
        for times, tall, begin in ((more, height + 1, 0), (number - more, height, more * (height + 1))):
            if times == 1:
                parts.append(one(Const(begin, "int64"), tall))
            elif times:
                step, offset = Axis("tile", times), Axis("first", limit)
                here = binary("add", binary("mul", step, tall), begin)
                parts.append(For(step, Const(times, "int64"), LetScalar(offset, here, one(offset, tall))))
        return seq(parts)
    if limit <= most:
        # One tile: there is nothing to share out, which takes as long as a small product itself.
        nothing, lowest = Const(0, "int64"), max(fewest, 1)
        heights = tuple(tile(start, n, nothing) for n in range(lowest, limit + 1))
        only: Stmt = Switch(binary("sub", count, lowest), heights)
        return only if after is None else Branch(compare("gt", count, 0), seq([only, after(start, count, nothing)]))
    tiles, low, more_ = Axis("tiles", limit + 1), Axis("height", most + 1), Axis("more", limit + 1)
    step, offset, size = Axis("tile", limit), Axis("first", limit), Axis("rows", most + 1)
    taller = minimum(1, binary("sub", more_, minimum(step, more_)))
    here = binary("add", binary("mul", step, low), minimum(step, more_))
    row = binary("add", start, offset)
    body = tile(row, most, offset)
    lowest = lowest_tile(fewest, most)
    if lowest < most:
        smaller = Switch(binary("sub", size, lowest), tuple(tile(row, n, offset) for n in range(lowest, most)))
        body = Branch(compare("eq", size, most), body, smaller)
    if after is not None:
        body = seq([body, after(row, size, offset)])
    body = For(step, tiles, LetScalar(offset, here, LetScalar(size, binary("add", low, taller), body)))
    body = LetScalar(more_, binary("sub", count, binary("mul", tiles, low)), body)
    body = LetScalar(low, binary("floordiv", count, tiles), body)
    return LetScalar(tiles, ceiling(count, Const(most, "int64")), body)


def lowest_tile(fewest: int, most: int) -> int:
    """The lowest tile of `balanced`: of ``fewest`` rows, or of the first that take a tile more."""
    tiles = -(-fewest // most)
    return min(fewest // tiles, (tiles * most + 1) // (tiles + 1))
