"""How each operator can give a tensor of a wanted type, and how far the result can reach.

A production applies to some types and builds an expression together with a bound of its magnitude, given that its operands
are tame. Operators whose results jump (comparisons, rounding, casts to integers) get exact operands only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from relay.ir.expr import Expr, Proj, Tuple
from relay.op.build import call, constant
from relay.te.numeric import numpy_dtype
from tests.generator.kinds import DTYPES, FLOATS, INTS, Fn, Size, T

if TYPE_CHECKING:
    from tests.generator.generator import Generator, Scope

Built = tuple[Expr, float] | None
Builder = Callable[["Generator", T, "Scope", int], Built]
INFINITE = 1e9


@dataclass(frozen=True, slots=True)
class Production:
    """One way to make a tensor."""

    name: str
    applies: Callable[[T], bool]
    build: Builder
    weight: int = 1  # how often it is taken among those that apply: more for what applies rarely


PRODUCTIONS: list[Production] = []
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


def _rule(name: str, applies: Callable[[T], bool], weight: int = 1) -> Callable[[Builder], Builder]:
    def add(build: Builder) -> Builder:
        PRODUCTIONS.append(Production(name, applies, build, weight))
        return build

    return add


def _smooth(t: T) -> bool:
    """A float that need not be exact."""
    return t.is_float and not t.exact


def _signed(t: T) -> bool:
    return t.dtype not in ("bool", "uint8")


def _number(t: T) -> bool:
    return t.dtype != "bool"


def _integer(t: T) -> bool:
    return t.dtype in INTS


def _ranked(low: int, high: int = 4) -> Callable[[T], bool]:
    return lambda t: low <= len(t.shape) <= high


def _scalar(value: float, dtype: str) -> Expr:
    return constant(np.array(value, numpy_dtype(dtype)))


def _reach(t: T) -> float:
    from tests.generator.generator import limit

    return limit(t)


# -- elementwise

for _name, _bound in (
    ("tanh", 1.0), ("sigmoid", 1.0), ("erf", 1.0), ("sin", 1.0), ("cos", 1.0), ("atan", 2.0), ("nn.gelu", 8.0), ("nn.silu", 8.0),
):  # fmt: skip
    _rule(_name, _smooth)(lambda g, t, s, d, name=_name, bound=_bound: (call(name, g.expr(t, s, d)), bound))

for _name, _bound in (("exp", 2.8), ("sinh", 1.2), ("cosh", 1.6), ("tan", 1.6), ("expm1", 1.8)):
    _rule(_name, _smooth)(
        lambda g, t, s, d, name=_name, bound=_bound: (call(name, call("tanh", g.expr(t, s, d))), bound)
    )

for _name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt"):

    @_rule(_name, _smooth)
    def _positive(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        x = call("add", call("abs", g.expr(t, s, d)), _scalar(0.5, t.dtype))
        return call(name, x), 4.0


for _name in ("asin", "acos"):
    _rule(_name, _smooth)(
        lambda g, t, s, d, name=_name: (
            call(name, call("multiply", call("tanh", g.expr(t, s, d)), _scalar(0.5, t.dtype))),
            3.2,
        )
    )

for _name in ("negative", "abs"):
    _rule(_name, _signed)(lambda g, t, s, d, name=_name: (call(name, g.expr(t, s, d)), 0.0))

for _name in ("floor", "ceil", "round", "trunc", "sign"):
    _rule(_name, lambda t: t.is_float, 2)(lambda g, t, s, d, name=_name: (call(name, g.expr(t.exactly(), s, d)), 0.0))

_rule("nn.relu", _signed)(lambda g, t, s, d: (call("nn.relu", g.expr(t, s, d)), 0.0))
_rule("nn.leaky_relu", _smooth)(lambda g, t, s, d: (call("nn.leaky_relu", g.expr(t, s, d), alpha=0.1), 0.0))
_rule("copy", lambda t: True)(lambda g, t, s, d: (call("copy", g.expr(t, s, d)), 0.0))
_rule("clip", _number)(
    lambda g, t, s, d: (call("clip", g.expr(t, s, d), a_min=0.0, a_max=float(g.choices.between(1, 4))), 0.0)
)
_rule("nn.dropout", lambda t: t.is_float)(lambda g, t, s, d: (Proj(call("nn.dropout", g.expr(t, s, d)), 0), 0.0))
_rule("bitwise_not", lambda t: t.dtype in ("int32", "int64", "int8", "int16"))(
    lambda g, t, s, d: (call("bitwise_not", g.expr(t, s, d)), 9.0)
)
_rule("logical_not", lambda t: t.dtype == "bool")(lambda g, t, s, d: (call("logical_not", g.expr(t, s, d)), 0.0))
for _name in ("isnan", "isfinite", "isinf"):
    _rule(_name, lambda t: t.dtype == "bool")(
        lambda g, t, s, d, name=_name: (call(name, g.expr(T(t.shape, g.choices.pick(FLOATS), False), s, d)), 0.0)
    )


@_rule("cast", lambda t: True)
def _cast(g: Generator, t: T, s: Scope, d: int) -> Built:
    source = T(t.shape, g.choices.pick(DTYPES), exact=not _smooth(t))
    if _smooth(t) and source.dtype in ("float16", "bfloat16") and t.dtype not in ("float16", "bfloat16"):
        source = source.exactly()  # otherwise half precision's error would be held against single precision's tolerance
    if source.dtype == t.dtype:
        return None
    return g.converted(g.expr(source, s, d), source.dtype, t.dtype), 8.0


@_rule("cast int4", _integer)
def _int4(g: Generator, t: T, s: Scope, d: int) -> Built:
    small = call("clip", g.expr(t, s, d), a_min=0.0, a_max=7.0)
    return call("cast", call("cast", small, dtype=g.choices.pick(("int4", "uint4"))), dtype=t.dtype), 7.0


@_rule("cast_like", lambda t: True)
def _cast_like(g: Generator, t: T, s: Scope, d: int) -> Built:
    source = T(t.shape, "int32" if t.dtype != "uint8" else "bool")
    return call("cast_like", g.expr(source, s, d), g.expr(T((), t.dtype), s, 0)), 8.0


# -- broadcasting


def _operand_shapes(g: Generator, shape: tuple[Size, ...]) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
    """Two shapes that broadcast to this one."""
    cut = g.choices.between(0, len(shape)) if g.choices.chance(30) else 0
    thin = tuple(1 if g.choices.chance(20) else x for x in shape[cut:])
    return (shape, thin) if g.choices.chance(50) else (thin, shape)


def _pair(g: Generator, t: T, s: Scope, d: int) -> tuple[Expr, Expr]:
    a, b = _operand_shapes(g, t.shape)
    return g.expr(t.sized(*a), s, d), g.expr(t.sized(*b), s, d)


for _name in ("maximum", "minimum"):
    _rule(_name, _number)(lambda g, t, s, d, name=_name: (call(name, *_pair(g, t, s, d)), 0.0))
_rule("add", _number)(lambda g, t, s, d: (call("add", *_pair(g, t, s, d)), 16.0))
_rule("subtract", _signed)(lambda g, t, s, d: (call("subtract", *_pair(g, t, s, d)), 16.0))
_rule("multiply", lambda t: _number(t) and (not t.is_float or not t.exact))(
    lambda g, t, s, d: (call("multiply", *_pair(g, t, s, d)), _reach(t) ** 2)
)


@_rule("divide", _smooth)
def _divide(g: Generator, t: T, s: Scope, d: int) -> Built:
    a, b = _pair(g, t, s, d)
    return call("divide", a, call("add", call("abs", b), _scalar(1.0, t.dtype))), 0.0


@_rule("power", _smooth)
def _power(g: Generator, t: T, s: Scope, d: int) -> Built:
    a, b = _pair(g, t, s, d)
    return call("power", call("add", call("abs", call("tanh", a)), _scalar(0.5, t.dtype)), call("tanh", b)), 2.0


for _name in ("floor_divide", "mod", "floor_mod", "divide"):

    @_rule(_name, _integer, 3)
    def _quotient(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        a, b = _pair(g, t, s, d)
        return call(name, a, call("maximum", b, _scalar(g.choices.between(1, 4), t.dtype))), 9.0


for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    _rule(_name, _integer)(lambda g, t, s, d, name=_name: (call(name, *_pair(g, t, s, d)), 16.0))
for _name in ("left_shift", "right_shift"):
    _rule(_name, _integer)(
        lambda g, t, s, d, name=_name: (call(name, g.expr(t, s, d), _scalar(g.choices.between(0, 2), t.dtype)), 33.0)
    )
for _name in ("logical_and", "logical_or", "logical_xor"):
    _rule(_name, lambda t: t.dtype == "bool")(lambda g, t, s, d, name=_name: (call(name, *_pair(g, t, s, d)), 0.0))
for _name in COMPARISONS:

    @_rule(_name, lambda t: t.dtype == "bool", 2)
    def _compared(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        return comparison(g, name, t.shape, s, d), 0.0


def comparison(g: Generator, name: str, shape: tuple[Size, ...], s: Scope, d: int) -> Expr:
    """A comparison of exact operands, often of equal ones here and there."""
    t = T(shape, g.choices.pick(DTYPES[:-1]))
    a, b = _pair(g, t, s, d)
    if g.choices.chance(40):
        b = call("minimum", a, b)
        return call(name, a, b) if g.choices.chance(50) else call(name, b, a)
    return call(name, a, b)


@_rule("where", lambda t: True)
def _where(g: Generator, t: T, s: Scope, d: int) -> Built:
    a, b = _operand_shapes(g, t.shape)
    return call("where", g.expr(T(a, "bool"), s, d), g.expr(t, s, d), g.expr(t.sized(*b), s, d)), 0.0


@_rule("broadcast_to", lambda t: t.static and len(t.shape) > 0)
def _broadcast_to(g: Generator, t: T, s: Scope, d: int) -> Built:
    thin = t.sized(*(1 if g.choices.chance(50) else x for x in t.shape))
    if g.choices.chance(30):
        return call("broadcast_to_like", g.expr(thin, s, d), g.expr(T(t.shape, "int32"), s, 0)), 0.0
    return call("broadcast_to", g.expr(thin, s, d), shape=t.shape), 0.0


@_rule("nn.bias_add", lambda t: _number(t) and len(t.shape) >= 2)
def _bias_add(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("nn.bias_add", g.expr(t, s, d), g.expr(t.sized(t.shape[1]), s, d), axis=1), 16.0


@_rule("nn.prelu", lambda t: _smooth(t) and len(t.shape) >= 2)
def _prelu(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("nn.prelu", g.expr(t, s, d), g.expr(t.sized(t.shape[1]), s, d), axis=1), _reach(t) ** 2


# -- reductions


def _reduced(g: Generator, t: T, dtype: str, exact: bool) -> tuple[T, dict[str, object]]:
    """A type with one more axis (or one wider axis), and the attributes that reduce it again."""
    sizes: list[Size] = [2, 3, 4]
    sizes += sorted(g.dims) + sorted(g.unknowns)
    extra = g.choices.pick(sizes)
    ones = [n for n, x in enumerate(t.shape) if x == 1]
    if ones and g.choices.chance(60):
        axis = g.choices.pick(ones)
        shape = (*t.shape[:axis], extra, *t.shape[axis + 1 :])
        return T(shape, dtype, exact), {"axis": axis, "keepdims": True}
    axis = g.choices.between(0, len(t.shape))
    shape = (*t.shape[:axis], extra, *t.shape[axis:])
    return T(shape, dtype, exact), {"axis": axis if g.choices.chance(50) else axis - len(shape)}


for _name in ("max", "min"):

    @_rule(_name, lambda t: _number(t) and len(t.shape) <= 3)
    def _extreme(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        source, attrs = _reduced(g, t, t.dtype, t.exact)
        return call(name, g.expr(source, s, d), **attrs), 0.0


@_rule("sum", lambda t: _number(t) and len(t.shape) <= 3 and not (t.dtype == "bfloat16" and t.exact))
def _sum(g: Generator, t: T, s: Scope, d: int) -> Built:
    source, attrs = _reduced(g, t, t.dtype, t.exact)
    return call("sum", g.expr(source, s, d), **attrs), 40.0


@_rule("prod", lambda t: _smooth(t) and len(t.shape) <= 3)
def _prod(g: Generator, t: T, s: Scope, d: int) -> Built:
    source, attrs = _reduced(g, t, t.dtype, False)
    return call("prod", call("tanh", g.expr(source, s, d)), **attrs), 1.0


for _name, _far in (("mean", 8.0), ("variance", 64.0), ("logsumexp", 10.0)):

    @_rule(_name, lambda t: _smooth(t) and len(t.shape) <= 3)
    def _statistic(g: Generator, t: T, s: Scope, d: int, name: str = _name, far: float = _far) -> Built:
        source, attrs = _reduced(g, t, t.dtype, False)
        return call(name, g.expr(source, s, d), **attrs), far


for _name in ("all", "any"):

    @_rule(_name, lambda t: t.dtype == "bool" and len(t.shape) <= 3)
    def _quantified(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        source, attrs = _reduced(g, t, "bool", True)
        return call(name, g.expr(source, s, d), **attrs), 0.0


for _name in ("argmax", "argmin"):

    @_rule(_name, lambda t: t.dtype == "int32" and len(t.shape) <= 3)
    def _position(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        source, attrs = _reduced(g, t, g.choices.pick(("float32", "int32", "int8", "float64")), True)
        return call(name, g.expr(source, s, d), **attrs), 5.0


for _name in ("cumsum", "cumprod"):

    @_rule(_name, lambda t: _number(t) and len(t.shape) >= 1 and t.dtype != "bfloat16" and (_integer(t) or _smooth(t)))
    def _running(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        x = g.expr(t, s, d)
        if name == "cumprod":
            x = call("clip", x, a_min=0.0, a_max=1.0)
        return call(name, x, axis=g.choices.between(0, len(t.shape) - 1)), 40.0 if name == "cumsum" else 1.0


# -- normalisation and matrices


for _name, _far in (("nn.softmax", 1.0), ("nn.log_softmax", 20.0)):

    @_rule(_name, lambda t: _smooth(t) and len(t.shape) >= 1)
    def _softmax(g: Generator, t: T, s: Scope, d: int, name: str = _name, far: float = _far) -> Built:
        return call(name, g.expr(t, s, d), axis=g.choices.pick((-1, 0))), far


@_rule("nn.layer_norm", lambda t: _smooth(t) and len(t.shape) >= 1)
def _layer_norm(g: Generator, t: T, s: Scope, d: int) -> Built:
    channel = t.sized(t.shape[-1])
    return call("nn.layer_norm", g.expr(t, s, d), g.expr(channel, s, 0), g.expr(channel, s, 0), epsilon=0.5), 30.0


@_rule("nn.batch_norm", lambda t: _smooth(t) and len(t.shape) >= 2)
def _batch_norm(g: Generator, t: T, s: Scope, d: int) -> Built:
    channel = t.sized(t.shape[1])
    mean = g.expr(channel, s, 0)
    variance = call("abs", g.expr(channel, s, 0))
    made = call(
        "nn.batch_norm", g.expr(t, s, d), g.expr(channel, s, 0), g.expr(channel, s, 0), mean, variance, epsilon=0.5
    )
    return Proj(made, 0), INFINITE


@_rule("nn.l2_normalize", lambda t: _smooth(t) and len(t.shape) >= 1)
def _l2_normalize(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("nn.l2_normalize", g.expr(t, s, d), eps=0.5, axis=(len(t.shape) - 1,)), 8.0


def _matrix_dtype(t: T) -> bool:
    return _smooth(t) or t.dtype in ("int32", "int64")


@_rule("nn.dense", lambda t: len(t.shape) == 2 and _matrix_dtype(t), 4)
def _dense(g: Generator, t: T, s: Scope, d: int) -> Built:
    k = g.choices.pick((3, 4, 8))
    return call("nn.dense", g.expr(t.sized(t.shape[0], k), s, d), g.expr(t.sized(t.shape[1], k), s, d)), INFINITE


@_rule("nn.matmul", lambda t: len(t.shape) == 2 and _matrix_dtype(t), 4)
def _matmul(g: Generator, t: T, s: Scope, d: int) -> Built:
    k = g.choices.pick((2, 3, 4))
    a, b = (t.shape[0], k), (k, t.shape[1])
    ta, tb = g.choices.chance(30), g.choices.chance(30)
    left = g.expr(t.sized(*(a[::-1] if ta else a)), s, d)
    right = g.expr(t.sized(*(b[::-1] if tb else b)), s, d)
    return call("nn.matmul", left, right, transpose_a=ta, transpose_b=tb), INFINITE


@_rule("nn.batch_matmul", lambda t: len(t.shape) == 3 and _matrix_dtype(t), 6)
def _batch_matmul(g: Generator, t: T, s: Scope, d: int) -> Built:
    b, m, n = t.shape
    tb = g.choices.chance(50)
    right = t.sized(b, n, 3) if tb else t.sized(b, 3, n)
    return call("nn.batch_matmul", g.expr(t.sized(b, m, 3), s, d), g.expr(right, s, d), transpose_b=tb), INFINITE


@_rule("nn.conv2d", lambda t: len(t.shape) == 4 and isinstance(t.shape[1], int) and _smooth(t), 12)
def _conv2d(g: Generator, t: T, s: Scope, d: int) -> Built:
    n, c, h, w = t.shape
    size = g.choices.pick((1, 3))
    data = g.expr(t.sized(n, 2, h, w), s, d)
    weight = g.expr(T((c, 2, size, size), t.dtype, False), s, 0)
    made = call("nn.conv2d", data, weight, channels=c, kernel_size=(size, size), padding=(size // 2, size // 2))
    return made, INFINITE


for _name in ("nn.max_pool2d", "nn.avg_pool2d"):

    @_rule(_name, lambda t: len(t.shape) == 4 and t.static and _smooth(t), 8)
    def _pool(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        n, c, h, w = (int(x) for x in t.shape)
        data = g.expr(t.sized(n, c, h + 1, w + 1), s, d)
        return call(name, data, pool_size=(2, 2), strides=(1, 1)), 0.0


@_rule("nn.global_avg_pool2d", lambda t: len(t.shape) == 4 and t.shape[2:] == (1, 1) and _smooth(t), 4)
def _global_pool(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("nn.global_avg_pool2d", g.expr(t.sized(*t.shape[:2], 2, 3), s, d)), 0.0


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


@_rule("reshape", lambda t: len(t.shape) <= 3 and sum(not isinstance(x, int) for x in t.shape) <= 1)
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


@_rule("squeeze", lambda t: len(t.shape) <= 3)
def _squeeze(g: Generator, t: T, s: Scope, d: int) -> Built:
    at = g.choices.between(0, len(t.shape))
    return call("squeeze", g.expr(t.sized(*t.shape[:at], 1, *t.shape[at:]), s, d), axis=(at,)), 0.0


@_rule("expand_dims", lambda t: 1 in t.shape)
def _expand_dims(g: Generator, t: T, s: Scope, d: int) -> Built:
    at = t.shape.index(1)
    return call("expand_dims", g.expr(t.sized(*t.shape[:at], *t.shape[at + 1 :]), s, d), axis=at), 0.0


@_rule("nn.batch_flatten", lambda t: len(t.shape) == 2 and t.shape[1] == 4)
def _flatten(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("nn.batch_flatten", g.expr(t.sized(t.shape[0], 2, 2), s, d)), 0.0


@_rule("transpose", _ranked(2))
def _transpose(g: Generator, t: T, s: Scope, d: int) -> Built:
    rank = len(t.shape)
    if rank == 2 or g.choices.chance(40):
        return call("transpose", g.expr(t.sized(*t.shape[::-1]), s, d)), 0.0
    axes = (1, 0, *range(2, rank)) if g.choices.chance(50) else (*range(1, rank), 0)
    source: list[Size] = [0] * rank
    for to, axis in enumerate(axes):
        source[axis] = t.shape[to]
    return call("transpose", g.expr(t.sized(*source), s, d), axes=axes), 0.0


@_rule("reverse", _ranked(1))
def _reverse(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("reverse", g.expr(t, s, d), axis=g.choices.between(0, len(t.shape) - 1)), 0.0


def _wide(t: T) -> int | None:
    """An axis of a known size of two or more."""
    for n, x in enumerate(t.shape):
        if isinstance(x, int) and x >= 2:
            return n
    return None


@_rule("concatenate", lambda t: _wide(t) is not None)
def _concatenate(g: Generator, t: T, s: Scope, d: int) -> Built:
    axis = _wide(t)
    assert axis is not None
    size = t.shape[axis]
    assert isinstance(size, int)
    first = g.choices.between(1, size - 1)
    parts = [t.sized(*t.shape[:axis], n, *t.shape[axis + 1 :]) for n in (first, size - first)]
    return call("concatenate", Tuple(tuple(g.expr(p, s, d) for p in parts)), axis=axis), 0.0


@_rule("stack", lambda t: 2 in t.shape)
def _stack(g: Generator, t: T, s: Scope, d: int) -> Built:
    axis = t.shape.index(2)
    part = t.sized(*t.shape[:axis], *t.shape[axis + 1 :])
    return call("stack", Tuple((g.expr(part, s, d), g.expr(part, s, d))), axis=axis), 0.0


@_rule("split", lambda t: any(isinstance(x, int) for x in t.shape))
def _split(g: Generator, t: T, s: Scope, d: int) -> Built:
    axis = g.choices.pick([n for n, x in enumerate(t.shape) if isinstance(x, int)])
    size = t.shape[axis]
    assert isinstance(size, int)
    if g.choices.chance(50):
        source = t.sized(*t.shape[:axis], 2 * size, *t.shape[axis + 1 :])
        return Proj(call("split", g.expr(source, s, d), indices_or_sections=2, axis=axis), g.choices.between(0, 1)), 0.0
    source = t.sized(*t.shape[:axis], size + 2, *t.shape[axis + 1 :])
    return Proj(call("split", g.expr(source, s, d), indices_or_sections=(1, size + 1), axis=axis), 1), 0.0


@_rule("strided_slice", lambda t: any(isinstance(x, int) for x in t.shape))
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


@_rule("slice_like", lambda t: len(t.shape) == 2 and t.static)
def _slice_like(g: Generator, t: T, s: Scope, d: int) -> Built:
    bigger = t.sized(*(int(x) + 1 for x in t.shape))
    return call("slice_like", g.expr(bigger, s, d), g.expr(T(t.shape, "int32"), s, 0)), 0.0


@_rule("tile", lambda t: len(t.shape) >= 1 and isinstance(t.shape[0], int) and t.shape[0] % 2 == 0)
def _tile(g: Generator, t: T, s: Scope, d: int) -> Built:
    half = t.sized(int(t.shape[0]) // 2, *t.shape[1:])
    if g.choices.chance(50):
        return call("repeat", g.expr(half, s, d), repeats=2, axis=0), 0.0
    return call("tile", g.expr(half, s, d), reps=(2, *(1 for _ in t.shape[1:]))), 0.0


@_rule("nn.pad", lambda t: _number(t) and _wide(t) is not None)
def _pad(g: Generator, t: T, s: Scope, d: int) -> Built:
    axis = _wide(t)
    assert axis is not None
    inner = t.sized(*t.shape[:axis], int(t.shape[axis]) - 1, *t.shape[axis + 1 :])
    before = g.choices.between(0, 1)
    widths = tuple((before, 1 - before) if n == axis else (0, 0) for n in range(len(t.shape)))
    return call("nn.pad", g.expr(inner, s, d), pad_width=widths), 0.0


# -- making and indexing tensors


@_rule("full", lambda t: t.static)
def _full(g: Generator, t: T, s: Scope, d: int) -> Built:
    kind = g.choices.between(0, 2)
    if kind == 0:
        return call(g.choices.pick(("zeros", "ones")), shape=t.shape, dtype=t.dtype), 1.0
    if kind == 1 and t.dtype != "bool":
        return call("full", g.expr(t.sized(), s, d), shape=t.shape, dtype=t.dtype), 0.0
    return call(g.choices.pick(("zeros_like", "ones_like")), g.expr(t, s, 0)), 1.0


@_rule("full_like", lambda t: True)
def _full_like(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("full_like", g.expr(t, s, 0), g.expr(t.sized(), s, d)), 0.0


@_rule("arange", lambda t: len(t.shape) == 1 and t.static and _number(t), 3)
def _arange(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("arange", start=0, stop=int(t.shape[0]), step=1, dtype=t.dtype), 6.0


@_rule("shape_of", lambda t: len(t.shape) == 1 and t.shape[0] in (2, 3) and t.dtype in ("int32", "int64"), 4)
def _shape_of(g: Generator, t: T, s: Scope, d: int) -> Built:
    source = T(("n", 4)) if t.shape[0] == 2 and "n" in g.dims else T((2, 3) if t.shape[0] == 2 else (2, 3, 4))
    return call("shape_of", g.expr(source, s, 0), dtype=t.dtype), 5.0


@_rule("ndarray_size", lambda t: t.shape == () and t.dtype in ("int32", "int64"))
def _ndarray_size(g: Generator, t: T, s: Scope, d: int) -> Built:
    source = T(("n",)) if "n" in g.dims else T((2, 3))
    return call("ndarray_size", g.expr(source, s, 0), dtype=t.dtype), 6.0


@_rule("take", lambda t: len(t.shape) >= 1)
def _take(g: Generator, t: T, s: Scope, d: int) -> Built:
    size = g.choices.between(2, 4)
    indices = g.index(t.shape[:1], size, s, d, g.choices.pick(("int32", "int64")))
    mode = g.choices.pick(("clip", "wrap"))
    return call("take", g.expr(t.sized(size, *t.shape[1:]), s, d), indices, axis=0, mode=mode), 0.0


@_rule("gather", lambda t: len(t.shape) >= 1)
def _gather(g: Generator, t: T, s: Scope, d: int) -> Built:
    axis = g.choices.between(0, len(t.shape) - 1)
    source = t.sized(*t.shape[:axis], 3, *t.shape[axis + 1 :])
    return call("gather", g.expr(source, s, d), g.index(t.shape, 3, s, d), axis=axis), 0.0


@_rule("gather_nd", lambda t: len(t.shape) == 1)
def _gather_nd(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("gather_nd", g.expr(t.sized(2, 2), s, d), g.index((2, *t.shape), 2, s, d)), 0.0


@_rule("one_hot", lambda t: len(t.shape) >= 1 and isinstance(t.shape[-1], int) and _number(t))
def _one_hot(g: Generator, t: T, s: Scope, d: int) -> Built:
    depth = t.shape[-1]
    assert isinstance(depth, int)
    on, off = _scalar(1, t.dtype), _scalar(0, t.dtype)
    return call("one_hot", g.index(t.shape[:-1], depth, s, d), on, off, depth=depth, axis=-1, dtype=t.dtype), 1.0


@_rule("sequence_mask", lambda t: len(t.shape) == 2 and _number(t))
def _sequence_mask(g: Generator, t: T, s: Scope, d: int) -> Built:
    lengths = g.index((t.shape[1],), 4, s, d)
    return call("sequence_mask", g.expr(t, s, d), lengths, mask_value=1.0), 0.0


for _name in ("tril", "triu"):
    _rule(_name, lambda t: len(t.shape) == 2 and _number(t))(
        lambda g, t, s, d, name=_name: (call(name, g.expr(t, s, d), k=g.choices.between(-1, 1)), 0.0)
    )


# -- results whose sizes depend on data, brought back to a known size


@_rule("unique", lambda t: t.shape == () and t.dtype in ("int32", "int64"), 6)
def _unique(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("sum", call("unique", g.expr(t.sized(4), s, d))), 32.0


@_rule("argwhere", lambda t: t.shape == () and t.dtype == "int32", 6)
def _argwhere(g: Generator, t: T, s: Scope, d: int) -> Built:
    where = call("argwhere", g.expr(T(g.choices.pick(((4,), (2, 3))), "bool"), s, d))
    return call("cast", call("sum", where), dtype="int32"), 64.0


@_rule("dyn.arange", lambda t: t.shape == () and t.dtype == "int32", 6)
def _dyn_arange(g: Generator, t: T, s: Scope, d: int) -> Built:
    stop = g.index((), 6, s, d)
    made = call("dyn.arange", _scalar(0, "int32"), stop, _scalar(1, "int32"), dtype="int32")
    return call("sum", call("multiply", made, made)), 64.0


@_rule("dyn.reshape", lambda t: t.shape == (2, 3), 3)
def _dyn_reshape(g: Generator, t: T, s: Scope, d: int) -> Built:
    shape = constant(np.array([2, 3], np.int64))
    loose = call("dyn.reshape", g.expr(t.sized(3, 2), s, d), shape)
    return call("reshape_like", loose, g.literal(t)), 0.0


for _name in ("sort", "argsort"):

    @_rule(_name, lambda t: len(t.shape) == 1 and t.static and t.dtype in ("float32", "int32") and t.exact, 5)
    def _sorted(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        if name == "argsort":
            if t.dtype != "int32":
                return None
            return call("argsort", g.expr(t, s, d), axis=-1, is_ascend=True, dtype="int32"), 5.0
        return call("sort", g.expr(t, s, d), axis=-1, is_ascend=g.choices.chance(50)), 0.0


def candidates(t: T) -> list[Production]:
    """The productions for a type, each as often as its weight."""
    return [p for p in PRODUCTIONS if p.applies(t) for _ in range(p.weight)]


def first_class(g: Fn) -> list[str]:
    """Operators that can be passed as a function of this type."""
    if len(g.params) != 1 or g.params[0] != g.ret or not isinstance(g.ret, T) or g.fuelled:
        return []
    t = g.ret
    names = ["copy"]
    if _signed(t):
        names += ["negative", "nn.relu"]
    if _smooth(t):
        names += ["tanh", "sigmoid"]
    return names
