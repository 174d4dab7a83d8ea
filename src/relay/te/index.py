"""Index arithmetic: every index expression is a polynomial of the one Dim algebra.

Index variables become dim variables for the time of one analysis, so that flattening a multi-dimensional read, splitting
an axis or collapsing two of them is polynomial arithmetic, and two reads are the same exactly when their polynomials
are equal. A modulus is written ``p - c * (p // c)``, so that what a reshape splits and the next one joins cancels by
itself; a division that is left over, and whatever is not arithmetic (an index loaded from a tensor), is an opaque
variable that remembers its expression.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from relay.ir.dim import (
    Dim,
    DimVar,
    SymDim,
    as_dim,
    as_var,
    dim_add,
    dim_atoms,
    dim_floordiv,
    dim_is_negated,
    dim_max,
    dim_min,
    dim_mul,
    dim_of_terms,
    dim_sub,
    dim_substitute,
    dim_sum,
    known_equal,
)
from relay.ir.inequality import is_count
from relay.te.errors import Undetermined
from relay.te.ranges import Ranges, divide, terms_with
from relay.te.scalar import (
    Axis,
    Binary,
    BinaryOp,
    Cast,
    CompareOp,
    Const,
    Load,
    Scalar,
    Size,
    Unary,
    binary,
    compare,
    conjunction,
    extent_of,
    rebuild,
    substitute,
    unary,
    walk,
)
from relay.te.ways import Way, comparisons, ways

# Ways to a node that are looked at.
_MOST_WAYS = 32
_NEGATED: dict[CompareOp, CompareOp] = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


class Indices(Ranges):
    """The variables of one analysis, and the way between expressions and polynomials. Not shared between analyses."""

    __slots__ = ("_memo", "_opaque")

    def __init__(self) -> None:
        super().__init__()
        self._opaque: dict[tuple[object, ...], SymDim] = {}
        # The node is kept beside its polynomial: an id means something only as long as its object lives.
        self._memo: dict[int, tuple[Scalar, Dim]] = {}

    # -- expressions to polynomials

    def poly(self, root: Scalar) -> Dim:
        """The polynomial of an int64 expression."""
        hit = self._memo.get(id(root))
        if hit is not None:
            return hit[1]
        for node in walk(root):
            if id(node) not in self._memo:
                self._memo[id(node)] = (node, self._convert(node))
        return self._memo[id(root)][1]

    def _convert(self, node: Scalar) -> Dim:
        if node.dtype != "int64":
            return 0  # an operand of something opaque
        match node:
            case Const():
                return int(node.value)
            case Size():
                return node.dim
            case Axis():
                return self.axis(node)
            case Unary(op="neg"):
                return dim_mul(-1, self._memo[id(node.a)][1])
            case Binary():
                a, b = self._memo[id(node.a)][1], self._memo[id(node.b)][1]
                return self._binary(node.op, a, b, node)
            case _:
                return self._opaque_of(node)

    def _binary(self, op: BinaryOp, a: Dim, b: Dim, node: Scalar) -> Dim:
        match op:
            case "add":
                return dim_add(a, b)
            case "sub":
                return dim_sub(a, b)
            case "mul":
                return dim_mul(a, b)
            case "floordiv" if not self._may_be_zero(b):
                return self.floordiv(a, b)
            case "mod" if not self._may_be_zero(b):
                return self.mod(a, b)
            case "floordiv" | "mod":
                # Nothing is known of it but that it is the same wherever it stands, and cancels.
                return self._intern((op, a, b), binary(op, self.scalar(a), self.scalar(b)))
            case "min" | "max":
                return self._extreme(op, a, b, node)
            case _:
                return self._opaque_of(node)

    def _may_be_zero(self, b: Dim) -> bool:
        """Whether a divisor may be zero where something is computed: division by zero gives zero, which the rules of division do not
        know. (Where sizes alone divide, nothing is left to compute when they are zero.)"""
        if isinstance(b, int):
            return b == 0
        if not isinstance(b, SymDim) or not (self.is_index(b) or len({c > 0 for _, c in b.terms}) == 2):
            return False
        low, high = self.bounds(b)
        return not ((low is not None and low > 0) or (high is not None and high < 0))

    def _extreme(self, op: BinaryOp, a: Dim, b: Dim, node: Scalar) -> Dim:
        lo, hi = self.bounds(dim_sub(a, b))
        if lo is not None and lo >= 0:
            return a if op == "max" else b
        if hi is not None and hi <= 0:
            return b if op == "max" else a
        if not self.is_index(a) and not self.is_index(b):
            return dim_min(a, b) if op == "min" else dim_max(a, b)
        (low_a, high_a), (low_b, high_b) = self.bounds(a), self.bounds(b)
        lows, highs = [n for n in (low_a, low_b) if n is not None], [n for n in (high_a, high_b) if n is not None]
        # The least of two is at most either and at least the lower of both lower ends; the greatest the other way round.
        if op == "min":
            least, most = min(lows) if len(lows) == 2 else None, min(highs, default=None)
        else:
            least, most = max(lows, default=None), max(highs) if len(highs) == 2 else None
        return self._intern((op, a, b), binary(op, self.scalar(a), self.scalar(b)), least, most)

    def _opaque_of(self, node: Scalar) -> Dim:
        key = self._key(node)
        return self._opaque.get(key) or self._intern(key, self._normal(node))

    def _normal(self, node: Scalar) -> Scalar:
        """A read at indices in normal form: those that are equal have one variable, so it must not remember what cancels in one
        of them only."""
        match node:
            case Load():
                return rebuild(node, tuple(self.simplify(i) for i in node.indices))
            case Cast() if isinstance(node.a, Load):
                return rebuild(node, (self._normal(node.a),))
            case _:
                return node

    def _key(self, node: Scalar) -> tuple[object, ...]:
        if isinstance(node, Load):
            return ("load", id(node.source), *(self.poly(i) for i in node.indices))
        if isinstance(node, Cast) and isinstance(node.a, Load):
            return ("cast", node.a.dtype, *self._key(node.a))
        return ("node", id(node))

    def _intern(
        self, key: tuple[object, ...], value: Scalar, lower: Dim | None = None, upper: Dim | None = None
    ) -> SymDim:
        found = self._opaque.get(key)
        if found is None:
            found = self._opaque[key] = self._new(value, lower, upper)
        return found

    # -- arithmetic with ranges

    def floordiv(self, a: Dim, b: Dim) -> Dim:
        """``a // b``, with what the ranges of the variables say: ``(384*i + j) // 384`` is ``i`` for ``j < 384``."""
        if dim_is_negated(b):
            a, b = dim_mul(-1, a), dim_mul(-1, b)
        exact, rest = divide(a, b)
        least = _least(b) if isinstance(b, SymDim) and not self.is_index(b) else 0
        if isinstance(rest, int) and -least <= rest < least:
            return exact if rest >= 0 else dim_sub(exact, 1)
        if not self.is_index(a) and not self.is_index(b):
            return dim_floordiv(a, b)
        if rest == 0 or self.within(rest, b):
            return exact
        if isinstance(b, int) or not self.is_index(b):
            whole, small, factor = self._common(rest, content(b))
            if factor > 1 and self.within(small, factor):
                return dim_add(exact, self.floordiv(whole, dim_floordiv(b, factor)))
            for whole, small, size in self._common_sizes(rest, b):
                if self.within_if(small, size) is not None:
                    return dim_add(exact, self.floordiv(whole, dim_floordiv(b, size)))
        inner = as_var(rest)
        if inner is not None and inner in self._divisions and isinstance(b, int):
            numerator, denominator = self._divisions[inner]
            if isinstance(denominator, int):
                return dim_add(exact, self.floordiv(numerator, denominator * b))
        exact, rest = self._nearest(exact, rest, b)
        low, most = self.bounds(rest)
        high: Dim | None = None
        if isinstance(b, int) and b > 0:
            low, high = None if low is None else low // b, None if most is None else most // b
        else:
            # Division by 0 gives 0.
            divisor = self.bounds(b)[0]
            low = 0 if low is not None and low >= 0 and divisor is not None and divisor >= 0 else None
            if low == 0 and not self.is_index(b):
                highest = self._extent(rest, upper=True)
                high = None if highest is None else self.floordiv(highest, b)
        found = self._intern(("floordiv", rest, b), binary("floordiv", self.scalar(rest), self.scalar(b)), low, high)
        var = as_var(found)
        assert var is not None
        self._divisions.setdefault(var, (rest, b))
        return dim_add(exact, found)

    def _nearest(self, exact: Dim, rest: Dim, b: Dim) -> tuple[Dim, Dim]:
        """The same dividend with each coefficient of an index by which it differs least from a multiple of the divisor: the quotient
        of ``i - j`` by a hundred is -1 or 0, and that of ``i + 99 * j`` anything up to 99."""
        if not isinstance(b, int) or not isinstance(rest, SymDim):
            return exact, rest
        for m, c in rest.terms:
            if m and 2 * c > b:
                term = dim_of_terms({m: 1})
                exact, rest = dim_add(exact, term), dim_sub(rest, dim_mul(b, term))
        return exact, rest

    def mod(self, a: Dim, b: Dim) -> Dim:
        return dim_sub(a, dim_mul(b, self.floordiv(a, b)))

    def _common(self, rest: Dim, b: int) -> tuple[Dim, Dim, int]:
        """Split ``rest = factor * whole + small`` by the largest factor of ``b`` that occurs among the
        coefficients. Of a number the multiple of the factor goes with the whole: ``(4*i - 1) // 8`` is ``(i - 1) // 2``."""
        if not isinstance(rest, SymDim):
            return 0, rest, 1
        factor = max((g for m, c in rest.terms if m and (g := gcd(b, abs(c))) > 1), default=1)
        whole: Dim = 0
        small: Dim = 0
        for m, c in rest.terms:
            if c % factor == 0:
                whole = dim_add(whole, dim_of_terms({m: c // factor}))
            elif m:
                small = dim_add(small, dim_of_terms({m: c}))
            else:
                whole, small = dim_add(whole, c // factor), dim_add(small, c % factor)
        return whole, small, factor

    def _common_sizes(self, rest: Dim, b: Dim) -> Iterator[tuple[Dim, Dim, Dim]]:
        """Ways to split ``rest = size * whole + small`` by a size that divides the divisor and some of the terms. A remainder by it
        stays together: ``(c * i + j - c * (j // c)) // (c * d)`` is ``i // d``."""
        if not isinstance(rest, SymDim) or not isinstance(b, SymDim) or len(b.terms) != 1:
            return
        ((whole_of, _),) = b.terms
        powers = dict(whole_of)
        sizes = dict.fromkeys(
            tuple((atom, min(p, powers[atom])) for atom, p in m if atom in powers) for m, _ in rest.terms
        )
        for common in sorted(sizes, key=lambda m: -sum(p for _, p in m)):
            if not common or common == whole_of:
                continue
            size = dim_of_terms({common: 1})
            whole, small = divide(rest, size)
            yield whole, small, size
            for atom in dim_atoms(whole):
                division = self._divisions.get(atom) if isinstance(atom, DimVar) else None
                if division is not None and known_equal(division[1], size):
                    part = terms_with(whole, atom)
                    whole, small = dim_sub(whole, part), dim_add(small, dim_mul(size, part))
            yield whole, small, size

    def within_where_any(self, index: Scalar, limit: Dim) -> bool:
        """Whether ``0 <= index < limit`` for all values of the variables, if there are any: none of the sizes that divide is zero where
        an axis of a multiple of them has elements."""
        sizes = self.within_if(self.poly(index), limit)
        return sizes is not None and self._some_where_any(sizes, index)

    def _some_where_any(self, sizes: tuple[Dim, ...], root: Scalar) -> bool:
        """Whether none of some sizes is zero where all axes in an expression have elements."""
        there = [a.extent for a in walk(root) if isinstance(a, Axis)] if sizes else []
        return all(any(divide(n, size)[1] == 0 for n in there) for size in sizes)

    def reads_inside(self, root: Scalar) -> bool:
        """Whether what an expression reads, where its own choices have it read, is known to be there, whatever is chosen around it."""
        loads = {id(n) for n in walk(root) if isinstance(n, Load)}

        def inside(index: Dim, limit: Dim, way: Way) -> bool:
            sizes = self.follows_if(index, limit, way)
            return sizes is not None and self._some_where_any(sizes, root)

        return all(
            inside(self.poly(i), extent, way)
            for load, way in ways(root, loads, _MOST_WAYS)
            for i, extent in zip(load.indices, load.source.shape, strict=True)
        )

    def follows_if(self, index: Dim, limit: Dim, way: Way) -> tuple[Dim, ...] | None:
        """The sizes that have to be more than zero so that ``0 <= index < limit`` where all conditions of a way hold."""
        sizes = self.within_if(index, limit)
        if sizes is None and self._follows(index, limit, way):
            sizes = self.divided_by(index)
        return sizes

    def _follows(self, index: Dim, limit: Dim, way: Way) -> bool:
        """Whether ``0 <= index < limit`` where all conditions of a way hold: each end by one of the comparisons among them, or without."""
        known: list[Dim] = [0]
        for node, holds in comparisons(way):
            if node.a.dtype == "int64":
                a, b = self.poly(node.a), self.poly(node.b)
                op = node.op if holds else _NEGATED[node.op]
                if op in ("lt", "le", "eq"):
                    known.append(dim_sub(dim_sub(b, a), int(op == "lt")))
                if op in ("gt", "ge", "eq"):
                    known.append(dim_sub(dim_sub(a, b), int(op == "gt")))
        above, divisor, most = self._quotient(index, limit) or (index, 1, limit)
        ends = index, dim_sub(dim_sub(dim_mul(most, divisor), 1), above)
        return all(any(self._nonnegative_dim(dim_sub(end, fact)) for fact in known) for end in ends)

    # -- polynomials to expressions

    def scalar(self, a: Dim) -> Scalar:
        """The int64 expression of a polynomial: sizes gathered, larger strides first. Raises Undetermined for an unknown dimension."""
        if isinstance(a, int):
            return Const(a, "int64")
        if not isinstance(a, SymDim):
            raise Undetermined(())
        groups = self._strides(a)
        out: Scalar | None = None
        for mine, size in sorted(groups.items(), key=lambda g: (g[0] == (), g[1] == 1)):
            part = extent_of(size)
            value: Scalar | None = None
            for var, power in mine:
                for _ in range(power):
                    value = self._scalars[var] if value is None else binary("mul", value, self._scalars[var])
            if value is None:
                value = part
            elif size == -1 and out is not None:
                out = binary("sub", out, value)
                continue
            elif size != 1:
                value = binary("mul", value, part)
            out = value if out is None else binary("add", out, value)
        assert out is not None
        if id(out) not in self._memo:
            self._memo[id(out)] = (out, a)
        return out

    def _strides(self, a: SymDim) -> dict[tuple[tuple[DimVar, int], ...], Dim]:
        """The products of index variables in a polynomial, each with the sizes that multiply it."""
        parts: dict[tuple[tuple[DimVar, int], ...], list[Dim]] = {}
        for monomial, coefficient in a.terms:
            mine = tuple((t, p) for t, p in monomial if isinstance(t, DimVar) and t in self._scalars)
            sizes = tuple((t, p) for t, p in monomial if not (isinstance(t, DimVar) and t in self._scalars))
            parts.setdefault(mine, []).append(dim_of_terms({sizes: coefficient}))
        return {mine: dim_sum(terms) for mine, terms in parts.items()}

    def strides(self, a: Dim) -> list[tuple[Dim, Dim]]:
        """The sum that a polynomial is: products of index variables (1 for what has none), and the sizes that multiply each."""
        groups = self._strides(a) if isinstance(a, SymDim) else {(): a}
        return [(dim_of_terms({mine: 1}), size) for mine, size in groups.items()]

    def simplify(self, node: Scalar) -> Scalar:
        """The normal form of an int64 expression."""
        return self.scalar(self.poly(node))

    def compare(self, op: CompareOp, a: Scalar, b: Scalar, some: bool = False) -> Scalar:
        """A comparison of int64 expressions, decided where the ranges decide it. ``some``: nothing asks for it where a size that divides
        is zero; it fails there."""
        left, right = self.poly(a), self.poly(b)
        found = self._quotient(left, right) if op in ("lt", "ge") else None
        if found is None:
            return self._compared(op, left, right)
        above, divisor, limit = found
        # Without the division: ``i // c < n`` is ``i < n * c``, unless the divisor is zero, which makes a quotient of zero.
        there = self._compared(op, above, dim_mul(limit, divisor))
        if op == "ge" or not self._nonnegative_dim(above):
            there = binary("and", compare("ge", Size(divisor), 1), there)
        if some:
            return there
        return binary("or", there, binary("and", compare("lt", Size(divisor), 1), self._compared(op, 0, limit)))

    def _compared(self, op: CompareOp, left: Dim, right: Dim) -> Scalar:
        low, high = self.bounds(dim_sub(left, right))
        truth = _decide(op, low, high)
        if truth is None and op in ("lt", "ge"):
            sizes = self.within_if(left, right)
            if sizes == ():
                truth = op == "lt"
            elif sizes and all(divide(right, size)[1] == 0 for size in sizes):
                # A division by zero gives zero, which is not less than a limit that is a multiple of zero.
                some = conjunction(compare("ge", Size(size), 1) for size in sizes)
                return some if op == "lt" else unary("not", some)
        if truth is not None:
            return Const(truth, "bool")
        return compare(op, self.scalar(left), self.scalar(right))

    def _quotient(self, left: Dim, right: Dim) -> tuple[Dim, Dim, Dim] | None:
        """Where the difference of two sides is a quotient by a size less what no index is in: what is divided, the size, and the latter."""
        difference = dim_sub(left, right)
        for atom in dim_atoms(difference):
            division = self._divisions.get(atom) if isinstance(atom, DimVar) else None
            if division is None:
                continue
            above, below = division
            limit = dim_sub(as_dim(atom), difference)
            if isinstance(below, SymDim) and not self.is_index(below) and not self.is_index(limit) and is_count(below):
                return above, below, limit
        return None

    # -- taking polynomials apart

    def opaque_in(self, a: Dim) -> list[tuple[DimVar, Scalar]]:
        """The opaque variables of a polynomial itself (not those inside opaque ones), with their expressions."""
        found = [(t, self._scalars[t]) for t in dim_atoms(a) if isinstance(t, DimVar) and t in self._scalars]
        return [(t, node) for t, node in dict(found).items() if not isinstance(node, Axis)]

    def looked_up(self, a: Dim) -> Dim:
        """The terms of a polynomial that mention what is read from a tensor."""
        total: Dim = 0
        for monomial, c in a.terms if isinstance(a, SymDim) else ():
            nodes = (self._scalars[t] for t, _ in monomial if isinstance(t, DimVar) and t in self._scalars)
            if any(isinstance(n, Load) for node in nodes for n in walk(node)):
                total = dim_add(total, dim_of_terms({monomial: c}))
        return total

    def mentions(self, a: Dim, axis: Axis) -> bool:
        """Whether an axis occurs in a polynomial, at any depth."""
        var = self.variable(axis)
        return var is not None and any(atom is var or self._mentions(atom, var) for atom in dim_atoms(a))

    def replace(self, a: Dim, var: DimVar, value: Dim) -> Dim:
        """The polynomial with another one in the place of a variable, at any depth if the variable is an axis."""
        axis = self._scalars[var]
        new: dict[DimVar, Dim] = {var: value}
        if isinstance(axis, Axis):
            for atom, node in self.opaque_in(a):
                if self._mentions(atom, var):
                    new[atom] = self.poly(substitute(node, {axis: self.scalar(value)}))
        return dim_substitute(a, new.get)

    # -- questions about variables

    def coefficient(self, a: Dim, axis: Axis) -> Dim | None:
        """The stride of an axis in a polynomial: 0 where it does not occur, None where it occurs otherwise than
        linearly."""
        var = self.variable(axis)
        if var is None or not isinstance(a, SymDim):
            return 0
        total: Dim = 0
        for monomial, c in a.terms:
            rest: list[tuple[object, int]] = []
            power = 0
            for atom, p in monomial:
                if atom is var:
                    power = p
                else:
                    if self._mentions(atom, var):
                        return None
                    rest.append((atom, p))
            if power > 1:
                return None
            if power == 1:
                total = dim_add(total, dim_of_terms({tuple(rest): c}))  # type: ignore[arg-type]
        return total

    def _mentions(self, atom: object, var: DimVar) -> bool:
        if not isinstance(atom, DimVar) or atom not in self._scalars:
            return False
        value = self._scalars[atom]
        if isinstance(value, Axis):
            return False
        wanted = self._scalars[var]
        return any(n is wanted for n in walk(value))

    def as_axis(self, a: Dim) -> Axis | None:
        """The axis, if the polynomial is just that axis."""
        if isinstance(a, SymDim):
            var = as_var(a)
            if var is not None:
                value = self._scalars.get(var)
                if isinstance(value, Axis):
                    return value
        return None


def content(a: Dim) -> int:
    """The greatest number that divides all coefficients of a polynomial."""
    if isinstance(a, SymDim):
        return gcd(*(c for _, c in a.terms))
    return abs(a) if isinstance(a, int) else 1


def _least(b: SymDim) -> int:
    """The least that a divisor made of sizes is where something is computed: none of them is zero there."""
    counts = all(c > 0 and all(is_count(as_dim(atom)) for atom, _ in m) for m, c in b.terms)
    return sum(c for _, c in b.terms) if counts else 0


def _decide(op: CompareOp, low: int | None, high: int | None) -> bool | None:
    """The truth of ``difference op 0`` for a difference within ``[low, high]``."""
    match op:
        case "lt":
            return True if high is not None and high < 0 else False if low is not None and low >= 0 else None
        case "le":
            return True if high is not None and high <= 0 else False if low is not None and low > 0 else None
        case "gt":
            return True if low is not None and low > 0 else False if high is not None and high <= 0 else None
        case "ge":
            return True if low is not None and low >= 0 else False if high is not None and high < 0 else None
        case "eq" | "ne":
            if low == 0 and high == 0:
                return op == "eq"
            apart = (low is not None and low > 0) or (high is not None and high < 0)
            return (op == "ne") if apart else None
