"""Constant folding: what depends on constants only is computed now, by compiled code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from relay.ir.dim import is_symbolic
from relay.ir.effects import Effect
from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, If, OpRef, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.types import TensorType, TupleType, Type, dtype_bits
from relay.op import registry
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, is_primitive, map_functions
from relay.transform.build import constant, type_of
from relay.transform.cse import operation_key
from relay.transform.dims import attr_dims
from relay.transform.primitive import as_primitive_call
from relay.transform.simplify import decide

Array = npt.NDArray[np.generic]
# Runs a primitive on arrays (in parameter order) and gives its results.
Evaluate = Callable[[Function, Sequence[Array]], Sequence[Array]]


@record(frozen=True, slots=True)
class FoldConstants(Pass):
    """Replace operator calls on constants by their results.

    ``evaluate`` runs a primitive; the pipeline gives a function that compiles it. Folded are calls of pure expression
    and view operators whose result has a known size of at most ``max_bytes``, or is not larger than its operands. The
    shape and the size of a tensor of known shape are constants too.

    A branch that is known not to be taken goes: where sizes decide, what stands in it need not make sense for these.

    Before: typed blocks, compositions expanded. After: typed blocks without such calls.
    """

    evaluate: Evaluate
    max_bytes: int = 1 << 16
    name: ClassVar[str] = "fold_constants"

    def __call__(self, module: Module) -> Module:
        folder = _Folder(self)
        return map_functions(module, lambda f: f if is_primitive(f) else _driver(folder).function(f))


def _driver(folder: _Folder) -> Forward:
    def visit(scope: Scope, var: Var, value: Expr) -> Expr:
        return folder.fold(driver, var, value)

    driver = Forward(visit)
    return driver


@record(slots=True, eq=False)
class _Folder:
    options: FoldConstants
    # Results by operation: the same call on the same constants is run once, whatever function it stands in.
    done: dict[object, tuple[Constant, ...]] = field(default_factory=dict)

    def fold(self, driver: Forward, var: Var, value: Expr) -> Expr:
        if isinstance(value, If):
            return decide(value, driver.definition)
        if not isinstance(value, Call) or not isinstance(value.fn, OpRef) or not registry.exists(value.fn.name):
            return value
        op = registry.get(value.fn.name)
        if op.kind not in ("expression", "view") or op.shape_mode != "independent" or op.effects is not Effect.PURE:
            return value
        known = _known_shape(op.name, value)
        if known is not None:
            return known
        # A size that only the run knows, though the result's own are numbers: `arange(start=Dim[n], stop=Dim[n + 1])`.
        if any(True for _ in attr_dims(value.attrs)):
            return value
        operands = [driver.definition(a) if isinstance(type_of(a), TupleType) else a for a in value.args]
        parts = [p for o in operands for p in (o.fields if isinstance(o, Tuple) else (o,))]
        if not all(isinstance(p, Constant) for p in parts):
            return value
        size = _bytes(value.ty)
        given = sum(p.data.nbytes for p in parts if isinstance(p, Constant))
        if size is None or size > max(self.options.max_bytes, given):
            return value
        key = operation_key(value)
        found = self.done.get(key)
        if found is None:
            tuples = {
                a: o for a, o in zip(value.args, operands, strict=True) if isinstance(a, Var) and isinstance(o, Tuple)
            }
            found = self.done[key] = self.run(Binding(var, value), tuples)
        if not isinstance(value.ty, TupleType):
            return found[0]
        whole = Var(var.name, None, value.ty)
        return Block((Binding(whole, Tuple(found, value.ty)),), whole, value.ty)

    def run(self, binding: Binding, tuples: dict[Var, Tuple]) -> tuple[Constant, ...]:
        """The results of a call on constants."""
        _, call = as_primitive_call([binding], [binding.var], tuples)
        assert isinstance(call.fn, Function)
        arrays = [a.data for a in call.args if isinstance(a, Constant)]
        ty = type_of(binding.value)
        types = ty.fields if isinstance(ty, TupleType) else (ty,)
        return tuple(_as_constant(r, t) for r, t in zip(self.options.evaluate(call.fn, arrays), types, strict=True))


def _as_constant(data: Array, ty: Type) -> Constant:
    assert isinstance(ty, TensorType) and isinstance(ty.dtype, str)
    return constant(np.asarray(data), ty.dtype)


def _known_shape(name: str, call: Call) -> Constant | None:
    """The result of ``shape_of`` and ``ndarray_size`` on a tensor of known shape."""
    if name not in ("shape_of", "ndarray_size"):
        return None
    ty, out = type_of(call.args[0]), call.ty
    if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or not isinstance(out, TensorType):
        return None
    if not all(isinstance(d, int) for d in ty.shape) or not isinstance(out.dtype, str):
        return None
    shape = np.array(ty.shape, np.int64)
    found = shape if name == "shape_of" else np.array(shape.prod())
    return constant(found.astype(out.dtype), out.dtype)


def _bytes(ty: Type | None) -> int | None:
    """The size of a result in bytes, where it is known."""
    match ty:
        case TensorType(shape=tuple() as shape, dtype=str() as dtype):
            size = 1
            for d in shape:
                if not isinstance(d, int) or is_symbolic(d):
                    return None
                size *= d
            return size * dtype_bits(dtype) // 8
        case TupleType():
            sizes = [_bytes(f) for f in ty.fields]
            return None if None in sizes else sum(s for s in sizes if s is not None)
        case _:
            return None
