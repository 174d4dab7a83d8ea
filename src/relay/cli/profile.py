"""`relay profile`: where the time of a program goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import relay
from relay.cli import inputs
from relay.cli.arguments import Option
from relay.cli.bench import limits_text
from relay.cli.shared import (
    Dims,
    Entry,
    File,
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


def profile(
    file: File,
    given: Inputs = None,
    dim: Dims = None,
    entry: Entry = "main",
    weights: Weights = None,
    target: TargetOption = "cpu",
    opt_level: Level = 3,
    precision: PrecisionOption = "float32",
    threads: Threads = None,
    seed: Seed = 0,
    batch: Annotated[
        int | None, Option(help="Measure batches of so many requests, whose lists and trees are drawn one by one.")
    ] = None,
    seconds: Annotated[float, Option(help="How long to measure.")] = 1.0,
    plot: Annotated[Path | None, Option(help="Draw the roofline into this .svg file.")] = None,
    trace: Annotated[
        Path | None,
        Option(help="Write passes and kernels into this .json file, for Perfetto or chrome://tracing."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what each kernel of a program takes, against what the machine can do."""
    from relay.view.limits import machine_limits
    from relay.view.profiler import profile as measure
    from relay.view.rooflines import roofline
    from relay.view.traces import trace as trace_events

    picture_path(plot)
    require_seconds(seconds)
    steps, stages = [], {}
    if trace is not None and file.suffix != ".rlx":
        # A program from the cache has no passes to show.
        options = relay.Options(
            target=target, opt_level=opt_level, precision=precision, entries=(entry,), threads=threads
        )
        with progress(f"compiling {file}"):
            made = relay.pipeline.build(read_module(file, weights, entry), options)
        steps, stages = list(made.steps), dict(made.seconds)
        exe = relay.Executable.from_bytes(made.image.to_bytes(), threads)
    else:
        exe = read_executable(
            file, entry, weights, target=target, opt_level=opt_level, precision=precision, threads=threads
        )
    if batch is not None and batch < 1:
        raise RelayError(f"a batch has at least one request, not {batch}")
    drawn = inputs.requests(exe.signature(entry), given or [], dim or [], seed, batch or 1)
    args, requests = (drawn[0], None) if batch is None else ([], drawn)
    with progress("measuring"):
        limits = machine_limits(threads)
        found = measure(exe, *args, entry=entry, seconds=seconds, threads=threads, limits=limits, requests=requests)
    if plot is not None:
        write_text(plot, roofline(found.rows, limits))
    if trace is not None:
        write_text(trace, json.dumps(trace_events(found, steps, stages)))
    print(json_text(found.json()) if as_json else f"{limits_text(limits)}\n{found.table()}")
