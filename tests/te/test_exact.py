"""What has one result bit by bit, whoever computes it: NumPy makes such constants as compiled code would."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pytest

import relay
import relay.pipeline
from relay import te
from relay.codegen.target import host_target
from relay.ir.expr import Function
from relay.options import Options
from relay.pipeline import Runner
from relay.plan.graph import te_graph
from relay.te.evaluate import evaluate
from relay.te.exact import is_exact, work
from relay.transform import ExpandCompositions, FoldConstants, Pipeline, ToBlocks
from tests.generator import program

Array = npt.NDArray[np.generic]


def over(dtype: str, element: Callable[[te.Scalar, te.Scalar], te.Scalar]) -> te.Tensor:
    x = te.placeholder("x", (4, 5), dtype)
    return te.compute((4, 5), lambda i, j: element(x[i, j], x[j % 4, i]), "y")


def total(dtype: str, reduction: Callable[[te.Scalar, te.Axis], te.Scalar]) -> te.Tensor:
    x = te.placeholder("x", (4, 5), dtype)
    k = te.reduce_axis(5)
    return te.compute((4,), lambda i: reduction(x[i, k], k), "y")


def running(dtype: str) -> te.Tensor:
    x = te.placeholder("x", (4, 5), dtype)
    return te.scan((4, 5), 1, lambda *_: 0, lambda s, *i: s + x[i], dtype)


@pytest.mark.parametrize(
    ("definition", "exact"),
    [
        (over("int8", lambda a, b: a * b + a // b), True),
        (over("int64", lambda a, b: te.maximum(a % b, b)), True),
        (over("float32", lambda a, b: a * b + a / b - te.sqrt(b)), True),
        (over("float32", lambda a, b: te.select(a < b, te.floor(a), -b)), True),
        (over("float32", lambda a, b: te.cast(a, "int32") + te.cast(te.isnan(b), "int32")), True),
        (over("float32", lambda a, b: te.maximum(a, b)), False),  # of equal zeros one has a sign
        (over("float32", lambda a, b: te.tanh(a) * b), False),
        (over("float16", lambda a, b: a * b), True),
        (over("float16", lambda a, b: a * b + a), False),  # the product is rounded, or not
        (over("float16", lambda a, b: te.select(a < b, a * b, a + b)), True),
        (over("float16", lambda a, b: te.cast(te.isinf(a * b), "int32")), False),  # which it is where it is rounded
        (over("float16", lambda a, b: te.cast(a * b, "float32")), False),
        (over("int32", lambda a, b: te.cast(a, "float16") * te.cast(b, "float16")), False),
        (total("int32", te.sum), True),
        (total("float32", te.sum), False),
        (total("float32", te.max), False),
        (total("float32", te.argmax), True),
        (total("bool", te.all), True),
        (running("int32"), True),
        (running("float32"), False),
    ],
)
def test_what_is_exact(definition: te.Tensor, exact: bool) -> None:
    assert is_exact([definition]) is exact


def test_a_narrow_product_that_another_stage_reads_is_not_exact() -> None:
    product = over("float16", lambda a, b: a * b)
    wide = te.compute((4, 5), lambda i, j: te.cast(product[i, j], "float32"), "wide")
    assert is_exact([product]) and not is_exact([wide]) and not is_exact([product, wide])


def test_work_is_of_all_stages_with_what_is_reduced_and_of_steps() -> None:
    x = te.placeholder("x", (4, 5), "int32")
    y = te.compute((4, 5), lambda i, j: x[i, j] + 1, "y")
    k = te.reduce_axis(5)
    assert work([te.compute((7, 4), lambda _, i: te.sum(y[i, k], k), "z")]) == 20 + 7 * 4 * 5
    assert work([running("int32")]) > 5 * 100


def bits(array: Array) -> tuple[str, tuple[int, ...], bytes]:
    """What is compared: any nan is as good as another."""
    return array.dtype.name, array.shape, np.where(array != array, np.zeros_like(array), array).tobytes()


def test_exact_constants_have_the_bits_of_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what generated programs compute from constants."""
    monkeypatch.setattr(relay.pipeline, "is_exact", lambda outputs: False)
    compiled = Runner(host_target(), Options(cache=False))
    compared = 0

    def both(primitive: Function, arrays: Sequence[Array]) -> Sequence[Array]:
        nonlocal compared
        graph = te_graph(primitive)
        found = evaluate(graph.outputs, dict(zip(graph.inputs, arrays, strict=True)))
        if is_exact(graph.outputs):
            compared += 1
            assert [*map(bits, compiled.primitive(primitive, arrays))] == [*map(bits, found)], primitive
        return found

    for number in range(60):
        typed = relay.infer_type(program(number).module)
        Pipeline([ToBlocks(), ExpandCompositions(), FoldConstants(both)])(typed)
    assert compared > 60


def test_little_exact_work_needs_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[str] = []
    compiled = Runner._executable

    def counted(self: Runner, *given: object) -> object:
        built.append("kernel")
        return compiled(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(Runner, "_executable", counted)
    for fn, kernels in (("negative", 0), ("tanh", 1)):
        source = f"""#[version = "0.0.5"]
        def @main(%x: Tensor[(4), float32]) -> Tensor[(4), float32] {{ %x + {fn}(2f * 3f) }}"""
        built.clear()
        relay.pipeline.build(relay.infer_type(relay.parse(source)), Options(cache=False))
        assert len(built) == kernels
