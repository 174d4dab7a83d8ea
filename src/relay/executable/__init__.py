"""Executables: bytecode, the file format, the disassembler, and the Python face of the runtime."""

from __future__ import annotations

import gc

from relay import _runtime
from relay._runtime import Executable, Tensor, Value
from relay.executable import errors
from relay.executable.bytecode import Assembler, FunctionCode, Label
from relay.executable.disassemble import disassemble
from relay.executable.errors import ArgumentError, IncompatibleError, RecursionLimitError
from relay.executable.format import EntryPoint, ExecutableImage, KernelEntry, Operand
from relay.executable.reader import read_image
from relay.ir.diagnostics import OutOfMemoryError

__all__ = [
    "ArgumentError",
    "Assembler",
    "EntryPoint",
    "Executable",
    "ExecutableImage",
    "FunctionCode",
    "IncompatibleError",
    "KernelEntry",
    "Label",
    "Operand",
    "OutOfMemoryError",
    "RecursionLimitError",
    "Tensor",
    "Value",
    "disassemble",
    "read_image",
]


def _collect_cycles(phase: str, info: dict[str, int]) -> None:
    """Cycles of Relay references that Python still held die when Python looks for cycles of its own."""
    if phase == "stop" and info.get("generation") == 2:
        _runtime.collect()


errors.install()
gc.callbacks.append(_collect_cycles)
