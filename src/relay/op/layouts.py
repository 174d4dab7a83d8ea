"""Tensors with their axes in another order, or split into blocks: what layouts such as NCHW and NCHW4c say."""

from __future__ import annotations

import re

from relay import te
from relay.ir.dim import Dim, dim_floordiv, dim_mul
from relay.op.registry import operator

_AXIS = re.compile(r"([A-Z])|(\d+)([a-z])")


def axes_of_layout(layout: str, op: str) -> list[tuple[str, int | None]]:
    """The axes of a layout: (letter, None) for a whole or outer axis, (letter, size) for a block of it inside."""
    found: list[tuple[str, int | None]] = [
        (m[1], None) if m[1] else (m[3].upper(), int(m[2])) for m in _AXIS.finditer(layout)
    ]
    spelled = "".join(m.group() for m in _AXIS.finditer(layout)) == layout
    te.require(spelled and found != [], f"{op}: {layout!r} is no layout; one is written like NCHW or NCHW4c")
    outer = [letter for letter, size in found if size is None]
    te.require(len(set(outer)) == len(outer), f"{op}: layout {layout} has an axis twice")
    blocks = [letter for letter, size in found if size is not None and size > 0]
    te.require(len(blocks) + len(outer) == len(found), f"{op}: layout {layout} has an empty block")
    te.require(set(blocks) <= set(outer), f"{op}: layout {layout} has a block of an axis that it does not have")
    return found


@operator("layout_transform")
def layout_transform(data: te.Tensor, *, src_layout: str, dst_layout: str) -> te.Tensor:
    """``data`` with its axes as ``dst_layout`` has them instead of as ``src_layout``.

    A letter is an axis; a number with a small letter is a block of that axis, inside of what the capital letter leaves: axis c of
    size 8 in NCHW is axes of 2 and 4 in NCHW4c, and element c is at (c // 4, c % 4). Blocks must divide their axis.
    """
    op = "layout_transform"
    source, wanted = axes_of_layout(src_layout, op), axes_of_layout(dst_layout, op)
    te.require(
        {letter for letter, _ in source} == {letter for letter, _ in wanted},
        f"{op} cannot make {dst_layout} from {src_layout}: they have different axes",
    )
    te.require(
        data.ndim == len(source), f"the data of {op} has rank {data.ndim}, layout {src_layout} has {len(source)} axes"
    )
    whole: dict[str, Dim] = {}
    for (letter, size), dim in zip(source, data.shape, strict=True):
        if size is not None:
            te.require_equal(dim, size, f"the block of {letter} in {src_layout} and its size")
        whole[letter] = dim_mul(whole.get(letter, 1), dim)
    shape: list[Dim] = []
    for letter, size in wanted:
        blocks = 1
        for other, inside in wanted:
            blocks *= inside if other == letter and inside is not None else 1
        outer = dim_floordiv(whole[letter], blocks)
        if size is None and blocks != 1:
            te.require_equal(
                dim_mul(outer, blocks), whole[letter], f"the size of {letter} and its blocks in {dst_layout}"
            )
        shape.append(outer if size is None else size)

    def body(*i: te.Scalar) -> te.Scalar:
        # The position along each axis, from its outer index and its blocks' ones, outermost first.
        position = {letter: index for (letter, size), index in zip(wanted, i, strict=True) if size is None}
        for (letter, size), index in zip(wanted, i, strict=True):
            if size is not None:
                position[letter] = position[letter] * size + index
        read: list[te.Scalar] = []
        for letter, size in reversed(source):
            if size is not None:
                read.append(position[letter] % size)
                position[letter] = position[letter] // size
            else:
                read.append(te.const(0, "int64"))
        read.reverse()
        return data[
            tuple(position[letter] if size is None else at for (letter, size), at in zip(source, read, strict=True))
        ]

    return te.compute(shape, body, op)
