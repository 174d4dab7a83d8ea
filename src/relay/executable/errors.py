"""Errors of loading and running executables; the runtime raises them by the status it reports
(``relay/error.h``)."""

from __future__ import annotations

from relay.ir.diagnostics import ExecutionError, FileError, RelayError


class ArgumentError(RelayError):
    """What was given to a call does not fit: number of arguments, element type, a donated tensor."""


class IncompatibleError(FileError):
    """A sound executable that was compiled for another machine."""


class RecursionLimitError(ExecutionError):
    """The program's calls went deeper than the control stack's limit."""


class TimeLimitError(ExecutionError, TimeoutError):
    """A run took longer than its limit allows."""
