"""What a decision of fusion is worth: ``R = dT / P_d + dC / P_c + dK * L`` (NeoFlow, section 5.1, equation 4).

``dT`` is the traffic to memory that is saved, ``dC`` the arithmetic, ``dK`` the kernels; ``P_d``, ``P_c`` and ``L`` are the machine's
bandwidth, speed of arithmetic and cost of a kernel call. Each may be negative. Bandwidth is that of the level of memory that a tensor
fits into, since what one kernel writes another reads soon after.
"""

from __future__ import annotations

from relay.ir.dim import Dim, dim_substitute, shape_size
from relay.ir.types import TensorType, TupleType, Type, dtype_bits

# What a size that is not known stands for: a batch, a short sequence.
_NOMINAL = 16


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
