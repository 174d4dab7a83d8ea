"""The rows of a product, shared out where its panels alone do not keep all threads busy.

A task is a panel (or some of them) and a part of the rows. How many parts there are at least is said by the caches (`task_rows`,
`left_block`); how many threads there are is known when the kernel runs. Each part reads, or packs, its panels for itself, so that parts
have a few tiles of rows at least. No sum depends on how rows are shared out.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.dim import Dim, ceil_div, dim_add, dim_floordiv, dim_mul
from relay.ir.record import record
from relay.loop.ir import WORKERS, Between, Stmt, between
from relay.plan.build import bound, ceiling
from relay.plan.parallel import LEAST_SHARE, PARALLEL_COST, parallel_tasks
from relay.te.scalar import Axis, Const, Scalar, binary, compare, extent_of, maximum, minimum, select

# Rows of a part, and tiles of it, at least.
_FEWEST_ROWS, _FEWEST_TILES = 24, 2
# Tasks of a thread that are shared out evenly enough, and at most where there are less.
_ENOUGH_TASKS, _TASKS_OF_THREAD = 2, 3
# So many tasks are enough for any number of threads, and where there is work for no more than so many, the parts that caches ask for are.
_MANY_TASKS, _LITTLE_WORK = 64, 4
_ANY = 1 << 16


@record(frozen=True, slots=True, eq=False)
class RowShares:
    """``rows`` in ``number`` parts of nearly one size: ``parts`` of them or more, of ``fewest`` rows at least where there are so many.
    ``tasks``: how many there are to be. Both numbers are found before the tasks begin."""

    rows: Dim
    parts: Dim
    fewest: int
    tasks: Axis
    number: Axis
    threads: Scalar

    @staticmethod
    def of(rows: Dim, most: int | None, block: int, height: int, others: Dim, work: Dim) -> RowShares | None:
        """Of a product of so many rows (``most``, if that is known) with tiles of this height, whose parts have ``block`` rows at most, in
        ``others`` tasks for each of them and with so much work in all. None: there are tasks enough, or it is not known how many, or too
        little work or too few rows to be shared out."""
        fewest = max(_FEWEST_ROWS, _FEWEST_TILES * height)
        parts = ceil_div(rows, block)
        if most is not None and most < 2 * fewest:
            return None
        if isinstance(rows, int) and isinstance(parts, int):
            fewest = rows // max(parts, rows // fewest)
        if isinstance(work, int) and work < _LITTLE_WORK * PARALLEL_COST:
            return None
        tasks = dim_mul(others, parts)
        if not isinstance(others, int) or (isinstance(tasks, int) and tasks >= _MANY_TASKS):
            return None
        worth = binary("floordiv", extent_of(work), LEAST_SHARE)
        threads = maximum(minimum(WORKERS, worth), 1)
        return RowShares(rows, parts, fewest, Axis("tasks", _ANY), Axis("parts", _ANY), threads)

    def least(self, fewest: int) -> int:
        """How many rows a part has at least, where the product has ``fewest`` or more."""
        return self.fewest if isinstance(self.rows, int) else min(fewest, self.fewest)

    def wanted(self, of_thread: int = _TASKS_OF_THREAD) -> tuple[Axis, Scalar]:
        """How many tasks there are to be, for each thread so many; one thread needs no more than there are."""
        several = binary("mul", self.threads, of_thread)
        return self.tasks, select(compare("eq", WORKERS, 1), Const(0, "int64"), several)

    def counted(self, others: Scalar) -> tuple[Axis, Scalar]:
        """The number of parts, of so many tasks for each."""
        parts, most = extent_of(self.parts), extent_of(dim_floordiv(self.rows, self.fewest))
        some = minimum(binary("floordiv", self.tasks, maximum(others, 1)), most)
        enough = compare("ge", binary("mul", parts, others), binary("mul", self.threads, _ENOUGH_TASKS))
        return self.number, select(enough, parts, maximum(parts, some))

    def groups(self, panels: Dim, most: int, others: Scalar) -> list[tuple[Axis, Scalar]]:
        """How many of the panels, ``most`` of them, are one task, and how many such groups there are; of so many tasks for each."""
        each, groups = (
            Between("each", most + 1, low=1, high=(Const(most, "int64"),)),
            Axis("groups", dim_add(panels, 1)),
        )
        all_panels = extent_of(panels)
        enough = minimum(maximum(binary("floordiv", self.tasks, maximum(others, 1)), 1), all_panels)
        return [between(each, ceiling(all_panels, enough)), (groups, ceiling(all_panels, each))]

    def loop(
        self, axes: Sequence[Axis], tasks_of_each: tuple[Axis, Scalar], others: Dim, work: Dim, body: Stmt
    ) -> Stmt:
        """A parallel loop over axes and, for each, over tasks (their number, and how many there are): the parts, or more of
        them. Of each part there are ``others`` tasks; with so much work in all."""
        tasks = parallel_tasks(axes, [tasks_of_each], work, body, LEAST_SHARE)
        return bound([self.wanted(), self.counted(extent_of(others))], tasks)


def part_of(
    part: Scalar, rows: Dim, block: int, fewest: int, shares: RowShares | None
) -> tuple[Scalar, Scalar, list[tuple[Axis, Scalar]]]:
    """The first of a part's rows and how many they are (at most ``block``), and what they are named for. Where few rows (less than
    ``fewest``) never come, parts are of nearly one size, more than half a block: no code is needed for the rest of one."""
    if shares is not None:
        return _evenly(part, rows, shares.number, block)
    if isinstance(rows, int) or fewest == 1:
        start = binary("mul", part, block)
        whole = isinstance(rows, int) and rows % block == 0
        count = Const(block, "int64") if whole else minimum(block, binary("sub", extent_of(rows), start))
        return start, count, []
    return _evenly(part, rows, extent_of(ceil_div(rows, block)), block)


def _evenly(part: Scalar, rows: Dim, parts: Scalar, most: int) -> tuple[Scalar, Scalar, list[tuple[Axis, Scalar]]]:
    def first(number: Scalar) -> Scalar:
        return binary("floordiv", binary("mul", number, extent_of(rows)), parts)

    whole = extent_of(rows)
    start = Between("start", rows, low=0, high=(whole,))
    count = Between("count", most + 1, low=0, high=(Const(most, "int64"), binary("sub", whole, start)))
    size = binary("sub", first(binary("add", part, 1)), start)
    return start, count, [between(start, first(part)), between(count, size)]
