"""Recognising stages that only put others between each other; gradients that are made in classes of remainders."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from relay import te
from relay.te.autodiff import summed_at, vjp
from relay.te.evaluate import evaluate
from relay.te.interleave import as_interleave, interleaved
from relay.te.scalar import Axis


def whole(parts: dict[tuple[int, ...], tuple[int, ...]], shape: tuple[int, ...], steps: tuple[int, ...]) -> te.Stage:
    axes = [Axis(f"x{n}", d) for n, d in enumerate(shape)]
    made = [(r, te.compute(s, lambda *_: te.const(1.0, "float32"), "part")) for r, s in parts.items()]
    return te.Compute("whole", tuple(axes), (interleaved(axes, steps, made, "float32"),))


def test_what_is_one() -> None:
    found = as_interleave(whole({(0, 0): (4, 3), (0, 1): (4, 2)}, (4, 5), (1, 2)))
    assert found is not None and [p.along for p in found] == [((0, 1, 0), (1, 2, 0)), ((0, 1, 0), (1, 2, 1))]
    # Of an axis shorter than the step there are fewer parts.
    assert as_interleave(whole({(0,): (1,), (1,): (1,)}, (2,), (3,))) is not None


@pytest.mark.parametrize(
    ("parts", "shape", "steps"),
    [
        ({(0,): (3,)}, (5,), (2,)),  # a part is missing
        ({(0,): (3,), (1,): (3,)}, (5,), (2,)),  # a part has more than belongs there
        ({(0,): (3,), (1,): (1,)}, (5,), (2,)),  # or less
    ],
)
def test_what_is_none(parts: Any, shape: tuple[int, ...], steps: tuple[int, ...]) -> None:
    assert as_interleave(whole(parts, shape, steps)) is None


def test_an_addition_is_none() -> None:
    x = te.placeholder("x", (4,), "float32")
    assert as_interleave(te.compute((8,), lambda i: x[i // 2] + 1.0, "twice").stage) is None
    assert as_interleave(te.compute((8,), lambda i: te.select(i % 2 < 1, x[i // 2], 0.0), "half").stage) is None


@pytest.mark.parametrize(("step", "taps", "length"), [(2, 3, 9), (3, 2, 10), (2, 1, 8), (4, 3, 3)])
def test_no_class_has_iterations_of_another(step: int, taps: int, length: int) -> None:
    """The loops of all classes together are the taps of the window, wherever they fall."""
    x, w = te.placeholder("x", (length * step, 4), "float64"), te.placeholder("w", (taps, 4, 5), "float64")
    count = (length * step - taps) // step + 1
    k, c = te.reduce_axis(taps), te.reduce_axis(4)
    y = te.compute((count, 5), lambda p, o: te.sum(x[p * step + k, c] * w[k, c, o], (k, c)))
    g = te.placeholder("g", (count, 5), "float64")
    (dx,) = vjp([y], [g], [x])
    assert dx is not None
    rng = np.random.default_rng(0)
    wv, gv = rng.standard_normal((taps, 4, 5)), rng.standard_normal((count, 5))
    wanted = np.zeros((length * step, 4))
    for p in range(count):
        wanted[p * step : p * step + taps] += np.einsum("o,kco->kc", gv[p], wv)
    (found,) = evaluate([dx], {w: wv, g: gv, x: np.zeros((length * step, 4))})
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
    if as_interleave(dx.stage) is None:  # classes of one length are one product
        assert taps % step == 0 or taps == 1
        return
    work = 0
    for part in as_interleave(dx.stage) or ():
        (body,) = te.stage_bodies(part.tensor.stage)
        if isinstance(body, te.Reduce):
            work += math.prod(int(str(a.extent)) for a in body.axes) // 5
    assert work == taps


def test_windows_that_are_read_by_several_sums_are_one_stage_of_classes() -> None:
    """The derivatives of numerator and denominator are added class by class, and nothing puts them between each other twice."""
    x, g = te.placeholder("x", (12, 3), "float64"), te.placeholder("g", (5, 3), "float64")
    k, m = te.reduce_axis(3), te.reduce_axis(3)

    def share(p: te.Scalar, c: te.Scalar) -> te.Scalar:
        return te.sum(te.exp(x[2 * p + k, c]) * x[2 * p + k, c], k) / te.sum(te.exp(x[2 * p + m, c]), m)

    (dx,) = vjp([te.compute((5, 3), share)], [g], [x])
    assert dx is not None and len(as_interleave(dx.stage) or ()) == 2
    rng = np.random.default_rng(2)
    xv, gv = rng.standard_normal((12, 3)), rng.standard_normal((5, 3))
    wanted = np.zeros((12, 3))
    for p in range(5):
        near = xv[2 * p : 2 * p + 3]
        weight = np.exp(near) / np.exp(near).sum(0)
        wanted[2 * p : 2 * p + 3] += gv[p] * weight * (1 + near - (weight * near).sum(0))
    np.testing.assert_allclose(evaluate([dx], {x: xv, g: gv})[0], wanted, rtol=1e-12, atol=1e-12)


def test_said_by_where_each_iteration_adds() -> None:
    """The transpose of a strided window; what falls outside is left out."""
    x, w = te.placeholder("x", (5,), "float64"), te.placeholder("w", (3,), "float64")
    i, k = te.reduce_axis(5), te.reduce_axis(3)
    out = summed_at((9,), [i * 2 + k - 1], x[i] * w[k], (i,), (k,))
    rng = np.random.default_rng(1)
    xv, wv = rng.standard_normal(5), rng.standard_normal(3)
    wanted = np.zeros(9)
    for a in range(5):
        for b in range(3):
            if 0 <= 2 * a + b - 1 < 9:
                wanted[2 * a + b - 1] += xv[a] * wv[b]
    np.testing.assert_allclose(evaluate([out], {x: xv, w: wv})[0], wanted, rtol=1e-12)
    nothing = summed_at((4,), [i + 7], x[i], (i,), ())
    np.testing.assert_array_equal(evaluate([nothing], {x: xv})[0], np.zeros(4))
