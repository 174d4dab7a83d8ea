"""From text to typed programs."""

from __future__ import annotations

import copyreg
import os
from collections.abc import Callable

from relay import typing
from relay.ir.diagnostics import RelayError
from relay.ir.expr import Expr, Function
from relay.ir.module import Module, require_module
from relay.ir.parser import parse_expr as parse_untyped_expr
from relay.ir.parser import parse_module
from relay.ir.serialize import load_module_text


def parse(text: str, source_name: str = "<text>") -> Module:
    """A typed module from Relay text. Raises SyntaxError_ and TypeError_ that point into the text."""
    return infer_type(parse_module(text, source_name))


def parse_expr(text: str, module: Module | None = None) -> Expr:
    """One typed expression, in the scope of a module's functions and types."""
    return typing.infer_expr(parse_untyped_expr(text, module), module or Module())


def load_module(path: str | os.PathLike[str]) -> Module:
    """A typed module from a ``.relay`` file (large constants come from the safetensors file beside it). Raises FileError."""
    return infer_type(load_module_text(path))


def infer_type(program: Module | Function | str) -> Module:
    """The module (or that of a function, which becomes ``@main``, or of a text) with every type inferred."""
    return typing.infer(_module(program))


def as_module(program: Module | Function | str) -> Module:
    """A typed module from a module, a function (which becomes ``@main``) or text."""
    module = _module(program)
    return module if is_typed(module) else typing.infer(module)


def _module(program: Module | Function | str) -> Module:
    """A module from a module, a function (which becomes ``@main``) or text, typed or not. Raises TypeError_ for anything else."""
    if isinstance(program, str):
        if "\n" not in program and program.endswith(".relay"):
            raise RelayError(
                f"{program} is no Relay text but a file's name", hint="relay.load_module(path) reads a file"
            )
        program = parse_module(program)
    if isinstance(program, Function):
        program = Module({"main": program})
    require_module(program)
    return program


def is_typed(module: Module) -> bool:
    """Whether inference has been through every function."""
    return all(f.ty is not None for f in module.functions.values())


def _pickled(module: Module) -> tuple[Callable[[str], Module], tuple[str]]:
    """A module is pickled as its text, with all constants. What comes back is typed if it was."""
    return (parse if is_typed(module) else parse_module), (module.text(),)


copyreg.pickle(Module, _pickled)
