"""Passes: each maps a module to a module, one file each.

`relay.transform.base` has pipelines and the names of passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relay.transform.exports import *
else:
    from relay.lazily import exported

    __getattr__, __dir__ = exported(__name__)
