"""Panels of few rows whose results are written together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from relay.codegen.target import parse_target
from relay.ir.dim import Dim, DimVar, as_dim
from relay.ir.expr import Expr, Function
from relay.loop.ir import Alloc, For, Store
from relay.loop.printer import kernel_text
from relay.loop.walk import statements
from relay.plan import make_plan, panel_groups
from relay.te.evaluate import evaluate
from tests.plan.harness import Maker, Native, check, fresh_name, primitive, random, tensor

V = DimVar("n")
N = as_dim(V)
WEIGHT = frozenset({1})
TARGET = replace(parse_target("x86-64-v4"), l1_bytes=16 << 10, l2_bytes=256 << 10)


def product(rows: Dim, columns: int, depth: int, dear: bool = False) -> Function:
    def build(m: Maker, x: Expr, w: Expr, b: Expr, y: Expr) -> Expr:
        total = m("add", y, m("add", m("nn.dense", x, w), b))
        return m("nn.gelu", total) if dear else total

    return primitive(
        [tensor((rows, depth)), tensor((columns, depth)), tensor((columns,)), tensor((rows, columns))], build
    )


def is_grouped(text: str) -> bool:
    return "waiting" in text


# Columns of one width of panels, of two widths, with a last panel in part, and of more panels than are one group.
@pytest.mark.parametrize(
    ("columns", "depth", "dear"), [(192, 768, True), (120, 400, False), (70, 401, True), (1000, 300, False)]
)
def test_every_number_of_rows(columns: int, depth: int, dear: bool) -> None:
    fn = product(N, columns, depth, dear)
    plan = check(fn, *({V: n} for n in (1, 8, 9, 13, 24, 47, 48, 49)), constants=WEIGHT, target=TARGET)
    assert is_grouped(kernel_text(plan.kernel))


@pytest.mark.parametrize("rows", [9, 17, 48])
def test_known_numbers_of_rows(rows: int) -> None:
    plan = check(product(rows, 150, 400), constants=WEIGHT, target=TARGET)
    assert is_grouped(kernel_text(plan.kernel))


def test_results_are_the_same_bits_for_any_threads_and_rows() -> None:
    """Groups are of as many panels as threads leave for each; a row is the same beside few others as beside many, whose results do not
    wait."""
    columns, depth = 1000, 300
    plan = make_plan(product(N, columns, depth), TARGET, WEIGHT, fresh_name())
    native = Native(plan.kernel, TARGET)
    shapes = [(60, depth), (columns, depth), (columns,), (60, columns)]
    arrays = [random(shape, "float32", n) for n, shape in enumerate(shapes)]
    (pack,) = plan.packs
    weight = evaluate([pack.packed], {pack.source: arrays[1]})[0]
    found: dict[tuple[int, int], np.ndarray] = {}
    for rows in (11, 40, 60):
        for workers in (1, 2, 3, 9, 50):
            out = np.zeros((rows, columns), np.float32)
            given = [arrays[0][:rows], weight, arrays[2], arrays[3][:rows], out]
            assert native.run(native.bind(given, {V: rows}, workers)) == 0
            found[rows, workers] = out
    whole = found[60, 1]
    assert all(np.array_equal(whole[:rows], out) for (rows, _), out in found.items())


def test_nothing_is_written_before_a_group_is_multiplied() -> None:
    kernel = make_plan(product(24, 1000, 300), TARGET, WEIGHT).kernel
    (waiting,) = (s for s in statements(kernel.body) if isinstance(s, Alloc) and s.buffer.name.startswith("waiting"))
    *_, makes, finishes = (s for s in statements(waiting.body) if isinstance(s, For) and s.var.name == "inner")
    (out,) = kernel.outputs
    written = [{s.buffer for s in statements(part) if isinstance(s, Store)} for part in (makes, finishes)]
    assert out not in written[0] and out in written[1]


@pytest.mark.parametrize(
    ("rows", "columns", "depth"),
    [(8, 1000, 300), (49, 1000, 300), (24, 40, 400), (24, 96, 96)],
    ids=["one tile", "many rows", "one panel", "panels that stay"],
)
def test_where_nothing_is_gained_results_do_not_wait(rows: int, columns: int, depth: int) -> None:
    assert not is_grouped(kernel_text(make_plan(product(rows, columns, depth), TARGET, WEIGHT).kernel))


def test_groups_of_another_size_mean_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panel_groups, "MOST_TOGETHER", 3)
    check(product(N, 1000, 300), *({V: n} for n in (9, 30)), constants=WEIGHT, target=TARGET)
