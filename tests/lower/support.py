"""What tests of kernels that primitives share have in common."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import relay
from relay.ir.dim import dim_evaluate, dim_vars
from relay.ir.types import TensorType


def operands(module: relay.Module, sizes: Mapping[str, int], rng: np.random.Generator) -> list[object]:
    """Values for the parameters of ``main``, with sizes by name: floats, and integers that are places of an axis named ``n``."""
    out: list[object] = []
    for param in module.function("main").params:
        assert isinstance(param.ty, TensorType) and isinstance(param.ty.shape, tuple)
        shape = [dim_evaluate(d, {v: sizes[v.name] for v in dim_vars(d)}) for d in param.ty.shape]
        if param.ty.dtype == "int64":
            out.append(rng.integers(0, sizes["n"], shape))
        else:
            out.append(rng.uniform(-0.3, 0.3, shape).astype(np.float32))
    return out


def same(found: object, expected: object) -> None:
    """The same numbers, in tuples of tuples."""
    if isinstance(found, tuple):
        assert isinstance(expected, tuple) and len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            same(a, b)
    else:
        np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-4, atol=1e-5)
