"""The state of one inference: types so far by node, what names stand for, instances of polymorphic types.

A type that is not yet known is a flexible variable of the solver. A polymorphic function is instantiated where it
stands: a call records the type arguments, elsewhere the place does (``expansions``), and `annotate` expands it there.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import cast

from relay.ir.diagnostics import OperatorError, RelayError, ShapeError, TypeError_
from relay.ir.dim import AnyDim, Dim, DimVar
from relay.ir.expr import (
    NO_ATTRS,
    Call,
    Constant,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    Match,
    OpRef,
    Var,
)  # fmt: skip
from relay.ir.module import Module
from relay.ir.parser import LIBRARIES, library_module
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.types import (
    AdtType,
    FuncType,
    Kind,
    TensorType,
    TupleType,
    Type,
    TypeArg,
    TypeParam,
    TypeVar,
)  # fmt: skip
from relay.op import registry
from relay.op.registry import Operator
from relay.typing.kinds import KindChecker, kind_of, kind_of_param
from relay.typing.operators import Expand, OperatorTyping, relation_attrs
from relay.typing.relations import located
from relay.typing.solver import Mismatch, Mode, Solver
from relay.typing.substitution import param_arg, variables
from relay.typing.text import type_text


@cache
def _of_libraries() -> Mapping[str, str]:
    """The libraries that come with the language, by the names of their functions."""
    return {name: library for library in reversed(LIBRARIES) for name in library_module(library).functions}


# An occurrence: the id of the parent node and the position among its children.
Place = tuple[int, int]


@record(slots=True, eq=False)
class InferenceState:
    """The state of one inference, and its result: unresolved types by node id. ``expansions`` says at which places a
    polymorphic function stands as a plain value, with its type there; ``call_args`` the type arguments of calls;
    ``wanted`` the type expected of a new reference, whose content may be wider than its first value."""

    module: Module
    solver: Solver
    expand: Expand
    open_terms: bool = False
    types: dict[int, Type] = field(default_factory=dict)
    vars: dict[Var, Type] = field(default_factory=dict)
    globals: dict[str, Type] = field(default_factory=dict)
    call_args: dict[int, tuple[TypeArg, ...]] = field(default_factory=dict)
    expansions: dict[Place, tuple[tuple[TypeArg, ...], FuncType]] = field(default_factory=dict)
    alias_params: dict[Place, tuple[TypeParam, ...]] = field(default_factory=dict)
    matches: list[tuple[Match, Type]] = field(default_factory=list)
    generalised: dict[int, tuple[TypeParam, ...]] = field(default_factory=dict)
    wanted: dict[int, Type] = field(default_factory=dict)
    annotate: set[Var] = field(default_factory=set)
    visited_level: dict[int, int] = field(default_factory=dict)
    _constants: dict[tuple[tuple[int, ...], str], TensorType] = field(default_factory=dict)
    _schemes: dict[str, FuncType] = field(default_factory=dict)
    open_params: dict[Var | str, tuple[TypeParam, ...]] = field(default_factory=dict)
    kinds: KindChecker = field(init=False)
    operators: OperatorTyping = field(init=False)

    def __post_init__(self) -> None:
        self.kinds = KindChecker(self.module.types, lambda p: isinstance(p, DimVar) or p in self.solver.levels)
        self.operators = OperatorTyping(self.solver, self.complete, self.expand)

    def fail(self, message: str, span: Span | None, hint: str = "") -> TypeError_:
        return TypeError_(message, span, hint)

    def fit(self, found: Type, expected: Type, span: Span | None, context: str, hint: str = "") -> None:
        """``found`` must fit where ``expected`` is wanted."""
        if found is expected:
            return
        self.solver.place = (span, context)
        try:
            self.solver.soften(self.solver.relate_softly(found, expected))
        except Mismatch as e:
            raise self.solver.whole(e, found, expected).error(span, context, hint) from None

    def equal(self, found: Type, expected: Type, span: Span | None, context: str, hint: str = "") -> None:
        self.solver.place = (span, context)
        try:
            self.solver.relate(found, expected, Mode.EQUAL)
        except Mismatch as e:
            raise self.solver.whole(e, found, expected).error(span, context, hint) from None

    def argument(self, found: Type, expected: Type, soft: list[DimVar], span: Span | None, context: str) -> None:
        """An argument must fit its parameter. ``soft`` collects unknown dims that met ``?``."""
        self.solver.place = (span, context)
        try:
            soft += self.solver.relate_softly(found, expected)
        except Mismatch as m:
            raise self.solver.whole(m, found, expected).error(span, context) from None

    def complete(self, result: TypeVar, t: Type, span: Span | None, context: str) -> None:
        """Give the result of a relation that was waiting; what was expected of it meanwhile must agree."""
        head = self.solver.head(result)
        if isinstance(head, TypeVar):
            self.solver.outputs.discard(head)
        self.fit(t, result, span, context)

    def constructor(self, name: str, span: Span | None) -> FuncType:
        """The polymorphic type of a constructor."""
        found = self._schemes.get(name)
        if found is None:
            c = self.module.constructors.get(name)
            if c is None:
                near = difflib.get_close_matches(name, self.module.constructors, 2)
                raise self.fail(
                    f"unknown constructor {name}", span, f"did you mean {' or '.join(near)}?" if near else ""
                )
            params = self.module.types[c.adt].params
            found = FuncType(c.fields, AdtType(c.adt, tuple(map(param_arg, params))), params)
            self._schemes[name] = found
        return found

    def operator(self, name: str, span: Span | None) -> Operator:
        try:
            return registry.get(name)
        except RelayError as e:
            if any(v.name == name for v in self.vars):
                e = OperatorError(e.message, hint=f"a variable is written %{name}")
            elif name in self.globals or name in _of_libraries():
                e = OperatorError(e.message, hint=f"a function is written @{name}{self._imported(name)}")
            raise located(e, span) from None

    def _imported(self, name: str) -> str:
        """What has to be written first for a library's function to be there, as the end of a hint; "" of a function that is."""
        return "" if name in self.globals else f" (write `import {_of_libraries()[name]}`)"

    def known(self, e: Expr, parent: Expr, index: int) -> Type | None:
        """The type of a child that needs no visit, used as a plain value there; None when it has to be visited."""
        kind = type(e)
        if kind is Var or kind is GlobalVar:
            return self.plain(self.named(cast("Var | GlobalVar", e)), parent, index)
        found = self.types.get(id(e))
        if found is not None:
            return self.plain(self.again(e, found), parent, index)
        match e:
            case Constant():
                t = self._constant(e)
                self.types[id(e)] = t
                return t
            case OpRef():
                return self._operator_value(e, parent, index)
            case ConstructorRef():
                scheme = self.constructor(e.name, e.span)
                if not scheme.params:  # without fields it is the value itself
                    args, mono = self.instance(scheme)
                    self.expansions[id(parent), index] = (args, mono)
                    return mono.ret
                return self.plain(scheme, parent, index, force=True)
            case _:
                return None

    def named(self, e: Var | GlobalVar) -> Type:
        """The (perhaps polymorphic) type of a variable."""
        if isinstance(e, GlobalVar):
            found = self.globals.get(e.name)
            if found is None:
                if e.name in _of_libraries():
                    hint = f"it comes with the language: write `import {_of_libraries()[e.name]}`"
                else:
                    near = difflib.get_close_matches(e.name, {**self.globals, **_of_libraries()}, 2)
                    hint = " or ".join(f"@{n}{self._imported(n)}" for n in near)
                    hint = f"did you mean {hint}?" if hint else ""
                raise self.fail(f"unbound global variable @{e.name}", e.span, hint)
            return found
        found = self.vars.get(e)
        if found is None:
            given = e.annotation or e.ty
            if self.open_terms and given is not None:
                self.vars[e] = given
                return given
            raise self.fail(f"unbound variable %{e.name}", e.span, "bind it by `let` or as a parameter before its use")
        return found

    def again(self, e: Expr, t: Type) -> Type:
        """A shared node met outside of the function in which it was first met must not depend on that function."""
        if self.visited_level.get(id(e), 0) > self.solver.level:
            level = self.solver.level
            self.visited_level[id(e)] = level
            for v in variables(self.solver.resolve(t)):
                if self.solver.levels.get(v, 0) > level and not (isinstance(t, FuncType) and v in t.type_params):
                    if (isinstance(v, TypeVar) and v.flexible) or v in self.solver.unknown_dims:
                        self.solver.levels[v] = level
                    else:
                        raise self.fail(
                            f"a value shared with the inside of a polymorphic function has its type parameter {v.name}",
                            e.span,
                            "bind it by `let` outside of the function",
                        )
        return t

    def instance(self, scheme: FuncType, given: tuple[TypeArg, ...] = ()) -> tuple[tuple[TypeArg, ...], FuncType]:
        args = given or tuple(map(self.solver.fresh_arg, scheme.type_params))
        return args, self.solver.instantiate(scheme, args)

    def plain(self, t: Type, parent: Expr, index: int, *, force: bool = False) -> Type:
        """The type of a value at a place: a polymorphic function is instantiated, which is recorded."""
        if isinstance(t, FuncType) and (t.type_params or force):
            args, mono = self.instance(t)
            self.constrain(mono, parent.span)
            self.expansions[id(parent), index] = (args, mono)
            return FuncType(mono.params, mono.ret)
        return t

    def _operator_value(self, e: OpRef, parent: Expr, index: int) -> Type:
        op = self.operator(e.name, e.span)
        params = tuple(self.solver.fresh(i.name) for i in op.inputs if not i.optional)
        result = self.operators.call(op, params, NO_ATTRS, e.span)
        t = FuncType(params, result)
        self.expansions[id(parent), index] = ((), t)
        return t

    def _constant(self, e: Constant) -> TensorType:
        key = (e.data.shape, e.dtype)
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = TensorType(e.data.shape, e.dtype)
        return found

    def check_type_args(self, e: Call, name: str, params: Sequence[TypeParam]) -> None:
        if len(e.type_args) != len(params):
            raise self.fail(f"{name} takes {len(params)} type arguments, found {len(e.type_args)}", e.span)
        for p, a in zip(params, e.type_args, strict=True):
            if kind_of(a) is not kind_of_param(p):
                raise self.fail(
                    f"type argument {p.name} of {name}: expected a {kind_of_param(p).value}, found the "
                    f"{kind_of(a).value} {type_text(a)}",
                    e.span,
                )
            self.written(a, e.span, kind_of_param(p))

    def check_any(self, e: Call, name: str, scheme: FuncType) -> None:
        """A dim parameter can be ``?`` only where every argument with it can be checked on arrival."""
        for p, a in zip(scheme.type_params, e.type_args, strict=True):
            if isinstance(p, DimVar) and isinstance(a, AnyDim) and any(p in _inside(t) for t in scheme.params):
                raise ShapeError(
                    f"type argument {p.name} of {name} is ? but stands inside another type",
                    e.span,
                    "give it a dim",
                )

    def constrain(self, mono: FuncType, span: Span | None) -> None:
        """Queue the constraints of an instantiated function: operator relations over inputs and, last, the output."""
        for c in mono.constraints:
            *args, out = cast("tuple[Type, ...]", c.args)
            result = self.operators.call(self.operator(c.name, span), tuple(args), relation_attrs(c), span)
            self.fit(result, out, span, f"the constraint {c.name}")

    def written(self, t: TypeArg, span: Span | None, kind: Kind = Kind.TYPE) -> None:
        """Check a type that the user wrote; what is left open in it (``_``) becomes an unknown. Raises TypeError_."""
        self.kinds.check(t, span, kind)
        for v in variables(t):
            if isinstance(v, TypeVar) and v.flexible:
                self.solver.levels.setdefault(v, self.solver.level)

    def declared(self, fn: Function) -> FuncType | None:
        """The type of a function that is annotated in full (its own parameters included), else None."""
        if fn.ret_type is None or any(p.annotation is None for p in fn.params):
            return None
        params = tuple(cast(Type, p.annotation) for p in fn.params)
        if any(isinstance(v, TypeVar) and v.flexible for t in (*params, fn.ret_type) for v in variables(t)):
            return None
        return FuncType(params, fn.ret_type, fn.type_params, fn.constraints)

    def hold(self, start: int) -> None:
        """Unknowns of relations that still wait belong to the outer level: they are not generalised."""
        solver = self.solver
        for relation in solver.queue.pending[start:]:
            if not relation.done:
                for t in relation.types:
                    for v in solver.unknowns(t):
                        solver.levels[v] = min(solver.levels[v], solver.level)

    def generalise(self, fn: Function, t: FuncType, *, implicit: bool) -> FuncType:
        """The scheme of a function whose body was inferred one level further in."""
        return self.scheme(fn, t, self.close(t, lower=not implicit))

    def scheme(self, fn: Function, t: FuncType, new: tuple[TypeParam, ...]) -> FuncType:
        """The polymorphic type of a function with new parameters beside its own."""
        if new:
            self.generalised[id(fn)] = new
            self.annotate.update(fn.params)
        params = (*fn.type_params, *new)
        if not params:
            return t
        mono = cast(FuncType, self.solver.resolve(t))
        return FuncType(mono.params, mono.ret, params, fn.constraints)

    def close(self, t: Type, *, lower: bool) -> tuple[TypeParam, ...]:
        """Make the unknowns of inner levels in ``t`` rigid parameters (or, with ``lower``, unknowns of this level)."""
        solver = self.solver
        new: list[TypeParam] = []
        for v in solver.unknowns(t):
            if solver.levels[v] <= solver.level:
                continue
            if lower:
                solver.levels[v] = solver.level
                continue
            p: TypeParam
            if isinstance(v, DimVar):
                p = DimVar(v.name, v.lo, v.hi)
                solver.levels[p] = solver.level + 1
                solver.levels[v] = solver.level + 1
                solver.bind_dim(v, cast(Dim, param_arg(p)))
            else:
                p = TypeVar(_param_name(len(new)), v.kind)
                solver.levels[p] = solver.level + 1
                solver.levels[v] = solver.level + 1
                solver.bind(v, p)
            new.append(p)
        return tuple(new)


def _param_name(n: int) -> str:
    """A, B, ..., Z, A1, B1, ..."""
    return chr(ord("A") + n % 26) + (str(n // 26) if n >= 26 else "")


def _inside(t: Type) -> set[TypeParam]:
    """The variables in a type that stand inside algebraic, reference and function types."""
    if isinstance(t, TupleType):
        return set().union(*map(_inside, t.fields))
    return set() if isinstance(t, TensorType) else set(variables(t))
