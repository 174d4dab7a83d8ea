"""Axes that an index divides by a size of which nobody says that it divides them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import relay
from relay import te
from relay.ir.diagnostics import ExecutionError
from relay.ir.dim import Dim, DimVar, as_dim, dim_add, dim_floordiv, dim_mul, dim_sub
from relay.op import registry
from relay.plan.divisible import divisible
from relay.plan.graph import te_graph
from relay.plan.kernel_plan import make_plan
from tests.plan.harness import ZEN4, primitive, tensor

CHANNELS, OUTPUTS, INPUTS, WIDTH, N = (as_dim(DimVar(name)) for name in "coikn")
GROUPS = dim_floordiv(CHANNELS, INPUTS)
PLACES = dim_add(dim_sub(N, WIDTH), 1)
PER_GROUP = dim_floordiv(OUTPUTS, GROUPS)


def sizes(x: te.Tensor) -> Any:
    return x.shape


def grouped_convolution(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    """Channels of ``x`` in groups of as many as the weights have, by indices alone."""
    (c, n), (o, i, k) = sizes(x), sizes(w)
    m, r = te.reduce_axis(i), te.reduce_axis(k)
    per_group = te.size(o // (c // i))
    return te.compute(
        (o, n - k + 1), lambda q, p: te.sum(x[q // per_group * te.size(i) + m, p + r] * w[q, m, r], (m, r))
    )


def slope_of_data(x: te.Tensor, w: te.Tensor, dy: te.Tensor) -> te.Tensor:
    """Its gradient by ``x``: what of ``dy`` there is, by the weights of the group."""
    (c, n), (o, i, k) = sizes(x), sizes(w)
    per_group = te.size(o // (c // i))
    m, r = te.reduce_axis(o // (c // i)), te.reduce_axis(k)

    def one(q: te.Scalar, p: te.Scalar) -> te.Scalar:
        out = q // te.size(i) * per_group + m
        there = (out < te.size(o)) & (p - r >= 0) & (p - r < te.size(n - k + 1))
        return te.select(there, dy[out, p - r] * w[out, q % te.size(i), r], 0.0)

    return te.compute((c, n), lambda q, p: te.sum(one(q, p), (m, r)))


def deviation(x: te.Tensor, like: te.Tensor) -> te.Tensor:
    """What elements of groups of channels are more than their mean."""
    (c, n), (g,) = sizes(x), sizes(like)
    m, y = te.reduce_axis(c // g), te.reduce_axis(n)
    mean = te.compute((g,), lambda k: te.sum(x[k * te.size(c // g) + m, y], (m, y)) / te.size(c // g * n, "float32"))
    return te.compute((c, n), lambda k, p: x[k, p] - mean[k // te.size(c // g)])


def by_more_than_there_is(x: te.Tensor) -> te.Tensor:
    """Divided by a multiple of the axis' own size, which is still so where that is written as a product."""
    m, k = sizes(x)
    return te.compute((k,), lambda j: x[0, j // te.size(dim_mul(m, k))])


@pytest.fixture
def declare() -> Iterator[Callable[..., object]]:
    yield lambda define: registry.operator("divisible.op")(define)
    registry.remove("divisible.op")


def planned(*shapes: tuple[object, ...]) -> relay.ir.expr.Function:
    return primitive([tensor(shape) for shape in shapes], lambda m, *x: m("divisible.op", *x))


@pytest.mark.parametrize(("define", "shapes", "variant"), [
    (grouped_convolution, ((CHANNELS, N), (OUTPUTS, INPUTS, WIDTH)), "matrix+rows"),
    (slope_of_data, ((CHANNELS, N), (OUTPUTS, INPUTS, WIDTH), (OUTPUTS, PLACES)), "elementwise+matrix+rows"),  # with a border
    (deviation, ((CHANNELS, N), (WIDTH,)), "rows+elementwise"),
])  # fmt: skip
def test_whole_groups_are_planned_apart(
    declare: Callable[..., object], define: object, shapes: tuple[tuple[Dim, ...], ...], variant: str
) -> None:
    declare(define)
    assert make_plan(planned(*shapes), ZEN4).variant == variant


def test_what_is_known_to_be_whole_is_planned_once(declare: Callable[..., object]) -> None:
    declare(grouped_convolution)
    graph = te_graph(planned((CHANNELS, N), (OUTPUTS, INPUTS, WIDTH)))
    found = divisible(graph)
    assert found is not None
    assert found.graph.outputs[0].shape[0] == dim_mul(GROUPS, PER_GROUP)
    assert divisible(found.graph) is None
    assert divisible(te_graph(planned((32, N), (16, 8, 3)))) is None
    # Nor is anything asked of sizes that no axis of an index is divided by.
    registry.remove("divisible.op")
    declare(lambda x, like: te.compute((sizes(x)[0] // sizes(like)[0],), lambda i: x[i * te.size(like.shape[0])]))
    assert divisible(te_graph(planned((CHANNELS,), (WIDTH,)))) is None


@pytest.mark.parametrize(("define", "shapes", "calls"), [
    (grouped_convolution, "c n, o i k", [
        {"c": 6, "n": 40, "o": 8, "i": 3, "k": 3},
        {"c": 6, "n": 5, "o": 5, "i": 3, "k": 2},  # groups of outputs that are not whole: outside
        {"c": 7, "n": 5, "o": 6, "i": 2, "k": 1},  # or of channels
        {"c": 2, "n": 5, "o": 1, "i": 1, "k": 1},  # more groups than outputs: outside
        {"c": 2, "n": 0, "o": 0, "i": 2, "k": 1},
        {"c": 1, "n": 1, "o": 1, "i": 1, "k": 1},
    ]),
    (slope_of_data, "c n, o i k, o n-k+1", [
        {"c": 6, "n": 40, "o": 8, "i": 3, "k": 3},
        {"c": 6, "n": 5, "o": 5, "i": 3, "k": 2},
        {"c": 7, "n": 5, "o": 6, "i": 2, "k": 1},
        {"c": 2, "n": 0, "o": 0, "i": 2, "k": 1},
        {"c": 1, "n": 1, "o": 1, "i": 1, "k": 1},
    ]),
    (deviation, "c n, g", [
        {"c": 6, "n": 9, "g": 2}, {"c": 7, "n": 9, "g": 7}, {"c": 4, "n": 3, "g": 1}, {"c": 0, "n": 3, "g": 2},
    ]),
    (by_more_than_there_is, "m k", [{"m": 1, "k": 3}, {"m": 2, "k": 3}, {"m": 1, "k": 1}, {"m": 3, "k": 0}]),
])  # fmt: skip
def test_what_they_compute(
    declare: Callable[..., object], define: object, shapes: str, calls: list[Mapping[str, int]]
) -> None:
    declare(define)
    split = [s.split() for s in shapes.split(", ")]
    names = dict.fromkeys(n for s in split for n in s if n.isalpha())
    types = [f"%x{n}: Tensor[({', '.join(s)},), float32]" for n, s in enumerate(split)]
    params, sizes = ", ".join(types), ", ".join(f"{n}: Dim" for n in names)
    args = ", ".join(f"%x{n}" for n in range(len(split)))
    module = relay.parse(f'#[version = "0.0.5"]\ndef @main[{sizes}]({params}) {{ divisible.op({args}) }}')
    exe, rng = relay.compile(module), np.random.default_rng(0)
    for call in calls:
        given = [rng.standard_normal([eval(d, {}, dict(call)) for d in s]).astype("float32") for s in split]
        try:
            expected = np.asarray(relay.evaluate(module, *given))
        except ExecutionError:
            with pytest.raises(ExecutionError):
                exe(*given)
            continue
        np.testing.assert_allclose(np.asarray(exe(*given)), expected, rtol=1e-4, atol=1e-4)
