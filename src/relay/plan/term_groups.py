"""Sums over rows of which each counts for one matrix only: ``out[m, i, j] = sum over the n with choice[n] == m of x[n, i] * y[n, j]``.

It is the gradient of a table of matrices of which each row chose one (experts, labels, relations). As a scatter (`relay.plan.scatter`)
every row adds an outer product to the whole of its matrix, which is read and written for as many multiply-adds as it has elements. Here
the rows of each matrix follow each other (`relay.plan.counting`), and are what a product of register tiles sums over. A task copies its
part of these rows of both operands to where they lie close together, a block of them after the other, and results go from the registers
to memory once: also to matrices that nobody chose, which are zeros. Rows of a matrix are summed in their order, whatever other rows there
are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from relay.ir.dim import Dim, ceil_div, dim_add, dim_floordiv, dim_max, dim_mul
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import Between, Branch, Buffer, For, LetScalar, Stmt, Store, between
from relay.plan.build import allocate, bound, ceiling, seq, temporary
from relay.plan.counting import Counting
from relay.plan.depth_blocks import OuterBlock
from relay.plan.left_block import LeftBlock
from relay.plan.panels import Panel
from relay.plan.parallel import LEAST_SHARE, parallel_rows
from relay.plan.product import flat_position, original, size_of, unflatten
from relay.plan.product_nest import FMA_DISCOUNT, ProductNest, balanced
from relay.plan.reduction import initial
from relay.plan.register_tiles import Task, variable
from relay.plan.row_shares import part_of
from relay.plan.stages import Contraction, Kept, TermChoice, contraction
from relay.plan.task_tiles import TaskTiles
from relay.plan.tiles import PanelRun
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Const,
    Reduce,
    Scalar,
    binary,
    cast,
    compare,
    extent_of,
    maximum,
    mentioned,
    minimum,
    substitute,
)
from relay.te.scatter import as_scatter
from relay.te.tensor import Compute

# Rows of a block: a tile's sums wait in memory for the next one, and the panels of a task take this part of the second-level cache.
_LENGTH, _PART_OF_PANELS = 128, 4
# Rows of a task's part of a matrix at most.
_ROWS = 128
# Elements of a row, of a column and of the whole of a matrix at least: smaller ones are added up as fast one by one (1,000 rows, one
# thread, microseconds, each for itself and by groups: 300 matrices of 4 x 4 3.8 and 6.8, of 16 x 4 21 and 11, of 64 x 4 184 and 25).
_FEWEST_ALONG, _FEWEST = 4, 64


def by_terms(kept: Kept, constants: frozenset[int], indices: Indices) -> Contraction | None:
    """A scatter that adds outer products, as a batch of products whose sums are over the rows that say so; None: it is none.
    ``constants``: the ids of the constants' stages."""
    scatter = as_scatter(kept.stage, indices)
    if scatter is None or scatter.kind != "sum" or not mentioned(scatter.value).isdisjoint(scatter.places):
        return None
    if not mentioned(scatter.guard, *scatter.places.values()) <= {*scatter.over}:
        return None
    wide = [a for a in kept.stage.axes if a.extent != 1]
    if not wide or wide[-1] in scatter.places:
        return None
    summed = Reduce("sum", scatter.over, scatter.value, kept.dtypes[0])
    form = contraction(Compute(kept.stage.name, scatter.through, (summed,)), constants)
    if form is None or form.guard is not None or form.parts is not None or form.pairing is not None:
        return None
    rows, columns = size_of(form.rows), size_of(form.columns)
    if any(_is_less(n, _FEWEST_ALONG) for n in (rows, columns)) or _is_less(dim_mul(rows, columns), _FEWEST):
        return None
    return replace(form, batch=(*scatter.places, *form.batch), terms=TermChoice(scatter.places, scatter.guard))


def _is_less(size: Dim, number: int) -> bool:
    return isinstance(size, int) and size < number


def grouped_terms(nest: ProductNest) -> Stmt:
    """The loops of such a product: the order of the rows by what each counts for, and then the parts of each matrix."""
    p = nest.p
    assert p.form.terms is not None
    counting = Counting.of(nest.builder, size_of(p.reduced), size_of([*p.form.terms.places]))
    groups = list(p.space.groups)
    groups[3] = [Axis("term", counting.numbers)]
    tiled = replace(nest, p=replace(p, space=replace(p.space, groups=groups)), env={})
    tasks = _Tasks(nest, tiled, counting, _together(nest), _block(nest))
    return allocate(counting.buffers, seq([_ordered(nest, counting), tasks.loops()]))


def _ordered(nest: ProductNest, counting: Counting) -> Stmt:
    """The rows put in order by the matrix that each counts for."""
    p, builder, terms = nest.p, nest.builder, nest.p.form.terms
    assert terms is not None

    def of_key(number: Axis, body: Callable[[Scalar], Stmt]) -> Stmt:
        env = original(p, unflatten(p.reduced, number), builder.indices)
        guard, *places = builder.evaluate([terms.guard, *terms.places.values()], env)
        names = [Axis(axis.name, axis.extent) for axis in terms.places]
        key = Between("key", counting.keys, low=0, high=(binary("sub", extent_of(counting.keys), 1),))
        out = bound([between(key, flat_position(names, builder.indices))], body(key))
        for name, place in zip(names, places, strict=True):
            inside = binary("and", compare("ge", name, 0), compare("lt", name, extent_of(name.extent)))
            out = LetScalar(name, place, Branch(inside, out))
        return out if isinstance(guard, Const) and guard.value else Branch(guard, out)

    return counting.made(of_key)


def _panels(nest: ProductNest) -> Dim:
    last = nest.p.runs[-1]
    return dim_add(last.number, last.count)


def _together(nest: ProductNest) -> int:
    """How many panels a task has."""
    p, panels = nest.p, _panels(nest)
    bits = dtype_bits(p.form.accumulate)
    most = max(1, nest.builder.target.l2_bytes * 8 // (_PART_OF_PANELS * _LENGTH * p.pitch * bits))
    return -(-panels // -(-panels // most)) if isinstance(panels, int) else most


def _block(nest: ProductNest) -> int:
    """How many rows a task has at most: all have about as many."""
    rows, height = size_of(nest.p.rows), min(run.tile.rows for run in nest.p.runs)
    if not isinstance(rows, int):
        return _ROWS
    return min(rows, -(-rows // (-(-rows // _ROWS) * height)) * height)


@record(frozen=True, slots=True, eq=False)
class _Tasks:
    """``nest`` is the product, and ``tiled`` the same with its sums over places in the order of the rows. A task has ``block`` rows of a
    matrix (of the result) by ``together`` panels."""

    nest: ProductNest
    tiled: ProductNest
    counting: Counting
    together: int
    block: int

    def loops(self) -> Stmt:
        """All tasks."""
        p = self.nest.p
        rows, panels = size_of(p.rows), _panels(self.nest)
        part, group = Axis("part", ceil_div(rows, self.block)), Axis("group", ceil_div(panels, self.together))
        inside = original(p, {}, self.nest.builder.indices)
        assert p.form.terms is not None
        matrix = self.nest.flat(
            [inside.get(a, a) for a in p.form.terms.places], [a.extent for a in p.form.terms.places]
        )
        begin, count, names = self.counting.of_key(matrix)
        start, several, more = part_of(variable(part), rows, self.block, 1, None)
        first = Between("first", panels, low=0, high=(extent_of(panels),))
        names = [*names, *more, between(first, binary("mul", variable(group), self.together))]
        task = _Task(self, begin, count, start, several, first)
        each = dim_max(1, ceil_div(self.counting.numbers, self.counting.keys))
        work = dim_floordiv(dim_mul(self.block * self.together * p.pitch, each), FMA_DISCOUNT)
        return parallel_rows(self.nest.builder, [*p.batch, part, group], work, bound(names, task.loops()), LEAST_SHARE)


class _Task:
    """A task: the ``count`` rows from place ``begin`` of the order on are summed for ``several`` rows of the matrix, from ``start`` on, and
    the panels from ``first`` on."""

    def __init__(
        self, tasks: _Tasks, begin: Scalar, count: Scalar, start: Scalar, several: Scalar, first: Scalar
    ) -> None:
        self.tasks, self.begin, self.count, self.first = tasks, begin, count, first
        self.start, self.several, p = start, several, tasks.nest.p
        numbers, pitch, dtype = tasks.counting.numbers, p.pitch, p.form.accumulate

        def buffer(name: str, size: int) -> Buffer:
            return temporary(tasks.nest.builder.fresh(name), size, dtype)

        self.number = Axis("kb", dim_max(1, ceil_div(numbers, _LENGTH)))
        self.sums = buffer("sums", tasks.together * tasks.block * pitch)
        self.made = buffer("panels", tasks.together * _LENGTH * pitch)
        copy = buffer("left", _LENGTH * tasks.block)
        self.left = LeftBlock(tasks.tiled, copy, start, several, tasks.block, (self.number, _LENGTH))
        self.inner, self.panel = Axis("inner", tasks.together), Axis("panel", _panels(tasks.nest))

    def loops(self) -> Stmt:
        """One block of the rows after the other, and then what of the results waits in memory."""
        blocks = maximum(1, ceiling(self.count, Const(_LENGTH, "int64")))
        height = min(run.tile.rows for run in self.tasks.nest.p.runs)
        tiled = balanced(self.start, self.several, self.tasks.block, height, self._tile)
        body: Stmt = seq([For(self.number, blocks, seq([self._copied(), tiled])), self._through(self._finished)])
        body = allocate([self.sums, self.made, self.left.buffer], body)
        return Branch(compare("eq", self.count, 0), self._of_none(), body)

    def _of_none(self) -> Stmt:
        """The results that no row counts for, line by line."""
        i = Axis("i", self.tasks.block)

        def line(tiles: TaskTiles, task: Task) -> Stmt:
            lane, nothing = Axis("j", tiles.shared.p.tile.columns), initial("sum", self.sums.dtype)
            return tiles.shared.finish_row(
                binary("add", self.start, i),
                task.panel.first,
                lane,
                nothing,
                lambda body: For(lane, task.panel.across, body, "vectorized"),
            )

        return For(i, self.several, self._through(line))

    def _through(self, of: Callable[[TaskTiles, Task], Stmt]) -> Stmt:
        """What is done for each of the panels."""
        p, block = self.tasks.nest.p, self.tasks.block
        at, base = (binary("mul", self.inner, n * p.pitch) for n in (_LENGTH, block))

        def one(run: PanelRun) -> Stmt:
            tiled = replace(self.tasks.tiled, p=replace(self.tasks.tiled.p, tile=run.tile), env={})
            tiles = TaskTiles(tiled, run, None)
            first, across = tiles.columns(variable(self.panel))
            panel = Panel(tiled, variable(self.panel), first, across, None, self.made, at)
            outer = OuterBlock(self.number, _LENGTH, self.sums, base, depth=self.count)
            return of(tiles, Task(self.start, self.several, 1, block, panel, self.sums, self.left, outer))

        *others, last = p.runs
        body = one(last)
        for run in reversed(others):
            body = Branch(compare("lt", self.panel, dim_add(run.number, run.count)), one(run), body)
        left = binary("sub", extent_of(self.panel.extent), self.first)
        body = LetScalar(self.panel, binary("add", self.first, self.inner), body)
        return For(self.inner, minimum(self.tasks.together, left), body)

    def _copied(self) -> Stmt:
        """Copy the rows of a block: their part of the left operand, and of the panels. Columns past the last are zeros."""
        nest, indices = self.tasks.nest, self.tasks.nest.builder.indices
        line, before = Axis("line", _LENGTH), binary("mul", self.number, _LENGTH)
        number, value = self.tasks.counting.number(binary("add", self.begin, binary("add", before, line)))
        env = unflatten(nest.p.reduced, number)
        lane, block = Axis("i", self.tasks.block), self.tasks.block
        rows = unflatten(nest.p.rows, binary("add", self.start, lane))
        (element,) = nest.builder.evaluate([nest.p.form.left], original(nest.p, {**env, **rows}, indices))
        place = binary("add", binary("mul", line, block), lane)
        store = Store(self.left.buffer, (place,), cast(element, self.left.buffer.dtype))

        def panel(_: TaskTiles, task: Task) -> Stmt:
            own = replace(nest, env=env)
            width, across, at = task.panel.nest.p.tile.columns, task.panel.across, task.panel.at
            column = Axis("j", width)
            spot = binary("add", binary("add", at, binary("mul", line, nest.p.pitch)), column)
            copy = Store(self.made, (spot,), own.right_element(binary("add", task.panel.first, column)))
            filled = For(column, across, copy, "vectorized")
            if isinstance(across, Const) and across.value == width:
                return filled
            zero = Store(
                self.made, (substitute(spot, {column: binary("add", across, column)}),), initial("sum", self.made.dtype)
            )
            return seq([filled, For(column, binary("sub", width, across), zero, "vectorized")])

        left = For(lane, self.several, store, "vectorized")
        several = minimum(_LENGTH, binary("sub", self.count, before))
        return For(line, several, LetScalar(number, value, seq([left, self._through(panel)])))

    def _tile(self, row: Scalar, height: int, offset: Scalar) -> Stmt:
        """The tiles of so many rows of all panels: sums go through the epilogue after the last block, if that is cheap."""

        def one(tiles: TaskTiles, task: Task) -> Stmt:
            outer, shared = task.outer, tiles.shared
            assert outer is not None
            at = binary("add", outer.base, binary("mul", offset, shared.p.tile.columns))

            def finish(tile: Buffer) -> list[Stmt]:
                kept = seq(shared.hand_over(tile, self.sums, at))
                if not tiles.direct:
                    return [kept]
                done = seq(shared.finish_tile(tile, row, task.panel.first, task.panel.across))
                return [Branch(outer.is_last, done, kept)]

            return tiles.micro(task, row, height, offset, (*outer.along, at), finish)

        return self._through(one)

    def _finished(self, tiles: TaskTiles, task: Task) -> Stmt:
        """The epilogue of a panel's sums that wait in memory."""
        if tiles.direct or task.outer is None:
            return seq([])
        panel, width = task.panel, tiles.shared.p.tile.columns
        return tiles.shared.finish_rows(
            self.start, self.several, panel.first, panel.across, self.sums, task.outer.base, width
        )
