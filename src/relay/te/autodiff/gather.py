"""The contribution of one read to a cotangent: a sum over the iterations that hit an element, in the form that is scheduled best.

A sum of products of two tensors is a matrix product, if nothing else is in the way. What is in the way of a derived one are the
guards where an index leaves its tensor, and the residues of strides. So a tensor that is read outside of its bounds gets a border of
zeros first, as a padded convolution does it in the forward direction; and an axis whose quotient and remainder by a stride are read is
made as two axes, of which the remainder goes with one operand and the quotient with the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

from relay.ir.dim import Dim, ceil_div, dim_add, dim_floordiv, dim_mul, dim_sub, known_equal
from relay.ir.record import record
from relay.te.autodiff.arithmetic import add, both, choose, factors, is_const, zero
from relay.te.autodiff.borders import load_of, with_borders
from relay.te.autodiff.contributions import contributions
from relay.te.autodiff.simplify import equalities, simplified
from relay.te.autodiff.solve import Inverse, invert
from relay.te.autodiff.stages import axes_of, index_size, source_of, stage
from relay.te.autodiff.taps import over_taps
from relay.te.autodiff.terms import Term, added
from relay.te.autodiff.zeros import where_some
from relay.te.index import Indices
from relay.te.interleave import interleaved
from relay.te.scalar import (
    TRUE,
    Axis,
    Compare,
    Const,
    Load,
    Reduce,
    Scalar,
    Select,
    binary,
    compare,
    conjuncts,
    iteration_count,
    substitute,
    walk,
)
from relay.te.tensor import Tensor, placeholder

# A sum of so many terms at most, with conditions among them, is written out, if it does not have more nodes then.
_WRITTEN_OUT, _MOST_NODES = 9, 1000
# So many classes of remainders at most are made apart.
_MOST_CLASSES = 16


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
    return added(gathered(target[tuple(place)], value, axes, over), shape, value.dtype, name)


@record(frozen=True, slots=True, eq=False)
class _Read:
    """A read and its adjoint at every index of ``axes`` and ``over``."""

    load: Load
    adjoint: Scalar
    axes: tuple[Axis, ...]
    over: tuple[Axis, ...]

    def inverses(self, at: Sequence[Scalar], indices: Indices) -> list[Inverse]:
        """The iterations that read the element ``at``."""
        variables = (*self.axes, *self.over)
        return invert(self.load.indices, at, variables, indices, len(self.over), equalities(self.adjoint))

    def value(self, inverse: Inverse, indices: Indices) -> Scalar:
        """The adjoint in those iterations."""
        return simplified(substitute(self.adjoint, inverse.values), indices)


def gathered(load: Load, adjoint: Scalar, axes: Sequence[Axis], over: Sequence[Axis]) -> list[Term]:
    """What a read with this adjoint, at every index of ``axes`` and ``over``, gives each element of the tensor that is read: a sum."""
    return where_some(load, adjoint, axes, over, _gathered)


def _gathered(load: Load, adjoint: Scalar, axes: Sequence[Axis], over: Sequence[Axis]) -> list[Term]:
    """The same where no size is zero that multiplies or divides an index."""
    source = source_of(load)
    assert source is not None
    read = _Read(load, adjoint, tuple(axes), tuple(over))
    element = axes_of(source.shape)
    indices = Indices()
    parts = read.inverses(element, indices)
    tapped = over_taps(load, adjoint, axes, over, element, lambda: _iterations(read, parts, element, indices))
    if tapped is not None:
        return [Term(element, tapped)]
    first = contributions(load, adjoint, axes, over, lambda: _iterations(read, parts, element, indices))
    if first is not None:
        return _gathered(load, first.value, first.axes, first.over)
    if len(parts) == 1:
        (inverse,) = parts
        value = read.value(inverse, indices)
        split = _residues(value, element, indices)
        is_product = bool(inverse.free) and _reads(value) is not None
        # Along memory a quotient would keep neighbours from being computed in lanes; along other axes loops are split.
        wide = [a for a in element if a.extent != 1]
        along = bool(wide) and wide[-1] in split and _is_short(inverse.free)
        apart = inverse.uneven or (along and not is_product)
        numbers = _by_numbers(split)
        if numbers and apart and prod(numbers.values()) <= _MOST_CLASSES:
            return [_by_classes(read, element, numbers)]
        if split and is_product:
            term = _by_remainders(read, element, split)
            if term is not None:
                return [term]
    return _terms(read, parts, element, indices)


def _iterations(read: _Read, parts: Sequence[Inverse], element: tuple[Axis, ...], indices: Indices) -> int:
    """How many products are added up in all (see `work`)."""
    if len(parts) == 1:
        split = _by_numbers(_residues(read.value(parts[0], indices), element, indices))
        if split and prod(split.values()) <= _MOST_CLASSES:
            found = [(axes, read.inverses(at, Indices())) for _, axes, at in _classes(element, split)]
            return sum(
                iteration_count(axes) * iteration_count(each.free) for axes, inverses in found for each in inverses
            )
    return sum(iteration_count(element) * iteration_count(each.free) for each in parts)


def _classes(
    element: tuple[Axis, ...], split: Mapping[Axis, int]
) -> Iterator[tuple[tuple[int, ...], tuple[Axis, ...], list[Scalar]]]:
    """The classes of elements with the same remainders: these, the axes of a class, and its elements in terms of them."""
    steps = [split.get(a, 1) for a in element]
    for remainders in product(*map(range, steps)):
        sizes = [ceil_div(dim_sub(a.extent, r), s) for a, r, s in zip(element, remainders, steps, strict=True)]
        if 0 in sizes:
            continue
        axes = tuple(Axis(a.name, size) for a, size in zip(element, sizes, strict=True))
        at = [
            a if step == 1 else binary("add", binary("mul", a, step), r)
            for a, step, r in zip(axes, steps, remainders, strict=True)
        ]
        yield remainders, axes, at


def _terms(read: _Read, parts: Sequence[Inverse], element: tuple[Axis, ...], indices: Indices) -> list[Term]:
    """The sums over the iterations that read an element: as a product where it is one."""
    out: list[Term] = []
    for inverse in parts:
        value = read.value(inverse, indices)
        term = None
        if inverse.free and _reads(value) is not None:
            made = _within_bounds(value, inverse, indices)
            if made is not None:
                term = _of_product(element, element, made, inverse)
        if term is None:
            term = _term(element, inverse, value, indices)
        if term is not None:
            out.append(term)
    return out


def _of_product(element: tuple[Axis, ...], axes: tuple[Axis, ...], made: Scalar, inverse: Inverse) -> Term:
    """The sum of products over axes, in the order that is computed best, read at an element."""
    whole = _ordered(axes, made)
    body = Reduce("sum", inverse.free, made, made.dtype)
    return Term(element, body if whole == element else stage("product", whole, body)[whole])


def _by_classes(read: _Read, element: tuple[Axis, ...], split: dict[Axis, int]) -> Term:
    """The sum made apart for each class of elements with the same remainders: no class has iterations of another."""
    steps = [split.get(a, 1) for a in element]
    parts: list[tuple[Sequence[int], Tensor]] = []
    for remainders, axes, at in _classes(element, split):
        indices = Indices()
        terms = _terms(read, read.inverses(at, indices), axes, indices)
        parts.append((remainders, added(terms, [a.extent for a in axes], read.adjoint.dtype, "class")))
    return Term(element, interleaved(element, steps, parts, read.adjoint.dtype))


def _term(element: tuple[Axis, ...], inverse: Inverse, value: Scalar, indices: Indices) -> Term | None:
    """The sum over what is free, under the guard. Of a sum for one index of an axis only, that index is made alone."""
    if not inverse.free:
        guarded = _under(inverse.guard, value)
        return None if guarded is None else Term(element, guarded)
    inside: Scalar = TRUE
    outside: Scalar = TRUE
    fixed: dict[Axis, Scalar] = {}
    for part in conjuncts(inverse.guard):
        found = _fixed(part, element, indices)
        if found is None or found[0] in fixed:
            inside = both(inside, part)
        else:
            fixed[found[0]] = found[1]
            outside = both(outside, part)
    guarded = _under(inside, value)
    if guarded is None:
        return None
    if not fixed:
        return _sum(element, inverse.free, guarded)
    narrow = tuple(Axis(a.name, 1 if a in fixed else a.extent) for a in element)
    own: dict[Axis, Scalar] = {a: fixed.get(a, n) for a, n in zip(element, narrow, strict=True)}
    there: Scalar = TRUE  # is there such an element at all: the stage of its own has one for sizes of zero, too
    for a, place in fixed.items():
        there = both(there, both(compare("ge", place, 0), compare("lt", place, index_size(a.extent))))
    body = choose(simplified(there, indices), substitute(guarded, own), None, guarded.dtype)
    if body is None:
        return None
    body = simplified(body, indices)
    alone = added([_sum(narrow, inverse.free, body)], tuple(a.extent for a in narrow), body.dtype, "edge")
    at = tuple(Const(0, "int64") if a in fixed else a for a in element)
    chosen = choose(outside, alone[at], None, body.dtype)
    return None if chosen is None else Term(element, chosen)


def _under(guard: Scalar, value: Scalar) -> Scalar | None:
    """The value where a guard holds, zero elsewhere. What it reads itself may be inside only where the rest of it holds."""
    plain: Scalar = TRUE
    reading: Scalar = TRUE
    for part in conjuncts(guard):
        if any(isinstance(n, Load) for n in walk(part)):
            reading = both(reading, part)
        else:
            plain = both(plain, part)
    return choose(plain, choose(reading, value, None, value.dtype), None, value.dtype)


def _sum(element: tuple[Axis, ...], over: Sequence[Axis], body: Scalar) -> Term:
    """A sum over axes; a short one with conditions is written out, so that these are decided where they can be."""
    nodes = walk(body)
    short = _is_short(over) and body.dtype in ("float32", "float64")
    short = short and len(nodes) * prod(a.extent for a in over if isinstance(a.extent, int)) <= _MOST_NODES
    if not short or not any(isinstance(n, Select) and _is_decided(n.cond, over) for n in nodes):
        return Term(element, Reduce("sum", _along_memory(over, body), body, body.dtype))
    indices = Indices()
    total: Scalar | None = None
    for at in product(*(range(a.extent) for a in over if isinstance(a.extent, int))):
        own: dict[Axis, Scalar] = {a: Const(n, "int64") for a, n in zip(over, at, strict=True)}
        each = simplified(substitute(body, own), indices)
        if not is_const(each, 0):
            total = add(total, each)
    return Term(element, zero(body.dtype) if total is None else total)


def _is_decided(cond: Scalar, over: Sequence[Axis]) -> bool:
    """Whether a condition, or a part of it, may be decided where axes have one index: it compares what is made of them, reading nothing."""
    for node in walk(cond):
        if isinstance(node, Compare) and node.a.dtype == "int64":
            inside = [*walk(node.a), *walk(node.b)]
            if any(n in over for n in inside if isinstance(n, Axis)) and not any(isinstance(n, Load) for n in inside):
                return True
    return False


def _is_short(over: Sequence[Axis]) -> bool:
    """Whether a sum over axes has so few terms that they may be written out."""
    numbers = [a.extent for a in over if isinstance(a.extent, int)]
    return len(numbers) == len(over) and prod(numbers) <= _WRITTEN_OUT


def _along_memory(over: Sequence[Axis], body: Scalar) -> tuple[Axis, ...]:
    """Axes to sum over, in the order in which the read that has most of them goes along them: the last one runs along memory."""
    places = [
        {n: at for at, index in enumerate(load.indices) for n in walk(index) if isinstance(n, Axis)}
        for load in walk(body)
        if isinstance(load, Load)
    ]
    most = max(places, key=lambda place: sum(a in place for a in over), default={})
    return tuple(sorted(over, key=lambda a: most.get(a, -1)))


def _fixed(cond: Scalar, element: Sequence[Axis], indices: Indices) -> tuple[Axis, Scalar] | None:
    """The axis of the element that a condition fixes to a value made of sizes, and the value."""
    if not isinstance(cond, Compare) or cond.op != "eq" or cond.a.dtype != "int64":
        return None
    difference = dim_sub(indices.poly(cond.a), indices.poly(cond.b))
    for axis in element:
        sign = indices.coefficient(difference, axis)
        if isinstance(sign, int) and abs(sign) == 1:
            rest = dim_mul(-sign, dim_sub(difference, dim_mul(sign, indices.axis(axis))))
            return None if indices.is_index(rest) else (axis, indices.scalar(rest))
    return None


def _reads(value: Scalar) -> list[Load] | None:
    """The loads that a product of two or more reads consists of; None for anything else."""
    found = [load_of(f) for f in factors(value) if not isinstance(f, Const)]
    loads = [f for f in found if f is not None]
    return loads if len(loads) == len(found) >= 2 else None


@record(frozen=True, slots=True)
class _Residue:
    """An axis z of which ``(z + offset) // by`` is read; of a size there is no offset."""

    by: Dim
    offset: int


def _residues(value: Scalar, element: Sequence[Axis], indices: Indices) -> dict[Axis, _Residue]:
    """The axes of the element that are read by quotient and remainder, each always by the same."""
    out: dict[Axis, _Residue] = {}
    for load in (n for n in walk(value) if isinstance(n, Load)):
        for index in load.indices:
            for above, by in indices.divisions(indices.poly(index)):
                mine = [a for a in element if indices.mentions(above, a)]
                if len(mine) != 1 or indices.is_index(by):
                    continue
                offset = dim_sub(above, indices.axis(mine[0]))
                if not isinstance(by, int) and offset != 0:
                    continue
                if not isinstance(offset, int) or out.setdefault(mine[0], _Residue(by, offset)) != _Residue(by, offset):
                    return {}
    return out


def _by_numbers(split: Mapping[Axis, _Residue]) -> dict[Axis, int]:
    """The divisors, if all are numbers."""
    found = {a: r.by for a, r in split.items() if isinstance(r.by, int)}
    return found if len(found) == len(split) else {}


def _by_remainders(read: _Read, element: tuple[Axis, ...], split: dict[Axis, _Residue]) -> Term | None:
    """The sum as one product, with axes that are split made as quotient and remainder; None where it is not one. Right where all
    classes of remainders are of one size."""
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
        first = offset // by if isinstance(by, int) else 0
        last = dim_floordiv(dim_add(axis.extent, offset - 1), by)
        quotient = Axis(axis.name, dim_add(dim_sub(last, first), 1))
        remainder = Axis(f"{axis.name}r", by)
        rest.append(quotient)
        remainders.append(remainder)
        at.append(binary("sub", binary("add", binary("mul", binary("add", quotient, first), by), remainder), offset))
        moved = binary("add", axis, offset)
        back[quotient] = binary("sub", binary("floordiv", moved, by), first)
        back[remainder] = binary("mod", moved, by)
    (inverse,) = read.inverses(at, indices)
    value = read.value(inverse, indices)
    # What was decided for all elements is open again for those that the split adds beyond the last; nothing reads those.
    while isinstance(value, Select) and is_const(value.b, 0):
        value = value.a
    made = None if _reads(value) is None else _within_bounds(value, inverse, indices)
    if made is None:
        return None
    whole = _ordered((*remainders, *rest), made)
    body = Reduce("sum", inverse.free, made, made.dtype)
    return Term(element, stage("product", whole, body)[tuple(back.get(a, a) for a in whole)])


def _ordered(axes: tuple[Axis, ...], product: Scalar) -> tuple[Axis, ...]:
    """The axes with one that belongs to a single operand last, if there are such: along it a product is computed in lanes."""
    own = [{n for n in walk(f) if isinstance(n, Axis)} for f in factors(product) if not isinstance(f, Const)]
    shared = [sum(a in mine for mine in own) > 1 for a in axes]
    wide = [n for n, a in enumerate(axes) if a.extent != 1]
    if not wide or not shared[wide[-1]] or all(shared[n] for n in wide):
        return axes
    # A product of few elements for each place is none worth a matrix kernel: lanes go along the places.
    if _is_short([axes[n] for n in wide if not shared[n]]):
        return axes
    return (
        *(a for a, s in zip(axes, shared, strict=True) if s),
        *(a for a, s in zip(axes, shared, strict=True) if not s),
    )


def _within_bounds(value: Scalar, inverse: Inverse, indices: Indices) -> Scalar | None:
    """The product with borders of zeros around what is read outside of its bounds, if these are all that the guard excludes."""
    covered: set[tuple[Dim, Dim]] = set()
    product = with_borders(value, indices, covered)
    if product is None or not all(any(_spans(*span, *other, indices) for other in covered) for span in inverse.spans):
        return None
    return choose(inverse.rest, product, None, value.dtype)


def _spans(part: Dim, count: Dim, index: Dim, size: Dim, indices: Indices) -> bool:
    """Whether a part is within its count wherever an index is within its size: it is the index, or its quotient by what one is more
    than the other: ``index = by * part + rest`` with a rest below ``by``."""
    if known_equal(part, index) and known_equal(count, size):
        return True
    by = 1 if count == 0 else dim_floordiv(size, count)
    if not isinstance(by, int) or by < 1 or not known_equal(dim_mul(by, count), size):
        return False
    low, high = indices.ends(dim_sub(index, dim_mul(by, part)))
    return isinstance(low, int) and isinstance(high, int) and low >= 0 and high < by
