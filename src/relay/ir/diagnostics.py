"""Errors a person meets: what was expected, what was found, where, and what to do."""

from __future__ import annotations

from collections.abc import Mapping

from relay.ir.span import Span


class RelayError(Exception):
    """Any error in what the user gave. ``span`` and ``source`` (the text it points into) place it; ``hint`` says what to do."""

    def __init__(self, message: str, span: Span | None = None, hint: str = "", source: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.span = span
        self.hint = hint
        self.source = source

    def with_source(self, sources: Mapping[str, str]) -> RelayError:
        """Attach the text of the source that the span points into (the same error)."""
        if self.source is None and self.span is not None:
            self.source = sources.get(self.span.source)
        return self

    def __str__(self) -> str:
        out = self.message if self.span is None else f"{self.span}: {self.message}"
        if self.span is not None and self.source is not None:
            lines = self.source.splitlines()
            if 1 <= self.span.line <= len(lines):
                line = lines[self.span.line - 1]
                start = self.span.column - 1
                # A very long line is shown around the place only.
                left = max(0, start - 60) if len(line) > 120 else 0
                shown = line[left : left + 120]
                width = max(1, min(self.span.length, len(shown) - (start - left)))
                out += f"\n    {shown}\n    {' ' * (start - left)}{'^' * width}"
        return f"{out}\n  hint: {self.hint}" if self.hint else out


class SyntaxError_(RelayError):
    """The text is not a program of the grammar."""


class TypeError_(RelayError):
    """The program has no type."""


class ShapeError(TypeError_):
    """Shapes that cannot agree, at compile time or at a call."""


class OperatorError(RelayError):
    """An unknown operator, or wrong attributes for one."""


class ExecutionError(RelayError):
    """A failure while a program runs: no matching clause, a failed run-time check, a limit."""


class OutOfMemoryError(ExecutionError, MemoryError):
    """No memory for a tensor or an object."""


class CompileError(RelayError):
    """A well-typed program that cannot be compiled for the target."""


class FileError(RelayError):
    """A file that is missing, damaged, or of another kind than expected."""


class DividedByZero(ShapeError, ZeroDivisionError):
    """A size is divided by one that is zero."""
