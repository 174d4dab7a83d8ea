"""Row nests: reductions, norms, softmax, scans, pooling, along every axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relay
from relay import te
from relay.ir.dim import DimVar, as_dim, dim_mul
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Expr
from relay.loop.ir import Alloc, Branch, For, LetScalar, Prefetch, Stmt, Store
from relay.loop.printer import kernel_text
from relay.loop.walk import buffers_read, expressions, statements
from relay.op import registry
from relay.plan.kernel_plan import KernelPlan, make_plan
from relay.te.scalar import Binary, Compare, Const, Scalar, Size, Unary, walk
from tests.plan.harness import HOST, ZEN4, Array, Maker, Native, check, fresh_name, primitive, random, tensor

V = DimVar("n")
N = as_dim(V)
SIZES = tuple({V: s} for s in (1, 5, 70))


def over_rows(plan: KernelPlan) -> list[For]:
    """The parallel loops of a kernel, where few rows go another way than many: of the way of few."""
    body = plan.kernel.body

    def parallel(root: Stmt) -> list[For]:
        return [s for s in statements(root) if isinstance(s, For) and s.kind == "parallel"]

    several = [s for s in statements(body) if isinstance(s, Branch) and parallel(s.then)]
    return parallel(several[0].then if several else body)


def _nodes(root: Stmt) -> list[Scalar]:
    return [n for s in statements(root) for e in expressions(s) for n in walk(e)]


AXES: tuple[int | tuple[int, ...] | None, ...] = (None, 0, 1, 2, (0, 1), (1, 2), (0, 2))


@pytest.mark.parametrize("axis", AXES)
def test_sums_and_extremes(axis: int | tuple[int, ...] | None) -> None:
    def build(m: Maker, x: Expr) -> Expr:
        return m.tuple(m("sum", x, axis=axis), m("max", x, axis=axis), m("min", x, axis=axis), m("prod", x, axis=axis))

    plan = check(primitive([tensor((3, N, 19))], build), *SIZES, tolerance=1e-4)
    assert plan.variant == "rows"
    assert len(over_rows(plan)) <= 1, "reductions over the same axes share their loop"


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
def test_integers_and_booleans(axis: int, dtype: str) -> None:
    names = ("all", "any") if dtype == "bool" else ("sum", "max", "min", "argmax")

    def build(m: Maker, x: Expr) -> Expr:
        return m.tuple(*(m(name, x, axis=axis) for name in names))

    check(primitive([tensor((5, N, 33), dtype)], build), *SIZES)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_first_position_of_the_extreme_with_ties_and_nans(axis: int, dtype: str) -> None:
    def build(m: Maker, x: Expr) -> Expr:
        return m.tuple(m("argmax", x, axis=axis), m("argmin", x, axis=axis))

    rng = np.random.default_rng(5)
    x = rng.integers(-3, 3, (5, 9, 40)).astype(np.float32)
    x[2, 4, 7] = x[4, 8, 30] = np.nan
    x[1, :, 3] = -np.inf
    x[:, 2, 5] = np.inf
    check(primitive([tensor((5, N, 40), dtype)], build), {V: 9}, inputs=[x.astype(numpy_dtype(dtype))])


@pytest.mark.parametrize("columns", [9, 40, 1500, DimVar("c")])
def test_reductions_across_rows_share_their_loops(columns: int | DimVar) -> None:
    """The greatest and its place, what follows one of them, and a sum: each row is read once."""
    width, widths = (as_dim(columns), (1, 70)) if isinstance(columns, DimVar) else (columns, (columns,))

    def build(m: Maker, x: Expr, y: Expr) -> Expr:
        total = m("sum", m("multiply", x, x), axis=0)
        return m.tuple(m("add", m("max", x, axis=0), y), m("argmax", x, axis=0), total, m("argmin", x, axis=0))

    sizes = ({V: s, **({columns: w} if isinstance(columns, DimVar) else {})} for s in (1, 3, 22) for w in widths)
    plan = check(primitive([tensor((N, width)), tensor((width,))], build), *sizes, tolerance=1e-4)
    assert len([s for s in statements(plan.kernel.body) if isinstance(s, For) and s.var.name.endswith("g")]) == 1


@pytest.mark.parametrize(("shape", "steps"), [((16390, 768), 8), ((1024, 768), 4), ((300000, 64), 4)])
def test_sums_of_what_no_cache_holds_take_more_steps_at_once(shape: tuple[int, int], steps: int) -> None:
    plan = make_plan(primitive([tensor(shape)], lambda m, x: m("sum", x, axis=0)), ZEN4)
    loops = [s for s in statements(plan.kernel.body) if isinstance(s, For) and s.kind == "vectorized"]
    assert max(sum(isinstance(s, Store) for s in statements(loop)) for loop in loops) == steps
    if steps > 4:
        check(primitive([tensor(shape)], lambda m, x: m("sum", x, axis=0)), {}, tolerance=1e-4)


def test_reductions_of_different_elements_have_loops_of_their_own() -> None:
    """Sums of products of three tensors and of slices of a fourth, two of which read the same slice."""

    def build(m: Maker, x: Expr, y: Expr, z: Expr, rows: Expr) -> Expr:
        def part(first: int) -> Expr:
            return m("strided_slice", rows, begin=[first], end=[first + 22], axes=[0])

        products = [m("multiply", a, part(n)) for a, n in ((x, 0), (y, 22), (z, 44), (x, 44))]
        first, *others = [m("sum", p, axis=0) for p in products]
        for total in others:
            first = m("add", first, total)
        return first

    given = [tensor((22, 600))] * 3 + [tensor((66, 600))]
    plan = check(primitive(given, build), {}, tolerance=1e-4)
    assert len([s for s in statements(plan.kernel.body) if isinstance(s, For) and s.var.name.endswith("g")]) == 3


def test_sums_beside_a_number_that_is_computed_first() -> None:
    """A sum over columns keeps its rows behind a number, and goes with that which needs moments of the rows."""

    def build(m: Maker, x: Expr, y: Expr) -> Expr:
        scaled = m("multiply", x, m("sum", y))
        centred = m("subtract", x, m("mean", x, axis=1, keepdims=True))
        return m.tuple(m("sum", scaled, axis=0), m("sum", m("multiply", scaled, centred), axis=0))

    plan = check(primitive([tensor((N, 40)), tensor((3,))], build), *SIZES, tolerance=1e-3)
    assert len([s for s in statements(plan.kernel.body) if isinstance(s, For) and s.var.name.endswith("g")]) == 1


def test_extremes_propagate_nan() -> None:
    x = random((6, 50), "float32")
    x[2, 17] = np.nan
    for axis in (0, 1):
        fn = primitive([tensor((6, 50))], lambda m, x, axis=axis: m("max", x, axis=axis))
        check(fn, inputs=[x])
    y = random((3, 9, 40), "float32")  # first, in the middle and last among the steps of a lane
    y[0, 0, 3] = y[1, 4, 5] = y[1, 5, 5] = y[2, 8, 39] = np.nan
    for op in ("max", "min"):
        check(primitive([tensor((3, 9, 40))], lambda m, x, op=op: m(op, x, axis=1)), inputs=[y])


def test_extremes_of_pairs_propagate_nan() -> None:
    some = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, 1.0, -1.0, 1e-45], np.float32)
    x, y = (a.reshape(-1) for a in np.meshgrid(some, some))
    for op in ("maximum", "minimum"):
        fn = primitive([tensor((64,)), tensor((64,))], lambda m, x, y, op=op: m(op, x, y))
        check(fn, inputs=[x, y])


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax(axis: int) -> None:
    plan = check(primitive([tensor((4, N, 40))], lambda m, x: m("nn.softmax", x, axis=axis)), *SIZES)
    assert plan.variant == "rows"
    assert len(over_rows(plan)) == 1, "one pass over the rows"


def test_exponentials_and_their_sum_share_a_loop_and_lie_in_the_result() -> None:
    plan = check(primitive([tensor((N, 300))], lambda m, x: m("nn.softmax", x)), *SIZES)
    loops = [s for s in statements(plan.kernel.body) if isinstance(s, For) and s.kind == "vectorized"]
    assert len(loops) == 2, "one with three rows in flight, and the same at the first and last rows"
    assert all(len([s for s in statements(loop) if isinstance(s, LetScalar)]) == 2 for loop in loops)
    assert not [s for s in statements(plan.kernel.body) if isinstance(s, Alloc) and s.buffer.scope != "register"]


def _in_flight(plan: KernelPlan) -> bool:
    return _in_flight_there(plan.kernel.body)


def _in_flight_there(root: Stmt) -> bool:
    return any(isinstance(s, For) and s.var.name == "turn" for s in statements(root))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("width", [257, 400])
def test_two_rows_of_a_norm_at_a_time(width: int, dtype: str) -> None:
    """Their sums beside the results of the two rows before: every number of rows in the last turns, on each of three workers."""
    sizes = [{V: rows} for rows in (0, 1, 7, 8, 9, 10, 17, 61, 62)]
    norms: list[Callable[[Maker, Expr, Expr], Expr]] = [
        lambda m, x, g: m("nn.layer_norm", x, g, g),
        lambda m, x, g: m(
            "multiply", m("multiply", x, m("rsqrt", m("mean", m("multiply", x, x), axis=-1, keepdims=True))), g
        ),
        lambda m, x, g: m("multiply", m("subtract", x, m("max", x, axis=-1, keepdims=True)), g),
    ]
    for norm in norms[dtype == "float16" :]:  # moments of float16 rows take two passes
        types = [tensor((N, width), dtype), tensor((width,), dtype)]
        plan = check(primitive(types, norm), *sizes, tolerance=4e-3 if dtype == "float16" else 2e-5)
        turns = [s for s in statements(plan.kernel.body) if isinstance(s, For) and s.var.name == "turn"]
        assert len(turns) == 1
        stores = [s for s in statements(turns[0]) if isinstance(s, Store) and s.buffer.scope == "operand"]
        assert len(stores) == 4, "two rows, where all are there and where some are"


@pytest.mark.parametrize(("rows", "width", "paired"), [(7, 300, False), (64, 300, True), (64, 2000, False)])
def test_few_and_long_rows_go_one_by_one(rows: int, width: int, paired: bool) -> None:
    types = [tensor((rows, width)), tensor((width,))]
    assert _in_flight(check(primitive(types, lambda m, x, g: m("nn.layer_norm", x, g, g)))) is paired


@pytest.mark.parametrize("cpu", ["znver4", "sapphirerapids"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_two_rows_of_unknown_length_at_a_time_where_they_turn_out_to_fit(dtype: str, cpu: str) -> None:
    """And, where a processor outruns its caches, to be whole lines of them."""
    width, target = DimVar("w"), replace(HOST, cpu=cpu)
    sizes = [{V: rows, width: w} for rows in (0, 3, 8, 17, 62) for w in (0, 1, 64, 77, 256, 272, 300, 768, 1024, 3001)]
    types = [tensor((N, as_dim(width)), dtype), tensor((as_dim(width),), dtype)]

    def rms(m: Maker, x: Expr, g: Expr) -> Expr:
        square = m("mean", m("multiply", x, x), axis=-1, keepdims=True)
        return m("multiply", m("multiply", x, m("rsqrt", m("add", square, m.constant(1e-5, dtype)))), g)

    norms: list[Callable[[Maker, Expr, Expr], Expr]] = [lambda m, x, g: m("nn.layer_norm", x, g, g), rms]
    for norm in norms:
        plan = check(primitive(types, norm), *sizes, target=target)
        assert _in_flight(plan)
        *_, asked = (s for s in statements(plan.kernel.body) if isinstance(s, Branch) and _in_flight_there(s.then))
        lines = [n for n in walk(asked.cond) if isinstance(n, Compare) and n.op == "eq"]
        assert bool(lines) is target.outruns_caches


@pytest.mark.parametrize("width", [300, 301, 1000, DimVar("w")])
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_rows_in_flight(width: int | DimVar, dtype: str) -> None:
    """Steps of several rows share a loop: every number of rows up to more than a task has, on each of three workers."""
    extent, widths = (as_dim(width), (1, 15, 333)) if isinstance(width, DimVar) else (width, (width,))
    sizes = [
        {V: rows, **({width: w} if isinstance(width, DimVar) else {})} for rows in (1, 2, 3, 7, 64) for w in widths
    ]

    def build(m: Maker, x: Expr) -> Expr:
        share = m("nn.softmax", x)
        spread = m("exp", m("subtract", x, m("mean", x, axis=-1, keepdims=True)))
        return m.tuple(share, m("nn.log_softmax", x), m("sum", spread, axis=-1))

    tolerance = 2e-3 if dtype == "float16" else 2e-5
    for part in (build, lambda m, x: m("nn.softmax", x), lambda m, x: m("nn.log_softmax", x)):
        plan = check(
            primitive(
                [tensor((N, extent), dtype)],
                part,
            ),
            *sizes,
            tolerance=tolerance,
        )
    assert _in_flight(plan)


def test_rows_over_two_axes_in_flight_with_a_mask() -> None:
    def build(m: Maker, x: Expr, y: Expr) -> Expr:
        return m("nn.softmax", m("add", m("multiply", x, m.constant(0.125)), y))

    plan = check(primitive([tensor((3, N, 500)), tensor((N, 500))], build), *SIZES)
    assert _in_flight(plan)


def test_a_rows_result_does_not_depend_on_where_it_is() -> None:
    """The first and last rows of a task go through other code than those between."""
    plan = make_plan(
        primitive([tensor((N, 333))], lambda m, x: m("nn.log_softmax", x)), HOST, frozenset(), fresh_name()
    )
    assert _in_flight(plan)
    native, x = Native(plan.kernel, HOST), random((40, 333), "float32")
    whole = np.empty_like(x)
    assert native.run(native.bind([x, whole], {V: 40})) == 0
    for first, count in ((0, 1), (3, 2), (11, 5), (20, 20)):
        part = np.empty((count, 333), np.float32)
        assert native.run(native.bind([x[first : first + count].copy(), part], {V: count}, workers=1)) == 0
        np.testing.assert_array_equal(part, whole[first : first + count])


@pytest.mark.parametrize("bits", [128, 256])
def test_rows_in_flight_in_narrow_vectors(bits: int) -> None:
    target = replace(HOST, vector_bits=bits, vector_registers=16, masked=False)
    plan = check(primitive([tensor((N, 333))], lambda m, x: m("nn.softmax", x)), *SIZES, target=target)
    assert _in_flight(plan)


def test_elements_kept_for_rows_in_flight_have_places_in_turn() -> None:
    """Wide exponentials of narrow results do not lie in the result's memory."""
    plan = check(primitive([tensor((N, 300), "float16")], lambda m, x: m("nn.softmax", x)), *SIZES, tolerance=2e-3)
    assert [s for s in statements(plan.kernel.body) if isinstance(s, LetScalar) and s.var.name == "slot"]


@pytest.mark.parametrize("columns", [130, 2500, DimVar("w")])
@pytest.mark.parametrize("rows", [3, 17, 70])
def test_columns_are_shared_out_and_their_sums_do_not_depend_on_it(columns: int | DimVar, rows: int) -> None:
    extent, width = (as_dim(columns), 1111) if isinstance(columns, DimVar) else (columns, columns)

    def build(m: Maker, x: Expr) -> Expr:
        return m.tuple(m("variance", x, axis=0), m("max", x, axis=0), m("argmin", x, axis=0))

    env = {V: rows, **({columns: width} if isinstance(columns, DimVar) else {})}
    plan = check(primitive([tensor((N, extent))], build), env)
    native, x = Native(plan.kernel, HOST), random((rows, width), "float32")
    results = []
    for workers in (1, 2, 3):
        outs = [np.empty(width, b.dtype) for b in plan.kernel.outputs]
        assert native.run(native.bind([x, *outs], env, workers=workers)) == 0
        results.append(outs)
    for others in results[1:]:
        for mine, other in zip(results[0], others, strict=True):
            np.testing.assert_array_equal(mine, other)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("columns", [40, 2500, DimVar("w")])
def test_exponentials_and_their_sums_down_columns_share_a_loop(columns: int | DimVar, dtype: str) -> None:
    extent, width = (as_dim(columns), 1111) if isinstance(columns, DimVar) else (columns, columns)
    tolerance = 1e-5 if dtype == "float32" else 1e-2

    def build(m: Maker, x: Expr) -> Expr:
        return m("nn.softmax", x, axis=1)

    env = ({columns: width} if isinstance(columns, DimVar) else {}) | {V: 70}
    plan = check(primitive([tensor((2, N, extent), dtype)], build), env, {**env, V: 1}, tolerance=tolerance)
    loops = [s for s in statements(plan.kernel.body) if isinstance(s, For) and s.kind == "vectorized"]
    both = [loop for loop in loops if any(isinstance(n, Unary) and n.op == "exp" for n in _nodes(loop))]
    assert both, "exponentials are made in a vector loop"
    assert all(sum(isinstance(s, Store) for s in statements(loop)) == 2 for loop in both), "stored, and added up"


def test_sums_of_elements_at_other_places_have_a_loop_of_their_own() -> None:
    """What a sum reads of the row before, or of a later one, is not at hand where an element is made."""

    def define(x: te.Tensor) -> te.Tensor:
        e = te.compute(x.shape, lambda i, j: te.exp(x[i, j]), "e")
        k = te.reduce_axis(30, "k")
        total = te.compute((300,), lambda j: te.sum(e[29 - k, j] * x[k, j] * x[k, j], k), "total")
        return te.compute(x.shape, lambda i, j: e[i, j] / total[j])

    name = fresh_name()
    registry.operator(name)(define)
    check(primitive([tensor((30, 300))], lambda m, x: m(name, x)), tolerance=1e-5)


@pytest.mark.parametrize("shape", [(N, 24), (20, 100)])
def test_few_columns_have_vectors_of_a_known_size(shape: tuple[Any, int]) -> None:
    """What one thread does anyway is not shared out: lanes that nobody counts at run time."""
    plan = check(primitive([tensor(shape)], lambda m, x: m("logsumexp", x, axis=0)), {V: 9})
    loops = [s for s in statements(plan.kernel.body) if isinstance(s, For) and s.kind == "vectorized"]
    lanes = [
        s for s in loops if s.var.name != "wide"
    ]  # that of steps beside each other is shorter for the last of them
    assert lanes and all(isinstance(s.extent, Const) for s in lanes)


def test_sums_of_rows_are_not_in_flight() -> None:
    """They compute too little to gain, and read memory best in one run at a time."""
    assert not _in_flight(check(primitive([tensor((N, 300))], lambda m, x: m("variance", x, axis=-1)), *SIZES))


def test_nan_and_infinities_in_flight() -> None:
    x = random((9, 400), "float32")
    x[2, 17], x[5, 3], x[7] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        check(primitive([tensor((9, 400))], lambda m, x: m("nn.softmax", x)), inputs=[x])


def test_what_is_read_elsewhere_later_is_not_overwritten() -> None:
    def build(m: Maker, x: Expr) -> Expr:
        e = m("exp", m("subtract", x, m("max", x, axis=1, keepdims=True)))
        share = m("divide", e, m("sum", e, axis=1, keepdims=True))
        return m.tuple(share, m("add", m("multiply", e, e), m("mean", share, axis=1, keepdims=True)))

    check(primitive([tensor((N, 300))], build), *SIZES)


def test_sums_of_what_another_computes_at_other_places_keep_their_own_loop() -> None:
    def build(m: Maker, x: Expr) -> Expr:
        e = m("exp", x)
        total = m("sum", m("multiply", e, m("reverse", e, axis=1)), axis=1, keepdims=True)
        return m("divide", e, total)

    check(primitive([tensor((N, 70))], build), *SIZES)


def test_masked_softmax_with_a_symbolic_row() -> None:
    fn = primitive([tensor((2, 3, N, N)), tensor((2, 1, 1, N))], lambda m, x, k: m("nn.softmax", m("add", x, k)))
    check(fn, *SIZES)


def test_norms() -> None:
    layer = primitive([tensor((N, 96)), tensor((96,)), tensor((96,))], lambda m, x, g, b: m("nn.layer_norm", x, g, b))
    plan = check(layer, *SIZES)
    assert plan.variant == "rows"
    check(primitive([tensor((N, 96))], lambda m, x: m("nn.l2_normalize", x, axis=1)), *SIZES)
    check(primitive([tensor((N, 96))], lambda m, x: m("nn.l2_normalize", x, axis=0)), *SIZES)
    check(primitive([tensor((N, 24)), tensor((24,)), tensor((24,))],
                    lambda m, x, g, b: m("nn.layer_norm", m("add", x, x), g, b)), *SIZES)  # fmt: skip
    check(primitive([tensor((N, 8, 6, 6)), tensor((8,)), tensor((8,))],
                    lambda m, x, g, b: m("nn.group_norm", x, g, b, num_groups=4)), {V: 2})  # fmt: skip
    check(primitive([tensor((N, 8, 6, 6)), tensor((8,)), tensor((8,))],
                    lambda m, x, g, b: m("nn.instance_norm", x, g, b)), {V: 2})  # fmt: skip


@pytest.mark.parametrize("width", [5, 100, 256, 257])
def test_short_rows_take_their_steps_together(width: int) -> None:
    def build(m: Maker, x: Expr, g: Expr, b: Expr) -> Expr:
        return m("nn.softmax", m("nn.layer_norm", x, g, b))

    plan = check(primitive([tensor((2, N, width)), tensor((width,)), tensor((width,))], build), *SIZES)
    (outer,) = over_rows(plan)
    inside = [s for s in statements(outer.body) if isinstance(s, For) and s.kind == "serial" and s.var.extent == 4]
    assert bool(inside) == (width <= 256)
    for rows in (4, 7):
        check(primitive([tensor((3, rows, width)), tensor((width,)), tensor((width,))], build))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_sums_of_what_is_stacked_run_across_columns(axis: int) -> None:
    """What a step takes is one of the operands, at the same place for all steps: vectors go along the places."""

    def build(m: Maker, *xs: Expr) -> Expr:
        return m("mean", m("stack", m.tuple(*xs), axis=axis), axis=(axis,))

    kernel = check(primitive([tensor((5, 40))] * 3, build)).kernel
    loops = [s for s in statements(kernel.body) if isinstance(s, For) and s.kind == "vectorized"]
    assert any(buffers_read(loop).issuperset(kernel.inputs) for loop in loops)


def test_sums_across_reversed_columns_run_across_them() -> None:
    def build(m: Maker, x: Expr) -> Expr:
        return m("mean", m("reverse", x, axis=1), axis=(0,))

    kernel = check(primitive([tensor((40, 70))], build)).kernel
    loops = [s for s in statements(kernel.body) if isinstance(s, For) and s.kind == "vectorized"]
    assert not any(loop.var.extent == 40 for loop in loops)


def test_mean_pooling_with_a_mask_runs_across_columns() -> None:
    def build(m: Maker, x: Expr, k: Expr) -> Expr:
        return m("divide", m("sum", m("multiply", x, k), axis=0), m("sum", k, axis=0))

    k = np.ones((70, 1), np.float32)
    check(primitive([tensor((N, 384)), tensor((N, 1))], build), {V: 70}, inputs=[random((70, 384), "float32"), k])


@pytest.mark.parametrize("n", [40, N])
def test_sums_over_chosen_rows_run_along_these(n: int | DimVar) -> None:
    """What lies at neighbouring steps is the same for all columns; the rows that it chooses would be collected one by one."""

    def build(m: Maker, s: Expr, v: Expr, i: Expr) -> Expr:
        shares = m("expand_dims", m("nn.softmax", s), axis=2)
        return m("sum", m("multiply", shares, m("take", v, i, axis=0)), axis=1)

    args = [tensor((n, 17)), tensor((n, 48)), tensor((n, 17), "int64")]
    chosen = np.random.default_rng(0).integers(0, 40, (40, 17))
    inputs = [random((40, 17), "float32"), random((40, 48), "float32"), chosen]
    kernel = check(primitive(args, build), {V: 40}, inputs=inputs).kernel
    loops = [s for s in statements(kernel.body) if isinstance(s, For) and s.kind == "vectorized"]
    assert not any(kernel.inputs[1] in buffers_read(loop) and loop.var.name.startswith("k") for loop in loops)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_scans(axis: int) -> None:
    check(primitive([tensor((3, N, 33))], lambda m, x: m("cumsum", m("exp", x), axis=axis)), *SIZES, tolerance=1e-4)


def vector_loops_with_state(plan: KernelPlan) -> list[For]:
    """The vector loops that read what they reduce into."""
    found = [s for s in statements(plan.kernel.body) if isinstance(s, For) and s.kind == "vectorized"]
    return [s for s in found if any(b.name.startswith("state") for b in buffers_read(s.body))]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int8"])
@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_sums_along_a_row_run_in_vectors(dtype: str, exclusive: bool, turned: bool) -> None:
    def build(m: Maker, x: Expr) -> Expr:
        x = m("reverse", x, axis=1) if turned else x
        s = m("cumsum", x, axis=1, exclusive=exclusive)
        return m("reverse", s, axis=1) if turned else s

    plan = check(primitive([tensor((3, N), dtype)], build), *({V: n} for n in (0, 1, 15, 16, 17, 300)), tolerance=1e-4)
    assert vector_loops_with_state(plan)


def test_a_long_row_is_asked_for_ahead_as_it_is_summed() -> None:
    rows = ZEN4.l2_bytes // 4 // 3000 + 2
    plan = check(primitive([tensor((N, 3000))], lambda m, x: m("cumsum", x, axis=1)), {V: 2}, {V: rows}, tolerance=1e-3)
    assert any(isinstance(s, Prefetch) for s in statements(plan.kernel.body))
    assert vector_loops_with_state(plan)


def test_rows_of_unknown_number_in_each_head_are_not_divided_by_one_by_one() -> None:
    """A matrix for each head, whose rows are read by their head's vectors: the two axes are not one."""
    heads, width = as_dim(H := DimVar("h")), as_dim(W := DimVar("w"))
    types = [tensor((heads, N, width)), tensor((heads, width)), tensor((heads, width))]

    def build(m: Maker, state: Expr, key: Expr, decay: Expr) -> Expr:
        k, d = (m("expand_dims", x, axis=1, ty=tensor((heads, 1, width))) for x in (key, decay))
        read = m("sum", m("multiply", state, k, ty=types[0]), axis=[2], keepdims=True, ty=tensor((heads, N, 1)))
        return m("subtract", m("multiply", state, d), m("multiply", read, k))

    sizes = ({H: 3, V: 9, W: 21}, {H: 1, V: 1, W: 64}, {H: 4, V: 4, W: 3}, {H: 2, V: 0, W: 5})
    plan = check(primitive(types, build), *sizes)
    loops = (s for s in statements(plan.kernel.body) if isinstance(s, For) and s.kind == "parallel")
    outer, *_ = (s for s in loops if not _in_flight_there(s))
    (several,) = (s for s in statements(outer) if isinstance(s, For) and s.var.extent == 4)
    inside = [n for s in statements(several) for e in expressions(s) for n in walk(e)]
    assert not any(isinstance(n, Binary) and n.op == "floordiv" for n in inside)


def test_running_products_go_step_by_step() -> None:
    """One after the other 1e-30 * 1e30 * 1e30 is 1e30; the last two alone are infinite."""
    plan = check(primitive([tensor((3, N))], lambda m, x: m("cumprod", x, axis=1)), {V: 300})
    assert not vector_loops_with_state(plan)
    x = np.array([[1e-30, 1e30, 1e30]] * 3, np.float32)
    check(primitive([tensor((3, N))], lambda m, x: m("cumprod", x, axis=1)), {V: 3}, inputs=[x])


def test_a_scan_between_elementwise_stages() -> None:
    fn = primitive([tensor((N, 9))], lambda m, x: m("tanh", m("cumsum", m("sqrt", m("abs", x)), axis=1)))
    check(fn, *SIZES)


@pytest.mark.parametrize("op", ["nn.max_pool2d", "nn.avg_pool2d"])
def test_pooling(op: str) -> None:
    fn = primitive([tensor((N, 4, 14, 14))], lambda m, x: m(op, x, pool_size=(3, 3), strides=(2, 2), padding=(1, 1)))
    check(fn, {V: 1}, {V: 2})


def test_empty_reductions_give_the_neutral_element() -> None:
    def build(m: Maker, x: Expr) -> Expr:
        return m.tuple(m("sum", x, axis=0), m("prod", x, axis=0), m("max", x, axis=0))

    check(primitive([tensor((N, 5))], build), {V: 0})


def test_half_precision_sums_in_single() -> None:
    check(primitive([tensor((N, 512), "float16")], lambda m, x: m("sum", x, axis=1)), *SIZES, tolerance=2e-3)


def test_narrow_vectors_without_masks() -> None:
    target = replace(HOST, vector_bits=128, vector_registers=16, masked=False)
    check(primitive([tensor((N, 37))], lambda m, x: m("nn.softmax", x)), *SIZES, target=target)


def _run(
    plan: KernelPlan, inputs: list[Array], sizes: dict[DimVar, int], shape: tuple[int, ...]
) -> npt.NDArray[np.float32]:
    got = np.full(shape, 77, np.float32)
    native = Native(plan.kernel, HOST)
    assert native.run(native.bind([*inputs, got], sizes)) == 0
    return got


@pytest.mark.parametrize("width", [768, V])
def test_a_variance_is_made_in_one_pass_beside_a_number_near_the_mean(width: int | DimVar) -> None:
    """One pass over a part of the row, one over all of it: not two over all."""
    axis = as_dim(width) if isinstance(width, DimVar) else width
    variance = primitive([tensor((6, axis))], lambda m, x: m("variance", x, axis=1))
    plan = make_plan(variance, ZEN4, name=fresh_name())
    loops = [s for s in statements(plan.kernel.body) if isinstance(s, For) and s.kind == "vectorized"]
    # Of a loop over what may be far from the caches there are two.
    loops = [s for s in loops if not any(isinstance(inner, Prefetch) for inner in statements(s))]
    assert len(loops) == 2 and sum(loop.var.extent == axis for loop in loops) == 1
    vectors = [tensor((axis,))] * 2
    norm = primitive([tensor((6, axis)), *vectors], lambda m, x, g, b: m("nn.layer_norm", x, g, b))
    normal = make_plan(norm, ZEN4, name=fresh_name())
    for size in (768,) if width == 768 else (1, 2, 15, 17, 255, 300, 4096):
        rng = np.random.default_rng(size)
        x = rng.standard_normal((6, size)).astype(np.float32)
        x[1] += 1000  # far from zero
        x[2, : max(1, size // 16)] += 1e4  # the part that is looked at first is far from the others
        x[3] = 0.125  # no distance at all
        x[4] *= 10.0 ** rng.integers(-6, 6, size)
        exact = x.astype(np.float64)
        spread = _run(plan, [x], {V: size}, (6,))
        np.testing.assert_allclose(spread, exact.var(1), rtol=1e-5, atol=1e-12)
        assert (spread >= 0).all()
        ones, zeros = np.ones(size, np.float32), np.zeros(size, np.float32)
        out = _run(normal, [x, ones, zeros], {V: size}, (6, size))
        wanted = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=5e-4)


def test_squared_distances_in_rows_of_nothing_are_no_distance() -> None:
    """The mean of nothing is not a number; the sum over nothing is 0."""

    def build(m: Maker, x: Expr) -> Expr:
        d = m("subtract", x, m("mean", x, axis=1, keepdims=True))
        return m("sum", m("multiply", d, d), axis=1)

    fn = primitive([tensor((6, N))], build)
    with np.errstate(invalid="ignore"):
        check(fn, {V: 0}, {V: 1}, {V: 300}, tolerance=1e-4)


def test_variances_of_nan_infinities_and_great_numbers() -> None:
    x = random((7, 768), "float32")
    x[0, 0] = x[1, 700] = np.inf
    x[2, 3] = np.nan
    x[3, 5], x[3, 500] = -np.inf, np.inf
    x[4] *= 1e30
    x[5, :40] = 3e38
    plan = make_plan(primitive([tensor((7, 768))], lambda m, x: m("variance", x, axis=1)), ZEN4)
    spread = _run(plan, [x], {}, (7,))
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(spread[:5], x[:5].var(1), rtol=1e-4)
    assert not np.isfinite(spread[5])
    np.testing.assert_allclose(spread[6], x[6].astype(np.float64).var(), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_long_row_of_one_number_has_no_variance(dtype: str) -> None:
    """However great the number is: the rounding of its mean, squared, would be infinite."""
    numbers = np.array([0.0, 0.1, -7e5, 1e29, -1e35, 3e-39], dtype)
    if dtype == "float64":
        numbers = np.append(numbers, [1e200, -1e304])
    plan = make_plan(primitive([tensor((len(numbers), as_dim(V)), dtype)], lambda m, x: m("variance", x, axis=1)), ZEN4)
    for size in (1, 300, 1000, 768):
        x = np.repeat(numbers[:, None], size, 1)
        got = np.full(len(numbers), 77, dtype)
        native = Native(plan.kernel, HOST)
        assert native.run(native.bind([x, got], {V: size})) == 0
        np.testing.assert_array_equal(got, 0.0)


def test_a_number_of_each_channel_does_not_decide_the_order_of_images() -> None:
    """Images are gone through in the order of memory, not channel by channel."""

    def build(m: Maker, x: Expr, v: Expr) -> Expr:
        return m("multiply", x, m("expand_dims", m("rsqrt", m("multiply", v, v)), axis=1))

    plan = check(primitive([tensor((N, 64, 300)), tensor((64,))], build), {V: 1}, {V: 9})
    loops = [s for s in statements(plan.kernel.body) if isinstance(s, For)]
    assert not [loop for loop in loops if loop.kind == "serial"]
    assert [loop.var.extent for loop in loops if loop.kind == "parallel"] == [dim_mul(64, N)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_jumps_is_told_what_narrow_floats_hold(dtype: str) -> None:
    """The greatest product is rounded where it is kept, and each product is compared with it; steps fall where rounded numbers do."""

    def build(m: Maker, x: Expr, y: Expr) -> Expr:
        p = m("multiply", x, y)
        top = m("equal", p, m("max", p, axis=1, keepdims=True))
        steps = (m("floor", p), m("cast", p, dtype="int32"), m("argmax", p, axis=1))
        return m.tuple(m("cast", top, dtype="int32"), *steps)

    check(primitive([tensor((N, 40), dtype), tensor((N, 40), dtype)], build), *SIZES)


def across(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    """A mean over channels of what places of two images have in common, several places apart."""
    sizes: Any = x.shape
    c, h, w = sizes
    k = te.reduce_axis(c)

    def element(d: Any, i: Any, j: Any) -> Any:
        return te.sum(te.select(j >= d, x[k, i, 2 * j] * y[k, i, te.maximum(2 * (j - d), 0)], 0.0), k) / te.size(
            c, x.dtype
        )

    return te.compute((3, h, w // 2), element)


@pytest.mark.parametrize("channels", [24, N])
def test_lanes_of_sums_inside_an_expression_run_across_near_columns(channels: Any) -> None:
    """What is met first in the expression, a condition, does not say along what lanes go; nor do channels that lie far apart."""
    registry.operator("rows.across")(across)
    try:
        given = [tensor((channels, 5, 64))] * 2
        plan = check(primitive(given, lambda m, *x: m("rows.across", *x)), {V: 1}, {V: 24}, tolerance=1e-4)
        loops = [s for s in statements(plan.kernel.body) if isinstance(s, For) and s.kind == "vectorized"]
        assert loops and all(isinstance(s.extent, Const) and s.extent.value == 32 for s in loops)
    finally:
        registry.remove("rows.across")


def terms_of_rows(x: te.Tensor, y: te.Tensor) -> te.Tensor:
    """Four sums a row of terms that are not zero where there is nothing: what the row's have in common is computed once."""
    n, m = x.shape[0], y.shape[0]
    k, v = te.reduce_axis(n), te.reduce_axis(m)

    def body(i: Any, c: Any) -> Any:
        return te.sum(te.exp(x[k] - te.cast(i, x.dtype)) + te.abs(y[v] - te.cast(c + 1, x.dtype)), (k, v))

    sums = te.compute((n, 4), body)
    return te.compute((n,), lambda i: sums[te.size(n) - 1 - i, i % 4] * sums[i, 0])


def test_lanes_past_a_line_s_end_are_not_added_up() -> None:
    registry.operator("rows.terms")(terms_of_rows)
    try:
        m = DimVar("m")
        given = [tensor((N,)), tensor((as_dim(m),))]
        sizes = [{V: n, m: k} for n, k in ((5, 4), (3, 17), (2, 1), (1, 33))]
        check(primitive(given, lambda m, *x: m("rows.terms", *x)), *sizes, tolerance=1e-4)
    finally:
        registry.remove("rows.terms")


def test_lines_of_less_than_a_vector_keep_what_they_pass_on_in_registers() -> None:
    """Neither how long lines are is known before, nor what is summed up across them: which it is, is asked when it runs."""
    names = [DimVar(name) for name in "bkc"]
    given = tensor(tuple(as_dim(v) for v in names))
    fn = primitive([given], lambda m, x: m("logsumexp", m("multiply", x, x), axis=(1,)))
    sizes = ((2, 5, 3), (1, 1, 16), (3, 40, 17), (2, 3, 1), (2, 0, 4), (1, 9, 300))
    plan = check(fn, *(dict(zip(names, s, strict=True)) for s in sizes), tolerance=1e-5)
    ways = [s for s in statements(plan.kernel.body) if isinstance(s, Branch) and s.orelse is not None]

    def held(root: Stmt) -> bool:
        kept = [s.buffer for s in statements(root) if isinstance(s, Alloc)]
        # Sums of steps beside each other are more than registers hold.
        return all(b.scope == "register" for b in kept if not b.name.startswith(("wide", "repeated")))

    found = any(held(s.then) and s.orelse is not None and not held(s.orelse) for s in ways)
    assert found == ZEN4.masked


def causal(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    """Each column's sum of what came before, with weights of its own that lie behind each other."""
    (n, c), (_, size) = x.shape, w.shape
    k = te.reduce_axis(size)

    def body(i: Any, d: Any) -> Any:
        at = i + k - (te.size(size) - 1)
        return te.sum(te.select(at >= 0, x[at, d], 0.0) * w[d, k], k)

    return te.compute((n, c), body)


def test_where_operands_lie_either_way_lanes_run_across_as_many_columns_as_lanes() -> None:
    registry.operator("rows.causal")(causal)
    try:
        c, k = DimVar("c"), DimVar("k")
        given = [tensor((N, as_dim(c))), tensor((as_dim(c), as_dim(k)))]
        sizes = [{V: n, c: columns, k: taps} for n, columns, taps in ((6, 3, 4), (5, 21, 4), (1, 64, 70), (3, 2, 40))]
        plan = check(primitive(given, lambda m, *x: m("rows.causal", *x)), *sizes, tolerance=1e-4)
        ways = [s for s in statements(plan.kernel.body) if isinstance(s, Branch) and s.orelse is not None]
        conditions = [s.cond for s in ways if isinstance(s.cond, Compare)]
        assert any(isinstance(each.a, Size) and each.a.dim == as_dim(c) for each in conditions)
    finally:
        registry.remove("rows.causal")


def test_short_sums_in_long_blocks_do_not_turn_lanes_across_blocks() -> None:
    """Blocks lie 4 KB apart: each lane across them would be a cache line of its own, all of them in the same set."""
    attrs: dict[str, Any] = {"pad_width": [[0, 0], [0, 0], [2, 2], [2, 2]], "pad_mode": "edge"}
    image, like = tensor((3, 7, 28, 28)), tensor((3, 7, 32, 32))
    plan = check(primitive([image, like], lambda m, x, g: m("nn.pad.vjp0", x, g, ty=image, **attrs)))
    assert any(
        s.var.extent == 28 for s in statements(plan.kernel.body) if isinstance(s, For) and s.kind == "vectorized"
    )


@pytest.mark.parametrize("op", ["nn.matmul", "nn.dense"])
@pytest.mark.parametrize(
    ("sizes", "line"),
    [((6, 6, 6), 6), ((3, 4, 4), 4), ((5, 32, 6), 6), ((12, 12, 12), 12), ((2, 10, 10), 10), ((5, 6, 7), 7)],
)
def test_small_products_have_lanes_across_columns(op: str, sizes: tuple[int, int, int], line: int) -> None:
    """Sums along fewer elements than a vector has lanes would be added up lane by lane, and read lane by lane where these lie apart."""
    m, k, n = sizes
    fn = primitive([tensor((m, k)), tensor((k, n) if op == "nn.matmul" else (n, k))], lambda make, a, b: make(op, a, b))
    plan = check(fn, {}, tolerance=1e-5)
    loops = [s for s in statements(plan.kernel.body) if isinstance(s, For) and s.kind == "vectorized"]
    along = op == "nn.dense" and k > 16
    assert loops and all((s.var.extent == line) != along for s in loops)


@pytest.mark.parametrize("op", ["where", "argmax"])
def test_rows_of_a_square_are_few_where_they_are_short(op: str) -> None:
    """There is no code for rows that are short, and more than a vector has lanes."""

    def build(m: Maker, a: Expr, b: Expr, c: Expr) -> Expr:
        if op == "argmax":
            return m("argmax", a, axis=1)
        chosen = m("where", m("greater", b, c), b, c)
        return m("add", a, m("multiply", m("expand_dims", chosen, axis=1), m("expand_dims", b, axis=0)))

    fn = primitive([tensor((N, N)), tensor((N,)), tensor((N,))], build)
    check(fn, *({V: size} for size in (1, 7, 8, 16, 33)))
    text = kernel_text(make_plan(fn, ZEN4).kernel)
    assert "<= 8" not in text and "> 8" not in text


@pytest.mark.parametrize("dtype", ["uint8", "int16", "bool", "float16", "float32"])
@pytest.mark.parametrize("classes", [2, 3, 4])
def test_classes_of_rows(dtype: str, classes: int) -> None:
    """Lanes across rows, whose narrow elements are stored apart."""

    def build(m: Maker, x: Expr) -> Expr:
        best = m("clip", m("cast", m("max", x, axis=1), dtype="int32"), a_min=0.0, a_max=classes - 1.0)
        on, off = m("cast", m("ones", shape=(), dtype="int32"), dtype=dtype), m("zeros", shape=(), dtype=dtype)
        return m("one_hot", best, on, off, depth=classes, axis=-1, dtype=dtype)

    check(primitive([tensor((N, classes))], build), *({V: n} for n in (1, 2, 7, 16, 33)))


def test_classes_of_rows_as_bytes() -> None:
    module = relay.parse("""#[version = "0.0.5"]
    def @main[n: Dim](%x: Tensor[(n, 4), float32]) -> Tensor[(n, 4), uint8] {
      one_hot(clip(cast(max(%x, axis=[1]), dtype="int32"), a_min=0f, a_max=3f), 1u8, 0u8, depth=4, axis=-1, dtype="uint8")
    }""")
    compiled = relay.compile(module)
    for n in (1, 2, 7, 16, 33):
        x = 3 * random((n, 4), "float32")
        np.testing.assert_array_equal(np.asarray(compiled(x)), np.asarray(relay.evaluate(module, x)))
