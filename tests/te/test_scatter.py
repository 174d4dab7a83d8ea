"""Sums that select one place: recognised, and the same as what they say."""

from __future__ import annotations

import numpy as np
import pytest

from relay import te
from relay.te.evaluate import evaluate
from relay.te.index import Indices
from relay.te.scatter import as_scatter
from relay.te.tensor import Tensor


def _gradient(rows: int, guard: bool = False, own: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """``out[z, d] = sum over k of value[k, d] where at[k] == z`` (and k < 3; and with a value that knows z)."""
    at, value = te.placeholder("at", (5,), "int32"), te.placeholder("value", (5, 2), "float64")
    k = te.reduce_axis(5)

    def body(z: te.Scalar, d: te.Scalar) -> te.Scalar:
        hit = te.compare("eq", te.cast(at[k], "int64") * 1 - z, 0)
        if guard:
            hit = hit & (k < 3)
        element: te.Scalar = value[k, d] * te.cast(z, "float64") if own else value[k, d]
        return te.sum(te.select(hit, element, te.const(0, "float64")), k)

    return te.compute((rows, 2), body, "gradient"), at, value


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("guard", [False, True])
def test_recognised_and_evaluated(guard: bool, own: bool) -> None:
    out, at, value = _gradient(4, guard, own)
    form = as_scatter(out.stage, Indices())
    assert form is not None and len(form.places) == 1 and len(form.through) == 1
    places = np.array([1, 3, 1, -1, 7], np.int32)  # two of them are nowhere
    values = np.arange(10.0).reshape(5, 2)
    wanted = np.zeros((4, 2))
    for n, p in enumerate(places):
        if 0 <= p < 4 and (n < 3 or not guard):
            wanted[p] += values[n] * (p if own else 1)
    (got,) = evaluate([out], {at: places, value: values})
    np.testing.assert_array_equal(got, wanted)


def test_other_sums_are_not() -> None:
    x = te.placeholder("x", (5,), "float32")
    k = te.reduce_axis(5)
    diagonal = te.compute((5,), lambda z: te.sum(te.select(te.compare("eq", k, z), x[k], te.const(0, "float32")), k))
    assert as_scatter(diagonal.stage, Indices()) is None  # arithmetic alone: nothing is loaded


def test_a_sum_over_more_than_the_value_has() -> None:
    """Neither the value nor its place depends on one of the summed axes: it is added so many times."""
    at, value = te.placeholder("at", (5,), "int32"), te.placeholder("value", (5,), "float64")
    k, again = te.reduce_axis(5), te.reduce_axis(4)
    out = te.compute(
        (3,), lambda z: te.sum(te.select(te.compare("eq", te.cast(at[k], "int64"), z), value[k], 0.0), (again, k))
    )
    assert as_scatter(out.stage, Indices()) is not None
    places, values = np.array([1, 2, 1, -1, 7], np.int32), np.arange(5.0)
    (got,) = evaluate([out], {at: places, value: values})
    np.testing.assert_array_equal(got, [0, 8, 4])


def test_a_place_that_is_the_distance_of_two_variables() -> None:
    """Arithmetic alone says where, but of two variables: one pass over both takes less than all of both for each place. The gradient of
    biases by relative position is such a sum, where the table of positions is computed in the same kernel."""
    x = te.placeholder("x", (4, 5), "float64")
    i, j = te.reduce_axis(4), te.reduce_axis(5)
    out = te.compute((6,), lambda z: te.sum(te.select(te.compare("eq", i - j + 3, z), x[i, j], 0.0), (i, j)))
    form = as_scatter(out.stage, Indices())
    assert form is not None and len(form.places) == 1
    values = np.arange(20.0).reshape(4, 5)
    wanted = [np.trace(values, 3 - z) for z in range(6)]
    (got,) = evaluate([out], {x: values})
    np.testing.assert_array_equal(got, wanted)
