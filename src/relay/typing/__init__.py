"""Types: inference with a queue of type relations, effects, exhaustiveness, monomorphisation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relay.typing.exports import *
else:
    from relay.lazily import exported

    __getattr__, __dir__ = exported(__name__)
