"""Reductions over products that nobody has an operator for, of sizes where kernels have blocks, panels and windows: strides, taps, borders,
quotients and axes the other way round, in any order, of any length and of one. What is compiled, with an operand bound and with
gradients, means what the interpreter says.

How many, and from which number on, is `--fuzz-programs` and `--programs-from`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from random import Random

import numpy as np
import numpy.typing as npt
import pytest
from entries import leaves

import relay
from relay import te
from relay.ir.dim import Dim, dim_add, dim_floordiv, dim_mul, dim_sub, dim_var
from relay.op import registry
from relay.te.scalar import Scalar

Array = npt.NDArray[np.float32]
RESULT = (1, 2, 3, 5, 7, 8, 16, 17, 24, 32, 33, 48, 64, 100, 128, 150)
REDUCED = (1, 2, 3, 3, 5, 7, 8, 16, 17, 32, 64, 100, 128)


@dataclass(frozen=True, slots=True)
class Place:
    """An index: ``way`` of the variable ``a``; of a window also of the tap ``b``, ``padding`` before and after, which reads as
    ``border`` says."""

    way: str
    a: str = ""
    by: int = 1
    b: str = ""
    spread: int = 1
    padding: int = 0
    border: str = "inside"

    def extent(self, sizes: dict[str, Dim]) -> Dim:
        """The size of the axis that this index goes along."""
        size = sizes.get(self.a, 1)
        match self.way:
            case "times":
                return dim_add(dim_mul(dim_sub(size, 1), self.by), 1)
            case "quotient":
                return dim_add(dim_floordiv(dim_sub(size, 1), self.by), 1)
            case "remainder":
                return self.by
            case "window":
                last = dim_add(dim_mul(dim_sub(size, 1), self.by), dim_mul(dim_sub(sizes[self.b], 1), self.spread))
                return dim_sub(dim_add(last, 1), 2 * self.padding)
            case _:
                return size

    def index(self, at: dict[str, Scalar], size: Dim) -> tuple[Scalar, Scalar | None]:
        """The index, and the condition under which it is inside where that is to be asked."""
        match self.way:
            case "one":
                return te.const(0, "int64"), None
            case "backwards":
                return te.size(size) - 1 - at[self.a], None
            case "times":
                return at[self.a] * self.by, None
            case "quotient":
                return at[self.a] // self.by, None
            case "remainder":
                return at[self.a] % self.by, None
            case "window":
                place = at[self.a] * self.by + at[self.b] * self.spread - self.padding
                if self.border == "clamped":
                    return te.minimum(te.maximum(place, 0), te.size(size) - 1), None
                if self.border == "round":
                    return place % te.size(size), None
                return place, (place >= 0) & (place < te.size(size)) if self.border == "zero" else None
            case _:
                return at[self.a], None


@dataclass(frozen=True, slots=True)
class Contraction:
    """``result`` and ``reduced`` are sizes; the result's axis number ``unknown`` is of any length, which a last operand has."""

    result: tuple[int, ...]
    reduced: tuple[int, ...]
    unknown: int | None
    operands: tuple[tuple[Place, ...], ...]
    kind: str
    first: tuple[str, ...]
    joined: str
    last: str
    nested: bool

    def shapes(self, length: Dim | None) -> list[tuple[Dim, ...]]:
        """Those of the operands."""
        sizes: dict[str, Dim] = {f"i{n}": s for n, s in enumerate(self.result)}
        sizes |= {f"k{n}": s for n, s in enumerate(self.reduced)}
        if self.unknown is not None and length is not None:
            sizes[f"i{self.unknown}"] = length
        shapes = [tuple(p.extent(sizes) for p in places) for places in self.operands]
        return shapes if self.unknown is None or length is None else [*shapes, (length,)]

    def define(self, operands: tuple[te.Tensor, ...]) -> te.Tensor:
        """The operator."""
        shape: list[Dim] = list(self.result)
        if self.unknown is not None:
            shape[self.unknown] = operands[-1].shape[0]
        over = [te.reduce_axis(s, f"k{n}") for n, s in enumerate(self.reduced)]
        reduction = {"sum": te.sum, "max": te.max, "min": te.min}[self.kind]

        def element(*axes: Scalar) -> Scalar:
            at: dict[str, Scalar] = {f"i{n}": a for n, a in enumerate(axes)}
            at |= {f"k{n}": a for n, a in enumerate(over)}
            value: Scalar | None = None
            for operand, places, how in zip(operands, self.operands, self.first, strict=False):
                read = _changed(_read(operand, places, at), how)
                value = read if value is None else te.binary(self.joined, value, read)  # type: ignore[arg-type]
            assert value is not None
            made = reduction(reduction(value, over[1:]), over[:1]) if self.nested else reduction(value, over)
            return _changed(made, self.last)

        return te.compute(shape, element)


def _read(operand: te.Tensor, places: Sequence[Place], at: dict[str, Scalar]) -> Scalar:
    found = [p.index(at, s) for p, s in zip(places, operand.shape, strict=True)]
    value: Scalar = operand[tuple(i for i, _ in found)]
    for _, condition in found:
        value = value if condition is None else te.select(condition, value, 0.0)
    return value


def _changed(value: Scalar, how: str) -> Scalar:
    match how:
        case "relu":
            return te.maximum(value, 0.0)
        case "tanh":
            return te.tanh(value)
        case "less":
            return value * -0.25
        case "square":
            return value * value
        case _:
            return value


def contraction(pick: Random) -> Contraction:
    while True:
        result = tuple(pick.choice(RESULT) for _ in range(pick.randint(1, 4)))
        reduced = tuple(pick.choice(REDUCED) for _ in range(pick.randint(1, 3)))
        if prod(result) <= 40_000 and prod(result) * prod(reduced) <= 2_000_000:
            break
    unknown = pick.randrange(len(result)) if pick.random() < 0.5 else None
    sizes = {f"i{n}": s for n, s in enumerate(result)} | {f"k{n}": s for n, s in enumerate(reduced)}
    mentioned = [[a for a in sizes if pick.random() < 0.65] for _ in range(pick.choice([1, 2, 2, 2, 2, 3]))]
    for a in sizes:
        if not any(a in m for m in mentioned):
            pick.choice(mentioned).append(a)
    operands: list[tuple[Place, ...]] = []
    for axes in mentioned:
        places: list[Place] = []
        pick.shuffle(axes)
        while axes:
            a, chance = axes.pop(), pick.random()
            if axes and chance < 0.35:
                border, b = pick.choice(["inside", "inside", "zero", "clamped", "round"]), axes.pop()
                by, spread = pick.choice([1, 1, 1, 2, 3]), pick.choice([1, 1, 1, 2])
                room = (sizes[a] - 1) * by + (sizes[b] - 1) * spread
                padding = pick.choice([1, 2]) if border != "inside" and room >= 12 else 0
                places.append(Place("window", a, by, b, spread, padding, border if padding else "inside"))
            elif chance < 0.45 and sizes[a] > 3 and a != f"i{unknown}":
                by = pick.choice([2, 3, 4])
                places += [Place("quotient", a, by), Place("remainder", a, by)][: pick.choice([1, 2, 2])]
            elif chance < 0.5:
                places.append(Place("backwards", a))
            elif chance < 0.55:
                places.append(Place("times", a, pick.choice([2, 3])))
            else:
                places.append(Place("plain", a))
        pick.shuffle(places)
        operands.append(tuple(places) or (Place("one"),))
    return Contraction(
        result,
        reduced,
        unknown,
        tuple(operands),
        pick.choice(["sum"] * 8 + ["max", "min"]),
        tuple(pick.choice(["plain"] * 5 + ["relu", "tanh", "less", "square"]) for _ in operands),
        pick.choice(["mul"] * 7 + ["add", "sub", "max"]),
        pick.choice(["plain", "plain", "tanh", "square", "relu", "less"]),
        len(reduced) > 1 and pick.random() < 0.25,
    )


@pytest.fixture
def declared(seed: int) -> Iterator[tuple[str, Contraction]]:
    name, drawn = f"drawn.contraction{seed}", contraction(Random(seed))

    def define(operands: tuple[te.Tensor, ...]) -> te.Tensor:
        return drawn.define(operands)

    registry.operator(name)(define)
    yield name, drawn
    registry.remove(name)


def close(found: object, expected: object, what: str) -> None:
    for a, b in zip(leaves(found), leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3 * float(np.abs(b).max(initial=0)) + 1e-5, err_msg=what)


@pytest.mark.programs(24)
def test_what_is_compiled_means_what_the_interpreter_says(seed: int, declared: tuple[str, Contraction]) -> None:
    name, drawn = declared
    pick, numbers = Random(-seed), np.random.default_rng(seed)
    unknown = drawn.unknown is not None
    types = drawn.shapes(dim_var("n") if unknown else None)
    params = ", ".join(f"%x{n}: Tensor[({', '.join(map(str, s))},), float32]" for n, s in enumerate(types))
    head = f'#[version = "0.0.5"]\ndef @main{"[n: Dim]" if unknown else ""}({params})'
    # What saturates has no slope but noise.
    made = f"{name}(({', '.join(f'%x{n}' for n in range(len(types)))},)) * {0.5 / prod(drawn.reduced) ** 0.5}f"
    around = pick.choice(["{0}", "tanh({0})", "{0} * 0.5f + 1f", "sum({0})", "nn.relu({0}) * sigmoid({0})"])
    program = relay.parse(f"{head} {{ {around.format(made)} }}")
    threads, operands = 1 + seed % 2, len(drawn.operands)

    def arguments(length: int) -> list[Array]:
        shapes = [[d for d in s if isinstance(d, int)] for s in drawn.shapes(length if unknown else None)]
        return [np.asarray(numbers.standard_normal(s) * 0.5, np.float32) for s in shapes]

    own = drawn.result[drawn.unknown] if drawn.unknown is not None else 0
    compiled = relay.compile(program, cache=False, threads=threads)
    for length in (own, own + 1, max(own - 3, 13)) if unknown else (0,):
        given = arguments(length)
        close(compiled(*given), relay.evaluate(program, *given), program.text())
    fixed = pick.randrange(operands)
    if operands > 1 and all(isinstance(d, int) for d in types[fixed]):
        bound = relay.compile(program.bind({f"x{fixed}": given[fixed]}), cache=False, threads=threads)
        close(bound(*(a for n, a in enumerate(given) if n != fixed)), compiled(*given), program.text())
    slopes = relay.value_and_grad(relay.parse(f"{head} {{ sum(tanh({made})) }}"), tuple(range(operands)))
    given = arguments(own + 1)
    close(relay.compile(slopes, cache=False, threads=threads)(*given), relay.evaluate(slopes, *given), program.text())
