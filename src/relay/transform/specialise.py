"""Specialisation: a function that is given a known function gets a copy that calls it directly."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import field, replace
from itertools import islice
from typing import ClassVar, cast

from relay.ir.dim import Dim, DimVar, SymDim, as_dim, as_var, dim_substitute
from relay.ir.effects import CLOSURE
from relay.ir.expr import Binding, Call, Expr, Function, GlobalVar, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import FuncType, Type, TypeArg, TypeParam
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, all_bindings, body_of, is_closure, is_primitive
from relay.transform.build import internal_call, type_of
from relay.transform.copying import Copier, match_dims
from relay.transform.function_types import unused
from relay.typing.substitution import substitute


@record(frozen=True, slots=True)
class Specialise(Pass):
    """Copy functions for the functions they are given: ``@map(closure(@g, a), xs)`` calls ``@map__g(a, xs)``, and
    ``closure(@f, closure(@g, a))`` is ``closure(@f__g, a)``.

    Before: blocks, functions lifted (`LambdaLift`), monomorphic up to dims. After: a call of a global function of at
    most ``max_bindings`` bindings gets no closure whose function is known, nor does a closure hold one, and known closures are
    called directly; at most ``max_functions`` copies are made. (There are as many as pairs of a function and what it is given, and
    closures of one function inside each other stay as they are, so recursion ends.)
    """

    name: ClassVar[str] = "specialise"
    max_bindings: int = 200
    max_functions: int = 64

    def __call__(self, module: Module) -> Module:
        specialiser = _Specialiser(self, dict(module.functions))
        for name, function in module.functions.items():
            specialiser.functions[name] = specialiser.rewrite(function)
        while specialiser.pending:
            name = specialiser.pending.pop()
            specialiser.functions[name] = specialiser.rewrite(specialiser.functions[name])
        return module.with_functions(specialiser.functions)


@record(frozen=True, slots=True, eq=False)
class _Known:
    """A function value that is known: the global function, what it has captured, and the value's type."""

    target: GlobalVar
    captured: tuple[Expr, ...]
    ty: FuncType


@record(slots=True, eq=False)
class _Specialiser:
    options: Specialise
    functions: dict[str, Function]
    made: dict[object, GlobalVar] = field(default_factory=dict)
    pending: list[str] = field(default_factory=list)
    origins: dict[str, frozenset[str]] = field(default_factory=dict)

    def rewrite(self, function: Function) -> Function:
        def visit(scope: Scope, var: Var, value: Expr) -> Expr:
            if not isinstance(value, Call):
                return value
            if isinstance(value.fn, Var):
                return self.direct(value, self.known(value.fn, driver))
            if isinstance(value.fn, GlobalVar):
                return self.specialised(value, driver)
            return self.holding(value, driver) if is_closure(value) else value

        driver = Forward(visit)
        return driver.function(function)

    def known(self, e: Expr, driver: Forward) -> _Known | None:
        """What is known of a function value."""
        if isinstance(e, GlobalVar):
            return self.held(e, (), e.ty)
        value = driver.definition(e)
        return self.held(value.args[0], value.args[1:], value.ty) if is_closure(value) else None

    def held(self, target: Expr, captured: tuple[Expr, ...], ty: Type | None) -> _Known | None:
        """A function value of this target; None where that is a kernel or is not in the module."""
        assert isinstance(target, GlobalVar)
        function = self.functions.get(target.name)
        if function is None or is_primitive(function) or not isinstance(ty, FuncType):
            return None
        return _Known(target, captured, ty)

    def type_args(self, known: _Known) -> tuple[TypeArg, ...] | None:
        """The dims that the known function is used at, some of which it may still be a function of; None when its types do not say."""
        function = self.functions[known.target.name]
        wanted = [p for p in function.type_params if isinstance(p, DimVar)]
        types = [*(type_of(c) for c in known.captured), *known.ty.params]
        solved = match_dims(wanted, zip([p.ty for p in function.params], types, strict=True))
        return None if solved is None else tuple(solved[p] for p in wanted)

    def direct(self, call: Call, known: _Known | None) -> Expr:
        """A call of a closure as a call of its function."""
        if known is None:
            return call
        type_args = self.type_args(known)
        if type_args is None:
            return call
        if call.type_args:  # the closure is still a function of dims: they are what this call gives for them
            type_args = tuple(substitute(a, known.ty.type_params, call.type_args) for a in type_args)
        return Call(known.target, (*known.captured, *call.args), call.attrs, type_args, call.ty, call.span)

    def specialised(self, call: Call, driver: Forward) -> Expr:
        """A call of a global function with what is known of its arguments taken out."""
        assert isinstance(call.fn, GlobalVar)
        found = self.copied(call.fn.name, call.args, call.type_args, driver)
        if found is None:
            return call
        target, args, extra = found
        return Call(target, args, call.attrs, (*call.type_args, *extra), call.ty, call.span)

    def holding(self, closure: Call, driver: Forward) -> Expr:
        """A closure with what is known of the functions that it holds taken out."""
        known = self.held(closure.args[0], closure.args[1:], closure.ty)
        type_args = self.type_args(known) if known is not None else None
        if known is None or type_args is None:
            return closure
        name = known.target.name
        found = self.copied(name, known.captured, type_args, driver, apart=self.origin(name))
        if found is None:
            return closure
        target, captured, _ = found
        # A closure has no type arguments: the types of what it holds and is given must say them.
        said = self.type_args(_Known(target, captured, known.ty)) is not None
        return replace(closure, args=(target, *captured)) if said else closure

    def copied(
        self,
        name: str,
        args: Sequence[Expr],
        type_args: Sequence[TypeArg],
        driver: Forward,
        apart: frozenset[str] = frozenset(),
    ) -> tuple[GlobalVar, tuple[Expr, ...], list[TypeArg]] | None:
        """The copy of a function for the known ones among its (first) arguments, but for those of ``apart`` and copies of them; the
        arguments that are left with what those captured, and the type arguments that it takes besides. None where none is known or no
        more copies are made."""
        function = self.functions.get(name)
        if function is None or is_primitive(function) or len(type_args) != len(function.type_params):
            return None
        instance = dict(zip(function.type_params, type_args, strict=True))
        chosen: dict[int, _Known] = {}
        tied: dict[int, dict[DimVar, Dim]] = {}
        extra: list[TypeArg] = []
        for n, (p, a) in enumerate(zip(function.params, args, strict=False)):
            known = self.known(a, driver) if isinstance(p.ty, FuncType) else None
            if known is None or apart & self.origin(known.target.name):
                continue
            dims = self.type_args(known)
            if dims is not None:
                chosen[n] = known
                tied[n] = self.tied(known, dims, p.ty, instance)
                own = (d for d in self.functions[known.target.name].type_params if isinstance(d, DimVar))
                extra += [a for d, a in zip(own, dims, strict=True) if d not in tied[n]]
        if not chosen:
            return None
        key = (name, tuple((n, k.target.name, tuple(tied[n].items())) for n, k in chosen.items()))
        target = self.made.get(key)
        if target is None:
            large = any(True for _ in islice(all_bindings(body_of(function)), self.options.max_bindings, None))
            if large or len(self.made) >= self.options.max_functions:
                return None
            target = self.made[key] = self.make(name, function, chosen, tied)
        left = tuple(x for n, a in enumerate(args) for x in (chosen[n].captured if n in chosen else (a,)))
        return target, left, extra

    def origin(self, name: str) -> frozenset[str]:
        """The functions of the program as it was that a function is a copy of, and a copy for."""
        return self.origins.get(name, frozenset((name,)))

    def tied(
        self, known: _Known, type_args: Sequence[TypeArg], formal: Type | None, instance: Mapping[TypeParam, TypeArg]
    ) -> dict[DimVar, Dim]:
        """The dims of a known function that are dims of the function it is given to, by the type of that parameter.

        In the copy they must be one variable: the captured values then have the sizes that its results are said to have. Those that
        every call of it gives anew are no dims of the copy either.
        """
        given = self.functions[known.target.name]
        if not isinstance(formal, FuncType) or not isinstance(given.ty, FuncType):
            return {}
        pairs = [*zip(given.ty.params[len(known.captured) :], formal.params, strict=True), (given.ty.ret, formal.ret)]
        out: dict[DimVar, Dim] = {}
        for own, arg in zip((d for d in given.type_params if isinstance(d, DimVar)), type_args, strict=True):
            if formal.type_params and isinstance(arg, SymDim) and (free := as_var(arg)) in known.ty.type_params:
                # By the formal's name: a copy's closure has names of its own, and is the same function nevertheless.
                named = formal.type_params[known.ty.type_params.index(free)]
                assert isinstance(named, DimVar)
                out[own] = as_dim(named)
                continue
            found = match_dims((own,), pairs)
            if found is not None and dim_substitute(found[own], lambda d: cast("Dim | None", instance.get(d))) == arg:
                out[own] = found[own]
        return out

    def make(
        self, name: str, function: Function, chosen: dict[int, _Known], tied: Mapping[int, Mapping[DimVar, Dim]]
    ) -> GlobalVar:
        """The copy of a function for these arguments; it takes what they captured in their places."""
        copier = Copier(own_dims=True)
        type_params = _fresh_params(function, copier)
        params: list[Var] = []
        closures: list[Binding] = []
        for n, p in enumerate(function.params):
            known = chosen.get(n)
            if known is None:
                params.append(copier.bind(p))
                continue
            given = self.functions[known.target.name]
            types = Copier({}, {own: dim_substitute(d, copier.dim) for own, d in tied[n].items()}, own_dims=True)
            type_params += _fresh_params(given, types, tied[n])
            held = [Var(h.name, types.type(h.ty), types.type(h.ty)) for h in given.params[: len(known.captured)]]
            params += held
            value = copier.bind(p)
            closures.append(Binding(value, internal_call(CLOSURE, (known.target, *held), type_of(value))))
        body = copier.copy(body_of(function))
        ret = copier.type(function.ty.ret if isinstance(function.ty, FuncType) else function.ret_type)
        assert ret is not None, "specialisation needs a typed program"
        whole = FuncType(tuple(type_of(p) for p in params), ret, tuple(type_params))
        new_name = unused("__".join((name, *(k.target.name for k in chosen.values()))), self.functions)
        self.functions[new_name] = replace(
            function,
            params=tuple(params),
            body=replace(body, bindings=(*closures, *body.bindings)),
            ret_type=ret,
            type_params=whole.type_params,
            constraints=(),
            ty=whole,
        )
        self.pending.append(new_name)
        self.origins[new_name] = self.origin(name).union(*(self.origin(k.target.name) for k in chosen.values()))
        return GlobalVar(new_name, whole)


def _fresh_params(function: Function, copier: Copier, tied: Container[DimVar] = ()) -> list[DimVar]:
    """The copier's fresh copies of a function's dim parameters (without those that are somebody else's)."""
    dims = [copier.dim(p) for p in function.type_params if isinstance(p, DimVar) and p not in tied]
    return [v for d in dims if d is not None and (v := as_var(d)) is not None]
