"""Reduced precision: what the pass narrows and what it leaves, that interpreter and kernels agree on the result, and that
the error is what rounding allows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay.interpreter.evaluation import evaluate
from relay.ir.diagnostics import RelayError
from relay.ir.module import Module
from relay.transform import BatchStructure, FixInvariants
from relay.transform.precision import Precision, ReducePrecision, quantised
from tests.transform.support import operators, run, typed

Array = npt.NDArray[np.float32]
RNG = np.random.default_rng(3)
PRECISIONS: list[Precision] = ["bf16", "int8-weights"]


def normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def layer(weight: Array, product: str = "nn.dense(%x, %w)") -> Module:
    rows, columns = weight.shape
    depth = rows if "nn.matmul(%x, %w)" in product else columns
    text = f"""def @main[n: Dim](%x: Tensor[(n, {depth}), float32], %w: Tensor[({rows}, {columns}), float32]) {{
      nn.relu({product})
    }}"""
    return typed(text).bind({"w": weight})


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("product", ["nn.dense(%x, %w)", "nn.matmul(%x, %w)", "nn.matmul(%x, %w, transpose_b=True)"])
def test_compiled_and_interpreted_agree(precision: Precision, product: str, tmp_path: Path) -> None:
    weight = normal(90, 70)
    module = layer(weight, product)
    after = run(module, ReducePrecision(precision))
    expected = ["cast", product.split("(")[0]] if precision == "bf16" else [product.split("(")[0], "multiply"]
    assert operators(after) == [*expected, "nn.relu"]
    exe = relay.compile(module, precision=precision, cache_dir=tmp_path)
    depth = 90 if product == "nn.matmul(%x, %w)" else 70
    for rows in (1, 5, 40):
        x = normal(rows, depth)
        got, meant, exact = np.asarray(exe(x)), np.asarray(evaluate(after, x)), np.asarray(evaluate(module, x))
        np.testing.assert_allclose(got, meant, atol=2e-5 * np.abs(meant).max())
        # Rounding errors of sums of random terms: 2^-9 for each operand of bfloat16, half a step for the integers.
        assert 0 < np.abs(got - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_levels_of_a_structure(precision: Precision) -> None:
    """Their products are of all nodes with one weight: they stayed float32 without a word."""
    module = typed("""
    type Tree { Leaf(Tensor[(1, 70), float32]), Node(Tree, Tree), }
    def @f(%t: Tree, %w: Tensor[(70, 70), float32]) -> Tensor[(1, 70), float32] {
      match (%t) { Leaf(%x) => %x, Node(%a, %b) => tanh(nn.dense(@f(%a, %w) - @f(%b, %w), %w)) }
    }
    def @main(%t: Tree, %w: Tensor[(70, 70), float32]) -> Tensor[(1, 70), float32] { @f(%t, %w) }""").bind(
        {"w": normal(70, 70) / 8}
    )
    after = run(module, FixInvariants(), BatchStructure(), ReducePrecision(precision))
    assert "bfloat16" in str(after) if precision == "bf16" else "int8" in str(after)
    tree = module.adt("Tree")
    leaves = [tree.Leaf(normal(1, 70)) for _ in range(4)]
    trees = [tree.Node(tree.Node(leaves[0], leaves[1]), leaves[2]), tree.Node(leaves[3], leaves[1])]
    exe = relay.compile(module, precision=precision, threads=1)
    for value, together in zip(trees, exe.run_batch("main", [(t,) for t in trees]), strict=True):
        got, meant, exact = (np.asarray(v) for v in (exe(value), evaluate(after, value), evaluate(module, value)))
        np.testing.assert_array_equal(got, np.asarray(together))
        np.testing.assert_allclose(
            got, meant, atol=2e-3 if precision == "bf16" else 2e-5
        )  # a level's results are rounded again
        assert 0 < np.abs(got - exact).max() < 0.06


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_left_alone(precision: Precision) -> None:
    infinite = normal(80, 80)
    infinite[3, 4] = np.inf
    for module in (layer(normal(8, 8)), layer(infinite), typed("def @main(%x: Tensor[(9, 80), float64]) { %x }")):
        after = run(module, ReducePrecision(precision))
        assert after.text() == run(module).text()
    given = typed("def @main(%x: Tensor[(9, 80), float32], %w: Tensor[(80, 80), float32]) { nn.dense(%x, %w) }")
    assert operators(run(given, ReducePrecision(precision))) == ["nn.dense"], "a weight given at run time"
    assert operators(run(layer(normal(80, 80)), ReducePrecision("float32"))) == ["nn.dense", "nn.relu"]


def test_a_weight_used_twice_is_narrowed_once() -> None:
    module = typed(
        """def @main(%x: Tensor[(3, 80), float32], %w: Tensor[(80, 80), float32]) {
             nn.dense(nn.dense(%x, %w), %w)
           }"""
    ).bind({"w": normal(80, 80)})
    text = run(module, ReducePrecision("bf16")).text()
    assert text.count("meta[relay.Constant][1]") == 0, "one constant"


@pytest.mark.parametrize("channel", [0, 1])
def test_quantised(channel: int) -> None:
    weight = normal(50, 70) * np.expand_dims(10.0 ** RNG.uniform(-30, 30, (50, 70)[channel]), 1 - channel)
    weight[7] = 0
    integers, scale = quantised(weight, channel)
    back = integers * np.expand_dims(scale.astype(np.float64), 1 - channel)
    assert (np.abs(back - weight) <= 0.5001 * np.expand_dims(scale.astype(np.float64), 1 - channel)).all()
    assert integers.min() >= -127 and np.isfinite(scale).all() and (scale > 0).all()


def test_narrow_weights_are_narrow_in_the_program(tmp_path: Path) -> None:
    module = layer(normal(400, 400))
    sizes = {}
    for precision in ("float32", "bf16", "int8-weights"):
        path = tmp_path / f"{precision}.rlx"
        relay.compile(module, precision=precision, cache=False).save(path)
        sizes[precision] = path.stat().st_size
    assert sizes["bf16"] < 0.7 * sizes["float32"] and sizes["int8-weights"] < 0.5 * sizes["float32"]


def test_an_unknown_precision() -> None:
    with pytest.raises(RelayError, match="unknown precision 'int3'"):
        relay.Options(precision="int3")
