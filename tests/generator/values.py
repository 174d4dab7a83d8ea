"""Arguments for generated programs, with tame values: floats are multiples of 1/8 in [-2, 2], integers are small."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from relay.ir.dtypes import numpy_dtype
from relay.ir.value import AdtValue
from relay.te.numeric import Array
from tests.generator.kinds import Adt, G, Size, T, Tup
from tests.generator.source import Choices


def array(choices: Choices, shape: tuple[int, ...], dtype: str) -> Array:
    """A tensor of tame values."""
    random = np.random.default_rng(choices.source.below(1 << 16))
    match dtype:
        case "bool":
            return random.integers(0, 2, shape).astype(bool)
        case "uint8":
            return random.integers(0, 5, shape).astype(np.uint8)
        case "float32" | "float64" | "float16" | "bfloat16":
            return (random.integers(-16, 17, shape) / 8.0).astype(numpy_dtype(dtype))
        case _:
            return random.integers(-4, 5, shape).astype(numpy_dtype(dtype))


def argument(choices: Choices, g: G, sizes: Mapping[str, int]) -> object:
    """An argument of a type; ``sizes`` gives the values of named and unknown sizes."""
    match g:
        case T():
            return array(choices, tuple(_size(s, sizes) for s in g.shape), g.dtype)
        case Tup():
            return tuple(argument(choices, f, sizes) for f in g.fields)
        case Adt(name="List"):
            return [argument(choices, g.args[0], sizes) for _ in range(choices.between(0, 4))]
        case Adt(name="Option"):
            return argument(choices, g.args[0], sizes) if choices.chance(60) else None
        case Adt(name="Tree"):
            return tree(choices, g.args[0], sizes, 3)
        case Adt(name="Shape"):
            tag = choices.between(0, 2)
            name = ("Circle", "Rectangle", "Empty")[tag]
            fields = tuple(array(choices, (), "float32") for _ in range((1, 2, 0)[tag]))
            return AdtValue("Shape", name, tag, fields)
        case _:
            raise AssertionError(f"no arguments of type {g}")


def tree(choices: Choices, g: G, sizes: Mapping[str, int], depth: int) -> AdtValue:
    if depth and choices.chance(60):
        sides = (tree(choices, g, sizes, depth - 1), tree(choices, g, sizes, depth - 1))
        return AdtValue("Tree", "Node", 1, sides)
    return AdtValue("Tree", "Leaf", 0, (argument(choices, g, sizes),))


def _size(size: Size, sizes: Mapping[str, int]) -> int:
    return size if isinstance(size, int) else sizes[size]
