"""Tensors with their axes in another order, or split into blocks: what layouts such as NCHW and NCHW4c say.

``layout_transform`` brings a tensor from one layout to another. ``<op>.laid_out`` is an operator on tensors in other
layouts, derived from its expression: ``nn.conv2d.laid_out(x, w, layouts=("ACDB", "", "ABCD16b"))`` takes its data
with axis B (the channels) innermost, its weight as it is, and gives its result with a block of 16 channels innermost:
one layout for each tensor among the operands and each result (`relay.te.layout` says how they are written), an empty
one for a tensor that lies as the operator has it. Stages of the definition that read a tensor element for element, a
padded image, lie as that does.
"""

from __future__ import annotations

from typing import Any

from relay import te
from relay.ir.diagnostics import OperatorError
from relay.op.registry import AttrSpec, Operator, applied, derive_with, exists, get, operator, returned
from relay.op.support import grouped, tensors_of
from relay.te.layout import Layout, axis_letters, inherited, laid_out, layout_of
from relay.te.tensor import Placeholder, Stage, Tensor

SUFFIX = ".laid_out"


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


def can_lay_out(op: Operator) -> bool:
    """Whether an operator has such a form: it is an expression (or view) and its sizes follow from sizes."""
    return op.kind in ("expression", "view") and op.shape_mode == "independent" and not op.effects and not op.by_routine


def laid_out_form(op: Operator) -> Operator:
    """The operator on tensors in other layouts. Attributes: those of the operator and ``layouts``."""
    if not can_lay_out(op):
        raise OperatorError(
            f"operator {op.name} has no form in other layouts", hint="only pure tensor expressions have one"
        )

    def define(*args: Any, layouts: tuple[str, ...], **attrs: Any) -> te.Tensor | tuple[te.Tensor, ...]:
        flat = tensors_of(args)
        te.require(
            len(layouts) > len(flat), f"{len(layouts)} layouts are too few for {len(flat)} operands and a result"
        )
        chosen: dict[Stage, Layout] = {}
        sources: dict[Stage, Stage] = {}
        inner: list[Tensor] = []
        for tensor, text in zip(flat, layouts, strict=False):
            if not text:
                inner.append(tensor)
                continue
            layout = _layout(text)
            inner.append(te.placeholder(tensor.name, layout.whole(tensor.shape), tensor.dtype))
            chosen[inner[-1].stage], sources[inner[-1].stage] = layout, tensor.stage
        outputs, is_tuple = applied(op, grouped(args, inner), attrs)
        wanted = layouts[len(flat) :]
        te.require(len(wanted) == len(outputs), f"{len(wanted)} layouts are given for {len(outputs)} results")
        # An operand that is passed on may be wanted in another layout than it has.
        outputs = tuple(te.compute(t.shape, t, "copy") if isinstance(t.stage, Placeholder) else t for t in outputs)
        for tensor, text in zip(outputs, wanted, strict=True):
            layout = _layout(text) if text else _layout(axis_letters(tensor.ndim))
            te.require(layout.rank == tensor.ndim, f"a result of rank {tensor.ndim} has no layout {text}")
            te.require(
                chosen.setdefault(tensor.stage, layout) == layout, "results that are made together have one layout"
            )
        new = laid_out(outputs, inherited(outputs, chosen), sources)
        made = tuple(Tensor(new[t.stage], t.index, new[t.stage].shape, t.dtype) for t in outputs)
        return made if is_tuple else made[0]

    # What is derived from this operator reads off this whether its result is a tuple.
    define.__annotations__["return"] = returned(op.define)
    layouts = AttrSpec("layouts", tuple[str, ...], None, True)
    return Operator(
        op.name + SUFFIX, "expression", op.inputs, (*op.attrs, layouts), define, op.effects,
        doc=f"`{op.name}` on tensors in other layouts.", ignored=op.ignored,
    )  # fmt: skip


def _layout(text: str) -> Layout:
    return layout_of(text, axis_letters(sum(c.isupper() for c in text)))


def _by_name(name: str) -> Operator | None:
    base = name.removesuffix(SUFFIX)
    return laid_out_form(get(base)) if base != name and exists(base) and can_lay_out(get(base)) else None


derive_with(_by_name)
