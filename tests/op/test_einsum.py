"""Einstein sums, and the cotangents that use a result, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.te.errors import DefinitionError
from tests.op import harness as h
from tests.op.harness import Array, Case, Draw, Drawn

EQUATIONS = (
    "ij,jk->ik", "ij,kj->ki", "bij,bjk->bik", "ij->ji", "ii->i", "ii->", "ij->", "ij,ij->", "i,j->ij", "ij,jk,kl->il",
    "bhqd,bhkd->bhqk", "...ij,...jk->...ik", "ij...,j->i...", "ij,jk", "iji->j", "ij,k->i", "abc,cd,da->b",
)  # fmt: skip


def _draw_einsum(d: Draw) -> Drawn:
    equation = d(st.sampled_from(EQUATIONS))
    sizes = {x: d(st.integers(1, 4)) for x in "abcdefghijklmnopqrstuvwxyz"}
    lead = h.shape(d, 0, 2, 1, 3)
    kind = h.dtype(d, ("float32", "float64", "int32"))
    operands = []
    for text in equation.partition("->")[0].split(","):
        before, dots, after = text.partition("...")
        rest = h.broadcastable(d, lead) if dots else ()
        shape = (*(sizes[x] for x in before), *rest, *(sizes[x] for x in after))
        operands.append(h.array(d, shape, kind))
    return (tuple(operands),), {"equation": equation}


def _einsum(data: tuple[Array, ...], equation: str) -> Any:
    return np.asarray(np.einsum(equation, *data)).astype(data[0].dtype)


def _draw_cotangent(d: Draw) -> Drawn:
    shape, kind = h.shape(d, 1, 3, 1), h.dtype(d, h.FLOATS)
    return (h.array(d, shape, kind, 0, 1), h.array(d, shape, kind)), {"axis": h.axis(d, len(shape))}


def _softmax_cotangent(y: Array, g: Array, axis: int) -> Any:
    wide, own = h.wide(y), h.wide(g)
    return (wide * (own - (wide * own).sum(axis, keepdims=True))).astype(y.dtype)


def _log_softmax_cotangent(y: Array, g: Array, axis: int) -> Any:
    return (h.wide(g) - np.exp(h.wide(y)) * h.wide(g).sum(axis, keepdims=True)).astype(y.dtype)


def _draw_logsumexp_cotangent(d: Draw) -> Drawn:
    shape, kind = h.shape(d, 1, 3, 1), h.dtype(d, h.FLOATS)
    axis, keepdims = h.axis(d, len(shape)), d(st.booleans())
    left = tuple(1 if n == axis % len(shape) else s for n, s in enumerate(shape) if keepdims or n != axis % len(shape))
    return (h.array(d, shape, kind), h.array(d, left, kind)), {"axis": axis, "keepdims": keepdims}


def _logsumexp_cotangent(x: Array, g: Array, axis: int, keepdims: bool) -> Any:
    share = np.exp(h.wide(x) - h.wide(x).max(axis, keepdims=True))
    spread = h.wide(g) if keepdims else np.expand_dims(h.wide(g), axis)
    return (share / share.sum(axis, keepdims=True) * spread).astype(x.dtype)


CASES = [
    Case("einsum", _draw_einsum, _einsum),
    Case("nn.softmax_cotangent", _draw_cotangent, _softmax_cotangent),
    Case(
        "nn.log_softmax_cotangent",
        _draw_cotangent,
        _log_softmax_cotangent,
        tolerance={"float16": 1e-2, "bfloat16": 6e-2},
    ),
    Case("logsumexp_cotangent", _draw_logsumexp_cotangent, _logsumexp_cotangent),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_operator(case: Case, data: st.DataObject) -> None:
    operands, attrs = case.draw(data.draw)
    h.check(case, operands, attrs)


@pytest.mark.parametrize(
    ("equation", "message"),
    [
        ("ij,jk->ik", "has 2 operands, but 1"),
        ("i->i", "names 1 axes of rank 2"),
        ("ij->ik", r"no operand of 'ij->ik' has the axes \['k'\]"),
        ("ij->ii", "names an axis twice"),
        ("i.j->", "is not made of letters"),
        ("...j->j", "leaves out the ellipsis"),
        ("ii->i", "must agree"),
    ],
)
def test_wrong_equations(equation: str, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        h.apply("einsum", (np.zeros((2, 3), np.float32),), equation=equation)
