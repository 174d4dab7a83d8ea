"""ONNX graphs written as calls, with the control flow of `Loop` and `If`, run by onnxruntime and OpenVINO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Fed = Callable[[Mapping[str, Array]], list[Array]]  # what a model gives for inputs by name
Described = tuple[str, Any, Sequence[int | str] | None]  # name, dtype, shape


class Graph:
    """A graph being written: ``g("MatMul", x, w)`` adds a node and gives its result's name. Names are unique in the whole model, so a
    body reads what stands around it."""

    def __init__(self, outer: Graph | None = None) -> None:
        self._outer = outer
        self._count: list[int] = outer._count if outer else [0]
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def fresh(self) -> str:
        self._count[0] += 1
        return f"v{self._count[0]}"

    def constant(self, value: Any) -> str:
        """An initialiser; of the whole model, so that weights are packed once."""
        from onnx import numpy_helper

        if self._outer is not None:
            return self._outer.constant(value)
        name = self.fresh()
        self._constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def several(self, op: str, results: int, *inputs: str, **attributes: Any) -> list[str]:
        from onnx import helper

        names = [self.fresh() for _ in range(results)]
        self._nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names

    def __call__(self, op: str, *inputs: str, **attributes: Any) -> str:
        return self.several(op, 1, *inputs, **attributes)[0]

    def dense(self, x: str, weight: Array, bias: Array | None = None) -> str:
        """``x @ weight.T + bias``."""
        rest = () if bias is None else (self.constant(bias),)
        if bias is None:
            return self("MatMul", x, self.constant(np.ascontiguousarray(weight.T)))
        return self("Gemm", x, self.constant(np.ascontiguousarray(weight.T)), *rest)

    def branch(self, condition: str, yes: Callable[[Graph], str], no: Callable[[Graph], str]) -> str:
        """What one of two bodies gives."""
        bodies = []
        for make in (yes, no):
            body = Graph(self)
            bodies.append(body._proto([], [(make(body), np.float32, None)]))
        return self("If", condition, then_branch=bodies[0], else_branch=bodies[1])

    def loop(
        self,
        most: str,
        state: Sequence[Described],
        body: Callable[[Graph, str, list[str]], tuple[str | None, list[str], list[tuple[str, type]]]],
    ) -> list[str]:
        """The last state and, behind it, what each step put out.

        ``state``: first values with dtype and shape. ``body``: of itself, the step's number and the state: whether to go on (None:
        always), the state after the step, and what it puts out, with dtypes.
        """
        inner = Graph(self)
        step, going, names = inner.fresh(), inner.fresh(), [inner.fresh() for _ in state]
        more, after, out = body(inner, step, names)
        goes_on = inner("Identity", going if more is None else more)
        given: list[Described] = [(step, np.int64, ()), (going, np.bool_, ())]
        given += [(n, dtype, shape) for n, (_, dtype, shape) in zip(names, state, strict=True)]
        results: list[Described] = [(goes_on, np.bool_, ())]
        results += [(n, dtype, shape) for n, (_, dtype, shape) in zip(after, state, strict=True)]
        results += [(n, dtype, None) for n, dtype in out]
        first = [most, self.constant(np.array(True)), *(name for name, _, _ in state)]
        return self.several("Loop", len(state) + len(out), *first, body=inner._proto(given, results))

    def _proto(self, inputs: Sequence[Described], outputs: Sequence[Described]) -> Any:
        from onnx import helper

        def info(name: str, dtype: Any, shape: Any) -> Any:
            return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)

        given, made = [info(*i) for i in inputs], [info(*o) for o in outputs]
        return helper.make_graph(self._nodes, self.fresh(), given, made, self._constants)

    def model(self, inputs: Sequence[Described], outputs: Sequence[Described]) -> bytes:
        """The whole, from its inputs and to its outputs (name, dtype, shape)."""
        from onnx import helper

        graph = self._proto(inputs, outputs)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return bytes(made.SerializeToString())


def in_onnxruntime(model: bytes, threads: int) -> Fed:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda given: list(session.run(None, dict(given)))


def in_openvino(model: bytes, threads: int) -> Fed:
    import openvino

    core = openvino.Core()
    core.set_property("CPU", {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"})
    request = core.compile_model(core.read_model(model), "CPU").create_infer_request()

    def run(given: Mapping[str, Array]) -> list[Array]:
        found = request.infer(dict(given))
        return [np.asarray(found[k]) for k in range(len(found))]

    return run
