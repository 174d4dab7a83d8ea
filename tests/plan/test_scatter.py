"""Reductions that select one place: rows of every length, whole vectors and what is left of them."""

from __future__ import annotations

import numpy as np
import pytest

from relay.ir.dim import DimVar, as_dim
from relay.loop.ir import For
from relay.loop.walk import statements
from relay.plan.kernel_plan import make_plan
from tests.plan.harness import ZEN4, check, primitive, tensor

V, W = DimVar("n"), DimVar("w")
N, WIDTH = as_dim(V), as_dim(W)
PLACES = np.array([3, 3, 0, -1, 3, 5, 2, 2, 9, 3], np.int64)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8", "int32"])
@pytest.mark.parametrize("name", ["segment_sum", "segment_max"])
def test_rows_of_any_length(name: str, dtype: str) -> None:
    """Many rows in a row are combined at one place; some places are outside."""
    rng = np.random.default_rng(0)
    build = lambda m, x, at: m(name, x, at, num_segments=6)  # noqa: E731
    prim = primitive([tensor((10, WIDTH), dtype), tensor((10,), "int64")], build)
    widths = (0, 1, 2, 3, 5, 7, 8, 13, 16, 17, 24, 31, 63, 64, 127, 128, 131, 200, 259)
    check(prim, *({W: w} for w in widths), inputs=lambda env: [rng.integers(-9, 9, (10, env[W])).astype(dtype), PLACES])


@pytest.mark.parametrize("width", [1, 3, 6, 8, 12, 16, 24, 100, 130, 137])
def test_rows_of_a_known_length(width: int) -> None:
    x = np.random.default_rng(0).integers(-9, 9, (10, width)).astype("float32")
    build = lambda m, x, at: m("segment_sum", x, at, num_segments=6)  # noqa: E731
    check(primitive([tensor((10, width)), tensor((10,), "int64")], build), {}, inputs=[x, PLACES])


def test_what_is_left_of_a_row_is_stored_by_parts() -> None:
    """No processor forwards what was stored under a mask to a load."""
    build = lambda m, x, at: m("segment_sum", x, at, num_segments=6)  # noqa: E731
    plan = make_plan(primitive([tensor((N, WIDTH)), tensor((N,), "int64")], build), ZEN4)
    loops = [s for s in statements(plan.kernel.body) if isinstance(s, For) and s.kind == "vectorized"]
    parts = [s.var.extent for s in loops if isinstance(s.var.extent, int) and s.var.extent < 16]
    assert parts == ([8, 4, 2, 1] if ZEN4.masked else [])
