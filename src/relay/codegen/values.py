"""What an expression evaluates to while code is written: a uniform scalar, a ramp of indices, or a vector.

Inside a vectorized loop every value is one of: *uniform* (one SSA scalar, the same in all lanes), a *ramp*
(int64 only: lane ``l`` holds ``base + l * stride``, kept as the scalar base), or a *vector*. A uniform integer
may be known (``const``), known to be a multiple of something, known to be made of sizes and places alone, or known not to be negative
besides: that is what index arithmetic is simplified by.

float16 and bfloat16 live in registers as float: arithmetic on them is float32 arithmetic, rounding happens when
they are stored or cast.
"""

from __future__ import annotations

from functools import cache

from relay.ir.record import record
from relay.ir.types import dtype_bits


@record(frozen=True, slots=True)
class Value:
    """``text`` is the SSA name or literal (of a ramp: its base), which ``multiple`` divides. The lanes of a vector of indices come
    in runs of ``run`` (see `relay.codegen.runs`), each ``rise`` more than the one before; ``multiple`` divides the first of each.
    ``placed``: made of sizes, places and small numbers alone, so that its magnitude is below 2**51; ``nonneg``: that, and not negative."""

    text: str
    dtype: str
    lanes: int = 1
    stride: int = 0
    const: bool | int | float | None = None
    multiple: int = 1
    nonneg: bool = False
    run: int = 1
    rise: int = 0
    placed: bool = False

    @property
    def is_ramp(self) -> bool:
        return self.stride != 0

    @property
    def is_placed(self) -> bool:
        return self.placed or self.nonneg

    @property
    def is_uniform(self) -> bool:
        return self.lanes == 1


_REGISTER = {"bool": "i1", "float16": "float", "bfloat16": "float", "float32": "float", "float64": "double"}
_MEMORY = {"bool": "i8", "float16": "i16", "bfloat16": "i16", "float32": "float", "float64": "double"}


@cache
def register_type(dtype: str) -> str:
    """The LLVM type of an element in a register."""
    return _REGISTER.get(dtype) or f"i{dtype_bits(dtype)}"


def memory_type(dtype: str) -> str:
    """The LLVM type of an element in memory (of sub-byte elements: of the byte that holds it)."""
    return _MEMORY.get(dtype) or f"i{max(8, dtype_bits(dtype))}"


def register_bits(dtype: str) -> int:
    """The width of a lane in a vector register (bool lanes take a mask bit: they never decide the lane count)."""
    if dtype == "bool":
        return 8
    return 32 if dtype in ("float16", "bfloat16") else max(8, dtype_bits(dtype))


def memory_bytes(dtype: str) -> int:
    """Bytes of an element in memory; elements narrower than a byte share one and are addressed by index."""
    return max(8, dtype_bits(dtype)) // 8


def is_packed(dtype: str) -> bool:
    return dtype_bits(dtype) < 8


def is_signed(dtype: str) -> bool:
    return dtype.startswith("int")
