"""Reading modules from files (writing is `relay.ir.saving`)."""

from __future__ import annotations

import os
from typing import Final

from relay.ir.diagnostics import FileError
from relay.ir.files import file_path
from relay.ir.module import Module
from relay.ir.parser import parse_module

# Of a program; a device may have no end.
_MOST_CHARACTERS: Final = 1 << 28


def load_module_text(path: str | os.PathLike[str]) -> Module:
    """The untyped module of a ``.relay`` file. Constants in a safetensors file beside it are read with it.

    Raises FileError when a file cannot be read, SyntaxError_ when it is not a module.
    """
    file = file_path(path)
    try:
        with file.open(encoding="utf-8") as opened:
            text = opened.read(_MOST_CHARACTERS + 1)
    except OSError as error:
        raise FileError(f"cannot read {file}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise FileError(f"{file} is not a text file ({error.reason})") from error
    if len(text) > _MOST_CHARACTERS:
        raise FileError(
            f"{file} has more than {_MOST_CHARACTERS:,} characters",
            hint="large constants belong into a safetensors file",
        )
    return parse_module(text, str(file), file.parent)
