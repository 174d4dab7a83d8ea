"""Kernels that are compiled when they are first needed: what an executable carries in place of their objects.

They are kept as loop nests, so that neither passes nor plans are done again, and not as LLVM's text, which takes a third of the time
that it takes to compile it.
"""

from __future__ import annotations

import io
import pickle
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from relay.codegen.kernels import ObjectCode, build, symbol_of
from relay.ir.dim import Atom, Dim, DimVar, as_dim, dim_atoms
from relay.loop.ir import TURN, WORKERS, Kernel
from relay.loop.target import Target
from relay.loop.walk import buffers_used, expressions, nodes, statements
from relay.te.scalar import Axis, Load, Size, walk


def build_now(
    kernels: Sequence[Kernel], now: Collection[int], target: Target, *, cache: Path | bool, workers: int | None
) -> list[ObjectCode]:
    """The objects of the kernels of these numbers, and of the others their symbols with no data, but where one is the same kernel."""
    order = sorted(now)
    built = build([kernels[n] for n in order], target, cache=cache, workers=workers)
    known = {code.symbol: code for code in built}
    done = dict(zip(order, built, strict=True))
    out: list[ObjectCode] = []
    for n, kernel in enumerate(kernels):
        code = done.get(n)
        if code is None:
            symbol = symbol_of(kernel, target)
            code = known.get(symbol) or ObjectCode(symbol, b"")
        out.append(code)
    return out


def kept(kernels: Mapping[int, Kernel], target: Target) -> bytes:
    """Kernels, by the numbers of their objects, as bytes."""
    out = io.BytesIO()
    loops = list(kernels.values())
    # Operands come before their users, because pickling goes into what it has not met; sizes in their order, which they keep.
    code = [s for k in loops for s in reversed([*statements(k.body)])]
    seen: set[int] = set()
    values = [node for s in code for value in expressions(s) for node in walk(value, seen)]
    _Pickler(out, pickle.HIGHEST_PROTOCOL).dump((_atoms(loops), values, code, target, dict(kernels)))
    return zlib.compress(out.getvalue(), 1)


def read(later: bytes) -> tuple[Target, dict[int, Kernel]]:
    """What `kept` has kept: the target, and the kernels by the numbers of their objects."""
    *_, target, kernels = cast("tuple[Any, Any, Any, Target, dict[int, Kernel]]", pickle.loads(zlib.decompress(later)))
    return target, kernels


def objects_of(later: bytes, cache: Path | bool, workers: int | None) -> dict[int, bytes]:
    """The objects of what `kept` has kept, by their numbers."""
    target, kernels = read(later)
    built = build(list(kernels.values()), target, cache=cache, workers=workers)
    return {number: code.data for number, code in zip(kernels, built, strict=True)}


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
