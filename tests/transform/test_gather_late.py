"""Matrices that rows choose are taken by each product that reads them, and the values are the same."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay.interpreter.evaluation import evaluate
from relay.ir.diagnostics import RelayError
from relay.ir.module import Module
from relay.transform.gather_late import GatherLate
from tests.transform.support import operators, run, typed

Array = npt.NDArray[np.float32]
RNG = np.random.default_rng(7)
HEAD = """def @main[n: Dim](%x: Tensor[(n, 24), float32], %g: Tensor[(n,), int64], %w: Tensor[(5, 24, 24), float32])
    -> Tensor[(n, 24), float32] { let %t = take(%w, %g, axis=0); """
PRODUCTS = {
    "there and back": """let %h = einsum((%x, %t), equation="nk,nkj->nj"); einsum((%h, %t), equation="nj,nkj->nk")""",
    "through one tuple": """let %both = (%x, %t);
      einsum(%both, equation="nk,nkj->nj") * einsum(%both, equation="nj,nkj->nk")""",
    "in a branch": """let %h = einsum((%x, %t), equation="nk,nkj->nj");
      if (sum(%h) > 0f) { einsum((%h, %t), equation="nk,nkj->nj") } else { %h }""",
    "of rows": "squeeze(nn.batch_matmul(expand_dims(%x, axis=1), %t), axis=[1])",
}
OTHERS = {
    "no product": "%x + sum(%t * 2f, axis=[1])",
    "rows of a table": """let %s = take(%x, %g, axis=0); einsum((%s, %s), equation="ni,nj->nij") * 0f + %t; %s""",
}


def takes(module: Module) -> int:
    return operators(module).count("take")


def given(n: int) -> tuple[Array, npt.NDArray[np.int64], Array]:
    x, w = (RNG.standard_normal(s).astype(np.float32) for s in ((n, 24), (5, 24, 24)))
    return x, RNG.integers(0, 5, n), w


@pytest.mark.parametrize("form", [*PRODUCTS, *OTHERS])
def test_each_product_takes_for_itself(form: str) -> None:
    module = typed(HEAD + {**PRODUCTS, **OTHERS}[form] + " }")
    after = run(module, GatherLate())
    assert (takes(after) > takes(module)) == (form in PRODUCTS), str(after)
    exe = relay.compile(module, cache=False, threads=1)
    for n in (0, 1, 7, 40):
        args = given(n)
        meant = np.asarray(evaluate(module, *args))
        np.testing.assert_array_equal(np.asarray(evaluate(after, *args)), meant)
        np.testing.assert_allclose(np.asarray(exe(*args)), meant, atol=2e-4, rtol=1e-4)


def test_a_table_that_may_be_empty() -> None:
    """A copy fails where what it is a copy of has failed."""
    text = (
        HEAD.replace("[n: Dim]", "[n: Dim, m: Dim]").replace("(5, 24, 24)", "(m, 24, 24)") + PRODUCTS["there and back"]
    )
    module = typed(text + " }")
    after = run(module, GatherLate())
    assert takes(after) > takes(module), str(after)
    exe = relay.compile(module, cache=False, threads=1)
    for n, m in ((0, 0), (7, 1), (40, 5)):
        x, w = (RNG.standard_normal(s).astype(np.float32) for s in ((n, 24), (m, 24, 24)))
        args = x, RNG.integers(0, max(m, 1), n), w
        meant = np.asarray(evaluate(module, *args))
        np.testing.assert_array_equal(np.asarray(evaluate(after, *args)), meant)
        np.testing.assert_allclose(np.asarray(exe(*args)), meant, atol=2e-4, rtol=1e-4)
    x, g, w = given(3)
    for fails in (lambda *a: evaluate(module, *a), lambda *a: evaluate(after, *a), exe):
        with pytest.raises(RelayError):
            fails(x, g, w[:0])


@pytest.mark.parametrize("equation", ["nk,nkj->nj", "nk,njk->nj"])
def test_gradients_of_rows_that_choose(equation: str) -> None:
    """Both ways read the table, and the table's own gradient reads no matrix."""
    text = f"""def @main[n: Dim](%x: Tensor[(n, 24), float32], %g: Tensor[(n,), int64], %w: Tensor[(5, 24, 24), float32]) -> float32 {{
      mean(tanh(einsum((%x, take(%w, %g, axis=0)), equation="{equation}")))
    }}"""
    module = relay.value_and_grad(typed(text), argnums=(0, 2))
    exe = relay.compile(module, cache=False, threads=1)
    for n in (1, 7, 40):
        args = given(n)
        (value, slopes), (meant, wanted) = (
            exe(*args),
            cast(tuple[Array, tuple[Array, Array]], relay.evaluate(module, *args)),
        )
        for a, b in ((value, meant), *zip(slopes, wanted, strict=True)):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-5)
