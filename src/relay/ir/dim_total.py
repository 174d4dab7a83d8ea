"""Sizes whose divisions by zero are zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from relay.ir.dim import (
    AnyDim,
    Dim,
    DimFoldOp,
    DimOp,
    DimVar,
    as_dim,
    dim_add,
    dim_atoms,
    dim_bounds,
    dim_evaluate,
    dim_floordiv,
    dim_fold,
    dim_max,
    dim_min,
    dim_mod,
    dim_mul,
    dim_sub,
    dim_vars,
)

# What a size that is not known is taken for where the work of one way is compared with another's.
TYPICAL: Final = 64


def dim_total(dim: Dim) -> Dim:
    """The dim with 0 for a division by zero, as definitions and kernels have it; a program's own dims fail there. The same object where
    no divisor may be zero."""

    def apply(op: DimFoldOp, a: Dim, b: Dim) -> Dim:
        match op:
            case "add":
                return dim_add(a, b)
            case "mul":
                return dim_mul(a, b)
            case "min":
                return dim_min(a, b)
            case "max":
                return dim_max(a, b)
        if _may_be_zero(b):
            some = dim_min(dim_max(b, dim_mul(-1, b)), 1)  # 0 of zero, else 1
            a, b = dim_mul(a, some), dim_add(b, dim_sub(1, some))
        return dim_floordiv(a, b) if op == "floordiv" else dim_mod(a, b)

    return dim_fold(dim, as_dim, lambda n: n, apply) if _divides_by_zero(dim) else dim


def dim_evaluate_total(dim: Dim, env: Mapping[DimVar, int]) -> int:
    """The value of `dim_total`. Raises KeyError for a variable without a value."""
    return dim_evaluate(dim_total(dim), env)


def dim_typical(dim: Dim) -> int:
    """A number to compare work by: the dim where each size that is not known is `TYPICAL`."""
    if isinstance(dim, AnyDim):
        return TYPICAL
    return dim if isinstance(dim, int) else dim_evaluate_total(dim, dict.fromkeys(dim_vars(dim), TYPICAL))


def _may_be_zero(dim: Dim) -> bool:
    low, high = dim_bounds(dim)
    return (low is None or low < 1) and (high is None or high > -1)


def _divides_by_zero(dim: Dim) -> bool:
    """Whether some division in a dim may be by zero."""
    todo = [dim]
    while todo:
        for atom in dim_atoms(todo.pop()):
            if isinstance(atom, DimOp):
                if atom.op in ("floordiv", "mod") and _may_be_zero(atom.b):
                    return True
                todo += (atom.a, atom.b)
    return False
