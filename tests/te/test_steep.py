"""Which definitions may have slopes that are infinite (`relay.te.autodiff.steep`), by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from relay import te
from relay.ir.dim import dim_var
from relay.te.autodiff.steep import ANYTHING, Range, survey
from relay.te.tensor import Tensor


def each(body: Callable[[te.Scalar], te.Scalar]) -> Callable[[Tensor], Tensor]:
    return lambda x: te.compute(x.shape, lambda *i: body(x[i]))


def squares(x: Tensor) -> te.Scalar:
    k, m = (te.reduce_axis(d) for d in x.shape)
    return te.sum(x[k, m] * x[k, m], (k, m))


def mean(x: Tensor) -> Tensor:
    k = te.reduce_axis(x.shape[1])
    return te.compute((x.shape[0],), lambda i: te.sum(x[i, k], k) / te.size(x.shape[1], x.dtype))


GENTLE: dict[str, Callable[[Tensor], Tensor]] = {
    "a root off 0": lambda x: te.compute(x.shape, lambda *i: x[i] / te.sqrt(squares(x) + 1e-6)),
    "a root that is bounded": lambda x: te.compute(x.shape, lambda *i: x[i] / te.maximum(squares(x), 1e-6)),
    "a bounded exponential": each(lambda x: 1.0 / (1.0 + te.exp(-te.abs(x)))),
    "its logarithm": each(lambda x: te.log1p(te.exp(-te.maximum(x, 0.0)))),
    "a quotient by 1 + x * x": each(lambda x: x / (1.0 + x * x)),
    "whole powers": each(lambda x: x**5 + te.power(x, 2.0)),
    "a power of what is positive": each(lambda x: te.power(1.0 + x * x, -0.5)),
    "places": lambda x: te.compute(x.shape, lambda i, j: x[i, j] / te.cast(i + 1, x.dtype)),
    "a mean": mean,
}
STEEP: dict[str, Callable[[Tensor], Tensor]] = {
    "a root": lambda x: te.compute(x.shape, lambda *i: te.sqrt(squares(x))),
    "a quotient": each(lambda x: 1.0 / x),
    "a quotient by what may cancel": each(lambda x: x / (1.0 - x * x)),
    "two numbers": lambda x: te.compute((3,), lambda i: te.sqrt(x[i, 0] * x[i, 1] + 1.0)),
    "a logarithm": each(lambda x: te.log(te.abs(x))),
    "an exponential": each(lambda x: te.exp(x)),
    "a root of a magnitude": each(lambda x: te.power(te.abs(x), 0.5)),
    "a power whose slope has none": each(lambda x: te.power(te.abs(x), 1.5)),
}


def steep(define: Callable[[Tensor], Tensor], columns: object = 4, bounds: Range = ANYTHING) -> bool:
    x = te.placeholder("x", (3, columns), "float32")  # type: ignore[arg-type]
    return survey([define(x)], lambda p: (p, bounds)).steep


@pytest.mark.parametrize("name", GENTLE)
def test_what_is_finite_everywhere_is_not_steep(name: str) -> None:
    assert not steep(GENTLE[name])


@pytest.mark.parametrize("name", STEEP)
def test_what_may_be_infinite_is(name: str) -> None:
    assert steep(STEEP[name])


def test_bounds_of_operands_count() -> None:
    assert not steep(STEEP["a quotient"], bounds=Range(0.5))
    assert not steep(STEEP["an exponential"], bounds=Range(high=0.0))
    assert steep(STEEP["a quotient"], bounds=Range(0.0))


def test_a_mean_of_nothing_is_no_number() -> None:
    assert steep(mean, dim_var("n")) and not steep(mean, dim_var("n", 1))


def test_two_operands_may_be_one() -> None:
    def defined(one: bool) -> bool:
        x, y = te.placeholder("x", (3,), "float32"), te.placeholder("y", (3,), "float32")
        root = te.compute((3,), lambda i: te.sqrt(x[i] * y[i] + 1.0))
        return survey([root], lambda p: (0 if one else p, ANYTHING)).steep

    assert defined(one=False) and not defined(one=True)
