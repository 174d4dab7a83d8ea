"""The meaning of a tensor expression, computed with NumPy.

Every stage is evaluated on the grid of its index variables: a value is an array with one axis per variable (reduction variables
last), of size 1 along those it does not depend on. A load whose indices are affine and in range is a strided view of its source;
other loads gather, with indices clipped to the source: the side of a `Select` that is not chosen may be out of range. What is chosen
may not: `relay.te.reads` asks that of every read that is clipped.
A sum of products of operands with different variables is a matrix product. Grids beyond `relay.te.grid.BLOCK` elements are cut in pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, assert_never

import numpy as np

from relay.ir.dim import Dim, DimVar, dim_evaluate
from relay.ir.dtypes import numpy_dtype
from relay.te import numeric
from relay.te.errors import DefinitionError
from relay.te.grid import Affine, Grid, fits, gather, inside, matrix_product, pieces, strided
from relay.te.index import Indices
from relay.te.numeric import Array
from relay.te.reads import require_inside
from relay.te.scalar import (
    Axis,
    Binary,
    Bits,
    Cast,
    Compare,
    Const,
    Dot,
    Load,
    Reduce,
    ReduceKind,
    Scalar,
    Select,
    Size,
    Unary,
    chain,
    children,
    substitute,
    walk,
)
from relay.te.scatter import Scatter, as_scatter
from relay.te.tensor import Compute, Placeholder, Scan, Tensor, stages

_EVERYWHERE: Final = np.array(True)
_NO_DIMS: Final[Mapping[DimVar, int]] = MappingProxyType({})


def evaluate(
    outputs: Sequence[Tensor], inputs: Mapping[Tensor, Array], dims: Mapping[DimVar, int] = _NO_DIMS
) -> list[Array]:
    """The outputs of a definition for given placeholder arrays (of the placeholders' dtypes) and values of its dim variables.

    The results are fresh, C-contiguous arrays. Raises ValueError for an array that does not fit its placeholder, KeyError for
    a placeholder or a dim variable without a value, OutsideError for a read outside of its tensor that nothing excludes.
    """
    values: dict[tuple[int, int], Array] = {}
    with np.errstate(all="ignore"):
        given = {id(t.stage): a for t, a in inputs.items()}
        run = _Evaluator(values, dims)
        for stage in stages(outputs):
            match stage:
                case Placeholder():
                    values[id(stage), 0] = _operand(stage, given, dims)
                case Compute() | Scan():
                    for index, array in enumerate(run.stage(stage)):
                        values[id(stage), index] = array
                case _ as never:
                    assert_never(never)
    return [_result(t, values) for t in outputs]


def _operand(stage: Placeholder, given: Mapping[int, Array], dims: Mapping[DimVar, int]) -> Array:
    if id(stage) not in given:
        raise KeyError(f"no array for the placeholder {stage.name}")
    array = given[id(stage)]
    shape = tuple(dim_evaluate(d, dims) for d in stage.shape)
    if array.shape != shape or array.dtype != numpy_dtype(stage.dtype):
        raise ValueError(
            f"{stage.name} is {stage.dtype} of shape {shape}, but was given {array.dtype} of shape {array.shape}"
        )
    return array


def _result(tensor: Tensor, values: Mapping[tuple[int, int], Array]) -> Array:
    array = values[id(tensor.stage), tensor.index]
    if isinstance(tensor.stage, Placeholder) or not array.flags.c_contiguous:
        return np.array(array, order="C")
    return array


class _Evaluator:
    """Evaluates stages over the arrays of their producers."""

    __slots__ = ("dims", "values")

    def __init__(self, values: Mapping[tuple[int, int], Array], dims: Mapping[DimVar, int]) -> None:
        self.values = values
        self.dims = dims

    def _extent(self, dim: Dim) -> int:
        return max(0, dim_evaluate(dim, self.dims))

    def stage(self, stage: Compute | Scan) -> list[Array]:
        """One array per output."""
        shape = tuple(self._extent(a.extent) for a in stage.axes)
        if isinstance(stage, Scan):
            return [self._scan(stage, shape)]
        out = [np.empty(shape, numpy_dtype(b.dtype)) for b in stage.bodies]
        if 0 in shape:
            return out
        reduced = next((b.axes for b in stage.bodies if isinstance(b, Reduce)), ())
        extents = [self._extent(a.extent) for a in reduced]
        if 0 in extents:
            for array, body in zip(out, stage.bodies, strict=True):
                if isinstance(body, Reduce):
                    array[...] = numeric.identity(body.kind, body.dtype)
                else:
                    grid = Grid(stage.axes, [(0, n) for n in shape], self.dims)
                    array[...] = self._checked(body, grid, {})
            return out
        form = as_scatter(stage, Indices())
        if form is not None:
            self._scatter(stage, form, out[0])
            return out
        full = [(0, n) for n in shape]
        for ranges in pieces(full, self._work(stage, shape, reduced, extents)):
            at = tuple(slice(*r) for r in ranges)
            grid = Grid((*stage.axes, *reduced), [*ranges, *((0, n) for n in extents)], self.dims)
            memo: dict[int, Array] = {}
            for array, body in zip(out, stage.bodies, strict=True):
                value = self._reduced(body, grid, memo) if isinstance(body, Reduce) else self._checked(body, grid, memo)
                array[at] = value.reshape(value.shape[: len(shape)])
        return out

    def _scatter(self, stage: Compute, form: Scatter, out: Array) -> None:
        """A reduction that selects one place: every value added to where it belongs."""
        (body,) = stage.bodies
        assert isinstance(body, Reduce)
        axes = (*form.through, *form.over)
        extents = [self._extent(a.extent) for a in axes]
        held = _accumulator(body)
        total = np.full(out.shape, numeric.identity(body.kind, held))
        for ranges in pieces([(0, n) for n in extents], math.prod(extents)):
            grid = Grid(axes, ranges, self.dims)
            memo: dict[int, Array] = {}
            guard = within = self._checked(form.guard, grid, memo)
            at: list[Array] = []
            for axis, size in zip(stage.axes, out.shape, strict=True):
                place = self._checked(form.places.get(axis, axis), grid, memo, guard)
                within = within & (place >= 0) & (place < size)
                at.append(place)
            value = self._checked(substitute(form.value, form.places), grid, memo, within)
            # What nothing here depends on is summed over too.
            every = [np.broadcast_to(a, grid.lengths) for a in (within, value, *at)]
            chosen = every[0].ravel()
            _COMBINE[body.kind].at(
                total,
                tuple(a.ravel()[chosen] for a in every[2:]),
                every[1].ravel()[chosen].astype(total.dtype, copy=False),
            )
        out[...] = numeric.cast(total, held, body.dtype)

    def _work(self, stage: Compute, shape: Sequence[int], reduced: Sequence[Axis], extents: Sequence[int]) -> int:
        """How many elements the largest array of an evaluation in one piece would have."""
        lengths = dict(zip((*stage.axes, *reduced), (*shape, *extents), strict=True))
        largest = math.prod(shape)
        for body in stage.bodies:
            if isinstance(body, Reduce):
                for factor in _factors(body):
                    own = _axes(factor)
                    largest = max(largest, math.prod(n for a, n in lengths.items() if a in own))
        return largest

    # -- scalar expressions over a grid

    def _checked(self, root: Scalar, grid: Grid, memo: dict[int, Array], chosen: Array = _EVERYWHERE) -> Array:
        """The value of an expression all of whose reads are inside, where it is ``chosen`` itself."""
        require_inside(root, grid, lambda n: self._source(n).shape, lambda n: self._value(n, grid, memo), chosen)
        return self._value(root, grid, memo)

    def _value(self, root: Scalar, grid: Grid, memo: dict[int, Array]) -> Array:
        todo: list[tuple[Scalar, bool]] = [(root, False)]
        while todo:
            node, ready = todo.pop()
            if id(node) in memo:
                continue
            if ready:
                memo[id(node)] = self._apply(node, grid, memo)
                continue
            todo.append((node, True))
            if isinstance(node, Load):
                source = self._source(node)
                todo.extend(
                    (i, False) for d, i in enumerate(node.indices) if not inside(grid.affine(i), source.shape[d])
                )
            else:
                todo.extend((k, False) for k in children(node))
        return memo[id(root)]

    def _apply(self, node: Scalar, grid: Grid, memo: Mapping[int, Array]) -> Array:
        ones = (1,) * grid.rank
        match node:
            case Const():
                return numeric.literal(node.value, node.dtype).reshape(ones)
            case Size():
                return np.array(_size(dim_evaluate(node.dim, self.dims)), np.int64).reshape(ones)
            case Axis():
                p = grid.position[node]
                return np.arange(grid.starts[p], grid.starts[p] + grid.lengths[p], dtype=np.int64).reshape(
                    grid.along(p)
                )
            case Load():
                return self._load(node, grid, memo)
            case Unary():
                return numeric.unary(node.op, memo[id(node.a)], node.a.dtype, node.dtype)
            case Binary():
                return numeric.binary(node.op, memo[id(node.a)], memo[id(node.b)], node.dtype)
            case Compare():
                return numeric.compare(node.op, memo[id(node.a)], memo[id(node.b)], node.a.dtype)
            case Select():
                return np.where(memo[id(node.cond)], memo[id(node.a)], memo[id(node.b)])
            case Cast():
                return numeric.cast(memo[id(node.a)], node.a.dtype, node.dtype)
            case Bits():
                return numeric.bits(memo[id(node.a)], node.dtype)
            case Dot():
                return numeric.dot(node.parts, memo[id(node.a)], memo[id(node.b)])
            case Reduce():
                raise TypeError("a reduction can only be the root of a stage's body")
            case _ as never:
                assert_never(never)

    def _source(self, node: Load) -> Array:
        assert isinstance(node.source, Tensor), "a loop buffer has no meaning in a tensor expression"
        return self.values[id(node.source.stage), node.source.index]

    def _load(self, node: Load, grid: Grid, memo: Mapping[int, Array]) -> Array:
        source = self._source(node)
        if source.size == 0:  # only under a Select whose other side is taken
            return np.zeros((1,) * grid.rank, source.dtype)
        forms: list[Affine] = []
        indices: dict[int, Array] = {}
        for d, index in enumerate(node.indices):
            form = grid.affine(index)
            if form is not None and inside(form, source.shape[d]):
                forms.append(form)
            else:
                forms.append(Affine(0, {}, 0, 0))
                indices[d] = np.clip(memo[id(index)], 0, source.shape[d] - 1)
        if indices:
            source, forms = gather(source, forms, indices, grid)
        return strided(source, forms, grid)

    # -- reductions

    def _reduced(self, node: Reduce, grid: Grid, memo: dict[int, Array]) -> Array:
        """The reduction over the last axes of the grid, kept as axes of size 1."""
        first = grid.rank - len(node.axes)
        over = tuple(range(first, grid.rank))
        factors = _factors(node)
        if len(factors) > 1:
            require_inside(node.body, grid, lambda n: self._source(n).shape, lambda n: self._value(n, grid, memo))
            values = [self._value(f, grid, memo) for f in factors]
            # Where the guard does not hold nothing is added, not zero times an infinity.
            if not isinstance(node.body, Select) or all(np.isfinite(v).all() for v in values):
                product = self._product(values, node, grid, over)
                if product is not None:
                    return product
        limit = max(1, math.prod(grid.lengths))
        inner = [(grid.starts[p], grid.starts[p] + grid.lengths[p]) for p in over]
        if node.kind in ("argmax", "argmin") or fits(limit):
            return self._fold(node, grid, memo, over)
        total: Array | None = None
        for ranges in pieces(inner, limit):
            outer = [(grid.starts[p], grid.starts[p] + grid.lengths[p]) for p in range(first)]
            part = self._fold(node, Grid(grid.axes, [*outer, *ranges], self.dims), {}, over)
            total = part if total is None else _COMBINE[node.kind](total, part)
        assert total is not None
        return total

    def _fold(self, node: Reduce, grid: Grid, memo: dict[int, Array], over: tuple[int, ...]) -> Array:
        value = self._checked(node.body, grid, memo)
        shape = list(value.shape)
        for p in over:
            shape[p] = grid.lengths[p]
        value = np.broadcast_to(value, shape)
        if node.kind in ("argmax", "argmin"):
            find = np.argmax if node.kind == "argmax" else np.argmin
            held = value.astype(numpy_dtype(numeric.compute_dtype(node.body.dtype)), copy=False)
            return np.asarray(find(held, axis=over[0], keepdims=True), numpy_dtype(node.dtype))
        held_name = _accumulator(node)
        out = _FOLD[node.kind](value.astype(numpy_dtype(held_name), copy=False), over)
        return numeric.cast(out, held_name, node.dtype)

    def _product(self, values: Sequence[Array], node: Reduce, grid: Grid, over: tuple[int, ...]) -> Array | None:
        """A sum of products as a batched matrix product; None when its factors do not fall into two operands."""
        name = numeric.compute_dtype(node.dtype)
        kind = numpy_dtype(name)
        pair: list[Array] = []
        for value in sorted(values, key=lambda v: -v.size):
            held = value.astype(kind, copy=False)
            for n, operand in enumerate(pair):
                if all(v == 1 or o > 1 for v, o in zip(held.shape, operand.shape, strict=True)):
                    pair[n] = operand * held
                    break
            else:
                pair.append(held)
        if len(pair) != 2:
            return None
        result = matrix_product(pair[0], pair[1], grid, over)
        return numeric.cast(result, name, node.dtype)

    # -- recurrences

    def _scan(self, stage: Scan, shape: tuple[int, ...]) -> Array:
        dtype = stage.state.dtype
        out = np.empty(shape, numpy_dtype(dtype))
        if 0 in shape:
            return out
        others = [(0, n) for n in shape]
        length = shape[stage.dim]
        start = Grid(stage.axes, [(0, 1) if n == stage.dim else r for n, r in enumerate(others)], self.dims)
        state = self._checked(stage.init, start, {})
        step = self._step(stage, shape)
        at: list[Any] = [slice(None)] * len(shape)
        for n in reversed(range(length)) if stage.reverse else range(length):
            at[stage.dim] = slice(n, n + 1)
            following = step(state, n)
            out[tuple(at)] = state if stage.exclusive else following
            state = following
        return out

    def _step(self, stage: Scan, shape: tuple[int, ...]) -> Callable[[Array, int], Array]:
        update, full = stage.update, [(0, n) for n in shape]
        if isinstance(update, Binary) and update.a is stage.state and stage.state not in walk(update.b):
            # What is added at every step does not depend on the state: computed at once.
            terms = np.broadcast_to(self._checked(update.b, Grid(stage.axes, full, self.dims), {}), shape)
            op = update.op
            return lambda state, n: numeric.binary(op, state, np.take(terms, [n], stage.dim), update.dtype)

        def step(state: Array, n: int) -> Array:
            ranges = [(n, n + 1) if d == stage.dim else r for d, r in enumerate(full)]
            return self._checked(update, Grid(stage.axes, ranges, self.dims), {id(stage.state): state})

        return step


def _size(value: int) -> int:
    """A size as an element. Raises DefinitionError for one that int64 does not hold."""
    if not -(2**63) <= value < 2**63:
        raise DefinitionError(f"a size is more than int64 holds: {value}")
    return value


def _factors(node: Reduce) -> list[Scalar]:
    """The factors of the summed product, a guard of it with the one that has most of its variables; the body itself for every
    other reduction."""
    body, guard = node.body, None
    if isinstance(body, Select) and isinstance(body.b, Const) and body.b.value == 0:
        guard, body = body, body.a
    if node.kind != "sum":
        return [node.body]
    out = chain(body, "mul")
    if guard is None:
        return out
    if len(out) == 1:
        return [node.body]
    decides = _axes(guard.cond)
    most = max(range(len(out)), key=lambda n: len(decides & _axes(out[n])))
    out[most] = Select(guard.cond, out[most], guard.b, guard.dtype)
    return out


def _axes(root: Scalar) -> set[Axis]:
    return {n for n in walk(root) if isinstance(n, Axis)}


def _accumulator(node: Reduce) -> str:
    if node.kind in ("sum", "prod") and node.body.dtype == "float32":
        return "float64"  # so that the order of the summation does not show
    return numeric.compute_dtype(node.body.dtype)


_FOLD: Final[Mapping[ReduceKind, Callable[[Array, tuple[int, ...]], Array]]] = {
    "sum": lambda v, over: np.sum(v, axis=over, keepdims=True, dtype=v.dtype),
    "prod": lambda v, over: np.prod(v, axis=over, keepdims=True, dtype=v.dtype),
    "max": lambda v, over: np.max(v, axis=over, keepdims=True),
    "min": lambda v, over: np.min(v, axis=over, keepdims=True),
    "all": lambda v, over: np.all(v, axis=over, keepdims=True),
    "any": lambda v, over: np.any(v, axis=over, keepdims=True),
}
_COMBINE: Final[Mapping[ReduceKind, np.ufunc]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "all": np.logical_and,
    "any": np.logical_or,
}
