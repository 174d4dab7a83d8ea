"""Rebuilding a program with the types that inference found. Iterative; every node once, shared nodes stay shared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import assert_never, cast

from relay.ir.diagnostics import TypeError_
from relay.ir.dim import ANY, Dim, DimVar
from relay.ir.expr import (
    NO_ATTRS,
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
from relay.ir.record import record
from relay.ir.types import FuncType, Kind, TupleType, Type, TypeArg, TypeVar
from relay.ir.walk import children
from relay.typing.constraints import Inference
from relay.typing.gradients import cotangent_type, derivative_type
from relay.typing.substitution import map_type, param_arg


@record(slots=True, eq=False)
class Annotator:
    """Builds typed nodes from a finished `Inference`.

    Unknowns that nothing depends on are filled in: the empty tuple for a type, ``?`` for a dim."""

    done: Inference
    _nodes: dict[int, Expr] = field(default_factory=dict)
    _vars: dict[Var, Var] = field(default_factory=dict)
    _types: dict[int, tuple[Type, Type]] = field(default_factory=dict)
    _same: dict[Type, Type] = field(default_factory=dict)
    _refs: dict[tuple[str, FuncType], OpRef] = field(default_factory=dict)

    # -- types

    def _type_of(self, v: TypeVar) -> TypeArg | None:
        if not v.flexible:
            return None
        found = self.done.solver.types.get(v)
        if found is None:
            return _DEFAULTS[v.kind]
        solved = map_type(found, self._type_of, self._dim_of)
        self.done.solver.types[v] = solved
        return solved

    def _dim_of(self, v: DimVar) -> Dim | None:
        if v not in self.done.solver.unknown_dims:
            return None
        found = self.done.solver.dims.get(v, ANY)
        solved = cast(Dim, map_type(found, self._type_of, self._dim_of))
        self.done.solver.dims[v] = solved
        return solved

    def arg(self, t: TypeArg) -> TypeArg:
        """A type argument with every unknown replaced."""
        return map_type(t, self._type_of, self._dim_of)

    def type(self, t: Type) -> Type:
        """A type with every unknown replaced; equal types become one object."""
        found = self._types.get(id(t))
        if found is None:
            solved = cast(Type, self.arg(t))
            found = self._types[id(t)] = (t, self._same.setdefault(solved, solved))
        return found[1]

    # -- nodes

    def var(self, v: Var) -> Var:
        """The typed variable that stands for one (the same where it had that type already)."""
        found = self._vars.get(v)
        if found is None:
            t = self.done.vars[v]
            solved = self.type(t)
            annotation = v.annotation if v.annotation is None else self.type(v.annotation)
            if annotation is None and v in self.done.annotate:
                annotation = solved
            elif annotation == v.annotation:
                annotation = v.annotation
            same = annotation is v.annotation and (v.ty is solved or v.ty == solved)
            found = v if same else Var(v.name, annotation, solved, v.span)
            self._vars[v] = found
        return found

    def expr(self, root: Expr, parent: Expr | None = None, index: int = 0) -> Expr:
        """The typed expression. ``parent`` and ``index``: where the root stands, for a root that is an atom."""
        nodes = self._nodes
        todo: list[tuple[Expr, bool]] = [(root, False)]
        while todo:
            node, ready = todo.pop()
            if ready:
                nodes[id(node)] = self._build(node)
            elif id(node) not in nodes and type(node) not in _LEAVES:
                todo.append((node, True))
                for kid in children(node):
                    if type(kid) not in _LEAVES and id(kid) not in nodes:
                        todo.append((kid, False))
        return nodes[id(root)] if parent is None else self._child(root, parent, index)

    def _child(self, e: Expr, parent: Expr, index: int) -> Expr:
        """A child as a plain value at its place."""
        if self.done.expansions:
            expansion = self.done.expansions.get((id(parent), index))
            if expansion is not None:
                return self._expand(e, parent, index, *expansion)
        if type(e) is Var:
            return self.var(e)
        found = self._nodes.get(id(e))
        return self._leaf(e) if found is None else found

    def _leaf(self, e: Expr) -> Expr:
        match e:
            case GlobalVar():
                t = self.type(self.done.globals[e.name])
                new: Expr = e if e.ty == t else GlobalVar(e.name, t, e.span)
            case Constant():
                t = self.done.types[id(e)]
                new = e if e.ty == t else Constant(e.data, e.dtype, t, e.span)
            case ConstructorRef():
                t = self.done.constructor(e.name, e.span)
                new = e if e.ty == t else ConstructorRef(e.name, t, e.span)
            case _:
                raise AssertionError(f"not a leaf that stands alone: {e}")
        self._nodes[id(e)] = new
        return new

    def _expand(self, e: Expr, parent: Expr, index: int, args: tuple[TypeArg, ...], mono: FuncType) -> Expr:
        """A polymorphic function or an operator as a value: a function of the type it has here that calls it."""
        t = cast(FuncType, self.type(FuncType(mono.params, mono.ret)))
        callee: Expr
        if isinstance(e, OpRef):
            callee = self._operator(e, t)
        elif isinstance(e, Var):
            callee = self.var(e)
        else:
            callee = self._nodes.get(id(e)) or self._leaf(e)
        type_args = tuple(map(self.arg, args))
        if isinstance(e, ConstructorRef) and not t.params:
            return Call(callee, (), NO_ATTRS, type_args, t.ret, e.span)
        params = tuple(Var(f"x{n}", p, p) for n, p in enumerate(t.params))
        new = self.done.alias_params.get((id(parent), index), ())
        span = getattr(e, "span", None)
        body = Call(callee, params, NO_ATTRS, type_args, t.ret, span)
        ty = FuncType(t.params, t.ret, new) if new else t
        return Function(params, body, t.ret, new, ty=ty, span=span)

    def _operator(self, e: OpRef, t: FuncType) -> OpRef:
        key = (e.name, t)
        found = self._refs.get(key)
        if found is None:
            found = self._refs[key] = e if e.ty == t else OpRef(e.name, t, e.span)
        return found

    def _build(self, e: Expr) -> Expr:
        child = self._child
        t = self.type(self.done.types[id(e)])
        match e:
            case Call():
                return self._call(e, t)
            case Function():
                return self.function(e, t)
            case Block():
                bindings = tuple(Binding(self.var(b.var), child(b.value, e, n)) for n, b in enumerate(e.bindings))
                return Block(bindings, child(e.result, e, len(bindings)), t, e.span)
            case Tuple():
                return Tuple(tuple(child(f, e, n) for n, f in enumerate(e.fields)), t, e.span)
            case Proj():
                return Proj(child(e.tuple, e, 0), e.index, t, e.span)
            case If():
                return If(child(e.cond, e, 0), child(e.then, e, 1), child(e.orelse, e, 2), t, e.span)
            case Match():
                clauses = tuple(
                    Clause(self.pattern(c.pattern), child(c.body, e, n)) for n, c in enumerate(e.clauses, 1)
                )
                return Match(child(e.data, e, 0), clauses, e.complete, t, e.span)
            case RefNew():
                return RefNew(child(e.value, e, 0), t, e.span)
            case RefRead():
                return RefRead(child(e.ref, e, 0), t, e.span)
            case RefWrite():
                return RefWrite(child(e.ref, e, 0), child(e.value, e, 1), t, e.span)
            case Grad():
                return self._gradient(child(e.fn, e, 0), e, t)
            case Var() | GlobalVar() | Constant() | OpRef() | ConstructorRef():
                raise AssertionError("atoms are typed where they stand")
            case _:
                assert_never(e)

    @staticmethod
    def _gradient(fn: Expr, e: Grad, t: Type) -> Grad:
        # What was a type variable when the rule was applied may have turned out to be a function or a reference.
        if isinstance(fn.ty, FuncType) and isinstance(t, FuncType):
            late = [p for p in (*fn.ty.params, fn.ty.ret) if cotangent_type(p) != p]
            if late and derivative_type(fn.ty, e.forward) != t:
                raise TypeError_(
                    "what the function under grad takes and gives is known too late", e.span, "annotate its types"
                )
        return Grad(fn, t, e.span, e.forward)

    def _call(self, e: Call, t: Type) -> Call:
        args = tuple(self._child(a, e, n) for n, a in enumerate(e.args, 1))
        fn = e.fn
        type_args: tuple[TypeArg, ...] = ()
        callee: Expr
        match fn:
            case OpRef():
                callee = self._operator(fn, FuncType(tuple(cast(Type, a.ty) for a in args), t))
            case Var():
                callee = self.var(fn)
            case _:
                callee = self._nodes.get(id(fn)) or self._leaf(fn)
        if not isinstance(fn, OpRef):
            given = self.done.call_args.get(id(e))
            if given is not None:
                type_args = tuple(map(self.arg, given))
            elif isinstance(callee.ty, FuncType):
                # A call from inside the function itself, or from one inferred together with it: at its own parameters.
                type_args = tuple(map(param_arg, callee.ty.type_params))
        return Call(callee, args, e.attrs, type_args, t, e.span)

    def function(self, e: Function, t: Type) -> Function:
        """A typed function. One that was generalised is annotated: its types stay tied to its type parameters."""
        new = self.done.generalised.get(id(e), ())
        params = tuple(map(self.var, e.params))
        ret = e.ret_type if e.ret_type is None else self.type(e.ret_type)
        if new:
            ret = cast(FuncType, t).ret
        body = self._child(e.body, e, 0)
        return Function(params, body, ret, (*e.type_params, *new), e.attrs, e.constraints, t, e.span)

    def pattern(self, root: Pattern) -> Pattern:
        """A pattern over typed variables."""
        match root:
            case PVar():
                return PVar(self.var(root.var), root.span)
            case PConstructor():
                return PConstructor(root.name, tuple(map(self.pattern, root.fields)), root.span)
            case PTuple():
                return PTuple(tuple(map(self.pattern, root.fields)), root.span)
            case PWild():
                return root
            case _:
                assert_never(root)


_LEAVES = frozenset({Var, GlobalVar, Constant, OpRef, ConstructorRef})
_DEFAULTS: Mapping[Kind, TypeArg] = {
    Kind.TYPE: TupleType(()),
    Kind.SHAPE: (),
    Kind.BASE_TYPE: "float32",
}
