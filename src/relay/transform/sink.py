"""Sinking: what only one outcome of a choice needs is computed in that branch.

A branch that is not taken costs nothing then, and in the one that is taken the operation can share a kernel with what uses it
there. The gradient of a weight is added to a running sum in the branch "there is one already": product and addition become one
kernel, which writes over the sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from relay.ir.effects import Effect
from relay.ir.expr import Binding, Block, Call, Expr, Function, If, Match, OpRef, Proj, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step
from relay.transform.base import Pass
from relay.transform.blocks import (
    all_bindings,
    all_blocks,
    body_of,
    map_functions,
    nested_blocks,
    operands,
    renamed,
    with_body,
    with_nested_blocks,
)  # fmt: skip
from relay.transform.dims import first_binders
from relay.transform.failing import effects_of_moving
from relay.typing.effects import Effects

# An operation is copied into at most so many branches.
_MOST_BRANCHES = 3


@record(frozen=True, slots=True)
class Sink(Pass):
    """Move operations without effects into the branches of the one choice that uses them.

    Before: typed blocks. After: the same values; nothing is computed more often, and what only a branch that is not taken uses is
    not computed.
    """

    name: ClassVar[str] = "sink"

    def __call__(self, module: Module) -> Module:
        effects = effects_of_moving(module)

        def sink(function: Function) -> Function:
            return with_body(function, lambda b: _Sinker(effects, function).block(b, (), {}))

        return map_functions(module, sink)


# A use of a variable: at a position of a block, in the branch of that number or (None) by the operation itself.
_Use = tuple[int, int | None]


class _Sinker:
    """Sinking in one function, outer blocks first."""

    def __init__(self, effects: Effects, function: Function) -> None:
        self.effects = effects
        body = body_of(function)
        # A variable from whose shape a size is read stays where all that mentions the size can see it.
        self.binders = set(first_binders(function.params, (b.var for b in all_bindings(body))).values())
        self.free: dict[int, set[Var]] = {}
        for block in reversed(list(all_blocks(body))):  # inner blocks first
            free: set[Var] = {block.result} if isinstance(block.result, Var) else set()
            for binding in reversed(block.bindings):
                free.discard(binding.var)
                free.update(a for a in operands(binding.value) if isinstance(a, Var))
                for inner in nested_blocks(binding.value):
                    free |= self.free[id(inner)]
            self.free[id(block)] = free

    def block(self, block: Block, moved: Sequence[Binding], names: Mapping[Var, Var]) -> Step[Block]:
        """The block with ``moved`` bindings at its start and variables renamed by ``names``."""
        bindings = [*moved, *(renamed(b, names) for b in block.bindings)]
        result = names.get(block.result, block.result) if isinstance(block.result, Var) else block.result
        into, gone = self._plan(bindings, result, names)
        out: list[Binding] = []
        for position, binding in enumerate(bindings):
            if position in gone:
                continue
            inner: list[Block] = []
            for number, branch in enumerate(nested_blocks(binding.value)):
                own, own_names = _copies(into.get((position, number), ()), names)
                inner.append((yield self.block(branch, own, own_names)))
            value = with_nested_blocks(binding.value, inner)
            out.append(binding if value is binding.value else Binding(binding.var, value))
        same = result is block.result and len(out) == len(block.bindings)
        if same and all(a is b for a, b in zip(out, block.bindings, strict=True)):
            return block
        return Block(tuple(out), result, block.ty, block.span)

    def _plan(
        self, bindings: Sequence[Binding], result: Expr, names: Mapping[Var, Var]
    ) -> tuple[dict[_Use, list[Binding]], set[int]]:
        """What to move into which branch, in order, and the positions that it leaves."""
        uses: dict[Var, set[_Use]] = {}
        for position, binding in enumerate(bindings):
            for atom in operands(binding.value):
                if isinstance(atom, Var):
                    uses.setdefault(atom, set()).add((position, None))
            branches = isinstance(binding.value, If | Match)
            for number, inner in enumerate(nested_blocks(binding.value)):
                for var in self.free[id(inner)]:
                    uses.setdefault(names.get(var, var), set()).add((position, number if branches else None))
        if isinstance(result, Var):
            uses.setdefault(result, set()).add((len(bindings), None))
        into: dict[_Use, list[Binding]] = {}
        gone: set[int] = set()
        for position in reversed(range(len(bindings))):
            binding = bindings[position]
            places = uses.get(binding.var, set())
            if not 0 < len(places) <= _MOST_BRANCHES or len({at for at, _ in places}) != 1:
                continue
            ((at, _), *_) = places
            if any(number is None for _, number in places):
                continue
            if not self._can_move(binding) and not (
                len(places) == len(nested_blocks(bindings[at].value)) and self._may_fail_there(bindings[position:at])
            ):
                continue
            gone.add(position)
            for place in places:
                into.setdefault(place, []).insert(0, binding)
            for atom in operands(binding.value):
                if isinstance(atom, Var):
                    uses[atom].discard((position, None))
                    uses[atom] |= places
        return into, gone

    def _may_fail_there(self, bindings: Sequence[Binding]) -> bool:
        """Whether a call that may fail does nothing else, and what is behind it, up to a choice whose branches all use it, does not tell
        where it fails."""
        first, *rest = bindings
        call = isinstance(first.value, Call) and isinstance(first.value.fn, OpRef) and first.var not in self.binders
        fails = call and self.effects.of(first.value) is Effect.MAY_FAIL
        return fails and all(self.effects.of(b.value) is Effect.PURE for b in rest)

    def _can_move(self, binding: Binding) -> bool:
        value = binding.value
        if binding.var in self.binders:
            return False
        if isinstance(value, Tuple | Proj):
            return True
        return isinstance(value, Call) and isinstance(value.fn, OpRef) and self.effects.of(value) is Effect.PURE


def _copies(moved: Sequence[Binding], names: Mapping[Var, Var]) -> tuple[Sequence[Binding], Mapping[Var, Var]]:
    """The bindings for one branch, under names of their own, and the names in it."""
    if not moved:
        return moved, names
    fresh: dict[Var, Var] = {}
    out: list[Binding] = []
    for binding in moved:
        var = Var(binding.var.name, binding.var.annotation, binding.var.ty)
        out.append(Binding(var, renamed(binding, fresh).value))
        fresh[binding.var] = var
    return out, {**{old: fresh.get(new, new) for old, new in names.items()}, **fresh}
