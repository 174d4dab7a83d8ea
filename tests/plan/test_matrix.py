"""Matrix products: packed and packed on the fly, every residue of rows and columns, epilogues, convolutions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from relay import te
from relay.codegen.llvm import emit
from relay.codegen.objects import assembly
from relay.codegen.target import parse_target
from relay.ir.dim import Dim, DimVar, as_dim
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Expr
from relay.loop.ir import Alloc, Branch, For, Prefetch, Stmt, Switch
from relay.loop.printer import kernel_text
from relay.loop.target import Target
from relay.loop.walk import statements
from relay.op import registry
from relay.plan import make_plan, plan_key
from relay.plan.graph import te_graph
from relay.plan.kernel_plan import plan_graph
from relay.plan.product_nest import lowest_tile
from relay.plan.schedule import MODEL, Case, Schedule
from relay.transform.access import access_of
from tests.plan.harness import HOST, ZEN4, Maker, asked_for, check, primitive, tensor

V = DimVar("n")
N = as_dim(V)
SIZES = tuple({V: s} for s in (0, 1, 2, 3, 4, 5, 6, 7, 13, 70, 200))
SOME = tuple({V: s} for s in (1, 5, 40))
WEIGHT = frozenset({1})


def test_dense_on_packed_weights_for_every_number_of_rows() -> None:
    plan = check(
        primitive([tensor((N, 40)), tensor((96, 40))], lambda m, x, w: m("nn.dense", x, w)), *SIZES, constants=WEIGHT
    )
    assert plan.variant == "matrix"
    (pack,) = plan.packs
    assert pack.input_index == 1 and pack.source.shape == (96, 40)
    panels, depth, width = pack.packed.shape
    assert depth == 40 and panels * width >= 96  # type: ignore[operator]


def test_of_a_single_row_nothing_is_shared_out() -> None:
    """One row has code of its own, without tasks of rows and heights of tiles; the rest has no tile of one row."""

    def build(m: Maker, x: Expr, w: Expr, b: Expr) -> Expr:
        return m("add", m("nn.dense", x, w), b)

    plan = check(primitive([tensor((N, 40)), tensor((96, 40)), tensor((96,))], build), *SIZES, constants=WEIGHT)
    body = plan.kernel.body
    assert isinstance(body, Branch) and body.orelse is not None and "if n == 1" in kernel_text(plan.kernel)

    def heights(part: Stmt) -> set[Dim]:
        return {s.buffer.shape[0] for s in statements(part) if isinstance(s, Alloc) and s.buffer.scope == "register"}

    assert heights(body.then) == {1} and heights(body.orelse) == {2, 3, 4, 5, 6, 7, 8} & heights(body.orelse) != set()
    assert not any(isinstance(s, Switch) for s in statements(body.then))
    several = primitive([tensor((N, 3, 40)), tensor((96, 40)), tensor((96,))], build)
    check(several, *SIZES, constants=WEIGHT)


@pytest.mark.parametrize("columns", [1, 7, 16, 33, 75, 130])
def test_columns_that_do_not_fill_a_panel(columns: int) -> None:
    fn = primitive([tensor((N, 64)), tensor((columns, 64))], lambda m, x, w: m("nn.dense", x, w))
    check(fn, *SOME, constants=WEIGHT)
    check(fn, *SOME)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_transposed_operands(transpose_a: bool, transpose_b: bool) -> None:
    a = tensor((64, N)) if transpose_a else tensor((N, 64))
    b = tensor((48, 64)) if transpose_b else tensor((64, 48))
    fn = primitive([a, b], lambda m, x, w: m("nn.matmul", x, w, transpose_a=transpose_a, transpose_b=transpose_b))
    check(fn, *SOME)
    check(fn, *SOME, constants=WEIGHT)


def test_a_symbolic_reduced_axis() -> None:
    check(primitive([tensor((24, N)), tensor((N, 96))], lambda m, x, w: m("nn.matmul", x, w)), *SOME, {V: 0})


@pytest.mark.parametrize("order", ["dkv", "kvd", "vdk"])
def test_factors_in_any_order(order: str) -> None:
    """A product of three operands is a matrix product however they are written."""

    def weighted(d: te.Tensor, k: te.Tensor, v: te.Tensor) -> te.Tensor:
        t = te.reduce_axis(k.shape[0])

        def element(i: te.Scalar, j: te.Scalar) -> te.Scalar:
            factors = {"d": d[t], "k": k[t, i], "v": v[t, j]}
            first, second, third = (factors[name] for name in order)
            return te.sum(first * second * third, t)

        return te.compute((k.shape[1], v.shape[1]), element)

    registry.operator("test.weighted")(weighted)
    try:
        fn = primitive([tensor((24,)), tensor((24, 20)), tensor((24, 48))], lambda m, *x: m("test.weighted", *x))
        assert "matrix" in check(fn).variant and access_of(te_graph(fn).outputs).kind == "contraction"
    finally:
        registry.remove("test.weighted")


def test_epilogue_on_the_tile() -> None:
    def build(m: Maker, x: Expr, w: Expr, b: Expr, r: Expr) -> Expr:
        h = m("add", m("nn.dense", x, w), b)
        return m("add", m("multiply", h, m("erf", h)), r)

    fn = primitive([tensor((N, 64)), tensor((96, 64)), tensor((96,)), tensor((N, 96))], build)
    assert check(fn, *SIZES, constants=WEIGHT).variant == "matrix"


def test_several_outputs_of_one_product() -> None:
    def build(m: Maker, x: Expr, w: Expr) -> Expr:
        d = m("nn.dense", x, w)
        return m.tuple(d, m("nn.relu", d), m("sqrt", m("abs", d)))

    fn = primitive([tensor((N, 64)), tensor((96, 64))], build)
    assert check(fn, *SOME, constants=WEIGHT).variant == "matrix"


def test_a_norm_after_a_product_is_a_nest_of_its_own() -> None:
    def build(m: Maker, x: Expr, w: Expr, g: Expr, b: Expr) -> Expr:
        return m("nn.layer_norm", m("nn.dense", x, w), g, b)

    fn = primitive([tensor((N, 64)), tensor((96, 64)), tensor((96,)), tensor((96,))], build)
    assert check(fn, *SOME, constants=WEIGHT).variant == "matrix+rows"


def test_attention() -> None:
    scores = primitive([tensor((12, N, 32)), tensor((12, N, 32))], lambda m, q, k: m("nn.batch_matmul", q, k))
    check(scores, *SIZES)
    values = primitive(
        [tensor((12, N, N)), tensor((12, N, 32))], lambda m, p, v: m("nn.batch_matmul", p, v, transpose_b=False)
    )
    check(values, *SIZES)
    shared = primitive([tensor((4, N, 32)), tensor((1, N, 32))], lambda m, q, k: m("nn.batch_matmul", q, k))
    check(shared, *SOME)


def test_the_left_operand_through_changed_indices_is_read_in_place() -> None:
    def build(m: Maker, x: Expr, w: Expr) -> Expr:
        return m("nn.dense", m("reshape", m("transpose", x, axes=(1, 0, 2)), newshape=(-1, 96)), w)

    fn = primitive([tensor((3, N, 32)), tensor((48, 96))], build)
    plan = check(fn, *SIZES, constants=WEIGHT)
    assert plan.variant == "matrix" and plan.kernel.shared_bytes == 0


def test_a_dear_prologue_is_computed_once() -> None:
    fn = primitive([tensor((N, 64)), tensor((48, 64))], lambda m, x, w: m("nn.dense", m("tanh", x), w))
    assert check(fn, *SOME, constants=WEIGHT).variant == "elementwise+matrix"


def test_a_transposed_result() -> None:
    def build(m: Maker, x: Expr, w: Expr) -> Expr:
        return m("transpose", m("reshape", m("nn.dense", x, w), newshape=(-1, 3, 32)), axes=(1, 0, 2))

    check(primitive([tensor((N, 64)), tensor((96, 64))], build), *SOME, constants=WEIGHT)


def test_blocks_of_a_long_reduced_axis() -> None:
    target = replace(HOST, l2_bytes=64 << 10)
    fn = primitive([tensor((N, 700)), tensor((75, 700))], lambda m, x, w: m("nn.relu", m("nn.dense", x, w)))
    check(fn, {V: 1}, {V: 7}, {V: 300}, constants=WEIGHT, target=target, tolerance=1e-4)
    check(fn, {V: 7}, target=target, tolerance=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("int32", 0.0), ("float16", 3e-3)])
def test_other_dtypes(dtype: str, tolerance: float) -> None:
    fn = primitive([tensor((N, 64), dtype), tensor((96, 64), dtype)], lambda m, x, w: m("nn.dense", x, w))
    check(fn, *SOME, constants=WEIGHT, tolerance=tolerance)


def test_narrow_integers_into_wide_sums() -> None:
    fn = primitive(
        [tensor((N, 64), "int8"), tensor((96, 64), "int8")], lambda m, x, w: m("nn.dense", x, w, out_dtype="int32")
    )
    check(fn, *SOME, constants=WEIGHT)


def test_one_row() -> None:
    fn = primitive([tensor((1, 512)), tensor((300, 512))], lambda m, x, w: m("nn.dense", x, w))
    assert check(fn, constants=WEIGHT).variant == "matrix"
    plan = check(fn)
    assert plan.variant == "matrix" and plan.kernel.worker_bytes == 0, "nothing repays packing weights for one row"


def test_a_constant_read_twice_is_not_packed() -> None:
    def build(m: Maker, x: Expr, w: Expr) -> Expr:
        return m("add", m("nn.dense", x, w), m("sum", w, axis=1))

    assert check(primitive([tensor((N, 64)), tensor((48, 64))], build), *SOME, constants=WEIGHT).packs == ()


@pytest.mark.parametrize("constants", [WEIGHT, frozenset[int]()])
def test_convolutions(constants: frozenset[int]) -> None:
    def strided(m: Maker, x: Expr, w: Expr) -> Expr:
        return m("nn.conv2d", x, w, padding=(1, 1), strides=(2, 2), kernel_size=(3, 3), channels=32)

    def channels_last(m: Maker, x: Expr, w: Expr, b: Expr) -> Expr:
        attrs: dict[str, Any] = {
            "padding": (1, 1),
            "kernel_size": (3, 3),
            "data_layout": "NHWC",
            "kernel_layout": "HWIO",
        }
        return m("nn.relu", m("add", m("nn.conv2d", x, w, channels=32, **attrs), b))

    nchw = primitive([tensor((1, 16, 9, 9)), tensor((32, 16, 3, 3))], strided)
    assert "matrix" in check(nchw, constants=constants, tolerance=1e-4).variant
    nhwc = primitive([tensor((N, 9, 9, 16)), tensor((3, 3, 16, 32)), tensor((32,))], channels_last)
    assert "matrix" in check(nhwc, {V: 1}, {V: 2}, constants=constants, tolerance=1e-4).variant


@pytest.mark.parametrize("groups", [4, 16])
def test_depthwise_and_grouped_convolutions(groups: int) -> None:
    def build(m: Maker, x: Expr, w: Expr) -> Expr:
        return m("nn.conv2d", x, w, padding=(1, 1), kernel_size=(3, 3), channels=16, groups=groups)

    fn = primitive([tensor((1, 16, 9, 9)), tensor((16, 16 // groups, 3, 3))], build)
    check(fn, constants=WEIGHT, tolerance=1e-4)


@pytest.mark.parametrize("masked", [False, True])
def test_with_sixteen_registers(masked: bool) -> None:
    target = replace(HOST, vector_bits=256, vector_registers=16, masked=masked)
    fn = primitive(
        [tensor((N, 64)), tensor((75, 64)), tensor((75,))], lambda m, x, w, b: m("add", m("nn.dense", x, w), b)
    )
    check(fn, *SOME, constants=WEIGHT, target=target)


@pytest.mark.parametrize("columns", [4, 7, 14, 38, 149])
def test_less_than_a_vector_where_masks_take_registers(columns: int) -> None:
    """AVX2: what there is of a last vector is read under a mask and written in powers of two of lanes."""

    def build(m: Maker, x: Expr, w: Expr, r: Expr) -> Expr:
        return m("add", m("nn.matmul", x, w), r)

    target = parse_target("x86-64-v3")
    for rows in (6, 50):
        fn = primitive([tensor((rows, 33)), tensor((33, columns)), tensor((rows, columns))], build)
        text = emit(check(fn, {}, target=target).kernel, target)
        assert "llvm.masked.store" not in text and ("llvm.masked.load" in text or columns == 4)


def test_rows_evenly_apart_are_one_address() -> None:
    """Of a number of rows that parts do not divide, LLVM computed six addresses in each step along k, and sums had to make room."""
    fn = primitive([tensor((251, 509)), tensor((1021, 509))], lambda m, x, w: m("nn.dense", x, w))
    text = kernel_text(check(fn, {}, constants=WEIGHT, target=parse_target("x86-64-v3")).kernel)
    assert "in0[left0 + (k + 509)]" in text and "left1" not in text and "row1" not in text


def test_a_tile_that_takes_all_registers_goes_step_by_step() -> None:
    """Of 4 rows of three vectors of eight, with a vector of the panel and an element, no register of sixteen is left."""
    fn = primitive([tensor((N, 40)), tensor((72, 40))], lambda m, x, w: m("nn.dense", x, w))

    body = make_plan(fn, parse_target("x86-64-v3"), constants=WEIGHT, name="steps").kernel.body
    tiles = {
        s.buffer.shape[0]: s.body for s in statements(body) if isinstance(s, Alloc) and s.buffer.scope == "register"
    }
    unrolled = {n: any(isinstance(s, For) and s.kind == "unrolled" for s in statements(tiles[n])) for n in tiles}
    assert unrolled[4] is False and unrolled[3]


@pytest.mark.parametrize("columns", [96, 10])
def test_an_element_does_not_depend_on_the_number_of_rows_or_the_schedule(columns: int) -> None:
    from relay.te.evaluate import evaluate
    from tests.plan.harness import Native, fresh_name, random

    fn = primitive([tensor((N, 384)), tensor((columns, 384))], lambda m, x, w: m("nn.dense", x, w))
    x: Any = random((200, 384), "float32")
    w: Any = random((columns, 384), "float32", 1)
    results = []
    for schedule in (MODEL, Schedule(2, (Case(4, rows=2), Case(rows=8)))):
        plan = plan_graph(te_graph(fn), HOST, plan_key(fn, HOST, WEIGHT), WEIGHT, fresh_name(), schedule)
        native = Native(plan.kernel, HOST)
        (packed,) = evaluate([plan.packs[0].packed], {plan.packs[0].source: w})
        for rows in (200, 7, 3, 1):
            out = np.zeros((rows, columns), np.float32)
            native.run(native.bind([x[:rows], packed, out], {plan.kernel.dims[0]: rows}))
            results.append(out)
    np.testing.assert_allclose(results[0], x @ w.T, rtol=1e-4, atol=1e-4)
    for out in results[1:]:
        np.testing.assert_array_equal(out, results[0][: len(out)])


def test_a_row_of_one_vector_is_several_sums() -> None:
    """Each multiply-add of a single sum would wait for the one before it."""
    fn = primitive([tensor((N, 384)), tensor((10, 384))], lambda m, x, w: m("nn.dense", x, w))
    plan = make_plan(fn, ZEN4, WEIGHT)
    tiles = {s.buffer.shape for s in statements(plan.kernel.body) if isinstance(s, Alloc)}
    assert (4, plan.packs[0].packed.shape[-1]) in tiles
    for columns, depth in ((10, 96), (16, 384), (5, 64)):
        check(
            primitive([tensor((N, depth)), tensor((columns, depth))], lambda m, x, w: m("nn.dense", x, w)),
            *SIZES,
            constants=WEIGHT,
        )


def _without(feature: str) -> Target:
    host = ZEN4
    return replace(host, features=tuple(f for f in host.features if f != feature))


@pytest.mark.parametrize(("depth", "columns"), [(2, 200), (51, 64), (64, 20), (700, 200)])
def test_bfloat16_operands_with_float32_sums(depth: int, columns: int) -> None:
    fn = primitive(
        [tensor((N, depth), "bfloat16"), tensor((columns, depth), "bfloat16")],
        lambda m, x, w: m("nn.relu", m("nn.dense", x, w, out_dtype="float32")),
    )
    plan = check(fn, *SIZES, constants=WEIGHT)
    if plan.packs:
        assert plan.packs[0].packed.dtype == "bfloat16", "weights stay narrow until they are multiplied"
    check(fn, *SOME, constants=WEIGHT, target=_without("avx512bf16"))
    check(fn, *SOME)
    small = replace(HOST, l2_bytes=32 << 10)
    check(fn, {V: 7}, constants=WEIGHT, target=small, tolerance=1e-4)


def test_pairs_of_bfloat16_are_one_instruction() -> None:
    fn = primitive(
        [tensor((N, 128)), tensor((96, 128), "bfloat16")],
        lambda m, x, w: m("nn.dense", m("cast", x, dtype="bfloat16"), w, out_dtype="float32"),
    )
    with_pairs, without = parse_target("znver4"), parse_target("icelake-server")
    text = {}
    for target in (with_pairs, without):
        plan = make_plan(fn, target, WEIGHT)
        text[target] = assembly(emit(plan.kernel, target), target)
        assert plan.packs[0].packed.shape == ((2, 64, 48, 2) if target is with_pairs else (2, 128, 48))
    assert "vdpbf16ps" in text[with_pairs] and "vdpbf16ps" not in text[without]
    check(fn, *SOME, constants=WEIGHT)


@pytest.mark.parametrize("turned", [False, True])
def test_float16_data_is_widened_before_it_is_multiplied(turned: bool) -> None:
    """By itself an element takes several instructions, and each panel would widen it again."""
    fn = primitive(
        [tensor((N, 50), "float16"), tensor((70, 50) if turned else (50, 70), "float16")],
        lambda m, x, w: m("nn.matmul", x, w, transpose_b=turned),
    )
    plan = check(fn, *({V: s} for s in (0, 1, 2, 7, 40)), tolerance=2e-3)
    shared = [s.buffer for s in statements(plan.kernel.body) if isinstance(s, Alloc) and s.buffer.scope == "workspace"]
    assert [b.dtype for b in shared] == ["float32"]
    check(fn, {V: 40}, constants=WEIGHT, tolerance=2e-3)


@pytest.mark.parametrize("short", [False, True])
def test_bfloat16_is_widened_once_where_pairs_are_slow(short: bool) -> None:
    """Intel's vectors of pairs are multiplied at half the rate, and there are none without AVX-512: the left operand is widened before all
    panels, and these by their first tile."""
    slow = replace(_without("avx512bf16"), cpu="sapphirerapids").with_features("avx512bf16")
    target = parse_target("x86-64-v3") if short else slow
    assert target.widens_dearly and not target.multiplies_pairs

    def build(m: Maker, x: Expr, w: Expr) -> Expr:
        return m("nn.relu", m("nn.dense", m("cast", x, dtype="bfloat16"), w, out_dtype="float32"))

    fn = primitive([tensor((N, 130)), tensor((400, 130), "bfloat16")], build)
    plan = check(fn, *SIZES, constants=WEIGHT, target=target)
    assert "vdpbf16ps" not in assembly(emit(plan.kernel, target), target)
    made = {
        b.name.split(".")[0]: b.dtype for b in (s.buffer for s in statements(plan.kernel.body) if isinstance(s, Alloc))
    }
    assert made["left"] == "float32" and made["panel"] == "float32" and plan.packs[0].packed.dtype == "bfloat16"
    check(fn, *SOME, target=target)  # weights that are given at run time
    narrow = primitive(
        [tensor((N, 130), "bfloat16"), tensor((2, 130), "bfloat16")],
        lambda m, x, w: m("nn.dense", x, w, out_dtype="float32"),
    )
    check(narrow, *SOME, constants=WEIGHT, target=target)


@pytest.mark.parametrize("columns", [20, 64, 200])
def test_int8_weights(columns: int) -> None:
    def build(m: Maker, x: Expr, w: Expr, s: Expr, b: Expr) -> Expr:
        return m("add", m("multiply", m("nn.dense", x, w, out_dtype="float32"), s), b)

    fn = primitive([tensor((N, 64)), tensor((columns, 64), "int8"), tensor((columns,)), tensor((columns,))], build)
    plan = check(fn, *SIZES, constants=WEIGHT)
    assert plan.variant == "matrix" and plan.packs[0].packed.dtype == "int8"


@pytest.mark.parametrize(
    ("dtype", "columns", "l1_bytes", "cpu"),
    [
        ("int8", 190, 48 << 10, "x86-64-v4"),
        ("int8", 64, 6 << 10, "x86-64-v4"),
        ("float16", 70, 6 << 10, "x86-64-v4"),
        ("int8", 190, 6 << 10, "x86-64-v3"),
        ("bfloat16", 61, 32 << 10, "x86-64-v3"),
    ],
)
def test_narrow_panels_are_widened_once_for_several_tiles(dtype: str, columns: int, l1_bytes: int, cpu: str) -> None:
    """Processors whose units that multiply also convert, and those of short vectors: the first tile over a panel, or a block of k of it,
    leaves behind what it has widened. A single tile has nobody to leave it to."""
    target = replace(parse_target(cpu), l1_bytes=l1_bytes, l2_bytes=64 << 10)
    weight = tensor((columns, 300), dtype)

    def build(m: Maker, x: Expr, w: Expr, s: Expr) -> Expr:
        return m("nn.relu", m("multiply", m("nn.dense", x, w, out_dtype="float32"), s))

    fn = primitive([tensor((N, 300)), weight, tensor((columns,))], build)
    sizes = [{V: rows} for rows in (0, 1, 2, 6, 7, 12, 13, 48, 49, 200, 410)]
    plan = check(fn, *sizes, constants=WEIGHT, target=target, tolerance=1e-4)
    assert plan.packs[0].packed.dtype == dtype
    assert any(isinstance(s, Alloc) and s.buffer.name.startswith("panel") for s in statements(plan.kernel.body))
    assert not any(
        isinstance(s, Alloc) and s.buffer.name.startswith("panel")
        for s in statements(make_plan(fn, ZEN4, WEIGHT).kernel.body)
    )
    few = primitive([tensor((4, 300)), weight, tensor((columns,))], build)
    body = check(few, {}, constants=WEIGHT, target=target, tolerance=1e-4).kernel.body
    assert not any(isinstance(s, Alloc) and s.buffer.name.startswith("panel") for s in statements(body))
    check(
        primitive([tensor((31, 300)), weight, tensor((columns,))], build),
        {},
        constants=WEIGHT,
        target=target,
        tolerance=1e-4,
    )


@pytest.mark.parametrize(("dtype", "columns"), [("float32", 333), ("bfloat16", 128), ("int8", 333), ("int8", 160)])
@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_few_rows_of_short_vectors_ask_ahead(dtype: str, columns: int, rows: int) -> None:
    """Of panels that the second-level cache does not hold, and once for all steps along k that have a line in common."""
    target = replace(parse_target("x86-64-v3"), l2_bytes=16 << 10)

    def build(m: Maker, x: Expr, w: Expr) -> Expr:
        return m("nn.dense", x, w, out_dtype="float32")

    fn = primitive([tensor((rows, 130)), tensor((columns, 130), dtype)], build)
    body = check(fn, {}, constants=WEIGHT, target=target, tolerance=1e-4).kernel.body
    asks = any(isinstance(s, Prefetch) for s in statements(body))
    assert asks == (rows > 1 or dtype != "float32")


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_the_next_panel_is_asked_for_while_one_is_computed_with(dtype: str) -> None:
    def build(m: Maker, x: Expr, w: Expr) -> Expr:
        return m("nn.dense", x, w, out_dtype="int32" if dtype == "int8" else "")

    fn = primitive([tensor((N, 50), dtype), tensor((200, 50), dtype)], build)
    plan = check(fn, *({V: s} for s in (1, 6, 7, 8, 11, 13, 40, 200)), constants=WEIGHT)
    target = ZEN4
    if target.triple.startswith("x86_64"):
        assert "prefetcht1" in assembly(emit(plan.kernel, target), target)
    few = primitive([tensor((3, 50), dtype), tensor((200, 50), dtype)], build)
    body = make_plan(few, target, WEIGHT).kernel.body
    assert not any(isinstance(s, Prefetch) for s in statements(body)), "few rows read their panel in order"


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_single_tile_asks_for_what_its_panels_hold_further_on(dtype: str) -> None:
    depth, rows = 24, 8
    target = parse_target("x86-64-v4")
    operands = [tensor((rows, depth), dtype), tensor((720, depth), dtype)]
    fn = primitive(operands, lambda m, x, w: m("nn.dense", x, w, out_dtype="int32" if dtype == "int8" else ""))
    plan = check(fn, {}, constants=WEIGHT)
    kernel = make_plan(fn, target, WEIGHT).kernel
    assert plan.variant.endswith("matrix")  # beside sums of rows, where words of bytes are multiplied
    shape = tuple(int(d) for d in kernel.inputs[1].shape if isinstance(d, int))
    size = numpy_dtype(kernel.inputs[1].dtype).itemsize
    found = asked_for(kernel)
    assert not any(stmt.write for stmt, _ in found)
    lines = {sum(i * math.prod(shape[n + 1 :]) for n, i in enumerate(at)) * size // 64 for _, at in found}
    first = (16 << 10) // 64
    assert lines == set(range(first, first + math.prod(shape) * size // 64)), "all of it, so far ahead"


def test_the_lines_of_a_result_are_asked_for() -> None:
    """By the tiles that write them, of a product that is not deep (the gradient of a weight): all of them, and no others."""
    rows, depth, columns = 260, 2, 72
    fn = primitive(
        [tensor((depth, rows)), tensor((depth, columns))], lambda m, g, x: m("nn.matmul", g, x, transpose_a=True)
    )
    kernel = check(fn, {}).kernel
    target = ZEN4
    if "prfchw" in target.features:
        assert "prefetchw" in assembly(emit(kernel, target), target)
    written = [(stmt.buffer, at) for stmt, at in asked_for(kernel) if stmt.write]
    assert all(buffer is kernel.outputs[0] for buffer, _ in written)
    asked = {at for _, (at,) in written}
    starts = {at // columns * columns + at % columns // 16 * 16 for at in asked if at < rows * columns}
    assert {r * columns + c for r in range(rows) for c in range(0, columns, 16)} <= starts
    assert max(asked) < rows * columns + 64


def test_what_is_asked_for_is_the_next_panel_and_all_of_it() -> None:
    """The lines that the tiles of a panel ask for, for every number of rows: none is missing, few are beyond."""
    depth, width = 20, 24
    target = parse_target("x86-64-v3")
    fn = primitive([tensor((N, depth)), tensor((3 * width, depth))], lambda m, x, w: m("nn.dense", x, w))
    kernel = make_plan(fn, target, WEIGHT).kernel
    for rows in (7, 8, 9, 11, 12, 13, 16, 40):
        found = asked_for(kernel, {V: rows})
        assert not any(stmt.write for stmt, _ in found)
        asked = {((panel * depth + step) * width + at) // 16 for _, (panel, step, at) in found}
        lines = depth * width // 16
        wanted = set(range(lines, 3 * lines))
        assert wanted <= asked, rows
        assert max(asked) < 4 * lines + 2 * rows, rows


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_few_rows_of_awaited_panels_have_code_of_their_own(dtype: str) -> None:
    target = replace(parse_target("x86-64-v4"), l1_bytes=6 << 10, l2_bytes=64 << 10)
    assert target.outruns_caches
    tolerance = 2e-5 if dtype == "float32" else 1e-2  # half a unit in the last place, by another order of sums
    fn = primitive(
        [tensor((N, 300), dtype), tensor((190, 300), dtype)], lambda m, x, w: m("nn.relu", m("nn.dense", x, w))
    )
    plan = check(
        fn,
        *({V: rows} for rows in (1, 2, 6, 7, 8, 9, 13, 48, 49)),
        constants=WEIGHT,
        target=target,
        tolerance=tolerance,
    )
    text = kernel_text(plan.kernel)
    assert "n <= 8" in text and "n <= 48" in text
    assert any(isinstance(s, For) and s.var.name == "kb" for s in statements(plan.kernel.body))


@pytest.mark.parametrize("transpose_b", [False, True])
def test_code_is_made_for_the_heights_of_tiles_that_occur(transpose_b: bool) -> None:
    """Run-time operands have other code up to some number of rows: lower tiles than the first beyond it needs are left out,
    and no part of the rows is short."""
    b = tensor((24, 3)) if transpose_b else tensor((3, 24))
    fn = primitive([tensor((N, 3)), b], lambda m, x, w: m("nn.matmul", x, w, transpose_b=transpose_b))
    check(fn, *({V: rows} for rows in (0, 1, 8, 9, 10, 17, 24, 25, 26, 31, 33, 768, 769, 773, 1537)))


@pytest.mark.parametrize("most", [1, 2, 6, 8, 14])
def test_the_lowest_tile_of_so_many_rows_and_more(most: int) -> None:
    for fewest in range(1, 60):
        heights = [count // -(-count // most) for count in range(fewest, fewest + 20 * most)]
        assert lowest_tile(fewest, most) == min(heights), fewest
