"""Code for other machines: run here where this one can, and built in any case."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay.codegen.target import parse_target, runs_here
from relay.pipeline import build
from tests.ad.generator import example
from tests.generator import program
from tests.generator.compare import difference

TARGETS = [
    pytest.param(name, marks=pytest.mark.skipif(not runs_here(parse_target(name)), reason="not on this machine"))
    for name in (
        "x86-64",
        "x86-64-v2",
        "ivybridge",
        "x86-64-v3",
        "x86-64-v4",
        "x86-64-v4 -mattr=+avx512bf16,+avx512vnni",
    )
]
PRECISIONS = ("float32", "bf16", "int8-weights")
TEXT = """#[version = "0.0.5"]
def @main[n: Dim](%x: Tensor[(n, 75), float32], %w: Tensor[(70, 75), float32], %b: Tensor[(70,), float32],
                  %v: Tensor[(33, 70), float32]) {
  let %h = nn.gelu(nn.dense(%x, transpose(transpose(%w))) + %b);
  (%h, nn.softmax(nn.dense(%h, %v)))
}
"""


def network() -> relay.Module:
    """Two products with constant weights, one of them made by operations that are folded."""
    random = np.random.default_rng(0)
    shapes = {"w": (70, 75), "b": (70,), "v": (33, 70)}
    return relay.parse(TEXT).bind({n: (random.standard_normal(s) / 8).astype(np.float32) for n, s in shapes.items()})


@pytest.mark.parametrize("target", TARGETS)
def test_generated_programs(target: str) -> None:
    for seed in range(500, 506):
        p = program(seed)
        module = relay.infer_type(p.module)
        exe = relay.compile(module, target=target, executor="aot" if seed % 3 == 0 else "vm")
        different = difference(relay.evaluate(module, *p.args), exe(*p.args))
        assert different is None, f"seed {seed}: {different}"


@pytest.mark.parametrize("target", TARGETS)
def test_gradients(target: str) -> None:
    for seed in (700, 701):
        e = example(seed)
        module = relay.value_and_grad(relay.parse(e.text), argnums=(0, 1, 2))
        found = relay.compile(module, target=target)(*e.args)
        different = difference(relay.evaluate(module, *e.args), found)
        assert different is None, f"seed {seed}: {different}"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("target", TARGETS)
def test_precisions(target: str, precision: str) -> None:
    module, limit = network(), 2e-5 if precision == "float32" else 4e-2
    exe = relay.compile(module, target=target, precision=precision, check_memory=True)
    for rows in (0, 1, 5, 17, 40):
        x = np.random.default_rng(rows).standard_normal((rows, 75)).astype(np.float32)
        wanted: Any = relay.evaluate(module, x)
        for want, found in zip(wanted, exe(x), strict=True):
            assert np.abs(np.asarray(want) - np.asarray(found)).max(initial=0) <= limit


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("target", ["aarch64", "neoverse-v1", "sapphirerapids"])
def test_for_other_machines(target: str, precision: str) -> None:
    """What is constant is computed here, by code for this machine. Kernels that call what no kernel may are refused."""
    made = build(network(), relay.Options(target=target, precision=precision, cache=False, workers=1))
    assert made.image.triple == parse_target(target).triple
    assert not any("transpose" in k.name for k in made.image.kernels)
