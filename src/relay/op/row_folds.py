"""The greatest or least item of each row of a level: what `relay.transform.batching` makes of folds that take these.

Unlike a maximum over an axis, which shares its cotangent among equal elements, a fold hands it to one of them: so does `segment_most`.
"""

from __future__ import annotations

from typing import Literal

from relay import te
from relay.ir.expr import Expr
from relay.op.build import call
from relay.op.custom_gradients import Applied, gradient_rule
from relay.op.registry import operator
from relay.op.scatter import segments
from relay.op.support import index64, require_integer, require_rank, require_same_dtype


def _require_owners(owners: te.Tensor, values: te.Tensor, op: str) -> None:
    require_integer(owners, f"the owners of {op}")
    require_rank(owners, 1, f"the owners of {op}")
    te.require_equal(owners.shape[0], values.shape[0], f"the rows of {op}'s values and their owners")


@operator("rows.segment_most")
def segment_most(
    values: te.Tensor, owners: te.Tensor, like: te.Tensor, *, put: Literal["maximum", "minimum"], first: bool
) -> te.Tensor:
    """The greatest (or least) elements of the items of each row, (n, ...); the least (or greatest) of the dtype where there are none.

    ``values``: (items, ...); ``owners``: (items,), the rows that they belong to; ``like``: (n, ...). ``first``: of equal ones the first
    counts, otherwise the last: that one gets the cotangent.
    """
    _require_owners(owners, values, "rows.segment_most")
    return segments("max" if put == "maximum" else "min", "rows.segment_most", values, owners, like.shape[0])


@operator("rows.segment_chosen")
def segment_chosen(values: te.Tensor, owners: te.Tensor, most: te.Tensor, *, first: bool) -> te.Tensor:
    """Which item each element of ``most`` (n, ...), the result of `segment_most`, was taken from: int64, as it says."""
    require_same_dtype("rows.segment_chosen", values, most)
    _require_owners(owners, values, "rows.segment_chosen")
    item = te.reduce_axis(values.shape[0], "item")
    none = te.size(values.shape[0]) if first else te.const(-1, "int64")

    def body(*i: te.Scalar) -> te.Scalar:
        mine = te.compare("eq", index64(owners[item]), i[0])
        equal = te.compare("eq", values[(item, *i[1:])], most[i])
        number = te.select(mine, te.select(equal, te.cast(item, "int64"), none), none)
        return te.min(number, item) if first else te.max(number, item)

    return te.compute(most.shape, body, "chosen")


@operator("rows.segment_most_cotangent")
def segment_most_cotangent(chosen: te.Tensor, owners: te.Tensor, cotangent: te.Tensor, values: te.Tensor) -> te.Tensor:
    """The cotangent of the ``values`` (items, ...) of `segment_most`: that of its result (n, ...) for the items that were chosen."""
    require_same_dtype("rows.segment_most_cotangent", cotangent, values)
    _require_owners(owners, values, "rows.segment_most_cotangent")
    last = te.size(cotangent.shape[0]) - 1

    def body(*i: te.Scalar) -> te.Scalar:
        row = (te.maximum(te.minimum(index64(owners[i[0]]), last), 0), *i[1:])
        return te.select(chosen[row].equal(te.cast(i[0], "int64")), cotangent[row], te.const(0, cotangent.dtype))

    return te.compute(values.shape, body, "segment_most_cotangent")


@gradient_rule("rows.segment_most")
def _segment_most_rule(at: Applied) -> Expr | None:
    if at.index:
        return None
    values, owners, _ = at.args
    chosen = call("rows.segment_chosen", values, owners, at.outputs[0], first=at.attrs["first"])
    return call("rows.segment_most_cotangent", chosen, owners, at.cotangents[0], values)
