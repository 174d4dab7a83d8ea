"""The programs of `rows.py` in onnxruntime, OpenVINO and JAX: each a call on given arrays, or None where the system cannot say it."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

import relay
from relay.ir.diagnostics import RelayError
from relay.view.peers.straight import straight
from relay.view.peers.to_onnx import to_onnx

Array = npt.NDArray[Any]
Call = Callable[[], object]
# An operator, its attributes, and its constant operands for a width, which follow the others.
Onnx = tuple[str, dict[str, Any]] | tuple[str, dict[str, Any], Callable[[int], Sequence[Any]]]


def onnx_model(program: Onnx | None, source: str, arrays: Sequence[Array], width: int) -> bytes | None:
    """The operator alone in a graph, or without one the graph of our program; its inputs are ``x0``, ``x1``, ... None where ONNX has
    no words for the program."""
    from onnx import helper, numpy_helper

    if program is None:
        try:
            return bytes(to_onnx(straight(relay.parse(source))).SerializeToString())
        except RelayError:
            return None
    op, attrs = program[:2]
    constants = [
        numpy_helper.from_array(c, f"c{n}") for n, c in enumerate(program[2](width) if len(program) > 2 else ())
    ]
    names = [f"x{n}" for n in range(len(arrays))]
    outputs = ["out", "positions"] if op == "TopK" else ["out"]
    node = helper.make_node(op, [*names, *(c.name for c in constants)], outputs, **attrs)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in zip(names, arrays, strict=True)
    ]
    results = [helper.make_empty_tensor_value_info(n) for n in outputs]
    graph = helper.make_graph([node], "rows", inputs, results, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return bytes(model.SerializeToString())


def onnxruntime(model: bytes, arrays: Sequence[Array], threads: int) -> Call:
    """onnxruntime with all its graph optimisations."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3  # errors
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = {f"x{n}": a for n, a in enumerate(arrays)}
    return lambda: session.run(None, feeds)


def openvino(model: bytes, arrays: Sequence[Array], threads: int) -> Call | None:
    """OpenVINO for the least time of one call, in float32, for exactly these shapes."""
    import openvino as ov

    core = ov.Core()
    try:
        read = core.read_model(model)
        read.reshape({f"x{n}": list(a.shape) for n, a in enumerate(arrays)})
        config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        request = core.compile_model(read, "CPU", config).create_infer_request()
    except RuntimeError:
        return None
    for n, array in enumerate(arrays):
        request.set_tensor(f"x{n}", ov.Tensor(array, shared_memory=True))
    return lambda: request.infer()


def jax(name: str, arrays: Sequence[Array], threads: int) -> Call | None:
    """XLA's code for exactly these shapes. The first call in a process says how many threads there are."""
    several = "true" if threads > 1 else "false"
    os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={several} intra_op_parallelism_threads={threads}"
    import jax

    function = _jax_functions().get(name)
    if function is None:
        return None
    run, given = jax.jit(function), [jax.device_put(a) for a in arrays]
    return lambda: jax.block_until_ready(run(*given))


def _jax_functions() -> dict[str, Callable[..., Any]]:
    import jax
    import jax.numpy as jnp

    def norm(x: Any, axes: Any = -1) -> Any:
        return (x - x.mean(axes, keepdims=True)) * jax.lax.rsqrt(x.var(axes, keepdims=True) + 1e-5)

    def column(v: Any) -> Any:
        return v[:, None]

    return {
        "softmax": lambda x: jax.nn.softmax(x, -1),
        "softmax_first": lambda x: jax.nn.softmax(x, 0),
        "log_softmax": lambda x: jax.nn.log_softmax(x, -1),
        "layer_norm": lambda x, g, b: norm(x) * g + b,
        "rms_norm": lambda x, g: x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g,
        "group_norm": lambda x, g, b: norm(x.reshape(len(x), 8, -1)).reshape(x.shape) * column(g) + column(b),
        "gelu": lambda x: jax.nn.gelu(x, approximate=False),
        "tanh": jnp.tanh,
        "sigmoid": jax.nn.sigmoid,
        "embedding": lambda t, i: jnp.take(t, i, axis=0),
        "mean": lambda x: x.mean(0),
        "mean_last": lambda x: x.mean(1),
        "variance": lambda x: x.var(1),
        "variance_first": lambda x: x.var(0),
        "max_middle": lambda x: x.max(1),
        "argmax": lambda x: x.argmax(1),
        "cumsum": lambda x: x.cumsum(1),
        "cumsum_first": lambda x: x.cumsum(0),
        "sort": lambda x: jnp.sort(x, axis=1),
        "transpose": lambda x: x.T + 0,
        "add_column": lambda x, c: x + c,
        "l2_normalize": lambda x: x / jnp.sqrt((x * x).sum(-1, keepdims=True)),
        "std": lambda x: x.std(1),
        "batch_norm": lambda x, g, b, c, v: (x - column(c)) * column(jax.lax.rsqrt(v * v + 1e-5) * g) + column(b),
        "instance_norm": lambda x, g, b: norm(x) * column(g) + column(b),
        "topk": lambda x: jax.lax.top_k(x, 8),
        "heads": lambda x: x.transpose(1, 0, 2) + 0,
        "channels_last": lambda x: x.transpose(0, 2, 3, 1) + 0,
        "concatenate": lambda x, y: jnp.concatenate((x, y), 1),
        "half": lambda x: x[:, x.shape[1] // 2 :] + 0,
        "every_second": lambda x: x[:, ::2] + 0,
        "reverse": lambda x: jnp.flip(x, 1) + 0,
        "pad": lambda x: jnp.pad(x, ((1, 1), (3, 5))),
        "where": lambda x: jnp.where(x > 0, x, x * 0.1),
        "gather": lambda x, i: jnp.take_along_axis(x, i, axis=1),
        "one_hot": lambda t, i: jax.nn.one_hot(i, t.shape[0]),
        "resize": lambda x: jax.image.resize(x, (len(x), 2 * x.shape[1], 2 * x.shape[2]), "linear"),
        "masked_softmax": lambda x, y: jax.nn.softmax(jnp.where(y > 0, x, -1e9), -1),
        "add_layer_norm": lambda x, y, g, b: norm(x + y) * g + b,
    }
