"""Tensors with their axes in another order, or split into blocks: what layouts such as NCHW and NCHW4c say."""

from __future__ import annotations

from relay import te
from relay.op.registry import operator
from relay.te.layout import layout_of


def _axes(layout: str) -> str:
    """The letters of a layout's axes, in order."""
    return "".join(dict.fromkeys(c for c in layout if c.isupper()))


@operator("layout_transform")
def layout_transform(data: te.Tensor, *, src_layout: str, dst_layout: str) -> te.Tensor:
    """``data`` with its axes as ``dst_layout`` has them instead of as ``src_layout``.

    A letter is an axis; a number with a small letter is a block of that axis, inside of what the capital letter leaves: axis c of
    size 8 in NCHW is axes of 2 and 4 in NCHW4c, and element c is at (c // 4, c % 4). Blocks must divide their axis.
    """
    op = "layout_transform"
    source, wanted = (layout_of(text, _axes(text)) for text in (src_layout, dst_layout))
    te.require(
        sorted(source.letters) == sorted(wanted.letters),
        f"{op} cannot make {dst_layout} from {src_layout}: they have different axes",
    )
    wanted = layout_of(dst_layout, source.letters)
    te.require(
        data.ndim == len(source.parts),
        f"the data of {op} has rank {data.ndim}, layout {src_layout} has {len(source.parts)} axes",
    )
    shape = wanted.shape(source.whole(data.shape))
    return te.compute(shape, lambda *i: data[source.place(wanted.index(i))], op)
