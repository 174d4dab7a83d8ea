"""Which operand of a product is read again: tasks that follow each other have the panel in common, or the rows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relay.ir.dim import DimVar, as_dim
from relay.ir.expr import Function
from relay.loop.evaluate import _State
from relay.loop.ir import WORKERS, Alloc, Branch, For, Kernel, LetScalar, Stmt
from relay.plan.kernel_plan import make_plan
from tests.plan.harness import HOST, check, primitive, tensor

V = DimVar("n")
N = as_dim(V)
# Rows of 16 elements are far from 2,049 on.
SMALL = replace(HOST, l1_bytes=8 << 10, l2_bytes=32 << 10, l3_bytes=128 << 10)
DEPTH, COLUMNS, FAR = 16, 200, 2049


def dense(rows: object, columns: int = COLUMNS, depth: int = DEPTH) -> Function:
    return primitive([tensor((rows, depth)), tensor((columns, depth))], lambda m, x, w: m("nn.dense", x, w))


class _Order(_State):
    """Notes the panel and the part of the rows of each task, and goes no further."""

    def __init__(self, rows: int) -> None:
        super().__init__({V: rows})
        self.axes[WORKERS] = 1
        self.tasks: list[tuple[int, int]] = []
        self.now = {"panel": 0, "part": 0}
        self.depth = 0

    def run(self, stmt: Stmt) -> None:
        match stmt:
            case For() if self.depth == 0 or stmt.var.name == "t":
                for index in range(int(self.value(stmt.extent))):
                    self.axes[stmt.var] = index
                    self.depth += 1
                    self.run(stmt.body)
                    self.depth -= 1
            case LetScalar():
                self.axes[stmt.var] = self.value(stmt.value)
                if stmt.var.name in self.now:
                    self.now[stmt.var.name] = int(self.axes[stmt.var])
                self.run(stmt.body)
            case Branch() if self.depth == 0:
                if (chosen := stmt.then if self.value(stmt.cond) else stmt.orelse) is not None:
                    self.run(chosen)
            case Alloc() if self.depth == 0:
                self.run(stmt.body)
            case _:
                self.tasks.append((self.now["panel"], self.now["part"]))


def in_common(kernel: Kernel, rows: int) -> str:
    """What the tasks that follow each other have in common: the panel, or the rows."""
    found = _Order(rows)
    found.run(kernel.body)
    panels, parts = (max(numbers) + 1 for numbers in zip(*found.tasks, strict=True))
    assert panels > 1 and parts > 1
    by_panel = [(panel, part) for panel in range(panels) for part in range(parts)]
    if found.tasks == by_panel:
        return "panel"
    assert found.tasks == sorted(by_panel, key=lambda task: task[::-1])
    return "rows"


@pytest.mark.parametrize("constants", [frozenset(), frozenset({1})])
@pytest.mark.parametrize("known", [True, False])
def test_rows_that_are_far_away_are_gone_through_once(constants: frozenset[int], known: bool) -> None:
    kernel = make_plan(dense(2 * FAR if known else N), SMALL, constants).kernel
    assert in_common(kernel, 2 * FAR) == "rows"
    if not known:
        assert in_common(kernel, FAR - 1) == "panel"
    near = replace(SMALL, l2_bytes=1 << 20)
    assert in_common(make_plan(dense(2 * FAR if known else N), near, constants).kernel, 2 * FAR) == "panel"


@pytest.mark.parametrize("constants", [frozenset(), frozenset({1})])
def test_results(constants: frozenset[int]) -> None:
    sizes = [{V: rows} for rows in (0, 1, 5, 200, FAR - 1, FAR, 3 * FAR + 1)]
    check(dense(N), *sizes, constants=constants, target=SMALL)
    check(dense(2 * FAR + 1), constants=constants, target=SMALL)
    check(dense(N, 1000, 48), *sizes, constants=constants, target=SMALL)
    several = [tensor((3, N, DEPTH)), tensor((COLUMNS, DEPTH))]
    check(primitive(several, lambda m, x, w: m("nn.dense", x, w)), {V: 900}, {V: 1}, constants=constants, target=SMALL)
    pairs = [tensor((2, N, DEPTH)), tensor((2, COLUMNS, DEPTH))]
    check(
        primitive(pairs, lambda m, x, w: m("nn.batch_matmul", x, w)),
        {V: 700},
        {V: 2},
        constants=constants,
        target=SMALL,
    )
    free = [tensor((N, N)), tensor((COLUMNS, N))]
    check(primitive(free, lambda m, x, w: m("nn.dense", x, w)), {V: 300}, {V: 7}, target=SMALL)
