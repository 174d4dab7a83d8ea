"""The types of function values, as `defunctionalise` replaces them: which of them are one type of data."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import cast

from relay.ir.dim import ANY, Dim
from relay.ir.expr import Call, GlobalVar
from relay.ir.module import Module
from relay.ir.retype import Substitution
from relay.ir.types import AdtType, FuncType, TensorType, Type, TypeArg
from relay.transform.blocks import all_bindings, body_of, is_closure, is_primitive, nested_blocks, operands
from relay.transform.build import type_of
from relay.typing.mentions import mentioned
from relay.typing.substitution import map_dims

# What the names of the types of data begin with.
PREFIX = "fn."


def value_types(module: Module) -> list[FuncType]:
    """The types of function values."""
    seen: dict[Type, None] = {}

    def note(t: TypeArg | None) -> None:
        if t is not None and not isinstance(t, int | str) and t not in seen:
            for part in mentioned(t, {}):
                seen[part] = None

    for definition in module.types.values():
        for c in definition.constructors:
            for f in c.fields:
                note(f)
    for function in module.functions.values():
        if is_primitive(function):
            continue
        ty = type_of(function)
        assert isinstance(ty, FuncType)
        for t in (*ty.params, ty.ret):
            note(t)
        for b in all_bindings(body_of(function)):
            note(b.var.ty)
            for a in operands(b.value)[isinstance(b.value, Call) + is_closure(b.value) :]:
                if isinstance(a, GlobalVar):
                    note(a.ty)
            for block in nested_blocks(b.value):
                note(block.ty)
    return [t for t in seen if isinstance(t, FuncType)]


def erased(t: Type, every: bool = False) -> Type:
    """A type without the dims that are known at run time only (``every``: without any); functions without parameters for them."""

    def dim(d: Dim) -> Dim:
        return d if isinstance(d, int) and not every else ANY

    return map_dims(t, dim, generic=False)


class Classes:
    """The types of function values whose values may meet: those that differ in sizes known at run time only, and, where some size of
    a type is one of these, those that differ in any. ``taken``: the names of data types that there are."""

    def __init__(self, types: Sequence[FuncType], taken: Collection[str] = ()) -> None:
        self._taken = taken
        self._loose: set[Type] = set()
        self._number: dict[Type, int] = {}
        self.types: list[FuncType] = []
        self.names: list[str] = []  # of the data that their values become
        todo: list[Type] = list(types)
        while todo:
            t = todo.pop()
            if isinstance(t, FuncType):
                narrow, wide = erased(t), erased(t, every=True)
                if narrow != wide and _has_unknown(narrow) and wide not in self._loose:
                    self._loose.add(wide)
                    todo += mentioned(wide, {})
                elif narrow == wide:
                    self._loose.add(wide)
        for t in types:
            self._add(t)

    def representative(self, t: FuncType) -> FuncType:
        wide = erased(t, every=True)
        return cast(FuncType, wide if wide in self._loose else erased(t))

    def _add(self, t: FuncType) -> None:
        found = self.representative(t)
        if found not in self._number:
            self._number[found] = len(self.types)
            self.types.append(found)
            self.names.append(unused(f"{PREFIX}t{len(self.names)}", self._taken))
            for part in mentioned(found, {}):
                if isinstance(part, FuncType):
                    self._add(part)

    def number(self, t: FuncType) -> int:
        return self._number[self.representative(t)]


def unused(wanted: str, taken: Collection[str]) -> str:
    """A name that is not among those that are taken."""
    while wanted in taken:
        wanted += "_"
    return wanted


def _has_unknown(t: Type) -> bool:
    return any(
        isinstance(part, TensorType)
        and isinstance(part.shape, tuple)
        and any(not isinstance(d, int) for d in part.shape)
        for part in mentioned(t, {})
    )


class DataTypes(Substitution):
    """Types, with those of function values replaced."""

    def __init__(self, classes: Classes) -> None:
        super().__init__({})
        self.classes = classes

    def _type(self, t: Type) -> Type:
        if isinstance(t, FuncType):
            return AdtType(self.classes.names[self.classes.number(t)])
        return super()._type(t)

    def signature(self, t: Type | None) -> Type | None:
        if not isinstance(t, FuncType):
            return self.optional(t)
        return FuncType(tuple(map(self.type, t.params)), self.type(t.ret), t.type_params, self.relations(t.constraints))
