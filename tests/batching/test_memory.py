"""Where the tensors of levels are: kept from one level to the next, or in the state that they become rows of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay
from relay._runtime import pool_reset_peak, pool_statistics
from relay.executable.bytecode import decode
from tests.batching.programs import CHILD_SUM, HEAD, TREE_LSTM, lowered


def bound(text: str) -> relay.Module:
    rng = np.random.default_rng(0)
    mod = relay.parse(text if text.startswith("#[") else HEAD + text)
    shapes = {
        "wl": (12, 6), "bl": (12,), "wn": (20, 8), "bn": (20,), "wx": (12, 6), "wh": (12, 4), "b": (12,), "wf": (4, 6),
        "uf": (4, 4), "bf": (4,),
    }  # fmt: skip
    names = [p.name for p in mod.functions["main"].params[1:]]
    return mod.bind({n: rng.standard_normal(shapes[n]).astype(np.float32) for n in names})


@pytest.mark.parametrize("text", [TREE_LSTM, CHILD_SUM])
def test_levels_allocate_nothing_and_copy_no_results(text: str) -> None:
    """Memory stays from level to level, though its size changes; what a level computes is computed in the states' rows."""
    image = relay.pipeline.build(bound(text), relay.Options(cache=False)).image
    (levels,) = (f for f in image.functions if f.name.endswith("fixed.levels"))
    names = [i.opcode.name for i in decode(levels.code)]
    assert "KeepStorage" in names
    assert not {"AllocFresh", "AllocStorage", "AllocReuse"} & set(names)
    assert "rows.room" in image.routines


def test_sums_read_gathered_rows_where_they_are() -> None:
    text = str(lowered(bound(CHILD_SUM), last="fuse"))
    assert text.count("rows.gather_sum(") == 2
    # No kernel of a level does nothing but gather children.
    for levels in text.split(".levels[levels")[1::2]:
        assert "let %child = %" not in levels.split("\ndef ")[0]


@pytest.mark.parametrize("text", [TREE_LSTM, CHILD_SUM])
@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_trees_of_growing_levels(text: str, executor: str) -> None:
    """Later trees are larger and smaller than what memory was kept for, one at a time and together."""
    mod, rng = bound(text), np.random.default_rng(1)
    exe = relay.compile(mod, threads=1, executor=executor)
    adt = mod.adt("Tree")

    def tree(leaves: int) -> Any:
        word = rng.standard_normal((1, 6), dtype=np.float32)
        if leaves == 1:
            return adt.Leaf(word) if text is TREE_LSTM else adt.Rose(word, [])
        cut = int(rng.integers(1, leaves))
        parts = [tree(cut), tree(leaves - cut)]
        return adt.Node(*parts) if text is TREE_LSTM else adt.Rose(word, parts)

    trees = [tree(n) for n in (3, 1, 40, 2, 17)]
    expected = [np.asarray(relay.evaluate(mod, t)) for t in trees]
    for t, want in zip(trees, expected, strict=True):
        np.testing.assert_allclose(np.asarray(exe(t)), want, rtol=1e-4, atol=1e-5)
    for found, want in zip(exe.run_batch("main", [(t,) for t in trees]), expected, strict=True):
        np.testing.assert_allclose(np.asarray(found), want, rtol=1e-4, atol=1e-5)


def test_a_few_large_requests_are_not_answered_all_at_once() -> None:
    """What the levels of one pass on fills the caches; all at once would only take the memory of all."""
    mod = relay.parse(
        HEAD
        + """type Tree { Leaf(Tensor[(1, 512), float32]), Node(Tree, Tree) }
    def @up(%t: Tree, %w: Tensor[(512, 512), float32]) -> Tensor[(1, 512), float32] {
      match (%t) {
        Leaf(%x) => tanh(%x),
        Node(%l, %r) => tanh(nn.dense(@up(%l, %w) + @up(%r, %w), %w))
      }
    }
    def @main(%t: Tree, %w: Tensor[(512, 512), float32]) -> Tensor[(1, 512), float32] { @up(%t, %w) }"""
    ).bind({"w": np.eye(512, dtype=np.float32)})
    exe, adt = relay.compile(mod, threads=1), mod.adt("Tree")
    rng = np.random.default_rng(0)

    def tree(leaves: int) -> Any:
        if leaves == 1:
            return adt.Leaf(rng.standard_normal((1, 512), dtype=np.float32))
        return adt.Node(tree(leaves // 2), tree(leaves - leaves // 2))

    requests = [(exe.signature().arguments((tree(1500),))[0],) for _ in range(6)]
    peaks = []
    for some in (requests[:1], requests):
        before = int(pool_statistics()["live_bytes"])
        pool_reset_peak()
        exe.run_batch("main", some)
        peaks.append(int(pool_statistics()["peak_bytes"]) - before)
    assert peaks[1] < 2 * peaks[0], peaks
