"""Attention in one kernel: every length, mask, layout and grouping of heads beside the meaning of its definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relay.codegen.target import parse_target
from relay.ir.dim import DimVar, as_dim
from relay.ir.expr import Expr
from relay.plan import attention_stream
from relay.plan.kernel_plan import KernelPlan
from tests.plan.harness import HOST, Maker, asked_for, check, primitive, random, tensor

VM, VN = DimVar("m"), DimVar("n")
M, N = as_dim(VM), as_dim(VN)


def attend(
    shapes: Sequence[Sequence[Any]], *sizes: Any, dtype: str = "float32", mask: str = "", **attrs: Any
) -> KernelPlan:
    """Check a call of the operator on operands of these shapes; the mask (of the fourth shape) has its own dtype."""
    kinds = [dtype] * 3 + [mask or dtype]
    types = [tensor(s, k) for s, k in zip(shapes, kinds, strict=False)]
    tolerance = {"float16": 4e-3, "bfloat16": 3e-2}.get(dtype, 2e-5)
    plan = check(primitive(types, lambda m, *x: m("nn.attention", *x, **attrs)), *sizes, tolerance=tolerance)
    assert plan.variant == "attention"
    return plan


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_lengths(dtype: str) -> None:
    sizes = [{VM: m, VN: n} for m, n in [(1, 1), (1, 300), (4, 17), (5, 5), (6, 64), (7, 65), (40, 48), (200, 520)]]
    attend([(2, M, 32), (2, N, 32), (2, N, 48)], *sizes, dtype=dtype)


@pytest.mark.parametrize("causal", [False, True])
def test_every_number_of_rows(causal: bool) -> None:
    # How rows are shared out over tiles: evenly, or the last with what is left; and over more tasks than one.
    sizes = [{VM: m, VN: m + 3} for m in (*range(5, 38), 191, 193, 197)]
    attend([(1, M, 8), (1, N, 8), (1, N, 8)], *sizes, causal=causal)


@pytest.mark.parametrize("depth", [2, 17, 32, 80, 128, 160])
def test_sizes_of_heads(depth: int) -> None:
    attend([(2, 30, depth), (2, 70, depth), (2, 70, depth)])
    attend([(2, 2, depth), (2, 70, depth), (2, 70, depth)])


@pytest.mark.parametrize("m", [3, 33])
def test_shared_heads(m: int) -> None:
    attend([(2, 6, m, 32), (2, 2, 50, 32), (2, 2, 50, 32)])
    attend([(2, 6, m, 32), (2, 1, 50, 32), (2, 1, 50, 32)], causal=True)
    attend([(2, 6, m, 32), (2, 2, N, 32), (2, 2, N, 32)], {VN: 60}, {VN: 40}, causal=True)


def test_causal() -> None:
    sizes = [{VM: m, VN: n} for m, n in [(1, 1), (1, 300), (7, 7), (64, 64), (300, 300), (40, 300), (270, 530)]]
    attend([(2, M, 32), (2, N, 32), (2, N, 32)], *sizes, causal=True)


@pytest.mark.parametrize(
    ("window", "hidden"),
    [
        *(
            (w, h)
            for h in (float("-inf"), -1e30)
            for w in [(0, 0), (3, 5), (40, 0), (300, -1), (70, 300), (1000, 1000)]
        ),
        # Where all hidden keys count no block is left out.
        ((3, 5), -2.0),
        ((300, -1), -2.0),
    ],
)
def test_windows(window: tuple[int, int], hidden: float) -> None:
    """Blocks of keys that no row of a tile or a task sees, at either end, are left out."""
    sizes = [
        {VM: m, VN: n} for m, n in [(1, 300), (3, 700), (7, 7), (64, 64), (700, 700), (40, 600), (270, 530), (270, 100)]
    ]
    # Rows whose windows lie before the first key see nothing, and have no numbers.
    sizes = [s for s in sizes if s[VN] >= s[VM] or hidden != float("-inf")]
    attend([(2, M, 16), (2, N, 16), (2, N, 16)], *sizes, window=window, hidden=hidden)


def test_windows_of_heads_that_share_keys() -> None:
    attend([(1, 6, 300, 16), (1, 2, 600, 16), (1, 2, 600, 16)], window=(40, 3))
    attend([(1, 6, M, 16), (1, 1, N, 16), (1, 1, N, 16)], {VM: 33, VN: 700}, causal=True, window=(256, -1))


@pytest.mark.parametrize("hidden", [-1e30, -3e4, -2.0])
def test_hidden_keys_that_count(hidden: float) -> None:
    """A finite score of hidden keys counts where no other is far above it: rows that see no key, or only keys of lower scores."""
    sizes = [{VM: m, VN: n} for m, n in [(1, 1), (3, 300), (7, 7), (300, 300), (50, 20), (3, 1), (270, 530)]]
    attend([(2, M, 32), (2, N, 32), (2, N, 32)], *sizes, causal=True, hidden=hidden)
    q, k, v = (random((1, 300, 32), "float32", s) for s in range(3))
    fn = primitive(
        [tensor(x.shape) for x in (q, k, v)], lambda m, *x: m("nn.attention", *x, causal=True, hidden=hidden)
    )
    check(fn, inputs=[q, k, v])
    q[0, 5], k[0, :6] = 1e4, -1e4  # what row 5 sees has scores of about -6e8
    check(fn, inputs=[q, k, v])


@pytest.mark.parametrize("outer", [1, 3])
@pytest.mark.parametrize("m", [1, 2, 4])
def test_few_rows_over_heads_side_by_side(m: int, outer: int) -> None:
    """A cache of keys as projections leave it: (batch, keys, heads * size)."""

    def build(maker: Maker, q: Expr, k: Expr, v: Expr, mask: Expr) -> Expr:
        apart = [maker("reshape", x, newshape=[0, 0, 20, 32]) for x in (q, k, v)]
        out = maker("nn.attention", *(maker("transpose", x, axes=[0, 2, 1, 3]) for x in apart), mask)
        return maker("transpose", out, axes=[0, 2, 1, 3])

    fn = primitive([tensor((outer, m, 640)), tensor((outer, N, 640)), tensor((outer, N, 640)), tensor((N,))], build)
    assert check(fn, *({VN: n} for n in (1, 3, 4, 255, 257, 520))).variant == "attention"


def test_a_cache_is_asked_for_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys but the first ones and all values, across the ends of blocks: every other line of them, in the order of memory."""
    heads, size, keys, ahead = 2, 32, 90, 16
    monkeypatch.setattr(attention_stream, "_KEYS", 64)
    monkeypatch.setattr(attention_stream, "_AHEAD", ahead * heads * size * 4)

    def build(maker: Maker, q: Expr, k: Expr, v: Expr) -> Expr:
        apart = [maker("reshape", x, newshape=[0, heads, size]) for x in (q, k, v)]
        out = maker("nn.attention", *(maker("transpose", x, axes=[1, 0, 2]) for x in apart))
        return maker("transpose", out, axes=[1, 0, 2])

    fn = primitive([tensor((1, heads * size)), *[tensor((N, heads * size))] * 2], build)
    kernel = check(fn, {VN: keys}).kernel
    asked: dict[str, set[int]] = {b.name: set() for b in kernel.inputs}
    for stmt, (at,) in asked_for(kernel, {VN: keys}):
        asked[stmt.buffer.name].add(at)
    _, of_keys, of_values = (asked[b.name] for b in kernel.inputs)
    assert set(range(ahead * heads * size, keys * heads * size, size)) <= of_keys
    assert set(range(0, keys * heads * size, size)) <= of_values
    assert all(place % size == 0 for place in of_keys | of_values)


def test_queries_without_keys() -> None:
    """Causal with fewer keys than queries: the first queries see none, and are nan; a sum over no keys is 0."""
    attend([(2, M, 32), (2, N, 32), (2, N, 32)], {VM: 50, VN: 20}, {VM: 3, VN: 1}, causal=True)
    attend([(2, M, 32), (2, N, 32), (2, N, 32)], {VM: 50, VN: 0}, {VM: 3, VN: 0})


@pytest.mark.parametrize("mask", ["float32", "bool"])
@pytest.mark.parametrize("of", [(), (N,), (M, 1), (M, N), (2, 1, 1, N), (3, 1, N), (2, 3, M, N)])
def test_masks(mask: str, of: tuple[Any, ...]) -> None:
    """Every shape and either kind, causal and not: by turns, so that each goes with each."""
    sizes = [{VM: m, VN: n} for m, n in [(2, 20), (40, 300)]]
    causal = (len(of) % 2 == 0) == (mask == "bool")
    attend([(2, 3, M, 32), (2, 3, N, 32), (2, 3, N, 32), of], *sizes, mask=mask, causal=causal)


@pytest.mark.parametrize("m", [2, 40])
def test_hidden_keys_and_special_scores(m: int) -> None:
    """Whole blocks hidden before the first that is seen; rows that see nothing; infinite and undefined scores."""
    n = 600
    q, k, v = (random((1, length, 32), "float32", s) for s, length in enumerate((m, n, n)))
    mask = np.zeros((m, n), np.float32)
    mask[:, :590] = -np.inf
    mask[1] = -np.inf
    fn = primitive([tensor(x.shape) for x in (q, k, v, mask)], lambda maker, *x: maker("nn.attention", *x))
    check(fn, inputs=[q, k, v, mask])
    mask[:] = -3.0e38
    check(fn, inputs=[q, k, v, mask])
    mask[:] = 0
    mask[0, 300] = np.inf
    mask[1, 599] = np.nan
    check(fn, inputs=[q, k, v, mask])
    check(fn, inputs=[np.multiply(q, 300, dtype=np.float32), k, v, np.zeros_like(mask)], tolerance=1e-3)


def test_operands_as_projections_leave_them() -> None:
    """(tokens, heads * size) through reshapes and transposes, one joint projection through slices: read in place."""

    def heads(m: Maker, x: Expr) -> Expr:
        return m("transpose", m("reshape", x, newshape=[-1, 3, 32]), axes=[1, 0, 2])

    def apart(m: Maker, q: Expr, k: Expr, v: Expr) -> Expr:
        out = m("nn.attention", *(heads(m, x) for x in (q, k, v)))
        return m("transpose", out, axes=[1, 0, 2])

    sizes = ({VN: 1}, {VN: 5}, {VN: 70})
    assert check(primitive([tensor((N, 96))] * 3, apart), *sizes).variant == "attention"

    def joint(m: Maker, x: Expr) -> Expr:
        parts = [
            m("strided_slice", x, begin=[0, b], end=[1 << 30, b + 96], strides=[1, 1], axes=[0, 1])
            for b in (0, 96, 192)
        ]
        return m("nn.attention", *(heads(m, p) for p in parts))

    assert check(primitive([tensor((N, 288))], joint), *sizes).variant == "attention"


@pytest.mark.parametrize("m", [2, 40])
def test_keys_and_values_the_other_way_round(m: int) -> None:
    def build(maker: Maker, q: Expr, k: Expr, v: Expr) -> Expr:
        return maker("nn.attention", q, *(maker("transpose", x, axes=[0, 2, 1]) for x in (k, v)))

    fn = primitive([tensor((2, m, 32)), tensor((2, 32, N)), tensor((2, 40, N))], build)
    assert check(fn, {VN: 20}, {VN: 300}).variant == "attention"


def test_epilogue() -> None:
    def build(m: Maker, q: Expr, k: Expr, v: Expr, r: Expr, s: Expr) -> Expr:
        return m("tanh", m("add", m("multiply", m("nn.attention", q, k, v), s), r))

    types = [tensor((2, M, 32)), tensor((2, N, 32)), tensor((2, N, 24)), tensor((2, M, 24)), tensor((24,))]
    plan = check(primitive(types, build), {VM: 3, VN: 9}, {VM: 30, VN: 70})
    assert plan.variant == "attention"


@pytest.mark.parametrize("target", ["narrow", "x86-64", "x86-64-v3"])
def test_other_targets(target: str) -> None:
    narrow = replace(HOST, vector_bits=128, vector_registers=16, masked=False)
    chosen = narrow if target == "narrow" else parse_target(target)
    fn = primitive([tensor((2, M, 20)), tensor((2, N, 20)), tensor((2, N, 35))], lambda m, *x: m("nn.attention", *x))
    for sizes in ({VM: 2, VN: 21}, {VM: 30, VN: 70}):
        assert check(fn, sizes, target=chosen).variant == "attention"


def test_what_has_no_kernel_of_its_own_still_runs() -> None:
    fn = primitive([tensor((2, 9, M)), tensor((2, 12, M)), tensor((2, 12, N))], lambda m, *x: m("nn.attention", *x))
    assert check(fn, {VM: 8, VN: 16}).variant != "attention"
    fn = primitive([tensor((2, 9, 1)), tensor((2, 12, 1)), tensor((2, 12, 1))], lambda m, *x: m("nn.attention", *x))
    assert check(fn).variant != "attention"


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_random_calls(data: st.DataObject) -> None:
    d = data.draw
    heads, shared = d(st.integers(1, 3)), d(st.integers(1, 3))
    m, n, depth, columns = (d(st.integers(1, most)) for most in (40, 80, 40, 40))
    shapes: list[tuple[int, ...]] = [(heads * shared, m, depth), (heads, n, depth), (heads, n, columns)]
    mask = ""
    if d(st.booleans()):
        shapes.append(tuple(s if d(st.booleans()) else 1 for s in (heads * shared, m, n))[d(st.integers(0, 3)) :])
        mask = d(st.sampled_from(["float32", "bool"]))
    types = [tensor(s, k) for s, k in zip(shapes, ["float32"] * 3 + [mask], strict=False)]
    attrs = {"causal": d(st.booleans()), "scale": d(st.sampled_from([None, 0.5]))}
    check(primitive(types, lambda maker, *x: maker("nn.attention", *x, **attrs)))
