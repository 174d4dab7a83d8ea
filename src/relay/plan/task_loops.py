"""Loops over the tasks of a product with constant panels, of which each has several: by one block of k after the other, or with results
that are written together.
"""

from __future__ import annotations

from collections.abc import Callable

from relay.ir.dim import Dim, dim_mul
from relay.loop.ir import WORKERS, For, LetScalar, Stmt
from relay.plan.build import allocate, bound, ceiling, seq, temporary
from relay.plan.depth_blocks import OuterBlock
from relay.plan.panel_groups import GROUPS_OF_THREAD, PanelGroup, panels_together
from relay.plan.parallel import LEAST_SHARE
from relay.plan.product import size_of
from relay.plan.product_nest import ProductNest
from relay.plan.row_shares import RowShares
from relay.te.scalar import Axis, Const, binary, compare, extent_of, maximum, minimum, select


def k_outermost(
    nest: ProductNest,
    tasks: tuple[Axis, Axis, int],
    length: int,
    work: Dim,
    multiplied: Callable[[OuterBlock], Stmt],
    shares: RowShares | None,
) -> Stmt:
    """A product by blocks of k of this ``length``, by each of which a task multiplies all its panels before the next one. ``tasks``: the
    number of a panel, the number of a part of the rows, and how many these are at most; ``shares``: how the rows are shared out, where
    that depends on the number of threads. There are as many tasks as threads: the more panels one has, the fewer read the left operand."""
    p, (panel, part, block) = nest.p, tasks
    panels, depth = panel.extent, size_of(p.reduced)
    assert isinstance(panels, int) and isinstance(depth, int)
    parts = extent_of(part.extent) if shares is None else shares.number
    each, threads, task, group = (
        Axis("each", panels + 1),
        Axis("threads", 1 << 16),
        Axis("task", 1 << 16),
        Axis("group", panels),
    )
    inner, number = Axis("inner", panels), Axis("kb", -(-depth // length))
    sums = temporary(nest.builder.fresh("sums"), panels * block * p.pitch, p.form.accumulate)
    first = binary("mul", group, each)
    count = minimum(each, binary("sub", panels, first))
    whole = depth * p.pitch
    back = binary("sub", length * p.pitch, binary("mul", inner, whole))  # to the first panel, in the next block
    behind = select(compare("eq", inner, binary("sub", count, 1)), back, whole)
    outer = OuterBlock(number, length, sums, binary("mul", inner, block * p.pitch), behind)
    through = For(inner, count, LetScalar(panel, binary("add", first, inner), multiplied(outer)))
    body = allocate([sums], For(number, extent_of(number.extent), through))
    groups = ceiling(Const(panels, "int64"), each)
    places = [(group, binary("floordiv", task, parts)), (part, binary("sub", task, binary("mul", group, parts)))]
    places = places if part.extent != 1 else [(group, binary("add", task, 0))]
    if shares is None:
        worth = binary("floordiv", extent_of(dim_mul(dim_mul(work, panels), part.extent)), LEAST_SHARE)
        counts = [(threads, maximum(minimum(WORKERS, worth), 1))]
    else:
        counts = [(threads, shares.threads), shares.wanted(), shares.counted(Const(panels, "int64"))]
    return bound([
        *counts,
        (each, ceiling(Const(panels, "int64"), minimum(ceiling(threads, parts), panels))),
    ], For(task, binary("mul", groups, parts), bound(places, body), "parallel", 1))  # fmt: skip


def in_groups(
    nest: ProductNest, position: Axis, block: int, work: Dim, multiplied: Callable[[PanelGroup], Stmt]
) -> Stmt:
    """A product by groups of panels: the sums of all of a group first, and then their epilogues. ``position``: of a panel; ``block``: how
    many rows there are at most."""
    panels, size = position.extent, block * nest.p.pitch
    assert isinstance(panels, int)
    most = min(panels, panels_together(nest, size))
    sums = temporary(nest.builder.fresh("waiting"), most * size, nest.p.form.accumulate)
    threads, each, group = Axis("threads", 1 << 16), Axis("each", most + 1), Axis("group", panels)
    first = binary("mul", group, each)
    count = minimum(each, binary("sub", panels, first))

    def through(finishes: bool) -> Stmt:
        inner = Axis("inner", most)
        one = multiplied(PanelGroup(sums, binary("mul", inner, size), finishes))
        return For(inner, count, LetScalar(position, binary("add", first, inner), one))

    worth = binary("floordiv", extent_of(dim_mul(work, panels)), LEAST_SHARE)
    shares = select(compare("eq", threads, 1), Const(1, "int64"), binary("mul", threads, GROUPS_OF_THREAD))
    body = allocate([sums], seq([through(False), through(True)]))
    return bound([
        (threads, maximum(minimum(WORKERS, worth), 1)),
        (each, minimum(ceiling(Const(panels, "int64"), shares), most)),
    ], For(group, ceiling(Const(panels, "int64"), each), body, "parallel", 1))  # fmt: skip
