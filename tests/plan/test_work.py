"""The work of a kernel: arithmetic and bytes, as dims."""

from __future__ import annotations

import numpy as np
import pytest

import relay
from relay import te
from relay.ir.dim import dim_evaluate
from relay.op import registry
from relay.options import Options
from relay.pipeline import build

HEAD = '#[version = "0.0.5"]\n'


def work(text: str, n: int) -> tuple[int, int]:
    """Arithmetic and bytes of a program that is one kernel, for ``n`` rows."""
    (plan,) = build(relay.parse(HEAD + text), Options(cache=False)).plan.kernels
    env = {d: n for d in plan.kernel.dims}
    return dim_evaluate(plan.flops, env), dim_evaluate(plan.bytes, env)


@pytest.mark.parametrize(
    "text, flops, size",
    [
        (
            "def @main[n: Dim](%x: Tensor[(n, 8), float32], %w: Tensor[(5, 8), float32]) { nn.relu(nn.dense(%x, %w)) }",
            lambda n: 2 * n * 5 * 8 + n * 5,
            lambda n: 4 * (n * 8 + 5 * 8 + n * 5),
        ),
        ("def @main[n: Dim](%x: Tensor[(n,), float32]) { exp(%x) * %x + 1f }", lambda n: 3 * n, lambda n: 8 * n),
        ("def @main[n: Dim](%x: Tensor[(n, 4), float64]) { sum(%x, axis=[1]) }", lambda n: 4 * n, lambda n: 40 * n),
        (  # of a table only what is looked up, once for each index
            "def @main[n: Dim](%t: Tensor[(900, 4), float32], %i: Tensor[(n,), int32]) { take(%t, %i, axis=0) }",
            lambda n: 0,
            lambda n: 4 * min(n * 4, 3600) + 4 * n + 16 * n,
        ),
        (  # of a state that is updated in place only what is put there
            """def @main[n: Dim](%m: Tensor[(900, 4), float32], %i: Tensor[(1, n), int64], %x: Tensor[(n, 4), float32]) {
              scatter_nd(%m, %i, %x + 1f) }""",
            lambda n: 4 * n,
            lambda n: 8 * n + 16 * n + 4 * min(n * 4, 3600),
        ),
        (  # what is added where an index says goes to one place
            """def @main[n: Dim](%x: Tensor[(n, 4), float32], %i: Tensor[(n,), int64]) {
              segment_sum(%x * 2f, %i, num_segments=100) }""",
            lambda n: 2 * n * 4,
            lambda n: 4 * n * 4 + 8 * n + 4 * 100 * 4,
        ),
        (  # of a longer operand only the part that is read
            "def @main[n: Dim](%x: Tensor[(n, 4), float32], %t: Tensor[(100, 4), float32]) "
            "{ %x + slice_like(%t, %x, axes=[0]) }",
            lambda n: 4 * n,
            lambda n: 4 * 3 * 4 * n,
        ),
    ],
)  # fmt: skip
def test_work(text: str, flops: object, size: object) -> None:
    assert callable(flops) and callable(size)
    for n in (1, 7, 64):
        assert work(text, n) == (flops(n), size(n))


def test_rows_read_several_times_count_once() -> None:
    flops, size = work("def @main[n: Dim](%x: Tensor[(n, 16), float32]) { nn.softmax(%x) }", 3)
    assert size == 2 * 4 * 3 * 16
    assert flops >= 4 * 3 * 16


def test_guards_that_sizes_decide_are_not_counted() -> None:
    """The sum is over a known number of elements, of which the size of another operand says how many are taken."""

    @registry.operator("work.first")
    def first(x: te.Tensor, w: te.Tensor) -> te.Tensor:
        k = te.reduce_axis(w.shape[1], "k")
        taken = k < te.size(x.shape[0], "int64")
        return te.compute((w.shape[0],), lambda i: te.sum(te.select(taken, w[i, k] * 2.0, 0.0), k))

    try:
        text = "def @main[n: Dim](%x: Tensor[(n,), float32], %w: Tensor[(3, 8), float32]) { work.first(%x, %w) }"
        assert work(text, 5)[0] == 3 * 8 * 2
        w = np.ones((3, 8), np.float32)
        found = relay.compile(HEAD + text, cache=False)(np.zeros(5, np.float32), w)
        np.testing.assert_array_equal(np.asarray(found), np.full(3, 10, np.float32))
    finally:
        registry.remove("work.first")
