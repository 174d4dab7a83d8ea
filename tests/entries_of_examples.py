"""What holds of every entry of an example module that a benchmark measures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from entries import Array, Case, arguments, differentiated, leaves

import relay


def check_results(
    path: Path, name: str, case: Case, steps: Sequence[int], by_numpy: Mapping[str, Callable[..., Array]]
) -> None:
    """For each number of steps: compiled as interpreted, and the first result as NumPy has it, where that is written down."""
    module = relay.load_module(path)
    exe = relay.compile(module, entries=(name,))
    for count in steps:
        given = arguments(case, count)
        expected = leaves(relay.evaluate(module, *given, entry=name))
        for a, b in zip(leaves(exe.run(name, *given)), expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
        if name in by_numpy:
            np.testing.assert_allclose(expected[0], by_numpy[name](*given), rtol=2e-3, atol=2e-4)


def check_gradients(path: Path, name: str, case: Case, steps: int) -> None:
    """Gradients of all tensors of floats, compiled as interpreted."""
    module = relay.load_module(path)
    given = arguments(case, steps)
    gradient: Any = relay.grad(module, differentiated(given), entry=name)
    found = relay.compile(gradient, entries=(name,)).run(name, *given)
    for a, b in zip(leaves(found), leaves(relay.evaluate(gradient, *given, entry=name)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-3 * max(1.0, float(np.abs(b).max())))
