"""Which dim variables types, attributes and primitives mention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field

from relay.ir.dim import DimVar, SymDim, as_var, dim_solved, dim_vars
from relay.ir.dim_total import dim_typical
from relay.ir.expr import Attr, Call, Expr, Var
from relay.ir.record import record
from relay.ir.types import AdtType, FuncType, RefType, TensorType, TupleType, Type, leaf_types
from relay.transform.blocks import all_bindings, body_of, is_primitive
from relay.typing.substitution import free_variables


@record(slots=True, eq=False)
class DimUses:
    """The dim variables of types, remembered by the type objects (which are shared all over a program)."""

    _types: dict[int, tuple[Type, tuple[DimVar, ...]]] = field(default_factory=dict)
    _primitives: dict[int, tuple[Expr, tuple[DimVar, ...]]] = field(default_factory=dict)

    def of_type(self, ty: Type | None) -> tuple[DimVar, ...]:
        """Every dim variable in the type that no function type in it binds, once, in order of occurrence."""
        if ty is None:
            return ()
        known = self._types.get(id(ty))
        if known is None or known[0] is not ty:
            found = tuple(v for v in free_variables(ty) if isinstance(v, DimVar))
            self._types[id(ty)] = known = (ty, found)
        return known[1]

    def of_value(self, value: Expr) -> tuple[DimVar, ...]:
        """The dim variables that an operation reads besides those of its operands' and its result's types."""
        if not isinstance(value, Call):
            return ()
        out = tuple(attr_dims(value.attrs)) if value.attrs else ()
        if is_primitive(value.fn):
            known = self._primitives.get(id(value.fn))
            if known is None:
                inner: dict[DimVar, None] = {}
                for b in all_bindings(body_of(value.fn)):
                    inner.update(dict.fromkeys(self.of_type(b.var.ty)))
                    inner.update(dict.fromkeys(self.of_value(b.value)))
                self._primitives[id(value.fn)] = known = (value.fn, tuple(inner))
            out += known[1]
        return out


def attr_dims(attr: Attr | Mapping[str, Attr]) -> Iterator[DimVar]:
    """The dim variables in an attribute's value (or in several attributes)."""
    todo: list[object] = [attr]
    while todo:
        value = todo.pop()
        if isinstance(value, SymDim):
            yield from dim_vars(value)
        elif isinstance(value, tuple):
            todo.extend(reversed(value))
        elif isinstance(value, Mapping):
            todo.extend(value.values())
        elif isinstance(value, TensorType | TupleType | FuncType | RefType | AdtType):
            yield from (v for v in free_variables(value) if isinstance(v, DimVar))


def whole_axes(ty: Type | None) -> Iterator[tuple[DimVar, int]]:
    """The dim variables that a tensor of this type binds: those that are a whole axis of it, with the axis."""
    if isinstance(ty, TensorType) and isinstance(ty.shape, tuple):
        for axis, dim in enumerate(ty.shape):
            variable = as_var(dim)
            if variable is not None:
                yield variable, axis


def told(ty: Type | None, known: Callable[[DimVar], bool] = lambda _: False) -> list[DimVar]:
    """The dim variables that can be read off a value of this type: a whole axis of a tensor, or all that one has besides numbers and
    what is known (which may be among them)."""
    return [v for part in leaf_types(ty) for v in _told(part, known)]


def _told(part: Type, known: Callable[[DimVar], bool]) -> list[DimVar]:
    if not isinstance(part, TensorType) or not isinstance(part.shape, tuple):
        return []
    whole = [v for v, _ in whole_axes(part)]
    there = frozenset(whole)
    solved = (dim_solved(dim, lambda v: v in there or known(v)) for dim in part.shape if isinstance(dim, SymDim))
    return [*whole, *(s[0] for s in solved if s is not None)]


def first_binders(params: tuple[Var, ...], bindings: Iterator[Var]) -> dict[DimVar, Var]:
    """The variable whose tensor gives each dim variable its value: the first one in order with it as a whole axis."""
    binders: dict[DimVar, Var] = {}
    for var in (*params, *bindings):
        for d, _ in whole_axes(var.ty):
            binders.setdefault(d, var)
    return binders


def typical_elements(ty: Type) -> int:
    """How many elements a tensor of this type has, about; 0 for other values."""
    return math.prod(map(dim_typical, ty.shape)) if isinstance(ty, TensorType) and isinstance(ty.shape, tuple) else 0
