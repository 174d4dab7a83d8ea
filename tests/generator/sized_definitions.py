"""Random operators of two unknown sizes: sums as long as a size, mirrored and stretched indices made of sizes, stages read out of
order, and values that are integers, with which indices are easily confused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from relay import te
from relay.ir.dim import Dim
from relay.te.scalar import Scalar
from tests.op.harness import Array

SIZES = ("n", "m")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")


@dataclass(frozen=True)
class SizedDefinition:
    """An operator of ``x: (n, a)`` and ``y: (m,)``, drawn anew by its number each time that it is traced."""

    number: int
    dtype: str

    @property
    def width(self) -> int:
        return Random(self.number).choice([1, 3, 16])

    def types(self) -> str:
        return f"%x: Tensor[(n, {self.width}), {self.dtype}], %y: Tensor[(m,), {self.dtype}]"

    def arguments(self, n: int, m: int, generator: np.random.Generator) -> list[Array]:
        shapes = (n, self.width), (m,)
        if self.dtype.startswith("float"):
            return [generator.standard_normal(s).astype(self.dtype) for s in shapes]
        return [generator.integers(0, 9, s).astype(self.dtype) for s in shapes]

    def operator(self) -> Callable[..., te.Tensor]:
        def define(x: te.Tensor, y: te.Tensor) -> te.Tensor:
            sizes = {"n": x.shape[0], "m": y.shape[0]}
            writer = _Writer(Random(self.number + 1), self.dtype, sizes, [x, y])
            for _ in range(writer.pick.randrange(3)):
                writer.sources.append(writer.stage(writer.pick.randint(1, 2), 2))
            return writer.stage(writer.pick.randint(1, 3), 3)

        return define


@dataclass(frozen=True)
class _Writer:
    pick: Random
    dtype: str
    sizes: dict[str, Dim]
    sources: list[te.Tensor]

    def extent(self) -> Dim:
        return self.pick.choice([1, 2, 4, 5, *self.sizes.values(), *self.sizes.values()])

    def stage(self, rank: int, depth: int) -> te.Tensor:
        return te.compute([self.extent() for _ in range(rank)], lambda *axes: self.value(list(axes), depth))

    def index(self, axes: Sequence[Scalar], extent: Dim) -> Scalar:
        """Some place, which may be outside."""
        pick, size = self.pick, te.size(extent)
        place: Scalar = te.const(pick.choice([0, 0, -1, 2]), "int64")
        for axis in pick.sample(list(axes), min(len(axes), pick.choice([0, 1, 1, 2]))):
            place = place + axis * pick.choice([-3, -1, 1, 1, 2])
        for _ in range(pick.randrange(3)):
            match pick.randrange(7):
                case 0:
                    place = place // pick.choice([2, 3, 16])
                case 1:
                    place = place % pick.choice([2, 5])
                case 2:
                    place = te.abs(place)
                case 3:
                    place = size - 1 - place
                case 4:
                    place = place + size // 2
                case 5:
                    place = te.minimum(place, size // 2 + 1)
                case _:
                    place = (place * 3) // te.maximum(size, 1)
        return place

    def element(self, axes: Sequence[Scalar]) -> Scalar:
        source = self.pick.choice(self.sources)
        inside: Scalar = te.const(True, "bool")
        places: list[Scalar] = []
        for extent in source.shape:
            place, size = self.index(axes, extent), te.size(extent)
            match self.pick.choice(["as it is", "clamped", "round", "mirrored"]):
                case "clamped":
                    place = te.minimum(te.maximum(place, 0), size - 1)
                case "round":
                    place = place % size
                case "mirrored":
                    place = te.abs(place % te.maximum(2 * size - 2, 1))
                    place = te.minimum(place, 2 * size - 2 - place)
                case _:
                    pass
            inside = inside & (place >= 0) & (place < size)
            places.append(place)
        return te.select(inside, source[tuple(places)], te.const(self.pick.choice([0, 1]), self.dtype))

    def value(self, axes: Sequence[Scalar], depth: int) -> Scalar:
        pick = self.pick

        def inner() -> Scalar:
            return self.value(axes, depth - 1)

        match pick.random() if depth else 0.0:
            case c if c < 0.35:
                return self.element(axes)
            case c if c < 0.55:
                a = inner()
                return te.binary(pick.choice(["add", "sub", "mul", "max", "min"]), a, inner())
            case c if c < 0.65:
                a = inner()
                if self.dtype.startswith("float"):
                    return pick.choice([te.tanh, te.sin, te.sigmoid, te.abs])(a)
                return te.binary(pick.choice(["floordiv", "mod"]), a, te.const(pick.choice([2, 3]), self.dtype))
            case c if c < 0.75:
                a, b = inner(), inner()
                if pick.random() < 0.5:
                    return te.select(self.index(axes, 3) >= self.index(axes, 3), a, b)
                return te.select(inner() < inner(), a, b)
            case c if c < 0.8:
                return te.cast(self.index(axes, 5) % 7, self.dtype)
            case _:
                return self.reduction(axes, depth)

    def reduction(self, axes: Sequence[Scalar], depth: int) -> Scalar:
        pick = self.pick
        over = [te.reduce_axis(self.extent()) for _ in range(pick.randint(1, 2))]
        body = self.value([*axes, *over], depth - 1)
        match pick.choice(["sum", "sum", "product", "max", "min", "prod", "argmax", "any"]):
            case "product":
                return te.sum(body * self.element([*axes, *over]), over)
            case "argmax" if len(over) == 1:
                return te.cast(te.argmax(body, over[0]), self.dtype)
            case "any":
                return te.cast(te.any(body > 0, over), self.dtype)
            case "argmax" | "sum":
                return te.sum(body, over)
            case kind:
                made: Any = getattr(te, kind)
                found: Scalar = made(body, over)
                return found
