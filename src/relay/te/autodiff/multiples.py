"""Sums of what a remainder chooses, as sums over quotients.

    y[i] = sum(select((i - r) mod 2 == 0 and 0 <= i - r and (i - r) / 2 < n, x[(i - r) / 2], 0) * w[r], r)
    ->   y[i] is the sum of x[p] * w[r] over all p < n and r with 2 p + r = i

Written so, it says where each product belongs, as the transpose of a convolution with strides does, and is made in the form that gathers
(`summed_at`): each class of remainders has the terms that it has, and no others are tried.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.dim import Dim, dim_add, dim_bounds, dim_floordiv, dim_mul, dim_sub
from relay.ir.record import record
from relay.te.autodiff.arithmetic import is_const
from relay.te.autodiff.gather import summed_at
from relay.te.autodiff.simplify import simplified
from relay.te.index import Indices
from relay.te.rewrite import rewritten
from relay.te.scalar import Axis, Binary, Compare, Const, Scalar, binary, conjuncts, guarded_factors, substitute, walk
from relay.te.tensor import Stage, Tensor, float_sum


@record(frozen=True, slots=True, eq=False)
class _Multiple:
    """``divided`` is a multiple of ``by``; of the result's axes, ``axis`` is the one that this is said of."""

    divided: Scalar
    by: int
    axis: Axis


def over_multiples(outputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The same tensors, of stages with such sums made so."""
    return rewritten(outputs, _over_multiples)


def _over_multiples(stage: Stage) -> Stage:
    summed = float_sum(stage)
    if summed is None:
        return stage
    stage, body = summed
    # What has to hold for the product not to be zero.
    conditions = [c for cond in guarded_factors(body.body)[0] for c in conjuncts(cond)]
    found = _multiples(conditions, stage.axes)
    if not found:
        return stage
    indices = Indices()
    env: dict[Axis, Scalar] = {}
    for multiple in found:
        quotient = _quotient(multiple, conditions, indices)
        if quotient is None:
            return stage
        # The sum of all else in what is divided, less the quotient's multiple, is the axis but for its sign.
        sign = indices.coefficient(indices.poly(multiple.divided), multiple.axis)
        rest = dim_sub(indices.poly(multiple.divided), dim_mul(sign or 0, indices.axis(multiple.axis)))
        whole = dim_mul(multiple.by, indices.poly(quotient))
        env[multiple.axis] = indices.scalar(dim_mul(sign or 0, dim_sub(whole, rest)))
    value = simplified(substitute(body.body, env), indices)
    place = [env.get(a, a) for a in stage.axes]
    axes = [n for at in place for n in walk(at) if isinstance(n, Axis) and n not in body.axes]
    made = summed_at(stage.shape, place, value, tuple(dict.fromkeys(axes)), body.axes, stage.name)
    return made.stage


def _multiples(conditions: Sequence[Scalar], axes: Sequence[Axis]) -> list[_Multiple]:
    """The multiples among conditions, each with an axis of its own; none where one has no such axis."""
    indices = Indices()
    out: list[_Multiple] = []
    for cond in conditions:
        if not isinstance(cond, Compare) or cond.op != "eq" or cond.a.dtype != "int64" or not is_const(cond.b, 0):
            continue
        rest = cond.a
        if not isinstance(rest, Binary) or rest.op != "mod" or not isinstance(rest.b, Const) or rest.b.value < 2:
            continue
        divided = indices.poly(rest.a)
        taken = {m.axis for m in out}
        own = next((a for a in axes if a not in taken and indices.coefficient(divided, a) in (1, -1)), None)
        if own is None or any(indices.mentions(divided, a) for a in taken):
            return []
        out.append(_Multiple(rest.a, int(rest.b.value), own))
    # An axis that another remainder is of too is no axis of one's own.
    polys = [indices.poly(m.divided) for m in out]
    alone = all(sum(indices.mentions(p, m.axis) for p in polys) == 1 for m in out)
    return out if alone else []


def _quotient(multiple: _Multiple, conditions: Sequence[Scalar], indices: Indices) -> Scalar | None:
    """A variable for the quotient and what is the least of it, from what the conditions say of it or else the index variables' ranges;
    None where these say too little."""
    divided = indices.poly(multiple.divided)
    quotient = indices.floordiv(divided, multiple.by)
    low, high = indices.ends(divided)
    first: Dim | None = None if low is None else dim_floordiv(dim_add(low, multiple.by - 1), multiple.by)
    behind: Dim | None = None if high is None else dim_add(dim_floordiv(high, multiple.by), 1)
    for cond in conditions:
        if not isinstance(cond, Compare) or cond.a.dtype != "int64":
            continue
        a, b = indices.poly(cond.a), indices.poly(cond.b)
        if indices.is_index(b):
            continue
        match cond.op:
            case "ge" if b == 0 and a in (divided, quotient):
                first = 0
            case "lt" if a == quotient:
                behind = b
    if first is None or behind is None:
        return None
    count = dim_sub(behind, first)
    fewest = dim_bounds(count)[0]
    if fewest is None or fewest < 0:
        return None
    return binary("add", Axis("p", count), indices.scalar(first))
