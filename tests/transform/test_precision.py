"""Reduced precision: what the pass narrows and what it leaves, that interpreter and kernels agree on the result, and that
the error is what rounding allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay import te
from relay.cli.inspect import VIEWS
from relay.interpreter.evaluation import evaluate
from relay.ir.diagnostics import RelayError
from relay.ir.module import Module
from relay.op import registry
from relay.pipeline import build
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
    name = product.split("(")[0]
    expected = ["cast", f"{name}.widened"] if precision == "bf16" else [f"{name}.widened.scaled"]
    assert operators(after) == [*expected, "nn.relu"]
    exe = relay.compile(module, precision=precision, cache_dir=tmp_path)
    depth = 90 if product == "nn.matmul(%x, %w)" else 70
    for rows in (1, 5, 40):
        x = normal(rows, depth)
        got, meant, exact = np.asarray(exe(x)), np.asarray(evaluate(after, x)), np.asarray(evaluate(module, x))
        np.testing.assert_allclose(got, meant, atol=2e-5 * np.abs(meant).max())
        # Rounding errors of sums of random terms: 2^-9 for each operand of bfloat16, half a step for the integers.
        assert 0 < np.abs(got - exact).max() < 0.02 * np.abs(exact).max()


# Ways to write products with a weight: the call, and the weight's shape.
FORMS = {
    "three axes": ("nn.dense(expand_dims(%x, axis=0), %w)", (80, 72)),
    "transposed": ("nn.matmul(transpose(%x), transpose(%w), transpose_a=True)", (150, 72)),
    "batch": (
        "nn.batch_matmul(repeat(expand_dims(%x, axis=0), repeats=3, axis=0), %w, transpose_b=True)",
        (3, 80, 72),
    ),
    "heads": ('einsum((%x, %w), equation="nd,hde->hne")', (3, 72, 30)),
    "heads side by side": ('einsum((%x, %w), equation="nd,dhe->nhe")', (72, 3, 30)),
    "heads added up": ('einsum((reshape(%x, newshape=[-1, 4, 18]), %w), equation="nhe,hed->nd")', (4, 18, 80)),
    "their axes apart": ('einsum((reshape(%x, newshape=[-1, 18, 4]), %w), equation="neh,hed->nd")', (4, 18, 130)),
    "groups": ('einsum((reshape(%x, newshape=[-1, 4, 18]), %w), equation="nge,geo->ngo")', (4, 18, 70)),
    "halves": (
        "let %p = split(%w, indices_or_sections=2, axis=0); nn.dense(%x, %p.0) + nn.relu(nn.dense(%x, %p.1))",
        (160, 72),
    ),
    "an embedding": ('nn.dense(take(%w, cast(argmax(%x, axis=[1]), dtype="int64"), axis=0), %w)', (90, 72)),
    "a row's expert": (
        'einsum((%x, take(%w, cast(argmax(%x, axis=[1]), dtype="int64") / 20i64, axis=0)), equation="nd,nde->ne")',
        (4, 72, 70),
    ),
    "an expert's halves": (
        'let %p = split(take(%w, cast(argmax(sum(%x, axis=[0])), dtype="int64") / 20i64, axis=0), '
        "indices_or_sections=2, axis=1); nn.matmul(%x, %p.1) * nn.matmul(%x, %p.0)",
        (4, 72, 60),
    ),
    "a convolution, channels last": (
        'nn.conv1d(expand_dims(%x, axis=0), %w, padding=[2, 1], data_layout="NWC", kernel_layout="WIO")',
        (4, 72, 130),
    ),
    "patches": (
        'nn.conv2d(reshape(%x, newshape=[-1, 6, 4, 3]), %w, strides=[2, 2], data_layout="NHWC", kernel_layout="HWIO")',
        (2, 2, 3, 400),
    ),
    "an operator of one's own": ("tests.precision_own(%x, %w)", (72, 2, 40)),
}


@pytest.fixture(scope="module", autouse=True)
def own_operator() -> Iterator[None]:
    @relay.operator("tests.precision_own")
    def own(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        """Sums over the reversed rows of ``x``."""
        depth = w.shape[0]
        k = te.reduce_axis(depth)
        shape = (x.shape[0], w.shape[1], w.shape[2])
        return te.compute(shape, lambda i, a, j: te.sum(w[k, a, j] * x[i, te.size(depth) - 1 - k], k))

    yield
    registry.remove("tests.precision_own")


def narrow_as_meant(module: Module, precision: Precision, inputs: Callable[[int], Array], error: float) -> None:
    """Products of a module are narrow, the kernels compute what the narrowed program says, on any number of threads, and that is near
    what the module says."""
    made = build(module, relay.Options(precision=precision, cache=False, workers=1))
    (step,) = (s for s in made.steps if isinstance(s.transformation, ReducePrecision))
    assert isinstance(step.transformation, ReducePrecision)
    assert ".widened" in str(step.after) and not step.transformation.kept(step.before)
    one, two = (relay.Executable.from_bytes(made.image.to_bytes(), threads) for threads in (1, 2))
    native = relay.compile(module, precision=precision, executor="aot", cache=False)
    for rows in (1, 6, 45):
        x = inputs(rows)
        got, meant, exact = np.asarray(one(x)), np.asarray(evaluate(step.after, x)), np.asarray(evaluate(module, x))
        np.testing.assert_array_equal(got, np.asarray(two(x)))
        np.testing.assert_array_equal(got, np.asarray(native(x)))
        np.testing.assert_allclose(got, meant, atol=2e-5 * np.abs(meant).max())
        assert 0 < np.abs(got - exact).max() < error * np.abs(exact).max()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("form", FORMS)
def test_forms_of_products(form: str, precision: Precision) -> None:
    call, shape = FORMS[form]
    module = typed(f"""def @main[n: Dim](%x: Tensor[(n, 72), float32], %w: Tensor[{shape}, float32]) {{ {call} }}""")
    narrow_as_meant(module.bind({"w": normal(*shape)}), precision, lambda rows: normal(rows, 72), 0.03)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("product", ["nn.dense(%x, {})", "nn.matmul(%x, {})"])
def test_layers_of_a_stack(product: str, precision: Precision) -> None:
    """A layer's weights are taken of those of all layers, in a loop over these: they stayed float32 without a word."""
    call = product.format("take(%w, %i, axis=0)")
    module = typed(f"""import prelude
    def @main[n: Dim](%x: Tensor[(n, 72), float32], %w: Tensor[(3, 72, 72), float32]) {{
      @for(0i64, 3i64, fn (%i: int64, %x: Tensor[(n, 72), float32]) -> Tensor[(n, 72), float32] {{
        %x + 0.1f * nn.relu({call})
      }}, %x)
    }}""")
    made = build(module.bind({"w": normal(3, 72, 72) / 8}), relay.Options(precision=precision, cache=False, workers=1))
    (step,) = (s for s in made.steps if isinstance(s.transformation, ReducePrecision))
    assert ".widened" in str(step.after)
    exe = relay.Executable.from_bytes(made.image.to_bytes(), 1)
    for rows in (1, 6, 45):
        x = normal(rows, 72)
        got, meant = np.asarray(exe(x)), np.asarray(evaluate(step.after, x))
        exact = np.asarray(evaluate(step.before, x))
        # A layer's results are rounded again for the next one.
        np.testing.assert_allclose(got, meant, atol=2e-3 if precision == "bf16" else 2e-5)
        assert 0 < np.abs(got - exact).max() < 0.02 * np.abs(exact).max()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("loss", "weight"),
    [
        ("nn.dense(%x, %w)", (70, 72)),
        ('nn.conv1d(expand_dims(%x, axis=0), %w, padding=[1, 1], data_layout="NWC", kernel_layout="WIO")', (3, 72, 70)),
    ],
)
def test_gradients_of_few_rows(loss: str, weight: tuple[int, ...], precision: Precision) -> None:
    """At run-time sizes of 0 and 1 the operators have other expressions, which are no sums: the interpreter refused the scales."""
    text = f"""def @main[n: Dim](%x: Tensor[(n, 72), float32], %w: Tensor[{weight}, float32]) {{ sum(tanh({loss})) }}"""
    module = relay.value_and_grad(typed(text).bind({"w": normal(*weight) / 8}), 0)
    made = build(module, relay.Options(precision=precision, cache=False, workers=1))
    (step,) = (s for s in made.steps if isinstance(s.transformation, ReducePrecision))
    assert str(step.after).count(".widened") == 2
    exe = relay.Executable.from_bytes(made.image.to_bytes(), 1)
    for rows in (0, 1, 2, 9):
        x = normal(rows, 72)
        found, expected = exe(x), evaluate(step.after, x)
        assert isinstance(found, tuple) and isinstance(expected, tuple)
        for got, meant in zip(found, expected, strict=True):
            np.testing.assert_allclose(np.asarray(got), np.asarray(meant), atol=1e-2 if precision == "bf16" else 2e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_stays_says_why(precision: Precision) -> None:
    reasons = {
        "nn.dense(%x, tanh(%x))": "its weight is no constant, nor taken of one",
        'einsum((%w, %x), equation="ok,nk->on")': "the last axis of its result is the data's, not the weight's",
        "nn.dense(%x, %w)": None,
        "nn.dense(%x, %infinite)": "its weight has elements that are not finite",
    }
    infinite = normal(72, 72)
    infinite[3, 4] = np.inf
    for call, why in reasons.items():
        module = typed(f"""def @main(%x: Tensor[(90, 72), float32], %w: Tensor[(72, 72), float32],
          %infinite: Tensor[(72, 72), float32]) {{ {call} }}""").bind({"w": normal(72, 72), "infinite": infinite})
        kept = ReducePrecision(precision).kept(run(module))
        assert [found.startswith(why or "") for _, found in kept] == ([] if why is None else [True]), (call, kept)
    title, text = VIEWS["precision"](module, relay.Options(precision=precision, cache=False, workers=1))[1]
    assert title == "float32" and "not finite" in text


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
    integers, scale = quantised(weight, (1 - channel,))
    back = integers * scale.astype(np.float64)
    assert (np.abs(back - weight) <= 0.5001 * scale.astype(np.float64)).all()
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
