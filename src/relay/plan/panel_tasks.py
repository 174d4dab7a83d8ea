"""The parallel loops of a product by tiles: which panels and which rows are one task, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from relay.ir.dim import Dim, ceil_div, dim_add, dim_floordiv, dim_max, dim_min, dim_mul
from relay.ir.record import record
from relay.loop.ir import Between, Branch, Buffer, For, LetScalar, Stmt, between
from relay.plan.build import allocate, bound, seq, temporary
from relay.plan.depth_blocks import OuterBlock
from relay.plan.left_block import Cut, LeftBlock
from relay.plan.panel_groups import PanelGroup
from relay.plan.parallel import LEAST_SHARE, parallel_rows, parallel_tasks
from relay.plan.product import size_of
from relay.plan.product_nest import FMA_DISCOUNT, ProductNest
from relay.plan.register_tiles import variable
from relay.plan.row_shares import RowShares, part_of
from relay.plan.task_loops import in_groups, k_outermost
from relay.plan.task_order import has_far_rows, in_pairs
from relay.plan.task_rows import task_block
from relay.plan.task_tiles import TaskTiles
from relay.plan.there_and_back import is_kept_in_part, turned_round
from relay.plan.tiles import PanelRun, narrower, tile_height
from relay.te.scalar import Axis, Const, Scalar, binary, compare, extent_of, minimum

# Reading a panel takes as long as the multiply-adds of so many rows.
_ROWS_TO_READ = 2


@record(slots=True, eq=False)
class PanelTasks:
    """The panels of all ``runs`` by parts of the rows, of which there are ``fewest``, and ``most`` if that is known. ``copied``: how a left
    operand that is copied is cut; ``deep``: the rows of a task at most, and the length of a block of k, where k is outermost."""

    nest: ProductNest
    runs: Sequence[PanelRun]
    packed: Buffer | None
    fewest: int
    most: int | None
    copied: Cut | None
    deep: tuple[int, int] | None
    # Rows of a part at most, and how they are shared out where that depends on the number of threads.
    block: int = 1
    shares: RowShares | None = None
    there_and_back: bool = False
    panel: Axis = field(init=False)
    part: Axis = field(init=False)

    def __post_init__(self) -> None:
        self.panel = Axis("panel", self.panels)

    def divide(self, task_rows: int | None) -> None:
        """Decide how many rows are a part: about ``task_rows``, where that is not for the model to say."""
        nest, p, rows, tile = self.nest, self.nest.p, self.rows, self.runs[0].tile
        if self.copied is not None:
            self.block = self.copied.block
        else:
            self.block = task_block(nest, tile.rows, self.packed, self.deep[0] if self.deep else task_rows)
        parts = ceil_div(rows, self.block)
        if self.most is not None and self.most <= self.block:
            height = 1 if self.copied is None or self.copied.height is None else self.copied.height
            self.block, parts = -(-self.most // height) * height, 1
        if self.packed is not None:
            self.there_and_back = is_kept_in_part(nest, self.most, self.panels, self.runs, self.packed)
        if task_rows is None and p.form.guard is None and not p.form.turned and not self.gathers:
            limit = rows if isinstance(rows, int) else self.most
            others = self.outer if self.copied is not None else dim_mul(self.outer, self.panels)
            self.shares = RowShares.of(rows, limit, self.block, tile.rows, others, self.all_work)
        self.part = Axis("part", parts if self.shares is None else 1 << 16)

    @property
    def rows(self) -> Dim:
        return size_of(self.nest.p.rows)

    @property
    def exactly(self) -> int | None:
        """How many rows there are, where that is known."""
        if isinstance(self.rows, int):
            return self.rows
        return self.most if self.most == self.fewest else None

    @property
    def panels(self) -> Dim:
        return dim_add(self.runs[-1].number, self.runs[-1].count)

    @property
    def outer(self) -> Dim:
        """How many products there are."""
        return size_of([*self.nest.p.outer, *self.nest.p.batch])

    @property
    def gathers(self) -> bool:
        """Whether results of several panels are written together."""
        many = isinstance(self.panels, int) and self.panels > 1
        return many and all(self.tiles(run).gathers for run in self.runs)

    @property
    def work(self) -> Dim:
        """What a part of the rows takes with a panel."""
        return self._work(dim_min(self.rows, self.block))

    @property
    def all_work(self) -> Dim:
        return dim_mul(self._work(self.rows), dim_mul(self.outer, self.panels))

    def _work(self, rows: Dim) -> Dim:
        each = dim_mul(size_of(self.nest.p.reduced), self.runs[0].tile.columns)
        return dim_floordiv(dim_mul(each, dim_max(rows, _ROWS_TO_READ)), FMA_DISCOUNT)

    # -- loops

    def loops(self) -> Stmt:
        """All tasks."""
        p, panel, shares = self.nest.p, self.panel, self.shares
        if self.copied is not None:
            return self._copied(self.copied)
        if self.deep is not None:
            places = panel, self.part, self.block
            return k_outermost(
                self.nest, places, self.deep[1], self.work, lambda outer: self._task(None, outer), shares
            )
        position = Axis("at", self.panels) if self.there_and_back else panel

        def task(group: PanelGroup | None = None) -> Stmt:
            body = self._task(group=group)
            return LetScalar(panel, turned_round(position, self.panels), body) if self.there_and_back else body

        if self.gathers:
            assert self.part.extent == 1
            return in_groups(self.nest, position, self.block, self.work, task)
        # What a guard leaves of a product is little for each of the outer axes: panels stay in the cache meanwhile.
        order = [*p.outer, *p.batch, position] if p.form.guard is None else [*p.batch, position, *p.outer]
        far = p.form.guard is None and has_far_rows(self.nest, self.most)
        if far is not False and self.panels != 1 and self.part.extent != 1:
            return self._in_pairs(far, position, task())
        if shares is None:
            return parallel_rows(self.nest.builder, [*order, self.part], self.work, task(), LEAST_SHARE)
        others = dim_mul(self.outer, self.panels)
        return shares.loop(order, (self.part, shares.number), others, self.all_work, task())

    def _in_pairs(self, far: bool | Scalar, position: Axis, body: Stmt) -> Stmt:
        """Tasks that may have their rows in common with those that follow them."""
        p, panels, shares = self.nest.p, extent_of(self.panels), self.shares
        products, parts = [*p.outer, *p.batch], extent_of(self.part.extent) if shares is None else shares.number
        pair = Axis("pair", dim_mul(self.panels, self.part.extent))
        body = in_pairs(far, (position, panels), (self.part, parts), pair, body)
        if shares is None:
            return parallel_rows(self.nest.builder, [*products, pair], self.work, body, LEAST_SHARE)
        number = binary("mul", panels, parts)
        return shares.loop(products, (pair, number), dim_mul(self.outer, self.panels), self.all_work, body)

    def _copied(self, cut: Cut) -> Stmt:
        """Tasks that copy their rows and go through a group of panels."""
        p, panels, shares, builder = self.nest.p, self.panels, self.shares, self.nest.builder
        group, inner = Axis("group", cut.groups if shares is None else panels), Axis("inner", cut.panels)
        several: Scalar = Const(cut.panels, "int64")
        start, size, names = part_of(variable(self.part), self.rows, self.block, self.fewest, shares)
        left = LeftBlock.of(self.nest, (start, size), self.block, cut.length, height=cut.height)
        counts: list[tuple[Axis, Scalar]] = []
        if shares is not None:
            others = extent_of(dim_mul(self.outer, shares.parts))
            # Of long columns a task's copies take a good part of its time: each thread has one.
            wanted = shares.wanted() if cut.height is None else shares.wanted(1)
            counts = [wanted, *shares.groups(panels, cut.panels, others)]
            (several, _), (groups, _) = counts[1:]
            counts.append(shares.counted(binary("mul", groups, extent_of(self.outer))))
        first = Between("first", panels, low=0, high=(extent_of(panels),))
        names.append(between(first, binary("mul", variable(group), several)))
        count = minimum(several, binary("sub", extent_of(panels), first))
        here = binary("add", first, variable(inner))

        def through(outer: OuterBlock | None) -> Stmt:
            return seq([left.copied(), For(inner, count, LetScalar(self.panel, here, self._task(left, outer)))])

        if left.along is None:
            body = allocate([left.buffer], through(None))
        else:
            of_panel = self.block * p.pitch
            held = temporary(builder.fresh("sums"), cut.panels * of_panel, p.form.accumulate)
            number, _ = left.along
            outer = OuterBlock(*left.along, held, binary("mul", variable(inner), of_panel))
            body = allocate([left.buffer, held], For(number, extent_of(number.extent), through(outer)))
        body = bound(names, body)
        products = [*p.outer, *p.batch]
        if shares is None:
            return parallel_rows(
                builder, [*products, group, self.part], dim_mul(self.work, cut.panels), body, LEAST_SHARE
            )
        tasks = parallel_tasks(products, [(group, groups), (self.part, shares.number)], self.all_work, body)
        return bound(counts, tasks)

    # -- one task

    def of_rows(self, start: Scalar, count: Scalar, most: int) -> Stmt:
        """A panel, of whichever run it is, and ``count`` rows (at most ``most``) from a row on."""
        self.block = most
        return self._task(rows=(start, count))

    def _task(
        self,
        left: LeftBlock | None = None,
        outer: OuterBlock | None = None,
        group: PanelGroup | None = None,
        rows: tuple[Scalar, Scalar] | None = None,
    ) -> Stmt:
        """A panel, of whichever run it is, and a part of the rows."""
        panel, part = variable(self.panel), variable(self.part) if rows is None else Const(0, "int64")

        def alike(run: PanelRun) -> Stmt:
            return self.tiles(run).task(panel, part, self.block, left, outer, group, rows)

        def of(run: PanelRun) -> Stmt:
            body = alike(run)
            # Of an unknown number of columns a last panel that has few is narrower: most lanes would multiply what nobody asked for.
            for less in self._narrower(run):
                _, across = self.tiles(run).columns(variable(self.panel))
                body = Branch(compare("le", across, less.tile.columns), alike(less), body)
            return body

        body = of(self.runs[-1])
        for run in reversed(self.runs[:-1]):
            body = Branch(compare("lt", self.panel, dim_add(run.number, run.count)), of(run), body)
        return body

    def _narrower(self, run: PanelRun) -> list[PanelRun]:
        """The runs that a panel of a run is of where it has few columns, widest first."""
        p = self.nest.p
        plain = self.packed is None and self.copied is None and self.deep is None and not p.form.turned
        if isinstance(size_of(p.columns), int) or not plain or p.form.guard is not None:
            return []
        tiles = narrower(self.nest.builder.target, p.form.accumulate, self.rows, run.tile)
        return [replace(run, tile=tile, apart=run.width) for tile in tiles]

    def tiles(self, run: PanelRun) -> TaskTiles:
        """What a task does with the panels of a run."""
        nest, p = self.nest, self.nest.p
        own = replace(nest, p=replace(p, tile=run.tile), env={})
        tiles = TaskTiles(own, run, self.packed, self.fewest, self.most, self.there_and_back, self.shares)
        if tiles.partial > 1:
            vectors = ceil_div(run.tile.columns, nest.builder.lanes([p.form.accumulate]))
            assert isinstance(vectors, int)
            height = tile_height(nest.builder.target, vectors, tiles.partial)
            tiles.shared.p.tile = replace(run.tile, rows=min(run.tile.rows, height))
        return tiles
