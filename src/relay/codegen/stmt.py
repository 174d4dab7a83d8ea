"""Statements to instructions: loops in their four kinds, stores, branches, allocations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from relay.codegen.accumulators import Nans, Running, accumulators, combine, padded_size
from relay.codegen.analysis import VectorPlan, vector_plan
from relay.codegen.builder import vec
from relay.codegen.digits import digits_of
from relay.codegen.expr import Expressions
from relay.codegen.frame import Frame
from relay.codegen.matrices import Matrices, Rows
from relay.codegen.memory import Place, fills_line, local_bytes, local_type
from relay.codegen.turning import Block, transpose
from relay.codegen.values import Value, memory_bytes
from relay.codegen.whole_lines import WholeLines
from relay.ir.inequality import is_count
from relay.ir.types import is_float
from relay.loop.errors import LoopError
from relay.loop.ir import (
    LINE_BYTES,
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
from relay.loop.running import reduction_step
from relay.loop.walk import same
from relay.te.scalar import Axis, Load, Select, Size

# Vector iterations that a loop of constant extent is expanded into; loops over register tiles are always expanded.
_EXPAND = 4
_EXPAND_TILES = 64
# What no number of iterations is.
_NEVER = -(1 << 63)

Parallel = Callable[["Statements", For, Value], None]
Allocate = Callable[["Statements", Buffer], Place]


class Statements:
    """Writes statements into a frame. ``parallel`` outlines a parallel loop (inside of another one, too: where that has one iteration,
    threads share out this one); ``allocate`` places worker and workspace buffers."""

    def __init__(self, frame: Frame, parallel: Parallel, allocate: Allocate) -> None:
        self.f = frame
        self.e = Expressions(frame)
        self._parallel = parallel
        self._allocate = allocate
        self.matrices = Matrices(frame)
        self._lines = WholeLines(frame)
        self._slots: dict[tuple[object, ...], str] = {}
        self._plans: dict[int, VectorPlan | None] = {}
        # The float extremes that the vector loop being written reduces, and where each notes the lanes that met nan.
        self._extremes: dict[Buffer, Nans] = {}
        # The running reductions of the vector loop being written.
        self._running: dict[Buffer, Running] = {}
        # Whether the vector loop being written is known to be shorter than a vector.
        self._narrow = False
        # The lanes of the vector being written, where it is the rest of a loop and it is known how many are left.
        self._left = 0
        # Which of the vectors of one turn of the vector loop is being written.
        self._chain = 0

    def run(self, stmt: Stmt) -> None:
        """Write a statement. Chains of bindings and allocations are followed, not recursed into."""
        f = self.f
        while True:
            self.e.forget()
            match stmt:
                case Seq():
                    for part in stmt.stmts:
                        self.run(part)
                    return
                case Store():
                    self._store(stmt)
                    return
                case Transpose():
                    self._transpose(stmt)
                    return
                case BlockProduct():
                    self._block_product(stmt)
                    return
                case Prefetch():
                    self._prefetch(stmt)
                    return
                case LetScalar():
                    f.axes[stmt.var] = self.e.value(stmt.value)
                    stmt = stmt.body
                case Alloc():
                    f.places[stmt.buffer] = self._place(stmt.buffer)
                    stmt = stmt.body
                case For():
                    self._loop(stmt)
                    return
                case Branch():
                    self._branch(stmt)
                    return
                case Switch():
                    self._switch(stmt)
                    return
                case Fail():
                    self._fail(stmt)
                    return
                case _:
                    assert_never(stmt)

    # -- stores and allocations

    def _store(self, store: Store) -> None:
        f = self.f
        place = f.places.get(store.buffer)
        if place is None:
            raise LoopError(f"the buffer {store.buffer.name} is written outside of its allocation")
        if f.lanes > 1 and store.buffer in self._extremes:
            self._extreme(store, place, self._extremes[store.buffer])
            return
        if f.lanes > 1 and store.buffer in self._running:
            step = reduction_step(store)
            assert step is not None
            self._running[store.buffer].advance(f, self.e.value(step[2]))
            return
        value = self.e.paired(store) or self.e.contracted(store) or self.e.value(store.value)
        offset = f.memory.offset(place, [self.e.value(i) for i in store.indices])
        # A whole vector of local memory is not loaded to be stored again where it reaches beyond what is written: part of it may just have
        # been written as another row, and would be waited for. Nor is a register merged with what nobody reads.
        mask = "" if self._left and not f.guarded and fills_line(place, offset, self._left) else f.mask
        if not mask and f.lanes > 1 and _keeps(store):
            value = f.memory.masked.chosen(value)
        f.memory.store(place, offset, value, mask, f.guarded or (self._narrow and bool(mask)))

    def _extreme(self, store: Store, place: Place, nans: Nans) -> None:
        """One step of a float extreme in vectors. A nan is not kept in the accumulator but noted beside it: that takes half
        the instructions, and leaves a chain from step to step of one."""
        f, step = self.f, reduction_step(store)
        assert step is not None
        op, _, other = step
        element = f.arith.spread(self.e.value(other), f.lanes)
        best = f.memory.load(place, f.arith.index(0), f.lanes, f.mask, f.guarded)
        f.memory.store(place, f.arith.index(0), f.arith.extreme(op, element, best), f.mask, f.guarded)
        nans.note(f, element)

    def _transpose(self, stmt: Transpose) -> None:
        f = self.f
        target, source = f.places.get(stmt.target), f.places.get(stmt.source)
        if target is None or source is None:
            raise LoopError(f"{stmt.source.name} or {stmt.target.name} is transposed outside of its allocation")
        to, pitch, at, stride, rows, columns = (
            self.e.value(s) for s in (stmt.to, stmt.pitch, stmt.at, stmt.stride, stmt.rows, stmt.columns)
        )
        transpose(f, Block(target, to, pitch), Block(source, at, stride), rows, columns)

    def _block_product(self, stmt: BlockProduct) -> None:
        f = self.f
        target, left, right = (f.places.get(buffer) for buffer in (stmt.target, stmt.left, stmt.right))
        if target is None or left is None or right is None:
            raise LoopError(f"the product in {stmt.target.name} stands outside of an allocation")
        to, at, stride, rows, *rest = (self.e.value(s) for s in stmt.measures)
        panel, ahead = rest[: len(stmt.panel)], rest[len(stmt.panel) :]
        begin = f.memory.offset(right, [*panel, *[f.arith.index(0)] * 3])
        self.matrices.multiply(
            Rows(target, to, f.arith.index(stmt.columns)), Rows(left, at, stride), right, begin, rows,
            stmt.columns, stmt.depth, (ahead[0], ahead[1]) if ahead else None,
        )  # fmt: skip

    def _prefetch(self, stmt: Prefetch) -> None:
        f = self.f
        place = f.places.get(stmt.buffer)
        if place is None:
            raise LoopError(f"the buffer {stmt.buffer.name} is prefetched outside of its allocation")
        offset = f.memory.offset(place, [self.e.value(i) for i in stmt.indices])
        if offset.is_ramp and offset.stride == 1 and self._chain * f.lanes * memory_bytes(place.dtype) % LINE_BYTES:
            return  # the vector before is in the same line
        if offset.is_uniform or offset.is_ramp:
            f.memory.prefetch(place, offset, stmt.write, stmt.level)

    def _place(self, buffer: Buffer) -> Place:
        if buffer.scope not in ("register", "stack"):
            if buffer.scope == "operand":
                raise LoopError(f"the operand {buffer.name} is allocated in the kernel's body")
            return self._allocate(self, buffer)
        shape: list[int] = []
        for dim in buffer.shape:
            if not isinstance(dim, int):
                raise LoopError(f"the {buffer.scope} buffer {buffer.name} has the size {dim}: it must be a number")
            shape.append(dim)
        size = local_bytes(buffer.dtype)
        whole = max(1, self.f.target.vector_bits // 8 // size)
        elements = shape[-1] if shape else 1
        if shape and shape[-1] > 1:
            shape[-1] = -(-shape[-1] // whole) * whole
        count = 1
        for dim in shape:
            count *= dim
        lanes = self.f.lanes
        if count > 1 and lanes == 1:
            # The last vector may begin at any element: of a loop that is cut, or that writes behind something.
            count += whole - 1
        count = max(count, 1) * lanes
        align = 64 if count * size >= 64 else 16
        pointer = self._slot((buffer, lanes), f"[{count} x {local_type(buffer.dtype)}]", align)
        strides = self.f.strides(tuple(shape))
        line = (elements, shape[-1]) if shape and lanes == 1 else (0, 0)
        return Place(pointer, strides, buffer.dtype, align, local=True, private=lanes, room=count, line=line)

    def _slot(self, key: tuple[object, ...], type_: str, align: int = 64) -> str:
        """A stack slot; the same one each time code for the same allocation is written again."""
        if key not in self._slots:
            self._slots[key] = self.f.builder.alloca(type_, align)
        return self._slots[key]

    # -- control

    def _fail(self, fail: Fail) -> None:
        f, b = self.f, self.f.builder
        after = b.name("alive")
        if f.mask:
            failing = b.name("fail")
            b.branch(f.arith.any_lane(f.mask, f.lanes), failing, after)
            b.start(failing)
        b.leave(f"i32 {fail.code}")
        b.start(after)

    def _branch(self, stmt: Branch) -> None:
        b = self.f.builder
        cond = self.e.value(stmt.cond)
        if cond.const is not None:
            chosen = stmt.then if cond.const else stmt.orelse
            if chosen is not None:
                self.run(chosen)
            return
        if not cond.is_uniform:
            self._masked_branch(stmt, cond.text)
            return
        then, join = b.name("then"), b.name("join")
        other = b.name("else") if stmt.orelse is not None else join
        b.branch(cond.text, then, other)
        with b.scope():
            b.start(then)
            self.run(stmt.then)
            b.jump(join)
        if stmt.orelse is not None:
            with b.scope():
                b.start(other)
                self.run(stmt.orelse)
                b.jump(join)
        b.start(join, dominated=True)

    def _masked_branch(self, stmt: Branch, cond: str) -> None:
        f, b = self.f, self.f.builder
        masks, outer, outer_guarded = vec("i1", f.lanes), f.mask, f.guarded
        for part, positive in ((stmt.then, True), (stmt.orelse, False)):
            if part is None:
                continue
            mine = cond if positive else b.emit(f"xor {masks} {cond}, splat (i1 true)")
            f.mask = b.emit(f"and {masks} {outer}, {mine}") if outer else mine
            f.guarded = True
            self.run(part)
            f.mask, f.guarded = outer, outer_guarded

    def _switch(self, stmt: Switch) -> None:
        b = self.f.builder
        value = self.e.value(stmt.value)
        if isinstance(value.const, int):
            if 0 <= value.const < len(stmt.cases):
                self.run(stmt.cases[value.const])
            return
        join = b.name("join")
        labels = [b.name("case") for _ in stmt.cases]
        table = " ".join(f"i64 {n}, label %{label}" for n, label in enumerate(labels))
        wide = self.f.convert.cast(value, "int64")
        b.do(f"switch i64 {wide.text}, label %{join} [ {table} ]")
        for label, case in zip(labels, stmt.cases, strict=True):
            with b.scope():
                b.start(label)
                self.run(case)
                b.jump(join)
        b.start(join, dominated=True)

    # -- loops

    def _loop(self, loop: For) -> None:
        f = self.f
        extent = self.e.value(loop.extent)
        count = extent.const
        if count is not None and int(count) <= 0:
            return
        if loop.kind == "parallel" and f.lanes == 1 and count != 1:
            self._parallel(self, loop, extent)
            return
        if loop.kind == "vectorized" and f.lanes == 1:
            if id(loop) not in self._plans:
                self._plans[id(loop)] = vector_plan(loop, f.target)
            plan = self._plans[id(loop)]
            if plan is not None:
                self._vectors(loop, extent, plan)
                return
        if loop.kind == "unrolled":
            if not isinstance(count, int):
                raise LoopError(f"the unrolled loop over {loop.var.name} has no constant extent")
            for step in range(count):
                self.iterate(loop, f.arith.index(step))
            return
        self.each(loop, f.arith.index(0), extent)

    def each(self, loop: For, begin: Value, end: Value) -> None:
        """The iterations of a loop from ``begin`` to ``end``, one after the other."""
        with self._lines.over(loop, begin, end):
            self._each(loop, begin, end)

    def _each(self, loop: For, begin: Value, end: Value) -> None:
        f = self.f
        found = digits_of(loop) if f.lanes == 1 else None
        if found is None:
            f.counted(begin, end, 1, lambda i: self.iterate(loop, i))
            return
        carried = [axis for digit in found.digits for axis in (digit.quotient, digit.rest)]

        def bind(index: Value, known: Mapping[Axis, Value]) -> None:
            self.e.forget()
            f.axes[loop.var] = index
            for let in found.bindings:
                f.axes[let.var] = known.get(let.var) or self.e.value(let.value)

        bind(begin, {})
        sizes = [self.e.value(digit.size) for digit in found.digits]
        if not all(size.nonneg for size in sizes):
            f.counted(begin, end, 1, lambda i: self.iterate(loop, i))
            return
        # What is divided by nothing is what is left over, and never full.
        nothing = [f.builder.emit(f"icmp eq i64 {size.text}, 0") for size in sizes]
        full = [
            f.builder.emit(f"select i1 {n}, i64 {_NEVER}, i64 {s.text}") for n, s in zip(nothing, sizes, strict=True)
        ]
        number = f.axes[found.number]

        def step(index: Value, texts: Sequence[str]) -> Sequence[str]:
            places = (Value(text, "int64", nonneg=number.nonneg, placed=number.placed) for text in texts)
            bind(index, dict(zip(carried, places, strict=True)))
            self.run(found.body)
            return self._following(texts, full)

        f.carrying(begin, end, 1, [f.axes[axis].text for axis in carried], step)

    def _following(self, texts: Sequence[str], sizes: Sequence[str]) -> list[str]:
        """Quotients and rests of the next iteration."""
        emit = self.f.builder.emit
        out: list[str] = []
        anew = ""
        for quotient, rest, size in zip(texts[::2], texts[1::2], sizes, strict=True):
            more = emit(f"add nsw i64 {rest}, 1")
            full = emit(f"icmp eq i64 {more}, {size}")
            grown = emit(f"add nsw i64 {quotient}, {emit(f'zext i1 {full} to i64')}")
            left = emit(f"select i1 {full}, i64 0, i64 {more}")
            if anew:
                grown, left = (emit(f"select i1 {anew}, i64 0, i64 {text}") for text in (grown, left))
            out += (grown, left)
            anew = emit(f"or i1 {anew}, {full}") if anew else full
        return out

    def iterate(self, loop: For, value: Value) -> None:
        """One iteration of a loop's body (or, for a ramp, one for every lane)."""
        self.f.axes[loop.var] = value
        self.run(loop.body)

    # -- vectors

    def _vectors(self, loop: For, extent: Value, plan: VectorPlan) -> None:
        f, a, lanes = self.f, self.f.arith, plan.lanes
        if isinstance(loop.extent, Size) and not is_count(loop.extent.dim):
            # No lanes are left of an axis that ends before it begins: as many as its last bits say would be.
            extent = replace(a.binary("max", extent, a.index(0)), multiple=extent.multiple, nonneg=True)
        count = extent.const if isinstance(extent.const, int) else None
        chains = plan.chains
        if count is not None:
            chains = max(1, min(chains, count // lanes))
        # Whether the last vector is a whole one.
        ends = extent.multiple % lanes == 0
        outside = {buffer: f.places[buffer] for buffer in (*plan.reductions, *plan.running)}
        running = {buffer: Running.begun(f, self._slot, plan, buffer) for buffer in plan.running}
        inside = {buffer: accumulators(f, self._slot, plan, buffer, chains) for buffer in plan.reductions}
        extremes = {
            buffer: Nans.none(f, self._slot((buffer, lanes, "nans"), Nans.type(f, buffer, lanes)), buffer, lanes)
            for buffer, op in plan.reductions.items()
            if op in ("max", "min") and is_float(buffer.dtype) and padded_size(outside[buffer], buffer) == 1
        }

        def vector_step(base: Value, chain: int = 0) -> None:
            for buffer, places in inside.items():
                f.places[buffer] = places[chain]
            f.places.update({buffer: one.here for buffer, one in running.items()})
            f.lanes, self._extremes, self._running, self._chain = lanes, extremes, running, chain
            self._narrow = plan.masked and isinstance(loop.var.extent, int) and loop.var.extent < lanes
            index = replace(base, lanes=lanes, stride=1, const=None)
            self.iterate(loop, index)
            f.lanes, self._extremes, self._running, self._narrow, self._chain = 1, {}, {}, False, 0

        def scalar_step(index: Value) -> None:
            f.places.update(outside)
            self.iterate(loop, index)

        if count is not None and count // lanes <= (_EXPAND_TILES if plan.tiles else _EXPAND):
            for step in range(count // lanes):
                vector_step(a.index(step * lanes), step % chains)
        else:
            whole = extent if ends else a.binary("and", extent, a.index(-lanes))
            whole = replace(whole, multiple=lanes, nonneg=True) if count is None else a.index(count - count % lanes)
            start = a.index(0)
            if chains > 1:
                wide = chains * lanes
                start = (
                    replace(a.binary("and", extent, a.index(-wide)), multiple=wide, nonneg=True)
                    if count is None
                    else a.index(count - count % wide)
                )

                def unrolled(base: Value) -> None:
                    for chain in range(chains):
                        vector_step(a.binary("add", base, a.index(chain * lanes)), chain)

                self.f.counted(a.index(0), start, wide, unrolled)
            self.f.counted(start, whole, lanes, vector_step)
        if plan.masked and plan.tiles and not inside and count is not None and 2 * (count % lanes) == lanes > 2:
            # Half a vector of a register tile: processors that take long vectors in halves multiply it in half the time.
            lanes //= 2
            vector_step(a.index(count - lanes))
        elif plan.masked and not ends:
            self._masked_rest(extent, lanes, vector_step)
        for buffer, places in inside.items():
            combine(f, plan.reductions[buffer], buffer, outside[buffer], places, extremes.get(buffer))
        for buffer, one in running.items():
            one.end(f, outside[buffer])
        f.places.update(outside)
        if not plan.masked and not ends:
            self._scalar_rest(extent, lanes, bool(plan.tiles), scalar_step)

    def _masked_rest(self, extent: Value, lanes: int, step: Callable[[Value], None]) -> None:
        """The iterations after the last whole vector as one under a mask."""
        f, a, b = self.f, self.f.arith, self.f.builder
        if isinstance(extent.const, int):
            rest = extent.const % lanes
            if rest:
                bits = ", ".join(f"i1 {'true' if lane < rest else 'false'}" for lane in range(lanes))
                f.mask, self._left = f"<{bits}>", rest
                step(a.index(extent.const - rest))
                f.mask, self._left = "", 0
            return
        if extent.multiple % lanes == 0:
            return
        left = a.binary("and", extent, a.index(lanes - 1))
        some, done = b.name("rest"), b.name("done")
        b.branch(a.compare("ne", left, a.index(0)).text, some, done)
        b.start(some)
        base = replace(a.binary("sub", extent, left), multiple=lanes, nonneg=True)
        # 32-bit lane numbers compare in half the registers that 64-bit ones take.
        short = vec("i32", lanes)
        number = a.splat("i32", b.emit(f"trunc i64 {left.text} to i32"), lanes)
        lane_numbers = "<" + ", ".join(f"i32 {n}" for n in range(lanes)) + ">"
        f.mask = b.emit(f"icmp ult {short} {lane_numbers}, {number}")
        f.memory.masked.first[f.mask] = left.text
        step(base)
        f.mask = ""
        b.jump(done)
        b.start(done)

    def _scalar_rest(self, extent: Value, lanes: int, expand: bool, step: Callable[[Value], None]) -> None:
        a = self.f.arith
        if isinstance(extent.const, int):
            first = extent.const - extent.const % lanes
            if expand:
                for index in range(first, extent.const):
                    step(a.index(index))
                return
            self.f.counted(a.index(first), extent, 1, step)
            return
        first_value = replace(a.binary("and", extent, a.index(-lanes)), nonneg=True)
        self.f.counted(first_value, extent, 1, step)


def _keeps(store: Store) -> bool:
    """Whether a store chooses between another value and what is at its place."""
    chosen = store.value
    return isinstance(chosen, Select) and any(
        isinstance(side, Load) and side.source is store.buffer and all(map(same, side.indices, store.indices))
        for side in (chosen.a, chosen.b)
    )
