"""Vectors that every row reads, wherever they begin: the same bits, and nothing beyond them is read."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import pytest

from relay.codegen.llvm import emit
from relay.codegen.target import parse_target
from relay.ir.dim import as_var, dim_evaluate, dim_var
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Expr, Function
from relay.ir.types import TensorType
from relay.loop.target import Target
from relay.plan.graph import te_graph
from relay.plan.kernel_plan import KernelPlan, make_plan
from relay.te.evaluate import evaluate
from tests.plan.harness import HOST, Array, Maker, Native, fresh_name, primitive, random, tensor

M = dim_var("m")
# Fewer rows than repay a copy, just as many, and more; they are also cut into tasks of three workers.
ROWS = (1, 15, 16, 17, 100)
PAGE = mmap.PAGESIZE
WITH_LINES = parse_target("x86-64-v4")

Build = Callable[..., Expr]
# Kept until the process ends: NumPy arrays do not say that they lie there.
_mapped: list[mmap.mmap] = []


def scaled(m: Maker, x: Expr, g: Expr, b: Expr) -> Expr:
    return m("add", m("multiply", x, g), b)


def norm(m: Maker, x: Expr, g: Expr, b: Expr) -> Expr:
    return m("nn.layer_norm", x, g, b)


def root_mean_square(m: Maker, x: Expr, g: Expr, b: Expr) -> Expr:
    mean = m("mean", m("multiply", x, x), axis=-1, keepdims=True)
    return m("multiply", m("multiply", x, m("rsqrt", m("add", mean, m("exp", mean)))), m("add", g, b))


def shares(m: Maker, x: Expr, g: Expr, b: Expr) -> Expr:
    return m("nn.softmax", m("add", m("multiply", x, g), b))


def total(m: Maker, x: Expr, g: Expr, b: Expr) -> Expr:
    return m("sum", m("maximum", m("multiply", x, g), b), axis=-1)


def both(m: Maker, x: Expr, g: Expr, b: Expr) -> Expr:
    y = scaled(m, x, g, b)
    return m.tuple(y, m("max", y, axis=-1))


FLOATS: list[Build] = [scaled, norm, root_mean_square, shares, total, both]


def behind(array: Array, offset: int) -> Array:
    """A copy that begins so many bytes behind a cache line."""
    space = np.empty(array.nbytes + 128, np.uint8)
    start = -space.ctypes.data % 64 + offset
    out = space[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def apart(offset: int, size: int) -> Callable[[Array, int], Array]:
    """Operands behind a line, the first one by ``offset`` and each by another distance, in whole elements of ``size``."""
    return lambda array, n: behind(array, (offset + 20 * n) // size * size % 64)


def before_a_fence(array: Array) -> Array:
    """A copy whose last byte is the last of a page, behind which nothing may be read."""
    size = -(-array.nbytes // PAGE) * PAGE
    memory = mmap.mmap(-1, size + PAGE)
    _mapped.append(memory)
    space = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(space.ctypes.data + size), ctypes.c_size_t(PAGE), 0) == 0
    out = space[size - array.nbytes : size].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


@lru_cache(4)
def compiled(fn: Function) -> tuple[KernelPlan, Native]:
    plan = make_plan(fn, HOST, name=fresh_name())
    return plan, Native(plan.kernel, HOST)


def results(fn: Function, rows: int, place: Callable[[Array, int], Array], check: bool = False) -> list[bytes]:
    """What a kernel computes of operands that lie where ``place`` puts the one of this number."""
    (plan, native), graph = compiled(fn), te_graph(fn)
    env = {v: rows for v in (as_var(M),) if v is not None and v in plan.kernel.dims}
    given = [place(random([dim_evaluate(d, env) for d in t.shape], t.dtype, n), n) for n, t in enumerate(graph.inputs)]
    got = [np.zeros([dim_evaluate(d, env) for d in t.shape], numpy_dtype(t.dtype)) for t in graph.outputs]
    assert native.run(native.bind([*given, *got], env)) == 0
    if check:
        values = dict(zip(graph.inputs, given, strict=True))
        wanted = evaluate(graph.outputs, values, env)
        for mine, theirs in zip(got, wanted, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)
    return [g.tobytes() for g in got]


def drawn(rng: np.random.Generator) -> tuple[str, Function, int]:
    """A program over rows, and how wide they are."""
    width = int(rng.choice([16, 48, 64, 100, 300, 768, 1008]))
    dtype = str(rng.choice(["float32", "float32", "float64"]))
    build = FLOATS[int(rng.integers(len(FLOATS)))]
    outer: Sequence[object] = ((M,), (3, M), (M, 5), (40,))[int(rng.integers(4))]
    types = [tensor((*outer, width), dtype), tensor((width,), dtype), tensor((width,), dtype)]
    return f"{build.__name__} of {outer} x {width}, {dtype}", primitive(types, build), np.dtype(dtype).itemsize


@pytest.mark.parametrize("seed", range(24))
def test_same_bits_at_every_place(seed: int) -> None:
    """Operands that begin anywhere in a line, each at another place, and at the end of what may be read."""
    rng = np.random.default_rng(seed)
    name, fn, size = drawn(rng)
    for rows in ROWS:
        wanted = results(fn, rows, lambda a, _: behind(a, 0), check=True)
        for offset in range(0, 64, size):
            got = results(fn, rows, apart(offset, size))
            assert got == wanted, f"{name}, {rows} rows, {offset} bytes behind a line"
        assert results(fn, rows, lambda a, _: before_a_fence(a)) == wanted, f"{name}, {rows} rows before a fence"


def copies(types: Sequence[TensorType], build: Build, target: Target) -> int:
    """How many operands the code may copy, each in as many places as read it."""
    return emit(make_plan(primitive(types, build), target, name="k").kernel, target).count("call void @llvm.memcpy")


def test_what_is_copied() -> None:
    vector = tensor((768,))
    assert copies([tensor((M, 768)), vector, vector], scaled, WITH_LINES) == 2
    assert copies([tensor((M, 768)), vector, vector], norm, WITH_LINES) >= 2
    # Once, before the rows, though there are loops inside of loops.
    assert copies([tensor((M, 5, 768)), vector, vector], scaled, WITH_LINES) == 2
    # Where vectors are shorter than lines most of them touch one.
    assert copies([tensor((M, 768)), vector, vector], scaled, parse_target("x86-64-v3")) == 0
    # What is longer than a part of the first-level cache is not found there.
    assert copies([tensor((M, 4096)), tensor((4096,)), tensor((4096,))], scaled, WITH_LINES) == 0
    # Few rows do not repay it.
    assert copies([tensor((8, 768)), vector, vector], scaled, WITH_LINES) == 0


def test_no_more_than_there_is_room_for() -> None:
    """Of many vectors the first ones are copied."""
    width = 1024
    types = [tensor((M, width)), *[tensor((width,))] * 6]

    def sums(m: Maker, x: Expr, *vectors: Expr) -> Expr:
        for vector in vectors:
            x = m("add", x, vector)
        return x

    assert copies(types, sums, WITH_LINES) == WITH_LINES.l1_bytes // 2 // (4 * width)
    fn = primitive(types, sums)
    wanted = results(fn, 40, lambda a, _: behind(a, 0), check=True)
    assert results(fn, 40, lambda a, n: behind(a, 4 * n)) == wanted
