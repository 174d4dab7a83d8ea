"""What the package gives to others."""

from __future__ import annotations

from relay.executable.bytecode import Assembler, FunctionCode, Label
from relay.executable.disassembler import disassemble
from relay.executable.errors import ArgumentError, IncompatibleError, RecursionLimitError
from relay.executable.format import EntryPoint, ExecutableImage, KernelEntry, Operand
from relay.executable.reader import read_image
from relay.executable.runtime import Executable, Tensor, Value
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
