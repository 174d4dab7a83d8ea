"""Storage planning: the tensors of a block that nobody outside can reach share one allocation.

Each planned tensor has an interval, from the binding that makes it to its last use. Tensors whose intervals do not overlap
may share a slot; the block's arena is its slots one after the other. Sizes are dims, so the same plan serves static and
symbolic shapes: a slot fits a tensor when the slot is provably at least as large. A free slot that is not is widened to the maximum,
which is no more than both would take one after the other: the tensor's size when that is provably larger, otherwise a maximum that is
computed at run time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce

from relay.ir.dim import Dim, ceil_div, dim_add, dim_bounds, dim_max, dim_mul, dim_sub, shape_size
from relay.ir.record import record
from relay.ir.types import TensorType, dtype_bits

ALIGNMENT = 64
_MOST_SIZES = 4  # of a slot whose sizes cannot be compared: each costs instructions


def tensor_bytes(ty: TensorType) -> Dim:
    """Bytes of a tensor's elements (sub-byte elements are packed)."""
    assert isinstance(ty.shape, tuple) and isinstance(ty.dtype, str)
    bits = dtype_bits(ty.dtype)
    size = shape_size(ty.shape)
    return dim_mul(size, bits // 8) if bits % 8 == 0 else ceil_div(dim_mul(size, bits), 8)


def aligned(size: Dim) -> Dim:
    """The size rounded up to the alignment."""
    return dim_mul(ceil_div(size, ALIGNMENT), ALIGNMENT)


@record(frozen=True, slots=True)
class Interval:
    """A tensor to place: ``key`` names it, it is written at ``start`` and last read at ``end``; ``reuse`` is the key of a tensor of
    the same size that is last read at ``start`` and whose memory the kernel may overwrite."""

    key: int
    size: Dim
    start: int
    end: int
    reuse: int | None = None


@record(frozen=True, slots=True)
class Placement:
    """Byte offsets by key, and the bytes of the whole arena."""

    offsets: dict[int, Dim]
    total: Dim


@record(slots=True)
class _Slot:
    """``sizes``: the slot is as large as the largest of these, none of which is known to be at least another."""

    sizes: list[Dim]
    free_from: int  # the first binding at which it may be written again

    @property
    def size(self) -> Dim:
        return reduce(dim_max, self.sizes)

    def fits(self, size: Dim) -> bool:
        return any(_at_least(s, size) for s in self.sizes)

    def widen(self, size: Dim) -> None:
        if not self.fits(size):
            self.sizes = [s for s in self.sizes if not _at_least(size, s)] + [size]

    def within(self, size: Dim) -> bool:
        return all(_at_least(size, s) for s in self.sizes)


def _at_least(a: Dim, b: Dim) -> bool:
    """``a >= b`` whatever the variables are."""
    if a == b:
        return True
    low, _ = dim_bounds(dim_sub(a, b))
    return low is not None and low >= 0


def shared(intervals: list[Interval]) -> list[Placement]:
    """Give every interval a slot; each slot by itself, as large as its tensors. Intervals are in order of ``start``. O(intervals x
    slots), and slots are few."""
    slots: list[_Slot] = []
    slot_of: dict[int, int] = {}
    for want in intervals:
        chosen = _choose(slots, slot_of, want)
        if chosen is None:
            chosen = len(slots)
            slots.append(_Slot([want.size], 0))
        slot = slots[chosen]
        slot.widen(want.size)
        slot.free_from = max(slot.free_from, want.end + 1)
        slot_of[want.key] = chosen
    keys: list[dict[int, Dim]] = [{} for _ in slots]
    for key, index in slot_of.items():
        keys[index][key] = 0
    return [Placement(of, slot.size) for slot, of in zip(slots, keys, strict=True)]


def place(intervals: list[Interval]) -> Placement:
    """The slots of `shared` one after the other, each aligned."""
    offsets: dict[int, Dim] = {}
    total: Dim = 0
    for slot in shared([replace(i, size=aligned(i.size)) for i in intervals]):
        offsets |= dict.fromkeys(slot.offsets, total)
        total = dim_add(total, slot.total)
    return Placement(offsets, total)


def stretches(intervals: list[Interval], at: list[int]) -> list[list[Interval]]:
    """The intervals (in order of ``start``) between barriers at these positions; those that go beyond one are in none."""
    out: list[list[Interval]] = [[] for _ in range(len(at) + 1)]
    for interval in intervals:
        number = bisect_left(at, interval.start)
        if bisect_right(at, interval.end) == number:
            out[number].append(interval)
    return out


def begun_together(intervals: list[Interval], ready: Mapping[int, int]) -> list[list[Interval]]:
    """The intervals (in order of ``start``) in parts: the sizes of all in a part are known when its first begins. ``ready`` has the
    position at which the size of a key becomes known."""
    parts: list[list[Interval]] = []
    for interval in intervals:
        part = next((p for p in parts if ready[interval.key] < p[0].start), None)
        if part is None:
            parts.append([interval])
        else:
            part.append(interval)
    return parts


def _choose(slots: list[_Slot], slot_of: dict[int, int], want: Interval) -> int | None:
    size = want.size
    if want.reuse is not None and want.reuse in slot_of:
        index = slot_of[want.reuse]
        if slots[index].free_from <= want.start + 1 and slots[index].fits(size):
            return index
    fitting: int | None = None
    smaller: int | None = None
    other: int | None = None
    for index, slot in enumerate(slots):
        if slot.free_from > want.start:
            continue
        if slot.sizes == [size]:
            return index
        if slot.fits(size):
            # The smallest slot that fits; slots that cannot be compared stay in order of creation.
            if fitting is None or not all(slot.fits(s) for s in slots[fitting].sizes):
                fitting = index
        elif slot.within(size):
            smaller = index if smaller is None else smaller
        elif other is None and len(slot.sizes) < _MOST_SIZES:
            other = index
    return fitting if fitting is not None else smaller if smaller is not None else other
