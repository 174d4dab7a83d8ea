"""Grids that tensor expressions are evaluated on: affine indices, reads of arrays along them, products over them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from relay.ir.dim import DimVar, dim_evaluate
from relay.ir.record import record
from relay.te.numeric import Array
from relay.te.scalar import Axis, Binary, Const, Scalar, Size, Unary, walk

BLOCK: Final = 1 << 22  # elements of one evaluated grid


@record(frozen=True, slots=True)
class Affine:
    """``const + sum(coefficient * local index)`` over positions of a grid; ``lo`` and ``hi`` are its least and greatest value."""

    const: int
    coefficients: Mapping[int, int]
    lo: int
    hi: int


class Grid:
    """The index variables of a stage, each over a range ``[start, stop)``; reduction variables come last."""

    __slots__ = ("axes", "dims", "forms", "lengths", "position", "starts")

    def __init__(self, axes: Sequence[Axis], ranges: Sequence[tuple[int, int]], dims: Mapping[DimVar, int]) -> None:
        self.axes = tuple(axes)
        self.position = {axis: n for n, axis in enumerate(axes)}
        self.starts = [start for start, _ in ranges]
        self.lengths = [stop - start for start, stop in ranges]
        self.dims = dims
        self.forms: dict[int, Affine | None] = {}

    @property
    def rank(self) -> int:
        return len(self.axes)

    def along(self, position: int) -> list[int]:
        shape = [1] * self.rank
        shape[position] = self.lengths[position]
        return shape

    def affine(self, root: Scalar) -> Affine | None:
        """The index expression as an affine form, if it is one on this grid."""
        if id(root) not in self.forms:
            for node in walk(root):
                if id(node) not in self.forms:
                    self.forms[id(node)] = self._form(node)
        return self.forms[id(root)]

    def _make(self, const: int, coefficients: dict[int, int]) -> Affine:
        lo = hi = const
        live = {p: c for p, c in coefficients.items() if c != 0 and self.lengths[p] > 1}
        for p, c in live.items():
            far = c * (self.lengths[p] - 1)
            lo, hi = (lo + far, hi) if far < 0 else (lo, hi + far)
        return Affine(const, live, lo, hi)

    def _form(self, node: Scalar) -> Affine | None:
        match node:
            case Const() if node.dtype == "int64":
                return Affine(int(node.value), {}, int(node.value), int(node.value))
            case Size():
                value = dim_evaluate(node.dim, self.dims)
                return Affine(value, {}, value, value)
            case Axis() if node in self.position:
                p = self.position[node]
                return self._make(self.starts[p], {p: 1})
            case Unary() if node.op == "neg":
                a = self.forms[id(node.a)]
                return None if a is None else self._scaled(a, -1)
            case Binary() if node.dtype == "int64":
                a, b = self.forms[id(node.a)], self.forms[id(node.b)]
                return None if a is None or b is None else self._combined(node.op, a, b)
            case _:
                return None

    def _scaled(self, a: Affine, factor: int) -> Affine:
        return self._make(a.const * factor, {p: c * factor for p, c in a.coefficients.items()})

    def _combined(self, op: str, a: Affine, b: Affine) -> Affine | None:
        match op:
            case "add" | "sub":
                other = b if op == "add" else self._scaled(b, -1)
                total = dict(a.coefficients)
                for p, c in other.coefficients.items():
                    total[p] = total.get(p, 0) + c
                return self._make(a.const + other.const, total)
            case "mul":
                if not b.coefficients:
                    return self._scaled(a, b.const)
                return None if a.coefficients else self._scaled(b, a.const)
            case "min":
                return a if a.hi <= b.lo else b if b.hi <= a.lo else None
            case "max":
                return a if a.lo >= b.hi else b if b.lo >= a.hi else None
            case "floordiv" | "mod" if not b.coefficients and b.const > 0:
                # With a = whole * n + rest and rest in [0, n): a // n is whole and a % n is rest.
                n = b.const
                whole = self._make(a.const // n, {p: c // n for p, c in a.coefficients.items() if c % n == 0})
                rest = self._make(a.const % n, {p: c for p, c in a.coefficients.items() if c % n != 0})
                if rest.lo < 0 or rest.hi >= n:
                    return None
                return whole if op == "floordiv" else rest
            case _:
                return None


def inside(form: Affine | None, size: int) -> bool:
    return form is not None and form.lo >= 0 and form.hi < size


def gather(source: Array, forms: list[Affine], indices: dict[int, Array], grid: Grid) -> tuple[Array, list[Affine]]:
    """Read the indexed axes through their index arrays: a source whose first axes are the grid axes that the indices vary on."""
    # An affine axis that varies on one of those too has to be read together with them.
    settled = False
    while not settled:
        settled = True
        varies = [p for p in range(grid.rank) if any(ix.shape[p] > 1 for ix in indices.values())]
        for d, form in enumerate(forms):
            if d not in indices and not form.coefficients.keys().isdisjoint(varies):
                index = np.array(form.const).reshape((1,) * grid.rank)
                for p, c in form.coefficients.items():
                    index = index + c * np.arange(grid.lengths[p]).reshape(grid.along(p))
                indices[d] = index
                settled = False
    rest = [d for d in range(source.ndim) if d not in indices]
    at = tuple(ix.reshape([ix.shape[p] for p in varies] if ix.size > 1 else ()) for ix in indices.values())
    at = np.broadcast_arrays(*at) if len(at) > 1 else at
    shape = tuple(grid.lengths[p] for p in varies)
    read = source.transpose([*indices, *rest])[tuple(at)]
    read = np.asarray(read).reshape(shape + tuple(source.shape[d] for d in rest))
    along = [Affine(0, {p: 1}, 0, grid.lengths[p] - 1) for p in varies]
    return read, along + [forms[d] for d in rest]


def strided(source: Array, forms: Sequence[Affine], grid: Grid) -> Array:
    """The view of a source that is read at affine indices in range."""
    shape = [1] * grid.rank
    strides = [0] * grid.rank
    for stride, form in zip(source.strides, forms, strict=True):
        for p, c in form.coefficients.items():
            shape[p] = grid.lengths[p]
            strides[p] += c * stride
    start: tuple[Any, ...] = (*(slice(form.const, None) for form in forms), ...)
    origin = source[start]
    return np.lib.stride_tricks.as_strided(origin, shape, strides, writeable=False)


def matrix_product(a: Array, b: Array, grid: Grid, over: tuple[int, ...]) -> Array:
    """Sum ``a * b`` over positions ``over`` of the grid (kept with size 1), as one batched matrix product."""
    repeats = math.prod(grid.lengths[p] for p in over if a.shape[p] == b.shape[p] == 1)
    for p in over:  # an axis of one operand alone is summed first
        if a.shape[p] > 1 and b.shape[p] == 1:
            a = a.sum(p, keepdims=True, dtype=a.dtype)
        elif b.shape[p] > 1 and a.shape[p] == 1:
            b = b.sum(p, keepdims=True, dtype=b.dtype)
    varies = [p for p in range(grid.rank) if p not in over]
    inner = [p for p in over if a.shape[p] > 1]
    batch = [p for p in varies if a.shape[p] > 1 and b.shape[p] > 1]
    rows = [p for p in varies if a.shape[p] > 1 and b.shape[p] == 1]
    columns = [p for p in varies if p not in batch and p not in rows]
    sizes = [math.prod(grid.lengths[p] for p in group) for group in (batch, rows, inner, columns)]
    done = [p for p in over if p not in inner]
    left = a.transpose([*batch, *rows, *inner, *columns, *done]).reshape(sizes[0], sizes[1], sizes[2])
    b_columns = math.prod(b.shape[p] for p in columns)
    right = b.transpose([*batch, *inner, *columns, *rows, *done]).reshape(sizes[0], sizes[2], b_columns)
    product = np.matmul(left, right)
    order = [*batch, *rows, *columns]
    shaped = product.reshape([max(a.shape[p], b.shape[p]) for p in order] + [1] * len(over))
    back = np.argsort([*order, *over])
    out = shaped.transpose(back)
    # An integer's count wraps as the sum does: 128 times an int8 is no number of its dtype.
    return out if repeats == 1 else np.asarray(np.multiply(out, np.asarray(repeats).astype(out.dtype)))


def fits(work: int) -> bool:
    """Whether an evaluation of so many elements is done in one piece."""
    return work <= BLOCK


def pieces(ranges: list[tuple[int, int]], work: int) -> list[list[tuple[int, int]]]:
    """Cut a box along its longest side so that ``work``, shared among the pieces, is about `BLOCK` each."""
    if fits(work) or not ranges:
        return [ranges]
    side = max(range(len(ranges)), key=lambda n: ranges[n][1] - ranges[n][0])
    start, stop = ranges[side]
    step = max(1, (stop - start) * BLOCK // work)
    return [
        [(at, min(at + step, stop)) if n == side else r for n, r in enumerate(ranges)]
        for at in range(start, stop, step)
    ]
