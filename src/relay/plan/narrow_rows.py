"""Rows that are too short for lanes, or whose steps wait for one another, turned so that lanes run across them.

A softmax over ten classes leaves lanes without work, ends every reduction in the middle of a vector and waits for it; many such rows
side by side have none of that, but their elements lie apart. So a block of rows is turned on the stack first, columns becoming lines (by
squares in registers, `Transpose`), every member of the nest runs over lines, a lane to each row, and what the nest makes is turned back.
A scan that does not run in vectors (`Emitter.runs`: a product of floats, a recurrence of one's own) goes through long rows so as well.
Rows of unknown length are turned where they turn out to be short (`NarrowRows.too_long`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from relay.ir.dim import Dim, dim_add, dim_mul, dim_sub, known_equal, shape_size
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import Branch, Buffer, Stmt, Store, Transpose
from relay.loop.target import Target
from relay.plan.build import STACK_BYTES, Builder, Storage, serial, temporary, total_cost, vectorized
from relay.plan.expand import cost
from relay.plan.graph import loads, tensor_key
from relay.plan.reduction import initial
from relay.plan.row_members import Emitter
from relay.plan.row_parts import LANE_BLOCK, Lanes, MemberPlan, finds_position, frame_of, lane_blocks
from relay.te.scalar import Axis, Const, Load, Reduce, Scalar, binary, compare, extent_of, minimum, walk
from relay.te.tensor import Scan, Tensor, stage_bodies

# Longer rows are not looked at (the second: where the steps of a scan wait for one another); so few elements apart, lanes are loaded and
# stored as fast as neighbours, or loaded where masks take vector registers.
_LONGEST, _LONGEST_SCANNED, _NEAR, _NEAR_LOADED = 128, 1 << 14, 4, 2
# Rows of unknown length are turned up to so many elements.
_LONGEST_UNKNOWN = 32
# Clock cycles, as measured on Zen 4: the end of a reduction along a row, and of one for a position; a step of a scan along a row,
# and a vector of one that runs in vectors (`Emitter.runs`); a row that is written with lanes left over and read again (what is written
# under a mask is not forwarded); more for a vector of a search for a position; more for a vector whose accumulator lies in memory.
_END, _END_OF_SEARCH, _SCANNED, _RUNNING, _KEPT, _SEARCHED, _LINE = 10, 22, 4, 12, 25, 12, 2
# Turning a vector of elements, and turning it back.
_TURNED, _TURNED_BACK = 5.5, 8

Key = tuple[int, int]


@record(slots=True, eq=False)
class Rows:
    """An operand's rows of ``width`` elements each, which tensors (``keys``) are read from or written to with these strides inside a row;
    row 0 begins at ``start``."""

    buffer: Buffer
    width: Dim
    start: Dim
    read: bool
    written: bool
    keys: dict[Key, tuple[int, ...]]


@record(frozen=True, slots=True, eq=False)
class NarrowRows:
    """The operands of a nest to turn, and how many rows at a time. ``unknown``: the length of rows that nobody knows, which is
    ``most`` then at most."""

    operands: tuple[Rows, ...]
    block: int
    # Lanes of a vector, where everything that is read is turned.
    vector: int | None
    unknown: Dim | None
    most: int

    @property
    def too_long(self) -> Scalar | None:
        """Whether rows of unknown length turn out to be longer than that; None where it is known."""
        return None if self.unknown is None else compare("gt", extent_of(self.unknown), self.most)

    def across(self, axis: Axis) -> tuple[Lanes, list[Axis], Scalar]:
        """Lanes across blocks of the rows, the loop over blocks, and the axis in terms of both."""
        lanes, blocks, position = lane_blocks(axis, self.block)
        whole = self.vector is not None and lanes.size % self.vector == 0
        return replace(lanes, vector=self.vector if whole else None), blocks, position

    def turned(self, builder: Builder, lanes: Lanes, first: Scalar) -> tuple[list[Buffer], list[Stmt], list[Stmt]]:
        """Memory for the rows from number ``first`` on, a line for each column, which from now on is the operands' own, and what fills
        it before and brings it back after."""
        zero, offset, step = Const(0, "int64"), builder.indices.poly(lanes.variable), Const(lanes.size, "int64")
        buffers: list[Buffer] = []
        before: list[Stmt] = []
        after: list[Stmt] = []
        for rows in self.operands:
            whole = rows.buffer
            count = rows.width if isinstance(rows.width, int) else self.most
            lines = temporary(builder.fresh(f"{whole.name}_lines"), count * lanes.size, whole.dtype)
            buffers.append(lines)
            for key, strides in rows.keys.items():
                builder.storage[key] = Storage(lines, tuple(s * lanes.size for s in strides), offset)
            width = extent_of(rows.width)
            at = binary("add", builder.indices.scalar(rows.start), binary("mul", first, width))
            if rows.written:
                after.append(Transpose(whole, at, width, lines, zero, step, width, lanes.count))
            else:
                before += self._cleared(lines, rows.width, lanes)
                before.append(Transpose(lines, zero, step, whole, at, width, lanes.count, width))
        return buffers, before, after

    def _cleared(self, lines: Buffer, width: Dim, lanes: Lanes) -> list[Stmt]:
        """Zeros in the last vector of each line of a block that is not full: what is there by chance may be subnormal."""
        if lanes.vector is None or isinstance(lanes.count, Const):
            return []
        line, lane = Axis("line", width), Axis("lane", lanes.vector)
        last = binary("mul", binary("floordiv", lanes.count, lanes.vector), lanes.vector)
        last = minimum(last, lanes.size - lanes.vector)  # it is, where the block is not full
        place = binary("add", binary("add", binary("mul", line, lanes.size), last), lane)
        clear = vectorized(lane, Const(lanes.vector, "int64"), Store(lines, (place,), initial("sum", lines.dtype)))
        return [Branch(compare("lt", lanes.count, lanes.size), serial([line], clear))]


def narrow_rows(
    emitter: Emitter,
    plans: Sequence[MemberPlan],
    rows: Sequence[Axis],
    temporaries: Sequence[Buffer],
    lanes: int,
    matrices: bool = False,
) -> NarrowRows | None:
    """What to turn so that lanes run across the last of the nest's rows, or None: rows are too long or few, are read otherwise than each as
    a whole, or lie so that nothing has to be turned. ``matrices``: rows are, and have nothing for lanes along them."""
    last = rows[-1] if rows else None
    if last is None or (isinstance(last.extent, int) and last.extent < lanes):
        return None
    mine = {id(t) for t in temporaries}
    waits = any(isinstance(p.member.kept.stage, Scan) and not emitter.runs(p) for p in plans)
    longest = _LONGEST_SCANNED if waits else _LONGEST
    found: dict[int, Rows] = {}
    for key, where, index, inner, written in accessed(emitter, plans):
        if id(where.buffer) in mine:
            continue
        access = _row_of(emitter.builder, where, index, rows, inner, longest)
        if access is None:
            return None
        width, start, strides = access
        if written and width not in (0, 1) and shape_size(tuple(a.extent for a in inner)) != width:
            return None  # something else writes the rest of a row
        known = found.setdefault(id(where.buffer), Rows(where.buffer, width, start, False, False, {}))
        if known.width != width or known.start != start or known.keys.setdefault(key, strides) != strides:
            return None
        known.written |= written
        known.read |= not written
    # One element to a row, or the same for all rows: lanes find them as they are.
    operands = tuple(r for r in found.values() if r.width not in (0, 1))
    if all(_are_near(r, emitter.builder.target) for r in operands):
        return None
    if not all(turnable(r.buffer.dtype) for r in operands):
        return None
    unknown = next((r.width for r in operands if not isinstance(r.width, int)), None)
    if unknown is not None and (matrices or not _are_alike(plans, operands, unknown)):
        return None
    if unknown is not None and known_equal(last.extent, unknown):
        return None  # where rows are short, they are few
    if unknown is None and not matrices and not _pays(emitter, plans, operands, lanes):
        return None
    widths = [r.width if isinstance(r.width, int) else _LONGEST_UNKNOWN for r in operands]
    bytes_of_row = sum(w * dtype_bits(r.buffer.dtype) // 8 for w, r in zip(widths, operands, strict=True))
    block = max(lanes, min(LANE_BLOCK, STACK_BYTES // bytes_of_row // lanes * lanes))
    vector = None if any(r.read and r.width in (0, 1) for r in found.values()) else lanes
    return NarrowRows(operands, block, vector, unknown, _LONGEST_UNKNOWN)


def _are_near(rows: Rows, target: Target) -> bool:
    """Whether elements of so short rows are as good as neighbours for lanes across the rows."""
    near = _NEAR if target.mask_registers else 1 if rows.written else _NEAR_LOADED
    return isinstance(rows.width, int) and rows.width <= near


def _are_alike(plans: Sequence[MemberPlan], operands: Sequence[Rows], unknown: Dim) -> bool:
    """Whether rows of unknown length are all as long, and all that goes on in one is a loop over its elements, some of which are reduced;
    and whether that is in steps: a sum alone gains too little for code of its own."""
    inside = [[*p.inner, *p.reduced] for p in plans]
    if any(isinstance(p.member.kept.stage, Scan) for p in plans) or any(len(axes) > 1 for axes in inside):
        return False
    if not any(p.reduced for p in plans) or (len(plans) == 1 and not finds_position(plans[0])):
        return False
    sizes = [*(r.width for r in operands), *(a.extent for axes in inside for a in axes)]
    return all(isinstance(size, int) or known_equal(size, unknown) for size in sizes)


def _pays(emitter: Emitter, plans: Sequence[MemberPlan], operands: Sequence[Rows], lanes: int) -> bool:
    """Whether a row of known length takes less time turned than with lanes along it."""
    along = across = 0.0
    for number, plan in enumerate(plans):
        stage, reduces = plan.member.kept.stage, plan.member.kept.is_reduction
        size = shape_size(tuple(a.extent for a in (*plan.inner, *plan.reduced)))
        if not isinstance(size, int):
            return False
        each, end = sum(max(1, cost(b.body if isinstance(b, Reduce) else b)) for b in stage_bodies(stage)), _END
        if finds_position(plan):
            each, end = each + _SEARCHED, _END_OF_SEARCH
        across += size / lanes * (each + _LINE)
        if isinstance(stage, Scan) and not emitter.runs(plan):
            along += size * max(_SCANNED, each)  # no step begins before the one before it ends
        else:
            each += _RUNNING if isinstance(stage, Scan) else 0
            along += -(-size // lanes) * each + (end if reduces else 0)
        if plan.inner and size % lanes and any(_reads(later, plan) for later in plans[number + 1 :]):
            along += _KEPT
    widths = [(r.width, r.written) for r in operands if isinstance(r.width, int)]
    turned = sum(width * (_TURNED_BACK if written else _TURNED) for width, written in widths)
    return across + turned / lanes < along


def _reads(plan: MemberPlan, other: MemberPlan) -> bool:
    own = id(other.member.kept.origin)
    return any(tensor_key(n.source)[0] == own for b in stage_bodies(plan.member.kept.stage) for n in loads(b))  # type: ignore[arg-type]


def turnable(dtype: str) -> bool:
    """Whether elements of a type are turned in registers: those that lie on the stack as they lie in memory."""
    return dtype_bits(dtype) in (32, 64)


def accessed(
    emitter: Emitter, plans: Sequence[MemberPlan]
) -> Iterator[tuple[Key, Storage, list[Scalar], list[Axis], bool]]:
    """What members read and write: the tensor, its memory, the indices and the loops inside a row."""
    builder = emitter.builder
    for plan in plans:
        frame, inner = frame_of(plan.member, emitter.aliases, emitter.env), [*plan.inner, *plan.reduced]
        stage = plan.member.kept.stage
        for body in stage_bodies(stage):
            for load in loads(body):
                assert isinstance(load.source, Tensor)
                key = tensor_key(load.source)
                yield key, builder.storage[key], builder.evaluate(load.indices, frame), inner, False
        for n in range(len(plan.member.kept.dtypes)):
            key = id(plan.member.kept.origin), n
            yield key, builder.storage[key], builder.evaluate(stage.axes, frame), plan.inner, True


def _row_of(
    builder: Builder, where: Storage, index: Sequence[Scalar], rows: Sequence[Axis], inner: Sequence[Axis], longest: int
) -> tuple[Dim, Dim, tuple[int, ...]] | None:
    """How an access goes over the last of the rows: the elements from one row to the next, where the first row begins, and the strides
    of the axes inside a row (0: an axis that is none). None where rows and what is inside do not come apart."""
    indices, last = builder.indices, rows[-1]
    terms = [dim_mul(indices.poly(i), s) for i, s in zip(index, where.strides, strict=True)]
    whole = total_cost([where.offset, *terms])
    # Which element of its row a lane reads may be what another operand says of that row.
    chosen = [
        any(isinstance(n, Load) for n in walk(i)) and indices.coefficient(term, last) != 0
        for i, term in zip(index, terms, strict=True)
    ]
    told = [term for term, picks in zip(terms, chosen, strict=True) if not picks]
    width = indices.coefficient(total_cost([where.offset, *told]), last)
    if width is None or (isinstance(width, int) and not 0 <= width <= longest):
        return None
    if width in (0, 1):
        return None if any(chosen) else (width, 0, ())
    if not indices.within(whole, where.buffer.shape[0]):
        return None  # what a choice keeps from being read would be turned
    start: Dim = where.offset
    column: Dim = 0
    strides: list[int] = []
    for term, stride, picks in zip(terms, where.strides, chosen, strict=True):
        inside = isinstance(stride, int) and (stride < width if isinstance(width, int) else stride == 1)
        if any(indices.coefficient(term, a) != 0 for a in (rows if inside else inner)) and not (picks and inside):
            return None
        strides.append(stride if inside and isinstance(stride, int) else 0)
        start, column = (start, dim_add(column, term)) if inside else (dim_add(start, term), column)
    start = dim_sub(start, dim_mul(indices.poly(last), width))
    if not indices.within(column, width) or indices.coefficient(start, last) != 0:
        return None
    return width, start, tuple(strides)
