"""Attention against NumPy, head by head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay import te
from relay.ir.dtypes import dtype_name
from tests.op import harness as h
from tests.op.harness import Array, Case, Draw, Drawn


def attend(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    function: Callable[[tuple[int, ...], Array], Array] | None = None,
    factor: Array | None = None,
    **attrs: Any,
) -> Array:
    """Attention as the papers write it, in float64, for every head by itself; a ``function`` of the place of a head and its scores, and a
    ``factor`` of the shares (where it is false, these are 0)."""
    *lead, m, d = query.shape
    n = key.shape[-2]
    out = np.zeros((*lead, m, value.shape[-1]))
    scale = d**-0.5 if attrs.get("scale") is None else attrs["scale"]
    for at in np.ndindex(*lead):
        theirs = (*at[:-1], at[-1] * key.shape[len(lead) - 1] // query.shape[len(lead) - 1]) if at else at
        scores = query[at].astype(np.float64) @ key[theirs].astype(np.float64).T * scale
        if function is not None:
            scores = function(at, scores)
        if mask is not None:
            mine = np.broadcast_to(mask, (*lead, m, n))[at]
            scores = np.where(mine, scores, -np.inf) if mask.dtype == bool else scores + mine.astype(np.float64)
        if attrs.get("causal"):
            scores[np.triu_indices(m, 1 + n - m, n)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        shares = weights / weights.sum(-1, keepdims=True)
        if factor is not None:
            own = np.broadcast_to(factor, (*lead, m, n))[at]
            shares = np.where(own, shares, 0) if factor.dtype == bool else shares * own.astype(np.float64)
        out[at] = shares @ value[theirs].astype(np.float64)
    return out.astype(query.dtype)


def _draw(shared: bool) -> Any:
    def draw(d: Draw) -> Drawn:
        kind = h.dtype(d, h.FLOATS)
        rank, heads = d(st.integers(0, 2)), d(st.integers(1, 3))
        group = d(st.sampled_from([g for g in (2, 3, 4) if heads * g <= 6] if shared else [1, heads]))
        mine = heads * group if shared else heads
        theirs = heads if shared or group == 1 else 1
        batch = (d(st.integers(1, 2)),) if rank == 2 else ()
        m, n, e = (d(st.integers(1, 20)) for _ in range(3))
        depth = d(st.integers(1, 20))
        causal = d(st.booleans()) and n >= m
        q, k, v = (
            h.array(d, (*batch, *((number,) if rank else ()), length, size), kind, -2, 2)
            for number, length, size in ((mine, m, depth), (theirs, n, depth), (theirs, n, e))
        )
        operands = [q, k, v]
        if d(st.booleans()):
            of = h.broadcastable(d, (*q.shape[:-1], n))
            mask = h.array(d, of, d(st.sampled_from([kind, "float32", "bool"])), -3, 3)
            operands.append(mask)
        return tuple(operands), {"causal": causal, "scale": d(st.sampled_from([None, 1.0, 0.3]))}

    return draw


def cotangents(
    query: Array, key: Array, value: Array, result: Array, cotangent: Array, masks: tuple[Array, ...], **attrs: Any
) -> tuple[Array, ...]:
    """The cotangents of query, key and value (and of the mask, where asked for) as the papers write them, in float64, for every head by
    itself."""
    *lead, m, d = query.shape
    n = key.shape[-2]
    wide = [x.astype(np.float64) for x in (query, key, value, result, cotangent)]
    factor = d**-0.5 if attrs.get("scale") is None else attrs["scale"]
    out = [np.zeros(x.shape) for x in wide[:3]]
    of_masked = np.zeros((*lead, m, n))
    for at in np.ndindex(*lead):
        theirs = (*at[:-1], at[-1] * key.shape[len(lead) - 1] // query.shape[len(lead) - 1]) if at else at
        (q, o, g), (k, v) = (wide[i][at] for i in (0, 3, 4)), (wide[i][theirs] for i in (1, 2))
        scores, seen = q @ k.T * factor, np.ones((m, n), bool)
        for mask in masks:
            mine = np.broadcast_to(mask, (*lead, m, n))[at]
            seen = seen & mine if mask.dtype == bool else seen
            scores = scores if mask.dtype == bool else scores + mine.astype(np.float64)
        if attrs.get("causal"):
            seen = seen & (np.arange(n) <= np.arange(m)[:, None] + n - m)
        weights = np.where(seen, np.exp(scores - scores.max(-1, keepdims=True)), 0)
        total = weights.sum(-1, keepdims=True)
        shares = weights / np.where(total > 0, total, 1)
        of_masked[at] = shares * (g @ v.T - (g * o).sum(-1, keepdims=True))
        of_scores = of_masked[at] * factor
        out[0][at] = of_scores @ k
        out[1][theirs] += of_scores.T @ q
        out[2][theirs] += shares.T @ g
    found = [x.astype(query.dtype) for x in out]
    for number in attrs["also"]:
        own = (1,) * (of_masked.ndim - masks[number].ndim) + masks[number].shape
        over = tuple(axis for axis, size in enumerate(own) if size == 1)
        found.append(of_masked.sum(over, keepdims=True).reshape(masks[number].shape).astype(masks[number].dtype))
    return tuple(found)


def _draw_cotangents(d: Draw) -> Drawn:
    (query, key, value, *mask), attrs = _draw(d(st.booleans()))(d)
    result = (*query.shape[:-1], value.shape[-1])
    kind = dtype_name(query.dtype)
    given_ = [h.array(d, result, kind, -2, 2) for _ in range(2)]
    floats = [n for n, each in enumerate(mask) if each.dtype != bool]
    return (query, key, value, *given_, tuple(mask)), {**attrs, "also": tuple(floats) if d(st.booleans()) else ()}


def scored(
    query: Array, key: Array, value: Array, operands: tuple[Array, ...], *, masked: bool, weighed: bool, **attrs: Any
) -> Array:
    """``3 * tanh((scale * q k^T) * x + y)`` with a mask, and weighed shares, head by head."""
    own = list(operands)
    mask = own.pop(0) if masked else None
    factor = own.pop() if weighed else None
    x, y = (np.broadcast_to(a.astype(np.float64), (*query.shape[:-1], key.shape[-2])) for a in own)
    return attend(query, key, value, mask, lambda at, scores: 3 * np.tanh(scores * x[at] + y[at]), factor, **attrs)


# 0 is the product, 1 and 2 the operands, then the steps.
_STEPS = (("multiply", (0, 1)), ("add", (3, 2)), ("tanh", (4,)), ("multiply", (3.0, 5)))


def _draw_scored(d: Draw) -> Drawn:
    (query, key, value, *mask), attrs = _draw(d(st.booleans()))(d)
    whole, kind = (*query.shape[:-1], key.shape[-2]), dtype_name(query.dtype)
    beside = [h.array(d, h.broadcastable(d, whole), kind, -2, 2) for _ in range(2)]
    weighed = d(st.booleans())
    factor = [h.array(d, h.broadcastable(d, whole), d(st.sampled_from([kind, "bool"])), -2, 2)] if weighed else []
    flags = {"score": _STEPS, "masked": bool(mask), "weighed": weighed}
    return (query, key, value, (*mask, *beside, *factor)), {**attrs, **flags}


def _scored_by_numpy(*arrays: Any, score: object, **attrs: Any) -> Array:
    return scored(*arrays, **attrs)


CASES = [
    Case("nn.attention", _draw(False), attend),
    Case("nn.attention_cotangents", _draw_cotangents, cotangents, symbolic=False),
    Case("nn.scored_attention", _draw_scored, _scored_by_numpy, symbolic=False),
]
# How many heads share a key has to be a number.
SHARED = Case("nn.attention", _draw(True), attend, symbolic=False)


@pytest.mark.parametrize("case", [*CASES, SHARED], ids=["heads", "cotangents", "scored", "shared"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_against_numpy(case: Case, data: st.DataObject) -> None:
    h.check(case, *case.draw(data.draw))


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(3, 5, 4), (3, 5, 3), (3, 5, 4)], "sizes of the heads"),
        ([(3, 5, 4), (3, 6, 4), (3, 5, 4)], "lengths"),
        ([(3, 5, 4), (2, 5, 4), (2, 5, 4)], "multiple"),
        ([(5, 4), (1, 5, 4), (1, 5, 4)], "one rank"),
        ([(4,), (4,), (4,)], "rank 2 or more"),
        ([(3, 5, 4), (3, 5, 4), (3, 5, 4), (1, 7)], "mask"),
    ],
)
def test_what_does_not_fit_is_refused(shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(te.DefinitionError, match=message):
        h.apply("nn.attention", *(np.zeros(s, np.float32) for s in shapes))
