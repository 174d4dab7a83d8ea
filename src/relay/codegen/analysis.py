"""Can a vectorized loop become vector code, how wide, and what does it reduce?

A value *varies* when it differs from lane to lane: it depends on the loop's variable, or on memory that does.
The loop stays scalar when its control flow varies in ways masks do not cover, or when a store neither moves
with the loop's variable nor is a reduction this module recognises: ``acc[c] = acc[c] op f(v)`` into a small
local buffer. One that is read again after its step (`relay.loop.running`) has its running value in each lane.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from relay.codegen.values import register_bits
from relay.ir.record import record
from relay.ir.types import dtype_bits, is_float
from relay.loop.ir import (
    Alloc,
    BlockProduct,
    Branch,
    Buffer,
    Fail,
    For,
    LetScalar,
    Prefetch,
    Seq,
    Stmt,
    Store,
    Switch,
    Transpose,
)
from relay.loop.running import reduction_step, running_step
from relay.loop.target import Target
from relay.loop.walk import expressions, statements
from relay.te.scalar import Axis, BinaryOp, Compare, Const, Load, Scalar, Select, Size, children, walk

LOCAL: frozenset[str] = frozenset({"register", "stack"})
# Accumulators of a reduction that waits for the result of its last step: enough to fill the pipeline of two units.
_CHAINS = 4
_MAX_ACCUMULATED = 64


@record(slots=True)
class VectorPlan:
    """``lanes`` per step; ``reductions`` into which buffer by which operation, and ``running`` ones; ``chains`` of independent
    accumulators.

    ``private`` buffers are allocated in the body and hold one element per lane. ``tiles`` are register buffers of the
    surroundings indexed by the loop's variable: the loop is expanded, so that their indices are constants. ``masked``: what is left
    of a vector is one under a mask.
    """

    lanes: int
    reductions: dict[Buffer, BinaryOp] = field(default_factory=dict)
    running: dict[Buffer, BinaryOp] = field(default_factory=dict)
    chains: int = 1
    private: set[Buffer] = field(default_factory=set)
    tiles: set[Buffer] = field(default_factory=set)
    masked: bool = False


class _Varying:
    """Which expressions vary, given the variables and buffers that do."""

    def __init__(self, axis: Axis) -> None:
        self.axes = {axis}
        self.buffers: set[Buffer] = set()
        self._memo: dict[int, bool] = {}
        self._seen: set[int] = set()

    def __call__(self, root: Scalar) -> bool:
        memo = self._memo
        known = memo.get(id(root))
        if known is not None:
            return known
        for node in walk(root, self._seen):
            found = (isinstance(node, Load) and node.source in self.buffers) or (
                isinstance(node, Axis) and node in self.axes
            )
            for operand in children(node):
                found = found or memo[id(operand)]
            memo[id(node)] = found
        return memo[id(root)]


def vector_plan(loop: For, target: Target) -> VectorPlan | None:
    """How to run a vectorized loop in vectors; None: it has to run element by element."""
    varies = _Varying(loop.var)
    plan = VectorPlan(1, running=_running(loop.body))
    varies.buffers.update(plan.running)
    stored: dict[Buffer, list[Store]] = {}
    bits = 8
    for stmt in statements(loop.body):
        match stmt:
            case For():
                if stmt.kind == "vectorized" or varies(stmt.extent):
                    return None
            case Switch():
                if varies(stmt.value):
                    return None
            case Transpose() | BlockProduct():
                return None
            case Alloc():
                if stmt.buffer.scope not in LOCAL:
                    return None
                plan.private.add(stmt.buffer)
                varies.buffers.add(stmt.buffer)
            case LetScalar():
                if varies(stmt.value):
                    varies.axes.add(stmt.var)
                bits = max(bits, _widest(stmt.value, varies))
            case Branch():
                bits = max(bits, _widest(stmt.cond, varies))
            case Store():
                bits = max(bits, register_bits(stmt.buffer.dtype), _widest(stmt.value, varies))
                moves = any(varies(i) for i in stmt.indices)
                if stmt.buffer in plan.private:
                    if moves:
                        return None
                elif moves:
                    if stmt.buffer.scope == "register":
                        plan.tiles.add(stmt.buffer)
                elif stmt.buffer not in plan.running:
                    stored.setdefault(stmt.buffer, []).append(stmt)
            case Seq() | Fail() | Prefetch():
                pass
    for buffer, stores in stored.items():
        op = _reduction(loop.body, buffer, stores)
        if op is None:
            return None
        plan.reductions[buffer] = op
    seen: set[int] = set()
    values = (root for stmt in statements(loop.body) for root in expressions(stmt))
    loads = [n for root in values for n in walk(root, seen) if isinstance(n, Load)]
    for load in loads:
        if isinstance(load.source, Buffer) and load.source.scope in LOCAL and any(varies(i) for i in load.indices):
            if load.source in plan.private:
                return None
            if load.source.scope == "register" and load.source not in varies.buffers:
                plan.tiles.add(load.source)
    if plan.reductions:
        slow = any(is_float(buffer.dtype) or op == "mul" for buffer, op in plan.reductions.items())
        # Elements accumulated side by side are chains of their own.
        beside = sum(len({_constants(s) for s in stored[buffer]}) for buffer in plan.reductions)
        plan.chains = max(1, -(-(_CHAINS if slow else 2) // beside))
    if plan.running:
        plan.chains = 1
    plan.masked = covers = target.masked
    if target.masked and not target.mask_registers:
        read, written = _memory_touched(loop.body, loads)
        plan.masked = target.masks(min((max(8, dtype_bits(b.dtype)) for b in read | written), default=64))
        covers = plan.masked and bool(read)  # what is moved from registers to memory is taken in powers of two
    plan.lanes = _lanes(loop, bits, target, covers)
    return plan if plan.lanes > 1 else None


def _running(body: Stmt) -> dict[Buffer, BinaryOp]:
    """The buffers of one element that a body reduces into and reads afterwards, and by which operation."""
    steps = _in_order(body)
    out: dict[Buffer, BinaryOp] = {}
    for n, stmt in enumerate(steps):
        if not isinstance(stmt, Store) or stmt.buffer.scope not in LOCAL or any(dim != 1 for dim in stmt.buffer.shape):
            continue
        step, buffer = running_step(stmt), stmt.buffer
        # (Counted, since one store may stand in several places.)
        if step is None or sum(_touches(s, buffer) for s in statements(body)) > 1:
            continue
        if any(_reads(s, buffer) for s in steps[n + 1 :]) and not any(_reads(s, buffer) for s in steps[:n]):
            out[buffer] = step[0]
    return out


def _in_order(body: Stmt) -> list[Stmt]:
    """What every iteration goes through, step by step."""
    if isinstance(body, LetScalar):
        return _in_order(body.body)
    return [step for part in body.stmts for step in _in_order(part)] if isinstance(body, Seq) else [body]


def _touches(stmt: Stmt, buffer: Buffer) -> bool:
    """Whether a statement writes a buffer, or binds what it reads of it."""
    if isinstance(stmt, LetScalar):
        return _loads(stmt.value, buffer)
    return isinstance(stmt, Store) and stmt.buffer is buffer


def _reads(stmt: Stmt, buffer: Buffer) -> bool:
    return any(_loads(root, buffer) for s in statements(stmt) for root in expressions(s))


def _loads(root: Scalar, buffer: Buffer) -> bool:
    return any(isinstance(node, Load) and node.source is buffer for node in walk(root))


def _reduction(body: Stmt, buffer: Buffer, stores: list[Store]) -> BinaryOp | None:
    """The one operation by which all stores to a buffer accumulate, when nothing else reads it."""
    size = 1
    for dim in buffer.shape:
        if not isinstance(dim, int):
            return None
        size *= dim
    if buffer.scope not in LOCAL or size > _MAX_ACCUMULATED:
        return None
    ops: set[BinaryOp] = set()
    for store in stores:
        step = reduction_step(store)
        if step is None or any(_loads(root, buffer) for root in (step[2], *store.indices)):
            return None
        ops.add(step[0])
    mine = {id(s) for s in stores}
    others = [root for s in statements(body) if id(s) not in mine for root in expressions(s)]
    if len(ops) != 1 or any(_loads(root, buffer) for root in others):
        return None
    return ops.pop()


def _constants(store: Store) -> tuple[object, ...]:
    """A store's indices where they are numbers."""
    return tuple(i.value if isinstance(i, Const) else id(i) for i in store.indices)


def _widest(root: Scalar, varies: _Varying) -> int:
    """The widest element that computing an expression keeps in vectors; index arithmetic does not count."""
    bits = 8
    todo, seen = [root], set[int]()
    while todo:
        node = todo.pop()
        if id(node) in seen or not varies(node):
            continue
        seen.add(id(node))
        if isinstance(node, Load):
            bits = max(bits, register_bits(node.dtype))
            continue
        if node.dtype == "int64" and not any(isinstance(n, Load) for n in walk(node)):
            continue
        if not isinstance(node, Const | Size | Compare | Select | Axis):
            bits = max(bits, register_bits(node.dtype))
        todo.extend(children(node))
    return bits


def _memory_touched(body: Stmt, loads: Sequence[Load]) -> tuple[set[Buffer], set[Buffer]]:
    """The buffers in memory that a body reads and writes."""
    read = {n.source for n in loads if isinstance(n.source, Buffer)}
    written = {stmt.buffer for stmt in statements(body) if isinstance(stmt, Store)}
    return {b for b in read if b.scope not in LOCAL}, {b for b in written if b.scope not in LOCAL}


def _lanes(loop: For, bits: int, target: Target, covers: bool) -> int:
    lanes = target.lanes(bits)
    extent = loop.extent
    if isinstance(extent, Const) or (isinstance(extent, Size) and isinstance(extent.dim, int)):
        count = int(extent.value) if isinstance(extent, Const) else extent.dim
        assert isinstance(count, int)
        # A short loop takes the narrowest vector that covers it, or (for that takes a mask) the widest that it fills.
        power = 1 << max(0, (count - 1).bit_length() if covers else count.bit_length() - 1)
        lanes = min(lanes, power)
    return lanes
