"""Whether an inequality between dims follows from others: linear combinations, products with what is not negative, cases.

    facts.assume(n - 1 - i), facts.assume(15 - j)      # i < n, j < 16; atoms are at least their lower bound
    facts.implies(16*n - 1 - (16*i + j))               # so 16*i + j < 16*n

An inequality is a dim that is not negative. A goal follows if a fact times something that is not negative can be taken from it and the
rest follows: atoms are taken away one after the other, those that were made last first (they range within what older ones say). What a
quotient, a remainder and an extreme are is known as facts about them; an extreme is also one operand or the other, each under the
condition that makes it so. The search is bounded: it answers no where it does not find a proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from math import gcd
from typing import Final

from relay.ir.dim import (
    Atom,
    Dim,
    DimOp,
    DimVar,
    SymDim,
    as_dim,
    dim_add,
    dim_atoms,
    dim_bounds,
    dim_floordiv,
    dim_mul,
    dim_of_terms,
    dim_sub,
    sum_bounds,
)

# Goals that one question may come to, in all and within a case, and how many cases inside of each other. One of more than a few terms
# counts for several: what is left of it takes as much longer to find.
_MOST_GOALS: Final = 1200
_MOST_IN_A_CASE: Final = 300
_FEW_TERMS: Final = 4
_MOST_CASES: Final = 3
_NEWEST: Final = 3


class Facts:
    """Inequalities that hold, and what follows from them. Facts are taken back in the opposite order."""

    __slots__ = ("_about", "_cases", "_counts", "_given", "_known", "_proved", "_trail")

    def __init__(self) -> None:
        self._given: list[SymDim] = []
        self._about: dict[Atom, list[SymDim]] = {}
        self._known: dict[tuple[DimOp, bool], tuple[SymDim, ...]] = {}
        # A variable that is one of several dims, each under facts of its own.
        self._cases: dict[DimVar, tuple[tuple[Dim, tuple[Dim, ...]], ...]] = {}
        # Atoms that were found not to be negative; goals that were proved: the least constant beside the terms. What was found while
        # facts hold is forgotten with them: how many facts there were then.
        self._counts: set[Atom] = set()
        self._proved: dict[Dim, int] = {}
        self._trail: list[tuple[int, Atom | Dim, int | None]] = []

    def assume(self, fact: Dim) -> None:
        """``fact >= 0`` holds."""
        todo = [fact]
        while todo:
            fact = _tightened(todo.pop())
            if isinstance(fact, SymDim):
                self._given.append(fact)
                for atom in _outer(fact):
                    self._about.setdefault(atom, []).append(fact)
                todo += _beyond(fact)

    @contextmanager
    def within(self) -> Iterator[None]:
        """What is assumed inside holds inside only."""
        before = self.mark()
        try:
            yield
        finally:
            self.release(before)

    def mark(self) -> int:
        """A point to go back to."""
        return len(self._given)

    def release(self, mark: int) -> None:
        """Forget what was assumed since a `mark`."""
        while len(self._given) > mark:
            for atom in _outer(self._given.pop()):
                self._about[atom].pop()
        while self._trail and self._trail[-1][0] > mark:
            _, what, before = self._trail.pop()
            if isinstance(what, DimVar | DimOp):
                self._counts.discard(what)
            elif before is None:
                del self._proved[what]
            else:
                self._proved[what] = before

    def know(self, dim: Dim) -> None:
        """Find out now what later questions need: which atoms of a dim are never negative, those inside of others first."""
        if not isinstance(dim, SymDim):
            return
        for atom in sorted(_all_atoms(dim), key=lambda a: a.serial):
            if not isinstance(atom, DimOp):
                continue
            if atom.op in ("floordiv", "mod") and isinstance(atom.b, SymDim) and not self.is_positive(atom.b):
                self.implies(dim_sub(atom.b, 1))
            if atom not in self._counts and not is_count(as_dim(atom)) and self.implies(as_dim(atom)):
                self._counts.add(atom)
                self._trail.append((len(self._given), atom, None))

    def is_positive(self, dim: Dim) -> bool:
        """Whether a dim is known to be 1 or more, without a search."""
        low = dim_bounds(dim)[0]
        if low is not None and low >= 1:
            return True
        terms, constant = _parted(dim_sub(dim, 1))
        return self._proved.get(terms, constant + 1) <= constant

    def choose(self, var: DimVar, *cases: tuple[Dim, tuple[Dim, ...]]) -> None:
        """A variable is the dim of one of the cases, whose facts hold then."""
        self._cases[var] = cases

    def implies(self, goal: Dim, effort: int = _MOST_GOALS) -> bool:
        """Whether ``goal >= 0`` was found to follow, by a search that comes to no more goals than ``effort``."""
        if isinstance(goal, int):
            return goal >= 0
        if not isinstance(goal, SymDim):
            return False
        if self.is_proved(tight := _tightened(goal)):
            return True
        terms, constant = _parted(tight)
        search = _Search(self, effort)
        if not search.proves(dim_add(terms, constant), 0):
            return False
        for found in (goal, *search.way):
            self.learn(*_parted(_tightened(found)))
        return True

    def learn(self, terms: Dim, constant: int) -> None:
        """``terms + constant >= 0`` was proved."""
        known = self._proved.get(terms)
        if known is None or known > constant:
            self._proved[terms] = constant
            self._trail.append((len(self._given), terms, known))

    def is_proved(self, goal: Dim) -> bool:
        """Whether a tightened goal, or one that is harder to meet, was proved before."""
        terms, constant = _parted(goal)
        known = self._proved.get(terms)
        return known is not None and known <= constant

    def ends(self, dim: Dim) -> tuple[int | None, int | None]:
        """Numbers that bound a dim, by what its atoms can be."""
        if isinstance(dim, int):
            return dim, dim
        if not isinstance(dim, SymDim):
            return None, None
        return sum_bounds(dim, self._bounds_of)

    def _bounds_of(self, atom: Atom) -> tuple[int | None, int | None]:
        low, high = dim_bounds(as_dim(atom))
        return (0, high) if atom in self._counts and (low is None or low < 0) else (low, high)

    # -- what is known about an atom

    def given(self, atom: Atom) -> list[SymDim]:
        """What was assumed of an atom outside of others, the narrowest scope first."""
        return self._about.get(atom, [])[::-1]

    def about(self, atom: Atom) -> list[SymDim]:
        """The same, and then what the atom's own meaning says."""
        return [*self.given(atom), *(self._meaning(atom) if isinstance(atom, DimOp) else _ends(atom))]

    def cases(self, atom: Atom) -> tuple[tuple[Dim, tuple[Dim, ...]], ...]:
        if isinstance(atom, DimVar):
            return self._cases.get(atom, ())
        if atom.op == "min":
            return ((atom.a, (dim_sub(atom.b, atom.a),)), (atom.b, (dim_sub(atom.a, atom.b),)))
        if atom.op == "max":
            return ((atom.a, (dim_sub(atom.a, atom.b),)), (atom.b, (dim_sub(atom.b, atom.a),)))
        return ()

    def _meaning(self, atom: DimOp) -> tuple[SymDim, ...]:
        positive = atom.op in ("floordiv", "mod") and self.is_positive(atom.b)
        found = self._known.get((atom, positive))
        if found is None:
            found = tuple(f for f in self._defined(atom, positive) if isinstance(f, SymDim))
            self._known[atom, positive] = found
        return found

    def _defined(self, atom: DimOp, positive: bool) -> list[Dim]:
        a, b, x = atom.a, atom.b, as_dim(atom)
        match atom.op:
            case "min":
                return [dim_sub(a, x), dim_sub(b, x)]
            case "max":
                return [dim_sub(x, a), dim_sub(x, b)]
            case "floordiv":
                low = dim_sub(a, dim_mul(b, x))
                if positive:
                    return [low, dim_sub(dim_add(dim_mul(b, x), dim_sub(b, 1)), a)]
                # Division by 0 gives 0.
                return [low, x] if is_count(a) and is_count(b) else []
            case "mod":
                if not positive:
                    return []
                rest = dim_sub(dim_sub(a, x), dim_mul(b, dim_floordiv(a, b)))
                return [x, dim_sub(dim_sub(b, 1), x), rest, dim_mul(-1, rest)]


class _Search:
    """One question, and how many goals it may still come to (`left`)."""

    __slots__ = ("facts", "left", "signs", "way")

    def __init__(self, facts: Facts, effort: int) -> None:
        self.facts = facts
        self.left = effort
        self.signs: dict[Dim, int] = {}
        # What was proved on the way to the last goal.
        self.way: list[SymDim] = []

    def proves(self, goal: Dim, cases: int) -> bool:
        """Whether a goal follows: from facts, the simplest rest first; else in every case of an atom that was come across."""
        if isinstance(goal, int):
            return goal >= 0
        if not isinstance(goal, SymDim):
            return False
        if self.sign(goal) > 0:
            return True
        found = self.follows(goal)
        if found is None:
            return True
        if cases == _MOST_CASES:
            return False
        return any(self.splits(goal, atom, cases) for atom in found)

    def follows(self, goal: SymDim) -> dict[Atom, None] | None:
        """None if a goal follows from facts alone; else the atoms of goals on the way that are one of several dims."""
        # Where each goal came from: if the last one holds, so do they all.
        origin: dict[Dim, SymDim | None] = {goal: None}
        met: dict[Atom, None] = {}
        waiting: list[tuple[int, int, int, SymDim]] = [(0, 0, 0, goal)]
        here = _MOST_IN_A_CASE
        while waiting and self.left > 0 and here > 0:
            _, _, steps, current = heappop(waiting)
            effort = 1 + len(current.terms) // _FEW_TERMS
            self.left -= effort
            here -= effort
            for atom in sorted(_outer(current), key=lambda a: -a.serial)[:_NEWEST]:
                if self.facts.cases(atom):
                    met.setdefault(atom)
                rests = dict.fromkeys(self.reduced(current, atom))
                for rest in rests:
                    if rest in origin:
                        continue
                    origin[rest] = current
                    if rest == 0 or self.sign(rest) > 0 or self.facts.is_proved(rest):
                        self.way = _way(origin, current)
                        return None
                    if isinstance(rest, SymDim):
                        # The only way to take an atom away is no step: it has to be gone.
                        length = steps if len(rests) == 1 else steps + 1
                        heappush(waiting, (2 * length + len(rest.terms), len(origin), length, rest))
                if len(rests) == 1:
                    break
        return met

    def sign(self, dim: Dim) -> int:
        """1 for what is never negative, -1 for what is never positive, 0 for what may be either or is nothing."""
        if isinstance(dim, int):
            return (dim > 0) - (dim < 0)
        found = self.signs.get(dim)
        if found is None:
            low, high = self.facts.ends(dim)
            found = 1 if low is not None and low >= 0 else -1 if high is not None and high <= 0 else 0
            self.signs[dim] = found
        return found

    def splits(self, goal: SymDim, atom: Atom, cases: int) -> bool:
        """Whether the goal follows in every case of an atom."""
        for value, conditions in self.facts.cases(atom):
            if self.left <= 0:
                return False
            with self.facts.within():
                for condition in conditions:
                    self.facts.assume(condition)
                same = dim_sub(as_dim(atom), value)
                self.facts.assume(same)
                self.facts.assume(dim_mul(-1, same))
                if not self.proves(replaced(goal, atom, value), cases + 1):
                    return False
        self.way = []  # holds in the last case
        return True

    def reduced(self, goal: SymDim, atom: Atom) -> Iterator[Dim]:
        """What is left to prove when the atom, or one product with it, is taken from the goal by a fact."""
        factors = _taken(goal, atom)
        if (
            isinstance(atom, DimOp)
            and atom.op == "floordiv"
            and factors in ([1], [-1])
            and self.facts.is_positive(atom.b)
        ):
            # a // b + rest >= 0 exactly if a + b * rest >= 0, and rest - a // b >= 0 exactly if b * rest + b - 1 - a >= 0.
            if factors == [1]:
                yield _tightened(dim_add(atom.a, dim_mul(atom.b, dim_sub(goal, as_dim(atom)))))
            else:
                rest = dim_add(goal, as_dim(atom))
                yield _tightened(dim_sub(dim_add(dim_mul(atom.b, rest), dim_sub(atom.b, 1)), atom.a))
            known = self.facts.given(atom)
        else:
            known = self.facts.about(atom)
        for factor in factors:
            sign = self.sign(factor)
            if sign == 0:
                continue
            size = factor if sign > 0 else dim_mul(-1, factor)
            for fact in known:
                for part in _taken(fact, atom)[:1]:
                    if self.sign(part) != sign:
                        continue
                    scale = part if sign > 0 else dim_mul(-1, part)
                    if isinstance(scale, int):
                        common = gcd(scale, size) if isinstance(size, int) else scale if _divides(scale, size) else 1
                        times = dim_floordiv(size, common)
                        if isinstance(times, int):
                            yield _without(goal, scale // common, fact, times)
                        else:
                            more = scale // common
                            rest = dim_add(dim_mul(more, goal), more - 1)
                            yield _tightened(dim_sub(rest, dim_mul(times, fact)))
                    else:
                        times = dim_floordiv(size, scale)
                        if dim_mul(times, scale) == size and self.sign(times) > 0:
                            yield _tightened(dim_sub(goal, dim_mul(times, fact)))


def _way(origin: dict[Dim, SymDim | None], last: SymDim) -> list[SymDim]:
    found: list[SymDim] = []
    at: SymDim | None = last
    while at is not None:
        found.append(at)
        at = origin[at]
    return found


def _parted(dim: Dim) -> tuple[Dim, int]:
    """The terms of a dim with atoms, and its constant."""
    constant = next((c for m, c in dim.terms if not m), 0) if isinstance(dim, SymDim) else 0
    return dim_sub(dim, constant), constant


def _without(goal: SymDim, scale: int, fact: SymDim, times: int) -> Dim:
    """What is not negative where ``scale * goal + scale - 1 - times * fact`` is not, tightened: a goal of -1 is no other than one of less
    than 0."""
    out = dict(goal.terms) if scale == 1 else {m: scale * c for m, c in goal.terms}
    out[()] = out.get((), 0) + scale - 1
    for m, c in fact.terms:
        out[m] = out.get(m, 0) - times * c
    constant = out.pop((), 0)
    common = gcd(*out.values())
    if common == 0:
        return constant
    if common > 1:
        out = {m: c // common for m, c in out.items()}
        constant //= common
    out[()] = constant
    return dim_of_terms(out)


def _tightened(dim: Dim) -> Dim:
    """What is not negative exactly where a dim is not: divided by what divides all its atoms' coefficients."""
    if not isinstance(dim, SymDim):
        return dim
    common = gcd(*(c for m, c in dim.terms if m))
    if common == 1:
        return dim
    terms, constant = _parted(dim)
    return dim_add(dim_floordiv(terms, common), constant // common)


def _taken(dim: SymDim, atom: Atom) -> list[Dim]:
    """What an atom is multiplied by in a dim: all of it, and then its terms one by one if there are several; nothing where a
    power of the atom occurs."""
    parts: list[Dim] = []
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        powers = dict(monomial)
        power = powers.pop(atom, 0)
        if power > 1:
            return []
        if power == 1:
            part: Dim = coefficient
            for other, p in powers.items():
                for _ in range(p):
                    part = dim_mul(part, as_dim(other))
            parts.append(part)
            total = dim_add(total, part)
    return [total, *parts] if len(parts) > 1 else parts


def _beyond(fact: SymDim) -> Iterator[Dim]:
    """What a fact says of the operands of an extreme: what the smaller one reaches, both do."""
    for atom in _outer(fact):
        if isinstance(atom, DimOp) and atom.op in ("min", "max"):
            (times, *more) = _taken(fact, atom) or [0]  # a power of it says nothing
            if not more and isinstance(times, int) and times != 0 and (times > 0) == (atom.op == "min"):
                rest = dim_sub(fact, dim_mul(times, as_dim(atom)))
                yield from (dim_add(rest, dim_mul(times, operand)) for operand in (atom.a, atom.b))


def replaced(dim: SymDim, atom: Atom, value: Dim) -> Dim:
    """A dim with another one in the place of an atom that is not inside of another."""
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        product: Dim = coefficient
        for other, power in monomial:
            for _ in range(power):
                product = dim_mul(product, value if other is atom else as_dim(other))
        total = dim_add(total, product)
    return total


def _outer(dim: SymDim) -> dict[Atom, None]:
    """The atoms of a dim's terms."""
    return {atom: None for monomial, _ in dim.terms for atom, _ in monomial}


def _all_atoms(dim: Dim) -> set[Atom]:
    """The atoms of a dim, at any depth."""
    found: set[Atom] = set()
    todo = [dim]
    while todo:
        for atom in dim_atoms(todo.pop()):
            if atom not in found:
                found.add(atom)
                if isinstance(atom, DimOp):
                    todo += (atom.a, atom.b)
    return found


def _ends(var: DimVar) -> list[SymDim]:
    out = [dim_sub(as_dim(var), var.lo)]
    if var.hi is not None:
        out.append(dim_sub(var.hi, as_dim(var)))
    return [d for d in out if isinstance(d, SymDim)]


def is_count(dim: Dim) -> bool:
    """Whether a dim is never negative, whatever its sizes are."""
    low = dim_bounds(dim)[0]
    return low is not None and low >= 0


def _divides(divisor: int, dim: Dim) -> bool:
    return isinstance(dim, SymDim) and all(c % divisor == 0 for _, c in dim.terms)
