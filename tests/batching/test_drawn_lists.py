"""Drawn programs over lists and lists of lists, and their gradients: compiled, and as one of many requests, they give what the
interpreter gives, for empty lists and rows of zeros too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from tests.ad.checks import plain
from tests.generator.compare import difference
from tests.generator.lists import over_lists
from tests.generator.source import Choices, Seeded

BY = ((3, 4), (2, 3, 4), (0, 3), (0, 1, 2, 3, 4))


def requests(seed: int, width: int) -> list[list[Any]]:
    """Arguments with lists of no item, one, two, and of some that are one array."""
    random = np.random.default_rng(seed)

    def rows(count: int) -> list[Any]:
        return [random.normal(size=(1, width)) for _ in range(count)]

    shared = [random.normal(size=(width, width)) * 0.7 for _ in range(2)] + [np.zeros((1, width))]
    (same,) = rows(1)
    lists: list[tuple[list[Any], list[list[Any]]]] = [
        ([], []),
        (rows(1), [[]]),
        (rows(2), [rows(2), [], rows(1)]),
        ([same, *rows(2), same], [[same], rows(3)]),
    ]
    return [[items, nested, *rows(1), *shared] for items, nested in lists]


@pytest.mark.programs(5)
def test_values_and_gradients(seed: int) -> None:
    text = over_lists(Choices(Seeded(seed)))
    whole = relay.value_and_grad(relay.parse(text), BY[seed % len(BY)])
    given = requests(seed, (1, 2, 3, 5)[seed % 4])
    exe = relay.compile(whole, threads=1)
    with np.errstate(all="ignore"):  # 0 / 0 is among what is compared
        expected = [relay.evaluate(whole, *args) for args in given]
    for args, wanted, answer in zip(given, expected, exe.run_batch("main", given), strict=True):
        for how, found in (("compiled", exe(*args)), ("as one of many requests", answer)):
            assert (wrong := difference(wanted, plain(found), how)) is None, f"{wrong}\n{text}\n{args}"


def test_what_is_drawn() -> None:
    """Every form is in some program."""
    texts = [over_lists(Choices(Seeded(seed))) for seed in range(60)]
    for form in (
        "@foldl(",
        "@foldr(",
        "@map(",
        "@filter(",
        "@rev(",
        "@concat(",
        "@walk",
        "match (",
        "if (",
        "let ",
        "@length(",
    ):
        assert sum(form in text.partition("def @main")[2] for text in texts) >= 3, form
    for text in texts:
        relay.parse(text)
