"""Which operator calls of a function may have infinite slopes, by what is known of the values that they are given.

``sqrt(add(sum(multiply(x, x)), 1e-5f))`` is three calls of which the last is as flat as the others, because of those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from relay import te
from relay.ir.expr import Call, Constant, Expr, OpRef, Var
from relay.ir.record import record
from relay.op import registry
from relay.op.gradient import operand_signature
from relay.te.autodiff.steep import ANYTHING, Range, Survey, survey
from relay.te.tensor import Placeholder
from relay.transform.build import type_of

# So many calls are followed back from one, and constants of so many elements are looked at.
_CALLS, _ELEMENTS = 64, 4096


@record(slots=True, eq=False)
class Steepness:
    """``values``: what variables are bound to."""

    values: Mapping[Var, Expr] = field(default_factory=dict)
    _ranges: dict[Var, Range] = field(default_factory=dict)

    def of(self, call: Call) -> bool:
        """Whether an operator may have infinite slopes, or no numbers, of finite operands."""
        found = _survey(call, {})
        if found is None or not found.steep:
            return False
        self._follow(call)
        found = _survey(call, self._ranges)
        return found is None or found.steep

    def _follow(self, call: Call) -> None:
        """Find where the values that a call is given lie, those first that others follow from."""
        seen: set[Var] = set()
        todo = [(a, False) for a in call.args]
        while todo:
            a, ready = todo.pop()
            value = self.values.get(a) if isinstance(a, Var) and a not in self._ranges else None
            if not isinstance(a, Var) or not isinstance(value, Call) or not isinstance(value.fn, OpRef):
                continue
            if ready:
                found = _survey(value, self._ranges)
                if found is not None and len(found.outputs) == 1:
                    self._ranges[a] = found.outputs[0]
            elif a not in seen and len(seen) < _CALLS:
                seen.add(a)
                todo.append((a, True))
                todo += ((b, False) for b in value.args)


def _survey(call: Call, ranges: Mapping[Var, Range]) -> Survey | None:
    """None for what is no expression of its operands."""
    assert isinstance(call.fn, OpRef)
    if not registry.exists(call.fn.name):
        return None
    op, operands = registry.get(call.fn.name), [operand_signature(type_of(a)) for a in call.args]
    if op.kind not in ("expression", "view") or op.shape_mode != "independent" or None in operands:
        return None
    try:
        traced = registry.trace(op, operands, call.attrs)  # type: ignore[arg-type]
    except te.Undetermined:  # of sizes that a run knows
        return Survey(True, ())
    given: dict[Placeholder, tuple[object, Range]] = {}
    if len(traced.inputs) == len(call.args):
        for tensor, a in zip(traced.inputs, call.args, strict=True):
            assert isinstance(tensor.stage, Placeholder)
            given[tensor.stage] = a, _range_of(a, ranges)
    return survey(traced.outputs, lambda p: given.get(p, (p, ANYTHING)))


def _range_of(atom: Expr, ranges: Mapping[Var, Range]) -> Range:
    if isinstance(atom, Var):
        return ranges.get(atom, ANYTHING)
    if isinstance(atom, Constant) and 0 < atom.data.size <= _ELEMENTS and atom.data.dtype.kind in "fiu":
        low, high = float(np.min(atom.data)), float(np.max(atom.data))
        return Range(low, high) if np.isfinite(low) and np.isfinite(high) else ANYTHING
    return ANYTHING
