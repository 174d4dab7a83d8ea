"""The least cut of a graph, beside all cuts that there are."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from relay.transform.ad.least_cut import ENDLESS, SINK, SOURCE, Flow


@pytest.mark.parametrize("seed", range(20))
def test_least_cut(seed: int) -> None:
    rng = random.Random(seed)
    inner = list(range(rng.randint(0, 6)))
    nodes = [SOURCE, *inner, SINK]
    edges = [(rng.choice(nodes[:-1]), rng.choice(nodes[1:]), rng.choice((0, 1, 3, 8, 20))) for _ in range(12)]
    flow = Flow()
    for start, end, most in edges:
        flow.limit(start, end, most)
    beyond = flow.beyond()

    def cut(side: set[object]) -> int:
        return sum(most for start, end, most in edges if start not in side and end in side)

    sides = [{SINK, *some} for count in range(len(inner) + 1) for some in combinations(inner, count)]
    least = min(map(cut, sides))
    assert SOURCE not in beyond and cut(beyond) == least
    assert len(beyond) == min(len(side) for side in sides if cut(side) == least)


def test_what_must_not_be_cut() -> None:
    flow = Flow()
    for start, end, most in (
        (SOURCE, "a", 5),
        ("a", "b", ENDLESS),
        (SOURCE, "b", 3),
        ("b", SINK, ENDLESS),
        ("a", SINK, 1),
    ):
        flow.limit(start, end, most)
    assert flow.beyond() == {SINK, "a", "b"}
