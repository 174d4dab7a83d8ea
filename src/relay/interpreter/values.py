"""The values of the interpreter: tensors are NumPy arrays (rank 0 for scalars), tuples are tuples, algebraic values are `AdtValue`;
functions and references are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from relay.interpreter.scopes import Scopes
from relay.ir.dim import DimVar
from relay.ir.expr import Expr, Function
from relay.ir.record import record
from relay.ir.types import ConstructorDef
from relay.ir.value import AdtValue
from relay.typing.text import shape_text

Array = npt.NDArray[np.generic]


@record(slots=True, eq=False)
class Environment:
    """One activation of a function: the values of its variables and of its shared nodes, and the sizes that it knows."""

    values: dict[Expr, Value]
    dims: dict[DimVar, int]
    scopes: Scopes


@record(frozen=True, slots=True, eq=False)
class Closure:
    """A function value: the function, what it captured, the sizes known where it was made. ``first`` are arguments already given."""

    function: Function
    captured: dict[Expr, Value]
    dims: Mapping[DimVar, int]
    scopes: Scopes
    name: str
    first: tuple[Value, ...] = ()

    def __repr__(self) -> str:
        return f"<function {self.name}>"


@record(frozen=True, slots=True)
class OperatorValue:
    """An operator used as a value."""

    name: str


@record(frozen=True, slots=True)
class ConstructorValue:
    """A constructor used as a value."""

    definition: ConstructorDef


@record(slots=True, eq=False)
class Reference:
    """A cell of the store. Two references are equal when they are the same cell."""

    value: Value = field(repr=False)


Value: TypeAlias = "Array | tuple[Value, ...] | AdtValue | Closure | OperatorValue | ConstructorValue | Reference"


def kind_of(value: Value) -> str:
    """What a value is, for messages."""
    match value:
        case tuple():
            return f"a tuple of {len(value)}"
        case AdtValue():
            return f"a {value.constructor} of {value.adt}"
        case Closure():
            return f"the function {value.name}"
        case OperatorValue():
            return f"the operator {value.name}"
        case ConstructorValue():
            return f"the constructor {value.definition.name}"
        case Reference():
            return "a reference"
        case _:
            return f"a {value.dtype.name} tensor of shape {shape_text(value.shape)}"
