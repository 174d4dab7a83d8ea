"""Rows that are looked up are asked for ahead: the same results, the places that later iterations read, and nothing where another
iteration's place cannot be known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay import pipeline
from relay.codegen.kernel_object import prepared
from relay.ir.dim import DimVar, as_dim, dim_mul
from relay.loop.ahead import asking_ahead, operands_ahead
from relay.loop.evaluate import evaluate
from relay.loop.ir import Branch, Buffer, For, Kernel, LetScalar, Prefetch, Seq, Stmt, Store
from relay.loop.target import Target
from relay.loop.verify import verify
from relay.loop.walk import statements
from relay.te.scalar import Axis, Compare, Const, Load, Scalar, Select, Size, binary, cast

TARGET = Target("x86_64-unknown-linux-gnu", l2_bytes=1 << 10)
ROWS, PLACES, WIDTH = 9, 40, 32
TABLE, AT = Buffer("table", (PLACES * WIDTH,), "float32"), Buffer("at", (ROWS,), "int32")
Y = Buffer("y", (ROWS * WIDTH,), "float32")
ROW, J = Axis("i", ROWS), Axis("j", WIDTH)
TO = (binary("add", binary("mul", ROW, WIDTH), J),)


def looked_up(row: Scalar) -> Load:
    place = cast(Load(AT, (row,), "int32"), "int64")
    return Load(TABLE, (binary("add", binary("mul", place, WIDTH), J),), "float32")


def rows(body: Stmt, *, var: Axis = ROW, inputs: tuple[Buffer, ...] = (TABLE, AT)) -> Kernel:
    return Kernel("rows", inputs, (Y,), (), For(var, Size(ROWS), body))


def vector(body: Stmt) -> For:
    return For(J, Size(WIDTH), body, "vectorized")


def asked(kernel: Kernel) -> list[Prefetch]:
    """What is asked for, but not of the result of kernels that are written out here."""
    return [s for s in statements(kernel.body) if isinstance(s, Prefetch) and s.buffer is not Y]


def asked_results(kernel: Kernel) -> list[Prefetch]:
    return [s for s in statements(kernel.body) if isinstance(s, Prefetch) and s.buffer is Y]


def result(kernel: Kernel) -> np.ndarray:
    rng = np.random.default_rng(0)
    out = np.zeros(ROWS * WIDTH, "f")
    places = rng.integers(0, PLACES, ROWS).astype("i4")
    assert evaluate(kernel, [rng.standard_normal(PLACES * WIDTH).astype("f"), places, out]) == 0
    return out


def test_later_rows_are_asked_for() -> None:
    kernel = rows(vector(Store(Y, TO, looked_up(ROW))))
    made = asking_ahead(kernel, TARGET)
    verify(made)
    assert [p.buffer for p in asked(made)] == [TABLE] and not asked(made)[0].write
    np.testing.assert_array_equal(result(kernel), result(made))


def test_results_are_asked_for_beside_them() -> None:
    """Where they may not be in the second-level cache and nothing reads them in the same loop."""
    plain = rows(vector(Store(Y, TO, looked_up(ROW))))
    added = rows(vector(Store(Y, TO, binary("add", Load(Y, TO, "float32"), looked_up(ROW)))))
    made = asking_ahead(plain, TARGET)
    assert [p.write for p in asked_results(made)] == [True]
    assert not asked_results(asking_ahead(added, TARGET))
    assert not asked_results(asking_ahead(plain, Target(TARGET.triple, l2_bytes=2 << 10)))
    np.testing.assert_array_equal(result(plain), result(made))


def test_operands_are_asked_for_where_neighbours_are_neighbours() -> None:
    """Once for each place, not what a cache holds, what lies apart, or what a variable of the body decides."""
    x = Buffer("x", (ROWS * WIDTH * 4,), "float32")
    value, apart = Load(x, TO, "float32"), Load(x, (binary("mul", J, 4),), "float32")
    place = Axis("p", 1 << 62)
    named = Load(x, (binary("add", place, J),), "float32")
    body = LetScalar(place, cast(Load(AT, (ROW,), "int32"), "int64"), Store(Y, TO, binary("add", named, value)))
    twice = binary("mul", binary("add", value, apart), value)
    for given in (Store(Y, TO, twice), body):
        (found,) = operands_ahead(given, J, TARGET)
        assert found.buffer is x and not found.write
    assert not operands_ahead(body, J, Target(TARGET.triple, l2_bytes=1 << 20))
    assert not operands_ahead(body, ROW, TARGET)


def test_dear_elementwise_kernels_ask_for_operands_and_results() -> None:
    text = """#[version = "0.0.5"]
def @main[m: Dim](%x: Tensor[(m, 700), float32], %b: Tensor[(700,), float32]) { BODY }"""
    for body, writes in {"tanh(%x)": [False, True], "tanh(%x + %b)": [False, True], "%x + 1f": []}.items():
        made = pipeline.build(relay.parse(text.replace("BODY", body)), relay.Options())
        found = [p for k in made.plan.kernels for p in asked(prepared(k.kernel, made.target))]
        assert sorted(p.write for p in found) == writes


@pytest.mark.parametrize("body", ["nn.layer_norm(%x, %g, %g)", "argmax(%x, axis=1)", "sum(%x * %x, axis=1)"])
def test_reductions_ask_where_operands_are_far(body: str) -> None:
    """Where all of an operand is more than the second-level cache holds; a row's result is the same bits either way."""
    text = f"""#[version = "0.0.5"]
def @main[m: Dim](%x: Tensor[(m, 700), float32], %g: Tensor[(700,), float32]) {{ {body} }}"""
    made = pipeline.build(relay.parse(text), relay.Options())
    kernels = [prepared(k.kernel, made.target) for k in made.plan.kernels]
    held = [b for k in kernels for b in statements(k.body) if isinstance(b, Branch) and b.orelse is not None]
    there = [b for b in held if any(isinstance(s, Prefetch) for s in statements(b.then))]
    assert any(not any(isinstance(s, Prefetch) for s in statements(b.orelse or Seq(()))) for b in there)
    rng = np.random.default_rng(3)
    rows_ = made.target.l2_bytes // (4 * 700) + 2
    x, g = rng.standard_normal((rows_, 700)).astype("f"), rng.standard_normal(700).astype("f")
    exe = relay.compile(text)
    many = np.asarray(exe(x, g))
    # Without mask registers each of a handful of rows goes by itself, which for a norm is rounded in another order.
    few = 3 if made.target.mask_registers or "norm" not in body else 20
    np.testing.assert_array_equal(many[:few], np.asarray(exe(x[:few], g)))
    np.testing.assert_allclose(many[:few], np.asarray(relay.evaluate(relay.parse(text), x[:few], g)), 2e-5, 2e-5)


def test_rows_by_way_of_variables_are_found() -> None:
    """The loop's variable is another's, and the place has a name."""
    step, place = Axis("r", ROWS), Axis("p", 1 << 62)
    value = Load(TABLE, (binary("add", binary("mul", place, WIDTH), J),), "float32")
    inner = LetScalar(place, cast(Load(AT, (ROW,), "int32"), "int64"), vector(Store(Y, TO, value)))
    kernel = rows(LetScalar(ROW, step, inner), var=step)
    made = asking_ahead(kernel, TARGET)
    verify(made)
    assert len(asked(made)) == 1
    np.testing.assert_array_equal(result(kernel), result(made))


def test_what_another_iteration_would_read_has_to_be_there() -> None:
    """Not under a condition, not from what the kernel writes, not for tables that a cache holds, nor where each element has a place."""
    few = Compare("lt", ROW, Const(3, "int64"))
    copy = vector(Store(Y, TO, looked_up(ROW)))
    zero = Const(0.0, "float32")
    each = Load(TABLE, (cast(Load(AT, (binary("min", J, ROWS - 1),), "int32"), "int64"),), "float32")
    left = [
        rows(Branch(few, copy)),
        rows(vector(Store(Y, TO, Select(few, looked_up(ROW), zero, "float32")))),
        rows(vector(Store(Y, TO, each))),
        rows(vector(Store(Y, TO, Load(TABLE, TO, "float32")))),
    ]
    for kernel in left:
        verify(kernel)
        assert asking_ahead(kernel, TARGET) is kernel
    kernel = rows(copy)
    assert asking_ahead(kernel, Target(TARGET.triple, l2_bytes=1 << 20)) is kernel
    shared = Kernel(kernel.name, kernel.inputs, kernel.outputs, (), kernel.body, in_place=((1, 0),))
    assert asking_ahead(shared, TARGET) is shared


PROGRAMS = {
    "take": ("take(%t, %i, axis=0)", 1, 1),
    "summed": ("sum(take(%t, %i, axis=0), axis=0)", 5, 0),  # four rows at a time, and what is left over
    "normed": (
        "nn.layer_norm(take(%t, %i, axis=0) + %x, %g, %g)",
        3,
        0,
    ),  # and both rows of what is added, where two are summed up
    "two": ("take(%t, %i, axis=0) * take(%t, %k, axis=0)", 2, 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    """Each looked-up row once for each loop, results beside it, and the results of the interpreter."""
    body, read, written = PROGRAMS[name]
    text = f"""#[version = "0.0.5"]
def @main[m: Dim](%t: Tensor[(5000, 300), float32], %i: Tensor[(m,), int32], %k: Tensor[(m,), int64],
                  %x: Tensor[(m, 300), float32], %g: Tensor[(300,), float32]) {{ {body} }}"""
    module = relay.parse(text)
    made = pipeline.build(module, relay.Options(target="znver4"))
    found = [p for k in made.plan.kernels for p in asked(prepared(k.kernel, made.target))]
    assert sorted(p.write for p in found) == [False] * read + [True] * written
    rng = np.random.default_rng(1)
    exe = relay.compile(module)
    for m in (1, 2, 37):
        places = [rng.integers(0, 5000, m).astype(t) for t in ("i4", "i8")]
        floats = [rng.standard_normal(s).astype("f") for s in ((5000, 300), (m, 300), (300,))]
        given = [floats[0], *places, *floats[1:]]
        np.testing.assert_allclose(np.asarray(exe(*given)), np.asarray(relay.evaluate(module, *given)), 2e-5, 2e-5)


def test_rows_that_are_added_to_are_asked_for_to_be_written() -> None:
    text = """#[version = "0.0.5"]
def @f[m: Dim](%t: Tensor[(3000, 300), float32], %i: Tensor[(m,), int32]) -> Tensor[(), float32] {
  let %x = take(%t, %i, axis=0); sum(%x * %x) }
def @main[m: Dim](%t: Tensor[(3000, 300), float32], %i: Tensor[(m,), int32]) { grad(@f)(%t, %i) }"""
    module = relay.parse(text)
    made = pipeline.build(module, relay.Options())
    found = [p for k in made.plan.kernels for p in asked(prepared(k.kernel, made.target))]
    # The table's rows, what is summed; the rows themselves, and the gradient's.
    assert sorted(p.write for p in found) == [False, False, True, True]
    rng = np.random.default_rng(2)
    table, places = rng.standard_normal((3000, 300)).astype("f"), rng.integers(0, 3000, 50).astype("i4")
    expected = np.zeros_like(table)
    np.add.at(expected, places, 2 * table[places])
    result: Any = relay.compile(module)(table, places)
    np.testing.assert_allclose(result[1][0], expected, 1e-5, 1e-5)


def test_tables_of_unknown_size_are_asked_for_where_they_are_far() -> None:
    n = DimVar("n")
    table = Buffer("table", (dim_mul(as_dim(n), WIDTH),), "float32")
    place = cast(Load(AT, (ROW,), "int32"), "int64")
    row = Load(table, (binary("add", binary("mul", place, WIDTH), J),), "float32")
    kernel = Kernel("rows", (table, AT), (Y,), (n,), For(ROW, Size(ROWS), vector(Store(Y, TO, row))))
    made = asking_ahead(kernel, TARGET)
    verify(made)
    (choice,) = [s for s in statements(made.body) if isinstance(s, Branch)]
    assert any(isinstance(s, Prefetch) for s in statements(choice.then))
    assert choice.orelse is not None and not any(isinstance(s, Prefetch) for s in statements(choice.orelse))


def test_two_rows_are_asked_for_near_where_their_sums_are_made() -> None:
    """Into the first-level cache: what is made of them is so little that it would wait for the second one."""
    text = """#[version = "0.0.5"]
def @main[m: Dim](%x: Tensor[(m, 704), float32], %g: Tensor[(704,), float32]) { nn.layer_norm(%x, %g, %g) }"""
    made = pipeline.build(relay.parse(text), relay.Options(target="x86-64-v4"))
    (kernel,) = (prepared(k.kernel, made.target) for k in made.plan.kernels)
    loops = [s for s in statements(kernel.body) if isinstance(s, For) and s.kind == "vectorized"]
    near = [[p.level for p in statements(loop.body) if isinstance(p, Prefetch)] for loop in loops]
    assert [1, 1] in near
