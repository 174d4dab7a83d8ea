"""Where values lie among sorted ones."""

from __future__ import annotations

from itertools import pairwise
from typing import Final, Literal

from relay import te
from relay.ir.dim import Dim, dim_add, dim_floordiv, dim_min, dim_mul
from relay.op.registry import operator
from relay.op.support import require_number, require_same_dtype

# Sizes that nobody knows are told apart at these many bits: each asks one comparison of a size, and halves of ranges that are longer than
# the tensor are passed over by the bound that they miss.
_BITS: Final = (11, 21, 31, 41)


def _bits(size: Dim) -> Dim:
    """As many bits as a number up to ``size`` has, or some more."""
    if isinstance(size, int):
        return size.bit_length()
    bits: Dim = _BITS[0]
    for few, more in pairwise(_BITS):
        step = more - few
        bits = dim_add(bits, dim_min(step, dim_mul(step, dim_floordiv(size, 1 << few))))
    return bits


@operator("searchsorted")
def searchsorted(
    data: te.Tensor, values: te.Tensor, *, side: Literal["left", "right"] = "left", dtype: str = "int32"
) -> te.Tensor:
    """How many elements of ``data``, which ascend along its last axis, come before each of ``values`` (``left``), or do not come behind
    it (``right``): where it would be put in. nan comes last.

    ``data``: (n,), and ``values`` of any shape; or (b..., n) and (b..., m), row by row. The result has the shape of ``values``, int32 or
    int64. Where ``data`` does not ascend the result is some number from 0 to n.
    """
    require_number(values, "searchsorted")
    require_same_dtype("searchsorted", data, values)
    te.require(dtype in ("int32", "int64"), f"searchsorted gives int32 or int64, not {dtype}")
    te.require(data.ndim >= 1, "the data of searchsorted must have rank 1 or more")
    rows = data.ndim - 1
    if rows:
        te.require(
            values.ndim == data.ndim,
            f"searchsorted in data of rank {data.ndim} needs values of that rank, row by row, not of rank {values.ndim}",
        )
        for n in range(rows):
            te.require_equal(data.shape[n], values.shape[n], f"axis {n} of searchsorted's operands")
    size, bits = te.size(data.shape[-1]), _bits(data.shape[-1])
    floating = "float" in data.dtype

    def before(element: te.Scalar, value: te.Scalar) -> te.Scalar:
        lies = element < value if side == "left" else element <= value
        if not floating:
            return lies
        missing = value.not_equal(value)  # nan
        return lies | (missing & element.equal(element) if side == "left" else missing)

    def halve(found: te.Scalar, step: te.Scalar, *i: te.Scalar) -> te.Scalar:
        """One more bit of the number, the highest first: taken where the element that would be the last one comes before."""
        more = te.const(1, "int64") << (te.size(bits) - 1 - step)
        last = found + more - 1
        row = i[:rows]
        there = te.select((last >= 0) & (last < size), before(data[(*row, last)], values[i]), False)
        return te.select(there, found + more, found)

    found = te.scan((bits, *values.shape), 0, lambda *_: te.const(0, "int64"), halve, "int64", name="searched")

    def body(*i: te.Scalar) -> te.Scalar:
        if bits == 0:
            return te.const(0, dtype)
        return te.cast(found[(te.size(bits) - 1, *i)], dtype)

    return te.compute(values.shape, body, "searchsorted")
