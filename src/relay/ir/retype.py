"""Replacing type and dimension variables throughout a program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from relay.ir.dim import AnyDim, Dim, DimVar, SymDim, attribute_size, dim_substitute
from relay.ir.expr import (
    Attr,
    Attrs,
    Binding,
    Block,
    Call,
    Clause,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    Match,
    OpRef,
    Var,
)  # fmt: skip
from relay.ir.types import (
    AdtType,
    BaseType,
    FuncType,
    RefType,
    Relation,
    Shape,
    TensorType,
    TupleType,
    Type,
    TypeArg,
    TypeVar,
)  # fmt: skip
from relay.ir.walk import bound_vars, post_order, rename_pattern, rewrite

TypeMap = Mapping[TypeVar | DimVar, TypeArg]


class Substitution:
    """Types with variables replaced; the same object where nothing changed."""

    def __init__(self, mapping: TypeMap) -> None:
        self.mapping = mapping
        self._types: dict[Type, Type] = {}

    def dim(self, dim: Dim) -> Dim:
        def value(v: DimVar) -> Dim | None:
            found = self.mapping.get(v)
            return found if isinstance(found, int | SymDim | AnyDim) else None

        return dim_substitute(dim, value)

    def shape(self, shape: Shape) -> Shape:
        if isinstance(shape, TypeVar):
            found = self.mapping.get(shape)
            return found if isinstance(found, TypeVar | tuple) else shape
        new = tuple(self.dim(d) for d in shape)
        return shape if all(a is b for a, b in zip(shape, new, strict=True)) else new

    def base(self, base: BaseType) -> BaseType:
        found = self.mapping.get(base) if isinstance(base, TypeVar) else None
        return found if isinstance(found, TypeVar | str) else base

    def argument(self, arg: TypeArg) -> TypeArg:
        match arg:
            case str():
                return arg
            case int() | SymDim() | AnyDim():
                return self.dim(arg)
            case tuple():
                return self.shape(arg)
            case TypeVar():
                return self.mapping.get(arg, arg)
            case _:
                return self.type(arg)

    def type(self, t: Type) -> Type:
        found = self._types.get(t)
        if found is None:
            found = self._types[t] = self._type(t)
        return found

    def _type(self, t: Type) -> Type:
        match t:
            case TensorType():
                return TensorType(self.shape(t.shape), self.base(t.dtype), t.device)
            case TupleType():
                return TupleType(tuple(map(self.type, t.fields)))
            case FuncType():
                return FuncType(
                    tuple(map(self.type, t.params)), self.type(t.ret), t.type_params, self.relations(t.constraints)
                )
            case RefType():
                return RefType(self.type(t.value))
            case AdtType():
                return AdtType(t.name, tuple(map(self.argument, t.args)))
            case TypeVar():
                found = self.mapping.get(t, t)
                return t if isinstance(found, int | str | tuple | SymDim | AnyDim) else found

    def optional(self, t: Type | None) -> Type | None:
        return None if t is None else self.type(t)

    def signature(self, t: Type | None) -> Type | None:
        """The type of what is called by its name: a function of the module, an operator, a constructor."""
        return self.optional(t)

    def relations(self, relations: tuple[Relation, ...]) -> tuple[Relation, ...]:
        return tuple(Relation(r.name, tuple(map(self.argument, r.args)), r.attrs) for r in relations)

    def attr(self, value: Attr) -> Attr:
        match value:
            case SymDim():
                return attribute_size(self.dim(value))
            case tuple():
                return tuple(map(self.attr, value))
            case Mapping():
                return {k: self.attr(v) for k, v in value.items()}
            case TensorType() | TupleType() | FuncType() | RefType() | AdtType() | TypeVar():
                return self.type(value)
            case _:
                return value

    def attrs(self, attrs: Attrs) -> Attrs:
        return {k: self.attr(v) for k, v in attrs.items()} if attrs else attrs


def substitute_types(root: Expr, mapping: TypeMap) -> Expr:
    """A copy with type and dimension variables replaced in every annotation, type and attribute, and with new bound variables.

    Parameters of functions that ``mapping`` replaces are no longer parameters. Free variables are kept.
    """
    return retyped(root, Substitution(mapping))


def retyped(root: Expr, types: Substitution) -> Expr:
    """A copy with every annotation, type and attribute mapped, and with new bound variables. Free variables are kept."""
    fresh: dict[Var, Var] = {}
    for node in post_order(root):
        for v in bound_vars(node):
            fresh[v] = Var(v.name, types.optional(v.annotation), types.optional(v.ty), v.span)

    def visit(e: Expr) -> Expr:
        match e:
            case Var():
                return fresh.get(e, e)
            case Function():
                return Function(
                    tuple(fresh[p] for p in e.params), e.body, types.optional(e.ret_type),
                    tuple(p for p in e.type_params if p not in types.mapping), types.attrs(e.attrs), types.relations(e.constraints),
                    types.signature(e.ty), e.span,
                )  # fmt: skip
            case Block():
                bindings = tuple(Binding(fresh[b.var], b.value) for b in e.bindings)
                return Block(bindings, e.result, types.optional(e.ty), e.span)
            case Match():
                clauses = tuple(Clause(rename_pattern(c.pattern, fresh), c.body) for c in e.clauses)
                return Match(e.data, clauses, e.complete, types.optional(e.ty), e.span)
            case Call():
                args = tuple(map(types.argument, e.type_args))
                return Call(e.fn, e.args, types.attrs(e.attrs), args, types.optional(e.ty), e.span)
            case GlobalVar() | OpRef() | ConstructorRef():
                return e if e.ty is None else replace(e, ty=types.signature(e.ty))
            case _:
                return e if e.ty is None else replace(e, ty=types.type(e.ty))

    return rewrite(root, visit)
