"""Reading modules from files (writing is `relay.ir.saving`)."""

from __future__ import annotations

import os

from relay.ir.files import file_path, read_program
from relay.ir.module import Module
from relay.ir.parser import parse_module


def load_module_text(path: str | os.PathLike[str]) -> Module:
    """The untyped module of a ``.relay`` file. Constants in a safetensors file beside it are read with it.

    Raises FileError when a file cannot be read, SyntaxError_ when it is not a module.
    """
    file = file_path(path)
    return parse_module(read_program(file), str(file), file.parent)
