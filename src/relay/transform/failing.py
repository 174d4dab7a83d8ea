"""What may fail when it is computed where the program would not compute it.

The definitions of this package stay inside of their operands, but for what is moved into an axis that has no elements, which a ``take`` of
unknown sizes may come upon (`relay.plan.empty_axes`). One of a program's author may read at places that nothing bounds, and fails where
one is outside (`relay.plan.checked_reads`). Such a call is not computed where the program would not, nor left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from relay import te
from relay.ir.diagnostics import RelayError
from relay.ir.dim import Dim, dim_bounds
from relay.ir.expr import Binding, Block, Call, Expr, Function, OpRef, Tuple, Var, attrs_key
from relay.ir.module import Module
from relay.ir.types import TensorType, TupleType, Type
from relay.op import registry
from relay.op.foreign import is_foreign
from relay.plan import empty_axes
from relay.plan.checked_reads import may_read_outside
from relay.plan.graph import te_graph
from relay.transform.name_dims import named
from relay.transform.primitive import PRIMITIVE
from relay.typing.effects import Effects


def effects_of_moving(module: Module, checked: bool = True) -> Effects:
    """Effects for a pass that computes things where the program may not, or not where it does: reading outside of a tensor is one.
    ``checked``: see `Effects`."""
    return Effects(module, may_fail, checked)


def may_fail(call: Call) -> bool:
    """Whether a call of an operator without effects may read outside of its operands."""
    return asked_of(call) != frozenset()


def asked_of(call: Call) -> frozenset[tuple[Dim, tuple[Dim, ...]]] | None:
    """The axes that a call of an operator without effects fails for where they are empty (`empty_axes.asked_of`); None where it may fail
    for what is in its operands."""
    return registry.remembered(("asked of", call), lambda: _found_of(call))


def _found_of(call: Call) -> frozenset[tuple[Dim, tuple[Dim, ...]]] | None:
    assert isinstance(call.fn, OpRef)
    op = registry.get(call.fn.name)
    if op.kind not in ("expression", "view"):
        return frozenset()
    foreign = is_foreign(op.name)
    types = tuple(ty for a in call.args if (ty := named(a.ty, "unknown")) is not None)
    if len(types) < len(call.args) or call.ty is None:
        return None if foreign else frozenset()
    if not foreign and not any(_may_be_empty(d) for t in types for d in _sizes(t)):
        return frozenset()
    key = ("asked of", op, tuple(a.ty for a in call.args), attrs_key(call.attrs))
    return registry.remembered(key, lambda: _asked(call, types, foreign))


def _asked(call: Call, types: Sequence[Type], foreign: bool) -> frozenset[tuple[Dim, tuple[Dim, ...]]] | None:
    try:
        graph = te_graph(alone(call, types))
    except (RelayError, te.DefinitionError, te.Undetermined):
        return None  # a definition that refuses these sizes, which may be those of a call that is never made
    return None if foreign and may_read_outside(graph) else empty_axes.asked_of(graph.outputs)


def _sizes(ty: Type) -> Iterator[Dim]:
    match ty:
        case TensorType(shape=tuple() as shape):
            yield from shape
        case TupleType():
            for field in ty.fields:
                yield from _sizes(field)


def _may_be_empty(size: Dim) -> bool:
    low, _ = dim_bounds(size)
    return low is None or low < 1


def alone(call: Call, types: Sequence[Type]) -> Function:
    """A primitive of nothing but a call."""
    params: list[Var] = []

    def given(ty: Type) -> Expr:
        if isinstance(ty, TupleType):
            return Tuple(tuple(map(given, ty.fields)), ty)
        params.append(Var("p", None, ty))
        return params[-1]

    args = tuple(map(given, types))
    ty = named(call.ty, "unknown")
    result = Var("result", None, ty)
    body = Block((Binding(result, Call(call.fn, args, call.attrs, (), ty)),), result)
    return Function(tuple(params), body, attrs=PRIMITIVE)
