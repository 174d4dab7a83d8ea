"""Unknown sizes that a recursion hands on are dims that all its calls share.

What one loop has put behind a tensor has as many rows as it made steps: ``?`` to the loop that reads it. But what that loop is given
and gives itself again has the same sizes in every iteration, whatever they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, cast

from relay.ir.dim import ANY, Dim, DimVar, as_dim, is_any
from relay.ir.expr import Call, Expr, Function, GlobalVar, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import FuncType, TensorType, TupleType, Type, mentions_any
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, body_of, is_primitive
from relay.transform.build import type_of
from relay.transform.copying import Copier
from relay.transform.fix_invariants import invariants
from relay.transform.uses import call_sites


@record(frozen=True, slots=True)
class ShareSizes(Pass):
    """Name the ``?`` in the types of parameters that a recursive function hands on to itself as they are.

    Before: blocks, monomorphic up to dims, functions lifted. After: in functions that call themselves, other than ``entries`` and
    those that are used as values, the type of a parameter (a tensor, or a tuple of them) that all calls of the function by itself hand
    on has a dim parameter in place of each ``?``; it is ``?`` in calls from outside.
    """

    name: ClassVar[str] = "share_sizes"
    entries: tuple[str, ...] | str = "main"

    def __call__(self, module: Module) -> Module:
        entries = (self.entries,) if isinstance(self.entries, str) else self.entries
        kept = {*entries, *call_sites(module)[1]}
        made: dict[str, tuple[Function, tuple[DimVar, ...]]] = {}
        for name, function in module.functions.items():
            new = None if name in kept or is_primitive(function) else _with_names(name, function)
            if new is not None:
                made[name] = new
        if not made:
            return module
        functions = {**module.functions, **{name: function for name, (function, _) in made.items()}}

        def rewritten(caller: str, function: Function) -> Function:
            def visit(scope: Scope, var: Var, value: Expr) -> Expr:
                if not isinstance(value, Call) or not isinstance(value.fn, GlobalVar) or value.fn.name not in made:
                    return value
                callee, dims = made[value.fn.name]
                more: tuple[Dim, ...] = tuple(as_dim(d) if caller == value.fn.name else ANY for d in dims)
                target = GlobalVar(value.fn.name, callee.ty)
                return replace(value, fn=target, type_args=(*value.type_args, *more))

            return Forward(visit).function(function)

        return module.with_functions({name: rewritten(name, f) for name, f in functions.items()})


def _with_names(name: str, function: Function) -> tuple[Function, tuple[DimVar, ...]] | None:
    """The function with names for the unknown sizes of what it hands on, and these, which are its last dim parameters; None without."""
    shared = invariants(name, function)
    if shared is None or not isinstance(function.ty, FuncType):
        return None
    dims: list[DimVar] = []
    atoms: dict[Var, Expr] = {}
    for n in sorted(shared.params):
        param = function.params[n]
        ty = type_of(param)
        if mentions_any(ty) and (new := _named(ty, param.name, dims)) is not ty:
            atoms[param] = Var(param.name, None, new, param.span)
    if not atoms:
        return None
    params = tuple(cast(Var, atoms.get(p, p)) for p in function.params)
    type_params = (*function.type_params, *dims)
    ty = replace(function.ty, params=tuple(map(type_of, params)), type_params=type_params)
    body = Copier(atoms).copy(body_of(function))
    return replace(function, params=params, body=body, type_params=type_params, ty=ty), tuple(dims)


def _named(ty: Type, hint: str, dims: list[DimVar]) -> Type:
    """The type with a dim, added to ``dims``, for each ``?`` of a tensor, or of a tensor in a tuple."""
    match ty:
        case TensorType(shape=tuple() as shape) if any(map(is_any, shape)):
            new: list[Dim] = []
            for axis, size in enumerate(shape):
                if is_any(size):
                    dims.append(DimVar(f"{hint}_{axis}", gradual=True))
                    new.append(as_dim(dims[-1]))
                else:
                    new.append(size)
            return TensorType(tuple(new), ty.dtype, ty.device)
        case TupleType():
            fields = tuple(_named(f, hint, dims) for f in ty.fields)
            return ty if all(a is b for a, b in zip(fields, ty.fields, strict=True)) else TupleType(fields)
        case _:
            return ty
