"""Kinds of the types a person writes, and the variance of the parameters of algebraic types."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from enum import Enum
from typing import assert_never

from relay.ir.diagnostics import TypeError_
from relay.ir.dim import AnyDim, DimVar, SymDim, dim_bounds
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.types import (
    DTYPE_BITS,
    MOST_AXES,
    AdtType,
    FuncType,
    Kind,
    RefType,
    TensorType,
    TupleType,
    TypeArg,
    TypeDef,
    TypeParam,
    TypeVar,
    countable,
)
from relay.typing.substitution import variables
from relay.typing.text import type_text


class Variance(Enum):
    """Whether ``D[A]`` may stand for ``D[B]`` when ``A`` may stand for ``B``."""

    CO = 0
    IN = 1


def variances(types: Mapping[str, TypeDef]) -> dict[str, tuple[Variance, ...]]:
    """The variance of every parameter of every definition: covariant unless it occurs in a reference, in the parameters
    of a function type, or as an invariant argument (the greatest solution, so recursion through itself is no
    obstacle)."""
    invariant: dict[str, set[TypeParam]] = {name: set() for name in types}
    fields = [(d, f) for d in types.values() for c in d.constructors for f in c.fields]
    users: dict[str, list[int]] = {}
    for n, (_, f) in enumerate(fields):
        for name in _adts(f):
            users.setdefault(name, []).append(n)
    todo = list(range(len(fields)))
    while todo:
        d, f = fields[todo.pop()]
        found = set(_invariant_in(f, types, invariant)).intersection(d.params)
        if not found <= invariant[d.name]:
            invariant[d.name] |= found
            todo += users.get(d.name, ())
    return {
        name: tuple(Variance.IN if d.extern or p in invariant[name] else Variance.CO for p in d.params)
        for name, d in types.items()
    }


def _adts(t: TypeArg) -> Iterable[str]:
    match t:
        case AdtType():
            yield t.name
            for a in t.args:
                yield from _adts(a)
        case TupleType():
            for f in t.fields:
                yield from _adts(f)
        case FuncType():
            for p in (*t.params, t.ret):
                yield from _adts(p)
        case RefType():
            yield from _adts(t.value)
        case _:
            pass


def _invariant_in(
    t: TypeArg, types: Mapping[str, TypeDef], invariant: Mapping[str, set[TypeParam]]
) -> Iterable[TypeParam]:
    match t:
        case RefType():
            yield from variables(t.value)
        case FuncType():
            for p in t.params:
                yield from variables(p)
            yield from _invariant_in(t.ret, types, invariant)
        case TupleType():
            for f in t.fields:
                yield from _invariant_in(f, types, invariant)
        case AdtType():
            known = types.get(t.name)
            for n, a in enumerate(t.args):
                if known is None or known.extern or n >= len(known.params) or known.params[n] in invariant[t.name]:
                    yield from variables(a)
                else:
                    yield from _invariant_in(a, types, invariant)
        case _:
            pass


@record(slots=True, eq=False)
class KindChecker:
    """Checks written types. ``in_scope`` says whether a type parameter is declared here."""

    types: Mapping[str, TypeDef]
    in_scope: Callable[[TypeParam], bool]
    _seen: dict[int, TypeArg] = field(default_factory=dict)

    def check(self, t: TypeArg, span: Span | None, kind: Kind = Kind.TYPE) -> None:
        """Raises TypeError_ unless the type is well-formed and has the kind."""
        if id(t) in self._seen:
            return
        self._check(t, kind, span)
        self._seen[id(t)] = t

    def _check(self, t: TypeArg, kind: Kind, span: Span | None) -> None:
        match t:
            case TypeVar():
                if not t.flexible and not self.in_scope(t):
                    raise TypeError_(
                        f"the type parameter {t.name} is not declared here",
                        span,
                        f"declare it: fn[{t.name}](...)",
                    )
                self._expect(kind, t.kind, t.name, span)
            case TensorType():
                self._expect(kind, Kind.TYPE, "a tensor type", span)
                self._check(t.shape, Kind.SHAPE, span)
                self._check(t.dtype, Kind.BASE_TYPE, span)
                if isinstance(t.shape, tuple) and len(t.shape) > MOST_AXES:
                    raise TypeError_(f"a tensor has {MOST_AXES} axes at the most, not {len(t.shape)}", span)
                if isinstance(t.shape, tuple) and isinstance(t.dtype, str) and not countable(t.shape, t.dtype):
                    raise TypeError_(
                        f"no memory has room for a {type_text(t)}", span, "sizes are at most what int64 holds"
                    )
            case TupleType():
                self._expect(kind, Kind.TYPE, "a tuple type", span)
                for f in t.fields:
                    self._check(f, Kind.TYPE, span)
            case FuncType():
                self._expect(kind, Kind.TYPE, "a function type", span)
                own = (
                    KindChecker(self.types, lambda p: p in t.type_params or self.in_scope(p)) if t.type_params else self
                )
                for f in (*t.params, t.ret):
                    own._check(f, Kind.TYPE, span)
            case RefType():
                self._expect(kind, Kind.TYPE, "a reference type", span)
                self._check(t.value, Kind.TYPE, span)
            case AdtType():
                self._expect(kind, Kind.TYPE, t.name, span)
                self._adt(t, span)
            case str():
                self._expect(kind, Kind.BASE_TYPE, t, span)
                require_base_type(t, span)
            case int() | SymDim() | AnyDim():
                self._expect(kind, Kind.DIM, "a dim", span)
                hi = dim_bounds(t)[1]
                if hi is not None and hi < 0:
                    raise TypeError_(f"a dimension cannot be negative: {t}", span)
            case tuple():
                self._expect(kind, Kind.SHAPE, "a shape", span)
                for d in t:
                    self._check(d, Kind.DIM, span)
            case _:
                assert_never(t)

    def _adt(self, t: AdtType, span: Span | None) -> None:
        found = self.types.get(t.name)
        if found is None:
            near = difflib.get_close_matches(t.name, self.types, 2)
            raise TypeError_(f"unknown type {t.name}", span, f"did you mean {' or '.join(near)}?" if near else "")
        if len(found.params) != len(t.args):
            raise TypeError_(f"type {t.name} takes {len(found.params)} arguments, not {len(t.args)}", span)
        for p, a in zip(found.params, t.args, strict=True):
            self._check(a, Kind.DIM if isinstance(p, DimVar) else p.kind, span)

    def _expect(self, kind: Kind, found: Kind, what: str, span: Span | None) -> None:
        if kind is not found:
            raise TypeError_(f"expected a {kind.value} here, found {what} of kind {found.value}", span)


def require_base_type(dtype: str, span: Span | None = None, where: str = "") -> None:
    """Raises TypeError_ unless a base type, or one of several lanes, has this name."""
    if base_of(dtype) not in DTYPE_BITS:
        near = difflib.get_close_matches(dtype, DTYPE_BITS, 2)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(DTYPE_BITS)}"
        raise TypeError_(f"{where}unknown base type {dtype!r}", span, hint)


def base_of(dtype: str) -> str:
    """The base type without its lanes: ``float32x4`` is ``float32``."""
    base, x, lanes = dtype.rpartition("x")
    return base if x and lanes.isdigit() else dtype


def kind_of(t: TypeArg) -> Kind:
    """The kind of a type argument."""
    match t:
        case TypeVar():
            return t.kind
        case str():
            return Kind.BASE_TYPE
        case tuple():
            return Kind.SHAPE
        case int() | SymDim() | AnyDim():
            return Kind.DIM
        case TensorType() | TupleType() | FuncType() | RefType() | AdtType():
            return Kind.TYPE
        case _:
            assert_never(t)


def kind_of_param(p: TypeParam) -> Kind:
    return Kind.DIM if isinstance(p, DimVar) else p.kind
