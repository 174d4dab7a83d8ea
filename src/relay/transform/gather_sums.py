"""Sums of segments read the rows that they add up where they are.

``rows.segment_sum(init, take(data, index), ...)`` adds up rows of ``data``: as ``rows.gather_sum`` it reads them through the index. What
else uses the gathered rows reads them through the index as well, where it is a kernel that can (a product's left operand, anything
element by element), and then they are never copied.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from relay.ir.expr import Binding, Block, Call, Expr, OpRef, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.trampoline import Step
from relay.ir.types import TensorType
from relay.transform.base import Pass
from relay.transform.blocks import map_bodies, nested_blocks, with_each_nested
from relay.transform.build import internal_call, type_of


@record(frozen=True, slots=True)
class GatherSums(Pass):
    """Sums of segments of gathered rows read them through the index.

    Before: typed blocks. After: the same values; the gathering is left for those that still use its result.
    """

    name: ClassVar[str] = "gather_sums"

    def __call__(self, module: Module) -> Module:
        return map_bodies(module, lambda b: _block(b, {}))


def _block(block: Block, gathered: dict[Var, Call]) -> Step[Block]:
    """``gathered``: the gatherings of whole rows that are known in the block."""
    out: list[Binding] = []
    changed = False
    for binding in block.bindings:
        value: Expr = binding.value
        if nested_blocks(value):
            value = yield with_each_nested(value, lambda b: _block(b, gathered))
        elif isinstance(value, Call) and isinstance(value.fn, OpRef):
            if value.fn.name == "take" and _gathers_rows(value):
                gathered[binding.var] = value
            elif value.fn.name == "rows.segment_sum":
                value = _gather_sum(value, gathered)
        changed |= value is not binding.value
        out.append(binding if value is binding.value else replace(binding, value=value))
    return replace(block, bindings=tuple(out)) if changed else block


def _gathers_rows(take: Call) -> bool:
    """Whether a ``take`` gives one whole row of its operand for each index."""
    at = type_of(take.args[1])
    whole = isinstance(at, TensorType) and isinstance(at.shape, tuple) and len(at.shape) == 1 and at.dtype == "int64"
    clips = take.attrs.get("mode", "clip") in ("clip", "fast")
    return whole and clips and take.attrs.get("axis") == 0 and take.attrs.get("batch_dims", 0) == 0


def _gather_sum(call: Call, gathered: dict[Var, Call]) -> Call:
    init, values, *rest = call.args
    take = gathered.get(values) if isinstance(values, Var) else None
    if take is None:
        return call
    assert call.ty is not None
    return replace(internal_call("rows.gather_sum", (init, *take.args, *rest), call.ty, call.attrs), span=call.span)
