"""Products with exchanged operands: convolutions and their gradients, whose windows are read where they are."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from relay.codegen.llvm import emit
from relay.codegen.target import parse_target
from relay.ir.dim import DimVar, as_dim, ceil_div
from relay.ir.expr import Expr, Function, Tuple
from relay.loop.ir import Alloc
from relay.loop.printer import kernel_text
from relay.loop.walk import statements
from relay.plan.kernel_plan import KernelPlan, make_plan
from tests.plan.harness import ZEN4, Maker, check, primitive, tensor

V = DimVar("n")
N = as_dim(V)
SOME = tuple({V: s} for s in (0, 2))
WEIGHT = frozenset({1})
WAITING = replace(ZEN4, cpu="sapphirerapids")


def is_turned(plan: KernelPlan) -> bool:
    return "transpose columns" in kernel_text(plan.kernel)


def convolution(data: tuple[Any, ...], weight: tuple[int, ...], **attrs: Any) -> Function:
    return primitive([tensor(data), tensor(weight)], lambda m, x, w: m("nn.conv2d", x, w, **attrs))


@pytest.mark.parametrize(
    ("data", "weight", "attrs"),
    [
        ((N, 10, 9, 11), (48, 10, 3, 3), {"padding": (1, 1)}),
        ((N, 16, 14, 13), (33, 16, 3, 2), {"strides": (2, 3), "padding": (1, 0)}),
        ((N, 8, 13, 13), (64, 8, 3, 3), {"dilation": (2, 2)}),
    ],
)
def test_convolutions(data: tuple[Any, ...], weight: tuple[int, ...], attrs: dict[str, Any]) -> None:
    fn = convolution(data, weight, **attrs)
    assert is_turned(check(fn, *SOME))
    plan = check(fn, *SOME, constants=WEIGHT)
    assert is_turned(plan) and len(plan.packs) == 1


@pytest.mark.parametrize(("channels", "taps", "turned"), [(4, 3, True), (3, 3, False), (64, 1, False)])
def test_windows_of_whole_panels(channels: int, taps: int, turned: bool) -> None:
    """Images as wide as panels: deep windows are exchanged, shallow ones and what is no window are packed line by line."""
    fn = convolution((2, channels, 6, 64), (48, channels, taps, taps), padding=(taps // 2, taps // 2))
    for target in (ZEN4, WAITING):
        assert is_turned(check(fn, target=target)) == turned


def test_an_epilogue_along_the_rows() -> None:
    def build(m: Maker, x: Expr, w: Expr, b: Expr, r: Expr) -> Expr:
        return m("nn.gelu", m("add", m("nn.bias_add", m("nn.conv2d", x, w, padding=(1, 1)), b), r))

    given = [tensor((N, 12, 10, 10)), tensor((40, 12, 3, 3)), tensor((40,)), tensor((N, 40, 10, 10))]
    assert is_turned(check(primitive(given, build), *SOME))


@pytest.mark.parametrize(("operand", "stride"), [(0, 1), (0, 2), (1, 1), (1, 2)])
def test_gradients_of_a_convolution(operand: int, stride: int) -> None:
    """By the data, which for a stride is made in classes that are stored between each other; by the weight, whose sums over all
    images are made in blocks."""
    side = 28 // stride
    given = [tensor((3, 24, 28, 28)), tensor((36, 24, 3, 3)), tensor((3, 36, side, side))]
    attrs = {"padding": (1, 1), "strides": (stride, stride)}
    fn = primitive(given, lambda m, x, w, g: m(f"nn.conv2d.vjp{operand}", x, w, g, **attrs))
    plan = check(fn, {})
    assert is_turned(plan) and set(plan.variant.split("+")) == {"elementwise", "matrix"}
    # The classes are stored in the result from the start: none has memory of its own.
    assert "alloc class" not in kernel_text(plan.kernel)


def test_what_stays_as_it_is() -> None:
    # Few output channels would leave lanes empty; windows of one element are runs in memory.
    assert not is_turned(check(convolution((2, 16, 12, 12), (3, 16, 3, 3)), {}))
    assert not is_turned(check(convolution((2, 64, 16, 16), (64, 64, 1, 1)), {}))
    dense = primitive([tensor((40, 64)), tensor((64, 64))], lambda m, x, w: m("nn.dense", x, w))
    assert not is_turned(check(dense, {}))


@pytest.mark.parametrize("columns", [N, 2, 7, 17, 40])
@pytest.mark.parametrize("rows", [128, 189])
def test_a_constant_by_few_columns_is_packed(columns: Any, rows: int) -> None:
    """Columns need no whole vectors, and the constant is read once, in order: as rows by a constant are."""

    def build(m: Maker, w: Expr, x: Expr, b: Expr, r: Expr) -> Expr:
        return m("nn.gelu", m("add", m("add", m("nn.matmul", w, x), b), r))

    given = [tensor((rows, 70)), tensor((70, columns)), tensor((rows, 1)), tensor((rows, columns))]
    sizes = [{V: n} for n in (0, 1, 2, 7, 17, 64, 100)] if columns is N else [{}]
    plan = check(primitive(given, build), *sizes, constants=frozenset({0}))
    assert is_turned(plan) == (columns != 40) and len(plan.packs) == int(columns != 40)
    assert not is_turned(check(primitive(given, build), *sizes))


def test_a_batch_of_constants_by_few_columns_is_packed() -> None:
    given = [tensor((3, 64, 80)), tensor((3, 80, N))]
    fn = primitive(given, lambda m, w, x: m("einsum", Tuple((w, x)), equation="bmk,bkn->bmn"))
    assert is_turned(check(fn, *({V: n} for n in (0, 1, 5, 33)), constants=frozenset({0})))


def test_a_constant_by_columns_that_fill_vectors_or_of_few_terms_stays_as_it_is() -> None:
    for rows, depth, columns in ((128, 70, 64), (128, 16, N), (20, 70, N)):
        fn = primitive([tensor((rows, depth)), tensor((depth, columns))], lambda m, w, x: m("nn.matmul", w, x))
        assert not is_turned(check(fn, *SOME, constants=frozenset({0})))


@pytest.mark.parametrize(("places", "turned"), [(60, False), (6, True)])
def test_few_rows_are_exchanged_where_less_is_packed(places: int, turned: bool) -> None:
    """Of 8 columns that lie behind each other an exchanged product has tiles of 8 rows."""

    def build(m: Maker, g: Expr, w: Expr) -> Expr:
        return m("einsum", Tuple((g, w)), equation="bkxj,kclj->bcxl")

    plan = check(primitive([tensor((2, 16, places, 8)), tensor((16, 10, 8, 8))], build), {})
    assert is_turned(plan) == turned


@pytest.mark.parametrize("heads", [3, 4, 12])
def test_runs_of_unknown_length_are_read_where_they_are(heads: int) -> None:
    """Matrices of scores that are mixed with each other, head by head: nothing is gathered, and little would repay turning."""
    m = DimVar("m")
    given = [tensor((N, heads, N, as_dim(m))), tensor((heads, heads))]
    fn = primitive(given, lambda make, s, p: make("einsum", Tuple((s, p)), equation="bhnm,hg->bgnm"))
    plan = check(fn, *({V: n, m: k} for n in (1, 2, 5) for k in (1, 3, 20)))
    assert not is_turned(plan)
    assert not any(isinstance(s, Alloc) and s.buffer.name.startswith("panel") for s in statements(plan.kernel.body))


@pytest.mark.parametrize("rows", [15, 16, 31, 64])
def test_few_rows_by_an_operand_along_depth(rows: int) -> None:
    """Where multiply-adds wait for caches: the operand is read where it is, and the rows are the panels."""

    def build(m: Maker, x: Expr, w: Expr, b: Expr) -> Expr:
        return m("nn.gelu", m("add", m("nn.dense", m("nn.relu", x), w), b))

    assert is_turned(check(dense(rows, 132, 150), {}, target=WAITING))
    given = [tensor((rows, 130)), tensor((200, 130)), tensor((200,))]
    assert is_turned(check(primitive(given, build), {}, target=WAITING))


def test_heads_along_depth() -> None:
    """The columns are two axes, the rows two, and so is what is summed over; a batch of products; sums in float64."""

    def heads(m: Maker, x: Expr, w: Expr) -> Expr:
        return m("einsum", Tuple((x, w)), equation="btij,hsij->bths")

    given = [tensor((2, 8, 6, 30)), tensor((4, 16, 6, 30))]
    assert is_turned(check(primitive(given, heads), {}, target=WAITING))
    pairs = primitive([tensor((3, 16, 128)), tensor((3, 40, 128))], lambda m, x, y: m("nn.batch_matmul", x, y))
    assert is_turned(check(pairs, {}, target=WAITING))
    double = [tensor((8, 80), "float64"), tensor((20, 80), "float64")]
    assert is_turned(check(primitive(double, lambda m, x, w: m("nn.dense", x, w)), {}, target=WAITING))


def test_what_stays_as_it_is_along_depth() -> None:
    """Rows that leave lanes empty, that are many, of little depth or of few columns; weights that are packed when the program is
    compiled, or that would be widened element by element."""
    sizes = [(14, 160, 384), (20, 160, 384), (80, 160, 384), (16, 64, 384), (32, 160, 48), (N, 160, 384)]
    assert not any(is_turned(check(dense(*size), {V: 16}, target=WAITING)) for size in sizes)
    assert not is_turned(check(dense(16, 160, 384), {}, target=WAITING, constants=WEIGHT))
    assert not is_turned(check(dense(16, 160, 384, "bfloat16"), {}, target=WAITING))
    assert not is_turned(check(dense(16, 160, 384), {}))


def dense(rows: Any, depth: int, columns: int, dtype: str = "float32") -> Function:
    given = [tensor((rows, depth), dtype), tensor((columns, depth), dtype)]
    return primitive(given, lambda m, x, w: m("nn.dense", x, w))


def test_a_strided_gradient_over_lines_of_unknown_length_is_products() -> None:
    """Which window an element belongs to is a matter of halves of sizes: no guard is left of it, and each class of places is a product."""
    h, w = DimVar("h"), DimVar("w")
    image, half = (N, 16, as_dim(h), as_dim(w)), (N, 16, *(ceil_div(as_dim(v), 2) for v in (h, w)))
    attrs = {"strides": (2, 2), "padding": (1, 1)}
    fn = primitive(
        [tensor(image), tensor((16, 16, 3, 3)), tensor(half)],
        lambda m, x, k, g: m("nn.conv2d.vjp0", x, k, g, ty=tensor(image), **attrs),
    )
    plan = check(fn, *({V: 2, h: y, w: x} for y, x in ((8, 8), (7, 12), (1, 1))), {V: 0, h: 4, w: 4})
    assert "matrix" in plan.variant and "rows" not in plan.variant


def images_of_unknown_size(what: str) -> tuple[Function, list[DimVar]]:
    """A convolution of 3 x 3 of any number of images of any size, or its gradient by the weights."""
    sizes = [DimVar(name) for name in "nhw"]
    n, h, w = (as_dim(v) for v in sizes)
    image, window = (n, 5, h, w), (16, 5, 3, 3)
    if what == "forward":
        return convolution(image, window, padding=(1, 1)), sizes
    given = [tensor(image), tensor(window), tensor((n, 16, h, w))]
    fn = primitive(given, lambda m, x, k, g: m("nn.conv2d.vjp1", x, k, g, ty=tensor(window), padding=(1, 1)))
    return fn, sizes


@pytest.mark.parametrize("what", ["forward", "its weights"])
def test_images_of_unknown_size_are_read_where_they_are(what: str) -> None:
    """Also where what is summed over is not known. Which place the rows of a tile are at is found with one division for all of them."""
    fn, sizes = images_of_unknown_size(what)
    given = ((3, 5, 4), (1, 1, 1), (2, 1, 9), (2, 9, 1), (2, 20, 17), (0, 4, 4))
    plan = check(fn, *(dict(zip(sizes, each, strict=True)) for each in given))
    text = kernel_text(plan.kernel)
    assert is_turned(plan)
    if what == "forward":
        assert "let row0" in text and "let left1" in text and "let row1" not in text


def test_rows_of_a_tile_share_what_moves_by_unknown_distances() -> None:
    """Of the addresses of its rows LLVM sees no sums: it would keep two registers for each."""
    fn, _ = images_of_unknown_size("forward")
    hidden = re.compile(r'(%\w+) = call i64 asm "", "=r,0"')
    target = parse_target("x86-64-v4")
    text = emit(make_plan(fn, target).kernel, target)
    shared = [text.count(f", i64 {name}\n") for name in hidden.findall(text)]
    assert max(shared) == 8
    known = convolution((2, 5, 17, 20), (16, 5, 3, 3), padding=(1, 1))
    assert not hidden.search(emit(make_plan(known, target).kernel, target))


@pytest.mark.parametrize("what", ["forward", "its weights"])
def test_panels_of_windows_of_unknown_sizes_are_packed_without_dividing_for_each_row(what: str) -> None:
    """Rows of a panel are places of windows or of images: they are gone through axis by axis, not by a number that is divided."""
    sizes = [DimVar(name) for name in "chwo"]
    c, h, w, o = (as_dim(v) for v in sizes)
    image, window, result = (2, c, h, w), (o, c, 3, 3), (2, o, h, w)
    if what == "forward":
        fn = convolution(image, window, padding=(1, 1))  # type: ignore[arg-type]
    else:
        fn = primitive(
            [tensor(image), tensor(window), tensor(result)],
            lambda m, x, k, g: m("nn.conv2d.vjp1", x, k, g, ty=tensor(window), padding=(1, 1)),
        )
    given = ((3, 7, 5, 4), (1, 1, 1, 1), (9, 4, 20, 17))
    plan = check(fn, *(dict(zip(sizes, each, strict=True)) for each in given))
    packed = [
        line for line in kernel_text(plan.kernel).splitlines() if line.strip().startswith("panel") and "pad[" in line
    ]
    assert packed and not any(re.search(r"// \(?[wh]\b|kikhkw", line) for line in packed)
