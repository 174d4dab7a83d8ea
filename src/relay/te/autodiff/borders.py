"""Products of reads that leave their tensors, as products of tensors with a border of zeros.

    sum(select((i + k >= 1) & (i + k < n + 1), x[i + k - 1], 0) * w[k], k)   ->   p = x between zeros;   sum(p[i + k] * w[k], k)

The guards where an index leaves its tensor are in the way of what is a matrix product otherwise.
"""

from __future__ import annotations

from relay.ir.dim import Dim, dim_add, dim_mul, dim_sub, known_equal
from relay.te.autodiff.arithmetic import both, choose, factors, is_const, mul
from relay.te.autodiff.simplify import simplified
from relay.te.autodiff.stages import axes_of, index_size, source_of, stage
from relay.te.index import Indices
from relay.te.scalar import TRUE, Cast, Compare, Load, Scalar, Select, binary, cast, compare, conjuncts
from relay.te.tensor import Tensor

# A tensor that is read in a circle is laid out so many times in a row at most.
_MOST_ROUNDS = 4


def with_borders(value: Scalar, indices: Indices, covered: set[tuple[Dim, Dim]], guard: Scalar = TRUE) -> Scalar | None:
    """A product whose reads are of tensors with borders of zeros, where these are all that the conditions on its factors, and a guard of
    all of it, exclude; None for any other. ``covered`` gets the pairs (index, size) of axes that have borders."""
    conditions: list[Scalar] = [] if guard is TRUE else conjuncts(guard)
    product: Scalar | None = None
    for factor in factors(value):
        conditions += _conditions(factor)
        load = load_of(factor)
        made: Scalar = factor
        if load is not None:
            bordered = _bordered(load, indices, covered)
            if bordered is None:
                return None
            made = cast(bordered, factor.dtype)
        product = made if product is None else mul(product, made)
    if not all(any(_implied(c, *span, indices) for span in covered) for c in conditions):
        return None
    return product


def load_of(factor: Scalar) -> Load | None:
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
    places: list[Dim] = []
    around: dict[int, int] = {}
    for number, (index, size) in enumerate(zip(load.indices, source.shape, strict=True)):
        poly = indices.poly(index)
        turn = _around(poly, size, indices)
        if turn is not None:
            poly, around[number] = turn
        places.append(poly)
        low, high = indices.ends(poly)
        if turn is not None:
            assert low is not None and high is not None
        elif indices.within_where_any(index, size):
            low, high = 0, dim_sub(size, 1)
        elif low is None or high is None or indices.opaque_in(poly):
            return None
        else:
            covered.add((poly, size))
        starts.append(low)
        shape.append(dim_add(dim_sub(high, low), 1))
    if not around and all(s == 0 and known_equal(a, b) for s, a, b in zip(starts, shape, source.shape, strict=True)):
        return load
    own = axes_of(shape)
    inside: Scalar = TRUE
    at: list[Scalar] = []
    for number, (axis, start, size, width) in enumerate(zip(own, starts, source.shape, shape, strict=True)):
        index = axis if start == 0 else binary("add", axis, index_size(start))
        if number in around:
            at.append(binary("mod", index, around[number]))
            continue
        at.append(index)
        if start == 0 and known_equal(width, size):
            continue
        inside = both(both(inside, compare("ge", index, 0)), compare("lt", index, index_size(size)))
    body = choose(simplified(inside, Indices()), source[tuple(at)], None, source.dtype)
    if body is None:  # nothing of it is inside
        return None
    border = stage("bordered", own, body)
    moved = [
        index if start == 0 and number not in around else indices.scalar(dim_sub(place, start))
        for number, (index, place, start) in enumerate(zip(load.indices, places, starts, strict=True))
    ]
    return border[tuple(moved)]


def _around(index: Dim, size: Dim, indices: Indices) -> tuple[Dim, int] | None:
    """Where an index goes around an axis, ``p mod c``: p and c. None for any other, and for more than a few rounds."""
    for above, by in indices.divisors(index):
        turned = known_equal(index, indices.mod(above, by))
        low, high = indices.bounds(above)
        if turned and not indices.opaque_in(above) and low is not None and high is not None and isinstance(size, int):
            return (above, by) if by <= size and high - low < _MOST_ROUNDS * size else None
    return None
