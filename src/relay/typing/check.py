"""A fast check of a typed module, node by node: what a pass promises to keep.

Each node's type must follow from the types of its parts by the local rule. Passes may know a dim better than the rule
does (a name instead of ``?``, a proved equality), so dims must only not be known to differ.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import assert_never, cast

from relay.ir.diagnostics import RelayError, TypeError_
from relay.ir.dim import AnyDim, SymDim, known_different
from relay.ir.effects import INTERNAL
from relay.ir.expr import (
    Block,
    Call,
    Constant,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    Grad,
    If,
    Match,
    OpRef,
    Pattern,
    PConstructor,
    Proj,
    PTuple,
    PVar,
    PWild,
    RefNew,
    RefRead,
    RefWrite,
    Tuple,
    Var,
)  # fmt: skip
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import (
    AdtType,
    FuncType,
    RefType,
    TensorType,
    TupleType,
    Type,
    TypeArg,
    TypeVar,
)  # fmt: skip
from relay.ir.walk import bound_vars, post_order
from relay.typing.gradients import derivative_type
from relay.typing.inference import op_type
from relay.typing.kinds import kind_of, kind_of_param
from relay.typing.substitution import param_arg, substitute, variables
from relay.typing.text import type_text


def verify_types(module: Module, only: Collection[str] | None = None) -> None:
    """Raises TypeError_ naming the function and the node where a type is missing, unsolved or wrong.

    ``only``: check the functions of these names alone (what a pass changed)."""
    for name, fn in module.functions.items():
        if only is not None and name not in only:
            continue
        try:
            _Checker(module).check(fn)
        except RelayError as e:
            e.message = f"in @{name}: {e.message}"
            raise e.with_source(module.sources) from None


def consistent(a: TypeArg, b: TypeArg) -> bool:
    """Whether two types agree except for dims that are not known to differ."""
    if a is b:
        return True
    match a, b:
        case (int() | SymDim() | AnyDim(), int() | SymDim() | AnyDim()):
            return not known_different(a, b)
        case (tuple(), tuple()):
            return len(a) == len(b) and all(map(consistent, a, b))
        case TensorType(), TensorType():
            return (
                a.dtype == b.dtype
                and consistent(a.shape, b.shape)
                and (a.device == b.device or not (a.device and b.device))
            )
        case TupleType(), TupleType():
            return len(a.fields) == len(b.fields) and all(map(consistent, a.fields, b.fields))
        case FuncType(), FuncType():
            if len(a.type_params) != len(b.type_params) or len(a.params) != len(b.params):
                return False
            if a.type_params:
                if any(
                    kind_of_param(p) is not kind_of_param(q) for p, q in zip(a.type_params, b.type_params, strict=True)
                ):
                    return False
                b = instance(b, tuple(map(param_arg, a.type_params)))
            return all(map(consistent, a.params, b.params)) and consistent(a.ret, b.ret)
        case RefType(), RefType():
            return consistent(a.value, b.value)
        case AdtType(), AdtType():
            return a.name == b.name and len(a.args) == len(b.args) and all(map(consistent, a.args, b.args))
        case _:
            return a == b


def instance(t: FuncType, args: tuple[TypeArg, ...]) -> FuncType:
    """A function type at type arguments."""
    if not t.type_params:
        return t
    return cast(FuncType, substitute(FuncType(t.params, t.ret), t.type_params, args))


@record(slots=True, eq=False)
class _Checker:
    module: Module

    def check(self, fn: Function) -> None:
        solved: dict[int, Type] = {}
        bound: set[Var] = set()
        used: dict[Var, None] = {}
        for node in post_order(fn):
            if isinstance(node, Var):
                used[node] = None
            else:
                for v in bound_vars(node):
                    bound.add(v)
                    if id(v.ty) not in solved:
                        self._solved(v, v.ty, solved)
            if id(node.ty) not in solved:
                self._solved(node, node.ty, solved)
            self._node(node)
        for v in used:
            if v not in bound:
                raise TypeError_(f"the variable %{v.name} is used but not bound in the function", v.span)

    def _solved(self, e: Expr, t: Type | None, solved: dict[int, Type]) -> None:
        if t is None:
            raise TypeError_(f"{_what(e)} has no type", e.span)
        plain = isinstance(t, TensorType) and isinstance(t.dtype, str) and isinstance(t.shape, tuple)
        for v in () if plain else variables(t):
            if isinstance(v, TypeVar) and v.flexible:
                raise TypeError_(f"the type of {_what(e)} is not solved: {type_text(t)}", e.span)
        solved[id(t)] = t

    def _expect(self, e: Expr, found: TypeArg, expected: TypeArg, what: str) -> None:
        if found is not expected and not consistent(found, expected):
            raise TypeError_(f"{what}: expected {type_text(expected)}, found {type_text(found)}", e.span)

    def _node(self, e: Expr) -> None:
        match e:
            case Var() | OpRef():
                pass
            case GlobalVar():
                target = self.module.functions.get(e.name)
                if target is None:
                    raise TypeError_(f"the module has no function @{e.name}", e.span)
                if target.ty is not None:
                    self._expect(e, _ty(e), target.ty, f"the type of @{e.name}")
            case Constant():
                self._expect(e, _ty(e), TensorType(e.data.shape, e.dtype), "the type of a constant")
            case ConstructorRef():
                if e.name not in self.module.constructors:
                    raise TypeError_(f"the module has no constructor {e.name}", e.span)
            case Call():
                self._call(e)
            case Function():
                t = _ty(e)
                if not isinstance(t, FuncType) or len(t.params) != len(e.params) or t.type_params != e.type_params:
                    raise TypeError_(f"a function of {len(e.params)} parameters has the type {type_text(t)}", e.span)
                for v, p in zip(e.params, t.params, strict=True):
                    self._expect(v, _ty(v), p, f"the type of the parameter %{v.name}")
                self._expect(e, _ty(e.body), t.ret, "the body of a function")
            case Block():
                for b in e.bindings:
                    self._expect(b.value, _ty(b.value), _ty(b.var), f"the value of %{b.var.name}")
                self._expect(e, _ty(e.result), _ty(e), "the result of a block")
            case Tuple():
                self._expect(e, TupleType(tuple(map(_ty, e.fields))), _ty(e), "a tuple")
            case Proj():
                t = _ty(e.tuple)
                if not isinstance(t, TupleType) or not 0 <= e.index < len(t.fields):
                    raise TypeError_(f"projection .{e.index} of {type_text(t)}", e.span)
                self._expect(e, t.fields[e.index], _ty(e), f"projection .{e.index}")
            case If():
                self._expect(e, _ty(e.cond), TensorType((), "bool"), "the condition of if")
                self._expect(e, _ty(e.then), _ty(e), "the first branch of if")
                self._expect(e, _ty(e.orelse), _ty(e), "the second branch of if")
            case Match():
                for c in e.clauses:
                    self._pattern(c.pattern, _ty(e.data))
                    self._expect(c.body, _ty(c.body), _ty(e), "a clause of match")
            case RefNew():
                self._expect(e, RefType(_ty(e.value)), _ty(e), "a new reference")
            case RefRead():
                self._expect(e, _ty(e.ref), RefType(_ty(e)), "the reference that is read")
            case RefWrite():
                self._expect(e, _ty(e.ref), RefType(_ty(e.value)), "the reference that is written")
                self._expect(e, _ty(e), TupleType(()), "the value of a write")
            case Grad():
                t = _ty(e.fn)
                if not isinstance(t, FuncType):
                    raise TypeError_(f"grad of {type_text(t)}", e.span)
                self._expect(e, derivative_type(t, e.forward), _ty(e), "grad")
            case _:
                assert_never(e)

    def _call(self, e: Call) -> None:
        args = tuple(map(_ty, e.args))
        if isinstance(e.fn, OpRef):
            if e.fn.name in INTERNAL:
                return
            try:
                result = op_type(e.fn.name, args, e.attrs)
            except TypeError_:
                if any(isinstance(v, TypeVar) for a in args for v in variables(a)):
                    return  # a constraint of the function around it promises the result; its copies are checked
                raise
            self._expect(e, result, _ty(e), f"the result of {e.fn.name}")
            return
        t = _ty(e.fn)
        if not isinstance(t, FuncType):
            raise TypeError_(f"a call of something of type {type_text(t)}", e.span)
        if len(e.type_args) != len(t.type_params) or len(args) != len(t.params):
            raise TypeError_(
                f"a call with {len(e.type_args)} type arguments and {len(args)} arguments of {type_text(t)}", e.span
            )
        for p, a in zip(t.type_params, e.type_args, strict=True):
            if kind_of(a) is not kind_of_param(p):
                raise TypeError_(f"type argument {p.name} is the {kind_of(a).value} {type_text(a)}", e.span)
        t = instance(t, e.type_args)
        for n, (a, q) in enumerate(zip(args, t.params, strict=True), 1):
            self._expect(e, a, q, f"argument {n}")
        self._expect(e, t.ret, _ty(e), "the result of a call")

    def _pattern(self, root: Pattern, data: Type) -> None:
        todo: list[tuple[Pattern, Type]] = [(root, data)]
        while todo:
            p, t = todo.pop()
            match p:
                case PWild():
                    pass
                case PVar():
                    self._expect(p.var, t, _ty(p.var), f"the pattern variable %{p.var.name}")
                case PTuple():
                    if not isinstance(t, TupleType) or len(t.fields) != len(p.fields):
                        raise TypeError_(f"a tuple pattern of {len(p.fields)} fields for {type_text(t)}", p.span)
                    todo += zip(p.fields, t.fields, strict=True)
                case PConstructor():
                    c = self.module.constructors.get(p.name)
                    if c is None or not isinstance(t, AdtType) or c.adt != t.name or len(c.fields) != len(p.fields):
                        raise TypeError_(f"the pattern {p.name} with {len(p.fields)} fields for {type_text(t)}", p.span)
                    params = self.module.types[c.adt].params
                    todo += (
                        (q, cast(Type, substitute(f, params, t.args))) for q, f in zip(p.fields, c.fields, strict=True)
                    )
                case _:
                    assert_never(p)


def _ty(e: Expr) -> Type:
    if e.ty is None:
        raise TypeError_(f"{_what(e)} has no type", e.span)
    return e.ty


def _what(e: Expr) -> str:
    match e:
        case Var():
            return f"%{e.name}"
        case GlobalVar():
            return f"@{e.name}"
        case Call() if isinstance(e.fn, OpRef):
            return f"a call of {e.fn.name}"
        case _:
            return f"a {type(e).__name__} node"
