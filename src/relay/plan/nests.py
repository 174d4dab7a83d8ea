"""Grouping kept stages into nests that share their outer loops.

A nest has *rows*: axes that every member has and over which members read each other at the same place, so that one
iteration over the rows computes all members for that row, with what they pass on in registers or a cache-sized
temporary. Softmax, norms and pooling are one nest of several reductions over the same rows; a chain of elementwise
stages is a nest whose rows are all its axes. The criterion is the reads alone, never an operator's name. A matrix
product is a nest of its own (with its epilogue, see `matrix`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relay.ir.dim import Dim, known_equal, shape_size
from relay.ir.record import record
from relay.plan.graph import loads
from relay.plan.stages import Kept
from relay.te.index import Indices
from relay.te.scalar import Axis, Scalar
from relay.te.tensor import Scan, Tensor, stage_bodies


@record(slots=True, eq=False)
class Member:
    """A stage in a nest: ``rows`` are its own axes that are the nest's rows, in the nest's order."""

    kept: Kept
    rows: list[Axis]

    @property
    def inner(self) -> list[Axis]:
        """Its other axes, in order."""
        return [a for a in self.kept.stage.axes if a not in self.rows and a.extent != 1]


@record(slots=True, eq=False)
class Nest:
    members: list[Member]
    matrix: bool = False

    @property
    def row_extents(self) -> list[Dim]:
        return [a.extent for a in self.members[0].rows]

    @property
    def dtypes(self) -> list[str]:
        """What its members compute in."""
        return [d for m in self.members for d in m.kept.dtypes]

    def with_rows(self, count: int) -> Nest:
        """The nest with the first ``count`` of its rows, the others inside of them."""
        return Nest([Member(m.kept, m.rows[:count]) for m in self.members])

    @property
    def is_empty(self) -> bool:
        """No member has any element to compute."""
        return all(any(a.extent == 0 for a in m.kept.stage.axes) for m in self.members)

    @property
    def is_elementwise(self) -> bool:
        """No member reduces, scans or has axes besides the rows."""
        return all(not m.kept.is_reduction and not isinstance(m.kept.stage, Scan) and not m.inner for m in self.members)


def group(stages: list[Kept], indices: Indices, is_matrix: Callable[[Kept], bool]) -> list[Nest]:
    """Nests in an order in which each finds what it reads computed."""
    nests: list[Nest] = []
    home: dict[int, int] = {}
    for kept in stages:
        reads = reads_of(kept)
        places = [home[id(t.stage)] for t, _ in reads if id(t.stage) in home]
        latest = max(places, default=-1)
        if is_matrix(kept):
            nests.append(Nest([Member(kept, own_rows(kept))], matrix=True))
        else:
            # Everything read is complete before nest ``latest``; a stage that reads no other may join an alike
            # neighbour.
            target = nests[latest] if latest >= 0 else nests[-1] if nests else None
            rows = None
            if target is not None and target.matrix:
                rows = _epilogue(kept, reads, target, indices) if latest >= 0 else None
            elif target is not None:
                if latest >= 0:
                    rows = _rows_by_reads(kept, reads, target, indices)
                    if rows is not None and target.is_elementwise and _against_memory(kept, rows):
                        rows = None
                    if kept.is_reduction and target.is_elementwise and not target.members[0].rows and own_rows(kept):
                        rows = None  # a number is no row: all the reduction's rows would be given up
                elif _alike(kept, target):
                    rows = list(own_rows(kept))
            if rows is not None and target is not None:
                _restrict(target, rows)
                target.members.append(Member(kept, [r for r in rows if r is not None]))
                home[id(kept.origin)] = nests.index(target)
                continue
            nests.append(Nest([Member(kept, own_rows(kept))]))
        home[id(kept.origin)] = len(nests) - 1
    return _siblings(nests)


def _siblings(nests: list[Nest]) -> list[Nest]:
    """Reductions over as many rows and elements as a later nest's, which nobody reads until then, join that: both go through what
    they share once."""
    out: list[Nest] = []
    for nest in nests:
        read = {id(t.stage) for m in nest.members for t, _ in reads_of(m.kept)}
        for n in reversed(range(len(out))):
            earlier = out[n]
            made = {id(m.kept.origin) for m in earlier.members}
            if not made.isdisjoint(read):
                break
            if _go_together(earlier, nest):
                nest.members[:0] = earlier.members
                del out[n]
                break
            read |= {id(t.stage) for m in earlier.members for t, _ in reads_of(m.kept)}
        out.append(nest)
    return out


def _go_together(earlier: Nest, nest: Nest) -> bool:
    return (
        not (earlier.matrix or nest.matrix or nest.is_elementwise)
        and all(m.kept.is_reduction for m in earlier.members)
        and all(_alike(m.kept, nest) and m.rows == own_rows(m.kept) for m in earlier.members)
    )


def own_rows(kept: Kept) -> list[Axis]:
    """The axes whose elements are independent: all but a scan's own."""
    stage = kept.stage
    skip = stage.axes[stage.dim] if isinstance(stage, Scan) else None
    return [a for a in stage.axes if a.extent != 1 and a is not skip]


def reads_of(kept: Kept) -> list[tuple[Tensor, tuple[Scalar, ...]]]:
    """The tensors that a stage reads, and where."""
    out: list[tuple[Tensor, tuple[Scalar, ...]]] = []
    for body in stage_bodies(kept.stage):
        for load in loads(body):
            assert isinstance(load.source, Tensor)
            out.append((load.source, load.indices))
    return out


def read_at(made: Member, index: Sequence[Scalar], indices: Indices) -> list[Axis | None]:
    """For each row of what is made the axis at which it is read, where that is one of the same extent."""
    position = {a: n for n, a in enumerate(made.kept.stage.axes)}
    axes = [(row, indices.as_axis(indices.poly(index[position[row]]))) for row in made.rows]
    return [a if a is not None and known_equal(a.extent, row.extent) else None for row, a in axes]


def _rows_by_reads(
    kept: Kept, reads: list[tuple[Tensor, tuple[Scalar, ...]]], target: Nest, indices: Indices
) -> list[Axis | None] | None:
    """For each row of the nest the stage's axis that is it (None: no longer a row); None where too few rows would
    remain."""
    members = {id(m.kept.origin): m for m in target.members}
    rows: list[Axis | None] | None = None
    allowed = set(own_rows(kept))
    for tensor, index in reads:
        member = members.get(id(tensor.stage))
        if member is None:
            continue
        found: list[Axis | None] = []
        for axis in read_at(member, index, indices):
            found.append(axis if axis in allowed and axis not in found else None)
        rows = found if rows is None else [a if a is b else None for a, b in zip(rows, found, strict=True)]
    if rows is None:
        return None
    left = shape_size(tuple(a.extent for a in rows if a is not None))
    whole = shape_size(tuple(target.row_extents))
    if left == whole:
        return rows
    # Giving up rows gives up parallelism: only for a nest that keeps a good number of them.
    return None if isinstance(left, int) and left < 8 else rows


def _against_memory(kept: Kept, rows: list[Axis | None]) -> bool:
    """Whether a stage that is computed element by element would run over its elements in another order than they lie in memory:
    an inverse deviation of each channel, applied to images; a transpose, which alone is turned in registers."""
    if isinstance(kept.stage, Scan) or kept.is_reduction:
        return False
    own, left = own_rows(kept), [a for a in rows if a is not None]
    return not set(left).issuperset(own[: len(left)]) or (len(left) == len(own) and left[-1:] != own[-1:])


def _epilogue(
    kept: Kept, reads: list[tuple[Tensor, tuple[Scalar, ...]]], target: Nest, indices: Indices
) -> list[Axis | None] | None:
    """The stage's axes in the order of the product's, if it can be computed on the product's tiles: element by
    element."""
    if isinstance(kept.stage, Scan) or kept.is_reduction:
        return None
    rows = _rows_by_reads(kept, reads, target, indices)
    whole = rows is not None and None not in rows and len(rows) == len(own_rows(kept))
    return rows if whole else None


def _alike(kept: Kept, target: Nest) -> bool:
    """Whether a stage that shares no data with the nest has the same domain as all of it."""
    first = target.members[0]
    if isinstance(kept.stage, Scan) or isinstance(first.kept.stage, Scan):
        return False
    mine, theirs = own_rows(kept), first.rows
    if len(theirs) != len(own_rows(first.kept)) or len(mine) != len(theirs):
        return False
    if any(not known_equal(a.extent, b.extent) for a, b in zip(mine, theirs, strict=True)):
        return False
    over, other = kept.reduce_axes, first.kept.reduce_axes
    return len(over) == len(other) and all(known_equal(a.extent, b.extent) for a, b in zip(over, other, strict=True))


def _restrict(target: Nest, rows: list[Axis | None]) -> None:
    for member in target.members:
        member.rows = [a for a, keep in zip(member.rows, rows, strict=True) if keep is not None]
