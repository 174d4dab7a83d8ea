"""Softmax that a program spells out becomes one operator.

    e = exp(x - max(x));  e / sum(e)          exp(log_softmax(x))

The operator has kernels of its own, a gradient that needs its result alone, and is what attention is found by.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, cast

from relay.ir.dim import known_equal
from relay.ir.expr import Call, Constant, Expr, Function, OpRef, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.op import registry
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, body_of, is_primitive, map_functions
from relay.transform.build import op_call
from relay.transform.matrix_products import is_sized, is_view, shape_of
from relay.transform.pattern import Definition, is_filled
from relay.transform.uses import use_counts


@record(frozen=True, slots=True)
class FindSoftmax(Pass):
    """Put `nn.softmax` in place of exponentials over their sum, whose largest exponent was subtracted first, and of the
    exponential of `nn.log_softmax`.

    Before: typed blocks; tensors of unknown sizes (``?``) are left alone, and exponentials and sums that are read elsewhere too. After:
    the same values up to rounding, infinities and nan included. Exponentials of what no maximum was subtracted from are left as they
    are, because they overflow where a softmax does not.
    """

    name: ClassVar[str] = "find_softmax"

    def __call__(self, module: Module) -> Module:
        def find(function: Function) -> Function:
            if is_primitive(function):
                return function
            uses = use_counts(body_of(function))

            def visit(scope: Scope, var: Var, value: Expr) -> Expr:
                found = softmax_of(value, driver.definition, uses)
                if found is None:
                    return value
                scores, axis, _ = found
                softmax = op_call("nn.softmax", (scores,), {"axis": axis}, value.span)
                return softmax if softmax.ty == value.ty else value

            driver = Forward(visit)
            return driver.function(function)

        return map_functions(module, find)


def softmax_of(
    value: Expr, definition: Definition, uses: Counter[Var], *, of_any_size: bool = False
) -> tuple[Expr, int, int] | None:
    """What a value is a softmax of that is spelled out, its axis, and how often that spelling reads it; None where it is none.

    With ``of_any_size`` also where the exponents may overflow: exponentials without a maximum subtracted, and of exponents less their
    `logsumexp`. There a softmax has numbers where these are nan, and nan in all of a row that holds infinity, where these have some zeros.
    """
    if not isinstance(value, Call) or not isinstance(value.fn, OpRef):
        return None
    if value.fn.name == "exp":
        exponent = value.args[0]
        inner = _call(exponent, definition)
        if inner is None or not isinstance(exponent, Var) or uses[exponent] != 1:
            return None
        if _name(inner) == "nn.log_softmax":
            axis = cast(int, registry.get("nn.log_softmax").complete_attrs(inner.attrs)["axis"])
            return inner.args[0], axis % len(shape_of(inner) or ()), 1
        if of_any_size and _name(inner) == "subtract":
            scores, total = inner.args
            along = _reduced(total, "logsumexp", scores, definition, uses)
            return None if along is None else (scores, along, 2)
        return None
    for weights, total in _quotients(value, definition, uses):
        found = softmax_over(weights, total, definition, uses, of_any_size=of_any_size)
        if found is not None:
            return found
    return None


def softmax_over(
    weights: Expr, total: Expr, definition: Definition, uses: Counter[Var], *, of_any_size: bool = False
) -> tuple[Expr, int, int] | None:
    """The same for ``weights`` that are, or are to be, divided by ``total``, and are read for that only."""
    exponential = _call(weights, definition)
    if exponential is None or _name(exponential) != "exp" or not isinstance(weights, Var) or uses[weights] != 2:
        return None
    axis = _reduced(total, "sum", weights, definition, uses)
    if axis is None:
        return None
    exponent = exponential.args[0]
    inner = _call(exponent, definition)
    if inner is not None and _name(inner) == "subtract":
        scores, largest = inner.args
        if _reduced(largest, "max", scores, definition) == axis:
            return scores, axis, 2
    return (exponent, axis, 1) if of_any_size else None


def _quotients(value: Call, definition: Definition, uses: Counter[Var]) -> list[tuple[Expr, Expr]]:
    """The ways to see a value as one tensor over another: divided by it, or multiplied by one over it."""
    name = _name(value)
    if name == "divide":
        return [(value.args[0], value.args[1])]
    found: list[tuple[Expr, Expr]] = []
    for weights, share in (value.args, value.args[::-1]) if name == "multiply" else ():
        inverse = _call(share, definition)
        if inverse is None or _name(inverse) != "divide" or not isinstance(share, Var) or uses[share] != 1:
            continue
        one, total = inverse.args
        if isinstance(one, Constant) and is_filled(one, 1) and shape_of(total) == shape_of(share):
            found.append((weights, total))
    return found


def _reduced(e: Expr, kind: str, source: Expr, definition: Definition, uses: Counter[Var] | None = None) -> int | None:
    """The one axis over which a tensor is a reduction of another, beside which it broadcasts along that axis; with ``uses`` only if
    nothing else reads it."""
    shape, seen = shape_of(source), shape_of(e)
    if shape is None or seen is None or not isinstance(source, Var) or not is_sized(source):
        return None
    while isinstance(e, Var) and (uses is None or uses[e] == 1):
        call = definition(e)
        if not isinstance(call, Call) or not isinstance(call.fn, OpRef):
            return None
        if is_view(call):
            e = call.args[0]
            continue
        if _name(call) != kind or call.args[0] is not source:
            return None
        attrs = registry.get(kind).complete_attrs(call.attrs)
        given = attrs["axis"]
        axes = tuple(range(len(shape))) if given is None else given if isinstance(given, tuple) else (given,)
        if attrs["exclude"] or len(axes) != 1:
            return None
        axis = cast(int, axes[0]) % len(shape)
        kept = (*shape[:axis], 1, *shape[axis + 1 :])
        apart = len(kept) - len(seen)
        alike = apart >= 0 and all(known_equal(a, b) for a, b in zip(kept[apart:], seen, strict=True))
        return axis if alike and all(d == 1 for d in kept[:apart]) else None
    return None


def _call(e: Expr, definition: Definition) -> Call | None:
    value = definition(e)
    return value if isinstance(value, Call) and isinstance(value.fn, OpRef) else None


def _name(call: Call) -> str:
    return call.fn.name if isinstance(call.fn, OpRef) else ""
