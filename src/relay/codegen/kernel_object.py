"""One kernel from its loop nest to an object."""

from __future__ import annotations

from relay.codegen.llvm import emit
from relay.codegen.objects import compile_text
from relay.loop.ahead import asking_ahead
from relay.loop.ir import Kernel
from relay.loop.mirrors import unmirrored
from relay.loop.pieces import in_pieces
from relay.loop.simplify import simplify
from relay.loop.target import Target
from relay.loop.unswitch import unswitched
from relay.loop.verify import verify
from relay.loop.wraps import unwrapped


def kernel_object(kernel: Kernel, target: Target) -> bytes:
    """The ELF relocatable object of a kernel. Raises LoopError for a loop nest that breaks the rules, CompileError when the target cannot
    do what it needs."""
    verify(kernel)
    return compile_text(emit(prepared(kernel, target), target), target)


def prepared(kernel: Kernel, target: Target) -> Kernel:
    """The kernel as code is made of it: choices are made outside of vector loops, these are cut where their extents are numbers,
    what that decides is simplified, and rows that are looked up are asked for ahead."""
    first = simplify(kernel)
    cut = in_pieces(unmirrored(unwrapped(unswitched(first), target), target), target)
    return asking_ahead(first if cut is first else simplify(cut), target)
