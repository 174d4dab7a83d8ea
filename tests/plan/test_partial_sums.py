"""Reductions of much to a few elements, whose parts threads share."""

from __future__ import annotations

import re

import numpy as np
import pytest

import relay
from relay import te
from relay.ir.dim import DimVar, as_dim, dim_add
from relay.ir.expr import Expr
from relay.loop.printer import kernel_text
from relay.plan.kernel_plan import make_plan
from tests.plan.harness import ZEN4, Maker, check, primitive, random, tasks, tensor

V = DimVar("n")
N = as_dim(V)


@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod"])
def test_kinds(kind: str) -> None:
    def build(m: Maker, x: Expr) -> Expr:
        return m(kind, m("tanh", x) if kind != "prod" else m("cos", m("multiply", x, x)))

    kernel = check(primitive([tensor((130, 512))], build)).kernel
    assert max(tasks(kernel, 2)) >= 4


@pytest.mark.parametrize(
    ("shape", "axes"), [((3, 70000), (1,)), ((70000, 4), (0,)), ((1021, 257), (0, 1)), ((16, 64, 64, 4), (0, 1, 2))]
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
    kernel = make_plan(primitive([tensor(shape)], lambda m, x: m("sum", x, axis=axes)), ZEN4).kernel
    assert "_parts" not in kernel_text(kernel)


def test_no_bit_depends_on_the_number_of_threads() -> None:
    text = '#[version = "0.0.5"]\ndef @main(%x: Tensor[(300, 512), float32]) { sum(exp(%x)) }'
    x = random((300, 512), "float32")
    one, *others = (float(np.asarray(relay.compile(text, threads=threads)(x))) for threads in (1, 2, 16))
    assert others == [one, one]


@relay.operator("test.windows_to_one")
def windows_to_one(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    h, w = y.shape
    i, a, j, b = (te.reduce_axis(n) for n in (h, 3, w, 3))
    return te.compute((), lambda: te.sum(te.exp(x[i + a, j + b] - y[i, j]) * y[i, j], (i, a, j, b)))


@relay.operator("test.windows_to_one_with_the_border_repeated")
def windows_with_border(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    h, w = y.shape
    i, a, j, b = (te.reduce_axis(n) for n in (h, 3, w, 3))
    row, column = (te.minimum(te.maximum(at - 1, 0), te.size(n) - 1) for at, n in ((i + a, h), (j + b, w)))
    return te.compute((), lambda: te.sum(te.exp(x[row, column] - y[i, j]) * y[i, j], (i, a, j, b)))


@pytest.mark.parametrize(("h", "w"), [("n", "m"), ("n", 300), (200, 300), (7, 20)])
@pytest.mark.parametrize("name", ["test.windows_to_one", "test.windows_to_one_with_the_border_repeated"])
def test_taps_of_windows_are_no_vectors(name: str, h: int | str, w: int | str) -> None:
    """Of a sum over places and what a window has at each, the places along a line are what a vector takes."""
    sizes = {"n": DimVar("n"), "m": DimVar("m")}
    height, width = (as_dim(sizes[d]) if isinstance(d, str) else d for d in (h, w))
    operands = [tensor((dim_add(height, 2), dim_add(width, 2))), tensor((height, width))]
    fn = primitive(operands, lambda m, x, y: m(name, x, y))
    bound = [{sizes[d]: n for d, n in ((h, a), (w, b)) if isinstance(d, str)} for a, b in ((1, 1), (5, 40))]
    text = kernel_text(check(fn, *bound).kernel)
    assert len(re.findall(r"vectorized k\S* < (m|300|20)\n", text)) >= 1 and not re.search(
        r"vectorized k\S* < 3\n", text
    )
    assert re.search(r"serial k\S* < 3\n", text)
