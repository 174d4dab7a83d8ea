"""What the steps of a row nest are made of: its members with their loops, accumulators, lanes across rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from math import gcd

from relay.ir.dim import Dim, ceil_div
from relay.ir.record import record
from relay.loop.ir import Between, Branch, Buffer, For, LetScalar, Seq, Stmt, Store, between
from relay.loop.walk import buffers_used
from relay.plan.build import Builder, Storage, seq, vectorized
from relay.plan.expand import Env
from relay.plan.nests import Member
from relay.te.scalar import (
    Axis,
    Const,
    Load,
    Reduce,
    Scalar,
    binary,
    compare,
    extent_of,
    minimum,
    select,
    transform,
    walk,
)
from relay.te.tensor import stage_bodies

# Steps down columns that are taken beside each other where columns are few (`plan/narrow_columns.py`).
ABREAST, FEW_COLUMNS = 64, 32
# Rows of a block whose lanes run across the rows.
LANE_BLOCK = 256


@record(slots=True, eq=False)
class MemberPlan:
    """A member with its loops: ``inner`` and ``reduced`` axes after normalisation."""

    member: Member
    inner: list[Axis]
    reduced: list[Axis]
    stores: list[Storage] = field(default_factory=list)


@record(slots=True, eq=False)
class Reductions:
    """Accumulators, and what is done with them before the loop, in it, in one after it (``finds``) and at the end."""

    buffers: list[Buffer] = field(default_factory=list)
    starts: list[Stmt] = field(default_factory=list)
    updates: list[Stmt] = field(default_factory=list)
    finds: list[Stmt] = field(default_factory=list)
    ends: list[Stmt] = field(default_factory=list)

    def add(self, other: Reductions) -> None:
        """Another member's, in the same loop."""
        self.buffers += other.buffers
        self.starts += other.starts
        self.updates += other.updates
        self.ends += other.ends


@record(frozen=True, slots=True, eq=False)
class Lanes:
    """Vector lanes across an axis: ``variable`` runs over ``count`` (at most ``size``) elements. Where all that the nest reads has been
    brought into memory of its own, in which every lane of a vector may be read, they come by whole vectors of ``vector`` lanes. ``held``:
    accumulators for all of them are in registers, and the lanes past the last, if there are such, are masked. There are a ``multiple`` of
    so many. ``row``: the axis that they run across, and what others were in terms of it before it was bound to a lane; of ``size`` elements
    at most, they are all of it."""

    variable: Axis
    count: Scalar
    size: int
    vector: int | None = None
    held: bool = False
    multiple: int = 1
    row: tuple[Axis, Env] | None = None

    def each(self, stores: Sequence[Stmt]) -> list[Stmt]:
        """Stores that do not need each other, for every lane. Those to operands, and to what other nests read, have a loop of their own: in
        other memory no lane of a vector is left as it was."""
        if self.vector is None:
            return [self.loop(seq(stores))]
        parts = [[s for s in stores if _touches_others(s) is touches] for touches in (False, True)]
        return [self.loop(seq(part)) for part in parts if part]

    def loop(self, body: Stmt) -> Stmt:
        """The statement for every lane; for those behind the last one, too, where it touches nothing but such memory."""
        if self.held and not (isinstance(self.count, Const) and self.count.value == self.size):
            return _loop_where(self.inside, vectorized(self.variable, Const(self.size, "int64"), body))
        if self.vector is None or _touches_others(body):
            return vectorized(self.variable, self.count, body)
        vectors = binary("floordiv", binary("add", self.count, self.vector - 1), self.vector)
        return vectorized(self.variable, binary("mul", vectors, self.vector), body)

    @property
    def room(self) -> int:
        """How many elements has what is kept of every lane: more than lanes where several steps may be taken beside each other."""
        return self.size if self.row is None or self.held else max(self.size, several_steps(self.row[0].extent))

    @property
    def inside(self) -> Scalar:
        """Whether a lane is one of those that there are."""
        return compare("lt", self.variable, self.count)


def _where(inside: Scalar, stmt: Stmt, lanes: frozenset[Axis]) -> Stmt:
    """What is done for the lanes that are inside: of registers all lanes are read and written, since nobody asks what the others hold, and
    memory is touched for those inside only. What all lanes read alike is read for the first one, which is inside. ``lanes``: the variables
    that are others in each lane."""

    def differs(value: Scalar) -> bool:
        return any(isinstance(n, Axis) and n in lanes for n in walk(value))

    def guarded(value: Scalar) -> Scalar:
        def one(node: Scalar) -> Scalar:
            memory = isinstance(node, Load) and isinstance(node.source, Buffer) and node.source.scope != "register"
            return select(inside, node, Const(0, node.dtype)) if memory and differs(node) else node

        return transform(value, one)

    match stmt:
        case LetScalar():
            own = lanes | {stmt.var} if differs(stmt.value) or _reads_registers(stmt.value) else lanes
            return replace(stmt, value=guarded(stmt.value), body=_where(inside, stmt.body, own))
        case Seq():
            return seq([_where(inside, s, lanes) for s in stmt.stmts])
        case Store() if stmt.buffer.scope == "register":
            return replace(stmt, value=guarded(stmt.value))
        case _:
            return Branch(inside, stmt)


def _reads_registers(value: Scalar) -> bool:
    return any(
        isinstance(n, Load) and isinstance(n.source, Buffer) and n.source.scope == "register" for n in walk(value)
    )


def _loop_where(inside: Scalar, loop: Stmt) -> Stmt:
    if isinstance(loop, LetScalar):
        return replace(loop, body=_loop_where(inside, loop.body))
    assert isinstance(loop, For)
    return replace(loop, body=_where(inside, loop.body, frozenset({loop.var})))


def _touches_others(stmt: Stmt) -> bool:
    return any(b.scope in ("operand", "workspace") for b in buffers_used(stmt))


def several_steps(columns: Dim) -> int:
    """How many elements as many steps have as are taken beside each other; 0 where columns are not few."""
    few = FEW_COLUMNS if not isinstance(columns, int) else columns
    return ABREAST * few if few <= FEW_COLUMNS else 0


def lane_blocks(axis: Axis, most: int = LANE_BLOCK) -> tuple[Lanes, list[Axis], Scalar]:
    """Lanes across blocks of an axis, of at most so many elements: the lanes, the loop over blocks (none for a single block)
    and the axis in terms of both."""
    size = most if not isinstance(axis.extent, int) else min(most, axis.extent)
    lane = Axis("lane", size)
    if size == axis.extent:
        return Lanes(lane, Const(size, "int64"), size, multiple=size), [], lane
    multiple = gcd(size, axis.extent) if isinstance(axis.extent, int) else 1
    block = Axis("block", ceil_div(axis.extent, size))
    start = binary("mul", block, size)
    return (
        Lanes(lane, minimum(size, binary("sub", extent_of(axis.extent), start)), size, multiple=multiple),
        [block],
        binary("add", start, lane),
    )


def held_lanes(axis: Axis, size: int) -> tuple[Lanes, Axis, Scalar]:
    """Lanes across an axis of unknown length, so many at a time, accumulators in registers: the lanes, the loop over blocks and the axis
    in terms of both."""
    lane, block = Axis("lane", size), Axis("block", ceil_div(axis.extent, size))
    start = binary("mul", block, size)
    return Lanes(lane, binary("sub", extent_of(axis.extent), start), size, held=True), block, binary("add", start, lane)


def overlapping(axis: Axis, size: int) -> tuple[Axis, Scalar, tuple[Axis, Scalar]]:
    """Parts of an axis that has so many elements at least, each of so many: what the last of them has in common with the one before is
    made twice, and there is none that is not whole. The loop over parts, where one begins, and what has to be bound in that loop."""
    last = binary("sub", extent_of(axis.extent), size)
    part, start = Axis(axis.name, ceil_div(axis.extent, size)), Between("start", axis.extent, low=0, high=(last,))
    return part, start, between(start, binary("mul", part, size))


def targets(builder: Builder, plan: MemberPlan) -> list[Storage]:
    origin = id(plan.member.kept.origin)
    return [builder.storage[origin, n] for n in range(len(plan.member.kept.dtypes))]


def frame_of(member: Member, aliases: dict[Axis, Axis], env: Env) -> dict[Axis, Scalar]:
    out: dict[Axis, Scalar] = dict(env)
    for own in member.rows:
        row = aliases.get(own, own)
        out[own] = env.get(row, row)
    return out


def finds_position(plan: MemberPlan) -> bool:
    return counted(plan) is not None


def counted(plan: MemberPlan) -> Axis | None:
    """The axis along which a member counts the position that it finds, as its definition has it: its loops may be parts of it."""
    for body in stage_bodies(plan.member.kept.stage):
        if isinstance(body, Reduce) and body.kind in ("argmax", "argmin"):
            return body.axes[0]
    return None


# As many positions as 32 bits tell apart.
MOST_POSITIONS = (1 << 31) - 1


def position_dtype(axis: Axis, result: str) -> str:
    """Of the positions along an axis that become a ``result``: the width of most elements where all of them fit, or those that the result
    can tell, so that as many of them lie in a register."""
    fit = axis.extent <= MOST_POSITIONS if isinstance(axis.extent, int) else result == "int32"
    return "int32" if fit else "int64"
