"""Unification of dims and types, sub-shaping, joins: laws that hold for all of them."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.ir.diagnostics import ShapeError
from relay.ir.dim import ANY, Dim, DimVar, as_dim, as_var, dim_add, dim_mul, dim_substitute, dim_var
from relay.ir.types import (
    AdtType,
    ConstructorDef,
    FuncType,
    Kind,
    RefType,
    TensorType,
    TupleType,
    Type,
    TypeDef,
    TypeVar,
    scalar,
)  # fmt: skip
from relay.typing.check import consistent
from relay.typing.kinds import Variance, variances
from relay.typing.solver import Mismatch, Mode, Solver
from relay.typing.substitution import map_type

A, B = TypeVar("A"), TypeVar("B")
TYPES = {
    "List": TypeDef("List", (A,), (ConstructorDef("Cons", (A, AdtType("List", (A,))), "List", 0),)),
    "Cell": TypeDef("Cell", (A,), (ConstructorDef("Cell", (RefType(A),), "Cell", 0),)),
    "Sink": TypeDef("Sink", (A, B), (ConstructorDef("Sink", (FuncType((A,), B),), "Sink", 0),)),
    "Wrap": TypeDef("Wrap", (A,), (ConstructorDef("Wrap", (AdtType("Cell", (A,)),), "Wrap", 0),)),
    "Ping": TypeDef("Ping", (A,), (ConstructorDef("Ping", (AdtType("Pong", (A,)),), "Ping", 0),)),
    "Pong": TypeDef("Pong", (A,), (ConstructorDef("Pong", (AdtType("Ping", (A,)), A), "Pong", 0),)),
    "Foreign": TypeDef("Foreign", (A,), (), extern=True),
}  # fmt: skip
VARIANCES = variances(TYPES)
N, M = dim_var("n"), dim_var("m")


def tensor(*shape: Dim) -> TensorType:
    return TensorType(shape, "float32")


def solver() -> Solver:
    return Solver(VARIANCES)


def unknown(s: Solver, name: str = "d") -> DimVar:
    return s.fresh_dim(DimVar(name))


def test_variances() -> None:
    assert VARIANCES == {
        "List": (Variance.CO,),
        "Cell": (Variance.IN,),
        "Sink": (Variance.IN, Variance.CO),
        "Wrap": (Variance.IN,),
        "Ping": (Variance.CO,),
        "Pong": (Variance.CO,),
        "Foreign": (Variance.IN,),
    }


dims = st.one_of(st.integers(0, 4), st.sampled_from([N, M, dim_add(N, 1), dim_mul(2, M), ANY]))
tensors = st.lists(dims, min_size=1, max_size=2).map(lambda s: tensor(*s))
types = st.recursive(
    tensors,
    lambda t: st.one_of(
        st.tuples(t, t).map(lambda f: TupleType(f)),
        t.map(lambda e: AdtType("List", (e,))),
        t.map(lambda e: AdtType("Cell", (e,))),
        t.map(RefType),
        st.tuples(t, t).map(lambda f: FuncType((f[0],), f[1])),
    ),
    max_leaves=4,
)


def agrees(found: Type, expected: Type, mode: Mode) -> bool:
    try:
        solver().relate(found, expected, mode)
    except Mismatch:
        return False
    return True


@settings(max_examples=300, deadline=None)
@given(types, types)
def test_the_modes_are_ordered(a: Type, b: Type) -> None:
    """What is equal is a sub-shape; what is a sub-shape is gradually fine; what is that is consistent."""
    assert agrees(a, a, Mode.EQUAL)
    assert agrees(a, b, Mode.EQUAL) == (a == b)
    if agrees(a, b, Mode.EQUAL):
        assert agrees(a, b, Mode.STATIC)
    if agrees(a, b, Mode.STATIC):
        assert agrees(a, b, Mode.GRADUAL)
    if agrees(a, b, Mode.GRADUAL):
        assert consistent(a, b)
    if agrees(a, b, Mode.STATIC) and agrees(b, a, Mode.STATIC):
        assert a == b


@settings(max_examples=300, deadline=None)
@given(types, types, types)
def test_sub_shaping_is_transitive(a: Type, b: Type, c: Type) -> None:
    if agrees(a, b, Mode.STATIC) and agrees(b, c, Mode.STATIC):
        assert agrees(a, c, Mode.STATIC)


@st.composite
def similar(draw: st.DrawFn) -> tuple[Type, Type]:
    """Two types that differ in dims at most."""
    both = draw(types)
    variables = {v: draw(st.tuples(dims, dims)) for v in (as_var(N), as_var(M)) if v is not None}
    left, right = ({v: pair[n] for v, pair in variables.items()} for n in (0, 1))
    return (
        cast(Type, map_type(both, lambda _: None, left.get)),
        cast(Type, map_type(both, lambda _: None, right.get)),
    )


@settings(max_examples=300, deadline=None)
@given(similar())
def test_a_join_is_above_both(pair: tuple[Type, Type]) -> None:
    try:
        joined = solver().join(*pair)
    except Mismatch:
        # Only where dims must be the same: inside references and functions.
        assert not agrees(*pair, Mode.EQUAL)
        return
    for t in pair:
        solver().relate(t, joined, Mode.STATIC)


linear = st.tuples(st.integers(-4, 4).filter(bool), st.integers(-4, 4), st.integers(0, 6))


@settings(max_examples=200, deadline=None)
@given(linear)
def test_linear_equations_are_solved_exactly(t: tuple[int, int, int]) -> None:
    """``c*d + k == c*v*n + k`` gives ``d == v*n``: substituting back makes both sides equal."""
    c, k, v = t
    s = solver()
    d = unknown(s)
    left = dim_add(dim_mul(c, as_dim(d)), k)
    right = dim_add(dim_mul(c * v, N), k)
    s.relate_dims(left, right, Mode.GRADUAL)
    assert s.resolve_dim(left) == right
    assert s.resolve_dim(as_dim(d)) == dim_mul(v, N)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (lambda d: dim_mul(2, d), 5),  # no whole solution
        (lambda d: dim_add(d, 4), 3),  # no dim is negative
        (lambda d: dim_add(dim_mul(2, d), dim_mul(2, N)), 3),
    ],
)
def test_equations_without_solution(left: object, right: int) -> None:
    s = solver()
    assert callable(left)
    with pytest.raises(Mismatch):
        s.relate_dims(left(as_dim(unknown(s))), right, Mode.GRADUAL)


def test_an_equation_waits_for_its_second_unknown() -> None:
    s = solver()
    d, e = unknown(s), unknown(s, "e")
    product = dim_mul(as_dim(d), as_dim(e))
    s.relate_dims(product, 12, Mode.GRADUAL)
    assert s.resolve_dim(product) == product
    s.relate_dims(as_dim(d), 3, Mode.GRADUAL)
    s.queue.drain()
    s.relate_dims(as_dim(e), 4, Mode.GRADUAL)
    s.queue.drain()
    assert s.resolve_dim(product) == 12
    s.queue.finish(s.unknowns)


def test_an_equation_that_waited_can_fail() -> None:
    s = solver()
    d, e = unknown(s), unknown(s, "e")
    s.place = (None, "argument 1 of @f")
    s.relate_dims(dim_mul(as_dim(d), as_dim(e)), 12, Mode.GRADUAL)
    s.place = (None, "argument 2 of @f")
    s.relate_dims(as_dim(d), 3, Mode.GRADUAL)
    s.relate_dims(as_dim(e), 5, Mode.GRADUAL)
    with pytest.raises(ShapeError, match="argument 1 of @f: 15 where 12 is expected"):
        s.queue.drain()


def test_only_relations_with_news_are_retried() -> None:
    s = solver()
    a, b = s.fresh("a"), s.fresh("b")
    tries: list[str] = []

    def relation(name: str, v: TypeVar) -> None:
        def attempt(last: bool) -> tuple[TypeVar, ...] | None:
            tries.append(name)
            return (v,) if v not in s.types else None

        s.queue.defer(attempt, lambda: name, None, (v,), (v,))

    for n in range(10):
        relation(f"a{n}", a)
        relation(f"b{n}", b)
    s.relate(a, scalar("int32"), Mode.EQUAL)
    s.queue.drain()
    assert sorted(tries) == sorted(f"a{n}" for n in range(10))


def test_kinds_of_unknowns() -> None:
    s = solver()
    shape = s.fresh("s", Kind.SHAPE)
    s.relate(TensorType(shape, "float32"), tensor(2, N), Mode.GRADUAL)
    assert s.resolve(shape) == (2, N)
    with pytest.raises(Mismatch, match="expected a Shape, found the BaseType float32"):
        s.bind(s.fresh("t", Kind.SHAPE), "float32")


def test_polymorphic_function_types_agree_up_to_names() -> None:
    a, b = TypeVar("A"), TypeVar("B")
    f, g = FuncType((a,), a, (a,)), FuncType((b,), b, (b,))
    solver().relate(f, g, Mode.EQUAL)
    assert consistent(f, g)
    with pytest.raises(Mismatch):
        solver().relate(f, FuncType((b,), scalar("int32"), (b,)), Mode.EQUAL)


def test_resolving_follows_chains() -> None:
    s = solver()
    variables = [s.fresh(f"t{n}") for n in range(2000)]
    for v, w in pairwise(variables):
        s.relate(v, w, Mode.EQUAL)
    s.relate(variables[-1], scalar("bool"), Mode.EQUAL)
    assert s.head(variables[0]) == scalar("bool")
    assert s.resolve(variables[0]) == scalar("bool")


def test_substituting_keeps_what_is_unchanged() -> None:
    t = TupleType((tensor(N), RefType(tensor(M, 2))))
    assert solver().resolve(t) is t
    assert dim_substitute(N, lambda _: None) is N
