"""Softmax, norms, reductions, look-ups, copies and other memory-bound kernels beside PyTorch and onnxruntime, in one run, interleaved.

Each table row is one program on one shape: the median time of each system, the rate in GB/s (operands read and written once)
beside that of a copy which moves as many bytes in the same turns, and ours over the best of the others. Row counts are symbolic.
``python benchmarks/rows.py [--threads 1] [--only softmax,mean] [--rounds 15] [--rows 1,16,1024] [--width 300]``
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
Onnx = tuple[str, dict[str, Any]] | tuple[str, dict[str, Any], Callable[[int], Sequence[Any]]]


@dataclass(frozen=True)
class Program:
    """A program in the three systems' words. ``onnx`` is an operator, its attributes and its constant operands for a width,
    which follow the others."""

    relay: str
    torch: Callable[..., object] | None
    onnx: Onnx | None
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

    def one(body: str, function: Callable[..., object], onnx: Onnx | None = None) -> Program:
        return Program(text(x, body), theirs(function), onnx, matrix, ROWS)

    def blocks(body: str, function: Callable[..., object]) -> Program:
        """Rows in blocks of 16: a reduction over an axis in the middle."""
        return Program(
            text("x m, 16, WIDTH", body), theirs(function), None, lambda n, w: [(max(1, n // 16), 16, w)], ROWS
        )

    def scaled(body: str, function: Callable[..., object], onnx: Onnx | None = None) -> Program:
        return Program(text(vectors, body), theirs(function), onnx, lambda n, w: [(n, w), (w,), (w,)], ROWS)

    def indexed(params: str, indices: str, body: str) -> str:
        return text(params, body).replace(") {", f", %i: Tensor[({indices}), int32]) {{")

    ids = indexed("t 30000, WIDTH", "m,", "take(%t, %i, axis=0)")
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
        "mean": one(
            "mean(%x, axis=0)", lambda x: x.mean(0), ("ReduceMean", {"keepdims": 0}, lambda w: [np.array([0])])
        ),
        "mean_last": one(
            "mean(%x, axis=1)", lambda x: x.mean(1), ("ReduceMean", {"keepdims": 0}, lambda w: [np.array([1])])
        ),
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
        "l2_normalize": one("nn.l2_normalize(%x, axis=-1)", lambda x: f.normalize(x, dim=-1)),
        "std": one("std(%x, axis=1)", lambda x: x.std(1, unbiased=False)),
        "batch_norm": Program(
            text("x m, 64, WIDTH; g 64,; b 64,; c 64,; v 64,", "nn.batch_norm(%x, %g, %b, %c, %v * %v).0"),
            theirs(lambda x, g, b, c, v: f.batch_norm(x, c, v * v, g, b)),
            None,
            lambda n, w: [(max(1, n // 64), 64, w), (64,), (64,), (64,), (64,)],
            ROWS,
        ),
        "instance_norm": Program(
            text(images, "nn.instance_norm(%x, %g, %b)"),
            theirs(lambda x, g, b: f.instance_norm(x, weight=g, bias=b)),
            ("InstanceNormalization", {}),
            lambda n, w: [(max(1, n // 64), 64, w), (64,), (64,)],
            ROWS,
        ),
        "topk": one("topk(%x, k=8)", lambda x: x.topk(8), ("TopK", {}, lambda w: [np.array([8])])),
        "heads": Program(
            text("x m, 12, WIDTH", "transpose(%x, axes=[1, 0, 2])"),
            theirs(lambda x: x.transpose(0, 1).contiguous()),
            ("Transpose", {"perm": [1, 0, 2]}),
            lambda n, w: [(max(1, n // 12), 12, w)],
            ROWS,
        ),
        "channels_last": Program(
            text("x m, 32, 24, WIDTH", "transpose(%x, axes=[0, 2, 3, 1])"),
            theirs(lambda x: x.permute(0, 2, 3, 1).contiguous()),
            ("Transpose", {"perm": [0, 2, 3, 1]}),
            lambda n, w: [(max(1, n // 768), 32, 24, w)],
            ROWS,
        ),
        "concatenate": Program(
            text("x m, WIDTH; y m, WIDTH", "concatenate((%x, %y), axis=1)"),
            theirs(lambda x, y: torch.cat((x, y), 1)),
            ("Concat", {"axis": 1}),
            lambda n, w: [(n, w), (n, w)],
            ROWS,
        ),
        "half": one(
            "strided_slice(%x, begin=[HALF], end=[None], axes=[1])",
            lambda x: x[:, x.shape[1] // 2 :].contiguous(),
            ("Slice", {}, lambda w: [np.array([w // 2]), np.array([w]), np.array([1])]),
        ),
        "every_second": one(
            "strided_slice(%x, begin=[0], end=[None], strides=[2], axes=[1])",
            lambda x: x[:, ::2].contiguous(),
            ("Slice", {}, lambda w: [np.array([0]), np.array([w]), np.array([1]), np.array([2])]),
        ),
        "reverse": one("reverse(%x, axis=1)", lambda x: x.flip(1)),
        "pad": one(
            "nn.pad(%x, pad_width=[[1, 1], [3, 5]])",
            lambda x: f.pad(x, (3, 5, 1, 1)),
            ("Pad", {}, lambda w: [np.array([1, 3, 1, 5])]),
        ),
        "where": one("where(%x > 0f, %x, %x * 0.1f)", lambda x: torch.where(x > 0, x, x * 0.1)),
        "gather": Program(
            indexed("x m, WIDTH", "m, WIDTH", "gather(%x, %i, axis=1)"),
            theirs(lambda x, i: torch.gather(x, 1, i.long())),
            ("GatherElements", {"axis": 1}),
            lambda n, w: [(n, w), (n, w)],
            ROWS,
        ),
        "one_hot": Program(
            indexed("t WIDTH,", "m,", "one_hot(%i, 1f, 0f, depth=WIDTH)"),
            theirs(lambda t, i: f.one_hot(i.long(), t.shape[0]).float()),
            None,
            lambda n, w: [(w,), (n,)],
            ROWS,
        ),
        "resize": Program(
            text("x m, 64, WIDTH", "image.resize2d(expand_dims(%x, axis=0), size=[128, TWICE])"),
            theirs(lambda x: f.interpolate(x[None], scale_factor=2, mode="bilinear")),
            None,
            lambda n, w: [(max(1, n // 256), 64, w)],
            ROWS,
        ),
        "masked_softmax": Program(
            text("x m, WIDTH; y m, WIDTH", "nn.softmax(where(%y > 0f, %x, -1e9f))"),
            theirs(lambda x, y: f.softmax(torch.where(y > 0, x, -1e9), -1)),
            None,
            lambda n, w: [(n, w), (n, w)],
            ROWS,
        ),
        "add_layer_norm": Program(
            text("x m, WIDTH; y m, WIDTH; g WIDTH,; b WIDTH,", "nn.layer_norm(%x + %y, %g, %b)"),
            theirs(lambda x, y, g, b: f.layer_norm(x + y, g.shape, g, b)),
            None,
            lambda n, w: [(n, w), (n, w), (w,), (w,)],
            ROWS,
        ),
    }


def onnxruntime_call(program: Onnx, arrays: Sequence[Array], width: int, threads: int) -> Call:
    """The operator alone in a graph."""
    import onnxruntime as ort
    from onnx import helper, numpy_helper

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
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    feeds = dict(zip(names, arrays, strict=True))
    return lambda: session.run(None, feeds)


def operands(program: Program, size: tuple[int, int]) -> list[Array]:
    """Normal numbers; an operand ``%i`` holds indices into the one before it along its axis of that many elements."""
    rng = np.random.default_rng(0)
    arrays = [np.asarray(rng.standard_normal(s), np.float32) for s in program.shapes(*size)]
    if "int32" in program.relay:
        places = arrays[0].shape[1] if arrays[-1].ndim == 2 else arrays[0].shape[0]
        arrays[-1] = rng.integers(0, places, arrays[-1].shape).astype(np.int32)
    return arrays


def calls(program: Program, size: tuple[int, int], threads: int) -> tuple[dict[str, Call], Sequence[Array]]:
    """One call of each system that is installed, on the same operands."""
    arrays = operands(program, size)
    source = program.relay
    for word, value in (("WIDTH", size[1]), ("HALF", size[1] // 2), ("TWICE", 2 * size[1])):
        source = source.replace(word, str(value))
    exe = relay.compile(source, threads=threads)
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
            out["onnxruntime"] = onnxruntime_call(program.onnx, arrays, size[1], threads)
        except ImportError as error:
            print(f"onnxruntime is left out ({error.name} is not installed)", file=sys.stderr)
    return out, arrays


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", default="", help="only these numbers of rows")
    parser.add_argument("--width", type=int, default=0, help="rows of this many elements instead")
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
            if args.width and size[1] != 768:
                continue
            size = (size[0], args.width or size[1])
            systems, arrays = calls(known[name], size, args.threads)
            result = systems["relay"]()
            written = sum(np.asarray(r).nbytes for r in (result if isinstance(result, tuple) else (result,)))
            moved = written + (written if name == "embedding" else sum(a.nbytes for a in arrays))
            source, target = np.ones(moved // 2, np.uint8), np.ones(moved // 2, np.uint8)
            turns: dict[str, Call] = {**systems, "copy": lambda to=target, of=source: np.copyto(to, of)}  # type: ignore[misc]
            found = medians(turns, args.rounds, {"relay": PAUSE if len(systems) > 1 else 0.0}, turn=1e-3)
            copy = found.pop("copy")
            ours, others = found["relay"], [t for n, t in found.items() if n != "relay"]
            rate = f"{moved / ours / 1e9:7.1f} GB/s, {copy / ours:4.0%} of a copy"
            line = " ".join(f"{n} {t * 1e6:9.1f}" for n, t in found.items())
            table = table or Table(f"rows-{args.threads}", title, "us a call", "operator", list(found))
            table.add(f"{name} {size[0]} x {size[1]}", {n: t * 1e6 for n, t in found.items()})
            ratio = f"{ours / min(others):.2f}" if others else "-"
            print(
                f"{name:13} {size[0]:5d} x {size[1]:<5d} {line:60} {rate:>32}  relay / best other {ratio}", flush=True
            )
    if table is not None:
        table.keep(args.out)


if __name__ == "__main__":
    main()
