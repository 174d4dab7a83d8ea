"""Making calls: arguments become expressions.

relay.op.nn.dense(x, w, units=384)        # by attribute
call("nn.dense", x, w, units=384)         # by name
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, cast, get_args

import numpy as np

from relay.ir.dtypes import dtype_name
from relay.ir.expr import Attr, Call, Constant, Expr, OpRef, Tuple
from relay.te.numeric import Array

_EXPRESSIONS = get_args(Expr)


def as_expr(value: object) -> Expr:
    """An expression from an expression (kept), a number or array (a constant), or a sequence of such (a tuple).

    A Python float becomes a float32 constant, an int an int32 one, as in the text format's ``1.0`` and ``1``.
    Raises TypeError for anything else.
    """
    if isinstance(value, _EXPRESSIONS):
        return cast(Expr, value)
    if isinstance(value, tuple | list):
        return Tuple(tuple(as_expr(v) for v in value))
    if isinstance(value, bool):
        return constant(np.array(value))
    if isinstance(value, int):
        return constant(np.array(value, np.int32))
    if isinstance(value, float):
        return constant(np.array(value, np.float32))
    if isinstance(value, np.ndarray | np.generic):
        return constant(np.asarray(value))
    raise TypeError(f"not an expression, number, array or sequence of these: {value!r}")


def constant(data: Array) -> Constant:
    """A constant that holds a copy of an array."""
    held = np.array(data, order="C")
    held.flags.writeable = False
    return Constant(held, dtype_name(held.dtype))


def call(name: str, *args: object, **attrs: Attr) -> Call:
    """A call of the operator of this name."""
    return Call(OpRef(name), tuple(as_expr(a) for a in args), MappingProxyType({k: _attr(v) for k, v in attrs.items()}))


def _attr(value: Any) -> Attr:
    """Lists are accepted for tuples."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_attr(v) for v in value)
    return value  # type: ignore[no-any-return]
