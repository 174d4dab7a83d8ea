"""Layouts of tensors: an expression with the axes of its tensors split into blocks and in another order.

    nhwc = layout_of("ACDB", "ABCD")        # axis B, the channels, innermost
    blocked = layout_of("ABCD16b", "ABCD")  # of axis B a block of 16 innermost, its other part where the axis was
    laid_out(outputs, {stage: nhwc})

A capital letter is an axis (A the first) or what its blocks leave of it, a number with a small letter a block of so many; every
factor is a choice, and what is computed is the same for all of them. `laid_out` rewrites the stages that it is given a layout for and
all that read them: an element at ``i`` is found at `Layout.place`, an element found at ``p`` is the one at `Layout.index`. What
remains as a division of an index splits the axis that it divides (`division`), so that a blocked tensor is read by blocks.
Source: NeoFlow, section 4.3 (layout transformation).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from types import MappingProxyType

from relay.ir.dim import Dim, dim_floordiv, dim_mod, dim_mul, known_equal
from relay.ir.record import record
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Binary,
    Compare,
    Const,
    Load,
    Reduce,
    Scalar,
    Select,
    binary,
    rebuild,
    substitute,
    transform,
    walk,
    wrap,
)
from relay.te.tensor import Compute, Placeholder, Scan, Stage, Tensor, require, require_equal, stage_bodies, stages

_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_PART = re.compile(r"([A-Z])|(\d+)([a-z])")


@record(frozen=True, slots=True)
class Part:
    """A part of a tensor's axis: a block of ``size`` elements, or (None) what the axis' blocks leave of it."""

    axis: int
    size: Dim | None = None


@record(frozen=True, slots=True)
class Layout:
    """The axes of a tensor as they lie in memory, outermost first. Blocks of one axis stand with the larger steps first. ``letters``:
    what the tensor's axes are called."""

    parts: tuple[Part, ...]
    letters: str = field(default=_LETTERS, compare=False)

    @property
    def rank(self) -> int:
        """How many axes the tensor has, however they are split."""
        return len({p.axis for p in self.parts})

    @property
    def is_plain(self) -> bool:
        """Whether the axes are whole and in order."""
        return all(p.size is None and p.axis == n for n, p in enumerate(self.parts))

    def text(self) -> str:
        """The layout as `layout_of` reads it."""
        names = self.letters
        return "".join(names[p.axis] if p.size is None else f"{p.size}{names[p.axis].lower()}" for p in self.parts)

    def shape(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """The shape in memory of a tensor of a shape. Raises DefinitionError where blocks do not divide their axis."""
        out: list[Dim] = []
        for part in self.parts:
            if part.size is not None:
                out.append(part.size)
                continue
            block = self._block(part.axis)
            outer = dim_floordiv(shape[part.axis], block)
            if block != 1:
                why = f"the size of {self.letters[part.axis]} and its blocks in {self.text()}"
                require_equal(dim_mul(outer, block), shape[part.axis], why)
            out.append(outer)
        return tuple(out)

    def divides(self, shape: Sequence[Dim]) -> bool:
        """Whether the axes of a shape are known to be whole numbers of blocks."""
        return all(dim_mod(shape[p.axis], self._block(p.axis)) == 0 for p in self.parts)

    def whole(self, shape: Sequence[Dim]) -> tuple[Dim, ...]:
        """The shape of a tensor that has a shape in memory. Raises DefinitionError where the latter is not of this layout."""
        require(len(shape) == len(self.parts), f"layout {self.text()} has {len(self.parts)} axes, not {len(shape)}")
        out: list[Dim] = [1] * self.rank
        for part, dim in zip(self.parts, shape, strict=True):
            if part.size is not None:
                why = f"the block of {self.letters[part.axis]} in {self.text()} and its size"
                require_equal(dim, part.size, why)
            out[part.axis] = dim_mul(out[part.axis], dim)
        return tuple(out)

    def place(self, index: Sequence[Scalar]) -> tuple[Scalar, ...]:
        """Where the element at an index is in memory."""
        left, out = list(index), list[Scalar]()
        for part in reversed(self.parts):
            if part.size is None:
                continue
            out.append(binary("mod", left[part.axis], part.size))
            left[part.axis] = binary("floordiv", left[part.axis], part.size)
        return tuple(left[p.axis] if p.size is None else out.pop() for p in self.parts)

    def index(self, place: Sequence[Scalar]) -> tuple[Scalar, ...]:
        """The index of the element that is at a place in memory."""
        out: list[Scalar] = [wrap(0, "int64")] * self.rank
        for part, at in zip(self.parts, place, strict=True):
            if part.size is None:
                out[part.axis] = at
        for part, at in zip(self.parts, place, strict=True):
            if part.size is not None:
                out[part.axis] = binary("add", binary("mul", out[part.axis], part.size), at)
        return tuple(out)

    def axes(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        """Index variables for the parts of index variables."""
        extents = self.shape([a.extent for a in axes])
        return tuple(
            Axis(axes[p.axis].name + ("" if p.size is None else "i"), e)
            for p, e in zip(self.parts, extents, strict=True)
        )

    def _block(self, axis: int) -> Dim:
        block: Dim = 1
        for part in self.parts:
            block = dim_mul(block, part.size if part.axis == axis and part.size is not None else 1)
        return block


def layout_of(text: str, letters: str) -> Layout:
    """The layout that a text says of a tensor whose axes are called by ``letters``. Raises DefinitionError for what is none."""
    found = list(_PART.finditer(text))
    spelled = "".join(m.group() for m in found) == text != ""
    require(spelled, f"{text!r} is no layout; one is written like NCHW or NCHW4c")
    names = [m[1] or m[3].upper() for m in found]
    outer = [m[1] for m in found if m[1]]
    require(len(set(outer)) == len(outer), f"layout {text} has an axis twice")
    require(all(int(m[2]) > 0 for m in found if m[2]), f"layout {text} has an empty block")
    require(set(names) <= set(outer), f"layout {text} has a block of an axis that it does not have")
    require(sorted(outer) == sorted(letters), f"layout {text} is none of a tensor with axes {letters}")
    return Layout(
        tuple(Part(letters.index(n), int(m[2]) if m[2] else None) for n, m in zip(names, found, strict=True)), letters
    )


def axis_letters(rank: int) -> str:
    """What the axes of a tensor are called that has no names for them."""
    return _LETTERS[:rank]


def plain(rank: int) -> Layout:
    """All axes whole and in order."""
    return Layout(tuple(map(Part, range(rank))))


def split_at(layout: Layout, at: int, size: Dim) -> Layout:
    """The layout with its part ``at`` as two, of which the inner one has a size: memory does not change."""
    part = layout.parts[at]
    outer = part if part.size is None else Part(part.axis, dim_floordiv(part.size, size))
    return Layout((*layout.parts[:at], outer, Part(part.axis, size), *layout.parts[at + 1 :]))


def innermost(axis: int, size: Dim | None, rank: int) -> Layout:
    """An axis, or a block of it of a size, behind all others, which keep their order."""
    if size is not None:
        return Layout((*map(Part, range(rank)), Part(axis, size)))
    return Layout((*(Part(n) for n in range(rank) if n != axis), Part(axis)))


def laid_out(
    outputs: Sequence[Tensor], layouts: Mapping[Stage, Layout], sources: Mapping[Stage, Stage] = MappingProxyType({})
) -> dict[Stage, Stage]:
    """The stages of ``outputs`` with these layouts, and all that read such stages, by the stages that they were.

    ``sources`` are stages to take for placeholders with a layout (otherwise new placeholders stand for these). A scan's own axis cannot
    be split.
    """
    new: dict[Stage, Stage] = {}
    for stage in stages(outputs):
        made = sources[stage] if stage in sources else _rewritten(stage, layouts, new)
        if made is not stage:
            new[stage] = made
    return new


def inherited(outputs: Sequence[Tensor], layouts: Mapping[Stage, Layout]) -> dict[Stage, Layout]:
    """The layouts, and those of stages that read a tensor with a layout axis for axis, as a padded image lies as the image does, or
    that are so read by a stage with one, as the sums of a mean do."""
    out = dict(layouts)
    ordered = stages(outputs)
    for stage in ordered:
        if stage in out or not isinstance(stage, Compute) or any(isinstance(b, Reduce) for b in stage.bodies):
            continue
        for node in (n for b in stage.bodies for n in walk(b)):
            if isinstance(node, Load) and isinstance(node.source, Tensor) and node.source.stage in out:
                layout = out[node.source.stage]
                own = [{n for n in walk(i) if isinstance(n, Axis)} for i in node.indices]
                same = len(own) == len(stage.axes) and all(o <= {a} for o, a in zip(own, stage.axes, strict=True))
                if same and layout.divides(stage.shape):
                    out[stage] = layout
                    break
    for stage in reversed(ordered):
        if stage not in out or not isinstance(stage, Compute):
            continue
        for node in (n for b in stage.bodies for n in walk(b)):
            match node:
                case Load(source=Tensor(stage=Compute() as source)) if source not in out:
                    if node.indices == stage.axes and out[stage].divides(source.shape):
                        out[source] = out[stage]
    return out


def _rewritten(stage: Stage, layouts: Mapping[Stage, Layout], new: Mapping[Stage, Stage]) -> Stage:
    layout = layouts.get(stage)
    if isinstance(stage, Placeholder):
        return stage if layout is None else Placeholder(stage.name, layout.shape(stage.shape), stage.dtype)
    reads = {
        n.source.stage
        for b in stage_bodies(stage)
        for n in walk(b)
        if isinstance(n, Load) and isinstance(n.source, Tensor)
    }
    if layout is None and reads.isdisjoint(new.keys()):
        return stage
    axes = stage.axes if layout is None else layout.axes(stage.axes)
    env: dict[Axis, Scalar] = {} if layout is None else dict(zip(stage.axes, layout.index(axes), strict=True))
    indices = Indices()

    def visit(node: Scalar) -> Scalar:
        match node:
            case Load(source=Tensor(stage=read)) if read in new:
                assert isinstance(node.source, Tensor)
                made, layout = new[read], layouts.get(read)
                place = node.indices if layout is None else layout.place(node.indices)
                return Load(Tensor(made, node.source.index, made.shape, node.dtype), place, node.dtype)
            case _:
                return node

    memo: dict[int, Scalar] = {}

    def body(root: Scalar) -> Scalar:
        return by_parts(transform(substitute(root, env), visit, memo), indices)

    match stage:
        case Compute():
            return Compute(stage.name, axes, tuple(body(b) for b in stage.bodies))
        case Scan():
            dim = stage.dim if layout is None else [p.axis for p in layout.parts].index(stage.dim)
            alone = layout is None or sum(p.axis == stage.dim for p in layout.parts) == 1
            require(alone, f"the axis that {stage.name} runs along cannot be split")
            update, init = body(stage.update), body(stage.init)
            return Scan(stage.name, axes, dim, stage.state, init, update, stage.reverse, stage.exclusive)


def by_parts(root: Scalar, indices: Indices) -> Scalar:
    """The expression with its indices in normal form, and the axes of its reduction split where an index divides them."""
    while True:
        root = _normal(root, indices)
        if not isinstance(root, Reduce) or root.kind.startswith("arg"):
            return root
        found = division(indices, index_polynomials(indices, [root.body]), root.axes)
        if found is None:
            return root
        axis, size = found
        at = root.axes.index(axis)
        outer, inner = Axis(axis.name + "o", dim_floordiv(axis.extent, size)), Axis(axis.name + "i", size)
        body = substitute(root.body, {axis: binary("add", binary("mul", outer, size), inner)})
        root = Reduce(root.kind, (*root.axes[:at], outer, inner, *root.axes[at + 1 :]), body, root.dtype)


def _normal(root: Scalar, indices: Indices) -> Scalar:
    """The expression with the indices of its loads in normal form; conditions keep theirs, which others recognise, but for those
    that divide."""

    def visit(node: Scalar) -> Scalar:
        if isinstance(node, Load):
            return rebuild(node, tuple(indices.simplify(i) for i in node.indices))
        if isinstance(node, Compare) and node.a.dtype == "int64" and any(map(_divides, walk(node))):
            return indices.compare(node.op, node.a, node.b)
        if isinstance(node, Select) and isinstance(node.cond, Const):
            return node.a if node.cond.value else node.b
        return node

    return transform(root, visit)


def _divides(node: Scalar) -> bool:
    return isinstance(node, Binary) and node.op in ("floordiv", "mod")


def index_polynomials(indices: Indices, roots: Iterable[Scalar]) -> list[Dim]:
    """The polynomials of all indices that expressions read at."""
    return [indices.poly(i) for r in roots for n in walk(r) if isinstance(n, Load) for i in n.indices]


def division(indices: Indices, polys: Iterable[Dim], axes: Sequence[Axis]) -> tuple[Axis, Dim] | None:
    """An axis that would have to be split for a division in one of the polynomials to be none of indices, and the size of the
    inner part; None where no such division is left."""
    for poly in polys:
        for above, by in indices.divisions(poly):
            for axis in axes:
                step = indices.coefficient(above, axis)
                if not isinstance(step, int) or step <= 0 or dim_mod(by, step) != 0:
                    continue
                size = dim_floordiv(by, step)
                if size == 1 or known_equal(axis.extent, size) or dim_mod(axis.extent, size) != 0:
                    continue
                if isinstance(axis.extent, int) and isinstance(size, int) and axis.extent <= size:
                    continue
                return axis, size
    return None
