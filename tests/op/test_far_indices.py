"""Positions, counts and strides near the ends of 64 bits: all executors, and Python's meaning of a slice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import relay

HEADER = '#[version = "0.0.5"]\n'
X = np.arange(5, dtype=np.float32)
FAR = [2**31, 2**56, 2**62, 2**63 - 2]
INDICES = np.array([0, 1, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1, 2**64 - 4, 7], np.uint64)


def _everywhere(text: str, *args: Any) -> list[Any]:
    module = relay.parse(HEADER + text)
    found = [relay.evaluate(module, *args)]
    found += [relay.compile(module, executor=executor)(*args) for executor in ("vm", "aot")]
    return [np.asarray(value).tolist() for value in found]


@pytest.mark.parametrize("size", ["?", "n", "5"])
@pytest.mark.parametrize(
    ("begin", "end", "stride"),
    [(None, None, 2**63 - 1), (None, None, -(2**63)), (1, FAR[2], FAR[3]), (-1, -FAR[2], -FAR[2]), (3, 0, -FAR[3])]
    + [(-far, far, 2) for far in FAR]
    + [(far, -far, -2) for far in FAR],
)
def test_slices(size: str, begin: int | None, end: int | None, stride: int) -> None:
    dims = "[n: Dim]" if size == "n" else ""
    attrs = f"begin=[{begin}], end=[{end}], strides=[{stride}]"
    found = _everywhere(f"def @main{dims}(%x: Tensor[({size},), float32]) {{ strided_slice(%x, {attrs}) }}", X)
    assert found == [X[begin:end:stride].tolist()] * 3


@pytest.mark.parametrize(("begin", "count"), [(1, 2**62), (2**62, 2**62), (-1, 2**63 - 2), (-(2**62), 2)])
def test_slices_of_so_many(begin: int, count: int) -> None:
    attrs = f'begin=[{begin}], end=[{count}], slice_mode="size"'
    texts = [f"def @main(%x: Tensor[({size},), float32]) {{ strided_slice(%x, {attrs}) }}" for size in ("?", "5")]
    found = [value for text in texts for value in _everywhere(text, X)]
    assert found == [found[0]] * 6


@pytest.mark.parametrize("stride", [2**62, 2**63 - 1, -(2**62), -(2**63)])
def test_slices_by_given_bounds(stride: int) -> None:
    bounds = "%b: Tensor[(1,), int64], %e: Tensor[(1,), int64], %s: Tensor[(1,), int64]"
    text = f"def @main(%x: Tensor[(?,), float32], {bounds}) {{ dyn.strided_slice(%x, %b, %e, %s) }}"
    begin, end = (1, 2**63 - 1) if stride > 0 else (3, -(2**63))
    given = [np.array([v], np.int64) for v in (begin, end, stride)]
    assert _everywhere(text, X, *given) == [X[begin:end:stride].tolist()] * 3


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("take(%x, %i)", X[np.minimum(INDICES, 4)]),
        ("take(%x, %i, axis=0)", X[np.minimum(INDICES, 4)]),
        ('take(%x, %i, axis=0, mode="wrap")', X[INDICES % np.uint64(5)]),
        ("gather(%x, %i, axis=0)", X[np.minimum(INDICES, 4)]),
        ("gather_nd(%x, reshape(%i, newshape=[1, 8]))", X[np.minimum(INDICES, 4)]),
        ("one_hot(%i, 1f, 0f, depth=3)", (INDICES[:, None] == np.arange(3, dtype=np.uint64)).astype(np.float32)),
        (
            'sequence_mask(ones(shape=[3, 8], dtype="float32"), %i)',
            (np.arange(3, dtype=np.uint64)[:, None] < INDICES).astype(np.float32),
        ),
    ],
)
def test_unsigned_indices(body: str, expected: Any) -> None:
    """One that int64 does not hold lies behind every axis, as 2**63 - 1 does."""
    text = f"def @main(%x: Tensor[(5,), float32], %i: Tensor[(8,), uint64]) {{ {body} }}"
    assert _everywhere(text, X, INDICES) == [expected.tolist()] * 3
