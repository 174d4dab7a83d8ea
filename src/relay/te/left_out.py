"""Extremes that give a number for what they leave out, as those that leave it out and compare with the number.

    m[s] = max(select(place[k] == s, x[k], -10000), k)
    ->   r[s] = max(select(place[k] == s, x[k], -inf), k);   n[s] = sum(select(place[k] == s, 1, 0), k)
         m[s] = select(n[s] < size(k), max(r[s], -10000), r[s])

Both reductions select one place for each k (`relay.te.scatter`), and are made in one pass over k; the one that they stand for would go
through all k for each s.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.dim import shape_size
from relay.te import numeric
from relay.te.index import Indices
from relay.te.rewrite import rewritten
from relay.te.scalar import Const, Load, Reduce, Select, Size, binary, compare, select
from relay.te.scatter import as_scatter
from relay.te.tensor import Compute, Stage, Tensor, stage_over


def leaving_out(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same tensors, of stages with such extremes made so."""
    return rewritten(outputs, _leaving_out)


def _leaving_out(stage: Stage) -> Stage:
    if not isinstance(stage, Compute) or len(stage.bodies) != 1:
        return stage
    (body,) = stage.bodies
    if not isinstance(body, Reduce) or body.kind not in ("max", "min") or not isinstance(body.body, Select):
        return stage
    chosen, number = body.body, body.body.b
    neutral = Const(numeric.identity(body.kind, body.dtype).astype(object).item(), body.dtype)
    if not isinstance(number, Const) or number.value == neutral.value or number.value != number.value:
        return stage
    best = Reduce(body.kind, body.axes, Select(chosen.cond, chosen.a, neutral, body.dtype), body.dtype)
    if as_scatter(Compute(stage.name, stage.axes, (best,)), Indices()) is None:
        return stage
    taken = Reduce("sum", body.axes, select(chosen.cond, Const(1, "int64"), Const(0, "int64")), "int64")
    (found,) = stage_over(stage.name, stage.axes, (best,))
    (count,) = stage_over(f"{stage.name}_taken", stage.axes, (taken,))
    at = stage.axes
    here = Load(found, at, body.dtype)
    some_left = compare("lt", Load(count, at, "int64"), Size(shape_size(tuple(a.extent for a in body.axes))))
    return Compute(stage.name, at, (select(some_left, binary(body.kind, here, number), here),))
