"""Attention, softmax, norms and other row kernels beside PyTorch and onnxruntime, in one run, interleaved.

Each table row is one program on one shape: the median time of each system, and ours over the best of the others. For
attention the rate in GFLOP/s (two products of 2 m n d each, nothing for the softmax), for all others in GB/s (operands read and
written once). ``python benchmarks/rows.py [--threads 1] [--only softmax,attention] [--rounds 15]``
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import relay

Array = npt.NDArray[np.float32]
Call = Callable[[], object]


@dataclass(frozen=True)
class Program:
    """A program in the three systems' words. ``onnx`` is an operator, its attributes, and the numbers of its inputs."""

    relay: str
    torch: Callable[..., object] | None
    onnx: tuple[str, dict[str, Any]] | None
    shapes: Callable[[int, int], Sequence[tuple[int, ...]]]
    sizes: Sequence[tuple[int, int]]


ROWS = [(n, 768) for n in (1, 16, 128, 1024, 4096)] + [(1024, 100), (1024, 3072)]


def programs() -> dict[str, Program]:
    """By name; PyTorch's functions are looked up only when it is installed."""
    there = importlib.util.find_spec("torch") is not None
    if there:
        import torch.nn.functional as f

    def theirs(function: Callable[..., object]) -> Callable[..., object] | None:
        return function if there else None

    norm = theirs(lambda x, g, b: f.layer_norm(x, g.shape, g, b))
    attend = theirs(lambda q, k, v: f.scaled_dot_product_attention(q[None], k[None], v[None]))

    def heads(size: int) -> Callable[[int, int], Sequence[tuple[int, ...]]]:
        return lambda m, n: [(12, m, size), (12, n, size), (12, n, size)]

    def text(params: str, body: str) -> str:
        typed = ", ".join(f"%{p.split()[0]}: Tensor[({p.split(maxsplit=1)[1]}), float32]" for p in params.split("; "))
        return f'#[version = "0.0.5"]\ndef @main[m: Dim, n: Dim]({typed}) {{ {body} }}'

    def attention(size: int) -> str:
        return text(f"q 12, m, {size}; k 12, n, {size}; v 12, n, {size}", "nn.attention(%q, %k, %v)")

    def matrix(n: int, w: int) -> Sequence[tuple[int, ...]]:
        return [(n, w)]

    lengths = [(t, t) for t in (5, 16, 32, 64, 128, 256, 512)] + [(1, 512), (1, 4096)]
    x, mean = "x m, WIDTH", {"axes": [0], "keepdims": 0}
    vectors = "x m, WIDTH; g WIDTH,; b WIDTH,"
    return {
        "attention_32": Program(attention(32), attend, None, heads(32), lengths),
        "attention_64": Program(attention(64), attend, None, heads(64), lengths),
        "softmax": Program(
            text(x, "nn.softmax(%x)"), theirs(lambda x: f.softmax(x, -1)), ("Softmax", {"axis": -1}), matrix, ROWS
        ),
        "layer_norm": Program(
            text(vectors, "nn.layer_norm(%x, %g, %b)"),
            norm,
            ("LayerNormalization", {"axis": -1}),
            lambda n, w: [(n, w), (w,), (w,)],
            ROWS,
        ),
        "gelu": Program(text(x, "nn.gelu(%x)"), theirs(lambda x: f.gelu(x)), ("Gelu", {}), matrix, ROWS),
        "mean": Program(
            text(x, "mean(%x, axis=0)"),
            theirs(lambda x: x.mean(0)),
            ("ReduceMean", dict[str, Any](mean)),
            matrix,
            ROWS,
        ),
    }


def onnxruntime_call(op: str, attrs: dict[str, Any], arrays: Sequence[Array], threads: int) -> Call:
    """The operator alone in a graph."""
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper

    attrs = dict(attrs)
    names = [f"x{n}" for n in range(len(arrays))]
    constants = []
    if "axes" in attrs:
        constants.append(numpy_helper.from_array(np.asarray(attrs.pop("axes"), np.int64), "axes"))
    node = helper.make_node(op, [*names, *(c.name for c in constants)], ["out"], **attrs)
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in zip(names, arrays, strict=True)]
    shape = arrays[0].shape[1:] if constants else arrays[0].shape
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, shape)
    graph = helper.make_graph([node], "rows", inputs, [out], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = dict(zip(names, arrays, strict=True))
    return lambda: session.run(None, feeds)


def calls(program: Program, size: tuple[int, int], threads: int) -> tuple[dict[str, Call], Sequence[Array]]:
    """One call of each system that is installed, on the same operands."""
    rng = np.random.default_rng(0)
    arrays = [np.asarray(rng.standard_normal(s), np.float32) for s in program.shapes(*size)]
    dims = "[m: Dim, n: Dim]" if "12, n" in program.relay else "[m: Dim]"
    exe = relay.compile(program.relay.replace("WIDTH", str(size[1])).replace("[m: Dim, n: Dim]", dims), threads=threads)
    out: dict[str, Call] = {"relay": lambda: exe(*arrays)}
    if program.torch is not None:
        import torch

        torch.set_num_threads(threads)
        theirs, function = [torch.from_numpy(a) for a in arrays], program.torch

        def eager() -> object:
            with torch.inference_mode():
                return function(*theirs)

        out["torch"] = eager
    if program.onnx is not None:
        try:
            out["onnxruntime"] = onnxruntime_call(*program.onnx, arrays, threads)
        except ImportError as error:
            print(f"onnxruntime is left out ({error.name} is not installed)", file=sys.stderr)
    return out, arrays


def measure(systems: dict[str, Call], rounds: int) -> dict[str, float]:
    """Median seconds of a call; systems take turns within every round."""
    repeats: dict[str, int] = {}
    for name, call in systems.items():
        call()
        start = time.perf_counter()
        call()
        repeats[name] = max(1, min(200, int(1e-3 / max(time.perf_counter() - start, 1e-7))))
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds):
        for name, call in systems.items():
            call()
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - start) / repeats[name])
    return {name: float(np.median(t)) for name, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    known = programs()
    chosen = args.only.split(",") if args.only else list(known)
    if unknown := set(chosen) - known.keys():
        parser.error(f"no program {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    print(f"us per call, {args.threads} thread(s)")
    for name in chosen:
        for size in known[name].sizes:
            systems, arrays = calls(known[name], size, args.threads)
            found = measure(systems, args.rounds)
            ours, others = found["relay"], [t for n, t in found.items() if n != "relay"]
            if name.startswith("attention"):
                rate = f"{4 * 12 * size[0] * size[1] * arrays[0].shape[-1] / ours / 1e9:7.1f} GFLOP/s"
            else:
                written = arrays[0].nbytes if name != "mean" else arrays[0].nbytes // size[0]
                rate = f"{(sum(a.nbytes for a in arrays) + written) / ours / 1e9:7.1f} GB/s"
            line = " ".join(f"{n} {t * 1e6:9.1f}" for n, t in found.items())
            ratio = f"{ours / min(others):.2f}" if others else "-"
            print(
                f"{name:13} {size[0]:5d} x {size[1]:<5d} {line:60} {rate:>16}  relay / best other {ratio}", flush=True
            )


if __name__ == "__main__":
    main()
