"""Python values to values of the language and back, directed by the types of the parameters.

Arrays are anything `numpy.asarray` takes; a plain Python number or nested list of numbers adopts the parameter's dtype if it fits,
an array must have exactly it. A list is a ``List``, ``None`` or a value an ``Option``, a tuple a tuple. Nothing recurses in Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from relay.interpreter.sizes import Unsettled, check_sizes, settle, size_checks
from relay.interpreter.values import Array, Closure, ConstructorValue, OperatorValue, Reference, Value
from relay.ir.call_arguments import adopted, placed
from relay.ir.constant import is_masked
from relay.ir.diagnostics import RelayError, ShapeError, TypeError_
from relay.ir.dim import DimVar
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Function
from relay.ir.module import Module
from relay.ir.trampoline import Step, run
from relay.ir.types import AdtType, FuncType, RefType, TensorType, TupleType, Type
from relay.ir.value import AdtValue
from relay.typing.substitution import substitute
from relay.typing.text import shape_text, type_text

# Integers of more are not written out.
_MOST_BITS = 256


def argument_values(
    module: Module, function: Function, name: str, args: Sequence[object], named: Mapping[str, object]
) -> list[Value]:
    """The arguments of a call of ``@name`` from Python, by place and behind these by name, as values.

    Raises TypeError_ for a wrong number of arguments, kind of value or dtype, ShapeError for a wrong rank or size, naming the parameter.
    """
    if named:
        args = placed(name, [p.name for p in function.params], args, named)
    if len(args) != len(function.params):
        wanted = ", ".join(f"%{p.name}: {_parameter_text(p.ty or p.annotation)}" for p in function.params)
        raise TypeError_(f"@{name} takes {len(function.params)} arguments ({wanted}), not {len(args)}", function.span)
    reader = _Reader(module)
    values = [
        reader.read(arg, param.ty or param.annotation, f"the argument %{param.name} of @{name}")
        for param, arg in zip(function.params, args, strict=True)
    ]
    settle(reader.unsettled, reader.dims, None)
    return values


def _parameter_text(type_: Type | None) -> str:
    return "_" if type_ is None else type_text(type_)


class _Reader:
    """Converts the arguments of one call; ``dims`` are the sizes that the arguments so far have given. An object that stands in several
    places is read once for each type that it has there: there may be far more ways to it than objects."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.dims: dict[DimVar, int] = {}
        self.unsettled: list[Unsettled] = []
        # What was read, by the object's id (which is kept alive here) and its type.
        self.met: dict[tuple[int, Type | None], tuple[object, Value]] = {}

    def read(self, given: object, type_: Type | None, what: str) -> Value:
        return run(self._read(given, type_, what))

    def _read(self, given: object, type_: Type | None, what: str) -> Step[Value]:
        met = self.met.get((id(given), type_))
        if met is not None:
            return met[1]
        value: Value = yield self._converted(given, type_, what)
        self.met[id(given), type_] = given, value
        return value

    def _converted(self, given: object, type_: Type | None, what: str) -> Step[Value]:
        match type_:
            case TensorType():
                return self._tensor(given, type_, what)
            case TupleType():
                if not isinstance(given, tuple) or len(given) != len(type_.fields):
                    raise _unexpected(given, type_, what)
                parts: list[Value] = []
                for n, (part, t) in enumerate(zip(given, type_.fields, strict=True)):
                    parts.append((yield self._read(part, t, f"{what.removesuffix(',')}, field {n},")))
                return tuple(parts)
            case AdtType():
                algebraic: Value = yield self._adt(given, type_, what)
                return algebraic
            case FuncType():
                if not isinstance(given, Closure | OperatorValue | ConstructorValue):
                    raise _unexpected(given, type_, what)
                return given
            case RefType():
                if not isinstance(given, Reference):
                    raise _unexpected(given, type_, what)
                return given
            case _:  # a type parameter, or a parameter without a type: the value says what it is
                return self._untyped(given)

    def _untyped(self, given: object) -> Value:
        if isinstance(given, tuple | AdtValue | Closure | OperatorValue | ConstructorValue | Reference):
            return cast(Value, given)
        return np.array(given)

    def _tensor(self, given: object, type_: TensorType, what: str) -> Array:
        dtype = type_.dtype if isinstance(type_.dtype, str) else None
        if (
            isinstance(given, AdtValue | tuple | Closure | OperatorValue | ConstructorValue | Reference)
            or given is None
        ):
            raise _unexpected(given, type_, what)
        if is_masked(given):
            raise TypeError_(f"{what} has a mask, which would be lost", hint="filled() says what stands under it")
        try:
            array: Array = np.array(given)  # a copy: the caller may write into its own, and values never change
        except (ValueError, TypeError, RuntimeError) as error:  # the last: a tensor of PyTorch that requires a gradient
            raise TypeError_(f"{what} is not an array: {error}") from error
        if dtype is not None and array.dtype != numpy_dtype(dtype):
            array = _adopt(given, array, dtype, what)
        if isinstance(type_.shape, tuple):
            if array.ndim != len(type_.shape):
                raise ShapeError(
                    f"{what} has rank {array.ndim} (shape {shape_text(array.shape)}) where {type_text(type_)} is expected"
                )
            check_sizes(size_checks(type_), array, self.dims, what, None, self.unsettled)
        return array

    def _adt(self, given: object, type_: AdtType, what: str) -> Step[Value]:
        definition = self.module.types.get(type_.name)
        if definition is None:
            raise TypeError_(f"{what} has the type {type_.name}, which the module does not define")
        constructors = {c.name: c for c in definition.constructors}
        if isinstance(given, list) and constructors.keys() == {"Cons", "Nil"}:
            element = substitute(constructors["Cons"].fields[0], definition.params, type_.args)
            rest: Value = AdtValue(type_.name, "Nil", constructors["Nil"].tag, ())
            items: list[Value] = []
            for n, item in enumerate(given):
                items.append((yield self._read(item, cast(Type, element), f"{what}, element {n},")))
            for item in reversed(items):
                rest = AdtValue(type_.name, "Cons", constructors["Cons"].tag, (item, rest))
            return rest
        if constructors.keys() == {"Some", "None"} and not (isinstance(given, AdtValue) and given.adt == type_.name):
            if given is None:
                return AdtValue(type_.name, "None", constructors["None"].tag, ())
            element = substitute(constructors["Some"].fields[0], definition.params, type_.args)
            value = yield self._read(given, cast(Type, element), what)
            return AdtValue(type_.name, "Some", constructors["Some"].tag, (value,))
        if not isinstance(given, AdtValue) or given.adt != type_.name or given.constructor not in constructors:
            raise _unexpected(given, type_, what)
        constructor = constructors[given.constructor]
        if len(given.fields) != len(constructor.fields):
            raise TypeError_(
                f"{what}: {constructor.name} has {len(constructor.fields)} fields, not {len(given.fields)}"
            )
        fields: list[Value] = []
        for n, (part, t) in enumerate(zip(given.fields, constructor.fields, strict=True)):
            field_type = cast(Type, substitute(t, definition.params, type_.args))
            fields.append((yield self._read(part, field_type, _inside(what, constructor.name, n))))
        return AdtValue(type_.name, constructor.name, constructor.tag, tuple(fields))


def _inside(what: str, constructor: str, index: int) -> str:
    """Where a field stands; only the innermost constructor is named, so that messages stay short for deep values."""
    root = what.split(", in ", 1)[0]
    return f"{root}, in field {index} of a {constructor},"


def _shown(given: object) -> str:
    """A number in a message; of a long one, which Python may refuse to write, how long it is."""
    if isinstance(given, int) and given.bit_length() > _MOST_BITS:
        return f"an integer of {given.bit_length()} bits"
    return repr(given)


def _adopt(given: object, array: Array, dtype: str, what: str) -> Array:
    """Plain Python numbers take the parameter's dtype when it can hold them; arrays never change theirs."""
    if not hasattr(given, "dtype") and not hasattr(given, "__dlpack__"):
        try:
            out = adopted(array, dtype)
        except OverflowError as error:
            raise TypeError_(f"{what}: {_shown(given)} {error}") from None
        if out is not None:
            return out
    raise TypeError_(
        f"{what} has dtype {array.dtype.name if array.dtype.isnative else array.dtype} where {dtype} is expected",
        hint=f"convert it with .astype({dtype!r})",
    )


def _unexpected(given: object, type_: Type, what: str) -> RelayError:
    found = (
        f"a {given.constructor} of {given.adt}" if isinstance(given, AdtValue) else f"a Python {type(given).__name__}"
    )
    if isinstance(given, np.ndarray):
        found = f"a {given.dtype.name} array of shape {shape_text(given.shape)}"
    return TypeError_(f"{what} is {found} where {type_text(type_)} is expected")


def python_value(value: Value) -> Any:
    """A result for Python: lists for ``List``, None or a value for ``Option``, inside tuples too. What is shared stays shared, but for
    lists, each of which the caller may change."""
    return run(_python_value(value, {}))


def _python_value(value: Value, met: dict[int, Any]) -> Step[Any]:
    """``met``: what was made of values that cannot change, by their ids."""
    if not isinstance(value, tuple | AdtValue):
        return value
    if id(value) in met:
        return met[id(value)]
    made: Any
    if isinstance(value, tuple):
        parts = []
        for part in value:
            parts.append((yield _python_value(part, met)))
        made = tuple(parts)
    elif value.adt == "List":
        items = []
        while value.fields:
            items.append((yield _python_value(value.fields[0], met)))
            value = cast(AdtValue, value.fields[1])
        return items
    elif value.adt == "Option":
        made = (yield _python_value(value.fields[0], met)) if value.fields else None
    else:
        fields = []
        for part in value.fields:
            fields.append((yield _python_value(part, met)))
        made = AdtValue(value.adt, value.constructor, value.tag, tuple(fields))
    met[id(value)] = made
    return made
