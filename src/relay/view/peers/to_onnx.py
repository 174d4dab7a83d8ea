"""Straight-line programs as ONNX models, spelled as exporters spell them, so that other compilers find the patterns they look for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from relay.ir.dim import Dim, DimVar, dim_fold, dim_text
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Constant
from relay.view.peers.straight import (
    Step,
    Straight,
    Value,
    dtype_of,
    shape_of,
    shape_of_operand,
    untranslated,
)

Operand = Value | Constant

OPSET: Final = 18
_UNARY: Final = {
    "abs": "Abs", "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "tanh": "Tanh", "sigmoid": "Sigmoid", "erf": "Erf", "sin": "Sin",
    "cos": "Cos", "tan": "Tan", "sinh": "Sinh", "cosh": "Cosh", "asin": "Asin", "acos": "Acos", "atan": "Atan", "floor": "Floor",
    "ceil": "Ceil", "round": "Round", "sign": "Sign", "negative": "Neg", "nn.relu": "Relu", "logical_not": "Not", "isnan": "IsNaN",
    "isinf": "IsInf", "copy": "Identity", "annotation.stop_fusion": "Identity",
}  # fmt: skip
_BINARY: Final = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "divide": "Div", "power": "Pow", "maximum": "Max", "minimum": "Min",
    "equal": "Equal", "less": "Less", "less_equal": "LessOrEqual", "greater": "Greater", "greater_equal": "GreaterOrEqual",
    "logical_and": "And", "logical_or": "Or", "logical_xor": "Xor", "where": "Where",
}  # fmt: skip
_REDUCE: Final = {"sum": "ReduceSum", "mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin"}
_DIM: Final = {"add": "Add", "mul": "Mul", "floordiv": "Div", "mod": "Mod", "min": "Min", "max": "Max"}


def to_onnx(program: Straight) -> Any:
    """An onnx.ModelProto with inputs ``x0``, ``x1``, ... and outputs ``y0``, ... (symbolic sizes by name). Needs onnx. Raises
    CompileError."""
    return _Translator(program).model()


class _Translator:
    def __init__(self, program: Straight) -> None:
        import onnx

        self.onnx = onnx
        self.program = program
        self.nodes: list[Any] = []
        self.tensors: dict[str, Any] = {}
        self.names: dict[Value, str] = {}
        self.constants: dict[tuple[int, str], tuple[object, str]] = {}
        self.turned: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.sizes: dict[DimVar, str] = {}
        self.count = 0

    def model(self) -> Any:
        helper = self.onnx.helper
        for n, param in enumerate(self.program.params):
            self.names[param] = f"x{n}"
        for step in self.program.steps:
            self.names[step.result] = self._step(step)
        for n, result in enumerate(self.program.results):
            self.nodes.append(helper.make_node("Identity", [self.name(result)], [f"y{n}"]))
        inputs = [self._info(f"x{n}", p) for n, p in enumerate(self.program.params)]
        outputs = [self._info(f"y{n}", r) for n, r in enumerate(self.program.results)]
        graph = helper.make_graph(self.nodes, "program", inputs, outputs, list(self.tensors.values()))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)

    def _info(self, name: str, operand: Operand) -> Any:
        dims = [d if isinstance(d, int) else dim_text(d) for d in shape_of_operand(operand)]
        return self.onnx.helper.make_tensor_value_info(name, self._type(dtype_of(operand)), dims)

    def _type(self, dtype: str) -> int:
        return int(self.onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype)))

    def node(self, op: str, *inputs: str, **attrs: Any) -> str:
        self.count += 1
        name = f"t{self.count}"
        self.nodes.append(self.onnx.helper.make_node(op, list(inputs), [name], **attrs))
        return name

    def array(self, value: Any, dtype: str = "int64") -> str:
        """A constant of the graph."""
        name = f"k{len(self.tensors)}"
        self.tensors[name] = self.onnx.numpy_helper.from_array(np.ascontiguousarray(np.asarray(value, dtype)), name)
        return name

    def name(self, operand: Operand, how: str = "", change: Callable[[Any], Any] = lambda a: a) -> str:
        """An operand's name. A constant may be stored changed (``how`` names the change), so that the graph need not do it."""
        if isinstance(operand, Value):
            return self.names[operand]
        key = (id(operand.data), how)
        if key not in self.constants:
            data = np.asarray(operand.data)
            # The array is kept, so that its identity stays its own.
            self.constants[key] = (operand.data, self.array(change(data).reshape(change(data).shape), data.dtype.name))
        return self.constants[key][1]

    def dim(self, dim: Dim) -> str:
        """A size as a vector of one int64."""
        return dim_fold(dim, self.size, lambda n: self.array([n]), lambda op, a, b: self.node(_DIM[op], a, b))

    def size(self, variable: DimVar) -> str:
        if variable not in self.sizes:
            number, axis = self.program.sizes[variable]
            self.sizes[variable] = self.node("Shape", f"x{number}", start=axis, end=axis + 1)
        return self.sizes[variable]

    def dims(self, dims: tuple[Dim, ...]) -> str:
        """Sizes as an int64 vector."""
        if all(isinstance(d, int) for d in dims):
            return self.array(list(dims))
        return self.node("Concat", *(self.dim(d) for d in dims), axis=0)

    def reshape(self, name: str, dims: tuple[Dim, ...]) -> str:
        """Reshaped; one size that is not a number is left for the framework to find."""
        symbolic = [d for d in dims if not isinstance(d, int)]
        if len(symbolic) <= 1:
            return self.node("Reshape", name, self.array([d if isinstance(d, int) else -1 for d in dims]))
        return self.node("Reshape", name, self.dims(dims))

    def transpose(self, name: str, axes: tuple[int, ...]) -> str:
        """Transposed; a transposition of a transposition is one."""
        source, before = self.turned.get(name, (name, tuple(range(len(axes)))))
        order = tuple(before[a] for a in axes)
        if order == tuple(range(len(order))):
            return source
        made = self.node("Transpose", source, perm=list(order))
        self.turned[made] = (source, order)
        return made

    def swapped(self, operand: Operand) -> str:
        """The last two axes swapped (a constant is stored so)."""
        if isinstance(operand, Constant):
            return self.name(operand, "swapped", lambda a: a.swapaxes(-1, -2))
        rank = len(shape_of_operand(operand))
        return self.transpose(self.name(operand), (*range(rank - 2), rank - 1, rank - 2))

    def scalar(self, value: float, like: Operand) -> str:
        return self.array(value, dtype_of(like))

    def _step(self, step: Step) -> str:
        attrs: Any = step.attrs
        flat = [a for a in step.args if isinstance(a, Value | Constant)]
        ranks = [len(shape_of_operand(a)) for a in flat]
        node, name = self.node, self.name
        match step.op:
            case op if op in _UNARY:
                return node(_UNARY[op], name(flat[0]))
            case "divide" if numpy_dtype(dtype_of(flat[0])).kind in "iu":
                raise untranslated(step, "ONNX", "of integers")
            case op if op in _BINARY:
                return node(_BINARY[op], *map(name, flat))
            case "not_equal":
                return node("Not", node("Equal", *map(name, flat)))
            case "rsqrt":
                return node("Reciprocal", node("Sqrt", name(flat[0])))
            case "nn.gelu":
                x = flat[0]
                inner = node("Erf", node("Div", name(x), self.scalar(math.sqrt(2), x)))
                whole = node("Mul", name(x), node("Add", inner, self.scalar(1, x)))
                return node("Mul", whole, self.scalar(0.5, x))
            case "nn.silu":
                return node("Mul", name(flat[0]), node("Sigmoid", name(flat[0])))
            case "cast":
                return node("Cast", name(flat[0]), to=self._type(attrs["dtype"]))
            case "clip":
                return node(
                    "Clip", name(flat[0]), self.scalar(attrs["a_min"], flat[0]), self.scalar(attrs["a_max"], flat[0])
                )
            case "nn.dense":
                return node("MatMul", name(flat[0]), self.swapped(flat[1]))
            case "nn.matmul" | "nn.batch_matmul":
                pair = zip(flat, (attrs["transpose_a"], attrs["transpose_b"]), strict=True)
                return node("MatMul", *(self.swapped(x) if turn else name(x) for x, turn in pair))
            case "nn.attention":
                return self._attention(step, flat)
            case "nn.bias_add":
                after = ranks[0] - 1 - attrs["axis"] % ranks[0]
                bias = name(flat[1])
                return node("Add", name(flat[0]), self.reshape(bias, (-1, *[1] * after)) if after else bias)
            case "nn.softmax" | "nn.log_softmax":
                return node("Softmax" if step.op == "nn.softmax" else "LogSoftmax", name(flat[0]), axis=attrs["axis"])
            case "nn.layer_norm" if attrs["axis"] % ranks[0] == ranks[0] - 1 and attrs["center"] and attrs["scale"]:
                return node("LayerNormalization", *map(name, flat), axis=-1, epsilon=attrs["epsilon"])
            case op if op in _REDUCE:
                return self._reduction(step, flat[0])
            case "reshape" | "expand_dims" | "squeeze" | "nn.batch_flatten" | "reshape_like":
                return self.reshape(name(flat[0]), shape_of(step.result.type))
            case "broadcast_to" | "broadcast_to_like":
                return node("Expand", name(flat[0]), self.dims(shape_of(step.result.type)))
            case "transpose":
                axes = attrs["axes"] or tuple(reversed(range(ranks[0])))
                return self.transpose(name(flat[0]), tuple(a % ranks[0] for a in axes))
            case "take" if attrs["batch_dims"] == 0 and attrs["axis"] is not None:
                return node("Gather", name(flat[0]), name(flat[1]), axis=attrs["axis"] % ranks[0])
            case "slice_like":
                axes = [a % ranks[0] for a in attrs["axes"] or range(min(ranks))]
                ends = tuple(shape_of(step.result.type)[a] for a in axes)
                return node("Slice", name(flat[0]), self.array([0] * len(axes)), self.dims(ends), self.array(axes))
            case "strided_slice":
                return self._strided_slice(step, flat[0], ranks[0])
            case "concatenate":
                (parts,) = step.args
                assert isinstance(parts, tuple)
                return node("Concat", *map(name, parts), axis=attrs["axis"])
            case "arange" if not any(isinstance(attrs[k], float) for k in ("start", "stop", "step")):
                bounds = [self.reshape(self.dim(attrs[k]), ()) for k in ("start", "stop", "step")]
                return node("Cast", node("Range", *bounds), to=self._type(attrs["dtype"]))
            case "zeros" | "ones":
                value = self.array(0 if step.op == "zeros" else 1, attrs["dtype"])
                return node("Expand", value, self.dims(shape_of(step.result.type)))
            case _:
                raise untranslated(step, "ONNX")

    def _attention(self, step: Step, flat: list[Operand]) -> str:
        """Spelled out, as exporters do; the mask of a causal one from its indices."""
        shapes = [shape_of_operand(a) for a in flat]
        if len(shapes[0]) >= 3 and shapes[0][-3] != shapes[1][-3]:
            raise untranslated(step, "ONNX", "with shared heads")
        scale = step.attrs["scale"]
        if scale is None:
            if not isinstance(shapes[0][-1], int):
                raise untranslated(step, "ONNX", "with heads of unknown size")
            scale = shapes[0][-1] ** -0.5
        assert isinstance(scale, float)
        scores = self.node("MatMul", self.name(flat[0]), self.swapped(flat[1]))
        scores = self.node("Mul", scores, self.scalar(scale, flat[0]))
        hidden = step.attrs["hidden"]
        assert isinstance(hidden, int | float)
        lowest = self.scalar(max(float(hidden), -1e30), flat[0])
        if len(flat) > 3:
            mask = self.name(flat[3])
            masked = dtype_of(flat[3]) == "bool"
            scores = self.node("Where", mask, scores, lowest) if masked else self.node("Add", scores, mask)
        window: Any = step.attrs["window"]
        before, after = window[0], 0 if step.attrs["causal"] else window[1]
        if max(before, after) >= 0:
            rows, columns = self.dim(shapes[0][-2]), self.dim(shapes[1][-2])
            zero, one = self.array(0), self.array(1)
            seen = self.node("Range", zero, self.reshape(columns, ()), one)
            own = self.node("Range", self.reshape(self.node("Sub", columns, rows), ()), self.reshape(columns, ()), one)
            own = self.node("Unsqueeze", own, self.array([1]))
            for op, bound in (("LessOrEqual", after), ("GreaterOrEqual", -before)):
                if bound >= 0 if op == "LessOrEqual" else before >= 0:
                    allowed = self.node(op, seen, self.node("Add", own, self.array(bound)))
                    scores = self.node("Where", allowed, scores, lowest)
        return self.node("MatMul", self.node("Softmax", scores, axis=-1), self.name(flat[2]))

    def _reduction(self, step: Step, operand: Operand) -> str:
        attrs: Any = step.attrs
        rank = len(shape_of_operand(operand))
        axes = range(rank) if attrs["axis"] is None else attrs["axis"]
        chosen = {a % rank for a in (axes if not isinstance(axes, int) else [axes])}
        if attrs["exclude"]:
            chosen = set(range(rank)) - chosen
        if not chosen:
            raise untranslated(step, "ONNX", "over no axis")
        return self.node(
            _REDUCE[step.op], self.name(operand), self.array(sorted(chosen)), keepdims=int(attrs["keepdims"])
        )

    def _strided_slice(self, step: Step, operand: Operand, rank: int) -> str:
        attrs: Any = step.attrs
        begin, end, strides = attrs["begin"], attrs["end"], attrs["strides"]
        strides = strides * len(begin) if len(strides) == 1 else strides
        if attrs["slice_mode"] != "end" or any(s <= 0 for s in strides):
            raise untranslated(step, "ONNX", "with sizes or negative strides")
        starts = self.dims(tuple(0 if b is None else b for b in begin))
        ends = self.dims(tuple((1 << 62) if e is None else e for e in end))
        axes = self.array([a % rank for a in attrs["axes"] or range(len(begin))])
        return self.node("Slice", self.name(operand), starts, ends, axes, self.array(list(strides)))
