"""What a decision of fusion is worth: ``R = dT / P_d + dC / P_c + dK * L`` (NeoFlow, section 5.1, equation 4).

``dT`` is the traffic to memory that is saved, ``dC`` the arithmetic, ``dK`` the kernels; ``P_d``, ``P_c`` and ``L`` are the machine's
bandwidth, speed of arithmetic and cost of a kernel call. Each may be negative. Bandwidth is that of the level of memory that a tensor
fits into, since what one kernel writes another reads soon after.
"""

from __future__ import annotations

from dataclasses import dataclass

from relay.ir.dim import Dim, dim_substitute, shape_size
from relay.ir.types import TensorType, TupleType, Type, dtype_bits
from relay.loop.target import Target

# What a size that is not known stands for: a batch, a short sequence.
_NOMINAL = 16
# A multiply-add unit in two pipes, at a middling clock.
_CLOCK, _PIPES = 3.0e9, 2
# Simple operations of a vector are issued one in each pipe, and half of the slots are lost to loads, stores and waiting.
_SHARE = 0.5
# A tensor has a cache to itself only in part.
_PART = 2


@dataclass(frozen=True, slots=True)
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


def nominal(size: Dim) -> int:
    """A size as a number: what is not known stands for a moderate one."""
    found = dim_substitute(size, lambda _: _NOMINAL)
    return found if isinstance(found, int) else _NOMINAL


def count(ty: Type | None) -> int:
    """How many elements a tensor of this type has (0 of anything else)."""
    return nominal(shape_size(ty.shape)) if isinstance(ty, TensorType) and isinstance(ty.shape, tuple) else 0


def size_of(ty: Type | None) -> int:
    """How many bytes a tensor, or a tuple of them, has."""
    if isinstance(ty, TupleType):
        return sum(size_of(f) for f in ty.fields)
    if not isinstance(ty, TensorType) or not isinstance(ty.dtype, str):
        return 0
    return count(ty) * dtype_bits(ty.dtype) // 8
