"""Neighbouring lines that go through their loops together (unroll and jam).

Lines that are computed one after the other each begin loops of their own, wait for the ends of their own sums and read again what all of
them read: the row that a state's lines are multiplied by, its decays. Where a few lines go through the same loops at once, what they have
in common is read once, and the lanes of their sums are added up together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from relay.loop.ir import Alloc, Between, Branch, Buffer, For, LetScalar, Prefetch, Seq, Stmt, Store
from relay.loop.walk import rewritten, same, statements, with_values
from relay.plan.expand import is_dear
from relay.te.scalar import Axis, Const, Load, Named, Scalar, Select, children, compare, mentioned, transform, walk

# Registers for what is read of a line itself, and made of it.
_OWN = 4
# Where lines that are written have less than so many operands in common, or are no sums at all, they gain by what it takes to begin
# a line alone: up to so many elements. Longer ones are read and written faster one after the other. So do lines that are summed up and
# have nothing in common, up to so many.
_MANY, _SHORT, _SHORT_SUM = 2, 128, 64


def jammed(
    body: Stmt, variable: Axis, places: Sequence[Scalar], registers: int, longest: int | None = None
) -> tuple[Stmt, list[Scalar]] | None:
    """What ``body`` does for each of several values of its variable, for which it is independent, step by step for all of them, and the
    conditions under which that gains something. ``longest``: that lines are no longer is one of them, and nothing is gained but what lines
    have in common. None where it is nothing that can be done so, where vectors of all do not fit into so many registers, and where nothing
    is gained: lines that are written have nothing in common, or to compute an element takes longer than to read it."""
    jam = _Jam(variable, places, registers)
    try:
        out = jam.together(body)
    except _ApartError:
        return None
    only_sums = jam.sums and all(common is None for _, common in jam.loops)
    if not jam.shares and (longest is not None or not only_sums):
        return None
    where: list[Scalar] = []
    inside = {s.var for s in statements(body) if isinstance(s, For | LetScalar)}
    for extent, common in jam.loops:
        most = longest if jam.shares else _SHORT_SUM
        if common is not None and (common < _MANY or not jam.sums):
            if longest is not None:
                return None
            most = _SHORT
        if most is None:
            continue
        if not mentioned(extent).isdisjoint(inside):
            return None  # how long lines are is known in the middle of them only
        if not isinstance(extent, Const):
            where.append(compare("le", extent, most))
        elif int(extent.value) > most:
            return None
    return out, where


class _ApartError(Exception):
    """Iterations cannot go together."""


class _Jam:
    """Several iterations, which are the same but for what depends on their variable."""

    def __init__(self, variable: Axis, places: Sequence[Scalar], registers: int) -> None:
        self.registers, self.shares, self.sums = registers, False, False
        # How long vector loops are, and how much those that write operands have in common.
        self.loops: list[tuple[Scalar, int | None]] = []
        # What each iteration has in place of a variable, or of a buffer of its own: another one, and of a joint one the place there.
        self.values: list[dict[Axis, Scalar]] = [{variable: place} for place in places]
        self.buffers: list[dict[Buffer, tuple[Buffer, Scalar | None]]] = [{} for _ in places]
        self.different: set[Axis | Buffer] = {variable}

    @property
    def count(self) -> int:
        """How many iterations go together."""
        return len(self.values)

    def together(self, stmt: Stmt) -> Stmt:
        """The statement for all iterations."""
        match stmt:
            case LetScalar():
                return self._named(stmt)
            case Alloc():
                return self._allocated(stmt)
            case Seq():
                return Seq(tuple(self.together(s) for s in stmt.stmts))
            case For() if stmt.kind == "vectorized" and not self._differs(stmt.extent):
                return self._vectors(stmt)
            case For() if stmt.kind == "serial" and not self._differs(stmt.extent):
                return replace(stmt, body=self.together(stmt.body))
            case Branch() if not self._differs(stmt.cond):
                return Branch(
                    stmt.cond, self.together(stmt.then), None if stmt.orelse is None else self.together(stmt.orelse)
                )
            case Store() | Prefetch():
                return Seq(tuple(self._moved(n, stmt) for n in range(self.count)))
            case _:
                raise _ApartError

    def _named(self, stmt: LetScalar) -> Stmt:
        if isinstance(stmt.var, Between):
            raise _ApartError
        if not self._differs(stmt.value):
            return replace(stmt, body=self.together(stmt.body))
        self.different.add(stmt.var)
        bindings: list[tuple[Axis, Scalar]] = []
        for n, values in enumerate(self.values):
            own = replace(stmt.var)
            bindings.append((own, self._value(n, stmt.value)))
            values[stmt.var] = own
        body = self.together(stmt.body)
        for var, value in reversed(bindings):
            body = LetScalar(var, value, body)
        return body

    def _allocated(self, stmt: Alloc) -> Stmt:
        """Numbers in registers are elements of one buffer, so that their lanes are added up at once."""
        buffer = stmt.buffer
        self.different.add(buffer)
        if buffer.scope == "register":
            if buffer.shape != (1,):
                raise _ApartError
            joint = replace(buffer, shape=(self.count,))
            for n, buffers in enumerate(self.buffers):
                buffers[buffer] = joint, Const(n, "int64")
            return Alloc(joint, self.together(stmt.body))
        own = [replace(buffer, name=f"{buffer.name}{n}") for n in range(self.count)]
        for buffers, one in zip(self.buffers, own, strict=True):
            buffers[buffer] = one, None
        body = self.together(stmt.body)
        for one in reversed(own):
            body = Alloc(one, body)
        return body

    def _vectors(self, loop: For) -> Stmt:
        """A vector loop: what all read alike is read before what each does with it."""
        inside = list(statements(loop.body))
        inner = {s.var for s in inside if isinstance(s, LetScalar)}
        stores = [s for s in inside if isinstance(s, Store)]
        values = [s.value for s in inside if isinstance(s, Store | LetScalar)]
        if any(is_dear(n) for v in values for n in walk(v) if n.dtype != "int64"):
            raise _ApartError
        common: list[tuple[Named, Scalar]] = []
        names: dict[int, Scalar] = {}
        if all(isinstance(s, Store | LetScalar | Seq | Prefetch) for s in inside):
            kept = inner | {s.buffer for s in stores}
            for value in values:
                self._in_common(value, loop.var, kept, common, names)
        sums = len({s.buffer for s in stores if s.buffer in self.different and s.buffer.scope == "register"})
        if sums * self.count + len(common) + _OWN > self.registers:
            raise _ApartError
        self.shares |= bool(common)
        self.sums |= sums > 0
        writes = any(s.buffer not in self.different for s in stores)
        self.loops.append((loop.extent, len(common) if writes else None))
        body = self.together(_with_names(loop.body, names))
        for var, value in reversed(common):
            body = LetScalar(var, value, body)
        return replace(loop, body=body)

    def _in_common(
        self,
        root: Scalar,
        lane: Axis,
        kept: set[Axis | Buffer],
        common: list[tuple[Named, Scalar]],
        names: dict[int, Scalar],
    ) -> None:
        """Name the largest parts of an expression that are the same for all iterations and read elements along the lanes. What is read
        behind a condition alone stays there."""
        todo = [root]
        while todo:
            node = todo.pop()
            if node.dtype == "int64" or id(node) in names:
                continue
            parts = walk(node)
            reads = [p for p in parts if isinstance(p, Load)]
            mine = {p.source if isinstance(p, Load) else p for p in parts if isinstance(p, Load | Axis)}
            if reads and lane in mine and not self.different & mine and not kept & mine:
                found = next((name for name, value in common if same(value, node)), None)
                if found is None:
                    common.append((found := Named("common", node.dtype), node))
                names[id(node)] = found
            elif isinstance(node, Select):
                todo.append(node.cond)
            elif not isinstance(node, Load):
                todo += children(node)

    def _differs(self, root: Scalar) -> bool:
        """Whether an expression is another one in each iteration."""
        return any(
            (n.source if isinstance(n, Load) else n) in self.different for n in walk(root) if isinstance(n, Load | Axis)
        )

    def _value(self, number: int, root: Scalar) -> Scalar:
        """An expression in one iteration."""
        values, buffers = self.values[number], self.buffers[number]

        def one(node: Scalar) -> Scalar:
            if isinstance(node, Axis):
                return values.get(node, node)
            if isinstance(node, Load) and node.source in buffers:
                own, place = buffers[node.source]
                return Load(own, node.indices if place is None else (place,), node.dtype)
            return node

        return transform(root, one)

    def _moved(self, number: int, stmt: Store | Prefetch) -> Stmt:
        own, place = self.buffers[number].get(stmt.buffer, (stmt.buffer, None))
        indices = tuple(self._value(number, i) for i in stmt.indices) if place is None else (place,)
        if isinstance(stmt, Prefetch):
            return replace(stmt, buffer=own, indices=indices)
        return Store(own, indices, self._value(number, stmt.value))


def _with_names(body: Stmt, names: dict[int, Scalar]) -> Stmt:
    """A straight-line body that reads what has a name by it."""
    if not names:
        return body
    return rewritten(body, lambda s: with_values(s, lambda v: transform(v, lambda n: n, dict(names))))
