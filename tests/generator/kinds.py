"""The generator's own types: like the language's, with sizes that are known to be equal and a note on exactness.

A size is an int, a name (``"n"``: a dimension variable) or a name with a question mark (``"?0"``: a size unknown to the type
system, the same wherever it has the same name). ``exact`` floats are multiples of 1/8 of moderate size, computed without rounding, so
that comparisons, rounding and casts of them give the same on every executor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from relay.ir.dim import ANY, Dim, DimVar, as_dim
from relay.ir.types import AdtType, FuncType, RefType, TensorType, TupleType, Type

Size = int | str

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTS = ("int32", "int64", "int8", "int16", "uint8")
DTYPES = (*FLOATS, *INTS, "bool")


@dataclass(frozen=True, slots=True)
class T:
    """A tensor."""

    shape: tuple[Size, ...]
    dtype: str = "float32"
    exact: bool = True

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def static(self) -> bool:
        return all(isinstance(s, int) for s in self.shape)

    @property
    def unknown(self) -> bool:
        return any(is_unknown(s) for s in self.shape)

    def of(self, dtype: str) -> T:
        """The same shape with another dtype, exact."""
        return T(self.shape, dtype, True)

    def sized(self, *shape: Size) -> T:
        return replace(self, shape=shape)

    def inexact(self) -> T:
        return replace(self, exact=False) if self.is_float else self

    def exactly(self) -> T:
        return replace(self, exact=True)


@dataclass(frozen=True, slots=True)
class Tup:
    fields: tuple[G, ...]


@dataclass(frozen=True, slots=True)
class Adt:
    name: str
    args: tuple[G, ...]


@dataclass(frozen=True, slots=True)
class Fn:
    """A function. A ``fuelled`` one takes a small int32 count first; a ``pure`` one has no effects on references."""

    params: tuple[G, ...]
    ret: G
    fuelled: bool = False
    pure: bool = True


@dataclass(frozen=True, slots=True)
class Ref:
    value: G


G = T | Tup | Adt | Fn | Ref
FUEL = T((), "int32")


def limit(t: T) -> float:
    """How far a tame value of a type may reach. Half precision keeps rounding errors small by keeping values small."""
    return 2.0 if t.dtype in ("float16", "bfloat16") and not t.exact else 8.0


def is_unknown(size: Size) -> bool:
    return isinstance(size, str) and size.startswith("?")


def sizes_of(g: G) -> set[Size]:
    """Every size in a type."""
    match g:
        case T():
            return set(g.shape)
        case Tup():
            return {s for f in g.fields for s in sizes_of(f)}
        case Adt():
            return {s for a in g.args for s in sizes_of(a)}
        case Fn():
            return {s for p in (*g.params, g.ret) for s in sizes_of(p)}
        case Ref():
            return sizes_of(g.value)


def names_of(g: G) -> set[str]:
    """The dimension variables in a type."""
    return {s for s in sizes_of(g) if isinstance(s, str) and not is_unknown(s)}


def any_in(g: G) -> bool:
    """Whether an unknown size occurs."""
    return any(is_unknown(s) for s in sizes_of(g))


def fits(have: G, want: G) -> bool:
    """Whether a value of one type can stand where another is wanted: exact values are also inexact ones."""
    if isinstance(have, T) and isinstance(want, T):
        return have.shape == want.shape and have.dtype == want.dtype and (have.exact or not want.exact)
    if isinstance(have, Tup) and isinstance(want, Tup):
        return len(have.fields) == len(want.fields) and all(
            fits(h, w) for h, w in zip(have.fields, want.fields, strict=True)
        )
    return have == want


def to_dim(size: Size, dims: Mapping[str, DimVar]) -> Dim:
    if isinstance(size, int):
        return size
    return ANY if is_unknown(size) else as_dim(dims[size])


def to_type(g: G, dims: Mapping[str, DimVar]) -> Type:
    """The type of the language."""
    match g:
        case T():
            return TensorType(tuple(to_dim(s, dims) for s in g.shape), g.dtype)
        case Tup():
            return TupleType(tuple(to_type(f, dims) for f in g.fields))
        case Adt():
            return AdtType(g.name, tuple(to_type(a, dims) for a in g.args))
        case Fn():
            params = (FUEL, *g.params) if g.fuelled else g.params
            return FuncType(tuple(to_type(p, dims) for p in params), to_type(g.ret, dims))
        case Ref():
            return RefType(to_type(g.value, dims))
