"""Several packed panels at once under a few rows.

A row is as many sums as a panel has vectors, and each waits for its own multiply-add of the step before: of two vectors of eight lanes
64 bytes are read in four cycles, half of what the second-level cache delivers. So many panels are multiplied side by side that what is read
meanwhile is no less than that. More rows take as long to multiply as a panel to be read. Which panels these are changes no sum.
"""

from __future__ import annotations

from relay.ir.dim import dim_mul
from relay.ir.types import dtype_bits
from relay.loop.ir import TURN, Alloc, Branch, Buffer, For, LetScalar, Stmt, Store
from relay.plan.build import allocate, bound, seq, temporary
from relay.plan.panel_tasks import PanelTasks
from relay.plan.panels import Panel, loops
from relay.plan.parallel import LEAST_SHARE, parallel_rows
from relay.plan.product import size_of
from relay.plan.reading import Reading
from relay.plan.reduction import initial
from relay.plan.register_tiles import variable
from relay.plan.task_tiles import TaskTiles
from relay.plan.there_and_back import turned_round
from relay.plan.tiles import PanelRun
from relay.te.scalar import Axis, Const, Load, Scalar, binary, compare

# What the second-level cache delivers while a multiply-add waits for the one before it: 32 bytes a cycle, four cycles.
_BYTES_READ = 128
# Up to so many rows panels are multiplied so.
MOST_ROWS = 3
# Steps along k in one iteration.
_STEPS = 2
_NOTHING = Const(0, "int64")


def panels_at_once(tasks: PanelTasks) -> int:
    """How many panels are multiplied at once; 1: one after the other, as those of more rows."""
    nest, rows = tasks.nest, tasks.exactly
    p, target = nest.p, nest.builder.target
    plain = p.form.guard is None and not p.form.turned and tasks.copied is None and tasks.deep is None
    if tasks.packed is None or rows is None or not 1 <= rows <= MOST_ROWS or not plain or target.outruns_caches:
        return 1
    if not isinstance(tasks.panels, int) or not all(tasks.tiles(run).plain for run in tasks.runs):
        return 1
    columns = max(run.tile.columns for run in tasks.runs)
    vectors = -(-columns // nest.builder.lanes([p.form.accumulate]))
    # Sums, a row of each panel and an element of the left operand.
    fitting = (target.vector_registers - 1) // ((rows + 1) * vectors)
    wanted = -(-_BYTES_READ * 8 // (columns * dtype_bits(p.form.accumulate)))
    return max(1, min(wanted, fitting, tasks.panels))


def side_by_side(tasks: PanelTasks, at_once: int) -> Stmt:
    """All panels of a few rows, ``at_once`` of each run together."""
    p, number, rows = tasks.nest.p, 0, tasks.exactly
    assert rows is not None
    parts: list[tuple[int, Stmt]] = []
    at = Axis("at", 1 << 30)
    for run in tasks.runs:
        assert isinstance(run.count, int)
        groups = -(-run.count // at_once)
        parts.append((number + groups, _group(tasks.tiles(run), run, binary("sub", at, number), at_once, rows)))
        number += groups
    position = Axis("at", number)
    body = parts[-1][1]
    for end, part in reversed(parts[:-1]):
        body = Branch(compare("lt", at, end), part, body)
    place = turned_round(position, number) if tasks.there_and_back else binary("add", variable(position), 0)
    axes = [*p.outer, *p.batch, position]
    work = dim_mul(tasks.work, at_once)
    return parallel_rows(tasks.nest.builder, axes, work, LetScalar(at, place, body), LEAST_SHARE)


def _group(tiles: TaskTiles, run: PanelRun, group: Scalar, at_once: int, rows: int) -> Stmt:
    """One group of panels of a run: ``at_once`` of them, and in the last one what is left."""
    assert isinstance(run.count, int)
    first, whole = Axis("panel", run.number + run.count), run.count // at_once
    body = _tile(tiles, first, at_once, rows)
    left = run.count - whole * at_once
    if left:
        rest = _tile(tiles, first, left, rows)
        body = Branch(compare("lt", first, run.number + whole * at_once), body, rest) if whole else rest
    return bound([(first, binary("add", binary("mul", group, at_once), run.number))], body)


def _tile(tiles: TaskTiles, first: Scalar, at_once: int, rows: int) -> Stmt:
    """The rows of so many panels from the first one on, over all of k, in registers, and their epilogue."""
    shared, width = tiles.shared, tiles.shared.p.tile.columns
    p, dtype = shared.p, shared.p.form.accumulate
    shared.env = {}
    numbers = [binary("add", first, n) for n in range(at_once)]
    panels = [Panel(shared, number, *tiles.columns(number), tiles.packed, None) for number in numbers]
    registers = [Buffer(shared.builder.fresh("registers"), (rows, width), dtype, "register") for _ in panels]
    lane, lanes, axes = Axis("j", width), Const(width, "int64"), list(p.depth)
    left = shared.left_rows(_NOTHING, rows, axes)
    clear: list[Stmt] = []
    adds: list[Stmt] = []
    here = variable(axes[0]) if len(axes) == 1 else shared.position_in_depth()
    # With more rows no register is left for the next step's vectors.
    steps = _STEPS if rows == 1 else 1
    for panel in panels:
        reading = _reading(tiles, panel, at_once, rows)
        asked = reading.ask_behind(here, rows)
        adds += asked
        steps = max(steps, reading.steps_of_line) if asked else steps
    for panel, tile in zip(panels, registers, strict=True):
        right = panel.element(lane, _NOTHING)
        for i, a in enumerate(left.elements):
            place = (Const(i, "int64"), lane)
            total = binary("add", Load(tile, place, dtype), p.form.product(a, right))
            clear.append(For(lane, lanes, Store(tile, place, initial("sum", dtype)), "vectorized"))
            adds.append(For(lane, lanes, Store(tile, place, total), "vectorized"))
    shared.env = {}
    held = temporary(shared.builder.fresh("tile"), at_once * rows * width, dtype)
    count = Const(rows, "int64")
    ends: list[Stmt] = []
    finished: list[Stmt] = []
    for n, (panel, tile) in enumerate(zip(panels, registers, strict=True)):
        if tiles.direct:
            ends += shared.finish_tile(tile, _NOTHING, panel.first, panel.across)
        else:
            base = Const(n * rows * width, "int64")
            ends += shared.hand_over(tile, held, base)
            finished.append(shared.finish_rows(_NOTHING, count, panel.first, panel.across, held, base, width))
    body = seq([*clear, loops(axes, None, seq(adds), steps), *ends])
    for tile in registers:
        body = Alloc(tile, body)
    return allocate([] if tiles.direct else [held], seq([left.bind(body), *finished]))


def _reading(tiles: TaskTiles, panel: Panel, at_once: int, rows: int) -> Reading:
    """How one of ``at_once`` panels is read: the one that many places on, or back, is read next."""
    packed, depth = tiles.packed, size_of(tiles.shared.p.reduced)
    assert packed is not None and isinstance(depth, int)
    behind: Scalar = Const(at_once * tiles.shared.p.pitch * depth, "int64")
    if tiles.there_and_back:
        behind = binary("mul", behind, binary("sub", 1, binary("mul", TURN, 2)))
    return Reading(tiles.shared, packed, panel.number, False, None, rows, behind=behind)
