"""Drawn programs of views: compiled for any sizes, and for ones that become known on the way, they give or refuse what the
interpreter does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import relay
from tests.generator.compare import difference
from tests.generator.views import Views

SIZES = ({"n": 3, "m": 2}, {"n": 5, "m": 1}, {"n": 0, "m": 2}, {"n": 1, "m": 16}, {"n": 2, "m": 0}, {"n": 17, "m": 4})


def outcome(run: Callable[..., object], *args: object) -> object:
    try:
        return run(*args)
    except relay.RelayError:
        return "refused"


def same(expected: object, found: object) -> str | None:
    if isinstance(expected, str) or isinstance(found, str):
        return None if expected is found or expected == found else f"{expected} and {found}"
    return difference(expected, found)


@pytest.mark.programs(24)
def test_views(seed: int) -> None:
    views = Views(seed)
    try:
        module = relay.parse(views.text(None))
    except relay.RelayError as e:
        # Borders that no size allows.
        assert "padding of axis" in str(e), views.text(None)
        return
    exe = relay.compile(module, threads=1)
    for number, sizes in enumerate(SIZES):
        args = views.arguments(sizes)
        expected = outcome(relay.evaluate, module, *args)
        assert (wrong := same(expected, outcome(exe, *args))) is None, f"{sizes}: {wrong}\n{module.text()}"
        if number == seed % len(SIZES):
            found = outcome(run_known, views.text(sizes), *args)
            assert (wrong := same(expected, found)) is None, f"known sizes: {wrong}\n{views.text(sizes)}"


def run_known(text: str, *args: object) -> object:
    return relay.compile(text, threads=1)(*args)


def interpreted(text: str, *args: object) -> object:
    return relay.evaluate(relay.parse(text), *args)


def test_some_programs_run_and_some_are_refused() -> None:
    drawn = [Views(seed) for seed in range(12)]
    ends = [outcome(interpreted, v.text(None), *v.arguments(sizes)) for v in drawn for sizes in SIZES[:3]]
    refused = sum(isinstance(e, str) for e in ends)
    assert 0 < refused < len(ends) // 2
