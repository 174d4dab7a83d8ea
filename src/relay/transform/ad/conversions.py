"""Moving values between a program and its lifted form, by their type.

Tensors and tuples are converted where they stand; for an algebraic type a recursive function is made, once per type.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import field
from typing import ClassVar, cast

import numpy as np

from relay.ir.diagnostics import CompileError
from relay.ir.dim import DimVar, as_dim
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Call, Clause, Expr, Function, GlobalVar, Match, PConstructor, Var
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.types import AdtType, FuncType, RefType, TensorType, TupleType, Type, TypeVar
from relay.transform.ad.duals import COTANGENT, SUM, ZERO, Lifting, differentiable
from relay.transform.ad.terms import (
    UNIT,
    Code,
    add,
    construct,
    either,
    new_ref,
    patterns,
    project,
    read,
    tuple_of,
    write,
)  # fmt: skip
from relay.transform.build import constant, internal_call, type_of
from relay.transform.to_blocks import to_blocks
from relay.typing.substitution import substitute, variables
from relay.typing.text import type_text


@record(slots=True, eq=False)
class Functions:
    """The functions of the module under transformation; names are given once."""

    known: dict[str, Function]
    reserved: set[str] = field(default_factory=set)

    def name(self, wanted: str) -> str:
        while wanted in self.known or wanted in self.reserved:
            wanted += "_"
        self.reserved.add(wanted)
        return wanted


@record(slots=True, eq=False)
class Conversion(ABC):
    """One conversion for all types. ``why`` begins the message when a type has none."""

    lifting: Lifting
    functions: Functions
    # By type, with the variables below for its dims.
    _made: dict[AdtType, GlobalVar] = field(default_factory=dict)
    _dims: list[DimVar] = field(default_factory=list)
    _todo: list[tuple[str, AdtType, FuncType]] = field(default_factory=list)

    verb: ClassVar[str]

    @abstractmethod
    def source(self, t: Type) -> Type:
        """What the conversion for ``t`` takes."""

    @abstractmethod
    def target(self, t: Type) -> Type:
        """What it gives."""

    @abstractmethod
    def tensor(self, code: Code, x: Expr, t: TensorType) -> Expr: ...

    def function(self, code: Code, x: Expr, t: FuncType, span: Span | None) -> Expr:
        raise _refused(self.verb, "a function", t, span)

    def reference(self, code: Code, x: Expr, t: RefType, span: Span | None) -> Expr:
        raise _refused(self.verb, "a reference", t, span)

    def trivial(self, t: Type) -> bool:
        """Whether a value of this type is its own conversion."""
        return not self.lifting.changes(t)

    def convert(self, code: Code, x: Expr, t: Type, span: Span | None = None) -> Expr:
        """The atom for the converted value of the atom ``x``. Raises CompileError for what has no conversion."""
        if self.trivial(t):
            return x
        match t:
            case TensorType():
                return self.tensor(code, x, t)
            case TupleType():
                parts = [self.convert(code, self.part(code, x, n), f, span) for n, f in enumerate(t.fields)]
                return code.bind(tuple_of(parts))
            case FuncType():
                return self.function(code, x, t, span)
            case RefType():
                return self.reference(code, x, t, span)
            case AdtType():
                fn, dims = self.of_adt(t, span)
                ret = self.target(t)
                return code.bind(Call(fn, (x,), type_args=tuple(map(as_dim, dims)), ty=ret))
            case TypeVar():
                raise _refused(self.verb, "a value of unknown type", t, span)

    def part(self, code: Code, x: Expr, index: int) -> Expr:
        """What is converted for one field of a tuple."""
        return code.bind(project(x, index))

    def of_adt(self, t: AdtType, span: Span | None) -> tuple[GlobalVar, tuple[DimVar, ...]]:
        """The function for an algebraic type, and the dim variables that it is called at."""
        dims = tuple(dict.fromkeys(v for v in variables(t) if isinstance(v, DimVar)))
        while len(self._dims) < len(dims):
            self._dims.append(DimVar(f"d{len(self._dims)}"))
        # One function serves a type at all dims: those that call each other each have dims of their own.
        general = cast(AdtType, substitute(t, dims, map(as_dim, self._dims[: len(dims)])))
        found = self._made.get(general)
        if found is None:
            if any(isinstance(v, TypeVar) for v in variables(t)):
                raise _refused(self.verb, "a value of unknown type", t, span)
            own = tuple(DimVar(d.name, d.lo, d.hi) for d in dims)
            inner = cast(AdtType, substitute(t, dims, map(as_dim, own)))
            name = self.functions.name(f"{self.lifting.prefix}.{self.verb}.{t.name}")
            ty = FuncType((self.source(inner),), self.target(inner), own)
            found = self._made[general] = GlobalVar(name, ty)
            self._todo.append((name, inner, ty))
        return found, dims

    def finish(self) -> bool:
        """Write the functions that were asked for; whether there were any."""
        some = bool(self._todo)
        while self._todo:
            name, t, ty = self._todo.pop()
            self.functions.known[name] = self._function(t, ty)
        return some

    def _function(self, t: AdtType, ty: FuncType) -> Function:
        definition = self.lifting.definitions[t.name]
        if definition.extern:
            raise _refused(self.verb, "a value of an extern type", t, None)
        x = Var("x", ty.params[0], ty.params[0])
        clauses: list[Clause] = []
        for c in definition.constructors:
            fields = [cast(Type, substitute(f, definition.params, t.args)) for f in c.fields]
            taken = [Var(f"f{n}", None, self.source(f)) for n, f in enumerate(fields)]
            code = Code()
            made = [self.convert(code, v, f) for v, f in zip(taken, fields, strict=True)]
            clauses.append(Clause(self.pattern(c.name, taken, t), code.block(self.rebuild(code, c.name, made, t))))
        body = Match(x, tuple(clauses), True, ty.ret)
        return to_blocks(Function((x,), body, ty.ret, ty.type_params, ty=ty))

    def pattern(self, name: str, fields: list[Var], t: AdtType) -> PConstructor:
        name = self.lifting.constructor(t, name) if self.source(t) != t else name
        return PConstructor(name, patterns(fields))

    def plain_pattern(self, name: str, fields: list[Var]) -> PConstructor:
        return PConstructor(name, patterns(fields))

    def rebuild(self, code: Code, name: str, fields: list[Expr], t: AdtType) -> Expr:
        target = self.target(t)
        assert isinstance(target, AdtType)
        definition = self.lifting.definitions[target.name]
        name = self.lifting.constructor(t, name) if target != t else name
        return code.bind(construct(definition, name, fields, target))


def _refused(verb: str, what: str, t: Type, span: Span | None) -> CompileError:
    reasons = {
        "lift": f"{what} from outside enters the function under differentiation: {type_text(t)}",
        "drop": f"{what} leaves the function under differentiation: {type_text(t)}",
        "cotangent": f"{what} inside data has no cotangent: {type_text(t)}",
        "zip": f"{what} has no tangent: {type_text(t)}",
        "tangent": f"{what} has no tangent: {type_text(t)}",
    }
    hints = {
        "lift": "make it inside the function, or make its definition known where the derivative is taken",
        "drop": "return tensors, tuples or algebraic data",
    }
    return CompileError(reasons[verb], span, hints.get(verb, "differentiate with respect to tensors"))


# -- cotangents in references


def zero_ref(code: Code, t: Type) -> Expr:
    """A new reference to the cotangent of a value of type ``t``: nothing so far."""
    empty = code.bind(construct(COTANGENT, ZERO, (), AdtType(COTANGENT.name, (t,))))
    return code.bind(new_ref(empty), "ct")


def accumulate(code: Code, ref: Expr, value: Expr) -> None:
    """Add to the cotangent in a reference."""
    content = code.bind(read(ref))
    held = type_of(content)
    assert isinstance(held, AdtType)
    t = cast(Type, held.args[0])
    old, first, more = Var("sum", None, t), Code(), Code()
    total = more.bind(add(old, value))
    new = code.bind(either(content, (ZERO, first.block(value)), (SUM, old, more.block(total)), t))
    full = code.bind(construct(COTANGENT, SUM, (new,), held))
    code.bind(write(ref, full), "_")


def cotangent(code: Code, ref: Expr, primal: Expr, local: Expr | None) -> Expr:
    """The whole cotangent of a value: what is in its reference, and what is known of it here."""
    content = code.bind(read(ref))
    held = type_of(content)
    assert isinstance(held, AdtType)
    t = cast(Type, held.args[0])
    old, none, some = Var("sum", None, t), Code(), Code()
    empty = none.bind(zeros_like(primal)) if local is None else local
    full: Expr = old if local is None else some.bind(add(old, local))
    return code.bind(either(content, (ZERO, none.block(empty)), (SUM, old, some.block(full)), t))


def zeros_like(x: Expr) -> Call:
    return internal_call("zeros_like", (x,), type_of(x))  # of any type, one with parameters included


def ones(code: Code, x: Expr) -> Expr:
    """As many as ``x`` has elements. For a number it is a constant: otherwise the number would be computed for its type."""
    ty = type_of(x)
    if isinstance(ty, TensorType) and ty.shape == () and ty.device is None and isinstance(ty.dtype, str):
        return constant(np.ones((), numpy_dtype(ty.dtype)), ty.dtype)
    return code.bind(internal_call("ones_like", (x,), ty))


# -- the conversions of reverse mode


class Lift(Conversion):
    """A value of the program as one of the lifted program, its cotangent nothing yet."""

    verb = "lift"

    def source(self, t: Type) -> Type:
        return t

    def target(self, t: Type) -> Type:
        return self.lifting.type(t)

    def tensor(self, code: Code, x: Expr, t: TensorType) -> Expr:
        return code.bind(tuple_of((x, zero_ref(code, t))))


@record(slots=True, eq=False)
class Drop(Conversion):
    """The value of the program that a value of the lifted program stands for. A function is wrapped."""

    lift: Conversion | None = None

    verb = "drop"

    def source(self, t: Type) -> Type:
        return self.lifting.type(t)

    def target(self, t: Type) -> Type:
        return t

    def tensor(self, code: Code, x: Expr, t: TensorType) -> Expr:
        return code.bind(project(x, 0))

    def function(self, code: Code, x: Expr, t: FuncType, span: Span | None) -> Expr:
        assert self.lift is not None
        if t.type_params:
            return super().function(code, x, t, span)
        params = tuple(Var(f"x{n}", p, p) for n, p in enumerate(t.params))
        inner = Code()
        args = [self.lift.convert(inner, p, q, span) for p, q in zip(params, t.params, strict=True)]
        lifted = self.lifting.type(t)
        assert isinstance(lifted, FuncType)
        result: Expr = inner.bind(Call(x, tuple(args), ty=lifted.ret))
        if self.lifting.functions_change:
            result = inner.bind(project(result, 0))
        out = self.convert(inner, result, t.ret, span)
        return code.bind(Function(params, inner.block(out), t.ret, ty=t))


class Seed(Conversion):
    """Add ones to the cotangent of every tensor in a result, those that functions hold excepted."""

    verb = "seed"

    def trivial(self, t: Type) -> bool:
        return not self.lifting.changes(t) or (isinstance(t, AdtType) and t.name in self.lifting.functions)

    def source(self, t: Type) -> Type:
        return self.lifting.type(t)

    def target(self, t: Type) -> Type:
        return UNIT

    def tensor(self, code: Code, x: Expr, t: TensorType) -> Expr:
        accumulate(code, code.bind(project(x, 1)), ones(code, code.bind(project(x, 0))))
        return x

    def function(self, code: Code, x: Expr, t: FuncType, span: Span | None) -> Expr:
        return x

    def reference(self, code: Code, x: Expr, t: RefType, span: Span | None) -> Expr:
        return x

    def rebuild(self, code: Code, name: str, fields: list[Expr], t: AdtType) -> Expr:
        return code.bind(tuple_of(()))


class Collect(Conversion):
    """The cotangent of an argument, from the references in its lifted value; zeros for what is not differentiable."""

    verb = "cotangent"

    def source(self, t: Type) -> Type:
        return self.lifting.type(t)

    def target(self, t: Type) -> Type:
        return t

    def trivial(self, t: Type) -> bool:
        return False

    def tensor(self, code: Code, x: Expr, t: TensorType) -> Expr:
        if not differentiable(t):
            return code.bind(zeros_like(x))
        return cotangent(code, code.bind(project(x, 1)), code.bind(project(x, 0)), None)
