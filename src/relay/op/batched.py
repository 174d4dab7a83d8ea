"""The batched form of an operator: the same computation for every row of a batch, derived from its tensor expression.

``nn.dense.batched(x, w, mask=(1, 0))`` takes a leading axis more on the inputs whose mask is 1 and has one on its results. An
operator is one expression, so its batched form is that expression with the axis put in front of every stage that depends on a
batched input; what does not is computed once. The axis is an ordinary axis: a dense layer over rows is a matrix product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relay import te
from relay.ir.diagnostics import OperatorError
from relay.ir.dim import Dim
from relay.op.registry import AttrSpec, Operator, applied, derive_with, exists, get, returned
from relay.op.support import grouped, tensors_of
from relay.te.scalar import Axis, Load, Scalar, transform, walk
from relay.te.tensor import Compute, Placeholder, Scan, Stage, Tensor, stage_bodies

SUFFIX = ".batched"


def can_batch(op: Operator) -> bool:
    """Whether an operator has a batched form: it is an expression (or view) and its sizes follow from sizes."""
    return op.kind in ("expression", "view") and op.shape_mode == "independent" and not op.effects and not op.by_routine


def batched(op: Operator) -> Operator:
    """The batched form. Attributes: those of the operator and ``mask``, 1 for each batched input (of a tuple, each tensor)."""
    if not can_batch(op):
        raise OperatorError(f"operator {op.name} has no batched form", hint="only pure tensor expressions have one")

    def define(*args: Any, mask: tuple[int, ...], **attrs: Any) -> te.Tensor | tuple[te.Tensor, ...]:
        flat = tensors_of(args)
        te.require(len(mask) == len(flat), f"the mask has {len(mask)} entries for {len(flat)} inputs")
        te.require(any(mask), "no input is batched")
        rows: Dim | None = None
        inner: list[Tensor] = []
        for tensor, on in zip(flat, mask, strict=True):
            if not on:
                inner.append(tensor)
                continue
            te.require(tensor.ndim > 0, "a batched input needs an axis for its rows")
            rows = tensor.shape[0] if rows is None else te.require_equal(rows, tensor.shape[0], "the rows of a batch")
            inner.append(te.placeholder(tensor.name, tensor.shape[1:], tensor.dtype))
        assert rows is not None
        outputs, is_tuple = applied(op, grouped(args, inner), attrs)
        sources = {i.stage: t for i, t, on in zip(inner, flat, mask, strict=True) if on}
        lifted = _lift(outputs, sources, rows)
        return lifted if is_tuple else lifted[0]

    # What is derived from this operator reads off this whether its result is a tuple.
    define.__annotations__["return"] = returned(op.define)
    mask = AttrSpec("mask", tuple[int, ...], None, True)
    # The elements of a row stay together, so a view of every row is a view of all of them.
    return Operator(
        op.name + SUFFIX, op.kind, op.inputs, (*op.attrs, mask), define, op.effects,
        doc=f"`{op.name}` for every row of a batch.", ignored=op.ignored,
    )  # fmt: skip


def _lift(outputs: Sequence[Tensor], sources: Mapping[Stage, Tensor], rows: Dim) -> tuple[Tensor, ...]:
    """The outputs with the rows' axis in front; ``sources`` are the batched tensors for the placeholders of their rows."""
    new: dict[Stage, Stage] = {}

    def read(tensor: Tensor, row: Axis, index: tuple[Scalar, ...]) -> Scalar:
        source = sources.get(tensor.stage)
        if source is not None:
            return source[(row, *index)]
        made = new.get(tensor.stage)
        if made is not None:
            return Load(Tensor(made, tensor.index, made.shape, tensor.dtype), (row, *index), tensor.dtype)
        return Load(tensor, index, tensor.dtype)

    def body(root: Scalar, row: Axis, memo: dict[int, Scalar]) -> Scalar:
        def visit(node: Scalar) -> Scalar:
            if isinstance(node, Load) and isinstance(node.source, Tensor):
                return read(node.source, row, node.indices)
            return node

        return transform(root, visit, memo)

    for stage in te.stages(outputs):
        if isinstance(stage, Placeholder) or not _depends(stage, sources, new):
            continue
        row = Axis("row", rows)
        memo: dict[int, Scalar] = {}
        if isinstance(stage, Compute):
            bodies = tuple(body(b, row, memo) for b in stage.bodies)
            new[stage] = Compute(stage.name, (row, *stage.axes), bodies)
        else:
            assert isinstance(stage, Scan)
            new[stage] = Scan(
                stage.name, (row, *stage.axes), stage.dim + 1, stage.state, body(stage.init, row, memo),
                body(stage.update, row, memo), stage.reverse, stage.exclusive,
            )  # fmt: skip

    def result(tensor: Tensor) -> Tensor:
        made = new.get(tensor.stage)
        if made is not None:
            return Tensor(made, tensor.index, made.shape, tensor.dtype)
        source = sources.get(tensor.stage)
        # An operand passed on, or what is the same for every row.
        return te.compute(
            (rows, *tensor.shape), lambda r, *i: source[(r, *i)] if source is not None else tensor[i], "rows"
        )

    return tuple(result(t) for t in outputs)


def _depends(stage: Stage, sources: Mapping[Stage, Tensor], new: Mapping[Stage, Stage]) -> bool:
    return any(
        isinstance(node, Load) and isinstance(node.source, Tensor) and (node.source.stage in sources or node.source.stage in new)
        for root in stage_bodies(stage)
        for node in walk(root)
    )  # fmt: skip


def _by_name(name: str) -> Operator | None:
    base = name.removesuffix(SUFFIX)
    return batched(get(base)) if base != name and exists(base) else None


derive_with(_by_name)
