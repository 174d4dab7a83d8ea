"""Reductions, normalisation, matrix products and convolution."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.ir.expr import Attr, Proj
from relay.op.build import call
from tests.generator.kinds import Size, T
from tests.generator.productions import INFINITE, Built, boolean, integer, number, rule, smooth

if TYPE_CHECKING:
    from tests.generator.generator import Generator, Scope


# -- reductions


def _reduced(g: Generator, t: T, dtype: str, exact: bool) -> tuple[T, dict[str, Attr]]:
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

    @rule(_name, lambda t: number(t) and len(t.shape) <= 3)
    def _extreme(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        source, attrs = _reduced(g, t, t.dtype, t.exact)
        return call(name, g.expr(source, s, d), **attrs), 0.0


@rule("sum", lambda t: number(t) and len(t.shape) <= 3 and not (t.dtype == "bfloat16" and t.exact))
def _sum(g: Generator, t: T, s: Scope, d: int) -> Built:
    source, attrs = _reduced(g, t, t.dtype, t.exact)
    return call("sum", g.expr(source, s, d), **attrs), 40.0


@rule("prod", lambda t: smooth(t) and len(t.shape) <= 3)
def _prod(g: Generator, t: T, s: Scope, d: int) -> Built:
    source, attrs = _reduced(g, t, t.dtype, False)
    return call("prod", call("tanh", g.expr(source, s, d)), **attrs), 1.0


for _name, _far in (("mean", 8.0), ("variance", 64.0), ("logsumexp", 10.0)):

    @rule(_name, lambda t: smooth(t) and len(t.shape) <= 3)
    def _statistic(g: Generator, t: T, s: Scope, d: int, name: str = _name, far: float = _far) -> Built:
        source, attrs = _reduced(g, t, t.dtype, False)
        return call(name, g.expr(source, s, d), **attrs), far


for _name in ("all", "any"):

    @rule(_name, lambda t: boolean(t) and len(t.shape) <= 3)
    def _quantified(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        source, attrs = _reduced(g, t, "bool", True)
        return call(name, g.expr(source, s, d), **attrs), 0.0


for _name in ("argmax", "argmin"):

    @rule(_name, lambda t: t.dtype == "int32" and len(t.shape) <= 3)
    def _position(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        source, attrs = _reduced(g, t, g.choices.pick(("float32", "int32", "int8", "float64")), True)
        return call(name, g.expr(source, s, d), **attrs), 5.0


for _name in ("cumsum", "cumprod"):

    @rule(_name, lambda t: number(t) and len(t.shape) >= 1 and t.dtype != "bfloat16" and (integer(t) or smooth(t)))
    def _running(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        x = g.expr(t, s, d)
        if name == "cumprod":
            x = call("clip", x, a_min=0.0, a_max=1.0)
        return call(name, x, axis=g.choices.between(0, len(t.shape) - 1)), 40.0 if name == "cumsum" else 1.0


# -- normalisation and matrices


for _name, _far in (("nn.softmax", 1.0), ("nn.log_softmax", 20.0)):

    @rule(_name, lambda t: smooth(t) and len(t.shape) >= 1)
    def _softmax(g: Generator, t: T, s: Scope, d: int, name: str = _name, far: float = _far) -> Built:
        return call(name, g.expr(t, s, d), axis=g.choices.pick((-1, 0))), far


@rule("nn.layer_norm", lambda t: smooth(t) and len(t.shape) >= 1)
def _layer_norm(g: Generator, t: T, s: Scope, d: int) -> Built:
    channel = t.sized(t.shape[-1])
    return call("nn.layer_norm", g.expr(t, s, d), g.expr(channel, s, 0), g.expr(channel, s, 0), epsilon=0.5), 30.0


@rule("nn.batch_norm", lambda t: smooth(t) and len(t.shape) >= 2)
def _batch_norm(g: Generator, t: T, s: Scope, d: int) -> Built:
    channel = t.sized(t.shape[1])
    mean = g.expr(channel, s, 0)
    variance = call("abs", g.expr(channel, s, 0))
    made = call(
        "nn.batch_norm", g.expr(t, s, d), g.expr(channel, s, 0), g.expr(channel, s, 0), mean, variance, epsilon=0.5
    )
    return Proj(made, 0), INFINITE


@rule("nn.l2_normalize", lambda t: smooth(t) and len(t.shape) >= 1)
def _l2_normalize(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("nn.l2_normalize", g.expr(t, s, d), eps=0.5, axis=(len(t.shape) - 1,)), 8.0


def _matrix_dtype(t: T) -> bool:
    return smooth(t) or t.dtype in ("int32", "int64")


@rule("nn.dense", lambda t: len(t.shape) == 2 and _matrix_dtype(t), 4)
def _dense(g: Generator, t: T, s: Scope, d: int) -> Built:
    k = g.choices.pick((3, 4, 8))
    return call("nn.dense", g.expr(t.sized(t.shape[0], k), s, d), g.expr(t.sized(t.shape[1], k), s, d)), INFINITE


@rule("nn.matmul", lambda t: len(t.shape) == 2 and _matrix_dtype(t), 4)
def _matmul(g: Generator, t: T, s: Scope, d: int) -> Built:
    k = g.choices.pick((2, 3, 4))
    a, b = (t.shape[0], k), (k, t.shape[1])
    ta, tb = g.choices.chance(30), g.choices.chance(30)
    left = g.expr(t.sized(*(a[::-1] if ta else a)), s, d)
    right = g.expr(t.sized(*(b[::-1] if tb else b)), s, d)
    return call("nn.matmul", left, right, transpose_a=ta, transpose_b=tb), INFINITE


@rule("nn.batch_matmul", lambda t: len(t.shape) == 3 and _matrix_dtype(t), 6)
def _batch_matmul(g: Generator, t: T, s: Scope, d: int) -> Built:
    b, m, n = t.shape
    tb = g.choices.chance(50)
    right = t.sized(b, n, 3) if tb else t.sized(b, 3, n)
    return call("nn.batch_matmul", g.expr(t.sized(b, m, 3), s, d), g.expr(right, s, d), transpose_b=tb), INFINITE


@rule("nn.conv2d", lambda t: len(t.shape) == 4 and isinstance(t.shape[1], int) and smooth(t), 12)
def _conv2d(g: Generator, t: T, s: Scope, d: int) -> Built:
    n, c, h, w = t.shape
    size = g.choices.pick((1, 3))
    data = g.expr(t.sized(n, 2, h, w), s, d)
    weight = g.expr(T((c, 2, size, size), t.dtype, False), s, 0)
    made = call("nn.conv2d", data, weight, channels=c, kernel_size=(size, size), padding=(size // 2, size // 2))
    return made, INFINITE


for _name in ("nn.max_pool2d", "nn.avg_pool2d"):

    @rule(_name, lambda t: len(t.shape) == 4 and t.static and smooth(t), 8)
    def _pool(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        n, c, h, w = (int(x) for x in t.shape)
        data = g.expr(t.sized(n, c, h + 1, w + 1), s, d)
        return call(name, data, pool_size=(2, 2), strides=(1, 1)), 0.0


@rule("nn.global_avg_pool2d", lambda t: len(t.shape) == 4 and t.shape[2:] == (1, 1) and smooth(t), 4)
def _global_pool(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("nn.global_avg_pool2d", g.expr(t.sized(*t.shape[:2], 2, 3), s, d)), 0.0
