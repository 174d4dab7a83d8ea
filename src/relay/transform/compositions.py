"""Operators that are programs become these programs."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from relay.ir.expr import Binding, Block, Call, Expr, Function, OpRef, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.op import registry
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, body_of, map_functions
from relay.transform.build import type_of
from relay.transform.copying import Copier
from relay.transform.to_blocks import to_blocks
from relay.typing import expand


@record(frozen=True, slots=True)
class ExpandCompositions(Pass):
    """Replace calls of composition operators by what they are composed of.

    Before: typed blocks. After: typed blocks without composition operators.
    """

    name: ClassVar[str] = "expand_compositions"

    def __call__(self, module: Module) -> Module:
        expander = _Expander()
        return map_functions(module, lambda f: Forward(expander.visit).function(f))


@record(slots=True, eq=False)
class _Expander:
    blocks: dict[int, tuple[Function, Function]] = field(default_factory=dict)

    def visit(self, scope: Scope, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or not registry.exists(value.fn.name):
            return value
        op = registry.get(value.fn.name)
        if op.kind != "composition":
            return value
        whole = expand(op, tuple(type_of(a) for a in value.args), value.attrs)
        known = self.blocks.get(id(whole))
        if known is None:
            known = self.blocks[id(whole)] = (whole, to_blocks(whole))
        function = known[1]
        copier = Copier()
        params = [copier.bind(p) for p in function.params]
        copy = copier.copy(body_of(function))
        given = tuple(Binding(p, a) for p, a in zip(params, value.args, strict=True))
        return Block((*given, *copy.bindings), copy.result, copy.ty, value.span)
