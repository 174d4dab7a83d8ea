"""Monomorphisation: afterwards functions have dim parameters only.

Every function that is called at types, shapes or base types is copied for each of them, global functions (as
``@map_1``) and functions bound by ``let`` alike. A symbolic dim inside a type argument becomes a dim parameter of the
copy: the copy of ``@map[A, B]`` at ``A = Tensor[(4*n,), float32]`` is ``@map_1[d0: Dim]``, called with ``4*n``; a
polymorphic function knows no more of the dim than that it is one. Algebraic types keep their parameters: their values
are uniform.

Pre: typed (calls of polymorphic functions carry their type arguments). Post: typed; only what the entries
reach is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import assert_never, cast

from relay.ir.collection import without_collection
from relay.ir.diagnostics import RelayError, TypeError_
from relay.ir.dim import AnyDim, Dim, DimVar, SymDim, as_dim, as_var
from relay.ir.expr import (
    Binding,
    Block,
    Call,
    Clause,
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
    Proj,
    RefNew,
    RefRead,
    RefWrite,
    Tuple,
    Var,
)  # fmt: skip
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.trampoline import Step, run
from relay.ir.types import (
    AdtType,
    FuncType,
    RefType,
    TensorType,
    TupleType,
    Type,
    TypeArg,
    TypeParam,
    TypeVar,
)  # fmt: skip
from relay.ir.walk import children, pattern_vars, post_order, rebuild, rename_pattern
from relay.typing.substitution import map_attrs, map_type, variables
from relay.typing.text import type_text

# Copies of one function within copies of itself (or the parts of a type argument there), after which the function is
# taken to need copies without end.
_NESTED = 32
_PARTS = 4096


def monomorphise(module: Module, entries: Sequence[str] | None = None) -> Module:
    """Specialise what the entries (default: ``main``, or every function without type parameters) reach.

    Raises TypeError_ for a polymorphic entry and for polymorphic recursion (copies without end).
    """
    if entries is None:
        plain = [n for n, fn in module.functions.items() if not type_params(fn.type_params)]
        entries = ["main"] if "main" in plain else plain
    try:
        with without_collection():
            return _Mono(module).module_from(entries)
    except RelayError as e:
        raise e.with_source(module.sources) from e.__cause__


@record(slots=True, eq=False)
class _Instance:
    """A copy to be made of a function. ``types`` and ``dims`` say what its parameters, and those of the functions
    around it, are; ``params`` are the dim parameters of the copy and ``ty`` its type."""

    fn: Function
    types: dict[TypeVar, TypeArg]
    dims: dict[DimVar, Dim]
    params: tuple[DimVar, ...]
    ty: FuncType
    args: tuple[TypeArg, ...]
    parent: _Instance | None
    around: _Instance | None
    fresh: bool


@record(slots=True, eq=False)
class _Local:
    """A polymorphic function bound by ``let``: the context in which it stands and the copies asked for so far."""

    var: Var
    fn: Function
    home: _Copy
    made: dict[tuple[TypeArg, ...], tuple[Var, _Instance]] = field(default_factory=dict)
    todo: list[tuple[Var, _Instance]] = field(default_factory=list)

    def instance(self, args: tuple[TypeArg, ...], parent: _Instance, span: Span | None) -> tuple[Var, _Instance]:
        """The variable of the copy at these canonical arguments."""
        found = self.made.get(args)
        if found is None:
            instance = _instance(self.fn, args, f"%{self.var.name}", parent, span, self.home.instance)
            var = Var(f"{self.var.name}_{len(self.made) + 1}", None, instance.ty, self.var.span)
            found = self.made[args] = (var, instance)
            self.todo.append(found)
        return found


class _Mono:
    """The copies of global functions, made as they are asked for."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.names = set(module.functions)
        self.made: dict[tuple[str, tuple[TypeArg, ...]], tuple[str, _Instance]] = {}
        self.todo: list[tuple[str, _Instance]] = []

    def module_from(self, entries: Sequence[str]) -> Module:
        """The module of everything that the entries reach."""
        for name in entries:
            fn = self.module.function(name)
            if type_params(fn.type_params):
                raise TypeError_(
                    f"the entry @{name} is polymorphic{': ' + type_text(fn.ty) if fn.ty is not None else ''}",
                    fn.span,
                    "annotate its parameters with concrete types",
                )
            self.instance(name, (), None, fn.span)
        out: dict[str, Function] = {}
        while self.todo:
            name, instance = self.todo.pop()
            out[name] = self._copied(instance)
        names = [n for n in self.module.functions if n in out]
        names += [n for n, _ in self.made.values() if n not in self.module.functions]
        return self.module.with_functions((n, out[n]) for n in names)

    def _copied(self, instance: _Instance) -> Function:
        fn = instance.fn
        if not instance.args:
            called = _plain_calls(fn)
            if called is not None:  # nothing polymorphic inside: the function stays as it is
                for name, span in called.items():
                    self.instance(name, (), instance, span)
                return fn
        return run(_Copy(self, instance, None).function(fn))

    def instance(
        self, name: str, args: tuple[TypeArg, ...], parent: _Instance | None, span: Span | None
    ) -> tuple[str, _Instance]:
        """The name of the copy of ``@name`` at these canonical arguments."""
        found = self.made.get((name, args))
        if found is None:
            instance = _instance(self.module.function(name), args, f"@{name}", parent, span, None)
            found = (self._name(name) if args else name, instance)
            self.made[name, args] = found
            self.todo.append(found)
        return found

    def _name(self, base: str) -> str:
        n = 1
        while f"{base}_{n}" in self.names:
            n += 1
        self.names.add(f"{base}_{n}")
        return f"{base}_{n}"


def type_params(params: Iterable[TypeParam]) -> list[TypeVar]:
    """The parameters that are specialised: all but the dims."""
    return [p for p in params if not isinstance(p, DimVar)]


def _plain_calls(fn: Function) -> dict[str, Span | None] | None:
    """The global functions that a function mentions; None when there is something to specialise in it."""
    out: dict[str, Span | None] = {}
    for node in post_order(fn.body):
        match node:
            case GlobalVar():
                out.setdefault(node.name, node.span)
                if isinstance(node.ty, FuncType) and type_params(node.ty.type_params):
                    return None
            case Function() if type_params(node.type_params):
                return None
            case _:
                pass
    return out


def _instance(
    fn: Function,
    args: tuple[TypeArg, ...],
    label: str,
    parent: _Instance | None,
    span: Span | None,
    around: _Instance | None,
) -> _Instance:
    """The copy of a function at canonical arguments for its type, shape and base-type parameters."""
    ancestor, nested = parent, 0
    while ancestor is not None:
        nested += ancestor.fn is fn and ancestor.around is around and ancestor.args != args
        ancestor = ancestor.parent
    if around is not None and nested:
        # The copies would have to see each other, which functions bound by `let` do not.
        raise TypeError_(f"{label} calls itself at other types ({_short(args)})", span, "make it a global function")
    if nested > _NESTED or (nested and _large(args)):
        raise TypeError_(
            f"{label} calls itself at ever new types (now {_short(args)}), which would need copies without end",
            span,
            "recursion at growing types cannot be compiled; use one algebraic type instead",
        )
    types = dict(around.types) if around else {}
    dims = dict(around.dims) if around else {}
    fresh = bool(args) or (around is not None and around.fresh)
    holes = dict.fromkeys(v for a in args for v in variables(a) if isinstance(v, DimVar))
    new = {v: DimVar(v.name) for v in holes}
    values = (map_type(a, lambda _: None, lambda v: as_dim(new[v])) for a in args)
    types.update(zip(type_params(fn.type_params), values, strict=True))
    own = [p for p in fn.type_params if isinstance(p, DimVar)]
    if fresh:
        renamed = {p: DimVar(p.name, p.lo, p.hi) for p in own}
        dims.update((p, as_dim(v)) for p, v in renamed.items())
        own = list(renamed.values())
    params = (*own, *new.values())
    assert isinstance(fn.ty, FuncType), "monomorphisation needs a typed module"
    mono = cast(FuncType, map_type(FuncType(fn.ty.params, fn.ty.ret), types.get, dims.get))
    ty = FuncType(mono.params, mono.ret, params)
    return _Instance(fn, types, dims, params, ty, args, parent, around, fresh)


def _large(args: Iterable[TypeArg]) -> bool:
    """Whether type arguments have more than `_PARTS` parts."""
    todo: list[TypeArg] = list(args)
    for _ in range(_PARTS):
        if not todo:
            return False
        match todo.pop():
            case TupleType() as t:
                todo += t.fields
            case FuncType() as t:
                todo += (*t.params, t.ret)
            case RefType() as t:
                todo.append(t.value)
            case AdtType() as t:
                todo += t.args
            case _:
                pass
    return True


def _short(args: Sequence[TypeArg]) -> str:
    if _large(args):
        return "a very large type"
    text = ", ".join(map(type_text, args))
    return text if len(text) <= 60 else text[:57] + "..."


# The variables that stand for symbolic dims in canonical type arguments.
_HOLES: list[DimVar] = []


def _hole(n: int) -> SymDim:
    while len(_HOLES) <= n:
        _HOLES.append(DimVar(f"d{len(_HOLES)}"))
    return as_dim(_HOLES[n])


def canonical(args: Iterable[TypeArg]) -> tuple[tuple[TypeArg, ...], tuple[Dim, ...]]:
    """Type arguments with each distinct symbolic dim replaced by a standard variable, and those dims in order."""
    dims: dict[Dim, SymDim] = {}

    def dim(d: Dim) -> Dim:
        return dims.setdefault(d, _hole(len(dims))) if isinstance(d, SymDim) else d

    def walk(t: TypeArg) -> TypeArg:
        match t:
            case tuple():
                return tuple(map(dim, t))
            case int() | SymDim() | AnyDim():
                return dim(t)
            case TensorType():
                return t if isinstance(t.shape, TypeVar) else TensorType(tuple(map(dim, t.shape)), t.dtype, t.device)
            case TupleType():
                return TupleType(tuple(cast(Type, walk(f)) for f in t.fields))
            case FuncType():
                params = tuple(cast(Type, walk(p)) for p in t.params)
                return t if t.type_params else FuncType(params, cast(Type, walk(t.ret)))
            case RefType():
                return RefType(cast(Type, walk(t.value)))
            case AdtType():
                return AdtType(t.name, tuple(map(walk, t.args)))
            case str() | TypeVar():
                return t
            case _:
                assert_never(t)

    return tuple(map(walk, args)), tuple(dims)


class _Copy:
    """The copying of one function: an `_Instance` at work. ``outer`` is the context of the function around it."""

    def __init__(self, mono: _Mono, instance: _Instance, outer: _Copy | None) -> None:
        self.mono = mono
        self.instance = instance
        self.outer = outer
        self.vars: dict[Var, Var] = {}
        self.locals: dict[Var, _Local] = {}
        self.nodes: dict[int, Expr] = {}
        self._types: dict[int, tuple[Type, Type]] = {}

    # -- types and variables

    def arg(self, t: TypeArg) -> TypeArg:
        return map_type(t, self.instance.types.get, self.instance.dims.get)

    def type(self, t: Type | None) -> Type | None:
        if t is None:
            return None
        found = self._types.get(id(t))
        if found is None:
            new = cast(Type, self.arg(t))
            if isinstance(new, FuncType) and new.type_params and new is not t:
                own = (
                    as_var(self.instance.dims[p]) if p in self.instance.dims else p
                    for p in new.type_params
                    if isinstance(p, DimVar)
                )
                new = FuncType(new.params, new.ret, tuple(p for p in own if p is not None), new.constraints)
            found = self._types[id(t)] = (t, new)
        return found[1]

    def bind(self, v: Var) -> Var:
        """The variable that a binder binds in the copy."""
        if not self.instance.fresh:
            self.vars[v] = v
            return v
        new = self.vars[v] = Var(v.name, self.type(v.annotation), self.type(v.ty), v.span)
        return new

    def var(self, v: Var) -> Var:
        context: _Copy | None = self
        while context is not None:
            found = context.vars.get(v)
            if found is not None:
                return found
            context = context.outer
        return v

    def local(self, v: Var) -> _Local | None:
        context: _Copy | None = self
        while context is not None:
            found = context.locals.get(v)
            if found is not None:
                return found
            context = context.outer
        return None

    # -- expressions

    def function(self, fn: Function) -> Step[Function]:
        """The copy of the instance's function."""
        params = tuple(map(self.bind, fn.params))
        body = yield self.expr(fn.body)
        ret = self.type(fn.ret_type)
        return Function(params, body, ret, self.instance.params, fn.attrs, (), self.instance.ty, fn.span)

    def expr(self, e: Expr) -> Step[Expr]:
        found = self.nodes.get(id(e))
        if found is not None:
            return found
        new: Expr
        match e:
            case Var():
                return self.var(e)
            case Constant() | OpRef():
                return e
            case ConstructorRef():
                return e
            case GlobalVar():
                name, instance = self.mono.instance(e.name, (), self.instance, e.span)
                new = e if e.ty == instance.ty else GlobalVar(name, instance.ty, e.span)
            case Call():
                new = yield from self._call(e)
            case Function():
                inner = _Copy(self.mono, self._nested(e, {}), self)
                new = yield inner.function(e)
            case Block():
                new = yield from self._block(e)
            case Match():
                data = yield self.expr(e.data)
                clauses: list[Clause] = []
                for c in e.clauses:
                    pattern = self._pattern(c.pattern)
                    clauses.append(Clause(pattern, (yield self.expr(c.body))))
                new = Match(data, tuple(clauses), e.complete, self.type(e.ty), e.span)
            case Tuple() | Proj() | If() | RefNew() | RefRead() | RefWrite() | Grad():
                kids: list[Expr] = []
                for kid in children(e):
                    kids.append((yield self.expr(kid)))
                new = rebuild(e, kids)
                if self.type(e.ty) is not e.ty:
                    new = replace(new, ty=self.type(e.ty))
            case _:
                assert_never(e)
        self.nodes[id(e)] = new
        return new

    def _nested(self, fn: Function, types: dict[TypeVar, TypeArg]) -> _Instance:
        """The instance of a function inside this one, at types in whose scope it stands."""
        outer = self.instance
        dims = dict(outer.dims)
        own = [p for p in fn.type_params if isinstance(p, DimVar)]
        if outer.fresh:
            renamed = {p: DimVar(p.name, p.lo, p.hi) for p in own}
            dims.update((p, as_dim(v)) for p, v in renamed.items())
            own = list(renamed.values())
        known = {**outer.types, **types}
        assert isinstance(fn.ty, FuncType), "monomorphisation needs a typed module"
        mono = cast(FuncType, map_type(FuncType(fn.ty.params, fn.ty.ret), known.get, dims.get))
        ty = FuncType(mono.params, mono.ret, tuple(own))
        return _Instance(fn, known, dims, tuple(own), ty, (), outer, outer, outer.fresh or bool(types))

    def _call(self, e: Call) -> Step[Expr]:
        fn = e.fn
        callee: Expr
        args: list[Expr] = []
        for a in e.args:
            args.append((yield self.expr(a)))
        type_args = tuple(map(self.arg, e.type_args))
        match fn:
            case GlobalVar():
                own, dims = _split(self.mono.module.function(fn.name).type_params, type_args)
                key, new = canonical(own)
                name, instance = self.mono.instance(fn.name, key, self.instance, e.span)
                callee = fn if fn.name == name and fn.ty == instance.ty else GlobalVar(name, instance.ty, fn.span)
                type_args = (*dims, *new)
            case Var() if (local := self.local(fn)) is not None:
                own, dims = _split(local.fn.type_params, type_args)
                key, new = canonical(own)
                callee, _ = local.instance(key, self.instance, e.span)
                type_args = (*dims, *new)
            case Function() if type_params(fn.type_params):
                own, dims = _split(fn.type_params, type_args)
                inner = self._nested(fn, dict(zip(type_params(fn.type_params), own, strict=True)))
                callee = yield _Copy(self.mono, inner, self).function(fn)
                type_args = dims
            case OpRef():
                t = self.type(fn.ty)
                callee = fn if t is fn.ty else OpRef(fn.name, t, fn.span)
            case _:
                callee = yield self.expr(fn)
        attrs = map_attrs(e.attrs, self.type, self.instance.dims.get)
        return Call(callee, tuple(args), attrs, type_args, self.type(e.ty), e.span)

    def _block(self, e: Block) -> Step[Expr]:
        bindings: list[Binding | _Local] = []
        for b in e.bindings:
            if isinstance(b.value, Function) and type_params(b.value.type_params):
                local = self.locals[b.var] = _Local(b.var, b.value, self)
                bindings.append(local)
            else:
                if isinstance(b.value, Function):
                    var = self.bind(b.var)  # it may refer to itself
                    bindings.append(Binding(var, (yield self.expr(b.value))))
                else:
                    value = yield self.expr(b.value)
                    bindings.append(Binding(self.bind(b.var), value))
        result = yield self.expr(e.result)
        out: list[Binding] = []
        # Later functions ask for copies of earlier ones, never the other way round.
        for item in reversed(bindings):
            if isinstance(item, Binding):
                out.append(item)
                continue
            copies: list[Binding] = []
            while item.todo:
                var, instance = item.todo.pop()
                copies.append(Binding(var, (yield _Copy(self.mono, instance, self).function(item.fn))))
            out.extend(copies)
        return Block(tuple(reversed(out)), result, self.type(e.ty), e.span)

    def _pattern(self, p: Pattern) -> Pattern:
        return rename_pattern(p, {v: self.bind(v) for v in pattern_vars(p)})


def _split(params: Sequence[TypeParam], args: Sequence[TypeArg]) -> tuple[tuple[TypeArg, ...], tuple[TypeArg, ...]]:
    """Type arguments for the specialised parameters, and those for the dims."""
    pairs = list(zip(params, args, strict=True))
    dims = tuple(a for p, a in pairs if isinstance(p, DimVar))
    return tuple(a for p, a in pairs if not isinstance(p, DimVar)), dims
