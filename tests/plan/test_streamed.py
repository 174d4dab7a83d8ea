"""Results too large for the caches are written past them, and are the same bits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from relay.codegen.llvm import emit
from relay.codegen.target import parse_target
from relay.ir.dim import as_var, dim_evaluate, dim_var
from relay.ir.dtypes import numpy_dtype
from relay.ir.expr import Expr, Function
from relay.ir.types import TensorType
from relay.loop.ir import Prefetch
from relay.loop.target import Target
from relay.loop.walk import statements
from relay.plan.graph import te_graph
from relay.plan.kernel_plan import KernelPlan, make_plan
from tests.plan.harness import Array, Maker, Native, fresh_name, primitive, random, tensor

M = dim_var("m")
WIDE = tensor((M, 96))
W = dim_var("w")
# Cases: the rows that an output of some kilobytes has, and fewer than the limit.
ROWS = (1, 7, 64)


def small(text: str) -> Target:
    """A target whose last cache is small: results of 6 KB are large beside it."""
    return replace(parse_target(text), l3_bytes=16 << 10)


def two(m: Maker, x: Expr, y: Expr) -> Expr:
    total = m("add", x, y)
    return m.tuple(total, m("multiply", total, x))


PROGRAMS: dict[str, tuple[Sequence[TensorType], Callable[..., Expr]]] = {
    "one": ([WIDE], lambda m, x: m("exp", x)),
    "two": ([WIDE, WIDE], two),
    "rows": ([WIDE, tensor((96,)), tensor((96,))], lambda m, x, g, b: m("nn.layer_norm", x, g, b, ty=WIDE)),
    "narrow": ([tensor((M, 96), "int8")], lambda m, x: m("add", x, x)),
    "long": ([tensor((M, 96), "float64")], lambda m, x: m("sqrt", m("abs", x))),
    "odd": ([tensor((M, 50))], lambda m, x: m("exp", x)),
    "odd rows": ([tensor((M, 50)), tensor((50,))], lambda m, x, g: m("multiply", x, g)),
    "kept apart": ([WIDE], lambda m, x: m("nn.softmax", x)),
    "reread": ([tensor((M, 50))], lambda m, x: m("nn.softmax", x)),
}


def placed(array: Array, offset: int) -> Array:
    """A copy that begins so many bytes behind a cache line."""
    space = np.empty(array.nbytes + 192, np.uint8)
    start = -space.ctypes.data % 64 + offset
    out = space[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


@lru_cache(8)
def compiled(fn: Function, target: Target) -> tuple[KernelPlan, Native]:
    """One compilation for all rows, offsets and places."""
    plan = make_plan(fn, target, name=fresh_name())
    return plan, Native(plan.kernel, target)


def results(
    fn: Function, target: Target, rows: int, offset: int, in_place: bool = False, width: int = 96
) -> list[bytes]:
    (plan, native), graph = compiled(fn, target), te_graph(fn)
    env = {v: n for v, n in ((as_var(M), rows), (as_var(W), width)) if v is not None and v in plan.kernel.dims}
    given = [
        placed(random([dim_evaluate(d, env) for d in t.shape], t.dtype, n), offset) for n, t in enumerate(graph.inputs)
    ]
    got = [
        placed(np.full([dim_evaluate(d, env) for d in t.shape], 77).astype(numpy_dtype(t.dtype)), offset)
        for t in graph.outputs
    ]
    for source, destination in plan.in_place if in_place else ():
        got[destination] = given[source]
    assert native.run(native.bind([*given, *got], env)) == 0
    return [g.tobytes() for g in got]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("text", ["cpu", "x86-64-v3"])
def test_same_bits(name: str, text: str) -> None:
    """Large and small, at whole lines and behind them, over an operand and beside it."""
    types, build = PROGRAMS[name]
    fn = primitive(types, build)
    for rows in ROWS:
        wanted = results(fn, parse_target(text), rows, 0)
        for offset in (0, 32, 8):
            assert results(fn, small(text), rows, offset) == wanted
        assert results(fn, small(text), rows, 0, in_place=True) == wanted


@pytest.mark.parametrize("text", ["cpu", "x86-64-v3"])
def test_rows_of_unknown_length(text: str) -> None:
    """Rows that turn out to be whole vectors are written past the caches, others through them."""
    types = [tensor((M, W)), tensor((W,)), tensor((W,))]
    fn = primitive(types, lambda m, x, g, b: m("nn.layer_norm", x, g, b, ty=types[0]))
    for width in (96, 104, 97, 8):
        for rows in (1, 64):
            wanted = results(fn, parse_target(text), rows, 0, width=width)
            for offset in (0, 32, 8):
                assert results(fn, small(text), rows, offset, width=width) == wanted
    assert "!nontemporal" in emit(make_plan(fn, small(text), name="k").kernel, small(text))


@pytest.mark.parametrize(
    ("name", "streamed"),
    [
        ("one", (0,)),
        ("two", (0,)),
        ("rows", (0,)),
        ("odd", (0,)),
        ("odd rows", (0,)),
        ("kept apart", (0,)),
        ("reread", ()),
    ],
)
def test_which_outputs(name: str, streamed: tuple[int, ...]) -> None:
    """What a kernel reads back is not written past the caches, and only whole lines are."""
    types, build = PROGRAMS[name]
    fn = primitive(types, build)
    plan = make_plan(fn, small("x86-64-v4"), name="k")
    assert set(streamed) <= set(plan.kernel.streamed)
    assert bool(plan.kernel.streamed) == bool(streamed)
    text = emit(plan.kernel, small("x86-64-v4"))
    assert ("!nontemporal" in text and "sfence" in text) == (bool(streamed) and name != "odd rows")
    assert make_plan(fn, parse_target("aarch64"), name="k").kernel.streamed == ()


def test_small_results_have_no_other_code() -> None:
    fn = primitive([tensor((64, 96))], lambda m, x: m("exp", x))
    assert make_plan(fn, parse_target("x86-64-v4"), name="k").kernel.streamed == ()
    assert make_plan(fn, small("x86-64-v4"), name="k").kernel.streamed == (0,)


def test_what_is_asked_for_before_it_is_written() -> None:
    """Results of dear rows that may lie beyond the second-level cache, unless they are written past it."""
    for rows, asked in ((M, True), (8, False)):
        fn = primitive([tensor((rows, 768))], lambda m, x: m("nn.softmax", x))
        plan = make_plan(fn, small("x86-64-v4"), name="k")
        found = [s for s in statements(plan.kernel.body) if isinstance(s, Prefetch) and s.write]
        assert bool(found) == asked and all(s.buffer in plan.kernel.outputs for s in found)
        text = emit(plan.kernel, small("x86-64-v4"))
        assert ("llvm.prefetch" in text) == asked and ("asked" in text) == asked
