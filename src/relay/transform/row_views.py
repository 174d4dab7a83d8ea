"""A slice at a number of the first axis is a view: the weights of an expert, the matrix of a step, the state of a layer.

Where a kernel reads the slice through its number it is never made. Elsewhere, before a product of matrices for one, it was copied.
"""

from __future__ import annotations

from typing import ClassVar

from relay.ir.dim import shape_size
from relay.ir.dim_total import dim_typical
from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, GlobalVar, OpRef, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import FuncType, TensorType, TupleType, Type, dtype_bits
from relay.transform.base import Pass
from relay.transform.blocks import (
    Forward,
    Scope,
    all_bindings,
    body_of,
    is_primitive,
    map_functions,
    on_several_devices,
    operands,
)
from relay.transform.build import internal_call, type_of
from relay.transform.primitive import PRIMITIVE

# Slices of fewer elements (of sizes that are not known: as they are in the typical case) are copied as fast as a view is made.
_FEWEST = 1024


@record(frozen=True, slots=True)
class RowViews(Pass):
    """Kernels that do nothing but ``take`` one slice of the first axis are views of it (``rows.row``).

    Before: typed blocks of primitives. After: the same values. Only slices of constants and of parameters that the function does not
    change are views: a tensor of which there are views is not written over but copied as a whole. Programs that use several devices are
    left as they are.
    """

    name: ClassVar[str] = "row_views"

    def __call__(self, module: Module) -> Module:
        if any(on_several_devices(f) for f in module.functions.values()):
            return module
        own = {id(f): name for name, f in module.functions.items()}
        return map_functions(module, lambda f: f if is_primitive(f) else _viewing(own[id(f)], f))


def _viewing(name: str, function: Function) -> Function:
    body = body_of(function)
    taken = {row.data for b in all_bindings(body) if (row := _row(b.value)) is not None}
    if not taken:
        return function
    kept = {p for p in function.params if p in taken and _stays(name, function, p, body)}

    def visit(scope: Scope, var: Var, value: Expr) -> Expr:
        row = _row(value)
        if row is None or not (isinstance(row.data, Constant) or row.data in kept):
            return value
        assert value.ty is not None
        if not isinstance(row.number, Call):
            return internal_call("rows.row", (row.data, row.number), value.ty)
        number, view = Var("number", None, row.number.ty), Var(var.name, None, var.ty)
        given = internal_call("rows.row", (row.data, number), value.ty)
        return Block((Binding(number, row.number), Binding(view, given)), view, value.ty)

    return Forward(visit).function(function)


@record(frozen=True, slots=True, eq=False)
class _Row:
    """One slice of the first axis of ``data``, at a number: an atom, or what the kernel has computed for itself."""

    data: Expr
    number: Expr


def _row(value: Expr) -> _Row | None:
    """The slice that a call of a primitive is and nothing but that."""
    if not isinstance(value, Call) or not is_primitive(value.fn) or not isinstance(value.fn.body, Block):
        return None
    fn, body, ty = value.fn, value.fn.body, value.ty
    *before, last = body.bindings or (None,)
    take = None if last is None or body.result is not last.var else last.value
    if not isinstance(take, Call) or not isinstance(take.fn, OpRef) or take.fn.name != "take":
        return None
    table, at = take.args
    data, one = type_of(table), type_of(at)
    clips = take.attrs.get("mode", "clip") in ("clip", "fast") and take.attrs.get("axis") == 0
    whole = isinstance(data, TensorType) and isinstance(data.dtype, str) and dtype_bits(data.dtype) >= 8
    large = isinstance(ty, TensorType) and isinstance(ty.shape, tuple) and dim_typical(shape_size(ty.shape)) >= _FEWEST
    if not (clips and whole and large and isinstance(one, TensorType) and one.shape == ()):
        return None
    args = dict(zip(fn.params, value.args, strict=True))
    computed = [b for b in before if b is not None]
    if table not in args or any(table in operands(b.value) for b in computed) or not isinstance(table, Var):
        return None
    if at in args or isinstance(at, Constant):
        return _Row(args[table], args[at] if isinstance(at, Var) else at)
    params = tuple(p for p in fn.params if p is not table)
    fn_type = FuncType(tuple(map(type_of, params)), one)
    number = Function(params, Block(tuple(computed), at, one), one, attrs=PRIMITIVE, ty=fn_type, span=fn.span)
    return _Row(args[table], Call(number, tuple(args[p] for p in params), ty=one, span=value.span))


def _stays(name: str, function: Function, param: Var, body: Block) -> bool:
    """Whether a function hands a parameter on unchanged, if at all, and makes nothing that could take over its memory."""
    place = function.params.index(param)
    if body.result is param:
        return False
    for binding in all_bindings(body):
        value = binding.value
        if param not in operands(value):
            continue
        if not isinstance(value, Call):
            return False
        if isinstance(value.fn, GlobalVar) and value.fn.name == name:
            if value.args[place] is not param or value.args.count(param) > 1:
                return False
        elif not is_primitive(value.fn) or any(t == param.ty for t in _tensors(value.ty)):
            return False
    return True


def _tensors(ty: Type | None) -> tuple[Type | None, ...]:
    return ty.fields if isinstance(ty, TupleType) else (ty,)
