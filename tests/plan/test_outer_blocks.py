"""Products whose k is outermost: all panels of a task by one block of k after the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from relay.codegen.target import parse_target
from relay.ir.dim import Dim, DimVar, as_dim
from relay.ir.expr import Expr, Function
from relay.loop.printer import kernel_text
from relay.plan import make_plan
from relay.te.evaluate import evaluate
from tests.plan.harness import Maker, Native, asked_for, check, fresh_name, primitive, random, tensor

V = DimVar("n")
N = as_dim(V)
WEIGHT = frozenset({1})
TARGET = replace(parse_target("x86-64-v4"), l1_bytes=16 << 10, l2_bytes=256 << 10)


def product(rows: Dim, columns: int, depth: int) -> Function:
    def build(m: Maker, x: Expr, w: Expr, b: Expr, y: Expr) -> Expr:
        return m("add", y, m("add", m("nn.dense", x, w), b))

    return primitive(
        [tensor((rows, depth)), tensor((columns, depth)), tensor((columns,)), tensor((rows, columns))], build
    )


# Columns of one width of panels, of two widths, and with a last panel in part; k in blocks of one length, and with a shorter last one.
@pytest.mark.parametrize(("columns", "depth"), [(96, 768), (72, 1000), (70, 401)])
def test_every_number_of_rows(columns: int, depth: int) -> None:
    plan = check(
        product(N, columns, depth),
        *({V: n} for n in (1, 8, 48, 49, 53, 64, 127, 230, 450)),
        constants=WEIGHT,
        target=TARGET,
    )
    text = kernel_text(plan.kernel)
    assert "each" in text and "sums" in text


@pytest.mark.parametrize("rows", [49, 128, 300])
def test_known_numbers_of_rows(rows: int) -> None:
    plan = check(product(rows, 72, 1000), constants=WEIGHT, target=TARGET)
    assert "sums" in kernel_text(plan.kernel)


@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [(48, 72, 1000), (128, 72, 380), (128, 400, 1000)],
    ids=["few rows", "one block", "sums that do not stay"],
)
def test_where_nothing_is_gained_panels_are_outermost(rows: int, columns: int, depth: int) -> None:
    fn = product(rows, columns, depth)
    assert "sums" not in kernel_text(make_plan(fn, TARGET, WEIGHT).kernel)
    assert "sums" not in kernel_text(make_plan(product(128, 72, 1000), replace(TARGET, cpu="znver4"), WEIGHT).kernel)


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    """A task has more or fewer panels, all of the last bits are the same; nor do they depend on where k is."""
    fn = product(N, 72, 1000)
    arrays = [random(shape, "float32", n) for n, shape in enumerate([(230, 1000), (72, 1000), (72,), (230, 72)])]
    found = []
    for target in (TARGET, replace(TARGET, l2_bytes=2 << 20)):
        plan = make_plan(fn, target, WEIGHT, fresh_name())
        native = Native(plan.kernel, target)
        (pack,) = plan.packs
        given = [*arrays]
        given[1] = evaluate([pack.packed], {pack.source: arrays[1]})[0]
        for workers in (1, 2, 3, 7):
            out = np.zeros((230, 72), np.float32)
            assert native.run(native.bind([*given, out], {V: 230}, workers)) == 0
            found.append(out)
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_what_is_asked_for_is_the_same_block_of_the_next_panel() -> None:
    """Or the next block of a task's first one: all lines but those of each task's first block are asked for, few are beyond."""
    depth, columns, width = 400, 192, 48
    target = replace(TARGET, l2_bytes=296 << 10)
    fn = primitive([tensor((N, depth)), tensor((columns, depth))], lambda m, x, w: m("nn.dense", x, w))
    kernel = make_plan(fn, target, WEIGHT).kernel
    assert "sums" in kernel_text(kernel)
    shape = tuple(int(d) for d in kernel.inputs[1].shape if isinstance(d, int))
    assert shape == (4, depth, width)
    found = asked_for(kernel, {V: 49})
    asked = {((number * depth + step) * width + at) // 16 for _, (number, step, at) in found}
    panel = depth * width // 16  # lines; a block is half of it, and two panels are one of three workers' task
    first = {line for task in (0, 2) for line in range(task * panel, task * panel + panel // 2)}
    assert set(range(4 * panel)) - asked <= first
    assert max(asked) < 4 * panel + panel // 2 + 49
