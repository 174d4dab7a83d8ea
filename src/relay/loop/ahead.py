"""Rows that are looked up, asked for before they are needed.

    for i < m { vectorized j < 768 { y[i, j] = table[at[i], j] } }
    ->   for i < m { vectorized j < 768 { prefetch table[at[min(i + 6, m - 1)], j]; y[i, j] = table[at[i], j] } }

Where a row is in memory says an element of another operand, so the machine's prefetchers do not know which one comes next; the
program does. Without, a thread waits for the first lines of each row, and finds the others late. What is asked for may be written,
too: the rows that a scatter adds to. Lines of results that are written one after the other are asked for beside them: where
loads already wait for memory, stores that miss fill their queue (4096 rows of 768 from a table of 30,000 take 0.88 of the time on
an Intel Xeon, 0.72 after a pause). The result computes what the kernel does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from dataclasses import field, replace

from relay.ir.dim import Dim, dim_add, dim_bounds, dim_sub
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import Branch, Buffer, For, Kernel, LetScalar, Prefetch, Seq, Stmt, Store, Switch
from relay.loop.pieces import over_vector_loops
from relay.loop.target import Target
from relay.loop.walk import buffers_read, expressions, parts, statements
from relay.loop.workspace import buffer_bytes
from relay.te.index import Indices
from relay.te.scalar import (
    Axis,
    Binary,
    Bits,
    Cast,
    Const,
    Dot,
    Load,
    Scalar,
    Select,
    always_read,
    binary,
    compare,
    extent_of,
    minimum,
    substitute,
    walk,
)  # fmt: skip

# The types of indices and of what decides between them.
_INDEX = frozenset(("int64", "bool"))
# Bytes between what is asked for and what is read, in whole rows: 12 to 24 KB took equally long. And rows of an unknown length.
_AHEAD, _MOST_ROWS, _UNKNOWN_ROWS = 16 << 10, 32, 4
# Bytes of rows that are worth it: of longer ones the machine's prefetchers find all but the beginning.
_SHORTEST, _LONGEST = 64, 32 << 10
# Bytes between a result's line that is asked for and one that is written: of 256 to 3072 (with looked-up rows 8192) all took equally long.
_RESULTS_AHEAD = 1 << 10
# And between an operand's line that is asked for and one that is read: 4 and 16 KB took equally long, 1 KB up to a third longer.
_OPERANDS_AHEAD = 4 << 10
# The same of an operand of which nothing is made but sums, or little else, brought into the first-level cache: there its loads wait for
# the second one. Of 256 to 1024 it was the best or as good as that; 1024 was too far for sums alone (1.5 times as long).
_NEAR_AHEAD = 384


@record(frozen=True, slots=True, eq=False)
class _Scope:
    """What a statement stands in."""

    stmt: Stmt
    parent: _Scope | None


@record(frozen=True, slots=True, eq=False)
class _Row:
    """A row that a vector loop reads or writes: its elements begin at ``index`` where the loop's variable is 0, which the
    iteration of ``over`` decides, by way of the variables bound in between (outermost first)."""

    loop: For
    buffer: Buffer
    index: Scalar
    write: bool
    over: For
    between: tuple[LetScalar, ...]
    count: int


@record(slots=True)
class _Search:
    """Rows that are looked up, by what they are."""

    indices_read: frozenset[Buffer]
    target: Target
    indices: Indices = field(default_factory=Indices)
    found: dict[tuple[int, Buffer, Dim], _Row] = field(default_factory=dict)
    needed: dict[Scalar, tuple[frozenset[Axis], frozenset[Axis]]] = field(default_factory=dict)
    written: dict[int, list[Store]] = field(default_factory=dict)  # by vector loop: what follows one another in memory

    def loop(self, loop: For, scope: _Scope | None) -> None:
        """Look at what is read and written in all iterations of a vector loop."""
        todo: list[Stmt] = [loop.body]
        inside: set[Axis] = set()
        while todo:
            stmt = todo.pop()
            if isinstance(stmt, LetScalar):
                inside.add(stmt.var)
            if isinstance(stmt, LetScalar | Seq):
                todo += parts(stmt)
            elif not isinstance(stmt, Store):
                continue
            if isinstance(stmt, Store):
                self._place(loop, scope, inside, stmt.buffer, stmt.indices, True)
                if self._in_order(loop, inside, stmt):
                    self.written.setdefault(id(loop), []).append(stmt)
            for root in expressions(stmt):
                for load in always_read(root):
                    if isinstance(load.source, Buffer):
                        self._place(loop, scope, inside, load.source, load.indices, False)

    def _in_order(self, loop: For, inside: set[Axis], store: Store) -> bool:
        """Whether neighbours of a vector loop are neighbours in memory, whose place is known before the loop's body."""
        if len(store.indices) != 1 or any(isinstance(n, Axis) and n in inside for n in walk(store.indices[0])):
            return False
        return self.indices.coefficient(self.indices.poly(store.indices[0]), loop.var) == 1

    def _place(
        self, loop: For, scope: _Scope | None, inside: set[Axis], buffer: Buffer, at: tuple[Scalar, ...], write: bool
    ) -> None:
        if buffer.scope != "operand" or len(at) != 1:
            return
        most = dim_bounds(buffer_bytes(buffer))[1]
        if most is not None and most <= self.target.l2_bytes:  # it is there already, or soon will be
            return
        size = loop.extent.value if isinstance(loop.extent, Const) else loop.var.extent
        count = size if isinstance(size, int) else 0
        row_bytes = count * dtype_bits(buffer.dtype) // 8
        if count and not (_SHORTEST <= row_bytes <= _LONGEST and count >= self.target.lanes(dtype_bits(buffer.dtype))):
            return
        if not inside.isdisjoint(self._needed(at[0])[0]):
            return
        found = self._decided_by(at[0], scope)
        if found is None:
            return
        place = self.indices.poly(at[0])
        if self.indices.coefficient(place, loop.var) != 1:
            return
        over, between = found
        key = id(over), buffer, dim_sub(place, self.indices.axis(loop.var))
        known = self.found.get(key)
        if known is None or (known.count and (not count or count > known.count)):
            index = substitute(at[0], {loop.var: Const(0, "int64")})
            self.found[key] = _Row(
                loop, buffer, index, write or (known is not None and known.write), over, between, count
            )
        elif write and not known.write:
            self.found[key] = replace(known, write=True)

    def _decided_by(self, index: Scalar, scope: _Scope | None) -> tuple[For, tuple[LetScalar, ...]] | None:
        """The innermost loop whose iteration decides which row is looked up, and what is bound between it and here; None where
        another iteration's row cannot be found out: what it would read may not be there, or not yet."""
        axes, looked_up = self._needed(index)
        read = bool(looked_up)
        between: list[LetScalar] = []
        while scope is not None and axes:
            stmt, scope = scope.stmt, scope.parent
            if isinstance(stmt, Branch | Switch) and read:
                return None
            if isinstance(stmt, LetScalar) and stmt.var in axes:
                more, through = self._needed(stmt.value)
                read = read or bool(through)
                axes |= more
                looked_up |= more if stmt.var in looked_up else through
                between.append(stmt)
            elif isinstance(stmt, For) and stmt.var in looked_up:
                fits = stmt.kind in ("serial", "parallel") and self._only_indices(index, between)
                return (stmt, tuple(reversed(between))) if fits else None
        return None

    def _needed(self, root: Scalar) -> tuple[frozenset[Axis], frozenset[Axis]]:
        """The variables of an expression, and those of them that decide what it reads."""
        known = self.needed.get(root)
        if known is None:
            nodes = walk(root)
            indices = [i for n in nodes if isinstance(n, Load) for i in n.indices]
            known = self.needed[root] = (
                frozenset(n for n in nodes if isinstance(n, Axis)),
                frozenset(n for i in indices for n in walk(i) if isinstance(n, Axis)),
            )
        return known

    def _only_indices(self, index: Scalar, between: list[LetScalar]) -> bool:
        roots = [index, *(let.value for let in between)]
        return all(n.source in self.indices_read for root in roots for n in walk(root) if isinstance(n, Load))


def results_ahead(stores: Iterable[Store], target: Target) -> list[Prefetch]:
    """What asks for results, one after the other in memory, that the second-level cache may not hold."""
    return [
        _later(store.buffer, store.indices[0], _RESULTS_AHEAD, True)
        for store in stores
        if _may_be_far(store.buffer, target)
    ]


def operands_ahead(body: Stmt, lane: Axis, target: Target, near: bool = False) -> list[Prefetch]:
    """What asks for operands that lie one after the other in memory along a vector loop and that the second-level cache may not hold;
    ``near``: for the first-level one, not so far ahead.

    For loops between whose loads lies so much arithmetic that few lines are waited for at a time. Where stores go past the caches these
    hold what loads need to wait for lines: gelu of 16,384 x 768 takes 0.37 of the time on an Intel Xeon, of 4096 x 768 0.86."""
    indices = Indices()
    inside = {s.var for s in statements(body) if isinstance(s, LetScalar)}
    found: dict[tuple[Buffer, Dim], Prefetch] = {}
    for load in (n for s in statements(body) for root in expressions(s) for n in always_read(root)):
        buffer = load.source
        if not isinstance(buffer, Buffer) or len(load.indices) != 1 or not _may_be_far(buffer, target):
            continue
        if _is_looked_up(load):  # what lies behind it is no row that will be read
            continue
        (at,) = load.indices
        place = indices.poly(at)
        if indices.coefficient(place, lane) == 1 and not any(isinstance(n, Axis) and n in inside for n in walk(at)):
            found.setdefault(
                (buffer, place), _later(buffer, at, _NEAR_AHEAD if near else _OPERANDS_AHEAD, False, 1 if near else 2)
            )
    return list(found.values())


def where_far(loop: For, target: Target, rewrite: Callable[[For], Stmt] = lambda loop: loop) -> Stmt:
    """A vector loop that asks for its operands (`operands_ahead`) where they are more than the second-level cache holds: what it does hold
    is read in the time that asking takes. ``rewrite`` is applied to the loops."""
    asked = operands_ahead(loop.body, loop.var, target, near=not target.outruns_caches)
    roots = [root for s in statements(loop.body) for root in expressions(s)]
    # Under a condition rows that are looked up would not be asked for.
    if not asked or any(isinstance(n, Load) and _is_looked_up(n) for root in roots for n in walk(root)):
        return rewrite(loop)
    far = _are_far(dict.fromkeys(p.buffer for p in asked), target)
    made = rewrite(replace(loop, body=Seq((*asked, loop.body))))
    return made if far is None else Branch(far, made, rewrite(loop))


def _are_far(buffers: Iterable[Buffer], target: Target) -> Scalar | None:
    """Whether buffers are more together than the second-level cache holds; None where they are known to be."""
    total: Dim = 0
    for buffer in buffers:
        total = dim_add(total, buffer_bytes(buffer))
    least = dim_bounds(total)[0]
    if least is not None and least > target.l2_bytes:
        return None
    return compare("lt", Const(target.l2_bytes, "int64"), extent_of(total))


def _is_looked_up(load: Load) -> bool:
    return any(isinstance(n, Load) for index in load.indices for n in walk(index))


def _may_be_far(buffer: Buffer, target: Target) -> bool:
    most = dim_bounds(buffer_bytes(buffer))[1]
    return buffer.scope == "operand" and (most is None or most > target.l2_bytes)


def _later(buffer: Buffer, at: Scalar, bytes_: int, write: bool, level: int = 2) -> Prefetch:
    return Prefetch(buffer, (binary("add", at, bytes_ * 8 // dtype_bits(buffer.dtype)),), write, level)


def _may_look_up(body: Stmt) -> bool:
    """Whether what is read may decide where something lies: whether an index may depend on more than sizes and loop variables."""
    seen: set[int] = set()
    for stmt in statements(body):
        for root in expressions(stmt):
            for node in walk(root, seen):
                kind = type(node)
                if kind is Binary or kind is Axis or kind is Const or node.dtype != "int64":  # most nodes
                    continue
                if kind in (Load, Cast, Bits, Dot):
                    return True
                if kind is Select and any(isinstance(n, Load) or n.dtype not in _INDEX for n in walk(node)):
                    return True
    return False


def asking_ahead(kernel: Kernel, target: Target) -> Kernel:
    """The kernel with looked-up rows asked for ahead; the same object where there are none."""
    if not _may_look_up(kernel.body):
        return kernel
    shared = {kernel.inputs[i] for i, _ in kernel.in_place}
    written = {s.buffer for s in statements(kernel.body) if isinstance(s, Store)}
    search = _Search(frozenset(b for b in kernel.inputs if b not in shared and b not in written), target)
    seen: dict[int, int] = {}
    todo: list[tuple[Stmt, _Scope | None]] = [(kernel.body, None)]
    while todo:
        stmt, scope = todo.pop()
        if isinstance(stmt, For) and stmt.kind == "vectorized":
            seen[id(stmt)] = seen.get(id(stmt), 0) + 1
            search.loop(stmt, scope)
            continue
        inner = _Scope(stmt, scope)
        todo.extend((part, inner) for part in reversed(parts(stmt)))
    rows: dict[int, list[_Row]] = {}
    for row in search.found.values():
        # A statement that stands in two places has two scopes.
        if seen[id(row.loop)] == 1:
            rows.setdefault(id(row.loop), []).append(row)
    if not rows:
        return kernel

    def asking(loop: For) -> Stmt:
        mine = rows.get(id(loop))
        if mine is None:
            return loop
        others = buffers_read(loop) | {row.buffer for row in mine}
        stores = [s for s in search.written.get(id(loop), []) if s.buffer not in others]
        made = _asking(loop, mine, results_ahead(stores, target))
        far = _are_far({row.buffer for row in mine}, target)
        return made if far is None else Branch(far, made, loop)

    return replace(kernel, body=over_vector_loops(kernel.body, asking))


def _asking(loop: For, rows: list[_Row], results: list[Prefetch]) -> Stmt:
    bindings: list[tuple[Axis, Scalar]] = []
    asked: list[Stmt] = [*results]
    for row in rows:
        over = row.over
        distance = _distance([other for other in rows if other.over is over])
        later = Axis("later", over.var.extent)
        bindings.append((later, minimum(binary("add", over.var, distance), binary("sub", over.extent, 1))))
        env: dict[Axis, Scalar] = {over.var: later}
        for let in row.between:
            name = copy(let.var)
            bindings.append((name, substitute(let.value, env)))
            env[let.var] = name
        start = Axis("ahead", 1 << 62)
        bindings.append((start, substitute(row.index, env)))
        asked.append(Prefetch(row.buffer, (binary("add", start, loop.var),), row.write))
    out: Stmt = replace(loop, body=Seq((*asked, loop.body)))
    for axis, value in reversed(bindings):
        out = LetScalar(axis, value, out)
    return out


def _distance(rows: list[_Row]) -> int:
    """How many iterations ahead all rows of one iteration are asked for."""
    if not all(row.count for row in rows):
        return max(1, _UNKNOWN_ROWS // len(rows))
    step = sum(row.count * dtype_bits(row.buffer.dtype) for row in rows) // 8
    return max(1, min(_MOST_ROWS, -(-_AHEAD // step)))
