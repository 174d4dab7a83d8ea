"""Products in reduced precision, where it was asked for.

``bf16``: the operands of a product with a constant weight are rounded to bfloat16 and multiplied and summed in float32,
in which products of bfloat16 numbers are exact. ``int8-weights``: a weight becomes integers from -127 to 127 and a scale
for all elements that one sum adds up, which multiplies the sum; the data stays float32. (Dissertation, section 5.3: the
rewriting is part of the program, annotated by its types, so that what is lost can be read off and evaluated.)

Both are written into the program: the interpreter computes what the kernels compute, up to the order of sums. No operator
is known by name: a product is a sum of products of two operands (`relay.te.bilinear`), and a weight a constant, or what is
taken of one: the matrix of a layer, of an expert, of each token's expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from relay.ir.diagnostics import RelayError
from relay.ir.dim import shape_size
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Binding, Block, Call, Constant, Expr, Function, OpRef, Proj, Tuple, Var
from relay.ir.module import Module
from relay.ir.record import record
from relay.ir.span import Span
from relay.ir.types import TensorType, TupleType
from relay.op import registry
from relay.op.narrow import SCALED, WIDENED, can_narrow
from relay.te.bilinear import Bilinear, moved
from relay.te.scalar import Axis, Load, mentioned
from relay.te.tensor import Compute
from relay.transform.base import Pass
from relay.transform.blocks import Forward, Scope, is_primitive, map_functions
from relay.transform.build import constant, op_call, type_of
from relay.transform.traced import grouped_operands, product_of, traced_call

Precision = Literal["float32", "bf16", "int8-weights"]
# Elements of a weight below which there is nothing to gain.
_WORTH = 1 << 12


@record(frozen=True, slots=True)
class ReducePrecision(Pass):
    """Round the weights of products, and for bf16 the data as well.

    Before: typed blocks. After: typed blocks; products of float32 with a constant weight of at least 4096 elements, or with what is taken
    of one, are products of narrower operands with float32 results. Everything else is as it was.
    """

    precision: Precision = "bf16"
    name: ClassVar[str] = "reduce_precision"

    def __call__(self, module: Module) -> Module:
        if self.precision == "float32":
            return module
        narrowed = Narrowed(self.precision)
        return map_functions(module, lambda f: f if is_primitive(f) else _Reducer(narrowed).function(f))

    def kept(self, module: Module) -> list[tuple[str, str]]:
        """The products of float32 that stay so in a module of typed blocks: where each is, and why."""
        found: list[tuple[str, str]] = []
        for name, function in module.functions.items():
            if is_primitive(function) or self.precision == "float32":
                continue
            reducer = _Reducer(Narrowed(self.precision))
            reducer.function(function)
            for var, (span, why) in reducer.kept.items():
                found.append((f"@{name} at {span}" if span is not None else f"@{name}, %{var.name}", why))
        return found


@record(slots=True, eq=False)
class Narrowed:
    """Weights in fewer bits. A weight used twice stays one constant."""

    precision: Precision
    # By a weight's data, which is kept alive by it, and the axes that are summed: its narrow form, and the scales (None: of none).
    done: dict[tuple[int, frozenset[int]], tuple[Constant, Constant, Constant | None]] = field(default_factory=dict)

    def of(self, weight: Constant, summed: frozenset[int]) -> tuple[Constant, Constant | None]:
        """A weight's narrow form; and a scale for each place along the axes that are not ``summed``."""
        key = (id(weight.data), summed if self.precision == "int8-weights" else frozenset())
        found = self.done.get(key)
        if found is None:
            data = np.asarray(weight.data)
            if self.precision == "bf16":
                found = weight, constant(data.astype(numpy_dtype("bfloat16")), "bfloat16"), None
            else:
                integers, scale = quantised(data, tuple(sorted(summed)))
                found = weight, constant(integers, "int8"), constant(scale, "float32")
            self.done[key] = found
        return found[1], found[2]


@record(frozen=True, slots=True, eq=False)
class _Step:
    """A call whose result has elements of its first operand at other places: the slice of a stack, a transpose. ``output``: which of
    its results that is, None where it has one. ``read``: where an element of it is read."""

    call: Call
    output: int | None
    place: Load
    axes: tuple[Axis, ...]

    def summed(self, axes: frozenset[int]) -> frozenset[int]:
        """The axes of the first operand along which elements lie that lie along ``axes`` of the result."""
        own = {self.axes[n] for n in axes}
        return frozenset(n for n, index in enumerate(self.place.indices) if mentioned(index) & own)


@record(frozen=True, slots=True, eq=False)
class _Weight:
    """A constant and the steps, first to last, by which a product's operand is taken of it."""

    data: Constant
    steps: tuple[_Step, ...]

    def summed(self, axes: frozenset[int]) -> frozenset[int]:
        """The constant's axes along which the operand's ``axes`` go."""
        for step in reversed(self.steps):
            axes = step.summed(axes)
        return axes

    def retaken(self, of: Constant, bindings: list[Binding]) -> Expr | None:
        """The same taken of another constant; None where the steps do not take it (their attributes say sizes that it does not have)."""
        taken: Expr = of
        for step in self.steps:
            try:
                call = op_call(_name(step.call), (taken, *step.call.args[1:]), step.call.attrs, step.call.span)
            except RelayError:
                return None
            var = Var("taken", None, call.ty)
            bindings.append(Binding(var, call))
            taken = var
            if step.output is not None:
                assert isinstance(call.ty, TupleType)
                part = Var("part", None, call.ty.fields[step.output])
                bindings.append(Binding(part, Proj(var, step.output, part.ty)))
                taken = part
        return taken


@record(slots=True, eq=False)
class _Reducer:
    """Products of one function. ``kept`` are those that stay float32, and why."""

    narrowed: Narrowed
    kept: dict[Var, tuple[Span | None, str]] = field(default_factory=dict)
    driver: Forward = field(init=False)

    def __post_init__(self) -> None:
        self.driver = Forward(self.visit)

    def function(self, function: Function) -> Function:
        return self.driver.function(function)

    def visit(self, scope: Scope, var: Var, value: Expr) -> Expr:
        if not isinstance(value, Call) or _dtype(value) != "float32" or not _is_expression(value):
            return value
        operands = [p for a in value.args for p in self._parts(a)]
        if len(operands) < 2 or all(_size(e) < _WORTH for e in operands):
            return value
        product = product_of(value, operands)
        if product is None or any(_dtype(operands[f.operand]) != "float32" for f in product.factors):
            return value
        found = self._reduced(value, operands, product)
        if isinstance(found, str):
            self.kept[var] = value.span, found
            return value
        return found

    def _parts(self, e: Expr) -> tuple[Expr, ...]:
        """The tensors of an operand: those of a tuple each."""
        if not isinstance(e.ty, TupleType):
            return (e,)
        whole = self.driver.definition(e)
        return whole.fields if isinstance(whole, Tuple) else ()

    def _reduced(self, value: Call, operands: Sequence[Expr], product: Bilinear) -> Block | str:
        """A product of narrower operands, or why it is none."""
        factor = product.right
        if factor is None:
            return "no operand alone moves along the last axis of its result"
        weight = self._weight(operands[factor.operand])
        if weight is None:
            other = next(f for f in product.factors if f is not factor)
            if self._weight(operands[other.operand]) is not None:
                return "the last axis of its result is the data's, not the weight's: write the weight on the right, channels last"
            return "its weight is no constant, nor taken of one"
        if weight.data.data.size < _WORTH:
            return f"its weight has {weight.data.data.size} elements, fewer than {_WORTH}"
        if not np.isfinite(weight.data.data).all():
            return "its weight has elements that are not finite"
        summed = factor.summed(product.over)
        if summed is None:
            return "its weight is read by way of a border"
        bindings: list[Binding] = []
        narrow, scale = self.narrowed.of(weight.data, weight.summed(summed))
        taken = weight.retaken(narrow, bindings)
        assert taken is not None, "steps move elements of any dtype"
        given = {factor.operand: taken}
        name, attrs = _name(value), dict(value.attrs)
        if scale is None:
            data = next(f.operand for f in product.factors if f is not factor)
            cast = op_call("cast", (operands[data],), {"dtype": "bfloat16"}, value.span)
            rounded = Var("rounded", None, cast.ty)
            given[data] = rounded
            bindings.append(Binding(rounded, cast))
        attrs["widened"] = tuple("float32" if n in given else "" for n in range(len(operands)))
        args = [given.get(n, e) for n, e in enumerate(operands)]
        name += WIDENED
        scales: tuple[Expr, ...] = ()
        if scale is not None:
            mine = weight.retaken(scale, bindings)
            if mine is None or not _fits(mine, taken, summed):
                return "the scales of its weight cannot be taken as the weight is"
            name, attrs, scales = name + SCALED, {**attrs, "operand": factor.operand}, (mine,)
        call = op_call(name, (*scales, *grouped_operands(value.args, args, bindings)), attrs, value.span)
        result = Var("product", None, call.ty)
        return Block((*bindings, Binding(result, call)), result, value.ty)

    def _weight(self, e: Expr) -> _Weight | None:
        """An operand as what is taken of a constant of float32, if it is that."""
        steps: list[_Step] = []
        while not isinstance(e, Constant):
            found = self.driver.definition(e)
            output = None
            if isinstance(found, Proj):
                output, found = found.index, self.driver.definition(found.tuple)
            step = _step(found, output) if isinstance(found, Call) else None
            if step is None:
                return None
            steps.append(step)
            e = step.call.args[0]
        return _Weight(e, tuple(reversed(steps))) if e.dtype == "float32" else None


def _step(call: Call, output: int | None) -> _Step | None:
    if not _is_expression(call, "view") or any(isinstance(a.ty, TupleType) for a in call.args):
        return None
    traced = traced_call(call, call.args)
    if traced is None or (output is None) is traced.is_tuple:
        return None
    tensor = traced.outputs[output or 0]
    place = moved(traced.inputs, tensor)
    if place is None:
        return None
    assert isinstance(tensor.stage, Compute), "elements are read by a stage that computes"
    return _Step(call, output, place, tensor.stage.axes)


def _is_expression(call: Call, *kinds: str) -> bool:
    """Whether a call is of an operator that is an expression (or of one of some other kinds), and can be of narrower operands."""
    if not isinstance(call.fn, OpRef) or not registry.exists(call.fn.name):
        return False
    op = registry.get(call.fn.name)
    return can_narrow(op) or (op.kind in kinds and op.shape_mode == "independent")


def _name(call: Call) -> str:
    assert isinstance(call.fn, OpRef)
    return call.fn.name


def _fits(scale: Expr, taken: Expr, summed: frozenset[int]) -> bool:
    """Whether a scale has the shape of what it scales, but for axes that are summed."""
    mine, own = type_of(scale), type_of(taken)
    assert isinstance(mine, TensorType) and isinstance(own, TensorType) and isinstance(own.shape, tuple)
    return mine.shape == tuple(1 if n in summed else d for n, d in enumerate(own.shape))


def quantised(
    weight: npt.NDArray[np.generic], summed: tuple[int, ...]
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """A weight as ``integers * scale`` with one scale for all elements along the ``summed`` axes, which have one place in it: the largest
    magnitude becomes 127, the rest is rounded to nearest even, so that no element is off by more than half a scale. What is all zeros has
    the scale 1."""
    exact = np.asarray(weight, np.float64)
    largest = np.abs(exact).max(axis=summed, initial=0.0, keepdims=True)
    scale = np.where(largest > 0, largest / 127, 1.0).astype(np.float32)
    scale = np.where(scale > 0, scale, np.float32(1.0))  # what underflows rounds to zeros
    steps = np.rint(exact / scale.astype(np.float64))
    return np.clip(steps, -127, 127).astype(np.int8), scale


def _dtype(e: Expr) -> object:
    ty = type_of(e)
    return ty.dtype if isinstance(ty, TensorType) else None


def _size(e: Expr) -> int:
    """How many elements a tensor has; many where that is not known."""
    ty = type_of(e)
    if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple):
        return 0
    size = shape_size(ty.shape)
    return size if isinstance(size, int) else _WORTH
