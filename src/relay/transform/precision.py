"""Matrix products in reduced precision, where it was asked for.

``bf16``: the operands of a product with a constant weight are rounded to bfloat16 and multiplied and summed in float32,
in which products of bfloat16 numbers are exact. ``int8-weights``: a weight becomes integers from -127 to 127 and one
scale for each column of the result, which multiplies the sums; the data stays float32. (Dissertation, section 5.3: the
rewriting is part of the program, annotated by its types, so that what is lost can be read off and evaluated.)

Both are written into the program: the interpreter computes what the kernels compute, up to the order of sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Binding, Block, Call, Constant, Expr, OpRef, Var
from relay.ir.module import Module
from relay.ir.types import TensorType
from relay.op.batched import SUFFIX
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, is_primitive, map_functions
from relay.transform.build import constant, op_call, type_of

Precision = Literal["float32", "bf16", "int8-weights"]
# Operators that multiply their first operand by a weight of rank 2, their second; also as what levels of a structure do for all their
# nodes, where the weight is one for all.
_PRODUCTS = frozenset(("nn.dense", "nn.matmul"))
_SHARED = (1, 0)
# Elements of a weight below which there is nothing to gain.
_WORTH = 1 << 12


@dataclass(frozen=True, slots=True)
class ReducePrecision(Pass):
    """Round the weights of matrix products, and for bf16 the data as well.

    Before: typed blocks. After: typed blocks; products of float32 with a constant weight of at least 4096 elements are
    products of narrower operands with float32 results. Everything else is as it was.
    """

    precision: Precision = "bf16"
    name: ClassVar[str] = "reduce_precision"

    def __call__(self, module: Module) -> Module:
        if self.precision == "float32":
            return module
        reducer = _Reducer(self.precision, {})
        return map_functions(module, lambda f: f if is_primitive(f) else Forward(reducer.visit).function(f))


@dataclass(slots=True, eq=False)
class _Reducer:
    precision: Precision
    # The narrow form of each weight (which is kept alive by it): a weight used twice stays one constant.
    done: dict[tuple[int, int], tuple[Constant, Constant, Constant | None]]

    def visit(self, scope: Scope, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or not isinstance(value.fn, OpRef):
            return value
        name = value.fn.name.removesuffix(SUFFIX)
        if name not in _PRODUCTS or (name != value.fn.name and value.attrs["mask"] != _SHARED):
            return value
        data, weight = value.args
        ty = value.ty
        if not isinstance(weight, Constant) or weight.dtype != "float32" or weight.data.size < _WORTH:
            return value
        if not isinstance(ty, TensorType) or ty.dtype != "float32" or _dtype(data) != "float32":
            return value
        if not np.isfinite(weight.data).all():
            return value  # nothing narrower says the same of a column with an infinity in it
        by_columns = name == "nn.dense" or bool(value.attrs.get("transpose_b", False))
        narrow, scale = self._narrow(weight, 0 if by_columns else 1)
        attrs = {**value.attrs, "out_dtype": "float32"}
        if scale is None:
            cast = op_call("cast", (data,), {"dtype": "bfloat16"}, value.span)
            rounded = Var("rounded", None, cast.ty)
            product = op_call(value.fn.name, (rounded, narrow), attrs, value.span)
            sums = Var("sums", None, product.ty)
            return Block((Binding(rounded, cast), Binding(sums, product)), sums, ty)
        product = op_call(value.fn.name, (data, narrow), attrs, value.span)
        sums = Var("sums", None, product.ty)
        scaled = op_call("multiply", (sums, scale), span=value.span)
        result = Var("scaled", None, scaled.ty)
        return Block((Binding(sums, product), Binding(result, scaled)), result, ty)

    def _narrow(self, weight: Constant, channel: int) -> tuple[Constant, Constant | None]:
        """A weight in fewer bits, and the scale of each of its channels (None: of none)."""
        key = (id(weight.data), channel)
        found = self.done.get(key)
        if found is None:
            data = np.asarray(weight.data)
            if self.precision == "bf16":
                found = weight, constant(data.astype(numpy_dtype("bfloat16")), "bfloat16"), None
            else:
                integers, scale = quantised(data, channel)
                found = weight, constant(integers, "int8"), constant(scale, "float32")
            self.done[key] = found
        return found[1], found[2]


def quantised(weight: npt.NDArray[np.generic], channel: int) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """A matrix as ``integers * scale`` with one scale for each index of the axis ``channel``: the largest magnitude
    becomes 127, the rest is rounded to nearest even, so that no element is off by more than half a scale. A channel of
    zeros has the scale 1."""
    exact = np.asarray(weight, np.float64)
    largest = np.abs(exact).max(axis=1 - channel, initial=0.0)
    scale = np.where(largest > 0, largest / 127, 1.0).astype(np.float32)
    scale = np.where(scale > 0, scale, np.float32(1.0))  # what underflows rounds to zeros
    steps = np.rint(exact / np.expand_dims(scale.astype(np.float64), 1 - channel))
    return np.clip(steps, -127, 127).astype(np.int8), scale


def _dtype(e: Expr) -> object:
    ty = type_of(e)
    return ty.dtype if isinstance(ty, TensorType) else None
