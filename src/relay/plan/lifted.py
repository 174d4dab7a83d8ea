"""Dear parts of an expression that do not depend on all of its axes, as stages of their own.

    y[i, j, c] = sum(sigmoid(a[i, k, c]) * b[j, k, c], k)
    ->   s[i, k, c] = sigmoid(a[i, k, c]);   y[i, j, c] = sum(s[i, k, c] * b[j, k, c], k)

A part that stays the same along the innermost loop is computed before it wherever it stands; one that moves along it, and stays the
same over an axis around that, would be computed again for each element of that axis. What a matrix product reads is left to it. Axes
along which values go to a place that is computed (`te.scatter`) are gone through by nothing: a part of the place is one too. Of an axis
of which only parts are gone through (`te.spans`) a stage would make all elements, for each of what says where the parts are.

Places are parts too where they are quotients of what moves by steps that the divisor is no multiple of, as those of an image of unknown
size that is made larger are (`quotients`): what is read there is gathered one by one anyhow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from relay.ir.dim import Dim
from relay.plan.expand import cost
from relay.plan.graph import TeGraph
from relay.plan.quotients import dear_quotients, divides_again, divides_dearly
from relay.plan.stages import contraction
from relay.te.index import Indices
from relay.te.rewrite import rewritten
from relay.te.scalar import (
    Axis,
    Load,
    Reduce,
    Scalar,
    children,
    iteration_count,
    mentioned,
    mentioned_by_node,
    transform,
)
from relay.te.scatter import as_scatter
from relay.te.spans import Span, as_spread
from relay.te.tensor import Compute, Stage, stage_over

# How many times a part would be computed, at the least, for it to be kept; and how dear it is at the least, in lanes and where values go
# to their places one by one.
_AGAIN, _DEAR, _DEAR_ALONE = 4, 20, 10


def lifted(graph: TeGraph, constants: frozenset[int], steep: float) -> TeGraph:
    """The graph with such parts as stages. ``constants``: numbers of constant inputs."""
    ids = graph.stages_of(constants)
    return replace(graph, outputs=rewritten(graph.outputs, lambda stage: _lifted(stage, ids, steep)))


def _lifted(stage: Stage, constants: frozenset[int], steep: float) -> Stage:
    if not isinstance(stage, Compute):
        return stage
    if contraction(stage, constants) is not None:
        return stage
    reduced = [a for b in stage.bodies if isinstance(b, Reduce) for a in b.axes]
    scatter = as_scatter(stage, Indices())
    places = frozenset(() if scatter is None else scatter.places)
    axes = [a for a in (*stage.axes, *dict.fromkeys(reduced)) if a.extent != 1 and a not in places]
    wide = [a for a in stage.axes if a.extent != 1]
    moving = {*reduced, *wide[-1:]}
    spread = as_spread(stage, Indices())
    spans = {} if spread is None else spread.spans
    if steep < inf and divides_again(stage.bodies):
        steep = 0.0
    made: dict[int, Scalar] = {}
    alike: dict[Dim, Scalar] = {}
    indices = Indices()
    for body in stage.bodies:
        for part, own in _parts(body.body if isinstance(body, Reduce) else body, axes, moving, places, spans, steep):
            place = indices.poly(part) if part.dtype == "int64" else None
            if place not in alike:
                (result,) = stage_over(f"{stage.name}_part", own, (part,))
                made[id(part)] = Load(result, tuple(own), part.dtype)
                if place is not None:
                    alike[place] = made[id(part)]
            else:
                made[id(part)] = alike[place]
    if not made:
        return stage
    memo: dict[int, Scalar] = dict(made)
    return Compute(stage.name, stage.axes, tuple(transform(b, lambda n: n, memo) for b in stage.bodies))


def _parts(
    root: Scalar,
    axes: Sequence[Axis],
    moving: set[Axis],
    places: frozenset[Axis],
    spans: Mapping[Axis, Span],
    steep: float,
) -> list[tuple[Scalar, list[Axis]]]:
    """The largest such parts of an expression, none of which mentions an axis of ``places``, and the axes of each."""
    mentions = mentioned_by_node(root)
    choosing = {axis: mentioned(*span.first, *span.end) for axis, span in spans.items()}
    found: dict[int, tuple[Scalar, list[Axis]]] = {}
    todo, seen = [root], set[int]()
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, Load):
            todo += [n for i in reversed(node.indices) for n in dear_quotients(i, steep)]
            continue
        mine = mentions[id(node)]
        chosen = {a for axis in mine & choosing.keys() for a in choosing[axis]}
        times = iteration_count(a for a in axes if a not in mine and a not in chosen)
        if (
            times >= _AGAIN
            and mine.isdisjoint(chosen)
            and not mine.isdisjoint(moving)
            and mine.isdisjoint(places)
            and node.dtype != "bool"
            and (cost(node) >= (_DEAR_ALONE if places else _DEAR) or divides_dearly(node, steep))
            and Indices().reads_inside(node)
        ):
            found[id(node)] = node, [a for a in axes if a in mine]
        else:
            todo += reversed(children(node))
    return list(found.values())
