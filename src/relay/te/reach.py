"""What a definition demands of its operands' sizes, so that it reads inside of them.

    y[i] = a[i] + b[i + 1]  for i < n, of a: (n,) and b: (m,)   ->   n + 1 <= m

The places that a definition reads at are sums of index variables, mostly: the first and the last of them follow from what the variables
run over, and that they are inside of the tensor is a demand like any that the author makes (`relay.te.require_at_most`): proved from the
sizes, refused where the operator is applied, or left to run time. A read that only a select chooses demands nothing, and no more do
places that are not such sums.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from relay.ir.dim import (
    Dim,
    DimOp,
    DimVar,
    SymDim,
    as_dim,
    dim_add,
    dim_atoms,
    dim_bounds,
    dim_floordiv,
    dim_min,
    dim_mul,
    dim_sub,
    is_any,
    known_equal,
)
from relay.ir.dim_total import dim_total
from relay.ir.inequality import Facts
from relay.te.errors import DefinitionError
from relay.te.index import Indices
from relay.te.scalar import Axis, Const, Load, Reduce, Scalar, always_read
from relay.te.tensor import Demand, Stage, Tensor, stage_bodies, stages

Ends = tuple[Dim, Dim]


def demands_of_reads(outputs: Sequence[Tensor], demands: Sequence[Demand]) -> list[Demand]:
    """What has to hold for every read to be inside of its tensor and follows neither from the sizes nor from ``demands``.

    Raises DefinitionError for a read that is outside whatever the sizes are.
    """
    found: dict[tuple[Dim, Dim], Demand] = {}
    facts: Facts | None = None
    for stage in stages(outputs):
        for body in stage_bodies(stage):
            over, value = (body.axes, body.body) if isinstance(body, Reduce) else ((), body)
            for load, number in _open(value):
                axes = (*_axes(stage), *over)
                if any(a.extent == 0 for a in axes):
                    continue
                if facts is None:
                    facts = _facts(demands)
                with facts.within():
                    for demand in _demands(load, number, axes, facts, demands):
                        found.setdefault((demand.left, demand.right), demand)
    return list(found.values())


def all_read(root: Scalar) -> Iterator[Load]:
    """The loads that are evaluated whatever a select chooses, those of indices among them."""
    todo = [root]
    while todo:
        for load in always_read(todo.pop()):
            yield load
            todo += load.indices


def _axes(stage: Stage) -> tuple[Axis, ...]:
    return getattr(stage, "axes", ())


def _open(value: Scalar) -> Iterator[tuple[Load, int]]:
    """The reads, each with the number of an index, of which it is not seen at once that they are inside."""
    for load in all_read(value):
        if not isinstance(load.source, Tensor):
            continue
        for number, (index, size) in enumerate(zip(load.indices, load.source.shape, strict=True)):
            if isinstance(index, Axis) and known_equal(index.extent, size):
                continue
            if isinstance(index, Const) and isinstance(size, int) and 0 <= index.value < size:
                continue
            if not is_any(size):
                yield load, number


def _facts(demands: Sequence[Demand]) -> Facts:
    """What the author demands holds."""
    facts = Facts()
    for d in demands:
        if is_any(d.left) or is_any(d.right):
            continue
        facts.assume(dim_sub(d.right, d.left))
        if d.relation == "==":
            facts.assume(dim_sub(d.left, d.right))
    return facts


def _broken(demands: Sequence[Demand], axes: Sequence[Axis]) -> Demand | None:
    """A demand of two sizes to be equal that they are not wherever axes have elements: a read that is outside follows from it."""
    some = Facts()
    for axis in axes:
        some.assume(dim_sub(where_any(axis.extent), 1))
    for d in demands:
        if d.relation == "==" and not is_any(d.left) and not is_any(d.right):
            apart = dim_sub(d.left, d.right)
            if some.implies(dim_sub(apart, 1)) or some.implies(dim_sub(dim_mul(-1, apart), 1)):
                return d
    return None


def _demands(load: Load, number: int, axes: Sequence[Axis], facts: Facts, given: Sequence[Demand]) -> Iterator[Demand]:
    assert isinstance(load.source, Tensor)
    index, size = load.indices[number], load.source.shape[number]
    indices = Indices()
    extents = {v: where_any(a.extent) for a in axes if (v := indices.variable(a)) is not None}
    ends = _ends(indices.poly(index), extents, indices, set())
    if ends is None:
        return
    first, last = ends
    # Where an index variable runs over nothing, nothing is read.
    some: Dim = 1
    for extent in dict.fromkeys(a.extent for a in axes):
        low, _ = dim_bounds(extent)
        if low is None or low < 1:
            facts.assume(dim_sub(where_any(extent), 1))
            some = dim_mul(some, extent)
    some = dim_min(1, some)
    what = f"index {number} of {load.source.name}"
    for goal, left, right, why in (
        (first, dim_mul(dim_mul(-1, first), some), 0, f"{what} (of size {size}) begins at {first}"),
        (
            dim_sub(dim_sub(size, 1), last),
            dim_mul(dim_add(last, 1), some),
            size,
            f"{what} (of size {size}) goes to {last}",
        ),
    ):
        if facts.implies(goal):
            continue
        if (high := dim_bounds(goal)[1]) is not None and high < 0:
            if (broken := _broken(given, axes)) is not None:
                raise DefinitionError(f"{broken.why} must agree: {broken.left} and {broken.right}")
            raise DefinitionError(f"{why}: bound the index, or choose with te.select where it is inside")
        yield Demand(dim_total(left), dim_total(right), why, "<=")


def where_any(extent: Dim) -> Dim:
    """What an extent is where it is not 0: one that is cut off there is what is cut."""
    atoms = tuple(dim_atoms(extent))
    if isinstance(extent, SymDim) and extent == as_dim(atoms[0]) and isinstance(atoms[0], DimOp):
        op, a, b = atoms[0].op, atoms[0].a, atoms[0].b
        if op == "max" and 0 in (a, b):
            return b if a == 0 else a
    return extent


def _ends(index: Dim, extents: Mapping[DimVar, Dim], indices: Indices, seen: set[DimVar]) -> Ends | None:
    """The least and the greatest value of an index over all values of its variables; None where it is no sum of terms that each move by
    a variable of their own. ``seen`` are the variables met so far."""
    if isinstance(index, int):
        return index, index
    if not isinstance(index, SymDim):
        return None
    first: Dim = 0
    last: Dim = 0
    for monomial, coefficient in index.terms:
        term: Ends = (coefficient, coefficient)
        moving: Ends | None = None
        for atom, power in monomial:
            if isinstance(atom, DimVar) and indices.is_index(as_dim(atom)):
                if moving is not None or power != 1:
                    return None
                moving = _ends_of(atom, extents, indices, seen)
                if moving is None:
                    return None
                continue
            low, _ = dim_bounds(as_dim(atom))
            if low is None or low < 0:
                return None
            for _ in range(power):
                term = (dim_mul(term[0], as_dim(atom)), dim_mul(term[1], as_dim(atom)))
        if moving is not None:
            low_end, high_end = moving if coefficient > 0 else moving[::-1]
            term = (dim_mul(term[0], low_end), dim_mul(term[1], high_end))
        first, last = dim_add(first, term[0]), dim_add(last, term[1])
    return first, last


def _ends_of(variable: DimVar, extents: Mapping[DimVar, Dim], indices: Indices, seen: set[DimVar]) -> Ends | None:
    """The ends of an index variable, or of the quotient of a sum of such by a number."""
    if variable in extents:
        if variable in seen:
            return None
        seen.add(variable)
        return 0, dim_sub(extents[variable], 1)
    division = indices.division(variable)
    if division is None or not isinstance(division[1], int) or division[1] <= 0:
        return None
    ends = _ends(division[0], extents, indices, seen)
    return None if ends is None else (dim_floordiv(ends[0], division[1]), dim_floordiv(ends[1], division[1]))
