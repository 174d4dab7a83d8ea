"""The compiled runtime, which raises Relay's errors and looks for cycles of references when Python does: imported from here."""

from __future__ import annotations

import gc

from relay import _runtime
from relay._runtime import Executable, Tensor, Value
from relay.executable.errors import ArgumentError, IncompatibleError, RecursionLimitError, TimeLimitError
from relay.ir.diagnostics import ExecutionError, FileError, OutOfMemoryError

__all__ = ["Executable", "Tensor", "Value", "_runtime"]


def _install() -> None:
    """Let the runtime raise these classes."""
    classes: tuple[type[Exception], ...] = (
        ArgumentError,
        FileError,
        IncompatibleError,
        ExecutionError,
        RecursionLimitError,
        OutOfMemoryError,
    )
    for status, error in enumerate(classes, start=1):
        _runtime.set_error_type(status, error)
    _runtime.set_error_type(8, TimeLimitError)  # 7, interrupted, is KeyboardInterrupt


_install()
# Cycles of Relay references that Python still held die when Python looks for cycles of its own.
gc.callbacks.append(_runtime.collect_with_python)
