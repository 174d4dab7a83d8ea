"""The definitional interpreter: `evaluate` is the meaning of the language."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relay.interpreter.exports import *
else:
    from relay.lazily import exported

    __getattr__, __dir__ = exported(__name__)
