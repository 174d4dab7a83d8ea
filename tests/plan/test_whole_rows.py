"""Shallow products whose results are written row by row."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from relay.codegen.target import parse_target
from relay.ir.dim import Dim, DimVar, as_dim
from relay.ir.expr import Expr, Function
from relay.loop.ir import For, LetScalar
from relay.loop.printer import kernel_text
from relay.loop.walk import statements
from relay.plan import make_plan
from tests.plan.harness import Maker, Native, check, fresh_name, primitive, random, tensor

TARGET = replace(parse_target("x86-64-v4"), l1_bytes=16 << 10, l2_bytes=256 << 10)


def gradient(depth: Dim, rows: int, columns: int, biased: bool = False) -> Function:
    """Of a weight: neighbours along k of the left operand are rows apart."""

    def build(m: Maker, g: Expr, x: Expr, *w: Expr) -> Expr:
        found = m("nn.matmul", m("transpose", g), x)
        return m("add", w[0], found) if biased else found

    given = [tensor((depth, rows)), tensor((depth, columns)), *([tensor((rows, columns))] if biased else [])]
    return primitive(given, build)


def is_row_by_row(fn: Function) -> bool:
    return "alloc panels" in kernel_text(make_plan(fn, TARGET, frozenset()).kernel)


# Panels of one width, of two widths, in part, and more than are packed at once; rows of a left operand that is copied and read where it is,
# in parts of one size and not.
@pytest.mark.parametrize(
    ("depth", "rows", "columns"),
    [(28, 512, 128), (5, 300, 150), (2, 200, 200), (33, 97, 490), (100, 100, 700), (60, 256, 170)],
)
@pytest.mark.parametrize("biased", [False, True])
def test_meaning(depth: int, rows: int, columns: int, biased: bool) -> None:
    fn = gradient(depth, rows, columns, biased)
    assert is_row_by_row(fn)
    check(fn, target=TARGET)


def test_an_unknown_depth() -> None:
    n = DimVar("n")
    fn = gradient(as_dim(n), 300, 150)
    assert is_row_by_row(fn)
    check(fn, *({n: depth} for depth in (1, 7, 128, 129, 300)), target=TARGET)


def test_rows_along_k() -> None:
    """The left operand's rows lie along k."""
    fn = primitive([tensor((300, 20)), tensor((20, 160))], lambda m, x, w: m("nn.matmul", x, w))
    assert is_row_by_row(fn)
    check(fn, target=TARGET)


def test_results_do_not_depend_on_the_number_of_threads_nor_on_the_order() -> None:
    depth, rows, columns = 30, 310, 330
    arrays = [random(shape, "float32", n) for n, shape in enumerate([(depth, rows), (depth, columns)])]
    found = []
    for target in (TARGET, replace(TARGET, l2_bytes=8 << 20)):
        native = Native(make_plan(gradient(depth, rows, columns), target, frozenset(), fresh_name()).kernel, target)
        for workers in (1, 2, 3, 9):
            out = np.zeros((rows, columns), np.float32)
            assert native.run(native.bind([*arrays, out], {}, workers)) == 0
            found.append(out)
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_rows_are_outside_of_panels() -> None:
    kernel = make_plan(gradient(28, 512, 128), TARGET, frozenset()).kernel
    (tiles,) = (s for s in statements(kernel.body) if isinstance(s, For) and s.var.name == "tile")
    assert any(isinstance(s, LetScalar) and s.var.name == "panel" for s in statements(tiles.body))


@pytest.mark.parametrize(
    ("depth", "rows", "columns"),
    [(200, 512, 128), (28, 128, 128), (28, 40, 1000), (28, 2000, 16)],
    ids=["deep", "results that stay", "few rows", "one panel"],
)
def test_others_go_panel_by_panel(depth: int, rows: int, columns: int) -> None:
    assert not is_row_by_row(gradient(depth, rows, columns))
