"""Sizes that are the same in every call of a function become one dim.

Monomorphisation gives each size inside of a type argument a dim of its own: the fold's ``A = Tensor[(n, 4), float32]`` becomes
``Tensor[(d, 4), float32]``, whatever else is ``n`` there. Told apart, two such sizes cost a check in every iteration, and hide from
specialisation that the recursive call is the same instance again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, cast

from relay.ir.dim import Dim, DimVar, as_dim, dim_substitute, is_any
from relay.ir.expr import Call, Expr, Function, GlobalVar, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import FuncType
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope
from relay.transform.copying import Copier
from relay.transform.uses import call_sites


@record(frozen=True, slots=True)
class MergeDims(Pass):
    """Merge dim parameters of functions that all calls give equal sizes.

    Before: blocks, monomorphic up to dims, functions lifted. After: no function other than ``entries``, and those that are used as
    values, has two dim parameters that are equal in all its calls.
    """

    name: ClassVar[str] = "merge_dims"
    entries: tuple[str, ...] | str = "main"

    def __call__(self, module: Module) -> Module:
        entries = (self.entries,) if isinstance(self.entries, str) else self.entries
        merged = _merged(module, set(entries))
        if not merged:
            return module
        functions: dict[str, Function] = {}
        for name, function in module.functions.items():
            functions[name] = _with_one_dim(function, merged[name]) if name in merged else function
        types = {name: cast(FuncType, functions[name].ty) for name in merged}
        kept = {
            name: tuple(n for n, p in enumerate(module.functions[name].type_params) if p not in merged[name])
            for name in merged
        }

        def visit(scope: Scope, var: Var, value: Expr) -> Expr:
            if not isinstance(value, Call) or not isinstance(value.fn, GlobalVar) or value.fn.name not in merged:
                return value
            name = value.fn.name
            type_args = tuple(value.type_args[n] for n in kept[name])
            return Call(GlobalVar(name, types[name]), value.args, value.attrs, type_args, value.ty, value.span)

        return module.with_functions({name: Forward(visit).function(f) for name, f in functions.items()})


def _merged(module: Module, entries: set[str]) -> dict[str, dict[DimVar, DimVar]]:
    """For each function, the dim parameters that are to become another one of its parameters.

    Partition refinement: at first all dims of a function are taken to be equal; calls that give two of them sizes that are not
    equal, when those that are taken to be equal are, tell them apart, until no call does.
    """
    found, values = call_sites(module)
    sites = {name: [call for _, call in calls] for name, calls in found.items()}
    fixed = {*entries, *values}
    first: dict[DimVar, DimVar] = {}  # each dim that is taken to be another one -> that one
    open_: dict[str, list[DimVar]] = {}
    for name, calls in sites.items():
        function = module.functions[name]
        dims = [p for p in function.type_params if isinstance(p, DimVar)]
        whole = len(dims) == len(function.type_params) and all(len(c.type_args) == len(dims) for c in calls)
        if name not in fixed and whole and len(dims) > 1 and isinstance(function.ty, FuncType):
            open_[name] = dims
            first.update((d, dims[0]) for d in dims[1:] if (d.lo, d.hi) == (dims[0].lo, dims[0].hi))
    changed = True
    while changed:
        changed = False

        def common(d: DimVar) -> Dim | None:
            return as_dim(first[d]) if d in first else None

        for name, dims in open_.items():
            # An unknown size is no other one.
            given = [
                tuple(
                    (m, n) if is_any(size := cast(Dim, c.type_args[n])) else dim_substitute(size, common)
                    for m, c in enumerate(sites[name])
                )
                for n in range(len(dims))
            ]
            leaders: dict[object, DimVar] = {}
            for d, sizes in zip(dims, given, strict=True):
                leader = leaders.setdefault((first.get(d, d), sizes), d)
                if first.get(d, d) is not leader:
                    changed = True
                    if leader is d:
                        first.pop(d, None)
                    else:
                        first[d] = leader
    return {
        name: {d: first[d] for d in dims if d in first} for name, dims in open_.items() if any(d in first for d in dims)
    }


def _with_one_dim(function: Function, merged: Mapping[DimVar, DimVar]) -> Function:
    copier = Copier({}, {d: as_dim(leader) for d, leader in merged.items()})
    made = copier.function(function)
    params = tuple(p for p in function.type_params if p not in merged)
    assert isinstance(made.ty, FuncType)
    return replace(made, type_params=params, ty=FuncType(made.ty.params, made.ty.ret, params))
