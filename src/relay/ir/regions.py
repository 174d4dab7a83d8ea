"""The tree of a program's regions: what stands between braces in the text, each region inside another.

A node of a graph that is used in several regions belongs to their lowest common ancestor. Jump pointers (each as long as the two before
it together, when those are equal) make every climb logarithmic, however deeply regions nest.
"""

from __future__ import annotations

from typing import Self

from relay.ir.expr import Expr


class Region:
    """A node of the tree. ``holder`` is the expression whose braces it is. The outermost region is its own ``parent``."""

    __slots__ = ("depth", "holder", "jump", "parent")

    parent: Self
    jump: Self

    def __init__(self, parent: Self | None, holder: Expr) -> None:
        self.holder = holder
        if parent is None:
            self.parent = self.jump = self
            self.depth = 0
            return
        self.parent = parent
        self.depth = parent.depth + 1
        far = parent.jump
        self.jump = far.jump if parent.depth - far.depth == far.depth - far.jump.depth else parent

    def ancestor(self, depth: int) -> Self:
        """The ancestor (or the region itself) at this depth."""
        region = self
        while region.depth > depth:
            region = region.jump if region.jump.depth >= depth else region.parent
        return region

    def common(self, other: Self) -> Self:
        """The innermost region that contains both."""
        a, b = self.ancestor(other.depth), other.ancestor(self.depth)
        while a is not b:
            a, b = (a.jump, b.jump) if a.jump is not b.jump else (a.parent, b.parent)
        return a
