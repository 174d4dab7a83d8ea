"""The expressions of the language, on a page.

Nodes are frozen and compare by identity (structural equality and hashing are `relay.ir.equality`). ``ty`` is filled by
inference, ``span`` by the parser. Sharing a node twice means computing it once (the text format's ``%0 = e;``); `Block`
holds what ``let`` binds, in order, flat: ``let %x = a; let %y = b; r`` is one block of two bindings, so that depth of
nesting never grows with the length of a program. The middle end's form is blocks in A-normal form (`relay.transform.blocks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from relay.ir.dim import AnyDim, SymDim
from relay.ir.notation import Notation
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.types import Relation, Type, TypeArg, TypeParam

Attr = None | bool | int | float | str | tuple["Attr", ...] | Type | SymDim | AnyDim | Mapping[str, "Attr"]
Attrs = Mapping[str, "Attr"]
NO_ATTRS: Attrs = MappingProxyType({})


def attrs_key(value: object) -> object:
    """An attribute's value, several attributes, or lists of such, as something hashable that keeps ``1``, ``1.0`` and ``True`` apart."""
    if isinstance(value, list | tuple):
        return tuple(map(attrs_key, value))
    if isinstance(value, Mapping):
        return tuple((name, attrs_key(value[name])) for name in sorted(value))
    # Floats by their text: 0.0 and -0.0 are equal but not the same.
    return type(value), repr(value) if isinstance(value, float) else value


@record(frozen=True, slots=True, eq=False, repr=False)
class Var(Notation):
    """A local variable: an identity; the name is a hint. ``annotation`` is the type the user wrote, ``ty`` the inferred one."""

    name: str
    annotation: Type | None = None
    ty: Type | None = field(default=None)
    span: Span | None = None


@record(frozen=True, slots=True, eq=False, repr=False)
class GlobalVar(Notation):
    """``@name``."""

    name: str
    ty: Type | None = None
    span: Span | None = None


@record(frozen=True, slots=True, eq=False, repr=False)
class Constant(Notation):
    """A tensor constant. ``data`` is read-only; sub-byte types are held unpacked as ml_dtypes arrays; ``dtype`` is its name."""

    data: npt.NDArray[np.generic]
    dtype: str
    ty: Type | None = None
    span: Span | None = None


@record(frozen=True, slots=True, eq=False, repr=False)
class OpRef(Notation):
    """An operator by name (``nn.dense``), looked up in `relay.op`."""

    name: str
    ty: Type | None = None
    span: Span | None = None


@record(frozen=True, slots=True, eq=False, repr=False)
class ConstructorRef(Notation):
    """A constructor by name, used as a function (or, without fields, called with no arguments)."""

    name: str
    ty: Type | None = None
    span: Span | None = None


@record(frozen=True, slots=True, eq=False, repr=False)
class Call(Notation):
    fn: Expr
    args: tuple[Expr, ...]
    attrs: Attrs = field(default_factory=lambda: NO_ATTRS)
    type_args: tuple[TypeArg, ...] = ()
    ty: Type | None = None
    span: Span | None = None


@record(frozen=True, slots=True, eq=False, repr=False)
class Function(Notation):
    """``fn[type_params](params) -> ret_type where constraints { body }``, with attributes such as Primitive."""

    params: tuple[Var, ...]
    body: Expr
    ret_type: Type | None = None
    type_params: tuple[TypeParam, ...] = ()
    attrs: Attrs = field(default_factory=lambda: NO_ATTRS)
    constraints: tuple[Relation, ...] = ()
    ty: Type | None = None
    span: Span | None = None


@record(frozen=True, slots=True, eq=False)
class Binding:
    """``let var = value;``. A function value may refer to its own variable. Sequencing binds a variable named ``_``."""

    var: Var
    value: Expr


@record(frozen=True, slots=True, eq=False, repr=False)
class Block(Notation):
    """A sequence of bindings and a result; each binding is in scope in what follows it."""

    bindings: tuple[Binding, ...]
    result: Expr
    ty: Type | None = None
    span: Span | None = None


@record(frozen=True, slots=True, eq=False, repr=False)
class Tuple(Notation):
    fields: tuple[Expr, ...]
    ty: Type | None = None
    span: Span | None = None


@record(frozen=True, slots=True, eq=False, repr=False)
class Proj(Notation):
    """``e.n``."""

    tuple: Expr
    index: int
    ty: Type | None = None
    span: Span | None = None


@record(frozen=True, slots=True, eq=False, repr=False)
class If(Notation):
    cond: Expr
    then: Expr
    orelse: Expr
    ty: Type | None = None
    span: Span | None = None


@record(frozen=True, slots=True, eq=False)
class PWild:
    span: Span | None = None


@record(frozen=True, slots=True, eq=False)
class PVar:
    var: Var
    span: Span | None = None


@record(frozen=True, slots=True, eq=False)
class PConstructor:
    name: str
    fields: tuple[Pattern, ...] = ()
    span: Span | None = None


@record(frozen=True, slots=True, eq=False)
class PTuple:
    fields: tuple[Pattern, ...]
    span: Span | None = None


@record(frozen=True, slots=True, eq=False)
class Clause:
    pattern: Pattern
    body: Expr


@record(frozen=True, slots=True, eq=False, repr=False)
class Match(Notation):
    """``match (data) { ... }`` (complete: exhaustive by checking) or ``match? (data)`` (partial: may fail at run time)."""

    data: Expr
    clauses: tuple[Clause, ...]
    complete: bool = True
    ty: Type | None = None
    span: Span | None = None


@record(frozen=True, slots=True, eq=False, repr=False)
class RefNew(Notation):
    value: Expr
    ty: Type | None = None
    span: Span | None = None


@record(frozen=True, slots=True, eq=False, repr=False)
class RefRead(Notation):
    ref: Expr
    ty: Type | None = None
    span: Span | None = None


@record(frozen=True, slots=True, eq=False, repr=False)
class RefWrite(Notation):
    """``ref := value``; its value is the empty tuple."""

    ref: Expr
    value: Expr
    ty: Type | None = None
    span: Span | None = None


@record(frozen=True, slots=True, eq=False, repr=False)
class Grad(Notation):
    """``grad(fn)`` and, with ``forward``, ``jvp(fn)``: typed here, eliminated by the differentiation pass."""

    fn: Expr
    ty: Type | None = None
    span: Span | None = None
    forward: bool = False


Pattern = PWild | PVar | PConstructor | PTuple
Expr = (
    Var | GlobalVar | Constant | OpRef | ConstructorRef | Call | Function | Block | Tuple | Proj | If | Match
    | RefNew | RefRead | RefWrite | Grad
)  # fmt: skip
