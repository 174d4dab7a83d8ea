"""The transformer models of the examples in other systems, each written the way that system is fastest with it.

PyTorch has one projection for queries, keys and values and its fused attention; "onnxruntime" gets the graph that exporters make and
"onnxruntime-fused" the one that its transformer optimiser makes of that (one Attention node, biases and residuals fused); OpenVINO
gets the exporters' graph. Each maker takes a model's configuration and weights and gives a function on its own inputs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parent.parent))
from examples import bert, gpt2
from relay.view.peers.straight import straight
from relay.view.peers.to_onnx import to_onnx

Array = npt.NDArray[Any]
Weights = dict[str, npt.NDArray[np.float32]]
# Token ids to the last layer's states, or (ids, cache) to (scores, cache) with a cache of the system's own (None: none yet).
Encoder = Callable[[Array], Array]
Decoder = Callable[[Array, Any], tuple[Array, Any]]


# -- PyTorch


def torch_bert(c: bert.Config, w: Weights, threads: int, compiled: bool) -> Encoder:
    """BERT in PyTorch: eager, or compiled for each length with frozen weights."""
    import torch
    import torch.nn.functional as f

    torch.set_num_threads(threads)

    class Bert(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("words", "positions", "kinds", "g", "b"):
                self.register_buffer(name, torch.tensor(w[name]))
            for n in range(c.layers):
                p = {name.removeprefix(f"l{n}_"): a for name, a in w.items() if name.startswith(f"l{n}_")}
                self.register_buffer(f"wa{n}", torch.tensor(np.concatenate([p["wq"], p["wk"], p["wv"]])))
                self.register_buffer(f"ba{n}", torch.tensor(np.concatenate([p["bq"], p["bk"], p["bv"]])))
                for name in ("wo", "bo", "g1", "b1", "wi", "bi", "wd", "bd", "g2", "b2"):
                    self.register_buffer(f"{name}{n}", torch.tensor(p[name]))

        def forward(self, ids: Any) -> Any:
            n, width, b = ids.shape[0], (c.width,), dict(self.named_buffers())
            x = f.embedding(ids, b["words"]) + b["positions"][:n] + b["kinds"][0]
            x = f.layer_norm(x, width, b["g"], b["b"], c.epsilon)
            for k in range(c.layers):
                qkv = f.linear(x, b[f"wa{k}"], b[f"ba{k}"]).view(1, n, 3, c.heads, -1).permute(2, 0, 3, 1, 4)
                context = f.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2]).transpose(1, 2).reshape(n, c.width)
                x = f.layer_norm(
                    x + f.linear(context, b[f"wo{k}"], b[f"bo{k}"]), width, b[f"g1{k}"], b[f"b1{k}"], c.epsilon
                )
                inner = f.linear(f.gelu(f.linear(x, b[f"wi{k}"], b[f"bi{k}"])), b[f"wd{k}"], b[f"bd{k}"])
                x = f.layer_norm(x + inner, width, b[f"g2{k}"], b[f"b2{k}"], c.epsilon)
            return x

    module: Any = Bert().eval()
    if compiled:
        import torch._dynamo.config as dynamo
        import torch._inductor.config as inductor

        inductor.freezing = True
        dynamo.recompile_limit = 64
        module = torch.compile(module, dynamic=False)

    def run(ids: Array) -> Array:
        with torch.inference_mode():
            return np.asarray(module(torch.from_numpy(ids)))

    return run


def torch_gpt2(c: gpt2.Config, w: Weights, threads: int) -> Decoder:
    """GPT-2 in PyTorch, eager, with a cache that grows by concatenation."""
    import torch
    import torch.nn.functional as f

    torch.set_num_threads(threads)
    t = {name: torch.tensor(a) for name, a in w.items()}
    size = c.width // c.heads

    def run(ids: Array, cache: Any) -> tuple[Array, Any]:
        with torch.inference_mode():
            n, width = len(ids), (c.width,)
            past = 0 if cache is None else cache[0][0].shape[2]
            x = f.embedding(torch.from_numpy(ids), t["words"]) + t["positions"][past : past + n]
            made = []
            for k in range(c.layers):
                p = {
                    name: t[f"l{k}_{name}"]
                    for name in ("g1", "b1", "wa", "ba", "wo", "bo", "g2", "b2", "wi", "bi", "wd", "bd")
                }
                qkv = f.linear(f.layer_norm(x, width, p["g1"], p["b1"], c.epsilon), p["wa"], p["ba"])
                q, key, v = qkv.view(1, n, 3, c.heads, size).permute(2, 0, 3, 1, 4)
                if cache is not None:
                    key, v = torch.cat([cache[k][0], key], 2), torch.cat([cache[k][1], v], 2)
                made.append((key, v))
                if past and n > 1:
                    mask = torch.ones(n, n + past, dtype=torch.bool).tril(past)
                    context = f.scaled_dot_product_attention(q, key, v, attn_mask=mask)
                else:
                    context = f.scaled_dot_product_attention(q, key, v, is_causal=n > 1)
                x = x + f.linear(context.transpose(1, 2).reshape(n, c.width), p["wo"], p["bo"])
                inside = f.linear(f.layer_norm(x, width, p["g2"], p["b2"], c.epsilon), p["wi"], p["bi"])
                x = x + f.linear(f.gelu(inside, approximate="tanh"), p["wd"], p["bd"])
            return f.linear(f.layer_norm(x[-1], width, t["g"], t["b"], c.epsilon), t["words"]).numpy(), made

    return run


# -- ONNX


class Graph:
    """An ONNX graph under construction."""

    def __init__(self) -> None:
        import onnx

        self.onnx = onnx
        self.nodes: list[Any] = []
        self.tensors: list[Any] = []

    def constant(self, value: Array) -> str:
        name = f"c{len(self.tensors)}"
        self.tensors.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def node(self, op: str, *inputs: str, outputs: int = 1, domain: str = "com.microsoft", **attrs: Any) -> Any:
        names = [f"t{len(self.nodes)}_{n}" for n in range(outputs)]
        self.nodes.append(self.onnx.helper.make_node(op, list(inputs), names, domain=domain, **attrs))
        return names[0] if outputs == 1 else names

    def plain(self, op: str, *inputs: str, **attrs: Any) -> Any:
        """A node of the standard operators."""
        return self.node(op, *inputs, domain="", **attrs)

    def save(
        self, path: Path, inputs: dict[str, tuple[str, list[Any]]], outputs: dict[str, tuple[str, list[Any]]]
    ) -> None:
        helper, kinds = self.onnx.helper, self.onnx.TensorProto
        given, made = (
            [helper.make_tensor_value_info(name, getattr(kinds, kind), shape) for name, (kind, shape) in infos.items()]
            for infos in (inputs, outputs)
        )
        graph = helper.make_graph(self.nodes, "model", given, made, self.tensors)
        opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
        self.onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), str(path))


def exported(module: Any, path: Path) -> None:
    """A program's ONNX file, spelled as exporters do."""
    path.write_bytes(to_onnx(straight(module)).SerializeToString())


def fused_bert(c: bert.Config, w: Weights, path: Path) -> Path:
    """Writes BERT as onnxruntime's transformer optimiser leaves it to a file, and gives that."""
    g = Graph()
    ids = g.plain("Unsqueeze", "ids", g.constant(np.array([0])))
    length, zero = g.plain("Shape", "ids"), g.constant(np.array([0]))
    x = g.plain(
        "Add",
        g.plain("Gather", g.constant(w["words"]), ids),
        g.plain("Slice", g.constant(w["positions"]), zero, length),
    )
    x = g.plain("Add", x, g.constant(w["kinds"][0]))
    x = g.plain("LayerNormalization", x, g.constant(w["g"]), g.constant(w["b"]), axis=-1, epsilon=c.epsilon)
    for k in range(c.layers):
        p = {name.removeprefix(f"l{k}_"): a for name, a in w.items() if name.startswith(f"l{k}_")}
        wa = g.constant(np.concatenate([p[n].T for n in ("wq", "wk", "wv")], axis=1))
        ba = g.constant(np.concatenate([p[n] for n in ("bq", "bk", "bv")]))
        context = g.plain("MatMul", g.node("Attention", x, wa, ba, num_heads=c.heads), g.constant(p["wo"].T))
        ends = (g.constant(p["g1"]), g.constant(p["b1"]), g.constant(p["bo"]))
        x = g.node("SkipLayerNormalization", context, x, *ends, epsilon=c.epsilon)
        inside = g.node("BiasGelu", g.plain("MatMul", x, g.constant(p["wi"].T)), g.constant(p["bi"]))
        ends = (g.constant(p["g2"]), g.constant(p["b2"]), g.constant(p["bd"]))
        inner = g.plain("MatMul", inside, g.constant(p["wd"].T))
        x = g.node("SkipLayerNormalization", inner, x, *ends, epsilon=c.epsilon)
    g.nodes.append(g.onnx.helper.make_node("Squeeze", [x, g.constant(np.array([0]))], ["states"]))
    g.save(path, {"ids": ("INT32", ["n"])}, {"states": ("FLOAT", ["n", c.width])})
    return path


def fused_gpt2(c: gpt2.Config, w: Weights, path: Path) -> Path:
    """Writes GPT-2 as onnxruntime's transformer optimiser leaves it (attention with its cache in one node) to a file, and gives that."""
    g = Graph()
    past_length = g.plain("Shape", "past_0", start=3, end=4)
    length = g.plain("Add", g.plain("Shape", "ids"), past_length)
    ids = g.plain("Unsqueeze", "ids", g.constant(np.array([0])))
    words = g.constant(w["words"])
    x = g.plain("Add", g.plain("Gather", words, ids), g.plain("Slice", g.constant(w["positions"]), past_length, length))
    presents: list[str] = []

    def norm(value: str, gain: Array, shift: Array) -> Any:
        return g.plain("LayerNormalization", value, g.constant(gain), g.constant(shift), axis=-1, epsilon=c.epsilon)

    state = norm(x, w["l0_g1"], w["l0_b1"])
    for k in range(c.layers):
        p = {name.removeprefix(f"l{k}_"): a for name, a in w.items() if name.startswith(f"l{k}_")}
        attended, present = g.node(
            "Attention", state, g.constant(p["wa"].T), g.constant(p["ba"]), "", f"past_{k}", outputs=2, num_heads=c.heads,
            unidirectional=1,
        )  # fmt: skip
        presents.append(present)
        context = g.plain("MatMul", attended, g.constant(p["wo"].T))
        ends = (g.constant(p["g2"]), g.constant(p["b2"]), g.constant(p["bo"]))
        state, _, _, x = g.node("SkipLayerNormalization", context, x, *ends, outputs=4, epsilon=c.epsilon)
        inside = g.node("FastGelu", g.plain("MatMul", state, g.constant(p["wi"].T)), g.constant(p["bi"]))
        inner = g.plain("MatMul", inside, g.constant(p["wd"].T))
        gain, shift = (w[f"l{k + 1}_{n}"] for n in ("g1", "b1")) if k + 1 < c.layers else (w["g"], w["b"])
        ends = (g.constant(gain), g.constant(shift), g.constant(p["bd"]))
        state, _, _, x = g.node("SkipLayerNormalization", inner, x, *ends, outputs=4, epsilon=c.epsilon)
    last = g.plain("Gather", state, g.constant(np.array(-1)), axis=1)
    g.nodes.append(g.onnx.helper.make_node("MatMul", [last, g.constant(w["words"].T)], ["scores"]))
    inputs: dict[str, tuple[str, list[Any]]] = {"ids": ("INT32", ["n"])}
    outputs: dict[str, tuple[str, list[Any]]] = {"scores": ("FLOAT", [1, 1, c.vocabulary])}
    size = c.width // c.heads
    for k, present in enumerate(presents):
        inputs[f"past_{k}"] = ("FLOAT", [2, 1, c.heads, "p", size])
        outputs[f"present_{k}"] = ("FLOAT", [2, 1, c.heads, "q", size])
        g.nodes.append(g.onnx.helper.make_node("Identity", [present], [f"present_{k}"]))
    g.save(path, inputs, outputs)
    return path


def onnxruntime_session(path: Path, threads: int) -> Any:
    """A session with all graph optimisations on so many threads."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.log_severity_level = 3  # errors
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def onnxruntime_bert(path: Path, threads: int) -> Encoder:
    session = onnxruntime_session(path, threads)
    name = session.get_inputs()[0].name
    return lambda ids: np.asarray(session.run(None, {name: ids})[0])


def onnxruntime_gpt2(c: gpt2.Config, path: Path, threads: int) -> Decoder:
    session = onnxruntime_session(path, threads)
    empty = [np.zeros((2, 1, c.heads, 0, c.width // c.heads), np.float32)] * c.layers

    def run(ids: Array, cache: Any) -> tuple[Array, Any]:
        given = {f"past_{k}": a for k, a in enumerate(empty if cache is None else cache)}
        scores, *presents = session.run(None, {"ids": ids, **given})
        return np.asarray(scores).reshape(-1), presents

    return run


def openvino_request(path: Path, threads: int, precision: str = "f32") -> Any:
    """A request for the least time of one call, in float32 unless it is asked for another precision."""
    import openvino as ov

    core = ov.Core()
    config = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
    return core.compile_model(core.read_model(str(path)), "CPU", config).create_infer_request()


def openvino_bert(path: Path, threads: int, precision: str = "f32") -> Encoder:
    request = openvino_request(path, threads, precision)
    return lambda ids: np.asarray(request.infer({"x0": ids}, share_inputs=True, share_outputs=True)[0])


def openvino_gpt2(c: gpt2.Config, path: Path, threads: int, precision: str = "f32") -> Decoder:
    request = openvino_request(path, threads, precision)
    empty = [np.zeros((0, c.width), np.float32)] * (2 * c.layers)

    def run(ids: Array, cache: Any) -> tuple[Array, Any]:
        given = {f"x{n + 1}": a for n, a in enumerate(empty if cache is None else cache)}
        found = request.infer({"x0": ids, **given}, share_inputs=True)
        return np.asarray(found[0]), [np.asarray(found[n + 1]) for n in range(2 * c.layers)]

    return run
