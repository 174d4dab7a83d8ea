"""Every seeded fault of differentiation and partial evaluation is found by the checks, and only with the fault."""

from __future__ import annotations

import pytest

import relay
from tests.ad.checks import problem
from tests.ad.generator import example
from tests.ad.mutations import MUTATIONS, Mutation
from tests.ad.test_generated import ARGUMENTS
from tests.ad.test_loops import LOOPS, VERSION, arguments
from tests.ad.test_programs import HEAD, PROGRAMS, value

WITHIN = 60


def by_hand(name: str) -> str | None:
    if name in LOOPS:
        loop, shapes, by = LOOPS[name]
        return problem(relay.parse(VERSION + loop), arguments(shapes), by)
    text, given, argnums = PROGRAMS[name]
    module = relay.parse(HEAD + text)
    return problem(module, [value(module, a) for a in given], argnums)


def generated(seed: int) -> str | None:
    e = example(seed)
    return problem(relay.parse(e.text), e.args, ARGUMENTS, seed=seed)


def wrong(case: str | int) -> bool:
    try:
        return (by_hand(case) if isinstance(case, str) else generated(case)) is not None
    except Exception:
        return True


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.name)
def test_seeded_faults_are_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    for case in (mutation.first, *PROGRAMS, *LOOPS, *range(WITHIN)):
        with monkeypatch.context() as patch:
            mutation.apply(patch)
            found = wrong(case)
        if found:
            assert not wrong(case), f"{case} is wrong without the fault"
            print(f"found by {case}")
            return
    pytest.fail(f"{mutation.name}: not found")


def test_there_are_enough_faults() -> None:
    assert len({m.name for m in MUTATIONS}) >= 20
