"""Cotangents of the operators that move rows of nodes (`relay.op.rows`): expressions on the tables that these make."""

from __future__ import annotations

from relay import te
from relay.op.registry import operator
from relay.op.support import index64, require_integer, require_rank, require_same_dtype


def _begin(begin: te.Tensor, op: str) -> te.Scalar:
    require_integer(begin, f"the begin of {op}")
    require_rank(begin, 0, f"the begin of {op}")
    return index64(begin[()])


@operator("rows.pick")
def pick(table: te.Tensor, begin: te.Tensor, like: te.Tensor) -> te.Tensor:
    """The rows of ``table`` (n, ...) from ``begin`` on, as many as ``like`` has, which lie in the table."""
    require_same_dtype("rows.pick", table, like)
    first = _begin(begin, "rows.pick")
    last = te.size(table.shape[0]) - 1

    def body(*i: te.Scalar) -> te.Scalar:
        at = te.maximum(te.minimum(first + i[0], last), 0)
        return table[(at, *i[1:])]

    return te.compute((like.shape[0], *table.shape[1:]), body, "pick")


@operator("rows.without")
def without(table: te.Tensor, begin: te.Tensor, like: te.Tensor) -> te.Tensor:
    """``table`` (n, ...) with zeros in the rows from ``begin`` on, as many as ``like`` has."""
    first = _begin(begin, "rows.without")
    count = te.size(like.shape[0])

    def body(*i: te.Scalar) -> te.Scalar:
        outside = te.compare("lt", i[0], first) | te.compare("ge", i[0], first + count)
        return te.select(outside, table[i], te.const(0, table.dtype))

    return te.compute(table.shape, body, "without")


@operator("rows.place")
def place(rows: te.Tensor, begin: te.Tensor, like: te.Tensor) -> te.Tensor:
    """Zeros in the shape of ``like`` (n, ...), with ``rows`` (m, ...) from row ``begin`` on."""
    require_same_dtype("rows.place", rows, like)
    first = _begin(begin, "rows.place")
    count = te.size(rows.shape[0])

    def body(*i: te.Scalar) -> te.Scalar:
        at = i[0] - first
        inside = te.compare("ge", at, 0) & te.compare("lt", at, count)
        row = te.maximum(te.minimum(at, count - 1), 0)
        return te.select(inside, rows[(row, *i[1:])], te.const(0, rows.dtype))

    return te.compute(like.shape, body, "place")
