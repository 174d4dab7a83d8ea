"""Productions: the ways in which operators give a tensor of a wanted type.

A production applies to some types and builds an expression together with a bound of its magnitude, given that its operands
are tame. Operators whose results jump (comparisons, rounding, casts to integers) get exact operands only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Expr
from relay.op.build import call, constant
from tests.generator.kinds import INTS, Size, T

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


def rule(name: str, applies: Callable[[T], bool], weight: int = 1) -> Callable[[Builder], Builder]:
    """Register a builder as a production."""

    def add(build: Builder) -> Builder:
        PRODUCTIONS.append(Production(name, applies, build, weight))
        return build

    return add


def pointwise(
    name: str,
    applies: Callable[[T], bool],
    bound: float = 0.0,
    weight: int = 1,
    operand: Callable[[T], T] = lambda t: t,
    inside: Callable[[Expr, T], Expr] = lambda e, t: e,
) -> None:
    """Register ``name(inside(x))`` for an ``x`` of type ``operand(t)``."""

    def build(g: Generator, t: T, s: Scope, d: int) -> Built:
        return call(name, inside(g.expr(operand(t), s, d), t)), bound

    rule(name, applies, weight)(build)


def broadcasting(name: str, applies: Callable[[T], bool], bound: Callable[[T], float] = lambda t: 0.0) -> None:
    """Register ``name(x, y)`` for operands that broadcast to the type."""

    def build(g: Generator, t: T, s: Scope, d: int) -> Built:
        return call(name, *pair(g, t, s, d)), bound(t)

    rule(name, applies)(build)


def smooth(t: T) -> bool:
    """A float that need not be exact."""
    return t.is_float and not t.exact


def signed(t: T) -> bool:
    return t.dtype not in ("bool", "uint8")


def number(t: T) -> bool:
    return t.dtype != "bool"


def integer(t: T) -> bool:
    return t.dtype in INTS


def boolean(t: T) -> bool:
    return t.dtype == "bool"


def anything(t: T) -> bool:
    return True


def scalar(value: float, dtype: str) -> Expr:
    return constant(np.array(value, numpy_dtype(dtype)))


def operand_shapes(g: Generator, shape: tuple[Size, ...]) -> tuple[tuple[Size, ...], tuple[Size, ...]]:
    """Two shapes that broadcast to this one."""
    cut = g.choices.between(0, len(shape)) if g.choices.chance(30) else 0
    thin = tuple(1 if g.choices.chance(20) else x for x in shape[cut:])
    return (shape, thin) if g.choices.chance(50) else (thin, shape)


def pair(g: Generator, t: T, s: Scope, d: int) -> tuple[Expr, Expr]:
    """Operands that broadcast to the type."""
    a, b = operand_shapes(g, t.shape)
    return g.expr(t.sized(*a), s, d), g.expr(t.sized(*b), s, d)
