"""Dataclasses that are frozen for type checkers only are otherwise what frozen ones are."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, fields, replace

import pytest

from relay.ir.record import record


@record(frozen=True, slots=True)
class Size:
    rows: int
    columns: int = 1


@record(frozen=True, slots=True, eq=False)
class Node:
    name: str


@dataclass(frozen=True, slots=True)
class Frozen:
    rows: int
    columns: int = 1


def test_fields_decide_equality_and_hashes() -> None:
    assert Size(2) == Size(2, 1) != Size(2, 3)
    assert hash(Size(2, 3)) == hash(Frozen(2, 3)) and len({Size(2), Size(2, 1), Size(3)}) == 2
    assert repr(Size(2)) == repr(Frozen(2)).replace("Frozen", "Size")


def test_identity_decides_where_fields_do_not() -> None:
    one, other = Node("a"), Node("a")
    assert one != other and len({one, other}) == 2


def test_copies_and_what_is_read_back_are_equal() -> None:
    size = Size(2, 3)
    assert copy.copy(size) == size == pickle.loads(pickle.dumps(size)) and copy.copy(size) is not size
    assert replace(size, rows=4) == Size(4, 3) and [f.name for f in fields(size)] == ["rows", "columns"]


def test_there_is_no_place_for_other_fields() -> None:
    with pytest.raises(AttributeError):
        Node("a").other = 1  # type: ignore[attr-defined]
