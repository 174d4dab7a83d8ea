"""Functions that are given known functions: those of sizes that are known at run time, and those that are held by others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay.transform import LambdaLift, Specialise
from relay.typing import infer, monomorphise
from tests.test_loops import MODULE, edit_distance
from tests.transform.support import run


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_a_loop_with_a_growing_row_inside_another(executor: Any) -> None:
    """The inner loop's row grows, so each of its calls is at another size, and the outer loop has it as a closure."""
    module, name = relay.load_module(MODULE), "edit_distance"
    exe: Any = relay.compile(module, entries=(name,), executor=executor, threads=1)
    rng = np.random.default_rng(0)
    for n, m in ((1, 1), (4, 7), (9, 3)):
        a, b = rng.integers(0, 3, n).astype("int32"), rng.integers(0, 3, m).astype("int32")
        wanted: Any = relay.evaluate(module, a, b, entry=name)
        assert int(exe.run(name, a, b)) == int(edit_distance(a, b)) == int(wanted)


def test_a_loop_that_hands_on_a_function_of_sizes_is_copied_once() -> None:
    """In each copy the function's own sizes have new names; it is the same function all the same."""
    module = monomorphise(infer(relay.load_module(MODULE)), ("edit_distance",))
    lifted = run(module, LambdaLift())
    assert set(run(lifted, Specialise()).functions) - set(lifted.functions) == {
        "edit_distance__outer2__edit_distance__inner1"
    }


def test_closures_of_one_function_inside_each_other_are_not_copied_without_end() -> None:
    """Each step of the recursion holds the function of the step before, which takes nothing."""
    text = """#[version = "0.0.5"]
def @go(%f: fn() -> float64, %n: int32) -> float64 {
  if (%n < 1) { %f() } else { @go(fn () -> float64 { sin(%f()) }, %n - 1) }
}
def @main(%x: float64, %n: int32) { @go(fn () -> float64 { %x }, %n) }"""
    lifted = run(monomorphise(infer(relay.parse(text)), ("main",)), LambdaLift())
    assert len(run(lifted, Specialise()).functions) < 12
    assert float(np.asarray(relay.compile(text)(0.5, np.int32(3)))) == pytest.approx(np.sin(np.sin(np.sin(0.5))))
