"""Sums over the iterations that hit an element where sizes may be zero that multiply or divide the indices.

Equations are solved by dividing by their sizes. Where one of these is zero, nothing is left of what it multiplies, and all of that hits
the same element. So a sum is made twice, and read by a choice that sizes alone make, for which a kernel has two bodies
(`plan.size_choices`):

    select(s >= 1, what solving gives, sum(select(f(x) == z, adjoint(x), 0), x))

The second adds what each iteration gives to where it belongs. It goes through no iterations where the sizes are not zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce

from relay.ir.dim import (
    Dim,
    DimOp,
    SymDim,
    as_dim,
    dim_atoms,
    dim_min,
    dim_mul,
    dim_sub,
    known_equal,
)
from relay.ir.inequality import is_count
from relay.te.autodiff.arithmetic import both, choose
from relay.te.autodiff.stages import axes_of, source_of, stage
from relay.te.autodiff.terms import Term, added
from relay.te.index import Indices
from relay.te.scalar import (
    TRUE,
    Axis,
    Binary,
    Load,
    Reduce,
    Scalar,
    Size,
    Unary,
    children,
    compare,
    conjunction,
    extent_of,
    rebuild,
    substitute,
    transform,
    walk,
)
from relay.te.zero_sizes import magnitude, may_be_zero, vanishes_with, where_none_is_zero

Sums = Callable[[Load, Scalar, Sequence[Axis], Sequence[Axis]], list[Term]]


def where_some(load: Load, adjoint: Scalar, axes: Sequence[Axis], over: Sequence[Axis], sums: Sums) -> list[Term]:
    """What a read gives each element of its tensor, of which ``sums`` says what it is for sizes that are not zero."""
    source = source_of(load)
    assert source is not None
    extents = [a.extent for a in (*axes, *over)]
    if 0 in extents or 0 in source.shape:
        return []  # there are no iterations, or no elements
    sizes = [s for s in _sizes(load.indices) if not vanishes_with(s, extents) and not vanishes_with(s, source.shape)]
    if not sizes:
        return sums(load, adjoint, axes, over)
    memo: dict[int, Scalar] = {}

    def assumed(root: Scalar) -> Scalar:
        return transform(
            root, lambda n: extent_of(where_none_is_zero(n.dim, sizes)) if isinstance(n, Size) else n, memo
        )

    given = rebuild(load, tuple(map(assumed, load.indices)))
    assert isinstance(given, Load)
    terms = sums(given, assumed(adjoint), axes, over)
    element = axes_of(source.shape)
    if len(terms) == 1 and not isinstance(terms[0].body, Reduce):
        first = substitute(terms[0].body, dict(zip(terms[0].axes, element, strict=True)))
    else:
        first = added(terms, source.shape, adjoint.dtype, "some")[element]
    rest = stage("none", element, _one_by_one(load, adjoint, element, (*axes, *over), sizes))
    there = conjunction(compare("ge" if is_count(s) else "ne", Size(s), int(is_count(s))) for s in sizes)
    chosen = choose(there, first, rest[element], adjoint.dtype)
    return [] if chosen is None else [Term(element, chosen)]


def _one_by_one(
    load: Load, adjoint: Scalar, element: Sequence[Axis], variables: Sequence[Axis], sizes: Sequence[SymDim]
) -> Scalar:
    """The sum over all iterations of what hits an element, with none of them where no size is zero."""
    own: dict[Axis, Scalar] = {}
    hits: Scalar = TRUE
    for at, index in zip(element, load.indices, strict=True):
        if isinstance(index, Axis) and index in variables and index not in own:
            own[index] = at
            if not known_equal(index.extent, at.extent):
                hits = both(hits, compare("lt", at, extent_of(index.extent)))
    for at, index in zip(element, load.indices, strict=True):
        if not (isinstance(index, Axis) and own.get(index) is at):
            hits = both(hits, compare("eq", at, index))
    none = dim_sub(1, reduce(dim_mul, (dim_min(magnitude(s), 1) for s in sizes)))
    left = [a for a in variables if a not in own]
    over = tuple(Axis(a.name, dim_mul(none, a.extent) if n == 0 else a.extent) for n, a in enumerate(left))
    hit = choose(hits, adjoint, None, adjoint.dtype)
    assert hit is not None
    body = substitute(hit, own | dict(zip(left, over, strict=True)))
    return Reduce("sum", over, body, adjoint.dtype) if over else body


def _sizes(read: Sequence[Scalar]) -> list[SymDim]:
    """The sizes that multiply or divide something in indices, and may be zero."""
    indices = Indices()
    found: dict[SymDim, None] = {}
    sums = list(read)
    for node in (n for index in read for n in walk(index)):
        if isinstance(node, Binary | Unary) and node.dtype == "int64" and node.op not in ("add", "sub", "mul", "neg"):
            sums += children(node)
            if isinstance(node, Binary) and node.op in ("floordiv", "mod"):
                found.update(dict.fromkeys(_factors(indices.poly(node.b), indices)))
    for each in sums:
        for of, size in indices.strides(indices.poly(each)):
            if of != 1:
                found.update(dict.fromkeys(_factors(size, indices)))
    return list(found)


def _factors(size: Dim, indices: Indices) -> list[SymDim]:
    """The factors of a size that may be zero; the whole, where it is a sum. Of ``min(s, 1)`` it is s."""
    if not isinstance(size, SymDim) or indices.is_index(size) or not may_be_zero(size):
        return []
    if len(size.terms) > 1:
        return [size]
    out: list[SymDim] = []
    for atom in dim_atoms(size):
        whole: Dim = as_dim(atom)
        if isinstance(atom, DimOp) and atom.op == "min" and 1 in (atom.a, atom.b):
            whole = atom.b if atom.a == 1 else atom.a
        if isinstance(whole, SymDim) and may_be_zero(whole):
            out.append(whole)
    return out
