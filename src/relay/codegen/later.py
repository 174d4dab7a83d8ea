"""Kernels that are compiled when they are first needed: what an executable carries in place of their objects.

They are kept as loop nests, so that neither passes nor plans are done again, and not as LLVM's text, which takes a third of the time
that it takes to compile it.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from relay.codegen.kernels import Build, ObjectCode, build, symbol_of
from relay.codegen.nest_bytes import from_bytes, to_bytes
from relay.loop.ir import Kernel
from relay.loop.target import Target


def build_now(kernels: Sequence[Kernel], now: Collection[int], target: Target, building: Build) -> list[ObjectCode]:
    """The objects of the kernels of these numbers, and of the others their symbols with no data, but where one is the same kernel."""
    order = sorted(now)
    built = building.objects([kernels[n] for n in order])
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
    return zlib.compress(to_bytes(kernels, target), 1)


def read(later: bytes) -> tuple[Target, dict[int, Kernel]]:
    """What `kept` has kept: the target, and the kernels by the numbers of their objects."""
    return from_bytes(zlib.decompress(later))


def objects_of(later: bytes, cache: Path | bool, workers: int | None) -> dict[int, bytes]:
    """The objects of what `kept` has kept, by their numbers."""
    target, kernels = read(later)
    built = build(list(kernels.values()), target, cache=cache, workers=workers)
    return {number: code.data for number, code in zip(kernels, built, strict=True)}
