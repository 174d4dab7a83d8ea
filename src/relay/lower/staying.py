"""How much of packed weights the caches have from one call of their kernel to the next.

A kernel alone cannot know: a matrix of half the cache stays there if it is all that a loop multiplies by, and is driven out if it is one
layer of many. So it is found for the module: what all products reachable from it (or from a loop in it, which is a group of functions
that call each other) read together fits, or fits in part, or does not. What a loop reads may be in the first-level cache in part as well:
of what a program reads once nothing is left there at its next call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from relay.ir.dim import shape_size
from relay.ir.expr import Call, Constant
from relay.ir.graph import components
from relay.ir.module import Module, reachable
from relay.ir.types import dtype_bits
from relay.loop.target import Target
from relay.plan.build import Residence
from relay.plan.kernel_plan import KernelPlan
from relay.plan.there_and_back import MOST_CACHES
from relay.transform.blocks import all_blocks, body_of, is_primitive
from relay.transform.uses import globals_used

# The weights have so much of the cache at most (numerator and denominator): the rest is for what they are multiplied with, and pages
# that meet in few of its sets drive each other out (reading 1.4 MB again and again from 2 MB goes at two thirds of the speed of 1.2 MB).
_SHARE = 5, 8

# Constants that products read, with what each takes: (id of the data, key of the layout), bytes.
Weights = Mapping[tuple[int, str], int]


def _packed(call: Call, plan: KernelPlan) -> Weights:
    """The constants that a call's plan has packed, with the bytes of their panels."""
    found: dict[tuple[int, str], int] = {}
    for pack in plan.packs:
        raw, elements = call.args[pack.operand], shape_size(pack.packed.shape)
        if isinstance(raw, Constant) and isinstance(elements, int):
            found[id(raw.data), pack.key] = elements * dtype_bits(pack.packed.dtype) // 8
    return found


def _given(call: Call) -> Weights:
    """The constants that a call is given, with their bytes as they are."""
    constants = [a for a in call.args if isinstance(a, Constant)]
    return {(id(c.data), ""): c.data.size * dtype_bits(c.dtype) // 8 for c in constants}


def residences(
    module: Module, multiplies: Callable[[Call], bool], plan_of: Callable[[Call], KernelPlan], target: Target
) -> Mapping[int, Residence]:
    """Where the constants of primitive calls that have any are from one call to the next, by the calls' ids. ``multiplies`` says which
    calls have products: no other packs anything. Plans are looked at (which takes making them) only of products whose constants may fit
    the second-level cache, for targets that wait for the caches behind it; others wait for memory alone."""
    calls: dict[str, list[Call]] = {}
    for name, function in module.functions.items():
        values = [b.value for block in all_blocks(body_of(function)) for b in block.bindings]
        constant = [v for v in values if isinstance(v, Call) and is_primitive(v.fn)]
        calls[name] = [c for c in constant if any(isinstance(a, Constant) for a in c.args) and multiplies(c)]

    def together(names: Sequence[str], weights: Callable[[Call], Weights]) -> int:
        found = {mark: size for n in names for c in calls[n] for mark, size in weights(c).items()}
        return sum(found.values())

    def residence(names: Sequence[str], loop: bool) -> Residence:
        given = together(names, _given)
        if loop and given <= MOST_CACHES * target.l1_bytes:
            return Residence.NEAR
        if given > (MOST_CACHES * target.l2_bytes if target.outruns_caches else target.l3_bytes):
            return Residence.NONE
        if target.outruns_caches and given <= target.l2_bytes:
            packed = together(names, lambda c: _packed(c, plan_of(c)))
            if packed * _SHARE[1] <= target.l2_bytes * _SHARE[0]:
                return Residence.WHOLE
        return Residence.PART

    uses = {name: globals_used(function) for name, function in module.functions.items()}
    loops = [part for part in components(uses) if len(part) > 1 or part[0] in uses[part[0]]]
    found: dict[int, Residence] = {}
    order = [Residence.NONE, Residence.PART, Residence.WHOLE, Residence.NEAR]
    scopes = [(list(calls), False), *((reachable(module.functions, part), True) for part in loops)]
    for scope, loop in scopes:
        here = residence(scope, loop)
        for call in (c for n in scope for c in calls[n]):
            found[id(call)] = max(found.get(id(call), here), here, key=order.index)
    return found
