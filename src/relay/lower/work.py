"""What is known of a kernel's work, as JSON that travels with the executable: profilers evaluate it on the sizes of a call."""

from __future__ import annotations

import json
from typing import Any

from relay.ir.dim import Dim, DimVar, dim_fold
from relay.plan.kernel_plan import KernelPlan


def kernel_work(plan: KernelPlan) -> str:
    """``schedule``; ``sizes``, the names of the kernel's sizes in order; ``flops`` and ``bytes`` (simple operations, and operands
    read and written once) as numbers, ``{"size": n}`` for size number n, or ``[operation, left, right]``."""
    numbers = {variable: n for n, variable in enumerate(plan.kernel.dims)}
    return json.dumps(
        {
            "schedule": plan.variant,
            "sizes": [d.name for d in plan.kernel.dims],
            "flops": _tree(plan.flops, numbers),
            "bytes": _tree(plan.bytes, numbers),
        },
        separators=(",", ":"),
    )


def _tree(dim: Dim, numbers: dict[DimVar, int]) -> Any:
    """None where the dim depends on what a call does not tell: the extents that an upper-bound operator finds."""

    def size(variable: DimVar) -> Any:
        return {"size": numbers[variable]}

    def number(value: int) -> Any:
        return value

    def apply(op: str, a: Any, b: Any) -> Any:
        return [op, a, b]

    try:
        return dim_fold(dim, size, number, apply)
    except (KeyError, ValueError):
        return None


def evaluate(tree: Any, sizes: list[int]) -> int:
    """The value of ``flops`` or ``bytes`` on the sizes of a call (0 where it is not known)."""
    match tree:
        case int():
            return int(tree)
        case {"size": number}:
            return int(sizes[number])
        case [op, left, right]:
            a, b = evaluate(left, sizes), evaluate(right, sizes)
            match op:
                case "add":
                    return a + b
                case "mul":
                    return a * b
                case "floordiv":
                    return a // b
                case "mod":
                    return a % b
                case "min":
                    return min(a, b)
                case _:
                    return max(a, b)
        case _:
            return 0
