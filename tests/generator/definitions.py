"""Random operators: definitions as somebody might write them, with quasi-affine indices, gathers, guards and reductions anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

import numpy as np

from relay import te
from relay.ir.dim import Dim
from relay.te.scalar import Scalar
from tests.op.harness import Array

# How many indices a gather's operand holds.
GATHERED = 6
Size = int | Literal["n"]
Tree = tuple[Any, ...]
Env = Mapping[str, Scalar]


@dataclass(frozen=True)
class Definition:
    """Operands' sizes, the result's, the expression of an element, and that of a stage in between (None: there is none)."""

    operands: tuple[tuple[Size, ...], ...]
    shape: tuple[Size, ...]
    body: Tree
    between: tuple[Size, Tree] | None
    gathers: bool

    @property
    def symbolic(self) -> bool:
        return any("n" in sizes for sizes in self.operands)

    @property
    def names(self) -> list[str]:
        return ["x", "y"][: len(self.operands)] + ["k"] * self.gathers

    def types(self, n: Size, dtype: str) -> list[str]:
        """The operands' types in text."""
        sizes = [", ".join(str(n if d == "n" else d) for d in s) for s in self.operands]
        return [f"Tensor[({s},), {dtype}]" for s in sizes] + [f"Tensor[({GATHERED},), int32]"] * self.gathers

    def arguments(self, n: int, dtype: str, generator: np.random.Generator) -> list[Array]:
        given: list[Array] = [
            generator.standard_normal([n if d == "n" else d for d in s]).astype(dtype) for s in self.operands
        ]
        return given + [generator.integers(-2, 9, GATHERED).astype("int32")] * self.gathers

    def operator(self) -> Callable[..., te.Tensor]:
        """The definition as a function to declare."""
        match len(self.operands), self.gathers:
            case 1, False:

                def one(x: te.Tensor) -> te.Tensor:
                    return self._traced([x], None)

                return one
            case 1, True:

                def one_gathered(x: te.Tensor, k: te.Tensor) -> te.Tensor:
                    return self._traced([x], k)

                return one_gathered
            case _, False:

                def two(x: te.Tensor, y: te.Tensor) -> te.Tensor:
                    return self._traced([x, y], None)

                return two
            case _:

                def two_gathered(x: te.Tensor, y: te.Tensor, k: te.Tensor) -> te.Tensor:
                    return self._traced([x, y], k)

                return two_gathered

    def _traced(self, operands: Sequence[te.Tensor], gathered: te.Tensor | None) -> te.Tensor:
        found = [
            d for t, s in zip(operands, self.operands, strict=True) for d, w in zip(t.shape, s, strict=True) if w == "n"
        ]
        n: Dim = found[0] if found else GATHERED

        def dim(d: Size) -> Dim:
            return n if d == "n" else d

        writer = _Writer(operands, gathered, None)
        if self.between is not None:
            length, inside = self.between
            writer.between = te.compute((dim(length),), lambda i: writer.value(inside, {"a0": i}))
        return te.compute(
            [dim(d) for d in self.shape],
            lambda *axes: writer.value(self.body, {f"a{m}": a for m, a in enumerate(axes)}),
        )


@dataclass
class _Writer:
    operands: Sequence[te.Tensor]
    gathered: te.Tensor | None
    between: te.Tensor | None

    def index(self, tree: Tree, env: Env) -> Scalar:
        match tree:
            case "affine", terms, offset:
                total: Scalar = te.const(offset, "int64")
                for by, name in terms:
                    total = env[name] * by + total
                return total
            case "divide", inner, by:
                return te.binary("floordiv", self.index(inner, env), by)
            case "remainder", inner, by:
                return te.binary("mod", self.index(inner, env), by)
            case "distance", inner:
                value = self.index(inner, env)
                return te.abs(value) if len(repr(inner)) % 2 else te.maximum(value, 0 - value)
            case "add", a, b:
                return self.index(a, env) + self.index(b, env)
            case "gather", inner:
                assert self.gathered is not None
                return te.cast(self.gathered[self.index(inner, env) % GATHERED], "int64")
            case _:
                raise AssertionError(tree)

    def value(self, tree: Tree, env: Env) -> Scalar:
        match tree:
            case "load", number, indices:
                return self._load(self.operands[number], indices, env)
            case "between", index:
                assert self.between is not None
                return self._load(self.between, [("clamp", index)], env)
            case "binary", op, a, b:
                return te.binary(op, self.value(a, env), self.value(b, env))
            case "unary", op, a:
                return te.unary(op, self.value(a, env))
            case "scale", by, a:
                return te.binary("mul", self.value(a, env), by)
            case "select", op, left, right, a, b:
                condition = te.compare(op, self.index(left, env), self.index(right, env))
                return te.select(condition, self.value(a, env), self.value(b, env))
            case "reduce", kind, axes, a:
                over = {name: te.reduce_axis(extent, name) for name, extent in axes}
                reduction = {"sum": te.sum, "max": te.max, "min": te.min, "prod": te.prod}[kind]
                return reduction(self.value(a, {**env, **over}), tuple(over.values()))
            case _:
                raise AssertionError(tree)

    def _load(self, source: te.Tensor, indices: Sequence[tuple[str, Tree]], env: Env) -> Scalar:
        """An element, whatever the indices are: brought into range, taken round, or zero outside."""
        inside: Scalar | None = None
        places: list[Scalar] = []
        for (how, tree), extent in zip(indices, source.shape, strict=True):
            place, size = self.index(tree, env), te.size(extent)
            match how:
                case "clamp":
                    place = te.minimum(te.maximum(place, 0), size - 1)
                case "round":
                    place = place % size
                case _:
                    within = (place >= 0) & (place < size)
                    inside = within if inside is None else inside & within
            places.append(place)
        element = source[tuple(places)]
        return element if inside is None else te.select(inside, element, 0.0)


@dataclass
class _Drawer:
    random: Random
    operands: tuple[tuple[Size, ...], ...]
    gathers: bool
    reductions: int = field(default=0)

    def reduced(self, axes: list[str], depth: int, between: bool, extents: Sequence[int]) -> Tree:
        over = []
        for extent in extents:
            self.reductions += 1
            over.append((f"r{self.reductions}", extent))
        kind = self.random.choice(["sum", "sum", "sum", "max", "min", "prod"])
        return "reduce", kind, tuple(over), self.value(axes + [name for name, _ in over], depth, between)

    def value(self, axes: list[str], depth: int, between: bool) -> Tree:
        pick = self.random
        if depth and pick.random() < 0.12:
            return self.reduced(axes, depth - 1, between, [pick.choice([1, 2, 3, 6])])

        def inner() -> Tree:
            return self.value(axes, depth - 1, between)

        match pick.random() if depth else 0.0:
            case c if c < 0.35:
                if between and pick.random() < 0.3:
                    return "between", self.index(axes, 2)
                number = pick.randrange(len(self.operands))
                how = ["clamp", "round", "zero"]
                return "load", number, tuple((pick.choice(how), self.index(axes, 2)) for _ in self.operands[number])
            case c if c < 0.65:
                return "binary", pick.choice(["add", "sub", "mul", "max", "min"]), inner(), inner()
            case c if c < 0.8:
                return "unary", pick.choice(["tanh", "sigmoid", "abs", "neg", "sin"]), inner()
            case c if c < 0.9:
                left, right = self.index(axes, 2), self.index(axes, 2)
                return "select", pick.choice(["lt", "eq", "ge"]), left, right, inner(), inner()
            case _:
                return "scale", pick.choice([0.5, 2.0, -1.0]), inner()

    def index(self, axes: list[str], depth: int) -> Tree:
        pick = self.random
        taken = pick.sample(axes, min(len(axes), pick.randint(0, 2)))
        tree: Tree = (
            "affine",
            tuple((pick.choice([-2, -1, 1, 1, 1, 2, 3]), a) for a in taken),
            pick.choice([0, 0, 0, -1, 1, 2]),
        )
        for _ in range(pick.randint(0, depth)):
            match pick.random():
                case c if c < 0.25:
                    tree = "divide", tree, pick.randint(2, 4)
                case c if c < 0.5:
                    tree = "remainder", tree, pick.randint(2, 5)
                case c if c < 0.6:
                    tree = "distance", tree
                case c if c < 0.7:
                    tree = "add", tree, self.index(axes, 1)
                case c if c < 0.8 and self.gathers:
                    tree = "gather", tree
                case _:
                    pass
        return tree


def definition(number: int) -> Definition:
    """Definition number so and so."""
    pick = Random(number)
    operands: list[list[Size]] = [
        [pick.choice([1, 2, 3, 5, 7, 16]) for _ in range(pick.randint(1, 3))] for _ in range(pick.randint(1, 2))
    ]
    shape: list[Size] = [pick.choice([1, 2, 3, 4, 5, 8, 17]) for _ in range(pick.randint(1, 3))]
    if pick.random() < 0.5:
        shape[0] = "n"
    if pick.random() < 0.5:
        operands[0][0] = "n"
    drawer = _Drawer(pick, tuple(map(tuple, operands)), pick.random() < 0.3)
    between = (pick.choice([1, 4, 9]), drawer.value(["a0"], 2, False)) if pick.random() < 0.25 else None
    axes = [f"a{n}" for n in range(len(shape))]
    extents = [pick.choice([1, 2, 3, 4, 9]) for _ in range(pick.randint(0, 2))]
    staged = between is not None
    body = drawer.reduced(axes, 3, staged, extents) if extents else drawer.value(axes, 3, staged)
    return Definition(drawer.operands, tuple(shape), body, between, drawer.gathers)
