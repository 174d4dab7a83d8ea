"""Constants of an executable: equal contents are stored once, and nothing else is taken for equal."""

from __future__ import annotations

import numpy as np
import pytest

from relay.ir.expr import Constant
from relay.lower.unit import Unit


@pytest.mark.parametrize("shape", [(), (0,), (3,), (7, 5), (300, 400)])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_equal_contents_are_stored_once(shape: tuple[int, ...], dtype: str) -> None:
    unit = Unit({}, {}, {}, {}, {})
    first = np.random.default_rng(0).integers(-9, 9, shape).astype(dtype)
    turned = np.array(first.T, order="C").T  # the same elements in another order in memory
    numbers = [unit.constant(Constant(each, dtype)) for each in (first, first.copy(), turned)]
    assert numbers == [0, 0, 0]
    assert len(unit.constants) == 1


def test_constants_that_differ_in_one_element_are_two() -> None:
    unit = Unit({}, {}, {}, {}, {})
    zero = np.zeros((300, 400), np.float32)
    others = []
    for at in (0, 1, 7777, zero.size - 1):
        others.append(zero.copy())
        others[-1].reshape(-1)[at] = 1
    numbers = [unit.constant(Constant(each, "float32")) for each in (zero, *others, *[each.copy() for each in others])]
    assert numbers == [0, 1, 2, 3, 4, 1, 2, 3, 4]


def test_elements_of_another_kind_or_shape_are_another_constant() -> None:
    unit = Unit({}, {}, {}, {}, {})
    ones = np.ones(12, np.int32)
    each = [Constant(ones, "int32"), Constant(ones.reshape(3, 4), "int32"), Constant(ones.view(np.uint32), "uint32")]
    assert [unit.constant(c) for c in each] == [0, 1, 2]
