"""Sums over the taps that hit an element: where they are made, what they are, and their kernels."""

from __future__ import annotations

import math

import numpy as np
import pytest

import relay
from relay import te
from relay.loop.printer import kernel_text
from relay.te.autodiff import vjp
from relay.te.evaluate import evaluate
from relay.te.scalar import Reduce, Select
from relay.te.tensor import stage_bodies
from tests.plan.harness import Maker, check, primitive, tensor


def is_tapped(tensor: te.Tensor | None) -> bool:
    """Whether a definition is a sum whose products have a guard."""
    assert tensor is not None
    bodies = [b for s in te.stages([tensor]) for b in stage_bodies(s)]
    return any(isinstance(b, Reduce) and isinstance(b.body, Select) for b in bodies)


@relay.operator("test.windows")
def windows(x: te.Tensor, w: te.Tensor, *, step: int, spread: int) -> te.Tensor:
    """``out[n, p, i, o]`` is the sum over t, c of ``x[n, p * step + t * spread, i, c] * w[t, o, c]``."""
    (n, length, rows, channels), (taps, many, _) = x.shape, w.shape
    t, c = te.reduce_axis(taps), te.reduce_axis(channels)
    assert isinstance(length, int) and isinstance(taps, int)
    at = (n, (length - 1 - (taps - 1) * spread) // step + 1, rows, many)
    return te.compute(at, lambda b, p, i, o: te.sum(x[b, p * step + t * spread, i, c] * w[t, o, c], (t, c)))


CASES = [
    # step, spread, taps, length, images, rows, channels, depth, whether by taps
    (2, 1, 3, 20, 2, 3, 32, 24, True),
    (2, 1, 3, 7, 4, 4, 32, 16, True),
    (1, 1, 5, 7, 1, 8, 20, 40, True),
    (1, 3, 3, 11, 3, 2, 16, 16, True),
    (3, 1, 2, 14, 5, 1, 70, 16, True),
    (2, 1, 3, 20, 1, 3, 32, 24, False),  # few rows
    (2, 1, 3, 20, 2, 3, 8, 24, False),  # few columns
    (2, 1, 3, 20, 2, 3, 32, 8, False),  # short sums
    (1, 1, 3, 98, 2, 3, 32, 24, False),  # the border is little beside the rest
    (2, 1, 2, 12, 2, 3, 32, 24, False),  # every element is hit once
]


@pytest.mark.parametrize(
    ("step", "spread", "taps", "length", "images", "rows", "channels", "depth", "tapped"), CASES
)  # fmt: skip
def test_the_gradient_by_what_windows_read(
    step: int, spread: int, taps: int, length: int, images: int, rows: int, channels: int, depth: int, tapped: bool
) -> None:
    places = (length - 1 - (taps - 1) * spread) // step + 1
    shapes = [(images, length, rows, channels), (taps, depth, channels), (images, places, rows, depth)]
    x, w, g = (te.placeholder(n, s, "float64") for n, s in zip("xwg", shapes, strict=True))
    t, c = te.reduce_axis(taps), te.reduce_axis(channels)
    y = te.compute(
        shapes[2], lambda b, p, i, o: te.sum(x[b, p * step + t * spread, i, c] * w[t, o, c], (t, c))
    )  # fmt: skip
    (dx,) = vjp([y], [g], [x])
    assert dx is not None and is_tapped(dx) == tapped
    rng = np.random.default_rng(0)
    wv, gv = rng.standard_normal(shapes[1]), rng.standard_normal(shapes[2])
    wanted = np.zeros(shapes[0])
    for p in range(places):
        for tap in range(taps):
            wanted[:, p * step + tap * spread] += gv[:, p] @ wv[tap]
    (found,) = evaluate([dx], {w: wv, g: gv, x: np.zeros(shapes[0])})
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("step", "spread", "taps", "length", "images", "rows", "channels", "depth"), [c[:-1] for c in CASES[:5]]
)
def test_kernels(
    step: int, spread: int, taps: int, length: int, images: int, rows: int, channels: int, depth: int
) -> None:
    places = (length - 1 - (taps - 1) * spread) // step + 1
    given = [
        tensor(s) for s in ((images, length, rows, channels), (taps, depth, channels), (images, places, rows, depth))
    ]

    def build(m: Maker, *args: relay.ir.expr.Expr) -> relay.ir.expr.Expr:
        return m("nn.relu", m("test.windows.vjp0", *args, step=step, spread=spread))

    plan = check(primitive(given, build))
    # The taps are loops with their conditions outside of the products; no border, no classes, and the end of it on the tiles.
    text = kernel_text(plan.kernel)
    assert "matrix" in plan.variant and "if " in text and "contributions" not in text and "bordered" not in text
    useful = 2 * images * places * rows * taps * channels * depth
    assert plan.flops == useful + math.prod(given[0].shape)  # type: ignore[arg-type]


def test_what_is_outside_is_not_multiplied() -> None:
    """Also where the other operand is infinite there: nothing is added for a tap that does not hit."""
    x, w = te.placeholder("x", (4, 5, 3), "float64"), te.placeholder("w", (4, 3, 2), "float64")
    t, c = te.reduce_axis(4), te.reduce_axis(3)
    body = lambda i, p, o: te.sum(te.select(p - t >= 0, x[i, p - t, c] * w[t, c, o], 0.0), (t, c))  # noqa: E731
    y = te.compute((4, 5, 2), body)
    xv, wv = np.ones((4, 5, 3)), np.ones((4, 3, 2))
    wv[3] = np.inf
    (found,) = evaluate([y], {x: xv, w: wv})
    assert np.isfinite(found[:, :3]).all() and np.isinf(found[:, 3:]).all()
