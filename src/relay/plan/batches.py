"""Batches of products whose result lies otherwise: the last of its axes belongs to both operands, and numbers the products.

    y[b, o, p] = sum(x[b, p + k] * w[p, k, o], k)
    ->   t[p, b, o] = sum(x[b, p + k] * w[p, k, o], k);   y[b, o, p] = t[p, b, o]

A layer with weights of its own for each place is one product for each place, and there is nothing that lanes could run along where its
operands do not: its weights are read along what is summed over. The products are made one behind the other, and put where they belong.
Where both operands run along the last axis, so do lanes, and there is nothing to gain.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relay.ir.dim import Dim, dim_mul, known_equal
from relay.ir.dim_total import dim_typical
from relay.plan.build import position_read
from relay.plan.graph import TeGraph
from relay.plan.stages import contraction
from relay.te.index import Indices
from relay.te.rewrite import rewritten
from relay.te.scalar import Axis, Binary, Load, Reduce, binary, iteration_count, mentioned
from relay.te.tensor import Compute, Stage, Tensor, stage_over

# Rows and columns of a product, and what it sums up, at the least.
_FEWEST = 4


def in_batches(graph: TeGraph, constants: frozenset[int]) -> TeGraph:
    """The graph with such products as stages of their own. ``constants``: numbers of constant inputs."""
    ids = graph.stages_of(constants)
    return replace(graph, outputs=rewritten(graph.outputs, lambda stage: _in_batches(stage, ids)))


def _in_batches(stage: Stage, constants: frozenset[int]) -> Stage:
    if not isinstance(stage, Compute) or len(stage.bodies) != 1:
        return stage
    (body,) = stage.bodies
    if not isinstance(body, Reduce) or body.kind != "sum" or not isinstance(body.body, Binary) or body.body.op != "mul":
        return stage
    wide = [a for a in stage.axes if a.extent != 1]
    over = [a for a in body.axes if a.extent != 1]
    left, right = body.body.a, body.body.b
    if not wide or not isinstance(left, Load) or not isinstance(right, Load):
        return stage
    if not isinstance(left.source, Tensor) or not isinstance(right.source, Tensor):
        return stage
    (mine, runs), (theirs, others) = (_reach(load, over) for load in (left, right))
    last = wide[-1]
    if last not in mine & theirs or (_step(left, last) == 1 and _step(right, last) == 1):
        return stage
    if runs > others:  # the right operand is what is packed, the better the longer its runs are
        left, right, mine, theirs = right, left, theirs, mine
    rows = [a for a in wide if a not in theirs]
    columns = [a for a in wide if a not in mine]
    if any(iteration_count(axes) < _FEWEST for axes in (rows, columns, over)):
        return stage
    axes = [*(a for a in stage.axes if a not in rows and a not in columns), *rows, *columns]
    value = Reduce("sum", body.axes, binary("mul", left, right), body.dtype)
    (made,) = stage_over(f"{stage.name}_products", axes, (value,))
    if contraction(made.stage, constants) is None:
        return stage
    return Compute(stage.name, stage.axes, (Load(made, tuple(axes), body.dtype),))


def _reach(load: Load, over: Sequence[Axis]) -> tuple[set[Axis], int]:
    """The index variables that a read moves with, and how long the runs in memory are that a sum goes along."""
    indices = Indices()
    at = position_read(indices, load)
    run: Dim = 1
    for axis in reversed(over):
        step = indices.coefficient(at, axis)
        if step is None or not known_equal(step, run):
            break
        run = dim_mul(run, axis.extent)
    return mentioned(load), dim_typical(run)


def _step(load: Load, axis: Axis) -> Dim | None:
    indices = Indices()
    return indices.coefficient(position_read(indices, load), axis)
