"""Derivatives by finite differences, in float64, of programs run by the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from relay.ir.value import AdtValue

STEP = 1e-6


def shifted(value: Any, direction: Any, by: float) -> Any:
    """A value moved along a direction of the same structure; what is no float stays."""
    match value:
        case tuple() | list():
            return type(value)(shifted(v, d, by) for v, d in zip(value, direction, strict=True))
        case AdtValue():
            fields = tuple(shifted(v, d, by) for v, d in zip(value.fields, direction.fields, strict=True))
            return AdtValue(value.adt, value.constructor, value.tag, fields)
        case None:
            return None
        case _:
            array = np.asarray(value)
            return array + by * np.asarray(direction) if array.dtype.kind == "f" else value


def direction(value: Any, random: np.random.Generator) -> Any:
    """A random direction with the structure of a value."""
    match value:
        case tuple() | list():
            return type(value)(direction(v, random) for v in value)
        case AdtValue():
            return AdtValue(value.adt, value.constructor, value.tag, tuple(direction(v, random) for v in value.fields))
        case None:
            return None
        case _:
            array = np.asarray(value)
            return (
                random.normal(size=array.shape).astype(array.dtype) if array.dtype.kind == "f" else np.zeros_like(array)
            )


def product(a: Any, b: Any) -> float:
    """The inner product of a cotangent and a direction."""
    match a:
        case tuple() | list():
            assert type(a) is type(b) and len(a) == len(b)
            return sum((product(x, y) for x, y in zip(a, b, strict=True)), 0.0)
        case AdtValue():
            assert a.constructor == b.constructor
            return product(tuple(a.fields), tuple(b.fields))
        case None:
            return 0.0
        case _:
            x, y = np.asarray(a), np.asarray(b)
            assert x.shape == y.shape and x.dtype == y.dtype, (x.dtype, x.shape, y.dtype, y.shape)
            return float(np.sum(x * y)) if x.dtype.kind == "f" else 0.0


def total(value: Any) -> float:
    """The sum of all float elements."""
    match value:
        case tuple() | list():
            return sum(map(total, value), 0.0)
        case AdtValue():
            return sum(map(total, value.fields), 0.0)
        case None:
            return 0.0
        case _:
            array = np.asarray(value)
            return float(np.sum(array)) if array.dtype.kind == "f" else 0.0


def difference_quotient(f: Callable[..., Any], args: tuple[Any, ...], along: tuple[Any, ...]) -> float:
    """The derivative of the sum of a function's result along a direction, by central differences."""
    up = total(f(*(shifted(a, d, STEP) for a, d in zip(args, along, strict=True))))
    down = total(f(*(shifted(a, d, -STEP) for a, d in zip(args, along, strict=True))))
    return (up - down) / (2 * STEP)


def close(a: float, b: float) -> bool:
    return bool(np.isclose(a, b, rtol=2e-4, atol=2e-5))
