"""What the values of a clause are while it is lifted to many nodes: atoms of a stage's block, lists, and values of data types.

What follows from the invariant arguments alone is the same for every node (stage `UNIFORM`, not batched); what one of many requests brings
or computes before its recursion is the same for all its nodes (`ASKED`): a row for each request, which nodes take. What follows from
tensors in the structure too is computed for all nodes of the clause before any level (`WHOLE`). Arguments that change from call to call
are handed down from the root, level by level: what they follow from is computed on the way (`DOWN`), what else follows from them for all
nodes of the clause afterwards (`AFTER`). What needs the results of recursive calls comes last, level by level from the leaves up (`LEVEL`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING

from relay.ir.dim import Dim
from relay.ir.expr import Binding, Expr, Var
from relay.ir.record import record
from relay.ir.types import AdtType, ConstructorDef, TensorType, TupleType, Type
from relay.transform.batching.clauses import NotStructural, data_types
from relay.transform.build import internal_call

if TYPE_CHECKING:
    from relay.transform.batching.lift import Lifter

UNIFORM, ASKED, WHOLE, DOWN, AFTER, LEVEL = range(6)


@record(frozen=True, slots=True, eq=False)
class Value:
    """A value of the clause: an atom of its stage's block, of the type it has for one node (``ty``)."""

    atom: Expr
    stage: int
    ty: Type


@record(frozen=True, slots=True, eq=False)
class ListValue:
    """A list, of this type, with a value for each item of a list in the structure: the items' clause (None: the list is empty), and
    the value (None: the item itself)."""

    items: Lifter | None
    value: Lifted | None
    ty: Type | None


@record(frozen=True, slots=True, eq=False)
class Built:
    """A value of a data type that the clause makes: nothing is computed with it, it is put together at the end (`assembly`)."""

    constructor: ConstructorDef
    fields: tuple[Lifted, ...]


@record(frozen=True, slots=True, eq=False)
class Made:
    """A value of a data type that a recursive call makes: its site, and which of those in its function's result."""

    site: int
    number: int


# A value, the values of a tuple's fields or of a list's items, or a value of a data type.
Lifted = Value | ListValue | Built | Made | tuple["Lifted", ...]


def with_rows(ty: Type, rows: Dim) -> Type:
    """The type of the same value for many nodes."""
    match ty:
        case TensorType(shape=tuple() as shape):
            return TensorType((rows, *shape), ty.dtype, ty.device)
        case TupleType():
            return TupleType(tuple(with_rows(f, rows) for f in ty.fields))
        case _:
            raise NotStructural("a value that is not made of tensors is computed in the recursion")


@record(slots=True, eq=False)
class Emitter:
    """Bindings of a block under construction."""

    bindings: list[Binding] = field(default_factory=list)

    def bind(self, name: str, value: Expr, ty: Type) -> Var:
        var = Var(name, None, ty)
        self.bindings.append(Binding(var, value))
        return var

    def op(self, name: str, args: Sequence[Expr], ty: Type, hint: str, **attrs: object) -> Var:
        return self.bind(hint, internal_call(name, args, ty, MappingProxyType(attrs)), ty)  # type: ignore[arg-type]


def nest(ty: Type, values: Iterator[Value], made: Iterator[Made]) -> Lifted:
    """Values in the nesting of a type of tuples."""
    match ty:
        case TupleType(fields=fields):
            return tuple(nest(f, values, made) for f in fields)
        case AdtType():
            return next(made)
        case _:
            return next(values)


def flat_values(value: Lifted) -> list[Value]:
    """The values of a lifted result, tuples taken apart."""
    out: list[Value] = []
    todo: list[Lifted] = [value]
    while todo:
        v = todo.pop()
        if isinstance(v, Value):
            out.append(v)
        elif isinstance(v, ListValue | Built | Made):
            raise NotStructural("a value of a data type is used as a whole")
        else:
            todo.extend(reversed(v))
    return out


def tensors_of(result: Lifted) -> list[Value]:
    """The tensors in a clause's result (values of tensors and tuples), without values of data types."""
    out: list[Value] = []
    todo: list[Lifted] = [result]
    while todo:
        v = todo.pop()
        if isinstance(v, tuple):
            todo.extend(reversed(v))
        elif isinstance(v, Value) and not data_types(v.ty):
            out.append(v)
    return out
