"""Loops that other loops run: which calls of a recursive function are made again and again, and what these calls give it each time.

What a loop computes of the rows of a tensor is no more work in front of it where it comes to all of them. One that is run for some
rows at a time (the edges of a node, the words that end at a place) would compute all of them each time. Where a row's value depends on
what is the same in all of these calls alone, it leaves the outer loop too, and is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from relay.ir.effects import Effect
from relay.ir.expr import Call, Constant, Expr, OpRef, Proj, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.transform.blocks import all_bindings, body_of, operands
from relay.transform.fix_invariants import invariants
from relay.transform.visited_rows import CallSites
from relay.typing.effects import Effects


@record(frozen=True, slots=True, eq=False)
class Rerun:
    """A call that may be made many times; ``fixed``: what is the same in its caller each time."""

    caller: str
    call: Call
    fixed: frozenset[Var]

    def is_fixed(self, value: Expr) -> bool:
        return isinstance(value, Constant) or value in self.fixed


@record(slots=True, eq=False)
class Reruns:
    """The calls from recursive functions, and from what these call, of each function of a module, whose calls are ``sites`` and whose
    ``components`` come callees first."""

    module: Module
    sites: CallSites
    components: Sequence[Sequence[str]]
    effects: Effects
    _home: dict[str, int] = field(default_factory=dict)
    _fixed: dict[str, frozenset[Var] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._home.update((n, number) for number, component in enumerate(self.components) for n in component)
        for component in reversed(self.components):  # callers first
            for name in component:
                self._fixed[name] = self._fixed_in(name, len(component) > 1)

    def of(self, name: str) -> list[Rerun]:
        return [
            Rerun(caller, call, fixed)
            for caller, call in self._outside(name)
            if (fixed := self._fixed[caller]) is not None
        ]

    def _outside(self, name: str) -> list[tuple[str, Call]]:
        return [(c, call) for c, call in self.sites.known(name) if self._home[c] != self._home[name]]

    def _fixed_in(self, name: str, together: bool) -> frozenset[Var] | None:
        """What is the same whenever the function's body runs; None where it is not run again and again."""
        function = self.module.functions[name]
        shared = invariants(name, function)
        if shared is None or together:
            rerun = together or any(self._fixed[caller] is not None for caller, _ in self._outside(name))
            return frozenset() if rerun else None
        fixed: set[Expr] = {function.params[n] for n in shared.params}
        for b in all_bindings(body_of(function)):
            value = b.value
            pure = isinstance(value, Tuple | Proj) or (
                isinstance(value, Call) and isinstance(value.fn, OpRef) and self.effects.of(value) == Effect.PURE
            )
            given = [a for a in operands(value) if not isinstance(a, Constant | OpRef)]
            if pure and all(a in fixed for a in given):
                fixed.add(b.var)
        return frozenset(v for v in fixed if isinstance(v, Var))
