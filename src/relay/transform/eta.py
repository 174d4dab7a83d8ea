"""Constructors and operators as values become functions, so that after this they are only ever called."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from relay.ir.expr import Binding, Block, Call, ConstructorRef, Expr, Function, OpRef, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step
from relay.ir.types import FuncType, Type
from relay.transform.base import Pass
from relay.transform.blocks import (
    is_primitive,
    map_bodies,
    nested_blocks,
    operands,
    with_each_nested,
    with_operands,
)


@record(frozen=True, slots=True)
class EtaExpand(Pass):
    """Bind ``fn(fields) { C(fields) }`` where a constructor or an operator is used as a value.

    Before: typed blocks. After: a `ConstructorRef` or `OpRef` stands only where it is called; a constructor without
    fields used as a value is called with no arguments.
    """

    name: ClassVar[str] = "eta_expand"

    def __call__(self, module: Module) -> Module:
        return map_bodies(module, _block)


@record(slots=True, eq=False)
class _Values:
    """The values made in one block, by name and type."""

    bindings: list[Binding] = field(default_factory=list)
    known: dict[object, Var] = field(default_factory=dict)

    def atom(self, e: Expr) -> Expr:
        if not isinstance(e, ConstructorRef | OpRef):
            return e
        key = (type(e), e.name, e.ty)
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = Var(e.name.rsplit(".", 1)[-1], None, e.ty)
            self.bindings.append(Binding(found, _as_value(e, e.ty)))
        return found


def _as_value(e: ConstructorRef | OpRef, ty: Type | None) -> Expr:
    if not isinstance(ty, FuncType):
        return Call(e, (), ty=ty, span=e.span)
    params = tuple(Var(f"a{n}", None, t) for n, t in enumerate(ty.params))
    result = Var("r", None, ty.ret)
    body = Block((Binding(result, Call(e, params, ty=ty.ret, span=e.span)),), result, ty.ret)
    return Function(params, body, ty.ret, ty.type_params, ty=ty, span=e.span)


def _block(block: Block) -> Step[Block]:
    out: list[Binding] = []
    values = _Values(out)
    changed = False
    for binding in block.bindings:
        value = binding.value
        atoms = operands(value)
        if any(isinstance(a, ConstructorRef | OpRef) for a in atoms):
            # The callee itself is the first operand of a call of an atom.
            called = isinstance(value, Call) and not is_primitive(value.fn)
            value = with_operands(value, [a if n == 0 and called else values.atom(a) for n, a in enumerate(atoms)])
        if nested_blocks(value):
            value = yield with_each_nested(value, _block)
        if value is not binding.value:
            changed = True
            binding = Binding(binding.var, value)
        out.append(binding)
    result = values.atom(block.result)
    if not changed and result is block.result:
        return block
    return Block(tuple(out), result, block.ty, block.span)
