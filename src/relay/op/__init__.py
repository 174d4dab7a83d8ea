"""The operators. ``relay.op.add(x, y)`` and ``relay.op.nn.dense(x, w, units=8)`` make calls; ``names()`` lists all.

Each module declares one family; `relay.op.registry` knows all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relay.lazily import exported

if TYPE_CHECKING:
    from relay.op.exports import *

_exported, __dir__ = exported(__name__)


def __getattr__(name: str) -> Any:
    try:
        return _exported(name)
    except AttributeError:
        from relay.op.namespace import lookup

        return lookup(name)
