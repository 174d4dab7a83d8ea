"""`relay bench`: what a program takes, beside other systems and beside what the machine can do."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import relay
from relay._runtime import available_threads
from relay.cli import inputs
from relay.cli.arguments import Argument, Option
from relay.cli.shared import (
    Dims,
    Entry,
    Inputs,
    Json,
    Level,
    PrecisionOption,
    Seed,
    TargetOption,
    Threads,
    Weights,
    json_text,
    picture_path,
    progress,
    read_executable,
    read_module,
    require_seconds,
    write_text,
)
from relay.ir.diagnostics import RelayError

if TYPE_CHECKING:
    from relay.view.comparison import Comparison
    from relay.view.limits import Limits

OptionalFile = Annotated[Path | None, Argument("A program (.relay) or a compiled executable (.rlx).")]


def bench(
    file: OptionalFile = None,
    given: Inputs = None,
    dim: Dims = None,
    entry: Entry = "main",
    weights: Weights = None,
    target: TargetOption = "cpu",
    opt_level: Level = 3,
    precision: PrecisionOption = "float32",
    threads: Threads = None,
    seed: Seed = 0,
    seconds: Annotated[float, Option(help="How long to measure each system.")] = 1.0,
    peers: Annotated[
        str,
        Option(help="Systems to compare with: all (that are installed), or torch,torch-compile,onnxruntime,openvino."),
    ] = "",
    limits: Annotated[bool, Option(help="Print what the machine can do.")] = False,
    again: Annotated[bool, Option(help="Measure the machine again.")] = False,
    plot: Annotated[Path | None, Option(help="Draw the comparison into this .svg file.")] = None,
    as_json: Json = False,
) -> None:
    """Time calls of a program on given or random inputs, beside other systems if asked for. In reduced precision: beside float32
    too, with how far results are from it."""
    from relay.view.comparison import compare
    from relay.view.limits import machine_limits
    from relay.view.peers.systems import chosen

    if file is None and not limits:
        raise RelayError("nothing to measure", hint="give a program, or --limits")
    picture_path(plot)
    require_seconds(seconds)
    found: list[Limits] = []
    if limits:
        with progress("measuring the machine"):
            counts = [threads] if threads else sorted({1, available_threads()})
            found = [machine_limits(n, again=again) for n in counts]
    result: Comparison | None = None
    if file is not None:
        names = chosen(peers)
        options = {"target": target, "opt_level": opt_level, "threads": threads}
        exe, module, took = _compiled(file, entry, weights, precision=precision, **options)
        exact = _compiled(file, entry, weights, **options)[0] if precision != "float32" else None
        args = inputs.arguments(exe.signature(entry), given or [], dim or [], seed)
        with progress("measuring"):
            result = compare(exe, module, entry, args, names, threads or available_threads(), seconds, took, exact)
        if plot is not None:
            write_text(plot, result.picture())
    if as_json:
        print(json_text(_plain(result, found)))
    else:
        print("\n".join([*map(limits_text, found), *([_text(result)] if result is not None else [])]))


def _compiled(
    file: Path, entry: str, weights: Path | None, **options: Any
) -> tuple[relay.Executable, relay.Module | None, float | None]:
    """The executable, the program it was made from (if that is known) and the seconds it took to make."""
    if file.suffix == ".rlx":
        return read_executable(file, entry, weights, **options), None, None
    with progress(f"compiling {file}"):
        module = read_module(file, weights, entry)
        start = time.perf_counter()
        exe = relay.compile(module, entries=(entry,), **options)
        return exe, module, time.perf_counter() - start


def _text(result: Comparison) -> str:
    from relay.view.comparison import microseconds

    if len(result.rows) == 1 and not result.refused:
        t = result.rows[0].timing
        return (
            f"{microseconds(t.median)} per call (95 % of the median: {microseconds(t.low)} to {microseconds(t.high)}; "
            f"{t.turns} turns)"
        )
    return result.table()


def _plain(result: Comparison | None, limits: list[Limits]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if result is not None:
        ours = result.rows[0].timing
        out = {"median_us": ours.median * 1e6, "low_us": ours.low * 1e6, "high_us": ours.high * 1e6, "runs": ours.turns}
        out |= result.json()
    if limits:
        out["limits"] = [asdict(found) for found in limits]
    return out


def limits_text(found: Limits) -> str:
    """The limits of a machine on one line."""
    read = ", ".join(f"{level} {rate / 1e9:.0f}" for level, rate in found.bandwidth.items())
    return f"{found.machine}, {found.threads} thread(s): {found.flops / 1e9:.0f} GFLOP/s (float32 multiply-adds); reading GB/s: {read}"
