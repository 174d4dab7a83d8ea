"""Storage planning: no two tensors that are alive together overlap, for static and symbolic sizes; memory is reused."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relay.ir.dim import Dim, dim_evaluate, dim_mul, dim_var, dim_vars
from relay.ir.types import TensorType
from relay.lower.storage import ALIGNMENT, Interval, aligned, place, tensor_bytes

N = dim_var("n", 1, 512)
M = dim_var("m", 0)
SIZES: list[Dim] = [
    0,
    4,
    64,
    1000,
    4096,
    dim_mul(N, 64),
    dim_mul(N, 1536),
    dim_mul(N, 6144),
    dim_mul(dim_mul(N, N), 48),
    dim_mul(M, 12),
]


@st.composite
def _intervals(draw: st.DrawFn) -> list[Interval]:
    count = draw(st.integers(1, 14))
    out: list[Interval] = []
    for key in range(count):
        end = key + draw(st.integers(0, 5))
        size = draw(st.sampled_from(SIZES))
        ended = [i.key for i in out if i.end == key and i.size == size]
        reuse = draw(st.sampled_from([None, *ended]))
        out.append(Interval(key, size, key, end, reuse))
    return out


@given(_intervals(), st.integers(1, 512), st.integers(0, 40))
def test_live_tensors_do_not_overlap(intervals: list[Interval], n: int, m: int) -> None:
    env = {v: (n if v.name == "n" else m) for s in SIZES for v in dim_vars(s)}
    placement = place(intervals)
    total = dim_evaluate(placement.total, env)
    spans = {
        i.key: (dim_evaluate(placement.offsets[i.key], env), dim_evaluate(aligned(i.size), env)) for i in intervals
    }
    for interval in intervals:
        offset, size = spans[interval.key]
        assert offset % ALIGNMENT == 0
        assert offset + size <= total
        for other in intervals:
            together = other.start <= interval.end and interval.start <= other.end and other.key != interval.key
            handed_over = interval.key == other.reuse or other.key == interval.reuse
            if not together or handed_over:
                continue
            start, length = spans[other.key]
            assert offset + size <= start or start + length <= offset or size == 0 or length == 0


def test_a_chain_of_equal_tensors_needs_two_slots() -> None:
    size = dim_mul(N, 1536)
    placement = place([Interval(k, size, k, k + 1) for k in range(10)])
    assert placement.total == dim_mul(size, 2)


def test_a_chain_in_place_needs_one_slot() -> None:
    size = dim_mul(N, 1536)
    placement = place([Interval(k, size, k, k + 1, k - 1 if k else None) for k in range(10)])
    assert placement.total == size


def test_sub_byte_elements_are_packed() -> None:
    assert tensor_bytes(TensorType((3, 3), "int4")) == 5
    assert tensor_bytes(TensorType((3,), "bfloat16")) == 6


def test_sizes_that_cannot_be_compared_share_memory_one_after_the_other() -> None:
    square, wide = dim_mul(dim_mul(N, N), 64), dim_mul(N, 6400)
    placement = place([Interval(0, square, 0, 1), Interval(1, wide, 2, 3), Interval(2, square, 4, 5)])
    variable = next(iter(dim_vars(square)))
    for n in (1, 50, 100, 200):
        assert dim_evaluate(placement.total, {variable: n}) == max(64 * n * n, 6400 * n)
    assert set(placement.offsets.values()) == {0}
