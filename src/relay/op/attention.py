"""Scaled dot-product attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from relay import te
from relay.ir.dim import Dim, dim_sub
from relay.ir.types import is_float
from relay.op.registry import operator
from relay.op.support import accumulation_dtype, require_float, require_same_dtype

_OP = "nn.attention"
_COTANGENTS = "nn.attention_cotangents"


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
    it = _attended(_OP, query, key, value, mask, scale, causal, hidden)
    j = te.reduce_axis(it.n, "j")

    def attended(*i: te.Scalar) -> te.Scalar:
        *outer, row, column = i
        right = te.cast(value[(*it.shared(tuple(outer)), j, column)], it.dtype)
        return te.sum(it.share[(*outer, row, j)] * right, j)

    out = te.compute((*it.lead, it.m, value.shape[-1]), attended, "attended")
    return out if it.dtype == it.given else te.compute(out.shape, lambda *i: te.cast(out[i], it.given), "attention")


@operator(_COTANGENTS)
def attention_cotangents(
    query: te.Tensor,
    key: te.Tensor,
    value: te.Tensor,
    result: te.Tensor,
    cotangent: te.Tensor,
    masks: tuple[te.Tensor, ...],
    *,
    scale: float | None = None,
    causal: bool = False,
    hidden: float = -math.inf,
) -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    """The cotangents of the query, key and value of `nn.attention`, from these, its result and the cotangent of that, and its
    mask (``masks`` has one or none).

    Dao et al., FlashAttention (2022), appendix B.2: with the shares P of the keys, ``dV = P^T dO``, ``dP = dO V^T``,
    ``dS = P * (dP - sum(dO * O))``, ``dQ = scale * dS K``, ``dK = scale * dS^T Q``, where heads that share a key add up. A
    query that sees no key counts for nothing (its result is nan), unless ``hidden`` is finite.
    """
    te.require(len(masks) <= 1, f"{_OP} has one mask at most, not {len(masks)}")
    mask = masks[0] if masks else None
    it = _attended(_COTANGENTS, query, key, value, mask, scale, causal, hidden)
    columns = value.shape[-1]
    names = "b" * (query.ndim - 4) + "bhme"[-query.ndim :]
    for n, (size, name) in enumerate(zip((*it.lead, it.m, columns), names, strict=True)):
        for other, what in ((result, "result"), (cotangent, "cotangent")):
            te.require(other.ndim == query.ndim, f"the {what} of {_OP} has rank {other.ndim}, not {query.ndim}")
            te.require_equal(size, other.shape[n], f"axis {name} of the {what} of {_OP}")
    require_same_dtype(_COTANGENTS, query, result, cotangent)

    def wide(x: te.Scalar) -> te.Scalar:
        return te.cast(x, it.dtype)

    c = te.reduce_axis(columns, "c")
    inner = te.compute(
        (*it.lead, it.m), lambda *i: te.sum(wide(result[(*i, c)]) * wide(cotangent[(*i, c)]), c), "inner"
    )
    e = te.reduce_axis(columns, "e")

    def of_share(*i: te.Scalar) -> te.Scalar:
        *outer, row, column = i
        right = wide(value[(*it.shared(tuple(outer)), column, e)])
        return te.sum(wide(cotangent[(*outer, row, e)]) * right, e)

    of_shares = te.compute(it.share.shape, of_share, "of_shares")

    def of_score(*i: te.Scalar) -> te.Scalar:
        return it.of_seen(i, it.share[i] * (of_shares[i] - inner[i[:-1]]) * it.factor, te.const(0, it.dtype))

    def counted(*i: te.Scalar) -> te.Scalar:
        return it.of_seen(i, it.share[i], te.const(0, it.dtype)) if hidden == -math.inf else it.share[i]

    of_scores = te.compute(it.share.shape, of_score, "of_scores")
    shares = te.compute(it.share.shape, counted, "shares")
    j = te.reduce_axis(it.n, "j")

    def of_query(*i: te.Scalar) -> te.Scalar:
        *outer, row, column = i
        return te.sum(of_scores[(*outer, row, j)] * wide(key[(*it.shared(tuple(outer)), j, column)]), j)

    def over_rows(weights: te.Tensor, rows: te.Tensor, name: str) -> te.Tensor:
        """Weighted rows, added up for each key: those of all heads that share it."""
        t = te.reduce_axis(it.m, "t")
        heads = te.reduce_axis(it.lead[-1] if it.group is None else it.group, "r") if it.lead else None

        def body(*i: te.Scalar) -> te.Scalar:
            *outer, n, column = i
            at: tuple[te.Scalar, ...] = tuple(outer)
            over: tuple[te.Axis, ...] = (t,)
            if heads is not None and it.group != 1:
                at = (*at[:-1], heads if it.group is None else at[-1] * it.group + heads)
                over = (heads, t)
            return te.sum(weights[(*at, t, n)] * wide(rows[(*at, t, column)]), over)

        return te.compute((*key.shape[:-2], it.n, rows.shape[-1]), body, name)

    found = (
        te.compute(query.shape, of_query, "of_query"),
        over_rows(of_scores, query, "of_key"),
        over_rows(shares, cotangent, "of_value"),
    )
    if it.dtype == it.given:
        return found
    narrow = [te.compute(x.shape, lambda *i, x=x: te.cast(x[i], it.given), x.name) for x in found]
    return narrow[0], narrow[1], narrow[2]


@dataclass(frozen=True, slots=True)
class _Attended:
    """What attention and its cotangents share: the sizes, the share of each key in each row (*lead, m, n).

    ``group``: how many heads of the query share one of the key (None: all share one). ``of_seen(i, a, b)``: a where the row
    sees the key, else b.
    """

    lead: tuple[Dim, ...]
    m: Dim
    n: Dim
    group: int | None
    factor: te.Scalar
    of_seen: Callable[[tuple[te.Scalar, ...], te.Scalar, te.Scalar], te.Scalar]
    share: te.Tensor
    given: str

    @property
    def dtype(self) -> str:
        """In which is computed."""
        return self.share.dtype

    def shared(self, outer: tuple[te.Scalar, ...]) -> tuple[te.Scalar, ...]:
        """The key's index for an index of the query's leading axes."""
        if not outer or self.group == 1:
            return outer
        return (*outer[:-1], te.const(0, "int64") if self.group is None else outer[-1] // self.group)


def _attended(
    op: str,
    query: te.Tensor,
    key: te.Tensor,
    value: te.Tensor,
    mask: te.Tensor | None,
    scale: float | None,
    causal: bool,
    hidden: float,
) -> _Attended:
    """The shares of the keys, with the operands checked."""
    require_float(query, op)
    given = require_same_dtype(op, query, key, value)
    te.require(query.ndim >= 2, f"the query of {op} must have rank 2 or more, not {query.ndim}")
    te.require(
        key.ndim == query.ndim and value.ndim == query.ndim,
        f"the operands of {op} must have one rank, not {query.ndim}, {key.ndim} and {value.ndim}",
    )
    te.require(hidden < math.inf, f"the score of a hidden key of {op} must be finite or -inf, not {hidden}")
    dtype = accumulation_dtype(given)
    *lead, m, depth = query.shape
    depth = te.require_equal(depth, key.shape[-1], f"the sizes of the heads of {op}'s query and key")
    n = te.require_equal(key.shape[-2], value.shape[-2], f"the lengths of {op}'s key and value")
    group = _group(op, lead, key, value)
    factor: te.Scalar = te.const(scale, dtype) if scale is not None else _default_scale(depth, dtype)
    if mask is not None:
        te.require(
            mask.dtype == "bool" or is_float(mask.dtype),
            f"the mask of {op} must hold booleans or floats, not {mask.dtype}: cast it",
        )
        te.require(mask.ndim <= query.ndim, f"the mask of {op} has rank {mask.ndim}, more than the scores")
        whole = (*lead, m, n)
        for own, dim in zip(mask.shape, whole[len(whole) - mask.ndim :], strict=True):
            if not te.known_is(own, 1):
                te.require_equal(own, dim, f"the mask and the scores of {op}")

    def of_seen(i: tuple[te.Scalar, ...], score: te.Scalar, unseen: te.Scalar) -> te.Scalar:
        if mask is not None and mask.dtype == "bool":
            score = te.select(te.broadcast_index(mask, i), score, unseen)
        return te.select(i[-1] <= i[-2] + te.size(dim_sub(n, m)), score, unseen) if causal else score

    it = _Attended(tuple(lead), m, n, group, factor, of_seen, query, given)
    d = te.reduce_axis(depth, "d")

    def score(*i: te.Scalar) -> te.Scalar:
        *outer, row, column = i
        left = te.cast(query[(*outer, row, d)], dtype)
        return te.sum(left * te.cast(key[(*it.shared(tuple(outer)), column, d)], dtype), d)

    raw = te.compute((*lead, m, n), score, "scores")

    def masked(*i: te.Scalar) -> te.Scalar:
        out = raw[i] * factor
        if mask is not None and mask.dtype != "bool":
            out = out + te.cast(te.broadcast_index(mask, i), dtype)
        return of_seen(i, out, te.const(hidden, dtype))

    scores = te.compute((*lead, m, n), masked, "masked")
    k = te.reduce_axis(n, "k")
    largest = te.compute((*lead, m), lambda *i: te.max(scores[(*i, k)], k), "largest")
    weight = te.compute((*lead, m, n), lambda *i: te.exp(scores[i] - largest[i[:-1]]), "weight")
    t = te.reduce_axis(n, "t")
    total = te.compute((*lead, m), lambda *i: te.sum(weight[(*i, t)], t), "total")
    return replace(it, share=te.compute((*lead, m, n), lambda *i: weight[i] / total[i[:-1]], "share"))


def _group(op: str, lead: list[Dim], key: te.Tensor, value: te.Tensor) -> int | None:
    """How many heads of the query share one of the key (None: all share one); checks the leading axes."""
    for n, dim in enumerate(lead[:-1]):
        te.require_equal(dim, key.shape[n], f"the batches of {op}'s query and key")
        te.require_equal(dim, value.shape[n], f"the batches of {op}'s query and value")
    if not lead:
        return 1
    heads, shared = lead[-1], key.shape[len(lead) - 1]
    te.require_equal(shared, value.shape[len(lead) - 1], f"the heads of {op}'s key and value")
    if te.known_is(shared, 1):
        return None
    if not isinstance(heads, int) or not isinstance(shared, int):
        te.require_equal(heads, shared, f"the heads of {op}'s query and key (numbers, where they differ)")
        return 1
    te.require(
        shared > 0 and heads % shared == 0,
        f"the {heads} heads of {op}'s query are not a multiple of the key's {shared}",
    )
    return heads // shared


def _default_scale(depth: Dim, dtype: str) -> te.Scalar:
    """1/sqrt of the size of a head."""
    if isinstance(depth, int):
        return te.const(max(depth, 1) ** -0.5, dtype)
    return te.rsqrt(te.size(depth, dtype))
