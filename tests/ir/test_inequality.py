"""What is said to follow holds for every value; and what kernels need is found."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from relay.ir.dim import (
    Dim,
    DimVar,
    as_dim,
    as_var,
    dim_bounds,
    dim_evaluate,
    dim_floordiv,
    dim_max,
    dim_min,
    dim_mod,
    dim_mul,
    dim_sub,
    dim_var,
)
from relay.ir.dim_total import dim_total
from relay.ir.inequality import Facts

LARGEST = 4


def size(name: str, lo: int = 0) -> Any:
    """A variable that the checker of types lets add up."""
    return dim_var(name, lo)


def _random_dim(rng: random.Random, variables: list[Dim], depth: int = 2) -> Dim:
    if depth == 0 or rng.random() < 0.3:
        return rng.choice([*variables, *variables, rng.randint(-2, 6)])
    a, b = _random_dim(rng, variables, depth - 1), _random_dim(rng, variables, depth - 1)
    match rng.randrange(7):
        case 0 | 1:
            return a + b  # type: ignore[operator]
        case 2:
            return dim_sub(a, b)
        case 3:
            return dim_mul(a, rng.choice([2, 3, variables[0]]))
        case 4:
            return dim_min(a, b) if rng.random() < 0.5 else dim_max(a, b)
        case 5:
            return dim_floordiv(a, rng.choice([2, 3, variables[1]]))
        case _:
            return dim_mod(a, rng.choice([2, 3]))


def _value(dim: Dim, env: dict[DimVar, int]) -> int | None:
    try:
        return dim_evaluate(dim, env)
    except ZeroDivisionError:
        return None


def test_a_dim_that_divides_by_zero_has_a_value_where_kernels_need_one() -> None:
    rng = random.Random(5)
    variables = [size("a"), size("b"), size("c", 1)]
    known: list[DimVar] = [v for v in map(as_var, variables) if v is not None]
    for _ in range(60):
        dim = _random_dim(rng, variables, 3)
        total = dim_total(dim)
        for values in itertools.product(range(3), repeat=3):
            env = dict(zip(known, values, strict=True))
            if values[2] > 0:
                assert _value(dim, env) in (None, dim_evaluate(total, env)), dim
    a, b = variables[:2]
    env = {known[0]: 3, known[1]: 0}
    assert [dim_evaluate(dim_total(d), env) for d in (dim_floordiv(a, b), dim_mod(a, b))] == [0, 0]
    assert dim_total(dim_floordiv(a, 2)) == dim_floordiv(a, 2)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_wrong_follows(seed: int) -> None:
    rng = random.Random(seed)
    yes = 0
    for _ in range(40):
        variables: list[Dim] = [dim_var(name, 0, LARGEST) for name in "nijk"]
        names = [as_var(v) for v in variables]
        facts = [_random_dim(rng, variables) for _ in range(rng.randint(0, 3))]
        facts += [dim_sub(dim_sub(variables[0], 1), v) for v in variables[1 : rng.randint(1, 4)]]
        known = Facts()
        for fact in facts:
            known.assume(fact)
        goals = [_random_dim(rng, variables) for _ in range(3)]
        # Goals near what holds: combinations of facts.
        goals += [dim_sub(facts[0] + rng.choice(facts), rng.randint(-1, 1))] if facts else []  # type: ignore[operator]
        for goal in goals:
            known.know(goal)
            if not known.implies(goal):
                continue
            yes += 1
            for values in itertools.product(range(LARGEST + 1), repeat=len(names)):
                env = {v: x for v, x in zip(names, values, strict=True) if v is not None}
                holds = [_value(f, env) for f in facts]
                if all(h is not None and h >= 0 for h in holds):
                    found = _value(goal, env)
                    assert found is None or found >= 0, (facts, goal, env)
    assert yes > 10


def test_loops_over_blocks() -> None:
    facts = Facts()
    n, i, j = map(size, "nij")
    blocks: Any = dim_floordiv(n + 15, 16)
    facts.assume(blocks - 1 - i)
    facts.assume(dim_sub(dim_min(16, n - 16 * i), 1 + j))
    assert facts.implies(n - 1 - (16 * i + j))
    assert not facts.implies(n - 2 - (16 * i + j))
    assert facts.implies(16 * i + j)


def test_products_of_sizes() -> None:
    facts = Facts()
    n, m, i, j = map(size, "nmij")
    facts.assume(n - 1 - i)
    facts.assume(m - 1 - j)
    assert facts.implies(n * m - 1 - (i * m + j))
    assert not facts.implies(n * m - 1 - (i * m + j + 1))
    assert facts.implies(n - 1)


def test_cases() -> None:
    facts = Facts()
    n, x = size("n", 1), as_dim(DimVar("x", -100, 100))
    clipped = dim_max(dim_min(x, n - 1), 0)
    assert facts.implies(clipped)
    assert facts.implies(dim_sub(n - 1, clipped))
    assert not facts.implies(dim_sub(n - 2, clipped))


def test_facts_are_forgotten() -> None:
    facts = Facts()
    n, i = map(size, "ni")
    with facts.within():
        facts.assume(n - 1 - i)
        assert facts.implies(n - 1 - i)
        assert facts.implies(n - 1)
    assert not facts.implies(n - 1 - i)
    assert not facts.implies(n - 1)


def test_a_fact_of_a_power_of_an_extreme() -> None:
    """Of which nothing follows for the operands: assuming it came to no end."""
    n = as_dim(DimVar("n"))
    largest = dim_max(n, 4)
    facts = Facts()
    facts.assume(dim_sub(100, dim_mul(largest, largest)))
    facts.assume(dim_sub(9, n))
    assert facts.implies(dim_sub(9, largest))
    assert not facts.implies(dim_sub(3, n))


def test_a_quotient_is_bounded_by_its_dividend() -> None:
    """Two halves of n are n or one less, whatever n is: what is not covered by a bound of each term."""
    n = size("n")
    half: Any = dim_floordiv(n, 2)
    rounded: Any = dim_floordiv(n + 1, 2)
    third: Any = dim_floordiv(n, 3)
    last: Any = dim_floordiv(n + 2, 3)
    assert dim_bounds(2 * half - n) == (-1, 0)
    assert dim_bounds(2 * rounded - n) == (0, 1)
    assert dim_bounds(rounded - half) == (0, 1)
    assert dim_bounds(3 * third - 3 * last) == (-4, 0)


def test_a_sum_with_an_extreme_is_bounded_by_cases() -> None:
    n = size("n")
    last: Any = dim_sub(n, dim_max(n - 1, 0))
    assert dim_bounds(last) == (0, 1)
    assert dim_bounds(dim_sub(dim_min(n, 1), last))[1] == 0


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_for_all_values(seed: int) -> None:
    pick = random.Random(seed)
    n, m = size("n"), size("m")
    for _ in range(20):
        dim: Any = pick.randint(-3, 3)
        for _ in range(pick.randint(1, 4)):
            above = pick.randint(1, 3) * n + pick.randint(0, 2) * m + pick.randint(-2, 3)
            term = pick.choice(
                [
                    *(n, m, dim_floordiv(above, pick.randint(2, 4)), dim_floordiv(2 * dim + n, 3)),
                    *(dim_min(above, m), dim_max(dim, n), dim_max(above, dim)),
                ]
            )
            dim = pick.randint(-4, 4) * term + dim
        low, high = dim_bounds(dim)
        for values in itertools.product(range(8), repeat=2):
            value = dim_evaluate(dim, dict(zip((as_var(n), as_var(m)), values, strict=True)))  # type: ignore[arg-type]
            assert (low is None or low <= value) and (high is None or value <= high)
