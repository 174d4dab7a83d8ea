"""Running kernels again to keep to a memory budget: the values stay, the budget is kept, and what cannot be met is said."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import relay
from relay.ir.module import Module
from relay.loading import as_module
from relay.lower.footprint import pooled
from relay.pipeline import build
from relay.transform import FuseOps, NameDims, Rematerialise
from relay.transform.blocks import body_of
from tests.transform.support import kernels, run, same_results, typed

RNG = np.random.default_rng(3)
# What objects (not tensors' elements) of a run take at most.
OBJECTS = 20_000
LAYERS, BATCH, WIDTH = 10, 512, 16
TENSOR = BATCH * WIDTH * 4


def chain(layers: int = LAYERS, batch: object = BATCH, head: str = "def @main") -> Module:
    weights = ", ".join(f"%w{n}: Tensor[({WIDTH}, {WIDTH}), float32]" for n in range(layers))
    steps = "".join(f"let %x{n + 1} = tanh(nn.dense(%x{n}, %w{n})); " for n in range(layers))
    text = f"{head}(%x0: Tensor[({batch}, {WIDTH}), float32], {weights}) {{ {steps} mean(%x{layers} * %x{layers}) }}"
    return relay.value_and_grad(typed(text), argnums=tuple(range(1, layers + 1)))


def arguments(layers: int = LAYERS) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    shapes = [(BATCH, WIDTH), *[(WIDTH, WIDTH)] * layers]
    return [RNG.uniform(-1, 1, s).astype(np.float32) for s in shapes]


def compiled(module: Module) -> Module:
    """The module after all passes."""
    return build(as_module(module), relay.Options(cache=False, workers=1)).module


@pytest.mark.parametrize("tensors", [11, 8, 6, 5])
def test_a_run_keeps_to_its_budget(tensors: int) -> None:
    module, given, budget = chain(), arguments(), tensors * TENSOR
    plain: Any = relay.compile(module, cache=False, threads=1)
    with pytest.raises(relay.RelayError):
        plain.run("main", *given, limits=relay.Limits(memory=budget + OBJECTS))
    exe: Any = relay.compile(module, cache=False, threads=1, memory_budget=budget)
    value, gradients = exe.run("main", *given, limits=relay.Limits(memory=budget + OBJECTS))
    expected, wanted = plain(*given)
    assert np.asarray(value) == np.asarray(expected)
    for found, right in zip(gradients, wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(found), np.asarray(right))


def test_what_fits_is_left_alone() -> None:
    module = compiled(chain())
    assert Rematerialise(1 << 30)(module) is module


def test_less_memory_takes_more_kernels() -> None:
    fused = compiled(chain())
    counts = [len(kernels(Rematerialise(n * TENSOR, strict=False)(fused))) for n in (30, 10, 7, 5)]
    assert counts == sorted(counts) and counts[-1] > counts[0]


def test_the_values_stay() -> None:
    fused = compiled(chain(6))
    after = run(fused, Rematerialise(4 * TENSOR, strict=False))
    assert len(body_of(after.functions["main"]).bindings) > len(body_of(fused.functions["main"]).bindings)
    same_results(fused, after, *arguments(6))


def test_a_budget_that_cannot_be_met() -> None:
    with pytest.raises(relay.RelayError, match="bytes where 1000 are allowed") as error:
        relay.compile(chain(), cache=False, threads=1, memory_budget=1000)
    found = re.search(r"to need (\d+) bytes", str(error.value))
    assert found is not None
    relay.compile(chain(), cache=False, threads=1, memory_budget=int(found[1]))


def test_the_pass_alone_says_so_too() -> None:
    fused = run(typed("def @main(%x: Tensor[(64,), float32]) { exp(%x) }"), NameDims(), FuseOps())
    with pytest.raises(relay.RelayError, match="@main needs 256 bytes for its tensors where 100 are allowed"):
        Rematerialise(100)(fused)
    assert Rematerialise(256)(fused) is fused


def test_sizes_without_a_bound() -> None:
    with pytest.raises(relay.RelayError, match="a memory budget needs sizes"):
        relay.compile(chain(3, "n", "def @main[n: Dim]"), cache=False, threads=1, memory_budget=1 << 20)


def test_values_that_branches_read_are_kept() -> None:
    text = """def @main(%x: Tensor[(1000,), float32], %c: bool) {
      let %a = cumsum(%x, axis=0); let %b = cumsum(%a, axis=0); let %d = cumsum(%b, axis=0); let %e = cumsum(%d, axis=0);
      let %f = cumsum(%e, axis=0);
      let %r = if (%c) { %f + %a } else { %f - %b };
      (%r, %d + %r) }"""
    module = typed(text)
    fused = run(module, NameDims(), FuseOps())
    after = run(fused, Rematerialise(12_000, strict=False))
    x = RNG.uniform(-1, 1, 1000).astype(np.float32)
    for c in (True, False):
        same_results(module, after, x, np.bool_(c))


@pytest.mark.parametrize("size", [1, 64, 65, 80, 81, 128, 129, 160, 161, 1000, 4096, 100_000])
def test_what_the_pool_takes(size: int) -> None:
    taken = pooled(size)
    assert size <= taken <= max(64, size * 5 / 4 + 1)


@pytest.mark.parametrize("value", [0, -5])
def test_an_option_out_of_range(value: int) -> None:
    with pytest.raises(relay.RelayError, match="memory_budget must be a whole number of at least 1"):
        relay.Options(memory_budget=value)
