"""What all iterations of a recursion share and the compiler knows (weights, sizes) becomes part of the function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import ClassVar

from relay.ir.dim import Dim, DimVar, as_dim, as_var
from relay.ir.expr import Binding, Call, Constant, Expr, Function, GlobalVar, Tuple, Var
from relay.ir.module import Module
from relay.ir.types import FuncType, TupleType, TypeArg
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, all_bindings, body_of, is_primitive
from relay.transform.build import type_of
from relay.transform.copying import Copier


@dataclass(frozen=True, slots=True)
class FixInvariants(Pass):
    """Copy recursive functions for the constants and known sizes that every iteration passes on unchanged.

    Before: blocks, monomorphic up to dims. After: a call, from outside, of a function that calls itself gives it no constant in
    a parameter that its own calls pass on as it is, alone or in a tuple, and no number for a dim that they pass on: it calls a
    copy that has them inside, where kernels can pack the weights and are made for the sizes. Functions of more than
    ``max_bindings`` bindings stay as they are; at most ``max_functions`` copies are made.
    """

    name: ClassVar[str] = "fix_invariants"
    max_bindings: int = 1000
    max_functions: int = 64

    def __call__(self, module: Module) -> Module:
        fixer = _Fixer(self, dict(module.functions))
        for name in list(fixer.functions):
            fixer.rewrite(name)
        while fixer.pending:
            fixer.rewrite(fixer.pending.pop())
        return module.with_functions(fixer.functions)


@dataclass(frozen=True, slots=True, eq=False)
class Invariants:
    """The parameters (by position) and the dims that every call of a function by itself passes on unchanged."""

    params: frozenset[int]
    dims: frozenset[DimVar]


def invariants(name: str, function: Function) -> Invariants | None:
    """The invariants of a global function; None for one that does not call itself."""
    if is_primitive(function):
        return None
    calls = self_calls(name, function)
    if not calls:
        return None
    params = frozenset(
        n for n, p in enumerate(function.params) if all(n < len(c.args) and c.args[n] is p for c in calls)
    )
    own = function.type_params
    if any(len(c.type_args) != len(own) for c in calls):
        return Invariants(params, frozenset())
    dims = frozenset(
        d for n, d in enumerate(own) if isinstance(d, DimVar) and all(c.type_args[n] == as_dim(d) for c in calls)
    )
    return Invariants(params, dims)


def self_calls(name: str, function: Function) -> list[Call]:
    """The calls of a global function in its own body."""
    return [
        b.value
        for b in all_bindings(body_of(function))
        if isinstance(b.value, Call) and isinstance(b.value.fn, GlobalVar) and b.value.fn.name == name
    ]


# What is known of an argument: a constant, what is known of a tuple's fields, or nothing.
Known = Constant | tuple["Known", ...] | None


@dataclass(slots=True, eq=False)
class _Fixer:
    options: FixInvariants
    functions: dict[str, Function]
    made: dict[object, GlobalVar] = field(default_factory=dict)
    alive: list[Known] = field(default_factory=list)  # keys hold the ids of constants: these must stay
    pending: list[str] = field(default_factory=list)
    _invariants: dict[str, Invariants | None] = field(default_factory=dict)

    def of(self, name: str) -> Invariants | None:
        if name not in self._invariants:
            self._invariants[name] = invariants(name, self.functions[name])
        return self._invariants[name]

    def rewrite(self, name: str) -> None:
        def visit(scope: Scope, var: Var, value: Expr) -> Expr:
            if isinstance(value, Call) and isinstance(value.fn, GlobalVar) and value.fn.name != name:
                return self.call(value.fn.name, value, scope, driver)
            return value

        driver = Forward(visit)
        self.functions[name] = driver.function(self.functions[name])

    def call(self, name: str, call: Call, scope: Scope, driver: Forward) -> Expr:
        """A call of a recursive function as a call of the copy that has what is known inside."""
        if name not in self.functions or (shared := self.of(name)) is None:
            return call
        function = self.functions[name]
        if len(call.args) != len(function.params) or len(call.type_args) != len(function.type_params):
            return call
        known = {n: k for n in sorted(shared.params) if (k := _known(call.args[n], driver)) is not None}
        sizes: dict[DimVar, int] = {}
        for own, given in zip(function.type_params, call.type_args, strict=True):
            if isinstance(own, DimVar) and own in shared.dims and isinstance(given, int):
                sizes[own] = given
        if not known and not sizes:
            return call
        key = (name, tuple((n, _key(k)) for n, k in known.items()), tuple(sizes.items()))
        target = self.made.get(key)
        if target is None:
            large = any(True for _ in islice(all_bindings(body_of(function)), self.options.max_bindings, None))
            if large or len(self.made) >= self.options.max_functions:
                return call
            self.alive += known.values()
            target = self.made[key] = self.make(name, function, known, sizes)
        args = [a for n, a in enumerate(call.args) if n not in known]
        for n, k in known.items():
            args += _unknown_parts(call.args[n], k, driver)
        rest = tuple(a for p, a in zip(function.type_params, call.type_args, strict=True) if p not in sizes)
        return Call(target, tuple(args), call.attrs, rest, call.ty, call.span)

    def make(self, name: str, function: Function, known: Mapping[int, Known], sizes: Mapping[DimVar, int]) -> GlobalVar:
        """The copy: it takes the parameters that are not known, and then the unknown parts of those known in part."""
        fixed: dict[DimVar, Dim] = dict(sizes)
        copier = Copier({}, fixed, own_dims=True)
        dims = [copier.dim(p) for p in function.type_params if isinstance(p, DimVar) and p not in sizes]
        type_params = tuple(v for d in dims if d is not None and (v := as_var(d)) is not None)
        params = [copier.bind(p) for n, p in enumerate(function.params) if n not in known]
        parts: list[Var] = []
        inside: list[Binding] = []
        for n, k in known.items():
            p = copier.bind(function.params[n])
            value = _rebuild(k, p, parts, inside)
            inside.append(Binding(p, value))
        body = copier.copy(body_of(function))
        ret = copier.type(function.ty.ret if isinstance(function.ty, FuncType) else function.ret_type)
        assert ret is not None, "fixing invariants needs a typed program"
        params += parts
        ty = FuncType(tuple(type_of(p) for p in params), ret, type_params)
        new_name = f"{name}__fixed"
        while new_name in self.functions:
            new_name += "_"
        target = GlobalVar(new_name, ty)

        def again(scope: Scope, var: Var, value: Expr) -> Expr:
            if not isinstance(value, Call) or not isinstance(value.fn, GlobalVar) or value.fn.name != name:
                return value
            args = (*(a for n, a in enumerate(value.args) if n not in known), *parts)
            rest: tuple[TypeArg, ...] = tuple(
                a for p, a in zip(function.type_params, value.type_args, strict=True) if p not in sizes
            )
            return Call(target, args, value.attrs, rest, value.ty, value.span)

        made = replace(
            function,
            params=tuple(params),
            body=replace(body, bindings=(*inside, *body.bindings)),
            ret_type=ret,
            type_params=type_params,
            constraints=(),
            ty=ty,
        )
        self.functions[new_name] = Forward(again).function(made)
        self.pending.append(new_name)
        return target


def _fold(known: Known, leaf: Callable[[Known], object]) -> object:
    """A value of the same shape. (Tuples nest as deeply as a person writes their types.)"""
    return tuple(_fold(k, leaf) for k in known) if isinstance(known, tuple) else leaf(known)


def _key(known: Known) -> object:
    return _fold(known, lambda k: None if k is None else id(k.data) if isinstance(k, Constant) else k)


def _known(atom: Expr, driver: Forward) -> Known:
    """What is known of an atom; a tuple of which no part is known is not known."""
    if isinstance(atom, Constant):
        return atom
    made = driver.definition(atom)
    if isinstance(made, Tuple):
        parts = tuple(_known(f, driver) for f in made.fields)
        return parts if any(p is not None for p in parts) else None
    return None


def _unknown_parts(atom: Expr, known: Known, driver: Forward) -> list[Expr]:
    """The atoms of the parts that are not known, in order."""
    if isinstance(known, Constant):
        return []
    if known is None:
        return [atom]
    made = driver.definition(atom)
    assert isinstance(made, Tuple)
    return [a for f, k in zip(made.fields, known, strict=True) for a in _unknown_parts(f, k, driver)]


def _rebuild(known: Known, var: Var, parts: list[Var], inside: list[Binding]) -> Expr:
    """The value of a parameter inside the copy; its unknown parts become parameters (``parts``)."""
    if isinstance(known, Constant):
        return known
    assert known is not None and isinstance(var.ty, TupleType)
    fields: list[Expr] = []
    for n, (part, ty) in enumerate(zip(known, var.ty.fields, strict=True)):
        inner = Var(f"{var.name}_{n}", None, ty)
        if part is None:
            parts.append(inner)
            fields.append(inner)
        elif isinstance(part, Constant):
            fields.append(part)
        else:
            inside.append(Binding(inner, _rebuild(part, inner, parts, inside)))
            fields.append(inner)
    return Tuple(tuple(fields), var.ty)
