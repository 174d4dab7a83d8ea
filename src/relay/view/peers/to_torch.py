"""Straight-line programs as PyTorch modules (torch.fx graphs, which run eagerly and go through torch.compile)."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from relay.ir.dim import Dim, DimVar, dim_fold
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

_UNARY: Final = (
    "abs", "exp", "log", "log2", "log10", "log1p", "expm1", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "sin", "cos", "tan",
    "sinh", "cosh", "asin", "acos", "atan", "floor", "ceil", "round", "trunc", "sign", "isnan", "isinf", "isfinite",
    "logical_not",
)  # fmt: skip
_BINARY: Final[dict[str, Callable[..., Any]]] = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv, "power": operator.pow,
    "equal": operator.eq, "not_equal": operator.ne, "less": operator.lt, "less_equal": operator.le, "greater": operator.gt,
    "greater_equal": operator.ge,
}  # fmt: skip
_DIM: Final[dict[str, Callable[..., Any]]] = {
    "add": operator.add, "mul": operator.mul, "floordiv": operator.floordiv, "mod": operator.mod, "min": min, "max": max,
}  # fmt: skip


def to_torch(program: Straight) -> Any:
    """A torch.nn.Module that takes the program's tensors and gives the tuple of its results. Needs torch. Raises CompileError."""
    return _Translator(program).module()


class _Translator:
    def __init__(self, program: Straight) -> None:
        import torch

        self.torch = torch
        self.program = program
        self.root = torch.nn.Module()
        self.graph = torch.fx.Graph()
        self.nodes: dict[Value, Any] = {}
        self.buffers: dict[int, Any] = {}
        self.sizes: dict[DimVar, Any] = {}

    def module(self) -> Any:
        for n, param in enumerate(self.program.params):
            self.nodes[param] = self.graph.placeholder(f"x{n}")
        for step in self.program.steps:
            self.nodes[step.result] = self._step(step)
        self.graph.output(tuple(self.tensor(r) for r in self.program.results))
        return self.torch.fx.GraphModule(self.root, self.graph).eval()

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.graph.call_function(target, args, kwargs)

    def tensor(self, operand: Operand) -> Any:
        """An operand as a tensor."""
        if isinstance(operand, Value):
            return self.nodes[operand]
        node = self.buffers.get(id(operand.data))
        if node is None:
            name = f"c{len(self.buffers)}"
            data = np.array(operand.data)  # torch wants memory that it may write to
            self.root.register_buffer(name, self.torch.from_numpy(data))
            node = self.buffers[id(operand.data)] = self.graph.get_attr(name)
        return node

    def number(self, operand: Operand) -> Any:
        """An operand of arithmetic: a Python number where it is a scalar constant."""
        if isinstance(operand, Constant) and operand.data.ndim == 0:
            return operand.data.item()
        return self.tensor(operand)

    def dim(self, dim: Dim) -> Any:
        return dim_fold(dim, self.size, lambda n: n, self._apply)

    def size(self, variable: DimVar) -> Any:
        if variable not in self.sizes:
            number, axis = self.program.sizes[variable]
            self.sizes[variable] = self.call(self.torch.Tensor.size, self.nodes[self.program.params[number]], axis)
        return self.sizes[variable]

    def _apply(self, op: str, a: Any, b: Any) -> Any:
        return _DIM[op](a, b) if isinstance(a, int) and isinstance(b, int) else self.call(_DIM[op], a, b)

    def shape(self, step: Step) -> list[Any]:
        """The result's sizes for a reshape: one that is not a number is left for torch to find."""
        dims = shape_of(step.result.type)
        symbolic = [d for d in dims if not isinstance(d, int)]
        return [-1 if len(symbolic) == 1 and not isinstance(d, int) else self.dim(d) for d in dims]

    def dtype(self, name: str) -> Any:
        return getattr(self.torch, name)

    def _step(self, step: Step) -> Any:
        torch, f = self.torch, self.torch.nn.functional
        attrs: Any = step.attrs
        flat = [a for a in step.args if isinstance(a, Value | Constant)]
        ranks = [len(shape_of_operand(a)) for a in flat]
        call, tensor = self.call, self.tensor
        match step.op:
            case op if op in _UNARY:
                return call(getattr(torch, op), tensor(flat[0]))
            case "divide" if numpy_dtype(dtype_of(flat[0])).kind in "iu":
                raise untranslated(step, "PyTorch", "of integers")
            case op if op in _BINARY:
                a, b = map(self.number, flat)
                return call(_BINARY[op], a if len(flat) < 2 or isinstance(flat[1], Value) else tensor(flat[0]), b)
            case "maximum" | "minimum" | "logical_and" | "logical_or" | "logical_xor":
                return call(getattr(torch, step.op), tensor(flat[0]), tensor(flat[1]))
            case "negative":
                return call(operator.neg, tensor(flat[0]))
            case "nn.relu" | "nn.gelu" | "nn.silu":
                return call(getattr(f, step.op.removeprefix("nn.")), tensor(flat[0]))
            case "copy" | "annotation.stop_fusion":
                return tensor(flat[0])
            case "cast":
                return call(torch.Tensor.to, tensor(flat[0]), self.dtype(attrs["dtype"]))
            case "clip":
                return call(torch.clamp, tensor(flat[0]), attrs["a_min"], attrs["a_max"])
            case "where":
                return call(torch.where, tensor(flat[0]), *map(self.number, flat[1:]))
            case "nn.dense":
                return call(f.linear, tensor(flat[0]), tensor(flat[1]))
            case "nn.matmul" | "nn.batch_matmul":
                a, b = (
                    call(torch.Tensor.transpose, tensor(x), -1, -2) if swapped else tensor(x)
                    for x, swapped in zip(flat, (attrs["transpose_a"], attrs["transpose_b"]), strict=True)
                )
                return call(torch.matmul, a, b)
            case "nn.attention":
                return self._attention(step, flat)
            case "nn.bias_add":
                after = ranks[0] - 1 - attrs["axis"] % ranks[0]
                bias = tensor(flat[1])
                return call(
                    operator.add, tensor(flat[0]), call(torch.reshape, bias, [-1] + [1] * after) if after else bias
                )
            case "nn.softmax" | "nn.log_softmax":
                return call(getattr(f, step.op.removeprefix("nn.")), tensor(flat[0]), dim=attrs["axis"])
            case "nn.layer_norm" if attrs["axis"] % ranks[0] == ranks[0] - 1 and attrs["center"] and attrs["scale"]:
                width = [shape_of_operand(flat[1])[0]]
                return call(f.layer_norm, tensor(flat[0]), width, tensor(flat[1]), tensor(flat[2]), attrs["epsilon"])
            case "sum" | "mean" | "max" | "min" | "variance":
                return self._reduction(step, flat[0])
            case "reshape" | "expand_dims" | "squeeze" | "nn.batch_flatten" | "reshape_like":
                return call(torch.reshape, tensor(flat[0]), self.shape(step))
            case "broadcast_to" | "broadcast_to_like":
                return call(torch.Tensor.expand, tensor(flat[0]), [self.dim(d) for d in shape_of(step.result.type)])
            case "transpose":
                axes = attrs["axes"] or tuple(reversed(range(ranks[0])))
                return call(torch.permute, tensor(flat[0]), [a % ranks[0] for a in axes])
            case "take" if attrs["batch_dims"] == 0 and attrs["axis"] is not None:
                return self._take(step, flat, attrs["axis"] % ranks[0])
            case "slice_like":
                like = attrs["axes"] or range(min(ranks))
                chosen = {a % ranks[0]: slice(self.dim(shape_of(step.result.type)[a])) for a in like}
                return call(operator.getitem, tensor(flat[0]), _slices(chosen, ranks[0]))
            case "strided_slice":
                return self._strided_slice(step, flat[0], ranks[0])
            case "concatenate" | "stack":
                (parts,) = step.args
                assert isinstance(parts, tuple)
                target = torch.cat if step.op == "concatenate" else torch.stack
                return call(target, [tensor(p) for p in parts], dim=attrs["axis"])
            case "arange":
                bounds = [
                    self.dim(attrs[k]) if not isinstance(attrs[k], float) else attrs[k] for k in ("start", "stop")
                ]
                return call(torch.arange, *bounds, attrs["step"], dtype=self.dtype(attrs["dtype"]))
            case "zeros" | "ones":
                sizes = [self.dim(d) for d in shape_of(step.result.type)]
                return call(getattr(torch, step.op), sizes, dtype=self.dtype(attrs["dtype"]))
            case _:
                raise untranslated(step, "PyTorch")

    def _attention(self, step: Step, flat: list[Operand]) -> Any:
        """Causal masks of torch begin with the first query and key, ours end with the last: the same only for equal lengths."""
        shapes = [shape_of_operand(a) for a in flat]
        attrs: Any = step.attrs
        before, after = attrs["window"]
        causal = bool(attrs["causal"]) or after == 0
        heads = len(shapes[0]) >= 3 and shapes[0][-3] != shapes[1][-3]
        mask = self.tensor(flat[3]) if len(flat) > 3 else None
        if mask is not None and (causal or max(before, after) >= 0):
            raise untranslated(step, "PyTorch", "causal, or with a window, and a mask")
        if mask is not None and step.attrs["hidden"] != -math.inf:
            raise untranslated(step, "PyTorch", "with a finite score for hidden keys")
        after = 0 if causal else after
        if before >= 0 or after > 0 or (causal and shapes[0][-2] != shapes[1][-2]):
            rows, columns = self.dim(shapes[0][-2]), self.dim(shapes[1][-2])
            mask, causal = self.call(self.torch.ones, rows, columns, dtype=self.torch.bool), False
            shift = self.call(operator.sub, columns, rows)
            if after >= 0:
                mask = self.call(self.torch.tril, mask, self.call(operator.add, shift, after))
            if before >= 0:
                mask = self.call(self.torch.triu, mask, self.call(operator.sub, shift, before))
        # PyTorch's fused kernels take four axes.
        lead = [
            self.call(self.torch.unsqueeze, self.tensor(a), 0) if len(shapes[0]) == 3 else self.tensor(a)
            for a in flat[:3]
        ]
        out = self.call(
            self.torch.nn.functional.scaled_dot_product_attention, *lead, attn_mask=mask, is_causal=causal,
            scale=step.attrs["scale"], enable_gqa=heads,
        )  # fmt: skip
        return self.call(self.torch.squeeze, out, 0) if len(shapes[0]) == 3 else out

    def _reduction(self, step: Step, operand: Operand) -> Any:
        attrs: Any = step.attrs
        rank = len(shape_of_operand(operand))
        axes = range(rank) if attrs["axis"] is None else attrs["axis"]
        chosen = {a % rank for a in (axes if not isinstance(axes, int) else [axes])}
        if attrs["exclude"]:
            chosen = set(range(rank)) - chosen
        if not chosen:
            raise untranslated(step, "PyTorch", "over no axis")
        torch, x = self.torch, self.tensor(operand)
        given: dict[str, Any] = {"dim": sorted(chosen), "keepdim": attrs["keepdims"]}
        if step.op == "variance":
            return self.call(torch.var, x, **given, correction=0)
        target = {"sum": torch.sum, "mean": torch.mean, "max": torch.amax, "min": torch.amin}[step.op]
        if step.op == "sum":
            given["dtype"] = self.dtype(dtype_of(step.result))
        return self.call(target, x, **given)

    def _take(self, step: Step, flat: list[Operand], axis: int) -> Any:
        torch, (data, indices) = self.torch, flat
        if isinstance(indices, Constant) and indices.data.ndim == 0:
            return self.call(torch.select, self.tensor(data), axis, int(indices.data))
        if axis == 0 and len(shape_of_operand(data)) == 2:
            return self.call(torch.nn.functional.embedding, self.tensor(indices), self.tensor(data))
        where = self.call(torch.reshape, self.tensor(indices), [-1])
        return self.call(torch.reshape, self.call(torch.index_select, self.tensor(data), axis, where), self.shape(step))

    def _strided_slice(self, step: Step, operand: Operand, rank: int) -> Any:
        attrs: Any = step.attrs
        begin, end, strides = attrs["begin"], attrs["end"], attrs["strides"]
        strides = strides * len(begin) if len(strides) == 1 else strides
        if attrs["slice_mode"] != "end" or any(s <= 0 for s in strides):
            raise untranslated(step, "PyTorch", "with sizes or negative strides")
        chosen: dict[int, slice] = {}
        for a, b, e, s in zip(attrs["axes"] or range(len(begin)), begin, end, strides, strict=False):
            chosen[a % rank] = slice(None if b is None else self.dim(b), None if e is None else self.dim(e), s)
        return self.call(operator.getitem, self.tensor(operand), _slices(chosen, rank))


def _slices(chosen: dict[int, slice], rank: int) -> tuple[slice, ...]:
    return tuple(chosen.get(n, slice(None)) for n in range(rank))
