"""Dead code: bindings that nobody uses, functions that nobody calls."""

from __future__ import annotations

from dataclasses import field, replace
from typing import ClassVar

from relay.ir.dim import Dim, DimVar
from relay.ir.effects import Effect, droppable
from relay.ir.expr import Binding, Block, Call, Expr, Function, OpRef, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.op import registry
from relay.transform.base import Pass
from relay.transform.blocks import (
    all_bindings,
    body_of,
    is_atom,
    is_primitive,
    map_functions,
    nested_blocks,
    operands,
    says_no_less,
    with_each_nested,
)  # fmt: skip
from relay.transform.dims import DimUses, first_binders
from relay.transform.failing import asked_of, effects_of_moving
from relay.transform.uses import globals_used
from relay.typing.effects import Effects

# What has happened although something after it fails.
_SEEN_BEFORE_FAILING = Effect.WRITES | Effect.HOST | Effect.DIVERGES

# The attribute of a function that stands beside another one, which it names: it lives as long as that one.
BESIDE = "beside"


@record(frozen=True, slots=True)
class DeadCode(Pass):
    """Remove bindings whose variables are not used and whose effects nobody could tell from nothing.

    Before: blocks. After: blocks; what fails, writes, talks to the outside or may not return is still there, in
    order, and so is every binding that gives a dim variable its value where the variable is used. ``checked``: what is demanded of sizes
    stands as checks, as after `NameDims`; before, what demands something is one that may fail.
    """

    name: ClassVar[str] = "dce"
    checked: bool = True

    def __call__(self, module: Module) -> Module:
        effects = effects_of_moving(module, self.checked)
        return map_functions(module, lambda f: without_dead_code(f, effects))


def without_dead_code(function: Function, effects: Effects) -> Function:
    """The function without what `DeadCode` removes; the same object where that is nothing."""
    return function if is_primitive(function) else _Live(effects).function(function)


@record(frozen=True, slots=True)
class DeadFunctions(Pass):
    """Remove the global functions that cannot be reached from ``entries``.

    Before: blocks. After: every function left is an entry, is mentioned by one that is left, or stands beside such a one
    (`BESIDE`). Without entries nothing changes.
    """

    name: ClassVar[str] = "dead_functions"
    entries: tuple[str, ...] | str = "main"

    def __call__(self, module: Module) -> Module:
        entries = (self.entries,) if isinstance(self.entries, str) else self.entries
        todo = [n for n in entries if n in module.functions]
        if not todo:
            return module
        todo += [n for n, f in module.functions.items() if f.attrs.get(BESIDE) in todo]
        reached: set[str] = set(todo)
        while todo:
            for name in globals_used(module.functions[todo.pop()]):
                if name in module.functions and name not in reached:
                    reached.add(name)
                    todo.append(name)
        return module.with_functions({n: f for n, f in module.functions.items() if n in reached})


def _asks(value: Expr, effects: Effects) -> frozenset[tuple[Dim, tuple[Dim, ...]]] | None:
    """The axes that something fails for where they are empty; None where it may fail for another reason."""
    if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or not registry.exists(value.fn.name):
        return None
    return None if effects.declared(value) else asked_of(value)


@record(slots=True, eq=False)
class _Live:
    """The backward walk. Variables are identities, so one set of used ones serves all scopes."""

    effects: Effects
    used: set[Var] = field(default_factory=set)
    dims: DimUses = field(default_factory=DimUses)
    binders: dict[DimVar, Var] = field(default_factory=dict)

    def function(self, function: Function) -> Function:
        body = body_of(function)
        self.binders = first_binders(function.params, (b.var for b in all_bindings(body)))
        self._use_dims(self.dims.of_type(function.ret_type))
        new = run(self.block(body))
        return function if new is body else replace(function, body=new)

    def block(self, block: Block) -> Step[Block]:
        used = self.used
        if isinstance(block.result, Var):
            used.add(block.result)
        self._use_dims(self.dims.of_type(block.ty))
        kept: list[Binding] = []
        changed = False
        # What later calls ask for, with nothing between that could be told: asking for it once is enough.
        asked: set[tuple[Dim, tuple[Dim, ...]]] = set()
        for binding in reversed(block.bindings):
            var, value = binding.var, binding.value
            effects = self._effects(var, value)
            if effects & _SEEN_BEFORE_FAILING:
                asked.clear()
            asks = _asks(value, self.effects) if effects is Effect.MAY_FAIL else None
            if var not in used and (droppable(effects) or (asks is not None and asked.issuperset(asks))):
                changed = True
                continue
            asked.update(asks or ())
            if nested_blocks(value):
                value = yield with_each_nested(value, self.block)
            for atom in operands(value):
                if isinstance(atom, Var):
                    used.add(atom)
            self._use_dims(self.dims.of_type(var.ty))
            self._use_dims(self.dims.of_value(value))
            if value is not binding.value:
                changed = True
                binding = Binding(var, value)
            kept.append(binding)
        return Block(tuple(reversed(kept)), block.result, block.ty, block.span) if changed else block

    def _effects(self, var: Var, value: Expr) -> Effect:
        """A binding's effects; a cast to a type that says more is a check."""
        if is_atom(value):
            return Effect.PURE if says_no_less(value.ty, var.ty) else Effect.MAY_FAIL
        return self.effects.of(value)

    def _use_dims(self, dims: tuple[DimVar, ...]) -> None:
        for d in dims:
            binder = self.binders.get(d)
            if binder is not None:
                self.used.add(binder)
