"""Kernels to object bytes."""

from __future__ import annotations

from collections.abc import Sequence

from relay.codegen.llvm import emit
from relay.codegen.objects import compile_text
from relay.loop.ir import Kernel
from relay.loop.target import Target


def build(kernels: Sequence[Kernel], target: Target) -> list[bytes]:
    """The ELF object of each kernel, in order; its one public symbol is the kernel's name."""
    return [compile_text(emit(kernel, target), target) for kernel in kernels]
