"""The contribution of one read to a cotangent: a sum over the iterations that hit an element, in the form that is scheduled best.

A sum of products of two tensors is a matrix product, if nothing else is in the way. What is in the way of a derived one are the
guards where an index leaves its tensor, and the residues of strides. So a tensor that is read outside of its bounds gets a border of
zeros first, as a padded convolution does it in the forward direction; and an axis whose quotient and remainder by a stride are read is
made as two axes, of which the remainder goes with one operand and the quotient with the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from relay.ir.dim import Dim, dim_add, dim_floordiv, dim_mul, dim_sub, known_equal
from relay.te.autodiff.arithmetic import both, choose, factors, is_const, mul, zero
from relay.te.autodiff.simplify import equalities, simplified
from relay.te.autodiff.solve import Inverse, invert
from relay.te.autodiff.stages import axes_of, index_size, source_of, stage
from relay.te.index import Indices
from relay.te.scalar import (
    TRUE,
    Axis,
    Cast,
    Compare,
    Const,
    Load,
    Reduce,
    Scalar,
    Select,
    binary,
    cast,
    compare,
    conjuncts,
    substitute,
    walk,
)
from relay.te.tensor import Tensor, placeholder


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """One addend of a cotangent: an expression over the axes of the tensor; possibly a reduction."""

    axes: tuple[Axis, ...]
    body: Scalar


def summed_at(
    shape: Sequence[Dim],
    place: Sequence[Scalar],
    value: Scalar,
    axes: Sequence[Axis],
    over: Sequence[Axis],
    name: str = "summed",
) -> Tensor:
    """The tensor that every iteration of ``axes`` and ``over`` adds its ``value`` to, at ``place``; what falls outside of ``shape``
    is left out. This is how the transpose of a linear map is said; what is made is the form that gathers. ``over`` are the axes to
    loop over where there is a choice."""
    target = placeholder(name, shape, value.dtype)
    term = gathered(target[tuple(place)], value, axes, over)
    if term is None:  # no iteration is inside
        return stage(name, axes_of(shape), zero(value.dtype))
    return stage(name, term.axes, term.body)


def gathered(load: Load, adjoint: Scalar, axes: Sequence[Axis], over: Sequence[Axis]) -> Term | None:
    """What a read with this adjoint, at every index of ``axes`` and ``over``, gives each element of the tensor that is read."""
    source = source_of(load)
    assert source is not None
    element = axes_of(source.shape)
    indices = Indices()
    inverse = invert(load.indices, element, (*axes, *over), indices, len(over), equalities(adjoint))
    value = simplified(substitute(adjoint, inverse.values), indices)
    if inverse.free and _reads(value) is not None:
        term = _product(load, adjoint, axes, over, element, _residues(value, element, indices))
        if term is not None:
            return term
    guarded = choose(inverse.guard, value, None, value.dtype)
    if guarded is None:
        return None
    return Term(element, Reduce("sum", inverse.free, guarded, guarded.dtype) if inverse.free else guarded)


def _load_of(factor: Scalar) -> Load | None:
    """The load that a factor is, converted or chosen instead of zero."""
    inner = factor
    while isinstance(inner, Cast) or (isinstance(inner, Select) and is_const(inner.b, 0)):
        inner = inner.a
    return inner if isinstance(inner, Load) and isinstance(inner.source, Tensor) else None


def _conditions(factor: Scalar) -> list[Scalar]:
    """When a factor is its load."""
    out: list[Scalar] = []
    while isinstance(factor, Cast | Select):
        if isinstance(factor, Select):
            out += conjuncts(factor.cond)
        factor = factor.a
    return out


def _reads(value: Scalar) -> list[Load] | None:
    """The loads that a product of two or more reads consists of; None for anything else."""
    found = [_load_of(f) for f in factors(value) if not isinstance(f, Const)]
    loads = [f for f in found if f is not None]
    return loads if len(loads) == len(found) >= 2 else None


@dataclass(frozen=True, slots=True)
class _Residue:
    """An axis z of which ``(z + offset) // by`` is read."""

    by: int
    offset: int


def _residues(value: Scalar, element: Sequence[Axis], indices: Indices) -> dict[Axis, _Residue]:
    """The axes of the element that are read by quotient and remainder, each always by the same."""
    out: dict[Axis, _Residue] = {}
    for load in _reads(value) or ():
        for index in load.indices:
            for above, by in indices.divisors(indices.poly(index)):
                mine = [a for a in element if indices.mentions(above, a)]
                if len(mine) != 1:
                    continue
                offset = dim_sub(above, indices.axis(mine[0]))
                if not isinstance(offset, int) or out.setdefault(mine[0], _Residue(by, offset)) != _Residue(by, offset):
                    return {}
    return out


def _product(
    load: Load,
    adjoint: Scalar,
    axes: Sequence[Axis],
    over: Sequence[Axis],
    element: tuple[Axis, ...],
    split: dict[Axis, _Residue],
) -> Term | None:
    """The sum as one of products of tensors read within their bounds; None where it is not one."""
    indices = Indices()
    remainders: list[Axis] = []
    rest: list[Axis] = []
    at: list[Scalar] = []
    back: dict[Axis, Scalar] = {}
    for axis in element:
        residue = split.get(axis)
        if residue is None:
            rest.append(axis)
            at.append(axis)
            continue
        by, offset = residue.by, residue.offset
        first = offset // by
        last = dim_floordiv(dim_add(axis.extent, offset - 1), by)
        quotient = Axis(axis.name, dim_add(dim_sub(last, first), 1))
        remainder = Axis(f"{axis.name}r", by)
        rest.append(quotient)
        remainders.append(remainder)
        at.append(binary("sub", binary("add", binary("mul", binary("add", quotient, first), by), remainder), offset))
        moved = binary("add", axis, offset)
        back[quotient] = binary("sub", binary("floordiv", moved, by), first)
        back[remainder] = binary("mod", moved, by)
    inverse = invert(load.indices, at, (*axes, *over), indices, len(over), equalities(adjoint))
    value = simplified(substitute(adjoint, inverse.values), indices)
    # What was decided for all elements is open again for those that the split adds beyond the last; nothing reads those.
    while split and isinstance(value, Select) and is_const(value.b, 0):
        value = value.a
    if _reads(value) is None:
        return None
    made = _within_bounds(value, inverse, indices)
    if made is None:
        return None
    whole = _ordered((*remainders, *rest), made)
    body = Reduce("sum", inverse.free, made, made.dtype)
    if whole == element:
        return Term(element, body)
    return Term(element, stage("product", whole, body)[tuple(back.get(a, a) for a in whole)])


def _ordered(axes: tuple[Axis, ...], product: Scalar) -> tuple[Axis, ...]:
    """The axes with one that belongs to a single operand last, if there are such: along it a product is computed in lanes."""
    own = [{n for n in walk(f) if isinstance(n, Axis)} for f in factors(product) if not isinstance(f, Const)]
    shared = [sum(a in mine for mine in own) > 1 for a in axes]
    wide = [n for n, a in enumerate(axes) if a.extent != 1]
    if not wide or not shared[wide[-1]] or all(shared[n] for n in wide):
        return axes
    return (
        *(a for a, s in zip(axes, shared, strict=True) if s),
        *(a for a, s in zip(axes, shared, strict=True) if not s),
    )


def _within_bounds(value: Scalar, inverse: Inverse, indices: Indices) -> Scalar | None:
    """The product with borders of zeros around what is read outside of its bounds, if these are all that the guard excludes."""
    covered: set[tuple[Dim, Dim]] = set()
    conditions: list[Scalar] = []
    product: Scalar | None = None
    for factor in factors(value):
        conditions += _conditions(factor)
        load = _load_of(factor)
        made: Scalar = factor
        if load is not None:
            bordered = _bordered(load, indices, covered)
            if bordered is None:
                return None
            made = cast(bordered, factor.dtype)
        product = made if product is None else mul(product, made)
    if any(span not in covered for span in inverse.spans):
        return None
    if not all(any(_implied(c, *span, indices) for span in covered) for c in conditions):
        return None
    guarded = choose(inverse.rest, product, None, value.dtype)
    return guarded


def _implied(cond: Scalar, index: Dim, size: Dim, indices: Indices) -> bool:
    """Whether a condition holds wherever an index is within its size: it says no more than one end of that."""
    if not isinstance(cond, Compare) or cond.a.dtype != "int64":
        return False
    difference = dim_sub(indices.poly(cond.a), indices.poly(cond.b))
    match cond.op:
        case "ge":
            left: Dim = difference
        case "lt":
            left, index = dim_sub(dim_mul(-1, difference), 1), dim_sub(dim_sub(size, 1), index)
        case _:
            return False
    # ``left >= 0`` follows from ``index >= 0`` where it is a positive multiple of it, or that and more.
    for times in (1, *range(2, 17)):
        more = dim_sub(left, dim_mul(times, index))
        if isinstance(more, int):
            return more >= 0
    return False


def _bordered(load: Load, indices: Indices, covered: set[tuple[Dim, Dim]]) -> Load | None:
    """The read within a tensor that has a border where it needs one. ``covered`` gets the pairs (index, size) that have."""
    source = source_of(load)
    assert source is not None
    starts: list[Dim] = []
    shape: list[Dim] = []
    for index, size in zip(load.indices, source.shape, strict=True):
        poly = indices.poly(index)
        low, high = indices.ends(poly)
        if indices.within(poly, size):
            low, high = 0, dim_sub(size, 1)
        elif low is None or high is None or indices.opaque_in(poly):
            return None
        else:
            covered.add((poly, size))
        starts.append(low)
        shape.append(dim_add(dim_sub(high, low), 1))
    if all(s == 0 and known_equal(a, b) for s, a, b in zip(starts, shape, source.shape, strict=True)):
        return load
    own = axes_of(shape)
    inside: Scalar = TRUE
    at: list[Scalar] = []
    for axis, start, size, width in zip(own, starts, source.shape, shape, strict=True):
        index = axis if start == 0 else binary("add", axis, index_size(start))
        at.append(index)
        if start == 0 and known_equal(width, size):
            continue
        inside = both(both(inside, compare("ge", index, 0)), compare("lt", index, index_size(size)))
    body = choose(simplified(inside, Indices()), source[tuple(at)], None, source.dtype)
    if body is None:  # nothing of it is inside
        return None
    border = stage("bordered", own, body)
    moved = [
        index if start == 0 else indices.scalar(dim_sub(indices.poly(index), start))
        for index, start in zip(load.indices, starts, strict=True)
    ]
    return border[tuple(moved)]
