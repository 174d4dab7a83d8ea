"""From a fused primitive to a kernel plan: tensor expressions to loop nests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relay.plan.exports import *
else:
    from relay.lazily import exported

    __getattr__, __dir__ = exported(__name__)
