"""The codes that kernels return, and what they mean.

0 is success. A `Fail` statement carries one of these; the virtual machine turns it into an `ExecutionError`.
"""

from __future__ import annotations

from typing import Final

from relay.ir.diagnostics import CompileError

INDEX_OUT_OF_BOUNDS: Final = 1
SIZE_MISMATCH: Final = 2
EMPTY_REDUCTION: Final = 3

MESSAGES: Final[dict[int, str]] = {
    INDEX_OUT_OF_BOUNDS: "an index is out of the bounds that its operator declares",
    SIZE_MISMATCH: "sizes that must agree differ",
    EMPTY_REDUCTION: "a reduction without identity is over no elements",
}


def message(code: int) -> str:
    """What a kernel's non-zero result means."""
    return MESSAGES.get(code, f"a kernel failed with code {code}")


class LoopError(CompileError):
    """A loop nest that breaks a rule of `relay.loop.ir`: a defect of the plan that made it."""
