"""Parts of an expression that several tensors are read in: their cotangent is one sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from relay import te
from relay.te.autodiff import vjp
from relay.te.evaluate import evaluate
from relay.te.scalar import walk


def reductions_of(tensors: list[te.Tensor | None], read: te.Tensor) -> int:
    """How many reductions read a tensor."""
    count = 0
    for stage in te.stages([t for t in tensors if t is not None]):
        for body in stage.bodies if isinstance(stage, te.Compute) else ():
            loads = (n for n in walk(body) if isinstance(n, te.Load))
            count += isinstance(body, te.Reduce) and any(n.source is read for n in loads)
    return count


def softmax_product(s: te.Tensor, m: te.Tensor, t: te.Tensor, v: te.Tensor) -> te.Tensor:
    k = te.reduce_axis(s.shape[1])
    return te.compute((s.shape[0], v.shape[1]), lambda i, c: te.sum(te.exp(s[i, k] - m[i]) / t[i] * v[k, c], k))


@pytest.mark.parametrize("columns", [8, 2])
def test_one_sum_for_all_that_is_read_in_a_part(columns: int) -> None:
    shapes = ((5, 6), (5,), (5,), (6, columns))
    inputs = [te.placeholder(n, s, "float64") for n, s in zip("smtv", shapes, strict=True)]
    y = softmax_product(*inputs)
    g = te.placeholder("g", y.shape, "float64")
    made = vjp([y], [g], inputs)
    # Over few columns nothing is gained: each has a sum of its own.
    assert reductions_of(made[:3], g) == (1 if columns == 8 else 3)
    rng = np.random.default_rng(0)
    values = dict(zip(inputs, (rng.uniform(1, 2, s) for s in shapes), strict=True)) | {
        g: rng.standard_normal((5, columns))
    }
    found = evaluate([t for t in made if t is not None], values)
    s, m, t, v = (values[i] for i in inputs)
    shares = np.exp(s - m[:, None]) / t[:, None]
    d = values[g] @ v.T
    wanted = [d * shares, -(d * shares).sum(1), -(d * shares).sum(1) / t, shares.T @ values[g]]
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)


def test_what_would_be_larger_than_it_reads_stays() -> None:
    """Windows, laid out for all of their places, are more than what they are of."""
    x, b = te.placeholder("x", (9, 4), "float64"), te.placeholder("b", (4,), "float64")
    w = te.placeholder("w", (3, 4, 8), "float64")
    r, c = te.reduce_axis(3), te.reduce_axis(4)

    def body(p: Any, o: Any) -> Any:
        return te.sum(te.exp(x[p + r, c] * b[c]) * w[r, c, o], (r, c))

    y = te.compute((7, 8), body)
    made = vjp([y], [te.placeholder("g", (7, 8), "float64")], [x, b])
    assert not any(s.name == "part" for s in te.stages([t for t in made if t is not None]))
