"""Records are dataclasses in all but the guard of their fields."""

from __future__ import annotations

import pickle
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar

import pytest

from relay.ir.record import record


@record(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2
    rest: list[int] = field(default_factory=list, compare=False)
    seen: str = field(default="", repr=False, compare=False)
    count: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class Twin:
    x: int
    y: int = 2
    rest: list[int] = field(default_factory=list, compare=False)
    seen: str = field(default="", repr=False, compare=False)
    count: ClassVar[int] = 3


@record(slots=True, eq=False)
class Base:
    a: int
    made: int = field(init=False)
    kept: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.made = self.a + 1

    def total(self) -> int:
        return self.a + self.made


@record(slots=True, eq=False)
class Derived(Base):
    b: Any = None
    named: int = field(kw_only=True, default=7)

    def __repr__(self) -> str:
        return "derived"

    def total(self) -> int:
        return super().total() + self.named

    @property
    def first(self) -> int:
        return super().total()


@record(slots=True)
class One:
    value: Any


@pytest.mark.parametrize("args", [(1,), (1, 3), (1, 3, [4]), (1, 3, [4], "t")])
def test_objects_are_as_those_of_a_dataclass(args: tuple[Any, ...]) -> None:
    own, twin = Point(*args), Twin(*args)
    other: object = twin
    assert repr(own) == repr(twin).replace("Twin", "Point")
    assert asdict(own) == asdict(twin) and replace(own, y=9).y == 9
    assert [f.name for f in fields(own)] == [f.name for f in fields(twin)]
    assert hash(own) == hash(twin) == hash(Point(*args[:2])) and own == Point(*args[:2]) != Point(5)
    assert own != other and not hasattr(own, "__dict__")
    again = pickle.loads(pickle.dumps(own))
    assert again == own and again.rest == own.rest and again.seen == own.seen
    match own:
        case Point(x, y):
            assert (x, y) == (own.x, own.y)


def test_factories_make_one_for_each_object() -> None:
    assert Point(1).rest is not Point(1).rest


def test_arguments_are_those_of_a_dataclass() -> None:
    wrong: list[dict[str, Any]] = [{}, {"x": 1, "z": 2}]
    for given in wrong:
        with pytest.raises(TypeError):
            Point(**given)
        with pytest.raises(TypeError):
            Twin(**given)
    with pytest.raises(TypeError):
        Base(1, 2)  # type: ignore[call-arg]
    assert Base.__init__.__qualname__ == "Base.__init__"


def test_a_derived_record() -> None:
    one = Derived(1, "b", named=4)
    assert (one.a, one.made, one.kept, one.b, one.named) == (1, 2, [], "b", 4)
    assert one.total() == 7 and one.first == 3
    assert repr(one) == "derived" and repr(Base(1)) == "Base(a=1, made=2, kept=[])"
    assert one != Derived(1, "b", named=4) and len({one, one}) == 1
    with pytest.raises(TypeError):
        Derived(1, "b", 4)  # type: ignore[call-arg]


def test_what_is_compared_and_not_frozen_has_no_hash() -> None:
    nan = float("nan")
    assert One(nan) == One(nan)  # the same object, as in tuples
    with pytest.raises(TypeError, match="unhashable"):
        hash(One(1))


def test_a_record_that_holds_itself_is_printed() -> None:
    one = One(None)
    one.value = [one]
    assert repr(one) == "One(value=[...])"
