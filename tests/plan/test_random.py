"""Random primitives: whatever operators are put together, the planned kernel computes what the definition means."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay import te
from relay.ir.dim import Dim, DimVar, as_dim, dim_evaluate, shape_size
from relay.ir.expr import Binding, Block, Call, Expr, Function, OpRef, Tuple, Var
from relay.ir.types import TensorType
from relay.op import registry
from relay.te.errors import DefinitionError
from tests.plan.harness import check, random, tensor

V = DimVar("n")
N = as_dim(V)
DIMS: list[Dim] = [1, 2, 3, 5, 16, 17, 32, N]
UNARY = ["abs", "negative", "tanh", "sigmoid", "nn.relu", "erf"]
BINARY = ["add", "subtract", "multiply", "maximum", "minimum"]
KINDS = [
    "unary",
    "binary",
    "broadcast",
    "reduce",
    "softmax",
    "transpose",
    "reshape",
    "slice",
    "concat",
    "scan",
    "dense",
]
KINDS += ["batch", "pad", "argmax", "norm", "literal", "split", "windows"]
REDUCING = ["sum", "max", "min", "mean"]


class Program:
    """A primitive under construction: variables with their shapes."""

    def __init__(self, draw: st.DataObject) -> None:
        self.draw = draw
        self.params: list[Var] = []
        self.bindings: list[Binding] = []
        self.shapes: dict[Var, tuple[Dim, ...]] = {}

    def pick(self, options: list[Any]) -> Any:
        return self.draw.draw(st.sampled_from(options))

    def parameter(self, shape: tuple[Dim, ...]) -> Var:
        var = Var(f"p{len(self.params)}", None, tensor(shape))
        self.params.append(var)
        self.shapes[var] = shape
        return var

    def call(self, op: str, args: tuple[Expr, ...], **attrs: Any) -> Var | None:
        """Bind a call; None where the operator does not take these operands."""
        given: list[Any] = []
        for a in args:
            if isinstance(a, Tuple):
                given.append([(self.shapes[f], "float32") for f in a.fields if isinstance(f, Var)])
            elif isinstance(a, Var):
                given.append((self.shapes[a], "float32"))
        try:
            traced = registry.trace(registry.get(op), given, attrs)
        except (DefinitionError, te.Undetermined):
            return None
        if traced.demands:
            return None  # sizes that would have to agree are drawn apart
        var = Var(f"t{len(self.bindings)}", None, TensorType(traced.outputs[0].shape, "float32"))
        self.bindings.append(Binding(var, Call(OpRef(op), args, attrs, ty=var.ty)))
        self.shapes[var] = traced.outputs[0].shape
        return var

    def step(self) -> None:
        x = self.pick(list(self.shapes))
        shape = self.shapes[x]
        rank = len(shape)
        kind = self.pick(KINDS)
        axis = self.pick(list(range(rank))) if rank else 0
        match kind:
            case "unary":
                self.call(self.pick(UNARY), (x,))
            case "binary":
                y = self.pick(list(self.shapes))
                self.call(self.pick(BINARY), (x, y))
            case "broadcast":
                other = tuple(d if self.pick([True, False]) else 1 for d in shape)
                self.call(self.pick(BINARY), (x, self.parameter(other)))
            case "reduce" if rank:
                axes = self.pick([axis, None, tuple(range(rank))[: axis + 1], tuple(range(rank))[axis:]])
                self.call(self.pick(REDUCING), (x,), axis=axes, keepdims=self.pick([True, False]))
            case "softmax" if rank:
                self.call("nn.softmax", (x,), axis=axis)
            case "norm" if rank:
                self.call("nn.l2_normalize", (x,), axis=axis)
            case "transpose" if rank:
                self.call("transpose", (x,), axes=tuple(self.draw.draw(st.permutations(range(rank)))))
            case "reshape" if rank:
                self.reshape(x, shape, axis)
            case "slice" if isinstance(shape[axis] if rank else N, int):
                size = shape[axis]
                assert isinstance(size, int)
                begin = self.pick(list(range(size)))
                self.call(
                    "strided_slice", (x,), begin=(begin,), end=(size,), strides=(self.pick([1, 2]),), axes=(axis,)
                )
            case "concat" if rank:
                y = self.pick([v for v, s in self.shapes.items() if len(s) == rank])
                self.call("concatenate", (Tuple((x, y)),), axis=axis)
            case "scan" if rank:
                self.call("cumsum", (x,), axis=axis)
            case "dense" if rank and rank <= 3:
                self.call("nn.dense", (x, self.parameter((self.pick([3, 16, 40]), shape[-1]))))
            case "batch" if rank == 3:
                other = (shape[0], self.pick([5, 32, N]), shape[2])
                self.call("nn.batch_matmul", (x, self.parameter(other)))
            case "pad" if rank:
                width = tuple((self.pick([0, 1]), self.pick([0, 2])) for _ in range(rank))
                self.call("nn.pad", (x,), pad_width=width)
            case "windows" if rank == 3:
                size, stride, border = self.pick([2, 3]), self.pick([1, 2]), self.pick([0, 1])
                lines = self.call("expand_dims", (x,), axis=0)
                each = {"pool_size": (size, size), "strides": (stride, stride), "padding": (border, border)}
                assert lines is not None
                self.call(self.pick(["nn.max_pool2d", "nn.avg_pool2d"]), (lines,), **each)
            case "argmax" if rank:
                found = self.call("argmax", (x,), axis=axis)
                if found is not None:
                    self.shapes.pop(found)
            case "literal":
                self.call("multiply", (x, self.parameter(())))
            case "split" if rank and shape[axis] in (2, 16, 32):
                self.call("strided_slice", (x,), begin=(0,), end=(2,), strides=(1,), axes=(axis,))

    def reshape(self, x: Var, shape: tuple[Dim, ...], axis: int) -> None:
        way = self.pick(["flat", "split", "join"])
        if way == "flat":
            self.call("reshape", (x,), newshape=(-1,))
        elif way == "split" and shape[axis] in (16, 32):
            size = shape[axis]
            assert isinstance(size, int)
            self.call("reshape", (x,), newshape=(*shape[:axis], size // 4, 4, *shape[axis + 1 :]))
        elif axis + 1 < len(shape):
            joined = shape_size(shape[axis : axis + 2])
            self.call("reshape", (x,), newshape=(*shape[:axis], joined, *shape[axis + 2 :]))

    def function(self) -> Function:
        used = [b.var for b in self.bindings]
        count = self.draw.draw(st.integers(1, min(3, len(used))))
        results = used[-count:]
        result: Expr = results[0] if count == 1 else Tuple(tuple(results))
        return Function(tuple(self.params), Block(tuple(self.bindings), result), attrs={"Primitive": 1})


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.data())
def test_random_primitives(data: st.DataObject) -> None:
    program = Program(data)
    rank = data.draw(st.integers(0, 3))
    program.parameter(tuple(data.draw(st.sampled_from(DIMS)) for _ in range(rank)))
    for _ in range(data.draw(st.integers(1, 7))):
        program.step()
    if not program.bindings:
        return
    fn = program.function()
    limit = 1 << 16
    sizes = [{V: s} for s in (1, 6, 33) if all(_elements(v, s) <= limit for v in program.shapes.values())]
    if not sizes:
        return
    constants = frozenset(n for n in range(len(program.params)) if data.draw(st.booleans()))
    for env in sizes[: data.draw(st.integers(1, 3))]:
        arrays = [
            random([dim_evaluate(d, env) for d in program.shapes[p]], "float32", n)
            for n, p in enumerate(program.params)
        ]
        check(fn, env, constants=constants, inputs=[np.asarray(np.clip(a, -3, 3)) for a in arrays], tolerance=2e-4)


def _elements(shape: tuple[Dim, ...], size: int) -> int:
    return dim_evaluate(shape_size(shape), {V: size})
