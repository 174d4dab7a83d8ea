"""Walking and rebuilding types: the one map over types, and the variables of a type.

Types nest as deeply as a person writes them, not as deeply as a program is long, so these recurse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import assert_never, cast

from relay.ir.dim import AnyDim, Dim, DimVar, SymDim, as_dim, as_var, attribute_size, dim_substitute, dim_vars
from relay.ir.expr import Attr, Attrs
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
    TypeParam,
    TypeVar,
)

TypeOf = Callable[[TypeVar], TypeArg | None]
DimOf = Callable[[DimVar], Dim | None]


def map_type(t: TypeArg, type_of: TypeOf, dim_of: DimOf) -> TypeArg:
    """Replace variables (None keeps one), those that function types bind as well, by other variables. The same object when nothing
    changed."""
    match t:
        case TupleType() | FuncType() | RefType() | AdtType() if t.closed:
            return t
        case TensorType():
            shape = t.shape
            if isinstance(shape, tuple):
                new_shape: TypeArg = _map_shape(shape, dim_of)
            else:
                found = type_of(shape)
                new_shape = shape if found is None else found
            dtype: TypeArg = t.dtype
            if isinstance(dtype, TypeVar):
                found = type_of(dtype)
                dtype = dtype if found is None else found
            if new_shape is shape and dtype is t.dtype:
                return t
            return TensorType(cast(Shape, new_shape), cast(BaseType, dtype), t.device)
        case TypeVar():
            found = type_of(t)
            return t if found is None else found
        case int() | AnyDim() | str():
            return t
        case SymDim():
            return dim_substitute(t, dim_of)
        case tuple():
            return _map_shape(t, dim_of)
        case TupleType():
            fields = _map_all(t.fields, type_of, dim_of)
            return t if fields is t.fields else TupleType(cast("tuple[Type, ...]", fields))
        case FuncType():
            params = _map_all(t.params, type_of, dim_of)
            ret = map_type(t.ret, type_of, dim_of)
            constraints = tuple(map_relation(c, type_of, dim_of) for c in t.constraints)
            if (
                params is t.params
                and ret is t.ret
                and all(a is b for a, b in zip(constraints, t.constraints, strict=True))
            ):
                return t
            own = renamed(t.type_params, type_of, dim_of)
            return FuncType(cast("tuple[Type, ...]", params), cast(Type, ret), own, constraints)
        case RefType():
            value = map_type(t.value, type_of, dim_of)
            return t if value is t.value else RefType(cast(Type, value))
        case AdtType():
            args = _map_all(t.args, type_of, dim_of)
            return t if args is t.args else AdtType(t.name, args)
        case _:
            assert_never(t)


def renamed(params: tuple[TypeParam, ...], type_of: TypeOf, dim_of: DimOf) -> tuple[TypeParam, ...]:
    """Parameters as the variables that stand for them; one that becomes something else stays."""
    out: list[TypeParam] = []
    for p in params:
        new = as_var(dim_of(p) or 0) if isinstance(p, DimVar) else type_of(p)
        out.append(new if isinstance(new, DimVar | TypeVar) else p)
    return tuple(out)


def map_relation(relation: Relation, type_of: TypeOf, dim_of: DimOf) -> Relation:
    """`map_type` on the arguments of a constraint."""
    args = _map_all(relation.args, type_of, dim_of)
    return relation if args is relation.args else Relation(relation.name, args, relation.attrs)


def _map_shape(shape: tuple[Dim, ...], dim_of: DimOf) -> tuple[Dim, ...]:
    for dim in shape:
        if isinstance(dim, SymDim):
            new = tuple(dim_substitute(d, dim_of) for d in shape)
            return shape if all(a is b for a, b in zip(new, shape, strict=True)) else new
    return shape


def _map_all(items: tuple[TypeArg, ...], type_of: TypeOf, dim_of: DimOf) -> tuple[TypeArg, ...]:
    new = tuple(map_type(i, type_of, dim_of) for i in items)
    return items if all(a is b for a, b in zip(new, items, strict=True)) else new


def substitute(t: TypeArg, params: Iterable[TypeParam], args: Iterable[TypeArg]) -> TypeArg:
    """``t`` with each parameter replaced by its argument (a dim parameter by a dim)."""
    types: dict[TypeVar, TypeArg] = {}
    dims: dict[DimVar, Dim] = {}
    for p, a in zip(params, args, strict=True):
        if isinstance(p, DimVar):
            dims[p] = cast(Dim, a)
        else:
            types[p] = a
    return map_type(t, types.get, dims.get)


def param_arg(p: TypeParam) -> TypeArg:
    """A parameter as an argument: itself."""
    return as_dim(p) if isinstance(p, DimVar) else p


def variables(t: TypeArg) -> Iterator[TypeParam]:
    """Every type and dim variable that occurs, in order of occurrence, repetitions included; bound parameters too."""
    todo: list[TypeArg] = [t]
    while todo:
        now = todo.pop()
        match now:
            case TensorType():
                if isinstance(now.dtype, TypeVar):
                    todo.append(now.dtype)
                todo.append(now.shape)
            case TupleType() | FuncType() | RefType() | AdtType() if now.closed:
                pass
            case TypeVar():
                yield now
            case int() | AnyDim() | str():
                pass
            case SymDim():
                yield from dim_vars(now)
            case tuple():
                for dim in now:
                    if isinstance(dim, SymDim):
                        yield from dim_vars(dim)
            case TupleType():
                todo.extend(reversed(now.fields))
            case FuncType():
                todo.append(now.ret)
                todo.extend(reversed(now.params))
            case RefType():
                todo.append(now.value)
            case AdtType():
                todo.extend(reversed(now.args))
            case _:
                assert_never(now)


def free_variables(t: TypeArg) -> list[TypeParam]:
    """The variables of ``t`` that belong to no function type in it, each once, in order of occurrence."""
    out: dict[TypeParam, None] = {}
    todo: list[tuple[TypeArg, frozenset[TypeParam]]] = [(t, frozenset())]
    while todo:
        now, inner = todo.pop()
        match now:
            case TupleType() | FuncType() | RefType() | AdtType() if now.closed:
                pass
            case FuncType():
                todo += [(part, inner.union(now.type_params)) for part in (now.ret, *reversed(now.params))]
            case TupleType():
                todo += [(part, inner) for part in reversed(now.fields)]
            case RefType():
                todo.append((now.value, inner))
            case AdtType():
                todo += [(part, inner) for part in reversed(now.args)]
            case _:
                out.update((v, None) for v in variables(now) if v not in inner)
    return list(out)


def map_attrs(attrs: Attrs, types: Callable[[Type | None], Type | None], dims: Callable[[DimVar], Dim | None]) -> Attrs:
    """Attributes with the types and the dims in their values mapped; the same object when nothing changed."""
    if not attrs:
        return attrs
    new = {k: _map_attr(v, types, dims) for k, v in attrs.items()}
    return attrs if all(new[k] is v for k, v in attrs.items()) else new


def _map_attr(value: Attr, types: Callable[[Type | None], Type | None], dims: Callable[[DimVar], Dim | None]) -> Attr:
    match value:
        case SymDim():
            return cast(Attr, attribute_size(dim_substitute(value, dims)))
        case tuple():
            new = tuple(_map_attr(v, types, dims) for v in value)
            return value if all(a is b for a, b in zip(new, value, strict=True)) else new
        case TensorType() | TupleType() | FuncType() | RefType() | AdtType():
            return types(value)
        case Mapping():
            return map_attrs(value, types, dims)
        case _:
            return value


def map_dims(t: Type, dim: Callable[[Dim], Dim], generic: bool = True) -> Type:
    """The type with every dim in it mapped, in order; functions keep their parameters for types and dims only if ``generic``."""

    def argument(a: TypeArg) -> TypeArg:
        match a:
            case str():
                return a
            case tuple():
                return tuple(map(dim, a))
            case TensorType() | TupleType() | FuncType() | RefType() | AdtType() | TypeVar():
                return map_dims(a, dim, generic)
            case _:
                return dim(a)

    match t:
        case TensorType(shape=tuple() as shape):
            return TensorType(tuple(map(dim, shape)), t.dtype, t.device)
        case TupleType():
            return TupleType(tuple(map_dims(f, dim, generic) for f in t.fields))
        case FuncType():
            params, ret = tuple(map_dims(p, dim, generic) for p in t.params), map_dims(t.ret, dim, generic)
            return FuncType(params, ret, t.type_params, t.constraints) if generic else FuncType(params, ret)
        case RefType():
            return RefType(map_dims(t.value, dim, generic))
        case AdtType():
            return AdtType(t.name, tuple(map(argument, t.args)))
        case _:
            return t
