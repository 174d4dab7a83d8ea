"""Weights from files: named arrays for `Module.bind`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relay.ir.diagnostics import FileError
from relay.ir.mapped import TensorFile

_FORMATS = (
    "weights are named arrays in a .safetensors or .npz file: "
    "safetensors.torch.save_file(model.state_dict(), path), or numpy.savez(path, **arrays)"
)


def load_weights(path: str | os.PathLike[str]) -> dict[str, npt.NDArray[Any]]:
    """Named arrays of a ``.safetensors`` or ``.npz`` file, or of all safetensors files of a folder (a checkpoint in parts).

    Tensors of safetensors files are read-only and stay on the disk until they are looked at. Raises FileError for a file that is missing
    or no such file, and for a name that two files of a folder have.
    """
    place = Path(path)
    if place.is_dir():
        parts = sorted(place.glob("*.safetensors"))
        if not parts:
            raise FileError(f"there is no .safetensors file in {place}")
        out: dict[str, npt.NDArray[Any]] = {}
        for part in parts:
            for name, array in TensorFile(part).arrays().items():
                if name in out:
                    raise FileError(f"{part} has a tensor {name!r}, as another file of its folder has")
                out[name] = array
        return out
    if place.suffix != ".npz":
        if not place.exists():
            raise FileError(f"no such file: {place}")
        try:
            return TensorFile(place).arrays()
        except FileError as error:
            if place.suffix != ".safetensors":
                error.hint = _FORMATS
            raise
    try:
        with np.load(place, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except FileNotFoundError as error:
        raise FileError(f"no such file: {place}") from error
    except Exception as error:
        raise FileError(f"cannot read weights from {place}: {error}") from error
