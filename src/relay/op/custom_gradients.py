"""Cotangents that are simpler than what follows from the expression: views back, and those that use a result already there.

A rule gets the call and returns the cotangent of one operand as an expression of the language, or None to leave it to the derived
operator. Every rule here is checked against the derived one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from relay import te
from relay.ir.dim import Dim, is_any, known_equal
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Attrs, Expr, Proj, Tuple
from relay.ir.record import record
from relay.ir.types import TensorType, TupleType, Type
from relay.op import registry
from relay.op.build import call, constant
from relay.op.reduction import kept_index, reduction, shift_of, weight_of
from relay.op.registry import operator
from relay.op.support import Axes, accumulation_dtype, axes_of, axis_of, require_float, require_same_dtype


@record(frozen=True, slots=True)
class Applied:
    """A call: its operands and their types, its results and their cotangents, and the operand whose cotangent is wanted."""

    attrs: Attrs
    args: tuple[Expr, ...]
    types: tuple[Type, ...]
    outputs: tuple[Expr, ...]
    cotangents: tuple[Expr, ...]
    index: int


Rule = Callable[[Applied], Expr | None]


def _reshaped_back(at: Applied) -> Expr | None:
    if at.index != 0:
        return None
    ty = at.types[0]
    if isinstance(ty, TensorType) and isinstance(ty.shape, tuple) and not any(is_any(d) or d == 0 for d in ty.shape):
        return call("reshape", at.cotangents[0], newshape=ty.shape)
    return call("reshape_like", at.cotangents[0], at.args[0])


def _of_equal_shapes(make: Callable[[Applied, Expr], Expr]) -> Rule:
    """A rule for two operands of one shape, which needs no sum over repeated axes; ``make`` gets the other operand."""

    def rule(at: Applied) -> Expr | None:
        first, second = at.types
        if not isinstance(first, TensorType) or not isinstance(second, TensorType):
            return None
        if (
            not isinstance(first.shape, tuple)
            or not isinstance(second.shape, tuple)
            or len(first.shape) != len(second.shape)
        ):
            return None
        if not all(known_equal(a, b) for a, b in zip(first.shape, second.shape, strict=True)):
            return None
        return make(at, at.args[1 - at.index])

    return rule


def _subtract(at: Applied, other: Expr) -> Expr:
    return call("negative", at.cotangents[0]) if at.index else at.cotangents[0]


def _multiply(at: Applied, other: Expr) -> Expr:
    return call("multiply", at.cotangents[0], other)


def _number(at: Applied, value: float) -> Expr | None:
    ty = at.types[0]
    if not isinstance(ty, TensorType) or not isinstance(ty.dtype, str):
        return None
    return constant(np.array(value, numpy_dtype(ty.dtype)))


def _of_result(make: Callable[[Expr, Expr, Callable[[float], Expr | None]], Expr | None]) -> Rule:
    """A rule of the cotangent, the result and numbers of its dtype."""
    return lambda at: make(at.cotangents[0], at.outputs[0], lambda v: _number(at, v))


def _exp(g: Expr, y: Expr, number: Callable[[float], Expr | None]) -> Expr:
    return call("multiply", g, y)


def _tanh(g: Expr, y: Expr, number: Callable[[float], Expr | None]) -> Expr | None:
    one = number(1.0)
    return None if one is None else call("multiply", g, call("subtract", one, call("multiply", y, y)))


def _sigmoid(g: Expr, y: Expr, number: Callable[[float], Expr | None]) -> Expr | None:
    one = number(1.0)
    return None if one is None else call("multiply", g, call("multiply", y, call("subtract", one, y)))


def _sqrt(g: Expr, y: Expr, number: Callable[[float], Expr | None]) -> Expr | None:
    half = number(0.5)
    return None if half is None else call("divide", call("multiply", g, half), y)


def _relu(at: Applied) -> Expr:
    # The result is positive exactly where the operand is, and is needed by what follows anyway.
    return call("nn.relu.vjp0", at.outputs[0], at.cotangents[0])


def _softmax(at: Applied) -> Expr:
    return call("nn.softmax_cotangent", at.outputs[0], at.cotangents[0], **dict(at.attrs))


def _log_softmax(at: Applied) -> Expr:
    return call("nn.log_softmax_cotangent", at.outputs[0], at.cotangents[0], **dict(at.attrs))


def _logsumexp(at: Applied) -> Expr:
    return call("logsumexp_cotangent", at.args[0], at.cotangents[0], **dict(at.attrs))


def _attention(at: Applied) -> Expr | None:
    return _attended(at, Tuple(tuple(at.args[3:])), dict(at.attrs))


def _scored_attention(at: Applied) -> Expr | None:
    return _attended(at, at.args[3], {"masked": False, **at.attrs})


def _attended(at: Applied, others: Expr, attrs: Attrs) -> Expr | None:
    """The cotangent of the query, key or value, or of one of the ``others`` that scores are made with; that of a factor of the shares
    is derived."""
    operands = (*at.args[:3], at.outputs[0], at.cotangents[0], others)
    if at.index < 3:
        return Proj(call("nn.attention_cotangents", *operands, **attrs), at.index)
    beside = at.types[3:] if not isinstance(at.types[3], TupleType) else at.types[3].fields
    number = at.index - 3
    if attrs.get("weighed") and number == len(beside) - 1:
        return None
    return Proj(call("nn.attention_cotangents", *operands, **attrs, also=(number,)), 3)


def _sort(at: Applied) -> Expr:
    order = call("argsort", at.args[0], **dict(at.attrs))
    axis = at.attrs.get("axis", -1)
    return call("gather.vjp0", at.args[0], order, at.cotangents[0], axis=axis)


def _topk(at: Applied) -> Expr:
    axis = at.attrs.get("axis", -1)
    return call("gather.vjp0", at.args[0], at.outputs[1], at.cotangents[0], axis=axis)


def _level_begin(at: Applied, offsets: Expr, level: Expr) -> Expr:
    """The first of all rows of a function that a level of a clause has (of the whole clause for level -1)."""
    row = call("take", offsets, call("maximum", level, constant(np.array(0, np.int64))), axis=0)
    return call("take", row, constant(np.array(at.attrs["clause"], np.int64)), axis=0)


def _rows_slice(at: Applied) -> Expr:
    data, offsets, level = at.args
    begin = _level_begin(at, offsets, level)
    if at.attrs["of_function"]:
        return call("rows.place", at.cotangents[0], begin, data)
    first = _level_begin(at, offsets, constant(np.array(0, np.int64)))
    return call("rows.place", at.cotangents[0], call("subtract", begin, first), data)


def _rows_update(at: Applied) -> Expr | None:
    _, rows, offsets, level = at.args
    begin = _level_begin(at, offsets, level)
    name = {0: "rows.without", 1: "rows.pick"}.get(at.index)
    return None if name is None else call(name, at.cotangents[0], begin, rows)


def _rows_scatter(at: Applied) -> Expr | None:
    _, rows, index = at.args
    if at.index == 0:
        return call("rows.scatter", at.cotangents[0], call("zeros_like", rows), index)
    return call("take", at.cotangents[0], index, axis=0, mode="fast") if at.index == 1 else None


def _scatter_nd(at: Applied) -> Expr | None:
    """Of a single slice no later one takes the place: what comes back to it is what is added would get, without a search for the last one
    in every place of the data."""
    ty = at.types[1]
    if at.index != 2 or at.attrs.get("mode", "update") != "update" or not isinstance(ty, TensorType):
        return None
    if not isinstance(ty.shape, tuple) or any(d != 1 for d in ty.shape[1:]):
        return None
    return call("scatter_nd.vjp2", *at.args, at.cotangents[0], **{**at.attrs, "mode": "add"})


def _rows_reserve(at: Applied) -> Expr | None:
    return at.cotangents[0] if at.index == 0 else None


def _rows_repeat(at: Applied) -> Expr | None:
    return call("sum", at.cotangents[0], axis=(0,)) if at.index == 0 else None


def _rows_segment_sum(at: Applied) -> Expr | None:
    _, values, starts, offsets, level = at.args
    start, items = at.types[:2]
    if at.index == 1:
        first = _level_begin(at, offsets, constant(np.array(0, np.int64)))
        begin = call("subtract", _level_begin(at, offsets, level), first)
        return call("rows.spread", at.cotangents[0], starts, begin, values)
    if at.index or not isinstance(start, TensorType) or not isinstance(items, TensorType):
        return None
    one_each = (
        isinstance(start.shape, tuple) and isinstance(items.shape, tuple) and len(start.shape) == len(items.shape)
    )
    return at.cotangents[0] if one_each else call("sum", at.cotangents[0], axis=(0,))


@operator("nn.softmax_cotangent")
def softmax_cotangent(result: te.Tensor, cotangent: te.Tensor, *, axis: int = -1) -> te.Tensor:
    """``y * (g - sum(g * y))`` along ``axis``: the cotangent of the operand of `nn.softmax`, from its result y and cotangent g."""
    require_float(result, "nn.softmax_cotangent")
    require_same_dtype("nn.softmax_cotangent", result, cotangent)
    at = axis_of(axis, result.ndim, "the result of nn.softmax_cotangent")
    shape = _common(result, cotangent, "nn.softmax_cotangent")
    dtype = accumulation_dtype(result.dtype)

    def product(*i: te.Scalar) -> te.Scalar:
        return te.cast(result[i], dtype) * te.cast(cotangent[i], dtype)

    total = reduction(te.compute(shape, product, "products"), (at,), True, lambda x, k, _: te.sum(x, k), "total")

    def body(*i: te.Scalar) -> te.Scalar:
        apart = te.cast(cotangent[i], dtype) - total[kept_index(i, (at,))]
        return te.cast(te.cast(result[i], dtype) * apart, result.dtype)

    return te.compute(shape, body, "softmax_cotangent")


@operator("nn.log_softmax_cotangent")
def log_softmax_cotangent(result: te.Tensor, cotangent: te.Tensor, *, axis: int = -1) -> te.Tensor:
    """``g - exp(y) * sum(g)`` along ``axis``: the cotangent of the operand of `nn.log_softmax`, from its result y and cotangent g."""
    require_float(result, "nn.log_softmax_cotangent")
    require_same_dtype("nn.log_softmax_cotangent", result, cotangent)
    at = axis_of(axis, result.ndim, "the result of nn.log_softmax_cotangent")
    shape = _common(result, cotangent, "nn.log_softmax_cotangent")
    dtype = accumulation_dtype(result.dtype)
    total = reduction(cotangent, (at,), True, lambda x, k, _: te.sum(te.cast(x, dtype), k), "total")

    def body(*i: te.Scalar) -> te.Scalar:
        share = weight_of(te.cast(result[i], dtype)) * total[kept_index(i, (at,))]
        return te.cast(te.cast(cotangent[i], dtype) - share, result.dtype)

    return te.compute(shape, body, "log_softmax_cotangent")


@operator("logsumexp_cotangent")
def logsumexp_cotangent(
    data: te.Tensor, cotangent: te.Tensor, *, axis: Axes = None, keepdims: bool = False, exclude: bool = False
) -> te.Tensor:
    """``softmax(x) * g`` over axes: the cotangent of the operand x of `logsumexp`, from x and the cotangent g of the result.

    What is derived goes through the maximum as well, whose share is zero. Where all elements are -inf the cotangent is 0."""
    require_float(data, "logsumexp_cotangent")
    require_same_dtype("logsumexp_cotangent", data, cotangent)
    axes = axes_of(axis, data.ndim, "the operand of logsumexp_cotangent", exclude=exclude)
    kept = [n for n in range(data.ndim) if keepdims or n not in axes]
    te.require(cotangent.ndim == len(kept), f"the cotangent of logsumexp has rank {cotangent.ndim}, not {len(kept)}")
    for n, extent in zip(kept, cotangent.shape, strict=True):
        te.require_equal(1 if n in axes else data.shape[n], extent, "the shapes of logsumexp and its cotangent")
    shift = shift_of(data, axes)
    dtype = shift.dtype
    exponent = te.compute(
        data.shape, lambda *i: weight_of(te.cast(data[i], dtype) - shift[kept_index(i, axes)]), "logsumexp_exp"
    )
    total = reduction(exponent, axes, True, lambda v, over, _: te.sum(v, over), "logsumexp_sum")

    def share(*i: te.Scalar) -> te.Scalar:
        g = te.cast(cotangent[tuple(i[n] for n in kept)], dtype)
        return te.select(te.compare("eq", total[i], te.const(0.0, dtype)), te.const(0.0, dtype), g / total[i])

    shares = te.compute(total.shape, share, "logsumexp_share")
    return te.compute(
        data.shape, lambda *i: te.cast(exponent[i] * shares[kept_index(i, axes)], data.dtype), "logsumexp_cotangent"
    )


def _common(a: te.Tensor, b: te.Tensor, op: str) -> tuple[Dim, ...]:
    te.require(a.ndim == b.ndim, f"the operands of {op} have ranks {a.ndim} and {b.ndim}")
    return tuple(
        te.require_equal(x, y, f"the shapes of {op}'s operands") for x, y in zip(a.shape, b.shape, strict=True)
    )


# Of these, what a rule says of an element does not depend on where it stands.
ELEMENTWISE = frozenset({"add", "subtract", "multiply", "exp", "tanh", "sigmoid", "sqrt", "nn.relu"})
RULES: Mapping[str, Rule] = {
    "reshape": _reshaped_back,
    "reshape_like": _reshaped_back,
    "squeeze": _reshaped_back,
    "expand_dims": _reshaped_back,
    "nn.batch_flatten": _reshaped_back,
    "dyn.reshape": _reshaped_back,
    "annotation.stop_fusion": lambda at: at.cotangents[0],
    "copy": lambda at: at.cotangents[0],
    "add": _of_equal_shapes(lambda at, other: at.cotangents[0]),
    "subtract": _of_equal_shapes(_subtract),
    "multiply": _of_equal_shapes(_multiply),
    "nn.bias_add": lambda at: None if at.index else at.cotangents[0],
    "exp": _of_result(_exp),
    "tanh": _of_result(_tanh),
    "sigmoid": _of_result(_sigmoid),
    "sqrt": _of_result(_sqrt),
    "nn.relu": _relu,
    "nn.softmax": _softmax,
    "nn.log_softmax": _log_softmax,
    "logsumexp": _logsumexp,
    "nn.attention": _attention,
    "nn.scored_attention": _scored_attention,
    "scatter_nd": _scatter_nd,
    "sort": _sort,
    "topk": _topk,
    "rows.slice": _rows_slice,
    "rows.update": _rows_update,
    "rows.scatter": _rows_scatter,
    "rows.repeat": _rows_repeat,
    "rows.reserve": _rows_reserve,
    "rows.segment_sum": _rows_segment_sum,
}

# Those that a program's author declared.
_declared: dict[str, Rule] = {}


def gradient_rule(name: str) -> Callable[[Rule], Rule]:
    """Declare how an operator's cotangents are computed, in the place of what is derived from its expression (where a person knows better:
    the result can be used again, or something cancels).

    The function is given the call (`Applied`) and returns the cotangent of operand ``at.index``, an expression of the operand's type, made
    of the operands ``at.args``, the results ``at.outputs`` and their cotangents; None where the derived one is to be taken. Raises
    OperatorError where there is no such operator. Test it against the derived one.
    """
    registry.get(name)

    def declare(rule: Rule) -> Rule:
        _declared[name] = rule
        return rule

    return declare


def rule_of(name: str) -> Rule | None:
    """The rule of an operator, if it has one."""
    return _declared.get(name) or RULES.get(name)


def has_declared_rule(name: str) -> bool:
    """Whether a program's author gave the operator a rule."""
    return name in _declared


def forget_rule(name: str) -> None:
    """Take the derived cotangents again."""
    _declared.pop(name, None)
