"""What all iterations of a recursion share and the compiler knows (weights, sizes) becomes part of the functions.

A recursive function stays a call, so inlining never shows it what its caller knows. But what it is given and gives itself again is the
same in every call: inside, constants can be packed and folded, and kernels are made for the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from itertools import islice
from typing import ClassVar, cast

from relay.ir.dim import Dim, DimVar, as_dim, as_var, dim_substitute
from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, GlobalVar, Proj, Tuple, Var
from relay.ir.graph import components
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import FuncType, TupleType, TypeArg
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, all_bindings, body_of, is_primitive
from relay.transform.build import type_of
from relay.transform.copying import Copier
from relay.transform.function_types import unused
from relay.transform.uses import globals_used


@record(frozen=True, slots=True)
class FixInvariants(Pass):
    """Copy recursive functions, those that call each other together, for the constants and known sizes that every call gives again.

    Before: blocks, monomorphic up to dims. After: a call, from outside, of a function that calls itself (or is called by what it
    calls) gives it no constant, alone or in a tuple, in a parameter that has that constant in all calls that follow from this one,
    and no number for a dim that has it in all of them: it calls a copy that has them inside. That is found by propagating what the
    call is given through the recursion: a size ``min(4, n)`` is 4 again where 4 is given for ``n``. Functions that have more than
    ``max_bindings`` bindings together stay as they are; at most ``max_functions`` copies are made.
    """

    name: ClassVar[str] = "fix_invariants"
    max_bindings: int = 1000
    max_functions: int = 64

    def __call__(self, module: Module) -> Module:
        fixer = _Fixer(self, dict(module.functions))
        fixer.find_recursion()
        for name in list(fixer.functions):
            fixer.rewrite(name)
        while fixer.pending:
            fixer.rewrite(fixer.pending.pop())
        return module.with_functions(fixer.functions) if fixer.made else module


@record(frozen=True, slots=True, eq=False)
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


# What is known of a value: a constant, what is known of a tuple's fields, or nothing.
Known = Constant | tuple["Known", ...] | None


@record(frozen=True, slots=True)
class _Given:
    """What a function is known to be given: by parameter (by position) and by dim."""

    params: Mapping[int, Known]
    sizes: Mapping[DimVar, int]

    def meet(self, other: _Given) -> _Given:
        params = {n: k for n, a in self.params.items() if (k := _meet(a, other.params.get(n))) is not None}
        return _Given(params, {d: s for d, s in self.sizes.items() if other.sizes.get(d) == s})

    def key(self) -> object:
        return (
            tuple((n, _fold(k, _identity)) for n, k in sorted(self.params.items())),
            tuple(self.sizes.items()),
        )

    def same(self, other: _Given) -> bool:
        return self.key() == other.key()


@record(frozen=True, slots=True)
class _Copy:
    """A copy to be made of a function: what it has inside, and its new name."""

    given: _Given
    target: GlobalVar
    params: tuple[Var, ...]
    parts: dict[int, list[Var]]  # of parameters that are known in part: what is not
    inside: list[Binding]
    copier: Copier


@record(slots=True, eq=False)
class _Fixer:
    options: FixInvariants
    functions: dict[str, Function]
    made: dict[object, GlobalVar] = field(default_factory=dict)
    pending: list[str] = field(default_factory=list)
    kept: list[_Given] = field(default_factory=list)  # keys hold the ids of constants: these must stay
    # Of recursive functions: which others they are recursive with, and the bindings that say what calls of those are given.
    _together: dict[str, frozenset[str]] = field(default_factory=dict)
    _relevant: dict[str, list[Binding]] = field(default_factory=dict)

    def find_recursion(self) -> None:
        names = {n: globals_used(f) for n, f in self.functions.items()}
        for component in components(names):
            if len(component) > 1 or component[0] in names[component[0]]:
                self._note(frozenset(component))

    def _note(self, together: frozenset[str]) -> None:
        for name in together:
            self._together[name] = together
            self._relevant[name] = [
                b
                for b in all_bindings(body_of(self.functions[name]))
                if isinstance(b.value, Tuple | Proj) or _callee(b.value) in together
            ]

    def rewrite(self, name: str) -> None:
        """Let the calls of recursive functions from outside be calls of copies."""
        own = self._together.get(name, frozenset())

        def visit(scope: Scope, var: Var, value: Expr) -> Expr:
            callee = _callee(value)
            if callee is None or callee in own or callee not in self._together:
                return value
            assert isinstance(value, Call)
            return self._call(callee, value, driver)

        driver = Forward(visit)
        self.functions[name] = driver.function(self.functions[name])

    def _call(self, name: str, call: Call, driver: Forward) -> Expr:
        function = self.functions[name]
        if len(call.args) != len(function.params) or len(call.type_args) != len(function.type_params):
            return call
        first = self._given(function, call, lambda atom: _known(atom, driver), {})
        if first is None or not (first.params or first.sizes):
            return call
        found = self._follow(name, first)
        if found is None or not (found[name].params or found[name].sizes):
            return call
        key = (name, found[name].key())
        target = self.made.get(key)
        if target is None:
            bindings = (b for n in found for b in all_bindings(body_of(self.functions[n])))
            large = any(True for _ in islice(bindings, self.options.max_bindings, None))
            if large or len(self.made) + len(found) > self.options.max_functions:
                return call
            self.kept += found.values()
            target = self._make(found)[name].target
            self.made[key] = target
        return _as_call(call, target, function, found[name], driver)

    def _given(
        self, function: Function, call: Call, known: Callable[[Expr], Known], sizes: Mapping[DimVar, int]
    ) -> _Given | None:
        """What a call is known to give its function; None for a call that gives it other arguments than it has parameters."""
        if len(call.args) != len(function.params) or len(call.type_args) != len(function.type_params):
            return None
        params = {n: k for n, a in enumerate(call.args) if (k := known(a)) is not None}
        found: dict[DimVar, int] = {}
        for own, given in zip(function.type_params, call.type_args, strict=True):
            if isinstance(own, DimVar):
                size = dim_substitute(cast(Dim, given), sizes.get)
                if isinstance(size, int):
                    found[own] = size
        return _Given(params, found)

    def _follow(self, name: str, first: _Given) -> dict[str, _Given] | None:
        """What is known to be given to each function in the recursion that begins with this call; None where a call cannot be
        followed. What is given becomes less with every call that is looked at, so this ends."""
        found = {name: first}
        todo = [name]
        while todo:
            caller = todo.pop()
            given, function = found[caller], self.functions[caller]
            values: dict[Var, Known] = {function.params[n]: k for n, k in given.params.items()}

            def known(atom: Expr, values: dict[Var, Known] = values) -> Known:
                return atom if isinstance(atom, Constant) else values.get(atom) if isinstance(atom, Var) else None

            for binding in self._relevant[caller]:
                match binding.value:
                    case Tuple(fields=fields):
                        parts = tuple(known(f) for f in fields)
                        values[binding.var] = parts if any(p is not None for p in parts) else None
                    case Proj(tuple=whole, index=index):
                        parts_of = known(whole)
                        values[binding.var] = parts_of[index] if isinstance(parts_of, tuple) else None
                    case Call(fn=GlobalVar(name=callee)) as call:
                        gives = self._given(self.functions[callee], call, known, given.sizes)
                        if gives is None:
                            return None
                        before = found.get(callee)
                        after = gives if before is None else before.meet(gives)
                        if before is None or not before.same(after):
                            found[callee] = after
                            todo.append(callee)
        return found

    def _make(self, found: Mapping[str, _Given]) -> dict[str, _Copy]:
        copies = {name: self._declare(name, given) for name, given in found.items()}

        def visit(scope: Scope, var: Var, value: Expr) -> Expr:
            callee = _callee(value)
            if callee is None or callee not in copies:
                return value
            assert isinstance(value, Call)
            return _as_call(value, copies[callee].target, self.functions[callee], copies[callee].given, driver)

        driver = Forward(visit)  # of all copies: their variables differ
        for name, copy in copies.items():
            function = self.functions[name]
            body = copy.copier.copy(body_of(function))
            ty = cast(FuncType, copy.target.ty)
            self.functions[copy.target.name] = driver.function(
                replace(
                    function,
                    params=(*copy.params, *(p for parts in copy.parts.values() for p in parts)),
                    body=replace(body, bindings=(*copy.inside, *body.bindings)),
                    ret_type=ty.ret,
                    type_params=ty.type_params,
                    constraints=(),
                    ty=ty,
                )
            )
            self.pending.append(copy.target.name)
        # A copy may be given more by a copy of its caller: then there is a copy of it.
        self._note(frozenset(c.target.name for c in copies.values()))
        return copies

    def _declare(self, name: str, given: _Given) -> _Copy:
        """The parameters of a copy: those that are not known, and then the unknown parts of those known in part."""
        function = self.functions[name]
        fixed: dict[DimVar, Dim] = dict(given.sizes)
        copier = Copier({}, fixed, own_dims=True)
        dims = [copier.dim(p) for p in function.type_params if isinstance(p, DimVar) and p not in given.sizes]
        type_params = tuple(v for d in dims if d is not None and (v := as_var(d)) is not None)
        params = tuple(copier.bind(p) for n, p in enumerate(function.params) if n not in given.params)
        parts: dict[int, list[Var]] = {}
        inside: list[Binding] = []
        for n, known in given.params.items():
            var = copier.bind(function.params[n])
            if isinstance(known, Constant):
                inside.append(Binding(var, known))
                continue
            parts[n] = []
            inside.append(Binding(var, _rebuild(known, var, parts[n], inside)))
        ret = copier.type(function.ty.ret if isinstance(function.ty, FuncType) else function.ret_type)
        assert ret is not None, "fixing invariants needs a typed program"
        taken = (*params, *(p for found in parts.values() for p in found))
        new_name = unused(f"{name}__fixed", self.functions)
        target = GlobalVar(new_name, FuncType(tuple(type_of(p) for p in taken), ret, type_params))
        self.functions[new_name] = function  # until it is made: the name is taken
        return _Copy(given, target, params, parts, inside, copier)


def _callee(value: Expr) -> str | None:
    """The name of the global function that is called."""
    return value.fn.name if isinstance(value, Call) and isinstance(value.fn, GlobalVar) else None


def _as_call(call: Call, target: GlobalVar, function: Function, given: _Given, driver: Forward) -> Expr:
    """The call of a function as one of its copy: without what that has inside, taken apart where it knows a part."""
    front: list[Binding] = []
    args = [a for n, a in enumerate(call.args) if n not in given.params]
    for n, known in given.params.items():
        args += _unknown_parts(call.args[n], known, driver, front)
    rest: tuple[TypeArg, ...] = tuple(
        a for p, a in zip(function.type_params, call.type_args, strict=True) if p not in given.sizes
    )
    made = Call(target, tuple(args), call.attrs, rest, call.ty, call.span)
    if not front:
        return made
    result = Var("result", None, call.ty, call.span)
    return Block((*front, Binding(result, made)), result, call.ty, call.span)


def _meet(a: Known, b: Known) -> Known:
    """What is known of a value that is one or the other. (Tuples nest as deeply as a person writes their types.)"""
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        parts = tuple(_meet(x, y) for x, y in zip(a, b, strict=True))
        return parts if any(p is not None for p in parts) else None
    return a if isinstance(a, Constant) and isinstance(b, Constant) and _identity(a) == _identity(b) else None


def _fold(known: Known, leaf: Callable[[Known], object]) -> object:
    """A value of the same shape."""
    return tuple(_fold(k, leaf) for k in known) if isinstance(known, tuple) else leaf(known)


def _identity(known: Known) -> object:
    """Constants are the same when their data is the same object; single elements when they have the same bits."""
    if not isinstance(known, Constant):
        return None
    return (known.dtype, known.data.tobytes()) if known.data.ndim == 0 else id(known.data)


def _known(atom: Expr, driver: Forward) -> Known:
    """What is known of an atom; a tuple of which no part is known is not known."""
    if isinstance(atom, Constant):
        return atom
    made = driver.definition(atom)
    if isinstance(made, Tuple):
        parts = tuple(_known(f, driver) for f in made.fields)
        return parts if any(p is not None for p in parts) else None
    return None


def _unknown_parts(atom: Expr, known: Known, driver: Forward, front: list[Binding]) -> list[Expr]:
    """The atoms of the parts that are not known, in order; ``front`` gets what takes a tuple apart."""
    if isinstance(known, Constant):
        return []
    if known is None:
        return [atom]
    made = driver.definition(atom)
    fields: Sequence[Expr]
    if isinstance(made, Tuple):
        fields = made.fields
    else:
        ty = type_of(atom)
        assert isinstance(ty, TupleType)
        fields = [Var(f"part_{n}", None, t) for n, t in enumerate(ty.fields)]
        front += (
            Binding(f, Proj(atom, n, f.ty))
            for n, (f, k) in enumerate(zip(fields, known, strict=True))
            if isinstance(f, Var) and not isinstance(k, Constant)
        )
    return [a for f, k in zip(fields, known, strict=True) for a in _unknown_parts(f, k, driver, front)]


def _rebuild(known: Known, var: Var, parts: list[Var], inside: list[Binding]) -> Expr:
    """The value of a parameter inside the copy; its unknown parts become parameters (``parts``)."""
    assert isinstance(known, tuple) and isinstance(var.ty, TupleType)
    fields: list[Expr] = []
    for n, (part, ty) in enumerate(zip(known, var.ty.fields, strict=True)):
        inner = Var(f"{var.name}_{n}", ty, ty)
        if part is None:
            parts.append(inner)
            fields.append(inner)
        elif isinstance(part, Constant):
            fields.append(part)
        else:
            inside.append(Binding(inner, _rebuild(part, inner, parts, inside)))
            fields.append(inner)
    return Tuple(tuple(fields), var.ty)
