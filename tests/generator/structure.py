"""Shape operators, tensors made from nothing, indexing, and results whose sizes depend on data."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from relay.ir.dim import as_dim, dim_add
from relay.ir.expr import Proj, Tuple
from relay.op.build import call, constant
from tests.generator.kinds import Size, T
from tests.generator.productions import Built, anything, number, rule, scalar

if TYPE_CHECKING:
    from tests.generator.generator import Generator, Scope


# -- shapes


def _factored(g: Generator, t: T) -> tuple[T, bool] | None:
    """Another shape of the same elements, and whether ``-1`` can stand for the one symbolic size."""
    shape = t.shape
    kind = g.choices.between(0, 3)
    if kind == 0:
        at = g.choices.between(0, len(shape))
        return t.sized(*shape[:at], 1, *shape[at:]), True
    numbers = [n for n in range(len(shape) - 1) if isinstance(shape[n], int) and isinstance(shape[n + 1], int)]
    if kind == 1 and numbers:
        at = g.choices.pick(numbers)
        return t.sized(*shape[:at], int(shape[at]) * int(shape[at + 1]), *shape[at + 2 :]), True
    fours = [n for n, x in enumerate(shape) if x == 4]
    if kind == 2 and fours:
        at = g.choices.pick(fours)
        return t.sized(*shape[:at], 2, 2, *shape[at + 1 :]), True
    if t.static and len(shape) > 1:
        return t.sized(*shape[::-1]), True
    return None


@rule("reshape", lambda t: len(t.shape) <= 3 and sum(not isinstance(x, int) for x in t.shape) <= 1)
def _reshape(g: Generator, t: T, s: Scope, d: int) -> Built:
    found = _factored(g, t)
    if found is None:
        return None
    source, _ = found
    newshape: tuple[int, ...] = tuple(x if isinstance(x, int) else -1 for x in t.shape)
    if t.static and newshape and g.choices.chance(30):
        newshape = (-1, *newshape[1:])
    if g.choices.chance(20):
        return call("reshape_like", g.expr(source, s, d), g.expr(T(t.shape, "float32"), s, 0)), 0.0
    return call("reshape", g.expr(source, s, d), newshape=newshape), 0.0


@rule("squeeze", lambda t: len(t.shape) <= 3)
def _squeeze(g: Generator, t: T, s: Scope, d: int) -> Built:
    at = g.choices.between(0, len(t.shape))
    return call("squeeze", g.expr(t.sized(*t.shape[:at], 1, *t.shape[at:]), s, d), axis=(at,)), 0.0


@rule("expand_dims", lambda t: 1 in t.shape)
def _expand_dims(g: Generator, t: T, s: Scope, d: int) -> Built:
    at = t.shape.index(1)
    return call("expand_dims", g.expr(t.sized(*t.shape[:at], *t.shape[at + 1 :]), s, d), axis=at), 0.0


@rule("nn.batch_flatten", lambda t: len(t.shape) == 2 and t.shape[1] == 4)
def _flatten(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("nn.batch_flatten", g.expr(t.sized(t.shape[0], 2, 2), s, d)), 0.0


@rule("transpose", lambda t: len(t.shape) >= 2)
def _transpose(g: Generator, t: T, s: Scope, d: int) -> Built:
    rank = len(t.shape)
    if rank == 2 or g.choices.chance(40):
        return call("transpose", g.expr(t.sized(*t.shape[::-1]), s, d)), 0.0
    axes = (1, 0, *range(2, rank)) if g.choices.chance(50) else (*range(1, rank), 0)
    source: list[Size] = [0] * rank
    for to, axis in enumerate(axes):
        source[axis] = t.shape[to]
    return call("transpose", g.expr(t.sized(*source), s, d), axes=axes), 0.0


@rule("reverse", lambda t: len(t.shape) >= 1)
def _reverse(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("reverse", g.expr(t, s, d), axis=g.choices.between(0, len(t.shape) - 1)), 0.0


def _wide(t: T) -> int | None:
    """An axis of a known size of two or more."""
    for n, x in enumerate(t.shape):
        if isinstance(x, int) and x >= 2:
            return n
    return None


@rule("concatenate", lambda t: _wide(t) is not None)
def _concatenate(g: Generator, t: T, s: Scope, d: int) -> Built:
    axis = _wide(t)
    assert axis is not None
    size = t.shape[axis]
    assert isinstance(size, int)
    first = g.choices.between(1, size - 1)
    parts = [t.sized(*t.shape[:axis], n, *t.shape[axis + 1 :]) for n in (first, size - first)]
    return call("concatenate", Tuple(tuple(g.expr(p, s, d) for p in parts)), axis=axis), 0.0


@rule("stack", lambda t: 2 in t.shape)
def _stack(g: Generator, t: T, s: Scope, d: int) -> Built:
    axis = t.shape.index(2)
    part = t.sized(*t.shape[:axis], *t.shape[axis + 1 :])
    return call("stack", Tuple((g.expr(part, s, d), g.expr(part, s, d))), axis=axis), 0.0


@rule("split", lambda t: any(isinstance(x, int) for x in t.shape))
def _split(g: Generator, t: T, s: Scope, d: int) -> Built:
    axis = g.choices.pick([n for n, x in enumerate(t.shape) if isinstance(x, int)])
    size = t.shape[axis]
    assert isinstance(size, int)
    if g.choices.chance(50):
        source = t.sized(*t.shape[:axis], 2 * size, *t.shape[axis + 1 :])
        return Proj(call("split", g.expr(source, s, d), indices_or_sections=2, axis=axis), g.choices.between(0, 1)), 0.0
    source = t.sized(*t.shape[:axis], size + 2, *t.shape[axis + 1 :])
    return Proj(call("split", g.expr(source, s, d), indices_or_sections=(1, size + 1), axis=axis), 1), 0.0


@rule("strided_slice", lambda t: any(isinstance(x, int) for x in t.shape))
def _strided_slice(g: Generator, t: T, s: Scope, d: int) -> Built:
    axis = g.choices.pick([n for n, x in enumerate(t.shape) if isinstance(x, int)])
    size = t.shape[axis]
    assert isinstance(size, int)
    begin, stride = g.choices.between(0, 1), g.choices.between(1, 2)
    source = t.sized(*t.shape[:axis], begin + stride * size, *t.shape[axis + 1 :])
    made = call(
        "strided_slice",
        g.expr(source, s, d),
        begin=(begin,),
        end=(begin + stride * size,),
        strides=(stride,),
        axes=(axis,),
    )
    return made, 0.0


@rule("slice_like", lambda t: len(t.shape) == 2 and t.static)
def _slice_like(g: Generator, t: T, s: Scope, d: int) -> Built:
    bigger = t.sized(*(int(x) + 1 for x in t.shape))
    return call("slice_like", g.expr(bigger, s, d), g.expr(T(t.shape, "int32"), s, 0)), 0.0


@rule("tile", lambda t: len(t.shape) >= 1 and isinstance(t.shape[0], int) and t.shape[0] % 2 == 0)
def _tile(g: Generator, t: T, s: Scope, d: int) -> Built:
    half = t.sized(int(t.shape[0]) // 2, *t.shape[1:])
    if g.choices.chance(50):
        return call("repeat", g.expr(half, s, d), repeats=2, axis=0), 0.0
    return call("tile", g.expr(half, s, d), reps=(2, *(1 for _ in t.shape[1:]))), 0.0


@rule("nn.pad", lambda t: number(t) and _wide(t) is not None)
def _pad(g: Generator, t: T, s: Scope, d: int) -> Built:
    axis = _wide(t)
    assert axis is not None
    inner = t.sized(*t.shape[:axis], int(t.shape[axis]) - 1, *t.shape[axis + 1 :])
    before = g.choices.between(0, 1)
    widths = tuple((before, 1 - before) if n == axis else (0, 0) for n in range(len(t.shape)))
    return call("nn.pad", g.expr(inner, s, d), pad_width=widths), 0.0


# -- making and indexing tensors


@rule("full", lambda t: t.static)
def _full(g: Generator, t: T, s: Scope, d: int) -> Built:
    kind = g.choices.between(0, 2)
    if kind == 0:
        return call(g.choices.pick(("zeros", "ones")), shape=t.shape, dtype=t.dtype), 1.0
    if kind == 1 and t.dtype != "bool":
        return call("full", g.expr(t.sized(), s, d), shape=t.shape, dtype=t.dtype), 0.0
    return call(g.choices.pick(("zeros_like", "ones_like")), g.expr(t, s, 0)), 1.0


@rule("full_like", anything)
def _full_like(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("full_like", g.expr(t, s, 0), g.expr(t.sized(), s, d)), 0.0


@rule("arange", lambda t: len(t.shape) == 1 and t.static and number(t), 3)
def _arange(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("arange", start=0, stop=int(t.shape[0]), step=1, dtype=t.dtype), 6.0


@rule("shape_of", lambda t: len(t.shape) == 1 and t.shape[0] in (2, 3) and t.dtype in ("int32", "int64"), 4)
def _shape_of(g: Generator, t: T, s: Scope, d: int) -> Built:
    source = T(("n", 4)) if t.shape[0] == 2 and "n" in g.dims else T((2, 3) if t.shape[0] == 2 else (2, 3, 4))
    return call("shape_of", g.expr(source, s, 0), dtype=t.dtype), 5.0


@rule("ndarray_size", lambda t: t.shape == () and t.dtype in ("int32", "int64"))
def _ndarray_size(g: Generator, t: T, s: Scope, d: int) -> Built:
    source = T(("n",)) if "n" in g.dims else T((2, 3))
    return call("ndarray_size", g.expr(source, s, 0), dtype=t.dtype), 6.0


@rule("size_of", lambda t: t.shape == () and t.dtype in ("int32", "int64", "float32", "float64"))
def _size_of(g: Generator, t: T, s: Scope, d: int) -> Built:
    size = dim_add(as_dim(g.dims["n"]), 1) if "n" in g.dims else 3
    return call("size_of", size=size, dtype=t.dtype), 9.0


@rule("take", lambda t: len(t.shape) >= 1)
def _take(g: Generator, t: T, s: Scope, d: int) -> Built:
    size = g.choices.between(2, 4)
    indices = g.index(t.shape[:1], size, s, d, g.choices.pick(("int32", "int64")))
    mode = g.choices.pick(("clip", "wrap"))
    return call("take", g.expr(t.sized(size, *t.shape[1:]), s, d), indices, axis=0, mode=mode), 0.0


@rule("gather", lambda t: len(t.shape) >= 1)
def _gather(g: Generator, t: T, s: Scope, d: int) -> Built:
    axis = g.choices.between(0, len(t.shape) - 1)
    source = t.sized(*t.shape[:axis], 3, *t.shape[axis + 1 :])
    return call("gather", g.expr(source, s, d), g.index(t.shape, 3, s, d), axis=axis), 0.0


@rule("gather_nd", lambda t: len(t.shape) == 1)
def _gather_nd(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("gather_nd", g.expr(t.sized(2, 2), s, d), g.index((2, *t.shape), 2, s, d)), 0.0


@rule("segment_sum", lambda t: len(t.shape) >= 1 and isinstance(t.shape[0], int) and number(t))
def _segment_sum(g: Generator, t: T, s: Scope, d: int) -> Built:
    rows = g.expr(t.sized(4, *t.shape[1:]), s, d)
    return call("segment_sum", rows, g.index((4,), 4, s, d), num_segments=t.shape[0]), 1.0


@rule("scatter_elements", lambda t: len(t.shape) >= 1 and number(t))
def _scatter_elements(g: Generator, t: T, s: Scope, d: int) -> Built:
    reduction = g.choices.pick(("update", "add", "min", "max"))
    operands = g.expr(t, s, d), g.index(t.shape, 3, s, d), g.expr(t, s, d)
    return call("scatter_elements", *operands, axis=0, reduction=reduction), 1.0


@rule("one_hot", lambda t: len(t.shape) >= 1 and isinstance(t.shape[-1], int) and number(t))
def _one_hot(g: Generator, t: T, s: Scope, d: int) -> Built:
    depth = t.shape[-1]
    assert isinstance(depth, int)
    on, off = scalar(1, t.dtype), scalar(0, t.dtype)
    return call("one_hot", g.index(t.shape[:-1], depth, s, d), on, off, depth=depth, axis=-1, dtype=t.dtype), 1.0


@rule("sequence_mask", lambda t: len(t.shape) == 2 and number(t))
def _sequence_mask(g: Generator, t: T, s: Scope, d: int) -> Built:
    lengths = g.index((t.shape[1],), 4, s, d)
    return call("sequence_mask", g.expr(t, s, d), lengths, mask_value=1.0), 0.0


for _name in ("tril", "triu"):

    @rule(_name, lambda t: len(t.shape) == 2 and number(t))
    def _triangle(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        return call(name, g.expr(t, s, d), k=g.choices.between(-1, 1)), 0.0


# -- results whose sizes depend on data, brought back to a known size


@rule("unique", lambda t: t.shape == () and t.dtype in ("int32", "int64"), 6)
def _unique(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("sum", call("unique", g.expr(t.sized(4), s, d))), 32.0


@rule("argwhere", lambda t: t.shape == () and t.dtype == "int32", 6)
def _argwhere(g: Generator, t: T, s: Scope, d: int) -> Built:
    where = call("argwhere", g.expr(T(g.choices.pick(((4,), (2, 3))), "bool"), s, d))
    return call("cast", call("sum", where), dtype="int32"), 64.0


@rule("dyn.arange", lambda t: t.shape == () and t.dtype == "int32", 6)
def _dyn_arange(g: Generator, t: T, s: Scope, d: int) -> Built:
    stop = g.index((), 6, s, d)
    made = call("dyn.arange", scalar(0, "int32"), stop, scalar(1, "int32"), dtype="int32")
    return call("sum", call("multiply", made, made)), 64.0


@rule("dyn.reshape", lambda t: t.shape == (2, 3), 3)
def _dyn_reshape(g: Generator, t: T, s: Scope, d: int) -> Built:
    shape = constant(np.array([2, 3], np.int64))
    loose = call("dyn.reshape", g.expr(t.sized(3, 2), s, d), shape)
    return call("reshape_like", loose, g.literal(t)), 0.0


for _name in ("sort", "argsort"):

    @rule(_name, lambda t: len(t.shape) == 1 and t.static and t.dtype in ("float32", "int32") and t.exact, 5)
    def _sorted(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        if name == "argsort":
            if t.dtype != "int32":
                return None
            return call("argsort", g.expr(t, s, d), axis=-1, is_ascend=True, dtype="int32"), 5.0
        return call("sort", g.expr(t, s, d), axis=-1, is_ascend=g.choices.chance(50)), 0.0
