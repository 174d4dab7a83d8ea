"""Copies that swap two axes: by squares in registers where they are large enough, the same elements in any case."""

from __future__ import annotations

import numpy as np
import pytest

from relay.codegen.target import parse_target
from relay.codegen.transpose import transposing_copy
from relay.ir.dim import as_var, dim_var
from relay.loop.ir import Buffer, For, Kernel, LoopKind, Store
from relay.te.scalar import Axis, Const, Load, Scalar, Size, binary
from tests.codegen.native import Native

N, M = dim_var("n"), dim_var("m")
VN, VM = as_var(N), as_var(M)


def copy(
    rows: Scalar, depth: Scalar, stride: int, width: int, kind: LoopKind = "serial", dtype: str = "float32"
) -> For:
    """``out[d * width + r] = x[r * stride + d]``."""
    x, out = Buffer("x", (M,), dtype), Buffer("out", (N,), dtype)
    r, d = Axis("r", N), Axis("d", M)
    value = Load(x, (binary("add", binary("mul", r, stride), d),), dtype)
    store = Store(out, (binary("add", binary("mul", d, width), r),), value)
    return For(r, rows, For(d, depth, store, kind))


def kernel(loop: For) -> Kernel:
    assert isinstance(loop.body, For) and isinstance(loop.body.body, Store)
    store = loop.body.body
    assert (
        isinstance(store.value, Load) and isinstance(store.value.source, Buffer) and VN is not None and VM is not None
    )
    return Kernel("copy", (store.value.source,), (store.buffer,), (VN, VM), loop)


@pytest.mark.parametrize("target", ["cpu", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
@pytest.mark.parametrize("constant", [False, True])
def test_every_size(target: str, kind: LoopKind, constant: bool) -> None:
    rng = np.random.default_rng(1)
    for rows, depth in [(1, 1), (3, 40), (40, 3), (16, 16), (17, 31), (32, 48), (70, 65)]:
        stride, width = depth + 5, rows + 3
        sizes: tuple[Scalar, Scalar] = (Size(N), Size(M))
        if constant:
            sizes = (Const(rows, "int64"), Const(depth, "int64"))
        loop = copy(*sizes, stride, width, kind)
        assert transposing_copy(loop) is not None
        x = rng.standard_normal(rows * stride).astype(np.float32)
        out = np.full(depth * width + 1, 7, np.float32)
        assert VN is not None and VM is not None
        assert Native(kernel(loop), parse_target(target))([x, out], {VN: rows, VM: depth}) == 0
        wanted = np.full((depth, width), 7, np.float32)
        wanted[:, :rows] = x.reshape(rows, stride)[:, :depth].T
        np.testing.assert_array_equal(out[:-1].reshape(depth, width), wanted)
        assert out[-1] == 7


def test_squares_are_transposed_in_registers() -> None:
    native = Native(kernel(copy(Size(N), Size(M), 64, 64)), parse_target("cpu"))
    assert "shufflevector" in native.text


def test_other_copies_are_left_alone() -> None:
    assert transposing_copy(copy(Size(N), Size(M), 1, 1)) is None, "no axis to swap"
    assert transposing_copy(copy(Size(N), Size(M), 64, 64, dtype="float64")) is None
    loop = copy(Size(N), Size(M), 64, 64)
    assert isinstance(loop.body, For)
    assert transposing_copy(For(loop.var, loop.extent, For(loop.body.var, loop.var, loop.body.body))) is None
