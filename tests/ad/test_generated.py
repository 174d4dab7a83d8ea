"""Generated programs: derivatives against finite differences in both modes, before and after partial evaluation, and compiled.

How many programs is ``--gradient-programs`` (150 in continuous integration), from the number ``--programs-from`` on. A failure shows the
program and its arguments.
"""

from __future__ import annotations

import pytest

import relay
from relay.ir.expr import Function, Grad, If, Match, RefNew
from relay.ir.walk import post_order
from tests.ad.checks import problem
from tests.ad.generator import Example, example

ARGUMENTS = (0, 1, 2)
# One of so many is compiled too.
COMPILED = 5
# Tests that share the programs, so that they run side by side.
PARTS = 12


def check(seed: int, e: Example) -> None:
    by = ARGUMENTS if seed % 3 else (ARGUMENTS[seed // 3 % 3],)  # the others are constants then
    found = problem(relay.parse(e.text), e.args, by, seed=seed, compiled=seed % COMPILED == 0)
    assert found is None, f"program {seed}: {found}\n{e.text}\narguments: {e.args}"


@pytest.mark.parametrize("part", range(PARTS))
def test_derivatives_against_finite_differences(request: pytest.FixtureRequest, part: int) -> None:
    count, first = (int(request.config.getoption(name)) for name in ("--gradient-programs", "--programs-from"))
    for seed in range(first + part, first + count, PARTS):
        check(seed, example(seed))


def test_gradients_of_gradients() -> None:
    """Gradients inside gradients inside gradients."""
    for seed in range(1000, 1010):
        check(seed, example(seed, gradients=2))


def test_the_generator_reaches_everything() -> None:
    seen: dict[str, int] = {}
    for seed in range(150):
        module = relay.parse(example(seed).text)
        for node in (n for name, f in module.functions.items() if name != "grown" for n in post_order(f)):
            name = type(node).__name__
            if isinstance(node, Grad):
                name = "jvp" if node.forward else "grad"
            seen[name] = seen.get(name, 0) + 1
    for name in ("grad", "jvp", *(c.__name__ for c in (Function, If, Match, RefNew))):
        assert seen.get(name, 0) >= 10, (name, seen)
