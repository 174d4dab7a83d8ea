"""Looking at programs from outside: profiles, rooflines, traces, the machine's limits, other systems beside ours."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relay.view.exports import *
else:
    from relay.lazily import exported

    __getattr__, __dir__ = exported(__name__)
