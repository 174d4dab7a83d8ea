"""Calls of polymorphic functions whose arguments agree only after their dims are widened.

``@concat(%a, %b)`` of a ``List[Tensor[(3,), float32]]`` and a ``List[Tensor[(?,), float32]]`` is a call at
``A = Tensor[(?,), float32]``, the join of what each argument alone would make of ``A``.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.dim import DimVar
from relay.ir.types import FuncType, Type, TypeArg
from relay.typing.solver import Mismatch, Mode, Solver


def widened(solver: Solver, scheme: FuncType, found: Sequence[Type]) -> tuple[TypeArg, ...] | None:
    """Type arguments at which a function takes arguments of these types; None when there are none."""
    joined: list[TypeArg | None] = [None] * len(scheme.type_params)
    try:
        for n, t in enumerate(found):
            own = tuple(map(solver.fresh_arg, scheme.type_params))
            solver.soften(solver.relate_softly(t, solver.instantiate(scheme, own).params[n]))
            for k, a in enumerate(own):
                now = solver.resolve(a)
                if solver.unknowns(now):
                    continue
                before = joined[k]
                if before is None:
                    joined[k] = now
                elif isinstance(scheme.type_params[k], DimVar):
                    # The body may rely on a dim parameter being one size, so it is not widened.
                    solver.relate_args(now, before, Mode.EQUAL)
                else:
                    joined[k] = solver.join_args(before, now)
        args = tuple(solver.fresh_arg(p) if a is None else a for p, a in zip(scheme.type_params, joined, strict=True))
        for t, p in zip(found, solver.instantiate(scheme, args).params, strict=True):
            solver.soften(solver.relate_softly(t, p))
    except Mismatch:
        return None
    return args
