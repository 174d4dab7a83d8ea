"""How many iterations a loop makes, where that is known before it begins: then its tapes need not grow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np

from relay.ir.dim import ANY, Dim, DimVar
from relay.ir.expr import Block, Call, Expr, OpRef, Var
from relay.ir.types import TypeArg
from relay.op import registry
from relay.transform.ad.loop_parts import integer
from relay.transform.ad.loops import Loop, Role
from relay.transform.ad.terms import Code
from relay.transform.build import constant, op_call, type_of
from relay.transform.comparisons import MIRRORED, OPPOSITE
from relay.transform.copying import Copier
from relay.transform.dims import DimUses
from relay.transform.uses import needed


def trip_count(code: Code, loop: Loop, args: Sequence[Expr], dims: Mapping[DimVar, TypeArg]) -> Expr | None:
    """The number of iterations of a call of a loop (int64, below 1 where there is none), written in front of it.

    Known where the loop goes on as long as a counter has not reached a bound that all iterations share. None for other loops.
    """
    values = {b.var: b.value for b in loop.before}
    test = values.get(loop.cond) if isinstance(loop.cond, Var) else None
    if not isinstance(test, Call) or not isinstance(test.fn, OpRef) or test.fn.name not in MIRRORED:
        return None
    counters = {loop.function.params[n]: (args[n], loop.steps[n]) for n in loop.having(Role.COUNTER)}
    name, (at, bound) = test.fn.name, test.args
    if at not in counters:
        name, at, bound = MIRRORED[name], bound, at
    if not loop.on:
        name = OPPOSITE[name]
    if at not in counters:
        return None
    assert isinstance(at, Var)
    start, step = counters[at]
    if step == 0 or (step > 0) != name.startswith("less"):
        return None
    limit = _shared(code, loop, bound, args, dims)
    if limit is None:
        return None
    start, limit = _as_int64(code, start), _as_int64(code, limit)
    if step < 0:
        start, limit = limit, start
    way = code.bind(op_call("subtract", (limit, start)))
    # What is reached counts as one more where the bound itself belongs to the loop.
    extra = abs(step) - (0 if name.endswith("equal") else 1)
    if extra:
        way = code.bind(op_call("add", (way, integer(extra))))
    if abs(step) == 1:
        return way
    return code.bind(op_call("floor_divide", (way, constant(np.array(abs(step), np.int64), "int64"))), "trips")


def _shared(code: Code, loop: Loop, value: Expr, args: Sequence[Expr], dims: Mapping[DimVar, TypeArg]) -> Expr | None:
    """What a value of the loop's beginning is in all iterations, computed in front of the loop; None where it may change."""
    fixed = {loop.function.params[n]: args[n] for n in loop.having(Role.FIXED)}
    used = needed(loop.before, [value])
    bound = {b.var for b in used}
    uses = DimUses()
    known = {d: cast(Dim, a) for d, a in dims.items() if a is not ANY}
    read: list[Expr] = [value]
    for b in used:
        if not isinstance(b.value, Call) or not isinstance(b.value.fn, OpRef) or not registry.exists(b.value.fn.name):
            return None
        if not known.keys() >= {*uses.of_type(b.var.ty), *uses.of_value(b.value)}:
            return None
        read += b.value.args
    if any(isinstance(a, Var) and a not in bound and a not in fixed for a in read):
        return None
    copy = Copier(dict(fixed), known).copy(Block(tuple(used), value, type_of(value)))
    code.bindings += copy.bindings
    return copy.result


def _as_int64(code: Code, value: Expr) -> Expr:
    ty = type_of(value)
    return value if getattr(ty, "dtype", None) == "int64" else code.bind(op_call("cast", (value,), {"dtype": "int64"}))
