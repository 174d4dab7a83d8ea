"""MiniLM per token beside onnxruntime and PyTorch, in one run, interleaved.

For each sentence length every system embeds the same token ids in turn; the table gives the median per token of each, and
how ours compares with the best of the others. ``python benchmarks/minilm.py [--threads 1] [--lengths 5,8,...]``
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from table import Table, add_out
from turns import PAUSE, medians

sys.path.insert(0, str(Path(__file__).parent.parent))
from examples import minilm

Array = npt.NDArray[np.float32]
Encoder = Callable[[npt.NDArray[np.int32]], object]
Weights = dict[str, npt.NDArray[np.float32]]


def torch_encoder(w: Weights, threads: int) -> Encoder:
    """PyTorch eager, with its fused attention."""
    import torch
    import torch.nn.functional as f

    torch.set_num_threads(threads)
    t = {k: torch.from_numpy(v) for k, v in w.items()}

    @torch.inference_mode()
    def run(ids: npt.NDArray[np.int32]) -> object:
        n = len(ids)
        x = t["words"][torch.from_numpy(ids.astype(np.int64))] + t["positions"][:n] + t["kinds"][0]
        x = f.layer_norm(x, (384,), t["g"], t["b"], 1e-12)
        for k in range(6):
            p = {name: t[f"l{k}_{name}"] for name in minilm.LAYER}
            q, key, v = (
                f.linear(x, p[a], p[b]).view(n, 12, 32).transpose(0, 1)
                for a, b in (("wq", "bq"), ("wk", "bk"), ("wv", "bv"))
            )
            context = f.scaled_dot_product_attention(q[None], key[None], v[None])[0].transpose(0, 1).reshape(n, 384)
            x = f.layer_norm(x + f.linear(context, p["wo"], p["bo"]), (384,), p["g1"], p["b1"], 1e-12)
            inner = f.gelu(f.linear(x, p["wi"], p["bi"]))
            x = f.layer_norm(x + f.linear(inner, p["wd"], p["bd"]), (384,), p["g2"], p["b2"], 1e-12)
        return f.normalize(x.mean(0), dim=0)

    return run


def onnx_model(w: Weights) -> bytes:
    """The encoder as an ONNX graph with a symbolic length."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[onnx.NodeProto] = []
    tensors = {name: numpy_helper.from_array(np.ascontiguousarray(a), name) for name, a in w.items()}
    count = 0

    def constant(value: npt.NDArray[np.generic], name: str) -> str:
        tensors[name] = numpy_helper.from_array(value, name)
        return name

    def node(op: str, *inputs: str, **attrs: Any) -> str:
        nonlocal count
        count += 1
        nodes.append(helper.make_node(op, list(inputs), [f"t{count}"], **attrs))
        return f"t{count}"

    def linear(x: str, weight: str, bias: str) -> str:
        transposed = constant(np.ascontiguousarray(w[weight].T), f"{weight}_t")
        return node("Add", node("MatMul", x, transposed), bias)

    heads = constant(np.array([-1, 12, 32], np.int64), "heads_shape")
    merged = constant(np.array([-1, 384], np.int64), "merged_shape")
    root = constant(np.array(np.sqrt(32), np.float32), "root")
    two, one, half = (constant(np.array(v, np.float32), f"c{v}") for v in (np.sqrt(2), 1.0, 0.5))
    zero = constant(np.array([0], np.int64), "zero")
    length = node("Shape", "ids")
    x = node("Add", node("Gather", "words", "ids"), node("Slice", "positions", zero, length, zero))
    x = node("Add", x, constant(w["kinds"][0], "kind0"))
    x = node("LayerNormalization", x, "g", "b", axis=-1, epsilon=1e-12)
    for k in range(6):
        p = {name: f"l{k}_{name}" for name in minilm.LAYER}
        q, key, v = (node("Transpose", node("Reshape", linear(x, p[a], p[b]), heads), perm=perm)
                     for a, b, perm in (("wq", "bq", [1, 0, 2]), ("wk", "bk", [1, 2, 0]), ("wv", "bv", [1, 0, 2])))  # fmt: skip
        probabilities = node("Softmax", node("Div", node("MatMul", q, key), root), axis=-1)
        context = node("Reshape", node("Transpose", node("MatMul", probabilities, v), perm=[1, 0, 2]), merged)
        x = node(
            "LayerNormalization",
            node("Add", x, linear(context, p["wo"], p["bo"])),
            p["g1"],
            p["b1"],
            axis=-1,
            epsilon=1e-12,
        )
        inner = linear(x, p["wi"], p["bi"])
        inner = node("Mul", node("Mul", inner, half), node("Add", node("Erf", node("Div", inner, two)), one))
        x = node(
            "LayerNormalization",
            node("Add", x, linear(inner, p["wd"], p["bd"])),
            p["g2"],
            p["b2"],
            axis=-1,
            epsilon=1e-12,
        )
    pooled = node("ReduceMean", x, zero, keepdims=0)
    nodes.append(helper.make_node("Div", [pooled, node("ReduceL2", pooled, zero, keepdims=1)], ["out"]))
    used = {name for n in nodes for name in n.input}
    graph = helper.make_graph(
        nodes, "minilm",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [384])],
        [t for name, t in tensors.items() if name in used],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return bytes(model.SerializeToString())


def onnxruntime_encoder(w: Weights, threads: int) -> Encoder:
    """onnxruntime with all of its graph optimisations."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = ort.InferenceSession(onnx_model(w), options, providers=["CPUExecutionProvider"])
    return lambda ids: session.run(None, {"ids": ids.astype(np.int64)})[0]


def measure(encoders: dict[str, Encoder], lengths: list[int], rounds: int) -> dict[int, dict[str, float]]:
    """Median seconds per call by length and system; systems take turns within every round."""
    random = np.random.default_rng(0)
    out: dict[int, dict[str, float]] = {}
    for n in lengths:
        ids = random.integers(1000, 30000, n).astype(np.int32)
        calls = {name: partial(encode, ids) for name, encode in encoders.items()}
        out[n] = medians(calls, rounds, dict.fromkeys(calls, PAUSE))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--lengths", default="5,8,13,16,22,32,48,53,64,96,128")
    parser.add_argument("--rounds", type=int, default=25)
    add_out(parser)
    args = parser.parse_args()
    w = minilm.load_weights()
    encoders: dict[str, Encoder] = {"relay": minilm.load_encoder(threads=args.threads)}
    for name, make in (("onnxruntime", onnxruntime_encoder), ("torch", torch_encoder)):
        try:
            encoders[name] = make(w, args.threads)
        except ImportError as error:
            print(f"{name} is not installed ({error.name}): left out", file=sys.stderr)
    lengths = [int(n) for n in args.lengths.split(",")]
    probe = np.arange(1000, 1020, dtype=np.int32)
    expected = np.asarray(encoders["relay"](probe))
    for name, encode in encoders.items():
        difference = float(np.abs(np.asarray(encode(probe)) - expected).max())
        print(f"# {name}: differs from relay by at most {difference:.1e} on a sentence of 20 tokens")
    measured = measure(encoders, lengths, args.rounds)
    table = Table(f"minilm-{args.threads}", f"MiniLM, {args.threads} thread(s)", "us a token", "tokens", list(encoders))
    print(f"us per token, {args.threads} thread(s)")
    print("length " + "".join(f"{name:>14}" for name in encoders) + "   relay / best other")
    ratios = []
    for n, row in measured.items():
        others = [t for name, t in row.items() if name != "relay"]
        ratio = row["relay"] / min(others) if others else float("nan")
        ratios.append(ratio)
        print(f"{n:6d} " + "".join(f"{t / n * 1e6:14.1f}" for t in row.values()) + f"   {ratio:.2f}")
        table.add(n, {name: t / n * 1e6 for name, t in row.items()})
    print(table.note(f"geometric mean of our time over the best other's: {np.exp(np.mean(np.log(ratios))):.2f}"))
    table.keep(args.out)


if __name__ == "__main__":
    main()
