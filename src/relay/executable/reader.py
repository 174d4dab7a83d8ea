"""An executable file back to its image, to look at: disassembly, tables, constants. (To run one,
``Executable.load``.)"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relay.executable.bytecode import ANY_DTYPE, DTYPE_BITS, DTYPES, FunctionCode
from relay.executable.format import (
    MAGIC,
    VERSION,
    EntryPoint,
    ExecutableImage,
    KernelEntry,
    Operand,
    Section,
)
from relay.executable.runtime import _runtime
from relay.ir.diagnostics import FileError
from relay.ir.dtypes import numpy_dtype


def read_image(source: str | os.PathLike[str] | bytes | bytearray) -> ExecutableImage:
    """The image in a file or its bytes. int4 and uint4 constants come back unpacked.

    Raises FileError for what is not a whole, undamaged executable of this version.
    """
    if isinstance(source, bytes | bytearray):
        return _Reader(memoryview(source), "the executable").image()
    path = Path(source)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FileError(f"cannot open {path}: {error.strerror}") from error
    return _Reader(memoryview(data), str(path)).image()


class _Reader:
    def __init__(self, data: memoryview, name: str) -> None:
        self.data = data
        self.name = name
        self.at = 0
        self.sections: dict[int, tuple[int, int]] = {}

    def image(self) -> ExecutableImage:
        try:
            self._header()
            return self._tables()
        except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
            raise FileError(f"{self.name} is not a usable executable: its tables are damaged") from error

    def _header(self) -> None:
        data = self.data
        if len(data) < 32 or bytes(data[:8]) != MAGIC:
            raise FileError(f"{self.name} does not begin as a Relay executable")
        version, sections, length, checksum = struct.unpack_from("<IIQQ", data, 8)
        if version != VERSION:
            raise FileError(f"{self.name} has format version {version}, and this Relay reads version {VERSION}")
        if length != len(data) or checksum != _runtime.checksum(data[32:], _runtime.checksum(data[:24])):
            raise FileError(f"{self.name} is damaged or cut off")
        for number in range(sections):
            kind, _, offset, size = struct.unpack_from("<IIQQ", data, 32 + 24 * number)
            self.sections[kind] = (offset, size)

    def _words(self, count: int) -> tuple[int, ...]:
        values = struct.unpack_from(f"<{count}I", self.data, self.at)
        self.at += 4 * count
        return values

    def _raw(self, count: int) -> bytes:
        self.at += count
        return bytes(self.data[self.at - count : self.at])

    def _open(self, section: Section) -> int:
        """Go to a section; how many things it lists."""
        self.at = self.sections[section][0]
        return self._words(1)[0]

    def _tables(self) -> ExecutableImage:
        strings = [self._raw(self._words(1)[0]).decode() for _ in range(self._open(Section.STRINGS))]

        self.at = self.sections[Section.TARGET][0]
        triple, count = self._words(2)
        features = self._words(count)

        functions = []
        for _ in range(self._open(Section.FUNCTIONS)):
            name, arity, registers, words = self._words(4)
            code = np.frombuffer(self._raw(4 * words), dtype="<i4").astype(np.int32)
            spans = [self._words(2) for _ in range(self._words(1)[0])]
            functions.append(
                FunctionCode(strings[name], arity, registers, code, tuple((at, strings[s]) for at, s in spans))
            )

        constants = []
        for _ in range(self._open(Section.CONSTANTS)):
            dtype, rank = self._words(2)
            offset, *shape = struct.unpack_from(f"<{1 + rank}q", self.data, self.at)
            self.at += 8 * (1 + rank)
            constants.append((self._constant(DTYPES[dtype], tuple(shape), offset), DTYPES[dtype]))

        kernels = []
        for _ in range(self._open(Section.KERNELS)):
            name, number, symbol, info, outputs, dims, alternates, count = self._words(8)
            operands = [struct.unpack("<BBHi", self._raw(8)) for _ in range(count)]
            kernels.append(
                KernelEntry(
                    strings[name],
                    number,
                    strings[symbol],
                    tuple(Operand(DTYPES[d], rank, alignment, shared) for d, rank, alignment, shared in operands),
                    outputs,
                    dims,
                    strings[info],
                    alternates != 0,
                )
            )

        objects = []
        for _ in range(self._open(Section.OBJECTS)):
            offset, size = struct.unpack("<QQ", self._raw(16))
            objects.append(bytes(self.data[offset : offset + size]))

        routines = self._words(self._open(Section.ROUTINES))

        entries = []
        for _ in range(self._open(Section.ENTRIES)):
            name, function, info, count = self._words(4)
            codes = self._raw(count)
            self.at += -count % 4
            dtypes = tuple(None if code == ANY_DTYPE else DTYPES[code] for code in codes)
            entries.append(EntryPoint(strings[name], function, strings[info], dtypes))

        return ExecutableImage(
            functions=tuple(functions),
            entries=tuple(entries),
            constants=tuple(constants),
            kernels=tuple(kernels),
            objects=tuple(objects),
            routines=tuple(strings[r] for r in routines),
            messages=tuple(strings),  # bytecode numbers them by position; names follow them
            triple=strings[triple],
            features=tuple(strings[f] for f in features),
            native=self._apart(Section.NATIVE),
            later=self._apart(Section.LATER),
        )

    def _apart(self, section: Section) -> bytes | None:
        """The bytes that a section points at, if the file has it."""
        if section not in self.sections:
            return None
        offset, size = struct.unpack_from("<QQ", self.data, self.sections[section][0])
        return bytes(self.data[offset : offset + size])

    def _constant(self, dtype: str, shape: tuple[int, ...], offset: int) -> NDArray[Any]:
        size = int(np.prod(shape, dtype=np.int64))
        nbytes = -(-size * DTYPE_BITS[dtype] // 8)
        raw = np.frombuffer(self.data[offset : offset + nbytes], dtype=np.uint8)
        if DTYPE_BITS[dtype] >= 8:
            return raw.view(numpy_dtype(dtype)).reshape(shape)
        nibbles = np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1)[:size].astype(np.int8)
        signed = np.where(nibbles > 7, nibbles - 16, nibbles) if dtype == "int4" else nibbles
        return signed.astype(numpy_dtype(dtype)).reshape(shape)
