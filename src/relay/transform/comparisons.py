"""Operators that compare two numbers, by their names: with the operands exchanged, and as what holds where they do not."""

from __future__ import annotations

from collections.abc import Mapping

MIRRORED: Mapping[str, str] = {
    "less": "greater", "greater": "less", "less_equal": "greater_equal", "greater_equal": "less_equal",
}  # fmt: skip
OPPOSITE: Mapping[str, str] = {
    "less": "greater_equal", "greater": "less_equal", "less_equal": "greater", "greater_equal": "less",
}  # fmt: skip
