"""Lanes that a tile computes beside what was asked for hold zeros, not what lies in memory by chance: subnormal numbers would take a
hundred times the time on some machines."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from relay.codegen.target import parse_target
from relay.ir.expr import Expr, Function
from relay.loop import evaluate as slow
from relay.plan import make_plan
from relay.plan.graph import te_graph
from relay.te.evaluate import evaluate
from tests.plan.harness import HOST, Maker, Native, fresh_name, primitive, random, tensor

Shape = tuple[int, ...]


def attention(*shapes: Shape) -> Function:
    return primitive([tensor(s) for s in shapes], lambda m, q, k, v: m("nn.attention", q, k, v))


def dense(*shapes: Shape) -> Function:
    return primitive([tensor(s) for s in shapes], lambda m, x, w: m("nn.dense", x, w))


def convolution(*shapes: Shape) -> Function:
    return primitive([tensor(s) for s in shapes], lambda m, x, w: m("nn.conv2d", x, w, padding=(1, 1)))


def softmax(shape: Shape) -> Function:
    return primitive([tensor(shape)], lambda m, x: m("nn.softmax", x))


def product(*shapes: Shape) -> Function:
    return primitive([tensor(s) for s in shapes], lambda m, x, w: m("nn.batch_matmul", x, w))


@pytest.mark.parametrize("target", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (attention, [(1, 6, 8), (1, 17, 8), (1, 17, 16)]),
        (attention, [(1, 12, 16), (1, 40, 16), (1, 40, 16)]),
        (dense, [(60, 8), (18, 8)]),
        (dense, [(60, 4), (67, 4)]),
        (dense, [(54, 9), (3, 9)]),
        (product, [(2, 60, 8), (2, 19, 8)]),
        (convolution, [(1, 2, 9, 9), (7, 2, 3, 3)]),
        (convolution, [(1, 2, 5, 9), (37, 2, 3, 3)]),
        (softmax, [(37, 10)]),
        (softmax, [(5, 77)]),
    ],
)
def test_no_lane_computes_with_what_nobody_wrote(
    make: Callable[..., Function], shapes: Sequence[Shape], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(make(*shapes), parse_target(target), frozenset(), fresh_name())
    arrays = [random(s, "float32", n) for n, s in enumerate(shapes)]
    found: list[float] = []

    def stored(value: object, dtype: str, store: Callable[..., object] = slow._stored) -> object:
        if isinstance(value, float) and math.isnan(value):
            found.append(value)
        return store(value, dtype)

    out = [np.zeros(tuple(map(int, b.shape)), np.float32) for b in plan.kernel.outputs]  # type: ignore[arg-type]
    flat = [a.reshape(tuple(map(int, b.shape))) for a, b in zip(arrays, plan.kernel.inputs, strict=True)]  # type: ignore[arg-type]
    with monkeypatch.context() as patched, np.errstate(invalid="ignore"):
        full = np.full
        patched.setattr(np, "full", lambda shape, _, dtype: full(shape, math.nan, dtype))
        patched.setattr(slow, "_stored", stored)
        assert slow.evaluate(plan.kernel, [*flat, *out]) == 0
    assert not found


@pytest.mark.parametrize(
    ("wide", "dtype"),
    [*(("float32", t) for t in ("int8", "uint8", "int16", "float16", "bfloat16", "bool")), ("int64", "int32")],
)
@pytest.mark.parametrize("columns", [3, 5, 9, 17, 33, 49, 65, 129])
def test_one_lane_of_narrow_elements_is_written_alone(wide: str, dtype: str, columns: int) -> None:
    """LLVM 22 stores all bits that numbers had before they were narrowed for a masked vector of them whose mask has one bit: over the row
    behind, or the end."""

    def build(m: Maker, x: Expr, w: Expr) -> Expr:
        return m("cast", m("nn.dense", x, w), dtype=dtype)

    def plain(m: Maker, x: Expr) -> Expr:
        return m("cast", m("multiply", x, x), dtype=dtype)

    def places(m: Maker, x: Expr) -> Expr:
        return m("argmax", x, axis=0, dtype=dtype)

    rows = 20
    programs: list[tuple[Function, list[tuple[int, ...]]]] = [
        (primitive([tensor((rows, 24), wide), tensor((columns, 24), wide)], build), [(rows, 24), (columns, 24)]),
        (primitive([tensor((columns,), wide)], plain), [(columns,)]),
    ]
    if dtype == "int32":
        programs.append((primitive([tensor((rows, columns), wide)], places), [(rows, columns)]))
    for fn, shapes in programs:
        graph = te_graph(fn)
        native = Native(make_plan(fn, HOST, frozenset(), fresh_name()).kernel, HOST)
        given = [random(s, wide, n) for n, s in enumerate(shapes)]
        (wanted,) = evaluate(graph.outputs, dict(zip(graph.inputs, given, strict=True)), {})
        memory = np.full(wanted.size + 8, 1, wanted.dtype)
        assert native.run(native.bind([*given, memory[: wanted.size]], {})) == 0
        np.testing.assert_allclose(
            memory[: wanted.size].astype(np.float64), wanted.reshape(-1).astype(np.float64), rtol=1e-2, atol=1
        )
        assert (memory[wanted.size :] == 1).all()
