"""Operators whose result's sizes are the elements of an operand, or are found while computing."""

from __future__ import annotations

from typing import Literal

from relay import te
from relay.ir.dim import ANY, Dim, shape_size
from relay.ir.effects import Effect
from relay.op.broadcast import broadcast_shape_to
from relay.op.registry import operator
from relay.op.support import elementwise, index64, require_integer, require_rank
from relay.op.views import reshaped


def _vector(shape: te.Tensor, op: str) -> int:
    """The rank that a shape operand gives; its length must be a known number."""
    require_integer(shape, f"the shape of {op}")
    require_rank(shape, 1, f"the shape of {op}")
    length = shape.shape[0]
    if not isinstance(length, int):
        te.known_is(length, 0)  # waits for a length that inference may still find
        raise te.DefinitionError(f"the rank of {op}'s result must be known: its shape operand has length {length}")
    return length


def _reshape_shape(data: te.Tensor, newshape: te.Tensor) -> te.Tensor:
    rank = _vector(newshape, "dyn.reshape")

    def code(n: int) -> te.Scalar:
        """The n-th size where it is told: 0 stands for the operand's own."""
        given = index64(newshape[n])
        own = te.size(data.shape[n]) if n < data.ndim else te.const(0, "int64")
        return te.select(te.compare("eq", given, 0), own, given)

    def body(i: te.Scalar) -> te.Scalar:
        known: te.Scalar = te.const(1, "int64")
        for n in range(rank):
            known = known * te.select(te.compare("eq", code(n), -1), te.const(1, "int64"), code(n))
        rest = te.size(shape_size(data.shape)) // te.maximum(known, 1)
        value: te.Scalar = te.const(0, "int64")
        for n in reversed(range(rank)):
            size = te.select(te.compare("eq", code(n), -1), rest, code(n))
            value = te.select(te.compare("eq", i, n), size, value)
        return value

    return te.compute((rank,), body, "newshape")


@operator(
    "dyn.reshape",
    effects=Effect.MAY_FAIL,
    shape_mode="data",
    result_shape=_reshape_shape,
    ignored=("newshape", "allowzero"),
)
def dyn_reshape(data: te.Tensor, newshape: te.Tensor, *, out_shape: tuple[Dim, ...] = ()) -> te.Tensor:
    """``data`` with the sizes that the integer vector ``newshape`` holds; 0 is the operand's own size, one -1 is what is left.

    The length of ``newshape`` is known; that the sizes agree is checked while running.
    """
    return reshaped(data, out_shape, "dyn.reshape")


def _given_shape(data: te.Tensor, shape: te.Tensor) -> te.Tensor:
    return te.compute((_vector(shape, "dyn.broadcast_to"),), lambda i: index64(shape[i]), "shape")


@operator(
    "dyn.broadcast_to",
    effects=Effect.MAY_FAIL,
    shape_mode="data",
    result_shape=_given_shape,
    ignored=("shape", "dtype"),
)
def dyn_broadcast_to(data: te.Tensor, shape: te.Tensor, *, out_shape: tuple[Dim, ...] = ()) -> te.Tensor:
    """``data`` repeated along its missing axes and those of size 1 to the sizes that the integer vector ``shape`` holds."""
    return broadcast_shape_to(data, out_shape, "dyn.broadcast_to")


def _full_shape(fill_value: te.Tensor, shape: te.Tensor, *, dtype: str = "") -> te.Tensor:
    return te.compute((_vector(shape, "dyn.full"),), lambda i: index64(shape[i]), "shape")


@operator("dyn.full", effects=Effect.MAY_FAIL, shape_mode="data", result_shape=_full_shape, ignored=("shape",))
def dyn_full(
    fill_value: te.Tensor, shape: te.Tensor, *, dtype: str = "", out_shape: tuple[Dim, ...] = (ANY,)
) -> te.Tensor:
    """A tensor with the sizes that the integer vector ``shape`` holds, filled with the scalar ``fill_value``."""
    te.require(fill_value.ndim == 0, f"the fill value of dyn.full must be a scalar, not of rank {fill_value.ndim}")
    return te.compute(out_shape, lambda *_: te.cast(fill_value[()], dtype or fill_value.dtype), "full")


def _slice(data: te.Tensor, bounds: tuple[te.Tensor, te.Tensor, te.Tensor], n: int) -> tuple[te.Scalar, ...]:
    """The first position of a slice along axis n, its step, and how many positions it has (Python's rules; step 0: none)."""
    begin, end, step = (index64(b[n]) for b in bounds)
    # No axis is as long; a distance and this stay within 64 bits.
    step = te.maximum(te.minimum(step, 1 << 56), -(1 << 56))
    size = te.size(data.shape[n])
    forward = step > 0
    # Counted from the end where negative, then moved to where a slice in this direction can begin and end.
    low, high = te.select(forward, te.const(0, "int64"), te.const(-1, "int64")), te.select(forward, size, size - 1)
    first, stop = (te.minimum(te.maximum(te.select(at < 0, at + size, at), low), high) for at in (begin, end))
    distance, stride = te.select(forward, stop - first, first - stop), te.select(forward, step, -step)
    count = te.maximum((distance + stride - 1) // te.maximum(stride, 1), 0)
    return first, step, te.select(te.compare("eq", step, 0), te.const(0, "int64"), count)


def _slice_shape(
    data: te.Tensor, begin: te.Tensor, end: te.Tensor, strides: te.Tensor, *, slice_mode: str = "end", axes: None = None
) -> te.Tensor:
    lengths = {_vector(t, "dyn.strided_slice") for t in (begin, end, strides)}
    te.require(len(lengths) == 1, f"the bounds of dyn.strided_slice must have one length, not {sorted(lengths)}")
    sliced = lengths.pop()
    te.require(sliced <= data.ndim, f"dyn.strided_slice has bounds of {sliced} axes, its data has {data.ndim}")

    def body(i: te.Scalar) -> te.Scalar:
        value: te.Scalar = te.const(0, "int64")
        for n in reversed(range(data.ndim)):
            size = _slice(data, (begin, end, strides), n)[2] if n < sliced else te.size(data.shape[n])
            value = te.select(te.compare("eq", i, n), size, value)
        return value

    return te.compute((data.ndim,), body, "shape")


@operator("dyn.strided_slice", shape_mode="data", result_shape=_slice_shape, ignored=("begin", "end", "strides"))
def dyn_strided_slice(
    data: te.Tensor,
    begin: te.Tensor,
    end: te.Tensor,
    strides: te.Tensor,
    *,
    slice_mode: Literal["end"] = "end",
    axes: None = None,
    out_shape: tuple[Dim, ...] = (),
) -> te.Tensor:
    """``data[begin[0]:end[0]:strides[0], ...]`` with bounds that are integer vectors of one known length, Python's meaning of negative
    and too large ones, and whole axes where they end. A stride of 0 takes nothing."""
    sliced = _vector(begin, "dyn.strided_slice")

    def body(*i: te.Scalar) -> te.Scalar:
        at = list(i)
        for n in range(sliced):
            first, step, _ = _slice(data, (begin, end, strides), n)
            at[n] = first + i[n] * step
        return data[tuple(at)]

    return te.compute(out_shape, body, "strided_slice")


@operator("take_while", shape_mode="upper_bound")
def take_while(data: te.Tensor, condition: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    """The leading elements of ``data`` (n, ...) along its first axis before the first that fails ``condition`` (n,), bool."""
    te.require(data.ndim >= 1, "take_while needs data of rank 1 or more")
    require_rank(condition, 1, "the condition of take_while")
    te.require(condition.dtype == "bool", f"the condition of take_while must be bool, not {condition.dtype}")
    extent = te.require_equal(data.shape[0], condition.shape[0], "the first axes of take_while's operands")
    k = te.reduce_axis(extent)
    # The first failing position, the extent where there is none.
    failing = te.select(condition[k], te.size(extent), k)
    first = te.compute((), lambda: te.min(failing, k), "first_failing")
    count = te.compute((1,), lambda _: te.minimum(first[()], te.size(extent)), "count")
    return elementwise(data, lambda x: x, "take_while"), count
