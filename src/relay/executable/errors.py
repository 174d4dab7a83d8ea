"""Errors of loading and running executables; the runtime raises them by the status it reports
(``relay/error.h``)."""

from __future__ import annotations

from relay import _runtime
from relay.ir.diagnostics import ExecutionError, FileError, OutOfMemoryError, RelayError


class ArgumentError(RelayError):
    """What was given to a call does not fit: number of arguments, element type, a donated tensor."""


class IncompatibleError(FileError):
    """A sound executable that was compiled for another machine."""


class RecursionLimitError(ExecutionError):
    """The program's calls went deeper than the control stack's limit."""


class TimeLimitError(ExecutionError, TimeoutError):
    """A run took longer than its limit allows."""


def install() -> None:
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
