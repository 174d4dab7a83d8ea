"""Making typed calls in passes: the local type relation is solved, nothing else is inferred again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import cast

import numpy as np
import numpy.typing as npt

from relay.ir.expr import NO_ATTRS, Attr, Attrs, Binding, Block, Call, Constant, Expr, Function, OpRef, Var
from relay.ir.span import Span
from relay.ir.types import FuncType, TensorType, Type
from relay.typing import op_type


def type_of(e: Expr) -> Type:
    """The type of a typed expression. Raises TypeError when it has none."""
    if e.ty is None and isinstance(e, Constant):
        return TensorType(e.data.shape, e.dtype)
    if e.ty is None:
        raise TypeError(f"{type(e).__name__} without a type: the pass needs a typed program")
    return e.ty


def op_call(name: str, args: Sequence[Expr], attrs: Attrs = NO_ATTRS, span: Span | None = None) -> Call:
    """A typed call of an operator on typed atoms."""
    return internal_call(name, args, op_type(name, [type_of(a) for a in args], attrs), attrs, span)


def internal_call(name: str, args: Sequence[Expr], ty: Type, attrs: Attrs = NO_ATTRS, span: Span | None = None) -> Call:
    """A call of an operation of a given type (one of the middle end's own, or an operator whose type is known
    already)."""
    fn = OpRef(name, FuncType(tuple(type_of(a) for a in args), ty))
    return Call(fn, tuple(args), attrs, (), ty, span)


def zeros_of(ty: Type) -> Call:
    """A tensor of this type of zeros."""
    assert isinstance(ty, TensorType)
    attrs = MappingProxyType({"shape": cast(Attr, ty.shape), "dtype": cast(Attr, ty.dtype)})
    return internal_call("zeros", (), ty, attrs)


def constant(data: npt.NDArray[np.generic], dtype: str) -> Constant:
    """A typed constant of an array made for it: it is read-only from here on. (Weights are large: no copy.)"""
    data.flags.writeable = False
    return Constant(data, dtype, TensorType(data.shape, dtype))


def calling(primitive: Function, constants: Mapping[int, Constant] | None = None) -> Function:
    """A function that calls a primitive, with ``constants`` for the operands of these numbers and parameters for the others."""
    args: list[Expr] = []
    for n, param in enumerate(primitive.params):
        known = (constants or {}).get(n)
        args.append(Var(f"p{n}", None, param.ty) if known is None else known)
    ty = primitive.ret_type
    result = Var("r", None, ty)
    call = Call(primitive, tuple(args), ty=ty)
    return Function(tuple(a for a in args if isinstance(a, Var)), Block((Binding(result, call),), result, ty), ty)
