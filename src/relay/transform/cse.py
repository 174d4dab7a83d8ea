"""Common subexpressions: what has been computed already is not computed again."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar

from relay.ir.effects import Effect, duplicable
from relay.ir.expr import (
    Call,
    Constant,
    ConstructorRef,
    Expr,
    Function,
    GlobalVar,
    OpRef,
    Proj,
    Tuple,
    Var,
    attrs_key,
)
from relay.ir.module import Module
from relay.ir.record import record
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, is_atom, is_primitive, map_functions, says_no_less
from relay.typing.effects import Effects

# Constants up to this many bytes are the same when their contents are; larger ones when they are the same array.
_COMPARED_BYTES = 64


@record(frozen=True, slots=True)
class CommonSubexpressions(Pass):
    """Use the earlier variable where the same operation on the same atoms is bound again in its scope.

    Before: blocks. After: blocks with fewer bindings. Only operations for which evaluating once cannot be told from
    evaluating twice are merged; calls of primitives are compared by the identity of the primitive.
    """

    name: ClassVar[str] = "cse"

    def __call__(self, module: Module) -> Module:
        effects = Effects(module)
        return map_functions(module, lambda f: Forward(_Seen(effects).visit).function(f))


@record(slots=True, eq=False)
class _Seen:
    """The operations bound so far, each with the scope it stands in; one in a closed scope is as good as none."""

    effects: Effects
    table: dict[object, tuple[Var, Scope]] = field(default_factory=dict)

    def visit(self, scope: Scope, var: Var, value: Expr) -> Expr:
        if is_atom(value):
            return value
        key = operation_key(value)
        if key is None:
            return value
        found = self.table.get(key)
        if found is not None and found[1].open and says_no_less(found[0].ty, var.ty):
            return found[0]
        effects = self.effects.of(value)
        if effects is not Effect.PURE and not duplicable(effects):
            return value
        self.table[key] = (var, scope)
        return value


def operation_key(value: Expr) -> object | None:
    """Equal for operations that compute the same; None for those that are never compared."""
    match value:
        case Call():
            fn = id(value.fn) if is_primitive(value.fn) else atom_key(value.fn)
            attrs = attrs_key(value.attrs) if value.attrs else ()
            return ("call", fn, attrs, value.type_args, *map(atom_key, value.args))
        case Tuple():
            return ("tuple", *map(atom_key, value.fields))
        case Proj():
            return ("proj", value.index, atom_key(value.tuple))
        case _:
            return None


def atom_key(e: Expr) -> object:
    match e:
        case Var():
            return e
        case OpRef():
            return e.name
        case GlobalVar():
            return ("@", e.name)
        case ConstructorRef():
            return ("c", e.name)
        case Constant():
            if e.data.nbytes <= _COMPARED_BYTES:
                return (e.dtype, e.data.shape, e.data.tobytes())
            return ("data", id(e.data))
        case Function():
            return id(e)
        case _:
            raise AssertionError(f"{type(e).__name__} is not an atom")
