"""Scaled dot-product attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from relay import te
from relay.ir.dim import Dim, dim_max, dim_sub
from relay.ir.record import record
from relay.ir.types import is_float
from relay.op import registry
from relay.op.registry import operator
from relay.op.support import accumulation_dtype, require_float, require_same_dtype
from relay.te.autodiff import vjp

_OP = "nn.attention"
_COTANGENTS = "nn.attention_cotangents"
_SCORED = "nn.scored_attention"


@operator(_OP)
def attention(
    query: te.Tensor,
    key: te.Tensor,
    value: te.Tensor,
    mask: te.Tensor | None = None,
    *,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    hidden: float = -math.inf,
) -> te.Tensor:
    """``softmax(scale * query @ key^T + mask) @ value`` over the last two axes, one product for every head.

    Vaswani et al., Attention Is All You Need (2017). ``query``: (..., h, m, d); ``key``: (..., g, n, d); ``value``:
    (..., g, n, e); the result is (..., h, m, e). Heads may be missing (rank 2). Where g is less than h, it divides h and
    h // g neighbouring heads of the query share a head of the key (Ainslie et al., GQA, 2023). ``mask`` broadcasts to
    (..., h, m, n): floats are added to the scores, of booleans the true ones are let through. ``scale`` is 1/sqrt(d)
    unless given. With ``causal`` a query sees no later key, where the last query belongs to the last key; with a ``window`` it sees so
    many keys before its own and so many behind it (-1: all). ``hidden`` is
    the score of a key that is not let through or not seen: -inf, or a finite one, which counts like any other. A query
    that sees no key gives nan, or with a finite ``hidden`` the mean of all values; what a key without weight has for a
    value must be finite. Floats of 16 bits are computed in float32.
    """
    return _weighed(_attended(_OP, query, key, value, mask, scale, causal, window, hidden), value)


@operator(_SCORED)
def scored_attention(
    query: te.Tensor,
    key: te.Tensor,
    value: te.Tensor,
    operands: tuple[te.Tensor, ...],
    *,
    score: tuple[Any, ...] = (),
    masked: bool = False,
    weighed: bool = False,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    hidden: float = -math.inf,
) -> te.Tensor:
    """`nn.attention` of a function of each score: ``(softmax(score(scale * query @ key^T) + mask) * factor) @ value``.

    ``score`` are steps ``(operator, (operand, ...), attributes)`` of operators that compute each element from those at its place
    (with broadcasting), the last of which gives the score; without any it is the scaled product. Attributes may be missing. An
    operand is the number of a value (0: the scaled product (..., h, m, n); then the ``operands``; then the results of the steps), or
    a float: a constant. With ``masked`` the first of the ``operands`` is the mask, with ``weighed`` the last one is the factor
    (broadcast to the scores; of booleans false is 0): neither is counted. Floats of 16 bits are computed in float32.
    """
    mask, others, weights = _told_apart(_SCORED, operands, masked, weighed)
    return _weighed(
        _attended(_SCORED, query, key, value, mask, scale, causal, window, hidden, others, score, weights), value
    )


def _weighed(it: _Attended, value: te.Tensor) -> te.Tensor:
    """The values, weighed with the shares of their keys."""
    j = te.reduce_axis(it.n, "j")

    def attended(*i: te.Scalar) -> te.Scalar:
        *outer, row, column = i
        right = te.cast(value[(*it.shared(tuple(outer)), j, column)], it.dtype)
        at = (*outer, row, j)
        return te.sum(it.weight(at, it.share[at]) * right, j)

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
    score: tuple[Any, ...] = (),
    masked: bool = True,
    weighed: bool = False,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    hidden: float = -math.inf,
    also: tuple[int, ...] = (),
) -> tuple[te.Tensor, ...]:
    """The cotangents of the query, key and value of `nn.attention`, from these, its result and the cotangent of that, and its
    mask (``masks`` has one or none). Those of `nn.scored_attention` with its ``score``, its operands the ``masks``. Behind them come
    the cotangents of those ``masks`` whose numbers are ``also`` asked for: of floats, and not of a factor of the shares.

    Dao et al., FlashAttention (2022), appendix B.2: with the shares P of the keys, ``dV = P^T dO``, ``dP = dO V^T``,
    ``dS = P * (dP - sum(dO * O))``, ``dQ = scale * dS K``, ``dK = scale * dS^T Q``, where heads that share a key add up. A
    query that sees no key counts for nothing (its result is nan), unless ``hidden`` is finite. What a mask that is added gets back is
    dS, added up over what it was broadcast along.
    """
    te.require(len(masks) <= 1 or bool(score) or weighed, f"{_OP} has one mask at most, not {len(masks)}")
    mask, others, weights = _told_apart(_COTANGENTS, masks, masked and bool(masks), weighed)
    it = _attended(_COTANGENTS, query, key, value, mask, scale, causal, window, hidden, others, score, weights)
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
        return it.share[i] * (it.weight(i, of_shares[i]) - inner[i[:-1]])

    def counted(*i: te.Scalar) -> te.Scalar:
        weight = it.weight(i, it.share[i])
        return it.of_seen(i, weight, te.const(0, it.dtype)) if hidden == -math.inf else weight

    of_result = te.compute(it.share.shape, of_score, "of_result")
    (passed,) = [of_result] if it.scored is it.scaled else vjp([it.scored], [of_result], [it.scaled])

    def of_raw(*i: te.Scalar) -> te.Scalar:
        nothing = te.const(0, it.dtype)
        return nothing if passed is None else it.of_seen(i, passed[i] * it.factor, nothing)

    of_scores = te.compute(it.share.shape, of_raw, "of_scores")
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

    found = [
        te.compute(query.shape, of_query, "of_query"),
        over_rows(of_scores, query, "of_key"),
        over_rows(shares, cotangent, "of_value"),
    ]
    if it.dtype != it.given:
        found = [te.compute(x.shape, lambda *i, x=x: te.cast(x[i], it.given), x.name) for x in found]
    return (*found, *_of_beside(it, masks[: len(masks) - weighed], also, of_result))


def _of_beside(
    it: _Attended, operands: tuple[te.Tensor, ...], numbers: tuple[int, ...], of_result: te.Tensor
) -> list[te.Tensor]:
    """The cotangents of some of the ``operands`` that scores are made with beside the product, from those of the scores."""
    for n in numbers:
        te.require(
            0 <= n < len(operands) and is_float(operands[n].dtype),
            f"{_COTANGENTS} gives the cotangent of an operand of floats that scores are made with, which number {n} is not",
        )
    wanted = [operands[n] for n in numbers]
    made = vjp([it.scores], [of_result], wanted)
    nothing = [te.compute(w.shape, lambda *_, w=w: te.const(0, w.dtype), "zeros") for w in wanted]
    return [none if own is None else own for own, none in zip(made, nothing, strict=True)]


@record(frozen=True, slots=True)
class _Attended:
    """What attention and its cotangents share: the sizes, the share of each key in each row (*lead, m, n).

    ``weight(i, x)``: a share x as the value is weighed with it, times a factor of its own. ``group``: how many heads of the query
    share one of the key (None: all share one). ``of_seen(i, a, b)``: a where the row sees the key, else b. ``scored``: what a
    function of each score made of the ``scaled`` products; ``scores``: these with the mask, what shares are made of.
    """

    lead: tuple[Dim, ...]
    m: Dim
    n: Dim
    group: int | None
    factor: te.Scalar
    of_seen: Callable[[tuple[te.Scalar, ...], te.Scalar, te.Scalar], te.Scalar]
    weight: Callable[[tuple[te.Scalar, ...], te.Scalar], te.Scalar]
    share: te.Tensor
    scaled: te.Tensor
    scored: te.Tensor
    scores: te.Tensor
    given: str

    @property
    def dtype(self) -> str:
        """In which is computed."""
        return self.share.dtype

    def shared(self, outer: tuple[te.Scalar, ...]) -> tuple[te.Scalar, ...]:
        """The key's index for an index of the query's leading axes."""
        return _shared(outer, self.group)


def _attended(
    op: str,
    query: te.Tensor,
    key: te.Tensor,
    value: te.Tensor,
    mask: te.Tensor | None,
    scale: float | None,
    causal: bool,
    window: tuple[int, int],
    hidden: float,
    operands: Sequence[te.Tensor] = (),
    steps: Sequence[Any] = (),
    weights: te.Tensor | None = None,
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
    te.require(all(n >= -1 for n in window), f"the window of {op} counts places (-1: all), not {window}")
    before, after = window[0], 0 if causal else window[1]
    for beside, what in ((mask, "mask"), (weights, "factor")):
        if beside is not None:
            _require_broadcastable(beside, (*lead, m, n), f"the {what} of {op}")

    def of_seen(i: tuple[te.Scalar, ...], score: te.Scalar, unseen: te.Scalar) -> te.Scalar:
        if mask is not None and mask.dtype == "bool":
            score = te.select(te.broadcast_index(mask, i), score, unseen)
        place = i[-2] + te.size(dim_sub(n, m))
        if before >= 0:
            score = te.select(i[-1] >= place - before, score, unseen)
        return te.select(i[-1] <= place + after, score, unseen) if after >= 0 else score

    def weight_of(i: tuple[te.Scalar, ...], share: te.Scalar) -> te.Scalar:
        if weights is None:
            return share
        factor: te.Scalar = te.broadcast_index(weights, i)
        return (
            te.select(factor, share, te.const(0, dtype)) if weights.dtype == "bool" else share * te.cast(factor, dtype)
        )

    d = te.reduce_axis(depth, "d")

    def score(*i: te.Scalar) -> te.Scalar:
        *outer, row, column = i
        left = te.cast(query[(*outer, row, d)], dtype)
        return te.sum(left * te.cast(key[(*_shared(tuple(outer), group), column, d)], dtype), d)

    raw = te.compute((*lead, m, n), score, "scores")

    scaled = te.compute(raw.shape, lambda *i: raw[i] * factor, "scaled")
    scored = _scored(op, scaled, operands, steps)

    def masked(*i: te.Scalar) -> te.Scalar:
        out: te.Scalar = scored[i]
        if mask is not None and mask.dtype != "bool":
            out = out + te.cast(te.broadcast_index(mask, i), dtype)
        return of_seen(i, out, te.const(hidden, dtype))

    scores = te.compute((*lead, m, n), masked, "masked")
    k = te.reduce_axis(n, "k")
    largest = te.compute((*lead, m), lambda *i: te.max(scores[(*i, k)], k), "largest")
    weight = te.compute((*lead, m, n), lambda *i: te.exp(scores[i] - largest[i[:-1]]), "weight")
    t = te.reduce_axis(n, "t")
    total = te.compute((*lead, m), lambda *i: te.sum(weight[(*i, t)], t), "total")
    share = te.compute((*lead, m, n), lambda *i: weight[i] / total[i[:-1]], "share")
    return _Attended(tuple(lead), m, n, group, factor, of_seen, weight_of, share, scaled, scored, scores, given)


def _require_broadcastable(tensor: te.Tensor, scores: tuple[Dim, ...], what: str) -> None:
    """Booleans or floats that broadcast to the scores."""
    te.require(
        tensor.dtype == "bool" or is_float(tensor.dtype),
        f"{what} must hold booleans or floats, not {tensor.dtype}: cast it",
    )
    te.require(tensor.ndim <= len(scores), f"{what} has rank {tensor.ndim}, more than the scores")
    for own, dim in zip(tensor.shape, scores[len(scores) - tensor.ndim :], strict=True):
        te.require_equal(te.broadcast_dims(own, dim, f"{what} and its scores"), dim, f"{what} and its scores")


def _told_apart(
    op: str, operands: tuple[te.Tensor, ...], masked: bool, weighed: bool
) -> tuple[te.Tensor | None, tuple[te.Tensor, ...], te.Tensor | None]:
    """The mask, if there is one, the operands of the steps, and the factor of the shares, if there is one."""
    te.require(len(operands) >= masked + weighed, f"{op} has no operands that would be its mask and its factor")
    mask, operands = (operands[0], operands[1:]) if masked else (None, operands)
    return (mask, operands[:-1], operands[-1]) if weighed else (mask, operands, None)


def _scored(op: str, scaled: te.Tensor, operands: Sequence[te.Tensor], steps: Sequence[Any]) -> te.Tensor:
    """What the steps of a function of each score make of the scaled products."""
    dtype = scaled.dtype

    def wide(x: te.Tensor) -> te.Tensor:
        if x.dtype == dtype or not is_float(x.dtype):
            return x
        te.require(
            accumulation_dtype(x.dtype) == dtype, f"an operand of {op} is {x.dtype}, wider than what it computes in"
        )
        return te.compute(x.shape, lambda *i: te.cast(x[i], dtype), x.name)

    values = [scaled, *map(wide, operands)]

    def operand(number: object) -> te.Tensor:
        if isinstance(number, float):
            return te.compute((), lambda: te.const(number, dtype), "constant")
        known = isinstance(number, int) and 0 <= number < len(values)
        te.require(known, f"a step of the score of {op} takes numbers of values before it and floats, not {number!r}")
        return values[number] if isinstance(number, int) else scaled

    for step in steps:
        te.require(isinstance(step, tuple) and 2 <= len(step) <= 3, f"{step!r} is no step of the score of {op}")
        name, numbers, *attrs = step
        it = registry.get(name)
        te.require(it.kind == "expression", f"{name} is no tensor expression: it cannot be a step of the score of {op}")
        made = it.define(*map(operand, numbers), **it.complete_attrs(attrs[0] if attrs else {}))
        te.require(isinstance(made, te.Tensor), f"{name} has more than one result")
        te.require(made.ndim <= scaled.ndim, f"{name} gives rank {made.ndim}, more than the scores have")
        values.append(made)
    scored = values[-1] if steps else scaled
    te.require(
        scored.dtype == dtype and scored.ndim == scaled.ndim, f"the score of {op} is no {dtype} for each key of a row"
    )
    for own, dim in zip(scored.shape, scaled.shape, strict=True):
        te.require_equal(own, dim, f"the function of each score of {op} and the scores")
    return scored


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


def _shared(outer: tuple[te.Scalar, ...], group: int | None) -> tuple[te.Scalar, ...]:
    """The key's index for an index of the query's leading axes."""
    if not outer or group == 1:
        return outer
    return (*outer[:-1], te.const(0, "int64") if group is None else outer[-1] // group)


def _default_scale(depth: Dim, dtype: str) -> te.Scalar:
    """1/sqrt of the size of a head; of none, 1: its scores are sums of nothing."""
    if isinstance(depth, int):
        return te.const(max(depth, 1) ** -0.5, dtype)
    return te.rsqrt(te.size(dim_max(depth, 1), dtype))
