"""Elements of lines that are shorter than vectors, several lines as one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import relay
from relay.codegen.target import parse_target
from relay.ir.dim import DimVar, as_dim
from relay.ir.expr import Expr
from relay.loop.bounds import unproved
from relay.loop.ir import Alloc, Transpose
from relay.loop.walk import statements
from relay.plan.kernel_plan import KernelPlan, make_plan
from tests.plan.harness import ZEN4, Maker, check, primitive, tensor

A, N, D = (DimVar(name) for name in "and")
WIDTHS = (0, 1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 32, 33, 40)
LINES = (0, 1, 15, 16, 17, 31, 32, 33, 47, 1023, 1024, 1025, 2100)
BUILDS: dict[str, Callable[[Maker, Expr, Expr], Expr]] = {
    "exp": lambda m, x, b: m("exp", m("add", x, b)),
    "twice": lambda m, x, b: m("multiply", m("tanh", m("add", x, b)), m("add", b, b)),
    "sum": lambda m, x, b: m("add", x, b),
}


def _repeats(plan: KernelPlan) -> bool:
    return any(isinstance(s, Alloc) and s.buffer.name.startswith("repeated") for s in statements(plan.kernel.body))


@pytest.mark.parametrize("target", ["cpu", "x86-64-v4", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("name", BUILDS)
def test_unknown_widths(name: str, target: str) -> None:
    given = [tensor((as_dim(N), as_dim(D))), tensor((as_dim(D),))]
    sizes = [{N: n, D: d} for d in WIDTHS for n in (LINES if d in (3, 16) else (32, 45))]
    plan = check(primitive(given, BUILDS[name]), *sizes, target=parse_target(target) if target != "cpu" else None)
    assert _repeats(plan) == (name != "sum"), "what is soon done has one way"
    assert unproved(plan.kernel) == []


@pytest.mark.parametrize("width", [1, 2, 3, 5, 8, 13, 16, 24, 32, 33])
@pytest.mark.parametrize("lines", [None, 20, 50])
def test_known_widths(width: int, lines: int | None) -> None:
    for build in BUILDS.values():
        given = [tensor((as_dim(N) if lines is None else lines, width)), tensor((width,))]
        plan = check(primitive(given, build), *([{N: n} for n in LINES] if lines is None else [{}]))
        assert _repeats(plan) == (lines != 20 and width not in (1, 16, 32, 33))
        assert unproved(plan.kernel) == []


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "int32", "int64", "bool"])
def test_types(dtype: str) -> None:
    op = "add" if dtype != "bool" else "logical_and"
    given = [tensor((as_dim(A), as_dim(N), 3), dtype), tensor((as_dim(A), 1, 3), dtype)]
    sizes = [{A: a, N: n} for a in (0, 1, 3) for n in LINES]
    check(primitive(given, lambda m, x, b: m(op, x, b)), *sizes, tolerance=1e-2 if "16" in dtype else 1e-5)


def test_two_types() -> None:
    """As many lines as the most elements of any of them in a vector."""
    given = [tensor((as_dim(N), 3), "uint8"), tensor((3,)), tensor((3,))]

    def build(m: Maker, x: Expr, mean: Expr, scale: Expr) -> Expr:
        return m("multiply", m("subtract", m("cast", x, dtype="float32"), mean), scale)

    assert _repeats(check(primitive(given, build), *({N: n} for n in LINES)))


def _spreads(plan: KernelPlan) -> bool:
    return any(isinstance(s, Alloc) and s.buffer.name.startswith("spread") for s in statements(plan.kernel.body))


@pytest.mark.parametrize("target", ["cpu", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("width", [None, 2, 3, 8, 13, 32, 33])
def test_what_a_line_reads_once_chooses(target: str, width: int | None) -> None:
    """It is spread, so that there is no branch for each line; with and without what all lines read alike, and a line's own summand."""
    d = as_dim(D) if width is None else width
    given = [
        tensor((as_dim(N), 1)),
        tensor((as_dim(N), d)),
        tensor((as_dim(N), d)),
        tensor((d,)),
        tensor((as_dim(N), 1), "bool"),
    ]

    def build(m: Maker, c: Expr, x: Expr, y: Expr, b: Expr, also: Expr) -> Expr:
        return m("where", m("greater", c, m("negative", c)), x, m("add", y, c))

    def biased(m: Maker, c: Expr, x: Expr, y: Expr, b: Expr, also: Expr) -> Expr:
        return m("where", also, m("add", x, b), y)

    lines = (0, 1, 31, 33, 127, 128, 129, 1360, 2100)
    widths = (0, 1, 3, 8, 32, 33) if width is None else (width,)
    sizes = [{N: n, D: w} for w in widths for n in lines] if width is None else [{N: n} for n in lines]
    for made in (build, biased):
        plan = check(primitive(given, made), *sizes, target=parse_target(target) if target != "cpu" else None)
        assert _spreads(plan) == (width != 33)
        assert unproved(plan.kernel) == []


def test_other_operands_keep_lines_apart() -> None:
    """One that goes with the line alone; a place among the elements; one that is turned."""
    given = [tensor((as_dim(N), 3)), tensor((as_dim(N), 1)), tensor((3,))]
    plan = check(
        primitive(given, lambda m, x, c, b: m("exp", m("add", m("multiply", x, c), b))), *({N: n} for n in LINES)
    )
    assert not _repeats(plan)
    turned = [tensor((7, as_dim(N))), tensor((7,))]
    fn = primitive(turned, lambda m, x, b: m("exp", m("add", m("transpose", x), b)))
    plan = make_plan(fn, ZEN4)
    assert not _repeats(plan) or any(isinstance(s, Transpose) for s in statements(plan.kernel.body))
    check(fn, *({N: n} for n in LINES))


def test_an_operand_that_dies_is_written_over() -> None:
    text = """#[version = "0.0.5"]
    def @main[n: Dim](%x: Tensor[(n, 5), float32], %b: Tensor[(5,), float32]) {
      let %y = cumsum(%x, axis=0);
      exp(%y * 0.01f + %b) }"""
    rng = np.random.default_rng(0)
    x, b = rng.standard_normal((3001, 5)).astype("float32"), rng.standard_normal(5).astype("float32")
    one, two = (np.asarray(relay.compile(text, threads=n)(x, b)) for n in (1, 2))
    np.testing.assert_array_equal(one, two)
    np.testing.assert_allclose(one, np.exp(np.cumsum(x, 0) * np.float32(0.01) + b), rtol=1e-4)
