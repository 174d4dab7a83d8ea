"""Typed expressions on typed atoms, as the transformations of this package write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from types import MappingProxyType
from typing import Final

from relay.ir.expr import (
    Attrs,
    Binding,
    Block,
    Call,
    Clause,
    Constant,
    ConstructorRef,
    Expr,
    Match,
    OpRef,
    Pattern,
    PConstructor,
    Proj,
    PVar,
    PWild,
    RefNew,
    RefRead,
    RefWrite,
    Tuple,
    Var,
)  # fmt: skip
from relay.ir.record import record
from relay.ir.types import AdtType, FuncType, RefType, TupleType, Type, TypeDef
from relay.ir.walk import post_order
from relay.transform.build import op_call, type_of
from relay.typing.substitution import param_arg

UNIT = TupleType(())
BACK = FuncType((), UNIT)  # the type of a backpropagator

# What makes of rows of rows (k, n, ...) the rows (k * n, ...): by no size, which could be 0 and tell nothing.
BEHIND_EACH_OTHER: Final[Attrs] = MappingProxyType({"newshape": (-3, -2)})


@record(slots=True, eq=False)
class Code:
    """Bindings that are being written. ``open``: what is written now still comes before what is written later."""

    bindings: list[Binding] = field(default_factory=list)
    open: bool = True

    def bind(self, value: Expr, name: str = "t") -> Var:
        """A new variable for a value."""
        var = Var(name, None, type_of(value))
        self.bindings.append(Binding(var, value))
        return var

    def block(self, result: Expr) -> Block:
        return Block(tuple(self.bindings), result, type_of(result))


def written(code: Code, root: Expr) -> Expr:
    """The atom for an expression of operators on typed atoms, of which only the atoms are typed yet."""
    done: dict[int, Expr] = {}
    for e in post_order(root):
        match e:
            case Call(fn=OpRef(name=name)):
                done[id(e)] = code.bind(op_call(name, [done[id(a)] for a in e.args], e.attrs, e.span), "d")
            case Tuple():
                done[id(e)] = code.bind(tuple_of([done[id(f)] for f in e.fields]))
            case Proj():
                done[id(e)] = code.bind(project(done[id(e.tuple)], e.index))
            case Constant():
                done[id(e)] = replace(e, ty=type_of(e))
            case _:
                done[id(e)] = e
    return done[id(root)]


def tuple_of(fields: Sequence[Expr]) -> Tuple:
    return Tuple(tuple(fields), TupleType(tuple(map(type_of, fields))))


def project(value: Expr, index: int) -> Proj:
    ty = type_of(value)
    assert isinstance(ty, TupleType)
    return Proj(value, index, ty.fields[index])


def new_ref(value: Expr) -> RefNew:
    return RefNew(value, RefType(type_of(value)))


def read(ref: Expr) -> RefRead:
    ty = type_of(ref)
    assert isinstance(ty, RefType)
    return RefRead(ref, ty.value)


def write(ref: Expr, value: Expr) -> RefWrite:
    return RefWrite(ref, value, UNIT)


def constructor_ref(definition: TypeDef, name: str) -> ConstructorRef:
    """A constructor of a definition with its polymorphic type."""
    found = next(c for c in definition.constructors if c.name == name)
    result = AdtType(definition.name, tuple(map(param_arg, definition.params)))
    return ConstructorRef(name, FuncType(found.fields, result, definition.params))


def construct(definition: TypeDef, name: str, args: Sequence[Expr], ty: AdtType) -> Call:
    """A constructor applied to its fields, a value of type ``ty``."""
    return Call(constructor_ref(definition, name), tuple(args), type_args=ty.args, ty=ty)


def add(a: Expr, b: Expr) -> Call:
    return op_call("add", (a, b))


def either(data: Expr, empty: tuple[str, Block], full: tuple[str, Var, Block], ty: Type) -> Match:
    """A match on a type of one constructor without fields and one with a field."""
    first: Pattern = PConstructor(empty[0])
    second: Pattern = PConstructor(full[0], (PVar(full[1]),))
    return Match(data, (Clause(first, empty[1]), Clause(second, full[2])), True, ty)


def patterns(names: Sequence[Var | None]) -> tuple[Pattern, ...]:
    """A pattern for each field: a variable, or anything."""
    return tuple(PWild() if v is None else PVar(v) for v in names)
