"""Operators whose result is the operand's memory with another shape. Elements keep their row-major order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from relay import te
from relay.ir.dim import Dim, KnownSize, dim_floordiv, dim_mul, is_any, shape_size
from relay.ir.types import MOST_AXES
from relay.op.registry import view
from relay.op.support import Axes, DimLike, axes_of, axis_of, reshaped_index


def reshaped(data: te.Tensor, shape: Sequence[Dim], name: str) -> te.Tensor:
    """``data`` with another shape of the same size (demanded)."""
    te.require_equal(shape_size(data.shape), shape_size(tuple(shape)), f"the sizes of {name}'s operand and result")
    return te.compute(shape, lambda *i: data[tuple(reshaped_index(i, data.shape, shape))], name)


def quotient(sizes: Sequence[Dim], by: Sequence[Dim], what: str) -> Dim:
    """The product of ``sizes`` over that of ``by``, equal factors cancelled first; that it is exact is not demanded here."""
    top, bottom = list(sizes), list(by)
    for dim in by:
        if not is_any(dim) and dim in top:
            top.remove(dim)
            bottom.remove(dim)
    divisor = shape_size(tuple(bottom))
    te.require(divisor != 0, f"{what}: -1 cannot be told when another axis has size 0")
    return dim_floordiv(shape_size(tuple(top)), divisor)


def new_shape(old: Sequence[Dim], codes: Sequence[DimLike]) -> tuple[Dim, ...]:
    """The shape that `reshape`'s codes mean for an operand of shape ``old``."""
    out: list[Dim] = []
    inferred: int | None = None
    at = 0  # the next axis of the operand

    def take(count: int) -> Sequence[Dim]:
        nonlocal at
        te.require(at + count <= len(old), f"newshape {list(codes)} has no axis of {list(old)} left to refer to")
        at += count
        return old[at - count : at]

    queue = list(codes)
    while queue:
        code = queue.pop(0)
        if isinstance(code, KnownSize):
            te.require(code == 0, f"newshape {list(codes)} has a size of {code}")
            out.append(0)
            at = min(at + 1, len(old))
            continue
        match code:
            case 0:
                out += take(1)
            case -1:
                te.require(inferred is None, f"newshape {list(codes)} has more than one -1")
                inferred = len(out)
                out.append(1)
                at += 1
            case -2:
                out += take(len(old) - at)
            case -3:
                a, b = take(2)
                out.append(dim_mul(a, b))
            case -4:
                te.require(len(queue) >= 2, f"newshape {list(codes)}: -4 is followed by the two sizes of the split")
                (whole,) = take(1)
                out += _split(whole, queue.pop(0), queue.pop(0), codes)
            case _:
                te.require(not isinstance(code, int) or code > 0, f"newshape {list(codes)}: {code} means nothing")
                out.append(code)
                at += 1
        at = min(at, len(old))
    if inferred is not None:
        known = out[:inferred] + out[inferred + 1 :]
        out[inferred] = quotient(old, known, f"newshape {list(codes)} for {list(old)}")
    return tuple(out)


def _split(whole: Dim, left: DimLike, right: DimLike, codes: Sequence[DimLike]) -> list[Dim]:
    open_left, open_right = (d == -1 and not isinstance(d, KnownSize) for d in (left, right))
    te.require(not open_left or not open_right, f"newshape {list(codes)}: -4 is followed by at most one -1")
    a = quotient([whole], [right], f"newshape {list(codes)}") if open_left else left
    b = quotient([whole], [left], f"newshape {list(codes)}") if open_right else right
    te.require_equal(dim_mul(a, b), whole, "the axis that reshape splits and its two parts")
    return [a, b]


@view("reshape")
def reshape(data: te.Tensor, *, newshape: tuple[DimLike, ...], allowzero: Literal[False] = False) -> te.Tensor:
    """``data`` with ``newshape``: sizes, or 0 (this axis as it is), -1 (what is left), -2 (all further axes as they are),
    -3 (the product of the next two axes), -4 (the next axis split into the two sizes that follow, one of which may be -1)."""
    return reshaped(data, new_shape(data.shape, newshape), "reshape")


@view("reshape_like")
def reshape_like(data: te.Tensor, shape_like: te.Tensor) -> te.Tensor:
    """``data`` with the shape of ``shape_like``."""
    return reshaped(data, shape_like.shape, "reshape_like")


@view("nn.batch_flatten")
def batch_flatten(data: te.Tensor) -> te.Tensor:
    """(n, ...) as (n, product of the rest). ``data``: rank 1 or more."""
    te.require(data.ndim >= 1, "nn.batch_flatten needs a tensor of rank 1 or more")
    return reshaped(data, (data.shape[0], shape_size(data.shape[1:])), "nn.batch_flatten")


@view("squeeze")
def squeeze(data: te.Tensor, *, axis: Axes = None) -> te.Tensor:
    """Without the given axes, which must have size 1; without all axes that are known to have size 1 if none are given."""
    if axis is None:
        gone = {n for n, d in enumerate(data.shape) if te.known_is(d, 1)}
    else:
        gone = set(axes_of(axis, data.ndim, "the operand of squeeze"))
        for n in gone:
            te.require_equal(data.shape[n], 1, "the size of a squeezed axis and 1")
    shape = tuple(d for n, d in enumerate(data.shape) if n not in gone)

    def body(*i: te.Scalar) -> te.Scalar:
        rest = iter(i)
        return data[tuple(0 if n in gone else next(rest) for n in range(data.ndim))]

    return te.compute(shape, body, "squeeze")


@view("expand_dims")
def expand_dims(data: te.Tensor, *, axis: int, num_newaxis: int = 1) -> te.Tensor:
    """With ``num_newaxis`` axes of size 1 put in before ``axis`` (-1: after the last one)."""
    te.require(num_newaxis >= 0, f"num_newaxis must not be negative, but is {num_newaxis}")
    axes = data.ndim + num_newaxis
    te.require(axes <= MOST_AXES, f"a tensor has {MOST_AXES} axes at the most, not {axes}")
    at = axis_of(axis, data.ndim, "the operand of expand_dims", extra=1)
    shape = (*data.shape[:at], *[1] * num_newaxis, *data.shape[at:])
    return te.compute(shape, lambda *i: data[(*i[:at], *i[at + num_newaxis :])], "expand_dims")


@view("annotation.stop_fusion")
def stop_fusion(data: te.Tensor) -> te.Tensor:
    """``data`` itself. Released quantisers put it between operators that were not to become one kernel; here it is only a view."""
    return te.compute(data.shape, lambda *i: data[i], "stop_fusion")
