"""Polynomials of sizes have one form, however they are made, and the value that they say."""

from __future__ import annotations

import itertools

import pytest

from relay.ir.dim import (
    ANY,
    Dim,
    DimVar,
    SymDim,
    as_dim,
    dim_add,
    dim_bounds,
    dim_evaluate,
    dim_floordiv,
    dim_mul,
    dim_of_terms,
    dim_sub,
    dim_sum,
)

M, N = DimVar("m"), DimVar("n", 1)
VALUES = {M: 5, N: 7}
DIMS: list[Dim] = [
    0,
    1,
    -3,
    as_dim(M),
    dim_of_terms({((M, 1),): 2, (): 3}),
    dim_of_terms({((M, 1), (N, 2)): -1, ((N, 1),): 4, (): -3}),
]
DIMS.append(dim_floordiv(dim_add(as_dim(N), 1), 2))


@pytest.mark.parametrize(("a", "b"), list(itertools.product(DIMS, repeat=2)))
def test_sums_and_products(a: Dim, b: Dim) -> None:
    x, y = dim_evaluate(a, VALUES), dim_evaluate(b, VALUES)
    for found, wanted in ((dim_add(a, b), x + y), (dim_sub(a, b), x - y), (dim_mul(a, b), x * y)):
        assert dim_evaluate(found, VALUES) == wanted
        if isinstance(
            found, SymDim
        ):  # the one form: equal, with an equal hash, to what its terms make in another order
            again = dim_of_terms(dict(reversed(found.terms)))
            assert found == again and hash(found) == hash(again)
    assert dim_add(a, b) == dim_add(b, a) and dim_mul(a, b) == dim_mul(b, a)
    assert dim_sub(dim_add(a, b), b) == a


def test_what_is_not_known_stays_so() -> None:
    for d in DIMS:
        assert dim_add(ANY, d) is ANY is dim_add(d, ANY) and dim_mul(ANY, d) == (0 if d == 0 else ANY)


def test_a_quotient_by_a_size_times_the_size_is_at_most_what_was_divided() -> None:
    m, n = as_dim(M), as_dim(N)
    whole = dim_mul(m, dim_floordiv(n, m))
    assert dim_bounds(dim_sub(n, whole))[0] == 0
    assert dim_bounds(dim_sub(dim_add(n, dim_mul(2, n)), dim_sub(dim_mul(2, whole), 3)))[0] == 4  # n is at least 1
    assert dim_bounds(dim_sub(m, whole))[0] is None
    # Nothing of what may be negative: -1 // 2 * 2 is less than -1, and of none, 0, more.
    short = dim_sub(n, 3)
    assert dim_bounds(dim_sub(short, dim_mul(m, dim_floordiv(short, m))))[0] is None


@pytest.mark.parametrize("parts", list(itertools.product(DIMS, repeat=3)))
def test_sums_of_many(parts: tuple[Dim, ...]) -> None:
    assert dim_sum(parts) == dim_add(dim_add(parts[0], parts[1]), parts[2])
    assert dim_sum([*parts, ANY]) is ANY
