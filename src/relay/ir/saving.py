"""Writing a module: its text, and a safetensors file beside it for large constants."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.numpy import save_file

from relay.ir.constant import MissingData
from relay.ir.diagnostics import FileError
from relay.ir.expr import Constant
from relay.ir.metadata import KEY, entry_of, to_storage
from relay.ir.printer import module_text

if TYPE_CHECKING:
    from relay.ir.module import Module

_LARGE = 4096  # bytes; a smaller constant stays in the text


def save_module(module: Module, path: str | os.PathLike[str]) -> None:
    """Write ``path`` (text) and, if there are large constants, ``path`` with the suffix ``.safetensors``. Raises FileError.

    Each file appears complete or not at all; the text, which refers to the other, comes last.
    """
    target = Path(path)
    tensors = target.with_suffix(".safetensors")
    large: dict[str, Constant] = {}

    def metadata(constants: Sequence[Constant]) -> str:
        entries: list[dict[str, object]] = []
        for n, c in enumerate(constants):
            if c.data.nbytes < _LARGE or isinstance(c.data, MissingData):
                entries.append(entry_of(c))
            else:
                large[f"constant.{n}"] = c
                shape = list(c.data.shape)
                entries.append({"dtype": c.dtype, "shape": shape, "file": tensors.name, "key": f"constant.{n}"})
        return f"#[metadata]\n{json.dumps({KEY: entries}, indent=1)}\n" if entries else ""

    text = module_text(module, metadata=metadata)
    if large:
        arrays = {key: to_storage(c) for key, c in large.items()}
        _replace(tensors, lambda temporary: save_file(arrays, temporary))
    _replace(target, lambda temporary: temporary.write_text(text))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Write a temporary file in the same folder, then give it its name."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        temporary = Path(name)
        try:
            write(temporary)
            umask = os.umask(0)
            os.umask(umask)
            temporary.chmod(0o666 & ~umask)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error
