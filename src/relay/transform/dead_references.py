"""Dead code, references that are only written included."""

from __future__ import annotations

from dataclasses import field, replace
from typing import ClassVar

from relay.ir.dim import DimVar
from relay.ir.effects import Effect, droppable
from relay.ir.expr import Binding, Block, Expr, Function, If, Match, RefNew, RefWrite, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step, run
from relay.transform.base import Pass
from relay.transform.blocks import (
    all_blocks,
    body_of,
    is_atom,
    is_primitive,
    nested_blocks,
    operands,
    says_no_less,
    with_each_nested,
)
from relay.transform.dims import DimUses, first_binders
from relay.transform.failing import effects_of_moving
from relay.typing.effects import Effects


@record(frozen=True, slots=True)
class DeadReferences(Pass):
    """Remove bindings that nothing needs, and references that nothing reads with all that is written to them.

    Before: blocks. After: blocks. A write to a reference made in the same function counts only if the reference is
    used in another way than by writing to it; everything else that fails, writes, talks to the outside or may not
    return stays, in order.
    """

    name: ClassVar[str] = "dead_references"

    def __call__(self, module: Module) -> Module:
        effects = effects_of_moving(module)
        return module.with_functions(
            {n: f if is_primitive(f) else _Marking(effects).function(f) for n, f in module.functions.items()}
        )


def needed_functions(function: Function, effects: Effects) -> set[Var]:
    """The variables of the functions bound in a function's blocks that something needs."""
    marking = _Marking(effects)
    marking.mark_all(function)
    return {b.var for b in marking.needed if isinstance(b.value, Function) and not is_primitive(b.value)}


@record(slots=True, eq=False)
class _Marking:
    """Marks what is needed, from what must happen on, then sweeps. Linear in the size of the function."""

    effects: Effects
    # Where each variable is bound, the binding around each block, and the writes to each reference made here.
    binding: dict[Var, Binding] = field(default_factory=dict)
    holder: dict[Var, Binding] = field(default_factory=dict)
    writes: dict[Var, list[Binding]] = field(default_factory=dict)
    needed: set[Binding] = field(default_factory=set)
    todo: list[Binding] = field(default_factory=list)
    dims: DimUses = field(default_factory=DimUses)
    binders: dict[DimVar, Var] = field(default_factory=dict)

    def function(self, function: Function) -> Function:
        body = body_of(function)
        self.mark_all(function)
        new = run(self.sweep(body))
        return function if new is body else replace(function, body=new)

    def mark_all(self, function: Function) -> None:
        body = body_of(function)
        bound: list[Var] = []
        for block in all_blocks(body):
            for b in block.bindings:
                self.binding[b.var] = b
                bound.append(b.var)
                if isinstance(b.value, Function):
                    self.effects.bind(b.var, b.value)
                for inner in nested_blocks(b.value):
                    for c in inner.bindings:
                        self.holder[c.var] = b
        self.binders = first_binders(function.params, iter(bound))
        self.need_dims(self.dims.of_type(function.ret_type))
        self.enter(body)
        while self.todo:
            self.expand(self.todo.pop())

    def need(self, e: Expr) -> None:
        """A value is used: so is what it is bound to, and a reference's writes count."""
        if isinstance(e, Var):
            binding = self.binding.get(e)
            if binding is not None and binding not in self.needed:
                self.mark(binding)

    def mark(self, binding: Binding) -> None:
        while binding not in self.needed:
            self.needed.add(binding)
            self.todo.append(binding)
            holder = self.holder.get(binding.var)
            if holder is None:
                return
            binding = holder

    def need_dims(self, dims: tuple[DimVar, ...]) -> None:
        for d in dims:
            if d in self.binders:
                self.need(self.binders[d])

    def enter(self, root: Block) -> None:
        """A body that is run: its result is needed, and what must happen in it and in the branches inside."""
        self.need_result(root)
        todo = [root]
        while todo:
            block = todo.pop()
            for b in block.bindings:
                match b.value:
                    case RefWrite(ref=Var() as ref) if ref in self.binding and isinstance(
                        self.binding[ref].value, RefNew
                    ):
                        self.writes.setdefault(ref, []).append(b)
                        if self.binding[ref] in self.needed:
                            self.mark(b)
                    case If() | Match():
                        if isinstance(b.value, Match) and not b.value.complete:
                            self.mark(b)
                        todo += nested_blocks(b.value)
                    case _:
                        if not droppable(self.own_effects(b)):
                            self.mark(b)

    def need_result(self, block: Block) -> None:
        self.need(block.result)
        self.need_dims(self.dims.of_type(block.ty))

    def own_effects(self, b: Binding) -> Effect:
        """A binding's effects; a cast to a type that says more is a check."""
        if is_atom(b.value):
            return Effect.PURE if says_no_less(b.value.ty, b.var.ty) else Effect.MAY_FAIL
        return self.effects.of(b.value)

    def expand(self, binding: Binding) -> None:
        """What a needed binding needs."""
        value = binding.value
        for atom in operands(value):
            self.need(atom)
        self.need_dims(self.dims.of_type(binding.var.ty))
        self.need_dims(self.dims.of_value(value))
        match value:
            case Function():
                for body in nested_blocks(value):
                    self.enter(body)
            case RefNew():
                for written in self.writes.get(binding.var, ()):
                    self.mark(written)
            case _:
                for inner in nested_blocks(value):
                    self.need_result(inner)

    def sweep(self, block: Block) -> Step[Block]:
        kept: list[Binding] = []
        for b in block.bindings:
            if b not in self.needed:
                continue
            if nested_blocks(b.value):
                value = yield with_each_nested(b.value, self.sweep)
                b = b if value is b.value else Binding(b.var, value)
            kept.append(b)
        if len(kept) == len(block.bindings) and all(a is b for a, b in zip(kept, block.bindings, strict=True)):
            return block
        return Block(tuple(kept), block.result, block.ty, block.span)
