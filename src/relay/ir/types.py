"""The types of the language, on a page.

Types are immutable and compare structurally; type variables and dimension variables compare by identity (alpha-equality
of polymorphic function types is `relay.ir.equality`). A base type is its name (``"float32"``, ``"int4"``, ``"float32x4"``
with lanes) or a type variable of kind BaseType.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import Enum

from relay.ir.diagnostics import TypeError_
from relay.ir.dim import Dim, DimVar, SymDim, is_any
from relay.ir.record import record

_serial = itertools.count()


class Kind(Enum):
    """The papers' kinds. A dimension parameter is a `DimVar`, whose kind is Dim."""

    TYPE = "Type"
    SHAPE = "Shape"
    BASE_TYPE = "BaseType"
    CONSTRAINT = "Constraint"
    ADT = "ADT"
    DIM = "Dim"


@record(frozen=True, slots=True, eq=False)
class TypeVar:
    """A type, shape or base-type variable: a parameter (rigid), or an unknown of inference (``flexible``)."""

    name: str
    kind: Kind = Kind.TYPE
    flexible: bool = False
    serial: int = field(default_factory=lambda: next(_serial))

    def __repr__(self) -> str:
        return f"{'?' if self.flexible else ''}{self.name}#{self.serial}"


BaseType = str | TypeVar
Shape = tuple[Dim, ...] | TypeVar
TypeParam = TypeVar | DimVar


@record(frozen=True, slots=True)
class TensorType:
    """A tensor of a shape and a base type. Rank 0 is a scalar. ``device`` is None where placement has not been decided."""

    shape: Shape
    dtype: BaseType
    device: str | None = None


# How many tensors a type may mention, one that stands in it twice counted twice: what reads a type goes over all of it, and tuples become
# one value for each of their tensors.
MOST_PARTS = 1 << 17


class LargeType(TypeError_):
    """A type of more than `MOST_PARTS` tensors."""


class _Compound:
    """A type made of others. Its size, its hash and whether variables stand in it are found once: a type that ``%b = (%a, %a)`` makes of
    itself again and again is a large one of few objects."""

    __slots__ = ("_closed", "_hash", "_parts")

    _closed: bool
    _hash: int
    _parts: int

    def _inside(self) -> Sequence[TypeArg]:
        raise NotImplementedError

    def _values(self) -> tuple[object, ...]:
        raise NotImplementedError

    def __post_init__(self) -> None:
        parts = 0
        for t in self._inside():
            parts += t._parts if isinstance(t, _Compound) else 1
        self._parts = parts
        if parts > MOST_PARTS:
            raise LargeType(
                f"a type of more than {MOST_PARTS} parts, where one that stands in it twice counts twice",
                hint="a tuple of a tuple with itself doubles; keep one of them, or name parts by a type definition",
            )

    @property
    def closed(self) -> bool:
        """Whether no variable stands in it, of types or of dims, and no function in it has parameters for them."""
        try:
            return self._closed
        except AttributeError:
            self._closed = found = self._without_variables()
            return found

    def _without_variables(self) -> bool:
        return all(map(is_closed, self._inside()))

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = found = hash(self._values())
            return found

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if other.__class__ is not self.__class__:
            return NotImplemented
        return hash(self) == hash(other) and self._values() == other._values()

    def __reduce__(self) -> tuple[object, ...]:
        # The hash is that of names and variables in this process.
        return type(self), self._values()


@record(frozen=True, slots=True, eq=False)
class TupleType(_Compound):
    fields: tuple[Type, ...]

    def _inside(self) -> tuple[Type, ...]:
        return self.fields

    def _values(self) -> tuple[object, ...]:
        return (self.fields,)


@record(frozen=True, slots=True, eq=False)
class FuncType(_Compound):
    """``fn[type_params](params) -> ret where constraints``."""

    params: tuple[Type, ...]
    ret: Type
    type_params: tuple[TypeParam, ...] = ()
    constraints: tuple[Relation, ...] = ()

    def _inside(self) -> tuple[Type, ...]:
        return (*self.params, self.ret)

    def _values(self) -> tuple[object, ...]:
        return (self.params, self.ret, self.type_params, self.constraints)

    def _without_variables(self) -> bool:
        return not self.type_params and not self.constraints and all(map(is_closed, self._inside()))


@record(frozen=True, slots=True, eq=False)
class RefType(_Compound):
    value: Type

    def _inside(self) -> tuple[Type, ...]:
        return (self.value,)

    def _values(self) -> tuple[object, ...]:
        return (self.value,)


@record(frozen=True, slots=True, eq=False)
class AdtType(_Compound):
    """An algebraic data type applied to its arguments: ``List[Tensor[(4,), float32]]``."""

    name: str
    args: tuple[TypeArg, ...] = ()

    def _inside(self) -> tuple[TypeArg, ...]:
        return self.args

    def _values(self) -> tuple[object, ...]:
        return (self.name, self.args)


@record(frozen=True, slots=True)
class Relation:
    """A type relation used as a constraint: a named relation over types and attributes."""

    name: str
    args: tuple[TypeArg, ...]
    attrs: tuple[tuple[str, object], ...] = ()


Type = TensorType | TupleType | FuncType | RefType | AdtType | TypeVar
# What a type argument can be: a type, a shape, a dim or a base type, by the kind of the parameter.
TypeArg = Type | tuple[Dim, ...] | Dim | str


def is_closed(t: TypeArg) -> bool:
    """Whether no variable stands in it, of types or of dims."""
    if isinstance(t, _Compound):
        return t.closed
    if isinstance(t, TensorType):
        return isinstance(t.dtype, str) and isinstance(t.shape, tuple) and not _symbolic(t.shape)
    return not _symbolic(t) if isinstance(t, tuple) else not isinstance(t, TypeVar | SymDim)


def _symbolic(shape: Iterable[Dim]) -> bool:
    return any(isinstance(d, SymDim) for d in shape)


@record(frozen=True, slots=True)
class ConstructorDef:
    """A constructor: its tag is its position in the definition; ``fields`` mention the definition's type parameters."""

    name: str
    fields: tuple[Type, ...]
    adt: str
    tag: int


@record(frozen=True, slots=True, eq=False)
class TypeDef:
    """``type List[A] { Cons(A, List[A]), Nil, }``; ``extern type`` has no constructors and ``extern`` set."""

    name: str
    params: tuple[TypeParam, ...]
    constructors: tuple[ConstructorDef, ...]
    extern: bool = False


# The names of base types; those without an entry below have no storage.
BASE_TYPE = re.compile(r"(?:(?:u?int|float)\d+|bfloat16|bool)(?:x\d+)?")
DTYPE_BITS: Mapping[str, int] = {
    "bool": 8, "int4": 4, "uint4": 4,
    "int8": 8, "int16": 16, "int32": 32, "int64": 64,
    "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64,
    "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64,
}  # fmt: skip


def dtype_bits(dtype: str) -> int:
    """Storage bits of one element (a bool takes a byte). Raises KeyError for a base type without storage."""
    return DTYPE_BITS[dtype]


# Axes of a tensor, at the most (the runtime's `max_rank`).
MOST_AXES = 32


def countable(shape: Sequence[Dim], dtype: str) -> bool:
    """Whether a tensor can have this shape as far as it is known: no size is negative, and the product of all sizes but 0 is a
    number of bytes that an int64 holds (where a size is not known, anything may still come of it)."""
    bytes_ = max(DTYPE_BITS.get(dtype, 8) // 8, 1)
    known = True
    for d in shape:
        if not isinstance(d, int):
            known = False
        elif d < 0:
            return False
        elif d > 0:
            bytes_ *= d
    return not known or bytes_ < 1 << 63


# How deep a written type may nest: walks over types recurse.
MOST_NESTED = 150


def nesting(ty: TypeArg) -> int:
    """How many tuple, function, reference and data types with arguments are inside each other in a type."""
    match ty:
        case TupleType():
            inside: tuple[TypeArg, ...] = ty.fields
        case FuncType():
            inside = (*ty.params, ty.ret)
        case RefType():
            inside = (ty.value,)
        case AdtType():
            inside = ty.args
        case _:
            return 0
    return 1 + max(map(nesting, inside), default=0)


def leaf_types(ty: Type | None) -> list[Type]:
    """What a type of tuples is made of, in order; a type that is no tuple, by itself."""
    out: list[Type] = []
    todo = [ty]
    while todo:
        t = todo.pop()
        if isinstance(t, TupleType):
            todo += reversed(t.fields)
        elif t is not None:
            out.append(t)
    return out


def mentions_any(ty: Type | None) -> bool:
    """Whether a ``?`` stands in a tensor, or in a tensor in a tuple."""
    match ty:
        case TensorType(shape=tuple() as shape):
            return any(is_any(d) for d in shape)
        case TupleType():
            return any(mentions_any(f) for f in ty.fields)
        case _:
            return False


def is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat"))


def is_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))


def scalar(dtype: str) -> TensorType:
    """The type of a rank-0 tensor."""
    return TensorType((), dtype)
