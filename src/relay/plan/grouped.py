"""Grouped contractions: the axis that an index divides into groups, split where the sum becomes a matrix product by that.

A grouped convolution reads channels ``(o // per_group) * inputs + i`` of its data and ``o`` of its weights: both operands move with
``o``. Of ``o`` split into its group and its place therein, only the weights have the second, so every group is a product of a batch.
The same goes for both of its gradients, and for whatever else is read so: a convolution whose result is read by blocks of pixels
(``y // 2`` of the image, ``y % 2`` of the weights) is one product of both axes' quotients and their remainders. In memory nothing moves:
the axes are those of a view of the result (`relay.te.layout`), which what follows element by element is given too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from relay import te
from relay.plan.factored import is_cheaper_in_steps
from relay.plan.graph import TeGraph
from relay.plan.guarded import is_apart
from relay.plan.stages import Contraction, contraction
from relay.te.index import Indices
from relay.te.layout import Layout, division, index_polynomials, laid_out, plain, split_at
from relay.te.rewrite import result_of
from relay.te.scalar import Load, Reduce, Scalar, Select, chain, walk
from relay.te.tensor import Compute, Stage, Tensor, stage_bodies


def grouped(graph: TeGraph, constants: frozenset[int]) -> TeGraph:
    """The graph with such axes split; the outputs have other axes, and the elements in the same order."""
    ids = graph.stages_of(constants)
    return _split(graph, lambda stage: _of_groups(stage, ids))


def is_grouped(stage: Compute, constants: frozenset[int]) -> bool:
    """Whether a sum is a product, or one of fewer batches, of such axes split. ``constants``: the ids of stages that are."""
    return _of_groups(stage, constants) is not None


def split_for_steps(graph: TeGraph) -> TeGraph:
    """The graph with those axes split that make steps of a sum of several factors (`relay.plan.factored`), or cheaper ones."""
    return _split(graph, _of_steps)


def split_for_rows(graph: TeGraph) -> TeGraph:
    """The graph with those axes split whose quotients say which group of elements a stage reads the sum of, beside these elements:
    the groups are rows then, each of which goes through all of its steps while it is in a cache (a group norm)."""
    return _split(graph, _of_rows)


def _split(graph: TeGraph, layout_of: Callable[[Compute], Layout | None]) -> TeGraph:
    """The graph with the layouts that a function says, until it says none."""
    while True:
        layouts: dict[Stage, Layout] = {}
        for stage in te.stages(graph.outputs):
            if not isinstance(stage, Compute):
                continue
            layout = layout_of(stage) or _of_operand(stage, layouts)
            if layout is not None:
                layouts[stage] = layout
        if not layouts:
            return graph
        new = laid_out(graph.outputs, layouts)
        outputs = tuple(result_of(new.get(t.stage, t.stage), t.index) for t in graph.outputs)
        graph = replace(graph, outputs=outputs)


def _of_groups(stage: Compute, constants: frozenset[int]) -> Layout | None:
    """The split that makes a product of a sum that is none, or fewer and larger ones: alone, or with those of other axes after it."""
    body = stage.bodies[0]
    if len(stage.bodies) != 1 or not isinstance(body, Reduce):
        return None
    before = contraction(stage, constants)
    forms = islice(_forms(stage), 1, None)
    return next((layout for layout, split in forms if _is_better(contraction(split, constants), before)), None)


def _of_steps(stage: Compute) -> Layout | None:
    """The split of all axes that an index divides, where the sum is made in cheaper steps then."""
    body = stage.bodies[0]
    if len(stage.bodies) != 1 or not isinstance(body, Reduce):
        return None
    if not isinstance(body.body, Select) and len(chain(body.body, "mul")) < 3:
        return None
    forms = list(_forms(stage))
    if not forms:
        return None
    layout, split = forms[-1]
    if isinstance(split.bodies[0], Reduce) and isinstance(split.bodies[0].body, Select):
        return layout if is_apart(split) and not is_apart(stage) else None
    return layout if is_cheaper_in_steps(split, stage) else None


def _of_rows(stage: Compute) -> Layout | None:
    """The split of the first axis that an index of what was reduced divides, if the reduction went over what the stage reads itself."""
    if any(isinstance(b, Reduce) for b in stage.bodies):
        return None
    read: dict[Stage, list[Scalar]] = {}
    for node in (n for body in stage.bodies for n in walk(body)):
        if isinstance(node, Load) and isinstance(node.source, Tensor):
            read.setdefault(node.source.stage, []).extend(node.indices)
    indices = Indices()
    for source, places in read.items():
        found = division(indices, map(indices.poly, places), stage.axes)
        if found is None:
            continue
        behind = te.stages([result_of(source, 0)])
        reduces = any(isinstance(b, Reduce) for s in behind for b in stage_bodies(s))
        if reduces and any(s in read for s in behind if s is not source):
            axis, size = found
            return split_at(plain(len(stage.axes)), stage.axes.index(axis), size)
    return None


def _forms(stage: Compute) -> Iterator[tuple[Layout, Compute]]:
    """The forms of a stage: one with axes of its own, those that it reduces over split where an index divides them, and then one more of
    its own axes split in each. None where no index divides."""
    indices = Indices()
    if not any(map(indices.divisions, index_polynomials(indices, stage.bodies))):
        return
    layout = plain(len(stage.axes))
    while True:
        split = laid_out([result_of(stage, 0)], {stage: layout})[stage]
        assert isinstance(split, Compute)
        yield layout, split
        indices = Indices()
        found = division(indices, index_polynomials(indices, split.bodies), split.axes)
        if found is None:
            return
        axis, size = found
        layout = split_at(layout, split.axes.index(axis), size)


def _is_better(form: Contraction | None, before: Contraction | None) -> bool:
    """Whether there is a product where there was none, or one to which an axis of a batch belongs whose quotients one operand has
    and its remainders the other. (A batch of which only the groups share an operand stays one.)"""
    if form is None or not form.rows:
        return False
    return before is None or not before.rows or len(form.batch) < len(before.batch)


def _of_operand(stage: Compute, layouts: dict[Stage, Layout]) -> Layout | None:
    """The split of what a stage reads element by element."""
    if any(isinstance(b, Reduce) for b in stage_bodies(stage)):
        return None
    for body in stage_bodies(stage):
        for node in walk(body):
            if isinstance(node, Load) and isinstance(node.source, Tensor):
                layout = layouts.get(node.source.stage)
                if layout is not None and len(node.indices) == len(stage.axes):
                    split = {p.axis for p in layout.parts if p.size is not None}
                    if split and all(
                        node.indices[a] is stage.axes[a] and stage.shape[a] == node.source.shape[a] for a in split
                    ):
                        return layout
    return None
