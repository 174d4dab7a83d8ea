"""Fusion classes and accesses of operators' definitions."""

from __future__ import annotations

from typing import Any

import pytest

from relay import te
from relay.ir.dim import dim_var
from relay.op import registry
from relay.te.classify import Access, Classified, FusionClass, Reading, classify

N = dim_var("n")
F = "float32"
E, B, I, R, C, O = FusionClass  # noqa: E741

TABLE: list[tuple[FusionClass, str, list[Any], dict[str, Any]]] = [
    (E, "exp", [((N, 3), F)], {}),
    (E, "add", [((N, 3), F), ((N, 3), F)], {}),
    (E, "zeros_like", [((N, 3), F)], {}),
    (B, "add", [((N, 3), F), ((3,), F)], {}),
    (B, "multiply", [((N, 3), F), ((), F)], {}),
    (B, "nn.bias_add", [((N, 3), F), ((3,), F)], {}),
    (B, "broadcast_to", [((3,), F)], {"shape": (N, 3)}),
    (B, "nn.batch_norm", [((N, 4), F)] + [((4,), F)] * 4, {}),
    (I, "transpose", [((N, 3), F)], {}),
    (I, "reshape", [((N, 6), F)], {"newshape": (-1, 2, 3)}),
    (I, "take", [((N, 3), F), ((5,), "int32")], {"axis": 0}),
    (I, "strided_slice", [((8, 3), F)], {"begin": (2,), "end": (6,)}),
    (I, "concatenate", [[((N, 3), F), ((2, 3), F)]], {}),
    (I, "nn.pad", [((N, 3), F)], {"pad_width": ((0, 0), (1, 1))}),
    (R, "sum", [((N, 3), F)], {"axis": 1}),
    (R, "mean", [((N, 3), F)], {"axis": 0}),
    (R, "argmax", [((N, 3), F)], {"axis": 1}),
    (R, "nn.softmax", [((N, 3), F)], {}),
    (R, "nn.layer_norm", [((N, 3), F), ((3,), F), ((3,), F)], {}),
    (R, "variance", [((N, 3), F)], {"axis": 1}),
    (R, "nn.l2_normalize", [((N, 3), F)], {"axis": 1}),
    (R, "nn.max_pool2d", [((1, 2, 6, 6), F)], {"pool_size": (2, 2), "padding": (1, 1)}),
    (C, "nn.dense", [((N, 3), F), ((5, 3), F)], {}),
    (C, "nn.batch_matmul", [((2, N, 4), F), ((2, N, 4), F)], {}),
    (C, "nn.conv2d", [((1, 2, 6, 6), F), ((3, 2, 3, 3), F)], {"padding": (1, 1)}),
    (O, "cumsum", [((N, 3), F)], {"axis": 0}),
]


def _classified(name: str, inputs: list[Any], attrs: dict[str, Any]) -> Classified:
    traced = registry.trace(registry.get(name), inputs, attrs)
    return classify(traced.inputs, traced.outputs)


@pytest.mark.parametrize(("fusion", "name", "inputs", "attrs"), TABLE, ids=[f"{t[1]}-{n}" for n, t in enumerate(TABLE)])
def test_classes(fusion: FusionClass, name: str, inputs: list[Any], attrs: dict[str, Any]) -> None:
    assert _classified(name, inputs, attrs).fusion is fusion


def test_accesses() -> None:
    x = ((N, 3), F)
    assert _classified("exp", [x], {}).inputs == (Access(Reading.IDENTITY, 1, False),)
    assert _classified("zeros_like", [x], {}).inputs == (None,)
    row = _classified("add", [x, ((3,), F)], {}).inputs[1]
    assert row == Access(Reading.PROJECTION, 1, True)
    assert _classified("transpose", [x], {}).inputs == (Access(Reading.PERMUTATION, 1, False),)
    part = _classified("strided_slice", [x], {"begin": (0, 1), "end": (9, 2)}).inputs
    assert part == (Access(Reading.AFFINE, 1, False),)
    rows, picks = _classified("take", [x, ((5,), "int32")], {"axis": 0}).inputs
    assert rows == Access(Reading.GENERAL, 1, True) and picks == Access(Reading.PROJECTION, 1, True)
    assert _classified("sum", [x], {"axis": 1}).inputs == (Access(Reading.AFFINE, 1, False),)
    weights = _classified("nn.dense", [x, ((5, 3), F)], {}).inputs[1]
    assert weights == Access(Reading.AFFINE, 1, True)
    # Softmax reads its data for the maximum and again to shift it.
    softmax = _classified("nn.softmax", [x], {}).inputs[0]
    assert softmax is not None and softmax.loads == 2


def _user(define: Any) -> FusionClass:
    x = te.placeholder("x", (N, 8), F)
    out = define(x)
    return classify([x], [out]).fusion


def test_what_follows_a_contraction() -> None:
    k = te.reduce_axis(8)

    def square(x: te.Tensor) -> te.Tensor:
        return te.compute((N, N), lambda i, j: te.sum(x[i, k] * x[j, k], k))

    def scaled(x: te.Tensor) -> te.Tensor:
        product = square(x)
        return te.compute((N, N), lambda i, j: product[i, j] * 2.0)

    def turned(x: te.Tensor) -> te.Tensor:
        product = square(x)
        return te.compute((N, N), lambda i, j: product[j, i])

    def twice(x: te.Tensor) -> te.Tensor:
        product, m = square(x), te.reduce_axis(N)
        return te.compute((N, N), lambda i, j: te.sum(product[i, m] * product[m, j], m))

    assert _user(square) is FusionClass.CONTRACTION
    assert _user(scaled) is FusionClass.CONTRACTION
    assert _user(turned) is FusionClass.OPAQUE
    assert _user(twice) is FusionClass.OPAQUE


def test_a_sum_of_squares_is_a_reduction() -> None:
    k = te.reduce_axis(8)
    assert _user(lambda x: te.compute((N,), lambda i: te.sum(x[i, k] * x[i, k], k))) is FusionClass.REDUCTION


def test_reductions_of_different_rows_are_opaque() -> None:
    def both(x: te.Tensor) -> te.Tensor:
        k, m = te.reduce_axis(8), te.reduce_axis(N)
        rows = te.compute((N,), lambda i: te.sum(x[i, k], k))
        columns = te.compute((8,), lambda j: te.sum(x[m, j], m))
        return te.compute((N, 8), lambda i, j: rows[i] * columns[j])

    assert _user(both) is FusionClass.OPAQUE
