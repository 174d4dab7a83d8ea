"""Rows of unknown length whose scans wait, turned strip by strip so that lanes run across the rows.

A recurrence of one's own along a row takes its steps one after the other, and a step waits for the one before it. Many rows side by side
do not wait for each other, but their elements lie apart. Rows whose length is known are turned as a whole (`relay.plan.narrow_rows`); of
others a block of rows is turned a strip of columns at a time, and the states of its scans wait between strips:

    for strips { turn 32 rows of 64 elements; for 64 steps { for 32 lanes { state = update(state, x) } }; turn the results back }
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

from relay.ir.dim import Dim, ceil_div, dim_add, dim_mul, dim_sub, known_equal
from relay.ir.record import record
from relay.loop.ir import Buffer, For, Stmt, Store, Transpose
from relay.plan.build import Builder, Storage, allocate, bound, seq, temporary, total_cost, vectorized
from relay.plan.narrow_rows import Key, accessed, turnable
from relay.plan.parallel import parallel_rows
from relay.plan.row_members import Emitter, where_begun
from relay.plan.row_parts import Lanes, MemberPlan, lane_blocks
from relay.te.scalar import Axis, Const, Load, Scalar, binary, extent_of, minimum
from relay.te.tensor import Scan

# Rows of a block, in vectors, and columns of a strip.
_VECTORS, _COLUMNS = 2, 64


@record(slots=True, eq=False)
class _Turned:
    """An operand's rows: how far apart they are, where the first one begins, whether they are written, and the axes of the tensors that
    lie in them along which memory runs."""

    buffer: Buffer
    apart: Dim
    start: Dim
    written: bool
    keys: dict[Key, int] = field(default_factory=dict)


def strips(
    emitter: Emitter,
    plans: Sequence[MemberPlan],
    rows: Sequence[Axis],
    temporaries: Sequence[Buffer],
    lanes: int,
    work: Dim,
) -> Stmt | None:
    """The nest by strips, for as many of the last of its rows as lanes and more; None for one that is not made so: without a scan
    whose steps wait, with other members than what goes along the rows element by element, or with operands whose rows lie otherwise."""
    scans = [p.member.kept.stage for p in plans if isinstance(p.member.kept.stage, Scan)]
    last = rows[-1] if rows else None
    if last is None or not scans or (isinstance(last.extent, int) and last.extent < lanes):
        return None
    length = plans[0].inner[0].extent if plans[0].inner else 0
    alike = all(len(p.inner) == 1 and not p.reduced and known_equal(p.inner[0].extent, length) for p in plans)
    if not alike or isinstance(length, int) or len({s.reverse for s in scans}) > 1:
        return None
    if all(emitter.runs(p) for p in plans if isinstance(p.member.kept.stage, Scan)):
        return None
    turned = _operands(emitter, plans, rows, temporaries)
    if turned is None or not turned:
        return None
    return _nest(emitter, plans, rows, temporaries, turned, lanes, work)


def _operands(
    emitter: Emitter, plans: Sequence[MemberPlan], rows: Sequence[Axis], temporaries: Sequence[Buffer]
) -> list[_Turned] | None:
    """The operands to turn; None where something is read at another element of its row, or rows do not lie one after the other."""
    mine, last, indices = {id(t) for t in temporaries}, rows[-1], emitter.builder.indices
    made = {(id(p.member.kept.origin), n) for p in plans for n in range(len(p.member.kept.dtypes))}
    found: dict[int, _Turned] = {}
    fixed: set[Key] = set()  # read at one element for all of a row, which only one strip has
    for key, where, index, (inner, *_), written in accessed(emitter, plans):
        polys = [indices.poly(i) for i in index]
        along = [n for n, p in enumerate(polys) if indices.mentions(p, inner)]
        if not along:
            if key in made:
                return None
            fixed.add(key)
            continue
        if len(along) != 1 or indices.as_axis(polys[along[0]]) is not inner:
            return None
        if id(where.buffer) in mine:
            continue
        terms = [dim_mul(p, s) for p, s in zip(polys, where.strides, strict=True)]
        whole = total_cost([where.offset, *terms])
        apart = indices.coefficient(whole, last)
        if where.strides[along[0]] != 1 or apart is None or not indices.within(whole, where.buffer.shape[0]):
            return None
        if apart == 0 and not written and key not in made:
            continue  # the same for all lanes
        start = dim_sub(dim_sub(whole, dim_mul(indices.poly(last), apart)), indices.poly(inner))
        if isinstance(apart, int) or not turnable(where.buffer.dtype) or indices.mentions(start, last):
            return None
        known = found.setdefault(id(where.buffer), _Turned(where.buffer, apart, start, written))
        if known.apart != apart or known.start != start or known.keys.setdefault(key, along[0]) != along[0]:
            return None
        known.written |= written
    if any(key in fixed for operand in found.values() for key in operand.keys):
        return None
    return list(found.values())


def _nest(
    emitter: Emitter,
    plans: Sequence[MemberPlan],
    rows: Sequence[Axis],
    temporaries: Sequence[Buffer],
    turned: Sequence[_Turned],
    vector: int,
    work: Dim,
) -> Stmt:
    builder, last, zero = emitter.builder, rows[-1], Const(0, "int64")
    length = extent_of(plans[0].inner[0].extent)
    lanes, blocks, position = lane_blocks(last, _VECTORS * vector)
    strip, first, columns = (
        Axis(hint, ceil_div(plans[0].inner[0].extent, _COLUMNS)) for hint in ("strip", "first", "columns")
    )
    step, size = Axis("step", _COLUMNS), Const(lanes.size, "int64")
    reverse = any(s.reverse for p in plans if isinstance(s := p.member.kept.stage, Scan))
    number: Scalar = binary("sub", binary("sub", extent_of(strip.extent), 1), strip) if reverse else strip
    bindings = [
        (first, binary("mul", number, _COLUMNS)),
        (columns, minimum(_COLUMNS, binary("sub", length, binary("mul", number, _COLUMNS)))),
    ]
    offset = dim_sub(builder.indices.poly(lanes.variable), dim_mul(builder.indices.poly(first), lanes.size))
    row = binary("mul", blocks[0], size) if blocks else zero
    own, given = _lines(builder, temporaries, plans, turned, lanes, offset)
    reads: list[Stmt] = []
    writes: list[Stmt] = []
    return_to = emitter.env
    for operand, lines in zip(turned, given, strict=True):
        apart = extent_of(operand.apart)
        start = builder.indices.scalar(dim_add(operand.start, builder.indices.poly(first)))
        at = binary("add", start, binary("mul", row, apart))
        if operand.written:
            writes.append(Transpose(operand.buffer, at, apart, lines, zero, size, columns, lanes.count))
        else:
            reads.append(Transpose(lines, zero, size, operand.buffer, at, apart, lanes.count, columns))
    emitter.bind(last, position)
    here = binary("sub", binary("sub", columns, 1), step) if reverse else step
    for plan in plans:
        emitter.bind(plan.inner[0], binary("add", first, here))
    states, starts, body = _steps(emitter, plans, lanes)
    emitter.env = return_to
    steps = For(step, columns, seq([vectorized(lanes.variable, lanes.count, s) for s in body]))
    over = For(strip, extent_of(strip.extent), bound(bindings, seq([*reads, steps, *writes])))
    inside = allocate([*states, *own, *given], seq([*starts, over]))
    return parallel_rows(builder, [*rows[:-1], *blocks], dim_mul(work, lanes.size), inside)


def _lines(
    builder: Builder,
    temporaries: Sequence[Buffer],
    plans: Sequence[MemberPlan],
    turned: Sequence[_Turned],
    lanes: Lanes,
    offset: Dim,
) -> tuple[list[Buffer], list[Buffer]]:
    """Memory for a strip of what only the nest reads, and of each operand: a line for each column."""
    mine = {id(t) for t in temporaries}
    own: list[Buffer] = []
    for plan in plans:
        for n, dtype in enumerate(plan.member.kept.dtypes):
            key = id(plan.member.kept.origin), n
            where = builder.storage[key]
            if id(where.buffer) in mine:
                lines = temporary(builder.fresh(where.buffer.name), _COLUMNS * lanes.size, dtype)
                own.append(lines)
                strides = tuple(lanes.size if s == 1 else 0 for s in where.strides)
                builder.storage[key] = Storage(lines, strides, offset)
    given: list[Buffer] = []
    for operand in turned:
        lines = temporary(builder.fresh(f"{operand.buffer.name}_lines"), _COLUMNS * lanes.size, operand.buffer.dtype)
        given.append(lines)
        for key, along in operand.keys.items():
            count = len(builder.storage[key].strides)
            builder.storage[key] = Storage(lines, tuple(lanes.size if n == along else 0 for n in range(count)), offset)
    return own, given


def _steps(emitter: Emitter, plans: Sequence[MemberPlan], lanes: Lanes) -> tuple[list[Buffer], list[Stmt], list[Stmt]]:
    """The states of scans, what they begin with, and what each member does with the elements at hand."""
    at = (lanes.variable,)
    states: list[Buffer] = []
    starts: list[Stmt] = []
    body: list[Stmt] = []
    for plan in plans:
        stage = plan.member.kept.stage
        if not isinstance(stage, Scan):
            body += [emitter.store(plan, n, v) for n, v in enumerate(emitter.values(plan))]
            continue
        state = Buffer(emitter.builder.fresh("state"), (lanes.size,), stage.state.dtype, "stack")
        now = Load(state, at, state.dtype)
        init, update = emitter.values(plan, {stage.state: now})
        out, advance = emitter.store(plan, 0, now), Store(state, at, update)
        states.append(state)
        start = vectorized(lanes.variable, lanes.count, Store(state, at, init))
        starts.append(where_begun(stage, init, start))
        body += [out, advance] if stage.exclusive else [advance, out]
    return states, starts, body
