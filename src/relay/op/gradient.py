"""The derivatives of operators: operators themselves, derived from the expression that an operator is.

    nn.dense.vjp1(data, weight, cotangent)        the cotangent of input 1 (the weight)
    nn.dense.jvp(data, weight, d_data, d_weight)  the tangent of the result

``<op>.vjp<i>`` takes the operands of ``op`` and the cotangent of its result (a tuple of them where the result is a tuple), with the
attributes of ``op``, and gives the cotangent of tensor number i among the operands (the members of a tuple counted one by one), which
has that operand's type. ``<op>.jvp`` takes the operands and then a tangent for each (ignored for those that are no floats). Both are
made when they are asked for, are expressions like any other, and so have derivatives in their turn: ``nn.dense.vjp1.vjp0``. A cotangent
is linear in the cotangent that it is made from, and the transpose of that map is the tangent of the operator by the same operand: it is
made from the operator's own expression, which is no larger for having been transposed twice.

`input_cotangent` writes the calls that a program's derivative is made of; it knows simpler ones for some operators
(`relay.op.custom_gradients`).
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from relay import te
from relay.ir.diagnostics import CompileError
from relay.ir.dim import Dim, is_any
from relay.ir.expr import Attrs, Expr, Tuple
from relay.ir.record import record
from relay.ir.types import TensorType, TupleType, Type, is_float
from relay.op import registry
from relay.op.build import call
from relay.op.custom_gradients import ELEMENTWISE, Applied, has_declared_rule, rule_of
from relay.op.registry import Input, Operator
from relay.te.autodiff import NotDifferentiable, jvp, vjp
from relay.te.scalar import Const
from relay.te.tensor import Compute


def input_cotangent(
    op_name: str,
    attrs: Attrs,
    args: Sequence[Expr],
    arg_types: Sequence[Type],
    outputs: Sequence[Expr],
    cotangents: Sequence[Expr],
    index: int,
) -> Expr | None:
    """The cotangent of tensor ``index`` among the operands of a call, from the call's results and their cotangents (one for each
    tensor of the result). None where it is zero. Raises CompileError for an operator that has no derivative."""
    if not differentiable(op_name, attrs, arg_types, index):
        return None
    rule = rule_of(_unbatched(op_name, attrs))
    if rule is not None:
        own = rule(Applied(attrs, tuple(args), tuple(arg_types), tuple(outputs), tuple(cotangents), index))
        if isinstance(own, Expr):
            return own
        if own is not None:
            raise CompileError(
                f"the gradient rule of {op_name} gives {own!r} for operand {index}, expected an expression or None"
            )
    op = _expression(op_name)
    if has_declared_rule(op_name) and not _derives(op, attrs, arg_types, index):
        return None
    given: Expr = Tuple(tuple(cotangents)) if _gives_tuple(op) else cotangents[0]
    return call(f"{op_name}.vjp{index}", *args, given, **dict(attrs))


def _unbatched(op_name: str, attrs: Attrs) -> str:
    """The operator whose rule serves a call: an elementwise operator's also for its batched form, where all operands are batched."""
    base = op_name.removesuffix(".batched")
    mask = attrs.get("mask")
    same = (base in ELEMENTWISE and isinstance(mask, tuple) and all(mask)) or (base == "nn.bias_add" and mask == (1, 0))
    return base if same else op_name


def differentiable(op_name: str, attrs: Attrs, arg_types: Sequence[Type], index: int) -> bool:
    """Whether tensor ``index`` among the operands of a call can have a cotangent: it is a float, and some result that is one depends
    on it otherwise than in steps, or a rule was declared, which may say what goes through the steps. Raises CompileError for an operator
    that has no derivative."""
    flat = [t for ty in arg_types for t in (ty.fields if isinstance(ty, TupleType) else (ty,))]
    if index >= len(flat):
        return False
    own = flat[index]
    if not isinstance(own, TensorType) or (isinstance(own.dtype, str) and not is_float(own.dtype)):
        return False
    if has_declared_rule(op_name) or (registry.get(op_name).kind == "routine" and rule_of(op_name) is not None):
        return True
    return _derives(_expression(op_name), attrs, arg_types, index)


def _derives(op: Operator, attrs: Attrs, arg_types: Sequence[Type], index: int) -> bool:
    """Whether a cotangent follows from the expression, or may: its operands' sizes are not known."""
    operands = tuple(operand_signature(t) for t in arg_types)
    return None in operands or _depends(op, operands, AttrsKey(attrs), index)


Signature = tuple[tuple[Dim, ...], str]


def operand_signature(ty: Type) -> Signature | tuple[Signature, ...] | None:
    """Shape and dtype of an operand (of each member of a tuple); None where they are not known."""
    if isinstance(ty, TupleType):
        members = tuple(operand_signature(t) for t in ty.fields)
        return None if None in members else members  # type: ignore[return-value]
    if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or not isinstance(ty.dtype, str):
        return None
    return ty.shape, ty.dtype


@lru_cache(maxsize=4096)
def _depends(op: Operator, operands: tuple[Any, ...], key: AttrsKey, index: int) -> bool:
    transposed = _transposed(op, index, operands)
    if transposed is not None:
        return _depends(transposed.base, operands[:-1], key, transposed.operand)
    if op.shape_mode != "independent" or any(is_any(d) for d in _dims(operands)):
        return True  # a zero of such an operator is found when it runs
    try:
        traced = registry.trace(op, operands, key.attrs)
    except (te.Undetermined, te.DefinitionError):
        return True
    if len(operands) < len(op.inputs):
        cotangents = [te.placeholder("g", o.shape, o.dtype) if is_float(o.dtype) else None for o in traced.outputs]
        (found,) = _guarded(op.name, lambda: vjp(traced.outputs, cotangents, [traced.inputs[index]]))
        return found is not None
    # The operator that is asked for where there is a cotangent.
    results = tuple((o.shape, o.dtype) for o in traced.outputs)
    given = (*operands, results if _gives_tuple(op) else results[0])
    (made,) = registry.trace(registry.get(f"{op.name}.vjp{index}"), given, key.attrs).outputs
    return not _is_zero(made)


@record(frozen=True, slots=True)
class _Transposed:
    """A cotangent by one that it is made from: ``<base>.vjp<operand>`` by that of result ``result``."""

    base: Operator
    operand: int
    result: int


def _transposed(op: Operator, index: int, operands: Sequence[Any]) -> _Transposed | None:
    """What ``<op>.vjp<index>`` for these operands is the transpose of, twice; None where it is derived like any other."""
    base, _, last = op.name.rpartition(".vjp")
    if not base or not last.isdigit():
        return None
    own = registry.get(base)
    first = len(_members(operands[:-1]))
    return _Transposed(own, int(last), index - first) if own.shape_mode == "independent" and index >= first else None


def _members(operands: Sequence[Any]) -> list[Any]:
    """The operands with the members of tuples one by one: of tensors, or of signatures."""
    return [t for o in operands for t in (o if isinstance(o, tuple) and not _is_signature(o) else (o,))]


def _is_signature(operand: tuple[Any, ...]) -> bool:
    return len(operand) == 2 and isinstance(operand[1], str)


def _dims(operands: Sequence[Any]) -> list[Dim]:
    return [d for shape, _ in _members(operands) for d in shape]


class AttrsKey:
    """Attributes as a hashable key."""

    __slots__ = ("_key", "attrs")

    def __init__(self, attrs: Attrs) -> None:
        self.attrs = attrs
        self._key = tuple((name, repr(attrs[name])) for name in sorted(attrs))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttrsKey) and self._key == other._key


def _expression(name: str) -> Operator:
    op = registry.get(name)
    if op.kind not in ("expression", "view"):
        what = "a runtime routine" if op.kind == "routine" else "a composition"
        raise CompileError(
            f"operator {name} has no derivative: it is {what}, not a tensor expression",
            hint="use operators that are expressions on the path of the gradient, or declare one with @relay.operator",
        )
    return op


def _gives_tuple(op: Operator) -> bool:
    """Whether the result is a tuple, as the definition's annotation says."""
    found = registry.returned(op.define)
    if op.shape_mode == "upper_bound":  # the last tensor is the extents, and one other is given as it is
        return len(typing.get_args(found)) > 2
    return typing.get_origin(found) is tuple


# -- derived operators


def derived(name: str) -> Operator | None:
    """The derivative operator of this name, if it is one's."""
    base, _, last = name.rpartition(".")
    numbers = last[3:].split("_") if last.startswith("vjp") else []
    if not base or not (last == "jvp" or (numbers and all(n.isdigit() for n in numbers))) or not registry.exists(base):
        return None
    op = registry.get(base)
    if op.kind not in ("expression", "view"):
        return None
    return _tangent_operator(op) if last == "jvp" else _cotangent_operator(op, [int(n) for n in numbers])


def _apply(op: Operator, args: Sequence[Any], keywords: dict[str, Any], out_shape: Any) -> tuple[te.Tensor, ...]:
    if op.shape_mode == "data":
        keywords = {**keywords, "out_shape": out_shape}
    return registry.applied(op, args, keywords)[0]


def _guarded(name: str, work: Callable[[], list[te.Tensor | None]]) -> list[te.Tensor | None]:
    try:
        return work()
    except NotDifferentiable as error:
        raise CompileError(f"operator {name} has no derivative: {error}") from error


def _zeros(like: te.Tensor) -> te.Tensor:
    return te.compute(like.shape, lambda *_: te.const(0, like.dtype), "zeros")


def _is_zero(tensor: te.Tensor) -> bool:
    stage = tensor.stage
    body = stage.bodies[tensor.index] if isinstance(stage, Compute) else None
    return isinstance(body, Const) and body.value == 0


def _matching(op: Operator, outputs: Sequence[te.Tensor], given: Sequence[te.Tensor]) -> list[te.Tensor | None]:
    """The cotangents of the outputs, checked; None for outputs that are no floats."""
    te.require(
        len(given) == len(outputs), f"{op.name} has {len(outputs)} results, but {len(given)} cotangents are given"
    )
    out: list[te.Tensor | None] = []
    for output, cotangent in zip(outputs, given, strict=True):
        if not is_float(output.dtype):
            out.append(None)
            continue
        te.require(
            cotangent.dtype == output.dtype,
            f"the result of {op.name} is {output.dtype}, but its cotangent is {cotangent.dtype}: cast it",
        )
        te.require(
            cotangent.ndim == output.ndim,
            f"the result of {op.name} has rank {output.ndim}, but its cotangent has rank {cotangent.ndim}",
        )
        if op.shape_mode == "upper_bound":
            out.append(_extended(cotangent, output))
            continue
        for n, (a, b) in enumerate(zip(cotangent.shape, output.shape, strict=True)):
            te.require_equal(a, b, f"axis {n} of the result of {op.name} and its cotangent")
        out.append(cotangent)
    return out


def _extended(cotangent: te.Tensor, output: te.Tensor) -> te.Tensor:
    """With zeros where the whole result has elements that are cut off."""

    def body(*i: te.Scalar) -> te.Scalar:
        return te.select(i[0] < te.size(cotangent.shape[0]), cotangent[i], te.const(0, cotangent.dtype))

    return te.compute(output.shape, body, "extended")


def _cotangent_operator(op: Operator, numbers: Sequence[int]) -> Operator | None:
    many = _gives_tuple(op)
    if not any(i.variadic for i in op.inputs) and max(numbers) >= len(op.inputs):
        return None
    name = f"{op.name}.vjp{'_'.join(map(str, numbers))}"

    def define(*args: Any, **keywords: Any) -> te.Tensor | tuple[te.Tensor, ...]:
        *operands, given = args
        cotangents = given if isinstance(given, tuple) else (given,)
        inputs = _members(operands)
        te.require(max(numbers) < len(inputs), f"{name}: {op.name} has only {len(inputs)} operands here")
        wanted = [inputs[n] for n in numbers]
        for n, each in zip(numbers, wanted, strict=True):
            te.require(
                is_float(each.dtype), f"{name}: operand {n} of {op.name} is {each.dtype}, which has no cotangent"
            )
        outputs = _apply(op, operands, keywords, cotangents[0].shape)
        if op.shape_mode == "upper_bound":
            outputs = outputs[:-1]
        own = _matching(op, outputs, cotangents)
        transposed = _transposed(op, numbers[0], operands) if len(numbers) == 1 else None
        if transposed is None:
            found = _guarded(name, lambda: vjp(outputs, own, wanted))
        else:
            found = [_tangent_by(transposed, operands[:-1], keywords, own[0], name)]
        made = tuple(_zeros(w) if f is None else f for f, w in zip(found, wanted, strict=True))
        return made if len(made) > 1 else made[0]

    define.__annotations__["return"] = te.Tensor if len(numbers) == 1 else tuple[te.Tensor, ...]
    # An operand that may be missing stands before the cotangent: the last operand is always that.
    missing = any(i.optional for i in op.inputs)
    return replace(
        op,
        name=name,
        kind="expression",
        inputs=(*op.inputs, Input("cotangent", many, missing)),
        define=define,
        shape_mode="independent",
        result_shape=None,
        result_rank=None,
        doc=f"The cotangent of operand {', '.join(map(str, numbers))} of {op.name}, from its operands and the cotangent of its result.",
        by_routine=False,
    )


def _tangent_by(
    of: _Transposed, operands: Sequence[Any], keywords: dict[str, Any], tangent: te.Tensor | None, name: str
) -> te.Tensor | None:
    """The tangent of one result of an operator, of which one operand alone moves."""
    inputs = _members(operands)
    outputs = _apply(of.base, operands, keywords, None)
    tangents = [tangent if n == of.operand else None for n in range(len(inputs))]
    return _guarded(name, lambda: jvp(outputs, inputs, tangents))[of.result]


def _tangent_operator(op: Operator) -> Operator:
    many = _gives_tuple(op)
    name = f"{op.name}.jvp"

    def define(*args: Any, **keywords: Any) -> te.Tensor | tuple[te.Tensor, ...]:
        te.require(len(args) % 2 == 0, f"{name} takes as many tangents as operands")
        operands, tangents = args[: len(args) // 2], args[len(args) // 2 :]
        inputs, given = _members(operands), _members(tangents)
        te.require(len(inputs) == len(given), f"{name} takes as many tangents as operands")
        own: list[te.Tensor | None] = []
        for n, (x, t) in enumerate(zip(inputs, given, strict=True)):
            if not is_float(x.dtype):
                own.append(None)
                continue
            te.require(
                t.dtype == x.dtype and t.ndim == x.ndim, f"{name}: tangent {n} must have the type of operand {n}"
            )
            for axis, (a, b) in enumerate(zip(x.shape, t.shape, strict=True)):
                te.require_equal(a, b, f"axis {axis} of operand {n} of {name} and its tangent")
            own.append(t)
        te.require(op.shape_mode == "independent", f"{name}: the sizes of the result of {op.name} depend on data")
        outputs = _apply(op, operands, keywords, None)
        found = _guarded(name, lambda: jvp(outputs, inputs, own))
        result = tuple(_zeros(o) if f is None else f for o, f in zip(outputs, found, strict=True))
        return result if many else result[0]

    define.__annotations__["return"] = tuple[te.Tensor, ...] if many else te.Tensor
    missing = any(i.optional for i in op.inputs)
    tangents = tuple(Input(f"d_{i.name}", i.variadic, i.optional or missing) for i in op.inputs)
    return replace(
        op,
        name=name,
        kind="expression",
        inputs=(*op.inputs, *tangents),
        define=define,
        doc=f"The tangent of the result of {op.name}, from its operands and their tangents.",
        by_routine=False,
    )


registry.derive_with(derived)
