"""The form of an operator call for many rows at once: what hoisting over time puts in front of a loop.

Given a call in which some arguments are one row (``x[t]``) of a tensor that has all rows, its form for all rows is a call, or a
few, whose result has the rows of the original as its leading axis. Three sources, in this order: the tensor expression itself
(operators whose operands are read at the trailing axes of the result: everything elementwise and broadcast), products over a
flattened leading axis, and operators that name axes, which move by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final

from relay import te
from relay.ir.diagnostics import ShapeError
from relay.ir.dim import Dim
from relay.ir.expr import Attr, Attrs, Binding, Call, Expr, OpRef, Var
from relay.ir.record import record
from relay.ir.types import TensorType, TupleType
from relay.op import registry
from relay.te.scalar import Axis, Const, Load, Reduce, Scalar, children
from relay.te.tensor import Compute, Placeholder, Tensor
from relay.transform.build import op_call, type_of

# Operators that name axes of their first operand: in which attribute, and what is meant where it names none.
_AXES: Final[Mapping[str, tuple[str, str]]] = (
    {name: ("axis", "") for name in ("nn.softmax", "nn.log_softmax", "nn.layer_norm", "nn.bias_add")}
    | {name: ("axis", "") for name in ("split", "concatenate", "reverse", "take")}
    | {name: ("axis", "all") for name in ("sum", "prod", "max", "min", "mean", "all", "any", "variance", "logsumexp")}
    | {"transpose": ("axes", "reversed"), "strided_slice": ("axes", "begins")}
)
_PRODUCTS: Final = ("nn.dense", "nn.matmul")


@record(slots=True, eq=False)
class Lifting:
    """Makes the calls for all rows; ``bindings`` are what was made, in order. ``rows``: how many there are."""

    rows: Dim
    bindings: list[Binding] = field(default_factory=list)

    def emit(self, name: str, args: Sequence[Expr], attrs: Attrs) -> Var:
        call = op_call(name, args, attrs)
        return self.bind(name.rpartition(".")[2], call)

    def bind(self, name: str, value: Expr) -> Var:
        var = Var(name, None, type_of(value))
        self.bindings.append(Binding(var, value))
        return var

    def reshape(self, x: Expr, shape: Sequence[Dim]) -> Expr:
        ty = type_of(x)
        if isinstance(ty, TensorType) and ty.shape == tuple(shape):
            return x
        return self.emit("reshape", (x,), {"newshape": tuple(shape)})

    def call(self, call: Call, of_all: Mapping[int, Expr]) -> Expr | None:
        """The call for all rows. ``of_all``: by position, the arguments that are rows, in their form for all rows. The other
        arguments are the same in every row. None where there is no such form."""
        assert isinstance(call.fn, OpRef)
        name = call.fn.name
        result = call.ty
        if not registry.exists(name):
            return None
        op = registry.get(name)
        if op.kind == "view":
            if set(of_all) != {0} or not isinstance(result, TensorType) or not isinstance(result.shape, tuple):
                return None
            return self.reshape(of_all[0], (self.rows, *result.shape))
        if op.kind != "expression" or op.by_routine or op.shape_mode != "independent":
            return None
        if name in _PRODUCTS:
            return self._product(name, call, of_all)
        if name in _AXES and set(of_all) == {0}:
            return self._moved(name, op, call, of_all[0])
        if name == "take":
            return self._table(call, of_all)
        names_axes = any(a.name in ("axis", "axes") for a in op.attrs)
        if isinstance(result, TensorType) and not names_axes and reads_trailing_axes(op, call):
            return self._broadcast(name, call, of_all)
        return None

    def _broadcast(self, name: str, call: Call, of_all: Mapping[int, Expr]) -> Expr | None:
        """The same operator, which broadcasts. Derived ones do not broadcast a cotangent, and give each operand's gradient in its own
        shape: where that leaves no form, the arguments that are the same in every row are repeated."""
        for repeated in (False, True):
            form = Lifting(self.rows)
            args = [form.in_rows(a, of_all.get(n), call, repeated) for n, a in enumerate(call.args)]
            try:
                made = form.emit(name, args, call.attrs)
            except ShapeError:
                continue
            if form.fits(made, call):
                self.bindings += form.bindings
                return made
        return None

    def in_rows(self, argument: Expr, of_all: Expr | None, call: Call, repeated: bool) -> Expr:
        """An argument of the call for all rows, with as many axes as the result."""
        ty, result = type_of(argument), call.ty
        assert isinstance(ty, TensorType) and isinstance(ty.shape, tuple)
        assert isinstance(result, TensorType) and isinstance(result.shape, tuple)
        shape = (self.rows, *[1] * (len(result.shape) - len(ty.shape)), *ty.shape)
        if of_all is not None:
            return self.reshape(of_all, shape)
        return self.emit("broadcast_to", (argument,), {"shape": shape}) if repeated else argument

    def _product(self, name: str, call: Call, of_all: Mapping[int, Expr]) -> Expr | None:
        data, result = type_of(call.args[0]), call.ty
        if set(of_all) != {0} or call.attrs.get("transpose_a") or not isinstance(result, TensorType):
            return None
        assert isinstance(data, TensorType) and isinstance(data.shape, tuple) and isinstance(result.shape, tuple)
        if len(data.shape) == 0:
            return None
        return self.emit(name, (of_all[0], *call.args[1:]), call.attrs)

    def _moved(self, name: str, op: registry.Operator, call: Call, data: Expr) -> Expr | None:
        complete = op.complete_attrs(call.attrs)
        ty = type_of(call.args[0])
        ty = ty.fields[0] if isinstance(ty, TupleType) and ty.fields else ty
        if not isinstance(ty, TensorType) or not isinstance(ty.shape, tuple) or not ty.shape:
            return None
        rank = len(ty.shape)
        key, without = _AXES[name]
        axis = complete[key]
        if axis is None or axis == ():
            match without:
                case "all":
                    axis = tuple(range(rank))
                case "reversed":
                    axis = tuple(reversed(range(rank)))
                case "begins":
                    begin = complete["begin"]
                    assert isinstance(begin, tuple)
                    axis = tuple(range(len(begin)))
                case _:
                    return None
        if complete.get("exclude") or complete.get("batch_dims"):
            return None
        if isinstance(axis, tuple):
            inner = tuple(a % rank + 1 for a in axis if isinstance(a, int))
            moved: Attr = (0, *inner) if name == "transpose" else inner
        else:
            assert isinstance(axis, int)
            moved = axis % rank + 1
        return self.emit(name, (data, *call.args[1:]), {**call.attrs, key: moved})

    def _table(self, call: Call, of_all: Mapping[int, Expr]) -> Expr | None:
        """Rows of a table at indices that differ from row to row."""
        if set(of_all) != {1} or call.attrs.get("axis") != 0 or call.attrs.get("batch_dims", 0) != 0:
            return None
        return self.emit("take", (call.args[0], of_all[1]), call.attrs)

    def expected(self, ty: TensorType) -> TensorType:
        """The type for all rows of a value of this type."""
        assert isinstance(ty.shape, tuple)
        return TensorType((self.rows, *ty.shape), ty.dtype)

    def fits(self, made: Expr, call: Call) -> bool:
        """Whether what was made has the original's type with the rows in front."""
        found, wanted = type_of(made), call.ty
        if isinstance(found, TupleType) and isinstance(wanted, TupleType):
            return len(found.fields) == len(wanted.fields) and all(
                isinstance(w, TensorType) and f == self.expected(w)
                for f, w in zip(found.fields, wanted.fields, strict=True)
            )
        return isinstance(wanted, TensorType) and found == self.expected(wanted)


def reads_trailing_axes(op: registry.Operator, call: Call) -> bool:
    """Whether each operand is read at the trailing axes of the result, as broadcasting does, and the element is a function of
    these reads only: then further leading axes change nothing."""
    types = [type_of(a) for a in call.args]
    if any(s.variadic for s in op.inputs):
        return False
    if not all(isinstance(t, TensorType) and isinstance(t.shape, tuple) and isinstance(t.dtype, str) for t in types):
        return False
    inputs = [(t.shape, t.dtype) for t in types if isinstance(t, TensorType)]
    try:
        traced = registry.trace(op, inputs, call.attrs)  # type: ignore[arg-type]
    except (te.Undetermined, te.DefinitionError):
        return False
    stages = [s for s in te.stages(traced.outputs) if not isinstance(s, Placeholder)]
    if len(stages) != 1 or not isinstance(stages[0], Compute) or len(traced.outputs) != 1:
        return False
    stage = stages[0]
    return all(_trailing(body, stage) for body in stage.bodies)


def _trailing(body: Scalar, stage: Compute) -> bool:
    todo: list[Scalar] = [body]
    while todo:
        node = todo.pop()
        if isinstance(node, Axis | Reduce):
            return False
        if isinstance(node, Load) and isinstance(node.source, Tensor):
            first = len(stage.axes) - len(node.indices)
            if first < 0:
                return False
            for n, index in enumerate(node.indices):
                if index is not stage.axes[first + n] and not (isinstance(index, Const) and index.value == 0):
                    return False
        else:
            todo += children(node)
    return True
