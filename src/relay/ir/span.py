"""Where something stands in a source text."""

from __future__ import annotations

from relay.ir.record import record


@record(frozen=True, slots=True)
class Span:
    """A place in a source: name of the source, line and column (both from 1), and the length in characters on that line."""

    source: str
    line: int
    column: int
    length: int = 1

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}"
