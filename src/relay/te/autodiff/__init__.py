"""Differentiation of tensor expressions, in both directions; the results are tensor expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relay.te.autodiff.exports import *
else:
    from relay.lazily import exported

    __getattr__, __dir__ = exported(__name__)
