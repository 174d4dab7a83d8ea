"""Reductions of much to a few elements, whose parts threads share."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay.ir.dim import DimVar, as_dim
from relay.ir.expr import Expr
from relay.loop.printer import kernel_text
from relay.plan.kernel_plan import make_plan
from tests.plan.harness import HOST, Maker, check, primitive, random, tasks, tensor

V = DimVar("n")
N = as_dim(V)


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_kinds(kind: str) -> None:
    def build(m: Maker, x: Expr) -> Expr:
        return m(kind, m("tanh", x) if kind != "prod" else m("cos", m("multiply", x, x)))

    kernel = check(primitive([tensor((130, 512))], build)).kernel
    assert max(tasks(kernel, 2)) >= 4


@pytest.mark.parametrize(
    ("shape", "axes"), [((3, 70000), (1,)), ((70000, 4), (0,)), ((1021, 257), (0, 1)), ((8, 64, 64, 4), (0, 1, 2))]
)
def test_a_few_elements(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    """Along memory and across it; an axis that no part divides."""
    kernel = check(primitive([tensor(shape)], lambda m, x: m("mean", m("multiply", x, x), axis=axes))).kernel
    assert max(tasks(kernel, 2)) >= 4


def test_an_unknown_number_of_rows() -> None:
    fn = primitive([tensor((N, 2000))], lambda m, x: m("sum", m("exp", x)))
    kernel = check(fn, *({V: n} for n in (0, 1, 2, 50))).kernel
    assert max(tasks(kernel, 2, {V: 100})) > 1


@pytest.mark.parametrize("shape", [(64, 64), (65537,), (16, 100, 100)])
def test_little_stays_whole(shape: tuple[int, ...]) -> None:
    """So does what is many elements, and what cannot be divided."""
    axes = (1, 2) if len(shape) == 3 else None
    kernel = make_plan(primitive([tensor(shape)], lambda m, x: m("sum", x, axis=axes)), HOST).kernel
    assert "_parts" not in kernel_text(kernel)


def test_no_bit_depends_on_the_number_of_threads() -> None:
    text = '#[version = "0.0.5"]\ndef @main(%x: Tensor[(300, 512), float32]) { sum(exp(%x)) }'
    x = random((300, 512), "float32")
    one, *others = (float(np.asarray(relay.compile(text, threads=threads)(x))) for threads in (1, 2, 16))
    assert others == [one, one]
