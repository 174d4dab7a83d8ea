"""Executables: bytecode, the file format, the disassembler, and the Python face of the runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relay.executable.exports import *
else:
    from relay.lazily import exported

    __getattr__, __dir__ = exported(__name__)
