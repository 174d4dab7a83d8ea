"""Small parts that the functions of a loop's gradient are written from (see `loop_code`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import cast

import numpy as np

from relay.ir.dim import ANY, Dim, DimVar, as_var, is_any
from relay.ir.expr import Binding, Call, Constant, Expr, GlobalVar, If, OpRef, Proj, Tuple, Var
from relay.ir.span import Span
from relay.ir.types import FuncType, TensorType, TupleType, Type, TypeArg
from relay.ir.walk import free_vars
from relay.transform.ad.duals import differentiable
from relay.transform.ad.loops import INSIDE, Unsuited
from relay.transform.ad.terms import Code, project, tuple_of
from relay.transform.blocks import nested_blocks, operands
from relay.transform.build import constant, internal_call, op_call, type_of
from relay.typing.substitution import map_type

INDEX = TensorType((), "int64")


def call_of(target: GlobalVar, args: Sequence[Expr], dims: Mapping[DimVar, TypeArg], span: Span | None) -> Call:
    """A call of a function whose dim parameters are ``dims`` where these say so, and otherwise what the arguments say."""
    ty = target.ty
    assert isinstance(ty, FuncType)
    wanted = {d: dims.get(d, ANY) for d in ty.type_params if isinstance(d, DimVar)}
    known = solved(wanted, ty.params, map(type_of, args))
    return Call(target, tuple(args), type_args=tuple(known.values()), ty=instance(ty.ret, known), span=span)


def solved(dims: Mapping[DimVar, TypeArg], params: Iterable[Type], given: Iterable[Type]) -> dict[DimVar, TypeArg]:
    """The dims of a function's parameters, those that are unknown as its arguments' types say them."""
    known = dict(dims)
    for param, arg in zip(params, given, strict=True):
        _solve(param, arg, known)
    return known


def _solve(param: Type, arg: Type, known: dict[DimVar, TypeArg]) -> None:
    if isinstance(param, TensorType) and isinstance(arg, TensorType):
        for a, b in zip(cast("tuple[Dim, ...]", param.shape), cast("tuple[Dim, ...]", arg.shape), strict=False):
            v = as_var(a)
            if v is not None and v in known and known[v] is ANY and not is_any(b):
                known[v] = b
    elif isinstance(param, TupleType) and isinstance(arg, TupleType):
        for p, q in zip(param.fields, arg.fields, strict=True):
            _solve(p, q, known)


def instance(ty: Type, dims: Mapping[DimVar, TypeArg]) -> Type:
    return cast(Type, map_type(ty, lambda _: None, lambda d: cast("Dim | None", dims.get(d))))


def inputs(value: Expr) -> list[Var]:
    """The variables that a value reads, inside of branches too."""
    found = list(operands(value))
    for block in nested_blocks(value):
        found += free_vars(block)
    return [a for a in found if isinstance(a, Var)]


def needed(bindings: Sequence[Binding], roots: Iterable[Expr]) -> list[Binding]:
    """The bindings that values need, in order. Only operators, tuples, calls and branches may stand there."""
    used = {r for r in roots if isinstance(r, Var)}
    out: list[Binding] = []
    for b in reversed(bindings):
        if b.var in used:
            out.append(b)
            used.update(inputs(b.value))
            called = b.value.fn if isinstance(b.value, Call) else None
            if not isinstance(b.value, Call | Tuple | Proj | If) or not isinstance(called, OpRef | GlobalVar | None):
                raise Unsuited(INSIDE)
    out.reverse()
    return out


def is_tensor(v: Expr) -> bool:
    return isinstance(type_of(v), TensorType)


def is_made_of_tensors(ty: Type) -> bool:
    return isinstance(ty, TensorType) or (isinstance(ty, TupleType) and all(is_made_of_tensors(f) for f in ty.fields))


def integer(value: int) -> Constant:
    return constant(np.array(value, np.int64), "int64")


def one() -> Constant:
    return integer(1)


def no_rows(ty: TensorType) -> Call:
    """A tape without rows, for values of this type."""
    assert isinstance(ty.shape, tuple)
    return op_call("zeros", (), {"shape": (0, *ty.shape), "dtype": ty.dtype})


def room(tape: Expr, rows: Expr, number: int) -> Call:
    """A tape in memory with room for so many rows more; every room has a number of its own."""
    return internal_call("rows.reserve", (tape, rows), type_of(tape), MappingProxyType({"number": number}))


def longer(code: Code, tape: Expr, v: Expr) -> Expr:
    """A tape with a value as one more row."""
    row = code.bind(op_call("expand_dims", (v,), {"axis": 0}))
    return code.bind(op_call("concatenate", (code.bind(tuple_of((tape, row))),), {"axis": 0}), "tape")


def row_count(code: Code, x: Expr) -> Call:
    shape = code.bind(op_call("shape_of", (x,), {"dtype": "int64"}))
    return op_call("take", (shape, integer(0)), {"axis": 0})


def tensor_part(code: Code, value: Expr, number: int) -> Expr:
    """Tensor ``number`` among the differentiable ones in a value made of tuples."""
    return _parts(code, value)[number]


def _parts(code: Code, value: Expr) -> list[Expr]:
    ty = type_of(value)
    if isinstance(ty, TupleType):
        return [t for n in range(len(ty.fields)) for t in _parts(code, code.bind(project(value, n)))]
    return [value] if differentiable(ty) else []
