"""Tensors of safetensors files where they lie: mapped, read from the disk when they are looked at, and given back after that.

A network's weights are most of what a compilation touches, and each only a few times: hashed, packed, written. Their pages need
not stay resident in between. Who writes into the file or cuts it off meanwhile changes them, or ends the process: files are to be
replaced by renaming, as `files.write_whole` does.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from relay.ir.diagnostics import FileError
from relay.ir.dtypes import numpy_dtype

_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32", "U64": "uint64",
    "I64": "int64", "F16": "float16", "BF16": "uint16", "F32": "float32", "F64": "float64",
}  # fmt: skip


class TensorFile:
    """The tensors of a safetensors file by name, as read-only arrays on the mapped file (bfloat16 as its bits)."""

    def __init__(self, path: Path) -> None:
        """Raises FileError."""
        self.path = path
        try:
            with safe_open(path, framework="numpy"):  # checks that the header is sound and the file whole
                pass
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise FileError(
                f"the constants' file {path} is missing", hint="keep it beside the text that names it"
            ) from error
        except (SafetensorError, OSError, ValueError) as error:
            raise FileError(f"cannot read tensors from {path}: {error}") from error
        length = int.from_bytes(self._map[:8], "little")
        self._header: dict[str, Any] = json.loads(self._map[8 : 8 + length])
        self._start = 8 + length

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """All tensors, those of bfloat16 as such."""
        names = [n for n in self._header if n != "__metadata__"]
        found = {n: self.tensor(n) for n in names}
        return {
            n: a.view(numpy_dtype("bfloat16")) if self._header[n]["dtype"] == "BF16" else a for n, a in found.items()
        }

    def tensor(self, key: str) -> npt.NDArray[np.generic]:
        """One tensor. Raises FileError when there is none of this name or its dtype is unknown."""
        entry = self._header.get(key)
        if entry is None or key == "__metadata__":
            raise FileError(f"cannot read tensor {key!r} of {self.path}: there is none")
        name = _DTYPES.get(entry["dtype"])
        if name is None:
            raise FileError(f"cannot read tensor {key!r} of {self.path}: its dtype {entry['dtype']} is unknown")
        begin, end = entry["data_offsets"]
        dtype = np.dtype(name)
        whole = np.frombuffer(self._map, dtype, (end - begin) // dtype.itemsize, self._start + begin)
        try:
            made: npt.NDArray[np.generic] = whole.reshape(entry["shape"])
        except ValueError as error:  # no elements, and axes beside that whose product NumPy does not hold
            raise FileError(
                f"cannot read tensor {key!r} of {self.path}: its shape is {entry['shape']}: {error}"
            ) from error
        return made if made.flags.aligned else made.copy()


def content_digest(array: npt.NDArray[Any]) -> bytes:
    """A digest of an array's elements in their order, whose pages are given back. (Processors have instructions for SHA-256.)"""
    whole = np.ascontiguousarray(array)
    digest = hashlib.sha256(whole.reshape(-1).view(np.uint8).data).digest()
    release(whole)
    return digest


def release(array: npt.NDArray[Any]) -> None:
    """Give the pages under an array on a read-only mapped file back: they are read again if the array is. Other arrays are left alone."""
    owner: Any = array
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    if not isinstance(owner, mmap.mmap) or array.flags.writeable or not array.flags.c_contiguous or not array.nbytes:
        return
    first = np.frombuffer(owner, np.uint8).__array_interface__["data"][0]
    begin = array.__array_interface__["data"][0] - first
    page = mmap.PAGESIZE
    start = begin // page * page
    owner.madvise(mmap.MADV_DONTNEED, start, begin + array.nbytes - start)
