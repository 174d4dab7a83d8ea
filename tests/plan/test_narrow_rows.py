"""Narrow rows, turned so that lanes run across them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import relay
from relay import te
from relay.codegen.llvm import emit
from relay.codegen.objects import assembly
from relay.codegen.target import parse_target
from relay.ir.dim import DimVar, as_dim
from relay.ir.expr import Expr
from relay.loop.ir import Alloc, Branch, For, Store, Transpose
from relay.loop.printer import kernel_text
from relay.loop.walk import statements
from relay.op import registry
from relay.plan import make_plan
from relay.plan.build import STACK_BYTES
from relay.plan.kernel_plan import KernelPlan
from tests.plan.harness import ZEN4, Maker, check, primitive, random, tensor

V = DimVar("n")
N = as_dim(V)
# None, one, what goes a row at a time, the least block, one lane more, several blocks and what is left of one.
SIZES = tuple({V: s} for s in (0, 1, 15, 16, 17, 300))

# What is turned depends on how many lanes a row would leave without work.
WIDE = ZEN4.vector_bits >= 512


def turns(plan: KernelPlan) -> list[Transpose]:
    return [s for s in statements(plan.kernel.body) if isinstance(s, Transpose)]


@pytest.mark.parametrize("width", [5, 10, 16, 20, 33, 40])
def test_softmax(width: int) -> None:
    plan = check(primitive([tensor((N, width))], lambda m, x: m("nn.softmax", x)), *SIZES)
    assert len(turns(plan)) == 2 or not WIDE, "in and out"
    assert not WIDE or any(isinstance(s, Branch) for s in statements(plan.kernel.body)), "few rows are not turned"


@pytest.mark.parametrize("width", [6, 12, 20])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_reductions_and_positions(width: int, dtype: str) -> None:
    def build(m: Maker, x: Expr) -> Expr:
        return m.tuple(m("argmax", x, axis=1), m("sum", x, axis=1), m("min", x, axis=1))

    plan = check(primitive([tensor((N, width), dtype)], build), *SIZES)
    assert turns(plan) or not WIDE


def test_results_and_what_others_read_are_written_apart() -> None:
    """In a block that is not full results end at the last row, and what is read by whole vectors is written by whole vectors."""

    def build(m: Maker, x: Expr) -> Expr:
        return m.tuple(m("nn.softmax", x), m("sum", x, axis=1), m("argmax", x, axis=1))

    plan = check(primitive([tensor((N, 20))], build), *SIZES)
    loops = [s for s in statements(plan.kernel.body) if isinstance(s, For) and s.kind == "vectorized"]
    written = [{s.buffer.scope for s in statements(loop) if isinstance(s, Store)} for loop in loops]
    assert turns(plan) or not WIDE
    assert {"stack"} in written or not WIDE
    assert not any({"stack", "operand"} <= scopes for scopes in written)


@pytest.mark.parametrize("width", [5, 24, 100])
@pytest.mark.parametrize("exclusive", [False, True])
def test_scans(width: int, exclusive: bool) -> None:
    def build(m: Maker, x: Expr) -> Expr:
        return m("cumsum", m("exp", x), axis=1, exclusive=exclusive)

    plan = check(primitive([tensor((N, width))], build), *SIZES, tolerance=1e-4)
    assert turns(plan) or not WIDE


def test_long_rows_of_scans_whose_steps_wait() -> None:
    """Lines of what the stack does not hold; a running sum goes in vectors and is not turned."""

    def build(m: Maker, x: Expr) -> Expr:
        return m("cumprod", m("sigmoid", x), axis=1)

    for width in (300, 2100):
        plan = check(primitive([tensor((N, width))], build), *SIZES, tolerance=1e-4)
        assert turns(plan) or not WIDE
        scopes = {
            s.buffer.scope
            for s in statements(plan.kernel.body)
            if isinstance(s, Alloc) and s.buffer.name.endswith("_lines")
        }
        assert scopes == {"stack" if width * 64 <= STACK_BYTES else "worker"} or not WIDE
    plain = check(primitive([tensor((N, 300))], lambda m, x: m("cumsum", x, axis=1)), *SIZES, tolerance=1e-4)
    assert not turns(plain)


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
def test_rows_of_unknown_length_are_turned_by_strips(exclusive: bool, reverse: bool) -> None:
    """A scan whose steps wait, what it reads and what reads it, all rows' numbers at a step, and a number of each row."""

    def define(x: te.Tensor, line: te.Tensor, each: te.Tensor) -> te.Tensor:
        """A decaying sum of products."""
        given = te.compute(x.shape, lambda *i: x[i] * line[i[2]])
        states = te.scan(
            x.shape, 2, lambda b, i: each[i], lambda s, b, i, j: each[i] * s + te.sin(given[b, i, j]), "float32",
            reverse=reverse, exclusive=exclusive,
        )  # fmt: skip
        return te.compute(x.shape, lambda *i: states[i] + x[i])

    registry.operator("narrow.decayed")(define)
    try:
        m = DimVar("m")
        shapes = [(2, N, as_dim(m)), (as_dim(m),), (N,)]
        fn = primitive([tensor(s) for s in shapes], lambda make, *given: make("narrow.decayed", *given))
        sizes = [{V: rows, m: width} for rows, width in ((3, 5), (16, 1), (40, 64), (17, 0), (33, 130))]
        plan = check(fn, *sizes, tolerance=1e-4)
        assert turns(plan) or not WIDE
        lines = [s.buffer for s in statements(plan.kernel.body) if isinstance(s, Alloc) and "_lines" in s.buffer.name]
        assert all(isinstance(b.shape[0], int) for b in lines)
    finally:
        registry.remove("narrow.decayed")


def test_a_scan_read_at_other_places_is_not_turned_by_strips() -> None:
    def define(x: te.Tensor) -> te.Tensor:
        """Running products beside those of the step before."""
        states = te.scan(x.shape, 1, lambda i: 1.0, lambda s, i, j: s * x[i, j], "float32")
        return te.compute(x.shape, lambda i, j: states[i, j] - te.select(j > 0, states[i, j - 1], 0.0))

    registry.operator("narrow.steps")(define)
    try:
        m = DimVar("m")
        fn = primitive([tensor((N, as_dim(m)))], lambda make, x: make("narrow.steps", x))
        check(fn, *({V: rows, m: width} for rows, width in ((20, 70), (3, 4))), tolerance=1e-4)
    finally:
        registry.remove("narrow.steps")


def test_rows_of_several_axes_and_an_operand_that_all_rows_share() -> None:
    def build(m: Maker, x: Expr, g: Expr) -> Expr:
        return m("nn.log_softmax", m("multiply", x, g))

    for plan in (
        check(primitive([tensor((3, N, 10)), tensor((10,))], build), *SIZES),
        check(primitive([tensor((4, 40, 10)), tensor((10,))], build)),
    ):
        assert turns(plan) or not WIDE


def test_a_result_is_found_where_it_is_by_what_comes_after() -> None:
    def build(m: Maker, x: Expr) -> Expr:
        s = m("cumprod", x, axis=1)
        return m("cumprod", m("concatenate", m.tuple(s, m("tanh", x)), axis=1), axis=1)

    for rows in (N, 300):
        plan = check(primitive([tensor((rows, 15))], build), *(SIZES if rows is N else ()), tolerance=1e-4)
        assert turns(plan) or not WIDE


def test_what_is_not_turned() -> None:
    few = check(primitive([tensor((8, 10))], lambda m, x: m("nn.softmax", x)))
    long = check(primitive([tensor((N, 300))], lambda m, x: m("nn.softmax", x)), *SIZES)
    cheap = check(primitive([tensor((N, 64))], lambda m, x: m("sum", x, axis=1)), *SIZES, tolerance=1e-4)
    near = check(primitive([tensor((N, 3))], lambda m, x: m("nn.softmax", x)), *SIZES)
    assert not any(turns(plan) for plan in (few, long, cheap, near))


@pytest.mark.parametrize("width", [2, 3, 4])
def test_the_shortest_rows_are_turned_where_masks_take_vector_registers(width: int) -> None:
    """Elements so far apart are stored one by one there, and loaded by more than one vector if they are more than two."""
    target = parse_target("x86-64-v3")
    written = primitive([tensor((N, width))], lambda m, x: m("nn.softmax", x))
    assert len(turns(check(written, *SIZES, target=target))) == 2
    read = primitive([tensor((N, width))], lambda m, x: m("variance", x, axis=1))
    assert len(turns(check(read, *SIZES, target=target, tolerance=1e-4))) == (width > 2)


def test_rows_that_a_choice_keeps_from_being_read_are_not_turned() -> None:
    for before, after in ((1, 0), (0, 1)):

        def build(m: Maker, x: Expr, before: int = before, after: int = after) -> Expr:
            return m("nn.softmax", m("nn.pad", x, pad_width=((before, after), (0, 0))))

        for rows in (N, 33):
            plan = check(primitive([tensor((rows, 10))], build), *(SIZES if rows is N else ()))
            assert not any(t.source.name == "in0" for t in turns(plan)), "the row outside would be turned too"


def test_what_writes_a_part_of_each_row_brings_no_other_part_back() -> None:
    module = relay.parse("""#[version = "0.0.5"]
def @main[n: Dim](%x: Tensor[(n, 3, 9, 9), float32], %w: Tensor[(3, 1, 3, 3), float32]) -> float32 {
  mean(nn.max_pool2d(nn.conv2d(%x, %w, strides=[2, 2], padding=[1, 1], groups=3), pool_size=[2, 2], strides=[2, 2]))
}""")
    gradient: Any = relay.grad(module, (0, 1))
    x, w = random((5, 3, 9, 9), "float32"), random((3, 1, 3, 3), "float32")
    exe: Any = relay.compile(gradient, check_memory=True, threads=1)
    expected: Any = relay.evaluate(gradient, x, w)
    for a, b in zip(exe(x, w), expected, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), atol=1e-5)


def test_nans_and_infinities() -> None:
    x = random((40, 10), "float32")
    x[3, 4], x[17, 9], x[18, 0], x[39, 9] = np.nan, np.inf, -np.inf, np.nan
    for op in ("max", "argmin", "nn.softmax"):
        build = lambda m, x, op=op: m(op, x, axis=1)  # noqa: E731
        plan = check(primitive([tensor((N, 10))], build), {V: 40}, inputs=[x])
        assert turns(plan) or not WIDE


W = DimVar("w")
# Rows of no elements, of one, of fewer than a group, of a vector and more, the longest that are turned, and longer ones.
LENGTHS = tuple(
    {V: rows, W: width}
    for rows, widths in {
        0: (5,), 15: (7,), 16: (1, 4), 17: (3,), 20: (0, 300), 33: (7, 16), 40: (33,), 90: (17,), 130: (31, 32), 300: (13,)
    }.items()
    for width in widths
)  # fmt: skip


@pytest.mark.parametrize("op", ["variance", "nn.softmax", "nn.log_softmax", "logsumexp", "argmax"])
@pytest.mark.parametrize("leading", [(N,), (2, N)])
def test_rows_of_unknown_length_that_turn_out_to_be_short(op: str, leading: tuple[Any, ...]) -> None:
    def build(m: Maker, x: Expr) -> Expr:
        return m(op, x, axis=len(leading))

    plan = check(primitive([tensor((*leading, as_dim(W)))], build), *LENGTHS, tolerance=1e-4)
    assert turns(plan) or not WIDE
    assert re.search(r"if .*w > 32", kernel_text(plan.kernel)) or not WIDE


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_short_rows_of_unknown_length_beside_what_all_of_them_share(dtype: str) -> None:
    """A scale and a shift, and a number of each row."""

    def norm(m: Maker, x: Expr, g: Expr, b: Expr) -> Expr:
        return m("nn.layer_norm", x, g, b)

    def shifted(m: Maker, x: Expr, each: Expr) -> Expr:
        return m("nn.softmax", m("add", x, m("expand_dims", each, axis=1)))

    w = as_dim(W)
    operands = [tensor((N, w), dtype), tensor((w,), dtype), tensor((w,), dtype)]
    for plan in (
        check(primitive(operands, norm), *LENGTHS, tolerance=1e-4),
        check(primitive([operands[0], tensor((N,), dtype)], shifted), *LENGTHS, tolerance=1e-4),
    ):
        assert turns(plan) or not WIDE
        lines = [s.buffer for s in statements(plan.kernel.body) if isinstance(s, Alloc) and "_lines" in s.buffer.name]
        assert all(b.scope == "stack" for b in lines)


def test_gradients_of_short_rows_of_unknown_length() -> None:
    """Sums over rows beside those over lines."""
    module = relay.parse("""#[version = "0.0.5"]
def @main[m: Dim, n: Dim](%x: Tensor[(m, n), float32], %g: Tensor[(n,), float32], %b: Tensor[(n,), float32]) -> float32 {
  sum(exp(nn.softmax(nn.layer_norm(%x, %g, %b)) * %x))
}""")
    gradient: Any = relay.grad(module, (0, 1, 2))
    exe: Any = relay.compile(gradient, check_memory=True)
    for rows, width in ((0, 3), (1, 7), (16, 1), (33, 5), (300, 17), (40, 32), (40, 33)):
        given = [random(shape, "float32") for shape in ((rows, width), (width,), (width,))]
        expected: Any = relay.evaluate(gradient, *given)
        for a, b in zip(exe(*given), expected, strict=True):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-3, atol=1e-3)


def test_rows_of_unknown_length_that_are_not_turned() -> None:
    """A sum alone, a part of each row, and the first half of longer ones beside others."""

    def half(x: te.Tensor, y: te.Tensor) -> te.Tensor:
        """Squared distances from a mean of sums."""
        made = te.compute(x.shape, lambda i, j: x[i, j] + y[i, j])
        k = te.reduce_axis(x.shape[1])
        mean = te.compute(x.shape[:1], lambda i: te.sum(made[i, k], k))
        return te.compute(x.shape, lambda i, j: made[i, j] - mean[i])

    def part(m: Maker, x: Expr) -> Expr:
        return m("nn.softmax", m("strided_slice", x, begin=[0, 1], end=[1000, 9], strides=[1, 1]))

    w = as_dim(W)
    plain = check(primitive([tensor((N, w))], lambda m, x: m("sum", x, axis=1)), *LENGTHS, tolerance=1e-4)
    assert not turns(plain)
    check(primitive([tensor((1000, 10 + w))], part), {W: 0}, {W: 3}, {W: 30})
    registry.operator("narrow.half")(half)
    try:
        fn = primitive([tensor((N, w)), tensor((N, 2 * w))], lambda m, x, y: m("narrow.half", x, y))
        assert not turns(check(fn, *LENGTHS, tolerance=1e-4))
    finally:
        registry.remove("narrow.half")


def test_nans_in_short_rows_of_unknown_length() -> None:
    x = random((40, 10), "float32")
    x[3, 4], x[17, 9], x[18, 0], x[39, 9] = np.nan, np.inf, -np.inf, np.nan
    for op in ("argmin", "nn.softmax", "variance"):
        build = lambda m, x, op=op: m(op, x, axis=1)  # noqa: E731
        plan = check(primitive([tensor((N, as_dim(W)))], build), {V: 40, W: 10}, inputs=[x])
        assert turns(plan) or not WIDE


def test_small_matrices_of_unknown_sizes() -> None:
    """Lanes run across matrices that turn out to be small: along rows that are read through an index, and across columns."""
    size = DimVar("s")
    s = as_dim(size)
    sizes = [
        {V: n, size: w} for n, w in ((0, 3), (5, 0), (1, 4), (15, 4), (16, 1), (17, 8), (40, 5), (40, 9), (20, 40))
    ]

    def messages(m: Maker, x: Expr, w: Expr, at: Expr) -> Expr:
        found = m("expand_dims", m("take", x, at, axis=0, mode="clip"), axis=2)
        made = m("logsumexp", m("add", found, w), axis=1)
        return m("subtract", made, m("max", made, axis=1, keepdims=True))

    def columns(m: Maker, x: Expr, w: Expr) -> Expr:
        return m("max", m("multiply", m("expand_dims", x, axis=2), w), axis=1)

    operands = [tensor((N, s)), tensor((s, s)), tensor((N,), "int64")]
    for plan in (
        check(primitive(operands, messages), *sizes[2:], tolerance=1e-4),
        check(primitive(operands[:2], columns), *sizes),
    ):
        assert re.search(r"if .*s <= 8", kernel_text(plan.kernel)), "sizes decide which way lanes run"


def test_a_choice_between_what_is_there_and_another_value_is_stored_whole() -> None:
    """A store of the other value under a mask takes some processors ten cycles where masks take vector registers."""
    target = parse_target("x86-64-v3")
    fn = primitive([tensor((N, as_dim(DimVar("width"))))], lambda m, x: m("argmax", x, axis=1))
    text = assembly(emit(make_plan(fn, target).kernel, target), target)
    assert "vblendv" in text and not re.search(r"v(p)?maskmov\w*\s+%ymm\d+, %ymm\d+, \S*\(", text)


@pytest.mark.parametrize("columns", ["10", "m"])
@pytest.mark.parametrize("rows", ["300", "n"])
def test_what_another_operand_says_is_read_of_turned_rows(rows: str, columns: str) -> None:
    """The negative logarithm of the probability of a class: one element of each row, wherever it is."""
    declared = ", ".join(f"{size}: Dim" for size in (rows, columns) if size.isalpha())
    program = relay.parse(f"""#[version = "0.0.5"]
def @main{f"[{declared}]" if declared else ""}(%x: Tensor[({rows}, {columns}), float32], %of: Tensor[({rows}, 1), int32]) {{
  negative(gather(nn.log_softmax(%x), %of, axis=1)) }}""")
    rng = np.random.default_rng(0)
    exe = relay.compile(program)
    for count in (300, 17, 1) if rows == "n" else (300,):
        x, of = rng.standard_normal((count, 10)).astype("float32"), rng.integers(-3, 14, (count, 1)).astype("int32")
        np.testing.assert_allclose(
            np.asarray(exe(x, of)), np.asarray(relay.evaluate(program, x, of)), rtol=1e-5, atol=1e-6
        )


def test_a_choice_of_each_row_does_not_keep_rows_from_being_turned() -> None:
    def build(m: Maker, x: Expr, of: Expr) -> Expr:
        return m("gather", m("nn.log_softmax", x), of, axis=1)

    made = make_plan(primitive([tensor((300, 10)), tensor((300, 1), "int64")], build), ZEN4)
    assert len(turns(made)) == 1 or not WIDE


def test_a_row_that_a_number_says_does_not_keep_rows_from_being_turned() -> None:
    """The same for all rows: each element of it is read once, whoever says where it lies."""

    def build(m: Maker, x: Expr, keys: Expr, at: Expr) -> Expr:
        near = m("sum", m("multiply", x, m("take", keys, at, axis=0)), axis=(1,))
        return m("divide", near, m("sqrt", m("sum", m("multiply", x, x), axis=(1,))))

    made = make_plan(primitive([tensor((64, 20)), tensor((10, 20)), tensor((), "int64")], build), ZEN4)
    assert len(turns(made)) == 1 or not WIDE
