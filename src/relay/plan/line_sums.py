"""Products of one row that are sums over lines which other stages go through as well.

The gradient of a norm adds up ``dy[i, j] * gamma[j]`` along j, beside other sums over the lines of ``dy`` and before what is made of each
of their elements. As a product of a vector and a matrix it would be a pass of its own, and all that is made of its operands before it would
be written to memory and read again; as one more sum it is made while a line is at hand.
"""

from __future__ import annotations

from collections.abc import Mapping

from relay.plan.graph import loads
from relay.plan.stages import Contraction, contraction
from relay.te.scalar import Axis, Cast, Load
from relay.te.tensor import Stage, Tensor, stage_bodies


def line_sums(stages: Mapping[int, Stage], constants: frozenset[int]) -> frozenset[int]:
    """The keys of the stages that are such sums. ``constants``: ids of the stages of constants, which are packed for products."""
    products = {key: form for key, stage in stages.items() if (form := contraction(stage, constants)) is not None}
    gone_through = {
        id(load.source.stage)
        for key, stage in stages.items()
        if key not in products
        for body in stage_bodies(stage)
        for load in loads(body)
        if isinstance(load.source, Tensor)
    }
    lines = {key: _lines(form) for key, form in products.items()}
    return frozenset(k for k, line in lines.items() if line is not None and id(line.stage) in gone_through - constants)


def _lines(form: Contraction) -> Tensor | None:
    """What a product of one row reads line by line."""
    load = form.right.a if isinstance(form.right, Cast) else form.right
    if form.rows or not isinstance(load, Load) or not isinstance(load.source, Tensor):
        return None
    last = load.indices[-1]
    return load.source if isinstance(last, Axis) and last in form.reduced else None
