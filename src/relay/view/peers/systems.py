"""A program in other systems, on given inputs: PyTorch (eager, compiled), onnxruntime, OpenVINO. Each is imported when it is asked for."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relay.ir.diagnostics import RelayError
from relay.ir.record import record
from relay.view.peers.straight import Straight
from relay.view.peers.to_onnx import to_onnx
from relay.view.peers.to_torch import to_torch

Array = npt.NDArray[Any]


@record(frozen=True, slots=True)
class System:
    """A program ready to run on given inputs. ``run`` is one call, ``results`` are what it gives, ``seconds`` what making it took
    (translation left out)."""

    name: str
    run: Callable[[], object]
    results: Callable[[], list[Array]]
    seconds: float


def leaves(value: object) -> list[Array]:
    """The arrays in a value of tensors and tuples, from left to right."""
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in leaves(item)]
    return [np.asarray(value)]


def torch_eager(program: Straight, args: Sequence[Array], threads: int) -> System:
    """PyTorch, operator by operator."""
    return _torch("torch", program, args, threads, compiled=False)


def torch_compiled(program: Straight, args: Sequence[Array], threads: int) -> System:
    """torch.compile for exactly these sizes, with weights frozen into the code."""
    return _torch("torch-compile", program, args, threads, compiled=True)


def _torch(name: str, program: Straight, args: Sequence[Array], threads: int, compiled: bool) -> System:
    import torch

    torch.set_num_threads(threads)
    module = to_torch(program)
    inputs = [torch.from_numpy(np.array(a)) for a in args]
    start = time.perf_counter()
    call: Any = module
    if compiled:
        import torch._inductor.config as inductor

        with torch.inference_mode(), inductor.patch(freezing=True):
            call = torch.compile(module, dynamic=False)
            call(*inputs)

    def run() -> Any:
        with torch.inference_mode():
            return call(*inputs)

    run()
    return System(name, run, lambda: [r.numpy() for r in run()], time.perf_counter() - start)


def onnxruntime(program: Straight, args: Sequence[Array], threads: int) -> System:
    """onnxruntime with all its graph optimisations."""
    import onnxruntime as ort

    model = to_onnx(program).SerializeToString()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3  # errors
    start = time.perf_counter()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    inputs = {f"x{n}": np.ascontiguousarray(a) for n, a in enumerate(args)}

    def run() -> Any:
        return session.run(None, inputs)

    run()
    return System("onnxruntime", run, lambda: list(run()), time.perf_counter() - start)


def openvino(program: Straight, args: Sequence[Array], threads: int) -> System:
    """OpenVINO for the least time of one call, in float32 (its own choice may be bfloat16)."""
    import openvino as ov

    model = to_onnx(program).SerializeToString()
    start = time.perf_counter()
    core = ov.Core()
    config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(core.read_model(model), "CPU", config).create_infer_request()
    inputs = {f"x{n}": np.ascontiguousarray(a) for n, a in enumerate(args)}

    def run() -> Any:
        return request.infer(inputs, share_inputs=True, share_outputs=True)

    def results() -> list[Array]:
        found = run()
        return [np.array(found[n]) for n in range(len(program.results))]

    run()
    return System("openvino", run, results, time.perf_counter() - start)


PEERS: Final[dict[str, Callable[[Straight, Sequence[Array], int], System]]] = {
    "torch": torch_eager, "torch-compile": torch_compiled, "onnxruntime": onnxruntime, "openvino": openvino,
}  # fmt: skip
_NEEDS: Final = {
    "torch": ("torch",), "torch-compile": ("torch",), "onnxruntime": ("onnx", "onnxruntime"), "openvino": ("onnx", "openvino"),
}  # fmt: skip


def missing(peer: str) -> list[str]:
    """The packages that a peer needs and that are not installed."""
    return [name for name in _NEEDS[peer] if importlib.util.find_spec(name) is None]


def chosen(text: str) -> list[str]:
    """The peers that ``all`` (those installed) or a list with commas names. Raises RelayError."""
    if text == "all":
        return [name for name in PEERS if not missing(name)]
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in PEERS:
            raise RelayError(f"unknown peer {name!r}", hint=f"peers are all, {', '.join(PEERS)}")
        if missing(name):
            raise RelayError(f"{name} is not installed", hint=f"install {', '.join(missing(name))}, or leave it out")
    return names
