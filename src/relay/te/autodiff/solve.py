"""Inverting index functions: for which iterations of a stage does a read hit a given element?

A stage reads ``A[f(x)]`` for every index ``x`` of a box. The gradient of ``A`` at ``z`` sums over all ``x`` with ``f(x) = z``
(NeoFlow, section 4.2). Here that set is written as ``x = h(z, t)`` with new variables ``t`` over boxes, and guards where ``h``
may leave its range. The index functions are sums of variables times sizes; what is not affine becomes a variable of its own:

    q = u // c        u = c * q + r with a new r in [0, c)
    min(a, b), abs(a) two pieces (`relay.te.autodiff.cuts`)

Each equation is solved by the variable that is cheapest to keep: ``z = s*p + d*r`` gives r modulo s (there is an inverse of d,
once the common divisor is out; of a size s where d is 1), so r runs only over its residue class and p is determined. Variables that
sizes multiply are looped over where that leaves an equation of numbers and shorter loops than other ways do. What cannot be solved
stays a guard, so the result is right for every index function, and free of guards where the ranges allow. Sizes that multiply or
divide are taken not to be zero (`relay.te.autodiff.zeros`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from math import gcd, prod

from relay.ir.dim import (
    Dim,
    DimVar,
    ceil_div,
    dim_add,
    dim_bounds,
    dim_floordiv,
    dim_mul,
    dim_sub,
    known_equal,
)
from relay.ir.record import record
from relay.te.autodiff.arithmetic import both
from relay.te.autodiff.cuts import Piece, cut
from relay.te.index import Indices, content
from relay.te.scalar import (
    TRUE,
    Axis,
    Compare,
    CompareOp,
    Const,
    Scalar,
    binary,
    substitute,
    walk,
)

# A loop of a size that is not known counts as long.
_LONG = 1 << 40
# A window with as many places as this or fewer is gone through whole.
_SHORT = 4
# Of so many variables in an equation at most all orders are compared.
_MOST_ORDERED = 5


@record(frozen=True, slots=True, eq=False)
class Inverse:
    """The iterations that hit an element: ``values`` of the stage's variables, in terms of the element's index and of the
    variables ``free``, each over its extent; only those count for which ``guard`` holds: that each of ``spans``, an index and a
    size, is within its bounds, and ``rest``. ``uneven``: a loop over a residue class is longer than some classes are."""

    values: dict[Axis, Scalar]
    free: tuple[Axis, ...]
    guard: Scalar
    spans: tuple[tuple[Dim, Dim], ...]
    rest: Scalar
    uneven: bool = False


def invert(
    read: Sequence[Scalar],
    element: Sequence[Scalar],
    variables: Sequence[Axis],
    indices: Indices,
    reduced: int = 0,
    also: Sequence[tuple[Scalar, Scalar]] = (),
    loops: Sequence[Axis] = (),
) -> list[Inverse]:
    """Solve ``read(variables) == element``: the iterations that hit the element are those of all parts, none of them in two. The
    last ``reduced`` of the variables are those of a reduction: of two that are alike, they are kept as loops. ``also`` are pairs of
    indices of which is known that only equal ones count. The variables ``loops`` stay loops, whatever that costs."""
    out: list[Inverse] = []
    todo = [Piece(tuple(read), tuple(variables), tuple(also), ())]
    while todo:
        piece = todo.pop()
        parts = cut(piece, indices)
        if parts is not None:
            todo += reversed(parts)
            continue
        own = piece.variables
        system = _System(indices, own, reduced + len(own) - len(variables))
        for a, b in piece.also:
            system.equate(a, b)
        for index, at in zip(piece.read, element, strict=True):
            system.equate(index, at)
        system.keep(loops)
        out.append(system.solve(piece.where))
    return out


class _System:
    """Linear equations over bounded integer variables."""

    def __init__(self, indices: Indices, variables: Sequence[Axis], reduced: int) -> None:
        self.indices = indices
        self.fresh = {a: Axis(a.name, a.extent) for a in variables}
        self.rank = {fresh: n >= len(variables) - reduced for n, fresh in enumerate(self.fresh.values())}
        self.open = [a for a in self.fresh.values() if a.extent != 1]
        self.free: list[Axis] = []
        self.solved: dict[Axis, Dim] = {}
        self.equations: list[Dim] = []
        self.equal: list[tuple[Dim, Dim]] = []
        self.nonnegative: set[Axis] = set()
        self.below_extent: set[Axis] = set()
        self.uneven = False
        self._made: dict[Dim, Dim] = {}

    # -- making the equations linear

    def equate(self, read: Scalar, at: Scalar) -> None:
        """Demand that two expressions of the stage's variables and the element's index are equal."""
        own: dict[Axis, Scalar] = {a: Const(0, "int64") if v.extent == 1 else v for a, v in self.fresh.items()}
        difference = binary("sub", substitute(read, own), substitute(at, own))
        equation = self._linear(self.indices.poly(difference))
        self.equations.append(equation)

    def _linear(self, poly: Dim) -> Dim:
        """The polynomial with its divisions replaced by variables (to any depth, innermost first)."""
        for atom, node in self._in_turn(poly):
            if not self._unknown_inside(node):
                continue
            division = self.indices.division(atom)
            new = None
            if division is not None:
                new = self._quotient(*division)
            if new is not None:
                poly = self.indices.replace(poly, atom, new)
        return self._final(poly)

    def _in_turn(self, poly: Dim) -> list[tuple[DimVar, Scalar]]:
        """What is not affine, innermost first; before all else the quotients of a variable by itself, of the greatest divisor first: in
        terms of these quotients and their remainders other divisions of sums with it are smaller ones."""

        def turn(found: tuple[DimVar, Scalar]) -> int:
            division = self.indices.division(found[0])
            alone = division and self.indices.as_axis(division[0])
            return -division[1] if division and alone in self.open and isinstance(division[1], int) else 0

        return sorted(self.indices.opaque_in(poly), key=turn)

    def _unknown_inside(self, node: Scalar) -> bool:
        return any(isinstance(n, Axis) and n in self.rank for n in walk(node))

    def _variable(self, name: str, extent: Dim) -> Dim:
        axis = Axis(name, extent)
        self.rank[axis] = True
        if extent != 1:
            self.open.append(axis)
        return self.indices.axis(axis)

    def _quotient(self, above: Dim, below: Dim) -> Dim | None:
        key = self.indices.floordiv(above, below)
        if key in self._made:
            return self._made[key]
        above = self._linear(above)
        # What its dividend became may say more: (4q + r) // 2 is 2q + r // 2.
        again = self.indices.floordiv(above, below)
        if again != key and not self._is_division(again, above, below):
            self._made[key] = again = self._linear(again)
            return again
        low, high = self.indices.ends(above)
        if low is None or high is None or self._is_bent(above):
            return None
        first, last = self.indices.floordiv(low, below), self.indices.floordiv(high, below)
        if any(map(self.indices.is_index, (first, last, below))):
            return None  # a loop as long as what only the definition computes
        q = dim_add(self._variable("q", dim_add(dim_sub(last, first), 1)), first)
        self._made[key] = q
        r = self._variable("r", below)
        value = dim_add(dim_mul(below, q), r)
        alone = self.indices.as_axis(above)
        if alone is not None and alone in self.open:
            self.nonnegative.add(alone)
            if known_equal(dim_mul(ceil_div(alone.extent, below), below), alone.extent):
                self.below_extent.add(alone)
            self._set(alone, value)
        else:
            self.equations.append(dim_sub(above, value))
        return q

    def _is_bent(self, poly: Dim) -> bool:
        """Whether a polynomial is no sum of multiples of the variables: then no equation of its quotient says what these are."""
        found = (self.indices.coefficient(poly, a) for a in self._open_in(poly))
        return any(c is None or self.indices.is_index(c) for c in found)

    def _is_division(self, quotient: Dim, above: Dim, below: Dim) -> bool:
        """Whether a quotient is nothing simpler than the division."""
        return any(self.indices.division(atom) == (above, below) for atom, _ in self.indices.opaque_in(quotient))

    # -- solving

    def keep(self, variables: Sequence[Axis]) -> None:
        """Variables that are looped over."""
        for axis in (self.fresh[v] for v in variables):
            if axis in self.open:
                self._keep(axis)

    def solve(self, where: Sequence[Scalar]) -> Inverse:
        """Solve all equations, those first whose next step makes the shortest loop. ``where`` are conditions besides."""
        while self.equations:
            costs = [self._cost(e) for e in self.equations]
            best = min(costs)
            if best[0] > 1 and (self._subtract() or self._eliminate()):
                continue
            self._solve(self.equations.pop(costs.index(best)))
        for axis in self.open:
            self.free.append(axis)
        for axis in self.solved:
            self._look_up(axis)
        guard: Scalar = TRUE
        spans: list[tuple[Dim, Dim]] = []
        for axis, value in self.solved.items():
            inside: Scalar = TRUE
            if axis not in self.nonnegative:
                inside = self._compare("ge", self._final(value), 0)
            if axis not in self.below_extent:
                inside = both(inside, self._compare("lt", self._final(value), axis.extent))
            if inside is not TRUE and not (isinstance(inside, Const) and inside.value):
                spans.append((self._final(value), axis.extent))
                guard = both(guard, inside)
        rest: Scalar = TRUE
        for left, right in self.equal:
            rest = both(rest, self._compare("eq", self._final(left), self._final(right)))
        values = {a: self.indices.scalar(self._final(self.indices.axis(v))) for a, v in self.fresh.items()}
        for cond in where:
            assert isinstance(cond, Compare)
            a, b = substitute(cond.a, values), substitute(cond.b, values)
            rest = both(rest, self.indices.compare(cond.op, a, b))
        return Inverse(values, tuple(self.free), both(guard, rest), tuple(spans), rest, self.uneven)

    def _look_up(self, axis: Axis) -> None:
        """Of a solved variable ``z - 32 * c[t]`` below 32: that c[t] is ``z // 32`` says as much, and where to go for it."""
        value, extent = self._final(self.solved[axis]), axis.extent
        said = self.indices.looked_up(value)
        if said == 0 or not isinstance(extent, int) or extent < 2:
            return
        if axis in self.nonnegative or axis in self.below_extent:
            return
        number = self.indices.floordiv(said, extent)
        if not known_equal(dim_mul(number, extent), said):
            return
        rest = dim_sub(value, said)
        self.solved[axis] = self.indices.mod(rest, extent)
        self.nonnegative.add(axis)
        self.below_extent.add(axis)
        self.equal.append((number, dim_mul(-1, self.indices.floordiv(rest, extent))))

    def _subtract(self) -> bool:
        """Take one equation (some times) from another where that leaves the other with fewer variables: what a remainder is defined by
        and what it must be have the others in common."""
        for n, one in enumerate(self.equations):
            mine = self._open_in(one)
            for k, other in enumerate(self.equations):
                shared = [a for a in mine if self.indices.mentions(other, a)]
                if n == k or len(shared) < 2:
                    continue
                for times in dict.fromkeys(self._ratio(one, other, a) for a in shared):
                    if times is not None:
                        less = dim_sub(one, dim_mul(times, other))
                        if len(self._open_in(less)) < len(mine):
                            self.equations[n] = less
                            return True
        return False

    def _ratio(self, one: Dim, other: Dim, axis: Axis) -> int | None:
        """How many times one equation has what another has of a variable, where that is a whole number."""
        a, b = self.indices.coefficient(one, axis), self.indices.coefficient(other, axis)
        return a // b if isinstance(a, int) and isinstance(b, int) and b and a % b == 0 else None

    def _eliminate(self) -> bool:
        """Put a variable that two equations have in terms of others, by the one in which it stands alone: this decides nothing yet
        about what is looped over."""
        for n, equation in enumerate(self.equations):
            others = [e for k, e in enumerate(self.equations) if k != n]
            shared = [a for a in self._open_in(equation) if any(self.indices.mentions(e, a) for e in others)]
            for axis in shared:
                sign = self.indices.coefficient(equation, axis)
                if isinstance(sign, int) and abs(sign) == 1:
                    del self.equations[n]
                    rest = dim_sub(equation, dim_mul(sign, self.indices.axis(axis)))
                    self._set(axis, dim_mul(-sign, rest))
                    return True
        return False

    def _compare(self, op: CompareOp, a: Dim, b: Dim) -> Scalar:
        return self.indices.compare(op, self.indices.scalar(a), self.indices.scalar(b), some=True)

    def _final(self, poly: Dim) -> Dim:
        """A polynomial without solved variables."""
        changed = True
        while changed:
            changed = False
            for axis, value in self.solved.items():
                var = self.indices.variable(axis)
                if var is not None and self.indices.mentions(poly, axis):
                    poly = self.indices.replace(poly, var, value)
                    changed = True
        return poly

    def _open_in(self, poly: Dim) -> list[Axis]:
        return [a for a in self.open if self.indices.mentions(poly, a)]

    def _keep(self, axis: Axis) -> None:
        """The variable stays a loop."""
        self.open.remove(axis)
        self.free.append(axis)

    def _set(self, axis: Axis, value: Dim) -> None:
        self.open.remove(axis)
        self.solved[axis] = value
        var = self.indices.variable(axis)
        assert var is not None
        self.equations = [self.indices.replace(e, var, value) for e in self.equations]

    def _solve(self, equation: Dim) -> None:
        while True:
            terms: dict[Axis, Dim] = {}
            for axis in self._open_in(equation):
                coefficient = self.indices.coefficient(equation, axis)
                if coefficient is None or self.indices.is_index(coefficient):
                    self._keep(axis)
                else:
                    terms[axis] = coefficient
            if not terms:
                if equation != 0:
                    self.equal.append((equation, 0))
                return
            rest: Dim = dim_mul(-1, equation)
            for axis, coefficient in terms.items():
                rest = dim_add(rest, dim_mul(coefficient, self.indices.axis(axis)))
            # sum of coefficient * axis == rest
            if all(isinstance(c, int) for c in terms.values()):
                equation = self._integer({a: c for a, c in terms.items() if isinstance(c, int)}, rest)
            else:
                equation = self._symbolic(terms, rest)
            if equation == 0:
                return

    def _cost(self, equation: Dim) -> tuple[int, int]:
        """The length of the loop that the next step on an equation makes, and how many variables it has. What is read by a variable
        makes a loop over it, unless another equation says what it is."""
        found = self._open_in(equation)
        coefficients = {a: self.indices.coefficient(equation, a) for a in found}
        if any(c is None or self.indices.is_index(c) for c in coefficients.values()):
            return _LONG, len(found)
        if len(found) < 2:
            return 1, len(found)
        terms = {a: c for a, c in coefficients.items() if isinstance(c, int)}
        if len(terms) < len(found):
            known = {a: c for a, c in coefficients.items() if c is not None}
            if self._digit(known) is not None:
                return 1, len(found)
            slack = self._slack(known)
            if slack is not None:
                return self._length(slack[0].extent, content(slack[1])), len(found)
            chosen = self._residual(known)
            if chosen is not None:
                return self._length(chosen[0].extent, chosen[1]), len(found)
            return min(self._by_unit(known), self._by_sizes(known)), len(found)
        common = gcd(*terms.values())
        terms = {a: c // common for a, c in terms.items()}
        return min(self._trips(terms, a) for a in terms)[0], len(found)

    def _by_unit(self, terms: Mapping[Axis, Dim]) -> int:
        """The work of an equation with sizes among its coefficients, where one variable with the coefficient 1 is said by all others."""
        units = [self._length(a.extent, 1) for a, c in terms.items() if c in (1, -1)]
        return prod(self._length(a.extent, 1) for a in terms) // max(units) if units else _LONG

    def _by_sizes(self, terms: Mapping[Axis, Dim]) -> int:
        """The work where the variables that sizes multiply are looped over, which leaves an equation of numbers."""
        whole = {a: c for a, c in terms.items() if isinstance(c, int)}
        if not 0 < len(whole) < len(terms) or len(whole) > _MOST_ORDERED:
            return _LONG
        common = gcd(*whole.values())
        loops = prod(self._length(a.extent, 1) for a in terms if a not in whole)
        return loops * self._work({a: c // common for a, c in whole.items()})

    def _trips(self, terms: dict[Axis, int], axis: Axis) -> tuple[int, bool]:
        """How long the loop is that remains of a variable when the others of an equation absorb multiples of their divisor."""
        trips = ceil_div(axis.extent, _others(terms, axis))
        return (trips if isinstance(trips, int) else _LONG, not self.rank[axis])

    def _first(self, terms: dict[Axis, int]) -> Axis:
        """The variable to begin with: that of the least work in all loops that an equation makes."""
        if len(terms) > _MOST_ORDERED:
            return min(terms, key=lambda a: self._trips(terms, a))

        def order(axis: Axis) -> tuple[int, int, bool]:
            trips, kept = self._trips(terms, axis)
            return trips * self._work(_without(terms, axis)), trips, kept

        return min(terms, key=order)

    def _work(self, terms: dict[Axis, int]) -> int:
        """The least work of all orders in which the variables of an equation of numbers can be taken."""
        if len(terms) < 2:
            return 1
        return min(self._trips(terms, a)[0] * self._work(_without(terms, a)) for a in terms)

    def _integer(self, terms: dict[Axis, int], rest: Dim) -> Dim:
        """One step on an equation with integer coefficients: what is left of it."""
        common = gcd(*terms.values())
        if common > 1:
            whole = self.indices.floordiv(rest, common)
            self._demand_equal(rest, dim_mul(common, whole))
            rest = whole
            terms = {a: c // common for a, c in terms.items()}
        if len(terms) == 1:
            ((axis, sign),) = terms.items()
            self._set(axis, dim_mul(sign, rest))
            return 0

        chosen = self._first(terms)
        modulus, coefficient = _others(terms, chosen), terms.pop(chosen)
        if modulus == 1:
            self._keep(chosen)
            return self._left(terms, dim_sub(rest, dim_mul(coefficient, self.indices.axis(chosen))))
        return self._by_residue(chosen, coefficient, modulus, terms, rest)

    def _by_residue(self, chosen: Axis, coefficient: int, modulus: Dim, others: Mapping[Axis, Dim], rest: Dim) -> Dim:
        """Solve for a variable modulo what divides the coefficients of the others (a size if its own is 1 or -1): what is left of the
        equation."""
        inverse = pow(coefficient, -1, modulus) if isinstance(modulus, int) else coefficient
        first = self.indices.mod(dim_mul(rest, inverse), modulus)
        value = first
        self.nonnegative.add(chosen)
        if isinstance(first, int):  # the class is known, and so its length
            trips = ceil_div(dim_sub(chosen.extent, first), modulus)
            self.below_extent.add(chosen)
            if isinstance(trips, int) and trips <= 0:
                trips = 1
                self.equal.append((1, 0))
        else:
            trips = ceil_div(chosen.extent, modulus)
            if known_equal(dim_mul(trips, modulus), chosen.extent):
                self.below_extent.add(chosen)
            else:
                self.uneven = True
        if trips != 1:
            more = Axis("t", trips)
            self.rank[more] = True
            self.free.append(more)
            value = dim_add(first, dim_mul(modulus, self.indices.axis(more)))
        self._set(chosen, value)
        left = dim_sub(rest, dim_mul(coefficient, value))
        return self._left(
            {a: dim_floordiv(c, modulus) for a, c in others.items()}, self.indices.floordiv(left, modulus)
        )

    def _symbolic(self, terms: dict[Axis, Dim], rest: Dim) -> Dim:
        """The same where sizes are among the coefficients."""
        digit = self._digit(terms)
        if digit is not None:
            axis, shares = digit
            whole = self.indices.floordiv(rest, axis.extent)
            self.nonnegative.add(axis)
            self.below_extent.add(axis)
            self._set(axis, dim_sub(rest, dim_mul(axis.extent, whole)))
            return self._left(shares, whole)
        chosen = self._slack(terms) or self._residual(terms)
        if chosen is not None:
            axis, modulus = chosen
            coefficient = terms.pop(axis)
            assert isinstance(coefficient, int)
            return self._by_residue(axis, coefficient, modulus, terms, rest)
        if self._by_sizes(terms) < self._by_unit(terms):
            numbers = {a: c for a, c in terms.items() if isinstance(c, int)}
            for axis, coefficient in terms.items():
                if axis not in numbers:
                    self._keep(axis)
                    rest = dim_sub(rest, dim_mul(coefficient, self.indices.axis(axis)))
            return self._left(numbers, rest)
        units = [a for a, c in terms.items() if c in (1, -1)]
        # Of short windows, as many as a size says and any steps apart, nearly none hits an element: all places of all windows are gone
        # through once, and each says which it hits.
        windows = self._by_unit(terms) >= _LONG and all(isinstance(a.extent, int) for a in units)
        if units and not windows:
            # The one that would be the longest loop is determined by the others.
            last = max(units, key=lambda a: (_LONG if not isinstance(a.extent, int) else a.extent, not self.rank[a]))
            for axis in terms:
                if axis is not last:
                    self._keep(axis)
                    rest = dim_sub(rest, dim_mul(terms[axis], self.indices.axis(axis)))
            self._set(last, dim_mul(terms[last], rest))
            return 0
        if len(terms) == 1:
            ((axis, coefficient),) = terms.items()
            whole = self.indices.floordiv(rest, coefficient)
            self._demand_equal(rest, dim_mul(coefficient, whole))
            self._set(axis, whole)
            return 0
        for axis, coefficient in terms.items():
            self._keep(axis)
            rest = dim_sub(rest, dim_mul(coefficient, self.indices.axis(axis)))
        self._demand_equal(rest, 0)
        return 0

    def _digit(self, terms: Mapping[Axis, Dim]) -> tuple[Axis, dict[Axis, Dim]] | None:
        """A variable that stands alone, with an extent that divides the coefficients of all others, which leaves no loop of it (of
        ``z = 2*h*p + r`` the remainder by ``2*h`` says r, that by 2 its last digit only); and what the others have of that
        extent."""
        for axis, coefficient in terms.items():
            if coefficient != 1 or len(terms) < 2:
                continue
            shares = {
                a: s for a, c in terms.items() if a is not axis and (s := self._share(c, axis.extent)) is not None
            }
            if len(shares) == len(terms) - 1:
                return axis, shares
        return None

    def _slack(self, terms: Mapping[Axis, Dim]) -> tuple[Axis, Dim] | None:
        """Of ``s*p + r`` with a size s, where r has more places than a short window: r, of which every s-th place counts, and s. There
        are no more of these than a number in s leaves, and one where s is large."""
        if len(terms) != 2:
            return None
        for (axis, one), (_, step) in permutations(terms.items()):
            if one not in (1, -1) or not isinstance(axis.extent, int) or axis.extent <= _SHORT or isinstance(step, int):
                continue
            low, high = dim_bounds(step)
            if low is not None and low >= 0:
                return axis, step
            if high is not None and high <= 0:
                return axis, dim_mul(-1, step)
        return None

    def _residual(self, terms: Mapping[Axis, Dim]) -> tuple[Axis, int] | None:
        """The variable that an equation with sizes among its coefficients leaves the shortest loop of, modulo what divides the
        coefficients of the others; and that number."""
        found: list[tuple[Axis, int]] = []
        for axis, c in terms.items():
            modulus = gcd(*(content(other) for a, other in terms.items() if a is not axis))
            if isinstance(c, int) and modulus > 1 and gcd(c, modulus) == 1:
                found.append((axis, modulus))
        return min(found, key=lambda f: self._length(f[0].extent, f[1]), default=None)

    def _length(self, extent: Dim, modulus: int) -> int:
        trips = ceil_div(extent, modulus)
        return trips if isinstance(trips, int) else _LONG

    def _share(self, coefficient: Dim, by: Dim) -> Dim | None:
        whole = self.indices.floordiv(coefficient, by)
        return whole if known_equal(dim_mul(whole, by), coefficient) else None

    def _left(self, terms: Mapping[Axis, Dim], rest: Dim) -> Dim:
        total = dim_mul(-1, rest)
        for axis, coefficient in terms.items():
            total = dim_add(total, dim_mul(coefficient, self.indices.axis(axis)))
        return total

    def _demand_equal(self, a: Dim, b: Dim) -> None:
        if not known_equal(a, b):
            self.equal.append((a, b))


def _without(terms: dict[Axis, int], axis: Axis) -> dict[Axis, int]:
    """What an equation of numbers leaves to the other variables when one has absorbed what they do not divide."""
    by = _others(terms, axis)
    return {a: c // by for a, c in terms.items() if a is not axis}


def _others(terms: dict[Axis, int], axis: Axis) -> int:
    return gcd(*(c for a, c in terms.items() if a is not axis))
