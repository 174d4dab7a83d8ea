"""The standard prelude (`prelude.relay`): lists, options and trees, and the functions over them.

A program gets it with ``import prelude``: its types become part of the module, and those of its functions that are used.
"""

from __future__ import annotations

from relay.ir.module import Module
from relay.ir.parser import prelude_module


def load() -> Module:
    """The whole prelude as an untyped module (the same object each time)."""
    return prelude_module()
