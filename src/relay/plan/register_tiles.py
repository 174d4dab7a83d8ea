"""One register tile of a product: a few rows by the columns of a panel, summed over k (or a block of it) in registers.

What is summed is given to ``finish`` in a register buffer: for the epilogue, or to be held until the next block of k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relay.ir.dim import dim_floordiv
from relay.ir.record import record
from relay.loop.ir import TURN, Alloc, Branch, Buffer, For, Stmt, Store
from relay.plan.build import bound, seq
from relay.plan.depth_blocks import OuterBlock, is_widened
from relay.plan.left_block import LeftBlock
from relay.plan.panels import Panel, loops
from relay.plan.product import size_of
from relay.plan.product_nest import CHEAP_EPILOGUE, LeftRows, ProductNest
from relay.plan.reading import Reading
from relay.plan.reduction import initial
from relay.plan.tiles import PanelRun
from relay.te.scalar import Axis, Cast, Const, Load, Scalar, binary, cast, compare, extent_of, minimum

# Steps along k in one iteration of a tile's loop, where its columns are whole vectors (with halves the sums of a high tile would not
# stay in registers) and it leaves so many registers: without any the next step's vectors are loaded in place of sums, which go to
# memory and back. Where nobody knows how many steps there are, what is left over is the same code once more, which is worth it only
# where multiply-adds wait for nothing but the loop itself.
_STEPS, _SPARE = 2, 2
# The first tile over a panel asks for nothing of an operand that takes at most this part of the second-level cache (24 to 200 rows by
# 384 x 768 to 1024 x 512 where it has 2 MB: 0.84 to 0.99 of the time).
_AT_HAND = 1.0


@record(slots=True, eq=False)
class Task:
    """What one task works on: ``count`` (``fewest`` to ``most``) rows from ``start``, and a panel's columns. ``held`` is where its
    tiles wait for the epilogue."""

    start: Scalar
    count: Scalar
    fewest: int
    most: int
    panel: Panel
    held: Buffer
    # Its rows, where they were copied.
    left: LeftBlock | None = None
    # The block of k, where it is outermost.
    outer: OuterBlock | None = None


@record(slots=True, eq=False)
class RegisterTiles:
    """The tiles of a run of panels, whose width and height are those of ``shared.p.tile``."""

    shared: ProductNest
    run: PanelRun
    packed: Buffer | None
    # Fewer rows, and more if that is known, never come here.
    fewest: int = 1
    most: int | None = None
    # Whether every other call goes through the panels from the last to the first.
    there_and_back: bool = False

    @property
    def pairs(self) -> bool:
        """Whether panels hold pairs of neighbours along k."""
        return self.packed is not None and self.shared.p.pairs

    @property
    def in_blocks(self) -> bool:
        """Whether products are made in matrix registers."""
        return self.pairs and self.shared.p.left_stride is not None

    @property
    def partial(self) -> int:
        """How many sums in registers an element is made of."""
        p = self.shared.p
        return p.partial if self.packed is not None and len(p.reduced) == 1 else 1

    @property
    def widens(self) -> bool:
        """Whether the first tile over a panel leaves behind what it has widened, for those after it."""
        if self.packed is None or not is_widened(self.shared, self.packed):
            return False
        rows = size_of(self.shared.p.rows)
        return (rows if isinstance(rows, int) else self.fewest) > self.shared.p.tile.rows

    @property
    def direct(self) -> bool:
        """Whether the epilogue takes its elements from the registers."""
        return is_direct(self.shared, self.run)

    def micro(
        self, task: Task, row: Scalar, height: int, offset: Scalar, block: tuple[Axis, int, Scalar] | None,
        finish: Callable[[Buffer], list[Stmt]],
    ) -> Stmt:  # fmt: skip
        """``height`` rows of a tile over all of k, in registers. With a ``block`` (its number, its length and where
        its partial sums are): over one block of k."""
        if task.panel.once and task.panel.as_it_goes:
            return self._in_registers(task, row, height, offset, block, finish, True)
        tile = self._in_registers(task, row, height, offset, block, finish, False)
        if not task.panel.as_it_goes:
            return tile
        first = self._in_registers(task, row, height, offset, block, finish, True)
        return Branch(compare("eq", offset, 0), first, tile)

    def _in_registers(
        self, task: Task, row: Scalar, height: int, offset: Scalar, block: tuple[Axis, int, Scalar] | None,
        finish: Callable[[Buffer], list[Stmt]], goes: bool,
    ) -> Stmt:  # fmt: skip
        """One tile; if ``goes``, the first of its panel, which it packs as it goes."""
        if self.partial > 1:
            return self._in_partial_sums(task, row, height, finish)
        shared, p, width = self.shared, self.shared.p, self.shared.p.tile.columns
        dtype = p.form.accumulate
        tile = Buffer(shared.builder.fresh("registers"), (height, width), dtype, "register")
        lane, lanes = Axis("j", width), Const(width, "int64")
        before = shared.env
        axes, extent, terms, left = self._along_k(task, row, height, offset, lane, block, goes)
        copied: list[Stmt] = []
        if goes:
            begin = Const(0, "int64") if block is None else binary("mul", block[0], block[1])
            copied = [] if task.panel.once else [task.panel.kept(lane, begin)]
            alone = not task.panel.once or task.most <= p.tile.rows
            if self.packed is None and alone and not shared.is_at_hand(_AT_HAND):
                copied.append(shared.ask_below(task.panel.first, width))
        shared.env = before
        start: list[Stmt] = []
        if self.direct and (block is None or task.outer is not None) and not p.form.turned and self.packed is None:
            asked = shared.ask_for_results(row, height, task.panel.first, width)
            start += asked if task.outer is None else [Branch(task.outer.is_last, seq(asked))]
        sums: list[Stmt] = []
        zeros: list[Stmt] = []
        updates: list[Stmt] = []
        for i in range(height):
            place = (Const(i, "int64"), lane)
            zeros.append(For(lane, lanes, Store(tile, place, initial("sum", dtype)), "vectorized"))
            if block is not None:
                held = Load(task.held, self._spot(block[2], i, lane), dtype)
                sums.append(For(lane, lanes, Store(tile, place, held), "vectorized"))
            total: Scalar = Load(tile, place, dtype)
            for a, b in terms[i]:
                total = binary("add", total, p.form.product(a, b))
            updates.append(For(lane, lanes, Store(tile, place, total), "vectorized"))
        if block is not None and task.outer is not None:
            start.append(Branch(compare("eq", block[0], 0), seq(zeros), seq(sums)))
        else:
            start += zeros if block is None else sums
        loop: Stmt = seq([*self._ahead(task, height, offset, axes, block), *updates, *copied])
        vectors, rest = divmod(width, shared.builder.lanes([dtype]))
        # The sums, a row of the panel and an element of the left operand.
        taken = (height + 1) * vectors + 1
        target = shared.builder.target
        roomy = rest == 0 and taken + _SPARE <= target.vector_registers
        counted = not axes or isinstance(axes[-1].extent, int)
        loop = loops(axes, extent, loop, _STEPS if roomy and (counted or target.outruns_caches) else 1)
        if p.form.guard is not None:
            return Alloc(tile, seq([*start, shared.over_taps(left.bind(loop)), *finish(tile)]))
        return left.bind(Alloc(tile, seq([*start, loop, *finish(tile)])))

    def _in_partial_sums(self, task: Task, row: Scalar, height: int, finish: Callable[[Buffer], list[Stmt]]) -> Stmt:
        """One tile whose elements are several sums each, of every so many-th product along k, added up in pairs."""
        shared, p, width, parts = self.shared, self.shared.p, self.shared.p.tile.columns, self.partial
        dtype, (k,) = p.form.accumulate, p.reduced
        assert isinstance(k.extent, int)
        tile = Buffer(shared.builder.fresh("registers"), (height * parts, width), dtype, "register")
        done = Buffer(shared.builder.fresh("registers"), (height, width), dtype, "register")
        lane, lanes, step = Axis("j", width), Const(width, "int64"), Axis("k", k.extent // parts)
        before, bindings = shared.env, []
        start: list[Stmt] = []
        updates: list[Stmt] = []
        ends: list[Stmt] = []
        for part in range(parts):
            shared.env = {**before, k: binary("add", binary("mul", variable(step), parts), part)}
            left = shared.left_rows(row, height, [step])
            bindings += left.bindings
            b = task.panel.element(lane, Const(0, "int64"))
            for i, a in enumerate(left.elements):
                place = (Const(i * parts + part, "int64"), lane)
                start.append(For(lane, lanes, Store(tile, place, initial("sum", dtype)), "vectorized"))
                total = binary("add", Load(tile, place, dtype), p.form.product(a, b))
                updates.append(For(lane, lanes, Store(tile, place, total), "vectorized"))
        shared.env = before
        for i in range(height):
            sums: list[Scalar] = [Load(tile, (Const(i * parts + n, "int64"), lane), dtype) for n in range(parts)]
            while len(sums) > 1:
                sums = [binary("add", a, b) for a, b in zip(sums[::2], sums[1::2], strict=True)]
            ends.append(For(lane, lanes, Store(done, (Const(i, "int64"), lane), sums[0]), "vectorized"))
        loop = loops([step], None, seq(updates))
        return bound(bindings, Alloc(tile, seq([*start, loop, Alloc(done, seq([*ends, *finish(done)]))])))

    def _along_k(
        self, task: Task, row: Scalar, height: int, offset: Scalar, lane: Axis, block: tuple[Axis, int, Scalar] | None,
        goes: bool,
    ) -> tuple[list[Axis], Scalar | None, list[list[tuple[Scalar, Scalar]]], LeftRows]:  # fmt: skip
        """The loops over k (the extent of the one there is, where it is not its axis's own), what each step multiplies
        and adds in each row, and the rows of the left operand."""
        shared, p = self.shared, self.shared.p
        axes, extent, step = list(p.depth), None, 2 if self.pairs else 1
        if block is not None or self.pairs:
            k, *rest = p.reduced
            length = k.extent if block is None else block[1]
            assert isinstance(length, int)
            inner = Axis("k", length // step)
            here = variable(inner)
            if block is not None:
                begin = binary("mul", block[0], length // step)
                here = binary("add", begin, inner)
                depth = None if task.outer is None else task.outer.depth
                depth = extent_of(dim_floordiv(k.extent, step)) if depth is None else depth
                extent = minimum(length // step, binary("sub", depth, begin))
            shared.env = {**shared.env, k: binary("mul", here, step)}
            axes = [inner, *rest]
        left = task.left and task.left.rows(offset, height, shared.position_in_depth())
        left = left or shared.left_rows(row, height, axes)
        if not self.pairs:
            begin = Const(0, "int64") if block is None else binary("mul", block[0], block[1])
            b = task.panel.where_it_is(lane) if goes else task.panel.element(lane, begin)
            return axes, extent, [[(a, b)] for a in left.elements], left
        rights = [task.panel.pair(here, half, lane) for half in (0, 1)]
        return axes, extent, [[(a, rights[0]), (_neighbour(a), rights[1])] for a in left.elements], left

    def _ahead(
        self, task: Task, height: int, offset: Scalar, axes: Sequence[Axis], block: tuple[Axis, int, Scalar] | None
    ) -> list[Stmt]:
        """Ask for what the panel (or block of k) behind this one takes."""
        form = self.shared.p.form
        if self.packed is None or form.turned or form.guard is not None:
            return []  # the panels of such a product serve many tasks, and stay in the cache between them
        back = TURN if self.there_and_back else None
        behind = None if task.outer is None else task.outer.behind
        reading = Reading(
            self.shared, self.packed, task.panel.number, self.pairs, block and block[:2], task.fewest, back, behind
        )
        here = variable(axes[0]) if len(axes) == 1 else self.shared.position_in_depth()
        if task.most <= self.shared.p.tile.rows:
            return reading.ask_behind(here, height)
        return reading.ask_for_share(here, height, offset, task.count)

    def _spot(self, base: Scalar, i: int, lane: Axis) -> tuple[Scalar]:
        return (binary("add", binary("add", base, i * self.shared.p.tile.columns), lane),)


def is_direct(nest: ProductNest, run: PanelRun) -> bool:
    """Whether the epilogue of a run's panels takes its elements from the registers. Masks that nobody knows would take some of these from
    the sums where they are vectors themselves."""
    cheap = nest.builder.target.mask_registers or nest.has_known_columns
    return (not run.ragged or (nest.masked and cheap)) and nest.epilogue_cost() <= CHEAP_EPILOGUE


def _neighbour(element: Scalar) -> Scalar:
    """The element behind a widened load."""
    assert isinstance(element, Cast) and isinstance(element.a, Load)
    (at,) = element.a.indices
    return cast(Load(element.a.source, (binary("add", at, 1),), element.a.dtype), element.dtype)


def variable(axis: Axis) -> Scalar:
    """The value of a loop variable: 0 for a loop of one iteration, which is left out."""
    return Const(0, "int64") if axis.extent == 1 else axis
