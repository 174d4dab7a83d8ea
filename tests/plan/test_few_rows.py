"""Products of a few rows with a right operand that is not packed: tiles and streams where its rows are along the columns of
the result, dot products where they are along k; and the numbers of rows around the limits where packing begins."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

import relay
from relay.codegen.target import parse_target
from relay.ir.dim import DimVar, as_dim
from relay.ir.expr import Expr, Function
from relay.loop.evaluate import evaluate
from relay.loop.ir import Alloc, Behind, For, Prefetch, Store
from relay.loop.printer import kernel_text
from relay.loop.target import Target
from relay.loop.walk import nodes, statements
from relay.plan import make_plan, unpacked
from relay.plan.kernel_plan import KernelPlan
from relay.plan.tiles import has_halves
from tests.plan.harness import HOST, ZEN4, Maker, Native, check, fresh_name, primitive, random, tensor

V = DimVar("n")
N = as_dim(V)
ROWS = tuple({V: n} for n in (0, 1, 2, 3, 5, 6, 7, 13, 16, 17, 24, 25, 49, 60, 257))


def streamed(rows: object, depth: object, columns: object) -> Function:
    return primitive([tensor((rows, depth)), tensor((depth, columns))], lambda m, x, w: m("nn.matmul", x, w))


def dotted(rows: object, depth: object, columns: object) -> Function:
    return primitive([tensor((rows, depth)), tensor((columns, depth))], lambda m, x, w: m("nn.dense", x, w))


@pytest.mark.parametrize("make", [streamed, dotted])
@pytest.mark.parametrize(("depth", "columns"), [(400, 70), (33, 300), (3, 1000), (1, 2048), (130, 1)])
def test_every_number_of_rows(make: object, depth: int, columns: int) -> None:
    check(make(N, depth, columns), *ROWS)  # type: ignore[operator]


@pytest.mark.parametrize("make", [streamed, dotted])
@pytest.mark.parametrize("rows", [1, 4, 9])
def test_known_rows(make: object, rows: int) -> None:
    plan = check(make(rows, 200, 130))  # type: ignore[operator]
    assert plan.variant == "matrix" and "Transpose(" not in str(plan.kernel.body)


def test_depth_of_two_unknown_axes_that_one_of_them_turns_round() -> None:
    """The sum runs over two axes, of which the left operand's first is read backwards: neither the blocks of the inner one nor what is
    left of it is told to be inside of it by its size, which is not known."""
    names = [DimVar(name) for name in "tbc"]
    t, b, c = map(as_dim, names)

    def made(m: Maker, x: Expr, g: Expr) -> Expr:
        rows = m("reshape", m("reverse", x, axis=0), newshape=(-3, -2))
        return m("nn.matmul", m("transpose", rows), m("reshape", g, newshape=(-3, -2)))

    program = primitive([tensor((t, b, c)), tensor((t, b, 7))], made)
    check(program, *(dict(zip(names, s, strict=True)) for s in ((3, 5, 2), (1, 9, 6), (4, 1, 30), (2, 0, 3))))


@pytest.mark.parametrize("make", [streamed, dotted])
def test_symbolic_depth_and_columns(make: object) -> None:
    sizes = [{V: n} for n in (0, 1, 2, 5, 40, 130)]
    check(make(1, N, 96), *sizes)  # type: ignore[operator]
    check(make(3, 96, N), *sizes)  # type: ignore[operator]


def test_chunks_of_columns() -> None:
    check(streamed(1, 300, 10))
    check(streamed(N, 300, 10), {V: 1}, {V: 2})
    check(streamed(N, 20, 9001), *({V: n} for n in (1, 4, 7)))
    check(dotted(N, 300, 1000), *({V: n} for n in (1, 4, 7)))


@pytest.mark.parametrize("transpose_b", [False, True])
def test_batches(transpose_b: bool) -> None:
    shape = (7, 50, 33) if transpose_b else (7, 33, 50)
    fn = primitive(
        [tensor((7, N, 33)), tensor(shape)], lambda m, x, w: m("nn.batch_matmul", x, w, transpose_b=transpose_b)
    )
    check(fn, *ROWS)
    one = primitive(
        [tensor((N, 1, 33)), tensor((N, *shape[1:]))],
        lambda m, x, w: m("nn.batch_matmul", x, w, transpose_b=transpose_b),
    )
    check(one, {V: 0}, {V: 1}, {V: 9})


@pytest.mark.parametrize("make", [streamed, dotted])
def test_epilogues(make: object) -> None:
    weight = (300, 90) if make is dotted else (90, 300)

    def build(m: Maker, x: Expr, w: Expr, b: Expr, r: Expr) -> Expr:
        y = m("nn.dense", x, w) if make is dotted else m("nn.matmul", x, w)
        return m("add", m("nn.gelu", m("add", y, b)), r)

    fn = primitive([tensor((N, 90)), tensor(weight), tensor((300,)), tensor((N, 300))], build)
    assert check(fn, *ROWS).variant == "matrix"


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("int32", 0.0), ("float16", 3e-3)])
@pytest.mark.parametrize("make", [streamed, dotted])
def test_other_dtypes(make: object, dtype: str, tolerance: float) -> None:
    weight = (96, 64) if make is dotted else (64, 96)
    op = "nn.dense" if make is dotted else "nn.matmul"
    fn = primitive([tensor((N, 64), dtype), tensor(weight, dtype)], lambda m, x, w: m(op, x, w))
    check(fn, *ROWS, tolerance=tolerance)


@pytest.mark.parametrize("name", ["nn.matmul", "nn.dense"])
def test_weights_converted_to_a_dtype_as_wide(name: str) -> None:
    for wide, narrow in (("float32", "int32"), ("int64", "uint64")):
        weight = tensor((96, 64) if name == "nn.dense" else (64, 96), narrow)
        fn = primitive([tensor((N, 64), wide), weight], lambda m, x, w, t=wide: m(name, x, w, out_dtype=t))
        check(fn, {V: 1}, {V: 3}, {V: 30})


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int8"])
@pytest.mark.parametrize("constants", [frozenset(), frozenset({1})])
def test_narrow_weights(dtype: str, constants: frozenset[int]) -> None:
    """Elements of half a byte are asked for ahead too, as arguments, and packed as constants."""
    for rows in (1, 4, 40):
        fn = primitive(
            [tensor((rows, 768)), tensor((33, 768), dtype)], lambda m, x, w: m("nn.dense", x, w, out_dtype="float32")
        )
        check(fn, constants=constants)


def test_a_matrix_times_a_vector() -> None:
    """The vector is the left operand: its product with the matrix has no rows."""
    fn = primitive([tensor((500, 300)), tensor((300, 1))], lambda m, a, x: m("squeeze", m("nn.matmul", a, x), axis=[1]))
    check(fn)


def test_tiles_take_the_operand_where_it_is() -> None:
    """From 4 rows on, where vectors have masks or no column is left over; rows far apart by a power of two are packed sooner."""
    for rows in (4, 8, 12, 100):
        assert not packs(check(streamed(rows, 60, 75)))
    unmasked = replace(HOST, masked=False)
    assert "Prefetch(" not in str(check(streamed(12, 60, 75), target=unmasked).kernel.body)
    assert not packs(check(streamed(40, 40, 2048)))
    assert packs(check(streamed(40, 40, 4096)))


# Where multiply-adds wait for caches, and with one that holds little.
WAITING = replace(HOST, cpu="sapphirerapids")
SMALL = replace(WAITING, l2_bytes=16 << 10)


@pytest.mark.parametrize(("target", "most"), [("x86-64-v3", 6), ("znver4", 8)])
def test_one_tile_of_a_run_time_operand_is_a_line_wide(target: str, most: int) -> None:
    """Narrower ones would bring each line of the operand twice: more rows are packed, or several tiles."""
    for rows in (most, most + 1):
        fn = primitive([tensor((rows, 40)), tensor((40, 96))], lambda m, x, w: m("nn.matmul", x, w))
        body = check(fn, {}, target=parse_target(target)).kernel.body
        tiles = [s.buffer for s in statements(body) if isinstance(s, Alloc) and s.buffer.scope == "register"]
        assert all(isinstance(b.shape[1], int) and b.shape[1] >= 16 for b in tiles)
        assert any(b.shape[0] == rows for b in tiles) is (rows == most)


@pytest.mark.parametrize("columns", [75, 96, "m"])
def test_short_vectors_stream_an_operand_that_is_far(columns: int | str) -> None:
    """Also of a number of columns that is no whole vectors: what is behind them are sums of their own, of zeros, and nobody reads it."""
    far = replace(parse_target("x86-64-v3"), l2_bytes=8 << 10)
    m = DimVar("m")
    wide = [{V: n} if isinstance(columns, int) else {V: n, m: w} for n in (1, 5, 8, 12, 13) for w in (1, 8, 75)]
    plan = check(streamed(N, 40, columns if isinstance(columns, int) else as_dim(m)), *wide, target=far)
    text = kernel_text(plan.kernel)
    assert "sums" in text.split("panel")[0]
    near = replace(far, l2_bytes=1 << 20)
    for rows, target, is_streamed in ((8, far, True), (13, far, False), (8, near, False)):
        body = check(streamed(rows, 40, 75), target=target).kernel.body
        assert any(isinstance(s, Alloc) and s.buffer.name.startswith("sums") for s in statements(body)) is is_streamed
        assert packs(check(streamed(rows, 40, 75), target=target)) is not is_streamed
    narrow = check(streamed(8, 400, 24), target=far).kernel.body
    assert not any(isinstance(s, Alloc) and s.buffer.name.startswith("sums") for s in statements(narrow))


@pytest.mark.skipif(HOST.vector_bits < 512, reason="where vectors are long")
def test_where_multiply_adds_wait_for_caches_more_is_streamed_and_packed() -> None:
    """A near operand is read where it is by one tile, of up to 12 rows, and packed for more; a large one is streamed for up to 4."""
    assert WAITING.outruns_caches and not replace(WAITING, cpu="znver4").outruns_caches
    assert [packs(check(streamed(rows, 60, 128), target=WAITING)) for rows in (4, 12, 13)] == [False, False, True]
    blocks = ["Prefetch(" in str(check(streamed(rows, 130, 75), target=SMALL).kernel.body) for rows in (1, 4, 5, 9)]
    assert blocks == [False, False, True, True]
    check(dotted(N, 400, 70), *ROWS, target=WAITING)


@pytest.mark.skipif(HOST.vector_bits < 512, reason="where vectors are long")
@pytest.mark.parametrize(("size", "asks"), [(0.7, (True, True)), (1.5, (True, False)), (3, (False, False))])
def test_nothing_is_asked_for_of_an_operand_at_hand(size: float, asks: tuple[bool, ...]) -> None:
    """Where multiply-adds wait for caches: a tile of all rows asks for none of half of the second-level cache, the first of several for
    none of all of it."""
    target = replace(WAITING, l2_bytes=int(size * 60 * 128 * 4))

    def is_asked_for(rows: int, target: Target) -> bool:
        body = check(streamed(rows, 60, 128), target=target).kernel.body
        return any(isinstance(s, Prefetch) and not s.write for s in statements(body))

    assert tuple(is_asked_for(rows, target) for rows in (12, 24)) == asks


@pytest.mark.skipif(HOST.vector_bits < 512, reason="where vectors are long")
@pytest.mark.parametrize(("depth", "columns", "rows"), [(130, 75, 17), (33, 140, 13)])
def test_a_few_rows_go_through_an_operand_by_blocks_of_depth(depth: int, columns: int, rows: int) -> None:
    """Whole panels and parts of one, whole blocks and a shorter last one; a known number of rows, and any; a dear epilogue."""

    def build(m: Maker, x: Expr, w: Expr, b: Expr) -> Expr:
        return m("nn.gelu", m("add", m("nn.matmul", x, w), b))

    fn = primitive([tensor((N, depth)), tensor((depth, columns)), tensor((columns,))], build)
    plan = check(fn, *({V: n} for n in (0, 1, 4, 5, 12, 13, 24, 25, 60)), target=SMALL)
    assert "kb" in str(plan.kernel.body)
    known = check(streamed(rows, depth, columns), target=SMALL)
    assert not packs(known)
    # The first of several tiles leaves a block behind for the others.
    assert any(isinstance(s, Alloc) and "copy" in s.buffer.name for s in statements(known.kernel.body))
    one = check(streamed(12, depth, columns), target=SMALL)
    assert not any(isinstance(s, Alloc) and "copy" in s.buffer.name for s in statements(one.kernel.body))


@pytest.mark.skipif(HOST.vector_bits < 512, reason="where vectors are long")
def test_blocks_of_depth_change_no_bit() -> None:
    """Nor does the number of threads, each of which has panels of its own."""
    arrays = [random(shape, "float32", n) for n, shape in enumerate([(13, 130), (130, 170)])]
    found = []
    for target in (SMALL, replace(WAITING, l2_bytes=30 << 10), replace(WAITING, cpu="znver4")):
        plan = make_plan(streamed(13, 130, 170), target, frozenset(), fresh_name())
        native = Native(plan.kernel, target)
        for workers in (1, 2, 3):
            out = np.zeros((13, 170), np.float32)
            assert native.run(native.bind([*arrays, out], {}, workers)) == 0
            found.append(out)
    assert all(np.array_equal(found[0], other) for other in found)


def test_dot_products_ask_for_the_columns_behind_them() -> None:
    """Also where the operand is narrower, and past its end."""
    for dtype in ("float32", "float16"):
        fn = primitive([tensor((N, 72), dtype), tensor((90, 72), dtype)], lambda m, x, w: m("nn.dense", x, w))
        plan = check(fn, *ROWS, tolerance=3e-3)
        assert "Prefetch(" in str(plan.kernel.body) and not plan.packs


def test_which_tile_it_is_is_asked_before_the_columns() -> None:
    """Where all rows are one tile there is nothing to share out, and a single row asks for what lies behind only in an operand that no
    cache holds, which is known when it runs."""
    names = [DimVar(name) for name in "nkm"]
    fn = dotted(*(as_dim(v) for v in names))
    plan = check(
        fn, *(dict(zip(names, s, strict=True)) for s in ((0, 5, 3), (1, 40, 70), (3, 7, 9), (6, 33, 32), (7, 20, 40)))
    )
    if ZEN4.vector_registers < 32:
        return  # tiles are lower, and there are two
    dots = kernel_text(plan.kernel).split("else\n")[0]
    assert "serial tile" not in dots and dots.index("switch n - 1") < dots.index("serial group")
    single = dots[dots.index("case 0") : dots.index("case 1")]
    assert re.search(r"if .* > \d+\n\s+prefetch", single) and single.count("prefetch") == 4


def test_one_tile_where_columns_are_not_known_either() -> None:
    m = DimVar("m")
    sizes = [{V: rows, m: columns} for rows in (1, 3, 4, 8, 9, 24, 25, 60) for columns in (1, 31, 64, 100)]
    for make in (streamed, dotted):
        check(make(N, 70, as_dim(m)), *sizes)


@pytest.mark.parametrize("make", [streamed, dotted])
@pytest.mark.parametrize("rows", [N, 60, 300])
def test_the_last_of_an_unknown_number_of_columns_have_narrower_tiles(make: object, rows: object) -> None:
    """A vector, and half of one where there are not many heights."""
    m, k = DimVar("m"), DimVar("k")
    heights = (1, 5, 7, 24, 25, 60) if rows is N else (1,)
    sizes = [{V: n, m: columns, k: 9} for n in heights for columns in (0, 1, 3, 8, 9, 16, 17, 32, 33, 41, 49, 70)]
    plan = check(make(rows, as_dim(k), as_dim(m)), *sizes)  # type: ignore[operator]
    widths = {
        int(str(s.buffer.shape[-1]))
        for s in statements(plan.kernel.body)
        if isinstance(s, Alloc) and s.buffer.name.startswith("registers")
    }
    lanes = ZEN4.lanes(32)
    assert {lanes, 2 * lanes} <= widths and (lanes // 2 in widths) == (rows is not N and has_halves(ZEN4))


def packs(plan: KernelPlan) -> bool:
    """Whether a kernel has room for panels."""
    return any(isinstance(s, Alloc) and "panel" in s.buffer.name for s in statements(plan.kernel.body))


@pytest.mark.parametrize(
    ("cpu", "block", "make", "columns"),
    [
        ("znver4", 1502, streamed, 250),
        ("znver4", 1502, dotted, 128),
        ("sapphirerapids", 1002, streamed, 128),
        ("sapphirerapids", 1002, dotted, 250),
    ],
)
def test_a_panel_is_packed_by_blocks_of_k(make: object, columns: int, cpu: str, block: int) -> None:
    """Where all of k would not stay in the second-level cache; the last block is shorter."""
    plan = check(make(N, 3001, columns), *({V: n} for n in (49, 257)), target=replace(ZEN4, cpu=cpu))  # type: ignore[operator]
    panel = next(s.buffer for s in statements(plan.kernel.body) if isinstance(s, Alloc) and "panel" in s.buffer.name)
    (size,) = panel.shape
    assert isinstance(size, int) and size % block == 0 and size // block <= 64


def packs_as_it_goes(plan: KernelPlan) -> bool:
    """Whether what multiplies also writes a panel."""
    loops = (s for s in statements(plan.kernel.body) if isinstance(s, For) and s.var.name.startswith("k"))
    written = ([s.buffer for s in statements(loop) if isinstance(s, Store)] for loop in loops)
    return any({"register"} < {b.scope for b in found} and any("panel" in b.name for b in found) for found in written)


@pytest.mark.parametrize("target", [HOST, replace(HOST, masked=False), parse_target("x86-64-v3")])
def test_the_first_tile_packs_for_the_others(target: Target) -> None:
    """Every element of a panel is what the first tile read, also past the last column and below the last whole block."""
    fn = streamed(N, 130, 4100)
    plan = check(fn, *({V: n} for n in (25, 49, 60, 800)), target=target)
    assert packs(plan) and packs_as_it_goes(plan) == target.masked
    batch = primitive(
        [tensor((3, N, 40)), tensor((3, 40, 4100))], lambda m, x, w: m("nn.batch_matmul", x, w, transpose_b=False)
    )
    assert packs(check(batch, {V: 30}, {V: 49}, target=target))


@pytest.mark.parametrize("masked", [False, True])
def test_narrow_vectors(masked: bool) -> None:
    target = replace(HOST, vector_bits=256, vector_registers=16, masked=masked)
    check(streamed(N, 75, 130), *ROWS, target=target)
    check(dotted(N, 75, 130), *ROWS, target=target)


@pytest.mark.parametrize("make", [streamed, dotted])
@pytest.mark.parametrize("rows", [1, 11, 70])
def test_the_number_of_threads_changes_nothing(make: object, rows: int) -> None:
    plan = make_plan(make(N, 300, 2100), HOST, name=fresh_name())  # type: ignore[operator]
    native = Native(plan.kernel, HOST)
    x = random((rows, 300), "float32")
    w = random((2100, 300) if make is dotted else (300, 2100), "float32", 1)
    found = []
    for workers in (1, 2, 3):
        out = np.zeros((rows, 2100), np.float32)
        assert native.run(native.bind([x, w, out], {plan.kernel.dims[0]: rows}, workers)) == 0
        found.append(out)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("columns", [16, 32, 5008])
def test_rows_that_begin_behind_lines(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks and panels begin at lines, wherever the operand lies; the evaluator refuses what lies before it."""
    monkeypatch.setattr(unpacked, "_FAR", 0)
    monkeypatch.setattr(unpacked, "_PANELS", 0)
    plan = check(streamed(N, 9, columns), *({V: n} for n in (0, 1, 2, 3, 4, 5, 8, 9, 20)))
    assert any(isinstance(n, Behind) for n in nodes(plan.kernel.body))
    assert not any(isinstance(n, Behind) for n in nodes(check(streamed(N, 9, columns + 1), {V: 3}).kernel.body))
    w = np.asarray(random((9, columns), "float32"), np.float32)
    for rows in (2, 6) if columns <= 32 else ():
        x, out = np.asarray(random((rows, 9), "float32"), np.float32), np.zeros(rows * columns, np.float32)
        assert evaluate(plan.kernel, [x.ravel(), w.ravel(), out], {plan.kernel.dims[0]: rows}) == 0
        np.testing.assert_allclose(out, (x @ w).ravel(), rtol=1e-4, atol=1e-5)

    def build(m: Maker, x: Expr, w: Expr, b: Expr) -> Expr:
        return m("nn.gelu", m("add", m("nn.matmul", x, w), b))

    check(primitive([tensor((N, 9)), tensor((9, columns)), tensor((columns,))], build), {V: 2}, {V: 6}, {V: 20})
    pairs = primitive(
        [tensor((3, N, 9)), tensor((3, 9, columns))], lambda m, x, w: m("nn.batch_matmul", x, w, transpose_b=False)
    )
    check(pairs, {V: 1}, {V: 5})


@pytest.mark.parametrize("depth", [127, 128, 144])
def test_dot_products_in_lines(depth: int) -> None:
    """Columns that begin equally far behind lines are read in whole ones; the evaluator refuses what lies before them or behind."""
    plan = check(dotted(N, depth, 39), *({V: n} for n in (0, 1, 2, 3, 4, 7, 9)))
    assert any(isinstance(n, Behind) for n in nodes(plan.kernel.body)) == (depth % 16 == 0)
    check(dotted(N, depth, 39), {V: 1}, {V: 3}, target=replace(HOST, cpu="sapphirerapids"))
    w = np.asarray(random((39, depth), "float32"), np.float32)
    for rows in (1, 3):
        x, out = np.asarray(random((rows, depth), "float32"), np.float32), np.zeros(rows * 39, np.float32)
        assert evaluate(plan.kernel, [x.ravel(), w.ravel(), out], {plan.kernel.dims[0]: rows}) == 0
        np.testing.assert_allclose(out, (x @ w.T).ravel(), rtol=1e-4, atol=1e-4)
    pairs = primitive([tensor((3, N, depth)), tensor((3, 20, depth))], lambda m, x, w: m("nn.batch_matmul", x, w))
    check(pairs, {V: 1}, {V: 3})


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["nn.matmul", "nn.dense"])
def test_results_do_not_depend_on_where_operands_begin(dtype: str, op: str) -> None:
    shape = (352, 3072) if op == "nn.matmul" else (3072, 352)
    program = relay.parse(
        f'#[version = "0.0.5"]\ndef @main[n: Dim](%x: Tensor[(n, 352), {dtype}], %w: Tensor[{shape}, {dtype}]) {{ {op}(%x, %w) }}'
    )
    exe = relay.compile(program, threads=2)
    rng = np.random.default_rng(0)
    memory = np.empty(352 * 3072 + 128, dtype)
    start = -memory.ctypes.data % 64 // memory.itemsize
    weights = rng.standard_normal(shape).astype(dtype)
    for rows in (1, 2, 3, 4, 7, 8, 11):
        x = rng.standard_normal((rows, 352)).astype(dtype)
        found = []
        for behind in range(0, 64 // memory.itemsize, 3):
            given = memory[start + behind :][: weights.size].reshape(weights.shape)
            given[:] = weights
            found.append(np.asarray(exe(x, given)))
        right = weights if op == "nn.matmul" else weights.T
        np.testing.assert_allclose(found[0], x.astype("float64") @ right, rtol=1e-3, atol=1e-3)
        assert all(np.array_equal(found[0], other) for other in found)
