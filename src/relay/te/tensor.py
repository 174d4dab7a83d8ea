"""Tensor expressions: what an operator computes, element by element.

    def dense(x, w):
        k = te.reduce_axis(x.shape[1])
        return te.compute((x.shape[0], w.shape[0]), lambda i, j: te.sum(x[i, k] * w[j, k], k))

`compute` makes a stage: index variables and a body (several bodies make a stage of several outputs, all of one shape). A
body is a scalar expression, or one `Reduce` of such: reductions inside an expression become stages (`relay.te.inner`).
`scan` is a recurrence along one axis. A definition is an acyclic graph of stages from placeholders to outputs; shapes are
dims, so one definition serves every size.

While a definition is traced, `require_equal` and `require` record what it demands of its sizes, and asking for a fact about a
dim that inference has not found yet raises `Undetermined`, upon which the type relation waits for news of that dim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field

import numpy as np

from relay.ir.dim import (
    ANY,
    AnyDim,
    Dim,
    DimVar,
    SymDim,
    dim_bounds,
    dim_max,
    dim_min,
    dim_mul,
    dim_sub,
    dim_vars,
    is_any,
    known_different,
    known_equal,
)
from relay.ir.record import record
from relay.ir.types import is_integer
from relay.te.errors import DefinitionError, Undetermined
from relay.te.inner import stray_axis, without_inner_reductions
from relay.te.scalar import (
    Axis,
    Const,
    Load,
    Named,
    Operators,
    Reduce,
    ReduceKind,
    Scalar,
    Size,
    Source,
    cast,
    minimum,
    transform,
    walk,
    wrap,
)


@record(frozen=True, slots=True, eq=False)
class Placeholder:
    """An input of a definition."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str


@record(frozen=True, slots=True, eq=False)
class Compute:
    """A stage: for every index of ``axes``, one element of each output. ``bodies`` share the axes; reductions share theirs."""

    name: str
    axes: tuple[Axis, ...]
    bodies: tuple[Scalar, ...]

    @property
    def shape(self) -> tuple[Dim, ...]:
        return tuple(axis.extent for axis in self.axes)


@record(frozen=True, slots=True, eq=False)
class Scan:
    """A recurrence: along axis number ``dim``, ``state = update(state)``; every state is an element of the output.

    ``state`` is the variable that stands for the previous state in ``update`` (an `Axis` of the state's dtype used as a
    scalar variable); ``init`` is the state before the first element. ``exclusive`` outputs the state before the update,
    ``reverse`` runs from the end.
    """

    name: str
    axes: tuple[Axis, ...]
    dim: int
    state: Axis
    init: Scalar
    update: Scalar
    reverse: bool = False
    exclusive: bool = False

    @property
    def shape(self) -> tuple[Dim, ...]:
        return tuple(axis.extent for axis in self.axes)


Stage = Placeholder | Compute | Scan


@record(frozen=True, slots=True, eq=False)
class Tensor(Source):
    """Output ``index`` of a stage. ``t[i, j]`` is a load; indices are scalar expressions, ints or dims."""

    stage: Stage
    index: int
    shape: tuple[Dim, ...]
    dtype: str

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def name(self) -> str:
        return self.stage.name

    def __getitem__(self, indices: object) -> Load:
        given = indices if isinstance(indices, tuple) else (indices,)
        if len(given) != len(self.shape):
            raise IndexError(f"{self.name} has rank {len(self.shape)} but is read with {len(given)} indices")
        return Load(self, tuple(self._index(i) for i in given), self.dtype)

    def _index(self, given: object) -> Scalar:
        """An index as all of them are, an int64: whatever integer the expression has computed."""
        index = wrap(given, "int64")
        if not is_integer(index.dtype):
            raise TypeError(f"{self.name} is read at an index of dtype {index.dtype}: cast it to an integer")
        return cast(index, "int64")

    def __call__(self, *indices: object) -> Load:
        return self[indices]


# -- making stages


def placeholder(name: str, shape: Sequence[Dim], dtype: str) -> Tensor:
    """An input of a shape and dtype."""
    stage = Placeholder(name, tuple(shape), dtype)
    return Tensor(stage, 0, stage.shape, dtype)


def reduce_axis(extent: Dim, name: str = "k") -> Axis:
    """An index variable to reduce over. Raises DefinitionError for what is no size."""
    return Axis(name, _size(extent, f"the index variable {name}"))


_INDEX_NAMES = "ijklmnopq"


def _axes(shape: Sequence[Dim]) -> tuple[Axis, ...]:
    if not isinstance(shape, Sequence):
        raise DefinitionError(f"a shape is a sequence of sizes, such as x.shape or (n, 4), found {shape!r}")
    return tuple(
        Axis(_INDEX_NAMES[n] if n < len(_INDEX_NAMES) else f"i{n}", _size(d, f"axis {n}")) for n, d in enumerate(shape)
    )


def _size(given: object, what: str) -> Dim:
    """A size that an author has written."""
    if isinstance(given, np.integer):
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, int | SymDim | AnyDim):
        raise DefinitionError(
            f"the size of {what} is {given!r}: sizes are whole numbers, or made of such with +, -, *, // and %"
        )
    if isinstance(given, int) and given < 0:
        raise DefinitionError(f"the size of {what} is {given}: no size is negative")
    return given


def compute(shape: Sequence[Dim], body: Callable[..., object], name: str = "out", dtype: str | None = None) -> Tensor:
    """The tensor whose element at ``i, j, ...`` is ``body(i, j, ...)``. ``dtype`` is needed only where the body is a number.

    Reductions inside the body become stages of their own. Raises DefinitionError where an index variable stands outside of a reduction
    over it.
    """
    axes = _axes(shape)
    value = _body(body(*axes), dtype or "float32", axes, name)
    return stage_over(name, axes, (value,))[0]


def compute_many(
    shape: Sequence[Dim], body: Callable[..., Sequence[Scalar | Operators]], name: str = "out"
) -> tuple[Tensor, ...]:
    """Several tensors of one shape from one traversal. A stage reduces over one set of variables: bodies that are reductions over others
    than the first that is one read them from stages of their own."""
    axes = _axes(shape)
    given = [wrap(v, "float32") for v in body(*axes)]
    over = next((set(v.axes) for v in given if isinstance(v, Reduce)), set())
    values = tuple(
        _body(v, "float32", axes, name, root=not isinstance(v, Reduce) or set(v.axes) == over) for v in given
    )
    return stage_over(name, axes, values)


def scan(
    shape: Sequence[Dim],
    dim: int,
    init: Callable[..., object],
    update: Callable[..., object],
    dtype: str,
    *,
    reverse: bool = False,
    exclusive: bool = False,
    name: str = "scan",
) -> Tensor:
    """A recurrence along axis ``dim``: ``init(*other)`` gets the indices without that axis, ``update(state, *indices)`` all."""
    axes = _axes(shape)
    if isinstance(dim, bool) or not isinstance(dim, int) or not -len(axes) <= dim < len(axes):
        raise DefinitionError(f"in {name}, a scan over {len(axes)} axes goes along one of these, found axis {dim!r}")
    dim %= len(axes)
    state = Named("state", dtype)
    others = tuple(a for n, a in enumerate(axes) if n != dim)
    first = _body(init(*others), dtype, others, name, root=False)
    step = _body(update(state, *axes), dtype, (*axes, state), name, root=False)
    stage = Scan(name, axes, dim, state, first, step, reverse, exclusive)
    return Tensor(stage, 0, stage.shape, dtype)


def stage_over(
    name: str, axes: Sequence[Axis], bodies: Sequence[Scalar], stands_for: Callable[[Scalar], Scalar] | None = None
) -> tuple[Tensor, ...]:
    """The results of a stage that computes ``bodies`` (expressions, or one reduction of such each) at every index of ``axes``.

    Its index variables, those of its reductions among them, are its own: how each stage is traversed is decided for itself, and
    whoever writes several may use one variable in all of them. ``stands_for`` gives the node that is taken for one over such variables.
    """
    own = {a: Axis(a.name, a.extent, a.dtype) for a in axes}
    own |= {a: Axis(a.name, a.extent, a.dtype) for b in bodies if isinstance(b, Reduce) for a in b.axes}
    memo: dict[int, Scalar] = {}  # of all bodies: what they share stays shared

    def visit(node: Scalar) -> Scalar:
        if isinstance(node, Axis):
            return own.get(node, node)
        return node if stands_for is None else stands_for(node)

    def over_own(body: Scalar) -> Scalar:
        return transform(body, visit, memo)

    made = tuple(
        Reduce(b.kind, tuple(own[a] for a in b.axes), over_own(b.body), b.dtype)
        if isinstance(b, Reduce)
        else over_own(b)
        for b in bodies
    )
    stage = Compute(name, tuple(own[a] for a in axes), made)
    return tuple(Tensor(stage, n, stage.shape, b.dtype) for n, b in enumerate(made))


def _body(value: object, dtype: str, axes: tuple[Axis, ...], name: str, *, root: bool = True) -> Scalar:
    """A stage's body as an expression or (where it may be the ``root``) one reduction of such, over the stage's index variables."""
    body = wrap(value, dtype)
    stray = stray_axis(body, axes)
    if stray is not None:
        raise DefinitionError(f"in {name}, the index variable {stray.name} stands outside of a reduction over it")
    own = next((a for n in walk(body) if isinstance(n, Reduce) for a in n.axes if a in axes), None)
    if own is not None:
        raise DefinitionError(
            f"in {name}, a reduction is over {own.name}, which says which element is computed: te.reduce_axis makes others"
        )
    return without_inner_reductions(body, axes, lambda over, inside: _lifted(over, inside, name), root)


def _lifted(axes: tuple[Axis, ...], value: Scalar, name: str) -> Tensor:
    for axis in axes:
        if axis.dtype != "int64":
            raise DefinitionError(f"in {name}, a reduction inside the recurrence depends on its state")
    return stage_over(f"{name}_inner", axes, (value,))[0]


def _reduce(
    kind: ReduceKind, body: Scalar | Operators, axes: Axis | Sequence[Axis], dtype: str | None = None
) -> Scalar:
    value = wrap(body, "float32")
    over = (axes,) if isinstance(axes, Axis) else tuple(axes)
    for axis in over:
        if not isinstance(axis, Axis):
            raise DefinitionError(f"a {kind} is over index variables of te.reduce_axis, found {axis!r}")
    if len(set(over)) < len(over):
        raise DefinitionError(f"a {kind} is over {', '.join(a.name for a in over)}: one of them stands there twice")
    return Reduce(kind, over, value, dtype or value.dtype) if over else value


def sum(body: Scalar | Operators, axes: Axis | Sequence[Axis]) -> Scalar:
    """Sum over index variables. The accumulator has the body's dtype (float16 and bfloat16 are accumulated in float32)."""
    return _reduce("sum", body, axes)


def prod(body: Scalar | Operators, axes: Axis | Sequence[Axis]) -> Scalar:
    return _reduce("prod", body, axes)


def max(body: Scalar | Operators, axes: Axis | Sequence[Axis]) -> Scalar:
    return _reduce("max", body, axes)


def min(body: Scalar | Operators, axes: Axis | Sequence[Axis]) -> Scalar:
    return _reduce("min", body, axes)


def all(body: Scalar | Operators, axes: Axis | Sequence[Axis]) -> Scalar:
    return _reduce("all", body, axes)


def any(body: Scalar | Operators, axes: Axis | Sequence[Axis]) -> Scalar:
    return _reduce("any", body, axes)


def argmax(body: Scalar | Operators, axis: Axis, dtype: str = "int32") -> Scalar:
    """The first position of the maximum along one axis, counted in an integer ``dtype``."""
    return _position("argmax", body, axis, dtype)


def argmin(body: Scalar | Operators, axis: Axis, dtype: str = "int32") -> Scalar:
    """The first position of the minimum along one axis, counted in an integer ``dtype``."""
    return _position("argmin", body, axis, dtype)


def _position(kind: ReduceKind, body: Scalar | Operators, axis: Axis | Sequence[Axis], dtype: str) -> Scalar:
    """Raises DefinitionError for several axes: in which of their orders a position counts is for the definition to say."""
    over = (axis,) if isinstance(axis, Axis) else tuple(axis)
    if len(over) != 1:
        raise DefinitionError(
            f"an {kind} is over one index variable, found {len(over)}: make one of all (`te.reduce_axis(n * m)`), and read at its "
            f"quotient and remainder"
        )
    if not is_integer(dtype):
        raise DefinitionError(f"the position that an {kind} finds is an integer, found dtype {dtype!r}")
    return _reduce(kind, body, over, dtype)


def size(dim: Dim, dtype: str = "int64") -> Scalar:
    """A dimension as a scalar value."""
    return wrap(dim, dtype) if isinstance(dim, int) else Size(dim).astype(dtype)


def const(value: bool | int | float, dtype: str) -> Const:
    out = wrap(value, dtype)
    assert isinstance(out, Const)
    return out


# -- what a definition demands of its sizes


@record(frozen=True, slots=True)
class Demand:
    """``left == right`` (or ``left <= right``) must hold; ``why`` names what agrees: ``"the reduced axes of dense"``. Where the two sides
    say nothing by themselves, ``sizes`` are those that they are about, and ``rule`` is what holds for these."""

    left: Dim
    right: Dim
    why: str
    relation: str = "=="
    sizes: tuple[Dim, Dim] | None = None
    rule: str = "must agree"


@record(slots=True, eq=False)
class Trace:
    """What tracing one definition collects. ``unknown`` are the dim variables that inference may still solve."""

    demands: list[Demand] = field(default_factory=list)
    is_unknown: Callable[[DimVar], bool] = lambda _: False
    gradual: frozenset[DimVar] = frozenset()


_current: ContextVar[Trace | None] = ContextVar("relay_te_trace", default=None)


@contextmanager
def tracing(trace: Trace) -> Iterator[Trace]:
    """Collect demands in ``trace`` while definitions run."""
    token = _current.set(trace)
    try:
        yield trace
    finally:
        _current.reset(token)


def _trace() -> Trace:
    return _current.get() or Trace()


def require_equal(left: Dim, right: Dim, why: str) -> Dim:
    """Demand that two dims agree, and give their common value (the more specific one)."""
    if known_equal(left, right):
        return left
    if known_different(left, right):
        raise DefinitionError(f"{why} must agree: {left} and {right}")
    _trace().demands.append(Demand(left, right, why))
    return right if isinstance(right, int) or is_any(left) else left


def require_at_most(left: Dim, right: Dim, why: str) -> None:
    """Demand ``left <= right``."""
    low, high = dim_bounds(dim_sub(right, left))
    if low is not None and low >= 0:
        return
    if high is not None and high < 0:
        raise DefinitionError(f"{why}: {left} is more than {right}")
    _trace().demands.append(Demand(left, right, why, "<="))


def require(condition: bool, message: str) -> None:
    """Raise DefinitionError with the message when the condition does not hold."""
    if not condition:
        raise DefinitionError(message)


def known_is(dim: Dim, value: int) -> bool:
    """Whether a dim is this number: waits for inference where that is still open; a rigid variable is not."""
    if isinstance(dim, int):
        return dim == value
    trace = _trace()
    unknown = tuple(v for v in dim_vars(dim) if trace.is_unknown(v))
    if unknown:
        raise Undetermined(unknown)
    return False


def broadcast_dims(a: Dim, b: Dim, why: str) -> Dim:
    """The dim that ``a`` and ``b`` broadcast to: equal, or one of them 1. Two unknown dims of inference wait for news.

    A gradual dim (from ``?``) against a known one must be that size or 1; only a run-time check tells, and the result is the
    known size (for two gradual ones the one that is not 1). A dim that is 1 at most (of a slice of one row: ``min(n, 1)``) is 1 wherever
    the other one is not 0: that is demanded.
    """
    if known_equal(a, b):
        return a
    if known_is(a, 1):
        return b
    if known_is(b, 1):
        return a
    gradual = _trace().gradual
    loose_a, loose_b = _is_gradual(a, gradual), _is_gradual(b, gradual)
    if is_any(a) or is_any(b):
        return ANY if loose_a and loose_b else b if loose_a else a
    if loose_a or loose_b:
        # Equal, or one of the loose ones is 1: a product that must vanish.
        product = dim_sub(a, b)
        for dim, loose in ((a, loose_a), (b, loose_b)):
            product = dim_mul(product, dim_sub(dim, 1)) if loose else product
        either = "or be 1" if loose_a and loose_b else f"unless the {'first' if loose_a else 'second'} is 1"
        _trace().demands.append(Demand(product, 0, why, sizes=(a, b), rule=f"must agree {either}"))
        if not (loose_a and loose_b):
            return b if loose_a else a
        # The greater one, but 1 and 0 give 0.
        return dim_min(dim_mul(a, b), dim_max(a, b))
    small_a, small_b = _is_at_most_one(a), _is_at_most_one(b)
    if small_a == small_b:
        return require_equal(a, b, why)
    small, other = (a, b) if small_a else (b, a)
    missing = dim_sub(dim_min(other, 1), small)
    most = dim_bounds(missing)[1]
    if most is None or most > 0:
        which = "first" if small_a else "second"
        rule = f"must agree unless the {which} is 1"
        _trace().demands.append(Demand(dim_max(missing, 0), 0, why, sizes=(a, b), rule=rule))
    return other


def _is_at_most_one(dim: Dim) -> bool:
    """Whether an axis has no element or one, and which only sizes tell."""
    return isinstance(dim, SymDim) and dim_bounds(dim)[1] == 1


def _is_gradual(dim: Dim, gradual: frozenset[DimVar]) -> bool:
    return is_any(dim) or (isinstance(dim, SymDim) and bool([v for v in dim_vars(dim) if v.gradual or v in gradual]))


def broadcast_shapes(a: Sequence[Dim], b: Sequence[Dim], why: str) -> tuple[Dim, ...]:
    """NumPy's broadcasting rule on shapes."""
    rank = len(a) if len(a) > len(b) else len(b)
    left = (1,) * (rank - len(a)) + tuple(a)
    right = (1,) * (rank - len(b)) + tuple(b)
    return tuple(broadcast_dims(x, y, why) for x, y in zip(left, right, strict=True))


def broadcast_index(tensor: Tensor, indices: Sequence[Scalar | Operators]) -> Load:
    """Read a tensor at an index of the shape it is broadcast to (axes of size 1 are read at 0)."""
    own = list(indices)[len(indices) - tensor.ndim :]
    return tensor[tuple(broadcast_place(dim, index) for dim, index in zip(tensor.shape, own, strict=True))]


def broadcast_place(dim: Dim, index: Scalar | Operators) -> Scalar | Operators | int:
    """Where an axis of this size is read for an index of the axis that it is broadcast to."""
    if isinstance(dim, int):
        return 0 if dim == 1 else index
    if _is_gradual(dim, _trace().gradual):
        # Only at run time is it known whether this axis is broadcast: a size-1 axis is read at 0.
        return _gradual_index(dim, index)
    return 0 if _is_at_most_one(dim) else index


def _gradual_index(dim: Dim, index: Scalar | Operators) -> Scalar:
    return minimum(index, size(dim_sub(dim, 1)))


# -- reading definitions


def stages(outputs: Sequence[Tensor]) -> list[Stage]:
    """The stages that the outputs are made of, producers first. Iterative."""
    order: list[Stage] = []
    seen: set[int] = set()
    todo: list[tuple[Stage, bool]] = [(t.stage, False) for t in reversed(outputs)]
    while todo:
        stage, ready = todo.pop()
        if ready:
            order.append(stage)
            continue
        if id(stage) in seen:
            continue
        seen.add(id(stage))
        todo.append((stage, True))
        for root in stage_bodies(stage):
            for node in walk(root):
                if isinstance(node, Load) and isinstance(node.source, Tensor) and id(node.source.stage) not in seen:
                    todo.append((node.source.stage, False))
    return order


def float_sum(stage: Stage) -> tuple[Compute, Reduce] | None:
    """See a stage as a sum of floats, and nothing else; None where it is none."""
    if not isinstance(stage, Compute) or len(stage.bodies) != 1:
        return None
    (body,) = stage.bodies
    if not isinstance(body, Reduce) or body.kind != "sum" or body.dtype not in ("float32", "float64"):
        return None
    return stage, body


def stage_bodies(stage: Stage) -> tuple[Scalar, ...]:
    """The scalar expressions of a stage."""
    match stage:
        case Placeholder():
            return ()
        case Compute():
            return stage.bodies
        case Scan():
            return (stage.init, stage.update)
