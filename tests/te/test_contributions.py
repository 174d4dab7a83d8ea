"""Cotangents whose products are made once for each iteration, and put together afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from relay import te
from relay.ir.dim import as_var, dim_floordiv, dim_sub, dim_var
from relay.te.autodiff import vjp
from relay.te.evaluate import evaluate


def made_first(tensor: te.Tensor | None) -> bool:
    """Whether a definition has contributions."""
    assert tensor is not None
    return any(s.name == "contributions" for s in te.stages([tensor]))


@pytest.mark.parametrize(
    ("step", "taps", "spread", "places", "depth", "first"),
    [
        (1, 5, 1, 3, 64, True),  # 7 elements of up to 5 taps for 15 products
        (2, 3, 1, 6, 128, True),
        (2, 3, 1, 60, 64, False),  # the border is little beside the rest
        (1, 5, 1, 3, 2, False),  # a contribution costs more than what it saves
        (1, 3, 4, 3, 64, True),  # taps far apart
        (1, 1, 1, 9, 64, False),
        (3, 3, 1, 5, 64, False),  # no element is in two windows
    ],
)
def test_windows(step: int, taps: int, spread: int, places: int, depth: int, first: bool) -> None:
    length = (places - 1) * step + (taps - 1) * spread + 1
    x, w = te.placeholder("x", (2, length, 4), "float64"), te.placeholder("w", (taps, 4, depth), "float64")
    k, c = te.reduce_axis(taps), te.reduce_axis(4)
    y = te.compute((2, places, depth), lambda n, p, o: te.sum(x[n, p * step + k * spread, c] * w[k, c, o], (k, c)))
    g = te.placeholder("g", y.shape, "float64")
    (dx,) = vjp([y], [g], [x])
    assert dx is not None and made_first(dx) == first
    rng = np.random.default_rng(0)
    wv, gv = rng.standard_normal((taps, 4, depth)), rng.standard_normal((2, places, depth))
    wanted = np.zeros((2, length, 4))
    for p in range(places):
        wanted[:, p * step : p * step + (taps - 1) * spread + 1 : spread] += np.einsum("no,kco->nkc", gv[:, p], wv)
    (found,) = evaluate([dx], {w: wv, g: gv, x: np.zeros(wanted.shape)})
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_conditions_come_afterwards() -> None:
    x, w = te.placeholder("x", (9, 4), "float64"), te.placeholder("w", (5, 4, 64), "float64")
    k, c = te.reduce_axis(5), te.reduce_axis(4)

    def body(p: te.Scalar, o: te.Scalar) -> te.Scalar:
        return te.sum(te.select((p + 2 * k) % 3 < 2, x[p + k, c], 0.0) * w[k, c, o], (k, c))

    y = te.compute((5, 64), body)
    g = te.placeholder("g", (5, 64), "float64")
    (dx,) = vjp([y], [g], [x])
    assert dx is not None and made_first(dx)
    rng = np.random.default_rng(0)
    wv, gv, wanted = rng.standard_normal((5, 4, 64)), rng.standard_normal((5, 64)), np.zeros((9, 4))
    for p in range(5):
        for tap in range(5):
            if (p + 2 * tap) % 3 < 2:
                wanted[p + tap] += wv[tap] @ gv[p]
    (found,) = evaluate([dx], {w: wv, g: gv, x: np.zeros((9, 4))})
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_rows_that_another_tensor_names() -> None:
    """What is gathered and then multiplied: the product is one of the rows, not of all places they may come from."""
    x, w = te.placeholder("x", (50, 4), "float64"), te.placeholder("w", (4, 32), "float64")
    at = te.placeholder("at", (7,), "int32")
    c = te.reduce_axis(4)
    y = te.compute((7, 32), lambda i, o: te.sum(x[te.cast(at[i], "int64"), c] * w[c, o], c))
    g = te.placeholder("g", (7, 32), "float64")
    (dx,) = vjp([y], [g], [x])
    assert dx is not None and made_first(dx)
    rng = np.random.default_rng(0)
    wv, gv, rows = rng.standard_normal((4, 32)), rng.standard_normal((7, 32)), np.array([3, 3, 49, 0, 7, 3, 0], "int32")
    wanted = np.zeros((50, 4))
    np.add.at(wanted, rows, gv @ wv.T)
    (found,) = evaluate([dx], {w: wv, g: gv, at: rows, x: np.zeros((50, 4))})
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


def test_unknown_sizes_decide_nothing() -> None:
    """A batch of any size: what is known decides. Windows of an image of any size: the usual form."""
    n = dim_var("n")
    assert as_var(n) is not None
    for shape, first in (((n, 7, 4), True), ((2, n, 4), False)):
        x, w = te.placeholder("x", shape, "float64"), te.placeholder("w", (5, 4, 64), "float64")
        k, c = te.reduce_axis(5), te.reduce_axis(4)
        places = dim_floordiv(dim_sub(shape[1], 4), 1)
        y = te.compute(
            (shape[0], places, 64), lambda b, p, o, x=x, w=w, k=k, c=c: te.sum(x[b, p + k, c] * w[k, c, o], (k, c))
        )
        (dx,) = vjp([y], [te.placeholder("g", y.shape, "float64")], [x])
        assert made_first(dx) == first


def test_what_only_the_read_goes_along_is_not_of_the_contributions() -> None:
    x, w = te.placeholder("x", (7, 2, 2), "float64"), te.placeholder("w", (5, 64), "float64")
    k, m = te.reduce_axis(5), te.reduce_axis(4)
    y = te.compute((3, 64), lambda p, o: te.sum(x[p + k, m // 2, m % 2] * w[k, o], (k, m)))
    g = te.placeholder("g", y.shape, "float64")
    (dx,) = vjp([y], [g], [x])
    assert dx is not None and made_first(dx)
    rng = np.random.default_rng(0)
    wv, gv = rng.standard_normal((5, 64)), rng.standard_normal((3, 64))
    wanted = np.zeros((7, 2, 2))
    for p in range(3):
        wanted[p : p + 5] += (wv @ gv[p])[:, None, None]
    (found,) = evaluate([dx], {w: wv, g: gv, x: np.zeros(wanted.shape)})
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
