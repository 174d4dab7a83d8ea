"""Constants that recursive functions are given and hand on become part of them.

A recursive function stays a call, so inlining never shows it the weights that its caller has as constants; but what it is given and
passes on unchanged is the same in every call. Inside, the constants can be packed and folded, and the sizes that they say are numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import ClassVar

from relay.ir.dim import Dim, DimVar, as_var
from relay.ir.expr import Call, Constant, Expr, Function, GlobalVar, Var
from relay.ir.module import Module
from relay.ir.types import FuncType, TypeArg, TypeParam
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, all_bindings, body_of, is_primitive
from relay.transform.build import type_of
from relay.transform.copying import Copier
from relay.transform.dims import DimUses
from relay.transform.uses import components, globals_used


@dataclass(frozen=True, slots=True)
class ConstantArguments(Pass):
    """Copy recursive functions for the constant tensors they are given.

    Before: blocks, monomorphic up to dims. After: a call, from outside, of a recursive function of at most ``max_bindings`` bindings
    is given no constant of rank 1 or more that it and those it calls in turn only hand on; at most ``max_functions`` copies are
    made. A copy has the constants in the place of its parameters, and numbers for the dims that their types say.
    """

    name: ClassVar[str] = "constant_arguments"
    max_bindings: int = 1000
    max_functions: int = 64

    def __call__(self, module: Module) -> Module:
        names = {n: globals_used(f) for n, f in module.functions.items()}
        handed_on: dict[str, frozenset[int]] = {}
        for component in components(names):
            if len(component) > 1 or component[0] in names[component[0]]:
                handed_on.update(_handed_on(module, component))
        specialiser = _Specialiser(self, dict(module.functions), handed_on)
        for name, function in module.functions.items():
            specialiser.functions[name] = specialiser.rewrite(function)
        while specialiser.pending:
            name = specialiser.pending.pop()
            specialiser.functions[name] = specialiser.rewrite(specialiser.functions[name])
        return module.with_functions(specialiser.functions) if specialiser.made else module


def _handed_on(module: Module, component: Sequence[str]) -> dict[str, frozenset[int]]:
    """The parameters that these functions only give each other, whenever they call each other."""
    calls: list[tuple[str, dict[Var, int], Call]] = []
    for caller in component:
        function = module.functions[caller]
        place = {p: n for n, p in enumerate(function.params)}
        for binding in all_bindings(body_of(function)):
            value = binding.value
            if isinstance(value, Call) and isinstance(value.fn, GlobalVar) and value.fn.name in component:
                calls.append((caller, place, value))
    out = {n: set(range(len(module.functions[n].params))) for n in component}
    changed = True
    while changed:  # at most once for each parameter
        changed = False
        for caller, place, call in calls:
            assert isinstance(call.fn, GlobalVar)
            mine = out[call.fn.name]
            for n in list(mine):
                arg = call.args[n] if n < len(call.args) else None
                if not isinstance(arg, Var) or place.get(arg, -1) not in out[caller]:
                    mine.discard(n)
                    changed = True
    return {n: frozenset(found) for n, found in out.items()}


@dataclass(slots=True, eq=False)
class _Specialiser:
    options: ConstantArguments
    functions: dict[str, Function]
    handed_on: dict[str, frozenset[int]]  # of the recursive functions: the parameters to look at
    made: dict[object, GlobalVar] = field(default_factory=dict)
    pending: list[str] = field(default_factory=list)
    uses: DimUses = field(default_factory=DimUses)
    kept: list[Constant] = field(default_factory=list)  # a key holds ids of their data

    def rewrite(self, function: Function) -> Function:
        def visit(scope: Scope, var: Var, value: Expr) -> Expr:
            if isinstance(value, Call) and isinstance(value.fn, GlobalVar) and value.fn.name in self.handed_on:
                return self.call(value, value.fn.name)
            return value

        return Forward(visit).function(function)

    def call(self, call: Call, name: str) -> Call:
        function = self.functions[name]
        chosen = {
            n: a for n in sorted(self.handed_on[name]) if isinstance(a := call.args[n], Constant) and a.data.ndim > 0
        }
        if not chosen or is_primitive(function) or len(call.type_args) != len(function.type_params):
            return call
        instance: dict[TypeParam, TypeArg] = dict(zip(function.type_params, call.type_args, strict=True))
        said = dict.fromkeys(d for n in chosen for d in self.uses.of_type(function.params[n].ty))
        dims: dict[DimVar, Dim] = {d: size for d in said if isinstance(size := instance.get(d), int)}
        key = (name, tuple((n, id(c.data)) for n, c in chosen.items()), tuple(dims.items()))
        target = self.made.get(key)
        if target is None:
            large = any(True for _ in islice(all_bindings(body_of(function)), self.options.max_bindings, None))
            if large or len(self.made) >= self.options.max_functions:
                return call
            self.kept += chosen.values()
            target = self.made[key] = self.make(name, function, chosen, dims)
        args = tuple(a for n, a in enumerate(call.args) if n not in chosen)
        type_args = tuple(instance[p] for p in function.type_params if p not in dims)
        return Call(target, args, call.attrs, type_args, call.ty, call.span)

    def make(self, name: str, function: Function, chosen: dict[int, Constant], dims: dict[DimVar, Dim]) -> GlobalVar:
        atoms: dict[Var, Expr] = {function.params[n]: c for n, c in chosen.items()}
        copier = Copier(atoms, dict(dims), own_dims=True)
        left = [p for p in function.type_params if p not in dims]
        type_params = tuple(v for p in left if isinstance(p, DimVar) and (v := _fresh(copier, p)) is not None)
        params = tuple(copier.bind(p) for n, p in enumerate(function.params) if n not in chosen)
        body = copier.copy(body_of(function))
        ret = copier.type(function.ty.ret if isinstance(function.ty, FuncType) else function.ret_type)
        assert ret is not None, "the pass needs a typed program"
        whole = FuncType(tuple(type_of(p) for p in params), ret, type_params)
        new_name = f"{name}__constants"
        while new_name in self.functions:
            new_name += "_"
        self.functions[new_name] = replace(
            function, params=params, body=body, ret_type=ret, type_params=type_params, constraints=(), ty=whole
        )
        kept = [n for n in range(len(function.params)) if n not in chosen]
        self.handed_on[new_name] = frozenset(at for at, n in enumerate(kept) if n in self.handed_on[name])
        self.pending.append(new_name)
        return GlobalVar(new_name, whole)


def _fresh(copier: Copier, variable: DimVar) -> DimVar | None:
    dim = copier.dim(variable)
    return None if dim is None else as_var(dim)
