"""The executable file (.rlx): what is in it, and how it is written. The runtime (``runtime/src/image.cc``)
reads it.

Little-endian throughout. A header of 32 bytes: magic, version, number of sections, total length, and a 64-bit
checksum of every other byte. Then a table of sections (kind, zero, offset, length) and the sections, each
aligned to 64 bytes. Constants and native objects lie in the data section, so that the runtime can use them
where they are read to.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from relay.executable.bytecode import ANY_DTYPE, DTYPE_BITS, DTYPE_CODES, FunctionCode
from relay.executable.runtime import _runtime
from relay.ir.files import write_whole
from relay.ir.mapped import release
from relay.ir.record import record

MAGIC: Final = b"RELAYEXE"
VERSION: Final = 6
_HEADER: Final = 32
_ENTRY: Final = 24
_ALIGN: Final = 64


class Section(IntEnum):
    """The kinds of sections; every file has each once, but for the last two, which it may have."""

    STRINGS = 1
    TARGET = 2
    FUNCTIONS = 3
    CONSTANTS = 4
    KERNELS = 5
    OBJECTS = 6
    ROUTINES = 7
    ENTRIES = 8
    DATA = 9
    NATIVE = 10
    LATER = 11


@record(frozen=True, slots=True)
class Operand:
    """A kernel's buffer. ``alignment`` in bytes (0: that of one element); ``in_place``: for an output, the
    input whose memory it may share, or -1."""

    dtype: str
    rank: int
    alignment: int = 0
    in_place: int = -1


@record(frozen=True, slots=True)
class KernelEntry:
    """A compiled kernel: function ``symbol`` of native object number ``object``. ``operands``: inputs, then
    ``outputs`` outputs; ``dims``: how many symbolic sizes it takes; ``info``: a text for whoever looks at the program
    (the compiler leaves the kernel's work there, as JSON); ``alternates``: it asks whether its call is an even or an odd one."""

    name: str
    object: int
    symbol: str
    operands: tuple[Operand, ...]
    outputs: int
    dims: int = 0
    info: str = ""
    alternates: bool = False


@record(frozen=True, slots=True)
class EntryPoint:
    """A function that can be called from outside. ``info``: a text for whoever loads the program (the
    compiler leaves its types there, as JSON); ``dtypes``: the element type of each parameter, None for
    anything."""

    name: str
    function: int
    info: str
    dtypes: tuple[str | None, ...]


@record(frozen=True, slots=True)
class ExecutableImage:
    """A compiled program. The indices in its bytecode are positions in these lists; ``constants`` are arrays
    with the names of their element types (int4 and uint4 unpacked, in any integer type), ``objects`` ELF
    relocatable objects, ``features`` names of the CPU features that the kernels need, ``native`` an ELF relocatable object
    with native code for the functions (`relay.aot`), or None. Objects may be empty, if ``later`` says what they are made of
    (`relay.codegen.later`)."""

    functions: tuple[FunctionCode, ...]
    entries: tuple[EntryPoint, ...]
    constants: tuple[tuple[NDArray[Any], str], ...] = ()
    kernels: tuple[KernelEntry, ...] = ()
    objects: tuple[bytes, ...] = ()
    routines: tuple[str, ...] = ()
    messages: tuple[str, ...] = ()
    triple: str = f"{_runtime.host_architecture()}-unknown-linux-gnu"
    features: tuple[str, ...] = ()
    native: bytes | None = None
    later: bytes | None = None

    def to_bytes(self) -> bytearray:
        """The whole file."""
        layout = _layout(self)
        out = bytearray(_HEADER)
        out[:_HEADER] = layout.write(out.extend)
        return out

    def save(self, path: str | os.PathLike[str], lasting: bool = True) -> None:
        """Write the file: completely, or not at all; ``lasting``: even if the machine fails right behind. Raises FileError."""
        layout = _layout(self)

        def write(temporary: Path) -> None:
            with temporary.open("wb") as file:
                file.seek(_HEADER)
                head = layout.write(file.write)
                file.seek(0)
                file.write(head)
                if lasting:
                    file.flush()
                    os.fsync(file.fileno())

        write_whole(path, write)


class _Strings:
    def __init__(self, first: tuple[str, ...]) -> None:
        self.texts = list(first)  # bytecode numbers messages by position
        self._index: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        index = self._index.get(text)
        if index is None:
            index = self._index[text] = len(self.texts)
            self.texts.append(text)
        return index

    def section(self) -> bytes:
        out = bytearray(_words(len(self.texts)))
        for text in self.texts:
            raw = text.encode("utf-8", "backslashreplace")
            out += _words(len(raw)) + raw
        return bytes(out)


class _Data:
    """The data section: pieces, each aligned, whose offsets in the file are known once the section's own
    is."""

    def __init__(self) -> None:
        self.pieces: list[tuple[int, memoryview]] = []
        self.size = 0

    def add(self, piece: memoryview) -> int:
        at = self.size
        self.pieces.append((at, piece))
        self.size = _aligned(at + piece.nbytes)
        return at


def _words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGN) * _ALIGN


def constant_bytes(array: NDArray[Any], dtype: str) -> memoryview:
    """The elements as the runtime stores them: row-major, elements narrower than a byte packed low bits
    first.

    Raises ValueError when the array's elements are not of the dtype's size.
    """
    if DTYPE_BITS[dtype] < 8:
        flat = array.astype(np.int8).reshape(-1).view(np.uint8) & 15
        padded = np.concatenate([flat, np.zeros(flat.size % 2, np.uint8)])
        packed: NDArray[np.uint8] = padded[0::2] | (padded[1::2] << 4)
        return packed.data
    if array.dtype.itemsize * 8 != DTYPE_BITS[dtype]:
        raise ValueError(f"a constant of {dtype} cannot be made from an array of {array.dtype}")
    raw: NDArray[np.uint8] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return raw.data


def _dtype_code(name: str) -> int:
    if name not in DTYPE_CODES:
        raise ValueError(f"there is no element type {name!r}")
    return DTYPE_CODES[name]


def _layout(image: ExecutableImage) -> _Layout:
    strings, data = _Strings(image.messages), _Data()

    target = _words(strings(image.triple), len(image.features), *(strings(name) for name in image.features))

    functions = bytearray(_words(len(image.functions)))
    for function in image.functions:
        code = np.ascontiguousarray(function.code, dtype="<i4")
        functions += _words(strings(function.name), function.arity, function.registers, code.size)
        functions += code.tobytes()
        functions += _words(len(function.spans))
        for at, text in function.spans:
            functions += _words(at, strings(text))

    placed = [(array, _dtype_code(dtype), data.add(constant_bytes(array, dtype))) for array, dtype in image.constants]
    objects = [(len(raw), data.add(memoryview(raw))) for raw in image.objects]

    optional = ((Section.NATIVE, image.native), (Section.LATER, image.later))
    apart = {kind: (data.add(memoryview(raw)), len(raw)) for kind, raw in optional if raw is not None}

    kernels = bytearray(_words(len(image.kernels)))
    for kernel in image.kernels:
        kernels += _words(strings(kernel.name), kernel.object, strings(kernel.symbol), strings(kernel.info))
        kernels += _words(kernel.outputs, kernel.dims, kernel.alternates, len(kernel.operands))
        for operand in kernel.operands:
            alignment = operand.alignment or max(1, DTYPE_BITS[operand.dtype] // 8)
            kernels += struct.pack("<BBHi", _dtype_code(operand.dtype), operand.rank, alignment, operand.in_place)

    routines = _words(len(image.routines), *(strings(name) for name in image.routines))

    entries = bytearray(_words(len(image.entries)))
    for entry in image.entries:
        codes = bytes(ANY_DTYPE if name is None else _dtype_code(name) for name in entry.dtypes)
        entries += _words(strings(entry.name), entry.function, strings(entry.info), len(codes))
        entries += codes + bytes(-len(codes) % 4)

    # The sizes of the sections that hold offsets into the data are known before the offsets are.
    constants_size = 4 + sum(16 + 8 * array.ndim for array, _ in image.constants)
    objects_size = 4 + 16 * len(objects)
    sizes: dict[int, int] = {
        Section.STRINGS: len(texts := strings.section()),
        Section.TARGET: len(target),
        Section.FUNCTIONS: len(functions),
        Section.CONSTANTS: constants_size,
        Section.KERNELS: len(kernels),
        Section.OBJECTS: objects_size,
        Section.ROUTINES: len(routines),
        Section.ENTRIES: len(entries),
        Section.DATA: data.size,
    }
    sizes |= dict.fromkeys(apart, 16)
    offsets: dict[int, int] = {}
    at = _aligned(_HEADER + _ENTRY * len(sizes))
    for kind, size in sizes.items():
        offsets[kind] = at
        at = _aligned(at + size)
    base = offsets[Section.DATA]

    constants = bytearray(_words(len(placed)))
    for array, dtype_code, offset in placed:
        constants += struct.pack("<IIQ", dtype_code, array.ndim, base + offset)
        constants += struct.pack(f"<{array.ndim}q", *array.shape)
    object_table = bytearray(_words(len(objects)))
    for size, offset in objects:
        object_table += struct.pack("<QQ", base + offset, size)

    contents: dict[int, bytes | bytearray] = {
        Section.STRINGS: texts,
        Section.TARGET: target,
        Section.FUNCTIONS: functions,
        Section.CONSTANTS: constants,
        Section.KERNELS: kernels,
        Section.OBJECTS: object_table,
        Section.ROUTINES: routines,
        Section.ENTRIES: entries,
    }
    contents |= {kind: struct.pack("<QQ", base + offset, size) for kind, (offset, size) in apart.items()}
    table = b"".join(struct.pack("<IIQQ", kind, 0, offsets[kind], size) for kind, size in sizes.items())
    pieces = [(_HEADER, memoryview(table))]
    for kind in sizes:
        if kind == Section.DATA:
            pieces += [(base + offset, piece) for offset, piece in data.pieces]
        else:
            pieces.append((offsets[kind], memoryview(contents[kind])))
    return _Layout(MAGIC + struct.pack("<IIQ", VERSION, len(sizes), at), at, pieces)


@record(frozen=True, slots=True)
class _Layout:
    """A file about to be written: its first 24 bytes, its length, and what lies where, in order; between is zero."""

    head: bytes
    length: int
    pieces: list[tuple[int, memoryview]]

    def write(self, write: Callable[[bytes | memoryview], object]) -> bytes:
        """Write everything behind the header; gives the header, which holds the checksum of it all.

        Weights that lie in a mapped file are given back once they are written.
        """
        checksum = _runtime.Checksum(self.length - _HEADER, _runtime.checksum(self.head))
        at = _HEADER
        for offset, piece in [*self.pieces, (self.length, memoryview(b""))]:
            for part in (bytes(offset - at), piece):
                checksum.update(part)
                write(part)
            at = offset + piece.nbytes
            if isinstance(piece.obj, np.ndarray):
                release(piece.obj)
        return self.head + struct.pack("<Q", checksum.finish())
