"""What the schedule of a matrix product leaves open: how wide and high register tiles are and how many rows a task has.

`relay.plan.product` decides by a model of loads and padding. A `Schedule` decides otherwise, for all products of a kernel, and may do so
for ranges of the number of rows, among which the kernel then chooses when it runs. The order of a sum does not depend on the schedule, so
results are the same to the last bit.
"""

from __future__ import annotations

from relay.ir.record import record


@record(frozen=True, slots=True)
class Case:
    """Products of at most ``most`` rows (None: of any number): the rows of a register tile and those of a task, where the model does not
    say."""

    most: int | None = None
    rows: int | None = None
    block: int | None = None


@record(frozen=True, slots=True)
class Schedule:
    """``vectors`` beside each other are a row of a register tile, where the model does not say: the width of packed panels, and so one for
    all cases. ``cases`` are in the order of their numbers of rows; the last is for any number."""

    vectors: int | None = None
    cases: tuple[Case, ...] = (Case(),)

    def __post_init__(self) -> None:
        limits = [c.most for c in self.cases]
        assert limits[-1:] == [None] and None not in limits[:-1], (
            "the last case, and no other, is for any number of rows"
        )

    def case(self, rows: int) -> Case:
        """The case for a number of rows."""
        return next(c for c in self.cases if c.most is None or rows <= c.most)

    @property
    def says_no_rows(self) -> bool:
        """Whether the rows of tiles and tasks are for the model to say."""
        return self.cases == (Case(),)

    def __str__(self) -> str:
        if self == MODEL:
            return "by the model"
        cases = [
            f"{'any' if c.most is None else f'<= {c.most}'} rows: {c.rows or '-'} in a tile, {c.block or '-'} in a task"
            for c in self.cases
        ]
        return f"{self.vectors or '-'} vectors; " + "; ".join(cases)


# As the model says.
MODEL = Schedule()
