"""Products of one row that are sums over lines which other stages go through as well.

The gradient of a norm adds up ``dy[i, j] * gamma[j]`` along j, beside other sums over the lines of ``dy`` and before what is made of each
of their elements. As a product of a vector and a matrix it would be a pass of its own, and all that is made of its operands before it would
be written to memory and read again; as one more sum it is made while a line is at hand.
"""

from __future__ import annotations

from relay import te
from relay.plan.graph import TeGraph, loads
from relay.plan.stages import Contraction, contraction
from relay.te.scalar import Axis, Cast, Load
from relay.te.tensor import Tensor, stage_bodies


def line_sums(graph: TeGraph, constants: frozenset[int]) -> frozenset[int]:
    """Ids of the stages that are such sums. ``constants``: numbers of constant inputs, which are packed for products."""
    ids, order = graph.stages_of(constants), te.stages(graph.outputs)
    products = {id(stage): form for stage in order if (form := contraction(stage, ids)) is not None}
    gone_through = {
        id(load.source.stage)
        for stage in order
        if id(stage) not in products
        for body in stage_bodies(stage)
        for load in loads(body)
        if isinstance(load.source, Tensor)
    }
    lines = {key: _lines(form) for key, form in products.items()}
    return frozenset(key for key, line in lines.items() if line is not None and id(line.stage) in gone_through - ids)


def _lines(form: Contraction) -> Tensor | None:
    """What a product of one row reads line by line."""
    load = form.right.a if isinstance(form.right, Cast) else form.right
    if form.rows or not isinstance(load, Load) or not isinstance(load.source, Tensor):
        return None
    last = load.indices[-1]
    return load.source if isinstance(last, Axis) and last in form.reduced else None
