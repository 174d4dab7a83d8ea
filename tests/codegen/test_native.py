"""Native code against the slow evaluator: every statement, loop kind, dtype and memory scope, on three
instruction sets."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relay.codegen.llvm import emit
from relay.codegen.target import parse_target
from relay.ir.dim import Dim, DimVar, as_var, dim_var
from relay.ir.dtypes import numpy_dtype
from relay.ir.types import is_float
from relay.loop.evaluate import evaluate
from relay.loop.ir import Alloc, Branch, Buffer, Fail, For, Kernel, LetScalar, LoopKind, Scope, Seq, Stmt, Store, Switch
from relay.loop.verify import verify
from relay.loop.workspace import workspace_bytes
from relay.te.scalar import (
    Axis,
    Binary,
    BinaryOp,
    Bits,
    Cast,
    Compare,
    Const,
    Dot,
    Load,
    Parts,
    Scalar,
    Select,
    Size,
    Unary,
    UnaryOp,
    binary,
    cast,
    maximum,
    minimum,
    select,
)
from tests.codegen.native import Native

Array = np.ndarray[Any, Any]
TARGETS = ["cpu", "x86-64-v3", "x86-64"]
N, M = dim_var("n"), dim_var("m")
KINDS: tuple[LoopKind, ...] = ("serial", "vectorized", "parallel")


def var(dim: Dim) -> DimVar:
    found = as_var(dim)
    assert found is not None
    return found


def const(value: int) -> Const:
    return Const(value, "int64")


def load(buffer: Buffer, *indices: Scalar) -> Load:
    return Load(buffer, indices, buffer.dtype)


def loop(axis: Axis, body: Stmt, kind: LoopKind = "serial", grain: int = 1) -> For:
    return For(axis, Size(axis.extent), body, kind, grain)


def random_array(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if is_float(dtype):
        values = rng.normal(0, 3, shape)
        values[rng.random(values.shape) < 0.05] = 0
        return values.astype(np.float32).astype(numpy_dtype(dtype)) if dtype != "float64" else values
    low, high = (
        (-8, 8) if dtype == "int4" else (0, 16) if dtype == "uint4" else (-50, 50) if dtype[0] == "i" else (0, 100)
    )
    return rng.integers(low, high, shape).astype(np.int64).astype(numpy_dtype(dtype))


def packed(array: Array, dtype: str) -> Array:
    """The array as memory holds it: sub-byte elements two to a byte, low half first."""
    if dtype not in ("int4", "uint4"):
        return array.copy(order="C")
    flat = array.reshape(-1).astype(np.int8).view(np.uint8) & 15
    flat = np.append(flat, np.zeros(len(flat) % 2, np.uint8))
    return (flat[0::2] | flat[1::2] << 4).astype(np.uint8)


def unpacked(memory: Array, shape: Sequence[int], dtype: str) -> Array:
    if dtype not in ("int4", "uint4"):
        return memory
    halves = np.stack([memory & 15, memory >> 4], -1).reshape(-1)[: int(np.prod(shape))].astype(np.int8)
    if dtype == "int4":
        halves = np.where(halves > 7, halves - 16, halves).astype(np.int8)
    return halves.reshape(shape).astype(numpy_dtype(dtype))


def finished(kernel: Kernel) -> Kernel:
    shared, worker = workspace_bytes(kernel)
    return replace(kernel, shared_bytes=shared, worker_bytes=worker)


def check(
    kernel: Kernel,
    arrays: Sequence[Array],
    dims: dict[DimVar, int] | None = None,
    target: str = "cpu",
    rtol: float = 2e-6,
) -> list[Array]:
    """Run both ways on the same inputs; outputs and codes must agree. Returns the outputs."""
    kernel = finished(kernel)
    verify(kernel)
    buffers = (*kernel.inputs, *kernel.outputs)
    slow = [a.copy() for a in arrays]
    native = [packed(a, b.dtype) for a, b in zip(arrays, buffers, strict=True)]
    fast = [a.copy() for a in native]
    code = evaluate(kernel, slow, dims)
    assert Native(kernel, parse_target(target))(fast, dims) == code
    outputs = []
    for position, (want, got, buffer) in enumerate(zip(slow, fast, buffers, strict=True)):
        if position < len(kernel.inputs):
            assert np.array_equal(got.view(np.uint8), native[position].view(np.uint8)), f"{buffer.name} was changed"
            continue
        found = unpacked(got, want.shape, buffer.dtype)
        if code == 0 and is_float(buffer.dtype):
            loose = {"float16": 2e-3, "bfloat16": 1.6e-2}.get(buffer.dtype, rtol)
            np.testing.assert_allclose(found.astype(np.float64), want.astype(np.float64), rtol=loose, atol=loose)
        elif code == 0:
            assert np.array_equal(found, want), (found, want)
        outputs.append(found)
    return outputs


# -- elementwise, all dtypes


DTYPES = [
    "bool", "int4", "uint4", "int8", "uint8", "int16", "int32", "int64", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64",
]  # fmt: skip


# No numbers, and both sides of the ends of each range of integers, where they are truncated too.
EDGES = [
    np.inf, -np.inf, np.nan, 1e4, -1e4, 0.3, -0.5, -1, 127.5, 128, -128.5, -129, 255.9, 256, 32767.5, 32768, -32768.5, -32769,
    65535.5, 65536, 2147483520, 2147483647, 2147483648, -2147483648, -2147483649, -2147483904, 4294967040, 4294967295.5,
    4294967296, 9.2233715e18, 2.0**63, -(2.0**63), -9.3e18, 1.8446743e19, 2.0**64,
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_copies_and_casts(dtype: str, target: str) -> None:
    """x to every dtype, for every kind of loop, with sizes around the lane counts."""
    rng = np.random.default_rng(5)
    x = Buffer("x", (N,), dtype)
    for kind in KINDS:
        outs = [Buffer(f"y{n}", (N,), d) for n, d in enumerate(DTYPES)]
        i = Axis("i", N)
        stores = tuple(Store(y, (i,), cast(load(x, i), y.dtype)) for y in outs)
        # Elements of half a byte must not be split between threads.
        kernel = Kernel("casts", (x,), tuple(outs), (var(N),), loop(i, Seq(stores), kind, 2))
        count = 67 if kind == "vectorized" else 9
        arrays = [random_array(rng, (count,), dtype)] + [np.zeros(count, numpy_dtype(y.dtype)) for y in outs]
        if dtype in ("float32", "float64", "float16", "bfloat16"):
            with np.errstate(over="ignore"):
                arrays[0][: len(EDGES)] = EDGES[:count]
        check(kernel, arrays, {var(N): count}, target)


INT_OPS: list[BinaryOp] = [
    "add", "sub", "mul", "floordiv", "mod", "truncdiv", "truncmod", "min", "max",
    "and", "or", "xor", "shl", "shr", "pow",
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_integer_operations(dtype: str) -> None:
    """Extremes included: nothing traps, division by zero gives 0, too large shifts push everything out."""
    info = np.iinfo(dtype)
    rng = np.random.default_rng(2)
    edge = np.array([0, 1, 2, 3, 7, info.max, info.min, info.max - 1, info.bits - 1, info.bits & 0x7F], dtype)
    extra = np.array([-1, -2, -7], dtype) if info.min < 0 else edge[:3]
    edge = np.concatenate([edge, extra])
    a = np.concatenate([np.repeat(edge, len(edge)), rng.integers(info.min, info.max, 200, dtype, endpoint=True)])
    b = np.concatenate([np.tile(edge, len(edge)), rng.integers(-9 if info.min < 0 else 0, 9, 200).astype(dtype)])
    x, y, i = Buffer("x", (N,), dtype), Buffer("y", (N,), dtype), Axis("i", N)
    outs = tuple(Buffer(op, (N,), dtype) for op in INT_OPS)
    by_constant = tuple(Buffer(f"c{c}", (N,), dtype) for c in (0, 1, 3, 8))
    stores = [Store(o, (i,), Binary(op, load(x, i), load(y, i), dtype)) for op, o in zip(INT_OPS, outs, strict=True)]
    for buffer, divisor in zip(by_constant, (0, 1, 3, 8), strict=True):
        quotient = Binary("floordiv", load(x, i), Const(divisor, dtype), dtype)
        rest = Binary("mod", load(x, i), Const(divisor, dtype), dtype)
        stores.append(Store(buffer, (i,), Binary("xor", quotient, rest, dtype)))
    unary: list[UnaryOp] = ["neg", "abs", "not", "sign"]
    ones = tuple(Buffer(op, (N,), dtype) for op in unary)
    stores += [Store(o, (i,), Unary(op, load(x, i), dtype)) for op, o in zip(unary, ones, strict=True)]
    for kind in ("serial", "vectorized"):
        kernel = Kernel("ints", (x, y), (*outs, *by_constant, *ones), (var(N),), loop(i, Seq(tuple(stores)), kind))
        outputs = [np.zeros(len(a), dtype) for _ in kernel.outputs]
        check(kernel, [a, b, *outputs], {var(N): len(a)})


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_quotients_of_vectors_are_exact(dtype: str, target: str) -> None:
    """Divisors of every size, and dividends at their multiples and one beside: where a quotient in floats would first be wrong."""
    info, rng = np.iinfo(dtype), np.random.default_rng(3)
    bits = rng.integers(0, info.bits, 600)
    y = [
        int(n) % (1 << int(k) + 1) - (1 << int(k) if info.min else 0)
        for n, k in zip(rng.integers(0, 1 << 62, 600), bits, strict=True)
    ]
    y = [min(max(v, info.min), info.max) for v in y]
    most = [info.max // max(abs(v), 1) for v in y]
    times = [int(rng.integers(0, m, dtype=dtype, endpoint=True)) if n % 3 else m for n, m in enumerate(most)]
    x = [
        min(max(t * v + int(d), info.min), info.max) for t, v, d in zip(times, y, rng.integers(-1, 2, 600), strict=True)
    ]
    a, b = np.array(x, dtype), np.array(y, dtype)
    ops: list[BinaryOp] = ["floordiv", "mod", "truncdiv", "truncmod"]
    given, by, i = Buffer("x", (N,), dtype), Buffer("y", (N,), dtype), Axis("i", N)
    outs = tuple(Buffer(op, (N,), dtype) for op in ops)
    stores = tuple(
        Store(o, (i,), Binary(op, load(given, i), load(by, i), dtype)) for op, o in zip(ops, outs, strict=True)
    )
    kernel = Kernel("quotients", (given, by), outs, (var(N),), loop(i, Seq(stores), "vectorized"))
    outputs = check(kernel, [a, b, *(np.zeros(len(a), dtype) for _ in ops)], {var(N): len(a)}, target)
    for n, (quotient, rest) in enumerate(zip(outputs[0].tolist(), outputs[1].tolist(), strict=True)):
        if y[n] not in (0, -1):
            assert (quotient, rest) == divmod(x[n], y[n])


@pytest.mark.parametrize("target", TARGETS)
def test_quotients_of_places_before_the_first_round_down(target: str) -> None:
    """``(i - n) // m`` and its remainder, both sizes unknown, in vectors."""
    i, out, rest = Axis("i", N), Buffer("out", (N,), "int64"), Buffer("rest", (N,), "int64")
    before = binary("sub", i, Size(M))
    by = binary("add", Size(M), -3)
    body = Seq((Store(out, (i,), binary("floordiv", before, by)), Store(rest, (i,), binary("mod", before, by))))
    kernel = Kernel("places", (), (out, rest), (var(M), var(N)), loop(i, body, "vectorized"))
    for m in (1, 2, 3, 4, 10, 50):
        found = check(kernel, [np.zeros(75, "int64"), np.zeros(75, "int64")], {var(M): m, var(N): 75}, target)
        want = [divmod(place - m, m - 3) if m != 3 else (0, 0) for place in range(75)]
        assert list(zip(found[0].tolist(), found[1].tolist(), strict=True)) == want


@st.composite
def scalar_expressions(draw: st.DrawFn, leaves: tuple[Scalar, ...], dtype: str, depth: int) -> Scalar:
    """A random expression of one dtype over some leaves."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        fitting = [leaf for leaf in leaves if leaf.dtype == dtype]
        choice = draw(st.integers(0, len(fitting)))
        if choice < len(fitting):
            return fitting[choice]
        return Const(draw(st.integers(0, 5)) if dtype != "bool" else draw(st.booleans()), dtype)

    def inner(of: str) -> Scalar:
        return draw(scalar_expressions(leaves, of, depth - 1))

    match draw(st.integers(0, 4)):
        case 0 if dtype != "bool":
            return Cast(inner(draw(st.sampled_from(["bool", "int8", "int32", "float32"]))), dtype)
        case 1:
            return Select(inner("bool"), inner(dtype), inner(dtype), dtype)
        case 2 if dtype == "bool":
            side = draw(st.sampled_from(["int32", "float32", "int64"]))
            return Compare(draw(st.sampled_from(["eq", "ne", "lt", "le", "gt", "ge"])), inner(side), inner(side))
        case 3 if dtype in ("float32", "float64"):
            return Unary(
                draw(st.sampled_from(["neg", "abs", "tanh", "sigmoid", "floor", "sqrt", "sign"])), inner(dtype), dtype
            )
        case _:
            if is_float(dtype):
                ops = ["add", "sub", "mul", "min", "max"]
            elif dtype == "bool":
                ops = ["and", "or", "xor"]
            else:
                ops = ["add", "sub", "mul", "min", "max", "floordiv", "mod", "truncdiv", "and", "xor", "shl", "shr"]
            return Binary(draw(st.sampled_from(ops)), inner(dtype), inner(dtype), dtype)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(st.data())
def test_random_elementwise(data: st.DataObject) -> None:
    """A random expression over operands of several dtypes and broadcast shapes, loops of random kinds."""
    i, j = Axis("i", M), Axis("j", N)
    count_m, count_n = data.draw(st.integers(0, 4)), data.draw(st.sampled_from([0, 1, 3, 8, 16, 17, 37]))
    operands = [
        Buffer("a", (M, N), "float32"), Buffer("b", (N,), "float32"), Buffer("c", (M, 1), "int32"),
        Buffer("d", (M, N), data.draw(st.sampled_from(["int8", "int64", "bool", "float64", "bfloat16"]))),
    ]  # fmt: skip
    places = [(i, j), (j,), (i, const(0)), (i, j)]
    leaves: tuple[Scalar, ...] = tuple(load(b, *p) for b, p in zip(operands, places, strict=True))
    leaves += (i, j, Size(N))
    dtype = data.draw(st.sampled_from(["float32", "int32", "float64", "bool", "int64", "uint8"]))
    value = data.draw(scalar_expressions(leaves, dtype, 4))
    out = Buffer("out", (M, N), dtype)
    inner = loop(j, Store(out, (i, j), value), data.draw(st.sampled_from(["serial", "vectorized"])))
    kernel = Kernel(
        "random", tuple(operands), (out,), (var(M), var(N)), loop(i, inner, data.draw(st.sampled_from(KINDS)))
    )
    rng = np.random.default_rng(1)
    shapes = [(count_m, count_n), (count_n,), (count_m, 1), (count_m, count_n)]
    arrays = [random_array(rng, s, b.dtype) for s, b in zip(shapes, operands, strict=True)]
    arrays.append(np.zeros((count_m, count_n), numpy_dtype(dtype)))
    check(kernel, arrays, {var(M): count_m, var(N): count_n}, data.draw(st.sampled_from(TARGETS)), rtol=1e-4)


# -- reductions


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [1, 5, 16, 64, 100, 333])
@pytest.mark.parametrize("symbolic", [False, True])
def test_reductions(size: int, symbolic: bool, target: str) -> None:
    """Vector accumulators of every operation, with symbolic and constant extents; nan wins maxima."""
    extent = N if symbolic else size
    cases: list[tuple[BinaryOp, str, float | bool]] = [
        ("add", "float32", 0.0), ("max", "float32", -np.inf), ("min", "float64", np.inf), ("mul", "float32", 1.0),
        ("add", "int64", 0), ("max", "int32", -(2**31)), ("and", "bool", True), ("or", "bool", False),
        ("add", "float16", 0.0),
    ]  # fmt: skip
    rng = np.random.default_rng(size)
    inputs, outputs, parts, arrays = [], [], [], []
    for op, dtype, start in cases:
        x, y = Buffer("x", (extent,), dtype), Buffer("y", (), dtype)
        acc, i = Buffer("acc", (), dtype, "register"), Axis("i", extent)
        step = Store(acc, (), Binary(op, load(acc), load(x, i), dtype))
        inputs.append(x)
        outputs.append(y)
        first = Store(acc, (), Const(start, dtype))
        parts.append(Alloc(acc, Seq((first, loop(i, step, "vectorized"), Store(y, (), load(acc))))))
        array = random_array(rng, (size,), dtype)
        if op == "mul":
            array = (1 + array / 100).astype(array.dtype)
        arrays.append(array)
    arrays[1][size // 2] = np.nan
    kernel = Kernel("reduce", tuple(inputs), tuple(outputs), (var(N),), Seq(tuple(parts)))
    results = check(kernel, [*arrays, *(np.zeros((), a.dtype) for a in arrays)], {var(N): size}, target, rtol=1e-4)
    assert np.isnan(results[1])


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(1,), (3,), (4,), (7,), (24,), (3, 5)])
@pytest.mark.parametrize(
    "op,dtype", [("add", "float32"), ("add", "float64"), ("add", "int32"), ("mul", "float32"), ("max", "int32")]
)
def test_reductions_beside_each_other(shape: tuple[int, ...], op: BinaryOp, dtype: str, target: str) -> None:
    """Sums that are combined in one register are added to what each element of the buffer held."""
    count, size = int(np.prod(shape)), 37
    x, y = Buffer("x", (count, size), dtype), Buffer("y", (count,), dtype)
    acc, i = Buffer("acc", shape, dtype, "register"), Axis("i", size)
    places = [tuple(Const(int(p), "int64") for p in np.unravel_index(n, shape)) for n in range(count)]
    first = [Store(acc, p, Const(n + 1, dtype)) for n, p in enumerate(places)]
    steps = [Store(acc, p, Binary(op, load(acc, *p), load(x, const(n), i), dtype)) for n, p in enumerate(places)]
    last = [Store(y, (const(n),), load(acc, *p)) for n, p in enumerate(places)]
    body = Alloc(acc, Seq((*first, loop(i, Seq(tuple(steps)), "vectorized"), *last)))
    array = random_array(np.random.default_rng(count), (count, size), dtype)
    if op == "mul":
        array = (1 + array / 100).astype(array.dtype)
    check(Kernel("beside", (x,), (y,), (), body), [array, np.zeros(count, dtype)], {}, target, rtol=1e-4)


def test_argmax_stays_in_order() -> None:
    """Not a reduction of the recognised form: the loop runs in order, and gives the first maximum."""
    x, y = Buffer("x", (N,), "float32"), Buffer("y", (), "int32")
    best, at, i = Buffer("best", (), "float32", "register"), Buffer("at", (), "int32", "register"), Axis("i", N)
    better = Compare("gt", load(x, i), load(best))
    step = Branch(better, Seq((Store(at, (), cast(i, "int32")), Store(best, (), load(x, i)))))
    body = Alloc(best, Alloc(at, Seq((
        Store(best, (), Const(-np.inf, "float32")), Store(at, (), Const(0, "int32")), loop(i, step, "vectorized"),
        Store(y, (), load(at)),
    ))))  # fmt: skip
    values = np.array([1, 5, 2, 5, -1] * 9, np.float32)
    (result,) = check(Kernel("argmax", (x,), (y,), (var(N),), body), [values, np.zeros((), np.int32)], {var(N): 45})
    assert result == 1


def test_private_accumulators() -> None:
    """A column sum: each lane of the vectorized loop has its own accumulator."""
    a, s = Buffer("a", (M, N), "float32"), Buffer("s", (N,), "float32")
    j, i, acc = Axis("j", N), Axis("i", M), Buffer("acc", (1,), "float32", "register")
    zero = const(0)
    body = Alloc(acc, Seq((
        Store(acc, (zero,), Const(0.0, "float32")),
        loop(i, Store(acc, (zero,), load(acc, zero) + load(a, i, j))),
        Store(s, (j,), load(acc, zero)),
    )))  # fmt: skip
    kernel = Kernel("columns", (a,), (s,), (var(M), var(N)), loop(j, body, "vectorized"))
    rng = np.random.default_rng(0)
    for target in TARGETS:
        for rows, columns in ((7, 50), (0, 3), (3, 16)):
            arrays = [random_array(rng, (rows, columns), "float32"), np.zeros(columns, np.float32)]
            check(kernel, arrays, {var(M): rows, var(N): columns}, target)


@pytest.mark.parametrize("again", [False, True])
def test_a_store_that_stands_twice_is_two(again: bool) -> None:
    """A sum that goes on from lane to lane is one store: where the same object stands in two places, there are two."""
    x, y = Buffer("x", (37,), "float32"), Buffer("y", (37,), "float32")
    total = Buffer("total", (1,), "float32", "register")
    i = Axis("i", 37)
    at, zero = (i,), (Const(0, "int64"),)
    step = Store(total, zero, binary("add", Load(total, zero, "float32"), Load(x, at, "float32")))
    row = Seq((step, *([step] if again else []), Store(y, at, Load(total, zero, "float32"))))
    loop = For(i, Const(37, "int64"), row, "vectorized")
    body = Alloc(total, Seq((Store(total, zero, Const(0.0, "float32")), loop)))
    numbers = np.arange(37, dtype=np.float32)
    (out,) = check(Kernel("sums", (x,), (y,), (), body), [numbers, np.zeros(37, np.float32)])
    assert np.array_equal(out, np.cumsum(numbers) * (2 if again else 1))


def test_lanes_without_an_element_are_zero() -> None:
    """What memory of the function's own holds where nobody wrote may be subnormal: adding to that takes a hundred times as long."""
    a, s, acc = Buffer("a", (M, N), "float32"), Buffer("s", (N,), "float32"), Buffer("acc", (24,), "float32", "stack")
    i, j, k, last = Axis("i", M), Axis("j", N), Axis("k", N), Axis("last", N)
    body = Alloc(acc, Seq((
        loop(j, Store(acc, (j,), Const(0.0, "float32")), "vectorized"),
        loop(i, loop(k, Store(acc, (k,), load(acc, k) + load(a, i, k)), "vectorized")),
        loop(last, Store(s, (last,), load(acc, last)), "vectorized"),
    )))  # fmt: skip
    kernel = Kernel("columns", (a,), (s,), (var(M), var(N)), body)
    arrays = [random_array(np.random.default_rng(0), (5, 21), "float32"), np.zeros(21, np.float32)]
    check(kernel, arrays, {var(M): 5, var(N): 21})
    text = emit(finished(kernel), parse_target("x86-64-v4"))
    assert len(re.findall(r"select <16 x i1> %\w+, <16 x float> %\w+, <16 x float> zeroinitializer", text)) == 2


def test_registers_are_not_merged_with_what_nobody_reads() -> None:
    """Lanes past the end of a line of sums are the padding of registers: to keep there what they were took twice the time of the sums."""
    a, s, acc = (
        Buffer("a", (M, 14), "float32"),
        Buffer("s", (14,), "float32"),
        Buffer("acc", (14,), "float32", "register"),
    )
    i, j, k, last = Axis("i", M), Axis("j", 14), Axis("k", 14), Axis("last", 14)
    body = Alloc(acc, Seq((
        loop(j, Store(acc, (j,), Const(0.0, "float32")), "vectorized"),
        loop(i, loop(k, Store(acc, (k,), load(acc, k) + load(a, i, k)), "vectorized")),
        loop(last, Store(s, (last,), load(acc, last)), "vectorized"),
    )))  # fmt: skip
    kernel = Kernel("columns", (a,), (s,), (var(M),), body)
    for target in TARGETS:
        check(
            kernel,
            [random_array(np.random.default_rng(0), (5, 14), "float32"), np.zeros(14, np.float32)],
            {var(M): 5},
            target,
        )
    assert "select" not in emit(finished(kernel), parse_target("x86-64-v4"))


# -- the register-tiled product


def tile_kernel(rows: int, columns: int, depth: int, dtype: str) -> Kernel:
    """An outer product into a register tile, as the matrix schedule writes it."""
    a, b = Buffer("a", (depth, rows), dtype), Buffer("b", (depth, columns), dtype)
    out, acc = Buffer("out", (rows, columns), dtype), Buffer("acc", (rows, columns), dtype, "register")
    k, i, j = Axis("k", depth), Axis("i", rows), Axis("j", columns)
    unrolled: LoopKind = "unrolled"

    def tile(value: Scalar) -> Stmt:
        return loop(i, loop(j, Store(acc, (i, j), value), "vectorized"), unrolled)

    product = load(acc, i, j) + load(a, k, i) * load(b, k, j)
    body = Alloc(acc, Seq((
        tile(Const(0, dtype)), loop(k, tile(product)),
        loop(i, loop(j, Store(out, (i, j), load(acc, i, j)), "vectorized"), unrolled),
    )))  # fmt: skip
    return Kernel("tile", (a, b), (out,), (), body)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("rows", "columns", "dtype"), [(6, 64, "float32"), (4, 40, "float64"), (3, 13, "float32"), (2, 20, "int32")]
)
def test_register_tiles(rows: int, columns: int, dtype: str, target: str) -> None:
    rng = np.random.default_rng(0)
    arrays = [random_array(rng, (9, rows), dtype), random_array(rng, (9, columns), dtype)]
    check(tile_kernel(rows, columns, 9, dtype), [*arrays, np.zeros((rows, columns), dtype)], {}, target, rtol=1e-5)


def test_a_tile_stays_in_registers() -> None:
    """The tile of the matrix schedule spills nothing: the loop over k has 24 multiply-adds and no stack access."""
    from relay.codegen.objects import assembly

    code = assembly(emit(tile_kernel(6, 64, 256, "float32"), parse_target("x86-64-v4")), parse_target("x86-64-v4"))
    assert code.count("vfmadd") == 24
    assert "%rsp" not in code


# -- memory


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["float32", "int8", "int4", "bfloat16"])
def test_index_patterns(dtype: str, target: str) -> None:
    """Reversed, strided, transposed, divided, gathered reads and scattered writes."""
    n = 40
    x, index = Buffer("x", (n,), dtype), Buffer("index", (n,), "int32")
    i = Axis("i", n)
    at = cast(load(index, i), "int64")
    reads = [const(n - 1) - i, (i * 3) % n, i // 2, (i + 8) % 8, at, i // 16 + i % 16, minimum(i, const(7))]
    outs = tuple(Buffer(f"y{k}", (n,), dtype) for k in range(len(reads) + 2))
    stores = [Store(y, (i,), load(x, r)) for y, r in zip(outs, reads, strict=False)]
    stores += [Store(outs[-2], (const(n - 1) - i,), load(x, i)), Store(outs[-1], (at,), load(x, i))]
    rng = np.random.default_rng(1)
    arrays = [random_array(rng, (n,), dtype), rng.permutation(n).astype(np.int32)]
    arrays += [np.zeros(n, numpy_dtype(dtype)) for _ in outs]
    check(Kernel("index", (x, index), outs, (), loop(i, Seq(tuple(stores)), "vectorized")), arrays, {}, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("dtype", "step"),
    [
        ("float32", 2),
        ("float32", 3),
        ("float32", 4),
        ("float64", 2),
        ("int64", 3),
        ("int8", 2),
        ("uint8", 4),
        ("int16", 3),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_every_second_to_fourth_element(dtype: str, step: int, known: bool, target: str) -> None:
    """Whole vectors around them read nothing beyond the last one, behind which is a page that would fault."""
    libc, page = ctypes.CDLL(None, use_errno=True), mmap.PAGESIZE
    for count in (1, 7, 16, 39):
        size, extent = step * (count - 1) + 1, count if known else N
        x, y = Buffer("x", (size,), dtype), Buffer("y", (2, extent), dtype)
        i = Axis("i", extent)
        few = Binary("and", Compare("ge", i, const(2)), Compare("lt", i * step, const(size - step)), "bool")
        inside = select(few, load(x, i * step), Const(1, dtype))
        stores = Seq((Store(y, (const(0), i), load(x, i * step)), Store(y, (const(1), i), inside)))
        kernel = finished(Kernel("apart", (x,), (y,), () if known else (var(N),), loop(i, stores, "vectorized")))
        sizes = {} if known else {var(N): count}
        given_x, want = random_array(np.random.default_rng(count), (size,), dtype), np.zeros((2, count), dtype)
        assert evaluate(kernel, [given_x, want], sizes) == 0
        pages = np.frombuffer(mmap.mmap(-1, 2 * page), np.uint8)
        at = ctypes.c_void_p(pages.ctypes.data + page)
        held = pages[page - given_x.nbytes : page].view(dtype)
        held[:] = given_x
        assert libc.mprotect(at, ctypes.c_size_t(page), 0) == 0
        got = np.zeros_like(want)
        assert Native(kernel, parse_target(target))([held, got], sizes) == 0
        assert np.array_equal(got, want)
        assert libc.mprotect(at, ctypes.c_size_t(page), mmap.PROT_READ | mmap.PROT_WRITE) == 0


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", ["int8", "bfloat16", "float32", "int64"])
def test_what_is_left_of_a_loop_is_all_that_is_written(dtype: str, target: str) -> None:
    """As many first lanes as are left, whether a loop ends there or a condition holds for them."""
    x, whole, few = Buffer("x", (N,), dtype), Buffer("whole", (100,), dtype), Buffer("few", (100,), dtype)
    i, k, j = Axis("i", N), Axis("k", 3), Axis("j", 16)
    at = k * 16 + j
    ends = loop(i, Store(whole, (i,), load(x, i)), "vectorized")
    first = Branch(Compare("lt", j, Binary("sub", Size(N), k * 16, "int64")), Store(few, (at,), load(x, at)), None)
    kernel = Kernel("left", (x,), (whole, few), (var(N),), Seq((ends, loop(k, loop(j, first, "vectorized"), "serial"))))
    rng = np.random.default_rng(2)
    for n in range(49):
        marks = random_array(rng, (100,), dtype)
        check(kernel, [random_array(rng, (n,), dtype), marks, marks.copy()], {var(N): n}, target)


@pytest.mark.parametrize("target", TARGETS)
def test_index_divisions(target: str) -> None:
    """Flat indices taken apart by numbers and by sizes, large ones included; a size of zero divides to 0."""
    y, i = Buffer("y", (6, N), "int64"), Axis("i", N)
    big = i * (1 << 40) + 12345
    values = [i // 7, (i + 5) % 7, big // 10007, big % 10007, i // Size(M), (i * 3) % Size(M)]
    stores = tuple(Store(y, (const(n), i), v) for n, v in enumerate(values))
    kernel = Kernel("divisions", (), (y,), (var(N), var(M)), loop(i, Seq(stores), "vectorized"))
    for m in (0, 1, 5):
        check(kernel, [np.zeros((6, 100), np.int64)], {var(N): 100, var(M): m}, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
def test_padding_reads_only_inside(kind: LoopKind, target: str) -> None:
    """A select guards loads out of bounds, one level and two: the neighbouring pages would fault."""
    n = 1024
    x, y = Buffer("x", (n,), "float32"), Buffer("y", (n + 64,), "float32")
    i = Axis("i", n + 64)
    inside = Compare("ge", i, const(32)) & Compare("lt", i, const(n + 32))
    near = select(Compare("lt", i, const(40)), load(x, i - 32) * 2.0, load(x, i - 32))
    value = select(inside, near, Const(7.0, "float32"))
    kernel = Kernel("pad", (x,), (y,), (), loop(i, Store(y, (i,), value), kind))
    memory = mmap.mmap(-1, 4096)
    data = np.frombuffer(memory, np.float32)
    data[:] = np.arange(n)
    check(kernel, [data, np.zeros(n + 64, np.float32)], {}, target)


@pytest.mark.parametrize("target", TARGETS)
def test_guarded_reads_of_local_memory(target: str) -> None:
    """Before the start of a stack buffer, at a place lanes share, and in a buffer each lane has for itself."""
    y, i, j = Buffer("y", (3, 40), "float32"), Axis("i", 40), Axis("j", 40)
    row, mine = Buffer("row", (40,), "float32", "stack"), Buffer("mine", (2,), "float32", "stack")
    zero, at = Const(0.0, "float32"), Size(N) - 1
    early = select(Compare("ge", j, const(9)), load(row, j - 9), zero)
    shared = select(Compare("lt", j, Size(N)), load(row, at), zero)
    own = select(Compare("lt", j, Size(N)), load(mine, Size(N) % 2), zero)
    stores = [Store(y, (const(n), j), v) for n, v in enumerate((early, shared, own))]
    fill = [Store(mine, (const(n),), cast(j + n, "float32")) for n in range(2)]
    uses = loop(j, Alloc(mine, Seq((*fill, *stores))), "vectorized")
    body = Alloc(row, Seq((loop(i, Store(row, (i,), cast(i, "float32")), "vectorized"), uses)))
    kernel = Kernel("guarded", (), (y,), (var(N),), body)
    for n in (0, 3):
        check(kernel, [np.zeros((3, 40), np.float32)], {var(N): n}, target)


@pytest.mark.parametrize("scope", ["stack", "register"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "float16"])
@pytest.mark.parametrize("target", TARGETS)
def test_local_memory_is_written_to_its_end(target: str, dtype: str, scope: Scope) -> None:
    """The last vector of a loop that writes behind something begins anywhere: what is beside the buffer stays as it is."""
    for half in (5, 20, 50, 100, 113):
        x, y = Buffer("x", (half,), dtype), Buffer("y", (4 * half,), dtype)
        rows = [Buffer(n, (2 * half,), dtype, scope) for n in ("a", "b")]
        fills: list[Stmt] = []
        for row in rows:
            for start in (0, half):
                i = Axis("i", half)
                at = Binary("add", i, const(start), "int64")
                fills.append(loop(i, Store(row, (at,), load(x, i)), "vectorized"))
        # Backwards, under a condition: the first lanes are before the buffer.
        k = Axis("k", half + 3)
        back, inside = Binary("sub", k, const(3), "int64"), Compare("ge", k, const(3))
        fills.append(loop(k, Branch(inside, Store(rows[1], (back,), load(x, back)), None), "vectorized"))
        for n, row in enumerate(rows):
            j = Axis("j", 2 * half)
            fills.append(
                loop(j, Store(y, (Binary("add", j, const(2 * half * n), "int64"),), load(row, j)), "vectorized")
            )
        kernel = Kernel("ends", (x,), (y,), (), Alloc(rows[0], Alloc(rows[1], Seq(tuple(fills)))))
        given_x = random_array(np.random.default_rng(half), (half,), dtype)
        (got,) = check(kernel, [given_x, np.zeros(4 * half, numpy_dtype(dtype))], {}, target)
        assert np.array_equal(got, np.tile(given_x, 4))


def test_uniform_guard() -> None:
    """A load all lanes share, guarded by a condition no lane may meet."""
    x, y, i = Buffer("x", (N,), "float32"), Buffer("y", (M,), "float32"), Axis("i", M)
    value = select(Compare("lt", i, Size(N)), load(x, Size(N) - 1), Const(1.0, "float32"))
    kernel = Kernel("guard", (x,), (y,), (var(N), var(M)), loop(i, Store(y, (i,), value), "vectorized"))
    for n in (0, 3):
        check(kernel, [np.ones(n, np.float32), np.zeros(20, np.float32)], {var(N): n, var(M): 20})


@pytest.mark.parametrize("target", TARGETS)
def test_masked_branches_and_lets(target: str) -> None:
    x, y, i = Buffer("x", (N,), "float32"), Buffer("y", (N,), "float32"), Axis("i", N)
    t, u = Axis("t", 1, "float32"), Axis("u", 1, "int64")
    inner = Branch(Compare("gt", t, Const(1.0, "float32")), Store(y, (u,), t * t), Store(y, (u,), t - 1.0))
    body = LetScalar(t, load(x, i) * 2.0, LetScalar(u, Size(N) - 1 - i, Branch(Compare("ne", i, const(3)), inner)))
    kernel = Kernel("branches", (x,), (y,), (var(N),), loop(i, body, "vectorized"))
    rng = np.random.default_rng(0)
    for n in (1, 7, 16, 45):
        check(kernel, [random_array(rng, (n,), "float32"), np.zeros(n, np.float32)], {var(N): n}, target)


@pytest.mark.parametrize("scope", ["stack", "worker", "workspace"])
@pytest.mark.parametrize("kind", KINDS)
def test_temporaries(scope: Scope, kind: LoopKind) -> None:
    """Rows through a temporary in each kind of memory, two temporaries at once, one of them of sub-byte elements."""
    width = 24
    a, y = Buffer("a", (M, width), "float32"), Buffer("y", (M, width), "float32")
    i, j, j2 = Axis("i", M), Axis("j", width), Axis("j2", width)
    row, flags = Buffer("row", (width,), "float32", scope), Buffer("flags", (width,), "uint4", scope)
    fill = Seq((Store(row, (j,), load(a, i, j) * 2.0), Store(flags, (j,), cast(j, "uint4"))))
    use = Store(y, (i, j2), load(row, const(width - 1) - j2) + cast(load(flags, j2), "float32"))
    rows = Seq((loop(j, fill, "vectorized"), loop(j2, use, "vectorized")))
    outer = loop(i, rows, "serial" if scope == "workspace" else kind)
    inside = Alloc(row, Alloc(flags, outer)) if scope == "workspace" else loop(i, Alloc(row, Alloc(flags, rows)), kind)
    rng = np.random.default_rng(0)
    arrays = [random_array(rng, (7, width), "float32"), np.zeros((7, width), np.float32)]
    check(Kernel("temporaries", (a,), (y,), (var(M),), inside), arrays, {var(M): 7})


def test_parallel_captures() -> None:
    """A parallel body uses outer loop variables, lets, sizes, and stack and workspace buffers of the surroundings."""
    y, i, j = Buffer("y", (3, N), "int64"), Axis("i", 3), Axis("j", N)
    t, table = Axis("t", 1, "bool"), Buffer("table", (3,), "int64", "stack")
    shared, k = Buffer("shared", (N,), "int64", "workspace"), Axis("k", N)
    value = select(t, load(table, i), load(shared, j) + Size(N))
    inner = LetScalar(t, Compare("eq", i, const(1)), loop(j, Store(y, (i, j), value), "parallel", 4))
    fill = Seq(
        (*(Store(table, (const(n),), const(10 * n)) for n in range(3)), loop(k, Store(shared, (k,), k * k), "parallel"))
    )
    kernel = Kernel("captures", (), (y,), (var(N),), Alloc(table, Alloc(shared, Seq((fill, loop(i, inner))))))
    check(kernel, [np.zeros((3, 21), np.int64)], {var(N): 21})


def test_nested_parallel_runs_inline() -> None:
    y, i, j = Buffer("y", (M, N), "int32"), Axis("i", M), Axis("j", N)
    value = cast(i * 100 + j, "int32")
    kernel = Kernel(
        "nested", (), (y,), (var(M), var(N)), loop(i, loop(j, Store(y, (i, j), value), "parallel"), "parallel")
    )
    check(kernel, [np.zeros((5, 6), np.int32)], {var(M): 5, var(N): 6})


def test_switch_and_residues() -> None:
    y, i = Buffer("y", (N,), "int32"), Axis("i", N)
    cases = tuple(Store(y, (i,), Const(10 + c, "int32")) for c in range(3))
    for kind in KINDS:
        kernel = Kernel("switch", (), (y,), (var(N),), loop(i, Switch(i % 5, cases), kind))
        check(kernel, [np.full(23, -1, np.int32)], {var(N): 23})


@pytest.mark.parametrize("kind", KINDS)
def test_fail_returns_its_code(kind: LoopKind) -> None:
    x, y, i = Buffer("x", (N,), "int64"), Buffer("y", (N,), "int64"), Axis("i", N)
    bad = Compare("ge", load(x, i), const(10))
    body = Branch(bad, Fail(1), Store(y, (i,), load(x, i)))
    kernel = Kernel("fails", (x,), (y,), (var(N),), loop(i, body, kind))
    for values in ([1, 2, 3] * 9, [1, 2, 10, 3] * 5):
        check(kernel, [np.array(values), np.zeros(len(values), np.int64)], {var(N): len(values)})


def test_in_place() -> None:
    """Input and output in the same memory."""
    x, y, i = Buffer("x", (N,), "float32"), Buffer("y", (N,), "float32"), Axis("i", N)
    body = Store(y, (i,), maximum(load(x, i) * 2.0, Const(0.0, "float32")))
    kernel = Kernel("inplace", (x,), (y,), (var(N),), loop(i, body, "vectorized"), in_place=((0, 0),))
    values = np.linspace(-3, 3, 41).astype(np.float32)
    memory = values.copy()
    assert Native(kernel)([memory, memory], {var(N): 41}) == 0
    assert np.array_equal(memory, np.maximum(values * 2, 0))


@pytest.mark.parametrize("cpu,picked", [("znver4", True), ("skylake-avx512", False)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "float16"])
@pytest.mark.parametrize("count", [3, 64, 101])
def test_scattered_lanes(cpu: str, picked: bool, dtype: str, count: int) -> None:
    """Elements at places that an operand tells: by a gather, or one by one where the processor's gathers are slow."""
    x, y, at, i = Buffer("x", (M,), dtype), Buffer("y", (N,), dtype), Buffer("at", (N,), "int32"), Axis("i", N)
    body = Store(y, (i,), load(x, cast(load(at, i), "int64")))
    kernel = Kernel("scattered", (x, at), (y,), (var(N), var(M)), loop(i, body, "vectorized"))
    rng = np.random.default_rng(count)
    values, places = random_array(rng, (50,), dtype), rng.integers(0, 50, count).astype(np.int32)
    out = np.zeros(count, values.dtype)
    target = replace(parse_target("cpu"), cpu=cpu)
    assert ("masked.gather" not in emit(kernel, replace(target, masked=False))) == picked
    assert Native(kernel, target)([values, places, out], {var(N): count, var(M): 50}) == 0
    assert np.array_equal(out, values[places])


def test_long_expressions() -> None:
    """A chain of 20,000 operations: no recursion, and time in proportion."""
    x, y, i = Buffer("x", (4,), "float32"), Buffer("y", (4,), "float32"), Axis("i", 4)
    value: Scalar = load(x, i)
    for step in range(20_000):
        value = value + float(step % 3 - 1)
    assert (
        emit(Kernel("chain", (x,), (y,), (), loop(i, Store(y, (i,), value))), parse_target("cpu")).count("fadd")
        == 20_000
    )


@pytest.mark.skipif(not parse_target("cpu").multiplies_words, reason="this machine has no such instructions")
@pytest.mark.parametrize("kind", ["serial", "vectorized"])
@pytest.mark.parametrize("parts", ["s8u8", "u8s8", "s16"])
def test_dots_of_words(parts: Parts, kind: LoopKind) -> None:
    """By themselves, added to what there was, and summed up; in all numbers of lanes."""
    n = 37
    a, b, c = (Buffer(name, (n,), "int32") for name in "abc")
    out, total = Buffer("out", (n,), "int32"), Buffer("total", (1,), "int32")
    i, sum_ = Axis("i", n), Buffer("sum", (1,), "int32", "register")
    dot = Dot(parts, load(a, i), load(b, i), "int32")
    body = Seq((
        loop(i, Store(out, (i,), binary("mul", binary("add", load(c, i), dot), dot)), kind),
        Alloc(sum_, Seq((
            Store(sum_, (const(0),), Const(0, "int32")),
            loop(i, Store(sum_, (const(0),), binary("add", load(sum_, const(0)), dot)), kind),
            Store(total, (const(0),), load(sum_, const(0))),
        ))),
    ))  # fmt: skip
    rng = np.random.default_rng(3)
    words = [rng.integers(-(2**31), 2**31, n).astype(np.int32) for _ in range(3)]
    words[0][:4], words[1][:4] = -(2**31) + 0x8080, 0x7FFF8000
    check(Kernel("dots", (a, b, c), (out, total), (), body), [*words, np.zeros(n, np.int32), np.zeros(1, np.int32)])


@pytest.mark.parametrize("target", TARGETS)
def test_bits_of_numbers(target: str) -> None:
    x, h = Buffer("x", (21,), "float32"), Buffer("h", (21,), "bfloat16")
    y, z = Buffer("y", (21,), "int32"), Buffer("z", (21,), "float32")
    i = Axis("i", 21)
    low = Cast(Bits(load(h, i), "uint16"), "int32")
    both = binary("xor", binary("shl", low, Const(16, "int32")), low)
    body = loop(
        i, Seq((Store(y, (i,), Bits(load(x, i), "int32")), Store(z, (i,), Bits(both, "float32")))), "vectorized"
    )
    rng = np.random.default_rng(4)
    arrays = [random_array(rng, (21,), "float32"), random_array(rng, (21,), "bfloat16")]
    check(
        Kernel("bits", (x, h), (y, z), (), body),
        [*arrays, np.zeros(21, np.int32), np.zeros(21, np.float32)],
        None,
        target,
    )
