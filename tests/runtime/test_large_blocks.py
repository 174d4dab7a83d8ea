"""Large blocks of memory are cut from regions: none overlaps another, free neighbours join, and regions go back to the system."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import relay
from relay._runtime import pool_trim

TEXT = """#[version = "0.0.5"]
def @main[n: Dim](%x: Tensor[(n,), float32]) { %x + 1f }"""


def resident() -> int:
    """Bytes of this process that are in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def test_blocks_come_and_go() -> None:
    exe = relay.compile(TEXT, threads=1)
    rng = np.random.default_rng(0)
    held: list[tuple[float, relay.Tensor]] = []
    before = most = resident()
    for step in range(120):
        if step % 10 == 9:
            pool_trim()  # blocks that wait go back, too, among those that are in use
        n = int(rng.choice([70_000, 300_000, 1_500_000, 5_000_000, 20_000_000], p=[0.35, 0.35, 0.2, 0.08, 0.02]))
        made = exe(np.full(n, step, np.float32))
        assert isinstance(made, relay.Tensor)
        held.append((step + 1.0, made))
        while sum(t.shape[0] for _, t in held) > 30_000_000:
            expected, dropped = held.pop(int(rng.integers(len(held))))
            assert (np.asarray(dropped) == expected).all()
            del dropped
        most = max(most, resident())
    for expected, tensor in held:
        assert (np.asarray(tensor) == expected).all()
    del tensor
    held.clear()
    pool_trim()
    assert resident() - before < (most - before) / 2
