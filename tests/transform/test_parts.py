"""Slices of a tensor that are put together again: where they are all of it or a part of it, in order, nothing is copied."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay.interpreter.evaluation import evaluate
from relay.transform import CommonSubexpressions, DeadCode, NameDims, Simplify, SumFusion
from tests.transform.support import operators, run, typed

RNG = np.random.default_rng(5)


def sliced(shape: tuple[int, ...], parts: list[str], axis: int) -> str:
    names = [f"%p{n}" for n in range(len(parts))]
    lines = "".join(f"let {name} = {part};" for name, part in zip(names, parts, strict=True))
    return f"def @main(%x: Tensor[{shape}, float64]) {{ {lines} concatenate(({', '.join(names)},), axis={axis}) }}"


def part(begin: int, end: int, axis: int, shape: tuple[int, ...] | None = None, **more: object) -> str:
    attrs = "".join(f", {k}={v}" for k, v in more.items())
    piece = f"strided_slice(%x, begin=[{begin}], end=[{end}], axes=[{axis}]{attrs})"
    return piece if shape is None else f"reshape({piece}, newshape={list(shape)})"


WHOLE, KEPT, COPIED = ["reshape"], ["strided_slice", "reshape"], "concatenate"
CASES: list[tuple[tuple[int, ...], list[str], int, list[str] | str]] = [
    ((3, 2, 4), [part(n, n + 1, 0, (2, 4)) for n in range(3)], 0, WHOLE),
    ((5, 2, 4), [part(n, n + 1, 0, (2, 4)) for n in range(1, 4)], 0, KEPT),
    ((6, 4), [part(0, 2, 0), part(2, -1, 0), part(-1, 6, 0)], 0, []),
    ((2, 6), [part(1, 3, 1), part(3, 6, 1)], 1, ["strided_slice"]),
    ((1, 6), [part(0, 4, 1, (4,)), part(4, 6, 1, (2,))], 0, WHOLE),
    ((1, 6), [part(0, 3, 1), part(3, 6, 1)], 0, WHOLE),
    # Out of order, with a gap, twice, with a stride, along another axis, and pieces that are none in memory.
    ((3, 4), [part(1, 2, 0), part(0, 1, 0), part(2, 3, 0)], 0, COPIED),
    ((4, 4), [part(0, 1, 0), part(2, 4, 0)], 0, COPIED),
    ((4, 4), [part(0, 2, 0), part(0, 2, 0)], 0, COPIED),
    ((4, 4), [part(0, 4, 0, strides=[2]), part(2, 4, 0)], 0, COPIED),
    ((2, 4), [part(0, 1, 0), part(1, 2, 0)], 1, WHOLE),
    ((4, 4), [part(0, 2, 0), part(2, 4, 0)], 1, COPIED),
    ((2, 6), [part(0, 3, 1, (6,)), part(3, 6, 1, (6,))], 0, COPIED),
    ((4, 6), [part(0, 2, 0, (3, 4)), part(2, 4, 0, (3, 4))], 1, COPIED),
]


@pytest.mark.parametrize(("shape", "parts", "axis", "left"), CASES)
def test_parts(shape: tuple[int, ...], parts: list[str], axis: int, left: list[str] | str) -> None:
    module = typed(sliced(shape, parts, axis))
    after = run(module, NameDims(), Simplify(), DeadCode())
    x = RNG.standard_normal(shape)
    expected = np.asarray(evaluate(module, x))
    np.testing.assert_array_equal(np.asarray(evaluate(after, x)), expected)
    np.testing.assert_array_equal(np.asarray(relay.compile(module)(x)), expected)
    assert (left in operators(after)) if isinstance(left, str) else (operators(after) == left)


def test_parts_of_a_split_and_of_two_tensors() -> None:
    text = """def @main(%x: Tensor[(6, 4), float64], %y: Tensor[(6, 4), float64]) {
        let %s = split(%x, indices_or_sections=3, axis=0);
        let %t = split(%y, indices_or_sections=3, axis=0);
        (concatenate((%s.0, %s.1, %s.2), axis=0), concatenate((%s.0, %t.1, %s.2), axis=0)) }"""
    module = typed(text)
    after = run(module, NameDims(), Simplify(), DeadCode())
    assert operators(after).count("concatenate") == 1
    x, y = RNG.standard_normal((2, 6, 4))
    for a, b in zip(evaluate(module, x, y), evaluate(after, x, y), strict=True):  # type: ignore[call-overload]
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_the_gradient_of_a_weight_reads_the_inputs_of_all_steps_where_they_are() -> None:
    """The way back goes from the last step to the first; the terms of its sum are put in the order of what they read."""
    steps = "".join(f"let %x{n} = {part(n, n + 1, 0, (2, 4))};" for n in range(3))
    terms = " + ".join(f"nn.matmul(%x{n}, %g{n}, transpose_a=True)" for n in (2, 1, 0))
    given = ", ".join(f"%g{n}: Tensor[(2, 5), float64]" for n in range(3))
    text = f"def @main(%x: Tensor[(3, 2, 4), float64], {given}) {{ {steps} {terms} }}"
    module = typed(text)
    passes = (NameDims(), Simplify(), SumFusion(), Simplify(), CommonSubexpressions(), DeadCode())
    after = run(module, *passes)
    assert "strided_slice" not in operators(after) and operators(after).count("concatenate") == 1
    inputs = [RNG.standard_normal((3, 2, 4)), *(RNG.standard_normal((2, 5)) for _ in range(3))]
    np.testing.assert_allclose(np.asarray(evaluate(module, *inputs)), np.asarray(evaluate(after, *inputs)), rtol=1e-12)
