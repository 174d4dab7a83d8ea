"""Joint calls: several calls of one operator as one call on operands that lie side by side (see `relay.transform.parallel_fusion`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

from relay import te
from relay.ir.diagnostics import OperatorError, TypeError_
from relay.ir.dim import Dim, dim_add, dim_substitute, shape_size
from relay.ir.expr import Attr, Attrs, Binding, Call, Expr, OpRef, Var
from relay.ir.record import record
from relay.ir.types import TensorType
from relay.op import registry
from relay.transform.build import op_call, type_of

# What a size that is not known stands for where amounts of memory are compared: a batch, a short sequence.
_NOMINAL = 16
# And each size of what has several that are not known, where it would have to be copied.
_NOMINAL_OF_WEIGHTS = 128


@record(frozen=True, slots=True, eq=False)
class Site:
    """A call of an operator on tensors: where it stands and its attributes without those that only repeat a size."""

    position: int
    var: Var
    call: Call
    attrs: Attrs

    @property
    def op(self) -> str:
        assert isinstance(self.call.fn, OpRef)
        return self.call.fn.name


@record(slots=True, eq=False)
class Joint:
    """Calls that become one: the parts in order, the axis they lie along and their sizes there.

    The joint call stands before position ``place``, after the ``needed`` bindings, which lay ``copied`` elements side by side.
    ``saved`` elements are read once instead of once for each part.
    """

    parts: list[Site]
    axis: int
    sizes: list[Dim]
    call: Call
    var: Var
    place: int
    needed: list[Binding]
    copied: int
    saved: int


def without_sizes(call: Call) -> Attrs:
    """The attributes without optional ones that only repeat a size of the operands (``units``, ``channels``)."""
    assert isinstance(call.fn, OpRef)
    optional = {a.name for a in registry.get(call.fn.name).attrs if a.default is None and not a.required}
    kept: Mapping[str, Attr] = call.attrs
    for name in optional & kept.keys():
        if not isinstance(kept[name], int) or isinstance(kept[name], bool):
            continue
        fewer = MappingProxyType({k: v for k, v in kept.items() if k != name})
        try:
            repeated = op_call(call.fn.name, call.args, fewer).ty == call.ty
        except (OperatorError, TypeError_, te.DefinitionError):
            continue  # an axis, without which a cotangent does not fit
        if repeated:
            kept = fewer
    return kept


def joint_call(part: Call, args: Sequence[Expr]) -> Call | None:
    """The operator of a call on operands of which some are joint ones; None where its definition demands of their sizes what that of
    the part did not: the rows of a cotangent are those of the operand that it is of, which may not be among what was joined.

    An operand of which only the type counts is, where its own does not fit, a joint one of whose part the type is the same."""
    unread = unread_operands(part)
    there = {type_of(a): args[n] for n, a in enumerate(part.args) if args[n] is not a and n not in unread}
    stood_for = [there.get(type_of(part.args[n]), a) if n in unread else a for n, a in enumerate(args)]
    known = _demands(part)
    assert isinstance(part.fn, OpRef)
    for given in (args, stood_for):
        try:
            call = op_call(part.fn.name, given, part.attrs, part.span)
            demanded = _demands(call)
        except (OperatorError, TypeError_, te.DefinitionError):
            continue
        if known is not None and demanded is not None and demanded <= known:
            return call
    return None


def unread_operands(call: Call) -> frozenset[int]:
    """The operands, by position, of which no element is read: their types alone count."""
    traced = traced_call(call)
    if traced is None:
        return frozenset()
    read = set(te.stages(traced.outputs))
    return frozenset(n for n, t in enumerate(traced.inputs) if t.stage not in read)


def _demands(call: Call) -> frozenset[te.Demand] | None:
    """What the definition of an operator demands of the sizes of its operands, as far as they do not tell."""
    traced = traced_call(call)
    return None if traced is None else frozenset(traced.demands)


def part_slice(joint: Joint, number: int) -> Call:
    begin: Dim = 0
    for size in joint.sizes[:number]:
        begin = dim_add(begin, size)
    end = dim_add(begin, joint.sizes[number])
    attrs = MappingProxyType({"begin": cast(Attr, (begin,)), "end": cast(Attr, (end,)), "axes": (joint.axis,)})
    return op_call("strided_slice", (joint.var,), attrs, joint.parts[number].call.span)


def elements(e: Expr) -> int:
    """How many elements a tensor has (sizes that are not known stand for a moderate number)."""
    return _elements(e, _NOMINAL)


def copied_elements(e: Expr) -> int:
    """How many elements are copied to make a tensor of others side by side. One of several unknown sizes is taken for a weight, whose copy
    in each iteration of a loop would cost more than a kernel does."""
    several = sum(not isinstance(d, int) for d in dims(e)) > 1
    return _elements(e, _NOMINAL_OF_WEIGHTS if several else _NOMINAL)


def _elements(e: Expr, unknown: int) -> int:
    total = dim_substitute(shape_size(dims(e)), lambda _: unknown)
    return total if isinstance(total, int) else unknown


def extent(e: Expr, axis: int) -> Dim:
    return dims(e)[axis]


def other_axes(e: Expr, axis: int) -> tuple[object, ...]:
    """The base type and the sizes of the other axes."""
    ty, shape = type_of(e), dims(e)
    return (ty.dtype if isinstance(ty, TensorType) else None, *shape[:axis], *shape[axis + 1 :])


def dims(e: Expr) -> tuple[Dim, ...]:
    ty = type_of(e)
    assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple)
    return ty.shape


def traced_call(call: Call) -> registry.Traced | None:
    """The expression of a call of one result on tensors of known rank, whose sizes follow from its operands' sizes."""
    assert isinstance(call.fn, OpRef)
    op = registry.get(call.fn.name)
    inputs = operand_shapes(call)
    if inputs is None or op.shape_mode != "independent" or any(i.variadic for i in op.inputs):
        return None
    traced = registry.trace(op, inputs, call.attrs)
    return traced if len(traced.outputs) == 1 else None


def operand_shapes(call: Call) -> list[tuple[tuple[Dim, ...], str]] | None:
    """The shapes and base types of a call's operands; None when one is not a tensor of known rank."""
    out: list[tuple[tuple[Dim, ...], str]] = []
    for arg in call.args:
        ty = type_of(arg)
        if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or not isinstance(ty.dtype, str):
            return None
        out.append((ty.shape, ty.dtype))
    return out
