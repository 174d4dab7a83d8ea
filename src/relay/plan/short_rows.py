"""Nests of small matrices: rows inside of which all is short, so that lanes run across them.

Nothing along a row, or a row of rows, fills a vector there. What is known to be short is made so at once; what may turn out to be, when it
runs (`Short.holds`). Nests of which one reads what another makes of the same rows are one nest then: what they pass on stays with the
lanes, and need not go through memory, where a row's elements lie together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from relay.ir.dim import Dim, known_equal
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.plan.build import Builder
from relay.plan.expand import is_dear
from relay.plan.nests import Member, Nest, read_at, reads_of
from relay.te.index import Indices
from relay.te.scalar import Axis, Load, Scalar, compare, conjunction, extent_of, walk
from relay.te.tensor import Scan, Stage, stage_bodies

# So many elements of an axis are few, and a member has so many inside of a row at most: what it passes on has them for each lane. Where
# lanes are loaded one by one because processors gather no such elements, and little is done with them, fewer are.
FEW, _MOST = 8, 64
_FEW_ONE_BY_ONE, _GATHERED = 4, 32


@record(frozen=True, slots=True, eq=False)
class Short:
    """A nest for lanes across the last of its rows, if the ``sizes`` are few, ``most`` or less, and those of the ``line`` enough for a
    vector. Both are no conditions where they are known."""

    nest: Nest
    sizes: frozenset[Dim]
    line: Dim | None
    lanes: int
    most: int = FEW

    @staticmethod
    def of(builder: Builder, nest: Nest, line: Dim | None = None) -> Short | None:
        """``line``: how long the last of the rows is where loops go through several of them as one. None: something inside is known to be
        long, or rows to be few, or there are steps in order."""
        rows = nest.members[0].rows
        if not rows or any(isinstance(m.kept.stage, Scan) for m in nest.members):
            return None
        inside = [[a.extent for a in (*m.inner, *m.kept.reduce_axes)] for m in nest.members]
        line, lanes = rows[-1].extent if line is None else line, builder.lanes(nest.dtypes)
        if not any(inside) or any(isinstance(size, int) and size > FEW for axes in inside for size in axes):
            return None
        most = max(prod(size if isinstance(size, int) else FEW for size in axes) for axes in inside)
        if most > _MOST or (isinstance(line, int) and line < lanes):
            return None
        sizes = frozenset(size for axes in inside for size in axes if not isinstance(size, int))
        gathered = computes(nest) or min(_read_bits(nest), default=_GATHERED) >= _GATHERED
        few = FEW if gathered else _FEW_ONE_BY_ONE
        if lanes > few and any(known_equal(line, size) for size in sizes):
            return None  # where rows are short, they are few
        return Short(nest, sizes, None if isinstance(line, int) or not sizes else line, lanes, few)

    @property
    def holds(self) -> Scalar:
        """Whether all is short."""
        few = [compare("le", extent_of(size), self.most) for size in sorted(self.sizes, key=str)]
        return conjunction([*few, *([] if self.line is None else [compare("ge", extent_of(self.line), self.lanes)])])

    @property
    def may_hold(self) -> bool:
        """Whether it is worth a way of its own that sizes may turn out so: where all are unknown, or something dear is computed."""
        inside = {a.extent for m in self.nest.members for a in (*m.inner, *m.kept.reduce_axes)}
        return bool(self.sizes) and (self.sizes == inside or computes(self.nest))

    def implies(self, other: Short) -> bool:
        """Whether the other nest is short wherever this one is."""
        return self.sizes >= other.sizes and self.most <= other.most and (other.line is None or self.line == other.line)


def of_small_matrices(builder: Builder, nest: Nest, row: Axis) -> Nest | None:
    """A nest of small matrices of known sizes, for lanes across these: with the last of its rows, where they are less than half a vector,
    inside of the others. None: it is another nest, or rows that were short are part of a longer ``row``, the last one of its loops."""
    rows, lanes = nest.members[0].rows, builder.lanes(nest.dtypes)
    last = len(rows)
    while last > 1 and _is_short(rows[last - 1], lanes):
        last -= 1
    if last < len(rows) and not _is_short(row, lanes):
        return None
    short = Short.of(builder, nest.with_rows(last))
    return short.nest if short is not None and not short.sizes else None


def _is_short(axis: Axis, lanes: int) -> bool:
    """Whether an axis is known to be less than half a vector."""
    return isinstance(axis.extent, int) and 2 * axis.extent < lanes


def _read_bits(nest: Nest) -> list[int]:
    """How many bits the elements that a nest reads have."""
    bodies = [b for m in nest.members for b in stage_bodies(m.kept.stage)]
    return [dtype_bits(n.dtype) for b in bodies for n in walk(b) if isinstance(n, Load)]


def computes(nest: Nest) -> bool:
    """Whether a nest computes something dear of each element."""
    return any(is_computed(m.kept.stage) for m in nest.members)


def is_computed(stage: Stage) -> bool:
    """Whether something dear is computed of each element of a stage."""
    return any(is_dear(n) for b in stage_bodies(stage) for n in walk(b) if n.dtype != "int64")


def runs(builder: Builder, nests: Sequence[Nest], known: bool) -> list[tuple[list[Nest], Short | None]]:
    """Nests in their order, and which of them that follow each other are one where all is short: is ``known`` to be, or may turn out so."""
    out: list[tuple[list[Nest], Short | None]] = []
    for nest in nests:
        if out:
            parts, short = out[-1]
            both = _merged(parts[0] if short is None else short.nest, nest, builder.indices)
            found = None if both is None else Short.of(builder, both)
            if found is not None and bool(found.sizes) != known and computes(found.nest):
                out[-1] = [*parts, nest], found
                continue
        out.append(([nest], None))
    return out


def _merged(first: Nest, second: Nest, indices: Indices) -> Nest | None:
    """Two nests as one, over the rows at which the second reads what the first makes of the same rows; None where there are none, or the
    second reads nothing of the first."""
    if first.matrix or second.matrix or (first.is_elementwise and second.is_elementwise):
        return None
    members = {id(m.kept.origin): m for m in first.members}
    same: list[int | None] | None = None
    for reader in second.members:
        for tensor, index in reads_of(reader.kept):
            if (made := members.get(id(tensor.stage))) is not None:
                number = {row: n for n, row in enumerate(reader.rows)}
                found = [None if a is None else number.get(a) for a in read_at(made, index, indices)]
                same = found if same is None else [a if a == b else None for a, b in zip(same, found, strict=True)]
    if same is None:
        return None
    rows = [(mine, theirs) for mine, theirs in enumerate(same) if theirs is not None]
    if not rows or any(a >= b for (_, a), (_, b) in pairwise(rows)):
        return None
    return Nest(
        [
            *(Member(m.kept, [m.rows[mine] for mine, _ in rows]) for m in first.members),
            *(Member(m.kept, [m.rows[theirs] for _, theirs in rows]) for m in second.members),
        ]
    )
