"""What several verbs share: their options, reading programs, where errors and progress go."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

import relay
from relay.cli import inputs
from relay.ir.diagnostics import FileError
from relay.ir.files import write_whole

if TYPE_CHECKING:
    from relay.ir.module import Module

errors = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)

File = Annotated[Path, typer.Argument(help="A program (.relay) or a compiled executable (.rlx).", show_default=False)]
Program = Annotated[Path, typer.Argument(help="A program (.relay).", show_default=False)]
TargetOption = Annotated[
    str, typer.Option(help="What to compile for: cpu (this machine), x86-64-v3, aarch64, or an LLVM triple.")
]
Level = Annotated[int, typer.Option("--opt-level", "-O", help="0 none, 1 fusion, 2 constant folding, 3 everything.")]
PrecisionOption = Annotated[
    str, typer.Option("--precision", help="Of matrix products with constant weights: float32, bf16 or int8-weights.")
]
Entry = Annotated[str, typer.Option(help="The function to call.")]
Weights = Annotated[Path | None, typer.Option(help="Bind parameters by name from a .safetensors or .npz file.")]
Inputs = Annotated[
    list[str] | None, typer.Option("--input", "-i", help="name=value: a number, a nested list, FILE.npy or random.")
]
Dims = Annotated[list[str] | None, typer.Option("--dim", "-d", help="name=size: a dimension of random inputs.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Threads = Annotated[int | None, typer.Option(help="Threads that a run may use (default: all).")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither read nor write the cache.")]


def read_module(path: Path, weights: Path | None = None, entry: str = "main") -> Module:
    """The typed program of a file, with weights bound."""
    if not path.exists():
        raise FileError(f"no such file: {path}")
    module = relay.load_module(path)
    return module.bind(inputs.load_weights(weights), entry=entry) if weights else module


def read_executable(path: Path, entry: str, weights: Path | None, **options: Any) -> relay.Executable:
    """A compiled executable, or one compiled now."""
    if not path.exists():
        raise FileError(f"no such file: {path}")
    if path.suffix == ".rlx":
        return relay.load(path, threads=options.get("threads"))
    with progress(f"compiling {path}"):
        return relay.compile(read_module(path, weights, entry), entries=(entry,), **options)


def progress(what: str) -> Any:
    """A spinner on standard error for work that may take over a second (nothing where that is not a terminal)."""
    return errors.status(what)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_whole(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))
