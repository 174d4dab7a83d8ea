"""What a task of a product does with the tiles of a panel: all of its rows at once or by blocks of k, and the epilogue."""

from __future__ import annotations

from relay.ir.dim import Dim, dim_mul
from relay.ir.record import record
from relay.loop.ir import Branch, Buffer, For, LetScalar, Stmt, Store, Transpose
from relay.plan.block_rows import block_rows, held_size
from relay.plan.build import allocate, bound, seq, temporary
from relay.plan.depth_blocks import OuterBlock, depth_block
from relay.plan.left_block import LeftBlock
from relay.plan.panel_groups import PanelGroup, are_gathered
from relay.plan.panels import Panel, is_in_place
from relay.plan.product import size_of
from relay.plan.product_nest import AfterTile, RowTile, balanced
from relay.plan.reduction import initial
from relay.plan.register_tiles import RegisterTiles, Task
from relay.plan.row_shares import RowShares, part_of
from relay.te.scalar import Axis, Const, Scalar, binary, compare, extent_of, minimum

_NOTHING = Const(0, "int64")


@record(slots=True, eq=False)
class TaskTiles(RegisterTiles):
    """What a task does with the tiles of a run of panels."""

    # How the rows are shared out, where that depends on the number of threads.
    shares: RowShares | None = None

    @property
    def _blocks(self) -> int | None:
        """The length of the blocks of k that the tiles of a panel go through one after the other."""
        if self.in_blocks or self.partial > 1:
            return None
        return depth_block(self.shared, self.packed, self.most, self.widens)

    @property
    def plain(self) -> bool:
        """Whether panels are multiplied as they lie, all of k at once, an element in one sum."""
        return not (self.pairs or self.in_blocks or self.widens) and self.partial == 1 and self._blocks is None

    @property
    def gathers(self) -> bool:
        """Whether results wait for those of the next panels."""
        return (
            self._blocks is not None and self.packed is not None and are_gathered(self.shared, self.packed, self.most)
        )

    # -- tasks

    def task(
        self,
        panel: Scalar,
        part: Scalar,
        block: int,
        left: LeftBlock | None = None,
        outer: OuterBlock | None = None,
        group: PanelGroup | None = None,
        rows: tuple[Scalar, Scalar] | None = None,
    ) -> Stmt:
        """A panel of the run and ``block`` rows (or what is left of them), which ``left`` may have a copy of; or as many ``rows`` at most:
        from where on, and how many. With k outermost: over the block ``outer`` of it. One of a ``group``: its sums alone, or its
        epilogue."""
        shared, p = self.shared, self.shared.p
        width, depth = p.tile.columns, size_of(p.reduced)
        first, across = self.columns(panel)
        names: list[tuple[Axis, Scalar]] = []
        if rows is not None:
            start, count = rows
        elif left is None:
            start, count, names = part_of(part, size_of(p.rows), block, self.fewest, self.shares)
        else:
            start, count = left.start, left.count
        buffers: list[Buffer] = []
        shared.env = {}
        blocks = outer.length if outer is not None else self._blocks
        made: Buffer | None = None
        if self.widens or (self.packed is None and not is_in_place(shared)):
            long = depth if blocks is None else dim_mul(blocks, size_of(p.reduced[1:]))
            made = temporary(shared.builder.fresh("panel"), dim_mul(long, p.pitch), p.form.accumulate)
            buffers.append(made)
        once = (rows is not None and block <= p.tile.rows) or self._stays
        columns = Panel(shared, panel, first, across, self.packed, made, once=once)
        size: Dim = block * width if blocks is not None or p.form.turned else p.tile.rows * width
        size = held_size(shared) if self.in_blocks else size
        held = temporary(shared.builder.fresh("tile"), size, p.form.accumulate)
        task = Task(start, count, self._fewest(block), block, columns, held, left, outer)
        if outer is not None:
            task.held = outer.sums
            return bound(names, allocate(buffers, self._rows_of_block(task, outer)))
        if group is not None:
            assert blocks is not None
            task.held = group.sums
            body = self._finish_sums(task, group.base) if group.finishes else self._sums(task, blocks, group.base)
            return bound(names, allocate(buffers, body))
        if blocks is not None:
            body = seq([self._sums(task, blocks), self._finish_sums(task)])
        elif self.in_blocks and self.packed is not None:
            body = block_rows(shared, columns, self.packed, (start, count, block), held)
        else:
            whole = self._turned_rows if p.form.turned else self._rows
            body = seq([*columns.packed_first(None), whole(task)])
        if blocks is not None or p.form.turned or self.in_blocks or not self.direct:
            buffers.append(held)
        return bound(names, allocate(buffers, body))

    @property
    def _stays(self) -> bool:
        """Whether tiles read a panel where it is: the last one, of a vector, where numbers of rows and columns are not known. Its few sums
        wait for each other, not for that; packing it would be code of its own for each height."""
        p = self.shared.p
        narrow = self.run.apart is not None and p.tile.columns <= self.shared.builder.lanes([p.form.accumulate])
        return narrow and not isinstance(size_of(p.rows), int)

    def _fewest(self, block: int) -> int:
        """How many rows a task has at least."""
        if self.shares is not None:
            return self.shares.least(self.fewest)
        return min(self.fewest, (block + 1) // 2)

    def columns(self, panel: Scalar) -> tuple[Scalar, Scalar]:
        """The first column of a panel of the run, and how many there are."""
        run, width, columns = self.run, self.run.tile.columns, size_of(self.shared.p.columns)
        first = binary("add", binary("mul", binary("sub", panel, run.number), run.width), run.column)
        if not run.ragged:
            return first, Const(width, "int64")
        if run.count == 1 and isinstance(columns, int):
            return first, Const(columns - run.column, "int64")
        return first, minimum(width, binary("sub", extent_of(columns), first))

    # -- rows

    def _each(self, task: Task, tile: RowTile, after: AfterTile | None = None) -> Stmt:
        return balanced(task.start, task.count, task.most, self.shared.p.tile.rows, tile, after, task.fewest)

    def _rows(self, task: Task) -> Stmt:
        """All rows of a task, a tile at a time."""
        nothing = _NOTHING
        if self.direct:
            return self._each(
                task,
                lambda row, n, offset: self.micro(
                    task,
                    row,
                    n,
                    offset,
                    None,
                    lambda tile: self.shared.finish_tile(tile, row, task.panel.first, task.panel.across),
                ),
            )

        def through_memory(row: Scalar, n: int, offset: Scalar) -> Stmt:
            return self.micro(task, row, n, offset, None, lambda tile: self.shared.hand_over(tile, task.held, nothing))

        width = self.shared.p.tile.columns

        def finish(row: Scalar, n: Scalar, _: Scalar) -> Stmt:
            def columns(across: Scalar) -> Stmt:
                return self.shared.finish_rows(row, n, task.panel.first, across, task.held, nothing, width)

            if isinstance(task.panel.across, Const):
                return columns(task.panel.across)
            # Of a known number of columns the loop over them is written out.
            whole = compare("eq", task.panel.across, width)
            return Branch(whole, columns(Const(width, "int64")), columns(task.panel.across))

        return self._each(task, through_memory, finish)

    def _rows_of_block(self, task: Task, outer: OuterBlock) -> Stmt:
        """All rows of a task over a block of k: their sums wait in memory for the next block, and go through the epilogue after the
        last."""
        if task.left is not None and task.left.height > 1:
            return self._tiles_of_block(task, task.left, outer)

        def run(row: Scalar, n: int, offset: Scalar) -> Stmt:
            at = binary("add", outer.base, binary("mul", offset, self.shared.p.tile.columns))

            def finish(tile: Buffer) -> list[Stmt]:
                done = seq(self.shared.finish_tile(tile, row, task.panel.first, task.panel.across))
                return [Branch(outer.is_last, done, seq(self.shared.hand_over(tile, task.held, at)))]

            return self.micro(task, row, n, offset, (*outer.along, at), finish)

        return seq([*task.panel.packed_first(outer.along), self._each(task, run)])

    def _tiles_of_block(self, task: Task, left: LeftBlock, outer: OuterBlock) -> Stmt:
        """The same by tiles of one height, rows of zeros included; those of a part go through the epilogue together."""
        width, height = self.shared.p.tile.columns, left.height
        step, offset = Axis("tile", -(-task.most // height)), Axis("first", task.most)
        at = binary("add", outer.base, binary("mul", offset, width))
        row = binary("add", task.start, offset)
        tile = self.micro(
            task, row, height, offset, (*outer.along, at), lambda tile: self.shared.hand_over(tile, task.held, at)
        )
        tiles = For(step, left.tiles, LetScalar(offset, binary("mul", step, height), tile))
        return seq([
            *task.panel.packed_first(outer.along), tiles, Branch(outer.is_last, self._finish_sums(task, outer.base))
        ])  # fmt: skip

    def _turned_rows(self, task: Task) -> Stmt:
        """All rows of a task, and then all its columns."""
        width = self.shared.p.tile.columns

        def run(row: Scalar, n: int, offset: Scalar) -> Stmt:
            return self.micro(
                task,
                row,
                n,
                offset,
                None,
                lambda tile: self.shared.hand_over(tile, task.held, binary("mul", offset, width)),
            )

        return seq([self._each(task, run), self._finish_turned(task)])

    def _finish_turned(self, task: Task) -> Stmt:
        """Turn the rows that are held, and bring each column to where the result has it."""
        width, nothing = self.shared.p.tile.columns, Const(0, "int64")
        pitch = -(-task.most // 16) * 16
        columns = temporary(self.shared.builder.fresh("columns"), width * pitch, task.held.dtype)
        turn = Transpose(
            columns,
            nothing,
            Const(pitch, "int64"),
            task.held,
            nothing,
            Const(width, "int64"),
            task.count,
            task.panel.across,
        )
        finish = self.shared.finish_columns(
            task.start, task.count, task.most, task.panel.first, task.panel.across, columns, pitch
        )
        return allocate([columns], seq([turn, finish]))

    def _sums(self, task: Task, length: int, begin: Scalar = _NOTHING) -> Stmt:
        """All rows of a task by blocks of k: sums of all rows wait in memory, from ``begin`` on."""
        width = self.shared.p.tile.columns
        k = self.shared.p.reduced[0]
        assert isinstance(k.extent, int)
        blocks = Axis("kb", -(-k.extent // length))

        def run(row: Scalar, n: int, offset: Scalar) -> Stmt:
            base = binary("add", begin, binary("mul", offset, width))
            return self.micro(
                task, row, n, offset, (blocks, length, base), lambda tile: self.shared.hand_over(tile, task.held, base)
            )

        lane, line = Axis("j", width), Axis("i", task.most)
        place = binary("add", binary("add", begin, binary("mul", line, width)), lane)
        clear = Store(task.held, (place,), initial("sum", task.held.dtype))
        return seq([
            For(line, task.count, For(lane, Const(width, "int64"), clear, "vectorized")),
            For(blocks, extent_of(blocks.extent), seq([*task.panel.packed_first((blocks, length)), self._each(task, run)])),
        ])  # fmt: skip

    def _finish_sums(self, task: Task, begin: Scalar = _NOTHING) -> Stmt:
        """The epilogue on sums that wait in memory, from ``begin`` on."""
        if self.shared.p.form.turned:
            return self._finish_turned(task)
        panel, width = task.panel, self.shared.p.tile.columns
        return self.shared.finish_rows(task.start, task.count, panel.first, panel.across, task.held, begin, width)
