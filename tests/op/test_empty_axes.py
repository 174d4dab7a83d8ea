"""Axes without elements: what is read there whatever is chosen is an error of the interpreter and of compiled code alike."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import relay
from relay import te
from relay.ir.diagnostics import ExecutionError
from relay.loop.ir import Fail
from relay.loop.walk import statements
from relay.op.registry import operator, remove
from relay.options import Options
from relay.pipeline import build

TEXT = """#[version = "0.0.5"]
def @main[n: Dim, m: Dim](%x: Tensor[(n, 3), float32], %i: Tensor[(m,), int64], %j: Tensor[(n, m), int64]) {
  BODY
}"""
# What reads an empty axis (of n elements) where there is something to compute (of m).
MOVED = {
    "take": "take(%x, %i, axis=0)",
    "of all elements": "take(%x, %i)",
    "wrapped": 'take(%x, %i, axis=0, mode="wrap")',
    "fused": "nn.relu(take(%x, %i, axis=0) + 1f)",
    "reduced": "sum(take(exp(%x), %i, axis=0))",
    "vectors": "gather_nd(%x, reshape(%i, newshape=(1, -1)))",
    "a product": "nn.dense(take(%x, %i, axis=0), take(%x, %i, axis=0))",
    "an index of an index": "take(%x, take(%j, %i, axis=0), axis=0)",
}
# What reads no element of an empty axis.
WHOLE = {
    "gather": "gather(%j, %j, axis=0)",
    "repeat": "repeat(%x, repeats=2, axis=0)",
    "reverse": "reverse(%x, axis=0)",
    "slice": "strided_slice(%x, begin=(0,), end=(1,))",
    "softmax": "nn.softmax(%x, axis=0)",
    "of columns": "take(%x, %i, axis=1)",
}


@pytest.mark.parametrize("name", [*MOVED, *WHOLE])
def test_executors_agree(name: str, tmp_path: Path) -> None:
    module = relay.parse(TEXT.replace("BODY", {**MOVED, **WHOLE}[name]))
    exe = relay.compile(module, cache_dir=tmp_path)
    for n, m in itertools.product((0, 1, 2), (0, 1, 3)):
        given = np.arange(n * 3, dtype=np.float32).reshape(n, 3), np.arange(m) - 1, np.zeros((n, m), np.int64)
        if name in MOVED and n == 0 and m > 0:
            for run in (lambda given=given: relay.evaluate(module, *given), lambda given=given: exe(*given)):
                with pytest.raises(ExecutionError, match="outside"):
                    run()
        else:
            np.testing.assert_allclose(np.asarray(exe(*given)), np.asarray(relay.evaluate(module, *given)), rtol=1e-6)


@pytest.mark.parametrize(("body", "asked"), [(MOVED["take"], 1), (WHOLE["of columns"], 0), (WHOLE["repeat"], 0)])
def test_a_kernel_asks_once_and_where_it_has_to(body: str, asked: int) -> None:
    plan = build(relay.parse(TEXT.replace("BODY", body)), Options(cache=False, workers=1)).plan
    found = [s for p in plan.kernels for s in statements(p.kernel.body) if isinstance(s, Fail)]
    assert len(found) == asked


def _unless_negative(x: te.Tensor) -> te.Tensor:
    last = te.size(x.shape[0]) - 1
    return te.compute((4,), lambda i: te.select(~(last < 0), x[last], 5.0))


def _where_a_sum_says(x: te.Tensor) -> te.Tensor:
    k, last = te.reduce_axis(x.shape[0]), te.size(x.shape[0]) - 1
    sums = te.compute((3,), lambda i: te.sum(x[k], k) + te.cast(i, "float32"))
    return te.compute((4,), lambda i: te.select(sums[1] > 1.0, x[last], 5.0))


def _in_each_step(x: te.Tensor) -> te.Tensor:
    """A factor of a sum that is the same in each step and computed before them."""
    k, last = te.reduce_axis(x.shape[0]), te.size(x.shape[0]) - 1
    return te.compute((4,), lambda i: te.sum(te.exp(x[last]) * x[k], k))


@pytest.mark.parametrize("define", [_unless_negative, _where_a_sum_says, _in_each_step])
def test_what_is_not_read_may_be_anywhere(define: Callable[[te.Tensor], te.Tensor]) -> None:
    """In an axis whose size is written, too, where the place is a number."""
    operator("test.last")(define)
    try:
        some = relay.parse("fn [n: Dim] (%x: Tensor[(n,), float32]) { test.last(%x) }")
        exe = relay.compile(some, cache=False, check_memory=True)
        for n in (0, 1, 2):
            x = np.arange(n, dtype=np.float32) + 1
            wanted = np.asarray(relay.evaluate(some, x))
            written = relay.parse(f"fn (%x: Tensor[({n},), float32]) {{ test.last(%x) }}")
            for found in (exe(x), relay.compile(written, cache=False, check_memory=True)(x)):
                np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6)
    finally:
        remove("test.last")


def _at_multiples_of_a_size(x: te.Tensor, w: te.Tensor) -> te.Tensor:
    (n,), (p,) = x.shape, w.shape
    last = te.size(p) - 1
    return te.compute((n // p,), lambda i: x[i * te.size(p)] * w[te.minimum(i, last)])  # type: ignore[operator]


def test_a_count_may_be_a_quotient_by_the_size_of_what_is_read() -> None:
    operator("test.multiples")(_at_multiples_of_a_size)
    try:
        module = relay.parse(
            "fn [n: Dim, p: Dim] (%x: Tensor[(n,), float32], %w: Tensor[(p,), float32]) { test.multiples(%x, %w) }"
        )
        exe = relay.compile(module, cache=False, check_memory=True)
        for n, p in ((7, 2), (3, 3), (2, 5)):
            x, w = np.arange(n, dtype=np.float32), np.arange(p, dtype=np.float32) + 2
            np.testing.assert_allclose(np.asarray(exe(x, w)), np.asarray(relay.evaluate(module, x, w)))
    finally:
        remove("test.multiples")
