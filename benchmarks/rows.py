"""Softmax, norms, reductions, embeddings and other memory-bound kernels beside PyTorch and onnxruntime, in one run, interleaved.

Each table row is one program on one shape: the median time of each system, the rate in GB/s (operands read and written once),
and ours over the best of the others. Row counts are symbolic. ``python benchmarks/rows.py [--threads 1] [--only softmax,mean]
[--rounds 15] [--rows 1,16,1024]``
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from table import Table, add_out
from turns import PAUSE, medians

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
        import torch
        import torch.nn.functional as f

    def theirs(function: Callable[..., object]) -> Callable[..., object] | None:
        return function if there else None

    def text(params: str, body: str) -> str:
        typed = ", ".join(f"%{p.split()[0]}: Tensor[({p.split(maxsplit=1)[1]}), float32]" for p in params.split("; "))
        return f'#[version = "0.0.5"]\ndef @main[m: Dim]({typed}) {{ {body} }}'

    def matrix(n: int, w: int) -> Sequence[tuple[int, ...]]:
        return [(n, w)]

    x, vectors = "x m, WIDTH", "x m, WIDTH; g WIDTH,; b WIDTH,"

    def one(body: str, function: Callable[..., object], onnx: tuple[str, dict[str, Any]] | None = None) -> Program:
        return Program(text(x, body), theirs(function), onnx, matrix, ROWS)

    def blocks(body: str, function: Callable[..., object]) -> Program:
        """Rows in blocks of 16: a reduction over an axis in the middle."""
        return Program(
            text("x m, 16, WIDTH", body), theirs(function), None, lambda n, w: [(max(1, n // 16), 16, w)], ROWS
        )

    def scaled(body: str, function: Callable[..., object], onnx: tuple[str, dict[str, Any]] | None = None) -> Program:
        return Program(text(vectors, body), theirs(function), onnx, lambda n, w: [(n, w), (w,), (w,)], ROWS)

    ids = '#[version = "0.0.5"]\ndef @main[m: Dim](%t: Tensor[(30000, WIDTH), float32], %i: Tensor[(m,), int32]) { take(%t, %i, axis=0) }'
    images = "x m, 64, WIDTH; g 64,; b 64,"
    return {
        "softmax": one("nn.softmax(%x)", lambda x: f.softmax(x, -1), ("Softmax", {"axis": -1})),
        "softmax_first": one("nn.softmax(%x, axis=0)", lambda x: f.softmax(x, 0), ("Softmax", {"axis": 0})),
        "log_softmax": one("nn.log_softmax(%x)", lambda x: f.log_softmax(x, -1), ("LogSoftmax", {"axis": -1})),
        "layer_norm": scaled(
            "nn.layer_norm(%x, %g, %b)",
            lambda x, g, b: f.layer_norm(x, g.shape, g, b),
            ("LayerNormalization", {"axis": -1}),
        ),
        "rms_norm": Program(
            text(
                "x m, WIDTH; g WIDTH,",
                "%x * rsqrt(mean(%x * %x, axis=-1, keepdims=True) + 1e-5f) * %g",
            ),
            theirs(lambda x, g: f.rms_norm(x, g.shape, g, 1e-5)),
            None,
            lambda n, w: [(n, w), (w,)],
            ROWS,
        ),
        "group_norm": Program(
            text(images, "nn.group_norm(%x, %g, %b, num_groups=8)"),
            theirs(lambda x, g, b: f.group_norm(x, 8, g, b)),
            None,
            lambda n, w: [(max(1, n // 64), 64, w), (64,), (64,)],
            ROWS,
        ),
        "gelu": one("nn.gelu(%x)", lambda x: f.gelu(x), ("Gelu", {})),
        "tanh": one("tanh(%x)", lambda x: torch.tanh(x), ("Tanh", {})),
        "sigmoid": one("sigmoid(%x)", lambda x: torch.sigmoid(x), ("Sigmoid", {})),
        "embedding": Program(ids, theirs(lambda t, i: f.embedding(i, t)), None, lambda n, w: [(30000, w), (n,)], ROWS),
        "mean": one("mean(%x, axis=0)", lambda x: x.mean(0), ("ReduceMean", {"axes": [0], "keepdims": 0})),
        "mean_last": one("mean(%x, axis=1)", lambda x: x.mean(1), ("ReduceMean", {"axes": [1], "keepdims": 0})),
        "variance": one("variance(%x, axis=1)", lambda x: x.var(1, unbiased=False)),
        "variance_first": one("variance(%x, axis=0)", lambda x: x.var(0, unbiased=False)),
        "max_middle": blocks("max(%x, axis=1)", lambda x: x.amax(1)),
        "argmax": one("argmax(%x, axis=1)", lambda x: x.argmax(1)),
        "cumsum": one("cumsum(%x, axis=1)", lambda x: x.cumsum(1)),
        "cumsum_first": one("cumsum(%x, axis=0)", lambda x: x.cumsum(0)),
        "sort": one("sort(%x, axis=1)", lambda x: x.sort(1)[0]),
        "transpose": one("transpose(%x, axes=[1, 0])", lambda x: x.T.contiguous()),
        "add_column": Program(
            text("x m, WIDTH; c m, 1", "%x + %c"), theirs(lambda x, c: x + c), None, lambda n, w: [(n, w), (n, 1)], ROWS
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
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, None)
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
    if "int32" in program.relay:
        arrays[-1] = rng.integers(0, arrays[0].shape[0], arrays[-1].shape).astype(np.int32)
    exe = relay.compile(program.relay.replace("WIDTH", str(size[1])), threads=threads)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", default="", help="only these numbers of rows")
    add_out(parser)
    args = parser.parse_args()
    known = programs()
    chosen = args.only.split(",") if args.only else list(known)
    if unknown := set(chosen) - known.keys():
        parser.error(f"no program {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    print(f"us per call, {args.threads} thread(s)")
    title = f"Norms, softmax, elementwise functions, look-ups, {args.threads} thread(s)"
    table: Table | None = None
    for name in chosen:
        for size in known[name].sizes:
            if args.rows and str(size[0]) not in args.rows.split(","):
                continue
            systems, arrays = calls(known[name], size, args.threads)
            result = systems["relay"]()
            found = medians(systems, args.rounds, {"relay": PAUSE if len(systems) > 1 else 0.0}, turn=1e-3)
            ours, others = found["relay"], [t for n, t in found.items() if n != "relay"]
            moved = sum(a.nbytes for a in arrays if name != "embedding") + np.asarray(result).nbytes
            moved += np.asarray(result).nbytes if name == "embedding" else 0
            rate = f"{moved / ours / 1e9:7.1f} GB/s"
            line = " ".join(f"{n} {t * 1e6:9.1f}" for n, t in found.items())
            table = table or Table(f"rows-{args.threads}", title, "us a call", "operator", list(found))
            table.add(f"{name} {size[0]} x {size[1]}", {n: t * 1e6 for n, t in found.items()})
            ratio = f"{ours / min(others):.2f}" if others else "-"
            print(
                f"{name:13} {size[0]:5d} x {size[1]:<5d} {line:60} {rate:>16}  relay / best other {ratio}", flush=True
            )
    if table is not None:
        table.keep(args.out)


if __name__ == "__main__":
    main()
