"""Panels: the right operand of a product, so many columns at a time.

A panel holds its columns side by side, one row of it for each k, so that a tile reads whole vectors one after the other. It is packed
when the program is compiled, or by the task that uses it, before its tiles or by the first of them as it goes; or it is read where it is,
if the operand lies like that already.
"""

from __future__ import annotations

from collections.abc import Sequence

from relay.ir.dim import Dim, ceil_div, dim_mul, dim_sub
from relay.ir.record import record
from relay.loop.ir import Branch, Buffer, For, Stmt, Store, Transpose
from relay.plan.build import serial, unrolled
from relay.plan.product import size_of, unflatten
from relay.plan.product_nest import ProductNest
from relay.plan.reduction import initial
from relay.plan.space import accesses
from relay.te.scalar import Axis, Const, Load, Scalar, binary, cast, compare, extent_of, minimum, select


@record(frozen=True, slots=True, eq=False)
class Panel:
    """Panel ``number`` as one task reads it: ``across`` columns from ``first`` on. ``packed`` has all panels if they were packed
    before; ``made`` is where the task packs this one (or a block of k of it), or widens what was packed; from ``at`` on, where several are
    packed there before they are read. With neither, it is read where it is."""

    nest: ProductNest
    number: Scalar
    first: Scalar
    across: Scalar
    packed: Buffer | None
    made: Buffer | None
    at: Scalar | None = None
    # Whether tiles leave nothing behind for others: there are none, or they read it where it is, too.
    once: bool = False

    # -- elements

    def element(self, lane: Axis, begin: Scalar) -> Scalar:
        """The element in a lane, at the current k of the block of k that begins at ``begin``."""
        if self.made is not None:
            return Load(self.made, (self._place(lane, begin),), self.made.dtype)
        return self._operand(lane)

    def _operand(self, lane: Axis) -> Scalar:
        """The element in a lane, at the current k, of what was packed before, or else of the operand itself."""
        nest, p, packed = self.nest, self.nest.p, self.packed
        if packed is not None:
            index = (*self._product(), self.number, nest.position_in_depth(), lane)
            if len(packed.shape) == 1:  # made by the kernel itself
                width = p.tile.columns
                many = (size_of(p.form.batch),) * (len(index) - 3)
                sizes = (*many, ceil_div(size_of(p.columns), width), size_of(p.reduced), width)
                index = (nest.flat(index, sizes),)
            return cast(Load(packed, index, packed.dtype), p.form.accumulate)
        return nest.right_element(binary("add", self.first, lane))

    def _product(self) -> tuple[Scalar, ...]:
        return self.nest.p.product_of_batch(self.nest.builder.indices)

    def pair(self, pair: Scalar, half: int, lane: Axis) -> Scalar:
        """One of a pair of neighbours along k, of a panel that was packed in pairs."""
        assert self.packed is not None
        index = (*self._product(), self.number, pair, lane, Const(half, "int64"))
        return cast(Load(self.packed, index, self.packed.dtype), self.nest.p.form.accumulate)

    def where_it_is(self, lane: Axis) -> Scalar:
        """The element in a lane, read from where the task packs it from; 0 past the last column."""
        value = self._operand(lane)
        if self.packed is not None:  # panels have zeros there
            return value
        if isinstance(self.across, Const) and self.across.value == self.nest.p.tile.columns:
            return value
        return select(compare("lt", lane, self.across), value, initial("sum", value.dtype))

    def _place(self, lane: Scalar, begin: Scalar) -> Scalar:
        """Where ``made`` has the element in a lane, at the current k of the block of k that begins at ``begin``."""
        p = self.nest.p
        inner = size_of(p.reduced[1:])
        row = binary("sub", self.nest.position_in_depth(), binary("mul", begin, extent_of(inner)))
        place = self.nest.flat([row, lane], (size_of(p.reduced), p.pitch))
        return place if self.at is None else binary("add", self.at, place)

    # -- packing

    @property
    def as_it_goes(self) -> bool:
        """Whether the first tile of a panel reads the operand where it is, and packs it for the others: copying runs of it
        costs little beside multiply-adds, and memory is waited for while there is arithmetic to do. Packed elements are widened so."""
        if self.made is None or self.at is not None or self.nest.p.form.turned:
            return False
        if self.packed is not None:  # panels are as wide as they are read
            return True
        if not self.nest.masked:
            return False
        along, down = self.nest.right_strides()
        return along == 1 and down is not None

    def kept(self, lane: Axis, begin: Scalar) -> Stmt:
        """Pack the row of the panel at the current k."""
        assert self.made is not None
        store = Store(self.made, (self._place(lane, begin),), self.where_it_is(lane))
        return For(lane, Const(self.nest.p.tile.columns, "int64"), store, "vectorized")

    def packed_first(self, block: tuple[Axis, int] | None) -> list[Stmt]:
        """Pack the panel, or a block of k (its number and length) of it, where that is not left to its first tile. Columns past
        the last are zeros: the products with them are never stored, but what lies in memory by chance may be subnormal, which some
        machines multiply in a hundred times the time."""
        if self.made is None or self.as_it_goes:
            return []
        nest, width, pitch = self.nest, self.nest.p.tile.columns, self.nest.p.pitch
        axes, count, begin = self._block_axes(block)
        lane = Axis("j", width)
        value = nest.right_element(binary("add", self.first, lane))
        place = self._place(lane, begin)
        along, down = nest.right_strides()
        if along is not None and along != 1 and down == 1 and isinstance(value, Load):
            # The operand's rows are along k: blocks of it are turned in registers.
            *outer, inner = axes
            assert isinstance(value.source, Buffer)
            target, source = (
                nest.builder.indices.scalar(self._origin(at, lane, inner)) for at in (place, value.indices[0])
            )
            length = extent_of(inner.extent) if outer or count is None else count
            turn = Transpose(
                self.made, target, Const(pitch, "int64"), value.source, source, extent_of(along), self.across, length
            )
            copy = loops(outer, count, turn)
        elif self._along_depth(value, lane, axes):
            # Element by element: read the operand's rows in order, one column of the panel after the other.
            copy = For(lane, self.across, loops(axes, count, Store(self.made, (place,), value)))
        else:
            copy = loops(axes, count, For(lane, self.across, Store(self.made, (place,), value), "vectorized"))
        clear = self._cleared(loops(axes, count, self._beyond(begin)))
        nest.env = {}
        return [copy, *clear]

    def _beyond(self, begin: Scalar) -> Stmt:
        """Zeros past the last column, at the current k of the block of k that begins at ``begin``."""
        assert self.made is not None
        width = self.nest.p.tile.columns
        lane = Axis("j", width)
        store = Store(
            self.made, (self._place(binary("add", self.across, lane), begin),), initial("sum", self.made.dtype)
        )
        return For(lane, binary("sub", width, self.across), store, "vectorized")

    def _cleared(self, body: Stmt) -> list[Stmt]:
        """The statement if the panel has columns past the last."""
        width = self.nest.p.tile.columns
        if isinstance(self.across, Const):
            return [body] if self.across.value < width else []
        return [Branch(compare("lt", self.across, width), body)]

    def _block_axes(self, block: tuple[Axis, int] | None) -> tuple[list[Axis], Scalar | None, Scalar]:
        """The loops over k or over a block of it (its number and length), to which `env` is bound; the first one's extent where
        it is not its axis's own; and where on the outermost axis the block begins."""
        axes = list(self.nest.p.reduced)
        if block is None:
            return self._parts_of_depth() or axes, None, Const(0, "int64")
        k, *rest = axes
        inner, begin = Axis("k", block[1]), binary("mul", block[0], block[1])
        self.nest.env = {**self.nest.env, k: binary("add", begin, inner)}
        return [inner, *rest], minimum(block[1], binary("sub", extent_of(k.extent), begin)), begin

    def _parts_of_depth(self) -> list[Axis]:
        """Loops over the axes that k is made of, in the place of one over all of it, where sizes are not known and the operand is read by
        quotients of k: the left operand has them behind each other, but the right one would be divided for in each row of a panel. (Known
        numbers of columns that are divided for all the same are gathered, a row at a time, from places that are known.)"""
        nest, before, lane = self.nest, self.nest.env, Axis("j", self.nest.p.tile.columns)
        p, indices = nest.p, nest.builder.indices
        depth, columns = size_of(p.reduced), size_of(p.columns)
        original = [a for a in p.form.reduced if a.extent != 1]
        if (isinstance(depth, int) and isinstance(columns, int)) or len(original) <= len(p.reduced):
            return []

        def divisors() -> list[Dim]:
            value = nest.right_element(binary("add", self.first, lane))
            places = [indices.poly(value.indices[0])] if isinstance(value, Load) else []
            return [by for place in places for _, by in indices.divisions(place)]

        together = divisors()
        parts = [Axis(a.name, a.extent) for a in original]
        nest.env = {**before, **unflatten(p.reduced, nest.flat(parts, tuple(a.extent for a in parts)))}
        apart = divisors()
        if len(apart) < len(together) and (not apart or not isinstance(columns, int)):
            return parts
        nest.env = before
        return []

    def _origin(self, place: Scalar, *axes: Axis) -> Dim:
        """A place when these axes are 0."""
        indices = self.nest.builder.indices
        at = indices.poly(place)
        for axis in axes:
            stride = indices.coefficient(at, axis)
            assert stride is not None
            at = dim_sub(at, dim_mul(indices.axis(axis), stride))
        return at

    def _along_depth(self, value: Scalar, lane: Axis, axes: Sequence[Axis]) -> bool:
        """Whether neighbours in memory are neighbours along k, and not along the columns."""
        indices = self.nest.builder.indices
        if not axes:
            return False
        found, length = accesses(indices, [value], []), axes[-1].extent
        short = isinstance(length, int) and length < self.nest.builder.lanes([value.dtype])

        def along(place: Dim) -> bool:
            step = indices.coefficient(place, lane)
            # Columns without one step (those of several lines) may be runs that are longer than a few neighbours along k.
            return indices.coefficient(place, axes[-1]) == 1 and step != 1 and not (step is None and short)

        return any(along(q) for q in found.polys)


def is_in_place(nest: ProductNest) -> bool:
    """Whether a panel can be read where it is: rows of it as wide as the tile, one after the other."""
    along, down = nest.right_strides()
    whole = size_of(nest.p.columns) == nest.p.tile.columns
    return whole and along == 1 and down is not None and nest.right_is_read


def loops(axes: Sequence[Axis], extent: Scalar | None, body: Stmt, times: int = 1) -> Stmt:
    """Loops over axes; the extent of the first, where it is not its own. The last does ``times`` iterations in one."""
    if times > 1 and axes and axes[-1].extent != 1:
        last = extent_of(axes[-1].extent) if extent is None or len(axes) > 1 else extent
        inner = unrolled(axes[-1], last, times, body)
        if len(axes) == 1:
            return inner
        return loops(axes[:-1], extent, inner)
    if extent is None or not axes:
        return serial(axes, body)
    return For(axes[0], extent, serial(axes[1:], body))
