"""Which packed weights stay in the second-level cache from one call of their kernel to the next.

A kernel alone cannot know: a matrix of half the cache stays there if it is all that a loop multiplies by, and is driven out if it is one
layer of many. So it is found for the module: what all products reachable from it (or from a loop in it, which is a group of functions
that call each other) read together either fits or does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from relay.ir.dim import shape_size
from relay.ir.expr import Call, Constant
from relay.ir.module import Module, reachable
from relay.ir.types import dtype_bits
from relay.loop.target import Target
from relay.plan.kernel_plan import KernelPlan
from relay.transform.blocks import all_blocks, body_of, is_primitive
from relay.transform.uses import components, globals_used

# The weights have so much of the cache at most (numerator and denominator): the rest is for what they are multiplied with, and pages
# that meet in few of its sets drive each other out (reading 1.4 MB again and again from 2 MB goes at two thirds of the speed of 1.2 MB).
_SHARE = 5, 8

# The constants that a call's plan has packed, with what each takes: (id of the data, key of the layout), bytes.
Weights = Mapping[tuple[int, str], int]


def _weights_of(call: Call, plan: KernelPlan) -> Weights:
    """The constants that a call's plan has packed, with the bytes of their panels."""
    found: dict[tuple[int, str], int] = {}
    for pack in plan.packs:
        raw, elements = call.args[pack.input_index], shape_size(pack.packed.shape)
        if isinstance(raw, Constant) and isinstance(elements, int):
            found[id(raw.data), pack.key] = elements * dtype_bits(pack.packed.dtype) // 8
    return found


def staying(
    module: Module, multiplies: Callable[[Call], bool], plan_of: Callable[[Call], KernelPlan], target: Target
) -> frozenset[int]:
    """The ids of the primitive calls whose packed constants stay in the second-level cache, for targets whose plans depend on that.
    ``multiplies`` says which calls have products: no other packs anything."""
    if not target.outruns_caches:
        return frozenset()
    calls: dict[str, dict[int, Weights]] = {}
    for name, function in module.functions.items():
        values = [b.value for block in all_blocks(body_of(function)) for b in block.bindings]
        constant = [v for v in values if isinstance(v, Call) and is_primitive(v.fn)]
        constant = [c for c in constant if any(isinstance(a, Constant) for a in c.args) and multiplies(c)]
        calls[name] = {id(c): found for c in constant if (found := _weights_of(c, plan_of(c)))}

    def fits(names: list[str]) -> bool:
        together = {mark: size for n in names for found in calls[n].values() for mark, size in found.items()}
        return sum(together.values()) * _SHARE[1] <= target.l2_bytes * _SHARE[0]

    def ids(names: list[str]) -> frozenset[int]:
        return frozenset(c for n in names for c in calls[n])

    if fits(list(calls)):
        return ids(list(calls))
    uses = {name: globals_used(function) for name, function in module.functions.items()}
    loops = [part for part in components(uses) if len(part) > 1 or part[0] in uses[part[0]]]
    scopes = [reachable(module.functions, part) for part in loops]
    return frozenset().union(*(ids(scope) for scope in scopes if fits(scope)))
