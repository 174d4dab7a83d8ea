"""Products that are added up become one: what is joined, what is not, and that the values stay."""

from __future__ import annotations

import numpy as np
import pytest

from relay.interpreter.evaluation import evaluate
from relay.ir.module import Module
from relay.transform import CommonSubexpressions, DeadCode, NameDims, SumFusion
from relay.typing import infer
from tests.transform.support import operators, run, typed

RNG = np.random.default_rng(11)


def array(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return RNG.uniform(-1, 1, shape)


def products(steps: int, rows: int, first: int = 6, second: int = 8) -> tuple[str, list[str]]:
    """Parameters, and the weight gradient of each of some steps: the product of a transposed (rows, first) and a
    (rows, second)."""
    params = ", ".join(
        f"%a{n}: Tensor[({rows}, {first}), float64], %b{n}: Tensor[({rows}, {second}), float64]" for n in range(steps)
    )
    return params, [f"nn.matmul(%a{n}, %b{n}, transpose_a=True)" for n in range(steps)]


def joined(text: str | Module, *inputs: object) -> list[str]:
    module = typed(text) if isinstance(text, str) else text
    after = run(module, NameDims(), SumFusion(), CommonSubexpressions(), DeadCode())
    np.testing.assert_allclose(
        np.asarray(evaluate(module, *inputs)), np.asarray(evaluate(after, *inputs)), rtol=1e-12, atol=1e-12
    )
    return operators(after)


@pytest.mark.parametrize("shape", ["left", "right", "balanced"])
def test_a_sum_over_steps(shape: str) -> None:
    params, terms = products(4, 1)
    if shape == "left":
        body = f"add(add(add({terms[0]}, {terms[1]}), {terms[2]}), {terms[3]})"
    elif shape == "right":
        body = f"add({terms[0]}, add({terms[1]}, add({terms[2]}, {terms[3]})))"
    else:
        body = f"add(add({terms[0]}, {terms[1]}), add({terms[2]}, {terms[3]}))"
    inputs = [array(1, k) for _ in range(4) for k in (6, 8)]
    assert joined(f"def @main({params}) {{ {body} }}", *inputs) == ["concatenate", "concatenate", "nn.matmul"]


def test_what_else_is_added_stays() -> None:
    params, terms = products(2, 2)
    text = f"def @main({params}, %r: Tensor[(6, 8), float64]) {{ add(add({terms[0]}, tanh(%r)), add({terms[1]}, %r)) }}"
    names = joined(text, *[array(2, k) for _ in range(2) for k in (6, 8)], array(6, 8))
    assert names.count("nn.matmul") == 1 and names.count("add") == 2


def test_a_product_that_is_used_twice_stays() -> None:
    params, terms = products(2, 1)
    text = f"def @main({params}) {{ let %p = {terms[0]}; multiply(add(%p, {terms[1]}), %p) }}"
    assert joined(text, *[array(1, k) for _ in range(2) for k in (6, 8)]).count("nn.matmul") == 2


def test_large_operands_are_not_copied() -> None:
    """Products whose operands are larger than their results are added as they are."""
    params, terms = products(2, 200)
    text = f"def @main({params}) {{ add({terms[0]}, {terms[1]}) }}"
    assert "concatenate" not in joined(text, *[array(200, k) for _ in range(2) for k in (6, 8)])


def test_a_batch_of_any_size() -> None:
    text = """def @main[n: Dim](%a: Tensor[(n, 64), float64], %b: Tensor[(n, 64), float64], %c: Tensor[(n, 64), float64]) {
      add(nn.matmul(%a, %b, transpose_a=True), nn.matmul(%b, %c, transpose_a=True))
    }"""
    names = joined(text, *[array(3, 64) for _ in range(3)])
    assert names == ["concatenate", "concatenate", "nn.matmul"]


def test_sums_over_rows() -> None:
    """A bias's gradient: the sums of several matrices over their rows."""
    text = """def @main(%a: Tensor[(2, 64), float64], %b: Tensor[(2, 64), float64], %c: Tensor[(3, 64), float64]) {
      add(add(sum(%a, axis=[0]), sum(%b, axis=[0])), sum(%c, axis=[0]))
    }"""
    joined(text, array(2, 64), array(2, 64), array(3, 64))


def test_outer_products() -> None:
    """The weight gradients of steps with a batch of one, as they are derived: no sum as they stand, a product together."""
    params = ", ".join(f"%x{n}: Tensor[(1, 8), float64], %d{n}: Tensor[(1, 6), float64]" for n in range(3))
    terms = [f"nn.dense.vjp1(%x{n}, %w, %d{n})" for n in range(3)]
    text = f"def @main(%w: Tensor[(6, 8), float64], {params}) {{ add(add({terms[0]}, {terms[1]}), {terms[2]}) }}"
    names = joined(text, array(6, 8), *[array(1, k) for _ in range(3) for k in (8, 6)])
    assert names.count("nn.dense.vjp1") == 1 and "add" not in names


def test_weights_that_are_constants() -> None:
    """The states of two children by their weights, for all rows of a level: what lies below each other is made by the compiler."""
    text = """def @main[n: Dim](%g: Tensor[(n, 1, 30), float64], %l: Tensor[(n, 1, 8), float64], %r: Tensor[(n, 1, 8), float64],
        %u: Tensor[(30, 8), float64], %v: Tensor[(30, 8), float64]) {
      add.batched(add.batched(%g, nn.dense.batched(%l, %u, mask=[1, 0]), mask=[1, 1]), nn.dense.batched(%r, %v, mask=[1, 0]), mask=[1, 1])
    }"""
    module = infer(typed(text).bind({"u": array(30, 8), "v": array(30, 8)}))
    names = joined(module, array(3, 1, 30), array(3, 1, 8), array(3, 1, 8))
    assert names == ["concatenate", "nn.dense.batched", "add"]


def test_a_constant_beside_a_variable_stays() -> None:
    text = """def @main(%l: Tensor[(64, 8), float64], %r: Tensor[(64, 8), float64],
        %u: Tensor[(30, 8), float64], %v: Tensor[(30, 8), float64]) {
      add(nn.dense(%l, %u), nn.dense(%r, %v))
    }"""
    module = infer(typed(text).bind({"u": array(30, 8)}))
    assert joined(module, array(64, 8), array(64, 8), array(30, 8)).count("nn.dense") == 2


def test_rows_and_rows_of_rows_do_not_lie_side_by_side() -> None:
    """The gradients of one weight that meets the states of a loop and, at once, the inputs of all steps."""
    text = """
    def @main[t: Dim](%x: Tensor[(t, 1, 150), float64], %g: Tensor[(t, 1, 140), float64], %w: Tensor[(140, 150), float64],
        %y: Tensor[(t, 150), float64], %d: Tensor[(t, 140), float64]) {
      add(nn.dense.vjp1(%y, %w, %d), nn.dense.vjp1(%x, %w, %g))
    }"""
    inputs = array(9, 1, 150), array(9, 1, 140), array(140, 150), array(9, 150), array(9, 140)
    assert joined(text, *inputs).count("nn.dense.vjp1") == 2


@pytest.mark.parametrize("rows", ["n", "9"])
def test_rows_of_an_operand_that_tells_only_its_type(rows: str) -> None:
    """The cotangent of a cotangent demands as many rows of what it does not read as of what is joined."""
    tensor = f"Tensor[({rows}, 32), float64]"
    calls = [f"nn.dense.vjp0.vjp2.vjp1(%a, %w, %g, %a{k}, %g{k})" for k in range(4)]
    params = ", ".join(f"%{name}: {tensor}" for name in ("a", "g", *(f"{c}{k}" for k in range(4) for c in "ag")))
    head = "def @main[n: Dim]" if rows == "n" else "def @main"
    text = f"{head}({params}, %w: Tensor[(32, 32), float64]) {{ {' + '.join(calls)} }}"
    inputs = [*(array(9, 32) for _ in range(10)), array(32, 32)]
    assert joined(text, *inputs) == ["concatenate", "concatenate", "nn.dense.vjp0.vjp2.vjp1"]
