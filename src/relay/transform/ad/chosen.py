"""Functions that are chosen become functions that choose, so that it is known what is under a ``grad``.

``let %f = if (%c) { fn ... } else { fn ... }`` is ``let %f = fn (%x) { let %g = if ...; %g(%x) }``: then `grad(%f)` stands on a known
function, whose derivative chooses as it does.
"""

from __future__ import annotations

from typing import ClassVar

from relay.ir.effects import CLOSURE, Effect
from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, GlobalVar, If, Match, OpRef, Proj, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import FuncType
from relay.op import registry
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, all_bindings, map_functions, nested_blocks


@record(frozen=True, slots=True)
class ChooseInside(Pass):
    """Put the choice of a function into the function, where nothing is read, written or called to make the choice.

    Before: typed blocks. After: the same values; the functions that are chosen this way are local functions.
    """

    name: ClassVar[str] = "choose_inside"

    def __call__(self, module: Module) -> Module:
        return map_functions(module, _inside)


def _inside(function: Function) -> Function:
    moved: set[Var] = set()

    def visit(scope: Scope, var: Var, value: Expr) -> Expr:
        ty = value.ty
        if var in moved or not isinstance(value, If | Match) or not isinstance(ty, FuncType) or ty.type_params:
            return value
        if not _moves(value):
            return value
        params = tuple(Var(f"x{n}", None, t) for n, t in enumerate(ty.params))
        chosen, result = Var(var.name, None, ty), Var("r", None, ty.ret)
        moved.add(chosen)
        called = Binding(result, Call(chosen, params, ty=ty.ret, span=value.span))
        return Function(params, Block((Binding(chosen, value), called), result, ty.ret), ty.ret, ty=ty, span=value.span)

    return Forward(visit).function(function)


def _moves(value: If | Match) -> bool:
    """Whether a choice can be made later, and more than once: it has no effects and calls no functions of the program."""
    if isinstance(value, Match) and not value.complete:
        return False
    return all(_is_plain(b.value) for block in nested_blocks(value) for b in all_bindings(block))


def _is_plain(value: Expr) -> bool:
    match value:
        case Call(fn=OpRef(name=name)):
            return name == CLOSURE or (registry.exists(name) and registry.get(name).effects is Effect.PURE)
        case Match():
            return value.complete
        case Var() | Constant() | GlobalVar() | Tuple() | Proj() | If() | Function():
            return True
        case _:
            return False
