"""BERT-base, MiniLM's architecture and GPT-2 beside PyTorch, onnxruntime and OpenVINO, in one run, interleaved.

Every system runs the same seeded weights and inputs and is checked against float64 NumPy first. Ours is compiled once for every length;
torch-compile compiles each length anew. Systems take turns with a pause between, so that threads that still wait busily for the last
one's work do not disturb the next. ``floor`` is the time that the machine allows: arithmetic at the rate of multiply-adds in registers,
or the weights read from memory, whichever is longer; both loops take their turns with the systems, because what a machine gives changes
by several percent from minute to minute. ``--precisions`` adds ours in reduced precision, with how far its results are from float64 (the
largest distance over the largest result); the floor stays that of float32. ``torch-compile`` has to be asked for, it compiles a minute
for each length, and so has OpenVINO in bfloat16 (``openvino-bf16``), which is no peer of ours in float32.

    python benchmarks/transformers.py [--models bert-base,minilm,gpt2] [--threads 1,2] [--lengths 5,32,60-90,96-128:4 | all] [--memory]
                                      [--precisions bf16,int8-weights] [--systems onnxruntime,...,torch-compile]

All lengths take long. With ``--more FILE`` rows that the file has are not measured again and new ones are added to it, for about
``--limit`` seconds: run again and again, it gets through all of them, and reports what there is of those asked for.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from table import FLOOR, Table, add_out
from turns import PAUSE

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

import relay
from examples import bert, gpt2
from relay.codegen.target import host_target
from relay.ir.files import write_whole
from relay.view import limits
from relay.view.comparison import microseconds
from relay.view.svg import COLOURS, Picture, covering
from relay.view.timing import interleaved

MODELS = ("bert-base", "minilm", "gpt2")
ALL_LENGTHS = "5-128"
# From so many tokens on ours is held against what the machine allows.
LONG = 32
SYSTEMS = (
    "relay",
    "relay-bf16",
    "relay-int8-weights",
    "onnxruntime",
    "onnxruntime-fused",
    "openvino",
    "openvino-bf16",
    "torch",
    "torch-compile",
)
# Tokens of one timed generation.
GENERATED = 8
LEVEL = 0.97  # so near to the best other system counts as level with it
TOLERANCE = 2e-4  # float32 through twelve layers
REDUCED = 0.1  # of the largest result, in reduced precision
# Seconds until all but PyTorch's threads have stopped spinning (onnxruntime's do after 60 milliseconds).
SHORT_PAUSE = 0.1
Array = npt.NDArray[Any]
Row = dict[str, Any]


def weight_bytes(w: dict[str, Any]) -> int:
    """Bytes of the weights that a call reads whole: all but the tables that are only looked up."""
    return sum(a.nbytes for name, a in w.items() if name not in ("words", "positions", "kinds"))


def bert_flops(c: bert.Config, n: int) -> float:
    """Arithmetic of products and attention (the rest is small)."""
    return 2.0 * n * c.layers * (4 * c.width**2 + 2 * c.width * c.inner + 2 * n * c.width)


def gpt2_flops(c: gpt2.Config, n: int, past: int) -> float:
    return 2.0 * n * c.layers * (12 * c.width**2 + 2 * (n + past) * c.width) + 2.0 * c.width * c.vocabulary


def bert_systems(c: bert.Config, w: Any, threads: int, wanted: Sequence[str], folder: Path) -> dict[str, Any]:
    import peers

    def ours(precision: str) -> Callable[[Array], Array]:
        exe = relay.compile(bert.program(c, w), threads=threads, precision=precision)
        return lambda ids: np.asarray(exe(ids))

    systems: dict[str, Any] = _ours(ours, wanted)
    exported, fused = folder / "exported.onnx", folder / "fused.onnx"
    if {"onnxruntime", "openvino", "openvino-bf16"} & set(wanted):
        peers.exported(bert.program(c, w), exported)
    makers: dict[str, Callable[[], Any]] = {
        "onnxruntime": lambda: peers.onnxruntime_bert(exported, threads),
        "onnxruntime-fused": lambda: peers.onnxruntime_bert(peers.fused_bert(c, w, fused), threads),
        "openvino": lambda: peers.openvino_bert(exported, threads),
        "openvino-bf16": lambda: peers.openvino_bert(exported, threads, "bf16"),
        "torch": lambda: peers.torch_bert(c, w, threads, False),
        "torch-compile": lambda: peers.torch_bert(c, w, threads, True),
    }
    return systems | _made(makers, wanted)


def gpt2_systems(c: gpt2.Config, w: Any, threads: int, wanted: Sequence[str], folder: Path) -> dict[str, Any]:
    import peers

    def ours(precision: str) -> Callable[[Array, Any], tuple[Array, Any]]:
        exe: Any = relay.compile(gpt2.program(c, w), threads=threads, precision=precision)

        def run(ids: Array, cache: Any) -> tuple[Array, Any]:
            scores, made = exe(ids, gpt2.empty_cache(c) if cache is None else cache)
            return np.asarray(scores), made

        return run

    exported, fused = folder / "exported.onnx", folder / "fused.onnx"
    if {"openvino", "openvino-bf16"} & set(wanted):
        peers.exported(gpt2.program(c, w), exported)
    makers: dict[str, Callable[[], Any]] = {
        "onnxruntime-fused": lambda: peers.onnxruntime_gpt2(c, peers.fused_gpt2(c, w, fused), threads),
        "openvino": lambda: peers.openvino_gpt2(c, exported, threads),
        "openvino-bf16": lambda: peers.openvino_gpt2(c, exported, threads, "bf16"),
        "torch": lambda: peers.torch_gpt2(c, w, threads),
    }
    return _ours(ours, wanted) | _made(makers, wanted)


def _ours(make: Callable[[str], Any], wanted: Sequence[str]) -> dict[str, Any]:
    """Ours in float32, and in the precisions that are wanted."""
    reduced = [name for name in wanted if name.startswith("relay-")]
    return {"relay": make("float32")} | {name: make(name.removeprefix("relay-")) for name in reduced}


def generate(run: Any, ids: Array, cache: Any, count: int) -> None:
    """``count`` tokens one after the other, each from the cache that the one before has left."""
    for _ in range(count):
        _, cache = run(ids, cache)


def _made(makers: dict[str, Callable[[], Any]], wanted: Sequence[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, make in makers.items():
        if name in wanted:
            try:
                out[name] = make()
            except ImportError as error:
                print(f"{name} is left out: {error.name} is not installed", file=sys.stderr)
    return out


def is_reduced(system: str) -> bool:
    """Whether a system multiplies in reduced precision."""
    return system.startswith("relay-") or system.endswith("-bf16")


def checked(what: str, results: dict[str, Array], expected: Array) -> dict[str, float]:
    """How far each system is from float64, relative to the largest result in reduced precision. Stops where one computes something
    else."""
    apart = {name: float(np.abs(r - expected).max()) for name, r in results.items()}
    for name, distance in apart.items():
        if not distance < (REDUCED * np.abs(expected).max() if is_reduced(name) else TOLERANCE):
            sys.exit(f"{name} is {distance:.1e} away from float64 NumPy on {what}: it does not compute the same")
    largest = float(np.abs(expected).max())
    return {name: d / largest if is_reduced(name) else d for name, d in apart.items()}


def measure(
    model: str, threads: int, wanted: Sequence[str], lengths: Sequence[int], seconds: float, limit: float
) -> list[Row]:
    """The rows of one model with so many threads; after ``limit`` seconds those of no further length."""
    rng = np.random.default_rng(0)
    end = time.perf_counter() + limit
    pause = 0.0 if threads == 1 else PAUSE if any(name.startswith("torch") for name in wanted) else SHORT_PAUSE
    rows: list[Row] = []
    target = host_target()
    multiplied, multiply = limits.multiplying(target, threads)
    reading: dict[int, tuple[float, Callable[[], object]]] = {}

    def row(
        what: str, n: int, calls: Mapping[str, Callable[[], object]], apart: dict[str, float], flops: float, size: float,
        each: int = 1,
    ) -> None:  # fmt: skip
        """``flops`` and ``size``: the operations of a call, and the bytes that it reads at least."""
        part = min(int(size), 4 * target.l3_bytes)
        if part not in reading:
            reading[part] = limits.reading(target, threads, part)
        read, reads = reading[part]
        turns = {**calls, "multiply": multiply, "read": reads}
        found = interleaved(turns, seconds, pause=pause if len(calls) > 1 else 0.0)
        floor = max(flops * found.pop("multiply").median / multiplied, size * found.pop("read").median / read)
        timing = {
            name: {"median": t.median / each, "low": t.low / each, "high": t.high / each} for name, t in found.items()
        }
        rows.append(
            {
                "model": model,
                "threads": threads,
                "what": what,
                "tokens": n,
                "seconds": timing,
                "apart": apart,
                "floor": floor,
            }
        )

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if model == "gpt2":
            g = gpt2.CONFIGS["gpt2"]
            w = gpt2.seeded_weights(g)
            heavy = weight_bytes(w) + w["words"].nbytes
            systems = gpt2_systems(g, w, threads, wanted, folder)
            for n, past in ((64, 0), (1, 64), (1, 512)):
                text = rng.integers(0, g.vocabulary, n + past).astype(np.int32)
                caches = {s: run(text[:past], None)[1] if past else None for s, run in systems.items()}
                results = {s: run(text[past:], caches[s])[0] for s, run in systems.items()}
                apart = checked(f"{past} + {n} tokens", results, gpt2.reference(g, w, text))
                each = GENERATED if past else 1
                calls = {s: partial(generate, run, text[past:], caches[s], each) for s, run in systems.items()}
                size = heavy + 8 * g.layers * g.width * past
                what = f"prompt of {n}" if n > 1 else f"step after {past}"
                row(what, n, calls, apart, gpt2_flops(g, n, past), size, each)
        else:
            c = bert.CONFIGS[model]
            w = bert.seeded_weights(c)
            encoders = bert_systems(c, w, threads, wanted, folder)
            for n in lengths:
                if time.perf_counter() > end:
                    break
                ids = rng.integers(0, c.vocabulary, n).astype(np.int32)
                apart = checked(f"{n} tokens", {s: run(ids) for s, run in encoders.items()}, bert.reference(c, w, ids))
                calls = {s: partial(run, ids) for s, run in encoders.items()}
                row(f"{n} tokens", n, calls, apart, bert_flops(c, n), weight_bytes(w))
    return rows


# -- memory and compile time, each in a fresh process


def peak_memory() -> int:
    """The most bytes this process has had resident."""
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmHWM")) * 1024


def fresh(job: str, model: str, folder: Path) -> Row:
    """Run a job in a new process."""
    command = [sys.executable, __file__, "--job", job, "--models", model, "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{job} failed:\n{done.stderr}")
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def job(what: str, model: str, folder: Path) -> None:
    """In a fresh process: prepare files, or load a model from its file and run it once; prints seconds and peak memory."""
    ids = np.arange(16, dtype=np.int32)
    if what == "prepare":
        import peers

        c = bert.CONFIGS[model]
        w = bert.seeded_weights(c)
        program = bert.program(c, w)
        program.save(folder / "model.relay")
        peers.exported(program, folder / "exported.onnx")
        peers.fused_bert(c, w, folder / "fused.onnx")
        print("{}")
        return
    start = time.perf_counter()
    if what in ("compile", "cached"):
        exe = relay.compile(relay.load_module(folder / "model.relay"), cache_dir=folder / "cache", threads=2)
        if exe.from_cache != (what == "cached"):
            sys.exit(f"the program came {'' if exe.from_cache else 'not '}from the cache")
        ready = time.perf_counter()
        exe(ids)
        if what == "compile":
            exe.save(folder / "model.rlx")
    elif what == "executable":
        exe = relay.load(folder / "model.rlx", threads=2)
        ready = time.perf_counter()
        exe(ids)
    else:
        import peers

        session = peers.onnxruntime_session(folder / f"{what}.onnx", 2)
        ready = time.perf_counter()
        session.run(None, {session.get_inputs()[0].name: ids})
    print(json.dumps({"seconds": ready - start, "bytes": peak_memory()}))


def memory(model: str) -> dict[str, Row]:
    """Seconds until a model on disk is ready, and peak memory with one run."""
    out: dict[str, Row] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fresh("prepare", model, folder)
        for what in ("compile", "cached", "executable", "exported", "fused"):
            out[what] = fresh(what, model, folder)
    return out


# -- reporting


def report(rows: Sequence[Row]) -> str:
    """A table of times, with ours against the best of the others and against the floor."""
    names = [s for s in SYSTEMS if any(s in r["seconds"] for r in rows)]
    out = [
        f"{'model':10} {'threads':>7} {'':15}"
        + "".join(f"{s:>18}" for s in names)
        + f"{'floor':>11} {'best/ours':>9} {'floor/ours':>10}"
    ]
    ratios: dict[tuple[str, int], list[float]] = {}
    for r in rows:
        times = {s: t["median"] for s, t in r["seconds"].items()}
        others = [t for s, t in times.items() if s != "relay" and not is_reduced(s)]
        ratio = min(others) / times["relay"] if others else float("nan")
        ratios.setdefault((r["model"], r["threads"]), []).append(ratio)
        cells = "".join(f"{microseconds(times[s]) if s in times else '':>18}" for s in names)
        floor = f"{microseconds(r['floor']):>11} {ratio:>9.2f} {r['floor'] / times['relay']:>10.2f}"
        out.append(f"{r['model']:10} {r['threads']:>7} {r['what']:15}{cells}{floor}")
    for name in filter(is_reduced, names):
        for r in (r for r in rows if name in r["seconds"]):
            times = {s: t["median"] for s, t in r["seconds"].items()}
            out.append(
                f"{r['model']}, {r['threads']} thread(s), {r['what']}: {name} is {times['relay'] / times[name]:.2f} times as fast as "
                f"relay in float32; its results are off by at most {r['apart'][name]:.2%} of the largest"
            )
    for (model, threads), found in ratios.items():
        mine = [r for r in rows if (r["model"], r["threads"]) == (model, threads)]
        level = sum(r >= LEVEL for r in found)
        out.append(
            f"{model}, {threads} thread(s): the best other system takes {_mean(found):.3f} times as long as relay (geometric mean); "
            f"relay is at least {LEVEL} times as fast as the best in {level} of {len(found)}"
        )
        out.append(f"    least: {_extremes(mine, found, largest=False)}")
        over = [r["seconds"]["relay"]["median"] / r["floor"] for r in mine]
        for what, chosen in ((f"below {LONG}", (0, LONG)), (f"from {LONG}", (LONG, math.inf))):
            inside = [n for n, r in enumerate(mine) if chosen[0] <= r["tokens"] < chosen[1]]
            if inside:
                some = [over[n] for n in inside]
                out.append(
                    f"    {what} tokens relay takes {_mean(some):.3f} times as long as the floor (geometric mean); "
                    f"most: {_extremes([mine[n] for n in inside], some, largest=True)}"
                )
    return "\n".join(out)


def _mean(found: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, found)))


def _extremes(rows: Sequence[Row], found: Sequence[float], largest: bool) -> str:
    """The rows with the five largest or least figures."""
    ordered = sorted(zip(found, (r["what"] for r in rows), strict=True), reverse=largest)
    return ", ".join(f"{what} {value:.2f}" for value, what in ordered[:5])


def parsed_lengths(text: str) -> list[int]:
    """``5,16-32,64-128:8``: lengths and ranges of them, both ends included, each or every so many-th."""
    found: list[int] = []
    for part in (ALL_LENGTHS if text == "all" else text).split(","):
        ends, _, step = part.partition(":")
        first, _, last = ends.partition("-")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


def spread(lengths: Sequence[int]) -> list[int]:
    """The same lengths in an order of which every beginning is spread over all of them."""
    return sorted(lengths, key=lambda n: n * 0.6180339887 % 1)


def missing(rows: Sequence[Row], model: str, threads: int, lengths: Sequence[int]) -> list[int]:
    """The lengths of a model that are in none of the rows; for a decoder all or none (its rows are what it is given)."""
    there = {r["tokens"] for r in rows if (r["model"], r["threads"]) == (model, threads)}
    if model == "gpt2":
        return [] if there else [1]
    return [n for n in lengths if n not in there]


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table for each model and number of threads."""
    made: dict[tuple[str, int], Table] = {}
    names = ["relay", *(s for s in SYSTEMS if s != "relay" and any(s in r["seconds"] for r in rows))]
    for r in rows:
        model, threads = r["model"], r["threads"]
        table = made.get((model, threads))
        if table is None:
            title = f"{model}, {threads} thread(s)"
            table = made[model, threads] = Table(
                f"transformers-{model}-{threads}", title, "ms", "what", [*names, FLOOR]
            )
        figures = {s: t["median"] * 1e3 for s, t in r["seconds"].items()}
        table.add(r["what"], {**figures, FLOOR: r["floor"] * 1e3})
    return list(made.values())


def picture(rows: Sequence[Row]) -> str:
    """Microseconds per token against the length, one line for each system, of the first model and number of threads."""
    chosen = [r for r in rows if (r["model"], r["threads"]) == (rows[0]["model"], rows[0]["threads"])]
    per_token = [t["median"] / r["tokens"] * 1e6 for r in chosen for t in r["seconds"].values()]
    title = f"{chosen[0]['model']}, {chosen[0]['threads']} thread(s): us per token"
    lengths = [float(r["tokens"]) for r in chosen]
    plot = Picture(title, covering("tokens", lengths, True), covering("us per token", per_token, True))
    for n, name in enumerate(s for s in SYSTEMS if s in chosen[0]["seconds"]):
        points = [(r["tokens"], r["seconds"][name]["median"] / r["tokens"] * 1e6) for r in chosen]
        plot.line(points, COLOURS[n], name)
        for r in chosen:
            low, high = (r["seconds"][name][k] / r["tokens"] * 1e6 for k in ("low", "high"))
            plot.interval(r["tokens"], low, high, COLOURS[n])
    plot.line([(r["tokens"], r["floor"] / r["tokens"] * 1e6) for r in chosen], "#24292f", "floor", dashed=True)
    return plot.text()


def keep(path: Path, rows: Sequence[Row]) -> None:
    """Write what is measured so far, whole or not at all."""
    write_whole(path, lambda part: part.write_text(json.dumps({"rows": rows}, indent=1)))


def _place(row: Row) -> tuple[str, int, int]:
    return row["model"], row["threads"], row["tokens"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--threads", default="1,2", help="nothing measures no times")
    parser.add_argument("--lengths", default="5,16,64,128", help="all, or sentence lengths and ranges of them")
    parser.add_argument("--systems", default="onnxruntime,onnxruntime-fused,openvino,torch")
    parser.add_argument("--precisions", default="", help="ours also in these: bf16,int8-weights")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each system and length")
    parser.add_argument(
        "--memory", action="store_true", help="peak memory and time until ready, in fresh processes, of the first model"
    )
    parser.add_argument("--more", type=Path, metavar="FILE", help="add what this file does not have yet to it")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds after which no further length is begun")
    parser.add_argument("--json", type=Path, help="write the numbers there")
    parser.add_argument("--plot", type=Path, help="draw the first model there (.svg)")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    add_out(parser)
    args = parser.parse_args()
    models = args.models.split(",")
    if unknown := [m for m in models if m not in MODELS]:
        parser.error(f"no model {unknown[0]!r}: models are {', '.join(MODELS)}")
    lengths = parsed_lengths(args.lengths)
    if args.job and args.job != "measure":
        job(args.job, models[0], args.folder)
        return
    systems = [n for n in args.systems.split(",") if n] + [f"relay-{p}" for p in args.precisions.split(",") if p]
    threads = [int(n) for n in args.threads.split(",") if n]
    if args.job:
        print(json.dumps(measure(models[0], threads[0], systems, lengths, args.seconds, args.limit)))
        return
    rows: list[Row] = json.loads(args.more.read_text())["rows"] if args.more and args.more.exists() else []
    end = time.perf_counter() + args.limit
    kept: dict[str, Row] = {}
    if args.memory:
        kept = memory(models[0])
        for what, found in kept.items():
            name = {"exported": "onnxruntime", "fused": "onnxruntime-fused"}.get(what, f"relay, {what}")
            print(
                f"{models[0]}: {name:20} ready in {found['seconds']:6.2f} s, {found['bytes'] / 2**20:7.0f} MiB at most"
            )
    for model in models:
        for count in threads:
            wanted = missing(rows, model, count, lengths)
            left = end - time.perf_counter()
            if not wanted or left < 0:
                continue
            # A process of its own: some systems settle on their threads once.
            command = [sys.executable, __file__, "--job", "measure", "--models", model, "--threads", str(count)]
            command += [
                "--lengths",
                ",".join(map(str, spread(wanted) if args.more else wanted)),
                "--systems",
                ",".join(systems),
                "--seconds",
                str(args.seconds),
                "--limit",
                str(left),
            ]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
            if done.returncode != 0:
                sys.exit(f"{model} on {count} thread(s) failed")
            rows += json.loads(done.stdout.splitlines()[-1])
            if args.more:
                keep(args.more, rows)
    asked = {(m, t, n) for m in models for t in threads for n in (lengths if m != "gpt2" else (1, 64))}
    rows = sorted((r for r in rows if (r["model"], r["threads"], r["tokens"]) in asked), key=_place)
    if rows:
        print(report(rows))
    for made in tables(rows):
        made.keep(args.out)
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "memory": kept}, indent=1))
    if args.plot and rows:
        args.plot.write_text(picture(rows))


if __name__ == "__main__":
    main()
