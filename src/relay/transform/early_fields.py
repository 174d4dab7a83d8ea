"""Fields are taken out of a tuple as soon as it is there: what they hold then dies field by field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from relay.ir.expr import Binding, Block, Expr, Proj
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step
from relay.transform.base import Pass
from relay.transform.blocks import map_bodies, with_each_nested


@record(frozen=True, slots=True)
class EarlyFields(Pass):
    """Move projections, within their block, to where their tuple is bound, or to the beginning.

    Before: typed blocks. After: the same values, in the same blocks. A tuple holds all its fields until the last one is taken out: a state
    that a loop carries beside others could not be written over by the kernel that makes the next one.
    """

    name: ClassVar[str] = "early_fields"

    def __call__(self, module: Module) -> Module:
        return map_bodies(module, _block)


def _block(block: Block) -> Step[Block]:
    bindings: list[Binding] = []
    for binding in block.bindings:
        value = yield with_each_nested(binding.value, _block)
        bindings.append(binding if value is binding.value else Binding(binding.var, value))
    out = _reordered(bindings)
    if all(a is b for a, b in zip(out, block.bindings, strict=True)):
        return block
    return Block(tuple(out), block.result, block.ty, block.span)


def _reordered(bindings: Sequence[Binding]) -> list[Binding]:
    """The bindings with each projection behind that of its tuple, or first where the tuple comes from outside."""
    own: set[Expr] = {b.var for b in bindings}
    taken: dict[Expr | None, list[Binding]] = {}
    for binding in bindings:
        if isinstance(binding.value, Proj):
            taken.setdefault(binding.value.tuple if binding.value.tuple in own else None, []).append(binding)
    out: list[Binding] = []
    todo = [b for b in reversed(bindings) if not isinstance(b.value, Proj)] + taken.get(None, [])[::-1]
    while todo:
        binding = todo.pop()
        out.append(binding)
        todo += taken.get(binding.var, [])[::-1]
    return out
