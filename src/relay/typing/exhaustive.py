"""Whether a match covers every value, and whether every clause can be reached (Maranget's pattern matrices).

One traversal splits the matrix of patterns by constructors, at a place that the first row left looks at, until that row
matches whatever there is: its clause is taken there, and where no row is left, there is a value that no clause matches. A
place that the first row does not look at is not split: rows of which each looks at another place would otherwise be two
times as many cases with each of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field

from relay.ir.diagnostics import TypeError_
from relay.ir.expr import Match, Pattern, PConstructor, PTuple, PVar, PWild
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.ir.types import AdtType, ConstructorDef, Type


class UnreachableClause(UserWarning):
    """A clause of a match that no value reaches."""


@record(frozen=True, slots=True)
class Coverage:
    """``missing``: a pattern that no clause matches, as text, or None; ``unreachable``: clauses never taken."""

    missing: str | None
    unreachable: tuple[int, ...]


def coverage(patterns: Sequence[Pattern], module: Module) -> Coverage:
    """What a list of clauses covers."""
    state = _Traversal(module)
    missing = run(state.split([_row([(_ROOT, p)], n) for n, p in enumerate(patterns)]))
    unreachable = tuple(n for n in range(len(patterns)) if n not in state.taken)
    return Coverage(None if missing is None else run(_text(missing, _ROOT)), unreachable)


def check_match(e: Match, data: Type, module: Module) -> None:
    """Raises TypeError_ for a complete match that misses a value; warns of clauses that cannot be reached."""
    if not e.clauses and isinstance(data, AdtType):
        definition = module.types[data.name]
        if not definition.constructors and not definition.extern:
            return  # there is no value to cover
    found = coverage([c.pattern for c in e.clauses], module)
    if e.complete and found.missing is not None:
        raise TypeError_(
            f"the match does not cover {found.missing}",
            e.span,
            "add a clause for it, or write `match?` to fail at run time",
        )
    for n in found.unreachable:
        span = e.clauses[n].pattern.span or e.span
        warnings.warn(f"{span}: clause {n + 1} of the match is never reached", UnreachableClause, stacklevel=2)


# A part of the matched value: numbers, the whole value first.
Place = int
_ROOT: Place = 0
# A row: what is still to be looked at, without the patterns that always match, and the number of the clause.
Row = tuple[tuple[tuple[Place, Pattern], ...], int]
# A value that is not covered: at some places a constructor, and where its fields are; anything at the others.
Missing = dict[Place, tuple[str, Sequence[Place]]]


@record(slots=True, eq=False)
class _Traversal:
    module: Module
    taken: set[int] = field(default_factory=set)
    places: int = _ROOT

    def split(self, rows: list[Row]) -> Step[Missing | None]:
        """Note which clauses are taken; a value that no row matches, or None."""
        if not rows:
            return {}
        tests, clause = rows[0]
        if not tests:
            self.taken.add(clause)
            return None
        place = tests[0][0]
        heads = _heads(rows, place)
        fields = {name: self._fields(arity) for name, arity in heads.items()}
        parts, rest = _specialised(rows, place, fields)
        missing: Missing | None = None
        for name, part in parts.items():
            below = yield self.split(part)
            if below is not None and missing is None:
                missing = below
                missing[place] = name, fields[name]
        absent = self._absent(heads)
        if absent is not None:
            below = yield self.split(rest)
            if below is not None and missing is None:
                missing = below
                missing[place] = absent.name, self._fields(len(absent.fields))
        return missing

    def _fields(self, count: int) -> range:
        """New places."""
        first = self.places + 1
        self.places += count
        return range(first, first + count)

    def _absent(self, heads: Mapping[str, int]) -> ConstructorDef | None:
        """A constructor of the same type that is not among the heads."""
        first = next(iter(heads))
        if first == _TUPLE:
            return None
        definition = self.module.types[self.module.constructors[first].adt]
        return next((c for c in definition.constructors if c.name not in heads), None)


_TUPLE = "()"


def _row(tests: Iterable[tuple[Place, Pattern]], clause: int) -> Row:
    return tuple((place, p) for place, p in tests if not isinstance(p, PWild | PVar)), clause


def _at(row: Row, place: Place) -> PConstructor | PTuple | None:
    """What a row asks for at a place; None when it takes anything."""
    return next((p for at, p in row[0] if at == place and isinstance(p, PConstructor | PTuple)), None)


def _name(p: PConstructor | PTuple) -> str:
    return p.name if isinstance(p, PConstructor) else _TUPLE


def _heads(rows: Sequence[Row], place: Place) -> dict[str, int]:
    """The constructors that rows ask for at a place, with their numbers of fields."""
    return {_name(p): len(p.fields) for p in (_at(r, place) for r in rows) if p is not None}


def _specialised(
    rows: Sequence[Row], place: Place, fields: Mapping[str, Sequence[Place]]
) -> tuple[dict[str, list[Row]], list[Row]]:
    """The rows that apply under each constructor, which look at its fields, and those that apply under any other."""
    parts: dict[str, list[Row]] = {name: [] for name in fields}
    rest: list[Row] = []
    for row in rows:
        p = _at(row, place)
        if p is None:
            for part in parts.values():
                part.append(row)
            rest.append(row)
        else:
            others = (test for test in row[0] if test[0] != place)
            parts[_name(p)].append(_row((*zip(fields[_name(p)], p.fields, strict=True), *others), row[1]))
    return parts, rest


def _text(missing: Missing, place: Place) -> Step[str]:
    if place not in missing:
        return "_"
    name, fields = missing[place]
    texts: list[str] = []
    for part in fields:
        texts.append((yield _text(missing, part)))
    inside = ", ".join(texts)
    if name == _TUPLE:
        return f"({inside},)" if len(fields) == 1 else f"({inside})"
    return f"{name}({inside})" if fields else name
