"""What the operators' definitions share: axes, dtypes, index arithmetic over row-major orders."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relay import te
from relay.ir.dim import Dim, SymDim, dim_mul, known_equal
from relay.ir.types import is_float, is_integer
from relay.te import numeric

# What released texts give to operators with a weight: notes of the schedulers of those releases.
SCHEDULER_NOTES = ("auto_scheduler_rewritten_layout", "meta_schedule_original_shape")
# What a shape attribute may hold.
DimLike = int | SymDim
Axes = int | tuple[int, ...] | None


def tensors_of(args: Sequence[te.Tensor | tuple[te.Tensor, ...]]) -> list[te.Tensor]:
    """The tensors among an operator's operands, those of a tuple one by one."""
    return [t for a in args for t in (a if isinstance(a, tuple) else (a,))]


def grouped(
    args: Sequence[te.Tensor | tuple[te.Tensor, ...]], tensors: Sequence[te.Tensor]
) -> list[te.Tensor | tuple[te.Tensor, ...]]:
    """As many tensors as `tensors_of` gives, as the operands ``args`` have them: those of a tuple together."""
    given = iter(tensors)
    return [tuple(next(given) for _ in a) if isinstance(a, tuple) else next(given) for a in args]


def axis_of(axis: int, rank: int, what: str, *, extra: int = 0) -> int:
    """The axis as a number in ``[0, rank + extra)``; negative ones count from the end."""
    limit = rank + extra
    te.require(-limit <= axis < limit, f"{what} has rank {rank}, so axis {axis} is not in [{-limit}, {limit})")
    return axis % limit if limit else 0


def axes_of(axis: Axes, rank: int, what: str, *, exclude: bool = False) -> tuple[int, ...]:
    """The chosen axes in ascending order: all for None; with ``exclude`` all but the given ones."""
    if axis is None:
        return () if exclude else tuple(range(rank))
    given = (axis,) if isinstance(axis, int) else axis
    chosen = {axis_of(a, rank, what) for a in given}
    te.require(len(chosen) == len(given), f"the axes {given} of {what} are not distinct")
    return tuple(a for a in range(rank) if (a in chosen) != exclude)


def require_rank(x: te.Tensor, rank: int, what: str) -> None:
    te.require(x.ndim == rank, f"{what} must have rank {rank}, not {x.ndim}")


def require_float(x: te.Tensor, op: str) -> None:
    te.require(is_float(x.dtype), f"{op} needs a floating-point tensor, not {x.dtype}: cast it")


def require_integer(x: te.Tensor, what: str) -> None:
    te.require(is_integer(x.dtype), f"{what} must be an integer tensor, not {x.dtype}")


def require_number(x: te.Tensor, op: str) -> None:
    te.require(x.dtype != "bool", f"{op} is not defined on bool: cast it")


def require_same_dtype(op: str, *tensors: te.Tensor) -> str:
    """The one dtype of the operands."""
    first = tensors[0].dtype
    for t in tensors[1:]:
        te.require(
            t.dtype == first,
            f"the operands of {op} must have one dtype, not {first} and {t.dtype}: cast one of them "
            "(a number says its own: 2f is float32, 2 int32, 2i64 int64; from Python 2.0 and 2)",
        )
    return first


def accumulation_dtype(dtype: str) -> str:
    """The dtype in which an operator on ``dtype`` keeps its intermediate results: float32 for the 16-bit floats."""
    return numeric.compute_dtype(dtype) if is_float(dtype) else dtype


def least(dtype: str) -> te.Const:
    """The least value of a dtype as a literal."""
    return te.const(numeric.least(dtype).astype(object).item(), dtype)


def greatest(dtype: str) -> te.Const:
    """The greatest value of a dtype as a literal."""
    return te.const(numeric.greatest(dtype).astype(object).item(), dtype)


def elementwise(x: te.Tensor, body: Callable[[te.Scalar], te.Scalar], name: str) -> te.Tensor:
    """A tensor of the shape of ``x`` with ``body`` of each element."""
    return te.compute(x.shape, lambda *i: body(x[i]), name)


def zero(dtype: str) -> te.Const:
    return te.const(0, dtype)


def index64(x: te.Scalar) -> te.Scalar:
    """An element of an index tensor as an index; one of 2**63 or more, which lies behind every axis, as 2**63 - 1."""
    if x.dtype == "uint64":
        x = te.minimum(x, te.const(2**63 - 1, "uint64"))
    return te.cast(x, "int64")


def clipped(index: te.Scalar, extent: Dim) -> te.Scalar:
    """The index moved to the nearest one in ``[0, extent)``."""
    return te.minimum(te.maximum(index, 0), te.size(extent) - 1)


def wrapped(index: te.Scalar, extent: Dim) -> te.Scalar:
    """The index modulo the extent, both int64."""
    if index.dtype == "uint64":
        return te.cast(index % te.cast(te.size(extent), "uint64"), "int64")
    return index64(index) % te.size(extent)


# -- row-major orders


def ravel(indices: Sequence[te.Scalar], shape: Sequence[Dim]) -> te.Scalar:
    """The row-major position of an index of a shape."""
    position: te.Scalar | None = None
    for index, dim in zip(indices, shape, strict=True):
        if dim != 1:
            position = index if position is None else position * te.size(dim) + index
    return te.const(0, "int64") if position is None else position


def unravel(position: te.Scalar, shape: Sequence[Dim]) -> list[te.Scalar]:
    """The index of a shape at a row-major position."""
    out: list[te.Scalar] = []
    strides: list[Dim] = [1]
    for dim in reversed(shape[1:]):
        strides.append(dim_mul(strides[-1], dim))
    for n, (dim, stride) in enumerate(zip(shape, reversed(strides), strict=False)):
        index = position if stride == 1 else position // te.size(stride)
        if dim == 1:
            out.append(te.const(0, "int64"))
        else:
            out.append(index if n == 0 else index % te.size(dim))
    return out


def reshaped_index(indices: Sequence[te.Scalar], old: Sequence[Dim], new: Sequence[Dim]) -> list[te.Scalar]:
    """The index in shape ``old`` of the element at an index of shape ``new``, both row-major and of one size.

    Runs of axes with equal products are matched, so that splitting an axis is affine and untouched axes stay as they are.
    """
    out: list[te.Scalar] = []
    a = b = 0
    while a < len(old) or b < len(new):
        a_end, b_end = _run(old, new, a, b)
        group, indexes = old[a:a_end], indices[b:b_end]
        kept = [n for n, d in enumerate(group) if d != 1]
        position = ravel(indexes, new[b:b_end])
        found = unravel(position, [group[n] for n in kept])
        at: list[te.Scalar] = [te.const(0, "int64")] * len(group)
        for n, index in zip(kept, found, strict=True):
            at[n] = index
        out += at
        a, b = a_end, b_end
    return out


def _run(old: Sequence[Dim], new: Sequence[Dim], a: int, b: int) -> tuple[int, int]:
    """The ends of the shortest runs from ``a`` and ``b`` whose products are known to be equal; all that is left otherwise."""
    left: list[Dim] = []
    product: Dim = 1
    for dim in old[a:]:
        product = dim_mul(product, dim)
        left.append(product)
    product = 1
    right: list[Dim] = []
    for dim in new[b:]:
        product = dim_mul(product, dim)
        right.append(product)
    for m, x in enumerate(left):
        for n, y in enumerate(right):
            if x != 1 and known_equal(x, y):
                return a + m + 1, b + n + 1
    return len(old), len(new)
