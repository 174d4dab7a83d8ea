"""Products that read beyond an image of unknown size, as products of an image with a border.

    y[o, i, j] = sum(select(inside(i + r - 1, j + s - 1), x[c, i + r - 1, j + s - 1], 0) * w[o, c, r, s], (c, r, s))

Panels of such a product are filled with what a condition chooses, element by element, for places that lines of unknown length divide. Of a
copy with zeros around it they are read along its lines, and the copy is made once where each tap would ask again.
"""

from __future__ import annotations

from dataclasses import replace

from relay.ir.dim import Dim
from relay.plan.graph import TeGraph, loads
from relay.plan.grouped import is_grouped
from relay.plan.stages import contraction
from relay.te.autodiff.arithmetic import is_const
from relay.te.autodiff.borders import with_borders
from relay.te.index import Indices
from relay.te.rewrite import rewritten
from relay.te.scalar import TRUE, Reduce, Scalar, Select, mentioned, walk
from relay.te.tensor import Compute, Stage, Tensor


def bordered(graph: TeGraph, constants: frozenset[int]) -> TeGraph:
    """The graph with borders around what products read beyond its ends. ``constants``: numbers of constant inputs, which are packed
    beforehand as they are."""
    ids = graph.stages_of(constants)
    return replace(graph, outputs=rewritten(graph.outputs, lambda stage: _bordered(stage, ids)))


def _bordered(stage: Stage, constants: frozenset[int]) -> Stage:
    if not isinstance(stage, Compute) or len(stage.bodies) != 1:
        return stage
    (body,) = stage.bodies
    if not isinstance(body, Reduce) or body.kind != "sum" or not _asks_of_unknown(body.body, stage, constants):
        return stage
    form = contraction(stage, constants)
    if form is not None and (not form.rows or form.guard is not None):
        return stage
    covered: set[tuple[Dim, Dim]] = set()
    value: Scalar = body.body
    guard: Scalar = TRUE
    if form is None and isinstance(value, Select) and is_const(value.b, 0):
        guard, value = value.cond, value.a
    product = with_borders(value, Indices(), covered, guard)
    if product is None:
        return stage
    made = Compute(stage.name, stage.axes, (replace(body, body=product),))
    return made if form is not None or is_grouped(made, constants) else stage


def _asks_of_unknown(root: Scalar, stage: Compute, constants: frozenset[int]) -> bool:
    """Whether what is read is chosen by conditions on axes of the result whose sizes are not known."""
    unknown = {a for a in stage.axes if not isinstance(a.extent, int)}
    asked = [n for n in walk(root) if isinstance(n, Select) and not mentioned(n.cond).isdisjoint(unknown)]
    return bool(asked) and not any(
        isinstance(load.source, Tensor) and id(load.source.stage) in constants for n in asked for load in loads(n)
    )
