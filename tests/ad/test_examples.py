"""The gradients of the example programs: through their recursion, against finite differences, compiled as interpreted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.module import Module
from tests.ad.checks import problem

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def double(name: str) -> Module:
    """An example with float64 in the place of float32."""
    text = relay.load_module(EXAMPLES / name).text().replace("float32", "float64")
    return relay.parse(re.sub(r"(?<=\d)f\b", "f64", text))


def normal(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape) * 0.5


@pytest.mark.parametrize("length", [0, 1, 5])
def test_rnn(length: int) -> None:
    d, h = 4, 3
    xs = [normal(1, d) * (n + 1) for n in range(length)]
    args = (xs, normal(1, h), normal(h, d), normal(h, h), normal(h))
    assert problem(double("rnn.relay"), args, (0, 1, 2, 3, 4), compiled=True) is None


def test_treelstm() -> None:
    d, h = 3, 5
    module = double("treelstm.relay")
    t = module.adt("Tree2")
    tree = t.Node(t.Node(t.Leaf(normal(1, d)), t.Leaf(normal(1, d) + 1)), t.Leaf(normal(1, d) - 1))
    args = (tree, normal(1, h), normal(1, d), normal(4 * h, d), normal(4 * h, h), normal(4 * h))
    assert problem(module, args, (0, 1, 3, 4, 5), compiled=True) is None


def test_newton() -> None:
    """A loop that runs as often as the data say."""
    module = double("newton.relay")
    a = np.array([2.0, 3.0, 5.0])
    roots: Any = relay.evaluate(relay.grad(module), a, np.float64(1e-9))
    np.testing.assert_allclose(roots, 0.5 / np.sqrt(a), rtol=1e-6)
    compiled = relay.compile(relay.grad(module), cache=False)(a, np.float64(1e-9))
    np.testing.assert_allclose(np.asarray(compiled), roots)
