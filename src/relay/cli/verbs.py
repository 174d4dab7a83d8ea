"""The verbs that compile, run and look into programs.

What one verb alone needs is imported in its function: `relay run` of a compiled program imports none of the compiler."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np

import relay
from relay.cli import inputs
from relay.cli.arguments import Argument, Option
from relay.cli.shared import (
    LEVELS,
    Dims,
    Entry,
    File,
    Inputs,
    Json,
    Level,
    NoCache,
    PrecisionOption,
    Program,
    Seed,
    TargetOption,
    Threads,
    Weights,
    existing,
    json_text,
    progress,
    read_executable,
    read_module,
    refuse_options,
)
from relay.executable.values import Signature
from relay.ir.diagnostics import FileError, RelayError
from relay.ir.files import require_folder, write_whole


def compile(
    file: Program,
    output: Annotated[
        Path | None,
        Option(
            "-o",
            "--output",
            help="What to write: .rlx (default: FILE.rlx), or for C programs .so or .o with a header, or .h alone.",
        ),
    ] = None,
    entry: Entry = "main",
    weights: Weights = None,
    target: TargetOption = "cpu",
    opt_level: Level = 3,
    precision: PrecisionOption = "float32",
    executor: Annotated[str, Option(help="vm, or aot: a .rlx with native code of its functions.")] = "vm",
    memory_budget: Annotated[
        int | None,
        Option(help="Bytes that a run may add at its peak; values are computed again to keep to them."),
    ] = None,
    tune: Annotated[
        bool,
        Option(help="Measure schedules of matrix products and layouts of images on this machine and take the fastest."),
    ] = False,
    threads: Threads = None,
    no_cache: NoCache = False,
    as_json: Json = False,
) -> None:
    """Compile a program to an executable file, or to a library for C."""
    from relay.aot.library import SUFFIXES
    from relay.codegen.target import parse_target, runs_here

    start = time.perf_counter()
    existing(file)
    out = output or file.with_suffix(".rlx")
    if os.path.exists(out) and out.samefile(file):
        raise FileError(f"the output would replace the program {file}")
    if output is not None and out.suffix not in (".rlx", *SUFFIXES) and not (out.is_char_device() or out.is_dir()):
        raise FileError(
            f"cannot write {out}: its name does not say what it is to be",
            hint=f".rlx is an executable, {', '.join(SUFFIXES)} are for C",
        )
    require_folder(out)
    options: dict[str, Any] = {"target": target, "opt_level": opt_level, "precision": precision, "cache": not no_cache}
    options.update(memory_budget=memory_budget, tune=tune, threads=threads)
    if file.suffix == ".rlx":
        compiling = {name: value for name, value in options.items() if name != "cache"}
        refuse_options(file, entry=entry, weights=weights, executor=executor, **compiling)
    if out.suffix in SUFFIXES:
        with progress(f"compiling {file}"):
            written = relay.build_library(read_module(file, weights, entry), out, entries=(entry,), **options)
    else:
        written = [out]
        if file.suffix == ".rlx":
            relay.load(file).save(out)
        elif runs_here(parse_target(target)):
            read_executable(file, entry, weights, executor=executor, **options).save(out)
        else:  # for another machine: nothing to load here
            with progress(f"compiling {file}"):
                given = relay.Options(executor=executor, entries=(entry,), **options)
                image = relay.pipeline.build(read_module(file, weights, entry), given).image
            write_whole(out, lambda path: path.write_bytes(image.to_bytes()))
    seconds = time.perf_counter() - start
    sizes = {str(path): path.stat().st_size for path in written}
    if as_json:
        first = next(iter(sizes))
        print(json_text({"output": first, "bytes": sizes[first], "files": sizes, "seconds": round(seconds, 3)}))
    else:
        print("\n".join(f"{path}: {size:,} bytes" for path, size in sizes.items()) + f" in {seconds:.2f} s")


def run(
    file: File,
    given: Inputs = None,
    dim: Dims = None,
    entry: Entry = "main",
    weights: Weights = None,
    target: TargetOption = "cpu",
    opt_level: Annotated[int | None, Option("-O", "--opt-level", help=f"{LEVELS} [default: 3; 0 with --debug]")] = None,
    threads: Threads = None,
    seed: Seed = 0,
    interpret: Annotated[bool, Option(help="Use the definitional interpreter.")] = False,
    debug: Annotated[
        bool,
        Option(help="Step through the run; not optimised unless -O says so. `help` shows the commands."),
    ] = False,
    output: Annotated[
        Path | None, Option("-o", "--output", help="Write the result (one tensor) to a .npy file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run a program and print its result."""
    if interpret:
        module = read_module(file, weights, entry)
        result = relay.evaluate(
            module, *inputs.arguments(_signature(module, entry), given or [], dim or [], seed), entry=entry
        )
    elif debug:
        from relay.cli import debug as debugger

        module = read_module(file, weights, entry)
        options = relay.Options(target=target, opt_level=opt_level or 0, threads=threads, entries=(entry,))
        values = inputs.arguments(_signature(module, entry), given or [], dim or [], seed)
        try:
            result = debugger.debug(module, entry, values, options, sys.stdin, sys.stdout)
        except debugger.Stopped:
            return
    else:
        level = 3 if opt_level is None else opt_level
        exe = read_executable(file, entry, weights, target=target, opt_level=level, threads=threads)
        result = exe.run(entry, *inputs.arguments(exe.signature(entry), given or [], dim or [], seed))
    if output is not None:
        if isinstance(result, tuple | list):
            raise RelayError("only a single tensor can be written to a .npy file")
        write_whole(output, lambda path: save_array(path, np.asarray(result)))
    elif as_json:
        print(json_text(plain(result)))
    else:
        print(shown(result))


def verify(
    file: Program,
    executors: Annotated[
        str, Option(help="Which to compare, separated by commas; the first is the reference.")
    ] = "interpreter,vm,aot",
    given: Inputs = None,
    dim: Dims = None,
    entry: Entry = "main",
    weights: Weights = None,
    target: TargetOption = "cpu",
    opt_level: Level = 3,
    threads: Threads = None,
    seed: Seed = 0,
    bounds: Annotated[bool, Option(help="Prove instead that kernels stay inside of their buffers.")] = False,
    memory: Annotated[
        bool, Option(help="Let kernels touch nothing but their operands, and start from memory that is no number.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare executors on a program; where they differ, show the first value that does."""
    from relay.cli import verify as verification

    module = read_module(file, weights, entry)
    if bounds:
        options = relay.Options(target=target, opt_level=opt_level, threads=threads, entries=(entry,))
        with progress("proving bounds"):
            count, unproved = verification.unproved_accesses(module, options)
        if as_json:
            print(json_text({"kernels": count, "unproved": unproved}))
            return
        print(f"{count - len(unproved)} of {count} kernels stay inside of their buffers for every size")
        for name, texts in unproved.items():
            print(f"not proved of {name}:")
            print("\n".join(f"  {text}" for text in texts))
        return
    values = inputs.arguments(_signature(module, entry), given or [], dim or [], seed)
    options = relay.Options(target=target, opt_level=opt_level, threads=threads, entries=(entry,), check_memory=memory)
    names = executors.split(",")
    with progress(f"comparing {executors}"):
        found = verification.verify(module, entry, values, names, options)
    if as_json:
        print(json_text({"agree": found is None, **({} if found is None else asdict(found))}))
    elif found is None:
        print(f"{', '.join(names)} agree")
    else:
        print(f"{found.first} and {found.second} differ first in {found.where}")
        print(f"{found.first}: {found.expected}\n{found.second}: {found.found}")
    if found is not None:
        sys.exit(1)


def opt(
    file: Annotated[Path | None, Argument("A program (.relay).")] = None,
    passes: Annotated[str, Option(help="Passes in order, separated by commas: name or name{option=value}.")] = "",
    list_passes: Annotated[bool, Option("--list", help="List the passes and stop.")] = False,
    weights: Weights = None,
    entry: Annotated[str | None, Option(help="The function that weights are for. [default: main]")] = None,
) -> None:
    """Apply passes to a program and print it."""
    from relay.transform.base import available_passes, parse_passes

    if list_passes:
        for name, cls in sorted(available_passes().items()):
            print(f"{name:24} {(cls.__doc__ or '').strip().splitlines()[0]}")
        return
    if file is None:
        raise RelayError("a program is missing", hint="give a FILE (.relay), or --list for the passes there are")
    chosen = parse_passes(passes, relay.pipeline.pass_services())
    module = read_module(file, weights, entry or "main")
    if entry is not None:
        module.function(entry)
    print(relay.Pipeline(chosen)(module))


def inspect(
    file: Program,
    show: Annotated[
        str,
        Option(
            help="passes, batching, gradient, attention, precision, plans, loops, bytecode, llvm, asm, memory or times."
        ),
    ] = "bytecode",
    entry: Entry = "main",
    weights: Weights = None,
    target: TargetOption = "cpu",
    opt_level: Level = 3,
    precision: PrecisionOption = "float32",
    as_json: Json = False,
) -> None:
    """Show what the compiler makes of a program."""
    from relay.cli.inspect import VIEWS

    view = VIEWS.get(show)
    if view is None:
        raise RelayError(f"cannot show {show!r}", hint=f"it is one of {', '.join(VIEWS)}")
    module = read_module(file, weights, entry)
    options = relay.Options(target=target, opt_level=opt_level, precision=precision, entries=(entry,), cache=False)
    found = view(module, options)
    print(json_text(found) if as_json else "\n".join(f"== {title}\n{text}" for title, text in found))


def _signature(module: relay.Module, entry: str) -> Signature:
    """What an executable of the module would say of the entry."""
    from relay.lower.signature import entry_info

    return Signature(entry, json.loads(entry_info(module, module.function(entry))))


def shown(value: object) -> str:
    """A result for people."""
    if isinstance(value, tuple | list):
        opening, closing = "()" if isinstance(value, tuple) else "[]"
        return opening + ", ".join(shown(v) for v in value) + closing
    if isinstance(value, relay.Tensor | np.ndarray):
        array = np.asarray(value)
        return f"Tensor[{array.shape}, {value.dtype}]\n{np.array2string(array, threshold=200)}"
    return repr(value)


def plain(value: object) -> object:
    """A result as JSON can hold it."""
    if isinstance(value, tuple | list):
        return [plain(v) for v in value]
    if isinstance(value, relay.Tensor | np.ndarray):
        array = np.asarray(value)
        return array.astype(np.float64 if array.dtype.kind not in "biu" else array.dtype).tolist()
    return repr(value) if value is not None else None


def save_array(path: Path, array: np.ndarray[Any, Any]) -> None:
    """Write an array to a file of exactly this name."""
    with path.open("wb") as file:
        np.save(file, array)
