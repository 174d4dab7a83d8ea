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


def _outside(op: str, table: te.Tensor, begin: te.Tensor, like: te.Tensor) -> te.Tensor:
    """``table`` with zeros in the rows from ``begin`` on, as many as ``like`` has."""
    first, count = _begin(begin, op), te.size(like.shape[0])

    def body(*i: te.Scalar) -> te.Scalar:
        outside = te.compare("lt", i[0], first) | te.compare("ge", i[0], first + count)
        return te.select(outside, table[i], te.const(0, table.dtype))

    return te.compute(table.shape, body, op.removeprefix("rows."))


@operator("rows.without")
def without(table: te.Tensor, begin: te.Tensor, like: te.Tensor) -> te.Tensor:
    """``table`` (n, ...) with zeros in the rows from ``begin`` on, as many as ``like`` has."""
    return _outside("rows.without", table, begin, like)


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


# -- the same, of a table that is not read after it: only the rows in question are touched (`transform.rows_in_place`)


def _same_rows(op: str, table: te.Tensor, rows: te.Tensor) -> None:
    require_same_dtype(op, table, rows)
    te.require(table.ndim == rows.ndim > 0, f"the operands of {op} have ranks {table.ndim} and {rows.ndim}")
    for n, (a, b) in enumerate(zip(table.shape[1:], rows.shape[1:], strict=True), 1):
        te.require_equal(a, b, f"axis {n} of {op}'s operands")


@operator("rows.add", by_routine=True, donates=True)
def add(table: te.Tensor, rows: te.Tensor, index: te.Tensor) -> te.Tensor:
    """``table`` (n, ...) with ``rows`` (m, ...) added to those at ``index`` (m,), clipped to the rows there are, in order; in place where
    the table dies."""
    _same_rows("rows.add", table, rows)
    require_integer(index, "the index of rows.add")
    require_rank(index, 1, "the index of rows.add")
    count = te.require_equal(rows.shape[0], index.shape[0], "axis 0 of rows.add's operands")
    last = te.size(table.shape[0]) - 1

    def body(*i: te.Scalar) -> te.Scalar:
        row = te.reduce_axis(count, "row")
        here = te.maximum(te.minimum(index64(index[row]), last), 0).equal(i[0])
        return table[i] + te.sum(te.select(here, rows[(row, *i[1:])], te.const(0, rows.dtype)), row)

    return te.compute(table.shape, body, "added")


@operator("rows.add_from", by_routine=True, donates=True)
def add_from(table: te.Tensor, rows: te.Tensor, begin: te.Tensor) -> te.Tensor:
    """``table`` (n, ...) with ``rows`` (m, ...) added to those from ``begin`` on, which lie in it; in place where the table dies."""
    _same_rows("rows.add_from", table, rows)
    first, count = _begin(begin, "rows.add_from"), te.size(rows.shape[0])

    def body(*i: te.Scalar) -> te.Scalar:
        at = i[0] - first
        inside = te.compare("ge", at, 0) & te.compare("lt", at, count)
        row = te.maximum(te.minimum(at, count - 1), 0)
        return te.select(inside, table[i] + rows[(row, *i[1:])], table[i])

    return te.compute(table.shape, body, "added")


@operator("rows.clear", by_routine=True, donates=True)
def clear(table: te.Tensor, begin: te.Tensor, like: te.Tensor) -> te.Tensor:
    """`rows.without`; in place where the table dies. The rows lie in the table."""
    return _outside("rows.clear", table, begin, like)


@operator("rows.spread")
def spread(rows: te.Tensor, starts: te.Tensor, begin: te.Tensor, like: te.Tensor) -> te.Tensor:
    """To each item of ``like`` (items, ...) the row of ``rows`` (n, ...) that it belongs to: those of row i are the items from
    ``starts[begin + i] - starts[begin]`` to ``starts[begin + i + 1] - starts[begin]``. What adds up items, the other way."""
    require_same_dtype("rows.spread", rows, like)
    require_integer(starts, "the starts of rows.spread")
    require_rank(starts, 1, "the starts of rows.spread")
    first, count, items = _begin(begin, "rows.spread"), rows.shape[0], (like.shape[0],)
    end = te.size(starts.shape[0]) - 1

    def start(row: te.Scalar) -> te.Scalar:
        return index64(starts[te.maximum(te.minimum(first + row, end), 0)])

    # How many rows end before an item: ends are counted where they are, and added up.
    row = te.reduce_axis(count, "row")
    one, none = te.const(1, "int64"), te.const(0, "int64")
    ends = te.compute(
        items, lambda i: te.sum(te.select((start(row + 1) - start(none)).equal(i), one, none), row), "ends"
    )
    owner = te.scan(items, 0, lambda: none, lambda state, i: state + ends[i], "int64", name="owner")

    def body(*i: te.Scalar) -> te.Scalar:
        return rows[(te.maximum(te.minimum(owner[i[0]], te.size(count) - 1), 0), *i[1:])]

    return te.compute((like.shape[0], *rows.shape[1:]), body, "spread")
