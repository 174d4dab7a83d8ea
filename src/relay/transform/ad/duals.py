"""What differentiation makes of types, and of the definitions of algebraic types.

In reverse mode a floating-point tensor becomes a pair of itself and a reference to its cotangent, a function also
returns its backpropagator (Roesch 2020, figure 4.1: ADType); in forward mode the tensor's companion is its tangent.
Everything else keeps its structure; what has no floating-point tensor and no function in it stays as it is. An
algebraic type whose own fields change gets a second definition; ``List[A]`` is lifted by its argument alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import field
from typing import assert_never, cast

from relay.ir.dim import AnyDim, SymDim
from relay.ir.record import record
from relay.ir.types import (
    AdtType,
    ConstructorDef,
    FuncType,
    Kind,
    RefType,
    TensorType,
    TupleType,
    Type,
    TypeArg,
    TypeDef,
    TypeVar,
    is_float,
)  # fmt: skip
from relay.transform.ad.terms import BACK
from relay.typing.mentions import mentioned
from relay.typing.substitution import substitute

_A = TypeVar("A")
# The cotangent of a value so far: nothing, or a sum. So no tensor of zeros is made where nothing arrives.
COTANGENT = TypeDef(
    "ad.Cotangent",
    (_A,),
    (
        ConstructorDef("ad.Zero", (), "ad.Cotangent", 0),
        ConstructorDef("ad.Sum", (_A,), "ad.Cotangent", 1),
    ),
)
ZERO, SUM = "ad.Zero", "ad.Sum"

# A definition at its base-type arguments, which decide what its tensors become.
_Key = tuple[str, tuple[TypeArg, ...]]


def differentiable(t: Type) -> bool:
    """Whether a tensor of this type has a derivative. A base-type parameter stands for floating-point types."""
    return isinstance(t, TensorType) and (isinstance(t.dtype, TypeVar) or is_float(t.dtype))


def cotangent_ref(t: Type) -> RefType:
    return RefType(AdtType(COTANGENT.name, (t,)))


@record(slots=True, eq=False)
class Lifting(ABC):
    """Types lifted for one mode. ``definitions`` are those of the module, with the ones made here."""

    definitions: dict[str, TypeDef]
    _types: dict[TypeArg, TypeArg] = field(default_factory=dict, init=False)
    _changed: dict[_Key, bool] = field(default_factory=dict, init=False)
    _lifted: dict[_Key, str] = field(default_factory=dict, init=False)
    # Algebraic types that stand for functions, and those whose values hold lifted content already (`cells`).
    functions: set[str] = field(default_factory=set)
    cells: set[str] = field(default_factory=set)

    prefix = ""
    # Whether every function type changes.
    functions_change = False

    @abstractmethod
    def companion(self, t: TensorType) -> Type:
        """The type of what goes with a differentiable tensor."""

    @abstractmethod
    def result(self, t: Type) -> Type:
        """What a function returns whose lifted result is ``t``."""

    def type(self, t: Type) -> Type:
        """The lifted type."""
        return cast(Type, self.arg(t))

    def arg(self, t: TypeArg) -> TypeArg:
        """A type argument lifted: types are, shapes, dims and base types stay."""
        found = self._types.get(t)
        if found is None:
            found = self._types[t] = self._lift(t)
        return found

    def changes(self, t: Type) -> bool:
        return self.type(t) != t

    def concerns(self, t: Type) -> bool:
        """Whether something in a value of this type can depend on what the derivative is taken for."""
        if self.changes(t):
            return True
        if not self.cells:
            return False
        return any(isinstance(p, AdtType) and p.name in self.cells for p in mentioned(t, self.definitions))

    def _lift(self, t: TypeArg) -> TypeArg:
        match t:
            case TensorType():
                return TupleType((t, self.companion(t))) if differentiable(t) else t
            case TupleType():
                return TupleType(tuple(map(self.type, t.fields)))
            case FuncType():
                params, ret = tuple(map(self.type, t.params)), self.type(t.ret)
                return FuncType(params, self.result(ret), t.type_params, t.constraints)
            case RefType():
                return RefType(self.type(t.value))
            case AdtType():
                return self._adt(t)
            case TypeVar() | int() | SymDim() | AnyDim() | str() | tuple():
                return t
            case _:
                assert_never(t)

    # -- algebraic types

    def key(self, t: AdtType) -> _Key:
        """The definition of a type, at its base-type arguments."""
        definition = self.definitions[t.name]
        base = (a for p, a in zip(definition.params, t.args, strict=True) if _is_base(p))
        return t.name, tuple(base)

    def _adt(self, t: AdtType) -> AdtType:
        if t.name in self.cells:
            return t
        key = self.key(t)
        if not self._changes(key):
            return AdtType(t.name, tuple(map(self.arg, t.args)))
        params = self.definitions[t.name].params
        kept = (a for p, a in zip(params, t.args, strict=True) if not _is_base(p))
        return AdtType(self.definition(t).name, tuple(map(self.arg, kept)))

    def definition(self, t: AdtType) -> TypeDef:
        """The definition of the lifted type of ``t``."""
        key = self.key(t)
        if not self._changes(key):
            return self.definitions[t.name]
        name = self._lifted.get(key)
        if name is None:
            name = self._define(key)
        return self.definitions[name]

    def constructor(self, t: AdtType, name: str) -> str:
        """The constructor of the lifted type that a constructor of ``t`` becomes."""
        source = self.definitions[t.name]
        tag = next(c.tag for c in source.constructors if c.name == name)
        return self.definition(t).constructors[tag].name

    def fields(self, t: AdtType, name: str) -> tuple[Type, ...]:
        """The types of a constructor's fields in a value of type ``t``."""
        definition = self.definitions[t.name]
        found = next(c for c in definition.constructors if c.name == name)
        return tuple(cast(Type, substitute(f, definition.params, t.args)) for f in found.fields)

    def _define(self, key: _Key) -> str:
        source, fields = self.definitions[key[0]], self._fields(key)
        suffix = "".join(f".{a}" for a in key[1] if isinstance(a, str))
        while f"{self.prefix}.{source.name}{suffix}" in self.definitions:
            suffix += "_"
        name = self._lifted[key] = f"{self.prefix}.{source.name}{suffix}"
        if key[0] in self.functions:
            self.functions.add(name)
        params = tuple(p for p in source.params if not _is_base(p))
        # The fields mention the definition itself, so it must be there, by name, before they are lifted.
        self.definitions[name] = TypeDef(name, params, ())
        constructors = tuple(
            ConstructorDef(f"{self.prefix}.{c.name}{suffix}", tuple(map(self.type, given)), name, c.tag)
            for c, given in zip(source.constructors, fields, strict=True)
        )
        self.definitions[name] = TypeDef(name, params, constructors, source.extern)
        return name

    def _fields(self, key: _Key) -> list[tuple[Type, ...]]:
        """The fields of each constructor, base-type parameters replaced."""
        source = self.definitions[key[0]]
        base = tuple(p for p in source.params if _is_base(p))
        return [tuple(cast(Type, substitute(f, base, key[1])) for f in c.fields) for c in source.constructors]

    def _changes(self, key: _Key) -> bool:
        """Whether a definition that this one is made of has a field that changes of itself."""
        found = self._changed.get(key)
        if found is None:
            seen, todo = {key}, [key]
            found = False
            while todo and not found:
                for part in self._parts(todo.pop()):
                    match part:
                        case TensorType():
                            found = found or differentiable(part)
                        case FuncType():
                            found = found or self.functions_change
                        case AdtType() if part.name not in self.cells and self.key(part) not in seen:
                            seen.add(self.key(part))
                            todo.append(self.key(part))
            self._changed[key] = found
        return found

    def _parts(self, key: _Key) -> Iterator[Type]:
        """Every type inside the fields of a definition."""
        todo: list[TypeArg] = [f for fields in self._fields(key) for f in fields]
        while todo:
            t = todo.pop()
            match t:
                case TensorType():
                    yield t
                case TupleType():
                    todo.extend(t.fields)
                case FuncType():
                    yield t
                    todo.extend((*t.params, t.ret))
                case RefType():
                    todo.append(t.value)
                case AdtType():
                    yield t
                    todo.extend(t.args)
                case _:
                    pass


def _is_base(param: object) -> bool:
    return isinstance(param, TypeVar) and param.kind is Kind.BASE_TYPE


class ReverseLifting(Lifting):
    """A tensor's companion is a reference to its cotangent; a function also returns its backpropagator."""

    prefix = "ad"
    functions_change = True

    def companion(self, t: TensorType) -> Type:
        return cotangent_ref(t)

    def result(self, t: Type) -> Type:
        return TupleType((t, BACK))


class ForwardLifting(Lifting):
    """A tensor's companion is its tangent."""

    prefix = "dual"

    def companion(self, t: TensorType) -> Type:
        return t

    def result(self, t: Type) -> Type:
        return t
