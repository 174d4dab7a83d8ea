"""Loop nests as bytes: what other processes compile, and executables carry."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from relay.ir.dim import Atom, Dim, DimVar, as_dim, dim_atoms
from relay.loop.ir import TURN, WORKERS, Kernel
from relay.loop.target import Target
from relay.loop.walk import buffers_used, expressions, nodes, statements
from relay.te.scalar import Axis, Load, Size, walk


def to_bytes(kernels: Mapping[int, Kernel], target: Target) -> bytes:
    """Kernels, each by its number, and what they are to be compiled for."""
    out = io.BytesIO()
    loops = list(kernels.values())
    # Operands come before their users, because pickling goes into what it has not met; sizes in their order, which they keep.
    code = [s for k in loops for s in reversed([*statements(k.body)])]
    seen: set[int] = set()
    values = [node for s in code for value in expressions(s) for node in walk(value, seen)]
    _Pickler(out, pickle.HIGHEST_PROTOCOL).dump((_atoms(loops), values, code, target, dict(kernels)))
    return out.getvalue()


def from_bytes(data: bytes) -> tuple[Target, dict[int, Kernel]]:
    """The target and the kernels that `to_bytes` was given."""
    *_, target, kernels = cast("tuple[Any, Any, Any, Target, dict[int, Kernel]]", pickle.loads(data))
    return target, kernels


def _atoms(kernels: Iterable[Kernel]) -> list[Atom]:
    """The variables and operations in the sizes of kernels, in their order."""
    found: dict[Atom, None] = {}
    todo: list[Dim] = [d for k in kernels for d in _sizes(k)]
    while todo:
        for atom in dim_atoms(todo.pop()):
            if atom not in found:
                found[atom] = None
                todo += [] if isinstance(atom, DimVar) else [atom.a, atom.b]
    return sorted(found, key=lambda a: a.serial)


def _sizes(kernel: Kernel) -> Iterator[Dim]:
    yield from (*map(as_dim, kernel.dims), kernel.shared_bytes, kernel.worker_bytes, *kernel.rows)
    for node in nodes(kernel.body):
        if isinstance(node, Size):
            yield node.dim
        elif isinstance(node, Axis):
            yield node.extent
        elif isinstance(node, Load):
            yield from node.source.shape
    for buffer in (*kernel.inputs, *kernel.outputs, *buffers_used(kernel.body)):
        yield from buffer.shape


# The variables that are bound everywhere are the same ones in every process.
_EVERYWHERE = {axis.name: axis for axis in (WORKERS, TURN)}


def _everywhere(name: str) -> Axis:
    return _EVERYWHERE[name]


class _Pickler(pickle.Pickler):
    def reducer_override(self, obj: object) -> Any:
        return (
            (_everywhere, (obj.name,)) if isinstance(obj, Axis) and _EVERYWHERE.get(obj.name) is obj else NotImplemented
        )
