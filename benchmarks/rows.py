"""Softmax, norms, reductions, look-ups, copies and other memory-bound kernels beside PyTorch, onnxruntime, OpenVINO and JAX, in one
run, interleaved.

Each table row is one program on one shape: the median time of each system, ours over the best of the others, and ``floor``, what the
machine allows. Row counts are symbolic. The floor is measured in the same turns, with as many threads: copying as many bytes as the
program reads and writes (reading them, where next to nothing is written; of an embedding copying as many rows from all over the
table). Where a function of each element binds, it is what further rows take while the second-level cache holds all of them, if that
is more.

    python benchmarks/rows.py [--threads 1] [--only softmax,mean] [--rounds 15] [--rows 1,16,1024] [--width 300] [--systems torch,jax]

All of it takes long. With ``--more FILE`` rows that the file has are not measured again and new ones are added to it, for about
``--limit`` seconds: run again and again, it gets through all of them.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import machine
import numpy as np
import numpy.typing as npt
import row_peers
from row_peers import Onnx
from table import FLOOR, Pieces, Table, add_out, add_pieces
from turns import PAUSE, medians

import relay
from relay.codegen.target import host_target
from relay.view import limits

Array = npt.NDArray[np.float32]
Call = Callable[[], object]
SYSTEMS = ("torch", "onnxruntime", "openvino", "jax")
# Programs in which a function of each element may take longer than memory does.
DEAR = ("softmax", "softmax_first", "log_softmax", "masked_softmax", "gelu", "tanh", "sigmoid")
# Rows by whose difference it is known what a further row takes.
FEW, MORE = 16, 64


@dataclass(frozen=True)
class Program:
    """A program in the systems' words. ``onnx`` is an operator, its attributes and its constant operands for a width,
    which follow the others; None: the graph of our program."""

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


def operands(program: Program, size: tuple[int, int]) -> list[Array]:
    """Normal numbers; an operand ``%i`` holds indices into the one before it along its axis of that many elements."""
    rng = np.random.default_rng(0)
    arrays = [np.asarray(rng.standard_normal(s), np.float32) for s in program.shapes(*size)]
    if "int32" in program.relay:
        places = arrays[0].shape[1] if arrays[-1].ndim == 2 else arrays[0].shape[0]
        arrays[-1] = rng.integers(0, places, arrays[-1].shape).astype(np.int32)
    return arrays


def source_of(program: Program, width: int) -> str:
    """The program for rows of so many elements."""
    source = program.relay
    for word, value in (("WIDTH", width), ("HALF", width // 2), ("TWICE", 2 * width)):
        source = source.replace(word, str(value))
    return source


def calls(
    name: str, program: Program, size: tuple[int, int], threads: int, wanted: Sequence[str]
) -> tuple[dict[str, Call], Sequence[Array]]:
    """One call of each system that is wanted, installed and able to run the program, on the same operands."""
    arrays = operands(program, size)
    source = source_of(program, size[1])
    exe = relay.compile(source, threads=threads)
    out: dict[str, Call] = {"relay": lambda: exe(*arrays)}
    wanted = [n for n in wanted if importlib.util.find_spec(n) is not None]
    if program.torch is not None and "torch" in wanted:
        import torch

        torch.set_num_threads(threads)
        theirs, function = [torch.from_numpy(a) for a in arrays], program.torch

        def eager() -> object:
            with torch.inference_mode():
                return function(*theirs)

        out["torch"] = eager
    made: dict[str, Call | None] = {}
    if {"onnxruntime", "openvino"} & set(wanted) and importlib.util.find_spec("onnx") is not None:
        model = row_peers.onnx_model(program.onnx, source, arrays, size[1])
        for peer, make in (("onnxruntime", row_peers.onnxruntime), ("openvino", row_peers.openvino)):
            if model is not None and peer in wanted:
                made[peer] = make(model, arrays, threads)
    if "jax" in wanted:
        made["jax"] = row_peers.jax(name, arrays, threads)
    return out | {peer: call for peer, call in made.items() if call is not None}, arrays


def floors(
    name: str, program: Program, size: tuple[int, int], threads: int, ours: Call, given: Sequence[Array]
) -> tuple[dict[str, Call], Callable[[Mapping[str, float]], float]]:
    """Calls that say what the machine allows, and how their times do."""
    result = ours()
    written = sum(np.asarray(r).nbytes for r in (result if isinstance(result, tuple) else (result,)))
    read = sum(a.nbytes for a in given)
    target = host_target()
    if name == "embedding":
        return {"memory": limits.scattered(target, threads, *size, len(given[0]))}, lambda found: found["memory"]
    if 4 * written < read:
        return {"memory": machine.reading(read, threads)}, lambda found: found["memory"]
    out = {"memory": limits.copying(target, threads, (read + written) // 2)}
    if name not in DEAR or size[0] <= MORE:
        return out, lambda found: found["memory"]
    alone = relay.compile(source_of(program, size[1]), threads=1)
    for word, rows in (("few", FEW), ("more", MORE)):
        arrays = operands(program, (rows, size[1]))
        out[word] = lambda arrays=arrays: alone(*arrays)  # type: ignore[misc]
    share = size[0] / (MORE - FEW) / threads
    return out, lambda found: max(found["memory"], (found["more"] - found["few"]) * share)


def measure(
    name: str, program: Program, size: tuple[int, int], threads: int, wanted: Sequence[str], rounds: int
) -> dict[str, float]:
    """Microseconds a call of each system, and the floor."""
    systems, arrays = calls(name, program, size, threads, wanted)
    others, floor = floors(name, program, size, threads, systems["relay"], arrays)
    # The floor directly after ours; each system after a pause, in which the threads of the one before stop spinning.
    turns = {"relay": systems["relay"], **others, **systems}
    found = medians(turns, rounds, dict.fromkeys(systems, PAUSE) if len(systems) > 1 else {}, turn=2e-3)
    return {n: t * 1e6 for n, t in found.items() if n in systems} | {FLOOR: floor(found) * 1e6}


def line(case: str, found: Mapping[str, float]) -> str:
    """A row as text."""
    ours, others = found["relay"], [t for n, t in found.items() if n not in ("relay", FLOOR)]
    times = " ".join(f"{n} {t:8.1f}" for n, t in found.items())
    ratio = f"{ours / min(others):.2f} of the best other" if others else ""
    return f"{case:26} {times}  {found[FLOOR] / ours:4.0%} of the limit {ratio}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--rows", default="", help="only these numbers of rows")
    parser.add_argument("--width", type=int, default=0, help="rows of this many elements instead")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    add_pieces(parser)
    add_out(parser)
    args = parser.parse_args()
    known, wanted = programs(), [n for n in args.systems.split(",") if n]
    chosen = args.only.split(",") if args.only else list(known)
    if unknown := (set(chosen) - known.keys()) | (set(wanted) - set(SYSTEMS)):
        parser.error(f"no {', '.join(sorted(unknown))}; there are {', '.join(known)}; {', '.join(SYSTEMS)}")
    numbers = [int(n) for n in args.rows.split(",") if n]
    pieces = Pieces(args.more, args.limit)
    title = f"Norms, softmax, elementwise functions, look-ups, {args.threads} thread(s)"
    table = Table(f"rows-{args.threads}", title, "us a call", "operator", ["relay", *wanted, FLOOR])
    print(f"us a call, {args.threads} thread(s)")
    for name in chosen:
        program = known[name]
        if numbers or args.width:
            widths = [args.width or 768]
            rows = numbers or [n for n, w in program.sizes if w == 768]
            program = replace(program, sizes=[(n, w) for n in rows for w in widths])
        for size in program.sizes:
            case = f"{name} {size[0]} x {size[1]}"
            now = partial(measure, name, program, size, args.threads, wanted, args.rounds)
            found = pieces.figures(f"{args.threads} {case}", now)
            if found is not None:
                table.add(case, found)
                print(line(case, found), flush=True)
    table.keep(args.out)


if __name__ == "__main__":
    main()
