"""Operators of two unknown sizes that nobody has: what they compute, of sizes at the ends of vectors and of none, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import relay
from relay import te
from relay.op import registry
from tests.generator.sized_definitions import INTEGERS, SizedDefinition


@pytest.fixture
def declared(request: pytest.FixtureRequest) -> Iterator[SizedDefinition]:
    registry.operator("sized.op")(request.param.operator())
    yield request.param
    registry.remove("sized.op")


def program(drawn: SizedDefinition, result: str) -> relay.Module:
    return relay.parse(f'#[version = "0.0.5"]\ndef @main[n: Dim, m: Dim]({drawn.types()}) {{ {result} }}')


def leaves(value: object) -> list[np.ndarray]:
    return [np.asarray(v) for v in (value if isinstance(value, tuple) else (value,))]


DRAWN = [SizedDefinition(n, ("float32", *INTEGERS)[n % 6]) for n in range(12)]


@pytest.mark.parametrize("declared", DRAWN, indirect=True, ids=str)
def test_what_it_computes(declared: SizedDefinition) -> None:
    module, rng = program(declared, "sized.op(%x, %y)"), np.random.default_rng(0)
    exe = relay.compile(module)
    for n, m in ((1, 1), (0, 3), (4, 0), (17, 4), (5, 33)):
        given = declared.arguments(n, m, rng)
        expected = np.asarray(relay.evaluate(module, *given))
        for checked in (False, True):  # what is read and not used shows where memory is looked at only
            exe.check_memory = checked
            found = np.asarray(exe(*given))
            assert found.dtype == expected.dtype
            np.testing.assert_allclose(found, expected, rtol=1e-4 if declared.dtype == "float32" else 0, atol=1e-4)


@pytest.mark.parametrize(
    "declared", [SizedDefinition(n, "float64") for n in (24, 25, 27, 28, 29)], indirect=True, ids=str
)
def test_its_derivative(declared: SizedDefinition) -> None:
    module, rng = program(declared, "sum(tanh(sized.op(%x, %y)))"), np.random.default_rng(1)
    gradient = relay.grad(module, argnums=(0, 1))
    exe = relay.compile(gradient)
    for n, m in ((1, 1), (0, 3), (4, 0), (7, 5)):
        given = declared.arguments(n, m, rng)
        slopes = leaves(relay.evaluate(gradient, *given))
        for a, b in zip(leaves(exe(*given)), slopes, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-9)
        moves = [rng.standard_normal(a.shape) for a in given]
        ends = [
            float(np.asarray(relay.evaluate(module, *(a + h * v for a, v in zip(given, moves, strict=True)))))
            for h in (1e-6, -1e-6)
        ]
        said = sum(float((s * v).sum()) for s, v in zip(slopes, moves, strict=True))
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(said, rel=1e-4, abs=1e-5)


def test_a_diagonal_of_no_rows_has_a_derivative() -> None:
    """What is read at one column only is made for that column alone, which has an element where the tensor has none."""

    def squares(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        k, again = te.reduce_axis(2 * y.shape[0]), te.reduce_axis(x.shape[0] + 1)  # type: ignore[operator]
        value = te.select((k < te.size(x.shape[0])) & (k < 1), x[k, k], 0.0)
        return te.compute((), lambda: te.sum(value * value, (again, k)))

    registry.operator("sized.diagonal")(squares)
    try:
        module = relay.parse("""#[version = "0.0.5"]
        def @main[n: Dim, m: Dim](%x: Tensor[(n, 1), float64], %y: Tensor[(m,), float64]) { sized.diagonal.vjp0(%x, %y, 1f64) }""")
        exe = relay.compile(module)
        for n in (0, 1, 3):
            given = np.ones((n, 1)), np.ones(3)
            assert np.array_equal(np.asarray(exe(*given)), np.asarray(relay.evaluate(module, *given)))
    finally:
        registry.remove("sized.diagonal")
