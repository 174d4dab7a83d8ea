"""What goes back to what was added to the scores of an attention, in its gradient's loops.

Each row and key of an element of the batch gives a number that is added where the bias has its own. Elements of the batch that share a
bias follow each other in one task, which adds to one place in one order. Where few tasks would be left they are cut into parts,
whose sums are added up afterwards: always as many, so that no result depends on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from relay.ir.dim import Dim, ceil_div, dim_min, dim_mul, shape_size
from relay.ir.record import record
from relay.loop.ir import Buffer, For, LetScalar, Seq, Stmt, Store
from relay.plan.attention_gradient import AttentionGradient, Beside
from relay.plan.build import Builder, Storage, allocate, bound, row_major, seq, serial
from relay.plan.parallel import parallel_rows, unflattened
from relay.plan.reduction import initial
from relay.plan.row_parts import Reductions
from relay.te.scalar import Axis, Const, Load, Scalar, binary, cast, extent_of, mentioned

# So many tasks keep the threads busy.
_TASKS = 16
_ZERO = Const(0, "int64")


@record(slots=True, eq=False)
class BesideSums:
    """``hides``: whether rows and keys may be left out."""

    builder: Builder
    gradient: AttentionGradient
    hides: bool
    # Axes of the batch that a task goes through, and those that tasks have.
    together: list[Axis] = field(init=False)
    apart: list[Axis] = field(init=False)
    # How many parts those that follow each other are cut into, at most and as many as there are; 1: they are not.
    most: int = 1
    parts: Dim = 1
    part: Axis = field(init=False)
    # The sums of parts, by what they are of.
    partial: dict[Beside, Buffer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        batch, all_beside = self.gradient.of.batch, self.gradient.beside
        self.together = [a for a in batch if any(a not in _axes(b) for b in all_beside)]
        self.apart = [a for a in batch if a not in self.together]
        tasks = shape_size(tuple(a.extent for a in self.apart))
        if self.together and isinstance(tasks, int) and 0 < tasks < _TASKS:
            self.most = -(-_TASKS // tasks)
            self.parts = dim_min(self.most, self.turns)
        self.part = Axis("part", self.parts)
        if self.parts != 1:
            summed = [b for b in all_beside if not self.is_stored(b)]
            for b in summed:
                size = dim_mul(self.parts, shape_size(b.kept.stage.shape))
                name, (dtype,) = self.builder.fresh("part"), b.kept.dtypes
                self.partial[b] = Buffer(name, (size,), dtype, "workspace")

    @property
    def turns(self) -> Dim:
        """How many elements of the batch follow each other."""
        return shape_size(tuple(a.extent for a in self.together))

    def is_stored(self, beside: Beside) -> bool:
        """Whether nothing is added up: each element is that of one row and key."""
        of = self.gradient.of
        return _axes(beside).issuperset((*of.batch, *of.rows, of.keys))

    def loops(self, work: Dim, task: Stmt) -> Stmt:
        """A ``task`` for each element of the batch, of so much ``work``."""
        task = seq([*self._emptied(), task])
        if self.parts == 1:
            work = dim_mul(work, self.turns)
            return parallel_rows(self.builder, self.apart, work, seq([*self._cleared(), serial(self.together, task)]))
        turn, turns, parts = Axis("turn", self.turns), extent_of(self.turns), extent_of(self.parts)
        begin, end = (
            binary("floordiv", binary("mul", number, turns), parts)
            for number in (self.part, binary("add", self.part, 1))
        )
        at = Axis("at", self.turns)
        body: Stmt = LetScalar(at, binary("add", begin, turn), bound(unflattened(self.together, at), task))
        body = seq([*self._cleared(), For(turn, binary("sub", end, begin), body)])
        work = dim_mul(work, ceil_div(self.turns, self.most))
        body = parallel_rows(self.builder, [*self.apart, self.part], work, body)
        return allocate(list(self.partial.values()), seq([body, *map(self._added_up, self.partial)]))

    def sums(
        self, element: Callable[[Scalar, Mapping[Axis, Scalar]], Scalar], env: Mapping[Axis, Scalar], dtype: str
    ) -> Reductions:
        """What a row gives, in its loop over keys: ``element`` evaluates a value, of this dtype, in an environment."""
        out, keys = Reductions(), self.gradient.of.keys
        for beside in self.gradient.beside:
            value = element(beside.value, env)
            buffer, to = self._at(beside, env)
            here = Load(buffer, (to,), buffer.dtype)
            if self.is_stored(beside):
                out.updates.append(Store(buffer, (to,), cast(value, buffer.dtype)))
            elif keys in _axes(beside):
                out.updates.append(Store(buffer, (to,), binary("add", here, value)))
            else:
                sum_ = Buffer(self.builder.fresh("sum"), (1,), dtype, "register")
                now = Load(sum_, (_ZERO,), dtype)
                out.starts.append(Store(sum_, (_ZERO,), initial("sum", dtype)))
                out.updates.append(Store(sum_, (_ZERO,), binary("add", now, value)))
                out.ends.append(Store(buffer, (to,), binary("add", here, now)))
                out.buffers.append(sum_)
        return out

    def _at(self, beside: Beside, env: Mapping[Axis, Scalar]) -> tuple[Buffer, Scalar]:
        """Where what a row and a key give is."""
        place = self.builder.evaluate(beside.place, env)
        if beside not in self.partial:
            where = self.builder.storage[id(beside.kept.origin), 0]
            return where.buffer, self.builder.flat(where, place)
        return self.partial[beside], self._in_part(beside, self.part, place)

    def _in_part(self, beside: Beside, part: Scalar, place: Sequence[Scalar]) -> Scalar:
        """Where the sum of a part has an element."""
        shape = beside.kept.stage.shape
        inside = self.builder.flat(Storage(self.partial[beside], row_major(shape)), place)
        return binary("add", binary("mul", part, extent_of(shape_size(shape))), inside)

    def _cleared(self) -> list[Stmt]:
        """Zeros where a task adds something up."""
        of = self.gradient.of
        axes = [a for a in (*of.batch, *of.rows, of.keys) if a not in self.apart]
        return [self._zeros(b, axes) for b in self.gradient.beside if not self.is_stored(b)]

    def _emptied(self) -> list[Stmt]:
        """Zeros where something is stored for rows and keys that are left out."""
        of = self.gradient.of
        wanted = [b for b in self.gradient.beside if self.is_stored(b) and self.hides]
        return [self._zeros(b, [*of.rows, of.keys]) for b in wanted]

    def _zeros(self, beside: Beside, axes: Sequence[Axis]) -> Stmt:
        buffer, at = self._at(beside, {})
        return _each([a for a in axes if a in _axes(beside)], Store(buffer, (at,), Const(0.0, buffer.dtype)))

    def _added_up(self, beside: Beside) -> Stmt:
        """The sums of all parts."""
        where, axes = self.builder.storage[id(beside.kept.origin), 0], list(beside.kept.stage.axes)
        buffer, to = where.buffer, self.builder.flat(where, axes)
        part = Axis("part", self.parts)
        read = Load(self.partial[beside], (self._in_part(beside, part, axes),), buffer.dtype)
        more = Store(buffer, (to,), binary("add", Load(buffer, (to,), buffer.dtype), read))
        wide = [a for a in axes if a.extent != 1]
        lines, last = wide[:-1], wide[-1:]
        body: Stmt = Seq((
            _each(last, Store(buffer, (to,), initial("sum", buffer.dtype))),
            For(part, extent_of(self.parts), _each(last, more)),
        ))  # fmt: skip
        body = bound([(a, _ZERO) for a in axes if a.extent == 1], body)
        cost = dim_mul(self.parts, shape_size(tuple(a.extent for a in last)))
        return parallel_rows(self.builder, lines, cost, body)


def _axes(beside: Beside) -> set[Axis]:
    """The axes along which it has elements of its own."""
    return {a for i in beside.place for a in mentioned(i)}


def _each(axes: Sequence[Axis], body: Stmt) -> Stmt:
    """Loops over axes, the last of them in vectors."""
    if axes:
        body = For(axes[-1], extent_of(axes[-1].extent), body, "vectorized")
    return serial(axes[:-1], body)
