"""What definitions may say of elements beside numbers of Python and NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from relay import te
from relay.te.evaluate import evaluate

X = np.array([1.5, -2.0, 0.25], np.float32)
Body = Callable[[Any, Any], Any]

NUMBERS: dict[str, tuple[Body, np.ndarray]] = {
    "on the left": (lambda x, i: np.float32(0.1) * x[i], np.float32(0.1) * X),
    "on the right": (lambda x, i: x[i] * np.float32(0.1), np.float32(0.1) * X),
    "of another width": (lambda x, i: np.float64(0.5) - x[i] + np.int64(2), np.float32(2.5) - X),
    "compared": (lambda x, i: te.select(np.float32(1) < x[i], x[i], te.const(0.0, "float32")), np.where(X > 1, X, 0)),
    "as an index": (lambda x, i: x[np.int64(1)] + x[i - i + np.int32(2)], np.full(3, -1.75, np.float32)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_numpy_are_numbers(name: str) -> None:
    body, wanted = NUMBERS[name]
    x = te.placeholder("x", (3,), "float32")
    (found,) = evaluate([te.compute((3,), lambda i: body(x, i))], {x: X})
    assert found.dtype == np.float32 and np.array_equal(found, wanted)


@pytest.mark.parametrize(
    ("a", "b", "dtype"),
    [
        (1.0, 0.0, "float32"),
        (1, 0.5, "float32"),
        (np.float32(0.5), 0, "float32"),
        (2, np.int32(3), "int64"),
        (True, False, "bool"),
        (np.True_, False, "bool"),
    ],
)
def test_two_numbers_are_of_the_kind_that_they_are_written_in(a: Any, b: Any, dtype: str) -> None:
    """Floats without a fraction were int64, as places are, and what a threshold gave could not be multiplied by a weight."""
    x = te.placeholder("x", (3,), "float32")
    chosen = te.compute((3,), lambda i: te.select(x[i] > 0.0, a, b))
    (found,) = evaluate([chosen], {x: X})
    assert str(found.dtype) == chosen.dtype == dtype and np.array_equal(found, np.where(X > 0, a, b))


def test_functions_and_arrays_of_numpy_are_refused() -> None:
    x: Any = te.placeholder("x", (3,), "float32")
    with pytest.raises(TypeError, match="does not support ufuncs"):
        te.compute((3,), lambda i: np.exp(x[i]))
    wrongs: tuple[Callable[[Any], Any], ...] = (lambda i: x[i] * np.ones(3), lambda i: np.ones(3) * x[i])
    for wrong in wrongs:
        with pytest.raises(TypeError, match="not a number or an expression of one element"):
            te.compute((3,), wrong)
