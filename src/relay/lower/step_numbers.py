"""The numbers of a loop's steps, found of each step by itself, by scans, or as what one step hands on to the next.

What no other number decides is what it became in the step before. What depends on what it was itself is made by a scan; others read there
what it was and what it becomes. Numbers that depend on each other in a circle have no scans: they are handed on (`relay.plan.steps`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from relay import te
from relay.ir.dim import DimVar, as_dim
from relay.ir.expr import Var
from relay.ir.record import record
from relay.ir.types import TensorType
from relay.plan.steps import Steps, row_of
from relay.te.scalar import Axis, Load, Scalar, cast, compare, extent_of, mentioned, select, substitute, transform
from relay.te.shared import Shared
from relay.te.tensor import Compute, Scan, Tensor


@record(slots=True, eq=False)
class StepNumbers:
    """The numbers of each step as expressions of which step it is, and of what scans have made.

    ``given`` is what numbers are before the first step, ``updates`` what they become in a step and ``pushed`` the numbers that are put
    behind vectors, or behind tensors with rows of such ``shapes``, in terms of what numbers are before it.
    """

    count: DimVar
    shared: Shared
    given: Mapping[Axis, Scalar]
    updates: dict[Axis, Scalar]
    pushed: dict[Var, tuple[Scalar, ...]]
    shapes: Mapping[Var, tuple[int, ...]]
    time: Axis = field(init=False)
    ends: dict[Axis, Scalar] = field(default_factory=dict)  # what numbers are after the last step
    taken: set[Tensor] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.time = Axis("t", as_dim(self.count))

    def _know(self, unchanged: Mapping[Axis, Scalar], counters: Mapping[Axis, int]) -> None:
        """Put in the place of numbers what is known of each step by itself."""
        counts = extent_of(as_dim(self.count))
        for n, by in counters.items():
            self.ends[n] = self.given[n] + cast(counts, n.dtype) * by
        self._replace({id(n): e for n, e in unchanged.items()})
        self._replace({id(n): self.given[n] + cast(self.time, n.dtype) * by for n, by in counters.items()})

    def solve(self, unchanged: Mapping[Axis, Scalar], counters: Mapping[Axis, int], wanted: set[Axis]) -> bool:
        """Find all numbers of each step by scans; ``wanted`` are those read in the end. False where numbers depend on each other."""
        self._know(unchanged, counters)
        self._drop(wanted)
        while self.updates:
            alone = next((n for n in self.updates if not self._read(n)), None)
            if alone is not None:
                self._seen_before(alone)
                continue
            alone = next((n for n in self.updates if self._read(n) == {n}), None)
            if alone is None:
                return False
            self._scanned(alone)
        return True

    def handed_on(
        self, unchanged: Mapping[Axis, Scalar], counters: Mapping[Axis, int], wanted: Sequence[Axis]
    ) -> Steps | None:
        """The loop with all numbers that are not known of each step as states; None where there are none: it does nothing but count."""
        self._know(unchanged, counters)
        self._drop(set(wanted))
        if not self.updates:
            return None
        last = tuple(self.ends.get(n, n) for n in wanted)
        first = tuple(self.given[n] for n in self.updates)
        following, shapes = tuple(self.updates.values()), tuple(self.shapes[p] for p in self.pushed)
        return Steps((), self.time, tuple(self.updates), first, following, tuple(self.pushed.values()), shapes, last)

    def by_themselves(self, wanted: Sequence[Axis], grid: Sequence[Axis]) -> list[Tensor]:
        """The results where `handed_on` has found nothing to hand on: what is put behind tensors, numbers or lines of these axes, and then
        ``wanted``."""
        made: list[Tensor] = []
        for vector, (element,) in self.pushed.items():
            assert isinstance(vector.ty, TensorType) and isinstance(vector.ty.shape, tuple)
            line = len(vector.ty.shape) > 1
            axes = {a: Axis(a.name, a.extent) for a in (self.time, *(grid if line else ()))}
            stage = Compute("number", tuple(axes.values()), (substitute(element, dict(axes)),))
            made.append(Tensor(stage, 0, stage.shape, element.dtype))
        return [*made, *map(self.last, wanted)]

    def row(self, vector: Var) -> Tensor:
        """What is put behind a vector, a result of the kernel."""
        row, shape = self.pushed[vector], self.shapes[vector]
        first = row[0]
        whole = first.source if isinstance(first, Load) and first.indices == (self.time,) else None
        if not shape and isinstance(whole, Tensor) and isinstance(whole.stage, Scan) and whole not in self.taken:
            self.taken.add(whole)
            return whole
        t = Axis("t", self.time.extent)
        return row_of(t, [substitute(e, {self.time: t}) for e in row], shape)

    def last(self, number: Axis) -> Tensor:
        """What a number is after the last step, a result of the kernel."""
        return te.compute((), lambda: self.ends[number], "last")

    def _drop(self, wanted: set[Axis]) -> None:
        """Forget the numbers that nothing depends on."""
        counts: set[Axis] = set()
        more = (wanted | {n for row in self.pushed.values() for e in row for n in mentioned(e)}) & self.updates.keys()
        while more:
            counts |= more
            more = {m for n in more for m in self._read(n)} - counts
        self.updates = {n: e for n, e in self.updates.items() if n in counts}

    def _read(self, number: Axis) -> set[Axis]:
        """The numbers that decide what one becomes, of those that are not known of each step."""
        return mentioned(self.updates[number]) & self.updates.keys()

    def _replace(self, by: Mapping[int, Scalar]) -> None:
        """Replace expressions, by their ids."""
        memo = dict(by)
        updates = {n: transform(e, self.shared.of, memo) for n, e in self.updates.items()}
        self.pushed = {p: tuple(transform(e, self.shared.of, memo) for e in row) for p, row in self.pushed.items()}
        self.updates = updates

    def _seen_before(self, number: Axis) -> None:
        """What no other number decides is what it became in the step before."""
        update = self.updates.pop(number)
        self._replace({id(number): self._first_or(number, self.time, substitute(update, {self.time: self.time - 1}))})
        self._ends(number, update)

    def _scanned(self, number: Axis) -> None:
        """What depends on what it was is made by a scan; others read there what it was and what it becomes."""
        update = self.updates.pop(number)
        scan = Scan("recurrence", (self.time,), 0, number, self.given[number], update)
        made = Tensor(scan, 0, scan.shape, number.dtype)
        now, before = (Load(made, (at,), number.dtype) for at in (self.time, self.time - 1))
        self._replace({id(update): now, id(number): self._first_or(number, self.time, before)})
        self._ends(number, now)

    def _ends(self, number: Axis, update: Scalar) -> None:
        last = extent_of(as_dim(self.count)) - 1
        self.ends[number] = self._first_or(number, last + 1, substitute(update, {self.time: last}))

    def _first_or(self, number: Axis, step: Scalar, value: Scalar) -> Scalar:
        """A number before a step, given what it is where that is not the first."""
        return select(compare("lt", 0, step), value, self.given[number])
