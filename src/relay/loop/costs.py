"""What a machine does in a second, as decisions weigh it: defaults from a target's description, or measured (`relay.view.limits`)."""

from __future__ import annotations

from relay.ir.record import record
from relay.loop.target import Target

# A multiply-add unit in two pipes, at a middling clock.
_CLOCK, _PIPES = 3.0e9, 2
# Simple operations of a vector are issued one in each pipe, and half of the slots are lost to loads, stores and waiting.
_SHARE = 0.5
# A tensor has a cache to itself only in part.
_PART = 2


@record(frozen=True, slots=True)
class Machine:
    """What the reward function knows of a machine, for one thread.

    ``flops``: simple operations on float32 elements in a second. ``bandwidth``: bytes read in a second from the second-level cache, the
    third-level cache and memory; ``caches``: the bytes of the two caches. ``writing``: how many times dearer a byte is to write than to
    read. ``call``: seconds that a kernel call costs.
    """

    flops: float = 48e9
    bandwidth: tuple[float, float, float] = (90e9, 60e9, 20e9)
    caches: tuple[int, int] = (1 << 20, 16 << 20)
    writing: float = 2.0
    call: float = 0.1e-6

    @staticmethod
    def of(target: Target) -> Machine:
        """Defaults for a target: lanes and caches are its own, the rest is a machine of the middle."""
        flops = _CLOCK * _PIPES * target.lanes(32) * _SHARE
        return Machine(flops=flops, caches=(target.l2_bytes, target.l3_bytes))

    def reading(self, size: int) -> float:
        """Seconds to read a tensor of so many bytes."""
        level = next((n for n, c in enumerate(self.caches) if size * _PART <= c), len(self.caches))
        return size / self.bandwidth[level]

    def computing(self, operations: int) -> float:
        """Seconds for so many operations."""
        return operations / self.flops
