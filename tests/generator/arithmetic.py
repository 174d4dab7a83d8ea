"""Elementwise, broadcasting and comparing operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relay.ir.expr import Expr, Proj
from relay.op.build import call
from tests.generator.kinds import DTYPES, FLOATS, Size, T, limit
from tests.generator.productions import (
    Built,
    anything,
    boolean,
    broadcasting,
    integer,
    number,
    operand_shapes,
    pair,
    pointwise,
    rule,
    scalar,
    signed,
    smooth,
)  # fmt: skip

if TYPE_CHECKING:
    from tests.generator.generator import Generator, Scope

COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


def _tanh(e: Expr, t: T) -> Expr:
    return call("tanh", e)


def _half_tanh(e: Expr, t: T) -> Expr:
    return call("multiply", call("tanh", e), scalar(0.5, t.dtype))


def _positive(e: Expr, t: T) -> Expr:
    return call("add", call("abs", e), scalar(0.5, t.dtype))


# -- elementwise

for _name, _bound in (
    ("tanh", 1.0), ("sigmoid", 1.0), ("erf", 1.0), ("sin", 1.0), ("cos", 1.0), ("atan", 2.0), ("nn.gelu", 8.0), ("nn.silu", 8.0),
    ("nn.leaky_relu", 0.0),
):  # fmt: skip
    pointwise(_name, smooth, _bound)
for _name, _bound in (("exp", 2.8), ("sinh", 1.2), ("cosh", 1.6), ("tan", 1.6), ("expm1", 1.8)):
    pointwise(_name, smooth, _bound, inside=_tanh)
for _name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt"):
    pointwise(_name, smooth, 4.0, inside=_positive)
for _name in ("asin", "acos"):
    pointwise(_name, smooth, 3.2, inside=_half_tanh)
for _name in ("negative", "abs", "nn.relu"):
    pointwise(_name, signed)
for _name in ("floor", "ceil", "round", "trunc", "sign"):
    pointwise(_name, lambda t: t.is_float, weight=2, operand=T.exactly)
pointwise("copy", anything)
pointwise("bitwise_not", lambda t: t.dtype in ("int32", "int64", "int8", "int16"), 9.0)
pointwise("logical_not", boolean)


@rule("clip", number)
def _clip(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("clip", g.expr(t, s, d), a_min=0.0, a_max=float(g.choices.between(1, 4))), 0.0


@rule("nn.dropout", lambda t: t.is_float)
def _dropout(g: Generator, t: T, s: Scope, d: int) -> Built:
    return Proj(call("nn.dropout", g.expr(t, s, d)), 0), 0.0


for _name in ("isnan", "isfinite", "isinf"):

    @rule(_name, boolean)
    def _classified(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        return call(name, g.expr(T(t.shape, g.choices.pick(FLOATS), False), s, d)), 0.0


@rule("cast", anything)
def _cast(g: Generator, t: T, s: Scope, d: int) -> Built:
    source = T(t.shape, g.choices.pick(DTYPES), exact=not smooth(t))
    if smooth(t) and source.dtype in ("float16", "bfloat16") and t.dtype not in ("float16", "bfloat16"):
        source = source.exactly()  # otherwise half precision's error would be held against single precision's tolerance
    if source.dtype == t.dtype:
        return None
    return g.converted(g.expr(source, s, d), source.dtype, t.dtype), 8.0


@rule("cast int4", integer)
def _int4(g: Generator, t: T, s: Scope, d: int) -> Built:
    small = call("clip", g.expr(t, s, d), a_min=0.0, a_max=7.0)
    return call("cast", call("cast", small, dtype=g.choices.pick(("int4", "uint4"))), dtype=t.dtype), 7.0


@rule("cast_like", anything)
def _cast_like(g: Generator, t: T, s: Scope, d: int) -> Built:
    source = T(t.shape, "int32" if t.dtype != "uint8" else "bool")
    return call("cast_like", g.expr(source, s, d), g.expr(T((), t.dtype), s, 0)), 8.0


# -- broadcasting

for _name in ("maximum", "minimum"):
    broadcasting(_name, number)
broadcasting("add", number, lambda t: 16.0)
broadcasting("subtract", signed, lambda t: 16.0)
broadcasting("multiply", lambda t: number(t) and (not t.is_float or not t.exact), lambda t: limit(t) ** 2)
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    broadcasting(_name, integer, lambda t: 16.0)
for _name in ("logical_and", "logical_or", "logical_xor"):
    broadcasting(_name, boolean)


@rule("divide", smooth)
def _divide(g: Generator, t: T, s: Scope, d: int) -> Built:
    a, b = pair(g, t, s, d)
    return call("divide", a, call("add", call("abs", b), scalar(1.0, t.dtype))), 0.0


@rule("power", smooth)
def _power(g: Generator, t: T, s: Scope, d: int) -> Built:
    a, b = pair(g, t, s, d)
    return call("power", call("add", call("abs", call("tanh", a)), scalar(0.5, t.dtype)), call("tanh", b)), 2.0


for _name in ("floor_divide", "mod", "floor_mod", "divide"):

    @rule(_name, integer, 3)
    def _quotient(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        a, b = pair(g, t, s, d)
        return call(name, a, call("maximum", b, scalar(g.choices.between(1, 4), t.dtype))), 9.0


for _name in ("left_shift", "right_shift"):

    @rule(_name, integer)
    def _shifted(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        return call(name, g.expr(t, s, d), scalar(g.choices.between(0, 2), t.dtype)), 33.0


for _name in COMPARISONS:

    @rule(_name, boolean, 2)
    def _compared(g: Generator, t: T, s: Scope, d: int, name: str = _name) -> Built:
        return comparison(g, name, t.shape, s, d), 0.0


def comparison(g: Generator, name: str, shape: tuple[Size, ...], s: Scope, d: int) -> Expr:
    """A comparison of exact operands, often of equal ones here and there."""
    t = T(shape, g.choices.pick(DTYPES[:-1]))
    a, b = pair(g, t, s, d)
    if g.choices.chance(40):
        b = call("minimum", a, b)
        return call(name, a, b) if g.choices.chance(50) else call(name, b, a)
    return call(name, a, b)


@rule("where", anything)
def _where(g: Generator, t: T, s: Scope, d: int) -> Built:
    a, b = operand_shapes(g, t.shape)
    return call("where", g.expr(T(a, "bool"), s, d), g.expr(t, s, d), g.expr(t.sized(*b), s, d)), 0.0


@rule("broadcast_to", lambda t: t.static and len(t.shape) > 0)
def _broadcast_to(g: Generator, t: T, s: Scope, d: int) -> Built:
    thin = t.sized(*(1 if g.choices.chance(50) else x for x in t.shape))
    if g.choices.chance(30):
        return call("broadcast_to_like", g.expr(thin, s, d), g.expr(T(t.shape, "int32"), s, 0)), 0.0
    return call("broadcast_to", g.expr(thin, s, d), shape=t.shape), 0.0


@rule("nn.bias_add", lambda t: number(t) and len(t.shape) >= 2)
def _bias_add(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("nn.bias_add", g.expr(t, s, d), g.expr(t.sized(t.shape[1]), s, d), axis=1), 16.0


@rule("nn.prelu", lambda t: smooth(t) and len(t.shape) >= 2)
def _prelu(g: Generator, t: T, s: Scope, d: int) -> Built:
    return call("nn.prelu", g.expr(t, s, d), g.expr(t.sized(t.shape[1]), s, d), axis=1), limit(t) ** 2
