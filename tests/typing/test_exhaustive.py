"""Coverage of matches, against trying every value."""

from __future__ import annotations

from typing import TypeGuard

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.ir.expr import Pattern, PConstructor, PTuple, PVar, PWild, Var
from relay.ir.module import Module
from relay.ir.types import AdtType, ConstructorDef, TupleType, Type, TypeDef
from relay.typing.exhaustive import Coverage, UnreachableClause, coverage
from tests.typing.programs import typed

T = AdtType("T")
PAIR = TupleType((T, T))
# type T { A, B(T), C((T, T)) }
MODULE = Module(
    {},
    {
        "T": TypeDef(
            "T",
            (),
            (ConstructorDef("A", (), "T", 0), ConstructorDef("B", (T,), "T", 1), ConstructorDef("C", (PAIR,), "T", 2)),
        )
    },
)
A = PConstructor("A")
WILD = PWild()


def b(p: Pattern) -> Pattern:
    return PConstructor("B", (p,))


def c(p: Pattern, q: Pattern) -> Pattern:
    return PConstructor("C", (PTuple((p, q)),))


@pytest.mark.parametrize(
    ("patterns", "missing", "unreachable"),
    [
        ([WILD], None, ()),
        ([PVar(Var("x"))], None, ()),
        ([A], "B(_)", ()),
        ([A, b(WILD)], "C(_)", ()),
        ([A, b(WILD), c(WILD, WILD)], None, ()),
        ([A, b(A), c(WILD, WILD)], "B(B(_))", ()),
        ([A, b(WILD), c(A, WILD), c(WILD, A)], "C((B(_), B(_)))", ()),
        ([WILD, A], None, (1,)),
        ([A, b(WILD), WILD, c(A, A)], None, (3,)),
        ([b(A), b(WILD), b(b(A)), WILD], None, (2,)),
    ],
)
def test_coverage(patterns: list[Pattern], missing: str | None, unreachable: tuple[int, ...]) -> None:
    found = coverage(patterns, MODULE)
    assert found.missing == missing
    assert found.unreachable == unreachable


# Values of T up to a depth, as nested tuples: ("A",), ("B", v), ("C", (v, w)).
Value = tuple[object, ...]


def values(t: Type, depth: int) -> list[object]:
    if isinstance(t, TupleType):
        left, right = (values(f, depth) for f in t.fields)
        return [(x, y) for x in left for y in right]
    if depth == 0:
        return [("A",)]
    return [("A",), *(("B", v) for v in values(T, depth - 1)), *(("C", v) for v in values(PAIR, depth - 1))]


def matches(p: Pattern, v: object) -> bool:
    match p:
        case PWild() | PVar():
            return True
        case PTuple():
            assert isinstance(v, tuple)
            return all(map(matches, p.fields, v))
        case PConstructor():
            assert isinstance(v, tuple)
            return p.name == v[0] and all(map(matches, p.fields, v[1:]))


patterns = st.recursive(
    st.sampled_from([A, WILD, WILD]),
    lambda inner: st.one_of(inner.map(b), st.tuples(inner, inner).map(lambda t: c(*t))),
    max_leaves=3,
)
ALL = values(T, 3)


def depth(p: Pattern) -> int:
    match p:
        case PConstructor() | PTuple():
            return (p.__class__ is PConstructor) + max((depth(f) for f in p.fields), default=0)
        case _:
            return 0


def shallow(p: object) -> TypeGuard[Pattern]:
    return isinstance(p, PConstructor | PTuple | PVar | PWild) and depth(p) <= 3


@settings(max_examples=200, deadline=None)
@given(st.lists(patterns.filter(shallow), min_size=1, max_size=5))
def test_coverage_agrees_with_trying_every_value(clauses: list[Pattern]) -> None:
    taken = {next((n for n, p in enumerate(clauses) if matches(p, v)), None) for v in ALL}
    found = coverage(clauses, MODULE)
    assert (found.missing is not None) == (None in taken)
    assert set(found.unreachable) == set(range(len(clauses))) - taken


@pytest.mark.parametrize("step", [1, -1])
def test_rows_that_each_look_at_another_place(step: int) -> None:
    """Split column by column, they are two times as many cases with each row."""
    width = 100
    rows = [PTuple(tuple(A if n == k else WILD for n in range(width))) for k in range(width)][::step]
    assert coverage(rows, MODULE) == Coverage(f"({', '.join(['B(_)'] * width)})", ())
    assert coverage([*rows, WILD, rows[3]], MODULE) == Coverage(None, (width + 1,))


def test_an_unreachable_clause_is_a_warning() -> None:
    with pytest.warns(UnreachableClause, match=r"test:3:\d+: clause 2 of the match is never reached"):
        typed('import "prelude"\ndef @main(%x: List[int32]) { match (%x) { _ => 1, Nil => 2 } }')
