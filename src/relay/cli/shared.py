"""What several verbs share: their options, reading programs, where errors and progress go."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import relay
from relay.cli.arguments import Argument, Option
from relay.ir.diagnostics import FileError, RelayError
from relay.ir.files import write_whole
from relay.ir.weights import load_weights

if TYPE_CHECKING:
    from relay.ir.module import Module

LEVELS = "0 none, 1 fusion, 2 constant folding, 3 everything."
File = Annotated[Path, Argument("A program (.relay) or a compiled executable (.rlx).")]
Program = Annotated[Path, Argument("A program (.relay).")]
TargetOption = Annotated[
    str, Option(help="What to compile for: cpu (this machine), x86-64-v3, aarch64, or an LLVM triple.")
]
Level = Annotated[int, Option("-O", "--opt-level", help=LEVELS)]
PrecisionOption = Annotated[
    str, Option(help="Of matrix products with constant weights: float32, bf16 or int8-weights.")
]
Entry = Annotated[str, Option(help="The function to call.")]
Weights = Annotated[
    Path | None,
    Option(help="Bind parameters by name from a .safetensors or .npz file, or a folder of .safetensors files."),
]
Inputs = Annotated[
    list[str] | None,
    Option(
        "-i",
        "--input",
        help="name=value: a number, a nested list, FILE.npy or random; a constructor of such, Node(Leaf(1), Leaf(random)).",
    ),
]
Dims = Annotated[
    list[str] | None,
    Option("-d", "--dim", help="name=size: a dimension of random inputs, or about how large a random list or tree is."),
]
Seed = Annotated[int, Option(help="Seed of random inputs.")]
Json = Annotated[
    bool, Option("--json", help='Print the result as JSON (what is not finite as a text: "NaN", "-Infinity").')
]
Threads = Annotated[int | None, Option(help="Threads that a run may use (default: all).")]
NoCache = Annotated[bool, Option(help="Neither read nor write the cache.")]


def existing(path: Path) -> Path:
    """The path of a file. Raises FileError where none can be read there."""
    try:
        if not path.exists():
            raise FileError(f"no such file: {path}")
    except OSError as error:  # a name that is none
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    if path.is_dir():
        raise FileError(f"cannot read {path}: {os.strerror(errno.EISDIR)}")
    return path


def picture_path(path: Path | None) -> None:
    """Check, before anything is measured, that a picture's name says the format that is drawn (a device has none)."""
    if path is not None and path.suffix != ".svg" and not path.is_char_device():
        raise RelayError(f"cannot draw {path}: pictures are .svg files")


def require_seconds(seconds: float) -> None:
    """Check how long is to be measured."""
    if not 0 < seconds < math.inf:
        raise RelayError(f"--seconds must be a positive number, not {seconds:g}")


def read_module(path: Path, weights: Path | None = None, entry: str = "main") -> Module:
    """The typed program of a file, with weights bound."""
    if existing(path).suffix == ".rlx":
        raise FileError(f"{path} is a compiled program, and this needs its text", hint="give the .relay file")
    module = relay.load_module(path)
    if weights is None:
        return module
    arrays = load_weights(weights)
    try:
        return module.bind(arrays, entry=entry)
    except RelayError as error:
        error.message = f"{error.message} (weights of {weights})"
        raise


def read_executable(path: Path, entry: str, weights: Path | None, **options: Any) -> relay.Executable:
    """A compiled executable, or one compiled now. Raises RelayError for options of compiling where that is done."""
    if existing(path).suffix == ".rlx":
        refuse_options(path, weights=weights, **{n: v for n, v in options.items() if n != "threads"})
        return relay.load(path, threads=options.get("threads"))
    with progress(f"compiling {path}"):
        return relay.compile(read_module(path, weights, entry), entries=(entry,), **options)


# What options of compiling are that nobody has given.
_NOT_GIVEN = {
    "entry": "main",
    "weights": None,
    "target": "cpu",
    "opt_level": 3,
    "precision": "float32",
    "executor": "vm",
    "memory_budget": None,
    "tune": False,
    "threads": None,
}


def refuse_options(path: Path, **options: object) -> None:
    """Raises RelayError for options that were given and cannot apply to an executable that is compiled already."""
    given = [f"--{name.replace('_', '-')}" for name, value in options.items() if value != _NOT_GIVEN[name]]
    if given:
        raise RelayError(
            f"{', '.join(given)} cannot apply to {path}: it is compiled already", hint="give the .relay file"
        )


@contextmanager
def progress(what: str) -> Iterator[None]:
    """Says on standard error what takes its time, until it is done (nothing where that is not a terminal)."""
    if not sys.stderr.isatty():
        yield
        return
    print(f"{what} ...", end="", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def json_text(value: object) -> str:
    """JSON, which has no infinities and no nan: these are the texts "Infinity", "-Infinity" and "NaN"."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value))


def _finite(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case list() | tuple():
            return [_finite(v) for v in value]
        case dict():
            return {key: _finite(v) for key, v in value.items()}
        case _:
            return value


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
