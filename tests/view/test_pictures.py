"""Statistics, pictures, and what is measured of the machine."""

from __future__ import annotations

import xml.etree.ElementTree
from pathlib import Path

import numpy as np
import pytest

from relay.options import Options
from relay.view.limits import LEVELS, machine_limits
from relay.view.svg import Axis, Picture, covering
from relay.view.timing import interleaved, summary


def test_interval_of_the_median() -> None:
    """In repeated samples the interval holds the true median at least about 95 times in 100."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        found = summary(list(rng.exponential(size=31)))
        held += found.low <= np.log(2) <= found.high
        assert found.low <= found.median <= found.high
    assert 0.93 <= held / 400 < 1


def test_turns() -> None:
    order: list[str] = []
    found = interleaved({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 0.0, least=3, pause=0.0)
    assert found["a"].turns == found["b"].turns == 3
    assert order.index("b") < len(order) - order[::-1].index("a")


def test_axes() -> None:
    assert Axis("x", 1, 1000, True).ticks() == [1, 10, 100, 1000]
    assert Axis("x", 1, 1000, True).place(10) == pytest.approx(1 / 3)
    assert covering("x", [3.0, 7.0]).ticks() == [0, 2, 4, 6]


def test_a_picture_is_xml() -> None:
    picture = Picture("a < b", covering("x", [1.0, 100.0], True), covering("y", [2.0]))
    picture.line([(1, 1), (100, 2)], "red", "<line>")
    picture.point(10, 1, "blue", "tip & tip")
    picture.bar(1, 5, 2, "green")
    root = xml.etree.ElementTree.fromstring(picture.text())
    assert root.tag.endswith("svg") and len(root) > 10


def test_limits_are_kept(tmp_path: Path) -> None:
    options = Options(cache_dir=tmp_path)
    found = machine_limits(1, options)
    assert found == machine_limits(1, options)
    assert found.flops > 1e9
    assert found.bandwidth["L1"] > found.bandwidth["DRAM"] > 1e8
    assert [found.level(found.bytes[name]) for name in LEVELS] == list(LEVELS)
    assert found.floor(found.flops, 1) == pytest.approx(1.0)
