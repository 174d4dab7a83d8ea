"""The ``#[metadata]`` section: constants that the text refers to as ``meta[relay.Constant][n]``.

Ours is JSON: ``{"relay.Constant": [entry, ...]}``, where an entry has ``dtype``, ``shape`` and either ``base64`` (little-endian,
row-major, one byte for an int4) or ``file`` and ``key`` (a tensor in a safetensors file, relative to the text). The section that
Relay's own releases wrote (a node table with ``b64ndarrays``) is read as well. An entry with ``missing`` instead of data is a
placeholder (see `relay.ir.constant.MissingData`).
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from relay.ir.constant import MissingData, make_constant, missing_constant
from relay.ir.diagnostics import FileError, RelayError, SyntaxError_
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Constant
from relay.ir.mapped import TensorFile
from relay.ir.span import Span

KEY = "relay.Constant"
_NDARRAY_MAGIC = 0xDD5E40F096B4A13F
_DLPACK_CODES = {0: "int", 1: "uint", 2: "float", 4: "bfloat"}


class ConstantTable:
    """The constants of a text by index, decoded on first use; the same object each time."""

    def __init__(self, section: str | None, base: Path | None, given: Sequence[npt.ArrayLike | Constant] = ()) -> None:
        self._base = base
        self._made: dict[int, Constant] = {}
        self._placeholders: dict[int, Constant] = {}
        self._entries: list[Any] = []
        self._files: dict[Path, TensorFile] = {}
        if section is not None:
            try:
                root = json.loads(section)
            except ValueError as error:
                raise SyntaxError_(f"the #[metadata] section is not JSON: {error}") from error
            except RecursionError as error:
                raise SyntaxError_("the #[metadata] section is nested too deeply") from error
            self._entries = (
                _released_entries(root) if isinstance(root, dict) and "nodes" in root else _own_entries(root)
            )
        elif given:
            self._entries = [c if isinstance(c, Constant) else make_constant(c) for c in given]

    def __len__(self) -> int:
        return len(self._entries)

    def placeholder(self, index: int, shape: tuple[int, ...], dtype: str, span: Span | None) -> Constant:
        """Constant ``index`` of a text whose metadata was left out, known by its type only; the same object each time.

        Raises RelayError for a base type without values and where the text says two types.
        """
        made = self._placeholders.get(index)
        if made is None:
            made = self._placeholders[index] = missing_constant(index, shape, dtype, span)
        elif (made.data.shape, made.dtype) != (shape, dtype):
            raise RelayError(
                f"constant {index} has two types in this text: {made.dtype}{list(made.data.shape)} and {dtype}{list(shape)}"
            )
        return made

    def constant(self, index: int) -> Constant:
        """Constant ``index``. Raises RelayError when there is none or its data is damaged, FileError for its file."""
        made = self._made.get(index)
        if made is None:
            if index >= len(self._entries):
                have = (
                    f"it has {len(self._entries)}"
                    if self._entries
                    else "the text has no #[metadata] section with constants"
                )
                raise RelayError(
                    f"no constant {index} in the metadata ({have})", hint="print with mod.text(), which is complete"
                )
            entry = self._entries[index]
            try:
                made = entry if isinstance(entry, Constant) else self._decode(entry)
            except (KeyError, TypeError, ValueError, OverflowError, struct.error) as error:
                raise RelayError(f"constant {index} in the metadata is damaged: {error!r}") from error
            self._made[index] = made
        return made

    def _decode(self, entry: Any) -> Constant:
        dtype, shape = str(entry["dtype"]), tuple(int(n) for n in entry["shape"])
        if "missing" in entry:
            return missing_constant(int(entry["missing"]), shape, dtype)
        if "base64" in entry:
            data = np.frombuffer(base64.b64decode(entry["base64"], validate=True), storage_dtype(dtype))
            return make_constant(data.view(numpy_dtype(dtype)).reshape(shape), dtype)
        path = Path(entry["file"])
        path = path if path.is_absolute() or self._base is None else self._base / path
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = TensorFile(path)
        return make_constant(read_tensor(file, str(entry["key"]), dtype, shape), dtype)


def storage_dtype(dtype: str) -> np.dtype[np.generic]:
    """How a base type is stored in files: itself, but a byte for each 4-bit integer, and bits for bfloat16."""
    stored = {"int4": "int8", "uint4": "uint8", "bfloat16": "uint16"}.get(dtype)
    own = np.dtype(stored) if stored else numpy_dtype(dtype)
    return own.newbyteorder("<")


def to_storage(constant: Constant) -> npt.NDArray[np.generic]:
    """The array to store for a constant (see `storage_dtype`)."""
    if constant.dtype in ("int4", "uint4"):
        return constant.data.astype(storage_dtype(constant.dtype))
    return np.ascontiguousarray(constant.data).view(storage_dtype(constant.dtype)).reshape(constant.data.shape)


def from_storage(data: npt.NDArray[np.generic], dtype: str) -> npt.NDArray[np.generic]:
    """The values of a stored array."""
    if dtype in ("int4", "uint4"):
        return data.astype(numpy_dtype(dtype))
    return data if data.dtype == numpy_dtype(dtype) else data.view(numpy_dtype(dtype))


def entry_of(constant: Constant) -> dict[str, object]:
    """The metadata entry that holds a constant's data itself (of a placeholder: its type and number)."""
    if isinstance(constant.data, MissingData):
        return {"dtype": constant.dtype, "shape": list(constant.data.shape), "missing": constant.data.number}
    data = base64.b64encode(to_storage(constant).tobytes()).decode("ascii")
    return {"dtype": constant.dtype, "shape": list(constant.data.shape), "base64": data}


def read_tensor(file: TensorFile, key: str, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    """A tensor of a safetensors file, checked against what the text says of it. Raises FileError."""
    data = file.tensor(key)
    if data.shape != shape or data.dtype.itemsize != storage_dtype(dtype).itemsize:
        raise FileError(
            f"tensor {key!r} of {file.path} is {data.dtype}{list(data.shape)}, the text says {dtype}{list(shape)}"
        )
    made: npt.NDArray[np.generic] = from_storage(data, dtype)
    return made


def _own_entries(root: Any) -> list[Any]:
    entries = root.get(KEY, []) if isinstance(root, dict) else None
    if not isinstance(entries, list):
        raise SyntaxError_(f"the #[metadata] section must be an object with a list {KEY!r}")
    return entries


def _released_entries(root: dict[str, Any]) -> list[Any]:
    """The constants of a node table: node ``root`` is a map from names to arrays of nodes."""
    try:
        nodes, arrays = root["nodes"], root.get("b64ndarrays", [])
        table = nodes[int(root["root"])]
        where = dict(zip(table["keys"], table["data"], strict=True)) if "keys" in table else {}
        if KEY not in where:
            return []
        return [
            make_constant(_released_array(base64.b64decode(arrays[int(nodes[n]["attrs"]["data"])])))
            for n in nodes[int(where[KEY])]["data"]
        ]
    except (KeyError, IndexError, TypeError, ValueError, OverflowError, struct.error) as error:
        raise SyntaxError_(f"the #[metadata] section is damaged: {error!r}") from error


def _released_array(blob: bytes) -> npt.NDArray[np.generic]:
    """A serialised array of Relay's releases: magic, reserved, device, rank, element type, extents, byte count, data."""
    magic, _, _, _, rank, code, bits, lanes = struct.unpack_from("<QQiiiBBH", blob)
    if magic != _NDARRAY_MAGIC or lanes != 1 or code not in _DLPACK_CODES:
        raise ValueError("not a serialised array")
    start = struct.calcsize("<QQiiiBBH")
    shape = struct.unpack_from(f"<{rank}q", blob, start)
    (size,) = struct.unpack_from("<q", blob, start + 8 * rank)
    name = "bool" if (code, bits) == (1, 1) else f"{_DLPACK_CODES[code]}{bits}"
    dtype = numpy_dtype(name)
    data = blob[start + 8 * rank + 8 :][:size]
    return np.frombuffer(data, dtype).reshape(shape)
