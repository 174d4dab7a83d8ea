"""Tensor expressions: an operator is one of these. Names are those used inside `@relay.operator` definitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relay.te.exports import *
else:
    from relay.lazily import exported

    __getattr__, __dir__ = exported(__name__)
