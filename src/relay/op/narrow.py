"""Operators on operands of fewer bits than they compute in, and on operands that are integers times scales.

``<op>.widened(..., widened=("float32", "float32"))`` takes operands of other dtypes than the operator has and reads each element as one of
the dtype that is said (an empty one: as it is): what is multiplied and summed in float32 may lie in memory as bfloat16 numbers.

``<op>.scaled(scale, ..., operand=1)`` is the operator on ``scale * operand``, where the scale is the same for all elements that a sum adds
up: it multiplies the sum. The scale has the operand's rank, and one element along the axes that are summed. (Sizes may leave another
expression of the operator, a sum of no terms for one: then the scale multiplies the operand's elements.)

Both are derived from the operator's expression, so they are read, fused and planned as that is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from relay import te
from relay.op.registry import AttrSpec, Input, Operator, applied, derive_with, exists, get, returned
from relay.op.support import grouped, tensors_of
from relay.te.bilinear import Bilinear, bilinear
from relay.te.rewrite import rewrite_stage, rewritten
from relay.te.scalar import Const, Load, Scalar, Select, cast, mentioned, select, substitute, wrap
from relay.te.tensor import Compute, Placeholder, Stage, Tensor

WIDENED, SCALED = ".widened", ".scaled"


def can_narrow(op: Operator) -> bool:
    """Whether an operator has such forms: it is an expression and its sizes follow from sizes."""
    return op.kind == "expression" and op.shape_mode == "independent" and not op.effects and not op.by_routine


def widened(op: Operator) -> Operator:
    """The operator on narrower operands. Attributes: those of the operator and ``widened``, a dtype for each operand (of a tuple, each
    tensor)."""

    def define(*args: Any, widened: tuple[str, ...], **attrs: Any) -> te.Tensor | tuple[te.Tensor, ...]:
        flat = tensors_of(args)
        te.require(len(widened) == len(flat), f"{len(widened)} dtypes are given for {len(flat)} operands")
        inner = [t if not d else te.placeholder(t.name, t.shape, d) for t, d in zip(flat, widened, strict=True)]
        outputs, is_tuple = applied(op, grouped(args, inner), attrs)
        read = {i.stage: t for i, t in zip(inner, flat, strict=True) if i is not t}
        outputs = tuple(te.compute(t.shape, t, "copy") if isinstance(t.stage, Placeholder) else t for t in outputs)
        for stage in te.stages(outputs):
            copy = _copied(stage, read)
            if copy is not None and all(t.stage is not stage for t in outputs):
                read[stage] = copy

        def wide(node: Scalar) -> Scalar:
            if isinstance(node, Load) and isinstance(node.source, Tensor) and node.source.stage in read:
                narrow = read[node.source.stage]
                return cast(Load(narrow, node.indices, narrow.dtype), node.dtype)
            return node

        made = rewritten(outputs, lambda stage: stage if stage in read else rewrite_stage(stage, wide))
        return made if is_tuple else made[0]

    # What is derived from this operator reads off this whether its result is a tuple.
    define.__annotations__["return"] = returned(op.define)
    dtypes = AttrSpec("widened", tuple[str, ...], None, True)
    return Operator(
        op.name + WIDENED, "expression", op.inputs, (*op.attrs, dtypes), define, op.effects,
        doc=f"`{op.name}` on operands of fewer bits.", ignored=op.ignored,
    )  # fmt: skip


def _copied(stage: Stage, read: Mapping[Stage, Tensor]) -> Tensor | None:
    """The narrow form of a stage that copies a tensor which is narrow, with zeros around it or not: what else reads the copy widens it."""
    body = stage.bodies[0] if isinstance(stage, Compute) and len(stage.bodies) == 1 else None
    element = body.a if isinstance(body, Select) else body
    if not isinstance(element, Load) or not isinstance(element.source, Tensor) or element.source.stage not in read:
        return None
    assert isinstance(stage, Compute)
    narrow = read[element.source.stage]
    value: Scalar = Load(narrow, element.indices, narrow.dtype)
    if isinstance(body, Select):
        if not isinstance(body.b, Const) or body.b.value != 0:
            return None
        value = select(body.cond, value, Const(0, narrow.dtype))
    made = Compute(stage.name, stage.axes, (value,))
    return Tensor(made, 0, made.shape, narrow.dtype)


def scaled(op: Operator) -> Operator:
    """The operator on an operand times scales, which come first. Attributes: those of the operator and ``operand``, the number of that
    operand (of a tuple's tensors each counts)."""

    def define(scale: te.Tensor, *args: Any, operand: int, **attrs: Any) -> te.Tensor | tuple[te.Tensor, ...]:
        flat = tensors_of(args)
        te.require(0 <= operand < len(flat), f"there is no operand {operand} among {len(flat)}")
        of = flat[operand]
        te.require(scale.ndim == of.ndim, f"a scale of rank {scale.ndim} for an operand of rank {of.ndim}")
        for axis, (mine, own) in enumerate(zip(scale.shape, of.shape, strict=True)):
            if mine != 1:
                te.require_equal(mine, own, f"axis {axis} of a scale and of what it scales")
        outputs, _ = applied(op, grouped(args, flat), attrs)
        scaled_sums = _times(scale, operand, bilinear(flat, outputs))
        if scaled_sums is not None:
            return scaled_sums
        flat[operand] = te.compute(of.shape, lambda *i: cast(of[i], scale.dtype) * scale[_place(scale, i)], "scaled")
        outputs, is_tuple = applied(op, grouped(args, flat), attrs)
        return outputs if is_tuple else outputs[0]

    define.__annotations__["return"] = returned(op.define)
    scales = Input("scale")
    number = AttrSpec("operand", int, None, True)
    return Operator(
        op.name + SCALED, "expression", (scales, *op.inputs), (*op.attrs, number), define, op.effects,
        doc=f"`{op.name}` on an operand times scales.", ignored=op.ignored,
    )  # fmt: skip


def _times(scale: te.Tensor, operand: int, product: Bilinear | None) -> te.Tensor | None:
    """The product with each sum times the scale of the elements that it adds up; None where that is not one scale."""
    factor = next((f for f in product.factors if f.operand == operand), None) if product is not None else None
    if product is None or factor is None or factor.read is None:
        return None
    place, stage = _place(scale, factor.read.indices), product.stage
    if any(mentioned(index) & product.over for index in place):
        return None
    whole, sums = Load(scale, place, scale.dtype), Tensor(stage, 0, stage.shape, stage.bodies[0].dtype)
    return te.compute(
        stage.shape, lambda *i: sums[i] * substitute(whole, dict(zip(stage.axes, i, strict=True))), "scaled"
    )


def _place(scale: te.Tensor, indices: Sequence[Scalar]) -> tuple[Scalar, ...]:
    """Where the scale is of an element that is read at some indices."""
    return tuple(wrap(0, "int64") if size == 1 else i for i, size in zip(indices, scale.shape, strict=True))


def _by_name(name: str) -> Operator | None:
    base, _, form = name.rpartition(".")
    makers: dict[str, Callable[[Operator], Operator]] = {"widened": widened, "scaled": scaled}
    if form not in makers or not exists(base) or not can_narrow(get(base)):
        return None
    return makers[form](get(base))


derive_with(_by_name)
