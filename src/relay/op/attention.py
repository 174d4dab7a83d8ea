"""Scaled dot-product attention."""

from __future__ import annotations

import math

from relay import te
from relay.ir.dim import Dim, dim_sub
from relay.ir.types import is_float
from relay.op.registry import operator
from relay.op.support import accumulation_dtype, require_float, require_same_dtype

_OP = "nn.attention"


@operator(_OP)
def attention(
    query: te.Tensor,
    key: te.Tensor,
    value: te.Tensor,
    mask: te.Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    hidden: float = -math.inf,
) -> te.Tensor:
    """``softmax(scale * query @ key^T + mask) @ value`` over the last two axes, one product for every head.

    Vaswani et al., Attention Is All You Need (2017). ``query``: (..., h, m, d); ``key``: (..., g, n, d); ``value``:
    (..., g, n, e); the result is (..., h, m, e). Heads may be missing (rank 2). Where g is less than h, it divides h and
    h // g neighbouring heads of the query share a head of the key (Ainslie et al., GQA, 2023). ``mask`` broadcasts to
    (..., h, m, n): floats are added to the scores, of booleans the true ones are let through. ``scale`` is 1/sqrt(d)
    unless given. With ``causal`` a query sees no later key, where the last query belongs to the last key. ``hidden`` is
    the score of a key that is not let through or not seen: -inf, or a finite one, which counts like any other. A query
    that sees no key gives nan, or with a finite ``hidden`` the mean of all values; what a key without weight has for a
    value must be finite. Floats of 16 bits are computed in float32.
    """
    require_float(query, _OP)
    given = require_same_dtype(_OP, query, key, value)
    te.require(query.ndim >= 2, f"the query of {_OP} must have rank 2 or more, not {query.ndim}")
    te.require(
        key.ndim == query.ndim and value.ndim == query.ndim,
        f"the operands of {_OP} must have one rank, not {query.ndim}, {key.ndim} and {value.ndim}",
    )
    te.require(hidden < math.inf, f"the score of a hidden key of {_OP} must be finite or -inf, not {hidden}")
    dtype = accumulation_dtype(given)
    *lead, m, depth = query.shape
    n, columns = value.shape[-2:]
    depth = te.require_equal(depth, key.shape[-1], f"the sizes of the heads of {_OP}'s query and key")
    n = te.require_equal(key.shape[-2], n, f"the lengths of {_OP}'s key and value")
    group = _group(lead, key, value)

    def shared(outer: tuple[te.Scalar, ...]) -> tuple[te.Scalar, ...]:
        """The key's index for an index of the query's leading axes."""
        if not outer or group == 1:
            return outer
        return (*outer[:-1], te.const(0, "int64") if group is None else outer[-1] // group)

    factor: te.Scalar = te.const(scale, dtype) if scale is not None else _default_scale(depth, dtype)
    d = te.reduce_axis(depth, "d")

    def score(*i: te.Scalar) -> te.Scalar:
        *outer, row, column = i
        left = te.cast(query[(*outer, row, d)], dtype)
        return te.sum(left * te.cast(key[(*shared(tuple(outer)), column, d)], dtype), d)

    raw = te.compute((*lead, m, n), score, "scores")

    def masked(*i: te.Scalar) -> te.Scalar:
        out = raw[i] * factor
        unseen = te.const(hidden, dtype)
        if mask is not None:
            te.require(
                mask.dtype == "bool" or is_float(mask.dtype),
                f"the mask of {_OP} must hold booleans or floats, not {mask.dtype}: cast it",
            )
            at = te.broadcast_index(mask, i)
            out = te.select(at, out, unseen) if mask.dtype == "bool" else out + te.cast(at, dtype)
        if causal:
            out = te.select(i[-1] <= i[-2] + te.size(dim_sub(n, m)), out, unseen)
        return out

    if mask is not None:
        te.require(mask.ndim <= query.ndim, f"the mask of {_OP} has rank {mask.ndim}, more than the scores")
        whole = (*lead, m, n)
        for own, dim in zip(mask.shape, whole[len(whole) - mask.ndim :], strict=True):
            if not te.known_is(own, 1):
                te.require_equal(own, dim, f"the mask and the scores of {_OP}")
    scores = te.compute((*lead, m, n), masked, "masked")
    k = te.reduce_axis(n, "k")
    largest = te.compute((*lead, m), lambda *i: te.max(scores[(*i, k)], k), "largest")
    weight = te.compute((*lead, m, n), lambda *i: te.exp(scores[i] - largest[i[:-1]]), "weight")
    t = te.reduce_axis(n, "t")
    total = te.compute((*lead, m), lambda *i: te.sum(weight[(*i, t)], t), "total")
    share = te.compute((*lead, m, n), lambda *i: weight[i] / total[i[:-1]], "share")
    j = te.reduce_axis(n, "j")

    def attended(*i: te.Scalar) -> te.Scalar:
        *outer, row, column = i
        right = te.cast(value[(*shared(tuple(outer)), j, column)], dtype)
        return te.sum(share[(*outer, row, j)] * right, j)

    out = te.compute((*lead, m, columns), attended, "attended")
    return out if dtype == given else te.compute(out.shape, lambda *i: te.cast(out[i], given), "attention")


def _group(lead: list[Dim], key: te.Tensor, value: te.Tensor) -> int | None:
    """How many heads of the query share one of the key (None: all share one); checks the leading axes."""
    for n, dim in enumerate(lead[:-1]):
        te.require_equal(dim, key.shape[n], f"the batches of {_OP}'s query and key")
        te.require_equal(dim, value.shape[n], f"the batches of {_OP}'s query and value")
    if not lead:
        return 1
    heads, shared = lead[-1], key.shape[len(lead) - 1]
    te.require_equal(shared, value.shape[len(lead) - 1], f"the heads of {_OP}'s key and value")
    if te.known_is(shared, 1):
        return None
    if not isinstance(heads, int) or not isinstance(shared, int):
        te.require_equal(heads, shared, f"the heads of {_OP}'s query and key (numbers, where they differ)")
        return 1
    te.require(
        shared > 0 and heads % shared == 0,
        f"the {heads} heads of {_OP}'s query are not a multiple of the key's {shared}",
    )
    return heads // shared


def _default_scale(depth: Dim, dtype: str) -> te.Scalar:
    """1/sqrt of the size of a head."""
    if isinstance(depth, int):
        return te.const(max(depth, 1) ** -0.5, dtype)
    return te.rsqrt(te.size(depth, dtype))
