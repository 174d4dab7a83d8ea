"""Reads of tensors are inside of them: asked wherever a definition is evaluated.

A read may lie outside only where a `Select` does not choose it. Values times zero are no excuse: compiled code reads what stands there,
and what stands there may be nan. Only a select is lazy: both sides of ``and`` are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from relay.te.grid import Grid, inside
from relay.te.numeric import Array
from relay.te.scalar import Load, Scalar, Select, children, walk
from relay.te.tensor import Tensor

_EVERYWHERE: Final = np.array(True)


class OutsideError(Exception):
    """A definition reads outside of a tensor; the message has the tensor, the place and the index variables there."""


def require_inside(
    root: Scalar,
    grid: Grid,
    shape_of: Callable[[Load], tuple[int, ...]],
    value_of: Callable[[Scalar], Array],
    chosen: Array = _EVERYWHERE,
) -> None:
    """Raise OutsideError for a read in ``root`` outside of its tensor at a place of the grid where it is ``chosen``.

    ``shape_of`` gives the shape of what is read, ``value_of`` an expression's values on the grid.
    """
    order = walk(root)
    open_: set[int] = {id(n) for n in order if isinstance(n, Load) and _unsettled(n, grid, shape_of(n))}
    if not open_:
        return
    # What leads to such a read, and under which conditions: users before operands, so every node's are complete when it comes.
    leads: set[int] = set()
    for node in order:
        if id(node) in open_ or any(id(k) in leads for k in children(node)):
            leads.add(id(node))
    needed: dict[int, Array] = {id(root): chosen}
    for node in reversed(order):
        if id(node) not in leads:
            continue
        here = needed.pop(id(node))
        if id(node) in open_:
            assert isinstance(node, Load)
            _check(node, grid, shape_of(node), value_of, here)
        for n, kid in enumerate(children(node)):
            if id(kid) not in leads:
                continue
            mine = here
            if isinstance(node, Select) and n > 0:
                cond = value_of(node.cond)
                mine = here & (cond if n == 1 else ~cond)
            needed[id(kid)] = needed[id(kid)] | mine if id(kid) in needed else mine


def _unsettled(node: Load, grid: Grid, shape: tuple[int, ...]) -> bool:
    return any(not inside(grid.affine(i), n) for i, n in zip(node.indices, shape, strict=True))


def _check(node: Load, grid: Grid, shape: tuple[int, ...], value_of: Callable[[Scalar], Array], here: Array) -> None:
    for number, (index, size) in enumerate(zip(node.indices, shape, strict=True)):
        if inside(grid.affine(index), size):
            continue
        value = value_of(index)
        outside = here & ((value < 0) | (value >= size))
        if outside.any():
            assert isinstance(node.source, Tensor)
            place = np.unravel_index(int(np.argmax(outside)), outside.shape)
            at = [p if n > 1 else 0 for p, n in zip(place, value.shape, strict=True)]
            where = ", ".join(
                f"{axis.name} = {start + int(p)}" for axis, start, p in zip(grid.axes, grid.starts, place, strict=True)
            )
            raise OutsideError(
                f"{node.source.name} of shape {list(shape)} is read outside: its index {number} is {int(value[tuple(at)])}"
                f"{f' for {where}' if where else ''}"
            )
