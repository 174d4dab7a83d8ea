"""Variables of index polynomials, and what their ranges say of a polynomial.

A variable stands for an axis, for a quotient, or for what is not arithmetic, and knows between which ends it lies. Bounds of a polynomial
follow from its variables' ends; what a quotient and the rest of a sum have in common cancels first. A remainder is ``p - c * (p // c)``,
which is below ``c``.
"""

from __future__ import annotations

from relay.ir.dim import (
    Dim,
    DimVar,
    Monomial,
    SymDim,
    as_dim,
    as_var,
    dim_add,
    dim_atoms,
    dim_bounds,
    dim_mul,
    dim_of_terms,
    dim_sub,
    dim_sum,
    is_any,
)
from relay.ir.inequality import is_count
from relay.te.scalar import Axis, Named, Scalar


class Ranges:
    """The variables of one analysis, with what they stand for and the ends of what it may be."""

    __slots__ = ("_axes", "_divisions", "_lower", "_scalars", "_upper")

    def __init__(self) -> None:
        self._axes: dict[Axis, SymDim] = {}
        self._scalars: dict[DimVar, Scalar] = {}
        self._lower: dict[DimVar, Dim] = {}
        self._upper: dict[DimVar, Dim] = {}
        self._divisions: dict[DimVar, tuple[Dim, Dim]] = {}

    def axis(self, axis: Axis) -> Dim:
        """The variable of an axis; an axis of one element is 0. It ranges over ``[0, extent)``, a named value over all numbers."""
        counts = axis.dtype == "int64" and not isinstance(axis, Named)
        if counts and axis.extent == 1:
            return 0
        found = self._axes.get(axis)
        if found is None:
            found = self._new(axis, 0 if counts else None, dim_sub(axis.extent, 1) if counts else None)
            self._axes[axis] = found
        return found

    def _new(self, value: Scalar, lower: Dim | None, upper: Dim | None) -> SymDim:
        name = value.name if isinstance(value, Axis) else "t"
        var = DimVar(name)
        self._scalars[var] = value
        if lower is not None:
            self._lower[var] = lower
        if upper is not None and not is_any(upper):
            self._upper[var] = upper
        return as_dim(var)

    def variable(self, axis: Axis) -> DimVar | None:
        """The dim variable that stands for an axis (None for an axis of one element)."""
        dim = self.axis(axis)
        return as_var(dim) if isinstance(dim, SymDim) else None

    def is_index(self, a: Dim) -> bool:
        """Whether a polynomial mentions an index variable (else it is made of sizes alone)."""
        return any(isinstance(atom, DimVar) and atom in self._scalars for atom in dim_atoms(a))

    def division(self, var: DimVar) -> tuple[Dim, Dim] | None:
        """The dividend and the divisor of an opaque variable that is a quotient."""
        return self._divisions.get(var)

    def divisions(self, a: Dim) -> list[tuple[Dim, Dim]]:
        """The divisions ``p // c`` inside a polynomial, by numbers and by sizes, as (p, c)."""
        return [self._divisions[atom] for atom in dim_atoms(a) if isinstance(atom, DimVar) and atom in self._divisions]

    def divisors(self, a: Dim) -> list[tuple[Dim, int]]:
        """The divisions ``p // c`` by a number inside a polynomial, as (p, c)."""
        return [(p, c) for p, c in self.divisions(a) if isinstance(c, int)]

    def divided_by(self, a: Dim) -> tuple[Dim, ...]:
        """The sizes that divide something in a polynomial, at any depth."""
        found: dict[Dim, None] = {}
        todo = [a]
        while todo:
            for above, by in self.divisions(todo.pop()):
                todo.append(above)
                if not isinstance(by, int):
                    found[by] = None
        return tuple(found)

    # -- ranges

    def bounds(self, a: Dim) -> tuple[int | None, int | None]:
        """Numbers that bound a polynomial from below and above (None: unbounded)."""
        low, high = self._extent(a, upper=False), self._extent(a, upper=True)
        least = None if low is None else dim_bounds(low)[0]
        most = None if high is None else dim_bounds(high)[1]
        for below, above in self._together(a):
            least = below if least is None or (below is not None and below > least) else least
            most = above if most is None or (above is not None and above < most) else most
        return least, most

    def ends(self, a: Dim) -> tuple[Dim | None, Dim | None]:
        """The least and the greatest value of a polynomial as dims (None: not known)."""
        low, high = self._extent(a, upper=False), self._extent(a, upper=True)
        least, most = self.bounds(a)
        # Numbers, where there are any, are as good or better.
        return least if isinstance(low, int) or low is None else low, most if isinstance(
            high, int
        ) or high is None else high

    def _together(self, a: Dim) -> list[tuple[int | None, int | None]]:
        """Bounds of a sum with a quotient, the sum brought into it: ``x - (p // c)`` is ``-((p - c * x) // c)``, where what x and p
        have in common cancels; and of one with a remainder, ``p - c * (p // c)``."""
        out: list[tuple[int | None, int | None]] = []
        if not isinstance(a, SymDim) or len(a.terms) < 2:
            return out
        for monomial, sign in a.terms:
            if len(monomial) != 1 or monomial[0][1] != 1:
                continue
            (var, _), *_ = monomial
            if not isinstance(var, DimVar) or var not in self._divisions:
                continue
            above, below = self._divisions[var]
            if not isinstance(below, int) or below <= 0:
                continue
            if sign % below == 0:
                times = -sign // below
                rest = dim_sub(a, dim_mul(times, dim_sub(above, dim_mul(below, as_dim(var)))))
                span = sorted((0, times * (below - 1)))
                low, high = self._extent(rest, upper=False), self._extent(rest, upper=True)
                least = None if low is None else dim_bounds(low)[0]
                most = None if high is None else dim_bounds(high)[1]
                out.append((None if least is None else least + span[0], None if most is None else most + span[1]))
            if sign not in (1, -1):
                continue
            rest = dim_sub(a, dim_mul(sign, as_dim(var)))
            whole = dim_add(above, dim_mul(sign * below, rest))
            low, high = self._extent(whole, upper=False), self._extent(whole, upper=True)
            least = None if low is None else dim_bounds(low)[0]
            most = None if high is None else dim_bounds(high)[1]
            ends = (None if least is None else least // below, None if most is None else most // below)
            if sign == 1:
                out.append(ends)
            else:
                out.append((None if ends[1] is None else -ends[1], None if ends[0] is None else -ends[0]))
        return out

    def _extent(self, a: Dim, upper: bool) -> Dim | None:
        """The polynomial with each index variable at the end of its range that makes it largest (or smallest)."""
        if not isinstance(a, SymDim):
            return None if is_any(a) else a
        parts: list[Dim] = []
        for monomial, coefficient in a.terms:
            product: Dim = coefficient
            ends = self._upper if upper == (coefficient > 0) else self._lower
            mine = [(atom, power) for atom, power in monomial if isinstance(atom, DimVar) and atom in self._scalars]
            # A product is largest at its factors' upper ends only if none of the others is negative.
            if sum(power for _, power in mine) > 1 and not all(self._nonnegative(atom) for atom, _ in mine):
                return None
            if mine and not all(is_count(as_dim(atom)) for atom, _ in monomial if atom not in self._scalars):
                return None
            for atom, power in monomial:
                value: Dim | None = as_dim(atom)
                if isinstance(atom, DimVar) and atom in self._scalars:
                    value = ends.get(atom)
                if value is None:
                    return None
                for _ in range(power):
                    product = dim_mul(product, value)
            parts.append(product)
        total = dim_sum(parts)
        # Ends may themselves be index polynomials (a clamped loop); sizes are the fixed point.
        return total if not self.is_index(total) else self._extent(total, upper)

    def _nonnegative(self, var: DimVar) -> bool:
        lower = self._lower.get(var)
        return isinstance(lower, int) and lower >= 0

    def _nonnegative_dim(self, a: Dim) -> bool:
        low, _ = self.bounds(a)
        return low is not None and low >= 0

    def within(self, a: Dim, limit: Dim) -> bool:
        """Whether ``0 <= a < limit`` for all values of the variables."""
        low, high = self.bounds(a)
        if low is None or low < 0:
            return False
        if high is not None and isinstance(limit, int):
            return high < limit
        highest = self._extent(a, upper=True)
        return highest is not None and _is_positive(dim_sub(limit, highest))

    def within_if(self, a: Dim, limit: Dim) -> tuple[Dim, ...] | None:
        """The sizes that have to be more than zero so that ``0 <= a < limit`` for all values of the variables; None where that is not
        known."""
        if self.within(a, limit):
            return ()
        return self.divided_by(a) if self._digits_within(a, limit) else None

    def _digits_within(self, a: Dim, limit: Dim) -> bool:
        """The same of a sum with remainders by sizes, ``p - c * (p // c)``, each of which is below its divisor."""
        lowest: Dim = 0
        highest: Dim = 0
        rest = a
        while (found := self._remainder(rest)) is not None:
            times, rest, below = found
            span = dim_mul(times, dim_sub(below, 1))
            if is_count(times):
                highest = dim_add(highest, span)
            elif is_count(dim_mul(-1, times)):
                lowest = dim_add(lowest, span)
            else:
                return False
        if rest == a:
            return False
        low, high = self._extent(rest, upper=False), self._extent(rest, upper=True)
        if low is None or high is None:
            return False
        return _is_positive(dim_add(dim_add(low, lowest), 1)) and _is_positive(dim_sub(limit, dim_add(high, highest)))

    def _remainder(self, a: Dim) -> tuple[Dim, Dim, Dim] | None:
        """A remainder by a size that a polynomial has some times, the polynomial without it, and the size."""
        for atom in dim_atoms(a):
            division = self._divisions.get(atom) if isinstance(atom, DimVar) else None
            if division is None or not isinstance(division[1], SymDim) or self.is_index(division[1]):
                continue
            above, below = division
            count, over = divide(terms_with(a, atom), as_dim(atom))
            if over != 0:
                continue
            negative, left = divide(count, below)
            if left != 0 or negative == 0 or self.is_index(negative):
                continue
            times = dim_mul(-1, negative)
            rest = dim_sub(a, dim_mul(times, dim_sub(above, dim_mul(below, as_dim(atom)))))
            if all(other is not atom for other in dim_atoms(rest)) and not self._mentions_any(rest, above):
                return times, rest, below
        return None

    def _mentions_any(self, a: Dim, above: Dim) -> bool:
        """Whether a polynomial has variables of another one left: then what was taken from it was no part of it."""
        mine = {t for t in dim_atoms(above) if isinstance(t, DimVar) and t in self._scalars}
        return any(atom in mine for atom in dim_atoms(a))


def divide(a: Dim, b: Dim) -> tuple[Dim, Dim]:
    """Write ``a = exact * b + rest``, coefficient by coefficient, for a divisor that is one monomial; exact for ``a == b`` in any case."""
    if not isinstance(a, SymDim) or not isinstance(b, int | SymDim):
        return 0, a
    divisor: dict[Monomial, int] = dict(b.terms) if isinstance(b, SymDim) else {(): b}
    if len(divisor) != 1:
        return (1, 0) if a == b else (0, a)
    (bm, bc), *_ = divisor.items()
    need = dict(bm)
    exact: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for m, c in a.terms:
        powers = dict(m)
        if all(powers.get(atom, 0) >= p for atom, p in need.items()):
            left = tuple((atom, p - need.get(atom, 0)) for atom, p in m if p > need.get(atom, 0))
            exact[left] = c // bc
            rest[m] = c % bc
        else:
            rest[m] = c
    return dim_of_terms(exact), dim_of_terms(rest)


def terms_with(a: Dim, wanted: object) -> Dim:
    """The terms of a polynomial that have a variable."""
    if not isinstance(a, SymDim):
        return 0
    return dim_of_terms({m: c for m, c in a.terms if any(atom is wanted for atom, _ in m)})


def _is_positive(a: Dim) -> bool:
    low, _ = dim_bounds(a)
    return low is not None and low > 0
