"""How columns are shared out over panels of register tiles."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from relay.codegen.llvm import emit
from relay.codegen.objects import assembly
from relay.codegen.target import parse_target
from relay.ir.dim import DimVar, as_dim
from relay.loop.ir import Branch, For, Store
from relay.loop.walk import statements
from relay.plan import make_plan
from relay.plan.kernel_plan import KernelPlan
from relay.plan.tiles import panel_pitch, panel_runs, tile_for
from tests.plan.harness import ZEN4, check, primitive, tensor

V = DimVar("n")
N = as_dim(V)
TARGETS = ("x86-64-v2", "x86-64-v3", "x86-64-v4", "aarch64")
WEIGHT = frozenset({1})


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_runs_hold_every_column_once_and_waste_no_more_than_one_width_does(name: str, dtype: str) -> None:
    target = parse_target(name)
    lanes = target.lanes(32 if dtype == "float32" else 64)
    for columns in (*range(1, 400), 450, 600, 750, 1000, 4099):
        for halves in (False, True):
            runs = panel_runs(target, dtype, N, columns, halves=halves)
            # Where masks take registers, a last panel that is not whole is a run of its own.
            assert len(runs) <= 2 + (not target.mask_registers) and runs[0].number == runs[0].column == 0
            assert target.mask_registers or not runs[-1].ragged or runs[-1].count == 1
            for one, other in pairwise(runs):
                assert isinstance(one.count, int)
                assert other.number == one.number + one.count
                assert other.column == one.column + one.count * one.tile.columns and not one.ragged
            last = runs[-1]
            assert isinstance(last.count, int)
            end = last.column + last.count * last.tile.columns
            assert end - last.tile.columns < columns <= end and last.ragged == (end > columns)
            uniform = tile_for(target, dtype, N, columns).columns
            assert end <= -(-columns // uniform) * uniform
            pitch = panel_pitch(target, dtype, runs)
            for run in runs:
                vectors = -(-run.tile.columns // lanes)
                assert run.tile.rows * vectors + vectors < target.vector_registers or run.tile.rows == 1
                assert run.tile.columns <= pitch < run.tile.columns + 4 * lanes
                assert halves or run.tile.columns % lanes == 0


def test_panels_end_in_half_a_vector_where_vectors_are_taken_in_halves() -> None:
    long, whole, short = parse_target("znver4"), parse_target("sapphirerapids"), parse_target("x86-64-v3")
    assert sum(int(str(r.count)) * r.tile.columns for r in panel_runs(long, "float32", N, 450)) == 456
    assert all(r.tile.columns % 16 == 0 for r in panel_runs(whole, "float32", N, 450))
    assert all(r.tile.columns % 8 == 0 for r in panel_runs(short, "float32", N, 450))
    assert panel_runs(long, "float32", N, 768) == panel_runs(long, "float32", N, 768, vectors=3)
    assert panel_runs(long, "float32", N, 1024) == panel_runs(long, "float32", N, 1024, vectors=4)


@pytest.mark.parametrize("cpu", ["znver4", "sapphirerapids"])
def test_few_rows_are_few_tiles(cpu: str) -> None:
    """7, 8 and 13 to 16 rows: one tile less of 8 x 48 than of 6 x 64. Otherwise the wider one is loaded less."""
    target = replace(ZEN4, cpu=cpu)
    found = {rows: panel_runs(target, "float32", rows, 384)[0].tile.columns for rows in range(1, 33)}
    assert [rows for rows, width in found.items() if width == 48] == [7, 8, 13, 14, 15, 16]


def test_any_number_of_rows_is_high_tiles() -> None:
    """Where multiply-adds wait for panels, and elsewhere where the columns are as many whole panels of 48 as of 64."""
    waiting = replace(ZEN4, cpu="sapphirerapids")
    for columns in (384, 750, 768):
        (run, *_) = panel_runs(waiting, "float32", N, columns)
        assert (run.tile.rows, run.tile.columns) == (8, 48), columns
        here = panel_runs(ZEN4, "float32", N, columns)[0].tile
        assert (here.rows, here.columns) == ((6, 64) if columns == 750 else (8, 48)), columns


def test_a_few_rows_of_large_panels_have_code_of_their_own() -> None:
    """Where the second-level cache does not hold them: so that a tile of 8 rows goes through them once."""

    def dense(columns: int) -> KernelPlan:
        fn = primitive([tensor((N, 768)), tensor((columns, 768))], lambda m, x, w: m("nn.dense", x, w))
        return check(fn, *({V: rows} for rows in (1, 2, 7, 8, 9, 16)), constants=WEIGHT, tolerance=1e-4)

    def branches(columns: int) -> int:
        return sum(isinstance(s, Branch) for s in statements(dense(columns).kernel.body))

    assert ZEN4.l2_bytes < 768 * 768 * 4
    assert branches(768) > branches(96)


@pytest.mark.parametrize("rows", [7, 16, 24])
def test_few_rows_of_processors_that_wait(rows: int) -> None:
    waiting = replace(ZEN4, cpu="sapphirerapids", l2_bytes=64 << 10)
    fn = primitive([tensor((rows, 70)), tensor((250, 70))], lambda m, x, w: m("tanh", m("nn.dense", x, w)))
    check(fn, {}, constants=frozenset({1}), target=waiting)


@pytest.mark.parametrize("columns", [7, 23, 80, 150])
def test_products_of_panels_of_two_widths(columns: int) -> None:
    """Constant, packed as it goes, turned, read where it is: every number of rows, and an epilogue that reads tiles back."""
    sizes = [{V: rows} for rows in (0, 1, 3, 6, 7, 8, 13, 30, 60, 200)]
    check(
        primitive([tensor((N, 20)), tensor((columns, 20))], lambda m, x, w: m("nn.dense", x, w)),
        *sizes,
        constants=WEIGHT,
    )
    few = sizes[4:]
    check(primitive([tensor((N, 9)), tensor((9, columns))], lambda m, x, w: m("nn.matmul", x, w)), *few, {V: 300})
    check(primitive([tensor((N, 9)), tensor((columns, 9))], lambda m, x, w: m("nn.dense", x, w)), *few)


@pytest.mark.parametrize("columns", [100, 150])
def test_epilogues_and_blocks_of_k_on_panels_of_two_widths(columns: int) -> None:
    def gelu(m, x, w, b):  # type: ignore[no-untyped-def]
        return m("nn.gelu", m("add", m("nn.dense", x, w), b))

    check(
        primitive([tensor((N, 12)), tensor((columns, 12)), tensor((columns,))], gelu), {V: 5}, {V: 20}, constants=WEIGHT
    )
    deep = primitive([tensor((N, 2400)), tensor((columns, 2400))], lambda m, x, w: m("nn.dense", x, w))
    check(deep, {V: 3}, {V: 15}, constants=WEIGHT)


@pytest.mark.parametrize("dtype", ["float64", "int8", "bfloat16"])
def test_panels_of_two_widths_of_other_elements(dtype: str) -> None:
    out = {"int8": "int32", "bfloat16": "float32", "float64": ""}[dtype]
    fn = primitive(
        [tensor((N, 24), dtype), tensor((100, 24), dtype)], lambda m, x, w: m("nn.dense", x, w, out_dtype=out)
    )
    check(fn, {V: 1}, {V: 9}, {V: 40}, constants=WEIGHT)


def test_half_a_vector_of_a_tile_is_multiplied_as_one() -> None:
    target = parse_target("znver4")
    fn = primitive([tensor((N, 20)), tensor((152, 20))], lambda m, x, w: m("nn.dense", x, w))
    text = assembly(emit(make_plan(fn, target, WEIGHT).kernel, target), target)
    multiplied = [line for line in text.splitlines() if "vfmadd" in line]
    assert any("ymm" in line for line in multiplied) and any("zmm" in line for line in multiplied)
    stored = [line for line in text.splitlines() if "vmovups" in line and "ymm" in line and "{%k" in line]
    assert not stored, "152 columns end with half a vector: nothing is left to mask"


def test_one_width_is_kept_where_a_second_saves_little() -> None:
    for columns in (64, 384, 768, 1021, 3072, 50257):
        assert len(panel_runs(ZEN4, "float32", N, columns)) == 1


def test_the_last_panel_of_unknown_columns_is_read_where_it_is() -> None:
    """A vector of columns, where numbers of rows and columns are not known: wider panels alone are packed."""
    depth, columns = DimVar("k"), DimVar("j")
    types = [tensor((N, as_dim(depth))), tensor((as_dim(depth), as_dim(columns)))]
    fn = primitive(types, lambda m, x, w: m("nn.matmul", x, w))
    sizes = [
        {V: rows, depth: deep, columns: across}
        for rows in (0, 24, 25, 33, 800)
        for deep, across in ((5, 3), (5, 8), (9, 16), (9, 37), (1, 42), (0, 42), (7, 1))
    ]
    for name, lanes in (("x86-64-v3", 8), ("znver4", 16)):
        target = parse_target(name)
        check(fn, *sizes, target=target)
        found = list(statements(make_plan(fn, target, name="any").kernel.body))
        packing = [s for s in found if isinstance(s, Store) and s.buffer.scope == "worker"]
        widths = {s.var.extent for s in found if isinstance(s, For) and s.body in packing}
        assert widths == {2 * lanes}
