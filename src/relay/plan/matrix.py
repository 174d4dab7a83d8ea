"""Matrix products: register tiles of an outer product over packed panels, the epilogue on each tile.

A tile of ``MR`` rows and ``NR`` columns is held in registers over all of ``k`` (or a block of it, if a panel would
overflow the second-level cache). With ``V = NR / lanes`` vectors to a row, ``MR * V + V + 1`` registers are in use. A
cheap epilogue takes the tile from the registers, a dear one reads it back from a few lines of the first-level cache,
where its code is needed once. The rows of a task are shared out over as few tiles as hold them, in heights that differ
by one at most and are chosen by a switch: no bounds test is in an inner loop, and the result of an element does not
depend on where it lies or on the number of threads, because every sum runs over k in order
(where a row is one vector, over every fourth k in order, and four sums are added up: see `product`).

A constant right operand is packed at compile time; any other is packed, panel by panel, into the thread's slice of the
workspace by the task that uses the panel (where its rows are along the columns, by the panel's first tile as it goes), or,
for the few rows that would not repay that, read where it is (see `few_rows`). Tasks are panels by blocks of rows, so that a
few rows still keep all threads busy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from relay.ir.dim import dim_add
from relay.loop.ir import Branch, Buffer, Stmt
from relay.plan.build import Builder
from relay.plan.depth_blocks import few_row_limits, outer_cut
from relay.plan.few_rows import few_rows
from relay.plan.left_block import FEWEST_COPIED, cut, cut_if_large
from relay.plan.nests import Member
from relay.plan.panel_tasks import PanelTasks
from relay.plan.panels import is_in_place
from relay.plan.product import Product, size_of
from relay.plan.product_nest import ProductNest
from relay.plan.register_tiles import is_direct
from relay.plan.row_groups import grouped_rows
from relay.plan.schedule import MODEL, Case, Schedule
from relay.plan.side_by_side import MOST_ROWS, panels_at_once, side_by_side
from relay.plan.term_groups import grouped_terms
from relay.plan.tiles import PanelRun
from relay.plan.unpacked import FEWEST
from relay.plan.whole_rows import DEEPEST, row_by_row, row_cut
from relay.te.scalar import compare, extent_of


def matrix_nest(
    builder: Builder, p: Product, members: Sequence[Member], packed: Buffer | None, schedule: Schedule = MODEL
) -> Stmt:
    """The loops of a product (``members[0]``) and its epilogue (the other members, whose rows are the product's axes
    in order).

    ``packed`` is the operand that holds the panels of a constant right operand.
    """
    nest = ProductNest(builder, p, members)
    nest.normalise()
    if p.form.choice is not None:
        return grouped_rows(nest, packed)
    if p.form.terms is not None:
        return grouped_terms(nest)
    few = None if packed is not None or p.form.turned else few_rows(nest)
    rows = size_of(p.rows)
    if few is None:
        return _tiles(nest, packed, schedule)
    if isinstance(rows, int):
        return few.nest() if rows <= few.most else _tiles(nest, None, schedule)
    if builder.least(rows) >= FEWEST and is_in_place(nest):
        return _tiles(nest, None, schedule, FEWEST)  # panels lie as they are packed
    more = _tiles(nest, None, schedule, few.most + 1)
    return Branch(compare("le", extent_of(rows), few.most), few.nest(), more)


def _tiles(nest: ProductNest, packed: Buffer | None, schedule: Schedule, fewest: int = 1) -> Stmt:
    """The product of ``fewest`` rows and more by tiles, as the schedule says for its number of rows."""
    rows = size_of(nest.p.rows)

    def by(case: Case) -> Stmt:
        runs = nest.p.runs
        if case.rows is not None:
            runs = tuple(replace(run, tile=replace(run.tile, rows=case.rows)) for run in runs)
        return _tasks(nest, runs, packed, case.block, fewest, rows if isinstance(rows, int) else None)

    if isinstance(rows, int):
        return by(schedule.case(rows))
    if packed is not None and fewest == 1 and nest.p.form.guard is None:
        # Of a single row nothing is to be shared out or switched on, which takes as long as a small product itself.
        exact = [_tiles(nest.of_one_row(), packed, schedule), *(_a_few(nest, packed) if schedule.says_no_rows else ())]
        more = _tiles(nest, packed, schedule, len(exact) + 1)
        for count in range(len(exact), 0, -1):
            more = Branch(compare("eq", extent_of(rows), count), exact[count - 1], more)
        return more
    limits = few_row_limits(nest, packed) if fewest > 1 and schedule.says_no_rows else ()
    bodies = []
    for most in limits:
        bodies.append((most, _tasks(nest, nest.p.runs, packed, None, fewest, most)))
        fewest = most + 1
    *others, last = schedule.cases
    for case in others:
        assert case.most is not None
        bodies.append((case.most, by(case)))
    body = by(last)
    for most, few in reversed(bodies):
        body = Branch(compare("le", extent_of(rows), most), few, body)
    return body


def _a_few(nest: ProductNest, packed: Buffer) -> Iterator[Stmt]:
    """The loops of two rows, and of more, as far as these have panels side by side."""
    for rows in range(2, MOST_ROWS + 1):
        tasks = PanelTasks(nest, nest.p.runs, packed, rows, rows, None, None)
        tasks.divide(None)
        at_once = panels_at_once(tasks)
        if at_once == 1:
            return
        yield side_by_side(tasks, at_once)


def _tasks(
    nest: ProductNest,
    runs: Sequence[PanelRun],
    packed: Buffer | None,
    task_rows: int | None,
    fewest: int,
    most: int | None,
    shallow: bool = True,
) -> Stmt:
    """The panels of all runs by blocks of rows: about ``task_rows``, where that is not for the model to say. Of ``fewest`` rows, and
    ``most`` if that is known; ``shallow``: the depth may be little."""
    p, rows, panels = nest.p, size_of(nest.p.rows), dim_add(runs[-1].number, runs[-1].count)
    copied = None
    if task_rows is None and packed is None:
        by_rows = row_cut(nest, panels) if shallow and all(is_direct(nest, run) for run in runs) else None
        depth = size_of(p.reduced)
        if by_rows is not None and isinstance(depth, int):
            return row_by_row(nest, runs, by_rows)
        if by_rows is not None:
            deeper = _tasks(nest, runs, packed, task_rows, fewest, most, shallow=False)
            return Branch(compare("le", extent_of(depth), DEEPEST), row_by_row(nest, runs, by_rows), deeper)
        whole = p.form.guard is None and all(is_direct(nest, run) for run in runs)
        copied, heights = cut(nest, panels, blocks=whole), {run.tile.rows for run in runs}
        if copied is None and whole and (found := cut_if_large(nest, panels, heights)) is not None:
            large, by = found
            small = PanelTasks(nest, runs, packed, fewest, most, None, None)
            tasks = PanelTasks(nest, runs, packed, max(fewest, FEWEST_COPIED), most, by, None)
            small.divide(task_rows)
            tasks.divide(task_rows)
            return Branch(large, tasks.loops(), small.loops())
    deep = None
    if (
        task_rows is None
        and packed is not None
        and isinstance(panels, int)
        and all(is_direct(nest, run) for run in runs)
    ):
        deep = outer_cut(nest, packed, panels, rows if isinstance(rows, int) else fewest)
    tasks = PanelTasks(nest, runs, packed, fewest, most, copied, deep)
    tasks.divide(task_rows)
    at_once = panels_at_once(tasks)
    return tasks.loops() if at_once == 1 else side_by_side(tasks, at_once)
