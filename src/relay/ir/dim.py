"""The one algebra of dimensions: integers, polynomials over atoms, and ``?``.

A `Dim` is a Python ``int`` when it is known, a `SymDim` (a polynomial with integer coefficients over atoms, always in
normal form, so that equal polynomials compare equal) when it is symbolic, and `ANY` when nothing is known. An atom is a
`DimVar` or one of floordiv, mod, min, max applied to two dims. Types, relations, shape functions, loop bounds, allocation
sizes and plans all use this algebra. Arithmetic is Python's: ``//`` and ``%`` round towards minus infinity.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from functools import lru_cache
from typing import Final, Literal, TypeGuard, TypeVar

from relay.ir.diagnostics import DividedByZero
from relay.ir.record import record

_serial = itertools.count()

DimOpKind = Literal["floordiv", "mod", "min", "max"]
DimFoldOp = Literal["add", "mul", "floordiv", "mod", "min", "max"]
T = TypeVar("T")


class _Arithmetic:
    """Python operators for symbolic dims: of two dims a dim; what else there is may say itself what it means with one (an index of
    a tensor expression does)."""

    __slots__ = ()

    def __add__(self, other: Dim) -> Dim:
        return dim_add(self, other) if _is_dim(other) else NotImplemented  # type: ignore[arg-type]

    __radd__ = __add__

    def __sub__(self, other: Dim) -> Dim:
        return dim_add(self, dim_mul(-1, other)) if _is_dim(other) else NotImplemented  # type: ignore[arg-type]

    def __rsub__(self, other: Dim) -> Dim:
        return dim_add(other, dim_mul(-1, self))  # type: ignore[arg-type]

    def __mul__(self, other: Dim) -> Dim:
        return dim_mul(self, other) if _is_dim(other) else NotImplemented  # type: ignore[arg-type]

    __rmul__ = __mul__

    def __floordiv__(self, other: Dim) -> Dim:
        return dim_floordiv(self, other) if _is_dim(other) else NotImplemented  # type: ignore[arg-type]

    def __rfloordiv__(self, other: Dim) -> Dim:
        return dim_floordiv(other, self) if _is_dim(other) else NotImplemented  # type: ignore[arg-type]

    def __mod__(self, other: Dim) -> Dim:
        return dim_mod(self, other) if _is_dim(other) else NotImplemented  # type: ignore[arg-type]

    def __rmod__(self, other: Dim) -> Dim:
        return dim_mod(other, self) if _is_dim(other) else NotImplemented  # type: ignore[arg-type]

    def __neg__(self) -> Dim:
        return dim_mul(-1, self)  # type: ignore[arg-type]


def _is_dim(value: object) -> bool:
    return isinstance(value, int | SymDim | AnyDim) or hasattr(value, "__index__")


@record(frozen=True, slots=True, eq=False)
class DimVar:
    """A dimension variable. Compared by identity; the name is a hint for printing. ``lo``/``hi`` bound its run-time values.

    ``gradual``: it stands for a ``?`` of the program, so where it broadcasts it may turn out to be 1.
    """

    name: str
    lo: int = 0
    hi: int | None = None
    serial: int = field(default_factory=lambda: next(_serial))
    gradual: bool = False

    def __repr__(self) -> str:
        return f"DimVar({self.name}#{self.serial})"

    def __reduce__(self) -> tuple[object, ...]:
        # Serials are counted in each process: what has the same there is another variable.
        return _var_again, (self.name, self.lo, self.hi, self.gradual)


@record(frozen=True, slots=True, eq=False)
class DimOp:
    """A non-polynomial operation on two dims. Interned: structurally equal operations are the same object."""

    op: DimOpKind
    a: Dim
    b: Dim
    serial: int

    def __repr__(self) -> str:
        return f"{self.op}({self.a}, {self.b})"

    def __reduce__(self) -> tuple[object, ...]:
        return _op_again, (self.op, self.a, self.b)


Atom = DimVar | DimOp
Monomial = tuple[tuple[Atom, int], ...]


@record(frozen=True, slots=True, eq=False)
class SymDim(_Arithmetic):
    """A polynomial: ``terms`` maps monomials (atoms with powers, in serial order) to non-zero coefficients, in a fixed order."""

    terms: tuple[tuple[Monomial, int], ...]
    _hash: int = field(default=0, repr=False)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, SymDim) and self._hash == other._hash and self.terms == other.terms)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return dim_text(self)

    def __reduce__(self) -> tuple[object, ...]:
        # The hash is that of variables' identities.
        return _polynomial_again, (self.terms,)


class AnyDim:
    """The type of `ANY`, a dimension about which nothing is known (``?``)."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "?"

    def __reduce__(self) -> str:
        return "ANY"


ANY: Final = AnyDim()
Dim = int | SymDim | AnyDim


class KnownSize(int):
    """A size in an attribute that turned out to be a number below one. It means itself, where such a number that a program writes may
    be a code: an axis to copy, a place counted from the end. ``Dim[0]`` in text."""

    __slots__ = ()


def attribute_size(dim: Dim) -> Dim:
    """A size as an attribute's value."""
    return KnownSize(dim) if isinstance(dim, int) and dim < 1 else dim


@lru_cache(1 << 12)
def _order(monomial: Monomial) -> tuple[int, tuple[tuple[int, int], ...]]:
    return (-sum(p for _, p in monomial), tuple((a.serial, p) for a, p in monomial))


def dim_of_terms(terms: dict[Monomial, int]) -> Dim:
    """The sum of these monomials times their coefficients; atoms of a monomial are in the order of their serials."""
    live = [(m, c) for m, c in terms.items() if c != 0]
    if not live:
        return 0
    if len(live) == 1 and live[0][0] == ():
        return live[0][1]
    if len(live) > 1:
        live.sort(key=lambda t: _order(t[0]))
    key = tuple(live)
    return SymDim(key, hash(key))


def dim_var(name: str, lo: int = 0, hi: int | None = None) -> SymDim:
    """A fresh dimension variable as a dim."""
    return as_dim(DimVar(name, lo, hi))


def as_dim(atom: Atom) -> SymDim:
    """The polynomial that is just this atom."""
    key = ((((atom, 1),), 1),)
    return SymDim(key, hash(key))


def as_var(dim: Dim) -> DimVar | None:
    """The variable, if the dim is exactly one variable."""
    if isinstance(dim, SymDim) and len(dim.terms) == 1:
        monomial, coefficient = dim.terms[0]
        if coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1 and isinstance(monomial[0][0], DimVar):
            return monomial[0][0]
    return None


def is_any(dim: Dim) -> TypeGuard[AnyDim]:
    return isinstance(dim, AnyDim)


def is_symbolic(dim: Dim) -> TypeGuard[SymDim]:
    return isinstance(dim, SymDim)


def _terms(dim: int | SymDim) -> dict[Monomial, int]:
    if isinstance(dim, SymDim):
        return dict(dim.terms)
    return {(): int(dim)} if dim else {}


def dim_add(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    if isinstance(a, AnyDim) or isinstance(b, AnyDim):
        return ANY
    if isinstance(a, SymDim) and isinstance(b, int):
        return _plus(a, b)
    if isinstance(b, SymDim) and isinstance(a, int):
        return _plus(b, a)
    out = _terms(a)
    for monomial, coefficient in _terms(b).items():
        out[monomial] = out.get(monomial, 0) + coefficient
    return dim_of_terms(out)


def dim_sum(parts: Iterable[Dim]) -> Dim:
    """The sum of dims, put in order once."""
    number, terms = 0, dict[Monomial, int]()
    for part in parts:
        if isinstance(part, int):
            number += part
        elif isinstance(part, SymDim):
            for monomial, coefficient in part.terms:
                terms[monomial] = terms.get(monomial, 0) + coefficient
        else:
            return ANY
    return dim_add(dim_of_terms(terms), number) if terms else number


def _plus(a: SymDim, number: int) -> SymDim:
    """A polynomial and a number, whose term is the last one."""
    if number == 0:
        return a
    terms = a.terms
    if terms[-1][0] == ():
        number += terms[-1][1]
        terms = terms[:-1]
    key = (*terms, ((), int(number))) if number else terms
    return SymDim(key, hash(key))


def _times(a: SymDim, number: int) -> Dim:
    """A polynomial multiplied by a number: the terms' order stays."""
    if number == 0 or number == 1:
        return a if number else 0
    key = tuple([(monomial, coefficient * number) for monomial, coefficient in a.terms])
    return SymDim(key, hash(key))


def dim_sub(a: Dim, b: Dim) -> Dim:
    return dim_add(a, dim_mul(-1, b))


def _monomial_product(a: Monomial, b: Monomial) -> Monomial:
    if not a or not b:
        return a or b
    powers: dict[Atom, int] = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda t: t[0].serial))


def dim_mul(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    if isinstance(a, AnyDim) or isinstance(b, AnyDim):
        return 0 if a == 0 or b == 0 else ANY
    if isinstance(a, SymDim) and isinstance(b, int):
        return _times(a, b)
    if isinstance(b, SymDim) and isinstance(a, int):
        return _times(b, a)
    out: dict[Monomial, int] = {}
    for ma, ca in _terms(a).items():
        for mb, cb in _terms(b).items():
            m = _monomial_product(ma, mb)
            out[m] = out.get(m, 0) + ca * cb
    return dim_of_terms(out)


_interned: dict[tuple[DimOpKind, Dim, Dim], DimOp] = {}


def _dim_op(op: DimOpKind, a: Dim, b: Dim) -> Dim:
    key = (op, a, b)
    node = _interned.get(key)
    if node is None:
        node = _interned.setdefault(key, DimOp(op, a, b, next(_serial)))
    return as_dim(node)


def _var_again(name: str, lo: int, hi: int | None, gradual: bool) -> DimVar:
    return DimVar(name, lo, hi, gradual=gradual)


def _op_again(op: DimOpKind, a: Dim, b: Dim) -> DimOp:
    dim = _dim_op(op, a, b)
    (atom,) = dim_atoms(dim)
    assert isinstance(atom, DimOp)
    return atom


def _polynomial_again(terms: tuple[tuple[Monomial, int], ...]) -> Dim:
    return dim_of_terms(dict(terms))


def dim_is_negated(d: Dim) -> bool:
    """Whether every term of a polynomial is subtracted, as in ``-n - 2``: of a divisor that is to be divided by its opposite."""
    return d < 0 if isinstance(d, int) else isinstance(d, SymDim) and all(c < 0 for _, c in d.terms)


def dim_floordiv(a: Dim, b: Dim) -> Dim:
    """``a // b``. Splits off the terms that ``b`` divides exactly; ``-a`` is divided by ``n`` in the place of ``a`` by ``-n``.

    Raises DividedByZero for ``b == 0``.
    """
    if b == 0:
        raise DividedByZero(f"the size {a!r} // 0 divides by zero")
    if isinstance(a, int) and isinstance(b, int):
        return a // b
    if isinstance(a, AnyDim) or isinstance(b, AnyDim):
        return ANY
    if dim_is_negated(b):
        a, b = dim_mul(-1, a), dim_mul(-1, b)
        assert not isinstance(a, AnyDim) and not isinstance(b, AnyDim)
    exact, rest = _divide(a, b)
    if rest == 0:
        return exact
    if rest == a:
        return _dim_op("floordiv", a, b)
    return dim_add(exact, dim_floordiv(rest, b))


def dim_mod(a: Dim, b: Dim) -> Dim:
    """``a % b``. Raises DividedByZero for ``b == 0``."""
    if b == 0:
        raise DividedByZero(f"the size {a!r} % 0 divides by zero")
    if isinstance(a, int) and isinstance(b, int):
        return a % b
    if isinstance(a, AnyDim) or isinstance(b, AnyDim):
        return ANY
    _, rest = _divide(a, b)
    if isinstance(rest, int) and isinstance(b, int):
        return rest % b
    return 0 if rest == 0 else _dim_op("mod", rest, b)


def _divide(a: int | SymDim, b: int | SymDim) -> tuple[Dim, Dim]:
    """Write ``a = exact * b + rest``, term by term, for a divisor that is one monomial; exact for ``a == b`` in any case."""
    if a == b:
        return 1, 0
    divisor = _terms(b)
    if len(divisor) != 1:
        return 0, a
    (bm, bc), *_ = divisor.items()
    need = dict(bm)
    exact: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for m, c in _terms(a).items():
        powers = dict(m)
        fits = all(powers.get(atom, 0) >= p for atom, p in need.items())
        if fits and (c % bc == 0 or not need):
            # With a constant divisor a coefficient such as 7 // 4 leaves 3 in the rest: 7n = 4n + 3n.
            left = tuple((atom, p - need.get(atom, 0)) for atom, p in m if p > need.get(atom, 0))
            exact[left] = exact.get(left, 0) + c // bc
            if c % bc:
                rest[m] = c % bc
        else:
            rest[m] = c
    return dim_of_terms(exact), dim_of_terms(rest)


def ceil_div(a: Dim, b: Dim) -> Dim:
    return dim_floordiv(dim_sub(dim_add(a, b), 1), b)


def dim_min(a: Dim, b: Dim) -> Dim:
    return _extreme("min", a, b)


def dim_max(a: Dim, b: Dim) -> Dim:
    return _extreme("max", a, b)


def _extreme(op: Literal["min", "max"], a: Dim, b: Dim) -> Dim:
    if isinstance(a, AnyDim) or isinstance(b, AnyDim):
        return ANY
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b) if op == "min" else max(a, b)
    if a == b:
        return a
    lo, hi = dim_bounds(dim_sub(a, b))
    if lo is not None and lo >= 0:
        return b if op == "min" else a
    if hi is not None and hi <= 0:
        return a if op == "min" else b
    first, second = sorted((a, b), key=_sort_key)
    return _dim_op(op, first, second)


def _sort_key(dim: Dim) -> tuple[object, ...]:
    if isinstance(dim, SymDim):
        return (1, tuple((_order(m), c) for m, c in dim.terms))
    return (0, dim)


def dim_bounds(dim: Dim) -> tuple[int | None, int | None]:
    """A lower and an upper bound of the run-time value (None: unbounded), from the bounds of the variables."""
    if isinstance(dim, int):
        return dim, dim
    if isinstance(dim, AnyDim):
        return 0, None
    return _bounds(dim)


@lru_cache(1 << 12)
def _bounds(dim: SymDim) -> tuple[int | None, int | None]:
    low, high = sum_bounds(dim, _count_bounds)
    if low is not None and high is not None:
        return low, high
    below, above = _bounds_by_quotient(dim)
    if low is None and below is None:
        below = _least_of_quotients(dim)
    by_cases = _bounds_by_cases(dim)
    lows = [b for b in (low, below, by_cases[0]) if b is not None]
    highs = [b for b in (high, above, by_cases[1]) if b is not None]
    return max(lows, default=None), min(highs, default=None)


# Of sums with more extremes than that, bounds are not found by cases: each doubles them.
_MOST_EXTREMES = 2


def _bounds_by_cases(dim: SymDim) -> tuple[int | None, int | None]:
    """Bounds of a sum with an extreme, which is one of two dims: ``n - max(n - 1, 0)`` is the lesser of 1 and n."""
    extremes: list[tuple[DimOp, int]] = []
    for monomial, times in dim.terms if len(dim.terms) > 1 else ():
        atom, power = monomial[0] if len(monomial) == 1 else (None, 0)
        if isinstance(atom, DimOp) and atom.op in ("min", "max") and power == 1:
            extremes.append((atom, times))
    lows: list[int] = []
    highs: list[int] = []
    for extreme, times in extremes if len(extremes) <= _MOST_EXTREMES else ():
        rest = dim_sub(dim, dim_mul(times, as_dim(extreme)))
        (low, high), (other_low, other_high) = (
            dim_bounds(dim_add(rest, dim_mul(times, side))) for side in (extreme.a, extreme.b)
        )
        least = [b for b in (low, other_low) if b is not None]
        most = [b for b in (high, other_high) if b is not None]
        if (extreme.op == "min") == (times > 0):  # the lesser of both cases
            lows += [min(least)] if len(least) == 2 else []
            highs += [min(most)] if most else []
        else:
            lows += [max(least)] if least else []
            highs += [max(most)] if len(most) == 2 else []
    return max(lows, default=None), min(highs, default=None)


def _bounds_by_quotient(dim: SymDim) -> tuple[int | None, int | None]:
    """Bounds of a sum with a quotient by a number: ``c * (a // c)`` is at most ``a`` and more than ``a - c``, and the dividend may cancel
    with the rest of the sum. Of several the one that was made last is taken, since others may be inside of it."""
    found: tuple[DimOp, int] | None = None
    for monomial, times in dim.terms:
        if len(monomial) != 1:
            continue
        atom, power = monomial[0]
        if not isinstance(atom, DimOp) or atom.op != "floordiv" or power != 1 or not isinstance(atom.b, int):
            continue
        if atom.b > 0 and (found is None or atom.serial > found[0].serial):
            found = atom, times
    if found is None or len(dim.terms) == 1:
        return None, None
    quotient, times = found
    divisor = quotient.b
    assert isinstance(divisor, int)
    rest = dim_sub(dim, dim_mul(times, as_dim(quotient)))
    low, high = dim_bounds(dim_add(dim_mul(divisor, rest), dim_mul(times, quotient.a)))
    # The divisor times the sum is this, less what the division leaves over so many times.
    left = times * (divisor - 1)
    least = None if low is None else -((max(left, 0) - low) // divisor)
    most = None if high is None else (high - min(left, 0)) // divisor
    return least, most


def _least_of_quotients(dim: SymDim) -> int | None:
    """A lower bound of a sum less multiples of a quotient by a size: ``b * (a // b)`` is at most ``a``, if neither is negative."""
    for monomial, times in dim.terms:
        for atom, power in monomial if times < 0 else ():
            if not isinstance(atom, DimOp) or atom.op != "floordiv" or power != 1 or not isinstance(atom.b, SymDim):
                continue
            counts = [dim_bounds(side)[0] for side in (atom.a, atom.b)]
            whole = dim_mul(-times, dim_mul(atom.b, as_dim(atom)))
            if any(low is None or low < 0 for low in counts) or not known_equal(
                whole, dim_of_terms({monomial: -times})
            ):
                continue
            low = dim_bounds(dim_add(dim_sub(dim, dim_of_terms({monomial: times})), dim_mul(times, atom.a)))[0]
            if low is not None:
                return low
    return None


def sum_bounds(dim: SymDim, of: Callable[[Atom], tuple[int | None, int | None]]) -> tuple[int | None, int | None]:
    """Bounds of a polynomial from bounds of its atoms. Of a product with a factor that may be negative nothing is known."""
    lo: int | None = 0
    hi: int | None = 0
    for monomial, coefficient in dim.terms:
        mlo: int | None = 1
        mhi: int | None = 1
        for atom, power in monomial:
            alo, ahi = of(atom)
            if alo is None or alo < 0:
                mlo, mhi = (alo, ahi) if len(monomial) == 1 and power == 1 else (None, None)
                break
            mlo = None if mlo is None else mlo * alo**power
            mhi = None if mhi is None or ahi is None else mhi * ahi**power
        if coefficient < 0:
            mlo, mhi = mhi, mlo
        lo = None if lo is None or mlo is None else lo + mlo * coefficient
        hi = None if hi is None or mhi is None else hi + mhi * coefficient
    return lo, hi


def _count_bounds(atom: Atom) -> tuple[int | None, int | None]:
    """Bounds of an atom that is known not to be negative; none of another one."""
    found = _atom_bounds(atom)
    return found if found[0] is not None and found[0] >= 0 else (None, None)


def _atom_bounds(atom: Atom) -> tuple[int | None, int | None]:
    if isinstance(atom, DimVar):
        return atom.lo, atom.hi
    alo, ahi = dim_bounds(atom.a)
    blo, bhi = dim_bounds(atom.b)
    match atom.op:
        case "min":
            lo = None if alo is None or blo is None else min(alo, blo)
            highs = [h for h in (ahi, bhi) if h is not None]
            return lo, min(highs) if highs else None
        case "max":
            lows = [x for x in (alo, blo) if x is not None]
            return max(lows) if lows else None, None if ahi is None or bhi is None else max(ahi, bhi)
        case "mod":
            if blo is None or blo < 0:
                return None, None
            return 0, None if bhi is None else max(0, bhi - 1)  # modulo zero is zero, as is division by it
        case "floordiv":
            if isinstance(atom.b, int) and atom.b > 0:
                return None if alo is None else alo // atom.b, None if ahi is None else ahi // atom.b
            if alo is not None and alo >= 0 and blo is not None and blo >= 0:
                return 0, None if ahi is None else ahi // max(1, blo)
            return None, None


def known_equal(a: Dim, b: Dim) -> bool:
    """Equal for every value of the variables."""
    return not isinstance(a, AnyDim) and not isinstance(b, AnyDim) and a == b


def known_different(a: Dim, b: Dim) -> bool:
    """Different for every value of the variables (within their bounds)."""
    if isinstance(a, AnyDim) or isinstance(b, AnyDim):
        return False
    lo, hi = dim_bounds(dim_sub(a, b))
    return (lo is not None and lo > 0) or (hi is not None and hi < 0)


def dim_atoms(dim: Dim) -> Iterator[Atom]:
    """The atoms of the polynomial itself (not those inside atoms)."""
    if isinstance(dim, SymDim):
        for monomial, _ in dim.terms:
            for atom, _ in monomial:
                yield atom


def dim_vars(dim: Dim) -> Iterator[DimVar]:
    """Every variable in the dim, in order of occurrence, repetitions included."""
    todo: list[Dim] = [dim]
    while todo:
        for atom in dim_atoms(todo.pop()):
            if isinstance(atom, DimVar):
                yield atom
            else:
                todo += (atom.a, atom.b)


def dim_substitute(dim: Dim, value_of: Callable[[DimVar], Dim | None]) -> Dim:
    """Replace variables (None keeps one) and normalise again. The same object when nothing changed."""
    if not isinstance(dim, SymDim):
        return dim
    changed = False
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        product: Dim = coefficient
        for atom, power in monomial:
            if isinstance(atom, DimVar):
                new = value_of(atom)
                value: Dim = as_dim(atom) if new is None else new
                changed |= new is not None
            else:
                a, b = dim_substitute(atom.a, value_of), dim_substitute(atom.b, value_of)
                if a is atom.a and b is atom.b:
                    value = as_dim(atom)
                else:
                    changed = True
                    value = APPLY[atom.op](a, b)
            for _ in range(power):
                product = dim_mul(product, value)
        total = dim_add(total, product)
    return total if changed else dim


APPLY: Final[Mapping[DimOpKind, Callable[[Dim, Dim], Dim]]] = {
    "floordiv": dim_floordiv,
    "mod": dim_mod,
    "min": dim_min,
    "max": dim_max,
}


def dim_linear(dim: SymDim) -> tuple[DimVar, int, int] | None:
    """The variable, factor and constant of a dim that is ``factor * variable + constant`` with a positive factor."""
    terms = dict(dim.terms)
    constant = terms.pop((), 0)
    if len(terms) != 1:
        return None
    ((monomial, factor),) = terms.items()
    if len(monomial) != 1 or monomial[0][1] != 1 or factor <= 0 or not isinstance(monomial[0][0], DimVar):
        return None
    return monomial[0][0], factor, constant


def dim_solved(dim: SymDim, known: Callable[[DimVar], bool]) -> tuple[DimVar, Dim, Dim] | None:
    """The one variable of a dim that is not known, its factor and the rest, where the dim is ``factor * variable + rest`` with a factor
    that is a positive number, or a product of known variables (which may be zero) and one. `dim_linear` where nothing is known."""
    unknown = {v for v in dim_vars(dim) if not known(v)}
    if len(unknown) != 1:
        return None
    (variable,) = unknown
    terms = dict(dim.terms)
    found = [m for m in terms if any(v is variable for atom, _ in m for v in dim_vars(as_dim(atom)))]
    if len(found) != 1 or (variable, 1) not in found[0]:
        return None
    factors = tuple((atom, power) for atom, power in found[0] if atom is not variable)
    coefficient = terms.pop(found[0])
    if coefficient <= 0 or not all(isinstance(atom, DimVar) for atom, _ in factors):
        return None
    return variable, dim_of_terms({factors: coefficient}), dim_of_terms(terms)


def dim_evaluate(dim: Dim, env: Mapping[DimVar, int]) -> int:
    """The value of a dim under an assignment of its variables. Raises KeyError for a variable without a value."""
    value = dim_substitute(dim, lambda v: env[v])
    if not isinstance(value, int):
        raise ValueError(f"dimension {dim} has no value")
    return value


def dim_fold(
    dim: Dim, size: Callable[[DimVar], T], number: Callable[[int], T], apply: Callable[[DimFoldOp, T, T], T]
) -> T:
    """A dim in other terms: ``size`` gives a variable's value, ``number`` a constant's, ``apply`` an operation's.

    Raises ValueError for ``?``.
    """
    if isinstance(dim, int):
        return number(dim)
    if not isinstance(dim, SymDim):
        raise ValueError("a dimension about which nothing is known has no terms")
    total: T | None = None
    for monomial, coefficient in dim.terms:
        product: T | None = None if coefficient == 1 and monomial else number(coefficient)
        for atom, power in monomial:
            if isinstance(atom, DimOp):
                factor = apply(atom.op, dim_fold(atom.a, size, number, apply), dim_fold(atom.b, size, number, apply))
            else:
                factor = size(atom)
            for _ in range(power):
                product = factor if product is None else apply("mul", product, factor)
        assert product is not None
        total = product if total is None else apply("add", total, product)
    return number(0) if total is None else total


def shape_size(shape: tuple[Dim, ...]) -> Dim:
    """The number of elements of a shape."""
    size: Dim = 1
    for dim in shape:
        size = dim_mul(size, dim)
    return size


def dim_text(dim: Dim, name_of: Callable[[DimVar], str] = lambda v: v.name) -> str:
    """The dim in the text format: ``4*n + 1``, ``(n // 2)``, ``min(n, 8)``, ``?``."""
    if isinstance(dim, int):
        return str(dim)
    if isinstance(dim, AnyDim):
        return "?"
    out = ""
    for monomial, coefficient in dim.terms:
        factors = [_atom_text(atom, name_of) for atom, power in monomial for _ in range(power)]
        magnitude = abs(coefficient)
        if magnitude != 1 or not factors:
            factors.insert(0, str(magnitude))
        term = "*".join(factors)
        if not out:
            out = term if coefficient > 0 else f"-{term}"
        else:
            out += f" + {term}" if coefficient > 0 else f" - {term}"
    return out


def _atom_text(atom: Atom, name_of: Callable[[DimVar], str]) -> str:
    if isinstance(atom, DimVar):
        return name_of(atom)
    a, b = dim_text(atom.a, name_of), dim_text(atom.b, name_of)
    match atom.op:
        case "floordiv":
            return f"(({a}) // ({b}))"
        case "mod":
            return f"(({a}) % ({b}))"
        case "min" | "max":
            return f"{atom.op}({a}, {b})"
