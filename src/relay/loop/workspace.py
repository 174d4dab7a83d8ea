"""How many bytes of workspace a kernel needs, and where in it each of its buffers lies.

Buffers of one scope are laid out like a stack: one allocated inside another's body comes after it, and two
whose bodies follow each other share their place. Everything starts at a multiple of 64 bytes.
"""

from __future__ import annotations

from relay.ir.dim import Dim, ceil_div, dim_add, dim_max, dim_mul, shape_size
from relay.ir.record import record
from relay.ir.types import dtype_bits
from relay.loop.ir import Alloc, Buffer, Kernel, Stmt
from relay.loop.walk import parts


@record(frozen=True, slots=True)
class Workspace:
    """``offsets`` in bytes from the start of the shared part or of the worker's slice, by the buffer's scope."""

    offsets: dict[Buffer, Dim]
    shared: Dim
    worker: Dim


def buffer_bytes(buffer: Buffer) -> Dim:
    """The bytes of a buffer: elements narrower than a byte are packed."""
    return ceil_div(dim_mul(shape_size(buffer.shape), dtype_bits(buffer.dtype)), 8)


def layout(body: Stmt) -> Workspace:
    """The place of every ``worker`` and ``workspace`` buffer allocated in a statement."""
    offsets: dict[Buffer, Dim] = {}
    totals: dict[str, Dim] = {"workspace": 0, "worker": 0}
    todo: list[tuple[Stmt, Dim, Dim]] = [(body, 0, 0)]
    while todo:
        stmt, shared, worker = todo.pop()
        if isinstance(stmt, Alloc) and stmt.buffer.scope in totals:
            scope = stmt.buffer.scope
            start = shared if scope == "workspace" else worker
            offsets[stmt.buffer] = start
            end = dim_add(start, dim_mul(ceil_div(buffer_bytes(stmt.buffer), 64), 64))
            totals[scope] = dim_max(totals[scope], end)
            shared, worker = (end, worker) if scope == "workspace" else (shared, end)
        todo.extend((part, shared, worker) for part in reversed(parts(stmt)))
    return Workspace(offsets, totals["workspace"], totals["worker"])


def workspace_bytes(kernel: Kernel) -> tuple[Dim, Dim]:
    """What `Kernel.shared_bytes` and `Kernel.worker_bytes` must be for the kernel's body."""
    found = layout(kernel.body)
    return found.shared, found.worker
