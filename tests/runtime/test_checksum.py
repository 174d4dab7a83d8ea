"""A checksum of pieces is the checksum of the whole."""

from __future__ import annotations

import numpy as np

from relay import _runtime


def test_pieces() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        data = rng.bytes(int(rng.integers(0, 300)))
        seed = int(rng.integers(0, 1 << 62))
        sums = _runtime.Checksum(len(data), seed)
        at = 0
        while at < len(data):
            step = int(rng.integers(0, 70))
            sums.update(data[at : at + step])
            at += step
        assert sums.finish() == _runtime.checksum(data, seed)
    assert _runtime.Checksum(1).finish() != _runtime.Checksum(0).finish()
