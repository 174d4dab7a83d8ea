"""Work shared out among as many threads as there are when a kernel runs."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import relay
from relay.ir.dim import DimVar, as_dim
from relay.ir.expr import Function
from relay.loop.bounds import unproved
from relay.loop.evaluate import _State
from relay.loop.ir import WORKERS, Buffer, For, Kernel, LetScalar, Stmt, Store
from relay.loop.verify import verify
from relay.loop.walk import statements
from relay.plan.build import Builder
from relay.plan.kernel_plan import KernelPlan, make_plan
from relay.plan.parallel import PARALLEL_COST, parallel
from relay.te.index import Indices
from relay.te.scalar import Axis, Binary
from tests.plan.harness import ZEN4, check, primitive, random, tasks, tensor

V = DimVar("n")
N = as_dim(V)


def _plan(fn: Function) -> KernelPlan:
    return make_plan(fn, ZEN4)


def dense(rows: object, columns: int, depth: int) -> Function:
    return primitive([tensor((rows, depth)), tensor((columns, depth))], lambda m, x, w: m("nn.dense", x, w))


@pytest.mark.parametrize("rows", [128, 131, 800])
@pytest.mark.parametrize(("columns", "depth"), [(64, 700), (384, 300)])
def test_rows_of_a_product_go_to_all_threads(rows: int, columns: int, depth: int) -> None:
    """Few panels keep few threads busy; parts of the rows do, known or not, of which each packs its panels."""
    for fn, dims in ((dense(rows, columns, depth), {}), (dense(N, columns, depth), {V: rows})):
        kernel = _plan(fn).kernel
        counts = {threads: tasks(kernel, threads, dims)[-1] for threads in (1, 2, 8, 16)}
        panels, most = counts[1] // -(-rows // 768), rows // 24
        assert -(-columns // 64) <= panels <= -(-columns // 48)
        assert min(16, panels * most) <= counts[16] <= max(48, counts[1]), counts
        assert counts[8] >= min(8, panels * most)


def test_constant_panels_that_are_too_few() -> None:
    plan = make_plan(dense(N, 384, 384), ZEN4, frozenset({1}))
    assert [tasks(plan.kernel, threads, {V: 128})[-1] for threads in (1, 2, 16)] == [8, 8, 40]
    assert tasks(plan.kernel, 16, {V: 20})[-1] == 8


def test_a_copied_left_operand() -> None:
    """Groups of panels are smaller first: a part of the rows is copied once for each."""
    fn = primitive([tensor((1143, 576)), tensor((1143, 390))], lambda m, a, b: m("nn.matmul", a, b, transpose_a=True))
    kernel = _plan(fn).kernel
    assert [tasks(kernel, threads)[-1] for threads in (1, 2, 16)] == [4, 4, 42]


@pytest.mark.parametrize("rows", [48, 63, 100])
def test_shares_of_rows_are_right(rows: int) -> None:
    """Of three threads, as kernels are run here: known and unknown numbers of rows, and left operands that are copied."""
    check(dense(rows, 70, 500))
    check(dense(N, 70, 500), *({V: n} for n in (0, 1, 23, 24, 47, rows, 5 * rows)))
    check(primitive([tensor((600, rows)), tensor((600, 70))], lambda m, a, b: m("nn.matmul", a, b, transpose_a=True)))


def test_columns_of_reductions_go_to_all_threads() -> None:
    fn = primitive([tensor((1024, 768))], lambda m, x: m("nn.softmax", x, axis=0))
    kernel = _plan(fn).kernel
    assert [tasks(kernel, threads)[-1] for threads in (1, 2, 16)] == [1, 2, 16]
    check(primitive([tensor((200, 700))], lambda m, x: m("nn.softmax", x, axis=0)))
    check(primitive([tensor((N, N))], lambda m, x: m("cumsum", x, axis=0)), *({V: n} for n in (0, 1, 70, 300)))
    check(primitive([tensor((N, 90, 700))], lambda m, x: m("nn.softmax", x, axis=1)), *({V: n} for n in (0, 3)))


PROGRAMS = {
    "dense": ("%x: Tensor[(n, 300), float32], %w: Tensor[(130, 300), float32]", "nn.dense(%x, %w)"),
    "weight gradient": ("%x: Tensor[(300, 150), float32], %w: Tensor[(300, 130), float32]", "nn.matmul(%x, %w, transpose_a=True)"),
    "attention": ("%x: Tensor[(1, 2, 300, 32), float32], %w: Tensor[(1, 2, n, 32), float32]", "nn.attention(%x, %w, %w)"),
    "causal attention": ("%x: Tensor[(1, 2, n, 32), float32], %w: Tensor[(1, 2, n, 32), float32]", "nn.attention(%x, %w, %w, causal=True)"),
    "softmax": ("%x: Tensor[(300, 200), float32], %w: Tensor[(n, 200), float32]", "nn.softmax(%x, axis=0)"),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_bit_depends_on_the_number_of_threads(name: str) -> None:
    parameters, body = PROGRAMS[name]
    text = f'#[version = "0.0.5"]\ndef @main[n: Dim]({parameters}) {{ {body} }}'
    shapes = {
        "dense": ((301, 300), (130, 300)),
        "weight gradient": ((300, 150), (300, 130)),
        "softmax": ((300, 200), (3, 200)),
    }
    default = ((1, 2, 300, 32), (1, 2, 300, 32))
    args = [random(shape, "float32", n) for n, shape in enumerate(shapes.get(name, default))]
    one, *others = (np.asarray(relay.compile(text, threads=threads)(*args)) for threads in (1, 2, 5, 16))
    for other in others:
        np.testing.assert_array_equal(one, other)


class _Cut(_State):
    """Goes through a kernel whose stores say which iteration they are of, and notes them for each piece of its parallel loop."""

    def __init__(self, threads: int) -> None:
        super().__init__({})
        self.axes[WORKERS] = threads
        self.pieces: list[list[int]] = []

    def run(self, stmt: Stmt) -> None:
        match stmt:
            case For(kind="parallel"):
                extent = int(self.value(stmt.extent))
                for first in range(0, extent, stmt.grain):
                    self.pieces.append([])
                    for index in range(first, min(first + stmt.grain, extent)):
                        self.axes[stmt.var] = index
                        self.run(stmt.body)
            case LetScalar():
                self.axes[stmt.var] = self.value(stmt.value)
                self.run(stmt.body)
            case Store():
                self.pieces[-1].append(int(self.value(stmt.value)))
            case _:
                super().run(stmt)


@pytest.mark.parametrize("extent", [2, 3, 13, 16, 17, 25, 40, 100])
@pytest.mark.parametrize("chunks", [2, 3, 4, 5, 12, 30])
def test_iterations_are_shared_out_evenly(extent: int, chunks: int) -> None:
    """Each is done once; threads that all have as many pieces of them have about as many iterations, and pieces are no more than there is
    work for, or as many for each thread."""
    out = Buffer("out", (extent,), "int64")
    most = min(chunks, extent)
    cost = -(-chunks * PARALLEL_COST // extent)
    stmt = parallel(Builder(ZEN4, Indices()), extent, cost, lambda r: Store(out, (r,), r))
    verify(Kernel("shared", (), (out,), (), stmt))
    for threads in (1, 2, 3, 5, 8, 64):
        found = _Cut(threads)
        found.run(stmt)
        assert sorted(i for piece in found.pieces for i in piece) == list(range(extent))
        count, working = len(found.pieces), min(threads, most)
        if working in (2, 3, 5, 8):
            # As the pool deals out pieces: neighbours, those that have one more first.
            bounds = [count // threads * w + min(w, count % threads) for w in range(threads + 1)]
            shares = [sum(map(len, found.pieces[a:b])) for a, b in pairwise(bounds)]
            assert max(shares) <= -(-extent // working) * 17 / 16, (threads, shares)
        assert count <= max(2 * most, most + threads), (threads, count)


def test_where_an_iteration_is_is_an_addition() -> None:
    """That it is one of all is said once for a piece: said for each, it took as long as to copy three elements."""
    out = Buffer("out", (1000,), "int64")
    stmt = parallel(Builder(ZEN4, Indices()), 1000, PARALLEL_COST // 100, lambda r: Store(out, (r,), r))
    kernel = Kernel("shared", (), (out,), (), stmt)
    assert not unproved(kernel)
    found = [s for s in statements(stmt) if isinstance(s, For)]
    assert [s.kind for s in found] == ["parallel", "serial"]
    inner = found[1].body
    assert isinstance(inner, LetScalar) and isinstance(inner.value, Binary) and inner.value.op == "add"
    assert all(isinstance(n, Axis) for n in (inner.value.a, inner.value.b))
