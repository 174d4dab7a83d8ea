"""Under which choices an expression computes a node."""

from __future__ import annotations

from relay import te
from relay.te.index import Indices
from relay.te.scalar import Axis, Load, Scalar, select
from relay.te.ways import Way, ways

X = te.placeholder("x", (9,), "int64")
AXIS = Axis("i", 9)
C, D = (te.const(n, "int64") < AXIS for n in (3, 5))


def to(load: Load, root: Scalar) -> list[Way]:
    return [way for found, way in ways(root, {id(load)}) if found is load]


def test_what_another_way_says_is_none() -> None:
    x = X[AXIS]
    assert to(x, select(C, x + 1, x - 1)) == [()]
    assert to(x, select(C, x, 0) + select(C, select(D, x, 0), 1)) == [((C, True),)]
    assert to(x, select(C, select(D, x, 0), 0) + select(C, 0, select(D, x, 0))) == [((D, True),)]
    assert to(x, select(C, select(C, 0, x), 0)) == []
    assert sorted(map(len, to(x, select(C, x, 0) + select(D, 0, x)))) == [1, 1]


def test_there_are_as_many_as_say_something_of_their_own() -> None:
    """Not as many as there are paths, which double with every choice."""
    x = X[AXIS]
    value: Scalar = x
    for n in range(60):
        value = select(value < n, value + 1, value - 1)
    assert to(x, value) == [()]
    value = x
    for n in range(60):
        value = select(n > AXIS, value + 1, value - 1)
    assert to(x, value) == [()]


def test_more_than_enough_of_them_are_always_gone() -> None:
    x, conditions = X[AXIS], [X[n] > 0 for n in range(8)]
    value: Scalar = te.const(0, "int64")
    for condition in conditions:
        value = value + select(condition, x, 0)
    assert len(to(x, value)) == 8
    assert [way for found, way in ways(value, {id(x)}, 7) if found is x] == [()]


def test_a_part_reads_inside_by_what_it_asks_itself() -> None:
    """What is asked around a part does not count when it is computed elsewhere; what it asks itself does, of every index."""
    n = te.const(9, "int64")
    at = te.cast(X[AXIS], "int64") * 2 - 3
    table = te.placeholder("t", (9, 9), "float32")
    inside = (at >= 0) & (at < n)
    read = Indices().reads_inside
    assert read(select(inside, table[at, AXIS], 0.0))
    assert read(select(~((at < 0) | (at >= n)), table[at, AXIS] + table[AXIS, at], 0.0))
    assert read(select(at.equal(4), table[at, at], 0.0))
    assert not read(select(at >= 0, table[at, AXIS], 0.0))
    assert not read(select(inside, table[at, X[AXIS] + 1], 0.0))  # the second is asked for elsewhere
    assert not read(select(inside, te.tanh(table[at, AXIS]), table[AXIS, at]))
    assert not read(select(table[AXIS, at] > 0.0, 1.0, 0.0))
