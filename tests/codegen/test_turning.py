"""Blocks turned in registers against the slow evaluator: every way a block can be cut, on three instruction sets."""

from __future__ import annotations

import numpy as np
import pytest

from relay.codegen.llvm import emit
from relay.codegen.objects import assembly
from relay.codegen.target import host_target, parse_target, runs_here
from relay.ir.dim import as_var, dim_var
from relay.ir.dtypes import numpy_dtype
from relay.loop.evaluate import evaluate
from relay.loop.ir import Alloc, Buffer, Kernel, Seq, Stmt, Transpose
from relay.loop.printer import kernel_text
from relay.loop.simplify import simplify
from relay.loop.verify import verify
from relay.te.scalar import Const, Scalar, Size
from tests.codegen.native import Native
from tests.plan.harness import ZEN4

N, M = dim_var("n"), dim_var("m")
SHAPES = [
    (0, 5),
    (1, 1),
    (3, 40),
    (4, 16),
    (4, 4),
    (6, 5),
    (7, 41),
    (8, 8),
    (9, 13),
    (10, 31),
    (15, 16),
    (16, 16),
    (17, 33),
    (40, 3),
    (40, 9),
    (16, 15),
    (33, 4),
    (64, 31),
    (65, 130),
]


def number(value: int) -> Scalar:
    return Const(value, "int64")


def turned(rows: Scalar, columns: Scalar, stride: int, pitch: int, dtype: str) -> tuple[Stmt, Buffer, Buffer]:
    source, target = Buffer("x", (20_000,), dtype, alignment=1), Buffer("y", (20_000,), dtype, alignment=1)
    body = Transpose(target, number(3), number(pitch), source, number(5), number(stride), rows, columns)
    return body, source, target


@pytest.mark.parametrize("target", ["cpu", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bfloat16", "bool", "int4"])
def test_blocks(dtype: str, target: str) -> None:
    n, m = as_var(N), as_var(M)
    assert n is not None and m is not None
    body, source, out = turned(Size(N), Size(M), 131, 67, dtype)
    kernel = Kernel("turn", (source,), (out,), (n, m), body)
    verify(kernel)
    native = Native(simplify(kernel), parse_target(target)) if dtype != "int4" else None
    rng = np.random.default_rng(0)
    for rows, columns in SHAPES:
        given = rng.integers(0, 2 if dtype == "bool" else 7, 20_000).astype(numpy_dtype(dtype))
        wanted = np.zeros(20_000, numpy_dtype(dtype))
        assert evaluate(kernel, [given, wanted], {n: rows, m: columns}) == 0
        expected = np.zeros(20_000, numpy_dtype(dtype))
        for i in range(rows):
            expected[3 + i : 3 + i + columns * 67 : 67][:columns] = given[5 + i * 131 :][:columns]
        assert (wanted == expected).all()
        if native is not None:
            got = np.zeros(20_000, numpy_dtype(dtype))
            assert native([given, got], {n: rows, m: columns}) == 0
            assert (got == wanted).all(), (rows, columns)


@pytest.mark.parametrize("rows", [4, 5, 10, 15])
def test_a_few_rows_go_by_bands(rows: int) -> None:
    n = as_var(N)
    assert n is not None
    body, source, out = turned(number(rows), Size(N), 131, 67, "float32")
    native = Native(Kernel("turn", (source,), (out,), (n,), body), host_target())
    given = np.arange(20_000, dtype=np.float32)
    for columns in (3, 8, 16, 17, 40):
        expected, got = np.zeros(20_000, np.float32), np.zeros(20_000, np.float32)
        for i in range(rows):
            expected[3 + i : 3 + i + columns * 67 : 67][:columns] = given[5 + i * 131 :][:columns]
        assert native([given, got], {n: columns}) == 0
        assert (got == expected).all(), columns


@pytest.mark.parametrize("target", ["cpu", "x86-64-v3", "x86-64"])
def test_a_few_lines_on_the_stack(target: str) -> None:
    """There and back, of as many rows and columns as sizes say: by strips and bands alone."""
    n, m = as_var(N), as_var(M)
    assert n is not None and m is not None
    source, out = (Buffer(name, (20_000,), "float32", alignment=1) for name in "xy")
    lines, zero = Buffer("lines", (32 * 64,), "float32", "stack"), number(0)
    there = Transpose(lines, zero, number(64), source, number(5), number(131), Size(N), Size(M))
    back = Transpose(out, number(3), number(67), lines, zero, number(64), Size(M), Size(N))
    kernel = Kernel("turn", (source,), (out,), (n, m), Alloc(lines, Seq((there, back))))
    chosen = parse_target(target)
    assert "16x16" not in emit(kernel, chosen) and "8x8" not in emit(kernel, chosen)
    native = Native(kernel, chosen)
    given = np.arange(20_000, dtype=np.float32)
    for rows in (0, 1, 3, 4, 7, 15, 16, 17, 63, 64):
        for columns in (0, 1, 3, 4, 5, 8, 15, 16, 17, 31, 32):
            expected, got = np.zeros(20_000, np.float32), np.zeros(20_000, np.float32)
            for i in range(rows):
                expected[3 + i * 67 :][:columns] = given[5 + i * 131 :][:columns]
            assert native([given, got], {n: rows, m: columns}) == 0
            assert (got == expected).all(), (rows, columns)


@pytest.mark.parametrize("side", [4, 6, 8, 12, 64])
def test_whole_blocks_go_through_registers(side: int) -> None:
    """Also of small matrices (the capsules of a network, say)."""
    body, source, out = turned(number(side), number(side), 64, 64, "float32")
    kernel = Kernel("turn", (source,), (out,), (), body)
    assert f"transpose y[3 by 64] = x[5 by 64] for {side} x {side}" in kernel_text(kernel)
    assert "vunpcklps" in assembly(emit(kernel, ZEN4), ZEN4)  # which moves LLVM takes is the processor's


@pytest.mark.parametrize(
    "target", [name for name in ("cpu", "x86-64-v4", "x86-64-v3", "x86-64") if runs_here(parse_target(name))]
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bfloat16", "bool"])
@pytest.mark.parametrize("unknown", [False, True])
def test_a_few_lines_are_taken_apart_and_put_together(dtype: str, target: str, unknown: bool) -> None:
    """As the channels of an image are: there and back, every number of them that goes by lanes, and those around."""
    n, m = as_var(N), as_var(M)
    assert n is not None and m is not None
    rng = np.random.default_rng(0)
    given = rng.integers(0, 2 if dtype == "bool" else 100, 20_000).astype(numpy_dtype(dtype))
    several: Native | None = None
    for count in (1, 2, 3, 4, 5):
        if several is None or not unknown:
            lines = Size(N) if unknown else number(count)
            source, joined, parted = (Buffer(name, (20_000,), dtype, alignment=1) for name in "xyz")
            join = Transpose(joined, number(3), lines, source, number(5), number(700), lines, Size(M))
            part = Transpose(parted, number(2), number(650), source, number(5), lines, Size(M), lines)
            kernel = Kernel("turn", (source,), (joined, parted), (n, m), Seq((join, part)))
            verify(kernel)
            chosen = parse_target(target)
            several = Native(simplify(kernel), chosen)
            if count == 3 or unknown:
                assert all(f"@{way}_" in emit(kernel, chosen) for way in ("join", "part"))
        for length in (0, 1, 7, 15, 16, 17, 31, 63, 64, 65, 129, 600):
            there, back = (np.zeros(20_000, numpy_dtype(dtype)) for _ in range(2))
            assert several([given, there, back], {n: count, m: length}) == 0
            expected = np.zeros_like(given)
            expected[3 : 3 + count * length] = np.stack(
                [given[5 + 700 * i :][:length] for i in range(count)], 1
            ).ravel()
            assert (there == expected).all(), (count, length)
            expected = np.zeros_like(given)
            for i in range(count):
                expected[2 + 650 * i :][:length] = given[5 + i : 5 + i + count * length : count][:length]
            assert (back == expected).all(), (count, length)
