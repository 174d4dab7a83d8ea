"""The description of a walk, in the words that ``rows.linearise`` reads (see `relay.op.rows`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field

from relay.ir.dim import Dim
from relay.ir.expr import Tuple
from relay.ir.record import record
from relay.ir.types import TensorType
from relay.op.rows import APART, ASKING, CLAUSE, DTYPES, FIELD, MANY, ONCE, SWITCH, TURN
from relay.transform.batching.clauses import NotStructural, Structural
from relay.transform.batching.decisions import Clause, Elsewhere, Path, Switch, Tree, others
from relay.transform.batching.lists import Layout

# What a register holds: the part at a path, or, where that is not the same path in all places where a clause stands, that of the clause.
_At = Path | tuple[Path, int]
# Functions that have a flag in a word.
_MOST = 60
# Where the code for an item of a list stands.
_ITEM = Elsewhere(Clause(-1, (), Tuple(()), {}, {}), {})


@record(frozen=True, slots=True)
class SiteAt:
    """A call of function number ``target`` on the part at ``path``."""

    path: Path
    target: int


@record(frozen=True, slots=True)
class ListAt:
    """The list at ``path``, whose items are rows of their own clause, of this number."""

    path: Path
    layout: Layout
    items: int


@record(frozen=True, slots=True, eq=False)
class Tables:
    """What a clause takes out of the structure, in order."""

    sites: Sequence[SiteAt | ListAt]
    payloads: Sequence[tuple[Path, TensorType]]


def _once(
    clauses: Sequence[Clause], tables: Sequence[Tables], places: Mapping[Clause, Sequence[Elsewhere]], many: bool
) -> bool:
    """Whether a part that only one value holds is reached once at most, where those who hold it are: each function is called by clauses
    of one function only (and of what is done with requests, which are no parts of anything), which do so on fields of their node and on
    items of a list in a field, and not twice on the same. Else a Fibonacci number of calls may reach the parts of a chain. (A node of which
    there are two holds what both reach: this is of walks where there are none.)"""
    callers: dict[int, set[int]] = {}
    for clause, table in zip(clauses, tables, strict=False):  # the items of lists come after the clauses
        for place in (Elsewhere(clause, {}), *places.get(clause, ())):
            seen: set[tuple[Path, int]] = set()
            for site in table.sites:
                inside = [site] if isinstance(site, SiteAt) else tables[site.items].sites
                for call in inside:
                    # A list turned round is new.
                    path = tuple(step for step in place.path(site.path) if not isinstance(step, Layout))
                    deep = len(path) > 1 or (call is not site and len(call.path) > 1)
                    if deep or not isinstance(call, SiteAt) or (path, call.target) in seen:
                        return False
                    seen.add((path, call.target))
                    if not (many and clause.function == 0):
                        callers.setdefault(call.target, set()).add(clause.function)
    return all(len(c) <= 1 for c in callers.values())


@record(slots=True, eq=False)
class Writer:
    """Writes the words. ``sizes`` collects the dims that are known at run time only."""

    words: list[int] = field(default_factory=list)
    sizes: list[Dim] = field(default_factory=list)
    registers: int = 1
    tables: Sequence[Tables] = ()
    places: dict[Clause, list[Elsewhere]] = field(default_factory=dict)
    passed_on: Sequence[tuple[Dim, Dim]] = ()
    records: int = 0

    def spec(
        self,
        functions: Sequence[Structural],
        clauses: Sequence[Clause],
        tables: Sequence[Tables],
        many: bool = False,
        apart: Collection[int] = (),
        passed_on: Sequence[tuple[Dim, Dim]] = (),
        asking: bool = False,
    ) -> tuple[int, ...]:
        """The description. ``tables`` are those of ``clauses`` and, after these, of the items of lists; ``apart``: for these functions
        a part that is reached twice is two nodes; ``passed_on``: of requests that may be answered in parts, the bytes that a row of each
        table has in what the levels pass on, and how many rows that is to a product; ``asking``: each node is told its request."""
        number = {clause: n for n, clause in enumerate(clauses)}
        self.tables, self.records = tables, 4 + len(functions)
        self.passed_on = passed_on or [(0, 0)] * len(tables)
        if any(n >= _MOST for n in apart):
            raise NotStructural("there are too many functions whose arguments change")
        for function in functions:
            for place in others(function.tree):
                self.places.setdefault(place.clause, []).append(place)
        once = not apart and _once(clauses, tables, self.places, many)
        flags = MANY * many + ONCE * once + ASKING * asking + sum(APART << n for n in apart)
        self.words = [len(functions), len(tables), 0, flags] + [0] * (len(functions) + len(tables))
        for n, function in enumerate(functions):
            self.words[4 + n] = len(self.words)
            self._function(function.tree, number)
        self.words[2] = self.registers
        return tuple(self.words)

    def _function(self, tree: Tree, number: dict[Clause, int]) -> None:
        registers: dict[_At, int] = {(): 0}
        # A tree, the registers that are loaded on the way to it, and the word that is to hold its address.
        todo: list[tuple[Tree, frozenset[Path], int | None]] = [(tree, frozenset({()}), None)]
        made: set[int] = set()
        while todo:
            here, loaded, patch = todo.pop()
            if patch is not None:
                self.words[patch] = len(self.words)
            if isinstance(here, Switch):
                loaded = self._load([here.path], loaded, registers)
                self.words += (SWITCH, registers[here.path], len(here.arms))
                for arm in here.arms:
                    if arm is None:
                        self.words.append(-1)
                    else:
                        todo.append((arm, loaded, len(self.words)))
                        self.words.append(0)
                continue
            place = here if isinstance(here, Elsewhere) else Elsewhere(here, {})
            self._end(number[place.clause], place, loaded, registers, made)

    def _end(
        self, clause: int, place: Elsewhere, loaded: frozenset[Path], registers: dict[_At, int], made: set[int]
    ) -> None:
        """Load what a clause reads in this place, name the clause, and write its record unless it is there."""
        table = self.tables[clause]
        reads = [*(s.path for s in table.sites), *(p for p, _ in table.payloads)]
        # What does not lie at the same place everywhere has a register of its own.
        moving = {p for p in reads if any(p in other.paths for other in self.places.get(place.clause, ()))}
        loaded = self._load([p for p in reads if p not in moving], loaded, registers)
        slots = {p: (p, clause) if p in moving else p for p in reads}
        for there in dict.fromkeys(p for p in reads if p in moving):
            path = place.path(there)
            loaded = self._load([path[:-1]], loaded, registers)
            self._step(path, registers.setdefault(slots[there], len(registers)), registers)
        self.registers = max(self.registers, len(registers))
        self.words += (CLAUSE, clause)
        if clause in made:
            return
        made.add(clause)
        self.words[self.records + clause] = len(self.words)
        lists = self._record(place.clause.function, clause, {p: registers[at] for p, at in slots.items()})
        for site, patch in lists:
            self.words[patch] = len(self.words)
            # One level: items have no lists of their own.
            self._end(site.items, _ITEM, frozenset({()}), {(): 0}, made)

    def _load(self, paths: Sequence[Path], loaded: frozenset[Path], registers: dict[_At, int]) -> frozenset[Path]:
        have = set(loaded)
        for path in paths:
            for n in range(1, len(path) + 1):
                part = path[:n]
                if part not in have:
                    have.add(part)
                    self._step(part, registers.setdefault(part, len(registers)), registers)
        return frozenset(have)

    def _step(self, path: Path, to: int, registers: Mapping[_At, int]) -> None:
        """Load the part at a path from what it is a part of."""
        step, source = path[-1], registers[path[:-1]]
        if isinstance(step, Layout):
            self.words += (TURN, to, source, step.cons, step.head, step.tail)
        else:
            self.words += (FIELD, to, source, step)

    def _record(self, function: int, clause: int, registers: Mapping[Path, int]) -> list[tuple[ListAt, int]]:
        """Write a record; the lists in it, with the words that are to hold the addresses of their items' code."""
        lists: list[tuple[ListAt, int]] = []
        table = self.tables[clause]
        self.words += (function, *map(self._dim, self.passed_on[clause]), len(table.sites))
        for site in table.sites:
            if isinstance(site, SiteAt):
                self.words += (0, registers[site.path], site.target)
            else:
                self.words += (1, registers[site.path], site.layout.cons, site.layout.head, site.layout.tail, 0)
                lists.append((site, len(self.words) - 1))
        self.words.append(len(table.payloads))
        for path, ty in table.payloads:
            assert isinstance(ty.shape, tuple) and isinstance(ty.dtype, str)
            self.words += (registers[path], DTYPES.index(ty.dtype), len(ty.shape), *map(self._dim, ty.shape))
        return lists

    def _dim(self, dim: Dim) -> int:
        if isinstance(dim, int):
            return dim
        if dim not in self.sizes:
            self.sizes.append(dim)
        return -1 - self.sizes.index(dim)
