"""Whether a match covers every value, and whether every clause can be reached (Maranget's pattern matrices).

One traversal splits the matrix of patterns by constructors, column by column, until every row left matches: the first
of these is the clause that is taken there, and a place with no row left is a value that no clause matches.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import assert_never

from relay.ir.diagnostics import TypeError_
from relay.ir.expr import Match, Pattern, PConstructor, PTuple, PVar, PWild
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.ir.types import AdtType, Type

_WILD = PWild()


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
    missing = run(state.split([((p,), n) for n, p in enumerate(patterns)], 1))
    unreachable = tuple(n for n in range(len(patterns)) if n not in state.taken)
    return Coverage(None if missing is None else missing[0], unreachable)


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


# A row: the patterns still to be looked at, the first column first, and the number of the clause.
Row = tuple[tuple[Pattern, ...], int]


@record(slots=True, eq=False)
class _Traversal:
    module: Module
    taken: set[int] = field(default_factory=set)

    def split(self, rows: list[Row], width: int) -> Step[list[str] | None]:
        """Note which clauses are taken; a vector of patterns (as text) that no row matches, or None."""
        if not rows:
            return ["_"] * width
        if width == 0:
            self.taken.add(rows[0][1])
            return None
        arities = _heads(rows)
        if not arities:
            below = yield self.split([(p[1:], n) for p, n in rows], width - 1)
            return None if below is None else ["_", *below]
        parts, rest = _specialised(rows, arities)
        missing: list[str] | None = None
        for name, arity in arities.items():
            below = yield self.split(parts[name], arity + width - 1)
            if below is not None and missing is None:
                missing = [_text(name, below[:arity]), *below[arity:]]
        absent = self._absent(arities)
        if absent is not None:
            below = yield self.split(rest, width - 1)
            if below is not None and missing is None:
                missing = [absent, *below]
        return missing

    def _absent(self, heads: Mapping[str, int]) -> str | None:
        """A constructor (as a pattern) of the same type that is not among the heads."""
        first = next(iter(heads))
        if first == _TUPLE:
            return None
        definition = self.module.types[self.module.constructors[first].adt]
        for c in definition.constructors:
            if c.name not in heads:
                return _text(c.name, ["_"] * len(c.fields))
        return None


_TUPLE = "()"


def _heads(rows: Sequence[Row]) -> dict[str, int]:
    """The constructors in the first column, with their numbers of fields."""
    out: dict[str, int] = {}
    for patterns, _ in rows:
        match patterns[0]:
            case PConstructor() as p:
                out.setdefault(p.name, len(p.fields))
            case PTuple() as p:
                out.setdefault(_TUPLE, len(p.fields))
            case PWild() | PVar():
                pass
            case p:
                assert_never(p)
    return out


def _specialised(rows: Sequence[Row], arities: Mapping[str, int]) -> tuple[dict[str, list[Row]], list[Row]]:
    """The rows that apply under each constructor, with its fields for columns, and those that apply under any other."""
    parts: dict[str, list[Row]] = {name: [] for name in arities}
    rest: list[Row] = []
    for patterns, n in rows:
        first, others = patterns[0], patterns[1:]
        if isinstance(first, PConstructor):
            parts[first.name].append(((*first.fields, *others), n))
        elif isinstance(first, PTuple):
            parts[_TUPLE].append(((*first.fields, *others), n))
        else:
            for name, arity in arities.items():
                parts[name].append(((_WILD,) * arity + others, n))
            rest.append((others, n))
    return parts, rest


def _text(name: str, fields: Sequence[str]) -> str:
    inside = ", ".join(fields)
    if name == _TUPLE:
        return f"({inside},)" if len(fields) == 1 else f"({inside})"
    return f"{name}({inside})" if fields else name
