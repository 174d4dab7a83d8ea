"""Operators that move elements: permutations, joins, repetitions, padding."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from relay import te
from relay.ir.dim import Dim, dim_add, dim_bounds, dim_floordiv, dim_max, dim_min, dim_mul, dim_sub, known_equal
from relay.op.registry import operator
from relay.op.support import DimLike, axis_of, require_same_dtype


@operator("transpose")
def transpose(data: te.Tensor, *, axes: tuple[int, ...] | None = None) -> te.Tensor:
    """Axis n of the result is axis ``axes[n]`` of ``data``; all axes in reverse where none are given."""
    order = tuple(reversed(range(data.ndim)))
    if axes:
        order = tuple(axis_of(a, data.ndim, "the operand of transpose") for a in axes)
    complete = sorted(order) == list(range(data.ndim))
    te.require(complete, f"the axes of transpose must name each of {data.ndim} axes once: {axes}")

    def body(*i: te.Scalar) -> te.Scalar:
        at: list[te.Scalar] = list(i)
        for n, a in enumerate(order):
            at[a] = i[n]
        return data[tuple(at)]

    return te.compute(tuple(data.shape[a] for a in order), body, "transpose")


@operator("reverse")
def reverse(data: te.Tensor, *, axis: int) -> te.Tensor:
    """``data`` backwards along ``axis``."""
    at = axis_of(axis, data.ndim, "the operand of reverse")
    last = te.size(dim_sub(data.shape[at], 1))
    return te.compute(data.shape, lambda *i: data[(*i[:at], last - i[at], *i[at + 1 :])], "reverse")


def _joined(parts: Sequence[te.Tensor], at: int, shape: Sequence[Dim], starts: Sequence[Dim], name: str) -> te.Tensor:
    """Parts one after the other along an axis; part n begins at ``starts[n]``."""

    def body(*i: te.Scalar) -> te.Scalar:
        def read(n: int) -> te.Scalar:
            along = i[at] if starts[n] == 0 else i[at] - te.size(starts[n])
            return parts[n][(*i[:at], along, *i[at + 1 :])]

        value = read(len(parts) - 1)
        for n in reversed(range(len(parts) - 1)):
            value = te.select(i[at] < te.size(starts[n + 1]), read(n), value)
        return value

    return te.compute(shape, body, name)


@operator("concatenate")
def concatenate(data: tuple[te.Tensor, ...], *, axis: int = 0) -> te.Tensor:
    """A tuple of tensors of one dtype one after the other along ``axis``; their other axes agree."""
    te.require(len(data) > 0, "concatenate needs at least one tensor")
    require_same_dtype("concatenate", *data)
    first = data[0]
    at = axis_of(axis, first.ndim, "the first operand of concatenate")
    shape = list(first.shape)
    starts: list[Dim] = [0]
    for part in data[1:]:
        te.require(part.ndim == first.ndim, f"the operands of concatenate have ranks {first.ndim} and {part.ndim}")
        for n, dim in enumerate(part.shape):
            if n != at:
                shape[n] = te.require_equal(shape[n], dim, f"axis {n} of concatenate's operands")
    for part in data:
        starts.append(dim_add(starts[-1], part.shape[at]))
    shape[at] = starts.pop()
    return _joined(data, at, shape, starts, "concatenate")


@operator("append", by_routine=True, donates=True)
def append(data: te.Tensor, rows: te.Tensor) -> te.Tensor:
    """``data`` (n, ...) followed by ``rows`` (m, ...), or by one row (...): `concatenate` on the leading axis, for state that grows.

    The result shares the memory of ``data`` where that has room after its last row which nothing else has been given, so
    appending one row at a time costs one row each. ``data`` itself stays what it is.
    """
    te.require(
        require_same_dtype("append", data, rows) not in ("int4", "uint4"), "append takes elements of whole bytes"
    )
    te.require(
        data.ndim > 0 and data.ndim - rows.ndim in (0, 1),
        f"the operands of append have ranks {data.ndim} and {rows.ndim}",
    )
    if rows.ndim < data.ndim:
        row = rows
        rows = te.compute((1, *row.shape), lambda _, *i: row[i], "row")
    rest = [
        te.require_equal(a, b, f"axis {n} of append's operands")
        for n, (a, b) in enumerate(zip(data.shape[1:], rows.shape[1:], strict=True), 1)
    ]
    first = data.shape[0]
    return _joined((data, rows), 0, [dim_add(first, rows.shape[0]), *rest], [0, first], "append")


@operator("stack")
def stack(data: tuple[te.Tensor, ...], *, axis: int = 0) -> te.Tensor:
    """A tuple of tensors of one shape and dtype along a new ``axis``."""
    te.require(len(data) > 0, "stack needs at least one tensor")
    require_same_dtype("stack", *data)
    first = data[0]
    at = axis_of(axis, first.ndim, "the first operand of stack", extra=1)
    shape = list(first.shape)
    for part in data[1:]:
        te.require(part.ndim == first.ndim, f"the operands of stack have ranks {first.ndim} and {part.ndim}")
        shape = [
            te.require_equal(a, b, f"axis {n} of stack's operands")
            for n, (a, b) in enumerate(zip(shape, part.shape, strict=True))
        ]

    def body(*i: te.Scalar) -> te.Scalar:
        rest = (*i[:at], *i[at + 1 :])
        value: te.Scalar = data[-1][rest]
        for n in reversed(range(len(data) - 1)):
            value = te.select(te.compare("eq", i[at], n), data[n][rest], value)
        return value

    return te.compute((*shape[:at], len(data), *shape[at:]), body, "stack")


# Tensors that `split` makes: each is a field of a type, and a stage.
_MOST_PARTS = 1 << 16


@operator("split")
def split(data: te.Tensor, *, indices_or_sections: int | tuple[DimLike, ...], axis: int = 0) -> tuple[te.Tensor, ...]:
    """A tuple of parts along ``axis``: that many equal ones, or those that begin at 0 and at each of the given positions."""
    at = axis_of(axis, data.ndim, "the operand of split")
    extent = data.shape[at]
    bounds: list[Dim] = [0]
    if isinstance(indices_or_sections, int):
        count = indices_or_sections
        te.require(count > 0, f"split needs a positive number of sections, not {count}")
        te.require(count <= _MOST_PARTS, f"split makes at most {_MOST_PARTS} sections, each a tensor, not {count}")
        part = dim_floordiv(extent, count)
        te.require_equal(dim_mul(part, count), extent, "the axis of split and its equal sections")
        bounds += [dim_mul(part, n) for n in range(1, count)]
    else:
        for before, after in zip((0, *indices_or_sections), indices_or_sections, strict=False):
            te.require_at_most(before, after, "the positions of split must ascend")
        bounds += indices_or_sections
        te.require_at_most(bounds[-1], extent, "the last position of split within the axis")
    bounds.append(extent)
    return tuple(_part(data, at, start, dim_sub(stop, start)) for start, stop in itertools.pairwise(bounds))


def _part(data: te.Tensor, at: int, start: Dim, extent: Dim) -> te.Tensor:
    shape = (*data.shape[:at], extent, *data.shape[at + 1 :])
    return te.compute(shape, lambda *i: data[(*i[:at], i[at] + te.size(start), *i[at + 1 :])], "split")


@operator("tile")
def tile(data: te.Tensor, *, reps: tuple[DimLike, ...]) -> te.Tensor:
    """``data`` as a whole ``reps[n]`` times along each axis; the shorter of shape and ``reps`` is led by ones."""
    for r in reps:
        te.require_at_most(0, r, "the repetitions of tile must not be negative")
    rank = max(data.ndim, len(reps))
    times = (1,) * (rank - len(reps)) + reps
    own = (1,) * (rank - data.ndim) + data.shape
    lead = rank - data.ndim

    def body(*i: te.Scalar) -> te.Scalar:
        at = [i[n] if times[n] == 1 else i[n] % te.size(own[n]) for n in range(lead, rank)]
        return data[tuple(at)]

    return te.compute(tuple(dim_mul(d, r) for d, r in zip(own, times, strict=True)), body, "tile")


@operator("repeat")
def repeat(data: te.Tensor, *, repeats: DimLike, axis: int = 0) -> te.Tensor:
    """Each element ``repeats`` times in a row along ``axis``."""
    te.require_at_most(0, repeats, "the repeats of repeat must not be negative")
    at = axis_of(axis, data.ndim, "the operand of repeat")
    shape = (*data.shape[:at], dim_mul(data.shape[at], repeats), *data.shape[at + 1 :])
    return te.compute(shape, lambda *i: data[(*i[:at], i[at] // te.size(dim_max(repeats, 1)), *i[at + 1 :])], "repeat")


def padded(
    data: te.Tensor, before: Sequence[Dim], after: Sequence[Dim], value: te.Scalar, name: str = "pad"
) -> te.Tensor:
    """``data`` with a border of ``value``; negative widths cut."""
    if all(known_equal(w, 0) for w in (*before, *after)):
        return data
    shape = tuple(dim_add(d, dim_add(b, a)) for d, b, a in zip(data.shape, before, after, strict=True))

    def body(*i: te.Scalar) -> te.Scalar:
        inside: te.Scalar | None = None
        for n, index in enumerate(i):
            low = index >= te.size(before[n]) if _may_add(before[n]) else None
            high = index < te.size(dim_add(data.shape[n], before[n])) if _may_add(after[n]) else None
            for test in (low, high):
                if test is not None:
                    inside = test if inside is None else inside & test
        read = data[tuple(index - te.size(b) for index, b in zip(i, before, strict=True))]
        return read if inside is None else te.select(inside, read, value)

    return te.compute(shape, body, name)


def _may_add(width: Dim) -> bool:
    """Whether a width of a border may be more than 0."""
    most = dim_bounds(width)[1]
    return most is None or most > 0


@operator("nn.pad")
def pad(
    data: te.Tensor,
    pad_value: te.Tensor | None = None,
    *,
    pad_width: tuple[tuple[DimLike, DimLike], ...],
    pad_mode: Literal["constant", "edge", "reflect", "symmetric", "wrap"] = "constant",
) -> te.Tensor:
    """``data`` with ``pad_width[n] = (before, after)`` elements added along each axis (negative: taken away).

    They are ``pad_value`` (a scalar, cast to the data's dtype; 0 if missing), the nearest element (``edge``), the data mirrored
    at its first and last element (``reflect``: no width may reach the axis's size) or before and behind them (``symmetric``: no width
    may be more than that size), or the data over again (``wrap``).
    """
    te.require(len(pad_width) == data.ndim, f"nn.pad has {len(pad_width)} pairs of widths for rank {data.ndim}")
    before: list[Dim] = [b for b, _ in pad_width]
    after: list[Dim] = [a for _, a in pad_width]
    for n, (b, a) in enumerate(pad_width):
        te.require_at_most(0, dim_add(data.shape[n], dim_add(b, a)), f"the size of axis {n} after nn.pad")
    if pad_mode == "constant":
        value: te.Scalar = te.const(0, data.dtype)
        if pad_value is not None:
            te.require(pad_value.ndim == 0, f"the pad value of nn.pad must be a scalar, not of rank {pad_value.ndim}")
            value = te.cast(pad_value[()], data.dtype)
        out = padded(data, before, after, value)
        return te.compute(data.shape, lambda *i: data[i], "pad") if out is data else out
    for n, (b, a) in enumerate(pad_width):
        widest = dim_max(dim_max(b, a), 0)
        some = dim_min(widest, 1)  # nothing is asked of an axis that gets no border
        least = {"reflect": dim_add(widest, some), "symmetric": widest}.get(pad_mode, some)
        te.require_at_most(least, data.shape[n], f"the {pad_mode} padding of axis {n}")

    def along(source: te.Tensor, n: int) -> te.Tensor:
        last = te.size(dim_sub(source.shape[n], 1))

        def body(*i: te.Scalar) -> te.Scalar:
            moved = i[n] - te.size(before[n])
            if pad_mode in ("reflect", "symmetric"):
                again = 1 if pad_mode == "symmetric" else 0  # whether the element at the end is mirrored too
                if _may_add(before[n]):
                    moved = te.maximum(moved, -moved - again)
                if _may_add(after[n]):
                    moved = te.minimum(moved, last * 2 - moved + again)
            elif pad_mode == "wrap":
                moved = moved % te.size(source.shape[n])
            else:
                moved = te.minimum(te.maximum(moved, 0), last)
            return source[(*i[:n], moved, *i[n + 1 :])]

        wide = dim_add(source.shape[n], dim_add(before[n], after[n]))
        return te.compute([wide if k == n else d for k, d in enumerate(source.shape)], body, "pad")

    # One axis after the other, so that the derivative of each has only the borders of one axis.
    out = data
    for n in range(data.ndim):
        if not (known_equal(before[n], 0) and known_equal(after[n], 0)):
            out = along(out, n)
    return te.compute(data.shape, lambda *i: data[i], "pad") if out is data else out
