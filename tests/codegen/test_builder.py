"""What is written once: before loops, and on the way to where it is used."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from llvmlite.binding import Linkage

from relay.codegen.builder import Builder, ModuleText
from relay.codegen.llvm import emit
from relay.codegen.objects import EXPLICIT, LINKED, PLAIN, compile_text, elf_symbols, optimise
from relay.codegen.target import parse_target
from relay.ir.dim import as_var, dim_var
from relay.loop.ir import Alloc, Branch, Buffer, Fail, For, Kernel, Seq, Stmt, Store
from relay.loop.workspace import workspace_bytes
from relay.te.scalar import Axis, Const, Load, Scalar, Size, binary, compare, select


def _lines(builder: Builder) -> list[str]:
    builder.finish("define void @f(i64 %n, ptr %p)")
    return [line.strip() for line in builder.module.functions[-1].splitlines()]


def test_what_a_loop_computes_in_each_iteration_alike_is_computed_before_it() -> None:
    b = Builder(ModuleText())
    with b.loop():
        b.start("outer", dominated=True)
        i = b.local("i")
        with b.loop():
            b.start("inner", dominated=True)
            j = b.local("j")
            same = b.emit("mul i64 %n, 3")
            row = b.emit(f"mul i64 {i}, {same}")
            b.emit(f"add i64 {row}, {j}")
    lines = _lines(b)
    outer, inner = lines.index("outer:"), lines.index("inner:")
    assert lines.index(f"{same} = mul i64 %n, 3") < outer
    assert outer < lines.index(f"{row} = mul i64 {i}, {same}") < inner
    assert lines[-2].endswith(f"add i64 {row}, {j}")


LOADS = (
    "load float, ptr {}, align 4, !invariant.load !0",
    "call <8 x i32> @llvm.masked.gather.v8i32.v8p0(<8 x ptr> align 4 {}, <8 x i1> %m, <8 x i32> zeroinitializer), !invariant.load !0",
)


@pytest.mark.parametrize("load", LOADS, ids=["one", "many"])
def test_loads_leave_a_loop_only_from_where_each_iteration_comes(load: str) -> None:
    b = Builder(ModuleText())
    with b.loop():
        b.start("loop", dominated=True)
        certain = b.emit(load.format("%p"))
        with b.scope():
            b.start("then")
            other = b.emit(load.format("%q"))
        b.start("join", dominated=True)
        b.leave("void")
        b.start("alive")
        last = b.emit(load.format("%r"))
    lines = _lines(b)
    at = {
        name: next(n for n, line in enumerate(lines) if line.startswith(f"{name} =")) for name in (certain, other, last)
    }
    assert at[certain] < lines.index("loop:") and at[other] > lines.index("then:") and at[last] > lines.index("alive:")


def test_what_was_computed_before_a_branch_is_known_in_it_and_behind_it_and_what_was_computed_in_it_is_not() -> None:
    b = Builder(ModuleText())
    before = b.emit("add i64 %n, 1")
    with b.scope():
        b.start("then")
        assert b.emit("add i64 %n, 1") == before
        inside = b.emit("add i64 %n, 2")
    b.start("join", dominated=True)
    assert b.emit("add i64 %n, 1") == before and b.emit("add i64 %n, 2") != inside
    b.start("anywhere")
    assert b.emit("add i64 %n, 1") != before


def test_tiles_that_are_read_under_a_mask_become_registers() -> None:
    """Sums of 32 columns, of which the first n are written: a masked access of a stack slot would leave it in memory."""
    n = dim_var("n")
    variable = as_var(n)
    assert variable is not None
    source, out = Buffer("in0", (64, 32), "float32"), Buffer("out0", (n,), "float32")
    tile, j, k = Buffer("sums", (32,), "float32", "register"), Axis("j", 32), Axis("k", 64)
    zero, width = Const(0.0, "float32"), Const(32, "int64")
    total = binary("add", Load(tile, (j,), "float32"), Load(source, (k, j), "float32"))
    body = Seq(
        (
            For(j, width, Store(tile, (j,), zero), "vectorized"),
            For(k, Const(64, "int64"), For(j, width, Store(tile, (j,), total), "vectorized")),
            For(
                j,
                width,
                Branch(compare("lt", j, Size(n)), Store(out, (j,), Load(tile, (j,), "float32"))),
                "vectorized",
            ),
        )
    )
    kernel = Kernel("k", (source,), (out,), (variable,), Alloc(tile, body))
    target = parse_target("x86-64-v4")
    text = emit(kernel, target)
    assert "alloca" not in str(optimise(text, target))
    # Two rows are a register tile, of which LLVM is asked for little; what may fail is looked at by all of its passes.
    assert not text.startswith(EXPLICIT)
    pair = Buffer("pair", (2, 32), "float32", "register")
    assert emit(replace(kernel, body=Alloc(pair, kernel.body)), target).startswith(EXPLICIT)
    assert not emit(replace(kernel, body=Seq((Alloc(pair, kernel.body), Fail(1)))), target).startswith(EXPLICIT)


def test_what_is_no_register_is_not_loaded_to_be_stored_under_a_mask() -> None:
    """Rows of 8 numbers, one after the other: a whole vector of what is there would be waited for, as part of it was just written."""
    n = dim_var("n")
    variable = as_var(n)
    assert variable is not None
    source, out = Buffer("in0", (n,), "float32"), Buffer("out0", (n,), "float32")
    panel, j, k = Buffer("panel", (512,), "float32", "stack"), Axis("j", 8), Axis("k", 64)
    place = binary("add", binary("mul", k, 8), j)
    body = Seq(
        (
            For(
                k,
                Const(64, "int64"),
                For(j, Size(n), Store(panel, (place,), Load(source, (j,), "float32")), "vectorized"),
            ),
            For(j, Size(n), Store(out, (j,), Load(panel, (j,), "float32")), "vectorized"),
        )
    )
    kernel = Kernel("k", (source,), (out,), (variable,), Alloc(panel, body))
    text = emit(kernel, parse_target("x86-64-v4"))
    assert text.count("@llvm.masked.store") == 3  # the last vectors of both loops, and the declaration


def test_code_without_conditions_on_indices_does_without_slow_passes() -> None:
    n = dim_var("n")
    variable = as_var(n)
    assert variable is not None
    source, out = Buffer("in0", (n,), "float32"), Buffer("out0", (n,), "float32")
    total, i = Buffer("total", (), "float32", "register"), Axis("i", n)
    x, zero = Load(source, (i,), "float32"), Const(0.0, "float32")
    target = parse_target("x86-64-v4")

    def text(value: Scalar) -> str:
        summed = For(i, Size(n), Store(total, (), binary("add", Load(total, (), "float32"), value)), "vectorized")
        written = For(i, Size(n), Store(out, (i,), binary("add", x, Load(total, (), "float32"))), "vectorized")
        body = Alloc(total, Seq((Store(total, (), zero), summed, written)))
        return emit(Kernel("k", (source,), (out,), (variable,), body), target)

    plain = text(select(compare("gt", x, zero), x, zero))
    assert plain.startswith(PLAIN)
    # The sum is in registers.
    assert "alloca" not in str(optimise(plain, target))
    assert not text(select(compare("lt", i, Const(5, "int64")), x, zero)).startswith((PLAIN, EXPLICIT))


def test_tiles_beside_what_takes_all_passes_are_a_module_of_their_own_until_both_are_optimised() -> None:
    n = dim_var("n")
    variable = as_var(n)
    assert variable is not None
    source, tiled, guarded = (Buffer(name, (n, 8), "float32") for name in ("in0", "out0", "out1"))
    pair, j = Buffer("pair", (1, 8), "float32", "register"), Axis("j", 8)

    def rows(body: Callable[[Axis], Stmt]) -> For:
        i = Axis("i", n)
        return For(i, Size(n), body(i), "parallel")

    def read(i: Axis) -> Load:
        return Load(source, (i, j), "float32")

    def tile(i: Axis) -> Stmt:
        filled = For(j, Const(8, "int64"), Store(pair, (Const(0, "int64"), j), read(i)), "vectorized")
        kept = Store(tiled, (i, j), Load(pair, (Const(0, "int64"), j), "float32"))
        return Alloc(pair, Seq((filled, For(j, Const(8, "int64"), kept, "vectorized"))))

    def guard(i: Axis) -> Stmt:
        chosen = select(compare("lt", i, Const(5, "int64")), read(i), Const(0.0, "float32"))
        return For(j, Const(8, "int64"), Store(guarded, (i, j), chosen), "vectorized")

    kernel = Kernel("k", (source,), (tiled, guarded), (variable,), Seq((rows(tile), rows(guard))))
    target = parse_target("x86-64-v4")
    text = emit(kernel, target)
    first, second = text.split(LINKED)
    assert second.startswith(EXPLICIT) and not first.startswith((EXPLICIT, PLAIN))
    assert "define hidden i32 @k.part1" in second and "define internal i32 @k.part2" in first
    assert {
        f.name for f in optimise(text, target).functions if f.linkage == Linkage.external and not f.is_declaration
    } == {"k"}
    assert elf_symbols(compile_text(text, target)) == ({"k"}, set())
    # Alone neither is split.
    assert emit(replace(kernel, outputs=(tiled,), body=rows(tile)), target).startswith(EXPLICIT)
    assert LINKED not in emit(replace(kernel, outputs=(guarded,), body=rows(guard)), target)


def test_loops_see_one_pointer_to_memory_that_lies_behind_a_sum_of_sizes() -> None:
    n, m = dim_var("n"), dim_var("m")
    sizes = as_var(n), as_var(m)
    assert sizes[0] is not None and sizes[1] is not None
    given, out = Buffer("in0", (n,), "float32"), Buffer("out0", (n,), "float32")
    first, second = Buffer("first", (m * n,), "float32", "worker"), Buffer("second", (n,), "float32", "worker")
    i, j = Axis("i", n), Axis("j", n)
    there = For(i, Size(n), Store(second, (i,), Load(given, (i,), "float32")), "serial")
    back = For(j, Size(n), Store(out, (j,), Load(second, (j,), "float32")), "serial")
    kernel = Kernel("k", (given,), (out,), (sizes[0], sizes[1]), Alloc(first, Alloc(second, Seq((there, back)))))
    text = emit(replace(kernel, worker_bytes=workspace_bytes(kernel)[1]), parse_target("x86-64-v4"))
    _, pointer = re.findall(r'(%\w+) = call ptr asm "", "=r,0"\(ptr %\w+\)', text)
    assert text.count(f"getelementptr float, ptr {pointer}, ") == 2
