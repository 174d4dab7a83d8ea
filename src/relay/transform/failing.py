"""What may fail when it is computed where the program would not compute it.

The definitions of this package stay inside of their operands. One of a program's author may read at places that nothing bounds, and fails
where one is outside (`relay.plan.checked_reads`): such a call is not computed earlier than it stands, nor beside a condition that
it stands behind, and not left out.
"""

from __future__ import annotations

from relay.ir.expr import Binding, Block, Call, Expr, Function, OpRef, Tuple, Var, attrs_key
from relay.ir.module import Module
from relay.ir.types import TupleType, Type
from relay.op import registry
from relay.op.foreign import is_foreign
from relay.plan.checked_reads import may_read_outside
from relay.plan.graph import te_graph
from relay.transform.primitive import PRIMITIVE
from relay.typing.effects import Effects


def effects_of_moving(module: Module) -> Effects:
    """Effects for a pass that computes things where the program may not, or not where it does: reading outside of a tensor is one."""
    return Effects(module, _may_fail)


def _may_fail(call: Call) -> bool:
    assert isinstance(call.fn, OpRef)
    op = registry.get(call.fn.name)
    if op.kind not in ("expression", "view") or not is_foreign(op.name):
        return False
    types = tuple(a.ty for a in call.args if a.ty is not None)
    if len(types) < len(call.args) or call.ty is None:
        return True
    key = ("may fail", op, types, attrs_key(call.attrs))
    return registry.remembered(key, lambda: may_read_outside(te_graph(_alone(call, types))))


def _alone(call: Call, types: tuple[Type, ...]) -> Function:
    """A primitive of nothing but a call."""
    params: list[Var] = []

    def given(ty: Type) -> Expr:
        if isinstance(ty, TupleType):
            return Tuple(tuple(map(given, ty.fields)), ty)
        params.append(Var("p", None, ty))
        return params[-1]

    args = tuple(map(given, types))
    result = Var("result", None, call.ty)
    body = Block((Binding(result, Call(call.fn, args, call.attrs, (), call.ty)),), result)
    return Function(tuple(params), body, attrs=PRIMITIVE)
