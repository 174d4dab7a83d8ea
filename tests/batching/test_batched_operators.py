"""The batched form of every operator: each row is what the operator makes of that row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay import te
from relay.interpreter.operators import apply_operator
from relay.ir.diagnostics import OperatorError, RelayError
from relay.op import registry
from relay.op.batched import can_batch
from tests.op import (
    test_attention,
    test_broadcast,
    test_elementwise,
    test_images,
    test_matrix,
    test_reduction,
    test_shapes,
)
from tests.op.harness import TOLERANCE, Case

FAMILIES = (
    test_attention, test_broadcast, test_elementwise, test_images, test_matrix, test_reduction, test_shapes,
)  # fmt: skip
CASES = {c.name: c for family in FAMILIES for c in family.CASES if can_batch(registry.get(c.name))}


def parts(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


@pytest.mark.parametrize("name", sorted(CASES))
@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_rows_are_independent(name: str, data: st.DataObject) -> None:
    case: Case = CASES[name]
    operands, attrs = case.draw(data.draw)
    flat = [np.asarray(e) for x in operands for e in parts(x)]
    if not flat:
        return
    count = data.draw(st.integers(1, 3))
    mask = [data.draw(st.booleans()) for _ in flat]
    mask[data.draw(st.integers(0, len(mask) - 1))] = True
    # Other rows have the same elements elsewhere, so that indices stay indices.
    rows = [[np.roll(x.reshape(-1), n).reshape(x.shape) if on else x for x, on in zip(flat, mask, strict=True)]
            for n in range(count)]  # fmt: skip
    stacked = [np.stack([r[n] for r in rows]) if on else flat[n] for n, on in enumerate(mask)]

    def grouped(arrays: list[Any]) -> list[Any]:
        given_arrays = iter(arrays)
        return [tuple(next(given_arrays) for _ in x) if isinstance(x, tuple) else next(given_arrays) for x in operands]

    op = registry.get(name)
    with np.errstate(all="ignore"):
        try:
            expected = [parts(apply_operator(op, grouped(r), attrs, None)) for r in rows]
        except RelayError:
            return  # the rolled operands mean something else to this operator
        batched = registry.get(f"{name}.batched")
        found = parts(apply_operator(batched, grouped(stacked), {**attrs, "mask": tuple(map(int, mask))}, None))
    for n, part in enumerate(found):
        # The interpreter sums products in an order of its own, which may depend on the shape.
        _close(part, np.stack([e[n] for e in expected]))


def _close(found: Any, expected: Any) -> None:
    assert found.shape == expected.shape and found.dtype == expected.dtype
    tolerance = TOLERANCE.get(expected.dtype.name)
    if tolerance is None:
        np.testing.assert_array_equal(found, expected)
    else:
        wide = np.float64
        np.testing.assert_allclose(found.astype(wide), expected.astype(wide), rtol=tolerance, atol=tolerance)


def test_what_has_no_batched_form() -> None:
    for name in ("unique", "dyn.reshape"):
        with pytest.raises(OperatorError, match="no batched form"):
            registry.get(f"{name}.batched")
    with pytest.raises(OperatorError, match="unknown operator"):
        registry.get("nothing.batched")


def test_rows_must_agree() -> None:
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(RelayError):
        apply_operator(registry.get("add.batched"), (x, np.zeros((4, 3), np.float32)), {"mask": (1, 1)}, None)


def test_a_dense_layer_over_rows_is_one_product() -> None:
    traced = registry.trace(
        registry.get("nn.dense.batched"), [((8, 1, 16), "float32"), ((32, 16), "float32")], {"mask": (1, 0)}
    )
    (stage,) = (s for s in te.stages(traced.outputs) if isinstance(s, te.tensor.Compute))
    assert stage.shape == (8, 1, 32)
