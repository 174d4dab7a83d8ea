"""Writing a module: its text, and a safetensors file beside it for large constants."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import save_file

from relay.ir.constant import MissingData
from relay.ir.expr import Constant
from relay.ir.files import file_path, write_whole
from relay.ir.metadata import KEY, entry_of, to_storage
from relay.ir.printer import module_text

if TYPE_CHECKING:
    from relay.ir.module import Module

Array = npt.NDArray[np.generic]
_LARGE = 4096  # bytes; a smaller constant stays in the text


def save_module(module: Module, path: str | os.PathLike[str]) -> None:
    """Write ``path`` (text) and, if there are large constants, ``path`` with the suffix ``.safetensors``. Raises FileError.

    Each file appears complete or not at all; the text, which refers to the other, comes last.
    """
    target = file_path(path)
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
        write_whole(tensors, lambda temporary: _save_tensors(temporary, arrays))
    write_whole(target, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def _save_tensors(path: Path, arrays: dict[str, Array]) -> None:
    try:
        save_file(arrays, path)
    except SafetensorError as error:  # among others of a full disk
        raise OSError(str(error)) from error
