"""Products of rows of which each chooses its matrix: ``out[n, j] = sum over k of x[n, k] * w[choice[n], k, j]``.

As a batch of products of a row each, every row would read a matrix of its own, also where many rows choose the same one (experts, labels,
relations). Here the rows of each matrix follow each other: they are counted, and their numbers put in order by matrix, in a pass that is
nothing beside the products. Then each matrix that has rows is one product of these, by register tiles whose rows are read and written at
the numbers that the order has. An element is summed as any other, so how rows are distributed changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from relay.ir.dim import ceil_div, dim_add, dim_floordiv, dim_mul
from relay.ir.record import record
from relay.loop.ir import Between, Branch, Buffer, For, LetScalar, Stmt, Store, between
from relay.plan.build import allocate, bound, ceiling, seq
from relay.plan.counting import Counting
from relay.plan.graph import loads
from relay.plan.panel_tasks import PanelTasks
from relay.plan.parallel import LEAST_SHARE, parallel_tasks
from relay.plan.product import original, size_of, unflatten
from relay.plan.product_nest import FMA_DISCOUNT, ProductNest
from relay.plan.stages import Contraction
from relay.plan.task_rows import task_block
from relay.plan.tiles import PanelRun, wide_tile
from relay.te.scalar import Axis, Cast, Const, Load, Scalar, binary, compare, extent_of, maximum, mentioned, minimum

_NOTHING, _ONE = Const(0, "int64"), Const(1, "int64")
# Counting goes through all matrices, which so many of them for a row are not worth.
_MATRICES_OF_A_ROW = 8
# So few rows are a tile that is as wide as registers allow, of so many vectors at most (four rows, each another one of eight matrices of
# 256 x 256, one thread: 18 microseconds by 4 vectors, 17 by 8 and 14 by 16).
_WIDE_ROWS, _WIDEST = 2, 16


def by_groups(form: Contraction) -> Contraction | None:
    """A batch of products of one row each, of which each reads the matrix that an index says, as rows that choose among the products of
    a batch of matrices; None: it is no such batch."""
    load = form.right.a if isinstance(form.right, Cast) else form.right
    if (
        form.rows
        or len(form.batch) != 1
        or form.guard is not None
        or form.parts is not None
        or form.pairing is not None
    ):
        return None
    (row,) = form.batch
    if not isinstance(load, Load) or row not in mentioned(form.left):
        return None
    places = [n for n, index in enumerate(load.indices) if row in mentioned(index)]
    if len(places) != 1:
        return None
    (place,) = places
    choice = load.indices[place]
    if not loads(choice) or mentioned(choice) != {row} or any(n.source == load.source for n in loads(form.left)):
        return None
    matrix = Axis("matrix", load.source.shape[place])
    index = tuple(matrix if n == place else i for n, i in enumerate(load.indices))
    read: Scalar = Load(load.source, index, load.dtype)
    right = replace(form.right, a=read) if isinstance(form.right, Cast) else read
    return replace(form, batch=(matrix,), rows=(row,), right=right, choice=choice)


def grouped_rows(nest: ProductNest, packed: Buffer | None) -> Stmt:
    """The loops of such a product: the order of the rows, and then the panels of each matrix that has some."""
    p, builder = nest.p, nest.builder
    rows, matrices = size_of(p.rows), size_of(p.batch)
    more = dim_add(rows, 1)
    counting = Counting.of(builder, rows, matrices)
    which, begins = (Buffer(builder.fresh(name), (more,), "int64", "workspace") for name in ("which", "begins"))
    groups = _Groups(nest, counting, which, begins)
    tasks = PanelTasks(replace(nest, order=counting.order, env={}), p.runs, packed, 1, None, None, None)
    block = task_block(nest, p.tile.rows, packed, None)
    number, part = Axis("number", rows), Axis("part", ceil_div(rows, block))
    matrix = Between("matrix", matrices, low=0, high=(binary("sub", extent_of(matrices), 1),))
    many = Between("many", more, low=0, high=(extent_of(rows),))
    start = Between("start", more, low=0, high=(extent_of(rows),))
    count = Between("count", more, low=0, high=(binary("sub", extent_of(rows), start),))
    done = binary("mul", part, block)
    several = minimum(block, binary("sub", count, done))
    body = bound([
        between(matrix, _at(groups.which, number)),
        between(start, _at(groups.begins, number)),
        between(count, binary("sub", _at(groups.begins, binary("add", number, 1)), start)),
        *unflatten(p.batch, matrix).items(),
    ], _of_few(
        tasks, start, count,
        For(part, ceiling(count, Const(block, "int64")), tasks.of_rows(binary("add", start, done), several, block)),
    ))  # fmt: skip
    work = dim_floordiv(dim_mul(dim_mul(size_of(p.reduced), size_of(p.columns)), rows), FMA_DISCOUNT)
    counted: list[tuple[Axis, Scalar]] = [(number, many), (tasks.panel, extent_of(tasks.panels))]
    loop = parallel_tasks([], counted, work, body, LEAST_SHARE)
    loop = bound([between(many, _at(groups.which, extent_of(rows)))], loop)
    return allocate([*counting.buffers, which, begins], seq([groups.made(), loop]))


def _of_few(tasks: PanelTasks, start: Scalar, count: Scalar, more: Stmt) -> Stmt:
    """What a task does with its panel: ``more``, or of one row, which leaves nothing behind for others, less. One row and two take a matrix
    where it is, if it lies along the columns, in tiles as wide as there are registers: these are long runs in memory."""
    nest, columns = tasks.nest, size_of(tasks.nest.p.columns)
    along, down = nest.right_strides() if tasks.packed is None else (None, None)
    if along != 1 or down is None or not nest.masked or not isinstance(columns, int):
        return Branch(compare("eq", count, 1), tasks.of_rows(start, _ONE, 1), more)
    body = more
    for rows in range(_WIDE_ROWS, 0, -1):
        tile = wide_tile(nest.builder.target, nest.p.form.accumulate, rows, columns, _WIDEST)
        panels = -(-columns // tile.columns)
        wide = replace(tasks, runs=(PanelRun(0, panels, 0, tile, columns % tile.columns != 0),))
        # Every so many-th task has a wide panel: neighbours, which one thread has, do not have all of them.
        if not isinstance(tasks.panels, int) or panels > tasks.panels:
            continue  # a schedule that was measured may have tiles as wide
        apart = tasks.panels // panels
        number = binary("floordiv", tasks.panel, apart)
        first = compare("eq", binary("mod", tasks.panel, apart), 0)
        first = binary("and", first, compare("lt", number, wide.panels))
        own = LetScalar(wide.panel, number, wide.of_rows(start, Const(rows, "int64"), rows))
        body = Branch(compare("eq", count, rows), Branch(first, own), body)
    return body


@record(frozen=True, slots=True, eq=False)
class _Groups:
    """The rows in the order that ``counting`` has: those of matrix ``which[g]`` are from place ``begins[g]`` up to ``begins[g + 1]``.
    ``which`` has the number of groups at its end."""

    nest: ProductNest
    counting: Counting
    which: Buffer
    begins: Buffer

    def made(self) -> Stmt:
        """Put the rows in order: by matrix, or where there are many more of these than rows, as they are."""
        none = Store(self.which, (self._rows,), _NOTHING)
        few = compare("le", self._matrices, binary("mul", self._rows, _MATRICES_OF_A_ROW))
        end = self._named(lambda number: Store(self.begins, (number,), self._rows))
        return seq([none, Branch(few, self.counting.made(self._chosen, self._another), self._as_they_are()), end])

    @property
    def _rows(self) -> Scalar:
        return extent_of(size_of(self.nest.p.rows))

    @property
    def _matrices(self) -> Scalar:
        return extent_of(size_of(self.nest.p.batch))

    def _as_they_are(self) -> Stmt:
        """Rows stay where they are: a group are those of one matrix that follow each other."""
        row = Axis("row", size_of(self.nest.p.rows))

        def begun(matrix: Scalar) -> Stmt:
            def after(number: Scalar) -> Stmt:
                before = _at(self.which, maximum(binary("sub", number, 1), 0))
                goes_on = binary("and", compare("gt", number, 0), compare("eq", before, matrix))
                return Branch(goes_on, seq([]), self._another(matrix, row))

            return seq([Store(self.counting.order, (row,), row), self._named(after)])

        return For(row, self._rows, self._chosen(row, begun))

    def _another(self, matrix: Scalar, begin: Scalar) -> Stmt:
        """A group more, of a matrix, from a row of the order on."""

        def noted(number: Scalar) -> Stmt:
            return seq([
                Store(self.which, (number,), matrix),
                Store(self.begins, (number,), begin),
                Store(self.which, (self._rows,), binary("add", number, 1)),
            ])  # fmt: skip

        return self._named(noted)

    def _named(self, body: Callable[[Scalar], Stmt]) -> Stmt:
        """A statement that speaks of the number of groups."""
        rows = size_of(self.nest.p.rows)
        number = Between("groups", dim_add(rows, 1), low=0, high=(self._rows,))
        return bound([between(number, _at(self.which, self._rows))], body(number))

    def _chosen(self, row: Scalar, body: Callable[[Scalar], Stmt]) -> Stmt:
        """A statement that speaks of the matrix that a row chooses."""
        p, builder = self.nest.p, self.nest.builder
        assert p.form.choice is not None
        (choice,) = builder.evaluate([p.form.choice], original(p, unflatten(p.rows, row), builder.indices))
        matrix = Between("chosen", size_of(p.batch), low=0, high=(binary("sub", self._matrices, 1),))
        return bound([between(matrix, choice)], body(matrix))


def _at(buffer: Buffer, place: Scalar) -> Scalar:
    return Load(buffer, (place,), "int64")
